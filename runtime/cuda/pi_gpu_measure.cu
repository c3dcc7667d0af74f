/* pi_gpu.h: what a device can move per second, and what a hand-over between it and the CPU costs. */
#include "config.h"

#include "runtime/pi_gpu.h"

#include "runtime/cuda/pi_cuda_port.cuh"
#include "runtime/cuda/pi_gpu_wait.h"
#include "runtime/cuda/pi_kernels.h"
#include "runtime/pi_patience.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Reads n vectors of 16 bytes, grid-stride; the sum keeps the compiler from dropping the loads. */
__global__ static void read_all(const uint4 *x, size_t n, unsigned *sink)
{
    unsigned s = 0;

    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = x[i];

        s += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (s == 0xdeadbeefu) /* never over zeroed memory */
        *sink = s;
}

__global__ static void touch(volatile unsigned *x)
{
    *x += 1;
}

#define N_REPEATS 5

struct meter {
    cudaEvent_t begin, end;
    void *dev, *pinned;
    size_t dev_bytes, pinned_bytes;
    int n_sm;
};

/* Ends the timing that m->begin started; keeps the shortest in *seconds (0: none yet). */
static enum pi_code keep_shortest(const struct meter *m, double *seconds, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float ms = 0.0f;

    PI_CUDA_TRY(err, cudaEventRecord(m->end, 0));
    PI_TRY(pi_gpu_event_sync(m->end, err));
    PI_CUDA_TRY(err, cudaEventElapsedTime(&ms, m->begin, m->end));
    if (*seconds <= 0.0 || 1e-3 * (double)ms < *seconds)
        *seconds = 1e-3 * (double)ms;
out:
    return rc;
}

static enum pi_code measure_read(const struct meter *m, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double best = 0.0;

    for (int i = 0; i < N_REPEATS; i++) {
        PI_CUDA_TRY(err, cudaEventRecord(m->begin, 0));
        PI_LAUNCH(read_all, 8 * m->n_sm, 256, 0, 0, (const uint4 *)m->dev,
                  m->dev_bytes / sizeof(uint4), (unsigned *)m->dev);
        PI_CUDA_TRY(err, cudaGetLastError());
        PI_TRY(keep_shortest(m, &best, err));
    }
    *out = (double)m->dev_bytes / best;
out:
    return rc;
}

static enum pi_code measure_pcie(const struct meter *m, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double best = 0.0;

    for (int i = 0; i < N_REPEATS; i++) {
        PI_CUDA_TRY(err, cudaEventRecord(m->begin, 0));
        PI_CUDA_TRY(err,
                    cudaMemcpyAsync(m->dev, m->pinned, m->pinned_bytes, cudaMemcpyHostToDevice, 0));
        PI_TRY(keep_shortest(m, &best, err));
    }
    *out = (double)m->pinned_bytes / best;
out:
    return rc;
}

/* T_sync as a launch that the host waits for: what a hand-over costs at most. */
static enum pi_code measure_sync(const struct meter *m, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double best = 0.0;
    const int n = 100;

    for (int i = 0; i < N_REPEATS; i++) {
        PI_CUDA_TRY(err, cudaEventRecord(m->begin, 0));
        for (int k = 0; k < n; k++) {
            PI_LAUNCH(touch, 1, 1, 0, 0, (volatile unsigned *)m->dev);
            PI_TRY(pi_gpu_stream_sync(NULL, err));
        }
        PI_TRY(keep_shortest(m, &best, err));
    }
    *out = best / n;
out:
    return rc;
}

static enum pi_code meter_open(int index, struct meter *m, double *context_bytes,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gpu_info info;

    PI_TRY(pi_gpu_describe(index, &info, err));
    /* What is gone right after the context was made; what other processes hold counts too. */
    *context_bytes = (double)(info.memory_bytes - info.free_bytes);
    m->n_sm = info.n_sm;
    m->pinned_bytes = (size_t)128 << 20;
    m->dev_bytes = (size_t)1 << 30;
    if (info.free_bytes / 4 < m->dev_bytes)
        m->dev_bytes = info.free_bytes / 4 / 256 * 256;
    if (m->dev_bytes < m->pinned_bytes)
        PI_FAIL(err, PI_E_NOMEM, "GPU %d: only %llu bytes are free", index,
                (unsigned long long)info.free_bytes);
    PI_CUDA_TRY(err, cudaEventCreate(&m->begin));
    PI_CUDA_TRY(err, cudaEventCreate(&m->end));
    PI_CUDA_TRY(err, cudaMalloc(&m->dev, m->dev_bytes));
    PI_CUDA_TRY(err, cudaMemset(m->dev, 0, m->dev_bytes));
    PI_CUDA_TRY(err, cudaMallocHost(&m->pinned, m->pinned_bytes));
    memset(m->pinned, 0, m->pinned_bytes);
out:
    return rc;
}

