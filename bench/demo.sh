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
budget=${DEMO_BUDGET:-24M}

say() { printf '\n== %s\n' "$*"; }
run() {
    printf '$'
    for word in "$@"; do
        case $word in
        *' '*) printf ' "%s"' "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    echo
    "$@"
}

mkdir -p "$out"
cd "$out"
cp -f "$data/demo.gguf" demo.gguf
cp -f "$data/hardware-demo.yaml" hardware.yaml

echo "On 2 free cores this takes about three minutes; a re-run starts over."

say "1. profile: which neurons fire, over some 110,000 tokens of sample text (one minute)"
run pi-profile demo.gguf --data "$data/demo-text/train.txt" "$data/prompts.jsonl"

cat <<'TEXT'
density: neurons that fire for a token. hot80: neurons, hottest first, that make 80 % of all activations. never: neurons that did not fire.
TEXT

say "2. train: a small network per layer that predicts which neurons will fire (one minute)"
run pi-train-predictor demo.gguf --json >train.json
awk 'BEGIN { printf "%5s  %6s  %7s  %9s  %8s\n", "layer", "width", "recall", "precision", "called" }' </dev/null
paste -d ' ' - - - - <<LIST | awk '{ printf "%5d  %6d  %6.1f%%  %8.1f%%  %7.1f%%\n", NR - 1, $1, 100 * $2, 100 * $3, 100 * $4 }'
$(json_list train.json width >w; json_list train.json recall >r; json_list train.json precision >p; json_list train.json density >d
  paste -d '\n' w r p d; rm -f w r p d)
LIST
echo "width: of the network. recall: firing neurons that are found. precision: called neurons that fire. called: neurons that are computed."
printf 'The predictors hold %.1f %% of the parameters.\n' "$(json_get train.json params_share | awk '{ print 100 * $1 }')"

say "3. place: what lives in $budget of GPU memory on a made-up small machine (hardware.yaml)"
run pi-place demo.gguf --vram-budget "$budget" --explain
pi-place demo.gguf --vram-budget "$budget" --json --quiet -o place.tmp.gguf >place.json
rm -f place.tmp.gguf

say "4. run: hot and cold neurons computed by two units, here both on the CPU"
run pi-run -m demo.gguf --device cpu+cpu -p "Once upon a time there was a little girl who" -n 120 -s 7 --ignore-eos 2>run.log || {
    cat run.log >&2
    exit 1
}
echo
cat run.log

say "5. what it gained: decoding on this machine's CPU alone, median of 3 (half a minute)"
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
cat <<'TEXT'
dense reads all weights; exact skips the rows of neurons that do not fire, with the same result; predicted reads only the rows of neurons
that are predicted to fire. Perplexity is of held-out text, decoded token by token: lower is better, the same is lossless.
TEXT
printf '\nOn the made-up machine of step 3 neurons that make %.1f %% of all activations live on the GPU, within %s in all.\n' \
    "$(json_get place.json activations_on_gpu | awk '{ print 100 * $1 }')" "$budget"
printf 'Expected there: %.0f tokens/s, with its CPU alone %.0f.\n\n' "$(json_get place.json placed)" "$(json_get place.json cpu)"
echo "The artifacts are in $out. Try: $build/pi-run -m $out/demo.gguf -p \"The old man said\""
