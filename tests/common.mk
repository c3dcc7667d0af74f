# Tests of common/: files, GGUF, artifacts, shapes.
pi_unit_tests += tests/t_file tests/t_gguf tests/t_shape tests/t_artifact
tests_t_file_SOURCES     = tests/t_file.c tests/scratch.h tests/tap.h
tests_t_file_LDADD       = $(PI_COMMON_LIBS)
tests_t_gguf_SOURCES     = tests/t_gguf.c tests/gguf_bytes.h tests/scratch.h tests/tap.h
tests_t_gguf_LDADD       = $(PI_COMMON_LIBS)
tests_t_shape_SOURCES    = tests/t_shape.c tests/gguf_bytes.h tests/scratch.h tests/tap.h
tests_t_shape_LDADD      = $(PI_COMMON_LIBS)
tests_t_artifact_SOURCES = tests/t_artifact.c tests/scratch.h tests/tap.h
tests_t_artifact_LDADD   = $(PI_COMMON_LIBS)
