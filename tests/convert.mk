# Tests of convert: pi_unit_tests += tests/t_x; tests_t_x_SOURCES = ...; pi_cli_tests += tests/cli/x.sh; EXTRA_DIST += data
pi_unit_tests += tests/t_hf_forward
tests_t_hf_forward_SOURCES = tests/t_hf_forward.c tests/tap.h
tests_t_hf_forward_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_safetensors
tests_t_safetensors_SOURCES = tests/t_safetensors.c tests/scratch.h tests/tap.h
tests_t_safetensors_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_torch
tests_t_torch_SOURCES = tests/t_torch.c tests/scratch.h tests/tap.h tests/torch_bytes.h
tests_t_torch_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_import
tests_t_import_SOURCES = tests/t_import.c tests/scratch.h tests/tap.h tests/torch_bytes.h
tests_t_import_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_hf_config
tests_t_hf_config_SOURCES = tests/t_hf_config.c tests/tap.h
tests_t_hf_config_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_hf_vocab
tests_t_hf_vocab_SOURCES = tests/t_hf_vocab.c tests/hf_copy.h tests/scratch.h tests/tap.h
tests_t_hf_vocab_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_selfcheck
tests_t_selfcheck_SOURCES = tests/t_selfcheck.c tests/hf_copy.h tests/scratch.h tests/tap.h
tests_t_selfcheck_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_recipe
tests_t_recipe_SOURCES = tests/t_recipe.c tests/tap.h
tests_t_recipe_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_convert
tests_t_convert_SOURCES = tests/t_convert.c tests/hf_copy.h tests/scratch.h tests/tap.h
tests_t_convert_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
pi_unit_tests += tests/t_powerinfer
tests_t_powerinfer_SOURCES = tests/t_powerinfer.c tests/powerinfer_twin.c tests/powerinfer_twin.h tests/scratch.h tests/tap.h tests/tok_vocab.h tests/torch_bytes.h
tests_t_powerinfer_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)

check_PROGRAMS += tests/edit_gguf
tests_edit_gguf_SOURCES = tests/edit_gguf.c
tests_edit_gguf_LDADD   = $(PI_RUNTIME_LIBS)

pi_cli_tests += tests/cli/convert.sh tests/cli/convert-bad.sh tests/cli/convert-dense.sh tests/cli/convert-hostile.sh
EXTRA_DIST += tests/cli/convert_lib.sh

# Fuzz targets; see tests/fuzz/fuzz.h.
pi_unit_tests += tests/t_fuzz_safetensors tests/t_fuzz_hf tests/t_fuzz_torch
tests_t_fuzz_torch_SOURCES = tests/fuzz/fuzz_torch.c tests/fuzz/replay.c tests/fuzz/fuzz.h tests/scratch.h tests/tap.h tests/torch_bytes.h
tests_t_fuzz_torch_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
tests_t_fuzz_safetensors_SOURCES = tests/fuzz/fuzz_safetensors.c tests/fuzz/replay.c tests/fuzz/fuzz.h tests/scratch.h tests/tap.h
tests_t_fuzz_safetensors_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
tests_t_fuzz_hf_SOURCES          = tests/fuzz/fuzz_hf.c tests/fuzz/replay.c tests/fuzz/fuzz.h tests/scratch.h tests/tap.h
tests_t_fuzz_hf_LDADD            = libpi_convert.a $(PI_RUNTIME_LIBS)

if ENABLE_FUZZERS
noinst_PROGRAMS += tests/fuzz/fuzz_safetensors tests/fuzz/fuzz_hf tests/fuzz/fuzz_torch
tests_fuzz_fuzz_torch_SOURCES = tests/fuzz/fuzz_torch.c tests/fuzz/fuzz.h tests/torch_bytes.h
tests_fuzz_fuzz_torch_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
tests_fuzz_fuzz_torch_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer,address,undefined
tests_fuzz_fuzz_safetensors_SOURCES = tests/fuzz/fuzz_safetensors.c tests/fuzz/fuzz.h
tests_fuzz_fuzz_safetensors_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
tests_fuzz_fuzz_safetensors_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer,address,undefined
tests_fuzz_fuzz_hf_SOURCES          = tests/fuzz/fuzz_hf.c tests/fuzz/fuzz.h
tests_fuzz_fuzz_hf_LDADD            = libpi_convert.a $(PI_RUNTIME_LIBS)
tests_fuzz_fuzz_hf_LDFLAGS          = $(AM_LDFLAGS) -fsanitize=fuzzer,address,undefined
endif
