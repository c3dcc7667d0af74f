# Tests of bench: the generator of synthetic models, pi-run --bench, the floor.
pi_unit_tests += tests/t_floor
tests_t_floor_SOURCES = tests/t_floor.c tests/tap.h
tests_t_floor_LDADD   = $(PI_RUNTIME_LIBS)

pi_cli_tests += tests/cli/synth.sh tests/cli/bench.sh
