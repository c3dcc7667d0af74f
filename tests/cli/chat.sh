#!/bin/sh
# pi-run --chat: conversations through a pipe, session files good and bad, and a terminal's keys.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
m=$tmp/m.gguf
works 'a model' pi-convert "$ref/llama-relu" -o "$m" --type f32 -q --no-self-check

# chat NAME OPTIONS: the lines of $tmp/in; answers in $tmp/out, the rest in $tmp/err
chat() {
    name=$1
    shift
    pi-run -m "$m" --chat -c 256 -t 1 -s 7 -n 12 "$@" <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
    got=$?
    check $got "$name"
    [ $got = 0 ] || sed 's/^/# /' "$tmp/err"
}
lines() { [ "$(wc -l <"$tmp/out")" = "$1" ]; }
told() { grep -qE -e "$1" "$tmp/err"; }

# One line, one turn; the numbers of the prompt are what the server feeds for the same messages.
printf 'Hello there\n/stats\nAnd then?\n/stats\n' >"$tmp/in"
chat 'two turns' --system 'Be brief.'
cp "$tmp/out" "$tmp/first"
lines 2 && told 'conversation: 3 messages, format plain' && told 'conversation: 5 messages' && told 'since the start: 24 tokens'
check $? 'an answer a line, figures on standard error'
pi-run -q -m "$m" -p 'Be brief.

User: Hello there
Assistant:' -n 12 -s 7 -t 1 -c 256 --json >"$tmp/one" 2>"$tmp/err"
[ "$(value text "$tmp/one" | sed 's/^ *//')" = "$(sed -n 1p "$tmp/first")" ]
check $? 'the first answer is what the prompt in words gives'
chat 'again, quietly' --system 'Be brief.' -q
cmp -s "$tmp/out" "$tmp/first" && told 'conversation: 5 messages' && ! told seed
check $? 'the same answers; what was asked for is told all the same'
printf 'Hello there\r\n\r\n\nAnd then?' >"$tmp/in"
chat 'lines of another system, empty ones, none at the end' --system 'Be brief.' -q
cmp -s "$tmp/out" "$tmp/first"
check $? 'the same answers'
printf '/stats\n' >"$tmp/in"
chat 'a format by name' --chat-template chatml
lines 0 && told 'format chatml'
check $? 'is used'

# What was read before is not read again.
printf 'Tell me of the house at the edge of the wood\n/stats\nGo on\n/stats\n' >"$tmp/in"
chat 'what is new alone is fed' --temp 0
sed -n 's/.*after reading \([0-9]*\) tokens.*(\([0-9]*\) more had been read before).*/\1 \2/p' "$tmp/err" >"$tmp/fed"
[ "$(sed -n 's/.* //p' "$tmp/fed" | tail -n 1)" -ge "$(sed -n '1s/ .*//p' "$tmp/fed")" ]
check $? 'the second turn goes on from the first'

# Lines that go on, and blocks.
printf 'one \\\ntwo\n"""three\n/help\n"""\n"""four"""\n""""""\n"""five\n' >"$tmp/in"
printf '/save %s\n' "$tmp/s.json" >"$tmp/tail"
chat 'several lines' -q
lines 4
check $? 'are turns as they belong together'
printf 'one \\\ntwo\n"""three\n/help\n"""\n/save %s\n' "$tmp/s.json" >"$tmp/in"
chat 'saving'
grep -q '"one \\ntwo"' "$tmp/s.json" && grep -q '"three\\n/help"' "$tmp/s.json" && told 's.json: 4 messages'
check $? 'the messages are in the file, a block is no command'
printf 'a\200\377b\n/save %s\n' "$tmp/bytes.json" >"$tmp/in"
chat 'bytes that are no UTF-8'
iconv -f UTF-8 -t UTF-8 "$tmp/bytes.json" >/dev/null && lines 1
check $? 'are replaced'

# Session files.
printf '/load %s\n/save %s\n/load %s\n/stats\n/reset\n/stats\n' "$tmp/s.json" "$tmp/t.json" "$tmp/t.json" >"$tmp/in"
chat 'loading'
cmp -s "$tmp/s.json" "$tmp/t.json" && told 'conversation: 4 messages' && told 'conversation: 0 messages' && lines 0
check $? 'gives the same conversation; /reset forgets it'
printf 'one \\\ntwo\n"""three\n/help\n"""\nAnd then?\n' >"$tmp/in"
chat 'a conversation in one go' --temp 0 --mode dense --kv f32
tail -n 1 "$tmp/out" >"$tmp/whole"
printf 'one \\\ntwo\n"""three\n/help\n"""\n/save %s\n/reset\n/load %s\nAnd then?\n' "$tmp/u.json" "$tmp/u.json" >"$tmp/in"
chat 'with a file between' --temp 0 --mode dense --kv f32
tail -n 1 "$tmp/out" | cmp -s - "$tmp/whole"
check $? 'ends with the same answer'
printf 'system\n/save %s\n/load %s\n/reset\n/stats\n' "$tmp/v.json" "$tmp/v.json" >"$tmp/in"
chat 'a system text' --system 'Be brief.'
grep -q '"role": "system"' "$tmp/v.json" && told 'conversation: 1 messages'
check $? 'is saved, and stays after /reset'

