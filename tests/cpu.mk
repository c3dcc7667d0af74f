# Tests of cpu: kernels, thread pool, BLAS tiles.
pi_unit_tests += tests/t_pool
tests_t_pool_SOURCES = tests/t_pool.c tests/tap.h
tests_t_pool_LDADD   = libpi_common.a
pi_unit_tests += tests/t_bandwidth
tests_t_bandwidth_SOURCES = tests/t_bandwidth.c tests/tap.h
tests_t_bandwidth_LDADD   = libpi_common.a
pi_unit_tests += tests/t_affinity
tests_t_affinity_SOURCES = tests/t_affinity.c tests/scratch.h tests/tap.h
tests_t_affinity_LDADD   = libpi_common.a

pi_unit_tests += tests/t_blas
tests_t_blas_SOURCES = tests/t_blas.c tests/tap.h
tests_t_blas_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_cpu
tests_t_cpu_SOURCES = tests/t_cpu.c tests/cpu_draw.h tests/tap.h
tests_t_cpu_LDADD   = $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_cpu_rows
tests_t_cpu_rows_SOURCES = tests/t_cpu_rows.c tests/cpu_draw.h tests/tap.h
tests_t_cpu_rows_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_cpu_q8
tests_t_cpu_q8_SOURCES = tests/t_cpu_q8.c tests/tap.h
tests_t_cpu_q8_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_quant
tests_t_quant_SOURCES = tests/t_quant.c tests/tap.h
tests_t_quant_LDADD   = $(PI_RUNTIME_LIBS)
EXTRA_DIST += tests/data/make_quants.py tests/data/quants.gguf
