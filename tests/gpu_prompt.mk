# Tests of prompt chunks on a GPU: kernels, and chunks against the CPU's.
if HAVE_CUDA
pi_unit_tests += tests/t_k_prompt tests/t_gpu_prompt
tests_t_k_prompt_SOURCES = tests/t_k_prompt.c tests/gpu_rig.h tests/tap.h
tests_t_k_prompt_LDADD   = $(PI_RUNTIME_LIBS)
tests_t_gpu_prompt_SOURCES = tests/t_gpu_prompt.c $(engine_rig)
tests_t_gpu_prompt_LDADD   = $(PI_RUNTIME_LIBS)
endif

if HAVE_CXX
pi_unit_tests += tests/t_k_prompt_emu tests/t_gpu_prompt_emu
tests_t_k_prompt_emu_SOURCES = tests/t_k_prompt.c tests/gpu_rig.h tests/tap.h
tests_t_k_prompt_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)
tests_t_gpu_prompt_emu_SOURCES = tests/t_gpu_prompt.c $(engine_rig)
tests_t_gpu_prompt_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)

# The collector's and the trainer's tests with a GPU.
pi_unit_tests += tests/t_collect_emu tests/t_train_gpu_emu
tests_t_collect_emu_SOURCES = tests/t_collect.c tests/tiny_model.c tests/tiny_forward.c tests/tiny_model.h tests/tap.h
tests_t_collect_emu_LDADD   = libpi_profiler.a $(PI_RUNTIME_EMU_LIBS)
tests_t_train_gpu_emu_SOURCES = tests/t_train_gpu.c tests/train_rig.h tests/tap.h
tests_t_train_gpu_emu_LDADD   = libpi_profiler.a $(PI_RUNTIME_EMU_LIBS)
endif
EXTRA_DIST += tests/t_k_prompt.c tests/t_gpu_prompt.c tests/gpu_rig.h
