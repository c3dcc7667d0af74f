# Tests of common/: files, GGUF, artifacts, shapes.
pi_unit_tests += tests/t_file tests/t_gguf tests/t_gguf_bad tests/t_gguf_pieces tests/t_shape tests/t_lineage \
                 tests/t_artifact tests/t_artifact_damage
tests_t_file_SOURCES     = tests/t_file.c tests/scratch.h tests/tap.h
tests_t_file_LDADD       = $(PI_COMMON_LIBS)
tests_t_gguf_SOURCES     = tests/t_gguf.c tests/scratch.h tests/tap.h
tests_t_gguf_LDADD       = $(PI_COMMON_LIBS)
tests_t_gguf_bad_SOURCES = tests/t_gguf_bad.c tests/gguf_bytes.h tests/tap.h
tests_t_gguf_bad_LDADD   = $(PI_COMMON_LIBS)
tests_t_gguf_pieces_SOURCES = tests/t_gguf_pieces.c tests/scratch.h tests/tap.h
tests_t_gguf_pieces_LDADD   = $(PI_COMMON_LIBS)
tests_t_shape_SOURCES    = tests/t_shape.c tests/gguf_bytes.h tests/scratch.h tests/tap.h
tests_t_shape_LDADD      = $(PI_COMMON_LIBS)
tests_t_lineage_SOURCES  = tests/t_lineage.c tests/gguf_bytes.h tests/scratch.h tests/tap.h
tests_t_lineage_LDADD    = $(PI_COMMON_LIBS)
tests_t_artifact_SOURCES = tests/t_artifact.c tests/artifact_rig.h tests/scratch.h tests/tap.h
tests_t_artifact_LDADD   = $(PI_COMMON_LIBS)
tests_t_artifact_damage_SOURCES = tests/t_artifact_damage.c tests/artifact_rig.h tests/scratch.h tests/tap.h
tests_t_artifact_damage_LDADD   = $(PI_COMMON_LIBS)

pi_unit_tests += tests/t_opt
tests_t_opt_SOURCES = tests/t_opt.c tests/tap.h
tests_t_opt_LDADD   = $(PI_COMMON_LIBS)

pi_unit_tests += tests/t_gguf_split
tests_t_gguf_split_SOURCES = tests/t_gguf_split.c tests/scratch.h tests/tap.h
tests_t_gguf_split_LDADD   = $(PI_COMMON_LIBS)

# Fuzz targets; see tests/fuzz/fuzz.h. make check replays their seeds and mutants without a fuzzer.
pi_unit_tests += tests/t_fuzz_gguf tests/t_fuzz_artifact
tests_t_fuzz_gguf_SOURCES     = tests/fuzz/fuzz_gguf.c tests/fuzz/replay.c tests/fuzz/fuzz.h tests/gguf_bytes.h \
                                tests/scratch.h tests/tap.h
tests_t_fuzz_gguf_LDADD       = $(PI_COMMON_LIBS)
tests_t_fuzz_artifact_SOURCES = tests/fuzz/fuzz_artifact.c tests/fuzz/replay.c tests/fuzz/fuzz.h tests/scratch.h \
                                tests/tap.h
tests_t_fuzz_artifact_LDADD   = $(PI_COMMON_LIBS)

if ENABLE_FUZZERS
noinst_PROGRAMS += tests/fuzz/fuzz_gguf tests/fuzz/fuzz_artifact
tests_fuzz_fuzz_gguf_SOURCES     = tests/fuzz/fuzz_gguf.c tests/fuzz/fuzz.h tests/gguf_bytes.h
tests_fuzz_fuzz_gguf_LDADD       = $(PI_COMMON_LIBS)
tests_fuzz_fuzz_gguf_LDFLAGS     = $(AM_LDFLAGS) -fsanitize=fuzzer,address,undefined
tests_fuzz_fuzz_artifact_SOURCES = tests/fuzz/fuzz_artifact.c tests/fuzz/fuzz.h
tests_fuzz_fuzz_artifact_LDADD   = $(PI_COMMON_LIBS)
tests_fuzz_fuzz_artifact_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer,address,undefined
endif
