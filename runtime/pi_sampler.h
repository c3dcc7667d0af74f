/*
 * pi_sampler.h - one sampler for every front end: repeat penalty, temperature, top-k, top-p, min-p.
 *
 * The random number of a draw is a function of (seed, position) alone (counter-based), so that the same plan and seed give the same text whatever
 * ran before. Order, as users of llama.cpp expect: repeat penalty, top-k, top-p, min-p, temperature, draw.
 */
#ifndef PI_SAMPLER_H
#define PI_SAMPLER_H

#include "common/pi_err.h"

#include <stddef.h>
#include <stdint.h>

struct pi_sampler_options {
    float temp;           /* 0: greedy (lowest id wins ties) */
    uint32_t top_k;       /* 0: all */
    float top_p;          /* 1: all */
    float min_p;          /* 0: all */
    float repeat_penalty; /* 1: none; applies to the last repeat_last_n tokens */
    uint32_t repeat_last_n;
    uint64_t seed;
};

struct pi_sampler; /* owns scratch for one vocabulary */

enum pi_code pi_sampler_create(uint32_t n_vocab, const struct pi_sampler_options *opt,
                               struct pi_sampler **out, struct pi_err *err) PI_MUST_CHECK;
void pi_sampler_destroy(struct pi_sampler *s);

/* Picks a token for position pos from logits (n_vocab), which stay as they are. history (n_history): tokens so far, newest last.
 * PI_E_SELFCHECK when no logit is finite. */
enum pi_code pi_sampler_pick(struct pi_sampler *s, const float *logits, uint64_t pos,
                             const int32_t *history, size_t n_history, int32_t *token_out,
                             struct pi_err *err) PI_MUST_CHECK;

/* The counter-based generator itself: a uniform number in [0, 1) for (seed, counter) (SplitMix64 finaliser, Steele et al. 2014). */
double pi_random_unit(uint64_t seed, uint64_t counter);

#endif
