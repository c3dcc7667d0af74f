#!/bin/sh
# setup.sh demo    prepares the machine, builds, and runs the whole pipeline on the embedded model
# setup.sh check   prepares the machine, builds, and runs all tests
# setup.sh build   prepares the machine and builds
#
# What is missing is installed with apt when that is allowed (root, or sudo without a password); otherwise the list
# is printed and nothing else happens. The build goes to ./build, for the GPUs that are in this machine (none: CPU only).
# BUILDDIR, CONFIGURE_FLAGS and JOBS in the environment change the folder, configure's options and make's -j.
set -eu

top=$(cd "$(dirname "$0")" && pwd)
cd "$top"
build=${BUILDDIR:-$top/build}
jobs=${JOBS:-$(nproc)}

packages="gcc g++ make autoconf automake pkg-config zlib1g-dev libyaml-dev libglpk-dev libopenblas-dev
          libpcre2-dev libjansson-dev libmd-dev libmicrohttpd-dev libedit-dev"

case $top$build in
*[[:space:]]*)
    echo "setup.sh: make cannot build where a folder's name holds spaces: move the checkout from $top" >&2
    exit 1
    ;;
esac

say() { printf '== %s\n' "$*"; }

missing_packages() {
    for p in $packages; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || printf ' %s' "$p"
    done
}

install_packages() {
    command -v dpkg-query >/dev/null 2>&1 || {
        say "not a Debian system: configure will name what is missing"
        return 0
    }
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        echo "setup.sh: these packages are missing and I may not install them; run as root:" >&2
        echo "  apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
    say "installing (about a minute)$missing"
    # shellcheck disable=SC2086
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing \
        </dev/null >"${TMPDIR:-/tmp}/pi-setup-apt.$$" 2>&1 || {
        cat "${TMPDIR:-/tmp}/pi-setup-apt.$$" >&2
        exit 1
    }
    rm -f "${TMPDIR:-/tmp}/pi-setup-apt.$$"
}

# Compute capabilities of the GPUs in this machine ("90"), or nothing.
gpu_archs() {
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null 2>&1 || return 0
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | grep -E '^[0-9]+$' |
        sort -un | tr '\n' ' ' | sed 's/ $//'
}

build_all() {
    if [ ! -x configure ] || [ -n "$(find configure.ac Makefile.am m4 -newer configure 2>/dev/null)" ]; then
        say "making configure"
        ./autogen.sh >"$top/autogen.log" 2>&1 || {
            cat "$top/autogen.log" >&2
            exit 1
        }
        rm -f "$top/autogen.log"
    fi
    archs=$(gpu_archs)
    mkdir -p "$build"
    if [ -n "$archs" ]; then
        set -- --with-cuda "--with-cuda-archs=$archs"
    else
        set -- --without-cuda
    fi
    wanted="$* ${CONFIGURE_FLAGS-}"
    if [ ! -f "$build/Makefile" ] || [ "$(cat "$build/setup-flags" 2>/dev/null)" != "$wanted" ]; then
        say "configuring for ${archs:+GPU architectures }${archs:-the CPU only}"
        # shellcheck disable=SC2086
        (cd "$build" && "$top/configure" -q "$@" ${CONFIGURE_FLAGS-})
        [ ! -f "$build/setup-flags" ] || make -C "$build" -s clean # make does not know that flags changed
        printf '%s\n' "$wanted" >"$build/setup-flags"
    fi
    say "building (the first time a minute on 2 cores; log: $build/build.out)"
    make -C "$build" -s -j"$jobs" all >"$build/build.out" 2>&1 || {
        cat "$build/build.out" >&2
        exit 1
    }
    grep -A4 'warning:' "$build/build.out" >&2 || true
}

# The closing line out of automake's log.
count_tests() {
    awk '/^# PASS:/ { p += $3 } /^# (FAIL|ERROR|XPASS):/ { f += $3 } /^# SKIP:/ { s += $3 }
         END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit p == 0 || f > 0 }' "$1"
}

run_check() {
    say "testing (a few minutes; log: $build/test-suite.log)"
    rm -f "$build/test-suite.log"
    make -C "$build" -s -j"$jobs" check >"$build/check.out" 2>&1 || true
    [ -f "$build/test-suite.log" ] || {
        tail -40 "$build/check.out" >&2
        echo "setup.sh: the tests did not run" >&2
        exit 1
    }
    grep -E '^(FAIL|ERROR|XPASS)' "$build/check.out" >&2 || true
    count_tests "$build/test-suite.log"
}

usage() { sed -n '/^# setup.sh/,/^[^#]/s/^#[[:space:]]\{0,1\}//p' "$top/setup.sh"; }

case ${1-} in
build | demo | check)
    [ $# = 1 ] || { echo "usage: setup.sh demo|check|build" >&2; exit 2; }
    install_packages
    build_all
    ;;
-h | --help)
    usage
    exit 0
    ;;
*)
    usage >&2
    exit 2
    ;;
esac
case $1 in
demo) exec sh "$top/bench/demo.sh" "$build" ;;
check) run_check ;;
esac