static void meter_close(struct meter *m)
{
    if (!pi_gpu_may_free())
        return;
    if (m->begin != NULL)
        (void)cudaEventDestroy(m->begin);
    if (m->end != NULL)
        (void)cudaEventDestroy(m->end);
    (void)cudaFree(m->dev);
    (void)cudaFreeHost(m->pinned);
}

extern "C" enum pi_code pi_gpu_measure(int index, struct pi_gpu_speed *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct meter m = {};
    struct pi_gpu_speed s = {};

    PI_TRY(meter_open(index, &m, &s.context_bytes, err));
    PI_TRY(measure_read(&m, &s.bandwidth, err));
    PI_TRY(measure_pcie(&m, &s.pcie, err));
    PI_TRY(measure_sync(&m, &s.sync, err));
    *out = s;
out:
    meter_close(&m);
    return rc;
}

/* ---- hand-overs ---- */

#define N_HANDOVERS 32   /* in a graph */
#define N_FLOATS    4096 /* each way */
#define N_WARM      1
#define MIN_RUNS    3 /* of a graph: 128 hand-overs at the least */
#define MAX_RUNS    21
#define ENOUGH      0.05 /* seconds of runs of a graph */
#define PATIENCE    2.0  /* seconds without a hand-over, where the caller does not say */
#define END_FACTOR  3    /* times that: for an end after a step was given up */
#define SPINS       4096 /* of the thread that answers before it lets others run */

/* Graphs of hand-overs with a host thread that answers. In each step the residual starts at 0 and gets 1 from the host every
 * time, so that both sides know what must have come. */
struct talk {
    void *stream, *begin, *end;
    void *with, *without; /* graphs */
    struct pi_dev_buf dev;
    struct pi_pinned map;
    float *residual, *normed;                    /* device */
    struct pi_k_step *step;                      /* device */
    uint32_t *relay;                             /* device */
    size_t out, back, embd, steps, abort, slots; /* offsets in map */
    pthread_t thread;
    bool has_thread;
    uint32_t epoch; /* of the last step launched; written by the caller's thread */
    uint32_t stop;  /* the same */
    uint32_t n_wrong, n_answers;
    int index;
    double patience;
};

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *host_at(const struct talk *t, size_t offset)
{
    return (char *)t->map.host + offset;
}

static char *dev_at(const struct talk *t, size_t offset)
{
    return (char *)t->map.dev + offset;
}

/* Slot of hand-over i, to the host (way 0) or back (1). */
static size_t slot_of(const struct talk *t, uint32_t i, uint32_t way)
{
    return t->slots + (2 * (size_t)i + way) * PI_K_SLOT_BYTES;
}

/* Raises the flag behind what came, for every hand-over of every step, until it is told to stop. */
static void *answer(void *ctx)
{
    struct talk *t = (struct talk *)ctx;
    const float *came = (const float *)host_at(t, t->out);

    for (uint32_t epoch = 1;; epoch++) {
        for (uint32_t i = 0; i < N_HANDOVERS; i++) {
            const uint32_t *from = (const uint32_t *)host_at(t, slot_of(t, i, 0));

            for (uint32_t n = 1; __atomic_load_n(from, __ATOMIC_ACQUIRE) != epoch; n++) {
                if (__atomic_load_n(&t->stop, __ATOMIC_RELAXED) != 0)
                    return NULL;
                if (n % SPINS == 0)
                    (void)sched_yield();
            }
            if (came[0] != (float)i || came[N_FLOATS - 1] != (float)i)
                __atomic_store_n(&t->n_wrong, 1u, __ATOMIC_RELAXED);
            __atomic_store_n((uint32_t *)host_at(t, slot_of(t, i, 1)), epoch, __ATOMIC_RELEASE);
            (void)__atomic_add_fetch(&t->n_answers, 1u, __ATOMIC_RELAXED);
        }
    }
}

