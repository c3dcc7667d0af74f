# Completion for bash of pi-convert, pi-profile, pi-train-predictor, pi-place and pi-run. What there is to complete is read from the --help of the program
# that was typed, so that it is never another version's.

# The line of --help that explains an option: "-o, --output FILE   the GGUF file to write"
_pi_toolchain_line() { # PROGRAM OPTION
    "$1" --help 2>/dev/null | grep -E -m 1 -e "^  (-., |    )$2( |\$)" -e "^  $2, "
}

# The name of an option's argument ("FILE", "a|b|c"); nothing for one that takes none.
_pi_toolchain_argument() { # PROGRAM OPTION
    _pi_toolchain_line "$1" "$2" | sed -nE 's/^  (-., |    )--[a-z0-9-]+ ([^ ]+)( .*)?$/\2/p' | grep -E '^([A-Z=]+(\.\.\.)?|[^ ]*\|[^ ]*)$'
}

_pi_toolchain() {
    local program=$1 word=$2 before=$3 argument
    COMPREPLY=()
    # The shell cuts at "=": an option, "=", and what is typed of its value.
    if [ "$word" = = ]; then
        word=
    elif [ "$before" = = ] && [ "$COMP_CWORD" -ge 2 ]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    case $before in
    -*)
        argument=$(_pi_toolchain_argument "$program" "$before")
        case $argument in
        DIR) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        FILE*) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        *'|'*) mapfile -t COMPREPLY < <(compgen -W "${argument//|/ }" -- "$word"); return ;;
        ?*) return ;;
        esac
        ;;
    esac
    case $word in
    -*)
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -nE 's/^  (-., |    )(--[a-z0-9-]+).*/\2/p')" -- "$word")
        ;;
    *)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        ;;
    esac
}

complete -F _pi_toolchain pi-convert pi-profile pi-train-predictor pi-place pi-run
