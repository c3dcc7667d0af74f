/* pi_exec_gpu_host.c - the CPU's list of a step, walked by all threads of the pool while the GPU's graph is in flight. */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

double pi_xg_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- thread 0: slots and segments ---- */

static void fail(struct pi_exec_gpu *x, enum pi_code rc)
{
    x->rc = rc;
    atomic_store(&x->give_up, true);
}

/* A slot of the CPU's that the next segment waits for has not been posted in this step. */
static bool segment_waits(const struct pi_exec_gpu *x, const struct pi_xg_segment *seg)
{
    const struct pi_step_op *so = &x->schedule->units[1].ops[seg->first];

    for (uint32_t i = 0; seg->end > seg->first && i < so->n_waits; i++) {
        if (x->posted_by[so->waits[i]] == UINT32_MAX &&
            atomic_load_explicit(pi_xg_slot(x, so->waits[i]), memory_order_relaxed) != x->epoch)
            return true;
    }
    return false;
}

enum pi_code pi_xg_launch_ready(struct pi_exec_gpu *x, struct pi_err *err)
{
    struct pi_xg_bucket *b = x->bucket;
    enum pi_code rc = PI_OK;

    while (x->n_launched < b->n_segments &&
           (x->spin || !segment_waits(x, &b->segments[x->n_launched]))) {
        struct pi_xg_segment *seg = &b->segments[x->n_launched];

        PI_TRY(pi_gpu_graph_launch(seg->graph, x->stream, err));
        if (seg->event != NULL)
            PI_TRY(pi_gpu_event_record(seg->event, x->stream, err));
        x->n_launched++;
    }
out:
    return rc;
}

/* The segment that posts a slot has ended: then its flag and payload are visible on any machine. */
static bool segment_done(struct pi_exec_gpu *x, uint32_t slot)
{
    uint32_t op = x->posted_by[slot];

    for (uint32_t i = 0; i < x->n_launched; i++) {
        struct pi_xg_segment *seg = &x->bucket->segments[i];
        bool done = false;

        if (op < seg->first || op >= seg->end)
            continue;
        if (pi_gpu_event_query(seg->event, &done, x->err) != PI_OK)
            fail(x, PI_E_DEVICE);
        return done;
    }
    return false;
}

/* Now and then a waiting host looks whether the device still lives. */
static void check_device(struct pi_exec_gpu *x)
{
    bool done;

    if (pi_gpu_stream_query(x->stream, &done, x->err) != PI_OK)
        fail(x, PI_E_DEVICE);
}

#define SPINS_A_LOOK  200000 /* some milliseconds */
#define SPINS_A_YIELD 64     /* where the GPU is emulated, it is the other thread on this core */
#define SPINS_FIRST   4096   /* about 200 us: longer than a layer on the GPU */

static void wait_slot(struct pi_exec_gpu *x, uint32_t slot)
{
    _Atomic uint32_t *flag = pi_xg_slot(x, slot);

    atomic_store_explicit(&x->waits, true, memory_order_relaxed);
    for (uint32_t i = 1; !atomic_load_explicit(&x->give_up, memory_order_relaxed); i++) {
        if ((x->spin || segment_done(x, slot)) &&
            atomic_load_explicit(flag, memory_order_acquire) == x->epoch)
            break;
        cpu_relax();
        if (i > SPINS_FIRST && i % SPINS_A_YIELD == 0)
            (void)sched_yield();
        if (i % SPINS_A_LOOK == 0)
            check_device(x);
    }
    atomic_store_explicit(&x->waits, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->progress, 1, memory_order_relaxed);
}

static void post_slot(struct pi_exec_gpu *x, uint32_t slot)
{
    if (x->stall)
        return;
    for (double until = pi_xg_now() + x->slow; x->slow > 0.0 && pi_xg_now() < until;)
        (void)sched_yield();
    x->slow = 0.0;
    atomic_store_explicit(pi_xg_slot(x, slot), x->epoch, memory_order_release);
    atomic_fetch_add_explicit(&x->progress, 1, memory_order_relaxed);
    if (!x->spin && pi_xg_launch_ready(x, x->err) != PI_OK)
        fail(x, PI_E_DEVICE);
}

/* ---- all threads ---- */

struct walker {
    struct pi_exec_gpu *x;
    uint32_t thread, n_threads;
    uint32_t meetings; /* that this thread has been to */
    double mark;       /* thread 0: when the last account was made */
};

static void barrier(const struct walker *w)
{
    if (w->n_threads > 1)
        pi_pool_barrier(w->x->s->pool, w->thread);
}

