/*
 * The integer program against three outsiders: all subsets of groups on tiny instances, a dynamic program over the capacity on
 * hundreds of medium ones, and GLPK on the paper's equations as they stand. Then the shapes of a 70B model, in time.
 */
#include "config.h"

#include "common/pi_progress.h"
#include "solver/pi_ilp.h"
#include "tests/tap.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include <glpk.h>

/* SplitMix64 */
static uint64_t rng;

static uint64_t draw(void)
{
    uint64_t z = rng += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)(draw() % n);
}

static double unit(void)
{
    return (double)(draw() >> 11) * 0x1p-53;
}

#define MAX_LAYERS 80

/* An instance as the paper states it, and as options. */
struct instance {
    uint32_t n_layer, n_ff;
    uint64_t neuron[MAX_LAYERS], fixed[MAX_LAYERS], capacity;
    uint32_t c_min[MAX_LAYERS];
    double *prefix[MAX_LAYERS]; /* (n_ff + 1) */
    struct pi_ilp_layer layers[MAX_LAYERS];
};

static int by_falling(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;

    return a < b ? 1 : a > b ? -1 : 0;
}

static void *must(void *p)
{
    if (p == NULL)
        exit(99);
    return p;
}

/* Counts by a noisy power law; ties: few distinct values. */
static void make_layer(struct instance *t, uint32_t l, bool ties)
{
    double *f = must(calloc(t->n_ff, sizeof(*f))), exponent = 0.4 + 0.9 * unit(),
           scale = 0.3 + 5.0 * unit();
    struct pi_err e = {0};

    for (uint32_t i = 0; i < t->n_ff; i++) {
        double x = scale * pow((double)i + 1.0 + 20.0 * unit(), -exponent) * (0.6 + 0.8 * unit());

        f[i] = ties ? (double)(1 + below(2)) : floor(1e6 * fmin(x, 1.0));
    }
    qsort(f, t->n_ff, sizeof(*f), by_falling);
    t->prefix[l] = must(calloc((size_t)t->n_ff + 1, sizeof(double)));
    for (uint32_t i = 0; i < t->n_ff; i++)
        t->prefix[l][i + 1] = t->prefix[l][i] + f[i];
    free(f);
    t->layers[l].opt = must(calloc(pi_ilp_paper_size(t->n_ff), sizeof(struct pi_ilp_option)));
    if (pi_ilp_paper_options(t->n_ff, t->prefix[l], t->neuron[l], t->fixed[l], t->c_min[l],
                             t->layers[l].opt, &t->layers[l].n, &e) != PI_OK)
        exit(99);
}

static void free_instance(struct instance *t)
{
    for (uint32_t l = 0; l < t->n_layer; l++) {
        free(t->prefix[l]);
        free(t->layers[l].opt);
    }
}

static uint32_t n_groups(const struct instance *t)
{
    return (t->n_ff + PI_ILP_GROUP - 1) / PI_ILP_GROUP;
}

static uint32_t group_begin(uint32_t g)
{
    return g * PI_ILP_GROUP;
}

static uint32_t group_end(const struct instance *t, uint32_t g)
{
    return (g + 1) * PI_ILP_GROUP < t->n_ff ? (g + 1) * PI_ILP_GROUP : t->n_ff;
}

/* What the solver picked obeys (6), (7), (8), and its sums are what it says. */
static bool valid(const struct instance *t, const struct pi_ilp_result *r)
{
    uint64_t bytes = 0;
    double gain = 0.0;

    for (uint32_t l = 0; l < t->n_layer; l++) {
        const struct pi_ilp_option *o = &t->layers[l].opt[r->pick[l]];

        if (o->hot > 0 && o->hot < t->c_min[l])
            return false;
        bytes += o->hot * t->neuron[l] + (o->hot > 0 ? t->fixed[l] : 0);
        gain += o->gain;
    }
    return bytes == r->bytes && bytes <= t->capacity && fabs(gain - r->gain) <= 1e-9 * fabs(gain);
}

/* ---- all subsets of groups */

