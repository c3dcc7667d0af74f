/* Dense products of many tokens: tiles of fixed shape, each computed by one single-threaded CBLAS call. */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_blas.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Rows of weights converted at a time, and tokens multiplied at a time; half the rows where a matrix has few, to give threads something to share.
 * Measured with OpenBLAS on Zen 3, 4096 columns, GFLOP/s at 512 tokens: 64 rows 64, 128 rows 75, 256 rows 70 to 84. */
#define TILE_ROWS   128
#define SMALL_ROWS  1024
#define TILE_TOKENS 256
/* Tile of C in pi_blas_gemm(). */
#define TILE_M 128
#define TILE_N 512
/* Up to here dot products on the rows as stored are faster; a tile of rows stays in the cache for all tokens. */
#define FEW_TOKENS 8
#define FEW_ROWS   16

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
    openblas_set_num_threads(1);
#endif
    PI_ALLOC_ALIGNED(a, M * K, err);
    PI_ALLOC_ALIGNED(b, N * K, err);
    PI_ALLOC_ALIGNED(c, M * N, err);
    fill_pattern(a, M * K, 1);
    fill_pattern(b, N * K, 2);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1.0f, a, K, b, K, 0.0f, c, N);
    error = gemm_error(a, b, c, M, N, K);
    if (!(error <= 1e-5))
        PI_FAIL(err, PI_E_SELFCHECK,
                "the BLAS library computes wrong products on this processor (relative error %.2g): "
                "use a newer one, or OPENBLAS_CORETYPE=Haswell",
                error);
out:
    free(a);
    free(b);
    free(c);
    return rc;
}

struct matmul_job {
    const struct pi_cpu_type *kernels;
    const struct pi_mat *w;
    const float *x, *bias;
    float *out, *scratch;
    size_t ldx, ldo, scratch_each;
    uint32_t n_tok;
    atomic_uint next_tile;
};

/* A function of the product's shape alone. */
static uint32_t tile_height(const struct pi_mat *w, uint32_t n_tok)
{
    if (n_tok <= FEW_TOKENS)
        return FEW_ROWS;
    return w->n_rows < SMALL_ROWS ? TILE_ROWS / 2 : TILE_ROWS;
}

/* Rows [row, row + n) of w as F32: where they are, or converted into scratch. */
static const float *tile_rows(const struct matmul_job *j, uint32_t row, uint32_t n, float *scratch,
                              size_t *ldw)
{
    *ldw = j->w->n_cols;
    if (j->w->type == PI_TYPE_F32 && j->w->row_bytes % sizeof(float) == 0) {
        *ldw = j->w->row_bytes / sizeof(float);
        return pi_mat_row(j->w, row);
    }
    for (uint32_t r = 0; r < n; r++)
        j->kernels->to_f32(pi_mat_row(j->w, row + r), scratch + (size_t)r * j->w->n_cols,
                           j->w->n_cols);
    return scratch;
}

static void add_bias(const struct matmul_job *j, uint32_t row, uint32_t n, uint32_t tok,
                     uint32_t n_tok)
{
    if (j->bias == NULL)
        return;
    for (uint32_t t = tok; t < tok + n_tok; t++) {
        float *o = j->out + t * j->ldo;

        for (uint32_t r = row; r < row + n; r++)
            o[r] += j->bias[r];
    }
}

static void matmul_tile(const struct matmul_job *j, uint32_t row, uint32_t n, float *scratch)
{
    size_t ldw;
    const float *w = tile_rows(j, row, n, scratch, &ldw);

    for (uint32_t t = 0; t < j->n_tok; t += TILE_TOKENS) {
        uint32_t nt = (uint32_t)min_size(TILE_TOKENS, j->n_tok - t);

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)nt, (int)n, (int)j->w->n_cols,
                    1.0f, j->x + t * j->ldx, (int)j->ldx, w, (int)ldw, 0.0f,
                    j->out + t * j->ldo + row, (int)j->ldo);
        add_bias(j, row, n, t, nt);
    }
}

static void few_tile(const struct matmul_job *j, uint32_t row, uint32_t n)
{
    for (uint32_t t = 0; t < j->n_tok; t++)
        j->kernels->dot_rows(pi_mat_row(j->w, row), j->w->row_bytes, n, j->x + t * j->ldx,
                             j->w->n_cols, j->out + t * j->ldo + row);
    add_bias(j, row, n, 0, j->n_tok);
}

static void matmul_thread(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct matmul_job *j = ctx;
    uint32_t tile_size = tile_height(j->w, j->n_tok);
    uint32_t n_tiles = j->w->n_rows / tile_size + (j->w->n_rows % tile_size != 0), i;

    (void)n_threads;
    while ((i = atomic_fetch_add_explicit(&j->next_tile, 1, memory_order_relaxed)) < n_tiles) {
        uint32_t row = i * tile_size, n = (uint32_t)min_size(tile_size, j->w->n_rows - row);

        if (j->n_tok <= FEW_TOKENS)
            few_tile(j, row, n);
        else
            matmul_tile(j, row, n,
                        j->scratch != NULL ? j->scratch + thread * j->scratch_each : NULL);
    }
}

enum pi_code pi_blas_matmul(struct pi_pool *pool, const struct pi_mat *w, const float *x,
                            size_t ldx, uint32_t n_tok, const float *bias, float *out, size_t ldo,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cpu *cpu = NULL;
    struct matmul_job j = {
        .w = w, .x = x, .bias = bias, .out = out, .ldx = ldx, .ldo = ldo, .n_tok = n_tok};

    if (w->n_rows > INT_MAX || w->n_cols > INT_MAX || n_tok > INT_MAX || ldx > INT_MAX ||
        ldo > INT_MAX)
        PI_FAIL(err, PI_E_RANGE,
                "product of %u tokens with %u x %u weights is too large for the BLAS", n_tok,
                w->n_rows, w->n_cols);
    PI_TRY(pi_cpu_select(&cpu, err));
    j.kernels = cpu->type[w->type];
    if (j.kernels == NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED, "no kernels for weights of type %s", pi_type_name(w->type));
    if (n_tok > FEW_TOKENS && (w->type != PI_TYPE_F32 || w->row_bytes % sizeof(float) != 0)) {
        j.scratch_each = (size_t)tile_height(w, n_tok) * w->n_cols;
        j.scratch_each += (0 - j.scratch_each) % 16; /* no cache line shared by two threads */
        j.scratch = pi_calloc_aligned(j.scratch_each * pi_pool_size(pool), sizeof(float), err);
        if (j.scratch == NULL)
            return PI_E_NOMEM;
    }
    pi_pool_run(pool, matmul_thread, &j);
out:
    free(j.scratch);
    return rc;
}

struct gemm_job {
    enum CBLAS_TRANSPOSE trans_a, trans_b;
    size_t m, n, k, lda, ldb, ldc, n_across;
    float alpha, beta;
    const float *a, *b;
    float *c;
};

static void gemm_tiles(void *ctx, size_t begin, size_t end)
{
    const struct gemm_job *j = ctx;

    for (size_t i = begin; i < end; i++) {
        size_t row = i / j->n_across * TILE_M, col = i % j->n_across * TILE_N;
        size_t m = min_size(TILE_M, j->m - row), n = min_size(TILE_N, j->n - col);

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
