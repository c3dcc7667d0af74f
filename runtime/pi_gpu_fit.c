/* pi_gpu_fit.c - see pi_gpu_fit.h. Everything is launched into one stream; what comes and goes passes through pinned memory, for which one can wait with a limit. */
#include "config.h"

#include "runtime/pi_gpu_fit.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"
#include "common/pi_type.h"
#include "runtime/cuda/pi_k_train.h"
#include "runtime/pi_gpu.h"

#include <stdlib.h>
#include <string.h>

#define WORKSPACE ((size_t)32 << 20)
#define ROW_CHUNK 4096u /* samples of a covariance, and of scores, at a time */
#define N_ORDERS  2     /* batches that may be on their way */
#define N_STAGES  2
#define STAGE     ((size_t)4 << 20)

/* The arrays that training changes. */
enum {
    FC1,
    FC2,
    BIAS,
    N_TENSORS
};

struct tensor {
    struct pi_dev_buf w, g, m, v;
    size_t n;
};

struct pi_gpu_fit {
    int index;
    void *stream, *blas;
    struct pi_dev_buf workspace;
    struct pi_dev_buf
        samples[2]; /* by enum pi_gpu_fit_side; the second empty where it is the first */
    uint32_t n, d;  /* samples */
    uint32_t n_ff, r;
    bool relu;
    struct tensor t[N_TENSORS];
    struct pi_dev_buf rows;         /* (2, ROW_CHUNK or batch): rows of samples, rows of labels */
    struct pi_dev_buf x, hidden, z; /* scratch for scores and steps */
    struct pi_dev_buf d_hidden, code, parts; /* of training alone */
    struct pi_gpu_fit_task task;
    struct pi_pinned order[N_ORDERS]; /* (2, batch) */
    void *taken[N_ORDERS];            /* events: the copy has ended */
    uint32_t n_steps;
    struct pi_pinned stage[N_STAGES]; /* STAGE bytes each */
    void *staged[N_STAGES];           /* events: the copy out of it, or into it, has ended */
};

/* ---- memory ---- */

/* A buffer of at least n * m * size bytes in *b; what is there is kept only where it is large enough. */
static enum pi_code want(struct pi_gpu_fit *f, struct pi_dev_buf *b, uint64_t n, uint64_t m,
                         uint64_t size, const char *what, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t bytes;

    if (!pi_size_mul(n, m, &bytes) || !pi_size_mul(bytes, size, &bytes) || bytes > SIZE_MAX / 2)
        PI_FAIL(err, PI_E_RANGE, "%s: more bytes than can be counted", what);
    if (b->bytes >= bytes && b->ptr != NULL)
        return PI_OK;
    pi_gpu_free(b);
    rc = pi_gpu_alloc(f->index, bytes > 0 ? (size_t)bytes : 1, b, err);
    if (rc == PI_E_NOMEM)
        pi_err_wrap(err, "GPU %d: %.1f MiB for %s (--device cpu needs none)", f->index,
                    (double)bytes / 1048576.0, what);
out:
    return rc;
}

static enum pi_code bring(struct pi_gpu_fit *f, struct pi_dev_buf *b, const void *from, uint64_t n,
                          uint64_t m, uint64_t size, const char *what, struct pi_err *err)
{
    enum pi_code rc;
    size_t left = (size_t)(n * m * size), done = 0;

    PI_TRY(want(f, b, n, m, size, what, err));
    for (int k = 0; left > 0; k = (k + 1) % N_STAGES) {
        const size_t bytes = left < STAGE ? left : STAGE;

        PI_TRY(pi_gpu_event_sync(f->staged[k], err)); /* at once when it was never recorded */
        memcpy(f->stage[k].host, (const char *)from + done, bytes);
        PI_TRY(pi_gpu_copy_async((char *)b->ptr + done, f->stage[k].host, bytes, f->stream, err));
        PI_TRY(pi_gpu_event_record(f->staged[k], f->stream, err));
        done += bytes;
        left -= bytes;
    }
out:
    return rc;
}

/* Of bytes in all, those from `at` on that a stage holds are on their way to it. */
static enum pi_code fetch_piece(struct pi_gpu_fit *f, const struct pi_dev_buf *b, size_t at,
                                size_t bytes, int k, struct pi_err *err)
{
    enum pi_code rc;

    PI_TRY(pi_gpu_copy_async(f->stage[k].host, (const char *)b->ptr + at,
                             bytes - at < STAGE ? bytes - at : STAGE, f->stream, err));
    PI_TRY(pi_gpu_event_record(f->staged[k], f->stream, err));
out:
    return rc;
}

