/*
 * pi_gpu_fit.h - what training predictors needs of a GPU: products of host matrices, covariances of samples, scores, and steps of Adam on a net of two
 * layers. All in F32, every sum in a fixed order. It knows nothing of profiles; profiler/ decides what is computed, and when.
 *
 * A pi_gpu_fit owns a stream, a cuBLAS handle and its device memory; one caller at a time. Device memory is taken as it is needed: PI_E_NOMEM says for what.
 * In a build without CUDA create gives PI_E_NODEV and nothing else is ever called.
 */
#ifndef PI_GPU_FIT_H
#define PI_GPU_FIT_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_gpu_fit;

enum pi_code pi_gpu_fit_create(int index, struct pi_gpu_fit **out,
                               struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_fit_destroy(struct pi_gpu_fit *f); /* accepts NULL */

/* c (m, n) = op(a) op(b) on host arrays, dense rows; as pi_blas_gemm(). */
enum pi_code pi_gpu_fit_product(struct pi_gpu_fit *f, bool trans_a, bool trans_b, uint32_t m,
                                uint32_t n, uint32_t k, const float *a, const float *b, float *c,
                                struct pi_err *err) PI_MUST_CHECK;

/* Copies the samples of a layer to the device: what predictors see (n, d), and what the block sees where that is something else, or NULL. They
 * stay until the next call. */
enum pi_code pi_gpu_fit_samples(struct pi_gpu_fit *f, const float *x, const float *block_x,
                                uint32_t n, uint32_t d, struct pi_err *err) PI_MUST_CHECK;

/* Of the samples: what predictors see, or what the block sees. */
enum pi_gpu_fit_side {
    PI_GPU_FIT_X,
    PI_GPU_FIT_BLOCK
};

/* out (d, d) = mean over rows[0..n) of (a - mean_a) (b - mean_b)^T; means (d). */
enum pi_code pi_gpu_fit_covariance(struct pi_gpu_fit *f, enum pi_gpu_fit_side a,
                                   const float *mean_a, enum pi_gpu_fit_side b, const float *mean_b,
                                   const uint32_t *rows, uint32_t n, float *out,
                                   struct pi_err *err) PI_MUST_CHECK;

/* A net in host memory: z = fc2 g(fc1 x) + bias. */
struct pi_gpu_net {
    uint32_t d, n_ff, r;
    bool relu;        /* g */
    float *fc1, *fc2; /* (r, d), (n_ff, r) */
    float *bias;      /* (n_ff) */
};

/* Copies a net's weights to the device, for scores and training; they stay until the next call. */
enum pi_code pi_gpu_fit_net(struct pi_gpu_fit *f, const struct pi_gpu_net *net,
                            struct pi_err *err) PI_MUST_CHECK;

/* z (n, n_ff): scores of samples rows[0..n). */
enum pi_code pi_gpu_fit_score(struct pi_gpu_fit *f, const uint32_t *rows, uint32_t n, float *z,
                              struct pi_err *err) PI_MUST_CHECK;

/* What is trained towards; Adam's constants. */
struct pi_gpu_fit_task {
    const uint8_t *code; /* (n_rows, ld) labels (profiler/pi_labels.h) of samples rows[0..n_rows) */
    size_t ld;
    float scale; /* weight of code 1 */
    const uint32_t *rows;
    uint32_t n_rows;
    uint32_t batch; /* tokens of a step */
    float beta1, beta2, epsilon;
};

/* Copies labels, zeroes moments; the net's weights are those of pi_gpu_fit_net(). */
enum pi_code pi_gpu_fit_begin(struct pi_gpu_fit *f, const struct pi_gpu_fit_task *t,
                              struct pi_err *err) PI_MUST_CHECK;
/* One step on the labelled samples order[0..batch), indices below n_rows. rate: of fc1, fc2, bias; c1, c2: Adam's corrections. Does not wait. */
enum pi_code pi_gpu_fit_step(struct pi_gpu_fit *f, const uint32_t *order, const float rate[3],
                             float c1, float c2, struct pi_err *err) PI_MUST_CHECK;
/* The trained weights back to the net; frees what training alone needed. */
enum pi_code pi_gpu_fit_end(struct pi_gpu_fit *f, const struct pi_gpu_net *net,
                            struct pi_err *err) PI_MUST_CHECK;

#endif
