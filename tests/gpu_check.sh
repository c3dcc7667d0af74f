#!/bin/sh
# gpu_check.sh [--sanitize] [--product MODEL.gguf] - runs the GPU's tests on a machine with a GPU and prints a line for each.
#
# RUN       how a test is started: "tests/" of a build tree (the default), or "some-wrapper " that takes a name
# PROGRAMS  the same of pi-run and pi-place: default "./"
# TESTS, SANITIZE_TESTS   other tests than the usual ones; TESTS=none: none; NAME:PART:PART: parts of a test. LIMIT: seconds that each may take (default 240). PROMPT: tokens (default 512)
# With --sanitize tests run again under compute-sanitizer (memcheck, racecheck). With --product what only whole programs show is checked with a model that has profile and
# predictor beside it, half of its bytes in VRAM: runs one beside the other, the share of PCIe of a prompt, --budgets, the counters of GET /status.
set -u
run=${RUN-tests/}
programs=${PROGRAMS-./}
limit=${LIMIT:-240}
prompt=${PROMPT:-512}
export PI_REQUIRE_GPU=1
fails=0
sanitize=
model=
while [ $# -gt 0 ]; do
    case $1 in
    --sanitize) sanitize=yes ;;
    --product) model=${2:?which model} && shift ;;
    *) sed -n '2,/^set -u/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2 && exit 2 ;;
    esac
    shift
done

# one NAME COMMAND...: the test's verdict, and its first failures
one()
{
    name=$1
    shift
    begin=$(date +%s)
    out=$(timeout -s KILL "$limit" "$@" 2>&1)
    rc=$?
    ok=$(printf '%s\n' "$out" | grep -c '^ok')
    bad=$(printf '%s\n' "$out" | grep -c '^not ok')
    verdict=pass
    if [ $rc -ne 0 ] || [ "$bad" -gt 0 ] || [ "$ok" -eq 0 ]; then
        verdict=FAIL
        fails=$((fails + 1))
        printf '%s\n' "$out" | grep -A3 '^not ok' | head -n 12
        [ "$bad" -gt 0 ] || printf '%s\n' "$out" | tail -n 5
    fi
    printf '%-28s %s  %d ok, %d not ok, status %d, %d s\n' "$name" $verdict "$ok" "$bad" $rc $(($(date +%s) - begin))
}

# command_of NAME[:PART...]
command_of()
{
    echo "$run$(echo "$1" | tr : ' ')"
}

