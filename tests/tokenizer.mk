# Tests of the tokenizer and of data sets.
pi_unit_tests += tests/t_tokenizer
tests_t_tokenizer_SOURCES = tests/t_tokenizer.c tests/tok_vocab.h tests/tap.h
tests_t_tokenizer_LDADD   = $(PI_COMMON_LIBS)

pi_unit_tests += tests/t_tok_long
tests_t_tok_long_SOURCES = tests/t_tok_long.c tests/tok_vocab.h tests/tap.h
tests_t_tok_long_LDADD   = $(PI_COMMON_LIBS)

pi_unit_tests += tests/t_dataset
tests_t_dataset_SOURCES = tests/t_dataset.c tests/tok_vocab.h tests/tap.h
tests_t_dataset_LDADD   = $(PI_COMMON_LIBS)

# Fuzz target; see tests/fuzz/fuzz.h.
pi_unit_tests += tests/t_fuzz_text
tests_t_fuzz_text_SOURCES = tests/fuzz/fuzz_text.c tests/fuzz/replay.c tests/fuzz/fuzz.h tests/tok_vocab.h tests/scratch.h \
                            tests/tap.h
tests_t_fuzz_text_LDADD   = $(PI_COMMON_LIBS)

if ENABLE_FUZZERS
noinst_PROGRAMS += tests/fuzz/fuzz_text
tests_fuzz_fuzz_text_SOURCES = tests/fuzz/fuzz_text.c tests/fuzz/fuzz.h tests/tok_vocab.h
tests_fuzz_fuzz_text_LDADD   = $(PI_COMMON_LIBS)
tests_fuzz_fuzz_text_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer,address,undefined
endif
