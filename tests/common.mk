# Tests of common/: files, GGUF, artifacts, shapes.
pi_unit_tests += tests/t_artifact
tests_t_artifact_SOURCES = tests/t_artifact.c tests/scratch.h tests/tap.h
tests_t_artifact_LDADD   = $(PI_COMMON_LIBS)
