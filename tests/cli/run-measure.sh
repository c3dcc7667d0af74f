#!/bin/sh
# pi-run: logits, perplexity, verification, masks, and a split run on two units.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
model llama-relu
model opt-pre
once='Once upon a time, there was a small house at the edge of the wood.'
head -c 1000 "$abs_top_srcdir/README.md" >"$tmp/short"

bytes() { wc -c <"$1" | tr -d ' '; }
# u32 OFFSET FILE
u32() { od -An -tu4 -j "$1" -N 4 "$2" | tr -d ' '; }

for c in llama-relu opt-pre; do
    m=$tmp/$c.gguf
    works "$c: logits" pi-run -q -m "$m" -p "$once" --logits "$tmp/l1" --kv f32 --json
    [ "$(bytes "$tmp/l1")" = $((24 * 1024 * 4)) ] && [ "$(value tokens "$tmp/out")" = 24 ]
    check $? "$c: 24 rows of 1024"
    works "$c: logits, stepwise" pi-run -q -m "$m" -p "$once" --logits "$tmp/l2" --kv f32 --stepwise
    [ "$(bytes "$tmp/l2")" = $((24 * 1024 * 4)) ] && [ ! -s "$tmp/out" ]
    check $? "$c: 24 rows of 1024, nothing on standard output"

    works "$c: perplexity" pi-run -m "$m" --perplexity "$tmp/short" --window 64 --kv f32 --json
    cp "$tmp/out" "$tmp/batched"
    [ "$(value mode "$tmp/batched")" = dense ] && grep -q 'batches run dense' "$tmp/err"
    check $? "$c: batches run dense, which is said"
    works "$c: perplexity, stepwise" pi-run -q -m "$m" --perplexity "$tmp/short" --window 64 --kv f32 --json --stepwise
    [ "$(value mode "$tmp/out")" = exact ] && [ "$(value tokens "$tmp/out")" = "$(value tokens "$tmp/batched")" ] &&
        awk -v a="$(value nll_per_token "$tmp/out")" -v b="$(value nll_per_token "$tmp/batched")" \
            'BEGIN { d = a - b; exit !(a > 0 && d < 1e-5 && d > -1e-5) }'
    check $? "$c: exact decoding has the perplexity of dense batches"
    cp "$tmp/out" "$tmp/stepwise"

    works "$c: exact against dense" pi-run -q -m "$m" --perplexity "$tmp/short" --window 64 --kv f32 --json --verify
    less "$(value kl "$tmp/out")" 1e-6 && [ "$(value missed "$tmp/out")" = 0.0 ] && [ "$(value wasted "$tmp/out")" = 0.0 ] &&
        [ "$(value nll_per_token "$tmp/out")" = "$(value nll_per_token "$tmp/stepwise")" ]
    check $? "$c: KL below 1e-6, nothing missed, the same likelihood"

    make_artifact predictor "$m" "$tmp/perfect" perfect
    works "$c: a perfect predictor" pi-run -q -m "$m" --predictor "$tmp/perfect" --kv f32 --json \
        --perplexity "$tmp/short" --window 64 --verify --masks "$tmp/masks"
    cat "$tmp/out" | sed 's/^/# /'
    [ "$(value mode "$tmp/out")" = predicted ] && less "$(value kl "$tmp/out")" 1e-6 && less "$(value missed "$tmp/out")" 1e-4 &&
        less "$(value wasted "$tmp/out")" 0.01 && less 0.999 "$(value top1 "$tmp/out")"
    check $? "$c: misses nothing"
    layers=$(u32 4 "$tmp/masks") neurons=$(u32 8 "$tmp/masks") positions=$(u32 0 "$tmp/masks")
    [ $((positions % 64)) = 0 ] && [ "$positions" = "$(value tokens "$tmp/out")" ] &&
        [ "$(bytes "$tmp/masks")" = $((12 + positions * layers * 2 * ((neurons + 7) / 8))) ]
    check $? "$c: masks of $positions positions, $layers layers, $neurons neurons"

    make_artifact predictor "$m" "$tmp/blind" blind
    works "$c: a blind predictor" pi-run -q -m "$m" --predictor "$tmp/blind" --kv f32 --json --verify -p "$once" \
        --masks "$tmp/masks"
    [ "$(value finish "$tmp/out")" = length ]
    check $? "$c: no text was asked for: finish is length, not context"
    [ "$(value missed "$tmp/out")" = 1.0 ] && [ "$(value wasted "$tmp/out")" = 0.0 ] && less 1e-4 "$(value kl "$tmp/out")" &&
        [ "$(value tokens "$tmp/out")" = '[]' ] && [ "$(u32 0 "$tmp/masks")" = 24 ]
    check $? "$c: misses everything, over the prompt's 24 positions"

    make_artifact predictor "$m" "$tmp/half" half
    works "$c: a predictor for some layers" pi-run -q -m "$m" --predictor "$tmp/half" --kv f32 --json --verify -p "$once" \
        -n 8 --temp 0 --ignore-eos --masks "$tmp/masks"
    size=$(((neurons + 7) / 8))
    at=$((12 + 5 * layers * 2 * size + 2 * size)) # position 5, layer 1: without predictor
    [ "$(value tokens "$tmp/out" | tr -cd , | wc -c)" = 7 ] && [ "$(u32 0 "$tmp/masks")" = 31 ] &&
        [ "$(od -An -tx1 -j $at -N $size "$tmp/masks")" = "$(od -An -tx1 -j $((at + size)) -N $size "$tmp/masks")" ]
    check $? "$c: a layer without writes its true set twice; eight tokens are generated beside"

    # Two units on one processor.
    for share in none 0 0.3 1; do
        make_artifact placement "$m" "$tmp/place" $share
        works "$c: cpu+cpu, $share hot" pi-run -q -m "$m" --placement "$tmp/place" --device cpu+cpu --mode exact --json \
            --perplexity "$tmp/short" --window 64 --verify
        less "$(value kl "$tmp/out")" 1e-5
        check $? "$c: cpu+cpu, $share hot: KL $(value kl "$tmp/out") against dense on one unit"
        works "$c: cpu+cpu, $share hot: text" pi-run -q -m "$m" --placement "$tmp/place" --device cpu+cpu --mode exact --json \
            -p "$once" -n 24 --temp 0 --ignore-eos --kv f32
        compare_reference greedy "$ref/$c" 0 2e-5 <"$tmp/out" >"$tmp/tap"
        number "$tmp/tap"
    done
    make_artifact placement "$m" "$tmp/place" 0.6
    pi-run -q -m "$m" --placement "$tmp/place" --device cpu+cpu -p "$once" -n 30 -s 5 -t 1 >"$tmp/a" 2>/dev/null
    pi-run -q -m "$m" --placement "$tmp/place" --device cpu+cpu -p "$once" -n 30 -s 5 -t 2 >"$tmp/b" 2>/dev/null
    [ -s "$tmp/a" ] && cmp -s "$tmp/a" "$tmp/b"
    check $? "$c: cpu+cpu: the same bytes with one thread and two"
    pi-run -q -m "$m" --placement "$tmp/place" --device cpu+cpu --predictor "$tmp/perfect" -p "$once" -n 24 --temp 0 \
        --ignore-eos --kv f32 --json >"$tmp/out" 2>/dev/null
    compare_reference greedy "$ref/$c" 0 2e-5 <"$tmp/out" >"$tmp/tap"
    number "$tmp/tap"
done

# Weights that are no numbers show, also where the activation would have hidden them; a perplexity past what a double holds is null.
model llama-relu
m=$tmp/llama-relu.gguf
for mode in dense exact; do
    make_artifact fill "$m" "$tmp/nan.gguf" blk.0.ffn_gate.weight nan
    fails 9 'logits.*finite' "$mode: a gate that is not a number" pi-run -q --no-check -m "$tmp/nan.gguf" --mode $mode -p x -n 2
done
make_artifact fill "$m" "$tmp/large.gguf" output_norm.weight 60000
works 'a perplexity beyond bounds' pi-run -q --no-check -m "$tmp/large.gguf" --perplexity "$tmp/short" --window 64 --json
[ "$(value perplexity "$tmp/out")" = null ] && less 1000 "$(value nll_per_token "$tmp/out")"
check $? 'is null, beside its logarithm'
echo "1..$n"
