/*
 * pi_blas.h - products of many tokens through a CBLAS, one thread per fixed tile.
 *
 * The library runs single-threaded inside each call and the pool hands out tiles of a fixed size, so that sums do not depend
 * on the thread count.
 */
#ifndef PI_BLAS_H
#define PI_BLAS_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* To be called once before any other: makes the CBLAS single-threaded and checks a small product against plain C (old OpenBLAS
 * builds compute wrongly on processors newer than themselves): PI_E_SELFCHECK if it is wrong. */
enum pi_code pi_blas_init(struct pi_err *err) PI_MUST_CHECK;

/* out[t][r] = sum_k x[t][k] * w[r][k] (+ bias[r]), t < n_tok, r < w->n_rows. x (n_tok, n_cols) with stride ldx, out (n_tok, n_rows) with
 * stride ldo floats. Rows are converted to F32 a tile at a time, once for all tokens. Up to 8 tokens
 * are done by dot products on the rows as stored (pi_cpu.h) instead, which is faster. bias may be NULL. PI_E_NOMEM for the scratch tiles;
 * PI_E_UNSUPPORTED for a weight type without kernels; PI_E_RANGE for sizes past what CBLAS takes. */
enum pi_code pi_blas_matmul(struct pi_pool *pool, const struct pi_mat *w, const float *x,
                            size_t ldx, uint32_t n_tok, const float *bias, float *out, size_t ldo,
                            struct pi_err *err) PI_MUST_CHECK;

/* C (m, n) = alpha * op(A) op(B) + beta * C, all row-major F32, in fixed tiles of C over the pool; sizes at most INT_MAX. trans_a: A is (k, m), else (m, k);
 * trans_b: B is (n, k), else (k, n). */
void pi_blas_gemm(struct pi_pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k,
                  float alpha, const float *a, size_t lda, const float *b, size_t ldb, float beta,
                  float *c, size_t ldc);

#endif