# check STATUS NAME: a verdict on what a program did; its messages where it failed
check()
{
    if [ "$1" -eq 0 ]; then
        printf '%-28s pass\n' "$2"
    else
        printf '%-28s FAIL\n' "$2"
        fails=$((fails + 1))
        last=$(ls -t "$work"/*.err | head -n 1)
        tail -n 5 "$last"
    fi
}

# pi NAME ARG...: a program, for at most the limit
pi()
{
    name=$1
    shift
    # shellcheck disable=SC2086
    timeout -s KILL "$limit" $programs$name "$@"
}

# number KEY FILE: the first value of a key of a JSON object
number()
{
    sed -n 's/.*"'"$1"'":\([-0-9.e+]*\).*/\1/p' "$2" | head -n 1
}

# Runs beside each other say what a run alone says: their context is the placement's.
beside()
{
    ask="-m $model --placement $work/p.gguf -p Once -n 32 -s 7 --temp 0.8 --ignore-eos -t 4 --verbose"
    # shellcheck disable=SC2086
    pi pi-run $ask >"$work/alone" 2>"$work/alone.err"
    check $? 'a run alone'
    # shellcheck disable=SC2086
    {
        pi pi-run $ask >"$work/one" 2>"$work/one.err" &
        one=$!
        pi pi-run $ask >"$work/two" 2>"$work/two.err" &
        two=$!
        wait $one && wait $two
    }
    check $? 'two runs at once'
    cmp -s "$work/alone" "$work/one" && cmp -s "$work/alone" "$work/two" && ! grep -q 'were cut' "$work/one.err" "$work/two.err"
    check $? 'and their text is its text'
    grep -h 'can not be counted' "$work/one.err" "$work/two.err"
}

# The server counts neurons of both units, on each layer no more than are placed there.
counters()
{
    # shellcheck disable=SC2086
    $programs'pi-run' -m "$model" --placement "$work/p.gguf" --serve --port 0 -t 4 >"$work/out" 2>"$work/serve.err" &
    server=$!
    port=
    for i in $(seq 300); do
        port=$(sed -n 's|.*listening on http://127.0.0.1:\([0-9]*\).*|\1|p' "$work/serve.err")
        [ -z "$port" ] || break
        sleep 0.2
    done
    # shellcheck disable=SC2086
    timeout -s KILL "$limit" ${run}http_call "$port" POST /v1/completions '{"prompt":"Hello there","max_tokens":21,"seed":7,"ignore_eos":true}' >"$work/out"
    sleep 0.5
    # shellcheck disable=SC2086
    timeout -s KILL "$limit" ${run}http_call "$port" GET /status '' >"$work/status"
    kill -TERM $server
    wait $server
    check $? 'the server ends well'
    grep -q '"device":"gpu:0"' "$work/status" && grep -q '"hot_unit":"gpu:0"' "$work/status" && grep -q '"steps":20,"layers"' "$work/status"
    check $? 'GET /status: a GPU, 20 steps'
    per=$(number per_layer "$work/status")
    tr '{' '\n' <"$work/status" | sed -n 's/.*"hot_neurons":\([0-9]*\),"hot_active":\([0-9]*\),"cold_active":\([0-9]*\).*/\1 \2 \3/p' |
        awk -v per="$per" '{ n++; hot += $2; cold += $3; if ($2 > 20 * $1 || $3 > 20 * (per - $1)) bad = 1 }
            END { printf("hot %d, cold %d of %d layers in 20 steps\n", hot, cold, n); exit bad || hot == 0 || cold == 0 }'
    check $? 'GET /status: counts'
}

product()
{
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    pi pi-place --probe-hardware "$work/hw.yaml" -q 2>"$work/probe.err"
    check $? 'the machine is measured'
    context=$(sed -n 's/.*context_bytes: *\([0-9.e+]*\).*/\1/p' "$work/hw.yaml" | awk '{ printf "%.0f", $1 }')
    bytes=$(wc -c <"$model")
    half=$(((context + bytes / 2) / 1048576))
    pi pi-place "$model" --vram-budget "${half}M" --hardware "$work/hw.yaml" -c $((prompt + 64)) -o "$work/p.gguf" -q 2>"$work/place.err"
    check $? "a placement for ${half}M"
    beside
    pi pi-run -m "$model" --placement "$work/p.gguf" --bench --bench-prompt "$prompt" --bench-tokens 16 --hardware "$work/hw.yaml" --json -q \
        >"$work/bench" 2>"$work/bench.err"
    check $? "a prompt of $prompt tokens"
    share=$(number pcie_share "$work/bench")
    echo "prompt $(number prompt_tokens_per_second "$work/bench") tokens/s, streamed at ${share:-nothing} of PCIe, copies alone $(number copy_share "$work/bench")"
    [ -n "$share" ]
    check $? 'was streamed in part'
    pi pi-run -m "$model" --bench --bench-prompt 32 --bench-tokens 16 -c 128 --hardware "$work/hw.yaml" \
        --budgets "0G,${half}M,$((half + bytes / 4194304))M" >"$work/budgets" 2>"$work/budgets.err"
    check $? '--budgets'
    cat "$work/budgets"
    counters
}

tests=${TESTS:-t_gpu t_gpu_context t_handover t_kernels_mat t_kernels_ffn t_kernels_attn t_k_prompt t_dev_model t_gpu_prompt t_engine_gpu t_engine_gpu_q8 t_train_gpu t_gpu_cycles}
[ "$tests" != none ] || tests=
for t in $tests; do
    # shellcheck disable=SC2046,SC2086
    one "$t" $(command_of $t)
done
[ -z "$model" ] || product
if [ -n "$sanitize" ]; then
    for t in ${SANITIZE_TESTS:-t_kernels_attn t_kernels_mat t_kernels_ffn t_engine_gpu:llama t_engine_gpu:forms:quantised t_engine_gpu:predicted:steps t_engine_gpu:batches:stops}; do
        for tool in memcheck racecheck; do
            # shellcheck disable=SC2046,SC2086
            one "$tool $t" compute-sanitizer --tool $tool --error-exitcode 99 $(command_of $t)
        done
    done
fi
echo "$fails failed"
[ $fails -eq 0 ]
