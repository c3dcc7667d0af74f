#!/bin/sh
# demo.sh BUILDDIR - the whole pipeline on the embedded model: profile, train, place, run, and what it all gained.
# Called by "setup.sh demo". Works in demo-out/ beside it; DEMO_OUT changes the folder.
set -eu

build=$(cd "${1:?usage: demo.sh BUILDDIR}" && pwd)
top=$(cd "$(dirname "$0")/.." && pwd)
out=${DEMO_OUT:-$top/demo-out}
data=$top/datasets
. "$top/bench/json.sh"
PATH=$build:$PATH
export PATH LC_ALL=C
model=$out/demo.gguf
budget=${DEMO_BUDGET:-14M}

say() { printf '\n== %s\n' "$*"; }
run() {
    printf '$ %s\n' "$*"
    "$@"
}

mkdir -p "$out"
cd "$out"
cp -f "$data/demo.gguf" demo.gguf
cp -f "$data/hardware-demo.yaml" hardware.yaml

say "1. profile: which neurons fire, over $(wc -c <"$data/demo-text/train.txt" | tr -d ' ') bytes of sample text"
run pi-profile demo.gguf --data "$data/demo-text/train.txt" "$data/prompts.jsonl"

say "2. train: a small network per layer that predicts which neurons will fire"
run pi-train-predictor demo.gguf --json >train.json
awk 'BEGIN { printf "%5s  %6s  %7s  %9s  %8s\n", "layer", "width", "recall", "precision", "density" }' </dev/null
paste -d ' ' - - - - <<LIST | awk '{ printf "%5d  %6d  %6.1f%%  %8.1f%%  %7.1f%%\n", NR - 1, $1, 100 * $2, 100 * $3, 100 * $4 }'
$(json_list train.json width >w; json_list train.json recall >r; json_list train.json precision >p; json_list train.json density >d
  paste -d '\n' w r p d; rm -f w r p d)
LIST
printf 'predictors hold %.1f %% of the parameters\n' "$(json_get train.json params_share | awk '{ print 100 * $1 }')"

say "3. place: what lives in the $budget of fast memory of a simulated machine (hardware.yaml)"
run pi-place demo.gguf --vram-budget "$budget" --explain
pi-place demo.gguf --vram-budget "$budget" --json --quiet -o place.tmp.gguf >place.json
rm -f place.tmp.gguf

say "4. run: hot and cold neurons computed by two units, here both on the CPU"
run pi-run -m demo.gguf --device cpu+cpu -p "Once upon a time there was a little girl who" -n 120 -s 7 --ignore-eos
echo

say "5. what it gained (decoding on this machine's CPU; perplexity token by token on held-out text)"
head -c "${DEMO_PERPLEXITY_BYTES:-24000}" "$data/demo-text/heldout.txt" >heldout.txt
for i in 1 2 3; do
    for mode in dense exact predicted; do
        pi-run -m demo.gguf --mode $mode --device cpu -p "Once upon a time" -n 200 -s 1 --ignore-eos --json --quiet >"gen.$mode.$i.json"
    done
done
printf '%-10s  %9s  %8s  %18s  %10s\n' mode tokens/s 'x dense' 'weights read/token' perplexity
base=
for mode in dense exact predicted; do
    pi-run -m demo.gguf --mode $mode --device cpu --perplexity heldout.txt --stepwise --json --quiet >"ppl.$mode.json"
    speed=$(for i in 1 2 3; do json_get "gen.$mode.$i.json" tokens_per_second; done | median)
    base=${base:-$speed}
    printf '%-10s  %9.0f  %8.2f  %16.1f M  %10.3f\n' $mode "$speed" "$(echo "$speed $base" | awk '{ print $1 / $2 }')" \
        "$(json_get "gen.$mode.1.json" weights_per_token | awk '{ print $1 / 1e6 }')" "$(json_get "ppl.$mode.json" perplexity)"
done
printf '\nshare of activations in the simulated budget of %s: %.1f %%\n' "$budget" \
    "$(json_get place.json activations_on_gpu | awk '{ print 100 * $1 }')"
echo "The artifacts are in $out. Try: $build/pi-run -m $out/demo.gguf -p \"The old man said\""
