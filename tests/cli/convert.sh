#!/bin/sh
# pi-convert: its command line, exit statuses, outputs that appear whole or not at all, --dump.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
unset PI_TEST_CORES # as many threads as there are cores, but where it says -t
src=$ref/llama-relu

# entries DIR: how many, hidden ones too.
entries() {
    find "$1" -mindepth 1 | wc -l
}

# Usage.
fails 2 'no SOURCE' 'no source' pi-convert -o "$tmp/m.gguf"
fails 2 'no output' 'no output' pi-convert "$src"
for t in q5_2 '' q4 Q4_K_L q2_k i8 f16x; do
    fails 2 "type $t: must be one of f32\|f16\|bf16\|q8_0\|.*\|q4_0$" "an unknown type '$t'" pi-convert "$src" -o "$tmp/m.gguf" --type "$t"
done
for k in output.weight =f16 'output.weight=' 'output.weight=q9_0' '*=q4_k_m' '='; do
    fails 2 'keep' "--keep $k" pi-convert "$src" -o "$tmp/m.gguf" --keep "$k"
done
fails 2 'keep outputs.weight=f16: no matrix of this model' 'a pattern that fits nothing' pi-convert "$src" -o "$tmp/m.gguf" --keep outputs.weight=f16
fails 2 'keep \*_norm.weight=f16: no matrix' 'a pattern that fits vectors only' pi-convert "$src" -o "$tmp/m.gguf" --keep '*_norm.weight=f16'
fails 2 'keep output.weight=f32: earlier patterns' 'a pattern behind another' pi-convert -q "$src" -o "$tmp/m.gguf" --keep 'out*=f16' --keep output.weight=f32
fails 2 'keep: a pattern of 200 bytes' 'a pattern without end' pi-convert "$src" -o "$tmp/m.gguf" --keep "$(printf '%0200d' 0)=f16"
fails 2 'keep needs a value' 'no pattern' pi-convert "$src" -o "$tmp/m.gguf" --keep
fails 2 'threads' 'no threads' pi-convert "$src" -o "$tmp/m.gguf" -t 0
fails 2 'hidden-act' 'an unknown activation' pi-convert "$src" -o "$tmp/m.gguf" --hidden-act mystery
fails 7 'nowhere' 'a source that is not there' pi-convert "$tmp/nowhere" -o "$tmp/m.gguf"
fails 7 'nowhere' 'an output folder that is not there' pi-convert -q "$src" -o "$tmp/nowhere/m.gguf"
fails 7 'cannot write' 'a folder as output' pi-convert -q "$src" -o "$tmp"
check "$([ ! -e "$tmp/m.gguf" ]; echo $?)" 'nothing was written'

# Damaged and unsupported sources. Nothing is left in the output's folder.
mkdir "$tmp/bad" "$tmp/out.d"
damage() { # STATUS PATTERN NAME
    fails "$1" "$2" "$3" pi-convert -q "$tmp/bad" -o "$tmp/out.d/m.gguf"
    check "$([ "$(entries "$tmp/out.d")" = 0 ]; echo $?)" "$3: nothing left"
    rm -rf "$tmp/bad"
    cp -r "$src" "$tmp/bad"
    chmod -R u+w "$tmp/bad"
}
damage 7 'config.json' 'an empty folder'
head -c 500000 "$src/model.safetensors" >"$tmp/bad/model.safetensors"
damage 3 'model.safetensors.*do not lie' 'a cut checkpoint'
head -c 5 "$src/model.safetensors" >"$tmp/bad/model.safetensors"
damage 3 'no safetensors file' 'five bytes of a checkpoint'
rm "$tmp/bad/model.safetensors"
damage 7 'neither model.safetensors' 'no checkpoint'
echo '{"architectures": ["BloomForCausalLM"]}' >"$tmp/bad/config.json"
damage 4 'BloomForCausalLM' 'an unknown architecture'
echo '{"architectures": ' >"$tmp/bad/config.json"
damage 3 'config.json: line' 'half a configuration'
head -c 5000 "$src/tokenizer.model" >"$tmp/bad/tokenizer.model"
damage 3 'tokenizer.model' 'a cut tokenizer'
rm "$tmp/bad/tokenizer.model"
damage 7 'no tokenizer' 'no tokenizer'
sed 's/<0x41>/<0xZZ>/' "$src/tokenizer.model" >"$tmp/bad/tokenizer.model"
damage 3 '0xZZ' 'a vocabulary that pi-run would refuse'
sed 's/"hidden_act": "relu"/"hidden_act": "silu", "hidden_size": 90/' "$src/config.json" >"$tmp/bad/config.json"
damage 3 'duplicate' 'a key given twice'

