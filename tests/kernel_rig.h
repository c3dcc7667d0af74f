/*
 * kernel_rig.h - device memory, random weights and double precision for the tests of device kernels.
 */
#ifndef KERNEL_RIG_H
#define KERNEL_RIG_H

#include "common/pi_estimate.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/cuda/pi_kernels.h"
#include "runtime/pi_gpu.h"
#include "tests/tap.h"

#define RIG_MAX_BUFS 64

struct rig {
    void *stream;
    struct pi_dev_buf bufs[RIG_MAX_BUFS];
    struct pi_pinned pins[RIG_MAX_BUFS];
    int n_bufs, n_pins;
    uint64_t seed;
};

/* A call of the device interface that must not fail: nothing is left to test where it does. */
#define RIG_DO(call)                                                                     \
    do {                                                                                 \
        struct pi_err rig_err_ = {0};                                                    \
        if ((call) != PI_OK) {                                                           \
            printf("Bail out! %s:%d %s: %s\n", __FILE__, __LINE__, #call, rig_err_.msg); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static inline void rig_open(struct rig *r, uint64_t seed)
{
    memset(r, 0, sizeof(*r));
    r->seed = seed;
    RIG_DO(pi_gpu_stream_create(0, &r->stream, &rig_err_));
}

static inline void rig_close(struct rig *r)
{
    for (int i = 0; i < r->n_bufs; i++)
        pi_gpu_free(&r->bufs[i]);
    for (int i = 0; i < r->n_pins; i++)
        pi_gpu_unpin(&r->pins[i]);
    pi_gpu_stream_destroy(r->stream);
}

/* Launches are done and none failed. */
static inline void rig_wait(struct rig *r)
{
    RIG_DO(pi_gpu_launched(&rig_err_));
    RIG_DO(pi_gpu_stream_sync(r->stream, &rig_err_));
}

static inline void *rig_alloc(size_t bytes)
{
    void *p = calloc(bytes > 0 ? bytes : 1, 1);

    if (p == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    return p;
}

/* n bytes on the device: src, or 0xff in each (NaN, -1) where src is NULL. */
static inline void *rig_dev(struct rig *r, const void *src, size_t n)
{
    struct pi_dev_buf *b = &r->bufs[r->n_bufs++];
    void *poison = NULL;

    RIG_DO(pi_gpu_alloc(0, n > 0 ? n : 16, b, &rig_err_));
    if (src == NULL) {
        poison = rig_alloc(n);
        memset(poison, 0xff, n);
    }
    RIG_DO(pi_gpu_upload(b, 0, src != NULL ? src : poison, n, &rig_err_));
    free(poison);
    return b->ptr;
}

static inline void rig_put(void *dev, const void *src, size_t n)
{
    struct pi_dev_buf b = {dev, n};

    RIG_DO(pi_gpu_upload(&b, 0, src, n, &rig_err_));
}

static inline void rig_poison(void *dev, size_t n)
{
    void *p = rig_alloc(n);

    memset(p, 0xff, n);
    rig_put(dev, p, n);
    free(p);
}

static inline void rig_get(void *dst, const void *dev, size_t n)
{
    struct pi_dev_buf b = {NULL, n};

    memcpy(&b.ptr, &dev, sizeof(dev));
    RIG_DO(pi_gpu_download(dst, &b, 0, n, &rig_err_));
}

static inline struct pi_pinned rig_pin(struct rig *r, size_t n)
{
    struct pi_pinned *p = &r->pins[r->n_pins++];

    RIG_DO(pi_gpu_pin(0, n > 0 ? n : 16, p, &rig_err_));
    return *p;
}

/* Uniform in [-1, 1). */
static inline float rig_random(struct rig *r)
{
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(r->seed >> 40) * 0x1p-23f - 1.0f;
}

static inline float *rig_vector(struct rig *r, size_t n, float scale)
{
    float *v = rig_alloc(n * sizeof(*v));

    for (size_t i = 0; i < n; i++)
        v[i] = scale * rig_random(r);
    return v;
}

/* A matrix as files have it, and what its weights are exactly. */
struct rig_mat {
    struct pi_mat m;
    char *bytes; /* owned: m.data */
    float *f;    /* (n_rows, n_cols) */
};

static inline void rig_mat_row(struct rig *r, struct rig_mat *a, uint32_t row, float scale)
{
    const struct pi_cpu_type *t = pi_cpu_get(PI_ISA_SCALAR)->type[a->m.type];
    float *f = a->f + (size_t)row * a->m.n_cols;

    for (uint32_t i = 0; i < a->m.n_cols; i++)
        f[i] = scale * rig_random(r);
    t->from_f32(f, a->bytes + row * a->m.row_bytes, a->m.n_cols);
    t->to_f32(a->bytes + row * a->m.row_bytes, f, a->m.n_cols);
}

static inline struct rig_mat rig_mat(struct rig *r, enum pi_type type, uint32_t rows, uint32_t cols,
                                     float scale)
{
    struct rig_mat a = {0};
    uint64_t row_bytes = 0;

    if (!pi_type_row_bytes(type, cols, &row_bytes)) {
        printf("Bail out! no rows of %u\n", cols);
        exit(1);
    }
    a.m.type = type;
    a.m.n_rows = rows;
    a.m.n_cols = cols;
    a.m.row_bytes = (size_t)row_bytes;
    a.bytes = rig_alloc(rows * a.m.row_bytes);
    a.m.data = a.bytes;
    a.f = rig_alloc((size_t)rows * cols * sizeof(*a.f));
    for (uint32_t i = 0; i < rows; i++)
        rig_mat_row(r, &a, i, scale);
    return a;
}

static inline void rig_mat_free(struct rig_mat *a)
{
    free(a->bytes);
    free(a->f);
}

/* Rows ids[0..n) (NULL: all) on the device. */
static inline struct pi_dmat rig_dmat(struct rig *r, const struct rig_mat *a)
{
    struct pi_dmat d = {.type = a->m.type, .n_rows = a->m.n_rows, .n_cols = a->m.n_cols};
    void *packed;

    d.row_bytes = (size_t)pi_dev_row_bytes(a->m.type, a->m.n_cols);
    packed = rig_alloc(d.n_rows * d.row_bytes);
    pi_dev_pack_rows(&a->m, NULL, a->m.n_rows, packed);
    d.data = rig_dev(r, packed, d.n_rows * d.row_bytes);
    free(packed);
    return d;
}

/* ---- values with what rounding to F32 may do to them ---- */

struct val {
    double v, tol;
};

/* Row of weights times a vector: every product and sum rounds, in any order. */
static inline struct val val_dot(const float *w, const float *x, uint32_t n)
{
    double sum = 0.0, size = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)w[i] * (double)x[i];
        size += fabs((double)w[i] * (double)x[i]);
    }
    return (struct val){sum, 2e-6 * size + 1e-9};
}

static inline struct val val_add(struct val a, struct val b)
{
    return (struct val){a.v + b.v, a.tol + b.tol + 1.2e-7 * fabs(a.v + b.v)};
}

static inline struct val val_mul(struct val a, struct val b)
{
    return (struct val){a.v * b.v, fabs(a.v) * b.tol + fabs(b.v) * a.tol + a.tol * b.tol +
                                       1.2e-7 * fabs(a.v * b.v)};
}

/* NaN where NaN is due, else within tolerance. */
static inline int val_is(struct val a, float got)
{
    return isnan(a.v) ? isnan(got) : fabs(a.v - (double)got) <= a.tol;
}

/* One check for n values; says where the first one is wrong. */
static inline void val_all(const struct val *want, const float *got, size_t n, const char *what)
{
    size_t bad = 0, first = 0;

    for (size_t i = 0; i < n; i++) {
        if (!val_is(want[i], got[i])) {
            first = bad == 0 ? i : first;
            bad++;
        }
    }
    if (!tap_ok(bad == 0, __FILE__, __LINE__, what))
        printf("# %zu of %zu wrong; [%zu] is %.9g, should be %.9g +- %.3g\n", bad, n, first,
               (double)got[first], want[first].v, want[first].tol);
}

/* One check for n words. */
static inline void words_all(const uint32_t *want, const uint32_t *got, size_t n, const char *what)
{
    size_t i = 0;

    while (i < n && want[i] == got[i])
        i++;
    if (!tap_ok(i == n, __FILE__, __LINE__, what))
        printf("# of %zu, [%zu] is %u, should be %u\n", n, i, got[i], want[i]);
}

/* One check for n sums: all within rel of the root mean square of all of them, since one sum alone may cancel to nothing. */
static inline void rms_all(const double *want, const float *got, size_t n, double rel,
                           const char *what)
{
    double scale = 0.0, worst = 0.0;
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        scale += want[i] * want[i] / (double)n;
    scale = sqrt(scale);
    for (size_t i = 0; i < n && !isnan(worst); i++) {
        double d = fabs(want[i] - (double)got[i]);

        if (!(d <= worst)) { /* NaN too */
            worst = d;
            at = i;
        }
    }
    if (!tap_ok(worst <= rel * scale, __FILE__, __LINE__, what))
        printf("# worst of %zu: [%zu] is %.9g, should be %.9g; %.3g of the mean size\n", n, at,
               (double)got[at], want[at], worst / scale);
}

/* RMSNorm or (layer) LayerNorm of x (n), b NULL without bias; w NULL: x itself. */
static inline void norm_exact(const float *x, const float *w, const float *b, bool layer, float eps,
                              uint32_t n, double *out)
{
    double mean = 0.0, sq = 0.0;

    for (uint32_t i = 0; i < n && layer; i++)
        mean += (double)x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        sq += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
    for (uint32_t i = 0; i < n; i++) {
        if (w == NULL)
            out[i] = (double)x[i];
        else
            out[i] = ((double)x[i] - mean) / sqrt(sq + (double)eps) * (double)w[i] +
                     (b != NULL ? (double)b[i] : 0.0);
    }
}

#endif
