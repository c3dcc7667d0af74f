#!/bin/sh
# Options in three places: --help, the man page, what bash completes. All three are the same.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
bash=$(command -v bash) || {
    echo "1..0 # SKIP no bash"
    exit 0
}
programs='pi-convert pi-profile pi-train-predictor pi-place pi-run'

# completes PROGRAM WORD...: what the last word may become, a line each.
completes() {
    "$bash" -c '. "$1" || exit 1
        shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _pi_toolchain "$1" "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf "%s\n" "${COMPREPLY[@]}"' - "$abs_top_builddir/completion/$1" "$@"
}

for p in $programs; do
    "$p" --help | sed -nE 's/^  (-., |    )--([a-z0-9-]+).*/\2/p' | sort >"$tmp/help"
    [ -s "$tmp/help" ] && [ -z "$(uniq -d "$tmp/help")" ]
    check $? "$p --help has options, each once"
    completes "$p" -- | sed 's/^--//' | sort >"$tmp/completion"
    diff "$tmp/help" "$tmp/completion" | sed 's/^/# /'
    cmp -s "$tmp/help" "$tmp/completion"
    check $? "$p: bash completes them all"
    # ".It Fl c Ar N , Fl -ctx-size Ar N": long options of items, which explain them; commands of a conversation are no options.
    grep '^\.It .*Fl -' "$abs_top_builddir/man/$p.1" | grep -oE 'Fl -[a-z0-9-]+' | sed 's/Fl -//' | sort -u >"$tmp/man"
    diff "$tmp/help" "$tmp/man" | sed 's/^/# /'
    cmp -s "$tmp/help" "$tmp/man"
    check $? "$p.1 explains the same"
    "$bash" -c '. "$1" && complete -p "$2"' - "$abs_top_builddir/completion/$p" "$p" | grep -q _pi_toolchain
    check $? "$p: bash knows whose it is"
done

completed() { # NAME WANTED PROGRAM WORD...
    name=$1 wanted=$2
    shift 2
    got=$(completes "$@" | sort | tr '\n' ' ')
    [ "$got" = "$wanted" ]
    check $? "$name"
    [ "$got" = "$wanted" ] || echo "# got $got, wanted $wanted"
}
cd "$tmp" && mkdir folder folder/in && touch 'folder/a model.gguf' folder/m.gguf
completed 'a beginning' '--bench --bench-prompt --bench-random --bench-tokens ' pi-run --benc
completed 'choices' 'dense exact predicted ' pi-run --mode ''
completed 'a choice that was begun' 'exact ' pi-run --mode ex
completed 'behind an equals sign' 'exact ' pi-run --mode = ex
completed 'right behind it' 'f16 f32 ' pi-run --kv =
completed 'files of a letter' 'folder/a model.gguf folder/in folder/m.gguf ' pi-run -m folder/
completed 'folders' 'folder/in ' pi-convert --predictor folder/
completed 'a number is the user’s' ' ' pi-run -c ''
completed 'files behind a flag' 'folder/m.gguf ' pi-run --json folder/m
completed 'operands' 'folder/m.gguf ' pi-place folder/m
echo "1..$n"
