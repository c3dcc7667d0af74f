/*
 * pi_plan.h - from a model, a profile, a machine and a budget to a placement.
 *
 * If everything fits the budget, everything is placed on the GPU. Otherwise, in this order: the CUDA context, the buffers and the
 * tables, without which the GPU is of no use (PI_E_INFEASIBLE names the smallest budget that holds them); then
 *   paper    the output head, attention layer by layer with its KV cache and, where predicted mode pays, the layer's predictor, and with what
 *            is left the paper's program over the neurons (solver/pi_ilp.h);
 *   latency  the output head, each layer's attention and its neurons are all options of one program that minimises the expected
 *            seconds of a token (solver/pi_cost.h).
 * The embeddings are read by the host, one row a token. Neurons of a layer go hottest first, in groups of 64.
 */
#ifndef PI_PLAN_H
#define PI_PLAN_H

#include "common/pi_err.h"
#include "common/pi_estimate.h"
#include "common/pi_hardware.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "common/pi_shape.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum pi_objective {
    PI_OBJECTIVE_PAPER,
    PI_OBJECTIVE_LATENCY
};
const char *pi_objective_name(enum pi_objective o);

/* Everything borrowed. */
struct pi_plan_input {
    const struct pi_gguf *model;
    const struct pi_shape *shape;
    const struct pi_profile *profile;     /* or NULL */
    const struct pi_predictor *predictor; /* or NULL */
    const struct pi_hardware *hw;
    uint64_t budget; /* bytes; 0: CPU only */
    /* n_batch 0: 512, or the context if that is less, halved (never below 8) until its buffers take at
     * most a sixteenth of the budget and, with the GPU's context, fit it */
    struct pi_run_size run;
    enum pi_objective objective;
    /* of the run: PREDICTED: per layer and unit what is fastest, with the predictor's bytes where that is predicted mode; EXACT,
     * DENSE: no predictor; DENSE needs no profile, as all neurons weigh the same */
    enum pi_mode mode;
};

/* A placement and what is expected of it. */
struct pi_plan {
    struct pi_placement place; /* lineage and fingerprint are the caller's to fill */
    struct pi_model_bytes bytes;
    bool optimal;      /* proven, for its objective */
    bool all_fits;     /* everything on the GPU */
    bool above_memory; /* the budget is above the GPU's memory, which was used instead */
    /* tokens_per_second from sampled tokens that the plan did not see; else from mean rates */
    bool sampled;
    double seconds;            /* of solving */
    uint64_t vram_bytes;       /* context included; 0 when the GPU holds nothing */
    struct pi_gpu_budget vram; /* the same by purpose */
    uint64_t base_bytes,
        context_bytes;         /* what the GPU needs before it is of use; the context alone */
    uint64_t limit;            /* the smaller of budget and memory */
    double activations_on_gpu; /* share of activations that are of hot neurons, 0..1 */
    double placed, cpu,
        gpu; /* tokens per second; gpu 0: no GPU, or the model is larger than its memory */
    struct pi_plan_layer {
        double share;           /* of the layer's activations */
        double t_cpu, t_gpu;    /* seconds of the feed-forward block on each unit, alone */
        double t_attn, t_layer; /* seconds of attention; of all of the layer, hand-overs included */
        double t_lead,
            t_sync; /* of t_gpu, what comes before either unit's neurons; the hand-over of a layer that has one, else 0 */
    } * layers;     /* (n_layer); owned */
};

/* PI_E_NODEV: a budget, but no GPU in the description. PI_E_INFEASIBLE: see above. PI_E_MISMATCH: the split needs a profile and there is
 * none, or profile or predictor have another shape. */
enum pi_code pi_plan_make(const struct pi_plan_input *in, struct pi_plan *out,
                          struct pi_err *err) PI_MUST_CHECK;
void pi_plan_free(struct pi_plan *p); /* accepts a zeroed one */

/* What a budget would buy. */
struct pi_plan_point {
    uint64_t budget;
    bool feasible; /* it holds context and buffers; else only base_bytes is set */
    uint64_t
        base_bytes; /* what those take: the smallest budget that works where this one is below */
    uint64_t vram_bytes;
    double activations_on_gpu, placed; /* as in struct pi_plan */
    bool optimal, all_fits;
};

/* Plans for n budgets, each the one that pi_plan_make() would make; in->budget is not looked at. out (n), the caller's. progress: drawn on standard error.
 * Errors of pi_plan_make() but PI_E_INFEASIBLE; PI_E_INTERRUPTED. */
enum pi_code pi_plan_curve(const struct pi_plan_input *in, const uint64_t *budgets, size_t n,
                           bool progress, struct pi_plan_point *out,
                           struct pi_err *err) PI_MUST_CHECK;

/* For people: one line a layer and totals; a few lines; for programs: one JSON object (design: command line). */
void pi_plan_explain(const struct pi_plan *p, FILE *f);
void pi_plan_summary(const struct pi_plan *p, FILE *f);
enum pi_code pi_plan_json(const struct pi_plan *p, FILE *f, struct pi_err *err) PI_MUST_CHECK;

#endif
