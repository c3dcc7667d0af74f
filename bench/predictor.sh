#!/bin/sh
# predictor.sh MODEL.gguf TEXT… - judges the predictors beside a model on text: runs pi-run token by token in predicted
# mode with the full gate beside it, and recomputes recall and weights read from the sets it writes.
# Perplexity of predicted, exact and dense mode stands below. MASK_STATS names the program (bench/mask_stats, "make bench/mask_stats").
set -eu

model=${1:?usage: predictor.sh MODEL.gguf TEXT...}
shift
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/bench/json.sh"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
predictor=${model%.gguf}.predictor.gguf

for text in "$@"; do
    printf '\n%s\n' "$text"
    pi-run -m "$model" --mode predicted --device cpu --perplexity "$text" --stepwise --verify --masks "$tmp/masks" --json --quiet \
        >"$tmp/verify"
    "${MASK_STATS:-mask_stats}" "$model" "$predictor" "$tmp/masks"
    for key in kl top1 missed wasted; do
        printf '%s %s  ' $key "$(json_get "$tmp/verify" $key)"
    done
    echo
    for mode in dense exact predicted; do
        pi-run -m "$model" --mode $mode --device cpu --perplexity "$text" --stepwise --json --quiet >"$tmp/ppl.$mode"
        printf '%-10s perplexity %s, %s of dense\n' $mode "$(json_get "$tmp/ppl.$mode" perplexity)" \
            "$(cat "$tmp/ppl.$mode" "$tmp/ppl.dense" | sed 's/.*"perplexity": *\([0-9.]*\).*/\1/' | paste -s -d ' ' - |
                awk '{ printf "%.6f", $1 / $2 }')"
    done
done
