#!/bin/sh
# Models with known answers: tokens, logits of prompt and of decode steps, greedy text, perplexity.
. "$abs_top_srcdir/tests/cli/run_lib.sh"

# convert FOLDER TYPE OUT
convert() {
    pi-convert "$1" -o "$3" --type "$2" >"$tmp/log" 2>&1
    status=$?
    check $status "pi-convert $(basename "$1") --type $2"
    [ $status = 0 ] || sed 's/^/# /' "$tmp/log"
    return $status
}

# compare ARGUMENTS: of compare_reference
compare() {
    compare_reference "$@" >"$tmp/tap" 2>&1
    status=$?
    sed -n '/^Bail/p; /^not/p' "$tmp/tap" | sed 's/^/# /'
    sed -i 's/^Bail out!/not ok - /' "$tmp/tap"
    echo "# $*"
    number "$tmp/tap"
    [ $status -le 1 ] || check 1 "compare_reference $1"
}

one() { # FOLDER TYPE
    convert "$1" "$2" "$tmp/m.gguf" && compare model "$tmp/m.gguf" "$1"
}

# pairs SOURCE FOLDER TYPE...: quantised weights against themselves, dequantised.
pairs() {
    source=$1 folder=$2
    shift 2
    for t in "$@"; do
        convert "$source" "$t" "$tmp/q.gguf" && convert "$tmp/q.gguf" f32 "$tmp/d.gguf" &&
            compare pair "$tmp/q.gguf" "$tmp/d.gguf" "$folder" 1e-4
    done
}
# perplexity FILE: on text that nobody trained on; sets ppl.
perplexity() {
    head -c 16000 "$PI_SHARED/models/demo-text/heldout.txt" >"$tmp/text"
    pi-run -q -t 1 -m "$1" --perplexity "$tmp/text" --window 256 --act f32 --json >"$tmp/out" 2>"$tmp/err" || sed 's/^/# /' "$tmp/err"
    ppl=$(value perplexity "$tmp/out")
    [ -n "$ppl" ]
}
blocks='q8_0 q4_0 q4_1 q5_0 q5_1'

for c in llama-relu llama-silu-gqa-tied opt-pre; do
    one "$ref/$c" f32
    pairs "$ref/$c" "$ref/$c" $blocks
done
# K types: rows of 256, and rows that they do not fit.
for a in llama opt; do
    "$abs_top_builddir/bench/pi-synth" -q -o "$tmp/s.gguf" --arch $a --layers 3 --embd 256 --ff 512 --heads 4 --vocab 1100 \
        --ctx 512 --rank 32 >"$tmp/log" 2>&1
    check $? "pi-synth --arch $a"
    pairs "$tmp/s.gguf" "$ref/llama-relu" q4_k q5_k q6_k q4_k_s q4_k_m q5_k_s q5_k_m
done
pairs "$ref/llama-relu" "$ref/llama-relu" q4_k_m
if [ -n "$PI_SHARED" ] && [ -d "$PI_SHARED/reference" ]; then
    s=$PI_SHARED/reference
    one "$s/llama3-rope-bf16-sharded" bf16
    pairs "$s/llama3-rope-bf16-sharded" "$s/llama3-rope-bf16-sharded" $blocks
    for c in mistral-relu-gqa-oldconfig opt-bin-f32 arcee-relu2 qwen2-silu qwen3-silu \
        falcon-7b-style falcon-40b-style opt-350m-style; do
        one "$s/$c" f32
        pairs "$s/$c" "$s/$c" $blocks
    done
    # Rounding K and V to F16 alone moves this model's logits by up to 1.5e-3 in the reference implementation: squares amplify it.
    convert "$s/nemotron-relu2" f32 "$tmp/m.gguf" && compare model "$tmp/m.gguf" "$s/nemotron-relu2" 3e-3
    pairs "$s/nemotron-relu2" "$s/nemotron-relu2" q8_0 q5_0 q5_1 # 4 bits change it by more than pi-convert lets pass
    for c in llama opt; do
        convert "$PI_SHARED/models/demo-$c" f16 "$tmp/t.gguf" || continue
        compare model "$tmp/t.gguf" "$s/trained-$c"
        pi-run -q -m "$tmp/t.gguf" --perplexity "$s/trained-$c/text.txt" --window 256 --kv f32 --json >"$tmp/p" 2>"$tmp/err"
        compare_reference perplexity "$s/trained-$c" 1e-4 <"$tmp/p" >"$tmp/tap"
        number "$tmp/tap"
    done
    # What each type costs: perplexity over that of F16. Limits: Q8_0 a thousandth; measured 1.1, 2.1, 3.8 and 4.6 %. K types fall back to Q8_0.
    convert "$PI_SHARED/models/demo-llama" f16 "$tmp/t.gguf"
    perplexity "$tmp/t.gguf" && base=$ppl
    for t in q8_0:0.001 q5_1:0.02 q5_0:0.03 q4_1:0.05 q4_0:0.06 q4_k_m:0.001; do
        convert "$PI_SHARED/models/demo-llama" ${t%:*} "$tmp/q.gguf" && perplexity "$tmp/q.gguf"
        awk -v a="$ppl" -v b="$base" -v r=${t#*:} 'BEGIN { d = a / b - 1; exit !(a != "" && d < r && -d < r) }'
        check $? "${t%:*}: perplexity $ppl, $(awk -v a="$ppl" -v b="$base" 'BEGIN { printf "%.5f", a / b }') of F16's (within ${t#*:})"
    done
else
    n=$((n + 1))
    echo "ok $n - larger cases # SKIP PI_SHARED is not set"
fi
echo "1..$n"
