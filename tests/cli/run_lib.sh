# Shared by the tests of pi-run; to be read with ".".
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
ref=$abs_top_srcdir/tests/data/reference
PATH=$abs_top_builddir/tests:$PATH
# One thread where no number is asked for: teams of several programs on the same cores wait for each other, which takes these small models many times as long as
# one thread does. Scripts that compare with other numbers of threads unset it.
PI_TEST_CORES=1
export PI_TEST_CORES

check() { # STATUS NAME
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

# Passes on TAP lines without numbers from a tool.
number() {
    while IFS= read -r line; do
        case $line in
        "ok - "*) n=$((n + 1)); echo "ok $n${line#ok}" ;;
        "not ok - "*) n=$((n + 1)); echo "not ok $n${line#not ok}" ;;
        *) echo "$line" ;;
        esac
    done <"$1"
}

# fails STATUS PATTERN NAME COMMAND...: this exit status, one line on standard error that matches, nothing on standard output.
fails() {
    want=$1 pattern=$2 name=$3
    shift 3
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    [ "$got" = "$want" ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -qE -e "$pattern" "$tmp/err"
    status=$?
    check $status "$name"
    if [ $status != 0 ]; then
        echo "# status $got, wanted $want and a line with: $pattern"
        sed 's/^/# /' "$tmp/err"
        head -c 200 "$tmp/out" | sed 's/^/# stdout: /'
    fi
}

# works NAME COMMAND...: exit status 0; output in $tmp/out, notices in $tmp/err.
works() {
    name=$1
    shift
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    check $got "$name"
    if [ $got != 0 ]; then
        echo "# status $got"
        sed 's/^/# /' "$tmp/err"
    fi
}

# The value of a key of a one-line JSON object of numbers, strings and arrays of numbers.
value() { # KEY FILE
    sed -n 's/.*"'"$1"'":\(\[[^]]*\]\|"[^"]*"\|[^,}]*\).*/\1/p' "$2" | tr -d '"'
}

# less A B: numbers, A <= B
less() {
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a + 0 <= b + 0) }'
}

# model NAME [TYPE]: $tmp/NAME.gguf out of a reference case.
model() {
    pi-convert "$ref/$1" -o "$tmp/$1.gguf" --type "${2-f32}" >"$tmp/out" 2>"$tmp/err" || {
        echo "Bail out! pi-convert $1: $(cat "$tmp/err")"
        exit 99
    }
}
