#include "config.h"

#include "profiler/pi_damage.h"

#include "common/pi_alloc.h"
#include "profiler/pi_calibrate.h"
#include "runtime/pi_model.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 512 /* tokens scored at a time */

void pi_damage_free(struct pi_damage *m)
{
    free(m->sample);
    free(m->begin);
    free(m->id);
    free(m->prod);
    free(m->energy);
    memset(m, 0, sizeof(*m));
}

/* ---- the whole block on some tokens ---- */

float pi_block_neuron(const struct pi_block *b, const struct pi_cpu *cpu, uint32_t i,
                      const float *x, uint32_t d)
{
    const size_t at = (size_t)i * d;
    float h = cpu->dot_f32(b->gate + at, x, d), up;

    h = pi_activate(b->shape, h + (b->gate_bias != NULL ? b->gate_bias[i] : 0.0f));
    if (b->up == NULL)
        return h;
    up = cpu->dot_f32(b->up + at, x, d) + (b->up_bias != NULL ? b->up_bias[i] : 0.0f);
    return h * (b->shape->act_up ? pi_activate(b->shape, up) : up);
}

struct make_job {
    struct pi_damage *m;
    const struct pi_trainset *s;
    const struct pi_block *b;
    const struct pi_cpu *cpu;
    float *sum; /* (n_threads, d) */
};

static void make_token(const struct make_job *j, uint32_t t, float *sum)
{
    struct pi_damage *m = j->m;
    const size_t d = m->d;
    const uint32_t sample = m->sample[t];
    const float *x = pi_trainset_block_x(j->s) + sample * d;

    memcpy(sum, j->s->residual + (size_t)j->s->residual_row[sample] * d, d * sizeof(*sum));
    for (size_t k = 0; j->b->down_bias != NULL && k < d; k++)
        sum[k] += j->b->down_bias[k];
    for (size_t a = m->begin[t]; a < m->begin[t + 1]; a++) {
        m->prod[a] = pi_block_neuron(j->b, j->cpu, m->id[a], x, m->d);
        j->cpu->axpy_f32(m->prod[a], m->down_t + m->id[a] * d, sum, m->d);
    }
    m->energy[t] = (double)j->cpu->sum_squares(sum, m->d);
}

static void make_tokens(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct make_job *j = ctx;

    for (uint32_t t = thread; t < j->m->n; t += n_threads)
        make_token(j, t, j->sum + (size_t)thread * j->m->d);
}

static enum pi_code list_active(struct pi_damage *m, const struct pi_trainset *s,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t have = s->n_part[PI_PART_CALIBRATE];
    size_t n = 0, cap = 0;

    m->n = have < PI_DAMAGE_TOKENS ? have : PI_DAMAGE_TOKENS;
    PI_ALLOC(m->sample, m->n, err);
    PI_ALLOC(m->begin, m->n + (size_t)1, err);
    PI_ALLOC(m->energy, m->n, err);
    for (uint32_t t = 0; t < m->n; t++) {
        const uint8_t *mask;

        m->sample[t] = s->part[PI_PART_CALIBRATE][(uint64_t)t * have / m->n];
        mask = s->mask + m->sample[t] * s->mask_bytes;
        PI_TRY(pi_grow_array(&m->id, &cap, n + s->n_ff, sizeof(*m->id), err));
        for (uint32_t i = 0; i < s->n_ff; i++)
            if (mask[i / 8] >> i % 8 & 1)
                m->id[n++] = i;
        m->begin[t + 1] = n;
    }
    PI_ALLOC(m->prod, n, err);
out:
    return rc;
}

enum pi_code pi_damage_make(const struct pi_trainset *s, const struct pi_block *b,
                            struct pi_pool *pool, struct pi_damage *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_damage m = {.d = s->d, .down_t = b->down_t};
    struct make_job j = {.m = &m, .s = s, .b = b};

    PI_TRY(pi_cpu_select(&j.cpu, err));
    PI_TRY(list_active(&m, s, err));
    PI_ALLOC_ALIGNED(j.sum, (size_t)pi_pool_size(pool) * s->d, err);
    pi_pool_run(pool, make_tokens, &j);
    *out = m;
    memset(&m, 0, sizeof(m));
out:
    pi_damage_free(&m);
    free(j.sum);
    return rc;
}

/* ---- what a predictor leaves out ---- */

