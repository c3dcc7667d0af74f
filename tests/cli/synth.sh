#!/bin/sh
# pi-synth: what its models promise, held to the real forward pass.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
PATH=$abs_top_builddir/bench:$PATH
small='--layers 3 --embd 256 --ff 1024 --heads 4 --vocab 3000 --ctx 512 --rank 32 -q'

# Words of one or two letters: each is a token of the vocabulary, and all letters occur.
awk 'BEGIN { srand(7); for (i = 0; i < 1200; i++) { w = sprintf("%c", 97 + int(rand() * 26))
    if (rand() < 0.8) w = w sprintf("%c", 97 + int(rand() * 26)); printf "%s ", w } }' >"$tmp/text"

# near A B SHARE: |A - B| <= SHARE * B
near() {
    awk -v a="$1" -v b="$2" -v s="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a != "" && d <= s * b) }'
}

for arch in llama opt; do
    for type in f16 q8_0 q4_0; do
        m=$tmp/$arch.$type.gguf
        works "$arch $type: made" pi-synth -o "$m" --arch $arch --type $type $small --json
        cp "$tmp/out" "$tmp/report"
        near "$(value density "$tmp/report")" 0.1 0.001
        check $? "$arch $type: the law has the density that was asked for"
        near "$(value covered18 "$tmp/report")" 0.667 0.01 && near "$(value covered57 "$tmp/report")" 0.96 0.01
        check $? "$arch $type: 18 % of neurons make two thirds of the activations, 57 % make 96 %"
        for mode in dense exact predicted; do
            works "$arch $type: $mode" pi-run -q -m "$m" --mode $mode -p 'ab cd' -n 12 -s 1 --json -t 2
        done
        works "$arch $type: compared with dense" \
            pi-run -q -m "$m" --mode predicted --verify --perplexity "$tmp/text" --window 256 --json -t 2
        less "$(value missed "$tmp/out")" 0.03 && less "$(value wasted "$tmp/out")" 0.03
        check $? "$arch $type: recall and precision of at least 0.97 (missed $(value missed "$tmp/out"), wasted $(value wasted "$tmp/out"))"
    done
    works "$arch: profiled" pi-profile "$tmp/$arch.f16.gguf" --data "$tmp/text" -o "$tmp/measured.gguf" --json -t 2 -q
    tr '{' '\n' <"$tmp/out" | sed -n 's/.*"density":\([0-9.e-]*\).*/\1/p' >"$tmp/densities"
    bad=
    while read -r d; do near "$d" 0.1 0.15 || bad="$bad $d"; done <"$tmp/densities"
    [ "$(wc -l <"$tmp/densities")" = 3 ] && [ -z "$bad" ]
    check $? "$arch: every layer's measured density is within 15 %${bad:+;$bad}"
done

# The text that is drawn varies.
pi-run -q -m "$tmp/llama.f16.gguf" -p 'ab cd' -n 60 -s 3 --ignore-eos --json -t 2 >"$tmp/out" 2>"$tmp/err"
different=$(value tokens "$tmp/out" | tr -d '[]' | tr ',' '\n' | sort -u | wc -l)
[ "$different" -gt 30 ]
check $? "60 drawn tokens are of $different kinds"

# Counts differ from token to token, with a heavy tail: the report's percentiles.
awk -v a="$(value count50 "$tmp/report")" -v b="$(value count99 "$tmp/report")" 'BEGIN { exit !(b > 2.5 * a) }'
check $? 'one token in a hundred has more than 2.5 times the median count'

# The profile's rates are those of the real run, and the artifacts go with any type of the same seed.
pi-place "$tmp/llama.f16.gguf" --vram-budget 0G -q >"$tmp/out" 2>"$tmp/err"
check $? 'pi-place takes profile and predictor'
works 'artifacts of another type' pi-run -q -m "$tmp/llama.q4_0.gguf" --predictor "$tmp/llama.f16.predictor.gguf" \
    --profile "$tmp/llama.f16.profile.gguf" --mode predicted -p x -n 1

# Same seed, same bytes, at any number of threads; another seed, other bytes.
works 'one thread' pi-synth -o "$tmp/one.gguf" $small --type q8_0 -t 1
works 'three threads' pi-synth -o "$tmp/three.gguf" $small --type q8_0 -t 3
for kind in .gguf .profile.gguf .predictor.gguf; do
    cmp -s "$tmp/one$kind" "$tmp/three$kind"
    check $? "one and three threads: the same bytes of M$kind"
done
works 'another seed' pi-synth -o "$tmp/other.gguf" $small --type q8_0 -s 2
! cmp -s "$tmp/one.gguf" "$tmp/other.gguf"
check $? 'another seed: other bytes'
grep -q 'synthetic llama' "$tmp/one.gguf" && grep -q 'Synthetic: random weights for timing' "$tmp/one.gguf"
check $? 'the file says what it is'

# Other laws, other shapes.
works 'denser' pi-synth -o "$tmp/dense.gguf" $small --density 0.3 --json
near "$(value density "$tmp/out")" 0.3 0.001
check $? 'the density that was asked for'
works 'grouped heads, a width that is no power of two, a quantised predictor' \
    pi-synth -o "$tmp/odd.gguf" --layers 2 --embd 160 --ff 333 --heads 5 --kv-heads 1 --vocab 321 --ctx 64 --rank 96 \
    --predictor-type q8_0 -q --json
works 'and it runs' pi-run -q -m "$tmp/odd.gguf" --mode predicted -p 'a' -n 4

# What can not be made.
fails 2 'no output' 'no output' pi-synth
fails 2 '--embd: must be a multiple of 32' 'a width of 100' pi-synth -o "$tmp/x.gguf" --embd 100
fails 2 '--rank: must be from 8 to --embd' 'a rank above the width' pi-synth -o "$tmp/x.gguf" --embd 64 --heads 2 --rank 96
fails 2 '--vocab: must be at least 320' 'a tiny vocabulary' pi-synth -o "$tmp/x.gguf" --vocab 100
fails 2 '--kv-heads: must divide' '3 of 32 heads' pi-synth -o "$tmp/x.gguf" --kv-heads 3
[ ! -e "$tmp/x.gguf" ]
check $? 'nothing was written'
echo "1..$n"
