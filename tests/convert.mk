# Tests of convert: pi_unit_tests += tests/t_x; tests_t_x_SOURCES = ...; pi_cli_tests += tests/cli/x.sh; EXTRA_DIST += data
pi_unit_tests += tests/t_hf_forward
tests_t_hf_forward_SOURCES = tests/t_hf_forward.c tests/tap.h
tests_t_hf_forward_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
