#!/bin/sh
# cpu.sh NAME [option value]... - one table a machine: what decoding and prompts reach on the CPU, beside what its memory gives.
#
#   --types 'f16 q8_0 q4_0 q4_k'   weight types, each a synthetic model of its own
#   --bytes 1.1                    least size of each model, GB
#   --embd 2048 --ff 8192          shape of a layer; d a multiple of 256 for K types
#   --modes 'dense exact predicted'
#   --prompt 512 --steps 48        tokens of a prompt (measured once, dense), decode steps
#   --repeat 3                     runs of each, interleaved; the median is printed
#   --threads N                    default: the cores that may be used
#   --density 0.1 --rank 256 --seed 1
#   --run 'OPTIONS'                more options of pi-run, such as '--act f32'
#   --peer PYTHON                  a Python that has llama-cpp-python: the same dense file, the same threads
#   --work DIR                     default: a new folder under $TMPDIR, removed at the end; models in one that is given are kept and used again
#
# BIN: folder of the programs (default: they are on PATH); RUN: a command in front of every one of them. OPENBLAS_CORETYPE is unset: it is there for old
# libraries' sake, and slows a current one. Prints the table; the raw figures go to $RESULTS/NAME.json (default: results/ beside this script).
set -eu

usage() {
    sed -n '2,/^set -eu/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 2
}

[ $# -ge 1 ] || usage
case $1 in -*) usage ;; esac
name=$1
command="bench/cpu.sh $*"
shift
top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=/dev/null
. "$top/bench/json.sh"
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
types='f16 q8_0 q4_0 q4_k' bytes=1.1 embd=2048 ff=8192 modes='dense exact predicted' prompt=512 steps=48 repeat=3 threads='' density=0.1 rank=256 seed=1
run_opts='' peer='' work=''
while [ $# -ge 2 ]; do
    case $1 in
    --types) types=$2 ;;
    --bytes) bytes=$2 ;;
    --embd) embd=$2 ;;
    --ff) ff=$2 ;;
    --modes) modes=$2 ;;
    --prompt) prompt=$2 ;;
    --steps) steps=$2 ;;
    --repeat) repeat=$2 ;;
    --threads) threads=$2 ;;
    --density) density=$2 ;;
    --rank) rank=$2 ;;
    --seed) seed=$2 ;;
    --run) run_opts=$2 ;;
    --peer) peer=$2 ;;
    --work) work=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ $# = 0 ] || usage
bin=${BIN:+$BIN/}
results=${RESULTS:-$top/bench/results}
mkdir -p "$results"
[ -n "$work" ] || {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
}
mkdir -p "$work"
tmp=$work/figures
mkdir -p "$tmp"

# bits_of TYPE: bits of a weight
bits_of() {
    case $1 in
    f32) echo 32 ;;
    f16 | bf16) echo 16 ;;
    q8_0) echo 8.5 ;;
    q6_k) echo 6.5625 ;;
    q5_1) echo 6 ;;
    q5_0 | q5_k) echo 5.5 ;;
    q4_1) echo 5 ;;
    q4_0 | q4_k) echo 4.5 ;;
    *)
        echo "cpu.sh: --types: $1 is none that pi-synth writes" >&2
        exit 2
        ;;
    esac
}

# make_model TYPE FILE [option]: enough layers for the size
make_model() {
    t=$1 f=$2
    shift 2
    [ -f "$f" ] && return 0
    layers=$(awk -v gb="$bytes" -v bits="$(bits_of "$t")" -v d="$embd" -v ff="$ff" 'BEGIN {
        layer = (4 * d * d + 3 * d * ff) * bits / 8
        n = (gb * 1e9 - 2 * 32000 * d * bits / 8) / layer
        print n < 1 ? 1 : n == int(n) ? n : int(n) + 1 }')
    ${RUN:-} "${bin}pi-synth" -o "$f" --layers "$layers" --embd "$embd" --ff "$ff" --heads $((embd / 128)) --vocab 32000 --type "$t" --rank "$rank" \
        --density "$density" --seed "$seed" --samples 32 -q "$@" >/dev/null
}

