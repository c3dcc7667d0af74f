/*
 * pi_damage.h - what the neurons that a predictor misses take away from the model.
 *
 * For a token, missed neurons M leave out  e = sum_{i in M} prod_i down_i  of the feed-forward block's output. The measure is
 *   damage = mean over tokens of |e|^2 / |a|^2,   a = residual + the block's whole output,
 * the share of the residual stream's energy that is lost in this layer. On the demo models perplexity rises by about 0.2 % for each 0.001 of it,
 * summed over layers, whatever the layer; recall tells much less (at 95 % the first layer does ten times the harm of the second).
 */
#ifndef PI_DAMAGE_H
#define PI_DAMAGE_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_shape.h"
#include "profiler/pi_net.h"
#include "profiler/pi_trainset.h"
#include "runtime/cpu/pi_cpu.h"

#include <stdint.h>

/* A feed-forward block in F32, rows of neurons. Borrowed. */
struct pi_block {
    const struct pi_shape *shape; /* activation, gated or not */
    const float *gate;      /* (n_ff, d) what the activation is applied to: fc1 where not gated */
    const float *gate_bias; /* (n_ff) or NULL */
    const float *up;        /* (n_ff, d), NULL where not gated */
    const float *up_bias;   /* (n_ff) or NULL */
    const float *down_t;    /* (n_ff, d) */
    const float *down_bias; /* (d) or NULL */
};

/* What the down projection is given of neuron i for the input x (d). */
float pi_block_neuron(const struct pi_block *b, const struct pi_cpu *cpu, uint32_t i,
                      const float *x, uint32_t d);

/* What the true neurons give on some tokens of the calibration part: made once for a layer, used for every predictor. */
struct pi_damage {
    uint32_t n; /* tokens, at most PI_DAMAGE_TOKENS, evenly spread */
    uint32_t d;
    uint32_t *sample;    /* (n) index of the sample */
    size_t *begin;       /* (n + 1) into id and prod */
    uint32_t *id;        /* active neurons, ascending */
    float *prod;         /* what the down projection is given */
    double *energy;      /* (n) |a|^2 */
    const float *down_t; /* borrowed from the block */
};

#define PI_DAMAGE_TOKENS 2048

/* s must have residuals. PI_E_NOMEM. */
enum pi_code pi_damage_make(const struct pi_trainset *s, const struct pi_block *b,
                            struct pi_pool *pool, struct pi_damage *out,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_damage_free(struct pi_damage *m); /* accepts a zeroed one */

/* The damage at n thresholds, falling, n <= PI_CURVE_POINTS; out (n). */
enum pi_code pi_damage_measure(const struct pi_damage *m, const struct pi_net *net,
                               const struct pi_trainset *s, struct pi_pool *pool,
                               const float *threshold, uint32_t n, double *out,
                               struct pi_err *err) PI_MUST_CHECK;

#endif
