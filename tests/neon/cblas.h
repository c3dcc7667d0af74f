/*
 * cblas.h - as much of a CBLAS as runtime/pi_blas.c asks for, for tests that are compiled for a processor for which there is no library here
 * (tests/neon.mk): plain loops.
 */
#ifndef PI_TEST_CBLAS_H
#define PI_TEST_CBLAS_H

enum CBLAS_ORDER {
    CblasRowMajor = 101
};

enum CBLAS_TRANSPOSE {
    CblasNoTrans = 111,
    CblasTrans = 112
};

static inline void openblas_set_num_threads(int n)
{
    (void)n;
}

static inline void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta,
                               enum CBLAS_TRANSPOSE tb, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta,
                               float *c, int ldc)
{
    (void)order;
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0.0;

            for (int l = 0; l < k; l++)
                sum += (double)a[ta == CblasTrans ? l * lda + i : i * lda + l] *
                       (double)b[tb == CblasTrans ? j * ldb + l : l * ldb + j];
            c[i * ldc + j] = (float)((double)alpha * sum +
                                     (beta != 0.0f ? (double)beta * (double)c[i * ldc + j] : 0.0));
        }
    }
}

#endif
