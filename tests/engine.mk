# Tests of engine: pi_unit_tests += tests/t_x; tests_t_x_SOURCES = ...; pi_cli_tests += tests/cli/x.sh; EXTRA_DIST += data
