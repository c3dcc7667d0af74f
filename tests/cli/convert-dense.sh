#!/bin/sh
# pi-convert and what a model's activation means: said after a conversion, in lists and dumps.
. "$abs_top_srcdir/tests/cli/run_lib.sh"

# said NAME PATTERN: one notice on the activation, and it matches.
said() {
    [ "$(grep -c '^pi-convert: activation' "$tmp/err")" = 1 ] && grep -qE "^pi-convert: $2" "$tmp/err"
    check $? "$1"
}

gains='zero for every neuron that does not fire; such neurons can be left out, so the model runs sparse and can gain \(pi-profile says how much\)$'
dense='never exactly zero, so every token needs every neuron; the model runs dense \(--mode dense\), and profile and predictor would gain nothing$'
works 'a ReLU model' pi-convert "$ref/llama-relu" -o "$tmp/relu.gguf"
said 'can gain' "activation relu: $gains"
works 'a SiLU model' pi-convert "$ref/llama-silu-gqa-tied" -o "$tmp/silu.gguf"
said 'cannot' "activation silu: $dense"
works 'quietly' pi-convert -q "$ref/llama-silu-gqa-tied" -o "$tmp/silu.gguf"
check "$([ ! -s "$tmp/err" ]; echo $?)" 'says nothing'
works 'the same weights with a threshold' pi-convert "$tmp/silu.gguf" -o "$tmp/fat.gguf" --hidden-act fatrelu:0.01 --no-self-check
said 'can gain, too' "activation fatrelu: $gains"
for act in relu2 gelu gelu_tanh; do
    works "$act" pi-convert "$tmp/silu.gguf" -o "$tmp/x.gguf" --hidden-act $act --no-self-check
    case $act in relu2) said 'can gain' "activation relu2: $gains" ;; *) said 'cannot' "activation $act: $dense" ;; esac
done

for m in relu silu; do
    case $m in relu) is=true text=$gains ;; silu) is=false text=$dense ;; esac
    works "a list of $m" pi-convert "$tmp/$m.gguf" --list
    check "$(grep -qE "^activation: $m, $text" "$tmp/out"; echo $?)" 'says it, too'
    works 'as JSON' pi-convert "$tmp/$m.gguf" --list --json
    check "$([ "$(value activation "$tmp/out")" = $m ] && [ "$(value sparse "$tmp/out")" = $is ]; echo $?)" "$m is sparse: $is"
    works 'a report' pi-convert -q "$tmp/$m.gguf" -o "$tmp/x.gguf" --json
    check "$([ "$(value activation "$tmp/out")" = $m ] && [ "$(value sparse "$tmp/out")" = $is ]; echo $?)" 'with the same'
    works 'a dump' pi-convert --dump "$tmp/$m.gguf"
    check "$(grep -q "^activation: {name: $m, sparse: $is}$" "$tmp/out"; echo $?)" 'with the same'
done
works 'a dump of a threshold' pi-convert --dump "$tmp/fat.gguf"
check "$(grep -q '^activation: {name: fatrelu, threshold: 0.01.*, sparse: true}$' "$tmp/out"; echo $?)" 'that is there'
echo "1..$n"
