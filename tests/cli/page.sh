#!/bin/sh
# pi-run --serve: the page, the figures behind it, and whom a server without a key refuses.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
. "$abs_top_srcdir/bench/json.sh"
. "$abs_top_srcdir/tests/cli/serve_lib.sh"
m=$tmp/m.gguf
works 'a model' pi-convert "$ref/llama-relu" -o "$m" --type f32 -q --no-self-check
works 'a placement' make_artifact placement "$m" "$tmp/m.placement.gguf" 0.5

units='--device cpu+cpu --parallel 1'

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

# A browser: the question in the address is asked, and its answer is the text of the command line.
browser=
for b in chromium chromium-headless-shell; do
    [ -n "$browser" ] || ! command -v $b >/dev/null || browser=$b
done
if [ -z "$browser" ]; then
    check 0 "the page in a browser # SKIP no chromium"
else
    printf "Hello there\n" >"$tmp/in"
    pi-run -q -m "$m" --chat -c 256 -t 1 --device cpu+cpu -s 7 -n 12 <"$tmp/in" 2>/dev/null |
        sed "s/&/\\&amp;/g; s/</\\&lt;/g; s/>/\\&gt;/g" >"$tmp/cli"
    timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --user-data-dir="$tmp/browser" --virtual-time-budget=60000 \
        --dump-dom "http://127.0.0.1:$port/#ask=Hello%20there&seed=7&max_tokens=12" >"$tmp/dom" 2>"$tmp/err"
    tr "\n" "\001" <"$tmp/dom" | sed "s/.*turn assistant//; s/.*class=\"text\">//; s/<\/div>.*//" | tr "\001" "\n" >"$tmp/shown"
    [ -s "$tmp/shown" ] && [ "$(cat "$tmp/shown")" = "$(cat "$tmp/cli")" ] && grep -q "data-done=" "$tmp/dom"
    status=$?
    check $status "the page in a browser: the text of the command line"
    [ $status = 0 ] || { sed "s/^/# cli: /" "$tmp/cli"; sed "s/^/# dom: /" "$tmp/shown"; }
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
stop 'a server with a key'
echo "1..$n"
