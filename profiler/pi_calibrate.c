#include "config.h"

#include "profiler/pi_calibrate.h"

#include "common/pi_alloc.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 512 /* tokens scored at a time */

float pi_calibrate_select(float *v, size_t n, size_t k)
{
    ptrdiff_t low = 0, high = (ptrdiff_t)n - 1, want = (ptrdiff_t)k;

    while (low < high) { /* Hoare 1961, algorithm 65 */
        const float pivot = v[want];
        ptrdiff_t i = low, j = high;

        while (i <= j) {
            while (v[i] < pivot)
                i++;
            while (pivot < v[j])
                j--;
            if (i <= j) {
                const float swap = v[i];

                v[i++] = v[j];
                v[j--] = swap;
            }
        }
        if (j < want)
            low = i;
        if (want < i)
            high = j;
    }
    return v[k];
}

/* ---- scoring a part, a chunk at a time ---- */

struct scorer {
    const struct pi_net *net;
    const struct pi_trainset *s;
    struct pi_pool *pool;
    enum pi_part part;
    float *x, *hidden, *z; /* (CHUNK, d), (CHUNK, r), (CHUNK, n_ff) */
};

static enum pi_code scorer_init(struct scorer *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (c->s->gpu != NULL) {
        const struct pi_gpu_net net = pi_net_for_gpu(c->net);

        PI_TRY(pi_gpu_fit_net(c->s->gpu, &net, err));
    } else {
        PI_ALLOC_ALIGNED(c->x, (size_t)CHUNK * c->net->d, err);
        PI_ALLOC_ALIGNED(c->hidden, (size_t)CHUNK * c->net->r, err);
    }
    PI_ALLOC_ALIGNED(c->z, (size_t)CHUNK * c->net->n_ff, err);
out:
    return rc;
}

static void scorer_free(struct scorer *c)
{
    free(c->x);
    free(c->hidden);
    free(c->z);
}

/* Scores the next samples of the part, [at, at + *n_out). */
static enum pi_code score_chunk(struct scorer *c, uint32_t at, uint32_t *n_out, struct pi_err *err)
{
    const uint32_t left = c->s->n_part[c->part] - at, n = left < CHUNK ? left : CHUNK;
    const size_t d = c->net->d;

    *n_out = n;
    if (c->s->gpu != NULL)
        return pi_gpu_fit_score(c->s->gpu, c->s->part[c->part] + at, n, c->z, err);
    for (uint32_t t = 0; t < n; t++)
        memcpy(c->x + t * d, c->s->x + c->s->part[c->part][at + t] * d, d * sizeof(float));
    if (n > 0)
        pi_net_score(c->net, c->pool, c->x, n, c->hidden, c->z, c->net->n_ff);
    return PI_OK;
}

/* ---- counting ---- */

