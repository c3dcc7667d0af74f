/*
 * bench_cpu - what the CPU kernels reach on this machine, each beside a plain sequential read of the same bytes.
 *
 *   bench_cpu [MEGABYTES [COLUMNS [THREADS [ISA]]]]      (256, 4096, usable cores, all)
 *
 * Best of several runs. dot, axpy all: all rows; ids, axpy: one row in three, as a sparse step reads; q8: with quantised activations; GB/s of weights read.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_bandwidth.h"
#include "common/pi_pool.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECONDS 0.4  /* for each figure, at least 7 runs */
#define ROUNDS  4096 /* at most */

struct job {
    const struct pi_cpu_type *k;
    const char *data;
    const uint64_t *words;
    const uint32_t *ids, *all;
    size_t stride;
    uint32_t n, n_rows, n_ids;
    float *x, *y, *out;
    struct pi_q8 *q8;
    uint64_t sum[64];
};

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *need(void *p, const struct pi_err *e)
{
    if (p == NULL) {
        (void)fprintf(stderr, "bench_cpu: %s\n", e->msg);
        exit(6);
    }
    return p;
}

static void check(enum pi_code rc, const struct pi_err *e)
{
    (void)need(rc == PI_OK ? &rc : NULL, e);
}

/* Each thread a contiguous share of [0, n). */
static size_t share(size_t n, uint32_t thread, uint32_t n_threads)
{
    return n * thread / n_threads;
}

static void read_words(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    const size_t n = j->stride * j->n_rows / 64, begin = share(n, thread, n_threads) * 64,
                 end = share(n, thread + 1, n_threads) * 64;

    j->sum[thread % 64] = pi_bandwidth_read((const uint8_t *)j->words + begin, end - begin);
}

static void dot_rows(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    uint32_t b = (uint32_t)share(j->n_rows, thread, n_threads),
             e = (uint32_t)share(j->n_rows, thread + 1, n_threads);

    j->k->dot_rows(j->data + b * j->stride, j->stride, e - b, j->x, j->n, j->out + b);
}

static void dot_ids(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    uint32_t b = (uint32_t)share(j->n_ids, thread, n_threads),
             e = (uint32_t)share(j->n_ids, thread + 1, n_threads);

    j->k->dot_ids(j->data, j->stride, j->ids + b, e - b, j->x, j->n, j->out + b);
}

static void dot_rows_q8(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    uint32_t b = (uint32_t)share(j->n_rows, thread, n_threads),
             e = (uint32_t)share(j->n_rows, thread + 1, n_threads);

    j->k->dot_rows_q8(j->data + b * j->stride, j->stride, e - b, j->q8, j->n, j->out + b);
}

static void dot_ids_q8(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    uint32_t b = (uint32_t)share(j->n_ids, thread, n_threads),
             e = (uint32_t)share(j->n_ids, thread + 1, n_threads);

    j->k->dot_ids_q8(j->data, j->stride, j->ids + b, e - b, j->q8, j->n, j->out + b);
}

/* A range of columns for each thread. */
static void axpy(struct job *j, const uint32_t *ids, uint32_t n_ids, uint32_t thread,
                 uint32_t n_threads)
{
    uint32_t b = (uint32_t)share(j->n / 32, thread, n_threads) * 32;
    uint32_t e = (uint32_t)share(j->n / 32, thread + 1, n_threads) * 32;

    j->k->axpy_ids(j->data, j->stride, ids, j->out, n_ids, b, e, j->y);
}

static void axpy_ids(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;

    axpy(j, j->ids, j->n_ids, thread, n_threads);
}

static void axpy_all(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;

    axpy(j, j->all, j->n_rows, thread, n_threads);
}

#define FIGURES 7

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Reading and the kernels take turns, so that what else the machine does meets all of them alike: the best time of each, and the median of its time over
 * that of the reading before it. */
