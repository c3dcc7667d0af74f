/*
 * pi_blas.h - products of many tokens: own blocked kernels (cpu/pi_gemm.h) on weights as stored, and a CBLAS for plain F32 matrices.
 *
 * Work is dealt out in tiles of results. A token's results depend on its vector and on the weights alone, not on the other tokens, the tiles or the
 * thread count. CBLAS runs single-threaded inside each call, on tiles of a fixed size.
 */
#ifndef PI_BLAS_H
#define PI_BLAS_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"
#include "runtime/cpu/pi_cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* To be called once before any other: makes the CBLAS single-threaded and checks a small product against plain C: old OpenBLAS builds compute wrongly on
 * processors newer than themselves. Where it is wrong own kernels do its work from then on. */
enum pi_code pi_blas_init(struct pi_err *err) PI_MUST_CHECK;
/* A warning for the user once pi_blas_init() has found the CBLAS wrong; else NULL. PI_TEST_BLAS_WRONG in the environment makes it so. */
const char *pi_blas_warning(void);

/* Memory that products pack weights and activations into; kept from call to call, grown as needed. Zeroed: empty. One product at a time. */
struct pi_blas_scratch {
    float *mem;
    size_t floats;
};

void pi_blas_scratch_free(struct pi_blas_scratch *s); /* accepts NULL */

/* What several matrices are multiplied by: x (n_tok, n_cols) with stride ldx floats. q8 (n_tok, n_cols / 32) or NULL: what matrices of types with
 * dot_rows_q8 are multiplied by in place of x. */
struct pi_blas_in {
    const float *x;
    size_t ldx;
    uint32_t n_tok, n_cols;
    const struct pi_q8 *q8;
};

/* out[t][r] = sum_k x[t][k] * w[r][k] (+ bias[r]), t < n_tok, r < w->n_rows, stride ldo floats. bias may be NULL. */
struct pi_blas_out {
    const struct pi_mat *w; /* (n_rows, n_cols) */
    const float *bias;
    float *out;
    size_t ldo;
};

#define PI_BLAS_MAX_OUTS 4

/* Multiplies in by n_outs matrices (at most PI_BLAS_MAX_OUTS). Each result has the bits of dot_f32 (pi_cpu.h) on the row converted to F32, or with
 * quantised activations those of dot_rows_q8. PI_E_NOMEM for the scratch; PI_E_UNSUPPORTED for a weight type without kernels. */
enum pi_code pi_blas_products(struct pi_pool *pool, struct pi_blas_scratch *scratch,
                              const struct pi_blas_in *in, const struct pi_blas_out *outs,
                              uint32_t n_outs, struct pi_err *err) PI_MUST_CHECK;

/* out[t][c] = sum_k x[t][k] * w[k][c], in->n_cols = w->n_rows; out->bias and in->q8 are not used. Each result has the bits of axpy_ids (pi_cpu.h) on the rows
 * converted to F32, from 0 on. Errors as above. */
enum pi_code pi_blas_axpys(struct pi_pool *pool, struct pi_blas_scratch *scratch,
                           const struct pi_blas_in *in, const struct pi_blas_out *out,
                           struct pi_err *err) PI_MUST_CHECK;

/* One matrix, with scratch of its own. */
enum pi_code pi_blas_matmul(struct pi_pool *pool, const struct pi_mat *w, const float *x,
                            size_t ldx, uint32_t n_tok, const float *bias, float *out, size_t ldo,
                            struct pi_err *err) PI_MUST_CHECK;

/* By the CBLAS: C (m, n) = alpha * op(A) op(B) + beta * C, all row-major F32, in fixed tiles of C over the pool; sizes at most INT_MAX. trans_a: A is (k, m), else (m, k);
 * trans_b: B is (n, k), else (k, n). */
void pi_blas_gemm(struct pi_pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k,
                  float alpha, const float *a, size_t lda, const float *b, size_t ldb, float beta,
                  float *c, size_t ldc);

#endif