/* The same kernels with and without what crosses. */
static enum pi_code capture(struct talk *t, bool crosses, void **graph, struct pi_err *err)
{
    const struct pi_k_norm no_norm = {};
    struct pi_k_wait wait = {};
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gpu_capture_begin(t->stream, err));
    pi_k_begin((const struct pi_k_step *)dev_at(t, t->steps), t->step,
               (const float *)dev_at(t, t->embd), t->residual, 1, N_FLOATS, t->stream);
    for (uint32_t i = 0; i < N_HANDOVERS; i++) {
        if (crosses) {
            wait.slot_map = (const uint32_t *)dev_at(t, slot_of(t, i, 1));
            wait.relay = t->relay + i;
            wait.abort_map = (const uint32_t *)dev_at(t, t->abort);
        }
        pi_k_norm_publish(&no_norm, t->residual, t->normed,
                          crosses ? (float *)dev_at(t, t->out) : NULL, NULL,
                          crosses ? (uint32_t *)dev_at(t, slot_of(t, i, 0)) : NULL, t->step, 1,
                          N_FLOATS, t->stream);
        pi_k_merge(t->residual, NULL, NULL, 0, crosses ? (const float *)dev_at(t, t->back) : NULL,
                   &wait, t->step, NULL, 1, N_FLOATS, t->stream);
    }
    rc = pi_gpu_launched(err);
    if (rc != PI_OK) { /* a stream must not stay in capture */
        struct pi_err ignored;

        (void)!pi_gpu_capture_end(t->stream, graph, &ignored);
        goto out;
    }
    rc = pi_gpu_capture_end(t->stream, graph, err);
out:
    return rc;
}

static enum pi_code talk_open(int index, struct talk *t, struct pi_err *err)
{
    const size_t bytes = N_FLOATS * sizeof(float), line = PI_K_SLOT_BYTES;
    enum pi_code rc = PI_OK;

    t->out = 0;
    t->back = bytes;
    t->embd = 2 * bytes;
    t->steps = 3 * bytes;
    t->abort = t->steps + (sizeof(struct pi_k_step) + line - 1) / line * line;
    t->slots = t->abort + line;
    PI_TRY(pi_gpu_stream_create(index, &t->stream, err));
    PI_TRY(pi_gpu_event_create(true, &t->begin, err));
    PI_TRY(pi_gpu_event_create(true, &t->end, err));
    PI_TRY(pi_gpu_pin(index, slot_of(t, N_HANDOVERS, 0), &t->map, err));
    PI_TRY(pi_gpu_alloc(index, 2 * bytes + sizeof(struct pi_k_step) + N_HANDOVERS * sizeof(uint32_t),
                        &t->dev, err));
    t->residual = (float *)t->dev.ptr;
    t->normed = t->residual + N_FLOATS;
    t->step = (struct pi_k_step *)(t->normed + N_FLOATS);
    t->relay = (uint32_t *)(t->step + 1);
    for (uint32_t i = 0; i < N_FLOATS; i++)
        ((float *)host_at(t, t->back))[i] = 1.0f;
    ((struct pi_k_step *)host_at(t, t->steps))->n_tok = 1;
    PI_TRY(capture(t, true, &t->with, err));
    PI_TRY(capture(t, false, &t->without, err));
    if (pthread_create(&t->thread, NULL, answer, t) != 0)
        PI_FAIL(err, PI_E_NOMEM, "no thread to measure hand-overs with");
    t->has_thread = true;
out:
    return rc;
}

static void talk_close(struct talk *t)
{
    __atomic_store_n(&t->stop, 1u, __ATOMIC_RELAXED);
    if (t->has_thread)
        (void)pthread_join(t->thread, NULL);
    pi_gpu_graph_destroy(t->with);
    pi_gpu_graph_destroy(t->without);
    pi_gpu_event_destroy(t->begin);
    pi_gpu_event_destroy(t->end);
    pi_gpu_stream_destroy(t->stream);
    pi_gpu_free(&t->dev);
    pi_gpu_unpin(&t->map);
}

