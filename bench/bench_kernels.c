/* Times the device kernels at the shape of a 7B model; see bench_kernels.h. Needs a GPU. */
#include "config.h"

#include "bench/bench_kernels.h"
#include "common/pi_estimate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_BYTES    ((size_t)1280 << 20)
#define CHUNK_BYTES   ((size_t)32 << 20)
#define SCRATCH_BYTES ((size_t)128 << 20)
#define N_REPLAYS     7

_Noreturn void bench_die(const char *file, int line, const char *call, const char *msg)
{
    fprintf(stderr, "bench_kernels: %s:%d %s: %s\n", file, line, call, msg);
    exit(8);
}

/* Words of 16 bits that are finite halves below 2. */
static void fill_pool(struct bench_rig *r)
{
    uint16_t *words = malloc(CHUNK_BYTES);
    uint64_t seed = 1;

    if (words == NULL)
        bench_die(__FILE__, __LINE__, "malloc", "out of memory");
    for (size_t i = 0; i < CHUNK_BYTES / sizeof(*words); i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        words[i] = (uint16_t)(seed >> 40) & 0xbfff;
    }
    for (size_t at = 0; at < POOL_BYTES; at += CHUNK_BYTES)
        BENCH_DO(pi_gpu_upload(&r->pool, at, words, CHUNK_BYTES, &err_));
    free(words);
}

static size_t stride_of(size_t bytes)
{
    return (bytes + PI_DEV_ALIGN - 1) / PI_DEV_ALIGN * PI_DEV_ALIGN;
}

uint32_t bench_copies(const struct bench_rig *r, size_t bytes)
{
    size_t n = r->pool.bytes / stride_of(bytes);

    return n < 4 ? 0 : n > 32 ? 32 : (uint32_t)n;
}

void *bench_copy(const struct bench_rig *r, size_t bytes, uint32_t i)
{
    return (char *)r->pool.ptr + stride_of(bytes) * i;
}

struct pi_dmat bench_mat(const struct bench_rig *r, enum pi_type type, uint32_t n_rows,
                         uint32_t n_cols, uint32_t i)
{
    struct pi_dmat m = {.type = type, .n_rows = n_rows, .n_cols = n_cols};

    m.row_bytes = (size_t)pi_dev_row_bytes(type, n_cols);
    m.data = bench_copy(r, m.row_bytes * n_rows, i);
    return m;
}

void *bench_scratch(struct bench_rig *r, size_t bytes)
{
    void *p = (char *)r->scratch.ptr + r->used;

    r->used += stride_of(bytes);
    if (r->used > r->scratch.bytes)
        bench_die(__FILE__, __LINE__, "bench_scratch", "more than there is");
    return p;
}

void bench_reset(struct bench_rig *r)
{
    pi_gpu_free(&r->scratch);
    BENCH_DO(pi_gpu_alloc(0, SCRATCH_BYTES, &r->scratch, &err_));
    r->used = 0;
}

void bench_time(struct bench_rig *r, const char *name, uint64_t bytes, uint32_t n_copies,
                void (*launch)(const void *arg, uint32_t i, void *stream), const void *arg)
{
    void *graph = NULL;
    double best = 1e9, s;

    if (n_copies == 0) {
        printf("%-44s does not fit\n", name);
        return;
    }
    BENCH_DO(pi_gpu_capture_begin(r->stream, &err_));
    for (uint32_t i = 0; i < BENCH_CALLS; i++)
        launch(arg, i % n_copies, r->stream);
    BENCH_DO(pi_gpu_launched(&err_));
    BENCH_DO(pi_gpu_capture_end(r->stream, &graph, &err_));
    for (int i = 0; i < N_REPLAYS; i++) {
        BENCH_DO(pi_gpu_event_record(r->begin, r->stream, &err_));
        BENCH_DO(pi_gpu_graph_launch(graph, r->stream, &err_));
        BENCH_DO(pi_gpu_event_record(r->end, r->stream, &err_));
        BENCH_DO(pi_gpu_stream_sync(r->stream, &err_));
        BENCH_DO(pi_gpu_event_seconds(r->begin, r->end, &s, &err_));
        best = s < best ? s : best;
    }
    pi_gpu_graph_destroy(graph);
    best /= BENCH_CALLS;
    if (bytes > 0)
        printf("%-44s %9.2f us %7.1f MB %7.0f GB/s %4.0f %%\n", name, best * 1e6,
               (double)bytes / 1e6, (double)bytes / best / 1e9,
               100.0 * (double)bytes / best / r->bandwidth);
    else
        printf("%-44s %9.2f us\n", name, best * 1e6);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    struct bench_rig r = {0};
    struct pi_gpu_speed speed;
    struct pi_gpu_info info;
    bool sweep = argc > 1 && strcmp(argv[1], "--sweep") == 0;
    bool only_ffn = argc > 1 && strcmp(argv[1], "--ffn") == 0;

    if (pi_gpu_count() == 0)
        bench_die(__FILE__, __LINE__, "pi_gpu_count", "no GPU");
    BENCH_DO(pi_gpu_use(0, &err_));
    BENCH_DO(pi_gpu_describe(0, &info, &err_));
    BENCH_DO(pi_gpu_measure(0, &speed, &err_));
    r.bandwidth = speed.bandwidth;
    printf("%s, %d SMs, read bandwidth %.0f GB/s; least of %d replays of %d calls\n", info.name,
           info.n_sm, speed.bandwidth / 1e9, N_REPLAYS, BENCH_CALLS);
    BENCH_DO(pi_gpu_stream_create(0, &r.stream, &err_));
    BENCH_DO(pi_gpu_event_create(true, &r.begin, &err_));
    BENCH_DO(pi_gpu_event_create(true, &r.end, &err_));
    BENCH_DO(pi_gpu_alloc(0, POOL_BYTES, &r.pool, &err_));
    fill_pool(&r);
    bench_reset(&r);
    if (!only_ffn)
        bench_kernels_mat(&r, sweep);
    if (!sweep)
        bench_kernels_ffn(&r);
    pi_gpu_free(&r.pool);
    pi_gpu_free(&r.scratch);
    pi_gpu_event_destroy(r.begin);
    pi_gpu_event_destroy(r.end);
    pi_gpu_stream_destroy(r.stream);
    return 0;
}
