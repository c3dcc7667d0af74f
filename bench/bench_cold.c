/*
 * bench_cold - the CPU's share of a split layer on this machine: scattered rows of layers too large for any cache, beside a sequential read.
 *
 *   bench_cold [MEGABYTES [THREADS [COLUMNS [sweep]]]]      (4096, usable cores, 4096)
 *
 * Neurons of 11008 at random, all of them firing, so that three rows of each are read; a call for each layer in turn, a barrier between two calls, as
 * in a step. Microseconds of a call: the best tenth and the median; GB/s: rows read in
 * the median call. masks: each token wants a neuron or not, at random, as many as in a decode step of that many sequences.
 * sweep: forms beside the one that pi_cold_form_of() chooses.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_pool.h"
#include "runtime/pi_cold.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_FF     11008
#define CALLS    48   /* of a series, as a step of as many layers */
#define SERIES   15   /* at most... */
#define SECONDS  0.12 /* ... in this time, but two */
#define BARRIERS 200
#define DELAY    3e-6 /* of the late thread */

struct rig {
    struct pi_pool *pool;
    const struct pi_cpu *cpu;
    uint32_t d, n_threads;
    size_t bytes; /* of data */
    char *data;
    enum pi_type type;
    size_t row_bytes;
    uint32_t n_layers;
    struct pi_layer_weights *w; /* (n_layers) */
    struct pi_shape shape;
    uint32_t *ids, *tokens; /* (CALLS, N_FF) */
    uint32_t thousandths;   /* of the tokens want a neuron that is listed; 0: all, without masks */
    float *x, *out;
    struct pi_cold_scratch *scratch;
    struct pi_cold_job job[CALLS];
    uint32_t n_calls;
    double stamp[CALLS + 1];
    uint64_t sum[1024];
};

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(enum pi_code rc, const struct pi_err *e)
{
    if (rc != PI_OK) {
        (void)fprintf(stderr, "bench_cold: %s\n", e->msg);
        exit(pi_code_exit_status(rc));
    }
}

static void *need(size_t n, size_t size)
{
    struct pi_err e = {0};
    void *p = pi_calloc_aligned(n, size, &e);

    check(p != NULL ? PI_OK : PI_E_NOMEM, &e);
    return p;
}

