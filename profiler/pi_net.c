#include "config.h"

#include "profiler/pi_net.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"
#include "runtime/pi_blas.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

/* LAPACK has no header of its own here: Fortran names, everything by reference, column-major. */
void ssyevd_(const char *jobz, const char *uplo, const int *n, float *a, const int *lda, float *w,
             float *work, const int *lwork, int *iwork, const int *liwork, int *info);
void spotrf_(const char *uplo, const int *n, float *a, const int *lda, int *info);

#define RIDGE        1e-3f /* added to the covariance's diagonal, of its mean: inputs nobody saw */
#define SCORE_CHUNK  1024
#define LOGISTIC_STD 1.7f /* a unit normal is close to a logistic of this scale */

/* ---- net ---- */

enum pi_code pi_net_alloc(struct pi_net *net, uint32_t d, uint32_t n_ff, uint32_t r,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    *net = (struct pi_net){.d = d, .n_ff = n_ff, .r = r};
    PI_ALLOC_ALIGNED(net->fc1, (size_t)r * d, err);
    PI_ALLOC_ALIGNED(net->fc2, (size_t)r * n_ff, err);
    PI_ALLOC_ALIGNED(net->bias, ((size_t)n_ff + 7) / 8 * 8, err);
out:
    return rc;
}

void pi_net_free(struct pi_net *net)
{
    free(net->fc1);
    free(net->fc2);
    free(net->bias);
    memset(net, 0, sizeof(*net));
}

struct bias_job {
    const struct pi_net *net;
    float *z;
    size_t ldz;
};

static void fill_bias(void *ctx, size_t begin, size_t end)
{
    const struct bias_job *j = ctx;

    for (size_t t = begin; t < end; t++)
        memcpy(j->z + t * j->ldz, j->net->bias, j->net->n_ff * sizeof(float));
}

void pi_net_score(const struct pi_net *net, struct pi_pool *pool, const float *x, uint32_t n,
                  float *hidden, float *z, size_t ldz)
{
    struct bias_job j = {net, z, ldz};
    const size_t r = net->r, d = net->d;

    pi_blas_gemm(pool, false, true, n, r, d, 1.0f, x, d, net->fc1, d, 0.0f, hidden, r);
    for (size_t i = 0; net->relu && i < n * r; i++)
        hidden[i] = hidden[i] > 0.0f ? hidden[i] : 0.0f;
    pi_pool_for(pool, n, 64, fill_bias, &j);
    pi_blas_gemm(pool, false, true, n, net->n_ff, r, 1.0f, hidden, r, net->fc2, r, 1.0f, z, ldz);
}

/* ---- decomposition ---- */

void pi_svd_free(struct pi_svd *s)
{
    free(s->value);
    free(s->fc1);
    free(s->fc2);
    free(s->mean);
    free(s->bias);
    free(s->rest);
    memset(s, 0, sizeof(*s));
}

/* mean_out (d): of x (n, d) over the training part. */
static enum pi_code mean_of(const struct pi_trainset *s, const float *x, float *mean_out,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n = s->n_part[PI_PART_TRAIN];
    double *sum = NULL;

    PI_ALLOC(sum, s->d, err);
    for (uint32_t i = 0; i < n; i++) {
        const float *row = x + (size_t)s->part[PI_PART_TRAIN][i] * s->d;

        for (uint32_t k = 0; k < s->d; k++)
            sum[k] += (double)row[k];
    }
    for (uint32_t k = 0; k < s->d; k++)
        mean_out[k] = (float)(sum[k] / n);
out:
    free(sum);
    return rc;
}

/* Rows [at, at + n) of the training part, less the mean. */
static void centred(const struct pi_trainset *s, const float *x, const float *mean, uint32_t at,
                    uint32_t n, float *out)
{
    for (uint32_t t = 0; t < n; t++) {
        const float *row = x + (size_t)s->part[PI_PART_TRAIN][at + t] * s->d;

        for (uint32_t k = 0; k < s->d; k++)
            out[(size_t)t * s->d + k] = row[k] - mean[k];
    }
}

