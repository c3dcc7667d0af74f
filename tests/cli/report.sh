#!/bin/sh
# --report of pi-profile and pi-place: pages that are well formed and complete in themselves, whose figures are those of the programs' other outputs.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
PATH=$abs_top_builddir/bench:$PATH
model llama-relu
model llama-silu-gqa-tied
m=$tmp/llama-relu.gguf silu=$tmp/llama-silu-gqa-tied.gguf
cat "$abs_top_srcdir/HACKING.md" "$abs_top_srcdir/docs/architecture.md" | head -c 6000 >"$tmp/text"
cd "$tmp" || exit 1
sed -e 's/^    context_bytes: .*/    context_bytes: 0/' -e "s/^  name: .*/  name: '<script>alert(1)<\/script> \& \"CPU\"'/" \
    "$abs_top_srcdir/datasets/hardware-example.yaml" >machine.yaml

page() { # FILE...: what check_html says of it
    check_html "$@" >html 2>&1
    number html
}

# cells TABLE COLUMN FILE: the exact values in a column (from 1; the row's head is 0) of the table with this caption, a line each, sums left out.
cells() {
    awk -v caption="<caption>$1" -v column="$2" '
        index($0, "<caption>") { inside = index($0, caption) }
        !inside || !/^<tr/ || /class="sum"/ { next }
        {
            n = split($0, part, /<t[hd][^>]*>/)
            if (column + 2 > n) next
            s = part[column + 2]
            if (sub(/.*<data value="/, "", s)) { sub(/".*/, "", s); print s } else print "none"
        }' "$3"
}

# tile TEXT FILE: the exact value of the tile with this text.
tile() {
    grep "^<li>.*</b><span>$1" "$2" | sed 's/.*<data value="\([^"]*\)".*/\1/'
}

# same A B [SHARE]: files of numbers, line by line
same() {
    paste "$1" "$2" | awk -v s="${3-1e-7}" '
        { d = $1 - $2; if (d < 0) d = -d; m = $2 < 0 ? -$2 : $2
          if (NF != 2 || d > s * m + 1e-12) { print "# " $0; bad = 1 } n++ }
        END { exit bad || n == 0 }'
}

layers() { # KEY FILE: the values of a key in all layers of one-line JSON, one a line
    grep -o "\"$1\":[^,}]*" "$2" | sed 's/.*://'
}

dumped() { # KEY FILE: an array of an artifact, one value a line
    pi-convert --dump "$2" | sed -n "s/^  $1: \[\(.*\)\]/\1/p" | tr ',' '\n' | tr -d ' '
}

# ---- pi-profile
works 'profile with a page' pi-profile "$m" --data text --window 64 --report first.html --json
cp out profile.json
grep -q 'wrote first.html' err
check $? 'it says where the page is'
works 'a page on that profile, without profiling' pi-profile "$m" --report p.html --json
cmp -s first.html p.html && cmp -s out profile.json
check $? 'is the same page, with the same figures in JSON'
page p.html
for k in density:1 hot80:2 never:3; do
    layers "${k%:*}" profile.json >want
    cells 'Every layer' "${k#*:}" p.html >got
    same got want
    check $? "the page's ${k%:*} of every layer is that of --json"
done
grep -q 'Few tokens' p.html
check $? 'few tokens are told' # some thousands
grep -q 'There is no predictor' p.html
check $? 'so is that there is no predictor'
# The curve: activations of the hottest 10, 20 and 50 %, by sorting the counts.
works 'counts' pi-profile "$m" --data text --window 64 --samples 0 --counts counts -o spare.gguf -q
n_layer=$(wc -l <want) n_ff=$(($(wc -c <counts) / 4 / $(wc -l <want)))
for k in 3:10 4:20 6:50; do
    l=0
    while [ $l -lt "$n_layer" ]; do
        od -An -v -td4 -w4 -j $((4 * l * n_ff)) -N $((4 * n_ff)) counts | sort -rn |
            awk -v share="${k#*:}" -v n="$n_ff" '{ s += $1; if (NR <= share * n / 100 + 1e-9) c = s } END { print c / s }'
        l=$((l + 1))
    done >want
    cells 'Share of activations' "${k%:*}" p.html >got
    same got want 1e-5
    check $? "the hottest ${k#*:} % make what sorted counts add up to"