/* Thread 0 books the time since the last call. */
static void book(struct walker *w, double *account)
{
    double now;

    if (w->thread != 0)
        return;
    now = pi_xg_now();
    *account += now - w->mark;
    w->mark = now;
}

static struct pi_span my_columns(const struct walker *w)
{
    return pi_span(w->x->s->m->shape.n_embd, PI_SPAN_COLS, w->thread, w->n_threads);
}

/* This thread's columns of all tokens. */
static void copy_columns(const struct walker *w, float *to, const float *from)
{
    const struct pi_state *s = w->x->s;
    struct pi_span c = my_columns(w);

    for (uint32_t t = 0; t < s->n_tok; t++) {
        size_t at = (size_t)t * s->m->shape.n_embd + c.begin;

        memcpy(to + at, from + at, (c.end - c.begin) * sizeof(*to));
    }
}

/* Does the operator wait for something the GPU makes? */
static bool waits_for_gpu(const struct pi_exec_gpu *x, const struct pi_step_op *so)
{
    for (uint32_t i = 0; i < so->n_waits; i++) {
        if (x->posted_by[so->waits[i]] != UINT32_MAX)
            return true;
    }
    return false;
}

static bool merges_here(const struct pi_exec_gpu *x, uint32_t layer)
{
    return layer + 1 < x->dm->n_layer ? !x->dm->layers[layer + 1].has_attn
                                      : x->dm->output.data == NULL;
}

/* The CPU's share of a layer whose attention is on the GPU. */
static bool is_cold(const struct pi_exec_gpu *x, const struct pi_op *op)
{
    return op->kind == PI_OP_FFN && pi_xg_attn_on_gpu(x, op->layer);
}

/* What came over once more as integers, by thread 0 for all: the GPU has rounded it, so that these are the blocks that it made. */
static const struct pi_q8 *quantise_input(struct pi_exec_gpu *x, const struct pi_cold_job *job)
{
    struct pi_state *s = x->s;
    const struct pi_mat *w = pi_ops_takes_q8(s, &job->w->gate) ? &job->w->gate : &job->w->up;

    if (!pi_ops_takes_q8(s, w))
        return NULL;
    pi_ops_quantise(s, w, job->x, job->n_tok, s->lanes[0].q8);
    return s->lanes[0].q8;
}

static void prepare_cold(struct pi_exec_gpu *x, const struct pi_op *op)
{
    struct pi_state *s = x->s;
    const struct pi_dev_layer *l = &x->dm->layers[op->layer];
    uint32_t side = op->layer & 1;
    struct pi_cold_job *job = &x->job;

    job->w = &s->m->layers[op->layer];
    job->n_tok = s->n_tok;
    job->x = x->m.normed[side].host;
    job->q8 = quantise_input(x, job);
    job->mode = s->mode[op->layer];
    job->out = merges_here(x, op->layer) ? s->units[0].partial : x->m.cold_part[side].host;
    if (l->pred.width > 0 && l->pred.predict_cold) {
        uint32_t n = *(const volatile uint32_t *)x->m.cold_n[side].host;

        job->n = n < l->n_cold ? n : l->n_cold;
        job->ids = x->m.cold_ids[side].host;
        job->tokens = x->m.cold_tokens[side].host;
        job->form = NULL; /* each token has the sum of its own list */
        return;
    }
    if (job->mode == PI_MODE_PREDICTED) /* the hot neurons are predicted, these are not */
        job->mode = PI_MODE_EXACT;
    job->n = s->units[0].layers[op->layer].n;
    job->ids =
        s->units[0].layers[op->layer].ids != NULL ? s->units[0].layers[op->layer].ids : s->iota;
    job->tokens = NULL;
    x->form = pi_cold_form_fixed(job->n, job->n);
    job->form = &x->form;
}

static void book_cold(struct pi_exec_gpu *x, uint32_t layer)
{
    struct pi_state *s = x->s;
    const struct pi_layer_weights *w = x->job.w;
    const struct pi_cold_stats *st = &x->job.stats;

    pi_ops_note_work(s, layer, PI_UNIT_CPU, pi_cold_work(&x->job));
    pi_ops_count(s, &s->stats.weights_ffn, s->m->shape.gated ? &w->gate : &w->up, st->first_rows);
    if (s->m->shape.gated)
        pi_ops_count(s, &s->stats.weights_ffn, &w->up, st->up_rows);
    pi_ops_count(s, &s->stats.weights_ffn, &w->down_t, st->down_rows);
    s->stats.neurons_cpu += st->down_rows;
}