uint32_t pi_calibrate_place(const float *threshold, uint32_t n, float score)
{
    uint32_t low = 0, high = n;

    if (n == 0 || !(score >= threshold[n - 1]))
        return n; /* most scores */
    while (low < high) {
        const uint32_t mid = (low + high) / 2;

        if (score >= threshold[mid])
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Of one block of positions. First by place of the score, then summed up: at each threshold. */
struct tally {
    uint64_t active, hits[PI_CURVE_POINTS + 1], predicted[PI_CURVE_POINTS + 1];
};

static void count_token(const struct scorer *c, const float *z, const uint8_t *mask,
                        const float *threshold, uint32_t n, struct tally *t)
{
    for (uint32_t i = 0; i < c->net->n_ff; i++) {
        const unsigned y = mask[i / 8] >> i % 8 & 1u;
        const uint32_t at = pi_calibrate_place(threshold, n, z[i]);

        t->active += y;
        t->hits[at] += y;
        t->predicted[at]++;
    }
}

static void add_tally(struct tally *to, const struct tally *t, uint32_t n)
{
    to->active += t->active;
    for (uint32_t k = 0; k < n; k++) {
        to->hits[k] += t->hits[k];
        to->predicted[k] += t->predicted[k];
    }
}

static void sum_places(struct tally *t, uint32_t n)
{
    for (uint32_t k = 1; k < n; k++) {
        t->hits[k] += t->hits[k - 1];
        t->predicted[k] += t->predicted[k - 1];
    }
}

/* Standard error of recall at threshold k: a ratio of sums over n blocks (Cochran 1977, 6.3). */
static double ratio_error(const struct tally *block, uint32_t n_blocks, const struct tally *all,
                          uint32_t k)
{
    const double recall = (double)all->hits[k] / (double)all->active;
    double sum = 0;
    uint32_t n = 0;

    for (uint32_t b = 0; b < n_blocks; b++) {
        const double e = (double)block[b].hits[k] - recall * (double)block[b].active;

        n += block[b].active > 0;
        sum += block[b].active > 0 ? e * e : 0.0;
    }
    return n > 1 ? sqrt(sum * n / (n - 1.0)) / (double)all->active : 0.0;
}

static double ratio(uint64_t a, uint64_t b)
{
    return b > 0 ? (double)a / (double)b : 1.0;
}

static void found_at(const struct tally *block, uint32_t n_blocks, const struct tally *t,
                     uint32_t k, double cells, struct pi_found *out)
{
    const uint64_t wrong = t->active + t->predicted[k] - 2 * t->hits[k];

    *out = (struct pi_found){.recall = ratio(t->hits[k], t->active),
                             .precision = ratio(t->hits[k], t->predicted[k]),
                             .density = (double)t->predicted[k] / cells,
                             .active = (double)t->active / cells,
                             .accuracy = 1.0 - (double)wrong / cells,
                             .error = t->active > 0 ? ratio_error(block, n_blocks, t, k) : 0.0};
}

/* Tokens of a chunk dealt out to threads, each with tallies of its own: sums of integers, whoever adds them. */
struct count_job {
    const struct scorer *c;
    const float *threshold;
    uint32_t n, at, n_tok; /* thresholds; the chunk */
    uint32_t n_blocks;
    struct tally *block; /* (n_threads, n_blocks) */
};

static void count_tokens(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct count_job *j = ctx;
    const struct pi_trainset *s = j->c->s;
    struct tally *block = j->block + (size_t)thread * j->n_blocks;

    for (uint32_t t = thread; t < j->n_tok; t += n_threads) {
        const uint32_t i = s->part[j->c->part][j->at + t];

        count_token(j->c, j->c->z + (size_t)t * s->n_ff, s->mask + i * s->mask_bytes, j->threshold,
                    j->n, &block[s->block[i]]);
    }
}

/* One more place than thresholds: what is predicted at none. */
static void join_tallies(struct count_job *j, uint32_t n_threads)
{
    for (uint32_t b = 0; b < j->n_blocks; b++)
        for (uint32_t k = 1; k < n_threads; k++)
            add_tally(&j->block[b], &j->block[(size_t)k * j->n_blocks + b], j->n + 1);
}

enum pi_code pi_calibrate_count(const struct pi_net *net, const struct pi_trainset *s,
                                enum pi_part part, struct pi_pool *pool, const float *threshold,
                                uint32_t n, struct pi_found *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct scorer c = {.net = net, .s = s, .pool = pool, .part = part};
    struct count_job j = {
        .c = &c, .threshold = threshold, .n = n, .n_blocks = s->block[s->n - 1] + 1};
    struct tally total = {0};

    PI_ALLOC(j.block, (size_t)j.n_blocks * pi_pool_size(pool), err);
    PI_TRY(scorer_init(&c, err));
    for (; j.at < s->n_part[part]; j.at += j.n_tok) {
        PI_TRY(score_chunk(&c, j.at, &j.n_tok, err));
        pi_pool_run(pool, count_tokens, &j);
    }
    join_tallies(&j, pi_pool_size(pool));
    for (uint32_t b = 0; b < j.n_blocks; b++) {
        sum_places(&j.block[b], n);
        add_tally(&total, &j.block[b], n);
    }
    for (uint32_t k = 0; k < n; k++)
        found_at(j.block, j.n_blocks, &total, k, (double)s->n_part[part] * net->n_ff, &out[k]);
out:
    scorer_free(&c);
    free(j.block);
    return rc;
}

/* ---- thresholds ---- */

/* Scores of a chunk's active neurons, token after token, to v. */
struct gather_job {
    const struct scorer *c;
    uint32_t at; /* the chunk's first token */
    float *v;
    size_t begin[CHUNK]; /* where each token's scores begin */
};

static const uint8_t *mask_of(const struct gather_job *j, size_t t)
{
    const struct pi_trainset *s = j->c->s;

    return s->mask + s->part[j->c->part][j->at + t] * s->mask_bytes;
}

static void gather_tokens(void *ctx, size_t begin, size_t end)
{
    const struct gather_job *j = ctx;
    const uint32_t n_ff = j->c->net->n_ff;

    for (size_t t = begin; t < end; t++) {
        const uint8_t *mask = mask_of(j, t);
        const float *z = j->c->z + t * n_ff;
        float *v = j->v + j->begin[t];

        for (uint32_t i = 0; i < n_ff; i++)
            if (mask[i / 8] >> i % 8 & 1)
                *v++ = z[i];
    }
}

/* Of n_ff bits; what a file has behind them is of no account. */
static size_t count_bits(const uint8_t *mask, uint32_t n_ff)
{
    size_t n = 0;

    for (uint32_t i = 0; i < n_ff / 8; i++)
        n += (size_t)__builtin_popcount(mask[i]);
    return n_ff % 8 == 0 ? n
                         : n + (size_t)__builtin_popcount(mask[n_ff / 8] & ((1u << n_ff % 8) - 1));
}

/* n thresholds out of the n_v scores of active neurons; reorders them. */
static void pick_thresholds(float *v, size_t n_v, const double *recall, uint32_t n, float *out)
{
    size_t left = n_v; /* what may lie below the next threshold */

    for (uint32_t k = 0; k < n; k++) {
        size_t miss = (size_t)floor((1.0 - recall[k]) * (double)n_v);

        if (n_v == 0) {
            out[k] = -FLT_MAX / 2;
            continue;
        }
        miss = miss < left ? miss : left - 1;
        out[k] = pi_calibrate_select(v, left, miss);
        left = miss + 1;
    }
}

enum pi_code pi_calibrate_thresholds(const struct pi_net *net, const struct pi_trainset *s,
                                     enum pi_part part, struct pi_pool *pool, const double *recall,
                                     uint32_t n, float *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct scorer c = {.net = net, .s = s, .pool = pool, .part = part};
    struct gather_job j = {.c = &c};
    size_t n_v = 0, cap = 0;
    uint32_t n_tok;

    PI_TRY(scorer_init(&c, err));
    for (; j.at < s->n_part[part]; j.at += n_tok) {
        PI_TRY(score_chunk(&c, j.at, &n_tok, err));
        for (uint32_t t = 0; t < n_tok; t++) {
            j.begin[t] = n_v;
            n_v += count_bits(mask_of(&j, t), net->n_ff);
        }
        PI_TRY(pi_grow_array(&j.v, &cap, n_v, sizeof(*j.v), err));
        pi_pool_for(pool, n_tok, 8, gather_tokens, &j);
    }
    pick_thresholds(j.v, n_v, recall, n, out);
out:
    scorer_free(&c);
    free(j.v);
    return rc;
}

enum pi_code pi_calibrate_row(const struct pi_net *net, const struct pi_trainset *s,
                              struct pi_pool *pool, double target, float *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_found found = {0};
    double recall[PI_CURVE_POINTS] = {fmin(1.0, target + PI_MARGIN)};

    /* the error at about the recall that it is for */
    PI_TRY(pi_calibrate_thresholds(net, s, PI_PART_CALIBRATE, pool, recall, 1, out, err));
    PI_TRY(pi_calibrate_count(net, s, PI_PART_CALIBRATE, pool, out, 1, &found, err));
    recall[0] = fmin(1.0, recall[0] + 2 * found.error);
    for (uint32_t k = 1; k < PI_CURVE_POINTS; k++)
        recall[k] = 1.0 - (1.0 - recall[k - 1]) * PI_MISS_STEP;
    PI_TRY(pi_calibrate_thresholds(net, s, PI_PART_CALIBRATE, pool, recall, PI_CURVE_POINTS, out,
                                   err));
out:
    return rc;
}
