#!/bin/sh
# gpu.sh NAME [option value]... - decode and prompt speed of a synthetic model at several budgets of VRAM, dense and predicted.
#
#   --shape 7b|13b|70b|opt-6.7b|small   or LAYERS,EMBD,FF,HEADS[,KV_HEADS]; default 7b
#   --arch llama|opt                    default llama
#   --type f16|q8_0|q4_0                default f16
#   --shares '25 50 75 all'             budgets: the CUDA context and so many % of the model's bytes; all: all that the GPU has; 0: the CPU alone
#   --modes 'dense predicted'           or exact; each with a placement of its own; ratios are to dense, so put it first
#   --parallel '1'                      batches, as in '1 4 8 16 32'
#   --prompt 128  --steps 64            tokens of a prompt, decode steps; --dense-steps N: of dense runs, default a quarter
#   --rank 512  --density 0.1  --seed 1
#   --predictor-type f16|q8_0|q4_0      default f16
#   --hardware FILE                     default: hardware.yaml in the work folder, probed once if it is not there
#   --run 'OPTIONS'                     more options of pi-run, such as '-t 15' or '--device cpu+cpu'
#   --place 'OPTIONS'                   and of pi-place, such as '-b 128'
#   --work DIR                          default: a new folder under $TMPDIR or /dev/shm, removed at the end; a folder that is given is kept, and what
#                                       lies in it (model, hardware.yaml) is used again
#
# BIN: folder of the programs (default: they are on PATH); RUN: a command in front of every one of them, as in RUN='gpu-pack/run'.
# Prints a table; the raw figures go to $RESULTS/NAME.json (default: results/ beside this script).
set -eu

usage() {
    sed -n '2,/^set -eu/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 2
}

[ $# -ge 1 ] || usage
case $1 in -*) usage ;; esac
name=$1
command="bench/gpu.sh $*"
shift
top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=/dev/null
. "$top/bench/json.sh"
shape=7b arch=llama type=f16 shares='25 50 75 all' modes='dense predicted' batches=1 prompt=128 steps=64 dense_steps='' rank=512 density=0.1
seed=1 pred_type=f16 hardware='' run_opts='' place_opts='' work=''
while [ $# -ge 2 ]; do
    case $1 in
    --shape) shape=$2 ;;
    --arch) arch=$2 ;;
    --type) type=$2 ;;
    --shares) shares=$2 ;;
    --modes) modes=$2 ;;
    --parallel) batches=$2 ;;
    --prompt) prompt=$2 ;;
    --steps) steps=$2 ;;
    --dense-steps) dense_steps=$2 ;;
    --rank) rank=$2 ;;
    --density) density=$2 ;;
    --seed) seed=$2 ;;
    --predictor-type) pred_type=$2 ;;
    --hardware) hardware=$2 ;;
    --run) run_opts=$2 ;;
    --place) place_opts=$2 ;;
    --work) work=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ $# = 0 ] || usage
[ -n "$dense_steps" ] || dense_steps=$(((steps + 3) / 4))
case $shape in
7b) dims=32,4096,11008,32 ;;
13b) dims=40,5120,13824,40 ;;
70b) dims=80,8192,28672,64,8 ;;
opt-6.7b) dims=32,4096,16384,32 arch=opt ;;
small) dims=4,512,1408,8 ;;
*,*,*,*) dims=$shape ;;
*) usage ;;
esac

# program NAME ARG...: with the folder and the command that were asked for
program() {
    p=$1
    shift
    ${RUN-} "${BIN:+$BIN/}$p" "$@"
}
synth=pi-synth
[ -z "${BIN-}" ] || [ -x "$BIN/pi-synth" ] || synth=bench/pi-synth

