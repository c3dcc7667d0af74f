/* Products of F32 matrices: tiles of fixed shape, each computed by one single-threaded CBLAS call, or by own kernels where it computes wrongly. */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_blas.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLAS_BUFFERS ((size_t)256 << 20) /* more than OpenBLAS maps at once */

/* Tile of C in pi_blas_gemm(). */
#define TILE_M 128
#define TILE_N 512

/* Elements of a row that are taken at once where the own kernels would need a column. */
#define GATHER 256

/* Set once, before threads are there. */
static const struct pi_cpu *own; /* kernels in place of the CBLAS; NULL: it is right */

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* max |C - reference| over a product of two fixed matrices, as the share of the largest sum of magnitudes. */
static double gemm_error(const float *a, const float *b, const float *c, int m, int n, int k)
{
    double worst = 0.0, scale = 0.0;

    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0.0, size = 0.0, diff;

            for (int l = 0; l < k; l++) {
                double p = (double)a[i * k + l] * (double)b[j * k + l];

                sum += p;
                size += fabs(p);
            }
            diff = fabs(sum - (double)c[i * n + j]);
            worst = diff <= worst ? worst : diff; /* NaN counts as an error */
            scale = fmax(scale, size);
        }
    }
    return worst / scale;
}

static void fill_pattern(float *x, size_t n, uint32_t state)
{
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
    }
}

#ifdef HAVE_OPENBLAS
/* Where it gets no memory for its buffers (a limit on the address space), OpenBLAS tries again for ever. */
static enum pi_code check_room(struct pi_err *err)
{
    void *p =
        mmap(NULL, BLAS_BUFFERS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return pi_err_set(err, PI_E_NOMEM, "no memory for the BLAS library (it maps up to %u MiB)",
                          (unsigned)(BLAS_BUFFERS >> 20));
    (void)munmap(p, BLAS_BUFFERS);
    return PI_OK;
}
#endif

enum pi_code pi_blas_init(struct pi_err *err)
{
    enum {
        M = 67,
        N = 93,
        K = 301
    };
    enum pi_code rc = PI_OK;
    float *a = NULL, *b = NULL, *c = NULL;
    double error;

#ifdef HAVE_OPENBLAS
    PI_TRY(check_room(err));
    openblas_set_num_threads(1);
#endif
    PI_ALLOC_ALIGNED(a, M * K, err);
    PI_ALLOC_ALIGNED(b, N * K, err);
    PI_ALLOC_ALIGNED(c, M * N, err);
    fill_pattern(a, M * K, 1);
    fill_pattern(b, N * K, 2);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1.0f, a, K, b, K, 0.0f, c, N);
    error = gemm_error(a, b, c, M, N, K);
    own = NULL;
    if (!(error <= 1e-5) || getenv("PI_TEST_BLAS_WRONG") != NULL)
        PI_TRY(pi_cpu_select(&own, err));
out:
    free(a);
    free(b);
    free(c);
    return rc;
}

const char *pi_blas_warning(void)
{
    return own != NULL ? "the BLAS library computes wrong products on this processor: own kernels "
                         "do its work, slower; use a newer library, or OPENBLAS_CORETYPE=Haswell"
                       : NULL;
}

struct gemm_job {
    enum CBLAS_TRANSPOSE trans_a, trans_b;
    size_t m, n, k, lda, ldb, ldc, n_across;
    float alpha, beta;
    const float *a, *b;
    float *c;
};

/* Elements [l, l + n) of row i of op(A), in place or in buf. */
static const float *row_of_a(const struct gemm_job *j, size_t i, size_t l, size_t n, float *buf)
{
    if (j->trans_a != CblasTrans)
        return j->a + i * j->lda + l;
    for (size_t k = 0; k < n; k++)
        buf[k] = j->a[(l + k) * j->lda + i];
    return buf;
}

/* Columns [col, col + n) of row i of C. */
static void own_row(const struct gemm_job *j, size_t i, size_t col, size_t n)
{
    float *c = j->c + i * j->ldc + col, buf[GATHER];

    for (size_t k = 0; k < n; k++)
        c[k] = j->beta == 0.0f ? 0.0f : j->beta * c[k];
    for (size_t l = 0; l < j->k; l += GATHER) {
        const size_t nl = min_size(GATHER, j->k - l);
        const float *a = row_of_a(j, i, l, nl, buf);

        for (size_t k = 0; k < n && j->trans_b == CblasTrans; k++)
            c[k] += j->alpha * own->dot_f32(a, j->b + (col + k) * j->ldb + l, (uint32_t)nl);
        for (size_t k = 0; k < nl && j->trans_b != CblasTrans; k++)
            own->axpy_f32(j->alpha * a[k], j->b + (l + k) * j->ldb + col, c, (uint32_t)n);
    }
}

static void gemm_tiles(void *ctx, size_t begin, size_t end)
{
    const struct gemm_job *j = ctx;

    for (size_t i = begin; i < end; i++) {
        size_t row = i / j->n_across * TILE_M, col = i % j->n_across * TILE_N;
        size_t m = min_size(TILE_M, j->m - row), n = min_size(TILE_N, j->n - col);

        for (size_t r = 0; r < m && own != NULL; r++)
            own_row(j, row + r, col, n);
        if (own != NULL)
            continue;
        cblas_sgemm(CblasRowMajor, j->trans_a, j->trans_b, (int)m, (int)n, (int)j->k, j->alpha,
                    j->a + (j->trans_a == CblasTrans ? row : row * j->lda), (int)j->lda,
                    j->b + (j->trans_b == CblasTrans ? col * j->ldb : col), (int)j->ldb, j->beta,
                    j->c + row * j->ldc + col, (int)j->ldc);
    }
}

void pi_blas_gemm(struct pi_pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k,
                  float alpha, const float *a, size_t lda, const float *b, size_t ldb, float beta,
                  float *c, size_t ldc)
{
    struct gemm_job j = {.trans_a = trans_a ? CblasTrans : CblasNoTrans,
                         .trans_b = trans_b ? CblasTrans : CblasNoTrans,
                         .m = m,
                         .n = n,
                         .k = k,
                         .lda = lda,
                         .ldb = ldb,
                         .ldc = ldc,
                         .n_across = (n + TILE_N - 1) / TILE_N,
                         .alpha = alpha,
                         .beta = beta,
                         .a = a,
                         .b = b,
                         .c = c};

    pi_pool_for(pool, (m + TILE_M - 1) / TILE_M * j.n_across, 1, gemm_tiles, &j);
}
