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

    PI_ALLOC_ALIGNED(c->x, (size_t)CHUNK * c->net->d, err);
    PI_ALLOC_ALIGNED(c->hidden, (size_t)CHUNK * c->net->r, err);
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

/* Scores samples [at, at + result) of the part; 0 at its end. */
static uint32_t score_chunk(struct scorer *c, uint32_t at)
{
    const uint32_t left = c->s->n_part[c->part] - at, n = left < CHUNK ? left : CHUNK;
    const size_t d = c->net->d;

    for (uint32_t t = 0; t < n; t++)
        memcpy(c->x + t * d, c->s->x + c->s->part[c->part][at + t] * d, d * sizeof(float));
    if (n > 0)
        pi_net_score(c->net, c->pool, c->x, n, c->hidden, c->z, c->net->n_ff);
    return n;
}

/* ---- counting ---- */

struct tally {
    uint64_t hits, active, predicted;
};

static void count_token(const struct scorer *c, const float *z, const uint8_t *mask,
                        float threshold, struct tally *t)
{
    for (uint32_t i = 0; i < c->net->n_ff; i++) {
        const unsigned y = mask[i / 8] >> i % 8 & 1u, p = z[i] >= threshold;

        t->hits += y & p;
        t->active += y;
        t->predicted += p;
    }
}

/* Standard error of a ratio of sums over n blocks (Cochran 1977, 6.3). */
static double ratio_error(const struct tally *block, uint32_t n_blocks)
{
    double hits = 0, active = 0, sum = 0;
    uint32_t n = 0;

    for (uint32_t b = 0; b < n_blocks; b++) {
        hits += (double)block[b].hits;
        active += (double)block[b].active;
        n += block[b].active > 0;
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        const double e = (double)block[b].hits - hits / active * (double)block[b].active;

        sum += block[b].active > 0 ? e * e : 0.0;
    }
    return n > 1 ? sqrt(sum * n / (n - 1.0)) / active : 0.0;
}

static double ratio(uint64_t a, uint64_t b)
{
    return b > 0 ? (double)a / (double)b : 1.0;
}

enum pi_code pi_calibrate_count(const struct pi_net *net, const struct pi_trainset *s,
                                enum pi_part part, struct pi_pool *pool, float threshold,
                                struct pi_found *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct scorer c = {.net = net, .s = s, .pool = pool, .part = part};
    const uint32_t n_blocks = s->block[s->n - 1] + 1;
    const double all = (double)s->n_part[part] * net->n_ff;
    struct tally *block = NULL, total = {0};
    uint32_t n;

    PI_ALLOC(block, n_blocks, err);
    PI_TRY(scorer_init(&c, err));
    for (uint32_t at = 0; (n = score_chunk(&c, at)) > 0; at += n)
        for (uint32_t t = 0; t < n; t++) {
            const uint32_t i = s->part[part][at + t];

            count_token(&c, c.z + (size_t)t * net->n_ff, s->mask + i * s->mask_bytes, threshold,
                        &block[s->block[i]]);
        }
    for (uint32_t b = 0; b < n_blocks; b++) {
        total.hits += block[b].hits;
        total.active += block[b].active;
        total.predicted += block[b].predicted;
    }
    *out = (struct pi_found){
        .recall = ratio(total.hits, total.active),
        .precision = ratio(total.hits, total.predicted),
        .density = (double)total.predicted / all,
        .active = (double)total.active / all,
        .accuracy = 1.0 - (double)(total.active + total.predicted - 2 * total.hits) / all,
        .error = total.active > 0 ? ratio_error(block, n_blocks) : 0.0};
out:
    scorer_free(&c);
    free(block);
    return rc;
}

/* ---- thresholds ---- */

static void gather_token(const struct scorer *c, const float *z, const uint8_t *mask, float *v,
                         size_t *n)
{
    for (uint32_t i = 0; i < c->net->n_ff; i++)
        if (mask[i / 8] >> i % 8 & 1)
            v[(*n)++] = z[i];
}

enum pi_code pi_calibrate_threshold(const struct pi_net *net, const struct pi_trainset *s,
                                    enum pi_part part, struct pi_pool *pool, double recall,
                                    float *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct scorer c = {.net = net, .s = s, .pool = pool, .part = part};
    float *v = NULL;
    size_t n_v = 0, cap = 0, miss;
    uint32_t n;

    PI_TRY(scorer_init(&c, err));
    for (uint32_t at = 0; (n = score_chunk(&c, at)) > 0; at += n)
        for (uint32_t t = 0; t < n; t++) {
            PI_TRY(pi_grow_array(&v, &cap, n_v + net->n_ff, sizeof(*v), err));
            gather_token(&c, c.z + (size_t)t * net->n_ff,
                         s->mask + s->part[part][at + t] * s->mask_bytes, v, &n_v);
        }
    miss = (size_t)floor((1.0 - recall) * (double)n_v); /* so many may be missed */
    *out = n_v == 0 ? -FLT_MAX / 2 : pi_calibrate_select(v, n_v, miss < n_v ? miss : n_v - 1);
out:
    scorer_free(&c);
    free(v);
    return rc;
}

enum pi_code pi_calibrate(const struct pi_net *net, const struct pi_trainset *s,
                          struct pi_pool *pool, double target, double scale, float *threshold_out,
                          struct pi_found *found_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_found found = {0};
    float threshold = 0;

    /* the error is that of about the same recall */
    PI_TRY(pi_calibrate_threshold(net, s, PI_PART_CALIBRATE, pool, fmin(1.0, target + PI_MARGIN),
                                  &threshold, err));
    PI_TRY(pi_calibrate_count(net, s, PI_PART_CALIBRATE, pool, threshold, &found, err));
    PI_TRY(pi_calibrate_threshold(net, s, PI_PART_CALIBRATE, pool,
                                  fmin(1.0, target + scale * (PI_MARGIN + 2 * found.error)),
                                  &threshold, err));
    PI_TRY(pi_calibrate_count(net, s, PI_PART_CALIBRATE, pool, threshold, found_out, err));
    *threshold_out = threshold;
out:
    return rc;
}