done

works 'train' pi-train-predictor "$m" --steps 8 --recall 0.6 --max-damage 1 --max-params 1 --json
works 'a page with a predictor' pi-profile "$m" --report p.html -q
page p.html
for k in width:4 recall:5 precision:6 density:7; do
    dumped "pi.predictor.${k%:*}" llama-relu.predictor.gguf >want
    cells 'Every layer' "${k#*:}" p.html >got
    same got want 1e-6
    check $? "the page's ${k%:*} of predictors is that of --dump"
done
make_artifact predictor "$m" half.gguf half
works 'every other layer without a predictor' pi-profile "$m" --report half.html --predictor half.gguf -q
page half.html
grep -q '<td>none</td>' half.html
check $? 'is shown as none'

# ---- pi-place
least=$(pi-place "$m" --vram-budget 1K --hardware machine.yaml 2>&1 | sed -n 's/.*--vram-budget \([0-9]*\)K.*/\1/p')
budget=$((least + 600))K
works 'place with a page' pi-place "$m" --vram-budget "$budget" --hardware machine.yaml --report r.html --json
cp out place.json
page r.html
for k in 'placed:tokens/s expected' 'cpu:tokens/s on the CPU alone' 'activations_on_gpu:of activations are of neurons on the GPU' 'vram_bytes:of .* of VRAM used'; do
    value "${k%%:*}" place.json | sed 's/.*{//' >want
    tile "${k#*:}" r.html >got
    same got want 1e-12
    check $? "the page's ${k%%:*} is that of --json"
done
layers hot place.json >want
cells 'Placement and expected time' 1 r.html >got
same got want
check $? 'so is what is hot in every layer'
value activations_on_gpu place.json >want
value placed place.json | sed 's/.*{//' >>want
grep '^<tr class="here">' r.html | sed 's/.*<td><data value="\([^"]*\)">[^<]*<\/data><\/td><td><data value="\([^"]*\)">.*/\1\n\2/' >got
same got want 1e-12
check $? 'the marked point of the curve is the plan'
cells 'What a budget buys' 2 r.html | grep -v none >shares
[ "$(wc -l <shares)" -ge 15 ] && [ "$(head -1 shares)" = 0 ] && [ "$(tail -1 shares)" = 1 ]
check $? 'the curve goes from nothing to everything'
# A point beside the chosen one is what placing for it brings.
other=$(cells 'What a budget buys' 0 r.html | awk -v b="${budget%K}" '$1 > b * 1024 { print $1; exit }')
works 'place for another point' pi-place "$m" --vram-budget $((other / 1024))K --hardware machine.yaml -o spare.gguf --json -q
value placed out | sed 's/.*{//' >want
cells 'What a budget buys' 0 r.html | grep -n "^$other\$" | cut -d: -f1 | { read -r row; cells 'What a budget buys' 3 r.html | sed -n "${row}p"; } >got
same got want 1e-12
check $? 'has the speed that the curve shows'
! grep -q '<script>' r.html && grep -q '&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;CPU&quot;' r.html
check $? "the machine's name is text"
works 'the CPU alone' pi-place "$m" --vram-budget 0G --hardware machine.yaml -o spare.gguf --report cpu.html -q
works 'everything fits' pi-place "$m" --vram-budget 8G --hardware machine.yaml -o spare.gguf --report all.html -q
works 'the paper' pi-place "$m" --vram-budget "$budget" --hardware machine.yaml --objective paper -o spare.gguf --report paper.html -q
works 'exact' pi-place "$m" --vram-budget "$budget" --hardware machine.yaml --mode exact -o spare.gguf --report exact.html -q
works 'dense' pi-place "$m" --vram-budget "$budget" --hardware machine.yaml --mode dense -o spare.gguf --report dense.html -q
printf 'pi_hardware: 1\ncpu: {threads: 2, bandwidth: 1e9}\n' >cpu.yaml
works 'a machine without a GPU' pi-place "$m" --vram-budget 0G --hardware cpu.yaml -o spare.gguf --report none.html -q
page cpu.html all.html paper.html exact.html dense.html none.html
grep -q 'Everything fits' all.html && grep -q 'Everything is on the CPU' cpu.html && grep -q 'Placed for a dense run' dense.html
check $? 'they say what they are'