static size_t share(size_t n, uint32_t thread, uint32_t n_threads)
{
    return n * thread / n_threads;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The value below which a share of all lies. */
static double quantile(double *v, size_t n, double share_below)
{
    qsort(v, n, sizeof(*v), compare);
    return v[(size_t)((double)n * share_below)];
}

/* ---- memory ---- */

/* Positive weights, so that with a positive input all neurons fire. */
static void fill(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;
    size_t rows = r->bytes / r->row_bytes, end = share(rows, thread + 1, n_threads);
    float v[64];
    char block[256];
    uint64_t piece = 0;

    for (int i = 0; i < 64; i++)
        v[i] = 0.01f * (float)(1 + (i * 37 + 11) % 101);
    if (!pi_type_row_bytes(r->type, 64, &piece) || piece > sizeof(block))
        return;
    r->cpu->type[r->type]->from_f32(v, block, 64);
    for (size_t row = share(rows, thread, n_threads); row < end; row++) {
        char *to = r->data + row * r->row_bytes;

        for (size_t at = 0; at + piece <= r->row_bytes; at += piece)
            memcpy(to + at, block, piece);
    }
}

typedef uint64_t vec __attribute__((vector_size(16)));

static void read_words(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;
    const vec *v = (const vec *)(const void *)r->data;
    size_t n = r->bytes / sizeof(vec) / 8, end = share(n, thread + 1, n_threads) * 8;
    vec s[8] = {{0}};

    for (size_t i = share(n, thread, n_threads) * 8; i < end; i += 8) {
#pragma GCC unroll 8
        for (size_t l = 0; l < 8; l++)
            s[l] += v[i + l];
    }
    for (int l = 1; l < 8; l++)
        s[0] += s[l];
    r->sum[thread] = s[0][0] + s[0][1];
}

static double sequential(struct rig *r)
{
    double least = 1e9;

    for (int i = 0; i < 3; i++) {
        double t = now();

        pi_pool_run(r->pool, read_words, r);
        t = now() - t;
        least = t < least ? t : least;
    }
    return 1e-9 * (double)r->bytes / least;
}

/* ---- calls ---- */

static uint32_t draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* n of N_FF, ascending. */
static void pick(uint32_t *ids, uint32_t n, uint32_t *seed)
{
    for (uint32_t i = 0, k = 0; k < n; i++) {
        if (draw(seed) % (N_FF - i) < n - k)
            ids[k++] = i;
    }
}

/* Of a neuron that is wanted at all. */
static uint32_t pick_tokens(uint32_t n_tok, uint32_t thousandths, uint32_t *seed)
{
    uint32_t mask = 0;

    while (mask == 0) {
        for (uint32_t t = 0; t < n_tok; t++)
            mask |= (uint32_t)(draw(seed) % 1000 < thousandths) << t;
    }
    return mask;
}

static void prepare(struct rig *r, uint32_t n, uint32_t n_tok, const struct pi_cold_form *form)
{
    uint32_t seed = 1;

    r->n_calls = n_tok < 8 ? CALLS : CALLS / 4;
    for (uint32_t c = 0; c < r->n_calls; c++) {
        uint32_t *ids = r->ids + (size_t)c * N_FF, *tokens = r->tokens + (size_t)c * N_FF;

        pick(ids, n, &seed);
        for (uint32_t i = 0; r->thousandths > 0 && i < n; i++)
            tokens[i] = pick_tokens(n_tok, r->thousandths, &seed);
        r->job[c] = (struct pi_cold_job){.cpu = r->cpu,
                                         .shape = &r->shape,
                                         .w = &r->w[c % r->n_layers],
                                         .pool = r->pool,
                                         .scratch = r->scratch,
                                         .n_tok = n_tok,
                                         .x = r->x,
                                         .n = n,
                                         .ids = ids,
                                         .tokens = r->thousandths > 0 ? tokens : NULL,
                                         .mode = PI_MODE_PREDICTED,
                                         .form = form,
                                         .out = r->out};
    }
}

static void series(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;

    pi_pool_barrier(r->pool, thread);
    for (uint32_t c = 0; c < r->n_calls; c++) {
        if (thread == 0)
            r->stamp[c] = now();
        pi_cold_run(&r->job[c], thread, n_threads);
        pi_pool_barrier(r->pool, thread);
    }
    if (thread == 0)
        r->stamp[r->n_calls] = now();
}

/* Seconds of a call: the tenth best of a hundred, and the median. */
static void call(struct rig *r, uint32_t n, uint32_t n_tok, const struct pi_cold_form *form,
                 double *low, double *mid)
{
    double t[SERIES * CALLS], start = now();
    size_t k = 0;

    prepare(r, n, n_tok, form);
    for (uint32_t s = 0; s < SERIES && (s < 2 || now() - start < SECONDS); s++) {
        pi_pool_run(r->pool, series, r);
        for (uint32_t c = 0; c < r->n_calls; c++)
            t[k++] = r->stamp[c + 1] - r->stamp[c];
    }
    *low = quantile(t, k, 0.1);
    *mid = quantile(t, k, 0.5);
}

static void line(struct rig *r, uint32_t n, uint32_t n_tok, const struct pi_cold_form *form,
                 double seq)
{
    struct pi_cold_form f = form != NULL ? *form : pi_cold_form_of(n, n_tok);
    double low, mid, gbs;

    call(r, n, n_tok, form, &low, &mid);
    gbs = 3e-9 * n * (double)r->row_bytes / mid;
    printf("%-5s %7u %6u  %5u/%-3u %3u %9.1f %9.1f %8.1f %6.2f%s\n", pi_type_name(r->type), n,
           n_tok, f.n_one < n ? f.n_one : n, f.chunk_one, f.chunk_two, low * 1e6, mid * 1e6, gbs,
           gbs / seq, r->thousandths > 0 ? " masks" : "");
    (void)fflush(stdout);
}

/* Lists of a 7B model of which a unit with half of the neurons holds the colder ones. */
static void masked_lines(struct rig *r, double seq)
{
    static const uint32_t lists[][3] = {
        {1490, 4, 118}, {2900, 8, 118}, {5080, 16, 180}, {7500, 32, 156}};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        r->thousandths = lists[i][2];
        line(r, lists[i][0], lists[i][1], NULL, seq);
    }
    r->thousandths = 0;
}

static void sweep(struct rig *r, uint32_t n, uint32_t n_tok, double seq)
{
    static const uint32_t eighths[] = {8, 7, 6, 4, 0}, size[] = {4, 8, 12, 16, 24, 32};

    for (size_t i = 0; i < sizeof(eighths) / sizeof(eighths[0]); i++) {
        for (size_t k = 0; k < sizeof(size) / sizeof(size[0]); k++) {
            bool two = eighths[i] == 0;
            struct pi_cold_form f = {.n_one = n * eighths[i] / 8,
                                     .chunk_one = two ? 1 : size[k],
                                     .chunk_two = two ? size[k] / 2 : 4};

            line(r, n, n_tok, &f, seq);
        }
    }
}

