# Feed-forward kernels, on a real GPU and on the emulated one.
EXTRA_DIST += tests/kernel_rig.h tests/t_kernels_ffn.c

if HAVE_CUDA
pi_unit_tests += tests/t_kernels_ffn
tests_t_kernels_ffn_SOURCES = tests/t_kernels_ffn.c
tests_t_kernels_ffn_LDADD   = $(PI_RUNTIME_LIBS)
endif

if HAVE_CXX
pi_unit_tests += tests/t_kernels_ffn_emu
tests_t_kernels_ffn_emu_SOURCES = tests/t_kernels_ffn.c
tests_t_kernels_ffn_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
endif