# GGUF sources.
works 'a conversion to F16' pi-convert -q "$src" -o "$tmp/m.gguf"
check "$([ ! -s "$tmp/out" ] && [ ! -s "$tmp/err" ]; echo $?)" 'quiet is quiet'
works 'a conversion that is told' pi-convert "$src" -o "$tmp/told.gguf"
check "$(grep -q "wrote $tmp/told.gguf" "$tmp/err"; echo $?)" 'what was written is told'
works 'the same with one thread' pi-convert -q "$src" -o "$tmp/one.gguf" -t 1
check "$(cmp -s "$tmp/m.gguf" "$tmp/one.gguf"; echo $?)" 'the same bytes with one thread'
PI_TEST_NO_TMPFILE=1
export PI_TEST_NO_TMPFILE
works 'the same through a named temporary file' pi-convert -q "$src" -o "$tmp/named.gguf"
unset PI_TEST_NO_TMPFILE
check "$(cmp -s "$tmp/m.gguf" "$tmp/named.gguf"; echo $?)" 'the same bytes through a named temporary file'
make_artifact cut "$tmp/m.gguf" "$tmp/bad.gguf" 40000
fails 3 'bad.gguf' 'a cut GGUF file' pi-convert -q "$tmp/bad.gguf" -o "$tmp/out.d/m.gguf"
make_artifact placement "$tmp/m.gguf" "$tmp/place.gguf" 0.5
fails 4 'no model' 'an artifact as source' pi-convert -q "$tmp/place.gguf" -o "$tmp/out.d/m.gguf"
check "$([ "$(entries "$tmp/out.d")" = 0 ]; echo $?)" 'nothing left of either'
works 'over its own source' pi-convert -q "$tmp/one.gguf" -o "$tmp/one.gguf" --type q8_0
works 'the result runs' pi-run -q -m "$tmp/one.gguf" -p 'Once upon' -n 4 --temp 0
cp -r "$src" "$tmp/own"
chmod -R u+w "$tmp/own"
fails 2 'part of the source' 'over a file of the checkpoint' pi-convert -q "$tmp/own" -o "$tmp/own/model.safetensors"
check "$(cmp -s "$src/model.safetensors" "$tmp/own/model.safetensors"; echo $?)" 'the checkpoint is as it was'

