/* The sampler against distributions computed here, and the small measures of pi_eval.h. */
#include "config.h"

#include "runtime/pi_eval.h"
#include "runtime/pi_sampler.h"
#include "tests/tap.h"

static const struct pi_sampler_options plain = {
    .temp = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last_n = 64, .seed = 7};

/* p = 0.5, 0.25, 0.125, 0.0625, 0.0625 in scrambled order of ids. */
static const float p5[5] = {0.0625f, 0.5f, 0.125f, 0.0625f, 0.25f};

static int32_t pick(const struct pi_sampler_options *o, const float *logits, uint32_t n,
                    uint64_t pos, const int32_t *history, size_t n_history)
{
    struct pi_err e = {0};
    struct pi_sampler *s = NULL;
    int32_t t = -1;

    if (pi_sampler_create(n, o, &s, &e) != PI_OK ||
        pi_sampler_pick(s, logits, pos, history, n_history, &t, &e) != PI_OK)
        t = -2;
    pi_sampler_destroy(s);
    return t;
}

/* Shares of n draws at positions 0..n-1. */
static void shares(const struct pi_sampler_options *o, const float *p, uint32_t n_vocab,
                   double *share)
{
    enum {
        N = 40000
    };
    struct pi_err e = {0};
    struct pi_sampler *s = NULL;
    float logits[8];

    for (uint32_t i = 0; i < n_vocab; i++) {
        logits[i] = logf(p[i]) + 3;
        share[i] = 0;
    }
    PASSES(pi_sampler_create(n_vocab, o, &s, &e), e);
    for (uint64_t pos = 0; pos < N; pos++) {
        int32_t t = -1;

        if (pi_sampler_pick(s, logits, pos, NULL, 0, &t, &e) == PI_OK && t >= 0 &&
            (uint32_t)t < n_vocab)
            share[t] += 1.0 / N;
    }
    pi_sampler_destroy(s);
}

/* Chi-square against the expected shares stays below the 99.9 % quantile (the draws are fixed by the seed). */
static void check_shares(const struct pi_sampler_options *o, const double *want)
{
    static const double q999[5] = {0, 10.83, 13.82, 16.27, 18.47};
    double got[5], chi2 = 0;
    int df = -1;

    shares(o, p5, 5, got);
    for (int i = 0; i < 5; i++) {
        if (want[i] == 0) {
            NEAR(got[i], 0, 0);
            continue;
        }
        chi2 += 40000 * (got[i] - want[i]) * (got[i] - want[i]) / want[i];
        df++;
    }
    if (df == 0)
        NEAR(chi2, 0, 1e-6);
    else
        OK(chi2 < q999[df]);
    printf("# chi-square %.2f, %d degrees of freedom\n", chi2, df);
}

static void test_distributions(void)
{
    struct pi_sampler_options o = plain;

    check_shares(&o, (const double[]){0.0625, 0.5, 0.125, 0.0625, 0.25});
    o.seed = 123456789;
    check_shares(&o, (const double[]){0.0625, 0.5, 0.125, 0.0625, 0.25});
    /* p^2, normalised: 1/4, 1/16, 1/64, 2 x 1/256 over 86/256 */
    o.temp = 0.5f;
    check_shares(&o, (const double[]){1 / 86.0, 64 / 86.0, 4 / 86.0, 1 / 86.0, 16 / 86.0});
    o = plain;
    o.top_k = 2;
    check_shares(&o, (const double[]){0, 2 / 3.0, 0, 0, 1 / 3.0});
    /* Of equal logits the lower id stays. */
    o.top_k = 4;
    check_shares(&o, (const double[]){1 / 15.0, 8 / 15.0, 2 / 15.0, 0, 4 / 15.0});
    o = plain;
    o.top_p = 0.7f; /* 0.5 < 0.7 <= 0.75 */
    check_shares(&o, (const double[]){0, 2 / 3.0, 0, 0, 1 / 3.0});
    o.top_p = 0.45f;
    check_shares(&o, (const double[]){0, 1, 0, 0, 0});
    o.top_p = 0;
    check_shares(&o, (const double[]){0, 1, 0, 0, 0});
    o = plain;
    o.min_p = 0.2f; /* of 0.5: drops 0.0625 */
    check_shares(&o, (const double[]){0, 4 / 7.0, 1 / 7.0, 0, 2 / 7.0});
    o.min_p = 1;
    check_shares(&o, (const double[]){0, 1, 0, 0, 0});
    /* top-p after top-k: of 0.5, 0.25, 0.125 (0.875 in all) 0.6 is reached by two. */
    o = plain;
    o.top_k = 3;
    o.top_p = 0.8f;
    check_shares(&o, (const double[]){0, 2 / 3.0, 0, 0, 1 / 3.0});
    /* Truncation looks at probabilities before temperature. */
    o.temp = 2;
    check_shares(&o, (const double[]){0, sqrt(2) / (1 + sqrt(2)), 0, 0, 1 / (1 + sqrt(2))});
}