static double brute(const struct instance *t, uint32_t layer, uint64_t left)
{
    double best = -1.0;

    if (layer == t->n_layer)
        return 0.0;
    for (uint32_t set = 0; set < 1u << n_groups(t); set++) {
        uint32_t n = 0;
        double gain = 0.0;
        uint64_t bytes;

        for (uint32_t g = 0; g < n_groups(t); g++) {
            if ((set >> g & 1) == 0)
                continue;
            n += group_end(t, g) - group_begin(g);
            gain += t->prefix[layer][group_end(t, g)] - t->prefix[layer][group_begin(g)];
        }
        bytes = n * t->neuron[layer] + (n > 0 ? t->fixed[layer] : 0);
        if (bytes > left || (n > 0 && n < t->c_min[layer]))
            continue;
        gain += brute(t, layer + 1, left - bytes);
        best = gain > best ? gain : best;
    }
    return best;
}

static uint64_t all_bytes(const struct instance *t)
{
    uint64_t sum = 0;

    for (uint32_t l = 0; l < t->n_layer; l++)
        sum += t->neuron[l] * t->n_ff + t->fixed[l];
    return sum;
}

static void make_small(struct instance *t, uint32_t seed)
{
    memset(t, 0, sizeof(*t));
    rng = seed;
    t->n_layer = 1 + below(3);
    t->n_ff = PI_ILP_GROUP * (1 + below(4)) + (seed % 2) * below(63);
    for (uint32_t l = 0; l < t->n_layer; l++) {
        t->neuron[l] = 1 + below(9);
        t->fixed[l] = seed % 3 == 0 ? below(300) : 0;
        t->c_min[l] = below(2) * below(200);
        make_layer(t, l, seed % 5 == 0);
    }
    t->capacity = (uint64_t)(unit() * 1.1 * (double)all_bytes(t));
}

static void test_brute(void)
{
    int agree = 0, n = 300;

    for (int s = 1; s <= n; s++) {
        struct instance t;
        struct pi_ilp_result r = {0};
        struct pi_err e = {0};
        bool ok;

        make_small(&t, (uint32_t)s);
        ok = pi_ilp_solve(t.layers, t.n_layer, t.capacity, NULL, &r, &e) == PI_OK && r.optimal &&
             valid(&t, &r) && fabs(r.gain - brute(&t, 0, t.capacity)) < 0.5;
        if (!ok)
            printf("# seed %d: %.1f\n", s, r.gain);
        agree += ok;
        pi_ilp_result_free(&r);
        free_instance(&t);
    }
    printf("# brute force agrees on %d of %d\n", agree, n);
    EQ(agree, n);
}

/* ---- dynamic program over bytes (small units, so that the capacity is a table's index) */

static double dynamic(const struct instance *t)
{
    size_t n = (size_t)t->capacity + 1;
    double *now = must(calloc(n, sizeof(*now))), *next = must(calloc(n, sizeof(*next))), best;
    uint32_t tail = t->n_ff % PI_ILP_GROUP, whole = t->n_ff - tail;

    for (uint32_t l = 0; l < t->n_layer; l++) {
        memcpy(next, now, n * sizeof(*now));
        for (uint32_t hot = 0; hot <= whole; hot += PI_ILP_GROUP) {
            for (uint32_t with = 0; with < (tail > 0 ? 2u : 1u); with++) {
                uint32_t count = hot + with * tail;
                uint64_t bytes = count * t->neuron[l] + t->fixed[l];
                double gain =
                    t->prefix[l][hot] + (with ? t->prefix[l][t->n_ff] - t->prefix[l][whole] : 0.0);

                if (count == 0 || count < t->c_min[l])
                    continue;
                for (size_t c = (size_t)bytes; c < n; c++)
                    if (now[c - bytes] + gain > next[c])
                        next[c] = now[c - bytes] + gain;
            }
        }
        memcpy(now, next, n * sizeof(*now));
    }
    best = now[n - 1];
    free(now);
    free(next);
    return best;
}

