/*
 * pi_trainset.h - one layer's samples as a predictor is trained on: normed inputs, active sets, and three parts that do not leak.
 *
 * Neighbouring tokens resemble each other, so the stream of positions is cut into blocks of contiguous positions and whole blocks go
 * to a part: of every ten blocks eight train, one (the fifth) calibrates thresholds, one (the tenth) tests. A block is 1,024 positions, or less
 * where the stream is too short to give twenty of them.
 */
#ifndef PI_TRAINSET_H
#define PI_TRAINSET_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_profile.h"
#include "runtime/pi_gpu_fit.h"
#include "runtime/pi_model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pi_part {
    PI_PART_TRAIN,
    PI_PART_CALIBRATE,
    PI_PART_TEST,
    PI_PART_COUNT
};

struct pi_trainset {
    uint32_t n, d, n_ff;
    size_t mask_bytes; /* ceil(n_ff / 8) */
    float *x;          /* (n, d) what the predictor sees; owned */
    float *
        block_x; /* (n, d) what the feed-forward block sees where that is something else, or NULL; owned */
    uint8_t *mask;                 /* (n, mask_bytes), neuron i in bit i % 8 of byte i / 8; owned */
    uint32_t *part[PI_PART_COUNT]; /* indices of samples, ascending; owned */
    uint32_t n_part[PI_PART_COUNT];
    uint32_t *block; /* (n) number of the sample's block; owned */
    float *
        residual; /* (n_part[PI_PART_CALIBRATE], d) what the block's output is added to; owned, or NULL */
    uint32_t *residual_row; /* (n) row of residual for samples of that part; owned */
    struct pi_gpu_fit
        *gpu; /* has x and block_x too, and does what products there are; borrowed, or NULL */
};

/* Takes x (n, d) and mask over, whatever happens; position (n) ascending is borrowed. PI_E_RANGE where a part would stay empty: too few samples. */
enum pi_code pi_trainset_make(float *x, uint8_t *mask, const int64_t *position, uint32_t n,
                              uint32_t d, uint32_t n_ff, struct pi_trainset *out,
                              struct pi_err *err) PI_MUST_CHECK;

/* Copies x of the calibration part to residual: to be called while x holds residuals. */
enum pi_code pi_trainset_keep_residuals(struct pi_trainset *s, struct pi_err *err) PI_MUST_CHECK;

/* A layer of a profile: residuals (of parallel blocks: layer inputs) become what the feed-forward block sees (the layer's norm, weights and bias);
 * what the block's output is added to is kept of the calibration part. look_ahead, layer > 0: the predictor sees the residual of the layer before as it stands there before
 * that layer's feed-forward norm, after its attention. */
enum pi_code pi_trainset_load(const struct pi_profile *p, const struct pi_model *m, uint32_t layer,
                              bool look_ahead, struct pi_pool *pool, struct pi_trainset *out,
                              struct pi_err *err) PI_MUST_CHECK;
void pi_trainset_free(struct pi_trainset *s); /* accepts a zeroed one */

/* Hands the products of this layer to a GPU (NULL: nothing is done); x and block_x are copied there. */
enum pi_code pi_trainset_use_gpu(struct pi_trainset *s, struct pi_gpu_fit *gpu,
                                 struct pi_err *err) PI_MUST_CHECK;

/* What the block sees: block_x or x. */
static inline const float *pi_trainset_block_x(const struct pi_trainset *s)
{
    return s->block_x != NULL ? s->block_x : s->x;
}

/* Share of neurons active in a part. */
double pi_trainset_density(const struct pi_trainset *s, enum pi_part part);

#endif
