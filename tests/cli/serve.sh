#!/bin/sh
# pi-run --serve: what the API answers, refuses and survives.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/tests/cli/serve_lib.sh"
m=$tmp/m.gguf
works 'a model' pi-convert "$ref/llama-relu" -o "$m" --type f32 -q --no-self-check

# refused STATUS PATTERN PATH BODY
refused() {
    call POST "$3" "$4"
    [ "$got" = "$1" ] && said '^\{"error":\{"message":".*"type":".*_error"' && said "$2"
    status=$?
    check $status "refused with $1: $2"
    [ $status = 0 ] || { echo "# $got"; sed 's/^/# /' "$tmp/out"; }
}

start --parallel 3
call GET /health ''
[ "$got" = 200 ] && said '"ok"'
check $? 'health'
call GET /v1/models ''
[ "$got" = 200 ] && said '"object":"list".*"id":"m"'
check $? 'models'
call GET /v1/models/m ''
[ "$got" = 200 ]
check $? 'a model'
call GET /v1/models/other ''
[ "$got" = 404 ] && said model_not_found
check $? 'another model'

# The same seed, the same text as on the command line; whole and streamed, alone and beside others.
pi-run -q -m "$m" -p 'Hello there' -n 20 -s 7 -c 256 -t 1 --json >"$tmp/cli" 2>/dev/null
text=$(sed 's/.*"text":\("\([^"\\]\|\\.\)*"\).*/\1/' "$tmp/cli")
body='{"prompt":"Hello there","max_tokens":20,"seed":7'
call POST /v1/completions "$body}"
[ "$got" = 200 ] && grep -qF "\"text\":$text" "$tmp/out"
status=$?
check $status 'the text of the command line'
[ $status = 0 ] || { echo "# $text"; sed 's/^/# /' "$tmp/out"; }
said '"usage":\{"prompt_tokens":[0-9]+,"completion_tokens":20,"total_tokens":[0-9]+\}' && said '"finish_reason":"length"'
check $? 'usage, and why it ended'
cp "$tmp/out" "$tmp/alone"
call POST /v1/completions "$body,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
[ "$got" = 200 ] && [ "$(grep -c '^data: {' "$tmp/out")" -ge 3 ] && [ "$(tail -n 2 "$tmp/out" | sed -n 1p)" = 'data: [DONE]' ] &&
    grep '^data: {' "$tmp/out" | tail -n 1 | grep -q '"choices":\[\],.*"completion_tokens":20'
check $? 'streamed: events, usage, an end'
streamed=$(sed -n 's/^data: .*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/p' "$tmp/out" | tr -d '\n')
[ "\"$streamed\"" = "$text" ]
check $? 'streamed: the same text'
clients=
for i in 1 2 3 4 5 6 7 8; do
    http_call "$port" POST /v1/completions "{\"prompt\":\"Word $i and more\",\"max_tokens\":$((10 + i)),\"seed\":$i}" >"$tmp/many.$i" 2>&1 &
    clients="$clients $!"