static enum pi_gpu_fit_side side_of(const struct pi_trainset *s, const float *x)
{
    return x == s->x ? PI_GPU_FIT_X : PI_GPU_FIT_BLOCK;
}

/* out (d, d) = mean over the training part of (a - mean_a) (b - mean_b)^T */
static enum pi_code covariance(const struct pi_trainset *s, struct pi_pool *pool, const float *a,
                               const float *mean_a, const float *b, const float *mean_b, float *out,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n = s->n_part[PI_PART_TRAIN], d = s->d;
    float *rows_a = NULL, *rows_b = NULL;

    if (s->gpu != NULL)
        return pi_gpu_fit_covariance(s->gpu, side_of(s, a), mean_a, side_of(s, b), mean_b,
                                     s->part[PI_PART_TRAIN], n, out, err);
    PI_ALLOC(rows_a, (size_t)SCORE_CHUNK * d, err);
    PI_ALLOC(rows_b, (size_t)SCORE_CHUNK * d, err);
    for (uint32_t i = 0; i < n; i += SCORE_CHUNK) {
        const uint32_t m = n - i < SCORE_CHUNK ? n - i : SCORE_CHUNK;

        centred(s, a, mean_a, i, m, rows_a);
        centred(s, b, mean_b, i, m, rows_b);
        pi_blas_gemm(pool, true, false, d, d, m, 1.0f / (float)n, rows_a, d, rows_b, d,
                     i == 0 ? 0.0f : 1.0f, out, d);
    }
out:
    free(rows_a);
    free(rows_b);
    return rc;
}

static void add_ridge(float *cov, uint32_t d)
{
    double trace = 0;

    for (uint32_t k = 0; k < d; k++)
        trace += (double)cov[(size_t)k * d + k];
    for (uint32_t k = 0; k < d; k++)
        cov[(size_t)k * d + k] += RIDGE * (float)(trace / d) + 1e-20f;
}

/* cov becomes its Cholesky factor L, lower in row-major order, zeros above. */
static enum pi_code factor(float *cov, uint32_t d, struct pi_err *err)
{
    const int n = (int)d;
    int info = 0;

    spotrf_("U", &n, cov, &n, &info); /* upper of the transpose */
    if (info != 0)
        return pi_err_set(err, PI_E_SELFCHECK,
                          "the inputs' covariance has no Cholesky factor (LAPACK: %d)", info);
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t k = i + 1; k < d; k++)
            cov[(size_t)i * d + k] = 0.0f;
    return PI_OK;
}

/* a (d, d) symmetric becomes its eigenvectors, one a row, by falling value. */
static enum pi_code eigen(float *a, uint32_t d, float *value, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const int n = (int)d, query = -1;
    int info = 0, lwork, liwork, int_size = 0;
    float size = 0.0f, *work = NULL;
    int *iwork = NULL;

    ssyevd_("V", "U", &n, a, &n, value, &size, &query, &int_size, &query, &info);
    /* a float of the size may have been rounded down */
    lwork = (int)fmin((double)size * 1.001 + 64, INT_MAX);
    liwork = int_size;
    PI_ALLOC(work, (size_t)lwork, err);
    PI_ALLOC(iwork, (size_t)liwork + 1, err);
    ssyevd_("V", "U", &n, a, &n, value, work, &lwork, iwork, &liwork, &info);
    if (info != 0)
        PI_FAIL(err, PI_E_SELFCHECK, "eigenvalues of the gate do not converge (LAPACK: %d)", info);
    for (uint32_t i = 0; i < d / 2; i++) {
        const float v = value[i];

        value[i] = value[d - 1 - i];
        value[d - 1 - i] = v;
        cblas_sswap(n, a + (size_t)i * d, 1, a + (size_t)(d - 1 - i) * d, 1);
    }
out:
    free(work);
    free(iwork);
    return rc;
}