static enum pi_code fetch(struct pi_gpu_fit *f, void *to, const struct pi_dev_buf *b, size_t bytes,
                          struct pi_err *err)
{
    enum pi_code rc;
    size_t begun = 0;

    PI_TRY(pi_gpu_launched(err));
    for (int k = 0; begun < bytes && k < N_STAGES; k++, begun += STAGE)
        PI_TRY(fetch_piece(f, b, begun, bytes, k, err));
    for (size_t at = 0, k = 0; at < bytes; at += STAGE, k = (k + 1) % N_STAGES) {
        PI_TRY(pi_gpu_event_sync(f->staged[k], err));
        memcpy((char *)to + at, f->stage[k].host, bytes - at < STAGE ? bytes - at : STAGE);
        if (begun < bytes)
            PI_TRY(fetch_piece(f, b, begun, bytes, (int)k, err));
        begun += STAGE;
    }
    PI_TRY(pi_gpu_stream_sync(f->stream, err));
out:
    return rc;
}

enum pi_code pi_gpu_fit_create(int index, struct pi_gpu_fit **out, struct pi_err *err)
{
    struct pi_gpu_fit *f = NULL;
    enum pi_code rc;

    PI_ALLOC(f, 1, err);
    f->index = index;
    PI_TRY(pi_gpu_use(index, err));
    PI_TRY(pi_gpu_stream_create(index, &f->stream, err));
    PI_TRY(want(f, &f->workspace, 1, WORKSPACE, 1, "products", err));
    PI_TRY(pi_gpu_blas_create(f->stream, &f->workspace, &f->blas, err));
    for (int i = 0; i < N_ORDERS; i++)
        PI_TRY(pi_gpu_event_create(false, &f->taken[i], err));
    for (int i = 0; i < N_STAGES; i++) {
        PI_TRY(pi_gpu_pin(index, STAGE, &f->stage[i], err));
        PI_TRY(pi_gpu_event_create(false, &f->staged[i], err));
    }
    *out = f;
    f = NULL;
out:
    pi_gpu_fit_destroy(f);
    return rc;
}

static void free_tensor(struct tensor *t)
{
    pi_gpu_free(&t->w);
    pi_gpu_free(&t->g);
    pi_gpu_free(&t->m);
    pi_gpu_free(&t->v);
}

static void free_training(struct pi_gpu_fit *f)
{
    for (int i = 0; i < N_TENSORS; i++) {
        pi_gpu_free(&f->t[i].g);
        pi_gpu_free(&f->t[i].m);
        pi_gpu_free(&f->t[i].v);
    }
    pi_gpu_free(&f->d_hidden);
    pi_gpu_free(&f->code);
    pi_gpu_free(&f->parts);
    for (int i = 0; i < N_ORDERS; i++)
        pi_gpu_unpin(&f->order[i]);
}

void pi_gpu_fit_destroy(struct pi_gpu_fit *f)
{
    struct pi_err ignored;

    if (f == NULL)
        return;
    if (f->stream != NULL)
        (void)!pi_gpu_stream_sync(f->stream, &ignored);
    free_training(f);
    for (int i = 0; i < N_TENSORS; i++)
        free_tensor(&f->t[i]);
    pi_gpu_free(&f->rows);
    pi_gpu_free(&f->x);
    pi_gpu_free(&f->hidden);
    pi_gpu_free(&f->z);
    for (int i = 0; i < 2; i++)
        pi_gpu_free(&f->samples[i]);
    for (int i = 0; i < N_ORDERS; i++) {
        if (f->taken[i] != NULL)
            pi_gpu_event_destroy(f->taken[i]);
    }
    for (int i = 0; i < N_STAGES; i++) {
        pi_gpu_unpin(&f->stage[i]);
        if (f->staged[i] != NULL)
            pi_gpu_event_destroy(f->staged[i]);
    }
    if (f->blas != NULL)
        pi_gpu_blas_destroy(f->blas);
    pi_gpu_free(&f->workspace);
    if (f->stream != NULL)
        pi_gpu_stream_destroy(f->stream);
    free(f);
}

/* ---- products ---- */

/* F32, rows without gaps; a and b on the device. */
static enum pi_code multiply(struct pi_gpu_fit *f, bool ta, bool tb, uint32_t m, uint32_t n,
                             uint32_t k, float alpha, const float *a, const float *b, float beta,
                             float *c, struct pi_err *err)
{
    return pi_gpu_gemm(f->blas, ta, tb, m, n, k, alpha, PI_TYPE_F32, a, ta ? m : k, b, tb ? k : n,
                       beta, c, n, err);
}

