#!/bin/sh
# Models with known answers on a GPU, under placements from nothing to everything there: logits of prompts and of decode steps, dense, exact and predicted,
# and greedy text through the command line. One line for each model and placement, with the errors measured.
#
#   tests/cli/gpu_reference.sh [PI_RUN COMPARE_GPU]
#
# in the build folder. Without arguments: the real GPU where PI_REQUIRE_GPU is set, else the emulated one, with fewer tokens. PI_SHARED adds the
# larger cases.
if [ -z "$abs_top_builddir" ]; then
    . ./tests/env.sh
fi
. "$abs_top_srcdir/tests/cli/run_lib.sh"

few=
if [ $# = 2 ]; then
    run=$1 compare=$2
elif [ -n "$PI_REQUIRE_GPU" ]; then
    run=pi-run compare=compare_gpu
else
    run=$abs_top_builddir/tests/emu/pi-run-emu compare=$abs_top_builddir/tests/emu/compare_gpu_emu few="1 5"
fi
case $compare in
*emu*) few="1 5" ;;
esac
if ! command -v "$compare" >/dev/null; then
    echo "1..0 # SKIP neither a GPU nor an emulator is there"
    exit 0
fi

# one FOLDER TYPE
one() {
    folder=$1 name=$(basename "$1")
    case $name in
    trained-*) source=$PI_SHARED/models/demo-${name#trained-} ;;
    *) source=$folder ;;
    esac
    pi-convert "$source" -o "$tmp/m.gguf" --type "$2" >"$tmp/log" 2>&1
    status=$?
    if [ $status != 0 ]; then
        check 1 "pi-convert $name --type $2"
        sed 's/^/# /' "$tmp/log"
        return
    fi
    "$compare" "$tmp/m.gguf" "$folder" $few >"$tmp/tap" 2>"$tmp/err"
    status=$?
    sed 's/^/# /' "$tmp/err"
    sed -i "s/^Bail out!/not ok - $name:/" "$tmp/tap"
    number "$tmp/tap"
    [ $status -le 1 ] || check 1 "$name: compare_gpu ended with status $status"
    case $name in
    trained-*) text "$folder" 48 ;;
    *) text "$folder" 24 ;;
    esac
}

# The first case's greedy text, with a part of the neurons placed and with all there.
text() { # FOLDER TOKENS
    # What is left over of a budget is filled: one that holds a part alone is found from what all takes.
    "$run" --verbose -m "$tmp/m.gguf" --device gpu -p x -n 1 --kv f32 >/dev/null 2>"$tmp/err"
    budget=$(sed -n 's/.* there; \([0-9.]*\) MiB and \([0-9.]*\) MiB of context.*/\1 \2/p' "$tmp/err" |
        awk '{ printf "%d", 1024 * ($2 + 0.85 * $1) }')
    make_artifact gpu "$tmp/m.gguf" "$tmp/place" 0.5
    for how in "--placement $tmp/place --vram-budget ${budget}K" "--device gpu"; do
        # shellcheck disable=SC2086
        "$run" --verbose -m "$tmp/m.gguf" $how -p "$once" -n "$2" --temp 0 --kv f32 --ignore-eos --json >"$tmp/out" 2>"$tmp/err"
        compare_reference greedy "$1" 0 1e-4 <"$tmp/out" >"$tmp/tap"
        sed -n 's/.*: \([0-9]* of [0-9]* neurons, attention of [0-9]* of [0-9]* layers\).*/# \1/p' "$tmp/err"
        number "$tmp/tap"
    done
}

once="Once upon a time, there was a small house at the edge of the wood."
for c in llama-relu llama-silu-gqa-tied opt-pre; do
    one "$ref/$c" f32
done
if [ -z "$few" ] && [ -n "$PI_SHARED" ] && [ -d "$PI_SHARED/reference" ]; then
    one "$PI_SHARED/reference/llama3-rope-bf16-sharded" bf16
    one "$PI_SHARED/reference/mistral-relu-gqa-oldconfig" f32
    one "$PI_SHARED/reference/trained-llama" f16
    one "$PI_SHARED/reference/trained-opt" f16
else
    n=$((n + 1))
    echo "ok $n - larger cases # SKIP PI_SHARED is not set, or the device is slow"
fi
echo "1..$n"
