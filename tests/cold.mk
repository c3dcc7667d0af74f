# Tests of the CPU's share of a split layer.
pi_unit_tests += tests/t_cold
tests_t_cold_SOURCES = tests/t_cold.c tests/tap.h
tests_t_cold_LDADD   = $(PI_RUNTIME_LIBS)
