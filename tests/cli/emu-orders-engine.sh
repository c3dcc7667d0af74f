#!/bin/sh
# The engine on the emulated device once more, with the orders turned round, and with dependent kernels that start as early as they may.
. "$abs_top_srcdir/tests/cli/emu_orders_lib.sh"
passes t_engine_gpu_emu PI_EMU_PDL=1 PI_EMU_BLOCKS=reverse PI_EMU_THREADS=reverse
echo "1..$n"