# bad NAME PATTERN: $tmp/b.json is refused with one line, and the conversation goes on as it was.
bad() {
    printf '/load %s\n/stats\nx\n' "$tmp/b.json" >"$tmp/in"
    chat "bad session file: $1" -q --system 'Be brief.'
    lines 1 && [ "$(grep -c b.json "$tmp/err")" = 1 ] && told "b.json: $2" && told 'conversation: 1 messages'
    status=$?
    check $status "is refused: $2"
    [ $status = 0 ] || sed 's/^/# /' "$tmp/err"
}
edit() { sed "$1" "$tmp/s.json" >"$tmp/b.json"; }
head -c 300 "$tmp/s.json" >"$tmp/b.json"
bad 'cut short' 'line [0-9]+: '
: >"$tmp/b.json"
bad empty 'line 1: empty'
cp "$m" "$tmp/b.json"
bad 'a model' 'line 1: '
echo '[1, 2]' >"$tmp/b.json"
bad 'a list' 'no session file'
awk 'BEGIN { while (i++ < 100000) printf "[" }' >"$tmp/b.json"
bad 'nested deeply' 'line 1: '
edit 's/pi-session/other/'
bad 'another format' 'no session file'
edit 's/"version": 1/"version": "1"/'
bad 'a version that is no number' 'version is not'
edit 's/"version": 1/"version": 99/'
bad 'a newer version' 'version 99, this program knows 1'
edit 's/"lineage": "..../"lineage": "0000/'
bad 'another model' 'a conversation with another model \(lineage 0000'
edit 's/"lineage": "..../"lineage": "/'
bad 'a short lineage' 'lineage is not 64'
edit 's/"lineage": .*/"lineage": 5,/'
bad 'a lineage of another type' 'lineage is not 64'
edit 's/"messages": \[/"messages": "x", "more": [/'
bad 'messages of another type' 'messages is no list'
edit 's/"content": "one .*/"content": 5/'
bad 'a content of another type' 'message 0: role and content'
edit 's/"role": "assistant"/"role": "oracle"/'
bad 'an unknown role' 'message 1: role oracle'
edit 's/"role": "assistant"/"role": "user"/'
bad 'two questions in a row' 'message 1: it is not the turn of user'
edit 's/"role": "user"/"role": "system"/'
bad 'two system texts' 'message 1: it is not the turn of assistant'
edit '/"assistant"/,$d'
sed '$d' "$tmp/b.json" | sed '$s/},/}]}/' >"$tmp/c.json"
sed 's/"role": "assistant",/&/' "$tmp/c.json" >"$tmp/b.json"
bad 'no answer at the end' 'the last message has no answer'
rm "$tmp/b.json"
printf '/load %s\n/load\n/save\n/save %s\n/save %s\n/save %s\n/nonsense x\n/\n' "$tmp/b.json" "$tmp/no/s" "$m" "$tmp" >"$tmp/in"
cksum <"$m" >"$tmp/before"
chat 'commands that fail' -q
[ "$(wc -l <"$tmp/err")" = 8 ] && told 'b.json: No such file' && told '/load FILE' && told '/save FILE' && told '/nonsense: no such command'
check $? 'a line each'
cksum <"$m" | cmp -s - "$tmp/before"
check $? 'a model is not written over'

# A full context.
for i in 1 2 3 4 5 6; do echo "message number $i is this one here"; done >"$tmp/in"
chat 'more than the context holds' -c 64
lines 6 && [ "$(grep -c 'oldest 2 messages were forgotten' "$tmp/err")" -ge 4 ]
check $? 'the oldest go, with a notice each time'
printf 'a\nb\n/stats\n' >"$tmp/in"
pi-run -q -m "$m" --chat -c 96 -t 1 --temp 0 -n 60 --ignore-eos <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
check $? 'an answer that finds the context full'
told 'oldest 2 messages were forgotten' && told 'last answer: 60 tokens' && told 'conversation: 2 messages'
check $? 'goes on after the oldest are forgotten'
printf 'a\n' >"$tmp/in"
pi-run -q -m "$m" --chat -c 48 -t 1 --temp 0 --ignore-eos <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
check $? 'an answer longer than the context'
told 'context of 48 tokens is full: the answer is cut'
check $? 'is cut, and it says so'
{ printf 'a\n'; yes 'word after word' | head -n 60 | tr '\n' ' '; printf '\n/stats\n'; } >"$tmp/in"
chat 'a message longer than the context' -c 64 -q
lines 1 && told 'the message takes [0-9]* tokens and leaves no room.*context of 64' && told 'conversation: 2 messages'
check $? 'is refused, nothing is forgotten'

