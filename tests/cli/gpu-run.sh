#!/bin/sh
# pi-run on an emulated GPU: which device runs, what fits there, what is refused and with which advice, what happens when the device fails.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
PI_TEST_CORES=2 # one of them the driver's
. "$abs_top_srcdir/bench/json.sh"
run=$abs_top_builddir/tests/emu/pi-run-emu
unset PI_EMU_DEVICES PI_EMU_MEMORY PI_EMU_FAIL PI_EMU_FAULT PI_EMU_STOP PI_EMU_HALT PI_EMU_STRICT
PI_EMU_CONTEXT=128M PI_EMU_LEAKS=1
export PI_EMU_CONTEXT PI_EMU_LEAKS
model llama-relu
m=$tmp/llama-relu.gguf
ask="-p Once -n 3 --temp 0 --kv f32"

same() { # NAME: $tmp/out is the CPU's text
    cmp -s "$tmp/text" "$tmp/out"
    check $? "$1"
}
said() { # PATTERN NAME
    grep -qE -e "$1" "$tmp/err"
    status=$?
    check $status "$2"
    [ $status = 0 ] || sed 's/^/# /' "$tmp/err"
}
pi-run -q -m "$m" --device cpu $ask >"$tmp/text" 2>/dev/null
[ -s "$tmp/text" ]
check $? 'the text of a run on the CPU'

# A GPU that is not there.
fails 8 '--device gpu: no GPU is there' 'no GPU at all' env PI_EMU_DEVICES=0 "$run" -m "$m" --device gpu $ask
fails 8 '--device gpu:1: there is 1 GPU, numbered from 0' 'no second GPU' "$run" -m "$m" --device gpu:1 $ask

# No placement.
works 'no placement, no wish' "$run" -m "$m" $ask
said 'no placement: running on the CPU; make one with: pi-place .* --vram-budget SIZE' 'runs on the CPU'
works 'no placement, a GPU that holds it all' "$run" -m "$m" --device gpu $ask
said 'no placement: all of the model runs on GPU 0 \(' 'runs there'
same 'and gives the same text'
works 'a GPU by number' "$run" --verbose -m "$m" --device gpu:0 $ask
said 'GPU 0 .*: 960 of 960 neurons, attention of 3 of 3 layers, output there' 'it is described'
fails 5 'all of the model needs [0-9]+M of GPU memory, usable are 13[234]M; .*: pi-place .*llama-relu.gguf --vram-budget 13[234]M' \
    'no placement, too small a GPU' env PI_EMU_MEMORY=135M "$run" -q -m "$m" --device gpu $ask
fails 5 'all of the model needs [0-9]+M of GPU memory, the budget is 133M; .*: pi-place .* --vram-budget 133M' \
    'no placement, too small a budget' "$run" -m "$m" --device gpu --vram-budget 133M $ask
need=$(sed -n 's/.* needs \([0-9]*M\) of GPU memory.*/\1/p' "$tmp/err")
fails 6 '--vram-budget 1K does not even hold .*: the smallest that works is [0-9]+K, .*: pi-place .*llama-relu.gguf -c 256 --vram-budget [0-9]+K' \
    'no placement, too small a budget for anything' "$run" -m "$m" --device gpu --vram-budget 1K $ask
works "no placement, the budget it names ($need)" "$run" -q -m "$m" --device gpu --vram-budget "$need" $ask
same 'gives the same text'
works 'a budget of nothing on a GPU' "$run" --verbose -m "$m" --device gpu --vram-budget 0G $ask
said 'one unit' 'is the CPU alone'

