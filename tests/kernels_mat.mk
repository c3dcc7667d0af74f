# Matrix-vector and attention kernels, on a real GPU and on the emulated one.
EXTRA_DIST += tests/t_kernels_mat.c tests/t_kernels_attn.c

if HAVE_CUDA
pi_unit_tests += tests/t_kernels_mat tests/t_kernels_attn
tests_t_kernels_mat_SOURCES  = tests/t_kernels_mat.c
tests_t_kernels_mat_LDADD    = $(PI_RUNTIME_LIBS)
tests_t_kernels_attn_SOURCES = tests/t_kernels_attn.c
tests_t_kernels_attn_LDADD   = $(PI_RUNTIME_LIBS)
endif

if HAVE_CXX
pi_unit_tests += tests/t_kernels_mat_emu tests/t_kernels_attn_emu
tests_t_kernels_mat_emu_SOURCES  = tests/t_kernels_mat.c
tests_t_kernels_mat_emu_LDADD    = $(PI_RUNTIME_EMU_LIBS)
tests_t_kernels_attn_emu_SOURCES = tests/t_kernels_attn.c
tests_t_kernels_attn_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
endif
