# Tests of profiler: counting and sampling, training, the command lines of pi-profile and pi-train-predictor.
pi_unit_tests += tests/t_collect
tests_t_collect_SOURCES = tests/t_collect.c tests/tiny_model.c tests/tiny_forward.c tests/tiny_model.h tests/tap.h
tests_t_collect_LDADD   = libpi_profiler.a $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_train tests/t_train_gpu
tests_t_train_SOURCES = tests/t_train.c tests/train_rig.h tests/tap.h
tests_t_train_LDADD   = libpi_profiler.a $(PI_RUNTIME_LIBS)
tests_t_train_gpu_SOURCES = tests/t_train_gpu.c tests/train_rig.h tests/tap.h
tests_t_train_gpu_LDADD   = libpi_profiler.a $(PI_RUNTIME_LIBS)

pi_long_tests += tests/cli/profile.sh
