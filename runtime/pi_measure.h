/*
 * pi_measure.h - pi-run --perplexity and --logits.
 */
#ifndef PI_MEASURE_H
#define PI_MEASURE_H

#include "runtime/pi_load.h"
#include "runtime/pi_prompt.h"

/* Scores o->perplexity in windows and prints perplexity, nll_per_token, tokens and mode (dense without --stepwise, since batches run dense);
 * with --verify the figures of the comparison too. */
enum pi_code pi_measure_perplexity(const struct pi_run_options *o, const struct pi_run_log *log,
                                   struct pi_loaded *l, struct pi_err *err) PI_MUST_CHECK;

/* Writes the prompt's logits to o->logits; with --json prints tokens, vocabulary and mode. */
enum pi_code pi_measure_logits(const struct pi_run_options *o, const struct pi_run_log *log,
                               struct pi_loaded *l, const struct pi_prompt *p,
                               struct pi_err *err) PI_MUST_CHECK;

#endif