static const struct kind {
    const char *name;
    uint32_t count, sizes, c_min, rest;
    bool fixed, ties, zero;
} kinds[] = {
    {"uniform", 60, 1, 0, 0, false, false, false},
    {"C_l binds", 80, 1, 1, 0, false, false, false},
    {"two sizes", 80, 2, 0, 0, false, false, false},
    {"two sizes, C_l", 80, 2, 1, 0, false, false, false},
    {"last group short", 80, 1, 1, 1, false, false, false},
    {"all of it", 80, 3, 1, 1, true, false, false},
    {"ties", 60, 2, 1, 1, false, true, false},
    {"no budget", 10, 2, 1, 1, true, false, true},
};

static void make_medium(struct instance *t, const struct kind *k, uint32_t seed)
{
    memset(t, 0, sizeof(*t));
    rng = seed * UINT64_C(77003) + k->count;
    t->n_layer = 2 + below(14);
    t->n_ff = PI_ILP_GROUP * (2 + below(20)) + k->rest * below(64);
    for (uint32_t l = 0; l < t->n_layer; l++) {
        static const uint64_t sizes[] = {1, 3, 4};

        t->neuron[l] = k->sizes == 1 ? 1 : sizes[below(k->sizes)];
        t->fixed[l] = k->fixed ? below(200) : 0;
        t->c_min[l] = k->c_min * below(t->n_ff + 60);
        make_layer(t, l, k->ties);
    }
    t->capacity = k->zero ? 0 : (uint64_t)(unit() * unit() * (double)all_bytes(t));
}

static int g_compared;

static void test_dynamic(const struct kind *k)
{
    int agree = 0;

    for (uint32_t s = 1; s <= k->count; s++) {
        struct instance t;
        struct pi_ilp_result r = {0};
        struct pi_err e = {0};
        double want;
        bool ok;

        make_medium(&t, k, s);
        want = dynamic(&t);
        ok = pi_ilp_solve(t.layers, t.n_layer, t.capacity, NULL, &r, &e) == PI_OK && r.optimal &&
             !r.by_glpk && valid(&t, &r) && fabs(r.gain - want) < 0.5 &&
             fabs(r.bound - r.gain) < 0.5;
        if (!ok)
            printf("# %s, seed %u: %.1f, should be %.1f\n", k->name, s, r.gain, want);
        agree += ok;
        pi_ilp_result_free(&r);
        free_instance(&t);
    }
    printf("# %s: dynamic program agrees on %d of %u\n", k->name, agree, k->count);
    g_compared += agree;
    EQ(agree, k->count);
}

/* ---- equations (1)-(8) in GLPK, nothing done to them: a_g and y_l binary, K = n_ff */

static void equations(const struct instance *t, glp_prob *lp)
{
    int groups = (int)n_groups(t), layers = (int)t->n_layer;

    glp_set_obj_dir(lp, GLP_MAX);
    glp_add_cols(lp, layers * (groups + 1));
    glp_add_rows(lp, 1 + 2 * layers);
    glp_set_row_bnds(lp, 1, GLP_UP, 0.0, (double)t->capacity);
    for (int l = 0; l < layers; l++) {
        int y = layers * groups + l + 1, at[4] = {0, 1, 2 + 2 * l, 3 + 2 * l};

        glp_set_row_bnds(lp, 2 + 2 * l, GLP_LO, 0.0, 0.0); /* sum a - C y >= 0 */
        glp_set_row_bnds(lp, 3 + 2 * l, GLP_UP, 0.0, 0.0); /* sum a - K y <= 0 */
        glp_set_col_kind(lp, y, GLP_BV);
        glp_set_mat_col(
            lp, y, 3, at,
            (double[]){0.0, (double)t->fixed[l], -(double)t->c_min[l], -(double)t->n_ff});
        for (int g = 0; g < groups; g++) {
            int j = l * groups + g + 1;
            double n = (double)(group_end(t, (uint32_t)g) - group_begin((uint32_t)g));

            glp_set_col_kind(lp, j, GLP_BV);
            glp_set_obj_coef(lp, j,
                             t->prefix[l][group_end(t, (uint32_t)g)] -
                                 t->prefix[l][group_begin((uint32_t)g)]);
            glp_set_mat_col(lp, j, 3, at, (double[]){0.0, n * (double)t->neuron[l], n, n});
        }
    }
}