enum pi_code pi_gpu_fit_product(struct pi_gpu_fit *f, bool trans_a, bool trans_b, uint32_t m,
                                uint32_t n, uint32_t k, const float *a, const float *b, float *c,
                                struct pi_err *err)
{
    struct pi_dev_buf da = {0}, db = {0}, dc = {0};
    enum pi_code rc;

    PI_TRY(bring(f, &da, a, m, k, sizeof(float), "a product", err));
    if (a != b)
        PI_TRY(bring(f, &db, b, k, n, sizeof(float), "a product", err));
    PI_TRY(want(f, &dc, m, n, sizeof(float), "a product", err));
    PI_TRY(multiply(f, trans_a, trans_b, m, n, k, 1.0f, da.ptr, a != b ? db.ptr : da.ptr, 0.0f,
                    dc.ptr, err));
    PI_TRY(fetch(f, c, &dc, (size_t)m * n * sizeof(float), err));
out:
    pi_gpu_free(&da);
    pi_gpu_free(&db);
    pi_gpu_free(&dc);
    return rc;
}

/* ---- samples ---- */

enum pi_code pi_gpu_fit_samples(struct pi_gpu_fit *f, const float *x, const float *block_x,
                                uint32_t n, uint32_t d, struct pi_err *err)
{
    enum pi_code rc;

    PI_TRY(bring(f, &f->samples[PI_GPU_FIT_X], x, n, d, sizeof(float), "samples", err));
    pi_gpu_free(&f->samples[PI_GPU_FIT_BLOCK]);
    if (block_x != NULL)
        PI_TRY(
            bring(f, &f->samples[PI_GPU_FIT_BLOCK], block_x, n, d, sizeof(float), "samples", err));
    f->n = n;
    f->d = d;
out:
    return rc;
}

static const float *side(const struct pi_gpu_fit *f, enum pi_gpu_fit_side s)
{
    return f->samples[s].ptr != NULL ? f->samples[s].ptr : f->samples[PI_GPU_FIT_X].ptr;
}

/* Rows of one side less a mean (device, or NULL) to *to; their numbers are in f->rows. */
static enum pi_code centred(struct pi_gpu_fit *f, enum pi_gpu_fit_side s,
                            const struct pi_dev_buf *mean, uint32_t n, struct pi_dev_buf *to,
                            struct pi_err *err)
{
    enum pi_code rc;

    PI_TRY(want(f, to, ROW_CHUNK, f->d, sizeof(float), "samples", err));
    pi_kt_rows(side(f, s), f->rows.ptr, mean->ptr, to->ptr, n, f->d, f->stream);
out:
    return rc;
}

enum pi_code pi_gpu_fit_covariance(struct pi_gpu_fit *f, enum pi_gpu_fit_side a,
                                   const float *mean_a, enum pi_gpu_fit_side b, const float *mean_b,
                                   const uint32_t *rows, uint32_t n, float *out, struct pi_err *err)
{
    struct pi_dev_buf ma = {0}, mb = {0}, xa = {0}, xb = {0}, c = {0};
    const uint32_t d = f->d;
    enum pi_code rc;

    PI_TRY(bring(f, &ma, mean_a, 1, d, sizeof(float), "means", err));
    PI_TRY(bring(f, &mb, mean_b, 1, d, sizeof(float), "means", err));
    PI_TRY(want(f, &c, d, d, sizeof(float), "a covariance", err));
    for (uint32_t i = 0; i < n; i += ROW_CHUNK) {
        const uint32_t m = n - i < ROW_CHUNK ? n - i : ROW_CHUNK;

        PI_TRY(bring(f, &f->rows, rows + i, 1, m, sizeof(*rows), "samples", err));
        PI_TRY(centred(f, a, &ma, m, &xa, err));
        PI_TRY(centred(f, b, &mb, m, &xb, err));
        PI_TRY(multiply(f, true, false, d, d, m, 1.0f / (float)n, xa.ptr, xb.ptr,
                        i == 0 ? 0.0f : 1.0f, c.ptr, err));
    }
    PI_TRY(fetch(f, out, &c, (size_t)d * d * sizeof(float), err));
out:
    pi_gpu_free(&ma);
    pi_gpu_free(&mb);
    pi_gpu_free(&xa);
    pi_gpu_free(&xb);
    pi_gpu_free(&c);
    return rc;
}

/* ---- scores ---- */

