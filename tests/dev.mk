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
