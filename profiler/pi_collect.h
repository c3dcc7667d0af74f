/*
 * pi_collect.h - runs a model densely over windows of tokens and counts which feed-forward neurons fire.
 *
 * The collector hangs on the engine's observer: per layer it adds up how often each neuron's activation was not zero and what it
 * contributed, and for a set of positions that is drawn before the first token is fed (one set for all layers, each position
 * equally likely) it keeps the residual before the feed-forward norm (of parallel blocks the layer's input, too) and the active set. Where up is activated
 * as well a neuron is active when both are. So memory is known from the start:
 * pi_collect_sample_bytes() for each position. Sums are in token order: the result does not depend on threads.
 */
#ifndef PI_COLLECT_H
#define PI_COLLECT_H

#include "common/pi_dataset.h"
#include "common/pi_err.h"
#include "common/pi_placement.h"
#include "common/pi_pool.h"
#include "common/pi_profile.h"
#include "runtime/pi_model.h"

#include <stdbool.h>
#include <stdint.h>

/* A profile in the making. */
struct pi_collected {
    struct pi_profile p; /* count, contribution, position are owned; file stays closed */
    uint16_t *residual;  /* (n_layer, n_samples, n_embd) BF16; owned */
    uint16_t *
        input; /* the same of what feed-forward norms read, where blocks are parallel; else NULL; owned */
    uint8_t *
        mask; /* (n_layer, n_samples, ceil(n_ff / 8)), neuron i in bit i % 8 of byte i / 8; owned */
};

struct pi_collect_options {
    uint32_t window;    /* tokens fed at once, at most; the engine's context */
    uint64_t n_samples; /* positions kept; fewer when fewer tokens are fed */
    uint64_t seed;      /* of the choice of positions */
    bool progress;      /* drawn on standard error */
    int gpu;            /* with place */
    /* what of the model is computed on that GPU, at least for a context of window and chunks of pi_collect_batch(window); NULL: the CPU does all */
    const struct pi_placement *place;
};

/* Tokens of a chunk. */
uint32_t pi_collect_batch(uint32_t window);

/* Bytes that one sampled position takes over all layers. */
uint64_t pi_collect_sample_bytes(const struct pi_shape *s);

/* Feeds every window from position 0 with an empty cache, F32 KV. *out is set on success: free with pi_collected_free().
 * PI_E_UNSUPPORTED for an activation without zeros; PI_E_RANGE when there is no token; PI_E_SELFCHECK when the model computes
 * something that is not finite; PI_E_INTERRUPTED; PI_E_NOMEM. */
enum pi_code pi_collect(struct pi_model *m, const struct pi_windows *w, struct pi_pool *pool,
                        const struct pi_collect_options *o, struct pi_collected *out,
                        struct pi_err *err) PI_MUST_CHECK;
void pi_collected_free(struct pi_collected *c); /* accepts a zeroed one */

/* Zeroed arrays for a profile of these sizes; of inputs, too, with c->p.has_input. */
enum pi_code pi_collected_alloc(struct pi_collected *c, uint32_t n_layer, uint32_t n_ff,
                                uint32_t n_embd, uint64_t n_samples,
                                struct pi_err *err) PI_MUST_CHECK;

/* n of total positions, ascending, every set equally likely (selection sampling, Knuth vol. 2, 3.4.2 S). out (n); n <= total. */
void pi_collect_choose(uint64_t total, uint64_t n, uint64_t seed, int64_t *out);

#endif
