/*
 * bench_sparse - how fast rows are read that are scattered, beside a sequential read of the same memory, one after the other in one run.
 *
 *   bench_sparse [MEGABYTES [THREADS [COLUMNS [PER_MILLE [SECONDS]]]]]      (1024, usable cores, 4096, 100, 2)
 *
 * Layers of 11008 gated neurons in ordinary pages and in huge ones; so many in a thousand fire. dense: gate, up and down of all; exact: all gates, up and down of those that
 * fire; predicted: gate, up and down of those that fire. Each in turn on the next layer, so that no cache holds it, with a barrier between. GB/s of the weights read: the median and the
 * best tenth, and both over the sequential read's.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_bandwidth.h"
#include "common/pi_pool.h"
#include "common/pi_progress.h"
#include "runtime/pi_cold.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define N_FF 11008
#define MOST 4096 /* samples kept */

enum what {
    READ,
    DENSE,
    EXACT,
    PREDICTED,
    WHATS
};

static const char *const what_names[WHATS] = {"sequential", "dense", "exact", "predicted"};

/* The same layers, in pages of one kind. */
struct pages {
    const char *name;
    char *data;
    struct pi_layer_weights *w; /* (n_layers) */
    uint32_t at;                /* the layer read last */
    double gbs[WHATS][MOST];
};

struct rig {
    struct pi_pool *pool;
    const struct pi_cpu *cpu;
    uint32_t d, n_layers, per_mille, n_active;
    size_t bytes; /* of each kind of pages */
    enum pi_type type;
    size_t row_bytes;
    struct pages pages[2];
    struct pi_shape shape;
    uint32_t *all, *active; /* (N_FF), (n_active) */
    float *x, *out;
    struct pi_cold_scratch *scratch;
    double seconds;
    uint32_t n; /* samples */
    /* of the step */
    struct pages *now;
    struct pi_cold_job job;
    uint64_t sum[1024];
};

