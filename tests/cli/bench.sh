#!/bin/sh
# pi-run --bench: figures that add up, on a synthetic model.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/bench/json.sh"
PATH=$abs_top_builddir/bench:$PATH
m=$tmp/m.gguf
works 'a model' pi-synth -o "$m" --layers 3 --embd 256 --ff 1024 --heads 4 --vocab 2000 --ctx 256 --rank 32 -q
cat >"$tmp/hw.yaml" <<'END'
pi_hardware: 1
cpu: {name: x, threads: 2, bandwidth: 2e12}
gpus: [{name: y, memory: 24e9, bandwidth: 1e12, pcie: 25e9, sync: 1e-6, context_bytes: 0}]
END
bench="pi-run -q -m $m --bench --bench-prompt 20 --bench-tokens 24 --hardware $tmp/hw.yaml -t 2"

# part KEY OBJECT: a value inside the object that stands under OBJECT
part() { json_part "$tmp/out" "$1" "$2"; }

for mode in dense exact predicted; do
    works "$mode" $bench --mode $mode -s 1 --json
    [ "$(json_get "$tmp/out" mode)" = $mode ] && [ "$(json_get "$tmp/out" steps)" = 24 ] && [ "$(json_get "$tmp/out" prompt)" = 20 ] &&
        [ "$(json_get "$tmp/out" device)" = cpu ]
    check $? "$mode: says what ran"
    less "$(part least step_ms)" "$(part median step_ms)" && less "$(part median step_ms)" "$(part p95 step_ms)" &&
        less "$(part p95 step_ms)" "$(part p99 step_ms)" && less "$(part p99 step_ms)" "$(part most step_ms)" &&
        less "$(part least step_ms)" "$(part mean step_ms)" && less "$(part mean step_ms)" "$(part most step_ms)"
    check $? "$mode: percentiles rise"
    awk -v s="$(json_get "$tmp/out" tokens_per_second)" -v ms="$(part mean step_ms)" 'BEGIN { d = s * ms / 1000 - 1; exit !(d * d < 1e-8) }'
    check $? "$mode: tokens/s is one over the mean step"
    less "$(part cpu_busy parts_ms)" "$(part mean step_ms)" && less 0.0001 "$(part cpu_busy parts_ms)" &&
        [ "$(part gpu_busy parts_ms)" = null ] && [ "$(part handover parts_ms)" = null ]
    check $? "$mode: no GPU, and the CPU is busy no longer than the step"
    [ "$(part source bandwidth)" = "$tmp/hw.yaml" ] && less 0.0000001 "$(part share floor)" && less "$(part share floor)" 1
    check $? "$mode: a floor from the file's bandwidth, below which no step gets"
    eval "bytes_$mode=$(part cpu bytes_per_step)" "floor_$mode=$(part cpu_bytes floor)"
done
# F16: attention, feed-forward, output, and a row of the embedding that the floor leaves out, as steps leave out vectors
awk -v a="$bytes_dense" -v b="$floor_dense" 'BEGIN { w = 2 * (3 * (4 * 256 * 256 + 3 * 1024 * 256) + 2000 * 256)
    exit !(a == w + 512 && b > w && b < 1.01 * w) }'
check $? "dense: bytes are those of the weights ($bytes_dense, floor $floor_dense)"
for mode in exact predicted; do
    eval "a=\$bytes_$mode b=\$floor_$mode"
    awk -v a="$a" -v b="$b" 'BEGIN { d = a / b - 1; exit !(d * d < 0.03 * 0.03) }'
    check $? "$mode: what was read is what the floor expects within 3 % ($a, $b)"
done

works 'random tokens of a seed' $bench --bench-random -s 5 --json
a=$(part cpu bytes_per_step)
[ "$(json_get "$tmp/out" tokens)" = random ]
check $? 'says so'
works 'once more' $bench --bench-random -s 5 --json -t 1
[ "$a" = "$(part cpu bytes_per_step)" ]
check $? 'the same seed reads the same rows'

works 'three sequences' $bench --parallel 3 -s 1 --json
[ "$(json_get "$tmp/out" parallel)" = 3 ] && [ "$(json_get "$tmp/out" context)" = 48 ]
check $? 'their context is what they need'
less "$(part cpu bytes_read_per_step)" "$(part cpu bytes_per_step)" && less "$(part cpu bytes_per_step)" "$(awk -v b="$(part cpu bytes_read_per_step)" 'BEGIN { print 3 * b }')" &&
    [ "$(part cpu bytes_read_per_step)" != "$(part cpu bytes_per_step)" ]