# Every type, from every type. K types need rows of 256; type:largest relative RMS error in percent.
PATH=$abs_top_builddir/bench:$PATH
works 'a model with rows of 256' pi-synth -q -o "$tmp/k.gguf" --type f32 --layers 2 --embd 256 --ff 512 --heads 4 --vocab 320 --ctx 64 --rank 32
lineage() {
    pi-convert --dump "$1" | sed -n 's/.*pi.model.lineage: *//p'
}
names() { # of the types in a report
    tr '{' '\n' <"$1" | sed -n 's/^"name".*"type":"\([^"]*\)","bytes".*/\1/p' | sort -u | tr '\n' ' '
}
due=$(lineage "$tmp/k.gguf")
plain='f32:0 f16:0.03 bf16:0.2 q8_0:0.56 q6_k:1.8 q5_k:3.75 q5_1:3.9 q5_0:4.4 q4_k:7.4 q4_1:8 q4_0:8.7'
for p in $plain q5_k_m:3.75 q5_k_s:3.75 q4_k_m:7.4 q4_k_s:7.4; do
    t=${p%:*}
    works "to $t" pi-convert -q "$tmp/k.gguf" -o "$tmp/k.$t.gguf" --type "$(echo "$t" | tr a-z A-Z)" --json
    cp "$tmp/out" "$tmp/report"
    case $t in
    f32) names='F32 ' ;;
    q5_k_m | q5_k_s) names='F32 Q5_K Q6_K ' ;;
    q4_k_m) names='F32 Q4_K Q6_K ' ;;
    q4_k_s) names='F32 Q4_K Q5_K Q6_K ' ;;
    *) names=$(printf 'F32\n%s\n' "$(echo "$t" | tr a-z A-Z)" | sort | tr '\n' ' ') ;;
    esac
    [ "$(names "$tmp/report")" = "$names" ]
    check $? "$t: tensors are $(names "$tmp/report")"
    e=$(sed 's/.*"error_rms":\([^,}]*\),"error_rms_worst".*/\1/; t; s/.*/0/' "$tmp/report")
    awk -v e="$e" -v m="${p#*:}" -v t="$t" 'BEGIN { exit !(100 * e <= m && (100 * e > 0.9 * m || t !~ /^q/)) }'
    check $? "$t: relative RMS error $e"
    [ "$(lineage "$tmp/k.$t.gguf")" = "$due" ]
    check $? "$t: the lineage is the source's"
    [ "$(value disk_bytes "$tmp/report")" = "$(wc -c <"$tmp/k.$t.gguf")" ]
    check $? "$t: the size that was said"
    works "$t: a dry run" pi-convert -q "$tmp/k.gguf" -o "$tmp/k.$t.gguf" --type "$t" --list --json
    for f in "$tmp/out" "$tmp/report"; do
        sed 's/,"error_[a-z_]*":[^,}]*//g; s/,"free_bytes":[0-9]*//' "$f" >"$f.same"
    done
    cmp -s "$tmp/out.same" "$tmp/report.same"
    check $? "$t: it says what was written"
    works "$t runs" pi-run -q -m "$tmp/k.$t.gguf" --mode exact -p 'ab cd' -n 3 --temp 0 -t 1
done
for from in $plain; do
    for p in $plain; do
        a=$tmp/k.${from%:*}.gguf t=${p%:*}
        pi-convert -q --no-self-check "$a" -o "$tmp/x.gguf" --type $t --json -t 2 >"$tmp/report" 2>"$tmp/err" || sed 's/^/# /' "$tmp/err"
        e=$(sed 's/.*"error_rms":\([^,}]*\),"error_rms_worst".*/\1/; t; s/.*/0/' "$tmp/report")
        if [ $t = ${from%:*} ]; then
            cmp -s "$a" "$tmp/x.gguf"
        else
            [ "$(lineage "$tmp/x.gguf")" = "$due" ] && awk -v e="$e" -v m="${p#*:}" 'BEGIN { exit !(100 * e <= 1.25 * m) }'
        fi
        check $? "${from%:*} to $t: relative RMS error $e"
    done
done
head -c 200 "$abs_top_srcdir/datasets/demo-text/heldout.txt" >"$tmp/text"
works 'a profile of one type' pi-profile -q "$tmp/k.f16.gguf" --data "$tmp/text" -o "$tmp/of-f16.gguf"
works 'serves another' pi-place -q "$tmp/k.q4_k_m.gguf" --profile "$tmp/of-f16.gguf" --vram-budget 0G -o "$tmp/k.placement.gguf"
for threads in 1 3; do
    works "a mix with $threads threads" pi-convert -q "$tmp/k.gguf" -o "$tmp/k.$threads.gguf" --type q4_k_m -t $threads --json
    sed 's/.*"tensors"//; s/,"free_bytes":[0-9]*//' "$tmp/out" >"$tmp/k.$threads"
    cmp -s "$tmp/k.q4_k_m.gguf" "$tmp/k.$threads.gguf"
    check $? "the same bytes with $threads threads"
done
cmp -s "$tmp/k.1" "$tmp/k.3"
check $? 'and the same errors'