/* bias = W mean + b */
static void bias_at_mean(const float *gate, const float *gate_bias, const float *mean,
                         struct pi_svd *v)
{
    for (uint32_t i = 0; i < v->n_ff; i++) {
        double sum = gate_bias != NULL ? (double)gate_bias[i] : 0.0;

        for (uint32_t k = 0; k < v->d; k++)
            sum += (double)gate[(size_t)i * v->d + k] * (double)mean[k];
        v->bias[i] = (float)sum;
    }
}

/* What decomposing takes beside its results. */
struct svd_job {
    const struct pi_trainset *s;
    const float *gate;
    struct pi_pool *pool;
    float *root;   /* (d, d) L */
    float *other;  /* (d, d): covariances of what the block sees, when that is something else */
    float *mean_y; /* (d) of what the block sees */
    float *wl;     /* (n_ff, d): W L, or W E[y x^T] L^-T */
};

/* rest_i = variance of W_i y - what the explained part has of it */
static void unexplained(const struct svd_job *j, const float *wc, struct pi_svd *v)
{
    for (size_t i = 0; i < v->n_ff; i++) {
        double all = 0, explained = 0;

        for (size_t k = 0; k < v->d; k++) {
            all += (double)wc[i * v->d + k] * (double)j->gate[i * v->d + k];
            explained += (double)j->wl[i * v->d + k] * (double)j->wl[i * v->d + k];
        }
        v->rest[i] = (float)fmax(0.0, all - explained);
    }
}

/* c (m, n) = op(a) op(b), rows without gaps. */
static enum pi_code product(const struct svd_job *j, bool ta, bool tb, size_t m, size_t n, size_t k,
                            const float *a, const float *b, float *c, struct pi_err *err)
{
    if (j->s->gpu != NULL)
        return pi_gpu_fit_product(j->s->gpu, ta, tb, (uint32_t)m, (uint32_t)n, (uint32_t)k, a, b, c,
                                  err);
    pi_blas_gemm(j->pool, ta, tb, m, n, k, 1.0f, a, ta ? m : k, b, tb ? k : n, 0.0f, c, n);
    return PI_OK;
}

static enum pi_code guess_block(const struct svd_job *j, struct pi_svd *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_trainset *s = j->s;
    const size_t d = v->d, n_ff = v->n_ff;
    float *wc = NULL;

    PI_ALLOC(wc, n_ff * d, err);
    PI_TRY(covariance(s, j->pool, s->block_x, j->mean_y, s->x, v->mean, j->other, err));
    /* X L^T = E[y x^T], solved from the right */
    cblas_strsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, (int)d, (int)d,
                1.0f, j->root, (int)d, j->other, (int)d);
    PI_TRY(product(j, false, false, n_ff, d, d, j->gate, j->other, j->wl, err));
    PI_TRY(covariance(s, j->pool, s->block_x, j->mean_y, s->block_x, j->mean_y, j->other, err));
    PI_TRY(product(j, false, false, n_ff, d, d, j->gate, j->other, wc, err));
    unexplained(j, wc, v);
out:
    free(wc);
    return rc;
}

static enum pi_code decompose(const struct svd_job *j, struct pi_svd *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_trainset *s = j->s;
    const size_t d = v->d, n_ff = v->n_ff;

    PI_TRY(mean_of(s, s->x, v->mean, err));
    PI_TRY(mean_of(s, pi_trainset_block_x(s), j->mean_y, err));
    PI_TRY(covariance(s, j->pool, s->x, v->mean, s->x, v->mean, j->root, err));
    add_ridge(j->root, v->d);
    PI_TRY(factor(j->root, v->d, err));
    if (s->block_x != NULL)
        PI_TRY(guess_block(j, v, err));
    else
        PI_TRY(product(j, false, false, n_ff, d, d, j->gate, j->root, j->wl, err));
    PI_TRY(product(j, true, false, d, d, n_ff, j->wl, j->wl, v->fc1, err));
    PI_TRY(eigen(v->fc1, v->d, v->value, err));
    PI_TRY(product(j, false, true, n_ff, d, d, j->wl, v->fc1, v->fc2, err));
    /* fc1 L = V^T, solved from the right */
    cblas_strsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, (int)d, (int)d,
                1.0f, j->root, (int)d, v->fc1, (int)d);
