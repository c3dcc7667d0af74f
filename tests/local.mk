# Unit tests (TAP programs), CLI tests (shell scripts that print TAP), fuzz targets.
EXTRA_DIST += $(pi_cli_tests) $(pi_long_tests) tests/env.sh.in tests/gpu_check.sh tests/lsan.supp
TEST_EXTENSIONS = .sh
pi_tap = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER    = $(pi_tap)
SH_LOG_DRIVER = $(pi_tap)
LOG_COMPILER = $(PI_TEST_WRAPPER)
SH_LOG_COMPILER = $(SHELL)
AM_TESTS_ENVIRONMENT = . ./tests/env.sh;

pi_unit_tests =
pi_cli_tests  =
# Scripts that come first, so that all cores end together.
pi_long_tests =

# One line per test program: name, sources, libraries. Keep them in the order of the folders.
pi_unit_tests += tests/t_err
tests_t_err_SOURCES = tests/t_err.c tests/tap.h
tests_t_err_LDADD   = libpi_common.a

pi_unit_tests += tests/t_gpu
tests_t_gpu_SOURCES = tests/t_gpu.c tests/tap.h
tests_t_gpu_LDADD   = $(PI_RUNTIME_LIBS)

pi_cli_tests += tests/cli/man.sh
tests/cli/man.log: $(nodist_man_MANS) $(bin_PROGRAMS)

# Fragments of the modules.
include $(srcdir)/tests/common.mk
include $(srcdir)/tests/tokenizer.mk
include $(srcdir)/tests/cpu.mk
include $(srcdir)/tests/cpu_emu.mk
include $(srcdir)/tests/neon.mk
include $(srcdir)/tests/cold.mk
include $(srcdir)/tests/engine.mk
include $(srcdir)/tests/profiler.mk
include $(srcdir)/tests/solver.mk
include $(srcdir)/tests/convert.mk
include $(srcdir)/tests/run.mk
include $(srcdir)/tests/ship.mk
include $(srcdir)/tests/bench.mk
include $(srcdir)/tests/emu.mk
include $(srcdir)/tests/kernels_ffn.mk
include $(srcdir)/tests/kernels_mat.mk
include $(srcdir)/tests/dev.mk
include $(srcdir)/tests/gpu_prompt.mk

check_PROGRAMS += $(pi_unit_tests)
TESTS += $(pi_long_tests) $(pi_unit_tests) $(pi_cli_tests)