/* The feed-forward's input was made here: GPU neurons and merges want it. */
static void publish_input(struct walker *w, const struct pi_op *op)
{
    struct pi_exec_gpu *x = w->x;
    uint32_t side = op->layer & 1;

    copy_columns(w, x->m.normed_up[side].host, x->s->lanes[w->thread].normed);
    copy_columns(w, x->m.residual_up[side].host, x->s->residual);
}

static void merge_here(struct walker *w, const struct pi_op *op)
{
    struct pi_exec_gpu *x = w->x;
    struct pi_state *s = x->s;
    uint32_t side = op->layer & 1;

    if (pi_xg_attn_on_gpu(x, op->layer))
        copy_columns(w, s->residual, x->m.residual[side].host);
    if (w->thread == 0)
        s->units[1].partial = x->m.hot_part[side].host;
    barrier(w); /* partial sums may have been made by other threads, and the pointer */
    pi_team_ops[PI_OP_MERGE].fn(s, op, s->n_tok, w->thread, w->n_threads);
}

static void run_op(struct walker *w, const struct pi_op *op)
{
    struct pi_exec_gpu *x = w->x;
    struct pi_state *s = x->s;
    bool here = merges_here(x, op->layer);

    if (is_cold(x, op)) {
        if (s->truth != NULL)
            pi_xg_trace_cold(x, op->layer, w->thread, w->n_threads);
        pi_cold_run(&x->job, w->thread, w->n_threads);
        return;
    }
    if (op->kind == PI_OP_MERGE) {
        merge_here(w, op);
        return;
    }
    pi_team_ops[op->kind].fn(s, op, s->n_tok, w->thread, w->n_threads);
    if (op->kind == PI_OP_FFN_NORM && (!here || x->dm->layers[op->layer].n_hot > 0))
        publish_input(w, op);
    if (op->kind == PI_OP_FFN && !here)
        copy_columns(w, x->m.cold_part[op->layer & 1].host, s->units[0].partial);
}

/* Workers come to a meeting at once and watch one word: a barrier's door would cost some microseconds in each layer, and a thread that sleeps
 * tens of them. Only while a step is in flight. */
static void await_meeting(struct walker *w)
{
    w->meetings++;
    for (uint32_t i = 1; atomic_load_explicit(&w->x->meetings, memory_order_acquire) != w->meetings;
         i++) {
        cpu_relax();
        if (i > SPINS_FIRST && i % SPINS_A_YIELD == 0)
            (void)sched_yield();
    }
}

/* What thread 0 sees for all. Everybody has left the operator before: whatever posts or joins ends in a barrier. */
static void hold_meeting(struct walker *w, const struct pi_step_op *so)
{
    struct pi_exec_gpu *x = w->x;
    const struct pi_op *op = &x->graph->ops[so->op];

    book(w, &x->cpu_busy);
    for (uint32_t i = 0; i < so->n_waits; i++) {
        if (x->posted_by[so->waits[i]] != UINT32_MAX)
            wait_slot(x, so->waits[i]);
    }
    book(w, &x->cpu_wait);
    x->leave = atomic_load(&x->give_up);
    if (!x->leave && is_cold(x, op))
        prepare_cold(x, op);
    atomic_store_explicit(&x->meetings, ++w->meetings, memory_order_release);
}

/* Returns false when the step is given up: all threads see the same, since only what thread 0 saw counts. */
static bool meet(struct walker *w, const struct pi_step_op *so)
{
    if (w->thread == 0)
        hold_meeting(w, so);
    else
        await_meeting(w);
    return !w->x->leave;
}

void pi_xg_walk(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct pi_exec_gpu *x = ctx;
    const struct pi_unit_list *list = &x->schedule->units[PI_UNIT_CPU];
    struct walker w = {.x = x, .thread = thread, .n_threads = n_threads, .mark = pi_xg_now()};

    for (uint32_t i = 0; i < list->n; i++) {
        const struct pi_step_op *so = &list->ops[i];
        const struct pi_op *op = &x->graph->ops[so->op];

        if (op->kind == PI_OP_EMBED) /* done before the launch */
            continue;
        if (waits_for_gpu(x, so) && !meet(&w, so))
            break;
        run_op(&w, op);
        if (pi_team_ops[op->kind].joins || so->post != PI_NO_SLOT || is_cold(x, op))
            barrier(&w);
        if (thread == 0 && is_cold(x, op)) {
            book_cold(x, op->layer);
            pi_xg_trace_mark(x, op->layer);
        }
        if (so->post != PI_NO_SLOT && thread == 0)
            post_slot(x, so->post);
    }
    book(&w, &x->cpu_busy);
}