static void test_equations(void)
{
    int agree = 0, n = 40;

    for (int s = 1; s <= n; s++) {
        struct instance t;
        struct pi_ilp_result r = {0}, rest = {0};
        struct pi_ilp_limits by_glpk = {.glpk_only = true};
        struct pi_err e = {0};
        glp_prob *lp;
        glp_iocp par;
        bool ok;

        make_small(&t, (uint32_t)s + 5000);
        (void)glp_term_out(GLP_OFF);
        lp = glp_create_prob();
        equations(&t, lp);
        glp_init_iocp(&par);
        par.presolve = GLP_ON;
        ok = glp_intopt(lp, &par) == 0 && glp_mip_status(lp) == GLP_OPT;
        ok = ok && pi_ilp_solve(t.layers, t.n_layer, t.capacity, NULL, &r, &e) == PI_OK &&
             r.optimal && fabs(r.gain - glp_mip_obj_val(lp)) < 0.5;
        glp_delete_prob(lp);
        ok = ok && pi_ilp_solve(t.layers, t.n_layer, t.capacity, &by_glpk, &rest, &e) == PI_OK &&
             rest.optimal && valid(&t, &rest) && fabs(r.gain - rest.gain) < 0.5;
        if (!ok)
            printf("# seed %d: %.1f\n", s, r.gain);
        agree += ok;
        pi_ilp_result_free(&r);
        pi_ilp_result_free(&rest);
        free_instance(&t);
    }
    (void)glp_free_env();
    printf("# GLPK on (1)-(8), and on the rest, agrees on %d of %d\n", agree, n);
    EQ(agree, n);
}

/* ---- 80 layers of 28,672 neurons */

static void big(const char *name, uint32_t n_ff, uint32_t sizes, uint32_t c_min, double share,
                double limit)
{
    double worst = 0.0;
    int optimal = 0;

    for (uint32_t seed = 1; seed <= 3; seed++) {
        struct instance t = {.n_layer = 80, .n_ff = n_ff};
        struct pi_ilp_result r = {0};
        struct pi_err e = {0};

        rng = seed;
        for (uint32_t l = 0; l < 80; l++) {
            t.neuron[l] = sizes == 1 || l % 2 ? 3 * 4608 : 2 * 4608 + 6720;
            t.c_min[l] = (uint32_t)(c_min * (0.7 + 0.6 * unit()));
            make_layer(&t, l, false);
        }
        t.capacity = (uint64_t)(share * (double)all_bytes(&t));
        optimal += pi_ilp_solve(t.layers, 80, t.capacity, NULL, &r, &e) == PI_OK && r.optimal &&
                   valid(&t, &r);
        worst = r.seconds > worst ? r.seconds : worst;
        pi_ilp_result_free(&r);
        free_instance(&t);
    }
    printf("# 80 x %u, %s: %.3f s\n", n_ff, name, worst);
    EQ(optimal, 3);
    OK(worst < limit);
}

static void test_edges(void)
{
    struct pi_ilp_option none = {.bytes = 8, .gain = 1.0}, odd = {.gain = (double)NAN};
    struct pi_ilp_layer a = {1, &none}, b = {1, &odd};
    struct pi_ilp_result r = {0};
    struct pi_err e = {0};

    FAILS(pi_ilp_solve(&a, 1, 100, NULL, &r, &e), PI_E_RANGE, "layer 0 has no option", e);
    FAILS(pi_ilp_solve(&b, 1, 100, NULL, &r, &e), PI_E_RANGE, "not finite", e);
    PASSES(pi_ilp_solve(NULL, 0, 100, NULL, &r, &e), e);
    OK(r.optimal && r.bytes == 0);
    pi_ilp_result_free(&r);
    EQ(pi_ilp_min_neurons(10e-6, 5e-6, 0.0), 2);
    EQ(pi_ilp_min_neurons(10.1e-6, 5e-6, 0.0), 3);
    EQ(pi_ilp_min_neurons(0.0, 5e-6, 1e-6), 0);
    EQ(pi_ilp_min_neurons(1e-6, 1e-6, 1e-6), UINT32_MAX);
    EQ(pi_ilp_min_neurons(1e-6, 1e-6, 2e-6), UINT32_MAX);
    /* OPT-30B F16 on the paper's PC-High: 26 neurons at 10 us (two rows of 7168) */
    EQ(pi_ilp_min_neurons(10e-6, 2 * 7168 * 2 / 67.2e9, 2 * 7168 * 2 / 1e12), 26);
}

