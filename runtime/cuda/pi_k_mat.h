/* pi_k_mat.h - how pi_k_matvec() cuts its work, for the benchmark that tries other ways. */
#ifndef PI_K_MAT_H
#define PI_K_MAT_H

#include "runtime/cuda/pi_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0: as pi_k_matvec() does */
struct pi_k_mat_geometry {
    uint32_t slices; /* warps that share a row's columns */
    uint32_t blocks_per_sm;
    uint32_t ahead_bytes; /* of weights fetched into the L2 before the wait; 1: none */
};

void pi_k_matvec_as(const struct pi_k_mat_geometry *g, const struct pi_dmat *w, const float *bias,
                    const struct pi_k_norm *norm, const float *x, float *out, bool add, bool relu,
                    uint32_t n_tok, void *stream);

#ifdef __cplusplus
}
#endif
#endif
