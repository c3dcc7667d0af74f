/*
 * pi_bench.h - pi-run --bench: how fast prompts are read and tokens decoded, where a step's time goes, and how far that is from what memory allows.
 *
 * Each of --parallel sequences gets a prompt of random tokens, then all are decoded together, a token of each a step. Before that a short prompt and a few
 * steps warm everything up, and how many sequences go through the engine at a time is tried and chosen (pi_width.h); it stays from then on. Steps are timed from the tokens to
 * the logits; drawing the next tokens lies between them and is told apart.
 */
#ifndef PI_BENCH_H
#define PI_BENCH_H

#include "runtime/pi_load.h"

#define PI_BENCH_WARM_STEPS 4u

/* Figures of a run. */
struct pi_bench_figures {
    double load_seconds; /* from the program's start to an engine */
    uint64_t n_prompt;   /* tokens of all prompts */
    double prompt_seconds;
    uint32_t n_steps;
    double *step_seconds;  /* (n_steps), ascending; owned by the run */
    uint32_t at_once;      /* most sequences that went through the engine together, in each step */
    double decode_seconds; /* their sum */
    double sampling_seconds;
    struct pi_engine_timing timing; /* of those steps */
    struct pi_engine_timing prompts;
    struct pi_engine_stats stats;
};

/* Positions that every sequence needs. */
uint64_t pi_bench_positions(const struct pi_run_options *o);

/* PI_E_RANGE when they are more than the context: before the engine is made. */
enum pi_code pi_bench_check(const struct pi_run_options *o, const struct pi_loaded *l,
                            struct pi_err *err) PI_MUST_CHECK;

/* Measures and reports. began: pi_now() at the start of the load. */
enum pi_code pi_bench(const struct pi_run_options *o, const struct pi_run_log *log,
                      struct pi_loaded *l, double began, struct pi_err *err) PI_MUST_CHECK;

/* pi_bench_report.c: finds bandwidths and the floor, and prints. */
enum pi_code pi_bench_report(const struct pi_run_options *o, const struct pi_run_log *log,
                             struct pi_loaded *l, const struct pi_bench_figures *f,
                             struct pi_err *err) PI_MUST_CHECK;

#endif