# A placement, with a budget that leaves less over than would make hot sets grow.
make_artifact gpu "$m" "$tmp/llama-relu.placement.gguf" 0.5:139
works 'a placement and its GPU' "$run" --verbose -m "$m" $ask
said 'GPU 0 .*: 480 of 960 neurons, attention of 2 of 3 layers' 'run together'
same 'and give the same text'
threads=$(sed -n 's/.* \([0-9]*\) threads.*/\1/p' "$tmp/err")
works 'the same without its GPU' env PI_EMU_DEVICES=0 "$run" --verbose -m "$m" $ask
said 'puts 480 neurons on a GPU, but none is there: running on the CPU' 'a notice'
same 'and the same text'
cores=$(sed -n 's/.* \([0-9]*\) threads.*/\1/p' "$tmp/err")
[ "$threads" = $((cores > 1 ? cores - 1 : 1)) ]
check $? "one core is left to the driver ($threads of $cores)"
works 'threads as asked' "$run" --verbose -m "$m" -t 2 $ask
said ' 2 threads, GPU and CPU' 'are threads as asked'
works 'the CPU by name' "$run" --verbose -m "$m" --device cpu $ask
said 'one unit' 'no GPU runs then'
make_artifact placement "$m" "$tmp/none" none
works 'a placement without a GPU' "$run" -m "$m" --placement "$tmp/none" --device gpu $ask
said 'the placement puts nothing on a GPU: running on the CPU' 'says so'

# Budgets. Blocks of the device's memory have 2 MiB unless they are small: so is this model.
pi-convert "$ref/llama-relu" -o "$tmp/q.gguf" --type q8_0 >"$tmp/out" 2>"$tmp/err"
make_artifact gpu "$tmp/q.gguf" "$tmp/q.placement.gguf" 0.5:137
little="-c 64 $ask"
pi-run -q -m "$tmp/q.gguf" --device cpu $little >"$tmp/text8" 2>/dev/null
fails 5 '--vram-budget 5G is more than the 137M the placement was made for; run: pi-place .* --vram-budget 5G' 'more than was placed' \
    "$run" -q -m "$tmp/q.gguf" --vram-budget 5G $little
fails 6 '--vram-budget 1K: .* need [0-9]+K' 'next to nothing' "$run" -m "$tmp/q.gguf" --vram-budget 1K $little
fails 6 '--vram-budget 16M: .* need [0-9]+K' 'less than the context' "$run" -m "$tmp/q.gguf" --vram-budget 16M $little
least=$(sed -n 's/.* need \([0-9]*\)K.*/\1/p' "$tmp/err")
works "the smallest budget that it names (${least}K)" "$run" --verbose -m "$tmp/q.gguf" --vram-budget "${least}K" $little
said 'hot sets were cut from 480 to [0-9] neurons to fit --vram-budget' 'leaves hardly a neuron there'
cmp -s "$tmp/text8" "$tmp/out"
check $? 'and gives the same text'
works 'a little more' "$run" --verbose -m "$tmp/q.gguf" --vram-budget $((least + 96))K $little
said 'hot sets were cut from 480 to [1-4][0-9][0-9] neurons' 'keeps more of them'
cmp -s "$tmp/text8" "$tmp/out"
check $? 'the same text again'
works 'what is left over' env PI_EMU_CONTEXT=100M "$run" --verbose -m "$tmp/q.gguf" $little
said 'hot sets grew from 480 to 960 neurons' 'is filled'
fails 6 'GPU 0 .*: the placement needs [0-9.]+ MiB beside the context, [0-9.]+ MiB are free; run with --vram-budget [0-9]+M' 'too little is free' \
    env PI_EMU_MEMORY=131M "$run" -q -m "$tmp/q.gguf" $little

# Beside other processes, which hold 572M here, a context can not be counted: then it is what the placement was made with, and hot sets stay whole.
make_artifact gpu "$tmp/q.gguf" "$tmp/beside" 0.5:135:128
works 'beside others' env PI_EMU_CONTEXT=700M "$run" --verbose -m "$tmp/q.gguf" --placement "$tmp/beside" $little
said 'taken for the 128.0 MiB of the placement' 'the context is that of the placement'
said 'GPU 0 .*: 480 of 960 neurons' 'the hot sets are those of the placement'
! grep -q 'hot sets' "$tmp/err" && cmp -s "$tmp/text8" "$tmp/out"
check $? 'and so is the text'
fails 6 'GPU 0 .*: the placement needs [0-9.]+ MiB beside the context, [0-9.]+ MiB are free; run with --vram-budget [0-9]+M' 'beside others that leave too little' \
    env PI_EMU_CONTEXT=700M PI_EMU_MEMORY=703M "$run" -q -m "$tmp/q.gguf" --placement "$tmp/beside" $little