/* Until the event is reached, or for so many seconds nothing was answered: *done says whether it was. */
static enum pi_code await_event(struct talk *t, void *event, double seconds, bool *done,
                                struct pi_err *err)
{
    struct pi_patience patience = pi_patience(seconds);
    uint32_t seen = 0;
    enum pi_code rc = PI_OK;

    *done = false;
    while (!*done && !pi_patience_ends(&patience)) {
        const uint32_t n = __atomic_load_n(&t->n_answers, __ATOMIC_RELAXED);

        if (n != seen)
            pi_patience_renew(&patience);
        seen = n;
        PI_TRY(pi_gpu_event_query(event, done, err));
        (void)sched_yield();
    }
out:
    return rc;
}

/* A step that does not end: it is told to. A device that does not even do that has stopped. */
static enum pi_code give_up(struct talk *t, struct pi_err *err)
{
    bool done = false;
    enum pi_code rc = PI_OK;

    __atomic_store_n((uint32_t *)host_at(t, t->abort), 1u, __ATOMIC_RELEASE);
    PI_TRY(await_event(t, t->end, END_FACTOR * t->patience, &done, err));
    if (done)
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "GPU %d: hand-overs with the CPU do not work here: no answer within %.2g s",
                t->index, t->patience);
    pi_gpu_give_up();
    PI_FAIL(err, PI_E_DEVICE, "GPU %d stopped in the trial of hand-overs: nothing moved for %.2g s",
            t->index, (1 + END_FACTOR) * t->patience);
out:
    return rc;
}

static enum pi_code run_step(struct talk *t, void *graph, double *seconds, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool done = false;

    if (graph == t->with)
        t->epoch++;
    ((struct pi_k_step *)host_at(t, t->steps))->step = t->epoch;
    PI_TRY(pi_gpu_event_record(t->begin, t->stream, err));
    PI_TRY(pi_gpu_graph_launch(graph, t->stream, err));
    PI_TRY(pi_gpu_event_record(t->end, t->stream, err));
    PI_TRY(await_event(t, t->end, t->patience, &done, err));
    if (!done)
        PI_TRY(give_up(t, err));
    PI_TRY(pi_gpu_event_seconds(t->begin, t->end, seconds, err));
out:
    return rc;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static enum pi_code median_step(struct talk *t, void *graph, double *out, struct pi_err *err)
{
    double seconds[MAX_RUNS], begin, ignored;
    enum pi_code rc = PI_OK;
    int n = 0;

    for (int i = 0; i < N_WARM; i++)
        PI_TRY(run_step(t, graph, &ignored, err));
    for (begin = now(); n < MAX_RUNS && (n < MIN_RUNS || now() - begin < ENOUGH); n++)
        PI_TRY(run_step(t, graph, &seconds[n], err));
    qsort(seconds, (size_t)n, sizeof(*seconds), by_size);
    *out = seconds[n / 2];
out:
    return rc;
}

static enum pi_code check_sums(const struct talk *t, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float sums[N_FLOATS];

    PI_TRY(pi_gpu_download(sums, &t->dev, 0, sizeof(sums), err));
    for (uint32_t i = 0; i < N_FLOATS; i++) {
        if (sums[i] != (float)N_HANDOVERS)
            PI_FAIL(err, PI_E_UNSUPPORTED,
                    "hand-overs between GPU and CPU lose data here: sum %u is %g, should be %u", i,
                    (double)sums[i], N_HANDOVERS);
    }
    if (__atomic_load_n(&t->n_wrong, __ATOMIC_RELAXED) != 0)
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "hand-overs between GPU and CPU lose data here: the CPU saw an old sum");
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_measure_handover(int index, double patience, double *seconds,
                                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct talk t = {};
    double with = 0.0, without = 0.0;

    t.index = index;
    t.patience = patience > 0.0 ? patience : PATIENCE;

    PI_TRY(pi_gpu_use(index, err));
    PI_TRY(talk_open(index, &t, err));
    PI_TRY(median_step(&t, t.with, &with, err));
    PI_TRY(check_sums(&t, err));
    PI_TRY(median_step(&t, t.without, &without, err));
    *seconds = with > without ? (with - without) / N_HANDOVERS : 0.0;
out:
    talk_close(&t);
    return rc;
}
