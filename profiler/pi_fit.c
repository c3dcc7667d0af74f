#include "config.h"

#include "profiler/pi_fit.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "profiler/pi_random.h"
#include "runtime/pi_blas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK        512 /* tokens whose scores are held at a time */
#define NEURON_CHUNK 64
#define BETA1        0.9f
#define BETA2        0.99f
#define EPSILON      1e-12f

/* ---- the gradient of the loss ---- */

typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint8_t v8b __attribute__((vector_size(8)));

static inline __attribute__((always_inline)) void load8(const float *p, v8f *v)
{
    memcpy(v, p, sizeof(*v));
}

/* e^x for x within [-87, 87]: 2^n times the Taylor polynomial of the rest, |rest| <= ln 2 / 2; relative error below 3e-6. */
static inline __attribute__((always_inline)) void exp8(v8f *v)
{
    const v8f magic = (v8f){} + 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    v8f n = (*v * 1.44269504f + magic) - magic;
    v8f f = *v - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    v8f p = f * (1.0f / 720) + 1.0f / 120;
    v8i power = (__builtin_convertvector(n, v8i) + 127) << 23;
    v8f two_n;

    memcpy(&two_n, &power, sizeof(two_n));
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    *v = p * two_n;
}

static inline __attribute__((always_inline)) void
gradient8(float *z, const v8f *bias, const uint8_t *code, float scale, v8f *sum)
{
    v8b bytes;
    v8f x, e, s, w;
    v8i active, low, high;

    load8(z, &x);
    memcpy(&bytes, code, sizeof(bytes));
    w = __builtin_convertvector(__builtin_convertvector(bytes, v8i), v8f) * scale;
    active = w > 0.0f;
    x = -(x + *bias);
    low = x < -80.0f;
    high = x > 80.0f;
    e = (v8f){} + 80.0f;
    x = (v8f)(((v8i)x & ~low & ~high) | ((v8i)e & high) | ((v8i)(-e) & low));
    exp8(&x);
    s = 1.0f / (1.0f + x);
    s = (v8f)(((v8i)s & ~active) | ((v8i)(w * (s - 1.0f)) & active));
    *sum += s;
    memcpy(z, &s, sizeof(s));
}

static inline __attribute__((always_inline)) void
gradient_body(float *z, size_t ldz, const uint8_t *const *code, uint32_t n, const float *bias,
              float scale, size_t begin, size_t end, float *sum_out)
{
    for (size_t i = begin; i < end; i += 8) {
        v8f b, sum = {};

        load8(bias + i, &b);
        for (uint32_t t = 0; t < n; t++)
            gradient8(z + t * ldz + i, &b, code[t] + i, scale, &sum);
        for (size_t k = 0; k < 8; k++)
            sum_out[i + k] += sum[k];
    }
}

