#!/bin/sh
# pi-run: damaged, foreign and newer files. Each: its exit status, one line on standard error, nothing on standard output.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
model llama-relu
model llama-silu-gqa-tied
m=$tmp/llama-relu.gguf
other=$tmp/llama-silu-gqa-tied.gguf

# Models.
for cut in 3 20 1000 40000; do
    make_artifact cut "$m" "$tmp/bad.gguf" $cut
    fails 3 'bad.gguf' "model cut to $cut bytes" pi-run -q -m "$tmp/bad.gguf" -p x -n 1
done
make_artifact cut "$m" "$tmp/bad.gguf" -1
fails 3 'bad.gguf' 'model without its last byte' pi-run -q -m "$tmp/bad.gguf" -p x -n 1
make_artifact flip "$m" "$tmp/bad.gguf" -5000
fails 3 'bad.gguf.*(checksum|CRC)' 'model with a flipped bit in its weights' pi-run -q -m "$tmp/bad.gguf" -p x -n 1
make_artifact flip "$m" "$tmp/bad.gguf" 1
fails 3 'bad.gguf' 'model with a broken magic' pi-run -q -m "$tmp/bad.gguf" -p x -n 1
make_artifact flip "$m" "$tmp/bad.gguf" 4
fails 4 'version' 'model of an unknown GGUF version' pi-run -q -m "$tmp/bad.gguf" -p x -n 1
printf 'not a model at all, just text\n' >"$tmp/bad.gguf"
fails 3 'bad.gguf' 'text as model' pi-run -q -m "$tmp/bad.gguf" -p x -n 1
: >"$tmp/bad.gguf"
fails 3 'bad.gguf' 'an empty model' pi-run -q -m "$tmp/bad.gguf" -p x -n 1

# Artifacts beside the model.
for kind in predictor placement; do
    a=$tmp/llama-relu.$kind.gguf
    case $kind in
    predictor) how=perfect other_how=perfect ;;
    placement) how=0.5 other_how=0.25 ;;
    esac
    make_artifact $kind "$m" "$tmp/good" $how
    make_artifact $kind "$other" "$tmp/foreign" $other_how
    cp "$tmp/good" "$a"
    works "$kind: a good one" pi-run -q -m "$m" -p x -n 1 --json
    size=$(wc -c <"$a")
    for cut in 10 $((size / 2)) $((size - 1)); do
        make_artifact cut "$tmp/good" "$a" $cut
        fails 3 "$kind.gguf" "$kind: cut to $cut bytes" pi-run -q -m "$m" -p x -n 1
    done
    for at in 30 $((size / 3)) $((size - 40)); do
        make_artifact flip "$tmp/good" "$a" $at
        fails 3 "$kind.gguf" "$kind: a flipped bit at $at" pi-run -q -m "$m" -p x -n 1
    done
    cp "$tmp/foreign" "$a"
    fails 5 "$kind.gguf.*pi-" "$kind: of another model" pi-run -q -m "$m" -p x -n 1
    make_artifact newer $kind "$m" "$a"
    case $kind in placement) known=1.1 ;; *) known=1.0 ;; esac
    fails 5 "$kind.gguf: $kind format 2\\.0, this program knows up to $known:" "$kind: of a newer version" pi-run -q -m "$m" -p x -n 1
    cp "$m" "$a"
    fails 5 "$kind.gguf" "$kind: a model under its name" pi-run -q -m "$m" -p x -n 1
    rm "$a"
done
make_artifact newer profile "$m" "$tmp/llama-relu.profile.gguf"
fails 5 'profile.gguf.*2\.0.*1\.0' 'profile: of a newer version' pi-run -q -m "$m" -p x -n 1
make_artifact newer profile "$other" "$tmp/llama-relu.profile.gguf"
fails 5 'profile.gguf' 'profile: of another model' pi-run -q -m "$m" -p x -n 1
rm "$tmp/llama-relu.profile.gguf"

# A predictor survives a change of the weights' type, a placement does not.
make_artifact predictor "$m" "$tmp/pred" perfect
make_artifact placement "$m" "$tmp/place" 0.5
pi-convert "$ref/llama-relu" -o "$tmp/f16.gguf" --type f16 >"$tmp/out" 2>"$tmp/err"
check $? 'the model in F16'
works 'a predictor of the F32 file' pi-run -q -m "$tmp/f16.gguf" --predictor "$tmp/pred" -p x -n 1 --json
fails 5 'place' 'a placement of the F32 file' pi-run -q -m "$tmp/f16.gguf" --placement "$tmp/place" -p x -n 1

# A placement for a GPU that is not there, and requests beyond it.
works 'a placement without its GPU' env CUDA_VISIBLE_DEVICES= pi-run -m "$m" --placement "$tmp/place" -p x -n 1
grep -q 'neurons on a GPU, but .*running on the CPU' "$tmp/err"
check $? 'a notice, and the CPU'
fails 5 '-c 512 is more than the 256.*pi-place .* --vram-budget 64M .*512' 'more context than placed' \
    pi-run -q -m "$m" --placement "$tmp/place" -c 512 -p x -n 1
