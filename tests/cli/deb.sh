#!/bin/sh
# The Debian package, made in one command out of a clean copy: only where PI_TEST_DEB=1 asks for it, since it builds everything once more.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}
[ "${PI_TEST_DEB-}" = 1 ] || skip 'PI_TEST_DEB=1 makes the package'
for t in dpkg-buildpackage dh git; do
    command -v $t >/dev/null || skip "no $t"
done
git -C "$abs_top_srcdir" rev-parse HEAD >/dev/null 2>&1 || skip 'no checkout'
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR

mkdir "$tmp/work"
# What is in the folder now, committed or not, but nothing that git ignores.
(cd "$abs_top_srcdir" && git ls-files -co --exclude-standard -z | tar --null -T - -cf -) | tar -C "$tmp/work" -xf - --one-top-level=pi-toolchain
cd "$tmp/work/pi-toolchain" || exit 99
works 'dpkg-buildpackage -us -uc -b' dpkg-buildpackage -us -uc -b
deb=$(ls "$tmp"/work/pi-toolchain_*.deb)
[ "$(echo "$deb" | wc -l)" = 1 ] && [ -s "$deb" ]
check $? 'one package'
works 'its contents' dpkg-deb -x "$deb" "$tmp/root"
for p in pi-convert pi-place pi-profile pi-run pi-train-predictor; do
    [ -x "$tmp/root/usr/bin/$p" ] && [ -s "$tmp/root/usr/share/man/man1/$p.1.gz" ] && [ -s "$tmp/root/usr/share/bash-completion/completions/$p" ]
    check $? "$p, its man page and completion"
done
works 'its pi-run --demo' "$tmp/root/usr/bin/pi-run" --demo -s 7 -n 8
[ -s "$tmp/out" ]
check $? 'tells a story'
dpkg-deb -f "$deb" Depends >"$tmp/depends"
grep -q libglpk "$tmp/depends" && grep -q libmicrohttpd "$tmp/depends" && ! grep -q cuda "$tmp/depends"
check $? "depends on what it links"
for p in pi-convert pi-profile pi-run pi-train-predictor; do ldd "$tmp/root/usr/bin/$p"; done | grep -q glpk
[ $? = 1 ] && grep -q GPL "$tmp/root/usr/share/doc/pi-toolchain/copyright"
check $? 'pi-place alone links GLPK, and the copyright file says what follows'
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning "$deb" >"$tmp/lintian" 2>&1
    status=$?
    sed 's/^/# /' "$tmp/lintian"
    check $status 'lintian has nothing to say'
else
    n=$((n + 1))
    echo "ok $n - lintian # SKIP there is none"
fi
echo "1..$n"
