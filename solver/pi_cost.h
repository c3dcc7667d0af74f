/*
 * pi_cost.h - what a token costs: seconds per layer as a function of what lives where.
 *
 * A unit's time is the bytes it reads over its read bandwidth; that is what decoding is bound by. Bytes of n neurons of which a fire
 * (gate, up, down: rows of a neuron; without a gate the up row takes its part and there are two):
 *   dense      n (gate + up + down)
 *   exact      n gate + a (up + down)
 *   predicted  predictor + p gate + r a (up + down), p = r a + e (n - a) predicted ones, r the recall, e the share of
 *              silent neurons that is predicted all the same (from the predictor's density)
 * A layer: attention on its unit, then max(T_gpu, z T_sync + T_cpu); z = 1 when the GPU has a part in the layer and some neurons
 * are cold. Attention on the CPU with hot neurons on the GPU costs one T_sync more. The KV cache counts as half full.
 *
 * How many fire is drawn from the profile's sampled tokens, because the mean of a maximum exceeds the maximum of means: half of the
 * samples are for planning, the other half for scoring what was planned. Without samples both use the mean rates.
 */
#ifndef PI_COST_H
#define PI_COST_H

#include "common/pi_err.h"
#include "common/pi_estimate.h"
#include "common/pi_hardware.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "common/pi_shape.h"
#include "solver/pi_ilp.h"

#include <stdbool.h>
#include <stdint.h>

enum pi_draw_set {
    PI_DRAWS_PLAN,
    PI_DRAWS_SCORE,
    PI_DRAWS_COUNT
};

/* Tokens drawn from the profile: how many of the hottest neurons fire in each. */
struct pi_draws {
    uint32_t n;
    float *fired; /* (n, n_cuts): active among the first cut(i) neurons of the order; owned */
    float *mean;  /* (n_cuts): over the draws; owned */
};

struct pi_cost_layer {
    uint32_t *order; /* (n_ff) hottest first; owned */
    double *prefix;  /* (n_ff + 1): activations of the hottest i neurons, as counts; owned */
    struct pi_draws draws[PI_DRAWS_COUNT];
    bool predictor;
    double recall, excess; /* r and e above */
};

struct pi_cost {
    const struct pi_model_bytes *bytes;        /* borrowed */
    uint32_t n_layer, n_ff, n_cuts;            /* cuts: 0, 64, 128, ..., n_ff */
    bool zeros;                                /* the activation has zeros: exact mode exists */
    bool sampled;                              /* draws are sampled tokens, not mean rates */
    double cpu_bandwidth, gpu_bandwidth, sync; /* gpu_bandwidth 0: no GPU */
    struct pi_cost_layer *layers;              /* (n_layer); owned */
};

/* prof and pred may be NULL: natural order and every neuron firing; no predictor. gpu may be NULL. Free with pi_cost_free(). */
enum pi_code pi_cost_create(const struct pi_model_bytes *bytes, const struct pi_shape *shape,
                            const struct pi_profile *prof, const struct pi_predictor *pred,
                            const struct pi_hw_cpu *cpu, const struct pi_hw_gpu *gpu,
                            struct pi_cost *out, struct pi_err *err) PI_MUST_CHECK;
void pi_cost_free(struct pi_cost *c); /* accepts a zeroed one */

/* Neurons up to cut i. */
static inline uint32_t pi_cost_cut(const struct pi_cost *c, uint32_t i)
{
    return (uint64_t)i * PI_ILP_GROUP < c->n_ff ? i * PI_ILP_GROUP : c->n_ff;
}

bool pi_cost_has_mode(const struct pi_cost *c, uint32_t layer, enum pi_mode mode);

/* Mean seconds of one unit for its neurons of a layer, alone. */
double pi_cost_unit(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer, uint32_t unit,
                    enum pi_mode mode, uint32_t n_hot);

/* The mode that is fastest for a unit's neurons of a layer. */
enum pi_mode pi_cost_best_mode(const struct pi_cost *c, uint32_t layer, uint32_t unit,
                               uint32_t n_hot);

/* Mean seconds of a layer: attention, feed-forward, hand-overs. gpu: whether attention is on a GPU; its own part apart. */
double pi_cost_attn(const struct pi_cost *c, uint32_t layer, bool gpu);
double pi_cost_ffn(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer,
                   const struct pi_place_layer *p);

/* Mean seconds of a token under a placement. */
double pi_cost_token(const struct pi_cost *c, enum pi_draw_set set, const struct pi_placement *p);

#endif
