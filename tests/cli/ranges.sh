#!/bin/sh
# Every option of every program that takes a number: what is out of its range, or no number, is refused with status 2 by a line that names option, value and range; its limits
# themselves are taken.
. "$abs_top_srcdir/tests/cli/run_lib.sh"

# refused VALUE PATTERN: of $p --$o
refused() {
    "$p" "--$o" "$1" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    [ $got = 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" = 1 ] && grep -qE -e "^$p: --$o $1: $2" "$tmp/err" && return
    echo "# $p --$o '$1': status $got, wanted 2 and: $2"
    sed 's/^/# /' "$tmp/err"
    bad=1
}
# taken VALUE: what fails, if anything, is something else
taken() {
    "$p" "--$o" "$1" >"$tmp/out" 2>"$tmp/err" </dev/null
    grep -q -e "^$p: --$o " "$tmp/err" || return 0
    sed 's/^/# /' "$tmp/err"
    bad=1
}
number_option() {
    range='must be a (whole )?number from [0-9.]+ to [0-9.e+]+$'
    for v in -1 x '' 1x nan inf 1e99 99999999999999999999; do refused "$v" "$range"; done
    "$p" "--$o" x 2>"$tmp/err" </dev/null
    min=$(sed 's/.* from \([^ ]*\) to .*/\1/' "$tmp/err") max=$(sed 's/.* to //' "$tmp/err")
    whole=$(grep -c whole "$tmp/err")
    taken "$min"
    taken "$max"
    if [ "$whole" = 1 ]; then
        [ ${#max} -ge 19 ] || refused "$((max + 1))" "$range"
        [ "$min" = 0 ] || refused "$((min - 1))" "$range"
        refused 1.5 "$range"
    fi
}
size_option() {
    for v in -1 x '' 8 1e3 G 1GB; do refused "$v" 'needs a unit, as in 8G, 8192M or 500K$'; done
    refused 99999999T 'must be at most [0-9]+T$'
}

n_options=0
for p in pi-convert pi-profile pi-train-predictor pi-place pi-run; do
    "$p" --help | sed -nE 's/^  (-., |    )--([a-z0-9-]+) (N|X|SEED|SECONDS|SIZE)( .*|$)/\2 \3/p' >"$tmp/options"
    while read -r o kind <&3; do
        bad=0 n_options=$((n_options + 1))
        case $kind in
        SIZE) size_option ;;
        *) number_option ;;
        esac
        check $bad "$p --$o $kind"
    done 3<"$tmp/options"
done
[ $n_options -ge 30 ]
check $? "$n_options options"
o=max-request p=pi-run bad=0
for v in 0K 65M 1G; do refused $v "must be from 1024 to 67108864 bytes\$"; done
taken 64M
check $bad 'a size with limits'
echo "1..$n"
