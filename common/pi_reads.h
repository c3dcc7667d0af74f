/*
 * pi_reads.h - bytes that a token reads in each mode: what decoding is bound by, whatever the machine.
 *
 * Rows that n neurons read of which a fire, a from the profile's mean rates (first: gate, or up where there is none; rest: the other two or one):
 *   dense      n first + n rest
 *   exact      n first + a rest
 *   predicted  p first + r a rest, and the predictor; p = r a + e (n - a), r its recall, e the share of silent neurons that it predicts all the same
 * as in solver/pi_cost.h. In predicted mode a layer that would read less in exact mode runs exact, as pi-run has it.
 */
#ifndef PI_READS_H
#define PI_READS_H

#include "common/pi_estimate.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"

#include <stdint.h>

/* Bytes a token, all layers together. */
struct pi_reads {
    double attn;      /* attention's weights, norms */
    double kv;        /* the KV cache, half full */
    double ffn;       /* rows of neurons */
    double predictor; /* 0 but in predicted mode */
    double output;    /* the output head */
    double total;
    uint32_t n_predicted; /* layers that are predicted */
};

/* prof NULL: every neuron fires. pred is looked at in predicted mode alone; NULL: none. Both have the model's shape. */
void pi_reads_take(const struct pi_model_bytes *b, const struct pi_profile *prof,
                   const struct pi_predictor *pred, enum pi_mode mode, struct pi_reads *out);

#endif