static void check(enum pi_code rc, const struct pi_err *e)
{
    if (rc != PI_OK) {
        (void)fprintf(stderr, "bench_sparse: %s\n", e->msg);
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

static char *map(size_t bytes, int advice)
{
    struct pi_err e = {0};
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        check(pi_err_set(&e, PI_E_NOMEM, "cannot allocate %zu bytes", bytes), &e);
    (void)madvise(p, bytes, advice);
    return p;
}

static size_t share(size_t n, uint32_t thread, uint32_t n_threads)
{
    return n * thread / n_threads;
}

/* ---- memory ---- */

static bool fires(const struct rig *r, uint32_t neuron)
{
    return (neuron * UINT32_C(2654435761) >> 8) % 1000 < r->per_mille;
}

/* With a positive input: gates of neurons that fire are positive, others negative. */
static void fill(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;
    size_t rows = (size_t)r->n_layers * 3 * N_FF;
    float v[64];
    char block[2][256];
    uint64_t piece = 0;

    if (!pi_type_row_bytes(r->type, 64, &piece) || piece > sizeof(block[0]))
        return;
    for (int sign = 0; sign < 2; sign++) {
        for (int i = 0; i < 64; i++)
            v[i] = (sign == 0 ? 0.01f : -0.01f) * (float)(1 + (i * 37 + 11) % 101);
        r->cpu->type[r->type]->from_f32(v, block[sign], 64);
    }
    for (size_t row = share(rows, thread, n_threads); row < share(rows, thread + 1, n_threads);
         row++) {
        bool gate = row % (3 * (size_t)N_FF) < N_FF;
        const char *b = block[gate && !fires(r, (uint32_t)(row % (3 * (size_t)N_FF)))];

        for (size_t at = 0; at + piece <= r->row_bytes; at += piece)
            memcpy(r->now->data + row * r->row_bytes + at, b, piece);
    }
}

static void make_layers(struct rig *r, struct pages *p)
{
    p->w = need(r->n_layers, sizeof(*p->w));
    for (uint32_t l = 0; l < r->n_layers; l++) {
        struct pi_mat m = {r->type, N_FF, r->d, r->row_bytes,
                           p->data + r->row_bytes * 3 * N_FF * l};

        p->w[l].gate = p->w[l].up = p->w[l].down_t = m;
        p->w[l].up.data = p->data + r->row_bytes * (3 * (size_t)N_FF * l + N_FF);
        p->w[l].down_t.data = p->data + r->row_bytes * (3 * (size_t)N_FF * l + 2 * (size_t)N_FF);
    }
    r->now = p;
    pi_pool_run(r->pool, fill, r);
}

/* ---- steps ---- */

/* As much as an exact step reads, from the layer's begin on. */
static size_t read_bytes(const struct rig *r)
{
    return r->row_bytes * (N_FF + 2 * (size_t)r->n_active) / 512 * 512;
}

static void read_words(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;
    const size_t n = read_bytes(r) / 64, begin = share(n, thread, n_threads) * 64,
                 end = share(n, thread + 1, n_threads) * 64;

    r->sum[thread % 1024] =
        pi_bandwidth_read((const uint8_t *)r->now->w[r->now->at].gate.data + begin, end - begin);
}

static void cold(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;

    pi_cold_run(&r->job, thread, n_threads);
}

static void step(struct rig *r, struct pages *p, enum what what)
{
    static const enum pi_mode modes[WHATS] = {PI_MODE_DENSE, PI_MODE_DENSE, PI_MODE_EXACT,
                                              PI_MODE_PREDICTED};
    double t, bytes = (double)read_bytes(r);

    r->now = p;
    p->at = (p->at + 1) % r->n_layers;
    r->job = (struct pi_cold_job){.cpu = r->cpu,
                                  .shape = &r->shape,
                                  .w = &p->w[p->at],
                                  .pool = r->pool,
                                  .scratch = r->scratch,
                                  .n_tok = 1,
                                  .x = r->x,
                                  .n = what == PREDICTED ? r->n_active : N_FF,
                                  .ids = what == PREDICTED ? r->active : r->all,
                                  .mode = modes[what],
                                  .out = r->out};
    t = pi_now();
    pi_pool_run(r->pool, what == READ ? read_words : cold, r);
    t = pi_now() - t;
    if (what != READ)
        bytes = (double)r->row_bytes *
                (double)(r->job.stats.first_rows + r->job.stats.up_rows + r->job.stats.down_rows);
    if (what != READ && what != DENSE && r->job.stats.active != r->n_active)
        (void)fprintf(stderr, "bench_sparse: %llu neurons fire, expected %u\n",
                      (unsigned long long)r->job.stats.active, r->n_active);
    p->gbs[what][r->n] = 1e-9 * bytes / t;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void bench_type(struct rig *r, enum pi_type type)
{
    uint64_t row_bytes = 0;
    double end;

    if (!pi_type_row_bytes(type, r->d, &row_bytes) || r->bytes / row_bytes < 3 * N_FF)
        return;
    r->type = type;
    r->row_bytes = row_bytes;
    r->n_layers = (uint32_t)(r->bytes / row_bytes / (3 * N_FF));
    for (int k = 0; k < 2; k++)
        make_layers(r, &r->pages[k]);
    r->n = 0;
    end = pi_now() + r->seconds;
    for (; r->n < 8 || (r->n < MOST && pi_now() < end); r->n++) {
        for (int w = 0; w < WHATS; w++)
            for (int k = 0; k < 2; k++)
                step(r, &r->pages[k], (enum what)w);
    }
    for (int k = 0; k < 2; k++) {
        struct pages *p = &r->pages[k];
        double base[2] = {0.0};

        for (int w = 0; w < WHATS; w++) {
            double mid, best;

            qsort(p->gbs[w], r->n, sizeof(double), compare);
            mid = p->gbs[w][r->n / 2];
            best = p->gbs[w][r->n * 9 / 10];
            if (w == READ) {
                base[0] = mid;
                base[1] = best;
            }
            printf("%-5s %-8s %-10s %7.1f %7.1f %7.2f %7.2f\n", pi_type_name(type), p->name,
                   what_names[w], mid, best, mid / base[0], best / base[1]);
        }
        free(p->w);
    }
    (void)fflush(stdout);
}

static unsigned long argument(int argc, char **argv, int i, unsigned long otherwise)
{
    return argc > i ? strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    static const enum pi_type types[] = {PI_TYPE_F16, PI_TYPE_Q8_0, PI_TYPE_Q4_0};
    static struct rig r = {.shape = {.gated = true, .act = PI_ACT_RELU},
                           .pages = {{.name = "4 KB"}, {.name = "2 MB"}}};
    struct pi_err e = {0};

    r.bytes = argument(argc, argv, 1, 1024) << 20;
    r.d = (uint32_t)argument(argc, argv, 3, 4096);
    r.per_mille = (uint32_t)argument(argc, argv, 4, 100);
    r.seconds = (double)argument(argc, argv, 5, 2);
    r.shape.n_embd = r.d;
    r.shape.n_ff = N_FF;
    check(pi_cpu_select(&r.cpu, &e), &e);
    check(pi_pool_create((uint32_t)argument(argc, argv, 2, 0), &r.pool, &e), &e);
    check(pi_pool_bind(r.pool, PI_NUMA_DISTRIBUTE, true, &e), &e);
    r.pages[0].data = map(r.bytes, MADV_NOHUGEPAGE);
    r.pages[1].data = map(r.bytes, MADV_HUGEPAGE);
    r.all = need(N_FF, sizeof(*r.all));
    r.active = need(N_FF, sizeof(*r.active));
    for (uint32_t i = 0; i < N_FF; i++) {
        r.all[i] = i;
        r.active[r.n_active] = i;
        r.n_active += fires(&r, i);
    }
    r.x = need(r.d, sizeof(float));
    r.out = need(r.d, sizeof(float));
    for (size_t i = 0; i < r.d; i++)
        r.x[i] = 0.5f;
    check(pi_cold_scratch_create(N_FF, 1, r.d, &r.scratch, &e), &e);
    printf("%s, %u threads, %u columns, %u of %u neurons fire, %zu MB\n", pi_isa_name(r.cpu->isa),
           pi_pool_size(r.pool), r.d, r.n_active, N_FF, r.bytes >> 20);
    printf("type  pages    read        median    best of sequential, best\n");
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        bench_type(&r, types[t]);
    pi_cold_scratch_free(r.scratch);
    pi_pool_destroy(r.pool);
    for (int k = 0; k < 2; k++)
        (void)munmap(r.pages[k].data, r.bytes);
    free(r.all);
    free(r.active);
    free(r.x);
    free(r.out);
    return 0;
}
