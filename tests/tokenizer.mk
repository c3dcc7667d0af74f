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