done
call POST /v1/completions "$body}"
wait $clients
grep -qF "\"text\":$text" "$tmp/out" && [ "$(cat "$tmp"/many.* | grep -c '"finish_reason"')" = 8 ]
check $? 'beside eight others: the same text'
call POST /v1/completions '{"prompt":["Hello there","Hello there"],"max_tokens":20,"seed":7,"n":2}'
[ "$(grep -oF "\"text\":$text" "$tmp/out" | wc -l)" = 2 ] && said '"index":3'
check $? 'two prompts of two choices'
call POST /v1/completions '{"prompt":[1,5,9],"max_tokens":3,"temperature":0,"logprobs":2}'
[ "$got" = 200 ] && said '"token_logprobs":\[-[0-9.]+,' && said '"text_offset":\[0,'
check $? 'tokens in, probabilities out'
# With temperature 100 a token is drawn that is not the most probable one, and is told all the same.
call POST /v1/completions '{"prompt":[1,5,9],"max_tokens":8,"temperature":100,"seed":1,"logprobs":0}'
[ "$got" = 200 ] && [ "$(grep -o '"token_logprobs":\[[^]]*' "$tmp/out" | grep -o -e '-[0-9.e-]*' | sort)" = "$(grep -o '"top_logprobs":\[[^]]*' "$tmp/out" | grep -o -e ':-[0-9.e-]*' | tr -d : | sort)" ]
check $? 'the token that was drawn is among the most probable ones that are told'
call POST /v1/completions '{"prompt":[1,5,9],"max_tokens":2,"ignore_eos":true,"stream":true,"logprobs":1}'
[ "$(grep -c '"logprobs":{"tokens":\["' "$tmp/out")" -ge 1 ] && ! grep -q '"tokens":\[\]' "$tmp/out"
check $? 'no probabilities of no tokens'
call POST /v1/chat/completions '{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hi"}]}],"max_tokens":4,"seed":1,"logprobs":true,"top_logprobs":2}'
[ "$got" = 200 ] && said '"object":"chat.completion"' && said '"role":"assistant"' && said '"top_logprobs":\[\{"token":'
check $? 'a chat'
call POST /v1/chat/completions '{"stream":true,"messages":[{"role":"user","content":"Hi"}],"max_tokens":4,"seed":1}'
[ "$got" = 200 ] && sed -n 1p "$tmp/out" | grep -q '"delta":{"role":"assistant"' && grep -q '"finish_reason":"' "$tmp/out"
check $? 'a chat, streamed'
call POST /v1/chat/completions '{"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Hi"}],"max_tokens":4}'
[ "$(grep -c '^data: {' "$tmp/out")" = "$(grep -c '"usage":' "$tmp/out")" ] && [ "$(grep -c '"usage":null' "$tmp/out")" -ge 2 ]
check $? 'usage in every event of a chat'
call POST /v1/completions '{"prompt":"x","max_tokens":4,"seed":-9223372036854775808,"user":"me","foo":{"bar":[1]},"logit_bias":{},"presence_penalty":0}'
[ "$got" = 200 ]
check $? 'any seed of 64 bits; members that are not known or ask for nothing'
first=$(printf '%s' "$streamed" | cut -c 3-5)
call POST /v1/completions "$body,\"stop\":[\"$first\"]}"
said '"finish_reason":"stop"' && ! grep -qF "\"text\":$text" "$tmp/out"
check $? "a stop string ($first)"

refused 400 'no JSON object' /v1/completions '{"prompt":'
refused 400 '"param":"prompt"' /v1/completions '{}'
refused 400 '"param":"temperature"' /v1/completions '{"prompt":"x","temperature":-1}'
refused 400 '"param":"max_tokens"' /v1/completions '{"prompt":"x","max_tokens":1.5}'
refused 400 '"param":"seed"' /v1/completions '{"prompt":"x","seed":1.5}'
refused 400 'too big integer' /v1/completions '{"prompt":"x","seed":9223372036854775808}'
refused 400 '"param":"modalities"' /v1/chat/completions '{"modalities":["text","audio"],"messages":[{"role":"user","content":"x"}]}'
refused 400 '"param":"response_format"' /v1/chat/completions '{"response_format":{"type":"json_object"},"messages":[{"role":"user","content":"x"}]}'
refused 400 '"param":"tools"' /v1/chat/completions '{"tools":[{"type":"function"}],"messages":[{"role":"user","content":"x"}]}'
for value in 1e999 NaN -1e999 '"5"' true '[]' 0x10; do
    refused 400 'temperature|no JSON' /v1/completions "{\"prompt\":\"x\",\"temperature\":$value}"
done
refused 400 'duplicate object key' /v1/completions '{"prompt":"x","prompt":"y"}'
refused 400 'depth' /v1/completions "{\"prompt\":$(head -c 100000 /dev/zero | tr '\0' '[')"
refused 400 'decode byte' /v1/completions "$(printf '{"prompt":"\377\376"}')"
refused 400 'invalid Unicode' /v1/completions '{"prompt":"\ud800"}'
refused 400 'no tokens' /v1/completions '{"prompt":[[]]}'
refused 400 '"param":"n"' /v1/completions '{"prompt":"x","n":1000000}'
refused 400 '"param":"stop"' /v1/completions '{"prompt":"x","stop":[""]}'
refused 400 'the limit is 1024.*"param":"stop"' /v1/completions "{\"prompt\":\"x\",\"stop\":[\"$(head -c 2000 /dev/zero | tr '\0' a)\"]}"
refused 400 'the limit is 16.*"param":"stop"' /v1/completions '{"prompt":"x","stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}'
refused 400 'may need [0-9]+ MB of memory, the limit is 268 MB.*"param":"logprobs"' /v1/completions '{"prompt":"x","n":128,"max_tokens":240,"logprobs":20}'
refused 400 '"param":"logit_bias"' /v1/completions '{"prompt":"x","logit_bias":{"5":1}}'
refused 400 '"param":"presence_penalty"' /v1/completions '{"prompt":"x","presence_penalty":0.5}'
refused 400 'context_length_exceeded' /v1/completions '{"prompt":"x","max_tokens":100000}'
refused 400 'does not have' /v1/completions '{"prompt":[-1]}'
refused 400 'an array of messages, one at least' /v1/chat/completions '{"messages":[]}'
refused 400 '"param":"messages"' /v1/chat/completions '{"messages":[{"role":"robot","content":"x"}]}'
refused 400 'not the user' /v1/chat/completions '{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"x"}]}'
refused 400 'answer to nothing' /v1/chat/completions '{"messages":[{"role":"system","content":"x"},{"role":"assistant","content":"x"}]}'
refused 404 'model_not_found' /v1/completions '{"model":"other","prompt":"x"}'
long=$(awk 'BEGIN { for (i = 1; i < 250; i++) printf "%d,", i % 90; print 5 }')
call POST /v1/completions "{\"prompt\":[[1,5,9],[$long]],\"ignore_eos\":true,\"temperature\":0}"
[ "$got" = 200 ] && said '"completion_tokens":22,'
check $? 'by default 16 tokens, or what there is room for: each prompt for itself'
call POST /v1/completions "{\"prompt\":[1],\"n\":100,\"max_tokens\":1}"
[ "$got" = 200 ] && said '"index":99'
check $? 'a hundred choices'
call POST /v1/nothing '{}'
[ "$got" = 404 ]
check $? 'no such path'
call GET /v1/completions ''
[ "$got" = 405 ]
check $? 'no such method'
printf 'GET /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' | http_call --raw "$port" 30 >"$tmp/out"
said '^Allow: POST.$'
check $? 'and which there is'

# Answers larger than what the kernel keeps for a socket: a client that never reads holds no slot once they are made, one that goes away none at all.
big='{"prompt":"x","max_tokens":240,"ignore_eos":true,"stream":true,"n":8,"logprobs":20}'
http_call --slow "$port" POST /v1/completions "$big" 60 &
reads_nothing=$!
call POST /v1/completions "$body}"
grep -qF "\"text\":$text" "$tmp/out"
check $? 'beside a client that reads nothing'
for i in $(seq 600); do
    call GET /metrics ''
    said '^pi_sequences_active 0$' && said '^pi_sequences_waiting 0$' && break
    sleep 0.1
done
said '^pi_sequences_active 0$' && kill -0 $reads_nothing
check $? 'its slots are free while it is still there'
kill $reads_nothing
made=$(sed -n 's/^pi_generated_tokens_total //p' "$tmp/out")
http_call --slow "$port" POST /v1/completions '{"prompt":"x","max_tokens":240,"ignore_eos":true,"n":100}' 0
for i in $(seq 600); do
    call GET /metrics ''
    said '^pi_sequences_active 0$' && said '^pi_sequences_waiting 0$' && break
    sleep 0.1
done
less "$(sed -n 's/^pi_generated_tokens_total //p' "$tmp/out")" $((made + 12000))
check $? 'what a client that went away wanted is not made to its end'

# Clients that read nothing, and ones that go away, hold nobody up: more of them than there are slots.
clients=
for i in 1 2 3 4 5; do
    http_call --slow "$port" POST /v1/completions '{"prompt":"x","max_tokens":240,"stream":true,"ignore_eos":true}' 3 &
    clients="$clients $!"
    http_call --slow "$port" POST /v1/completions '{"prompt":"x","max_tokens":240,"ignore_eos":true}' 0 &
    clients="$clients $!"
done
call POST /v1/completions "$body}"
grep -qF "\"text\":$text" "$tmp/out"
check $? 'clients that do not read'
wait $clients
for i in $(seq 300); do
    call GET /metrics ''
    said '^pi_sequences_active 0$' && said '^pi_sequences_waiting 0$' && break
    sleep 0.1
done
said '^pi_sequences_active 0$' && said '^pi_sequences_waiting 0$' && said '^pi_generated_tokens_total [1-9]'
check $? 'all slots are free again'
stop 'a server'

# A key, a limit of size, a port that is taken; what is being decoded at the end.
start --api-key sesame --max-request 2K
call POST /v1/completions "$body}"
[ "$got" = 401 ] && said invalid_api_key
check $? 'no key'
call POST /v1/completions "$body}" 'Authorization: Bearer sesama'
[ "$got" = 401 ]
check $? 'a wrong key'
call POST /v1/completions "$body}" 'Authorization: Bearer sesame'
[ "$got" = 200 ] && grep -qF "\"text\":$text" "$tmp/out"
check $? 'the key'
call GET /health ''
[ "$got" = 200 ]
check $? 'health needs none'
call POST /v1/completions "{\"prompt\":\"$(head -c 4000 /dev/zero | tr '\0' a)\"}" 'Authorization: Bearer sesame'
[ "$got" = 413 ]
check $? 'a request too large'
fails 7 "cannot listen on 127.0.0.1 port $port" 'a port that is taken' pi-run -q -m "$m" --serve --port "$port" -c 64 -t 1
http_call "$port" POST /v1/completions '{"prompt":"x","max_tokens":240,"ignore_eos":true}' 'Authorization: Bearer sesame' >"$tmp/late" 2>&1 &
late=$!
while kill -0 $late 2>/dev/null; do # what only waits is refused: until it has a slot
    call GET /metrics '' 'Authorization: Bearer sesame'
    ! said '^pi_sequences_active [1-9]' || break
    sleep 0.05
done
stop 'a busy server'
wait $late
[ "$(sed -n 1p "$tmp/late")" = 200 ] && grep -q '"completion_tokens":240' "$tmp/late"
check $? 'what was being decoded came to its end'
fails 2 'max-request' 'a limit beyond the limit' timeout -s KILL 60 pi-run -q -m "$m" --serve --port 0 --max-request 1G -t 1
fails 2 'go with --serve' 'a port without a server' pi-run -q -m "$m" --port 1 -p x
fails 2 'expected an address' 'a name for an address' pi-run -q -m "$m" --serve --host localhost -t 1
fails 2 'expected chatml' 'an unknown format' pi-run -q -m "$m" --serve --chat-template x -t 1
echo "1..$n"
