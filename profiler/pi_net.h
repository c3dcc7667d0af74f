/*
 * pi_net.h - a predictor in the making: z = fc2 g(fc1 x) + bias, in F32, and where its training starts.
 *
 * The start is the best approximation of the layer's own gate of a given rank: of all matrices A of rank r, A = fc2 fc1 minimises
 * E |W (x - m) - A (x - m)|^2 over the layer's inputs x with mean m and covariance C. With C = L L^T (Cholesky) and the
 * eigenvectors V_r of the r largest eigenvalues of M = L^T W^T W L:  fc2 = W L V_r,  fc1 = V_r^T L^-1
 * (truncated SVD of W L; any root of C gives the same product). One decomposition serves all ranks. Where the predictor sees something else, x, than the
 * block, y, the same with W E[(y - m_y) (x - m)^T] L^-T in place of W L: the best linear guess of rank r.
 * Rows are then divided by the standard deviation of what the approximation leaves out, which makes z a log-odds of the neuron's sign.
 */
#ifndef PI_NET_H
#define PI_NET_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "profiler/pi_trainset.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_net {
    uint32_t d, n_ff, r;
    bool relu;   /* g */
    float *fc1;  /* (r, d); owned */
    float *fc2;  /* (n_ff, r); owned */
    float *bias; /* (n_ff rounded up to 8), zero behind n_ff; owned */
};

enum pi_code pi_net_alloc(struct pi_net *net, uint32_t d, uint32_t n_ff, uint32_t r,
                          struct pi_err *err) PI_MUST_CHECK;
void pi_net_free(struct pi_net *net); /* accepts a zeroed one */

/* The same as the GPU side knows it; borrowed. */
static inline struct pi_gpu_net pi_net_for_gpu(const struct pi_net *net)
{
    return (struct pi_gpu_net){.d = net->d,
                               .n_ff = net->n_ff,
                               .r = net->r,
                               .relu = net->relu,
                               .fc1 = net->fc1,
                               .fc2 = net->fc2,
                               .bias = net->bias};
}

/* Scores of n inputs: z (n, ldz). hidden: scratch (n, r). */
void pi_net_score(const struct pi_net *net, struct pi_pool *pool, const float *x, uint32_t n,
                  float *hidden, float *z, size_t ldz);

struct pi_svd {
    uint32_t d, n_ff;
    float *value; /* (d) eigenvalues of M, falling */
    float *fc1;   /* (d, d): all rows of V^T L^-1 */
    float *fc2;   /* (n_ff, d): all columns of W L V */
    float *mean;  /* (d) of the inputs */
    float *bias;  /* (n_ff) W m + b: what the neuron gets at the mean of the block's inputs */
    float *
        rest; /* (n_ff) variance that no linear guess explains; 0 where the predictor sees what the block sees */
};

/* gate (n_ff, d) F32 row by row, gate_bias (n_ff) or NULL; over the training part of s. PI_E_SELFCHECK when LAPACK fails. */
enum pi_code pi_svd_make(const struct pi_trainset *s, const float *gate, const float *gate_bias,
                         struct pi_pool *pool, struct pi_svd *out,
                         struct pi_err *err) PI_MUST_CHECK;
void pi_svd_free(struct pi_svd *s); /* accepts a zeroed one */

/* The start of width r <= d. With relu the hidden layer has to be positive to count: each pair of units carries one component, plus and
 * minus. */
enum pi_code pi_svd_net(const struct pi_svd *s, uint32_t r, bool relu, struct pi_net *out,
                        struct pi_err *err) PI_MUST_CHECK;

#endif