static void test_greedy_and_penalty(void)
{
    const float l[5] = {1, 3, 2.5f, 3, -1}, neg[3] = {-1, -1.5f, -4};
    const int32_t h1[3] = {1, 3, 1}, h0[1] = {0}, wild[3] = {-5, 99, 1};
    struct pi_sampler_options o = plain;

    o.temp = 0;
    EQ(pick(&o, l, 5, 0, NULL, 0), 1);
    o.repeat_penalty = 1.5f; /* 3 -> 2 */
    EQ(pick(&o, l, 5, 0, h1, 3), 2);
    o.repeat_last_n = 1; /* only the last 1: 3 stays */
    EQ(pick(&o, l, 5, 0, h1, 3), 3);
    o.repeat_last_n = 0;
    EQ(pick(&o, l, 5, 0, h1, 3), 1);
    o.repeat_last_n = 64;
    o.repeat_penalty = 2; /* -1 -> -2, below -1.5 */
    EQ(pick(&o, neg, 3, 0, h0, 1), 1);
    /* Repeated ids are penalised once: 3 / 1.25 = 2.4 < 2.5, and 3 / 1.1 = 2.73 > 2.5 although 1 occurs twice. */
    o.repeat_penalty = 1.1f;
    EQ(pick(&o, (const float[]){0, 3, 2.5f}, 3, 0, h1, 3), 1);
    EQ(pick(&o, l, 5, 0, wild, 3), 3);
}

static void test_bad_logits(void)
{
    const float some[4] = {NAN, 1, INFINITY, 2}, none[3] = {NAN, INFINITY, -INFINITY};
    struct pi_sampler_options o = plain;
    struct pi_sampler *s = NULL;
    struct pi_err e = {0};
    int32_t t = 0;

    o.temp = 0;
    EQ(pick(&o, some, 4, 0, NULL, 0), 3);
    o.temp = 0.01f;
    EQ(pick(&o, some, 4, 0, NULL, 0), 3);
    PASSES(pi_sampler_create(3, &plain, &s, &e), e);
    FAILS(pi_sampler_pick(s, none, 12, NULL, 0, &t, &e), PI_E_SELFCHECK, "position 12", e);
    pi_sampler_destroy(s);
    pi_sampler_destroy(NULL);
}

static void test_determinism(void)
{
    float l[100];
    struct pi_sampler_options o = plain;
    struct pi_sampler *s = NULL;
    struct pi_err e = {0};
    int32_t first[50], t = 0;
    int same = 0, other = 0;

    for (int i = 0; i < 100; i++)
        l[i] = (float)((i * 37) % 100) / 50;
    PASSES(pi_sampler_create(100, &o, &s, &e), e);
    for (int i = 0; i < 50; i++)
        (void)!pi_sampler_pick(s, l, (uint64_t)i, NULL, 0, &first[i], &e);
    for (int i = 49; i >= 0; i--) { /* in another order: only seed and position count */
        (void)!pi_sampler_pick(s, l, (uint64_t)i, NULL, 0, &t, &e);
        same += t == first[i];
    }
    EQ(same, 50);
    o.seed = 8;
    for (int i = 0; i < 50; i++)
        other += pick(&o, l, 100, (uint64_t)i, NULL, 0) == first[i];
    OK(other < 10);
    pi_sampler_destroy(s);
}

static void test_random(void)
{
    double mean = 0, cross = 0, lo = 1, hi = 0;

    for (uint64_t i = 0; i < 100000; i++) {
        const double u = pi_random_unit(1, i), v = pi_random_unit(2, i);

        mean += u / 100000;
        cross += (u - 0.5) * (v - 0.5) / 100000;
        lo = u < lo ? u : lo;
        hi = u > hi ? u : hi;
    }
    OK(lo >= 0 && hi < 1);
    NEAR(mean, 0.5, 0.004); /* 4 standard errors */
    NEAR(cross, 0, 0.0011); /* the same */
}

static void test_measures(void)
{
    const float a[3] = {0, logf(2), logf(5)}, shifted[3] = {1000, 1000 + logf(2), 1000 + logf(5)};
    const float flat[3] = {-7, -7, -7}, ties[4] = {1, 5, 5, 2};
    const double p[3] = {1 / 8.0, 2 / 8.0, 5 / 8.0};
    double kl = 0;

    NEAR(pi_nll(a, 3, 1), log(4), 1e-7);
    NEAR(pi_nll(shifted, 3, 1), log(4), 1e-4); /* float logits around 1000 are 6e-5 apart */
    for (int i = 0; i < 3; i++)
        kl += p[i] * log(p[i] * 3);
    NEAR(pi_kl(a, flat, 3), kl, 1e-7);
    NEAR(pi_kl(a, a, 3), 0, 0);
    OK(isnan(pi_kl(a, (const float[]){0, NAN, 0}, 3)));
    EQ(pi_argmax(ties, 4), 1);
}

int main(void)
{
    test_distributions();
    test_greedy_and_penalty();
    test_bad_logits();
    test_determinism();
    test_random();
    test_measures();
    return DONE();
}