out:
    return rc;
}

enum pi_code pi_svd_make(const struct pi_trainset *s, const float *gate, const float *gate_bias,
                         struct pi_pool *pool, struct pi_svd *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t d = s->d, n_ff = s->n_ff;
    struct pi_svd v = {.d = s->d, .n_ff = s->n_ff};
    struct svd_job j = {.s = s, .gate = gate, .pool = pool};

    if (d > 32768)
        PI_FAIL(err, PI_E_RANGE, "inputs of %zu values are more than LAPACK's work space can index",
                d);
    PI_ALLOC(v.value, d, err);
    PI_ALLOC(v.fc1, d * d, err);
    PI_ALLOC(v.fc2, n_ff * d, err);
    PI_ALLOC(v.mean, d, err);
    PI_ALLOC(v.bias, n_ff, err);
    PI_ALLOC(v.rest, n_ff, err);
    PI_ALLOC(j.root, d * d, err);
    PI_ALLOC(j.other, s->block_x != NULL ? d * d : 0, err);
    PI_ALLOC(j.mean_y, d, err);
    PI_ALLOC(j.wl, n_ff * d, err);
    PI_TRY(decompose(&j, &v, err));
    bias_at_mean(gate, gate_bias, j.mean_y, &v);
    *out = v;
    memset(&v, 0, sizeof(v));
out:
    pi_svd_free(&v);
    free(j.root);
    free(j.other);
    free(j.mean_y);
    free(j.wl);
    return rc;
}

/* Variance of neuron i that the first r components leave out. */
static double left_out(const struct pi_svd *s, uint32_t i, uint32_t r)
{
    const float *row = s->fc2 + (size_t)i * s->d;
    double all = 1e-12, rest = 0;

    for (uint32_t k = 0; k < s->d; k++) {
        all += (double)row[k] * (double)row[k];
        rest += k >= r ? (double)row[k] * (double)row[k] : 0.0;
    }
    return rest + (double)s->rest[i] +
           1e-4 * all; /* a perfect approximation still has finite odds */
}

static void fill_row(const struct pi_svd *s, uint32_t i, const float *at_mean, bool relu,
                     struct pi_net *net)
{
    const uint32_t r = relu ? net->r / 2 : net->r;
    const float scale = LOGISTIC_STD / (float)sqrt(left_out(s, i, r));
    double shift = (double)s->bias[i];

    for (uint32_t k = 0; k < r; k++) {
        const float w = s->fc2[(size_t)i * s->d + k];

        shift -= (double)w * (double)at_mean[k];
        net->fc2[(size_t)i * net->r + k] = scale * w;
        if (relu)
            net->fc2[(size_t)i * net->r + r + k] = -scale * w;
    }
    net->bias[i] = scale * (float)shift;
}

enum pi_code pi_svd_net(const struct pi_svd *s, uint32_t r, bool relu, struct pi_net *out,
                        struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_net net = {0};
    const uint32_t half = relu ? r / 2 : r;
    float *at_mean = NULL;

    PI_TRY(pi_net_alloc(&net, s->d, s->n_ff, r, err));
    PI_ALLOC(at_mean, r, err);
    net.relu = relu;
    for (uint32_t k = 0; k < half; k++)
        for (uint32_t j = 0; j < s->d; j++) {
            const float w = s->fc1[(size_t)k * s->d + j];

            at_mean[k] += w * s->mean[j];
            net.fc1[(size_t)k * s->d + j] = w;
            if (relu)
                net.fc1[(size_t)(half + k) * s->d + j] = -w;
        }
    for (uint32_t i = 0; i < s->n_ff; i++)
        fill_row(s, i, at_mean, relu, &net);
    *out = net;
    memset(&net, 0, sizeof(net));
out:
    pi_net_free(&net);
    free(at_mean);
    return rc;
}
