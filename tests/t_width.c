/* How many tokens go through one decode step, chosen by made-up times: no clock, the same every time. */
#include "config.h"

#include "runtime/pi_width.h"
#include "tests/tap.h"

#include <stdlib.h>

/* Seconds of a step of some width. */
typedef double (*cost_fn)(uint32_t width);

static double wide_is_better(uint32_t width)
{
    return 0.010 + 0.001 * width;
}

/* 7B in F16, half of it on an H200: 33, 74, 188 ms for 8, 16, 32 */
static double eight_is_best(uint32_t width)
{
    return width <= 8 ? 0.017 + 0.002 * width : width <= 16 ? 0.074 : 0.188;
}

static double sixteen_is_best(uint32_t width)
{
    return width <= 16 ? 0.010 + 0.001 * width : 0.008 + 0.002 * width;
}

/* As long as 16 are the best, 8 are far from it. */
static double eight_is_slow(uint32_t width)
{
    return width <= 8 ? 0.050 : sixteen_is_best(width);
}

static double narrow_is_better(uint32_t width)
{
    return 0.001 * width * width;
}

/* Uniform in 0 to 1. */
static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 40) / (double)(1 << 24);
}

/* A round of n tokens; adds its seconds and returns its steps. noise: the share by which times differ; now and then one is ten times as long. */
static uint32_t run_round(struct pi_width *w, uint32_t n, cost_fn cost, double noise,
                          uint64_t *state, double *seconds)
{
    const uint32_t steps = pi_width_begin(w, n);
    uint32_t left = n, least = UINT32_MAX, most = 0;

    for (uint32_t k = steps; k > 0; k--) {
        const uint32_t width = pi_width_share(left, k);
        double s = cost(width);

        if (noise > 0)
            s *= draw(state) < 0.02 ? 10.0 : 1.0 + noise * (2.0 * draw(state) - 1.0);
        pi_width_note(w, width, s);
        *seconds += s;
        left -= width;
        least = width < least ? width : least;
        most = width > most ? width : most;
    }
    if (left != 0 || most - least > 1 || most > w->most ||
        (least < PI_WIDTH_LEAST && least < n && steps > 1 && w->chooses))
        OK(false); /* all of them, in shares as equal as can be, none too narrow */
    return steps;
}

static double round_cost(uint32_t n, uint32_t steps, cost_fn cost)
{
    double sum = 0;

    for (uint32_t left = n, k = steps; k > 0; left -= pi_width_share(left, k), k--)
        sum += cost(pi_width_share(left, k));
    return sum;
}

/* Chooses wanted steps for n once all is tried, and pays no more for trying than the header says. */
static void settles(uint32_t most, uint32_t n, cost_fn cost, uint32_t wanted)
{
    enum {
        ROUNDS = 20000
    };
    const double best = round_cost(n, wanted, cost);
    struct pi_width w;
    double tries = 0, seconds = 0;
    uint32_t others = 0;

    pi_width_init(&w, most, true);
    for (uint32_t i = 0; i < PI_WIDTH_TRIES; i++)
        (void)run_round(&w, n, cost, 0, NULL, &tries);
    for (uint32_t i = 0; i < ROUNDS; i++)
        others += run_round(&w, n, cost, 0, NULL, &seconds) != wanted;
    OK(others > 0 && others <= ROUNDS / 64);
    OK(seconds <= ROUNDS * best * (1.0 + 1.0 / 64) + 1e-6);
}

static void test_settles(void)
{
    settles(32, 32, wide_is_better, 1);
    settles(32, 20, wide_is_better, 1);
    settles(32, 40, wide_is_better, 2); /* no more than 32 a step */
    settles(20, 20, wide_is_better, 1);
    settles(32, 32, eight_is_best, 4);
    settles(32, 16, eight_is_best, 2);
    settles(32, 20, eight_is_best, 3); /* 7, 7, 6 */
    settles(32, 4096, eight_is_best, 512);
    settles(32, 32, narrow_is_better, 4);
    settles(32, 17, narrow_is_better, 3); /* 6, 6, 5 */
    settles(32, 32, sixteen_is_best, 2);
    settles(32, 4096, narrow_is_better, 512);
}

