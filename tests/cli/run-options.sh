#!/bin/sh
# pi-run: options that are wrong, alone or together, are refused before any work: status 2, one line, nothing printed.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
model llama-relu
m=$tmp/llama-relu.gguf

fails 2 'no model' 'no model' pi-run -p x
fails 2 'unknown option --tmep' 'unknown option' pi-run -m "$m" --tmep 1 -p x
fails 2 '--temp -1.*from 0 to 100' 'temperature below 0' pi-run -m "$m" --temp -1 -p x
fails 2 '--temp nan' 'temperature NaN' pi-run -m "$m" --temp nan -p x
fails 2 '--top-p 1.5.*from 0 to 1' 'top-p above 1' pi-run -m "$m" --top-p 1.5 -p x
fails 2 '--top-k -5' 'top-k below 0' pi-run -m "$m" --top-k -5 -p x
fails 2 '--min-p 2' 'min-p above 1' pi-run -m "$m" --min-p 2 -p x
fails 2 '--repeat-penalty 0' 'repeat penalty 0' pi-run -m "$m" --repeat-penalty 0 -p x
fails 2 'no effect with --repeat-last-n 0' 'penalty without a window' pi-run -m "$m" --repeat-penalty 1.1 --repeat-last-n 0 -p x
fails 2 '-c|ctx-size 0' 'context 0' pi-run -m "$m" -c 0 -p x
fails 2 'threads 0' 'no threads' pi-run -m "$m" -t 0 -p x
fails 2 'predict -1' 'tokens below 0' pi-run -m "$m" -n -1 -p x
fails 2 'seed 1x' 'a seed that is no number' pi-run -m "$m" -s 1x -p x
fails 2 '--mode fast.*dense\|exact\|predicted' 'unknown mode' pi-run -m "$m" --mode fast -p x
fails 2 '--kv q4' 'unknown KV type' pi-run -m "$m" --kv q4 -p x
fails 2 '--act q4' 'unknown form of activations' pi-run -m "$m" --act q4 -p x
fails 2 '--numa all.*off\|distribute\|isolate' 'unknown way with memory nodes' pi-run -m "$m" --numa all -p x
fails 2 '--device tpu.*cpu\+cpu' 'unknown device' pi-run -m "$m" --device tpu -p x
fails 2 '--device gpu:x' 'GPU that is no number' pi-run -m "$m" --device gpu:x -p x
fails 2 'only one of -p, -f' 'two prompts' pi-run -m "$m" -p x -f /dev/null
fails 2 '--masks goes with' 'masks without verify' pi-run -m "$m" -p x --masks "$tmp/k"
fails 2 '--stepwise goes with' 'stepwise alone' pi-run -m "$m" -p x --stepwise
fails 2 '--window goes with' 'window alone' pi-run -m "$m" -p x --window 3
fails 2 '--bos goes with' 'bos alone' pi-run -m "$m" -p x --bos
fails 2 'vram-budget 8.*(G|M)' 'budget without a unit' pi-run -m "$m" -p x --vram-budget 8
fails 2 'no effect with --device cpu' 'budget for a CPU' pi-run -m "$m" -p x --vram-budget 8G --device cpu
fails 2 'no list of ids' 'ids that are none' pi-run -q -m "$m" --tokens 1,a
fails 2 'no list of ids' 'an empty list of ids' pi-run -q -m "$m" --tokens ''
fails 2 'no list of ids' 'a comma at the end' pi-run -q -m "$m" --tokens 1,2,
fails 2 '1024 is not in the vocabulary of 1024' 'an id too high' pi-run -q -m "$m" --tokens 1,1024
fails 2 '99999999999999999999 is not in' 'an id far too high' pi-run -q -m "$m" --tokens 99999999999999999999
fails 2 "prompt's 3 tokens and -n 6 are more than the context of 8" 'prompt and -n over the context' \
    pi-run -q -m "$m" --tokens 1,2,3 -n 6 -c 8
fails 2 "prompt's 3 tokens are more than the context of 2" 'prompt over the context' pi-run -q -m "$m" --tokens 1,2,3 -c 2
fails 2 '--window 9 is more than the context of 8' 'window over the context' \
    pi-run -q -m "$m" --perplexity "$m" --window 9 -c 8
fails 8 '--device gpu' 'a GPU that is not there' env CUDA_VISIBLE_DEVICES= pi-run -q -m "$m" --device gpu -p x
fails 8 '--device gpu:7' 'a numbered GPU that is not there' env CUDA_VISIBLE_DEVICES= pi-run -q -m "$m" --device gpu:7 -p x
fails 5 'cpu\+cpu needs a placement.*pi-place .*llama-relu.gguf' 'two units without placement' pi-run -q -m "$m" --device cpu+cpu -p x
fails 5 'needs a placement.*pi-place' 'a budget without placement' pi-run -q -m "$m" --vram-budget 1G -p x
fails 5 'needs a predictor.*pi-profile .*pi-train-predictor' 'predicted without predictor' pi-run -q -m "$m" --mode predicted -p x
fails 7 'nowhere' 'a prompt file that is not there' pi-run -q -m "$m" -f "$tmp/nowhere"
fails 7 'nowhere' 'a model that is not there' pi-run -q -m "$tmp/nowhere.gguf" -p x
fails 7 'is a folder.*pi-convert' 'a folder as model' pi-run -q -m "$tmp" -p x
fails 7 'nowhere' 'a predictor that is not there' pi-run -q -m "$m" -p x --predictor "$tmp/nowhere"
fails 7 'nowhere' 'a folder for logits that is not there' pi-run -q -m "$m" -p x --logits "$tmp/nowhere/l"
fails 2 'softplus: must be one of relu' 'an activation we do not have' pi-run -q -m "$m" -p x --hidden-act softplus

works 'notices name the commands' pi-run -m "$m" -p x -n 1 -s 1
grep -q 'no predictor: running exact; make one with: pi-profile .*llama-relu.gguf --data FILE, then pi-train-predictor' "$tmp/err"
check $? 'the missing predictor is named, with the commands'
[ "$(grep -c 'no predictor' "$tmp/err")" = 1 ]
check $? 'once'
works 'verbose' pi-run --verbose -m "$m" -p x -n 1
grep -q 'llama, [0-9]* layers of [0-9]* neurons, relu' "$tmp/err" && grep -q 'context 256, KV F16' "$tmp/err"
check $? 'verbose describes model and run'
works 'quiet' pi-run -q -m "$m" -p x -n 1
[ ! -s "$tmp/err" ]
check $? 'quiet says nothing'
works 'log as JSON' pi-run --log-json -m "$m" -p x -n 1
! grep -v '^{.*}$' "$tmp/err" >/dev/null
check $? 'notices are JSON lines'
works 'a drawn seed' pi-run -m "$m" -p x -n 1
grep -qE 'seed [0-9]+$' "$tmp/err"
check $? 'is printed'
model llama-silu-gqa-tied
works 'exact where nothing is zero' pi-run -m "$tmp/llama-silu-gqa-tied.gguf" --mode exact -p x -n 1 --json
grep -q 'sparsity is off: the activation silu' "$tmp/err" && [ "$(value mode "$tmp/out")" = dense ]
check $? 'runs dense and says so'
echo "1..$n"