static void gradient_plain(float *z, size_t ldz, const uint8_t *const *code, uint32_t n,
                           const float *bias, float scale, size_t begin, size_t end, float *sum_out)
{
    gradient_body(z, ldz, code, n, bias, scale, begin, end, sum_out);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void
gradient_avx2(float *z, size_t ldz, const uint8_t *const *code, uint32_t n, const float *bias,
              float scale, size_t begin, size_t end, float *sum_out)
{
    gradient_body(z, ldz, code, n, bias, scale, begin, end, sum_out);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define gradient_avx2 gradient_plain
static bool has_avx2(void)
{
    return false;
}
#endif

void pi_fit_gradient(float *z, size_t ldz, const uint8_t *const *code, uint32_t n,
                     const float *bias, float scale, size_t begin, size_t end, float *sum_out,
                     bool portable)
{
    if (!portable && has_avx2())
        gradient_avx2(z, ldz, code, n, bias, scale, begin, end, sum_out);
    else
        gradient_plain(z, ldz, code, n, bias, scale, begin, end, sum_out);
}

/* ---- Adam ---- */

/* One array of weights with its gradient and moments. */
struct tensor {
    float *w; /* borrowed */
    float *g, *m, *v;
    size_t n;
    float scale; /* root mean square at the start: the unit of the step size */
};

/* on_gpu: gradient and moments are elsewhere. */
static enum pi_code tensor_init(struct tensor *t, float *w, size_t n, bool on_gpu,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double sum = 0;

    t->w = w;
    t->n = n;
    if (!on_gpu) {
        PI_ALLOC_ALIGNED(t->g, n, err);
        PI_ALLOC_ALIGNED(t->m, n, err);
        PI_ALLOC_ALIGNED(t->v, n, err);
    }
    for (size_t i = 0; i < n; i++)
        sum += (double)w[i] * (double)w[i];
    t->scale = (float)sqrt(sum / (double)n) + 1e-8f;
out:
    return rc;
}

static void tensor_free(struct tensor *t)
{
    free(t->g);
    free(t->m);
    free(t->v);
}

struct adam_job {
    struct tensor *t;
    float rate, c1, c2; /* step size; bias corrections 1 / (1 - beta^step) */
};

static void adam_range(void *ctx, size_t begin, size_t end)
{
    const struct adam_job *j = ctx;
    float *restrict w = j->t->w, *restrict m = j->t->m, *restrict v = j->t->v;
    const float *restrict g = j->t->g;

    for (size_t i = begin; i < end; i++) {
        m[i] = BETA1 * m[i] + (1.0f - BETA1) * g[i];
        v[i] = BETA2 * v[i] + (1.0f - BETA2) * g[i] * g[i];
        w[i] -= j->rate * (m[i] * j->c1) / (sqrtf(v[i] * j->c2) + EPSILON);
    }
}

/* ---- one fit ---- */

enum {
    FC1,
    FC2,
    BIAS,
    N_TENSORS
};

struct fit {
    struct pi_net *net;
    const struct pi_trainset *s;
    const struct pi_labels *l;
    struct pi_pool *pool;
    const struct pi_fit_options *o;
    struct tensor t[N_TENSORS];       /* on a GPU: sizes and scales alone */
    float *x, *hidden, *d_hidden, *z; /* (CHUNK, d), (CHUNK, r) twice, (CHUNK, ldz) */
    size_t ldz;                       /* n_ff rounded up to 8 */
    const uint8_t **code;             /* (CHUNK) */
    uint32_t *order, at; /* a permutation of [0, n_part), and where the next batch begins */
    uint32_t n;          /* tokens of the current chunk */
    uint32_t *batch;     /* on a GPU: (o->batch) samples of a step, numbers within the part */
    struct pi_random random;
};

static enum pi_code fit_init(struct fit *f, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_net *net = f->net;
    const size_t d = net->d, r = net->r, n_ff = net->n_ff;
    const bool on_gpu = f->s->gpu != NULL;

    f->ldz = (n_ff + 7) / 8 * 8;
    f->random.state = f->o->seed;
    PI_TRY(tensor_init(&f->t[FC1], net->fc1, r * d, on_gpu, err));
    PI_TRY(tensor_init(&f->t[FC2], net->fc2, r * n_ff, on_gpu, err));
    PI_TRY(tensor_init(&f->t[BIAS], net->bias, f->ldz, on_gpu, err));
    if (on_gpu) {
        PI_ALLOC(f->batch, f->o->batch, err);
    } else {
        PI_ALLOC_ALIGNED(f->x, CHUNK * d, err);
        PI_ALLOC_ALIGNED(f->hidden, CHUNK * r, err);
        PI_ALLOC_ALIGNED(f->d_hidden, CHUNK * r, err);
        PI_ALLOC_ALIGNED(f->z, CHUNK * f->ldz, err);
        PI_ALLOC(f->code, CHUNK, err);
    }
    PI_ALLOC(f->order, f->s->n_part[PI_PART_TRAIN], err);
    for (uint32_t i = 0; i < f->s->n_part[PI_PART_TRAIN]; i++)
        f->order[i] = i;
    f->at = f->s->n_part[PI_PART_TRAIN]; /* shuffles first */
out:
    return rc;
}

static void fit_free(struct fit *f)
{
    for (int i = 0; i < N_TENSORS; i++)
        tensor_free(&f->t[i]);
    free(f->x);
    free(f->hidden);
    free(f->d_hidden);
    free(f->z);
    free(f->code);
    free(f->order);
    free(f->batch);
}

/* The next sample of the permutation; a new one is drawn when it is used up. */
static uint32_t next_sample(struct fit *f)
{
    const uint32_t total = f->s->n_part[PI_PART_TRAIN];

    for (uint32_t k = total - 1; f->at >= total && k > 0; k--) {
        const uint32_t j = (uint32_t)pi_random_below(&f->random, k + UINT64_C(1));
        const uint32_t swap = f->order[k];

        f->order[k] = f->order[j];
        f->order[j] = swap;
    }
    f->at = f->at >= total ? 0 : f->at;
    return f->order[f->at++];
}

static void gather(struct fit *f, uint32_t n)
{
    const size_t d = f->net->d;

    for (uint32_t t = 0; t < n; t++) {
        const uint32_t i = next_sample(f);

        memcpy(f->x + t * d, f->s->x + f->s->part[PI_PART_TRAIN][i] * d, d * sizeof(*f->x));
        f->code[t] = f->l->code + i * f->l->ld;
    }
    f->n = n;
}

static void gradient_range(void *ctx, size_t begin, size_t end)
{
    struct fit *f = ctx;

    pi_fit_gradient(f->z, f->ldz, f->code, f->n, f->net->bias, f->l->scale, begin, end,
                    f->t[BIAS].g, false);
}

/* Adds one chunk's gradients: z = hidden fc2^T, backwards through both layers. beta 0 starts a new sum. */
static void add_chunk(struct fit *f, float beta)
{
    const struct pi_net *net = f->net;
    const size_t d = net->d, r = net->r, n_ff = net->n_ff, n = f->n;
    struct pi_pool *p = f->pool;

    pi_blas_gemm(p, false, true, n, r, d, 1.0f, f->x, d, net->fc1, d, 0.0f, f->hidden, r);
    for (size_t i = 0; net->relu && i < n * r; i++)
        f->hidden[i] = f->hidden[i] > 0.0f ? f->hidden[i] : 0.0f;
    pi_blas_gemm(p, false, true, n, n_ff, r, 1.0f, f->hidden, r, net->fc2, r, 0.0f, f->z, f->ldz);
    pi_pool_for(p, n_ff, NEURON_CHUNK, gradient_range, f);
    pi_blas_gemm(p, true, false, n_ff, r, n, 1.0f, f->z, f->ldz, f->hidden, r, beta, f->t[FC2].g,
                 r);
    pi_blas_gemm(p, false, false, n, r, n_ff, 1.0f, f->z, f->ldz, net->fc2, r, 0.0f, f->d_hidden,
                 r);
    for (size_t i = 0; net->relu && i < n * r; i++)
        f->d_hidden[i] = f->hidden[i] > 0.0f ? f->d_hidden[i] : 0.0f;
    pi_blas_gemm(p, true, false, r, d, n, 1.0f, f->d_hidden, r, f->x, d, beta, f->t[FC1].g, d);
}

/* What a step's number makes of the step sizes: rate (N_TENSORS), and Adam's corrections. */
struct pace {
    float rate[N_TENSORS], c1, c2;
};

static struct pace pace_of(const struct fit *f, uint32_t number)
{
    const float rate = f->o->rate > 0.0f ? f->o->rate : PI_FIT_RATE;
    const double warm = fmin(1.0, (number + 1.0) * 10.0 / f->o->steps);
    const double cool = 0.5 * (1.0 + cos(M_PI * number / f->o->steps));
    struct pace p = {.c1 = 1.0f / (1.0f - powf(BETA1, (float)number + 1.0f)),
                     .c2 = 1.0f / (1.0f - powf(BETA2, (float)number + 1.0f))};

    for (int i = 0; i < N_TENSORS; i++)
        p.rate[i] = (float)(warm * cool) * rate * f->t[i].scale;
    return p;
}

static void step(struct fit *f, uint32_t number)
{
    const struct pace p = pace_of(f, number);
    struct adam_job j = {.c1 = p.c1, .c2 = p.c2};

    memset(f->t[BIAS].g, 0, f->t[BIAS].n * sizeof(float));
    for (uint32_t done = 0; done < f->o->batch; done += f->n) {
        gather(f, f->o->batch - done < CHUNK ? f->o->batch - done : CHUNK);
        add_chunk(f, done == 0 ? 0.0f : 1.0f);
    }
    for (int i = 0; i < N_TENSORS; i++) {
        j.t = &f->t[i];
        j.rate = p.rate[i];
        pi_pool_for(f->pool, f->t[i].n, 4096, adam_range, &j);
    }
    /* what lies behind the last neuron got a gradient too */
    memset(f->net->bias + f->net->n_ff, 0, (f->ldz - f->net->n_ff) * sizeof(float));
}

/* The same samples in the same order, all products and sums on the GPU. */
static enum pi_code fit_on_gpu(struct fit *f, struct pi_err *err)
{
    const struct pi_gpu_net net = pi_net_for_gpu(f->net);
    const struct pi_gpu_fit_task t = {.code = f->l->code,
                                      .ld = f->l->ld,
                                      .scale = f->l->scale,
                                      .rows = f->s->part[PI_PART_TRAIN],
                                      .n_rows = f->s->n_part[PI_PART_TRAIN],
                                      .batch = f->o->batch,
                                      .beta1 = BETA1,
                                      .beta2 = BETA2,
                                      .epsilon = EPSILON};
    enum pi_code rc;

    PI_TRY(pi_gpu_fit_net(f->s->gpu, &net, err));
    PI_TRY(pi_gpu_fit_begin(f->s->gpu, &t, err));
    for (uint32_t i = 0; i < f->o->steps; i++) {
        const struct pace p = pace_of(f, i);

        PI_TRY(pi_interrupt_check(err));
        for (uint32_t k = 0; k < f->o->batch; k++)
            f->batch[k] = next_sample(f);
        PI_TRY(pi_gpu_fit_step(f->s->gpu, f->batch, p.rate, p.c1, p.c2, err));
    }
    PI_TRY(pi_gpu_fit_end(f->s->gpu, &net, err));
out:
    return rc;
}

static enum pi_code fit_on_cpu(struct fit *f, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < f->o->steps; i++) {
        PI_TRY(pi_interrupt_check(err));
        step(f, i);
    }
out:
    return rc;
}

enum pi_code pi_fit(struct pi_net *net, const struct pi_trainset *s, const struct pi_labels *l,
                    struct pi_pool *pool, const struct pi_fit_options *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct fit f = {.net = net, .s = s, .l = l, .pool = pool, .o = o};

    PI_TRY(fit_init(&f, err));
    PI_TRY(s->gpu != NULL ? fit_on_gpu(&f, err) : fit_on_cpu(&f, err));
out:
    fit_free(&f);
    return rc;
}