median_of() {
    for i in $(seq "$repeat"); do json_get "$tmp/$1.$i" "$2"; done | median
}
median_part() {
    for i in $(seq "$repeat"); do json_part "$tmp/$1.$i" "$2" "$3"; done | median
}
ratio() {
    echo "$1 $2" | awk '{ if ($2 > 0) printf "%.2f", $1 / $2; else printf "-" }'
}

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | sed -n 1p)
[ -n "$threads" ] || threads=$(${RUN:-} "${bin}pi-run" --help | sed -n 's/.*usable cores here: \([0-9]*\).*/\1/p')
echo "$command"
echo "${cpu:-unknown processor}; ${threads:-default} threads; synthetic models of $bytes GB or more, d $embd, $ff neurons a layer, density $density"
printf '%-6s %-10s %10s %8s %9s %10s %9s %9s %12s\n' type mode tokens/s 'x dense' MB/token GB/s 'read GB/s' share 'x llama.cpp'
printf '{"command":"%s","cpu":"%s","runs":[' "$command" "$cpu" >"$results/$name.json"
sep=
for t in $types; do
    make_model "$t" "$work/$t.gguf"
    [ -z "$peer" ] || make_model "$t" "$work/$t.peer.gguf" --row-major-down
    for i in $(seq "$repeat"); do
        for mode in $modes; do
            p=0
            [ "$mode" != dense ] || p=$prompt
            # shellcheck disable=SC2086
            ${RUN:-} "${bin}pi-run" -q -m "$work/$t.gguf" --device cpu --mode "$mode" --bench --bench-prompt "$p" --bench-tokens "$steps" --json -s 1 \
                ${threads:+-t "$threads"} $run_opts >"$tmp/$t.$mode.$i"
        done
        [ -z "$peer" ] || {
            "$peer" "$top/bench/peer_llama.py" "$work/$t.peer.gguf" --prompt "$prompt" --steps "$steps" --threads "$(json_get "$tmp/$t.dense.$i" threads)" \
                >"$tmp/$t.peer.$i"
            # shellcheck disable=SC2086
            ${RUN:-} "${bin}pi-run" -q -m "$work/$t.peer.gguf" --device cpu --mode dense --bench --bench-prompt "$prompt" --bench-tokens "$steps" --json -s 1 \
                ${threads:+-t "$threads"} $run_opts >"$tmp/$t.same.$i"
        }
    done
    dense=$(median_of "$t.dense" tokens_per_second)
    for mode in $modes same; do
        [ -f "$tmp/$t.$mode.1" ] || continue
        speed=$(median_of "$t.$mode" tokens_per_second)
        against=-
        [ "$mode" != same ] || against=$(ratio "$speed" "$(median_of "$t.peer" tokens_per_second)")
        read=$(median_part "$t.$mode" cpu_sequential bandwidth)
        printf '%-6s %-10s %10.2f %8s %9.1f %10.2f %9.2f %9.2f %12s\n' "$t" "$([ "$mode" = same ] && echo 'row-major' || echo "$mode")" "$speed" \
            "$(ratio "$speed" "$dense")" "$(median_part "$t.$mode" cpu bytes_per_step | awk '{ print $1 / 1e6 }')" \
            "$(median_part "$t.$mode" cpu bytes_per_second | awk '{ print $1 / 1e9 }')" \
            "$(awk "BEGIN { print $read / 1e9 }")" "$(ratio "$(median_part "$t.$mode" cpu bytes_per_second)" "$read")" "$against"
        for i in $(seq "$repeat"); do
            printf '%s{"type":"%s","down":"%s","run":%s}' "$sep" "$t" "$([ "$mode" = same ] && echo row-major || echo neuron-major)" "$(cat "$tmp/$t.$mode.$i")"
            sep=,
        done >>"$results/$name.json"
    done
    for mode in dense same; do
        [ -f "$tmp/$t.$mode.1" ] || continue
        speed=$(median_of "$t.$mode" prompt_tokens_per_second)
        against=-
        [ "$mode" != same ] || against=$(ratio "$speed" "$(median_of "$t.peer" prompt_tokens_per_second)")
        printf '%-6s %-10s %10.1f %65s\n' "$t" "$([ "$mode" = same ] && echo 'row-m.' || echo '') prompt" "$speed" "$against"
    done
    [ -z "$peer" ] || for i in $(seq "$repeat"); do
        printf ',{"type":"%s","peer":%s}' "$t" "$(cat "$tmp/$t.peer.$i")"
    done >>"$results/$name.json"
done
echo ']}' >>"$results/$name.json"
