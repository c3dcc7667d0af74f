#!/bin/sh
# pi-run --bench --budgets: a row for each budget, what it says is what pi-place and a benchmark say, and nothing stays behind.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/bench/json.sh"
PATH=$abs_top_builddir/bench:$PATH
m=$tmp/m.gguf
works 'a model' pi-synth -o "$m" --layers 3 --embd 256 --ff 1024 --heads 4 --vocab 2000 --ctx 256 --rank 32 -q
cat >"$tmp/hw.yaml" <<'END'
pi_hardware: 1
cpu: {name: a CPU, threads: 2, bandwidth: 2e10}
gpus: [{name: a GPU, memory: 24e9, bandwidth: 1e12, pcie: 25e9, sync: 1e-6, context_bytes: 1e5}]
END
mkdir "$tmp/temp"
TMPDIR=$tmp/temp
export TMPDIR
bench="pi-run -m $m --bench --bench-prompt 4 --bench-tokens 8 -t 2 -s 1 --hardware $tmp/hw.yaml"

# field ROW PART KEY: out of the ROW-th budget's object in $tmp/out
field() {
    sed 's/.*"budgets":\[//; s/},{"budget"/}\n{"budget"/g' "$tmp/out" | sed -n "$1p" >"$tmp/row"
    if [ "$2" = - ]; then json_get "$tmp/row" "$3"; else json_part "$tmp/row" "$3" "$2"; fi
}
near() { # A B SHARE
    awk -v a="$1" -v b="$2" -v s="$3" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d * d <= s * s) }'
}

works 'two units of the CPU' $bench -q --device cpu+cpu --budgets 0G,1K,7M,9.5M,1G --json
cp "$tmp/out" "$tmp/table"
[ "$(json_get "$tmp/out" context)" = 256 ] && [ "$(json_get "$tmp/out" mode)" = predicted ] && [ "$(json_get "$tmp/out" machine)" = 'a CPU and a GPU' ] &&
    [ "$(grep -o '"budget":' "$tmp/out" | wc -l)" = 5 ]
check $? 'says for what, and has a row for each budget'
[ "$(field 1 - budget)" = 0 ] && [ "$(field 1 neurons_on_gpu expected)" = 0.0 ] && [ "$(field 1 neurons_on_gpu measured)" = 0.0 ] &&
    [ "$(field 1 - vram_bytes)" = 0 ] && less 1 "$(field 1 tokens_per_second measured)"
check $? '0G is the CPU alone'
[ "$(field 2 - budget)" = 1024 ] && field 2 - error | grep -q 'smallest that works is --vram-budget [0-9]*K'
check $? 'a budget that is too small says which one would do'
for row in 3 4 5; do
    less "$(field $row - vram_bytes)" "$(field $row - budget)" && less 1 "$(field $row tokens_per_second measured)" &&
        less 1 "$(field $row tokens_per_second expected)"
    check $? "row $row has figures"
    near "$(field $row neurons_on_gpu expected)" "$(field $row neurons_on_gpu measured)" 0.12
    check $? "row $row: the GPU computes the share that is expected ($(field $row neurons_on_gpu expected), $(field $row neurons_on_gpu measured))"
done
[ "$(field 5 neurons_on_gpu measured)" = 1.0 ] && less "$(field 3 neurons_on_gpu measured)" "$(field 4 neurons_on_gpu measured)" &&
    less 0.01 "$(field 4 neurons_on_gpu measured)"
