#!/bin/sh
# Kernels on the emulated device once more, with other orders of blocks and threads: the same answers. The programs' own runs have the plain order.
. "$abs_top_srcdir/tests/cli/emu_orders_lib.sh"
for program in t_emu t_k_prompt_emu t_kernels_attn_emu t_kernels_ffn_emu t_kernels_mat_emu t_train_gpu_emu; do
    passes $program PI_EMU_BLOCKS=random:3 PI_EMU_THREADS=random:4
done
echo "1..$n"