say() { # to people, with the seconds since the start
    echo "# $(($(date +%s) - t_start)) s: $*" >&2
}
t_start=$(date +%s)
if [ -z "$work" ]; then
    if [ -n "${TMPDIR-}" ]; then base=$TMPDIR; elif [ -d /dev/shm ]; then base=/dev/shm; else base=/tmp; fi
    work=$(mktemp -d "$base/pi-bench-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
else
    mkdir -p "$work"
fi
out=${RESULTS-$top/bench/results}/$name.json
mkdir -p "$(dirname "$out")"
runs=$work/runs.$$
: >"$runs"

[ -n "$hardware" ] || hardware=$work/hardware.yaml
if [ ! -f "$hardware" ]; then
    say 'probing the machine'
    program pi-place --probe-hardware "$hardware" -q
fi
# gpu KEY: a figure of the first GPU, in whole bytes; 0 without one
gpu() {
    sed -n 's/.*[ {]'"$1"': *\([0-9.e+]*\).*/\1/p' "$hardware" | head -n 1 | awk '{ printf "%.0f", $1; n = 1 } END { if (!n) print 0 }'
}
context=$(gpu context_bytes)
memory=$(gpu memory)

# The model is named after all that it depends on, so that a kept work folder serves other calls.
model=$work/synthetic-$arch-$(echo "$dims" | tr , -)-$type-r$rank-$pred_type-d$density-s$seed.gguf
if [ ! -f "$model" ] || [ ! -f "${model%.gguf}.profile.gguf" ]; then
    say "making a synthetic model, $arch $dims $type"
    old_ifs=$IFS
    IFS=,
    # shellcheck disable=SC2086
    set -- $dims
    IFS=$old_ifs
    program $synth -o "$model" --arch "$arch" --layers "$1" --embd "$2" --ff "$3" --heads "$4" --kv-heads "${5-$4}" --type "$type" \
        --rank "$rank" --predictor-type "$pred_type" --density "$density" --seed "$seed" --json -q >"$model.json"
fi
bytes=$(wc -c <"$model" | tr -d ' ')
say "model of $bytes bytes, context of $context"

# place SHARE BATCH MODE: status 1, with the reason in $work/err, where it can not be done
place() {
    case $1 in
    all) budget=$(awk -v m="$memory" 'BEGIN { printf "%.0f", 0.95 * m / 1024 }') ;;
    0) budget=0 ;;
    *) budget=$(awk -v c="$context" -v b="$bytes" -v s="$1" 'BEGIN { printf "%.0f", (c + b * s / 100) / 1024 }') ;;
    esac
    # shellcheck disable=SC2086
    program pi-place "$model" --vram-budget "${budget}K" --hardware "$hardware" -c $((prompt + most + 4)) --parallel "$2" --mode "$3" \
        -o "$work/placement.gguf" --json -q $place_opts >"$work/place.json" 2>"$work/err"
}

# bench MODE BATCH STEPS
bench() {
    # shellcheck disable=SC2086
    program pi-run -m "$model" --placement "$work/placement.gguf" --mode "$1" --parallel "$2" --bench --bench-prompt "$prompt" \
        --bench-tokens "$3" --bench-random -s "$seed" --hardware "$hardware" --no-check --json -q $run_opts >"$work/bench.json" 2>"$work/err"
}

most=$steps
[ "$dense_steps" -le "$most" ] || most=$dense_steps
echo "synthetic $arch $dims, $type, $bytes bytes, density $density, predictor of rank $rank ($pred_type)"
printf '%-6s %-10s %5s %10s %8s %8s %10s %8s %8s %8s %8s %8s %8s\n' VRAM mode batch tokens/s floor 'x dense' prompt/s 'of PCIe' 'P99 ms' 'GPU ms' 'CPU ms' 'wait ms' 'hand ms'
for share in $shares; do
    for batch in $batches; do
        dense=
        for mode in $modes; do
            n=$steps
            [ "$mode" != dense ] || n=$dense_steps
            if ! place "$share" "$batch" "$mode" || ! bench "$mode" "$batch" "$n"; then
                printf '%-6s %-10s %5s %s\n' "$share" "$mode" "$batch" "$(head -n 1 "$work/err")"
                continue
            fi
            printf '{"share":"%s","budget":%s,"place":%s,"bench":%s}\n' "$share" "$((budget * 1024))" "$(cat "$work/place.json")" \
                "$(cat "$work/bench.json")" >>"$runs"
            get() { v=$(json_get "$work/bench.json" "$1"); echo "${v:-null}"; }
            speed=$(get tokens_per_second)
            [ "$mode" != dense ] || dense=$speed
            label="$share %"
            [ "$share" != all ] || label=all
            echo "$speed $(get share) ${dense:-null} $(get prompt_tokens_per_second) $(get pcie_share) $(get p99) $(get gpu_busy) $(get cpu_busy) $(get cpu_waiting) $(get handover)" |
                awk -v label="$label" -v mode="$mode" -v batch="$batch" '
                    function num(x, f, by) { return x == "null" ? "-" : sprintf(f, x * by) }
                    { x = "-"; if ($3 != "null") x = sprintf("%.2f", $1 / $3)
                      printf("%-6s %-10s %5d %10.2f %8s %8s %10s %8s %8.2f %8s %8s %8s %8s\n", label, mode, batch, $1, num($2, "%.1f %%", 100), x,
                             num($4, "%.1f", 1), num($5, "%.1f %%", 100), $6, num($7, "%.2f", 1), num($8, "%.2f", 1), num($9, "%.2f", 1), num($10, "%.2f", 1)) }'
        done
    done
done

{
    printf '{"name":"%s","command":"%s","date":"%s","machine":"%s","model":%s,"runs":[\n' "$name" "$(echo "$command" | sed 's/["\\]/\\&/g')" "$(date -u +%Y-%m-%dT%H:%MZ)" \
        "$(tr '\n' ' ' <"$hardware" | sed 's/#[^:]*pi_hardware/pi_hardware/; s/"/\\"/g; s/  */ /g')" "$(cat "$model.json")"
    sed '$!s/$/,/' "$runs"
    printf ']}\n'
} >"$out.tmp"
mv "$out.tmp" "$out"
rm -f "$runs"
say "raw figures in $out"
