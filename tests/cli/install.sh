#!/bin/sh
# make install and make uninstall, staged: what is installed runs from where it was put, with the demo model; and nothing stays behind.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR
make=${MAKE-make}
d=$tmp/stage
programs='pi-convert pi-place pi-profile pi-run pi-train-predictor'

works 'make install' "$make" -C "$abs_top_builddir" -s install DESTDIR="$d"
run=$(find "$d" -name pi-run -type f -perm -u+x)
bin=$(dirname "$run")
[ -n "$run" ] && [ "$(cd "$bin" && echo *)" = "$programs" ]
check $? 'five programs'
for p in $programs; do
    "$bin/$p" --help >"$tmp/help" && "$bin/$p" --version >"$tmp/version" && [ "$("$p" --help)" = "$(cat "$tmp/help")" ] &&
        grep -q "^$p (pi-toolchain) [0-9]" "$tmp/version"
    check $? "$p --help and --version"
    [ "$(find "$d" -path "*/man1/$p.1" | wc -l)" = 1 ] && [ "$(find "$d" -path "*/bash-completion/completions/$p" | wc -l)" = 1 ]
    check $? "$p has a man page and a completion"
done
[ "$(find "$d" -path '*/man5/pi-artifacts.5' | wc -l)" = 1 ]
check $? 'pi-artifacts.5'

cd / || exit 99
works 'pi-run --demo from there' "$bin/pi-run" --demo -s 7 -n 12
cp "$tmp/out" "$tmp/story"
[ "$(wc -w <"$tmp/story")" -ge 5 ] && grep -q 'Once upon a time' "$tmp/err" && ! grep -q 'make one with' "$tmp/err"
check $? 'it goes on with a sentence that it names, and asks for nothing'
works 'from the build tree' pi-run --demo -s 7 -n 12
cmp -s "$tmp/out" "$tmp/story"
check $? 'the same text'
works 'with a prompt' "$bin/pi-run" --demo -p 'The old man said' -n 3 --json
[ "$(value tokens "$tmp/out" | tr ',' '\n' | wc -l)" = 3 ]
check $? 'as any model'
works 'its tokens' "$bin/pi-run" --demo --tokenize
[ "$(value tokens "$tmp/out" | tr ',' '\n' | wc -l)" = 10 ]
check $? 'of the sentence'
works 'its speed' "$bin/pi-run" --demo -q --bench --bench-prompt 4 --bench-tokens 2 -t 1
[ "$(find "$d" -name prompts.jsonl -o -name train.txt -o -name hardware-demo.yaml | wc -l)" = 3 ]
check $? 'text and machine for the other programs'

mv "$d" "$tmp/moved"
works 'moved' "$tmp/moved${bin#"$d"}/pi-run" --demo -s 7 -n 12
cmp -s "$tmp/out" "$tmp/story"
check $? 'still the same text'
mkdir "$tmp/alone"
cp "$tmp/moved${bin#"$d"}/pi-run" "$tmp/alone"
configured=$("$make" -C "$abs_top_builddir" -s print-pkgdatadir)
if [ -e "$configured/demo.gguf" ]; then
    n=$((n + 1))
    echo "ok $n - no demo model # SKIP it is installed on this machine"
else
    fails 7 "--demo: the demo model is not installed: .*$configured.*-m" 'no demo model' "$tmp/alone/pi-run" --demo
fi
fails 2 'without -m' '-m and --demo' pi-run --demo -m x.gguf
mv "$tmp/moved" "$d"

works 'make uninstall' "$make" -C "$abs_top_builddir" -s uninstall DESTDIR="$d"
left=$(find "$d" ! -type d; find "$d" -name pi-toolchain)
[ -z "$left" ]
check $? "nothing stays${left:+: $left}"
echo "1..$n"
