#!/bin/sh
# pi-run: what generation prints, and that it is always the same.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
unset PI_TEST_CORES # as many threads as there are cores, but where it says -t
model llama-relu
m=$tmp/llama-relu.gguf
once='Once upon a time, there was a small house at the edge of the wood.'

run() { # OUT COMMAND...
    o=$1
    shift
    "$@" >"$tmp/$o" 2>"$tmp/$o.err" </dev/null
}

works 'greedy as JSON' pi-run -m "$m" -p "$once" -n 24 --temp 0 --ignore-eos --kv f32 --json
cp "$tmp/out" "$tmp/greedy"
[ "$(wc -l <"$tmp/greedy")" = 1 ]
check $? 'one object'
compare_reference greedy "$ref/llama-relu" 0 2e-5 <"$tmp/greedy" >"$tmp/tap"
number "$tmp/tap"
[ "$(value mode "$tmp/greedy")" = exact ] && [ "$(value finish "$tmp/greedy")" = length ] &&
    [ "$(value prompt_tokens "$tmp/greedy")" = 24 ]
check $? 'mode, finish and prompt_tokens'
less 0.001 "$(value prompt_tokens_per_second "$tmp/greedy")" && less 0.001 "$(value tokens_per_second "$tmp/greedy")"
check $? 'both speeds'
grep -q 'prompt: 24 tokens, .*generation: 24 tokens' "$tmp/err" && grep -q 'read per token: [0-9.]* million weights' "$tmp/err"
check $? 'speeds apart, and what was read, in notices'

works 'greedy, token ids as prompt' pi-run -q -m "$m" -n 24 --temp 0 --ignore-eos --kv f32 --json --tokens \
    1,590,971,360,613,261,564,985,458,309,261,713,382,695,365,265,966,272,527,288,265,264,453,988
[ "$(value tokens "$tmp/out")" = "$(value tokens "$tmp/greedy")" ]
check $? 'the same tokens'
works 'dense' pi-run -q -m "$m" -p "$once" -n 24 --temp 0 --ignore-eos --kv f32 --json --mode dense
[ "$(value tokens "$tmp/out")" = "$(value tokens "$tmp/greedy")" ] && [ "$(value mode "$tmp/out")" = dense ]
check $? 'the same tokens'
works 'a BLAS that computes wrongly' env PI_TEST_BLAS_WRONG=1 pi-run -m "$m" -p "$once" -n 24 --temp 0 --ignore-eos --kv f32 --json
[ "$(value tokens "$tmp/out")" = "$(value tokens "$tmp/greedy")" ] && [ "$(grep -c 'wrong products' "$tmp/err")" = 1 ]
check $? 'the same tokens, one warning'

# One text, however the prompt comes and however many threads there are.
run a pi-run -m "$m" -p "$once" -n 40 -s 7 -t 1
run b pi-run -m "$m" -p "$once" -n 40 -s 7 -t 2
printf %s "$once" >"$tmp/prompt"
run c pi-run -m "$m" -f "$tmp/prompt" -n 40 -s 7 -t 2
pi-run -m "$m" -n 40 -s 7 -t 1 <"$tmp/prompt" >"$tmp/d" 2>/dev/null
run e pi-run -m "$m" -p "$once" -n 40 -s 8
[ -s "$tmp/a" ] && cmp -s "$tmp/a" "$tmp/b"
check $? 'the same bytes with one thread and two'
cmp -s "$tmp/a" "$tmp/c" && cmp -s "$tmp/a" "$tmp/d"
check $? 'the same bytes from a file and from standard input'
! cmp -s "$tmp/a" "$tmp/e"
check $? 'another seed, another text'
run n1 pi-run -m "$m" -p "$once" -n 40 -s 7 --no-pin --numa off --no-check
run n2 pi-run -m "$m" -p "$once" -n 40 -s 7 --numa isolate --mlock
cmp -s "$tmp/a" "$tmp/n1" && cmp -s "$tmp/a" "$tmp/n2"
check $? 'the same bytes wherever threads run and weights lie'
run n4 pi-run -m "$m" -p "$once" -n 40 -s 7 --no-mmap
run n5 pi-run -m "$m" -p "$once" -n 40 -s 7 --no-mmap --mlock -t 1
cmp -s "$tmp/a" "$tmp/n4" && cmp -s "$tmp/a" "$tmp/n5"
check $? 'the same bytes from a copy of the weights'
(
    ulimit -l 4
    exec setpriv --bounding-set=-ipc_lock pi-run -m "$m" -p "$once" -n 40 -s 7 --mlock >"$tmp/n3" 2>"$tmp/err" </dev/null
)
if [ $? = 0 ] && cmp -s "$tmp/a" "$tmp/n3" && ! grep -q mlock "$tmp/err"; then
    n=$((n + 1))
    echo "ok $n - memory that may not be locked # SKIP it may"
elif grep -q setpriv "$tmp/err"; then
    n=$((n + 1))
    echo "ok $n - memory that may not be locked # SKIP no setpriv here"
else
    cmp -s "$tmp/a" "$tmp/n3" && [ "$(grep -c -e '--mlock: cannot lock .* the limit is 0.0 MiB' "$tmp/err")" = 1 ]
    check $? 'memory that may not be locked: one notice, the same bytes'
