#!/bin/sh
# decode.sh MODEL.gguf [THREADS…] - decode speed of the three modes, on each thread count, interleaved so that a noisy machine is noisy to all.
# The artifacts must lie beside the model. Prints tokens/s (median of 5), the ratio to dense, and what a token reads. Also checks that
# the text is the same at every thread count.
set -eu

model=${1:?usage: decode.sh MODEL.gguf [THREADS...]}
shift
[ $# -gt 0 ] || set -- 1 2
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/bench/json.sh"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=${BENCH_TOKENS:-256}

printf '%-8s %-10s %10s %9s %14s %12s\n' threads mode tokens/s 'x dense' 'weights/token' 'bytes/token'
for t in "$@"; do
    for i in 1 2 3 4 5; do
        for mode in dense exact predicted; do
            pi-run -m "$model" --mode $mode --device cpu -t "$t" -p "Once upon a time" -n "$n" -s 1 --ignore-eos --json --quiet \
                >"$tmp/$mode.$t.$i"
        done
    done
    base=
    for mode in dense exact predicted; do
        speed=$(for i in 1 2 3 4 5; do json_get "$tmp/$mode.$t.$i" tokens_per_second; done | median)
        base=${base:-$speed}
        printf '%-8s %-10s %10.1f %9.2f %13.2fM %11.2fM\n' "$t" $mode "$speed" "$(echo "$speed $base" | awk '{ print $1 / $2 }')" \
            "$(json_get "$tmp/$mode.$t.1" weights_per_token | awk '{ print $1 / 1e6 }')" \
            "$(json_get "$tmp/$mode.$t.1" bytes_per_token | awk '{ print $1 / 1e6 }')"
        json_get "$tmp/$mode.$t.1" text >"$tmp/text.$mode.$t"
        cmp -s "$tmp/text.$mode.$1" "$tmp/text.$mode.$t" || {
            echo "decode.sh: $mode gives another text on $t threads than on $1" >&2
            exit 1
        }
    done
done