check $? 'what they share is read once'
awk -v s="$(json_get "$tmp/out" tokens_per_second)" -v ms="$(part mean step_ms)" 'BEGIN { d = s * ms / 3000 - 1; exit !(d * d < 1e-8) }'
check $? 'tokens/s is of all sequences'
works 'in steps of two' $bench --parallel 3 --step-width 2 -s 1 --json
[ "$(json_get "$tmp/out" step_sequences)" = 2 ] && [ "$(json_get "$tmp/out" steps)" = 24 ]
check $? 'a step of the report is a token of each'
a=$(part cpu bytes_per_step)
less "$(part cpu bytes_read_per_step)" "$a"
check $? 'what two share is read once'
works 'in steps of one' $bench --parallel 3 --step-width 1 -s 1 --json
[ "$(json_get "$tmp/out" step_sequences)" = 1 ] && [ "$(part cpu bytes_per_step)" = "$a" ] && [ "$(part cpu bytes_read_per_step)" = "$a" ]
check $? 'the same tokens, nothing shared'
works '12 sequences' $bench --parallel 12 --bench-prompt 0 -s 1 --json
case $(json_get "$tmp/out" step_sequences) in 12 | 6 | 4) true ;; *) false ;; esac
check $? "in steps of $(json_get "$tmp/out" step_sequences), which was measured"
works '12 sequences, 5 at most, for people' $bench --parallel 12 --step-width 5 --bench-prompt 0 -s 1
grep -q '^decode  *24 steps of 12 sequences, 4 at a time, ' "$tmp/out"
check $? 'four at a time'
works '40 sequences, more than a step takes at once' $bench --parallel 40 --bench-prompt 0 -s 1 --json
[ "$(json_get "$tmp/out" prompt_tokens_per_second)" = null ]
check $? 'no prompt, no prompt speed'

works 'for people' $bench -s 1
[ "$(grep -cE '^(model|run|prompt|decode|step|of a step|read|floor) +.*[0-9]' "$tmp/out")" = 8 ] && [ "$(wc -l <"$tmp/out")" = 8 ] &&
    grep -q '^model  *synthetic llama' "$tmp/out"
check $? 'eight lines, and the model is called synthetic'
cd "$tmp" || exit 99
cp hw.yaml hardware.yaml
works 'hardware.yaml of the working folder' pi-run -q -m "$m" --bench --bench-prompt 4 --bench-tokens 4 --json
[ "$(part source bandwidth)" = hardware.yaml ]
check $? 'is found'
rm hardware.yaml
works 'no hardware.yaml' pi-run -q -m "$m" --bench --bench-prompt 4 --bench-tokens 4 --json -t 1
[ "$(part source bandwidth)" = measured ] && less 1e8 "$(part cpu bandwidth)" && less 1e8 "$(part cpu_sequential bandwidth)"
check $? 'then it is measured'

# Split between two units of the CPU.
works 'a placement' pi-place "$m" --hardware "$tmp/hw.yaml" --vram-budget 10M -c 48 -q
works 'cpu+cpu' $bench --device cpu+cpu -s 1 --json
[ "$(json_get "$tmp/out" device)" = cpu+cpu ] && less 1 "$(part gpu_bytes floor)" && less 1 "$(part cpu_bytes floor)"
check $? 'the floor knows both units'
fails 5 '--parallel 2 is more than the 1 .*pi-place .* --vram-budget 10M --parallel 2' 'more sequences than placed' \
    $bench --device cpu+cpu --parallel 2
rm "$tmp/m.placement.gguf"

mv "$tmp/m.profile.gguf" "$tmp/away"
pi-run -m "$m" --bench --bench-prompt 4 --bench-tokens 4 --hardware "$tmp/hw.yaml" --json --device cpu >"$tmp/out" 2>"$tmp/err"
check $? 'without a profile'
[ "$(json_get "$tmp/out" floor)" = null ] && grep -q 'no profile.*pi-profile' "$tmp/err"
check $? 'no floor, and what makes it'
works 'dense without a profile' $bench --mode dense --json
less 1 "$(part cpu_bytes floor)"
check $? 'has one all the same'
mv "$tmp/away" "$tmp/m.profile.gguf"