check $? 'more memory, more neurons; all of them where all fits'
works 'pi-place by itself' pi-place "$m" -q --vram-budget 9.5M --hardware "$tmp/hw.yaml" -o "$tmp/p.gguf" --json
expected=$(json_part "$tmp/out" placed tokens_per_second) share=$(json_get "$tmp/out" activations_on_gpu)
works 'the benchmark by itself' $bench -q --device cpu+cpu --placement "$tmp/p.gguf" -c 256 --json
measured=$(json_get "$tmp/out" neurons_on_gpu)
cp "$tmp/table" "$tmp/out"
[ "$expected" = "$(field 4 tokens_per_second expected | cut -c 1-"${#expected}")" ] || near "$expected" "$(field 4 tokens_per_second expected)" 0.001
check $? 'expects the same speed'
near "$share" "$(field 4 neurons_on_gpu expected)" 0.000001 && near "$measured" "$(field 4 neurons_on_gpu measured)" 0.000001
check $? "and the same shares ($measured)"

works 'for people' $bench -q --device cpu+cpu --budgets 1K,9.5M
[ "$(grep -cE '^ +1K  .*smallest' "$tmp/out")" = 1 ] && [ "$(grep -cE '^ +9[0-9]+K|^ +9.5M' "$tmp/out")" = 1 ] &&
    grep -qE '^ +[0-9.]+[KM] +[0-9.]+ +[0-9.]+ % +[0-9.]+ % +[0-9.]+ +[0-9.]+$' "$tmp/out" && grep -q '^expected .*a GPU.*hw.yaml' "$tmp/out"
check $? 'two rows'
works 'a context of its own' $bench -q --device cpu+cpu --budgets 9.5M -c 64 --mode exact --parallel 2 --json
[ "$(json_get "$tmp/out" context)" = 64 ] && [ "$(json_get "$tmp/out" mode)" = exact ] && [ "$(json_get "$tmp/out" parallel)" = 2 ]
check $? 'is what is placed for, and so are mode and sequences'

# No GPU, or one that is emulated.
if ! nvidia-smi >/dev/null 2>&1; then
    works 'without a GPU' $bench --budgets 7M,9.5M --json
    [ "$(field 1 tokens_per_second measured)" = null ] && less 1 "$(field 2 tokens_per_second expected)" && grep -q 'no GPU is here' "$tmp/err"
    check $? 'there are expectations alone, and it says so'
    fails 8 'pi-run: .*GPU' 'a GPU that was asked for' $bench -q --device gpu --budgets 9.5M --json
fi
if [ -x "$abs_top_builddir/tests/emu/pi-run-emu" ]; then
    sed 's/context_bytes: 1e5/context_bytes: 500e6/; s/sync: 1e-6/sync: 1e-9/' "$tmp/hw.yaml" >"$tmp/gpu.yaml"
    works 'an emulated GPU' env PI_EMU_CONTEXT=477M "$abs_top_builddir/tests/emu/pi-run-emu" -q -m "$m" --bench --bench-prompt 2 --bench-tokens 4 -s 1 -t 2 -c 64 \
        --hardware "$tmp/gpu.yaml" --budgets 400M,485M,600M --json
    field 1 - error | grep -q smallest && less 0.01 "$(field 2 neurons_on_gpu measured)" && less "$(field 2 neurons_on_gpu measured)" 0.999 &&
        [ "$(field 3 neurons_on_gpu measured)" = 1.0 ] && less 0.001 "$(field 3 tokens_per_second measured)"
    check $? "measures there ($(field 2 neurons_on_gpu measured))"
else
    n=$((n + 1))
    echo "ok $n - an emulated GPU # SKIP no emulator"
fi

# What goes wrong.
"$abs_top_builddir/pi-run" -q -m "$m" --bench --bench-prompt 4 --bench-tokens 4 --device cpu+cpu --hardware "$tmp/hw.yaml" --budgets 1K,2K >"$tmp/out" 2>"$tmp/err"
[ $? = 6 ] && [ "$(grep -c smallest "$tmp/out")" = 2 ] && grep -q 'none of them works' "$tmp/err"
check $? 'no budget that works: rows, and status 6'
fails 2 'needs a unit' 'a budget without unit' $bench -q --budgets 4G,8 --json
fails 2 'needs a unit' 'an empty one' $bench -q --budgets 4G, --json
fails 2 'goes with --bench' '--budgets alone' pi-run -q -m "$m" --budgets 4G
fails 2 'neither --placement' 'with a placement' $bench -q --budgets 4G --placement x
fails 2 'neither --placement' 'with a budget' $bench -q --budgets 4G --vram-budget 1G
fails 2 'cpu\+cpu' 'on the CPU alone' $bench -q --budgets 4G --device cpu
fails 7 'nowhere' 'no model' pi-run -q -m "$tmp/nowhere.gguf" --bench --budgets 1G --hardware "$tmp/hw.yaml" --json
fails 7 'nowhere' 'no description' pi-run -q -m "$m" --bench --budgets 1G --hardware "$tmp/nowhere.yaml" --json
mv "$tmp/m.profile.gguf" "$tmp/away"
fails 5 'pi-place: .*pi-profile' 'no profile' $bench -q --device cpu+cpu --budgets 9.5M --json
mv "$tmp/away" "$tmp/m.profile.gguf"
sed 's/, bandwidth: 2e10/, bandwidth: 2e10, x: 1/' "$tmp/hw.yaml" >"$tmp/bad.yaml"
fails 3 'bad.yaml' 'a bad description' pi-run -q -m "$m" --bench --budgets 1G --hardware "$tmp/bad.yaml" --json
grep -v -e '^gpus' -e '^  ' "$tmp/hw.yaml" >"$tmp/none.yaml"
fails 8 'none.yaml.*--hardware' 'a machine without GPU' pi-run -q -m "$m" --bench --budgets 0G,1G --hardware "$tmp/none.yaml"
[ ! -s "$tmp/out" ]
check $? 'before anything is printed'
mkdir "$tmp/alone"
cp "$abs_top_builddir/pi-run" "$tmp/alone"
fails 7 'cannot run pi-place' 'no pi-place' env PATH=/nowhere "$tmp/alone/pi-run" -q -m "$m" --bench --budgets 1G --hardware "$tmp/hw.yaml" --json

many=9.5M
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do many=$many,9.5M; done
$bench -q --device cpu+cpu --budgets $many --bench-tokens 200 -c 256 --json >"$tmp/out" 2>"$tmp/err" &
pid=$!
sleep 1
kill -TERM $pid
wait $pid
[ $? = 130 ] && [ ! -s "$tmp/out" ]
check $? 'interrupted'
left=$(ls "$tmp/temp")
[ -z "$left" ]
check $? "no temporary file stays${left:+: $left}"
echo "1..$n"
