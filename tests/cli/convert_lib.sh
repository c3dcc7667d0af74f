# Shared by the tests of pi-convert on hostile inputs; to be read with ".", behind run_lib.sh. Sources are $tmp/lie.gguf, the output $out.
limit='ulimit -v 1000000' # but under sanitizers, which reserve terabytes of addresses
(ulimit -v 1000000 && timeout -s KILL 20 pi-convert --version) >/dev/null 2>&1 || limit=:

# number VALUE BYTES: little-endian.
number() {
    v=$1
    for _ in $(seq "$2"); do
        printf "\\$(printf %03o $((v & 255)))"
        v=$((v >> 8))
    done
}
str() { number ${#1} 8; printf %s "$1"; }
head_of() { printf GGUF; number "$1" 4; number "$2" 8; number "$3" 8; } # VERSION TENSORS KEYS

# refused STATUS PATTERN NAME [SOURCE]: in bounded memory and time, with one line, and nothing is left behind.
refused() {
    ($limit; exec timeout -s KILL 60 pi-convert -q "${4-$tmp/lie.gguf}" -o "$out" -t 1) >"$tmp/o" 2>"$tmp/err"
    got=$?
    case $got in $1) same=0 ;; *) same=1 ;; esac
    [ $same = 0 ] && [ ! -s "$tmp/o" ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -qE -e "$2" "$tmp/err" && [ -z "$(ls -A "${out%/*}")" ]
    check $? "$3: status $got, $(head -1 "$tmp/err" | cut -c1-150)"
}
# taken NAME [SOURCE]: what looks odd and is none of our business.
taken() {
    ($limit; exec timeout -s KILL 60 pi-convert -q "${2-$tmp/lie.gguf}" -o "$out" -t 1) >"$tmp/o" 2>"$tmp/err"
    check $? "$1: taken, $(head -1 "$tmp/err" | cut -c1-150)"
    rm -f "$out"
}
# lie STATUS PATTERN NAME: a file that is $tmp/head and zeros.
lie() {
    { cat "$tmp/head"; head -c 4096 /dev/zero; } >"$tmp/lie.gguf"
    refused "$@"
}
