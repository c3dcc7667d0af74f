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

# How the down projections lie. downs REPORT: their names and types.
downs() {
    tr '{' '\n' <"$1" | sed -n 's/^"name":"blk\.[0-9]*\.\(ffn_down[^"]*\)".*"type":"\([^"]*\)","bytes".*/\1 \2/p' | sort -u | tr '\n' ' '
}
stays='the down projections stay row by row: '
lineage() {
    pi-convert --dump "$1" | sed -n 's/.*pi.model.lineage: *//p'
}
PATH=$abs_top_builddir/bench:$PATH
synth() { # NAME TYPE OPTIONS...: a SiLU model
    out=$tmp/$1.gguf type=$2
    shift 2
    works "a model in $type $*" pi-synth -q -o "$tmp/x.gguf" --type "$type" --layers 2 --heads 4 --vocab 320 --ctx 64 --rank 32 "$@"
    pi-convert -q "$tmp/x.gguf" -o "$out" --hidden-act silu --layout row
    rm "$tmp/x.gguf"
}
runs() { # FILE: the tokens that a dense run writes
    pi-run -q -m "$1" --mode dense -p 'ab cd' -n 8 --temp 0 --act f32 --json 2>/dev/null >"$tmp/run" && value tokens "$tmp/run"
}
for type in q4_1 q4_k q8_0; do
    case $type in q4_1) is=Q4_1 ;; q4_k) is=Q4_K ;; q8_0) is=Q8_0 ;; esac
    synth "row.$type" $type --row-major-down --embd 256 --ff 512
    works "a dense model in $type" pi-convert "$tmp/row.$type.gguf" -o "$tmp/kept.gguf" --json
    check "$([ "$(downs "$tmp/out")" = "ffn_down.weight $is " ] && grep -q "$stays" "$tmp/err"; echo $?)" "stays $(downs "$tmp/out")and says so"
    check "$(cmp -s "$tmp/row.$type.gguf" "$tmp/kept.gguf"; echo $?)" 'byte for byte'
    works 'turned where that is asked for' pi-convert "$tmp/row.$type.gguf" -o "$tmp/turned.gguf" --layout neuron --json
    check "$([ "$(downs "$tmp/out")" = 'ffn_down_t.weight Q8_0 ' ] && ! grep -q "$stays" "$tmp/err"; echo $?)" "is $(downs "$tmp/out")"
    a=$(runs "$tmp/kept.gguf") b=$(runs "$tmp/turned.gguf")
    check "$([ -n "$a" ] && [ "$a" = "$b" ]; echo $?)" "both say $a"
    check "$([ "$(lineage "$tmp/kept.gguf")" = "$(lineage "$tmp/turned.gguf")" ]; echo $?)" 'and are one model'
    works 'and back' pi-convert -q "$tmp/turned.gguf" -o "$tmp/back.gguf" --layout row --json
    check "$([ "$(downs "$tmp/out")" = 'ffn_down.weight Q8_0 ' ] && [ "$(runs "$tmp/back.gguf")" = "$a" ]; echo $?)" "is $(downs "$tmp/out")"
    works 'to another type' pi-convert -q "$tmp/row.$type.gguf" -o "$tmp/x.gguf" --type q5_1 --json
    check "$([ "$(downs "$tmp/out")" = 'ffn_down.weight Q5_1 ' ]; echo $?)" "it is $(downs "$tmp/out")"
    works 'with an activation that has zeros' pi-convert "$tmp/row.$type.gguf" -o "$tmp/x.gguf" --hidden-act relu --json --no-self-check
    check "$([ "$(downs "$tmp/out")" = 'ffn_down_t.weight Q8_0 ' ] && ! grep -q "$stays" "$tmp/err"; echo $?)" 'it is turned'
done
fails 2 'keep .*ffn_down_t.*no matrix' 'a pattern for the other layout' pi-convert -q "$tmp/row.q4_1.gguf" -o "$tmp/x.gguf" --keep '*ffn_down_t*=f16'
works 'a pattern for this one' pi-convert -q "$tmp/row.q4_1.gguf" -o "$tmp/x.gguf" --keep '*.ffn_down.*=f16' --json
check "$([ "$(downs "$tmp/out")" = 'ffn_down.weight F16 ' ]; echo $?)" 'is followed'

# Floats lose nothing by being turned, and a GPU reads them so; K types fit the longer rows alone.
works 'floats' pi-convert "$ref/llama-silu-gqa-tied" -o "$tmp/silu.gguf" --json
check "$([ "$(downs "$tmp/out")" = 'ffn_down_t.weight F16 ' ] && ! grep -q "$stays" "$tmp/err"; echo $?)" 'are turned'
for m in silu relu; do
    for check in '' --no-self-check; do
        works "$m by row $check" pi-convert -q "$tmp/$m.gguf" -o "$tmp/$m.row.gguf" --layout row --json $check
        check "$([ "$(downs "$tmp/out")" = 'ffn_down.weight F16 ' ]; echo $?)" "is $(downs "$tmp/out")"
    done
    works "$m and back" pi-convert -q "$tmp/$m.row.gguf" -o "$tmp/x.gguf" --layout neuron
    check "$(cmp -s "$tmp/$m.gguf" "$tmp/x.gguf"; echo $?)" 'is what it was'
    case $m in silu) dir=llama-silu-gqa-tied ;; relu) dir=llama-relu ;; esac
    works "$m straight from its folder" pi-convert -q "$ref/$dir" -o "$tmp/x.gguf" --layout row
    check "$(cmp -s "$tmp/$m.row.gguf" "$tmp/x.gguf"; echo $?)" 'is the same'
done
works 'a biased one by row' pi-convert -q "$ref/opt-pre" -o "$tmp/opt.gguf" --layout row
check "$(pi-convert --dump "$tmp/opt.gguf" | grep -c 'blk.0.ffn_down\.\(weight\|bias\)' | grep -qx 2; echo $?)" 'both are called so'
works 'it runs sparse' pi-run -m "$tmp/relu.row.gguf" -p 'Once upon' -n 4 --temp 0
check "$(grep -q 'transposed the down projections, .*: pi-convert [^ ]* -o FILE$' "$tmp/err"; echo $?)" 'from a copy, and says how to avoid that'
synth narrow f32 --row-major-down --embd 96 --ff 512
works 'K types of narrow rows' pi-convert "$tmp/narrow.gguf" -o "$tmp/x.gguf" --type q4_k --json
check "$([ "$(downs "$tmp/out")" = 'ffn_down.weight Q4_K ' ] && grep -q "$stays" "$tmp/err"; echo $?)" 'fit long ones'
works 'of a sparse model' pi-convert "$tmp/narrow.gguf" -o "$tmp/x.gguf" --type q4_k --json --hidden-act relu --no-self-check
check "$([ "$(downs "$tmp/out")" = 'ffn_down_t.weight Q8_0 ' ]; echo $?)" 'they are not asked'
works 'a type that fits both' pi-convert "$tmp/narrow.gguf" -o "$tmp/x.gguf" --type q4_0 --json
check "$([ "$(downs "$tmp/out")" = 'ffn_down_t.weight Q4_0 ' ]; echo $?)" 'is turned'
fails 2 'layout sideways: must be one of auto.neuron.row' 'an unknown layout' pi-convert "$tmp/silu.gguf" -o "$tmp/x.gguf" --layout sideways
fails 2 'no other option' 'a dump with a layout' pi-convert --dump "$tmp/silu.gguf" --layout row
echo "1..$n"
