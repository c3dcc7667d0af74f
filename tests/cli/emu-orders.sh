# GPU code on the emulated device once more, with other orders of blocks and threads, and with dependent kernels that
# start as early as they may: the same answers. The programs' own runs have the plain order.
if grep -q __asan_init "$abs_top_builddir/tests/t_emu"; then
    echo "1..0 # SKIP the sanitizers slow this down too much; the programs' own runs have them"
    exit 0
fi
n=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

passes() { # PROGRAM SETTING...
    n=$((n + 1))
    program=$1
    shift
    if env "$@" "$abs_top_builddir/tests/$program" >"$tmp/out" 2>&1; then
        echo "ok $n - $program $*"
    else
        echo "not ok $n - $program $*"
        grep -v '^ok' "$tmp/out" | head -n 20 | sed 's/^/# /'
    fi
}

for program in t_emu t_k_prompt_emu t_kernels_attn_emu t_kernels_ffn_emu t_kernels_mat_emu t_train_gpu_emu; do
    passes $program PI_EMU_BLOCKS=random:3 PI_EMU_THREADS=random:4
done
passes t_engine_gpu_emu PI_EMU_PDL=1 PI_EMU_BLOCKS=reverse PI_EMU_THREADS=reverse
echo "1..$n"