/* A list that may hold nothing hands over to GLPK. */
static void test_fallback(void)
{
    struct pi_ilp_limits few = {.max_states = 4};
    struct pi_ilp_result r = {0}, s = {0};
    struct pi_err e = {0};
    struct instance t;

    make_medium(&t, &kinds[3], 5);
    PASSES(pi_ilp_solve(t.layers, t.n_layer, t.capacity, &few, &r, &e), e);
    PASSES(pi_ilp_solve(t.layers, t.n_layer, t.capacity, NULL, &s, &e), e);
    OK(r.by_glpk && r.optimal && !s.by_glpk);
    NEAR(r.gain, s.gain, 0.5);
    pi_ilp_result_free(&r);
    pi_ilp_result_free(&s);
    free_instance(&t);
}

/* Options that all gain as much per byte: no price tells them apart, and the list grows with the product of their numbers. It stops
 * at its limit in the middle of a layer, not after it. */
static void test_limit(void)
{
    enum {
        LAYERS = 3,
        OPTIONS = 400,
        STATES = 1000
    };
    static struct pi_ilp_option opt[LAYERS][OPTIONS];
    struct pi_ilp_layer layers[LAYERS];
    struct pi_ilp_limits few = {.max_states = STATES, .seconds = 0.1};
    struct pi_ilp_result r = {0};
    struct pi_err e = {0};

    rng = 1;
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 1; i < OPTIONS; i++) {
            opt[l][i].bytes = draw() >> 28;
            opt[l][i].gain = (double)opt[l][i].bytes;
        }
        layers[l] = (struct pi_ilp_layer){OPTIONS, opt[l]};
    }
    PASSES(pi_ilp_solve(layers, LAYERS, UINT64_C(1) << 37, &few, &r, &e), e);
    OK(r.by_glpk && r.bytes <= UINT64_C(1) << 37 && r.gain <= r.bound);
    OK(r.n_states <= 2 * STATES);
    printf("# %zu states\n", r.n_states);
    pi_ilp_result_free(&r);
}

/* Who asked to stop is not kept waiting, whichever part of the solver is at work. The last test: the wish stays. */
static void test_interrupt(void)
{
    struct pi_ilp_limits by_glpk = {.glpk_only = true};
    struct pi_ilp_result r = {0};
    struct pi_err e = {0};
    struct instance t;

    make_medium(&t, &kinds[3], 5);
    pi_interrupt_install();
    (void)raise(SIGINT);
    FAILS(pi_ilp_solve(t.layers, t.n_layer, t.capacity, NULL, &r, &e), PI_E_INTERRUPTED,
          "interrupted", e);
    FAILS(pi_ilp_solve(t.layers, t.n_layer, t.capacity, &by_glpk, &r, &e), PI_E_INTERRUPTED,
          "interrupted", e);
    free_instance(&t);
}

int main(void)
{
    test_edges();
    test_brute();
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        test_dynamic(&kinds[i]);
    printf("# %d instances equal to the dynamic program\n", g_compared);
    test_equations();
    test_fallback();
    test_limit();
    big("uniform", 28672, 1, 0, 0.1, 1.0);
    big("C_l binds", 28672, 1, 700, 0.02, 10.0);
    big("two sizes", 28672, 2, 0, 0.2, 10.0);
    big("two sizes, C_l binds", 28672, 2, 700, 0.03, 10.0);
    big("two sizes, C_l, short last group", 28700, 2, 4000, 0.05, 10.0);
    test_interrupt();
    return DONE();
}