static void alternate(struct pi_pool *pool, struct job *j, int figures, double least[FIGURES],
                      double ratio[FIGURES])
{
    static const pi_pool_fn fn[FIGURES] = {read_words, dot_rows,    dot_ids,   axpy_ids,
                                           axpy_all,   dot_rows_q8, dot_ids_q8};
    static double all[FIGURES][ROUNDS];
    double start = now();
    size_t n = 0;

    for (int i = 0; i < figures; i++)
        least[i] = 1e9;
    for (; n < ROUNDS && (n < 7 || now() - start < SECONDS * figures); n++) {
        for (int i = 0; i < figures; i++) {
            double t = now();

            pi_pool_run(pool, fn[i], j);
            t = now() - t;
            least[i] = t < least[i] ? t : least[i];
            all[i][n] = i == 0 ? t : t / all[0][n];
        }
    }
    for (int i = 0; i < figures; i++) {
        qsort(all[i], n, sizeof(all[i][0]), ascending);
        ratio[i] = all[i][n / 2];
    }
}

static void bench_type(struct pi_pool *pool, const struct pi_cpu *cpu, enum pi_type type,
                       struct job *j, size_t bytes)
{
    uint64_t row_bytes = 0;
    double least[FIGURES], ratio[FIGURES];
    int figures;

    if (cpu->type[type] == NULL || !pi_type_row_bytes(type, j->n, &row_bytes))
        return;
    j->k = cpu->type[type];
    figures = j->k->dot_rows_q8 != NULL ? 7 : 5;
    j->stride = row_bytes;
    j->n_rows = (uint32_t)(bytes / row_bytes);
    j->n_ids = j->n_rows / 3;
    j->k->from_f32(j->x, (void *)(uintptr_t)j->data, j->n);
    for (uint32_t r = 1; r < j->n_rows; r++) /* what rows hold does not matter to the time */
        memcpy((void *)(uintptr_t)(j->data + r * j->stride), j->data, j->stride);
    if (j->k->dot_rows_q8 != NULL)
        cpu->quantise_q8(j->x, j->q8, j->n);
    alternate(pool, j, figures, least, ratio);
    printf("%-6s %-5s %7u %9.1f", pi_isa_name(cpu->isa), pi_type_name(type), pi_pool_size(pool),
           1e-9 * (double)(j->stride * j->n_rows) / least[0]);
    for (int i = 1; i < figures; i++) {
        double part = i == 1 || i == 4 || i == 5 ? 1.0 : (double)j->n_ids / (double)j->n_rows;

        printf(" %8.1f %3.0f %%", 1e-9 * part * (double)(j->stride * j->n_rows) / least[i],
               100.0 * part / ratio[i]);
    }
    printf("\n");
    (void)fflush(stdout);
}

static void nothing(void *ctx, uint32_t thread, uint32_t n_threads)
{
    (void)ctx;
    (void)thread;
    (void)n_threads;
}

static void barriers(void *ctx, uint32_t thread, uint32_t n_threads)
{
    (void)n_threads;
    for (int i = 0; i < 100; i++)
        pi_pool_barrier(ctx, thread);
}

/* Best of many short series: a neighbour that takes a core away for a while does not count. */
static void bench_pool(struct pi_pool *pool)
{
    double run = 1e9, barrier = 1e9;

    for (int k = 0; k < 2000; k++) {
        double t = now();

        for (int i = 0; i < 20; i++)
            pi_pool_run(pool, nothing, NULL);
        t = (now() - t) / 20;
        run = t < run ? t : run;
        t = now();
        pi_pool_run(pool, barriers, pool);
        t = (now() - t) / 100;
        barrier = t < barrier ? t : barrier;
    }
    printf("pool of %u: %.2f us a run, %.2f us a barrier\n", pi_pool_size(pool), run * 1e6,
           barrier * 1e6);
}

