/*
 * pi_fit.h - trains a predictor: weighted binary cross-entropy of "neuron i fires", Adam (Kingma and Ba 2015), minibatches.
 *
 *   loss = mean over tokens of  sum_i  y_i pos (-log s(z_i)) + (1 - y_i) (-log(1 - s(z_i)))     s: the logistic function
 *
 * pos above 1 asks for the part of the curve that matters, where nearly all active neurons are found. The step size warms up over the first
 * tenth of the steps and falls to zero as a half cosine; it is relative to the size of each matrix at the start, so that it does not
 * depend on the model's scale. Everything is computed in a fixed order: one seed, one result, on any number of threads.
 */
#ifndef PI_FIT_H
#define PI_FIT_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "profiler/pi_net.h"
#include "profiler/pi_trainset.h"

#include <stdint.h>

struct pi_fit_options {
    uint32_t steps, batch; /* tokens a step */
    float rate;            /* of the step size, relative; 0: PI_FIT_RATE */
    float positive;        /* pos; 0: PI_FIT_POSITIVE */
    uint64_t seed;         /* of the order of samples */
};

/* Tuned on the demo models (8 layers, n_embd 384, n_ff 1536). */
#define PI_FIT_RATE     0.2f
#define PI_FIT_POSITIVE 8.0f
#define PI_FIT_BATCH    2048

/* Improves net over the training part of s. PI_E_NOMEM, PI_E_INTERRUPTED. */
enum pi_code pi_fit(struct pi_net *net, const struct pi_trainset *s, struct pi_pool *pool,
                    const struct pi_fit_options *o, struct pi_err *err) PI_MUST_CHECK;

/* z (n, ldz) of raw scores without bias, ldz a multiple of 8, becomes d loss / d z; sum_out[i] += its column sums. For neurons
 * [begin, end), begin a multiple of 8; columns up to the next multiple of 8 are overwritten. mask[t] points to token t's active set. Any instruction
 * set gives the same within float rounding; portable forces plain C (for tests). */
void pi_fit_gradient(float *z, size_t ldz, const uint8_t *const *mask, uint32_t n, const float *bias, float positive,
                     size_t begin, size_t end, float *sum_out, bool portable);

#endif