static void bench_type(struct rig *r, enum pi_type type, bool all)
{
    uint64_t row_bytes = 0;
    double seq;

    if (!pi_type_row_bytes(type, r->d, &row_bytes) || r->bytes / row_bytes < 3 * N_FF)
        return;
    r->type = type;
    r->row_bytes = row_bytes;
    r->n_layers = (uint32_t)(r->bytes / row_bytes / (3 * N_FF));
    r->w = need(r->n_layers, sizeof(*r->w));
    for (uint32_t l = 0; l < r->n_layers; l++) {
        struct pi_mat m = {type, N_FF, r->d, row_bytes, r->data + row_bytes * 3 * N_FF * l};

        r->w[l].gate = r->w[l].up = r->w[l].down_t = m;
        r->w[l].up.data = r->data + row_bytes * (3 * (size_t)N_FF * l + N_FF);
        r->w[l].down_t.data = r->data + row_bytes * (3 * (size_t)N_FF * l + 2 * (size_t)N_FF);
    }
    pi_pool_run(r->pool, fill, r);
    seq = sequential(r);
    printf("%-5s sequential read %53.1f\n", pi_type_name(type), seq);
    line(r, 44, 1, NULL, seq);
    line(r, 374, 1, NULL, seq);
    line(r, 1100, 1, NULL, seq);
    for (uint32_t n_tok = 4; n_tok <= 32; n_tok = n_tok == 4 ? 8 : 32 + (n_tok == 32))
        line(r, 1100, n_tok, NULL, seq);
    masked_lines(r, seq);
    for (uint32_t n_tok = 1; all && n_tok <= (type == PI_TYPE_F16 ? 8 : 1); n_tok *= 2)
        sweep(r, n_tok == 1 ? 374 : 1100, n_tok, seq);
    free(r->w);
}

/* ---- barrier ---- */

static void barriers(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;

    (void)n_threads;
    for (int i = 0; i < BARRIERS; i++)
        pi_pool_barrier(r->pool, thread);
}

/* Each time another thread comes late: the others are all waiting. */
static void late_barriers(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;

    for (uint32_t i = 0; i < BARRIERS; i++) {
        double until = now() + DELAY;

        while (i % n_threads == thread && now() < until)
            ;
        pi_pool_barrier(r->pool, thread);
    }
}

static void bench_barrier(struct rig *r)
{
    double t[2][99];

    for (size_t i = 0; i < 99; i++) {
        t[0][i] = now();
        pi_pool_run(r->pool, barriers, r);
        t[1][i] = now();
        t[0][i] = (t[1][i] - t[0][i]) / BARRIERS;
        pi_pool_run(r->pool, late_barriers, r);
        t[1][i] = (now() - t[1][i]) / BARRIERS - DELAY;
    }
    printf(
        "%u threads: a barrier takes %.2f us, all coming at once; %.2f us behind the last one when the others wait\n",
        r->n_threads, quantile(t[0], 99, 0.5) * 1e6, quantile(t[1], 99, 0.5) * 1e6);
}

int main(int argc, char **argv)
{
    static const enum pi_type types[] = {PI_TYPE_F16, PI_TYPE_Q8_0, PI_TYPE_Q4_0};
    static struct rig r = {.shape = {.gated = true, .act = PI_ACT_RELU}};
    struct pi_err e = {0};
    uint32_t threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;

    r.bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 4096) << 20;
    r.d = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 4096;
    r.shape.n_embd = r.d;
    r.shape.n_ff = N_FF;
    check(pi_cpu_select(&r.cpu, &e), &e);
    check(pi_pool_create(threads, &r.pool, &e), &e);
    r.n_threads = pi_pool_size(r.pool);
    r.data = need(r.bytes, 1);
    r.ids = need((size_t)CALLS * N_FF, sizeof(*r.ids));
    r.tokens = need((size_t)CALLS * N_FF, sizeof(*r.tokens));
    r.x = need((size_t)PI_COLD_TOKENS * r.d, sizeof(float));
    r.out = need((size_t)PI_COLD_TOKENS * r.d, sizeof(float));
    for (size_t i = 0; i < (size_t)PI_COLD_TOKENS * r.d; i++)
        r.x[i] = 0.5f;
    check(pi_cold_scratch_create(N_FF, PI_COLD_TOKENS, r.d, &r.scratch, &e), &e);
    printf("%s, %u threads, %zu MB\n", pi_isa_name(r.cpu->isa), r.n_threads, r.bytes >> 20);
    bench_barrier(&r);
    printf("type  neurons tokens  one pass two  best 10%%    median     GB/s of sequential\n");
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        bench_type(&r, types[t], argc > 4);
    pi_cold_scratch_free(r.scratch);
    pi_pool_destroy(r.pool);
    free(r.data);
    free(r.ids);
    free(r.tokens);
    free(r.x);
    free(r.out);
    return 0;
}