/* GFLOP/s of a prompt chunk against square weights. */
static void bench_matmul(struct pi_pool *pool, const struct job *j, size_t bytes, enum pi_type type,
                         uint32_t n_tok)
{
    struct pi_err e = {0};
    struct pi_mat m = {.type = type, .n_rows = j->n, .n_cols = j->n, .data = j->data};
    float *x, *y;
    uint64_t row_bytes = 0;
    double least = 1e9;

    if (!pi_type_row_bytes(type, j->n, &row_bytes) || row_bytes * j->n > bytes)
        return;
    m.row_bytes = row_bytes;
    x = need(pi_calloc_aligned((size_t)n_tok * j->n, sizeof(float), &e), &e);
    y = need(pi_calloc_aligned((size_t)n_tok * j->n, sizeof(float), &e), &e);
    for (int i = 0; i < 8; i++) {
        double t = now();

        check(pi_blas_matmul(pool, &m, x, j->n, n_tok, NULL, y, j->n, &e), &e);
        t = now() - t;
        least = t < least ? t : least;
    }
    printf("matmul %-5s %u threads, %4u tokens: %.1f GFLOP/s\n", pi_type_name(type),
           pi_pool_size(pool), n_tok, 2e-9 * j->n * j->n * n_tok / least);
    free(x);
    free(y);
}

int main(int argc, char **argv)
{
    static const enum pi_type types[] = {PI_TYPE_F32,  PI_TYPE_F16,  PI_TYPE_BF16, PI_TYPE_Q8_0,
                                         PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0, PI_TYPE_Q5_1,
                                         PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 256) << 20;
    struct job j = {.n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 4096};
    uint32_t max_threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : pi_pool_usable_cores();
    struct pi_err e = {0};
    uint32_t *ids, *all;
    char *data;

    j.data = data = need(pi_calloc_aligned(bytes, 1, &e), &e);
    j.words = (const uint64_t *)data;
    j.x = need(pi_calloc_aligned(j.n, sizeof(float), &e), &e);
    j.y = need(pi_calloc_aligned(j.n, sizeof(float), &e), &e);
    j.q8 = need(pi_calloc_aligned(j.n / 32 + 1, sizeof(*j.q8), &e), &e);
    j.out = need(pi_calloc_aligned(bytes / j.n * 2 + 64, sizeof(float), &e), &e);
    j.ids = ids = need(pi_calloc_aligned(bytes / j.n * 2 + 64, sizeof(*ids), &e), &e);
    j.all = all = need(pi_calloc_aligned(bytes / j.n * 2 + 64, sizeof(*all), &e), &e);
    for (uint32_t i = 0; i < j.n; i++)
        j.x[i] = (float)((i * 37 + 11) % 101) * 0.01f - 0.5f;
    for (size_t i = 0; i < bytes / j.n * 2; i++)
        ids[i] = (uint32_t)(3 * i + (i * 7 + i / 5) % 3);
    for (size_t i = 0; i < bytes / j.n * 2; i++)
        all[i] = (uint32_t)i;
    check(pi_blas_init(&e), &e);
    printf(
        "isa    type  threads read GB/s dot GB/s       ids GB/s       axpy GB/s      axpy all       "
        "q8 dot         q8 ids         (%zu MB, %u columns)\n",
        bytes >> 20, j.n);
    for (uint32_t threads = 1; threads <= max_threads; threads *= 2) {
        struct pi_pool *pool = NULL;

        check(pi_pool_create(threads, &pool, &e), &e);
        for (int isa = PI_ISA_COUNT - 1; isa >= 0; isa--) {
            const struct pi_cpu *cpu = pi_cpu_get((enum pi_isa)isa);

            for (size_t t = 0;
                 cpu != NULL && (argc < 5 || strcmp(argv[4], pi_isa_name(cpu->isa)) == 0) &&
                 t < sizeof(types) / sizeof(types[0]);
                 t++)
                bench_type(pool, cpu, types[t], &j, bytes);
        }
        bench_pool(pool);
        for (uint32_t n_tok = 4; n_tok <= 512; n_tok = n_tok == 4 ? 32 : 4 * n_tok) {
            bench_matmul(pool, &j, bytes, PI_TYPE_F32, n_tok);
            bench_matmul(pool, &j, bytes, PI_TYPE_F16, n_tok);
            bench_matmul(pool, &j, bytes, PI_TYPE_Q4_0, n_tok);
        }
        pi_pool_destroy(pool);
    }
    free(data);
    free(j.x);
    free(j.y);
    free(j.out);
    free(j.q8);
    free(ids);
    free(all);
    return 0;
}
