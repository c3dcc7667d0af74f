#!/bin/sh
# pi-run --serve: the page, the figures behind it, and whom a server without a key refuses.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/bench/json.sh"
. "$abs_top_srcdir/tests/cli/serve_lib.sh"
m=$tmp/m.gguf
works 'a model' pi-convert "$ref/llama-relu" -o "$m" --type f32 -q --no-self-check
works 'a placement' make_artifact placement "$m" "$tmp/m.placement.gguf" 0.5@16000

units='--device cpu+cpu' # and one sequence: the placement is made for one

start $units
call GET / ''
[ "$got" = 200 ] && cmp -s "$tmp/out" "$abs_top_srcdir/runtime/server/page.html"
check $? 'the page, byte for byte'
for f in page.css page.js; do
    call GET /$f ''
    [ "$got" = 200 ] && cmp -s "$tmp/out" "$abs_top_srcdir/runtime/server/$f"
    check $? "$f"
done
! grep -nE '(src|href)="?(https?:)?//|innerHTML|outerHTML|insertAdjacentHTML|document\.write|@import|url\(' \
    "$abs_top_srcdir/runtime/server/page.html" "$abs_top_srcdir/runtime/server/page.css" "$abs_top_srcdir/runtime/server/page.js"
check $? 'nothing from elsewhere, no text taken for HTML'

call GET /status ''
[ "$got" = 200 ] && [ "$(json_get "$tmp/out" device)" = cpu+cpu ] && [ "$(json_get "$tmp/out" density)" = null ]
check $? 'status: no figures before the first step'
call POST /v1/completions '{"prompt":"Hello there","max_tokens":21,"seed":7,"ignore_eos":true}'
for i in $(seq 100); do
    call GET /status ''
    [ "$(json_part "$tmp/out" steps neurons)" = 20 ] || said '"steps":20,"layers"' && break
    sleep 0.1
done
said '"decode":\{"tokens":21,"steps":20,' && said '"steps":20,"layers"' && said '"hot_unit":"cpu"'
status=$?
check $status 'status: 21 tokens in 20 steps'
[ $status = 0 ] || sed 's/^/# /' "$tmp/out"
per=$(json_get "$tmp/out" per_layer)
json_list "$tmp/out" hot_neurons >"$tmp/hot_n"
json_list "$tmp/out" hot_active >"$tmp/hot"
json_list "$tmp/out" cold_active >"$tmp/cold"
json_list "$tmp/out" hot_share >"$tmp/share"
json_list "$tmp/out" density >"$tmp/density"
paste "$tmp/hot_n" "$tmp/hot" "$tmp/cold" "$tmp/share" "$tmp/density" | awk -v per="$per" '
    function near(a, b) { return a - b < 1e-9 && b - a < 1e-9 }
    $1 < 1 || $1 >= per || $2 > 20 * $1 || $3 > 20 * (per - $1) { bad = 1 }
    !near($4, $2 / ($2 + $3)) || !near($5, ($2 + $3) / (20 * per)) { bad = 1 }
    { active += $2 + $3 }
    END { exit bad || NR < 2 || active == 0 }'
check $? 'status: each layer within what is placed there, shares and densities those of the counts'

# In a browser, where there is one (tests/browse.c).
browser=
for b in chromium chromium-headless-shell; do
    [ -n "$browser" ] || ! command -v $b >/dev/null || browser=$b
done
# browse NAME: commands on standard input
browse() {
    if [ -z "$browser" ]; then
        check 0 "in a browser, $1 # SKIP no chromium"
        return
    fi
    timeout -s KILL 400 browse "$browser" "$tmp/browser" >"$tmp/tap"
    status=$?
    sed "s/ok - /&in a browser, $1: /" "$tmp/tap" >"$tmp/tap.named"
    number "$tmp/tap.named"
    check $status "in a browser, $1"
}
turn='[...document.querySelectorAll(".turn.assistant")].at(-1)'
printf 'Hello there\n' | pi-run -q -m "$m" --chat -c 256 -t 1 --device cpu+cpu -s 7 -n 12 2>/dev/null >"$tmp/cli"

