/*
 * pi_k_train.h - the device kernels of training predictors beside matrix products, as C functions that launch them into a stream; rules as in pi_kernels.h.
 */
#ifndef PI_K_TRAIN_H
#define PI_K_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[t] = x[rows[t]] - mean; x (..., d), out (n, d); mean (d), or NULL. */
void pi_kt_rows(const float *x, const uint32_t *rows, const float *mean, float *out, uint32_t n,
                uint32_t d, void *stream);

void pi_kt_zero(float *x, size_t n, void *stream);

/* x = max(0, x); y where x > 0, else 0. n elements. */
void pi_kt_relu(float *x, size_t n, void *stream);
void pi_kt_mask(float *y, const float *x, size_t n, void *stream);

/* z[t] = row; z (n, n_cols). */
void pi_kt_fill(float *z, const float *row, uint32_t n, uint32_t n_cols, void *stream);

/* Partial sums that pi_kt_gradient() makes. */
#define PI_KT_PARTS 16u

struct pi_kt_gradient {
    float *z;            /* (n, n_ff): scores without bias become d loss / d z */
    const uint8_t *code; /* (..., ld): labels as profiler/pi_labels.h has them */
    size_t ld;
    const uint32_t *rows; /* (n) rows of code */
    const float *bias;    /* (n_ff) */
    float scale;          /* weight of code 1 */
    uint32_t n, n_ff;
    uint32_t spare; /* no hole that could be taken for an address */
    float *parts;   /* (PI_KT_PARTS, n_ff) scratch */
    float *sum;     /* (n_ff): takes the column sums in */
};
/* As pi_fit_gradient(). */
void pi_kt_gradient(const struct pi_kt_gradient *a, void *stream);

/* One step of Adam (Kingma and Ba 2015) on n weights w with gradient g and moments m, v; c1, c2: corrections 1 / (1 - beta^step). */
struct pi_kt_adam {
    float *w, *m, *v;
    const float *g;
    size_t n;
    float rate, c1, c2, beta1, beta2, epsilon;
};
void pi_kt_adam(const struct pi_kt_adam *a, void *stream);

#ifdef __cplusplus
}
#endif
#endif