# Rounding twice is told; what is row-major and quantised becomes Q8_0, unless a pattern names it.
works 'quantised twice' pi-convert "$tmp/k.q4_0.gguf" -o "$tmp/x.gguf" --type q5_1
check "$(grep -q '16 tensors (token_embd.weight first) are quantised in the source already' "$tmp/err"; echo $?)" 'it is told'
works 'a row-major model' pi-synth -q -o "$tmp/r.gguf" --type q4_k --row-major-down --layers 2 --embd 256 --ff 512 --heads 4 --vocab 320 --ctx 64 --rank 32
works 'made neuron-major' pi-convert "$tmp/r.gguf" -o "$tmp/x.gguf" --json
check "$(grep -q 'blk.1.ffn_down_t.weight: rows of 256 transposed from quantised ones: stored as Q8_0, not Q4_K' "$tmp/err"; echo $?)" 'its down projections are Q8_0'
[ "$(names "$tmp/out")" = 'F32 Q4_K Q8_0 ' ]
check $? 'all else stays as it is'
works 'the row-major one runs' pi-run -q -m "$tmp/r.gguf" --mode exact -p 'ab cd' -n 8 --temp 0 --json
cp "$tmp/out" "$tmp/first"
works 'and the other' pi-run -q -m "$tmp/x.gguf" --mode exact -p 'ab cd' -n 8 --temp 0 --json
[ "$(value tokens "$tmp/out")" = "$(value tokens "$tmp/first")" ]
check $? 'with the same text'
works 'a pattern for them' pi-convert -q "$tmp/r.gguf" -o "$tmp/x.gguf" --keep '*ffn_down*=Q4_K' --json
[ "$(names "$tmp/out")" = 'F32 Q4_K ' ]
check $? 'is followed'

# Patterns, fallbacks, the list.
works 'patterns' pi-convert -q "$tmp/k.gguf" -o "$tmp/x.gguf" --type q4_k_m --keep 'output.weight=bf16' --keep 'blk.0.*=q8_0' --keep='blk.*.attn_?.weight=F16' --json
tr '{' '\n' <"$tmp/out" | sed -n 's/.*"name":"\([^"]*\)".*"type":"\([^"]*\)","bytes".*/\1 \2/p' >"$tmp/types"
[ "$(grep -c 'blk.0.*weight Q8_0$' "$tmp/types")" = 7 ] && grep -q '^output.weight BF16' "$tmp/types" && grep -q '^blk.1.attn_q.weight F16' "$tmp/types" &&
    grep -q '^blk.1.attn_output.weight Q4_K' "$tmp/types" && grep -q '^blk.0.attn_norm.weight F32' "$tmp/types"
check $? 'the first that fits wins, vectors stay F32'
works 'rows that K types do not fit' pi-convert "$src" -o "$tmp/x.gguf" --type q4_k_m
[ "$(grep -c 'rows of 96: stored as Q8_0, not Q[46]_K' "$tmp/err")" = 8 ] && grep -q 'and 15 more tensors' "$tmp/err" &&
    grep -q 'quantised 23 tensors: relative RMS error 0.5.* %, the worst 0.5' "$tmp/err"
check $? 'the first eight fallbacks are named, and the error'
works 'the same, all of them' pi-convert "$src" -o "$tmp/x.gguf" --type q4_k_m --verbose
[ "$(grep -c 'rows of 96: stored as Q8_0, not Q[46]_K' "$tmp/err")" = 23 ] && [ "$(grep -c 'Q8_0, relative RMS error' "$tmp/err")" = 23 ]
check $? 'all are named'
rm -f "$tmp/none.gguf"
works 'a list' pi-convert "$src" -o "$tmp/none.gguf" --type q4_k_m --list
[ ! -e "$tmp/none.gguf" ] && [ "$(grep -c 'Q8_0 .*(not Q[46]_K: rows of 96)$' "$tmp/out")" = 23 ] &&
    grep -q "^disk: $(wc -c <"$tmp/x.gguf") bytes .* free$" "$tmp/out" && grep -q '^30 tensors, 622848 bytes$' "$tmp/out" && grep -q '^memory: about [1-9]' "$tmp/out"