# Options.
fails 2 'only one of .*--chat' 'a conversation and a server' pi-run -m "$m" --chat --serve
fails 2 'chat goes with no prompt' 'a conversation with a prompt' pi-run -m "$m" --chat -p x
fails 2 'chat wants -n' 'answers of no token' pi-run -m "$m" --chat -n 0
fails 2 'system goes with --chat' 'a system text alone' pi-run -m "$m" --system x -p x
fails 2 'chat-template goes with' 'a format alone' pi-run -m "$m" --chat-template plain -p x
fails 2 'expected chatml' 'a format that is not known' pi-run -q -m "$m" --chat --chat-template x
pi-run -q -m "$m" --chat -c 256 -t 1 -s 7 <"$tmp" >"$tmp/out" 2>"$tmp/err"
[ $? = 7 ] && told 'standard input'
check $? 'a folder as standard input'
if [ -e /dev/full ]; then
    echo x | pi-run -q -m "$m" --chat -c 256 -t 1 -s 7 -n 12 >/dev/full 2>"$tmp/err"
    [ $? = 7 ] && [ "$(wc -l <"$tmp/err")" = 1 ]
    check $? 'a full disk for standard output'
fi

# Signals, and a terminal.
wait_for() { # PATTERN FILE
    for i in $(seq 600); do
        grep -qa -e "$1" "$2" 2>/dev/null && return 0
        sleep 0.05
    done
    echo "# waited in vain for: $1"
    return 1
}
for s in INT TERM; do
    mkfifo "$tmp/keys"
    pi-run -q -m "$m" --chat -c 200000 -t 1 -s 7 --ignore-eos <"$tmp/keys" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    exec 3>"$tmp/keys"
    echo Hello >&3
    wait_for . "$tmp/out"
    kill -$s $pid
    wait $pid
    [ $? = 130 ] && [ "$(wc -l <"$tmp/err")" = 1 ] && told interrupted
    check $? "SIG$s in an answer, without a terminal: ends with 130"
    exec 3>&-
    rm "$tmp/keys"
done

if ! command -v script >/dev/null || ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    n=$((n + 1))
    echo "ok $n - a terminal # SKIP no script(1)"
else
    mkfifo "$tmp/keys"
    TERM=xterm script -qefc "exec pi-run -m '$m' --chat -c 200000 -t 1 -s 7 --ignore-eos" "$tmp/screen" <"$tmp/keys" >/dev/null &
    pid=$!
    exec 3>"$tmp/keys"
    # writing to a program that has left: how it did, and what it showed
    trap 'wait $pid; echo "not ok $((n + 1)) - the program left by itself, with status $?"; tail -c 600 "$tmp/screen" | cat -v | sed "s/^/# /"; exit 1' PIPE
    wait_for 'Ctrl-D leaves' "$tmp/screen" && wait_for '^> ' "$tmp/screen"
    check $? 'a terminal: a prompt'
    printf 'Hello\r' >&3
    wait_for Hello "$tmp/screen"
    sleep 1
    printf '\003' >&3
    sleep 0.3
    printf '/stats\r' >&3
    wait_for 'conversation: [02] messages' "$tmp/screen"
    check $? 'Ctrl-C stops the answer and not the program'
    # A terminal that takes nothing for a while: the signal comes into a write.
    # (exec above: some shells stay between script and the program, and the signal would be theirs)
    printf 'Go on\r' >&3
    wait_for 'Go on' "$tmp/screen"
    sleep 0.5
    child=$(tr -d " " <"/proc/$pid/task/$pid/children")
    kill -STOP $pid
    for i in $(seq 600); do # until it waits in a write
        grep -q '^State:.S' "/proc/$child/status" 2>/dev/null && break
        sleep 0.1
    done
    # shellcheck disable=SC2086
    kill -INT $child
    sleep 0.3
    kill -CONT $pid
    sleep 0.3
    printf '/help\r' >&3
    wait_for 'begin a new conversation' "$tmp/screen"
    check $? 'nor does one that comes while the terminal is full end it'
    printf 'half a li\003' >&3
    sleep 0.3
    printf '\003' >&3
    wait_for 'Ctrl-C again' "$tmp/screen"
    check $? 'Ctrl-C drops a line; at an empty prompt it says what a second one does'
    printf '\003' >&3
    wait $pid
    check $? 'which leaves with status 0'
    exec 3>&-
fi
echo "1..$n"