fails 2 'more than the context of 256' 'more than the context' pi-run -q -m "$m" --bench --bench-tokens 300
fails 2 'more than the context of 20' 'more than -c' $bench -c 20
fails 2 'its own prompt' 'a prompt' pi-run -q -m "$m" --bench -p x
fails 2 'neither -n nor --verify' '-n' pi-run -q -m "$m" --bench -n 1
fails 2 'goes with --bench or --serve' '--parallel alone' pi-run -q -m "$m" --parallel 2 -p x
fails 2 'goes with --bench or --serve' '--step-width alone' pi-run -q -m "$m" --step-width 2 -p x
fails 2 'no effect with --bench of one sequence: give --parallel' 'a step width of one sequence' $bench --step-width 2
fails 2 'is --step-width 1' '--one-by-one and another width' $bench --parallel 4 --one-by-one --step-width 2
fails 2 '--step-width' 'steps of nobody' $bench --parallel 4 --step-width 0
fails 2 'only one of' 'with --perplexity' pi-run -q -m "$m" --bench --perplexity "$tmp/hw.yaml"
fails 2 '--parallel' 'no sequence' pi-run -q -m "$m" --bench --parallel 0
fails 7 'nowhere' 'a hardware file that is not there' pi-run -q -m "$m" --bench --bench-tokens 1 --hardware "$tmp/nowhere"
# On an emulated GPU: what is measured there, and that bytes are told for the unit that reads them.
if [ -x "$abs_top_builddir/tests/emu/pi-run-emu" ]; then
    sed 's/context_bytes: 0/context_bytes: 500e6/; s/sync: 1e-6/sync: 1e-9/' "$tmp/hw.yaml" >"$tmp/gpu.yaml"
    works 'a placement for a GPU' pi-place "$m" --hardware "$tmp/gpu.yaml" --vram-budget 485M -c 48 -q
    works 'a GPU' "$abs_top_builddir/tests/emu/pi-run-emu" -q -m "$m" --device gpu --bench --bench-prompt 2 --bench-tokens 6 --bench-random \
        --hardware "$tmp/gpu.yaml" -t 2 -s 1 --json
    [ "$(json_get "$tmp/out" device | cut -c 1-5)" = gpu:0 ] && [ "$(json_get "$tmp/out" vram_budget)" = $((485 << 20)) ] &&
        less 0.000001 "$(part gpu_busy parts_ms)" && less 0.000001 "$(part cpu_busy parts_ms)" && less 0 "$(part handover parts_ms)" &&
        less "$(part gpu_busy parts_ms)" "$(part mean step_ms)" && less 0 "$(part gpu bandwidth_share)"
    check $? 'both units are busy, no longer than the step'
    for unit in gpu cpu; do
        awk -v a="$(part $unit bytes_per_step)" -v b="$(part ${unit}_bytes floor)" 'BEGIN { d = a / b - 1; exit !(d * d < 0.1 * 0.1) }'
        check $? "the $unit reads what the floor expects within 10 % ($(part $unit bytes_per_step), $(part ${unit}_bytes floor))"
    done
    rm "$tmp/m.placement.gguf"
else
    n=$((n + 1))
    echo "ok $n - a GPU # SKIP no emulator"
fi

# The script that times a GPU, on two units of the CPU.
sed -i 's/context_bytes: 0/context_bytes: 1e5/' "$tmp/hw.yaml"
works 'gpu.sh' env BIN="$abs_top_builddir" RUN=env RESULTS="$tmp" sh "$abs_top_srcdir/bench/gpu.sh" try --shape 2,256,512,4 --rank 32 --type q8_0 \
    --hardware "$tmp/hw.yaml" --run '--device cpu+cpu -t 2' --shares '1 60 all' --parallel '1 2' --prompt 4 --steps 4 --work "$tmp/work"
cp "$tmp/out" "$tmp/table"
[ "$(grep -cE '^(60 %|all) +(dense|predicted) +[12] +[0-9.]+ +[0-9.]+ %' "$tmp/table")" = 8 ] &&
    [ "$(grep -cE '^1 +(dense|predicted) +[12] .*budget' "$tmp/table")" = 4 ]
check $? 'a line for every budget, mode and batch, and why a budget can not be'
[ "$(grep -c '^{"share":' "$tmp/try.json")" = 8 ] && grep -q '"synthetic":true' "$tmp/try.json" && [ "$(grep -c '},$' "$tmp/try.json")" = 7 ]
check $? 'raw figures of every run'
grep '^{"share":"60"' "$tmp/try.json" | head -n 1 >"$tmp/out"
awk -v b="$(json_get "$tmp/out" budget)" -v m="$(cat "$tmp"/work/*-s1.gguf | wc -c)" 'BEGIN { d = b - (1e5 + 0.6 * m); exit !(d * d <= 1024 * 1024) }'
check $? 'a budget is the context and a share of the model'
echo "1..$n"
