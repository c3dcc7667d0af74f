/*
 * pi_cost.h - what a token costs: seconds per layer as a function of what lives where.
 *
 * Decoding is bound by reading weights: a unit's time is the bytes it reads over the share of its bandwidth that kernels reach, or over the rate at which its
 * cores unpack the type where that is less, plus what each of its kernels or barriers costs beside (pi_cost.c has the constants and where they were measured). The
 * CPU reads rows in their order faster than scattered ones, and those the slower the shorter they are. Rows that n neurons read of which a fire
 * (first: gate, or up where there is none; rest: the other two or one):
 *   dense      n first + n rest
 *   exact      n first + a rest
 *   predicted  p first + r a rest, p = r a + e (n - a) predicted ones, r the recall, e the share of silent neurons that is
 *              predicted all the same (from the predictor's density); the predictor itself is read by the unit that runs it
 * A layer with attention on the GPU: attention, then the predictor of the CPU's neurons (if those are predicted), then
 * max(T_gpu, T_sync + T_cpu), the second one where neurons are cold. A layer with attention on the CPU: attention, then max(T_sync + T_gpu, T_cpu), each
 * with its own predictor; T_cpu alone where nothing is hot. The KV cache counts as half full.
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

/* Seconds that a unit takes to read ... */
struct pi_cost_rows {
    double first, rest;             /* ... the rows of one neuron, where all are read in order */
    double first_apart, rest_apart; /* ... where only some are: on the CPU it is slower then */
    double fc1, fc2;                /* ... the predictor's first matrix; its second, one neuron */
    double attn;                    /* ... attention's weights and half of its KV cache */
};

struct pi_cost_layer {
    uint32_t *order; /* (n_ff) hottest first; owned */
    double *prefix;  /* (n_ff + 1): activations of the hottest i neurons, as counts; owned */
    struct pi_draws draws[PI_DRAWS_COUNT];
    bool predictor;
    double recall, excess; /* r and e above */
    struct pi_cost_rows cpu, gpu;
};

struct pi_cost {
    const struct pi_model_bytes *bytes; /* borrowed */
    uint32_t n_layer, n_ff, n_cuts;     /* cuts: 0, 64, 128, ..., n_ff */
    enum pi_mode plain;  /* without predictor: exact where the activation has zeros, else dense */
    bool sampled;        /* draws are sampled tokens, not mean rates */
    bool gpu;            /* there is one */
    double sync, kernel; /* seconds: see struct pi_hw_gpu */
    double head_cpu, head_gpu;    /* seconds of the output head */
    struct pi_cost_layer *layers; /* (n_layer); owned */
};

/* prof and pred may be NULL: natural order and every neuron firing; no predictor. gpu may be NULL. mode: of the run; PREDICTED where it
 * pays, EXACT without predictors, DENSE. Free with pi_cost_free(). */
enum pi_code pi_cost_create(const struct pi_model_bytes *bytes, const struct pi_shape *shape,
                            const struct pi_profile *prof, const struct pi_predictor *pred,
                            enum pi_mode mode, const struct pi_hw_cpu *cpu,
                            const struct pi_hw_gpu *gpu, struct pi_cost *out,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_cost_free(struct pi_cost *c); /* accepts a zeroed one */

/* Neurons up to cut i. */
static inline uint32_t pi_cost_cut(const struct pi_cost *c, uint32_t i)
{
    return (uint64_t)i * PI_ILP_GROUP < c->n_ff ? i * PI_ILP_GROUP : c->n_ff;
}

bool pi_cost_has_mode(const struct pi_cost *c, uint32_t layer, enum pi_mode mode);

/* Mean seconds of one unit for its neurons of a layer under p, alone; what it runs of the predictor included. */
double pi_cost_unit(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer, uint32_t unit,
                    const struct pi_place_layer *p);

/* Seconds of the GPU's prediction for the CPU's neurons too, before both units begin; part of the GPU's pi_cost_unit(). */
double pi_cost_lead(const struct pi_cost *c, uint32_t layer, const struct pi_place_layer *p);

/* Mean seconds of a layer: its attention; the rest, hand-overs included. */
double pi_cost_attn(const struct pi_cost *c, uint32_t layer, bool gpu);
double pi_cost_ffn(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer,
                   const struct pi_place_layer *p);

/* Sets the modes of p's units to those that are fastest together. */
void pi_cost_best_modes(const struct pi_cost *c, uint32_t layer, struct pi_place_layer *p);

/* Mean seconds of a token under a placement. */
double pi_cost_token(const struct pi_cost *c, enum pi_draw_set set, const struct pi_placement *p);

#endif