fails 5 '--vram-budget 1G is more than the 64M.*pi-place .* --vram-budget 1G' 'more memory than placed' \
    pi-run -q -m "$m" --placement "$tmp/place" --vram-budget 1G -p x -n 1
works 'more context on the CPU alone' pi-run -q -m "$m" --placement "$tmp/place" --device cpu -c 512 -p x -n 1
# The estimate is not this test's matter: a little above what the refusal of too little names, something must go.
budget=$(pi-run -q -m "$m" --placement "$tmp/place" --device cpu+cpu --vram-budget 1K -p x -n 1 --kv f32 2>&1 | sed -n 's/.*need \([0-9]*\)K.*/\1/p')
budget=$((${budget:-4096} + 64))
while [ $budget -gt 16 ]; do
    pi-run -m "$m" --placement "$tmp/place" --device cpu+cpu --vram-budget ${budget}K -p x -n 4 --temp 0 --kv f32 >"$tmp/out" 2>"$tmp/err" || break
    grep -q 'hot sets were cut from [0-9]* to [0-9]* neurons to fit --vram-budget' "$tmp/err" && break
    budget=$((budget * 31 / 32))
done
grep 'hot sets were cut' "$tmp/err" | sed 's/^/# /'
grep -q 'hot sets were cut' "$tmp/err"
check $? "a smaller budget cuts the hot sets (${budget}K)"
pi-run -q -m "$m" --device cpu -p x -n 4 --temp 0 --kv f32 >"$tmp/text" 2>/dev/null
cmp -s "$tmp/text" "$tmp/out"
check $? 'and gives the same text'
fails 6 'vram-budget 1K.*need' 'a budget below the fixed part' \
    pi-run -q -m "$m" --placement "$tmp/place" --device cpu+cpu --vram-budget 1K -p x -n 1

pi-run -q -m "$m" --placement "$tmp/place" --vram-budget 0G -p x -n 4 --temp 0 --kv f32 2>"$tmp/err" | cmp -s - "$tmp/text"
check $? 'a budget of nothing is the CPU alone'
works 'and needs no placement' pi-run -q -m "$tmp/f16.gguf" --vram-budget 0G -p x -n 1

# Memory that runs out, anywhere: status 6 and one line. It does not run out for ever: the last runs work.
i=1
bad=
status=6
while [ $status = 6 ] && [ $i -lt 2000 ]; do
    PI_TEST_ALLOC_FAIL=$i pi-run -q -m "$m" --predictor "$tmp/pred" --placement "$tmp/place" --device cpu+cpu -p "Once upon" -n 2 \
        --verify -c 64 --masks "$tmp/masks" -t 1 --json >"$tmp/out" 2>"$tmp/err"
    status=$?
    [ $status = 0 ] || { [ $status = 6 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" = 1 ] && [ ! -e "$tmp/masks" ]; } ||
        bad="$bad $i:$status"
    i=$((i + 5))
done
[ $status = 0 ] && [ -z "$bad" ]
check $? "every fifth allocation up to $i fails cleanly$bad"

# Outputs that cannot be made leave nothing behind.
mkdir "$tmp/dir"
fails 7 'dir' 'logits over a folder' pi-run -q -m "$m" -p x --logits "$tmp/dir"
long=$(printf '%0300d' 0)
fails 7 'File name too long' 'a name no file can have, before the run' pi-run -q -m "$m" -p x -n 1 --verify --masks "$tmp/$long"
cp "$m" "$tmp/kept"
ln -s "$m" "$tmp/link"
fails 2 'is read as well' 'logits over the model' pi-run -q -m "$m" -p x --logits "$tmp/link"
fails 2 'is read as well' 'masks over the model' pi-run -q -m "$m" -p x -n 1 --verify --masks "$m"
cmp -s "$m" "$tmp/kept"
check $? 'the model is as it was'
mkfifo "$tmp/fifo"
env pi-run -q -m "$m" --perplexity "$tmp/fifo" 2>"$tmp/err" &
while kill -0 $! && ! grep -q llama-relu.gguf "/proc/$!/maps"; do :; done 2>/dev/null # by then it has asked for signals
sleep 0.1
kill -TERM $!
wait $!
check "$([ $? = 130 ] && grep -q interrupted "$tmp/err"; echo $?)" 'an interrupt ends the wait at a FIFO'
fails 3 '' 'perplexity of broken JSON lines' sh -c "printf '{\"text\": 1\\n' >'$tmp/t'; pi-run -q -m '$m' --perplexity '$tmp/t'; exit \$?"
printf '' >"$tmp/t"
fails 2 'too short' 'perplexity of nothing' pi-run -q -m "$m" --perplexity "$tmp/t"
[ -z "$(find "$tmp" -name '*.tmp*' -o -name '.*.gguf*')" ]
check $? 'no temporary files are left'
echo "1..$n"
