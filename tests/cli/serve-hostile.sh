#!/bin/sh
# pi-run --serve among clients that mean harm, or just leave: what they hold is freed, others are served.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/tests/cli/serve_lib.sh"
PATH=$abs_top_builddir/bench:$PATH
m=$tmp/m.gguf
works 'a model whose rounds last' pi-synth -o "$m" --type q8_0 --layers 4 --embd 1024 --ff 4096 --heads 8 --vocab 3000 --ctx 512 --rank 32 -q

# Those that leave while they wait are out of the queue at once: before the round that is being worked on is over.
start -c 512 --parallel 1 --mode dense
prompt=$(awk 'BEGIN { for (i = 0; i < 500; i++) printf "%d,", 10 + i * 7 % 2900; print 5 }')
http_call "$port" POST /v1/completions "{\"prompt\":[$prompt],\"max_tokens\":1,\"temperature\":0}" >"$tmp/long" 2>&1 &
long=$!
for i in $(seq 600); do
    call GET /metrics ''
    ! said '^pi_sequences_active 1$' || break
    sleep 0.02
done
for i in 1 2 3 4 5 6; do
    http_call --slow "$port" POST /v1/completions '{"prompt":[5,6,7],"max_tokens":8,"n":2}' 0
    http_call --slow "$port" POST /v1/completions '{"prompt":[5,6,7],"max_tokens":8,"n":2,"stream":true}' 0
done
for i in $(seq 600); do
    call GET /metrics ''
    said '^pi_choices_total 25$' && said '^pi_sequences_waiting 0$' && break
    sleep 0.02
done
said '^pi_choices_total 25$' && said '^pi_sequences_waiting 0$' && said '^pi_prompt_tokens_total 0$'
status=$?
check $status 'clients that leave the queue hold no place in it, not even until the end of a round'
[ $status = 0 ] || sed 's/^/# /' "$tmp/out"
wait $long
[ "$(sed -n 1p "$tmp/long")" = 200 ] && grep -q '"completion_tokens":1,' "$tmp/long"
check $? 'the one that stays has its answer'
stop 'a server that was left'

# A large request that takes long to read holds nobody up.
start --parallel 1 --max-request 16M
{
    printf '{"prompt":"x","max_tokens":1,'
    seq 600000 | sed 's/.*/"k&":1,/' | tr -d '\n'
    printf '"x":1}'
} >"$tmp/body"
{
    printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n' "$(wc -c <"$tmp/body")"
    cat "$tmp/body"
} >"$tmp/large"
now() { date +%s%N | sed 's/......$//'; }
worst=0 began=$(now)
http_call --raw "$port" 300 <"$tmp/large" >"$tmp/large.out" 2>&1 &
large=$!
while kill -0 $large 2>/dev/null; do
    asked=$(now)
    call GET /health ''
    [ "$got" = 200 ] || break
    waited=$(($(now) - asked))
    [ $waited -le $worst ] || worst=$waited
done
took=$(($(now) - began))
[ $((worst * 3)) -lt $took ]
check $? "others wait for $worst ms at most while a request of 7 MB is read and answered in $took ms"
wait $large
grep -q '"completion_tokens":1,' "$tmp/large.out"
check $? 'which is answered'
anonymous=$(sed -n 's/^Anonymous: *\([0-9]*\) kB/\1/p' /proc/$pid/smaps_rollup)
! grep -q '__[at]san_init' "$(command -v pi-run)" || anonymous= # sanitizers keep what was freed
[ -z "$anonymous" ] || less "$anonymous" 60000 # some 90 000 without a word to the C library
check $? "and whose memory is given back ($anonymous kB)"

# Messages that end in two places, or are for two hosts.
for head in 'Content-Length: 2\r\nContent-Length: 3' 'Content-Length: 2\r\nTransfer-Encoding: chunked' 'Content-Length: 2\r\nHost: evil.example'; do
    printf "POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\n$head\\r\\n\\r\\n{}" | http_call --raw "$port" 60 >"$tmp/out"
    status=$?
    [ $status = 0 ] && said '^HTTP/1.1 400' && said 'more than one'
    check $? "refused and closed: $(printf '%s' "$head" | tr '\\' ' ')"
done
{
    for i in 1 2 3; do printf 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'; done
    printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n'
    printf '9\r\n{"prompt"\r\n13\r\n:"x","max_tokens":1\r\n1\r\n}\r\n0\r\n\r\n'
} | http_call --raw "$port" 60 >"$tmp/out"
[ "$(grep -o 'HTTP/1.1 200' "$tmp/out" | wc -l)" = 4 ] && said '"completion_tokens":1,'
check $? 'four requests at once, the last in chunks'
head -c 300000 /dev/zero | tr '\0' a | http_call --raw "$port" 60 >"$tmp/out"
said '^HTTP/1.1 4'
check $? 'a first line without an end'

# The end while clients wait, send, sleep and read nothing.
http_call --idle "$port" 5 60 &
others=$!
{
    head -c 200 "$tmp/large"
    sleep 60
} | http_call --raw "$port" 60 >/dev/null 2>&1 &
others="$others $!"
http_call --slow "$port" POST /v1/completions '{"prompt":"x","max_tokens":200,"stream":true,"ignore_eos":true,"n":4}' 60 &
others="$others $!"
for i in $(seq 600); do
    call GET /metrics ''
    ! said '^pi_sequences_active 1$' || break
    sleep 0.05
done
clients=
call GET /metrics ''
known=$(sed -n 's/^pi_choices_total //p' "$tmp/out")
for i in 1 2 3; do
    http_call "$port" POST /v1/completions '{"prompt":"x","max_tokens":20}' >"$tmp/end.$i" 2>&1 &
    clients="$clients $!"
done
for i in $(seq 600); do
    call GET /metrics ''
    [ "$(sed -n 's/^pi_choices_total //p' "$tmp/out")" -lt $((known + 3)) ] || break
    sleep 0.05
done
for i in 1 2 3; do
    http_call --raw "$port" 300 <"$tmp/large" >/dev/null 2>&1 &
    others="$others $!"
done
sleep 0.3
stop 'a server with all sorts of clients'
wait $clients
[ "$(grep -lE '^(200|503)' "$tmp"/end.* | wc -l)" = 3 ]
status=$?
check $status 'everybody who waited was answered or told'
[ $status = 0 ] || head -n 3 "$tmp"/end.* | sed 's/^/# /'
kill $others 2>/dev/null

# More connections that do nothing than there may be: they go first.
files=$(ulimit -S -n)
ulimit -S -n 400
start --parallel 1
ulimit -S -n "$files"
http_call --idle "$port" 500 100 &
idle=$!
sleep 0.5
began=$(date +%s)
call GET /health ''
[ "$got" = 200 ] && [ $(($(date +%s) - began)) -lt 45 ] && kill -0 $idle # not only behind the library's minute
check $? 'beside 500 connections that send half a request, where 200 have room'
kill $idle
stop 'a crowded server'
echo "1..$n"
