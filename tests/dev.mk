# Tests of what lives on a GPU, and of whole runs there.
if HAVE_CUDA
pi_unit_tests += tests/t_dev_model
tests_t_dev_model_SOURCES = tests/t_dev_model.c $(engine_rig)
tests_t_dev_model_LDADD   = $(PI_RUNTIME_LIBS)
endif

if HAVE_CXX
pi_unit_tests += tests/t_dev_model_emu
tests_t_dev_model_emu_SOURCES  = tests/t_dev_model.c $(engine_rig)
tests_t_dev_model_emu_CPPFLAGS = $(AM_CPPFLAGS) -DPI_TEST_EMU
tests_t_dev_model_emu_LDADD    = $(PI_RUNTIME_EMU_LIBS)
endif

# These need all of the GPU side.
if HAVE_CUDA
pi_unit_tests += tests/t_gpu_cycles
tests_t_gpu_cycles_SOURCES = tests/t_gpu_cycles.c $(engine_rig)
tests_t_gpu_cycles_LDADD   = $(PI_RUNTIME_LIBS)

check_PROGRAMS += tests/compare_gpu
tests_compare_gpu_SOURCES = tests/compare_gpu.c tests/reference_case.h
tests_compare_gpu_LDADD   = $(PI_RUNTIME_LIBS)
endif

if HAVE_CXX
pi_unit_tests += tests/t_gpu_cycles_emu
tests_t_gpu_cycles_emu_SOURCES = tests/t_gpu_cycles.c $(engine_rig)
tests_t_gpu_cycles_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)

check_PROGRAMS += tests/emu/compare_gpu_emu
tests_emu_compare_gpu_emu_SOURCES = tests/compare_gpu.c tests/reference_case.h
tests_emu_compare_gpu_emu_LDADD   = $(PI_RUNTIME_EMU_LIBS)

pi_cli_tests += tests/cli/gpu-run.sh
endif
pi_cli_tests += tests/cli/gpu_reference.sh
EXTRA_DIST   += tests/cli/gpu-run.sh
