/*
 * pi_exec_gpu_int.h - what an executor of GPU and CPU is made of; private to runtime/pi_exec_gpu*.c.
 */
#ifndef PI_EXEC_GPU_INT_H
#define PI_EXEC_GPU_INT_H

#include "runtime/cuda/pi_kernels.h"
#include "runtime/pi_cold.h"
#include "runtime/pi_exec_gpu.h"
#include "runtime/pi_gpu.h"

#include <pthread.h>
#include <stdatomic.h>

#define PI_XG_BUCKETS 6 /* 1, 2, 4 ... 32 tokens */

/* Buffers of the step on the device; all inside one allocation. (n_tok, ...) */
struct pi_xg_dev {
    struct pi_k_step *step;
    float *residual, *normed;          /* n_embd */
    float *layer_input, *prev_attn[2]; /* n_embd; NULL unless a predictor reads them */
    float *q, *attn;                   /* n_embd_q */
    void *attn_scratch;
    float *hidden;       /* widest predictor */
    struct pi_k_set set; /* n: of layer 0; layer l's is n + l */
    float *h;            /* most hot neurons of a layer */
    float *parts;        /* (most parts, n_tok, n_embd) */
    float *logits;       /* n_vocab */
    uint64_t *waited;    /* (1) nanoseconds in merges */
    uint32_t *relay;     /* (n_slots) */
};

/* One array of mapped memory at its two addresses. */
struct pi_xg_map {
    void *host, *dev;
};

/* What crosses; arrays with two entries alternate by layer, so that a unit that is ahead never writes what the other still reads. */
struct pi_xg_maps {
    struct pi_xg_map slots; /* (n_slots) of PI_K_SLOT_BYTES */
    struct pi_xg_map abort; /* (1) uint32_t */
    struct pi_xg_map step;  /* struct pi_k_step */
    struct pi_xg_map embd;  /* (n_tok, n_embd) */
    /* GPU to CPU */
    struct pi_xg_map normed[2], residual[2], hot_part[2]; /* (n_tok, n_embd) */
    struct pi_xg_map cold_n[2], cold_ids[2], cold_tokens[2];
    struct pi_xg_map logits;     /* (n_tok, n_vocab) */
    struct pi_xg_map set_counts; /* (n_layer) uint32_t */
    /* CPU to GPU */
    struct pi_xg_map normed_up[2], residual_up[2], cold_part[2]; /* (n_tok, n_embd) */
};

/* A piece of the GPU's list that is launched at once; the whole list when hand-overs spin. */
struct pi_xg_segment {
    void *graph;
    uint32_t first, end; /* entries of the GPU's list */
    void *event;         /* recorded behind it; NULL when hand-overs spin */
};

struct pi_xg_bucket {
    uint32_t n_tok;
    uint32_t n_segments;
    struct pi_xg_segment *segments;
};

struct pi_xg_trace;

struct pi_exec_gpu {
    struct pi_state *s;
    const struct pi_dev_model *dm;
    const struct pi_graph *graph;
    const struct pi_schedule *schedule;
    int index;
    bool spin;
    bool any_cpu; /* the CPU's list has more than the embedding */
    bool rotates; /* attention of some layer is on the CPU */
    bool failed;
    double patience; /* seconds */
    uint32_t epoch;
    uint32_t n_hot_max, n_cold_max;
    void *stream;
    struct pi_dev_buf buf;
    struct pi_pinned pinned;
    struct pi_xg_dev d;
    struct pi_xg_maps m;
    struct pi_xg_bucket buckets[PI_XG_BUCKETS];
    uint32_t n_buckets;
    uint32_t
        *posted_by; /* (n_slots) entry of the GPU's list that posts it; UINT32_MAX: the CPU does */
    uint32_t embed_slot; /* posted before the launch; PI_NO_SLOT: none */
    struct pi_cold_scratch *cold;
    struct pi_cold_job job; /* of the layer in work; written by thread 0 */
    struct pi_cold_form form; /* the job's, where its list is all of a layer's cold neurons */

