/*
 * pi_fit.h - trains a predictor: weighted binary cross-entropy of "neuron i fires", Adam (Kingma and Ba 2015), minibatches.
 *
 *   loss = mean over tokens of  sum_i  w_i (-log s(z_i)) for the active, -log(1 - s(z_i)) for the others     s: the logistic function
 *
 * with the weights of pi_labels.h: above 1 they ask for the part of the curve that matters, where nearly all active neurons are found. The step size warms up over the first
 * tenth of the steps and falls to zero as a half cosine; it is relative to the size of each matrix at the start, so that it does not
 * depend on the model's scale. Everything is computed in a fixed order: one seed, one result, on any number of threads.
 */
#ifndef PI_FIT_H
#define PI_FIT_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "profiler/pi_labels.h"
#include "profiler/pi_net.h"
#include "profiler/pi_trainset.h"

#include <stdint.h>

struct pi_fit_options {
    uint32_t steps, batch; /* tokens a step */
    float rate;            /* of the step size, relative; 0: PI_FIT_RATE */
    uint64_t seed;         /* of the order of samples */
};

/* Tuned on the demo models (8 layers, n_embd 384, n_ff 1536). */
#define PI_FIT_RATE  0.2f
#define PI_FIT_BATCH 2048

/* Improves net over the training part of s, labels l. PI_E_NOMEM, PI_E_INTERRUPTED. */
enum pi_code pi_fit(struct pi_net *net, const struct pi_trainset *s, const struct pi_labels *l,
                    struct pi_pool *pool, const struct pi_fit_options *o,
                    struct pi_err *err) PI_MUST_CHECK;

/* z (n, ldz) of raw scores without bias, ldz a multiple of 8, becomes d loss / d z; sum_out[i] += its column sums. For neurons [begin, end), begin a
 * multiple of 8; columns up to the next multiple of 8 are overwritten. code[t] points to token t's labels. Any instruction set gives the same
 * within float rounding; portable forces plain C (for tests). */
void pi_fit_gradient(float *z, size_t ldz, const uint8_t *const *code, uint32_t n,
                     const float *bias, float scale, size_t begin, size_t end, float *sum_out,
                     bool portable);

#endif
