#!/bin/sh
# Every option of --help stands in the program's man page, every page is clean under mandoc -Tlint, and the exit
# statuses are listed.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
check() { # STATUS NAME
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

for p in pi-convert pi-profile pi-train-predictor pi-place pi-run; do
    page=$abs_top_builddir/man/$p.1
    $p --help >"$tmp/help"
    check $? "$p --help"
    grep -oE '^  (-., |    )--[a-z0-9-]+' "$tmp/help" | sed 's/.*--/--/' | sort >"$tmp/options"
    grep '^\.It' "$page" | grep -oE 'Fl -[a-z0-9-]+' | sed 's/Fl /-/' | sort >"$tmp/described"
    [ -s "$tmp/options" ] && cmp -s "$tmp/options" "$tmp/described"
    status=$?
    check $status "$p.1 describes each option of --help, and no other"
    [ $status = 0 ] || diff "$tmp/options" "$tmp/described" | sed 's/^/# /'
    grep -q '^\.Sh EXIT STATUS' "$page" && grep -q '^\.Sh EXAMPLES' "$page"
    check $? "$p.1 has EXIT STATUS and EXAMPLES"
    $p --version | grep -q "^$p (pi-toolchain) [0-9]"
    check $? "$p --version"
done
for page in "$abs_top_builddir"/man/*.[15]; do
    if command -v mandoc >/dev/null; then
        mandoc -Tlint -W warning "$page" >"$tmp/lint" 2>&1
        sed 's/^/# /' "$tmp/lint"
        ! grep -qE '(WARNING|ERROR|UNSUPP|SYSERR)' "$tmp/lint"
        check $? "$(basename "$page") is clean under mandoc"
    else
        n=$((n + 1))
        echo "ok $n - $(basename "$page") # SKIP no mandoc"
    fi
done
echo "1..$n"