enum pi_code pi_gpu_fit_net(struct pi_gpu_fit *f, const struct pi_gpu_net *net, struct pi_err *err)
{
    const struct {
        const float *w;
        size_t n;
    } from[N_TENSORS] = {{net->fc1, (size_t)net->r * net->d},
                         {net->fc2, (size_t)net->n_ff * net->r},
                         {net->bias, net->n_ff}};
    enum pi_code rc = PI_OK;

    if (net->d != f->d)
        PI_FAIL(err, PI_E_MISMATCH, "a net for %u inputs, samples have %u", net->d, f->d);
    f->n_ff = net->n_ff;
    f->r = net->r;
    f->relu = net->relu;
    for (int i = 0; i < N_TENSORS; i++) {
        f->t[i].n = from[i].n;
        PI_TRY(bring(f, &f->t[i].w, from[i].w, 1, from[i].n, sizeof(float), "a net", err));
    }
out:
    return rc;
}

/* x, hidden, z for n tokens. */
static enum pi_code want_scratch(struct pi_gpu_fit *f, uint32_t n, struct pi_err *err)
{
    enum pi_code rc;

    PI_TRY(want(f, &f->rows, 2, n, sizeof(uint32_t), "samples", err));
    PI_TRY(want(f, &f->x, n, f->d, sizeof(float), "samples", err));
    PI_TRY(want(f, &f->hidden, n, f->r, sizeof(float), "scores", err));
    PI_TRY(want(f, &f->z, n, f->n_ff, sizeof(float), "scores", err));
out:
    return rc;
}

/* z = hidden fc2^T + beta z for the samples whose numbers are in f->rows. */
static enum pi_code forward(struct pi_gpu_fit *f, uint32_t n, float beta, struct pi_err *err)
{
    enum pi_code rc;

    pi_kt_rows(side(f, PI_GPU_FIT_X), f->rows.ptr, NULL, f->x.ptr, n, f->d, f->stream);
    PI_TRY(multiply(f, false, true, n, f->r, f->d, 1.0f, f->x.ptr, f->t[FC1].w.ptr, 0.0f,
                    f->hidden.ptr, err));
    if (f->relu)
        pi_kt_relu(f->hidden.ptr, (size_t)n * f->r, f->stream);
    PI_TRY(multiply(f, false, true, n, f->n_ff, f->r, 1.0f, f->hidden.ptr, f->t[FC2].w.ptr, beta,
                    f->z.ptr, err));
out:
    return rc;
}

enum pi_code pi_gpu_fit_score(struct pi_gpu_fit *f, const uint32_t *rows, uint32_t n, float *z,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < n; i += ROW_CHUNK) {
        const uint32_t m = n - i < ROW_CHUNK ? n - i : ROW_CHUNK;

        PI_TRY(want_scratch(f, m, err));
        PI_TRY(bring(f, &f->rows, rows + i, 1, m, sizeof(*rows), "samples", err));
        pi_kt_fill(f->z.ptr, f->t[BIAS].w.ptr, m, f->n_ff, f->stream);
        PI_TRY(forward(f, m, 1.0f, err));
        PI_TRY(fetch(f, z + (size_t)i * f->n_ff, &f->z, (size_t)m * f->n_ff * sizeof(float), err));
    }
out:
    return rc;
}

/* ---- training ---- */

/* Gradient and moments of an array, zero. */
static enum pi_code zeroed(struct pi_gpu_fit *f, struct tensor *t, struct pi_err *err)
{
    const size_t bytes = t->n * sizeof(float);
    struct pi_dev_buf *b[3] = {&t->g, &t->m, &t->v};
    enum pi_code rc = PI_OK;

    for (int i = 0; i < 3; i++) {
        PI_TRY(want(f, b[i], 1, t->n, sizeof(float), "training", err));
        pi_kt_zero(b[i]->ptr, bytes / sizeof(float), f->stream);
    }
out:
    return rc;
}

enum pi_code pi_gpu_fit_begin(struct pi_gpu_fit *f, const struct pi_gpu_fit_task *t,
                              struct pi_err *err)
{
    const size_t order_bytes = 2 * (size_t)t->batch * sizeof(uint32_t);
    enum pi_code rc;