check $? 'it says the same, and writes nothing'
works 'a list without an output' pi-convert -q "$tmp/k.gguf" --list
check "$(grep -q '^token_embd.weight  *\[256, 320\]  *F32  *F16  *163840$' "$tmp/out"; echo $?)" 'needs none'
pi-convert "$src" --list >/dev/full 2>"$tmp/err"
check "$([ $? = 7 ]; echo $?)" 'a list to a full device'
fails 2 'no matrix of this model' 'a list with a pattern that fits nothing' pi-convert "$src" --list --keep 'x=f16'
fails 2 'no other option' 'a dump with a list' pi-convert --dump "$tmp/m.gguf" --list

# Nothing that was read is written over.
cp -r "$src" "$tmp/own"
chmod -R u+w "$tmp/own"
for f in config.json tokenizer.model model.safetensors; do
    fails 2 'source' "over the source's $f" pi-convert -q "$tmp/own" -o "$tmp/own/$f" --no-self-check
done
check "$(cmp -s "$src/config.json" "$tmp/own/config.json" && cmp -s "$src/tokenizer.model" "$tmp/own/tokenizer.model"; echo $?)" 'all of them are as they were'
works 'beside them' pi-convert -q "$tmp/own" -o "$tmp/own/m.gguf"
rm "$tmp/own/config.json"
mkfifo "$tmp/own/config.json"
fails 7 'no regular file' 'a pipe for a configuration' timeout -s KILL 20 pi-convert -q "$tmp/own" -o "$tmp/own/n.gguf"
rm -r "$tmp/own"

# A full disk, an interrupt, a kill: the older output stays.
cp "$tmp/m.gguf" "$tmp/out.d/m.gguf"
(
    ulimit -f 400 # blocks of 512 or of 1024 bytes, by the shell
    trap '' XFSZ
    pi-convert -q "$src" -o "$tmp/out.d/m.gguf" --type f32 2>"$tmp/err"
)
check "$([ $? = 6 ] && grep -q 'm.gguf: it takes [0-9]* bytes .* there is room for \(204800\|409600\)' "$tmp/err"; echo $?)" 'a full disk is an error, before anything is written'
works 'a model that takes a while' pi-synth -q -o "$tmp/w.gguf" --layers 3 --embd 512 --ff 2048 --heads 4 --vocab 320 --ctx 64 --rank 32
for signal in INT TERM; do
    PI_TEST_NO_TMPFILE=1 PI_CPU=scalar pi-convert -q "$tmp/w.gguf" -o "$tmp/out.d/m.gguf" --type q5_k 2>"$tmp/err" &
    job=$!
    while [ -d /proc/$job ] && [ "$(entries "$tmp/out.d")" = 1 ]; do :; done
    kill -$signal $job
    wait $job
    got=$?
    [ $got = 130 ] && [ "$(cat "$tmp/err")" = 'pi-convert: interrupted' ] && [ "$(entries "$tmp/out.d")" = 1 ] && cmp -s "$tmp/m.gguf" "$tmp/out.d/m.gguf"
    check $? "$signal while writing: status $got, the unfinished file is gone"
done
PI_TEST_NO_TMPFILE=1 PI_CPU=scalar pi-convert -q "$tmp/w.gguf" -o "$tmp/out.d/m.gguf" --type q5_k 2>/dev/null &
job=$!
while [ -d /proc/$job ] && [ "$(entries "$tmp/out.d")" = 1 ]; do :; done
kill -STOP $job && pi-convert -q "$src" -o "$tmp/out.d/m.gguf" && [ "$(entries "$tmp/out.d")" = 2 ]
check $? 'another conversion leaves the unfinished file of one at work alone'
kill -KILL $job
wait $job
[ "$(entries "$tmp/out.d")" = 2 ] && pi-convert -q "$src" -o "$tmp/out.d/m.gguf" && [ "$(entries "$tmp/out.d")" = 1 ] && cmp -s "$tmp/m.gguf" "$tmp/out.d/m.gguf"
check $? 'what a kill left behind goes with the next conversion'
for signal in INT TERM KILL; do
    env PI_CPU=scalar pi-convert -q "$src" -o "$tmp/out.d/m.gguf" --type q4_0 2>/dev/null &
    # Not before it is the program: the shell's own child would still run this script's traps.
    while c=$(cat "/proc/$!/comm" 2>/dev/null) && [ "$c" != pi-convert ]; do :; done
    # Again and again: a job in the background ignores INT until the program has asked for it.
    for k in 1 2 3 4 5 6 7 8; do
        kill -$signal $! 2>/dev/null
        sleep 0.005
    done
    wait $!
