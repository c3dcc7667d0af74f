/*
 * train_rig.h - a layer whose structure is known, and samples of what it does, shared by the trainer's tests.
 */
#ifndef TRAIN_RIG_H
#define TRAIN_RIG_H

#include "profiler/pi_net.h"
#include "profiler/pi_random.h"
#include "profiler/pi_train.h"
#include "runtime/pi_blas.h"
#include "tests/tap.h"

#define D    24
#define N_FF 75 /* no multiple of 8 */
#define N    6000
#define RANK 4

static struct pi_err e;
static struct pi_random rnd = {7};

static inline float uniform(void)
{
    return (float)((double)(pi_random_u64(&rnd) >> 11) * 0x1p-53 * 2 - 1);
}

/* Nearly normal, variance 1. */
static inline float normal(void)
{
    float sum = 0;

    for (int i = 0; i < 12; i++)
        sum += uniform() * 0.5f;
    return sum;
}

/* A block whose gate is a matrix of rank RANK and a little noise, with biases that leave about an eighth of the neurons active. */
struct layer {
    struct pi_shape shape;
    float gate[N_FF * D], bias[N_FF], up[N_FF * D], down_t[N_FF * D];
    struct pi_block block;
};

static inline void make_layer(struct layer *l)
{
    float a[N_FF * RANK], b[RANK * D];

    memset(l, 0, sizeof(*l));
    l->shape.act = PI_ACT_RELU;
    l->shape.gated = true;
    for (int i = 0; i < N_FF * RANK; i++)
        a[i] = normal();
    for (int i = 0; i < RANK * D; i++)
        b[i] = normal() / 4;
    for (int i = 0; i < N_FF; i++) {
        for (int k = 0; k < D; k++) {
            l->gate[i * D + k] = 0.02f * normal();
            l->up[i * D + k] = normal() / 4;
            l->down_t[i * D + k] = normal() / 4;
            for (int r = 0; r < RANK; r++)
                l->gate[i * D + k] += a[i * RANK + r] * b[r * D + k];
        }
        l->bias[i] = -3.0f;
    }
    l->block = (struct pi_block){.shape = &l->shape,
                                 .gate = l->gate,
                                 .gate_bias = l->bias,
                                 .up = l->up,
                                 .down_t = l->down_t};
}

/* Inputs with a mean and unequal variances. */
static inline void make_set(const struct layer *l, uint32_t n, struct pi_trainset *s)
{
    float *x = malloc(sizeof(float) * n * D);
    uint8_t *mask = calloc(n, (N_FF + 7) / 8);
    int64_t *position = malloc(sizeof(int64_t) * n);

    if (x == NULL || mask == NULL || position == NULL)
        exit(1);
    for (uint32_t t = 0; t < n; t++) {
        position[t] = 2 * t;
        for (int k = 0; k < D; k++)
            x[t * D + (unsigned)k] = normal() * (1.0f + 0.1f * (float)k) + 0.3f;
        for (int i = 0; i < N_FF; i++) {
            float z = l->bias[i];

            for (int k = 0; k < D; k++)
                z += l->gate[i * D + k] * x[t * D + (unsigned)k];
            if (z > 0)
                mask[t * ((N_FF + 7) / 8) + (unsigned)i / 8] |= (uint8_t)(1u << i % 8);
        }
    }
    PASSES(pi_trainset_make(x, mask, position, n, D, N_FF, s, &e), e);
    PASSES(pi_trainset_keep_residuals(s, &e), e);
    free(position);
}

static inline enum pi_code train(const struct layer *l, const struct pi_trainset *s,
                                 uint32_t threads, struct pi_trained_layer *out)
{
    const struct pi_train_layer_in in = {.block = l->block,
                                         .gate_row = 4 * D,
                                         .up_row = 4 * D,
                                         .down_row = 4 * D,
                                         .hot80 = 0.5,
                                         .max_params = 1e9,
                                         .max_damage = 1,
                                         .seed = 3};
    const struct pi_train_options o = {.recall = 0.95,
                                       .max_params = 1,
                                       .max_damage = 1,
                                       .steps = 60,
                                       .seed = 3,
                                       .type = PI_TYPE_F16};
    struct pi_pool *pool = NULL;
    enum pi_code rc = pi_pool_create(threads, &pool, &e);

    if (rc == PI_OK)
        rc = pi_train_layer(s, &in, &o, pool, out, &e);
    pi_pool_destroy(pool);
    return rc;
}

#endif
