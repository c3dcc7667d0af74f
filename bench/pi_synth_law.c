/* pi_synth_law.c - firing rates over neurons, pushes over tokens, and the biases that make the one out of the other. */
#include "config.h"

#include "bench/pi_synth.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RATE 0.995
#define TAIL \
    0.5 /* sigma of the log-normal push: its 99th percentile is 3.4 standard deviations up */
#define GROUPS  200 /* tokens by push, in groups of equal size */
#define Z_LOW   -9.0
#define Z_HIGH  9.0
#define Z_STEPS 2304

#define STREAM_PUSH 1

/* Normal distribution function. */
static double phi(double z)
{
    return 0.5 * erfc(-z * M_SQRT1_2);
}

/* Rates in proportion to the law, at most MAX_RATE; returns their mean. */
static double set_rates(const struct pi_synth_spec *s, double factor, float *rate)
{
    double sum = 0;

    for (uint32_t i = 0; i < s->n_ff; i++) {
        const double q = (i + 0.5) / s->n_ff;
        const double r = factor * pow(1.0 + q / (double)s->knee, -(double)s->alpha);

        rate[i] = (float)(r < MAX_RATE ? r : MAX_RATE);
        sum += (double)rate[i];
    }
    return sum / s->n_ff;
}

static void find_rates(const struct pi_synth_spec *s, struct pi_synth_law *l)
{
    double low = 0, high = 1;

    while (set_rates(s, high, l->rate) < (double)s->density && high < 1e30)
        high *= 2;
    for (int i = 0; i < 60; i++) {
        const double mid = 0.5 * (low + high);

        if (set_rates(s, mid, l->rate) < (double)s->density)
            low = mid;
        else
            high = mid;
    }
    l->density = set_rates(s, high, l->rate);
}

/* Share of activations that the hottest neurons make. */
static double covered(const struct pi_synth_spec *s, const struct pi_synth_law *l, double hot)
{
    const uint32_t n = (uint32_t)lround(hot * s->n_ff);
    double part = 0;

    for (uint32_t i = 0; i < n; i++)
        part += (double)l->rate[i];
    return part / (l->density * s->n_ff);
}

static int cmp_float(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Pushes of all tokens, and the means of their groups, ascending. */
static enum pi_code find_pushes(const struct pi_synth_spec *s, struct pi_synth_law *l,
                                double groups[static GROUPS], struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float *sorted = NULL;
    double sum = 0, squares = 0, mean, sd;

    PI_ALLOC(sorted, s->n_vocab, err);
    pi_synth_normal(pi_synth_key(s->seed, STREAM_PUSH, 0), TAIL, l->push, s->n_vocab);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        l->push[i] = (float)exp((double)l->push[i]);
        sum += (double)l->push[i];
        squares += (double)l->push[i] * (double)l->push[i];
    }
    mean = sum / s->n_vocab;
    sd = sqrt(squares / s->n_vocab - mean * mean);
    for (uint32_t i = 0; i < s->n_vocab; i++)
        sorted[i] = l->push[i] = (float)(((double)l->push[i] - mean) / sd);
    qsort(sorted, s->n_vocab, sizeof(*sorted), cmp_float);
    for (uint64_t g = 0; g < GROUPS; g++) {
        const uint64_t from = g * s->n_vocab / GROUPS, to = (g + 1) * s->n_vocab / GROUPS;

        groups[g] = 0;
        for (uint64_t i = from; i < to; i++)
            groups[g] += (double)sorted[i] / (double)(to - from);
    }
out:
    free(sorted);
    return rc;
}

/* Inverts the mean over tokens of phi(z + spread * push), which grows with z, by a table. */
static enum pi_code find_biases(const struct pi_synth_spec *s, struct pi_synth_law *l,
                                const double groups[static GROUPS], struct pi_err *err)
{
    const double step = (Z_HIGH - Z_LOW) / Z_STEPS;
    enum pi_code rc = PI_OK;
    double *table = NULL; /* (Z_STEPS + 1) */
    uint32_t at = Z_STEPS - 1;

    PI_ALLOC(table, Z_STEPS + 1, err);
    for (uint32_t i = 0; i <= Z_STEPS; i++)
        for (int g = 0; g < GROUPS; g++)
            table[i] += phi(Z_LOW + i * step + (double)s->spread * groups[g]) / GROUPS;
    for (uint32_t i = 0; i < s->n_ff; i++) { /* rates fall */
        const double want = (double)l->rate[i];

        while (at > 0 && table[at] > want)
            at--;
        l->bias[i] =
            (float)(Z_LOW + step * (at + (want - table[at]) / (table[at + 1] - table[at])));
    }
out:
    free(table);
    return rc;
}

/* Share of neurons that fire for a push. */
static double count_at(const struct pi_synth_spec *s, const struct pi_synth_law *l, double push)
{
    double sum = 0;

    for (uint32_t i = 0; i < s->n_ff; i++)
        sum += phi((double)l->bias[i] + (double)s->spread * push);
    return sum / s->n_ff;
}

enum pi_code pi_synth_law_init(const struct pi_synth_spec *s, struct pi_synth_law *out,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_synth_law l = {0};
    double groups[GROUPS];

    PI_ALLOC(l.rate, s->n_ff, err);
    PI_ALLOC(l.bias, s->n_ff, err);
    PI_ALLOC(l.push, s->n_vocab, err);
    find_rates(s, &l);
    PI_TRY(find_pushes(s, &l, groups, err));
    PI_TRY(find_biases(s, &l, groups, err));
    l.covered18 = covered(s, &l, 0.18);
    l.covered57 = covered(s, &l, 0.57);
    l.count50 = count_at(s, &l, groups[GROUPS / 2]);
    l.count95 = count_at(s, &l, groups[GROUPS * 95 / 100]);
    l.count99 = count_at(s, &l, groups[GROUPS * 99 / 100]);
    *out = l;
    memset(&l, 0, sizeof(l));
out:
    pi_synth_law_free(&l);
    return rc;
}

void pi_synth_law_free(struct pi_synth_law *l)
{
    free(l->rate);
    free(l->bias);
    free(l->push);
    memset(l, 0, sizeof(*l));
}
