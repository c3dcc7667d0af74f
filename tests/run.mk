# Tests of run: sampler, measures, reference cases, the command line of pi-run.
pi_unit_tests += tests/t_sampler
tests_t_sampler_SOURCES = tests/t_sampler.c tests/tap.h
tests_t_sampler_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_text
tests_t_text_SOURCES = tests/t_text.c tests/tap.h
tests_t_text_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_origin
tests_t_origin_SOURCES = tests/t_origin.c tests/tap.h
tests_t_origin_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_calls
tests_t_calls_SOURCES = tests/t_calls.c tests/tap.h
tests_t_calls_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_clerk
tests_t_clerk_SOURCES = tests/t_clerk.c tests/tap.h
tests_t_clerk_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_watch
tests_t_watch_SOURCES = tests/t_watch.c tests/tap.h
tests_t_watch_LDADD   = $(PI_RUNTIME_LIBS)

pi_unit_tests += tests/t_chat
tests_t_chat_SOURCES = tests/t_chat.c tests/tok_vocab.h tests/tap.h
tests_t_chat_LDADD   = $(PI_RUNTIME_LIBS)

# Tools of the scripts below.
check_PROGRAMS += tests/compare_reference tests/make_artifact tests/http_call tests/browse
tests_http_call_SOURCES = tests/http_call.c
tests_browse_SOURCES = tests/browse.c
tests_browse_LDADD   = $(JANSSON_LIBS)
tests_compare_reference_SOURCES = tests/compare_reference.c tests/reference_case.h
tests_compare_reference_LDADD   = $(PI_RUNTIME_LIBS)
tests_make_artifact_SOURCES = tests/make_artifact.c
tests_make_artifact_LDADD   = $(PI_RUNTIME_LIBS)

pi_cli_tests += tests/cli/run-options.sh tests/cli/ranges.sh tests/cli/run-generate.sh tests/cli/run-files.sh tests/cli/run-measure.sh \
                tests/cli/reference.sh tests/cli/serve.sh tests/cli/serve-hostile.sh tests/cli/page.sh tests/cli/chat.sh tests/cli/examples.sh
EXTRA_DIST += tests/cli/run_lib.sh tests/cli/serve_lib.sh

# Models with random weights and the answers that another implementation gives.
EXTRA_DIST += \
	tests/data/reference/README.md \
	tests/data/reference/llama-relu/config.json \
	tests/data/reference/llama-relu/generation_config.json \
	tests/data/reference/llama-relu/logits.f32 \
	tests/data/reference/llama-relu/model.safetensors \
	tests/data/reference/llama-relu/reference.json \
	tests/data/reference/llama-relu/tokenizer.model \
	tests/data/reference/llama-relu/tokenizer_config.json \
	tests/data/reference/llama-silu-gqa-tied/config.json \
	tests/data/reference/llama-silu-gqa-tied/generation_config.json \
	tests/data/reference/llama-silu-gqa-tied/logits.f32 \
	tests/data/reference/llama-silu-gqa-tied/model.safetensors \
	tests/data/reference/llama-silu-gqa-tied/reference.json \
	tests/data/reference/llama-silu-gqa-tied/tokenizer.model \
	tests/data/reference/llama-silu-gqa-tied/tokenizer_config.json \
	tests/data/reference/opt-pre/config.json \
	tests/data/reference/opt-pre/generation_config.json \
	tests/data/reference/opt-pre/logits.f32 \
	tests/data/reference/opt-pre/model.safetensors \
	tests/data/reference/opt-pre/reference.json \
	tests/data/reference/opt-pre/tokenizer.json \
	tests/data/reference/opt-pre/tokenizer_config.json
