/*
 * pi_labels.h - what a predictor is trained towards: for each sample of the training part and each neuron whether it fires, and how much a miss
 * matters.
 *
 * A byte a neuron: 0 inactive, else the weight of the positive in the loss over scale. With a block given the weight is
 *   w = positive ((1 - PI_LABELS_SHARE) + PI_LABELS_SHARE min(c^2 / mean c^2, 16)),   c = prod_i |down_i|
 * (c^2: what leaving the neuron out costs the residual stream, see pi_damage.h), so that what must be missed is missed where it matters
 * least: on demo-llama at the same recall this takes away half of the harm. Without a block every weight is positive.
 */
#ifndef PI_LABELS_H
#define PI_LABELS_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "profiler/pi_damage.h"
#include "profiler/pi_trainset.h"

#include <stddef.h>
#include <stdint.h>

#define PI_LABELS_POSITIVE 4.0f
#define PI_LABELS_SHARE    0.75f

struct pi_labels {
    uint8_t *code; /* (n_part[PI_PART_TRAIN], ld), in the order of the part; owned */
    size_t ld;     /* n_ff rounded up to 8; zeros behind n_ff */
    float scale;   /* weight of code 1 */
};

/* b and m (of the same block) may be NULL together. PI_E_NOMEM. */
enum pi_code pi_labels_make(const struct pi_trainset *s, const struct pi_block *b,
                            const struct pi_damage *m, struct pi_pool *pool, struct pi_labels *out,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_labels_free(struct pi_labels *l); /* accepts a zeroed one */

#endif