    f->task = *t;
    f->n_steps = 0;
    PI_TRY(bring(f, &f->code, t->code, t->n_rows, t->ld, 1, "labels", err));
    PI_TRY(want_scratch(f, t->batch, err));
    PI_TRY(want(f, &f->d_hidden, t->batch, f->r, sizeof(float), "training", err));
    PI_TRY(want(f, &f->parts, PI_KT_PARTS, f->n_ff, sizeof(float), "training", err));
    for (int i = 0; i < N_TENSORS; i++)
        PI_TRY(zeroed(f, &f->t[i], err));
    for (int i = 0; i < N_ORDERS; i++) {
        pi_gpu_unpin(&f->order[i]);
        PI_TRY(pi_gpu_pin(f->index, order_bytes, &f->order[i], err));
    }
    PI_TRY(pi_gpu_launched(err));
out:
    return rc;
}

/* The batch's rows of samples, then of labels, to f->rows. */
static enum pi_code send_order(struct pi_gpu_fit *f, const uint32_t *order, struct pi_err *err)
{
    const uint32_t n = f->task.batch;
    const int k = (int)(f->n_steps % N_ORDERS);
    uint32_t *rows = f->order[k].host;
    enum pi_code rc = PI_OK;

    if (f->n_steps >= N_ORDERS)
        PI_TRY(pi_gpu_event_sync(f->taken[k], err));
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = f->task.rows[order[i]];
        rows[n + i] = order[i];
    }
    PI_TRY(pi_gpu_copy_async(f->rows.ptr, rows, 2 * (size_t)n * sizeof(*rows), f->stream, err));
    PI_TRY(pi_gpu_event_record(f->taken[k], f->stream, err));
    f->n_steps++;
out:
    return rc;
}

/* Gradients of all weights from dz in z and the forward pass's arrays. */
static enum pi_code backward(struct pi_gpu_fit *f, struct pi_err *err)
{
    const uint32_t n = f->task.batch;
    enum pi_code rc;

    PI_TRY(multiply(f, true, false, f->n_ff, f->r, n, 1.0f, f->z.ptr, f->hidden.ptr, 0.0f,
                    f->t[FC2].g.ptr, err));
    PI_TRY(multiply(f, false, false, n, f->r, f->n_ff, 1.0f, f->z.ptr, f->t[FC2].w.ptr, 0.0f,
                    f->d_hidden.ptr, err));
    if (f->relu)
        pi_kt_mask(f->d_hidden.ptr, f->hidden.ptr, (size_t)n * f->r, f->stream);
    PI_TRY(multiply(f, true, false, f->r, f->d, n, 1.0f, f->d_hidden.ptr, f->x.ptr, 0.0f,
                    f->t[FC1].g.ptr, err));
out:
    return rc;
}

enum pi_code pi_gpu_fit_step(struct pi_gpu_fit *f, const uint32_t *order, const float rate[3],
                             float c1, float c2, struct pi_err *err)
{
    const struct pi_gpu_fit_task *t = &f->task;
    const struct pi_kt_gradient g = {.z = f->z.ptr,
                                     .code = f->code.ptr,
                                     .ld = t->ld,
                                     .rows = (const uint32_t *)f->rows.ptr + t->batch,
                                     .bias = f->t[BIAS].w.ptr,
                                     .scale = t->scale,
                                     .n = t->batch,
                                     .n_ff = f->n_ff,
                                     .parts = f->parts.ptr,
                                     .sum = f->t[BIAS].g.ptr};
    enum pi_code rc;

    PI_TRY(send_order(f, order, err));
    PI_TRY(forward(f, t->batch, 0.0f, err));
    pi_kt_zero(f->t[BIAS].g.ptr, f->n_ff, f->stream);
    pi_kt_gradient(&g, f->stream);
    PI_TRY(backward(f, err));
    for (int i = 0; i < N_TENSORS; i++) {
        const struct pi_kt_adam a = {.w = f->t[i].w.ptr,
                                     .m = f->t[i].m.ptr,
                                     .v = f->t[i].v.ptr,
                                     .g = f->t[i].g.ptr,
                                     .n = f->t[i].n,
                                     .rate = rate[i],
                                     .c1 = c1,
                                     .c2 = c2,
                                     .beta1 = t->beta1,
                                     .beta2 = t->beta2,
                                     .epsilon = t->epsilon};

        pi_kt_adam(&a, f->stream);
    }
    PI_TRY(pi_gpu_launched(err));
out:
    return rc;
}

enum pi_code pi_gpu_fit_end(struct pi_gpu_fit *f, const struct pi_gpu_net *net, struct pi_err *err)
{
    float *to[N_TENSORS] = {net->fc1, net->fc2, net->bias};
    enum pi_code rc = PI_OK;

    for (int i = 0; i < N_TENSORS; i++)
        PI_TRY(fetch(f, to[i], &f->t[i].w, f->t[i].n * sizeof(float), err));
    free_training(f);
out:
    return rc;
}
