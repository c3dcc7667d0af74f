# What tests of pi-run --serve share; sourced behind run_lib.sh. The model is $m.
pi-run --serve -m /nonexistent 2>&1 | grep -q 'no HTTP server' && {
    echo "1..0 # SKIP no libmicrohttpd"
    exit 0
}
# start OPTIONS: sets port and pid
start() {
    : >"$tmp/server.err" # or the port of the server before is read, until this one's shell has come to its redirections
    pi-run -m "$m" --serve --port 0 -c 256 -t 1 "$@" >"$tmp/server.out" 2>"$tmp/server.err" &
    pid=$!
    port=
    for i in $(seq 600); do
        port=$(sed -n 's|.*listening on http://127.0.0.1:\([0-9]*\).*|\1|p' "$tmp/server.err")
        [ -z "$port" ] || break
        sleep 0.1
    done
}
stop() { # NAME
    kill -TERM $pid
    wait $pid
    check $? "$1: ends with status 0"
    [ ! -s "$tmp/server.out" ] && ! grep -q 'ERROR\|Sanitizer' "$tmp/server.err"
    check $? "$1: nothing on standard output"
}
# call METHOD PATH BODY [HEADER]: $tmp/out has the body, $got the status
call() {
    http_call "$port" "$@" >"$tmp/raw" 2>"$tmp/err"
    got=$(sed -n 1p "$tmp/raw")
    sed 1d "$tmp/raw" >"$tmp/out"
}
said() { grep -qE -e "$1" "$tmp/out"; }
