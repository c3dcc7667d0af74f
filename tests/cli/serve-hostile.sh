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