fails 2 'no effect with --device cpu' 'a budget for a CPU' "$run" -q -m "$m" --device cpu --vram-budget 1G $ask

# Other modes, with a predictor that misses nothing.
make_artifact predictor "$m" "$tmp/llama-relu.predictor.gguf" perfect
for mode in dense exact predicted; do
    works "mode $mode" "$run" -m "$m" --mode $mode $ask
    same "mode $mode: the same text"
done
works 'verified' "$run" -q -m "$m" --mode predicted --verify --json $ask
less "$(value kl "$tmp/out")" 1e-5 && less "$(value missed "$tmp/out")" 0
check $? "verified: KL $(value kl "$tmp/out"), missed $(value missed "$tmp/out")"

# A prompt's cold neurons are streamed, and --bench says at which share of PCIe.
cat >"$tmp/hw.yaml" <<'END'
pi_hardware: 1
cpu: {name: x, threads: 2, bandwidth: 2e10}
gpus: [{name: y, memory: 1e9, bandwidth: 1e12, pcie: 25e9, sync: 1e-6, context_bytes: 128e6}]
END
works 'a benchmark' "$run" -q -m "$m" --bench --bench-prompt 64 --bench-tokens 2 --hardware "$tmp/hw.yaml" --json
part() { json_part "$tmp/out" "$1" streaming; }
[ "$(part streamed_bytes)" != null ] && less 1000 "$(part streamed_bytes)" && less "$(part rate)" "$(part copy_rate)" &&
    awk -v r="$(part rate)" -v s="$(part pcie_share)" 'BEGIN { d = r / 25e9 - s; exit !(r > 0 && d * d < 1e-12) }'
check $? "streamed $(part streamed_bytes) bytes at $(part pcie_share) of PCIe"
works 'for people' "$run" -q -m "$m" --bench --bench-prompt 64 --bench-tokens 2 --hardware "$tmp/hw.yaml"
grep -qE '^streamed    [0-9.]+ GB over PCIe at [0-9.]+ GB/s, [0-9]+ % of its bandwidth \([0-9.]+ GB/s while it copied\)$' "$tmp/out"
check $? 'says so too'

# Calls that fail: one line, nothing left behind.
for what in cudaMalloc cudaHostAlloc cudaStreamCreateWithFlags; do
    fails 6 'memory' "$what fails" env PI_EMU_FAIL=$what:1 "$run" -q -m "$m" $ask
done

# Devices that fail: one line, never a hang. (Nothing can be given back to such a device.)
unset PI_EMU_LEAKS
broken() { # NAME SETTING
    env "$2" timeout -s KILL 120 "$run" -q -m "$alone" --device gpu $ask >"$tmp/out" 2>"$tmp/err" </dev/null
    status=$?
    [ $status = 8 ] && [ "$(wc -l <"$tmp/err")" = 1 ]
    status=$?
    check $status "$1"
    [ $status = 0 ] || sed 's/^/# /' "$tmp/err"
}
# How many kernels a run takes: the first at which a fault shows nowhere. All is on the GPU, so that hand-overs, whose trial takes as long as it takes, play no part.
cp "$m" "$tmp/alone.gguf"
alone=$tmp/alone.gguf
lo=1 hi=8192 slow=0
while [ $((hi - lo)) -gt 1 ]; do
    at=$(((lo + hi) / 2))
    if PI_EMU_FAULT=$at "$run" -q -m "$alone" --device gpu $ask >"$tmp/out" 2>"$tmp/err"; then
        hi=$at
    elif grep -q 'illegal' "$tmp/err"; then
        lo=$at
    else # a machine so busy that the watchdog bit: once more
        slow=$((slow + 1))
        [ $slow -lt 20 ] || break
    fi
done
[ $slow -lt 20 ]
check $? "kernels counted, $slow runs repeated"
echo "# $lo kernels"
for at in 1 $((lo / 2)) $((lo - 20)) $((lo - 1)); do
    broken "a fault of kernel $at" PI_EMU_FAULT=$at
done
broken 'a kernel of the last steps that never ends' PI_EMU_STOP=$((lo - 4))
broken 'a copy of the load that never ends' PI_EMU_HALT=3 # takes half a minute
echo "1..$n"
