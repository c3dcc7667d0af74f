#!/bin/sh
# pi-place: wrong command lines and machines are refused with one line and nothing written; 0G and a what-if machine work.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
model llama-relu
m=$tmp/llama-relu.gguf
p=$tmp/llama-relu.placement.gguf
hw=$abs_top_srcdir/datasets/hardware-example.yaml
cd "$tmp" || exit 1

fails 2 'which model' 'no model' pi-place --vram-budget 8G
fails 2 'vram-budget is missing' 'no budget' pi-place "$m"
fails 2 'vram-budget is missing' 'no budget, told before anything is measured' pi-place "$m" --probe-hardware early.yaml
[ ! -e early.yaml ]
check $? 'nothing was measured'
fails 2 'vram-budget 8: needs a unit' 'budget without a unit' pi-place "$m" --vram-budget 8
fails 2 'vram-budget -1G' 'negative budget' pi-place "$m" --vram-budget -1G
fails 2 'objective best.*paper\|latency' 'unknown objective' pi-place "$m" --vram-budget 8G --objective best
fails 7 'nothing.gguf' 'no such model' pi-place "$tmp/nothing.gguf" --vram-budget 8G --hardware "$hw"
fails 7 'no-profile' 'a profile that is not there' pi-place "$m" --vram-budget 8G --hardware "$hw" --profile no-profile
printf 'pi_hardware: 1\ncpu: {threads: 2, bandwidth: 1e9}\nspeed: 1\n' >bad.yaml
fails 3 'bad.yaml, line 3: unknown key .speed' 'bad machine' pi-place "$m" --vram-budget 8G --hardware bad.yaml
printf 'pi_hardware: 1\ncpu: {threads: 2, bandwidth: 1e9}\n' >cpu.yaml
fails 8 'no GPU.*--hardware FILE.*0G' 'a budget without a GPU' pi-place "$m" --vram-budget 8G --hardware cpu.yaml
fails 6 'smallest that works is --vram-budget [0-9]+K' 'far too small a budget' pi-place "$m" --vram-budget 1M --hardware "$hw"
least=$(sed -n 's/.*smallest that works is --vram-budget \([0-9]*K\), with a profile.*/\1/p' err)
fails 5 'make one: pi-profile .*llama-relu.gguf' 'the smallest that works, without the profile' pi-place "$m" --vram-budget "$least" --hardware "$hw"
silu=$tmp/llama-silu-gqa-tied.gguf
model llama-silu-gqa-tied
sed 's/^    context_bytes: .*/    context_bytes: 20e6/' "$hw" >small.yaml
fails 6 'smallest that works is --vram-budget [0-9]+K; 0G' 'too small a budget for any model' pi-place "$silu" --vram-budget 1K --hardware small.yaml
least=$(sed -n 's/.*smallest that works is --vram-budget \([0-9]*K\);.*/\1/p' err)
works 'the smallest that works does' pi-place "$silu" --vram-budget "$least" --hardware small.yaml -q
fails 6 "smallest that works is --vram-budget $least;" 'a little less does not' pi-place "$silu" --vram-budget $((${least%K} - 1))K --hardware small.yaml
fails 5 'mode predicted needs a predictor.*pi-train-predictor' 'predicted without a predictor' pi-place "$m" --vram-budget 8G --hardware "$hw" --mode predicted
sed 's/^    context_bytes: .*/    context_bytes: 0/' "$hw" >none.yaml
fails 6 'smallest that works' 'less than buffers take' pi-place "$m" --vram-budget 1K --hardware none.yaml
least=$(sed -n 's/.*smallest that works is --vram-budget \([0-9]*\)K.*/\1/p' err)
fails 5 'pi-profile' 'a part of a sparse model without a profile' pi-place "$m" --vram-budget $((least + 512))K --hardware none.yaml
works 'all neurons are equal in dense mode' pi-place "$m" --vram-budget $((least + 512))K --hardware none.yaml --mode dense -q -o dense.gguf
works 'and it runs' pi-run -q -m "$m" --placement dense.gguf --device cpu+cpu --mode dense -p x -n 2
rm -f dense.gguf
make_artifact placement "$m" other.gguf 0.5
fails 5 'placement' 'a placement for a profile' pi-place "$m" --vram-budget 8G --hardware "$hw" --profile other.gguf
[ ! -e "$p" ]
check $? 'nothing was written'

pi-place "$m" --vram-budget 0G --hardware cpu.yaml --json -q >out 2>err && [ ! -s err ] &&
    grep -qE '^\{"optimal":true,"solve_seconds":[0-9.e-]+,"vram_bytes":0,"activations_on_gpu":0.0,"tokens_per_second":\{"placed":[0-9.]+,"cpu":[0-9.]+,"gpu":null\},"layers":\[(\{"hot":0\},?)+\]\}$' out
check $? '0G places everything on the CPU and says so in JSON'
[ -s "$p" ] && pi-run -q -m "$m" --tokens 1,2,3 -n 2 --temp 0 >/dev/null
check $? 'the placement loads'

cp cpu.yaml hardware.yaml
pi-place "$m" --vram-budget 0G >out 2>err && grep -q 'CPU only' out && grep -q '^machine .*2 threads' out && grep -q "wrote $p" err
check $? 'hardware.yaml of the working folder is found'
rm hardware.yaml "$p"

pi-place "$m" --vram-budget 8G --hardware "$hw" --explain -o there.gguf >out 2>err &&
    grep -q 'everything fits: all on the GPU' out && grep -q 'layer      hot' out && [ -s there.gguf ] && [ ! -e "$p" ]
check $? 'a model that fits is placed on the GPU, where -o says'

pi-place --probe-hardware probed.yaml 2>err && grep -q '^pi_hardware: 1' probed.yaml && grep -q 'GB/s' err &&
    pi-place "$m" --vram-budget 0G --hardware probed.yaml -q >out
check $? 'the probed machine is one that loads'

cp "$m" kept.gguf
fails 2 'is read as well' 'over the model' pi-place "$m" --vram-budget 0G --hardware probed.yaml -q -o "$m"
fails 2 'is read as well' 'a probe over the model' pi-place "$m" --vram-budget 0G --probe-hardware "$m" -q
fails 2 'probed.yaml is read as well' 'over the hardware' pi-place "$m" --vram-budget 0G --hardware probed.yaml -q -o probed.yaml
cmp -s "$m" kept.gguf
check $? 'the model is as it was'
echo "1..$n"