static void test_few(void)
{
    struct pi_width w;
    double s = 0;

    pi_width_init(&w, 32, true);
    EQ(pi_width_begin(&w, 0), 0);
    for (int i = 0; i < 300; i++)
        for (uint32_t n = 1; n < 2 * PI_WIDTH_LEAST; n++)
            if (run_round(&w, n, narrow_is_better, 0, NULL, &s) != 1)
                OK(false);
    OK(pi_width_hold(&w, 3));
}

static void test_fixed(void)
{
    struct pi_width w;
    double s = 0;

    pi_width_init(&w, 5, false);
    for (int i = 0; i < 200; i++) {
        EQ(run_round(&w, 12, narrow_is_better, 0, NULL, &s), 3);
        EQ(run_round(&w, 3, narrow_is_better, 0, NULL, &s), 1);
    }
    OK(pi_width_hold(&w, 12));
    pi_width_init(&w, 20, false); /* 16 and 8 are not tried */
    for (int i = 0; i < 200; i++)
        EQ(run_round(&w, 40, narrow_is_better, 0, NULL, &s), 2);
    pi_width_init(&w, 1, false);
    EQ(run_round(&w, 7, wide_is_better, 0, NULL, &s), 7);
}

/* The machine becomes another one, and back. */
static void test_change(void)
{
    static const struct {
        cost_fn cost;
        uint32_t steps;
    } part[] = {{eight_is_slow, 2},    {eight_is_best, 4},  {sixteen_is_best, 2},
                {narrow_is_better, 4}, {wide_is_better, 1}, {narrow_is_better, 4},
                {eight_is_best, 4}};
    struct pi_width w;
    double s = 0;

    pi_width_init(&w, 32, true);
    for (size_t p = 0; p < sizeof(part) / sizeof(part[0]); p++) {
        uint32_t chosen = 0;

        for (int i = 0; i < 2000; i++)
            (void)run_round(&w, 32, part[p].cost, 0, NULL, &s);
        for (int i = 0; i < 100; i++)
            chosen += run_round(&w, 32, part[p].cost, 0, NULL, &s) == part[p].steps;
        OK(chosen >= 98);
    }
}

/* How often the limit changes in 20,000 rounds of 32. */
static uint32_t changes(struct pi_width *w, cost_fn cost, double noise, uint64_t *state)
{
    uint32_t n = 0;
    double s = 0;

    for (uint32_t i = 0, limit = w->limit; i < 20000; i++, limit = w->limit) {
        (void)run_round(w, 32, cost, noise, state, &s);
        n += w->limit != limit;
    }
    return n;
}

/* Times that differ by a tenth, and some by ten times: the choice stays. */
static void test_noise(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct pi_width w;
        uint64_t state = seed;
        double s = 0;

        pi_width_init(&w, 32, true);
        for (uint32_t i = 0; i < PI_WIDTH_TRIES; i++)
            (void)run_round(&w, 32, eight_is_best, 0.05, &state, &s);
        OK(changes(&w, eight_is_best, 0.05, &state) <= 1);
        EQ(w.limit, 8);
    }
}

static double nearly_equal(uint32_t width)
{
    return width * (width == 16 ? 0.00098 : 0.001);
}

/* Ways that differ by less than their noise: no hunting between them. */
static void test_equals(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct pi_width w;
        uint64_t state = seed;

        pi_width_init(&w, 32, true);
        OK(changes(&w, nearly_equal, 0.01, &state) <= 20);
    }
}

static bool was_run[PI_WIDTH_MOST + 1];

static double cold_at_first(uint32_t width)
{
    const double s = eight_is_best(width);

    if (was_run[width])
        return s;
    was_run[width] = true;
    return 20.0 * s;
}

static uint32_t rounds_run;

static double loading(uint32_t width)
{
    return wide_is_better(width) * (rounds_run < 8 ? 2.0 : 1.0);
}

