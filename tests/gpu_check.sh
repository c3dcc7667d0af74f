#!/bin/sh
# gpu_check.sh [--sanitize] - runs the GPU's tests on a machine with a GPU and prints a line for each.
#
# RUN   how a program is started: "tests/" of a build tree (the default), or "some-wrapper " that takes a name
# With --sanitize the kernels' tests run again under compute-sanitizer (memcheck, racecheck), on their small cases.
set -u
run=${RUN:-tests/}
export PI_REQUIRE_GPU=1
fails=0

# one NAME COMMAND...: the test's verdict, and its first failures
one()
{
    name=$1
    shift
    begin=$(date +%s)
    out=$("$@" 2>&1)
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

tests=${TESTS:-t_gpu t_kernels_mat t_kernels_ffn t_dev_model t_gpu_prompt t_engine_gpu t_engine_gpu_q8 t_gpu_cycles}
for t in $tests; do
    # shellcheck disable=SC2086
    one "$t" $run$t
done
if [ "${1:-}" = --sanitize ]; then
    for tool in memcheck racecheck; do
        for t in ${SANITIZE_TESTS:-t_kernels_mat t_kernels_ffn}; do
            # shellcheck disable=SC2086
            PI_TEST_SMALL=1 one "$tool $t" compute-sanitizer --tool $tool --error-exitcode 99 $run$t
        done
    done
fi
echo "$fails failed"
[ $fails -eq 0 ]