done
check "$([ "$(entries "$tmp/out.d")" = 1 ] && cmp -s "$tmp/m.gguf" "$tmp/out.d/m.gguf"; echo $?)" 'an older output stays, and nothing beside it'

# --dump.
works 'dump of a model' pi-convert --dump "$tmp/m.gguf"
grep -q '^kind: model$' "$tmp/out" && grep -q '^  llama.hidden_activation: relu$' "$tmp/out" &&
    grep -q '^- {name: blk.2.ffn_down_t.weight, type: F16, shape: \[96, 320\]}$' "$tmp/out" &&
    grep -q 'tokenizer.ggml.scores: {count: 1024, first: \[' "$tmp/out"
check $? 'it says what the file holds'
works 'dump in full' pi-convert --dump --verbose "$tmp/m.gguf"
check "$(! grep -q 'count: 1024' "$tmp/out"; echo $?)" 'arrays are in full'
works 'dump of a placement' pi-convert --dump "$tmp/place.gguf"
check "$(grep -q '^placement:$' "$tmp/out" && grep -q 'hot: 160' "$tmp/out"; echo $?)" 'its layers are summed up'
make_artifact predictor "$tmp/m.gguf" "$tmp/pred.gguf" perfect
works 'dump of a predictor' pi-convert --dump "$tmp/pred.gguf"
check "$(grep -q '^predictor:$' "$tmp/out" && grep -q 'width: ' "$tmp/out"; echo $?)" 'its layers are listed'
head -c 600 "$abs_top_srcdir/datasets/demo-text/heldout.txt" >"$tmp/text"
works 'a profile' pi-profile -q "$tmp/m.gguf" --data "$tmp/text" -o "$tmp/prof.gguf"
works 'dump of a profile' pi-convert --dump "$tmp/prof.gguf"
grep -q '^profile:$' "$tmp/out" && [ "$(grep -c '{density: 0\.' "$tmp/out")" = 3 ]
check $? 'its layers are listed, too'
for kind in profile predictor placement; do
    make_artifact newer $kind "$tmp/m.gguf" "$tmp/new.gguf"
    fails 5 "$kind format 2.0, this program knows up to 1\\.[01]:" "dump of a $kind of the next format" pi-convert --dump "$tmp/new.gguf"
done
make_artifact flip "$tmp/prof.gguf" "$tmp/flip.gguf" -100
fails 3 'flip.gguf: tensor blk.2.*another program edited it$' 'dump of a damaged profile' pi-convert --dump "$tmp/flip.gguf"
fails 2 'no other option' 'dump with an output' pi-convert --dump "$tmp/m.gguf" -o "$tmp/x.gguf"
fails 3 'GGUF' 'dump of something else' pi-convert --dump "$src/config.json"
pi-convert --dump "$tmp/m.gguf" >/dev/full 2>"$tmp/err"
check "$([ $? = 7 ]; echo $?)" 'dump to a full device'

# Memory that runs out anywhere: status 6, nothing left, never a crash.
i=1
while [ $i -le 400 ]; do
    PI_TEST_ALLOC_FAIL=$i pi-convert -q "$src" -o "$tmp/out.d/m.gguf" >/dev/null 2>"$tmp/err"
    got=$?
    [ $got = 0 ] && break
    [ $got = 6 ] && [ "$(wc -l <"$tmp/err")" = 1 ] || break
    i=$((i * 11 / 10 + 1))
done
check "$([ $got = 0 ] || [ $got = 6 ]; echo $?)" "memory running out at $i allocations and before"
[ "$(entries "$tmp/out.d")" = 1 ]
check $? 'nothing left beside the output'
echo "1..$n"