# The question in the address is asked; the same typed; settings outlive a reload, the conversation does not.
browse 'questions' <<END
open http://127.0.0.1:$port/#ask=Hello%20there&seed=7&max_tokens=12
check the question in the address is answered: $turn.dataset.done === "length"
save $tmp/asked $turn.querySelector(".text").textContent
open http://127.0.0.1:$port/
check an empty page waits for a question: document.activeElement === el("prompt") && !el("empty").hidden && !el("send").disabled && el("stop").disabled
check it says what runs: el("model").textContent === "m" && document.title.startsWith("m ") && el("facts").textContent.startsWith("cpu+cpu ")
click #settings summary
click #seed
type 7
click #max_tokens
type 12
click #prompt
reload
check settings outlive a reload: el("seed").value === "7" && el("max_tokens").value === "12"
click #prompt
type Hello
press Shift+Enter
check Shift and Enter make a line: el("prompt").value === "Hello\n"
do el("prompt").value = "Hello "
type there
press Enter
check what is typed is answered: $turn?.dataset.done === "length" && /^12 tokens .*cut at its length$/.test($turn.querySelector(".figures").textContent)
check it is shown as it was typed: document.querySelector(".turn.user .text").textContent === "Hello there" && el("prompt").value === ""
save $tmp/typed $turn.querySelector(".text").textContent
do el("max_tokens").value = "100000"
type More
press Enter
check more than fits is refused in words: $turn.dataset.done === "error" && /context is 256 tokens.* Clear /.test($turn.querySelector("[role=alert]").textContent)
check and the question given back: el("prompt").value === "More" && messages.length === 2
reload
check a reload forgets the conversation: document.querySelectorAll(".turn").length === 0 && messages.length === 0 && !el("empty").hidden
clean nothing is complained about, nothing sent elsewhere
END
if [ -n "$browser" ]; then
    for f in asked typed; do
        [ -s "$tmp/$f" ] && [ "$(cat "$tmp/$f")" = "$(cat "$tmp/cli")" ]
        status=$?
        check $status "in a browser, the text of the command line: $f"
        [ $status = 0 ] || { sed 's/^/# cli: /' "$tmp/cli"; sed 's/^/# dom: /' "$tmp/$f"; }
    done
fi

# Whom a server without a key refuses: foreign names for it (DNS rebinding), and other sites' pages.
call GET /status '' 'Origin: http://localhost'
[ "$got" = 200 ]
check $? 'its own origin'
call POST /v1/completions '{"prompt":"x","max_tokens":1}' 'Origin: http://evil.example'
[ "$got" = 403 ] && said origin_not_allowed
check $? 'another origin'
call GET /status '' 'Origin: null'
[ "$got" = 403 ]
check $? 'an origin without name'
call GET /status "" "Host: evil.example"
[ "$got" = 403 ] && said host_not_allowed
check $? "another name"
call GET /status "" "Host: 127.0.0.1:$port"
[ "$got" = 200 ]
check $? "an address"
stop 'a server'

start $units --api-key sesame
call GET / ''
[ "$got" = 200 ]
check $? 'the page needs no key'
call GET /status ''
[ "$got" = 401 ]
check $? 'the figures do'
call GET /status '' 'Authorization: Bearer sesame'
[ "$got" = 200 ]
check $? 'the key'
browse 'a key' <<END
open http://127.0.0.1:$port/
check it is asked for: el("key_box").open && document.activeElement === el("key")
type ключ
press Enter
check a wrong one is not accepted: el("key_box").open && /not accepted/.test(el("key_why").textContent) && el("key").value === ""
type sesa
press Escape
check the box can be closed: !el("key_box").open
do new Promise((done) => setTimeout(done, 2500))
check and stays closed: !el("key_box").open && /API key/.test(el("slots").textContent)
click #prompt
type Hello there
press Enter
check a question opens it: el("key_box").open
press Escape
check without a key it is refused, and given back: $turn.dataset.done === "error" && /API key/.test($turn.querySelector("[role=alert]").textContent) && el("prompt").value === "Hello there"
do el("max_tokens").value = "5"
press Enter
check it asks again: el("key_box").open
type sesame
press Enter
check the key is taken: !el("key_box").open && $turn.dataset.done === "length" && /slot/.test(el("slots").textContent)
reload
check and kept for the tab: /slot/.test(el("slots").textContent) && !el("key_box").open
clean nothing is complained about, nothing sent elsewhere
END
stop 'a server with a key'

