/*
 * pi_train.h - sizes and trains the predictors of a model, one layer in memory at a time.
 *
 * Per layer: one decomposition of the gate (pi_net.h) gives a start for every width. The search begins at a width from the layer's density and skew
 * (sparser and more skewed: smaller, as in PowerInfer, section 5.1), trains it briefly, and walks to the next smaller and larger widths as long as the
 * expected bytes read per token fall; the best is then trained in full, rounded to its stored type, calibrated (pi_calibrate.h) and
 * tested. Bytes per token of a layer = predictor + predicted rows of gate (fc1 where not gated) + rows of up and down of the truly active
 * neurons; exact mode reads every row of gate. A layer is left without predictor when that is not less than exact mode reads, when its recall on
 * the test part stays below the target, or when nothing is left of the parameters allowed.
 */
#ifndef PI_TRAIN_H
#define PI_TRAIN_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "profiler/pi_calibrate.h"
#include "profiler/pi_trainset.h"
#include "runtime/pi_model.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_train_options {
    double recall;     /* the target, 0 < recall < 1 */
    double max_params; /* all predictors' weights over the model's */
    uint32_t steps;    /* of a full training; a trial takes a quarter */
    uint64_t seed;
    enum pi_type type; /* of the stored matrices */
    bool relu;         /* between the two layers */
};

/* What became of a layer, and what is to be told. */
struct pi_trained_layer {
    bool kept;
    uint32_t width;        /* of the best predictor found, kept or not */
    float threshold;
    struct pi_found found; /* on the test part */
    double read;           /* bytes per token over exact mode's */
    double params;         /* weights of the predictor */
    double seconds;
    struct pi_mat fc1, fc2; /* (width, n_embd), (n_ff, width); data owned; absent unless kept */
    float *bias;            /* (n_ff); owned */
};

void pi_trained_layer_free(struct pi_trained_layer *l); /* accepts a zeroed one */

/* What the search knows of a layer beside its samples. */
struct pi_train_layer_in {
    const float *gate, *gate_bias; /* (n_ff, d) F32 and (n_ff) or NULL: the matrix the activation is applied to */
    double gate_row, up_row, down_row; /* bytes as stored; up 0 where not gated */
    double hot80;      /* share of neurons that makes 80 % of the activations */
    double max_params; /* weights this layer's predictor may have */
    uint64_t seed;
};

/* One layer. *out is set on success, kept or not. PI_E_RANGE for too few samples; PI_E_INTERRUPTED; PI_E_SELFCHECK. */
enum pi_code pi_train_layer(const struct pi_trainset *s, const struct pi_train_layer_in *in, const struct pi_train_options *o,
                            struct pi_pool *pool, struct pi_trained_layer *out, struct pi_err *err) PI_MUST_CHECK;

/* All layers. out (n_layer, zeroed) is filled layer by layer, what was done stays on an error; free each. progress: drawn on standard error. */
enum pi_code pi_train_model(const struct pi_model *m, const struct pi_profile *p, const struct pi_train_options *o,
                            struct pi_pool *pool, bool progress, struct pi_trained_layer *out, struct pi_err *err) PI_MUST_CHECK;

/* Weights of a model: elements of all its tensors. */
double pi_train_model_params(const struct pi_model *m);

/* The type that predictors of a model are stored in by default: Q8_0 where the model's own gate is quantised and rows are multiples of its
 * block, else F16. */
enum pi_type pi_train_default_type(const struct pi_model *m);

#endif
