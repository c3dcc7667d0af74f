#!/bin/sh
# The EXAMPLES of the man pages, as they stand there: each command is run, in an order in which one's outputs are the next one's inputs, on small models under the names that the
# pages use. It ends with status 0 and has written the files that it names. What cannot be run here is listed by name, with the reason.
. "$abs_top_srcdir/tests/cli/run_lib.sh"
data=$abs_top_srcdir/datasets
work=$tmp/work
mkdir "$work"
cd "$work" || exit 99
ln -s "$data" datasets
cp -r "$ref/llama-relu" ReluLLaMA-7B
for m in model demo; do
    for kind in '' .profile .predictor; do cp "$data/demo$kind.gguf" "$m$kind.gguf"; done
done
pi-convert ReluLLaMA-7B -o M.gguf -q --no-self-check >/dev/null # its examples make what belongs to it
cp M.gguf prosparse-7b.gguf
chmod u+w ./*.gguf
head -c 500 "$data/demo-text/heldout.txt" >heldout.txt
head -c 9000 "$data/demo-text/train.txt" >book.txt
head -c 6000 "$data/demo-text/heldout.txt" >more.txt
head -n 20 "$data/prompts.jsonl" | gzip >chats.jsonl.gz

# examples PAGE: its commands, a line each
examples() {
    sed -n '/^\.Sh EXAMPLES/,/^\.Sh SEE/s/^\.Dl \(\$ \)\{0,1\}//p' "$abs_top_srcdir/man/$1.in"
}
# skip COMMAND REASON
skip() {
    n=$((n + 1))
    echo "ok $n - $1 # SKIP $2"
}
# made COMMAND: every file that it names as an output is there
made() {
    for f in $(printf '%s\n' "$1" | grep -oE -e '(-o|--report|--probe-hardware) [^ ]+' | sed 's/.* //'); do
        [ -s "$f" ] || {
            echo "# no $f"
            return 1
        }
        checked="$checked $f"
    done
}
# run COMMAND [INPUT]
run() {
    printf '%s' "${2-}" >"$tmp/in"
    sh -c "$1" >"$tmp/out" 2>"$tmp/err" <"$tmp/in"
    got=$?
    [ $got = 0 ] && made "$1"
    status=$?
    check $status "$1"
    [ $status = 0 ] || sed "s/^/# $got: /" "$tmp/err"
}
# The server of one example, and the request to it that follows, at a port that is free.
serve() {
    : >"$tmp/server"
    sh -c "exec $1 --port 0" >"$tmp/out" 2>"$tmp/server" &
    server=$!
    for i in $(seq 300); do
        port=$(sed -n 's|.*listening on http://127.0.0.1:\([0-9]*\).*|\1|p' "$tmp/server")
        if [ -n "$port" ] || ! kill -0 $server 2>/dev/null; then break; fi
        sleep 0.1
    done
    [ -n "$port" ]
    check $? "$1"
}

n_examples=0 checked='' server=''
for page in pi-convert.1 pi-profile.1 pi-train-predictor.1 pi-place.1 pi-run.1; do
    examples $page >"$tmp/examples"
    [ -s "$tmp/examples" ]
    check $? "$page has examples"
    while IFS= read -r command <&3; do
        n_examples=$((n_examples + 1))
        case $command in
        'pi-convert --dump relu-7b.placement.gguf') # of the model of the first example
            { pi-profile relu-7b.gguf --data more.txt -q && pi-place relu-7b.gguf --vram-budget 24M --hardware datasets/hardware-demo.yaml -q; } >/dev/null 2>"$tmp/err"
            check $? 'a placement to look at'
            run "$command"
            ;;
        'pi-place model.gguf --vram-budget 8G'*)
            if grep -q '^gpus: *\[\]' hardware.yaml || ! grep -q '^gpus' hardware.yaml; then
                echo "# no GPU here: that of datasets/hardware-example.yaml for $command"
                run "$command --hardware datasets/hardware-example.yaml"
            else
                run "$command"
            fi
            ;;
        *--serve*)
            if pi-run --serve -m /nonexistent 2>&1 | grep -q 'no HTTP server'; then
                skip "$command" 'no libmicrohttpd'
            else
                mv model.placement.gguf split.placement.gguf # which is made for a smaller context
                serve "$command"
            fi
            ;;
        curl\ *)
            if [ -z "$server" ]; then
                skip "$command" 'no server'
            elif ! command -v curl >/dev/null; then
                skip "$command" 'no curl'
            else
                run "$(printf '%s' "$command" | sed "s/:8080/:$port/; s/^curl/curl -sSf/")"
                grep -q '"text":"' "$tmp/out"
                check $? 'the answer is text'
            fi
            ;;
        *--chat*)
            run "$command" "Hello
/quit
"
            [ -s "$tmp/out" ]
            check $? 'it answers'
            ;;
        *) run "$command" ;;
        esac
    done 3<"$tmp/examples"
done
if [ -n "$server" ]; then
    kill -TERM "$server"
    wait "$server"
    check $? 'the server ends'
fi
[ $n_examples -ge 20 ]
check $? "$n_examples examples"
for f in M.profile.gguf M.predictor.gguf model.placement.gguf; do # where no option names them
    [ -s $f ] || [ -s "split${f#model}" ]
    check $? "$f"
done
for f in relu-7b.gguf both.profile.gguf careful.predictor.gguf model.html M.html what-if.gguf hardware.yaml; do
    case " $checked " in *" $f "*) true ;; *) false ;; esac
    check $? "$f"
done
echo "1..$n"