fi
iconv -f UTF-8 -t UTF-8 "$tmp/a" >/dev/null 2>&1
check $? 'valid UTF-8'
run d1 pi-run -m "$m" -p "$once" -n 40 -s 7 -t 1 --mode dense
run d2 pi-run -m "$m" -p "$once" -n 40 -s 7 -t 2 --mode dense
[ -s "$tmp/d1" ] && cmp -s "$tmp/d1" "$tmp/d2"
check $? 'dense: the same bytes with one thread and two'
printf '%s\n' "$once" >"$tmp/prompt"
works 'a newline at the end of a file' pi-run -q -m "$m" -f "$tmp/prompt" -n 1 --json
[ "$(value prompt_tokens "$tmp/out")" -gt 24 ]
check $? 'belongs to the prompt'

# Prompts of all sorts.
works 'an empty prompt starts from the BOS' pi-run -q -m "$m" -p '' -n 4 --temp 0 --json
[ "$(value prompt_tokens "$tmp/out")" = 1 ]
check $? 'one prompt token'
printf 'a\200\377\355\240\200b\000c\360\237' >"$tmp/bad"
works 'invalid UTF-8 and NUL in a prompt' pi-run -q -m "$m" -f "$tmp/bad" -n 4 --temp 0 --json --ignore-eos
works 'nothing to generate' pi-run -q -m "$m" -p x -n 0 --json
[ "$(value tokens "$tmp/out")" = '[]' ]
check $? 'no tokens'
works 'until the context is full' pi-run -m "$m" --tokens 1,2,3 -c 10 --temp 0 --ignore-eos --json
[ "$(value finish "$tmp/out")" = context ] && [ "$(value tokens "$tmp/out" | tr -cd , | wc -c)" = 6 ] &&
    grep -q 'context of 10 tokens is full' "$tmp/err"
check $? 'seven tokens, and it says why it stopped'
works 'prompt and -n fill the context to the brim' pi-run -q -m "$m" --tokens 1,2,3 -n 7 -c 10 --temp 0 --ignore-eos --json
[ "$(value finish "$tmp/out")" = length ]
check $? 'finish is length'

# A prompt longer than a chunk.
i=0
ids=1
while [ $i -lt 600 ]; do
    ids=$ids,$((3 + i * 7 % 1000))
    i=$((i + 1))
done
works 'a prompt of several chunks' pi-run -q -m "$m" --tokens "$ids" -c 700 -n 8 --temp 0 --ignore-eos --kv f32 --json
cp "$tmp/out" "$tmp/chunks"
works 'the same, token by token' pi-run -q -m "$m" --tokens "$ids" -c 700 -n 8 --temp 0 --ignore-eos --kv f32 --json --verify
[ "$(value prompt_tokens "$tmp/chunks")" = 601 ] && [ "$(value tokens "$tmp/chunks")" = "$(value tokens "$tmp/out")" ]
check $? 'gives the same text'

# Output that cannot be written.
{ pi-run -q -m "$m" -p x -n 400 -c 512 --ignore-eos 2>"$tmp/err"; echo $? >"$tmp/status"; } | head -c 1 >/dev/null
[ "$(cat "$tmp/status")" = 7 ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -q 'standard output' "$tmp/err"
check $? 'a reader that goes away: status 7 and one line'
if [ -w /dev/full ]; then
    pi-run -q -m "$m" -p x -n 4 --ignore-eos >/dev/full 2>"$tmp/err"
    [ $? = 7 ] && [ "$(wc -l <"$tmp/err")" = 1 ]
    check $? 'a full disk: status 7 and one line'
fi

# Interrupted: what there was stays.
rm -f "$tmp/out" "$tmp/err"
pi-run -q -m "$m" -p x -c 100000 --ignore-eos --temp 0 -t 1 >"$tmp/out" 2>"$tmp/err" &
pid=$!
i=0
while [ ! -s "$tmp/out" ] && [ $i -lt 100 ]; do
    sleep 0.05
    i=$((i + 1))
done
kill -INT $pid
wait $pid
[ $? = 130 ] && [ -s "$tmp/out" ] && grep -q interrupted "$tmp/err"
check $? 'SIGINT: status 130, the text so far is there'

# --tokenize
works tokenize pi-run -m "$m" --tokenize -p "$once"
[ "$(cat "$tmp/out")" = '{"tokens":[590,971,360,613,261,564,985,458,309,261,713,382,695,365,265,966,272,527,288,265,264,453,988]}' ]
check $? 'no BOS'
works 'tokenize with BOS' pi-run -m "$m" --tokenize --bos -p "$once"
grep -q '^{"tokens":\[1,590,' "$tmp/out"
check $? 'BOS in front'
works 'tokenize nothing' pi-run -m "$m" --tokenize -p ''
[ "$(cat "$tmp/out")" = '{"tokens":[]}' ]
check $? 'an empty list'
works 'special tokens as text' pi-run -m "$m" --tokenize -p '</s>'
cp "$tmp/out" "$tmp/plain"
works 'special tokens' pi-run -m "$m" --tokenize --special -p '</s>'
[ "$(cat "$tmp/out")" = '{"tokens":[2]}' ] && ! cmp -s "$tmp/out" "$tmp/plain"
check $? 'only with --special'
make_artifact cut "$m" "$tmp/vocab.gguf" -1000
works 'tokenize needs no weights' pi-run -m "$tmp/vocab.gguf" --tokenize -p "$once"
echo "1..$n"