# ---- models that do not gain, and odd ones
works 'an activation without zeros' pi-profile "$silu" --report silu.html
works 'the same placed' pi-place "$silu" --vram-budget 8G --hardware machine.yaml -o spare.gguf --report silu-place.html -q
page silu.html silu-place.html
grep -q 'Will not gain\.' silu.html && grep -q 'Will not gain from sparsity' silu-place.html
check $? 'will not gain'
pi-profile "$silu" --report silu.html --json -q >out && [ "$(cat out)" = '{"tokens":0,"layers":[]}' ]
check $? 'has nothing counted'
mkdir 'a<b>&"q"'
cp "$m" 'a<b>&"q"/<i>&"'"'"'x.gguf'
cp llama-relu.profile.gguf 'a<b>&"q"/<i>&"'"'"'x.profile.gguf'
works 'a name full of markup' pi-profile 'a<b>&"q"/<i>&"'"'"'x.gguf' --report odd.html -q
page odd.html
grep -q '<code>&lt;i&gt;&amp;&quot;&#39;x.gguf</code>' odd.html
check $? 'is text'
small='--embd 64 --ff 96 --heads 2 --vocab 320 --ctx 64 --rank 8 -q'
for many in 1 200; do
    pi-synth -o $many.gguf --layers $many $small || exit 99
    works "$many layers" pi-profile $many.gguf --report $many.html -q
    works "$many layers placed" pi-place $many.gguf --vram-budget 8G --hardware machine.yaml --report $many-place.html -q
    page $many.html $many-place.html
    [ "$(cells 'Every layer' 1 $many.html | wc -l)" = $many ] && [ "$(cells 'Placement and expected time' 1 $many-place.html | wc -l)" = $many ]
    check $? "$many rows"
done

# ---- refusals
fails 2 'nothing to profile' 'neither data nor a report' pi-profile "$m"
fails 2 '--profile first: is for a report' 'a profile to profile into' pi-profile "$m" --data text --report x.html --profile first
fails 2 '--predictor p: is for --report' 'a predictor without a report' pi-profile "$m" --data text --predictor p
fails 2 '-o is for a profile that is made' 'an output without data' pi-profile "$m" --report x.html -o y.gguf
fails 2 '--report -: must be a file' 'standard output' pi-profile "$m" --report -
fails 2 'is read as well' 'over the model' pi-profile "$m" --report "$m"
fails 2 "is the profile's own file" 'over the profile' pi-profile "$m" --report llama-relu.profile.gguf
fails 2 'is read as well' 'over the predictor' pi-profile "$m" --report llama-relu.predictor.gguf
fails 7 'nowhere/x.html' 'no such folder' pi-profile "$m" --data text --report nowhere/x.html
cp "$m" alone.gguf
fails 5 'no profile.*pi-profile alone.gguf --data FILE --report x.html' 'no profile' pi-profile alone.gguf --report x.html
fails 5 'profile' "another model's profile" pi-profile "$m" --report x.html --profile 1.profile.gguf
fails 5 'predictor' "another model's predictor" pi-profile "$m" --report x.html --predictor 1.predictor.gguf
make_artifact flip llama-relu.profile.gguf bad.gguf 3000
fails 3 'bad.gguf' 'a damaged profile' pi-profile "$m" --report x.html --profile bad.gguf
fails 2 '--report -: must be a file of its own' 'standard output' pi-place "$m" --vram-budget 0G --hardware machine.yaml --report -
fails 2 'must be a file of its own' 'over the placement' pi-place "$m" --vram-budget 0G --hardware machine.yaml -o x.html --report x.html
fails 2 'is read as well' 'over the hardware' pi-place "$m" --vram-budget 0G --hardware machine.yaml --report machine.yaml
fails 7 'nowhere/x.html' 'no such folder' pi-place "$m" --vram-budget 0G --hardware machine.yaml -o x.gguf --report nowhere/x.html
[ ! -e x.html ] && [ ! -e x.gguf ] && [ -z "$(find . -name '.*' -type f; find . -name '*.tmp*')" ]
check $? 'nothing was written, nothing half-written left'
echo "1..$n"