    /* the step in flight */
    struct pi_xg_bucket *bucket;
    uint32_t n_launched;  /* segments */
    atomic_bool give_up;  /* set by thread 0 or the watchdog; threads leave at the next meeting */
    atomic_uint progress; /* moves whenever anything does */
    atomic_bool waits;    /* thread 0 waits for the GPU, and nobody works */
    bool leave;           /* what thread 0 saw at the last meeting */
    _Alignas(64) _Atomic uint32_t meetings; /* thread 0 has been to so many in this step */
    _Alignas(64) struct pi_err *err;        /* thread 0's */
    enum pi_code rc;
    double cpu_busy, cpu_wait, gpu_wall;
    uint64_t bytes_gpu, bytes_cpu, bytes_cpu_once;
    bool stall;                /* test */
    double slow;               /* test: seconds before the next post */
    struct pi_xg_trace *trace; /* NULL until a step is traced */
    bool mark_called;          /* of the layer in work */

    pthread_t watchdog;
    bool has_watchdog;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool in_flight, stop; /* under lock */
};

static inline _Atomic uint32_t *pi_xg_slot(const struct pi_exec_gpu *x, uint32_t slot)
{
    return (_Atomic uint32_t *)((char *)x->m.slots.host + (size_t)slot * PI_K_SLOT_BYTES);
}

static inline uint32_t *pi_xg_slot_dev(const struct pi_exec_gpu *x, uint32_t slot)
{
    return slot == PI_NO_SLOT
               ? NULL
               : (uint32_t *)((char *)x->m.slots.dev + (size_t)slot * PI_K_SLOT_BYTES);
}

/* Attention of a layer is on the GPU. */
static inline bool pi_xg_attn_on_gpu(const struct pi_exec_gpu *x, uint32_t layer)
{
    return x->dm->layers[layer].has_attn;
}

/* pi_exec_gpu_buffers.c: x->d and x->m, sized for the largest bucket. */
enum pi_code pi_xg_allocate(struct pi_exec_gpu *x, struct pi_err *err) PI_MUST_CHECK;

/* pi_exec_gpu_watch.c: between on and off the watchdog raises the abort flag where nothing moves. */
enum pi_code pi_xg_watchdog_start(struct pi_exec_gpu *x, struct pi_err *err) PI_MUST_CHECK;
void pi_xg_watchdog_stop(struct pi_exec_gpu *x); /* accepts one that was not started */
void pi_xg_in_flight(struct pi_exec_gpu *x, bool on);

/* pi_exec_gpu_capture.c: the graphs of one bucket, in segments unless hand-overs spin. */
enum pi_code pi_xg_capture(struct pi_exec_gpu *x, struct pi_xg_bucket *b,
                           struct pi_err *err) PI_MUST_CHECK;

void pi_xg_bucket_free(struct pi_xg_bucket *b);

/* pi_exec_gpu_trace.c: steps with s->truth and s->traced set (one token). begin: in front of the first one's launch; the rest is called where a traced
 * graph is captured, walked, and ended. */
enum pi_code pi_xg_trace_begin(struct pi_exec_gpu *x, struct pi_err *err) PI_MUST_CHECK;
struct pi_xg_bucket *pi_xg_trace_bucket(struct pi_exec_gpu *x);
void pi_xg_trace_emit_truth(struct pi_exec_gpu *x, uint32_t layer);
enum pi_code pi_xg_trace_emit_called(struct pi_exec_gpu *x, uint32_t layer,
                                     struct pi_err *err) PI_MUST_CHECK;
void pi_xg_trace_cold(struct pi_exec_gpu *x, uint32_t layer, uint32_t thread, uint32_t n_threads);
void pi_xg_trace_mark(struct pi_exec_gpu *x, uint32_t layer);
enum pi_code pi_xg_trace_end(struct pi_exec_gpu *x, struct pi_err *err) PI_MUST_CHECK;
void pi_xg_trace_free(struct pi_exec_gpu *x);

/* pi_exec_gpu_host.c: what all threads of the pool run while the graph is in flight. ctx: the executor. */
void pi_xg_walk(void *ctx, uint32_t thread, uint32_t n_threads);
/* Launches all segments that may start. Thread 0. */
enum pi_code pi_xg_launch_ready(struct pi_exec_gpu *x, struct pi_err *err) PI_MUST_CHECK;
double pi_xg_now(void); /* seconds, monotonic */

#endif
