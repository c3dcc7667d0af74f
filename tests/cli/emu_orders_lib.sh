# Shared by the tests of other orders on the emulated device; to be read with ".".
if grep -q __asan_init "$abs_top_builddir/tests/t_emu"; then
    echo "1..0 # SKIP the sanitizers slow this down too much; the programs' own runs have them"
    exit 0
fi
n=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

passes() { # PROGRAM SETTING...
    n=$((n + 1))
    program=$1
    shift
    if env "$@" "$abs_top_builddir/tests/$program" >"$tmp/out" 2>&1; then
        echo "ok $n - $program $*"
    else
        echo "not ok $n - $program $*"
        grep -v '^ok' "$tmp/out" | head -n 20 | sed 's/^/# /'
    fi
}