/* A model just loaded, slow through the first rounds: they do not speak for the widths tried later. */
static void test_loading(void)
{
    struct pi_width w;
    double s = 0;

    pi_width_init(&w, 32, true);
    for (rounds_run = 0; rounds_run < PI_WIDTH_TRIES; rounds_run++)
        (void)run_round(&w, 32, loading, 0, NULL, &s);
    for (uint32_t width = 8; width <= 32; width *= 2)
        NEAR(w.of[width].seconds, wide_is_better(width), 1e-12);
    EQ(run_round(&w, 32, loading, 0, NULL, &s), 1);
}

/* The first step of a width says nothing. */
static void test_first(void)
{
    struct pi_width w;
    double s = 0;

    pi_width_init(&w, 32, true);
    for (uint32_t i = 0; i < PI_WIDTH_TRIES; i++)
        (void)run_round(&w, 32, cold_at_first, 0, NULL, &s);
    for (uint32_t width = 8; width <= 32; width *= 2)
        NEAR(w.of[width].seconds, eight_is_best(width), 1e-12);
    EQ(run_round(&w, 32, cold_at_first, 0, NULL, &s), 4);
}

/* Of four figures the first does not count, however short it was; of the others the least does, whichever it is. */
static void test_figures(void)
{
    static const double seconds[][4] = {{1, 7, 8, 9}, {99, 9, 7, 8}, {99, 9, 8, 7}};

    for (size_t c = 0; c < sizeof(seconds) / sizeof(seconds[0]); c++) {
        struct pi_width w;

        pi_width_init(&w, 8, true);
        for (int i = 0; i < 4; i++) {
            EQ(pi_width_begin(&w, 8), 1);
            pi_width_note(&w, 8, seconds[c][i]);
        }
        NEAR(w.of[8].seconds, 7, 1e-12);
    }
}

/* Sequences come and go: nearly as fast as with the best way to cut each number of them. */
static void test_walk(void)
{
    static const cost_fn costs[] = {wide_is_better, eight_is_best, narrow_is_better};

    for (size_t c = 0; c < sizeof(costs) / sizeof(costs[0]); c++) {
        struct pi_width w;
        uint64_t state = 7;
        uint32_t n = 1;
        double s = 0, best = 0;

        pi_width_init(&w, 32, true);
        for (int i = 0; i < 20000; i++) {
            double least = round_cost(n, pi_width_share(n, 32), costs[c]);

            (void)run_round(&w, n, costs[c], 0, NULL, &s);
            for (uint32_t limit = 16; limit >= 8; limit /= 2) {
                const uint32_t k = pi_width_share(n, limit);

                if (n / k >= PI_WIDTH_LEAST && round_cost(n, k, costs[c]) < least)
                    least = round_cost(n, k, costs[c]);
            }
            best += least;
            if (draw(&state) < 0.3)
                n = draw(&state) < 0.5 ? (n > 1 ? n - 1 : 1) : (n < 40 ? n + 1 : 40);
        }
        OK(s >= best && s <= 1.05 * best);
    }
}

/* A context that grows makes all steps slower, little by little: no reason to change. */
static uint32_t grown;

static double growing(uint32_t width)
{
    return eight_is_best(width) * (1.0 + 1e-4 * grown);
}

static void test_growth(void)
{
    struct pi_width w;
    uint32_t others = 0;
    double s = 0;

    pi_width_init(&w, 32, true);
    for (grown = 0; grown < 20000; grown++)
        others += run_round(&w, 32, growing, 0, NULL, &s) != 4 && grown >= PI_WIDTH_TRIES;
    OK(others <= 20000 / 64);
}

static void test_hold(void)
{
    struct pi_width w;
    uint32_t rounds = 0;
    double s = 0;

    pi_width_init(&w, 32, true);
    for (; !pi_width_hold(&w, 20) && rounds < 100; rounds++)
        (void)run_round(&w, 20, eight_is_best, 0, NULL, &s);
    OK(rounds > 0 && rounds <= PI_WIDTH_TRIES);
    for (int i = 0; i < 1000; i++)
        if (run_round(&w, 20, i < 500 ? eight_is_best : wide_is_better, 0, NULL, &s) != 3)
            OK(false);
}

int main(void)
{
    test_settles();
    test_few();
    test_fixed();
    test_change();
    test_noise();
    test_equals();
    test_first();
    test_figures();
    test_loading();
    test_walk();
    test_growth();
    test_hold();
    return DONE();
}
