# Feed-forward and hand-over kernels, on a real GPU and on the emulated one.
EXTRA_DIST += tests/ffn_layer.h tests/kernel_rig.h tests/t_kernels_ffn.c tests/t_handover.c

if HAVE_CUDA
pi_unit_tests += tests/t_kernels_ffn tests/t_handover
tests_t_kernels_ffn_SOURCES = tests/t_kernels_ffn.c tests/ffn_layer.h tests/kernel_rig.h
tests_t_kernels_ffn_LDADD   = $(PI_RUNTIME_LIBS)
tests_t_handover_SOURCES = tests/t_handover.c tests/kernel_rig.h
tests_t_handover_LDADD   = $(PI_RUNTIME_LIBS)
endif

if HAVE_CXX
pi_unit_tests += tests/t_kernels_ffn_emu tests/t_handover_emu
tests_t_kernels_ffn_emu_SOURCES = tests/t_kernels_ffn.c tests/ffn_layer.h tests/kernel_rig.h
tests_t_kernels_ffn_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
tests_t_handover_emu_SOURCES = tests/t_handover.c tests/kernel_rig.h
tests_t_handover_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
endif
