/*
 * pi_run_options.h - pi-run's command line: what options mean, alone and together (their table: pi_run_rows.h).
 *
 * Strings are borrowed from argv. Options that cannot take effect together are refused here, before any file is opened.
 */
#ifndef PI_RUN_OPTIONS_H
#define PI_RUN_OPTIONS_H

#include "common/pi_affinity.h"
#include "common/pi_err.h"
#include "common/pi_opt.h"
#include "runtime/pi_device.h"
#include "runtime/pi_sampler.h"

#include <stdbool.h>
#include <stdint.h>

#define PI_RUN_BUDGETS 32

struct pi_run_options {
    /* what to run */
    /* artifacts: NULL: beside the model, if there */
    const char *model, *profile, *predictor, *placement;
    bool demo; /* model is then demo_model */
    char demo_model[4096];
    const char *hidden_act; /* NULL: what the file says */
    bool no_check;          /* skip the CRCs of the model's weights */
    /* how */
    int mode; /* enum pi_mode; meaningful when mode_given */
    const char *device_text;
    struct pi_device device; /* parsed from device_text */
    uint64_t vram_budget;
    int kv, act; /* indices into "f16|f32" and "f32|q8" */
    uint32_t n_ctx, n_threads;
    int numa; /* enum pi_numa */
    bool no_pin, mlock, no_mmap;
    bool mode_given, vram_given, ctx_given, act_given;
    /* prompt: one of text, file, tokens; else standard input */
    const char *text, *file, *tokens;
    bool bos, special;
    /* generation */
    uint32_t n_predict;
    bool n_given, seed_given, ignore_eos;
    struct pi_sampler_options sampler;
    /* other things to do */
    bool tokenize;
    const char *logits, *perplexity, *field, *masks;
    bool stepwise, verify, window_given;
    uint32_t window;
    bool bench, bench_random, bench_given; /* bench_given: some option that goes with it */
    uint32_t bench_prompt, bench_tokens;
    uint32_t n_parallel;  /* sequences; 1 but for a bench or a server */
    uint32_t step_width;  /* most of them in a decode step; 0: measured */
    bool one_by_one;      /* on a GPU: a step for each of them */
    const char *hardware; /* with bench; NULL: hardware.yaml, if there */
    const char *budgets_text;
    uint64_t budgets[PI_RUN_BUDGETS]; /* (n_budgets) bytes; a table of them, when there are any */
    uint32_t n_budgets;
    bool json;
    /* a conversation */
    bool chat;
    const char *system;
    /* a server; chat_template goes with both */
    bool serve, serve_given; /* serve_given: some option that goes with it */
    const char *host, *api_key, *chat_template;
    uint32_t port;
    uint64_t max_request;
    float time_limit; /* seconds; 0: none */
    bool parallel_given;
};

/* Who notices go to. */
struct pi_run_log {
    struct pi_common_opts common;
};

/* name, synopsis, about: for notices and the end of main */
extern const struct pi_program pi_run_program;

/* Defaults, then argv. When --help or --version was given it has been printed and log_out->common says so. Draws a seed when none is given.
 * PI_E_USAGE, PI_E_RANGE. */
enum pi_code pi_run_options_parse(int argc, char **argv, struct pi_run_options *out,
                                  struct pi_run_log *log_out, struct pi_err *err) PI_MUST_CHECK;

#define pi_run_notice(log, ...) pi_notice(&pi_run_program, &(log)->common, __VA_ARGS__)

#endif