# Answers that go on until they are stopped; then the server goes away in the midst of one, and comes back.
busy="$turn?.getAttribute('aria-busy') === 'true' && $turn.querySelector('.text').textContent.length > 300"
idle='fetch("status").then((r) => r.json()).then((s) => s.slots.active + s.slots.waiting === 0)'
start $units -c 16000 --ignore-eos
[ -n "$port" ]
check $? 'a server of long answers'
browse 'long answers' <<END
open http://127.0.0.1:$port/
check the page is there: el("model").textContent === "m"
type Hello there
press Enter
check an answer grows: $busy && el("send").disabled && el("clear").disabled && !el("stop").disabled
check the live view with it: $busy && /^[0-9.]+ tokens\/s$/.test(el("speed").textContent) && /^1 of 1 slots/.test(el("slots").textContent)
check a bar for each layer: $busy && el("layers").children.length > 1 && [...el("layers").querySelectorAll(".track")].every((t) => t.querySelector(".hot").getBoundingClientRect().width > 0 && t.querySelector(".cold").getBoundingClientRect().width > 0)
click #stop
check Stop stops it: $turn.dataset.done === "stopped" && /stopped$/.test($turn.querySelector(".figures").textContent) && !$turn.hasAttribute("aria-busy") && !el("send").disabled && el("stop").disabled
check the slot is free: $idle
check the view says so: el("speed").textContent === "idle" && /^0 of 1 slots/.test(el("slots").textContent)
check what was said remains said: messages.length === 2 && messages[1].content.length > 300
# A busy machine's answer may be longer than what the context has left for it in the next question.
do messages[1].content = messages[1].content.slice(0, 300)
click #prompt
type And then
press Enter
check the next goes on from there: $busy && messages.length === 3
press Escape
check Escape stops it too: $turn.dataset.done === "stopped" && messages.length === 4
click #clear
check Clear forgets all: document.querySelectorAll(".turn").length === 0 && messages.length === 0 && !el("empty").hidden && document.activeElement === el("prompt")
type Once more
press Enter
check and begins anew: $busy && messages.length === 1
reload
check a reload ends the answer, too: $idle
clean nothing is complained about, nothing sent elsewhere
click #prompt
type Hello there
press Enter
check another answer grows: $busy
run kill -KILL $pid
check a server that goes away is told: $turn.dataset.done === "error" && /broke off/.test($turn.querySelector("[role=alert]").textContent) && $turn.querySelector(".text").textContent.length > 300
check the view tells it too: /cannot be reached/.test(el("slots").textContent)
type Still there
press Enter
check a question to nobody is given back: $turn.dataset.done === "error" && /cannot be reached/.test($turn.querySelector("[role=alert]").textContent) && el("prompt").value === "Still there" && messages.length === 2
run pi-run -q -m $m --serve --port $port -c 256 -t 1 $units >$tmp/server.out 2>$tmp/server.err & echo \$! >$tmp/pid
check the view comes back with the server: /^idle/.test(el("speed").textContent) && /^0 of 1 slots/.test(el("slots").textContent)
do el("max_tokens").value = "5"; clearAll(); el("prompt").value = "Still there"
press Enter
check so does the conversation: $turn?.dataset.done === "length"
END
if [ -s "$tmp/pid" ]; then
    kill -TERM "$(cat "$tmp/pid")"
else
    kill -KILL $pid
fi
echo "1..$n"
