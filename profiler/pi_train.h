/*
 * pi_train.h - sizes and trains the predictors of a model, one layer in memory at a time.
 *
 * Per layer: one decomposition of the gate (pi_net.h) gives a start for every width. The search begins at a width from the layer's density and skew
 * (sparser and more skewed: smaller, as in PowerInfer, section 5.1), trains it briefly, and walks to the next smaller or larger widths as long as the
 * expected bytes read per token fall; the best is then trained in full and rounded to its stored type. Bytes per token of a layer =
 * predictor + predicted rows of gate (fc1 where not gated) + rows of up and down of the truly active neurons; exact mode reads every row of gate.
 * When all layers are trained, each gets the threshold that costs least together with the others' (pi_choose.h): recall reached, total damage bounded. A layer
 * is left exact when that is cheaper or safer, when the recall is not reached on the test part, or when max_params leaves it nothing.
 */
#ifndef PI_TRAIN_H
#define PI_TRAIN_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "profiler/pi_choose.h"
#include "profiler/pi_damage.h"
#include "profiler/pi_trainset.h"
#include "runtime/pi_model.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_train_options {
    double recall;     /* the target, 0 < recall < 1 */
    double max_params; /* all predictors' weights over the model's */
    double max_damage; /* of all layers together, see pi_damage.h */
    uint32_t steps;    /* of a full training; a trial takes a quarter */
    uint64_t seed;
    enum pi_type type; /* of the stored matrices */
    bool relu;         /* between the two layers */
    bool
        look_ahead; /* layers from the second on see the layer before's attention output, else what their block sees */
    struct pi_gpu_fit *gpu; /* that products run on; borrowed; NULL: the CPU */
    bool
        compare; /* also train each briefly on what it does not see, at the same width, to report it */
};

/* What became of a layer, and what is to be told. */
struct pi_trained_layer {
    uint32_t width;        /* 0: none was trained */
    struct pi_curve curve; /* its thresholds */
    double params;         /* weights of the predictor */
    double seconds;
    struct pi_mat fc1, fc2; /* (width, n_embd), (n_ff, width); data owned */
    float *bias;            /* (n_ff); owned */
    bool compared;
    struct pi_found
        other; /* with the input it does not see: on the test part, at the first threshold of the rule */
    uint32_t choice; /* point of the curve; curve.n: exact. Set for all layers at the end */
};

void pi_trained_layer_free(struct pi_trained_layer *l); /* accepts a zeroed one */

static inline bool pi_trained_layer_kept(const struct pi_trained_layer *l)
{
    return l->choice < l->curve.n;
}

/* What the search knows of a layer beside its samples. */
struct pi_train_layer_in {
    struct pi_block block;
    double gate_row, up_row, down_row; /* bytes as stored; up 0 where not gated */
    double hot80;                      /* share of neurons that makes 80 % of the activations */
    double max_params;                 /* weights this layer's predictor may have */
    double max_damage; /* that this layer is expected to be allowed: for the choice of its width */
    uint64_t seed;
};

/* One layer; s with residuals. *out is set on success, choice = exact. PI_E_RANGE for too few samples; PI_E_INTERRUPTED; PI_E_SELFCHECK. */
enum pi_code pi_train_layer(const struct pi_trainset *s, const struct pi_train_layer_in *in,
                            const struct pi_train_options *o, struct pi_pool *pool,
                            struct pi_trained_layer *out, struct pi_err *err) PI_MUST_CHECK;

/* All layers, and the choice of thresholds. out (n_layer, zeroed) is filled layer by layer, what was done stays on an error; free each. progress: drawn on standard error. */
enum pi_code pi_train_model(const struct pi_model *m, const struct pi_profile *p,
                            const struct pi_train_options *o, struct pi_pool *pool, bool progress,
                            struct pi_trained_layer *out, struct pi_err *err) PI_MUST_CHECK;

/* Trains width r with a quarter of the steps; *out: what it finds on the test part at the first threshold of the rule (pi_calibrate.h). */
enum pi_code pi_train_brief(const struct pi_trainset *s, const struct pi_train_layer_in *in,
                            const struct pi_train_options *o, struct pi_pool *pool, uint32_t r,
                            struct pi_found *out, struct pi_err *err) PI_MUST_CHECK;

/* Weights of a model: elements of all its tensors. */
double pi_train_model_params(const struct pi_model *m);

/* The type that predictors of a model are stored in by default: Q8_0 where the model's own gate is quantised and rows are multiples of its
 * block, else F16. */
enum pi_type pi_train_default_type(const struct pi_model *m);

#endif