struct measure_job {
    const struct pi_damage *m;
    const struct pi_net *net;
    const struct pi_cpu *cpu;
    const float *threshold;
    uint32_t n_thresholds, at, n_tok; /* of the chunk */
    float *x, *hidden, *z;            /* (CHUNK, d), (CHUNK, r), (CHUNK, n_ff) */
    float *sum;                       /* (n_threads, d) */
    uint8_t *place;                   /* (n_threads, n_ff) */
    double *share;                    /* (n, n_thresholds) */
};

/* From the lowest threshold up: each one misses what the one below misses, and more. */
static void measure_token(const struct measure_job *j, uint32_t t, float *sum, uint8_t *place)
{
    const struct pi_damage *m = j->m;
    const float *z = j->z + (size_t)(t - j->at) * j->net->n_ff;
    const size_t begin = m->begin[t], n = m->begin[t + 1] - begin;
    double *share = j->share + (size_t)t * j->n_thresholds;

    for (size_t a = 0; a < n; a++)
        place[a] = (uint8_t)pi_calibrate_place(j->threshold, j->n_thresholds, z[m->id[begin + a]]);
    memset(sum, 0, m->d * sizeof(*sum));
    for (uint32_t k = j->n_thresholds; k-- > 0;) {
        /* missed at threshold k and not at the one below */
        for (size_t a = 0; a < n; a++)
            if (place[a] == k + 1)
                j->cpu->axpy_f32(m->prod[begin + a], m->down_t + m->id[begin + a] * (size_t)m->d,
                                 sum, m->d);
        share[k] = m->energy[t] > 0 ? (double)j->cpu->sum_squares(sum, m->d) / m->energy[t] : 0.0;
    }
}

static void measure_tokens(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct measure_job *j = ctx;

    for (uint32_t t = j->at + thread; t < j->at + j->n_tok; t += n_threads)
        measure_token(j, t, j->sum + (size_t)thread * j->m->d,
                      j->place + (size_t)thread * j->net->n_ff);
}

static enum pi_code measure_init(struct measure_job *j, uint32_t n_threads, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_cpu_select(&j->cpu, err));
    PI_ALLOC_ALIGNED(j->x, (size_t)CHUNK * j->net->d, err);
    PI_ALLOC_ALIGNED(j->hidden, (size_t)CHUNK * j->net->r, err);
    PI_ALLOC_ALIGNED(j->z, (size_t)CHUNK * j->net->n_ff, err);
    PI_ALLOC_ALIGNED(j->sum, (size_t)n_threads * j->net->d, err);
    PI_ALLOC(j->place, (size_t)n_threads * j->net->n_ff, err);
    PI_ALLOC(j->share, (size_t)j->m->n * j->n_thresholds, err);
out:
    return rc;
}

/* Scores of the chunk's tokens to j->z. */
static enum pi_code score(const struct measure_job *j, const struct pi_trainset *s,
                          struct pi_pool *pool, struct pi_err *err)
{
    const size_t d = j->m->d;

    if (s->gpu != NULL)
        return pi_gpu_fit_score(s->gpu, j->m->sample + j->at, j->n_tok, j->z, err);
    for (uint32_t t = 0; t < j->n_tok; t++)
        memcpy(j->x + t * d, s->x + j->m->sample[j->at + t] * d, d * sizeof(*j->x));
    pi_net_score(j->net, pool, j->x, j->n_tok, j->hidden, j->z, j->net->n_ff);
    return PI_OK;
}

enum pi_code pi_damage_measure(const struct pi_damage *m, const struct pi_net *net,
                               const struct pi_trainset *s, struct pi_pool *pool,
                               const float *threshold, uint32_t n, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct measure_job j = {.m = m, .net = net, .threshold = threshold, .n_thresholds = n};

    if (s->gpu != NULL) {
        const struct pi_gpu_net on_gpu = pi_net_for_gpu(net);

        PI_TRY(pi_gpu_fit_net(s->gpu, &on_gpu, err));
    }
    PI_TRY(measure_init(&j, pi_pool_size(pool), err));
    for (j.at = 0; j.at < m->n; j.at += j.n_tok) {
        j.n_tok = m->n - j.at < CHUNK ? m->n - j.at : CHUNK;
        PI_TRY(score(&j, s, pool, err));
        pi_pool_run(pool, measure_tokens, &j);
    }
    for (uint32_t k = 0; k < n; k++) {
        out[k] = 0;
        for (uint32_t t = 0; t < m->n; t++)
            out[k] += j.share[(size_t)t * n + k] / m->n;
    }
out:
    free(j.x);
    free(j.hidden);
    free(j.z);
    free(j.sum);
    free(j.place);
    free(j.share);
    return rc;
}
