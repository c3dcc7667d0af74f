/* pi_exec_gpu.c - makes executors of GPU and CPU, and runs their steps; the watchdog. */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include "common/pi_alloc.h"
#include "common/pi_hardware.h"
#include "common/pi_size.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WATCHDOG_TICK_NS 100000000L
#define WATCHDOG_TICKS \
    30 /* 3 s of waiting for the same slot; an emulated GPU may need more than one */
#define MOST_HANDOVER_SECONDS 1e-3
#define END_SECONDS           10.0 /* what a graph without pending hand-overs may take to end */
#define ABORT_SECONDS         3.0  /* the same behind an abort */
#define LOOK_SECONDS \
    0.1 /* more between two looks: the process was stopped, or did not get the CPU */

/* ---- layout ---- */

/* Sub-arrays of one allocation: sizes are summed up first, then addresses given out. */
struct layout {
    uint64_t at;
    bool overflow;
    char *host, *dev; /* NULL while sizes are summed */
};

static uint64_t place(struct layout *a, uint64_t n, uint64_t m, uint64_t size)
{
    uint64_t at = a->at, bytes;

    if (!pi_size_mul(n, m, &bytes) || !pi_size_mul(bytes, size, &bytes) ||
        !pi_size_pad(bytes, 256, &bytes) || !pi_size_add(a->at, bytes, &a->at))
        a->overflow = true;
    return at;
}

static void *dev_array(struct layout *a, uint64_t n, uint64_t m, uint64_t size)
{
    uint64_t at = place(a, n, m, size);

    return a->dev != NULL ? a->dev + at : NULL;
}

static void map_array(struct layout *a, struct pi_xg_map *map, uint64_t n, uint64_t m,
                      uint64_t size)
{
    uint64_t at = place(a, n, m, size);

    if (a->host == NULL)
        return;
    map->host = a->host + at;
    map->dev = a->dev + at;
}

static uint32_t widest(const struct pi_dev_model *dm)
{
    uint32_t r = 1;

    for (uint32_t l = 0; l < dm->n_layer; l++)
        r = dm->layers[l].pred.width > r ? dm->layers[l].pred.width : r;
    return r;
}

static uint32_t most_parts(const struct pi_exec_gpu *x, uint32_t n_tok)
{
    uint32_t most = 1;

    for (uint32_t l = 0; l < x->dm->n_layer; l++) {
        uint32_t n = x->dm->layers[l].n_hot > 0
                         ? pi_k_down_parts(x->dm->layers[l].n_hot, x->dm->shape->n_embd, n_tok)
                         : 0;

        most = n > most ? n : most;
    }
    return most;
}

/* Floats of the partial sums over all buckets. */
static uint64_t parts_floats(const struct pi_exec_gpu *x)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < x->n_buckets; i++) {
        uint32_t n_tok = x->buckets[i].n_tok;
        uint64_t n = (uint64_t)most_parts(x, n_tok) * n_tok;

        most = n > most ? n : most;
    }
    return most;
}

static void lay_out_device(struct pi_exec_gpu *x, struct layout *a)
{
    const struct pi_state *s = x->s;
    const struct pi_shape *sh = x->dm->shape;
    struct pi_xg_dev *d = &x->d;
    uint64_t n = s->n_dec, e = sh->n_embd, q = (uint64_t)sh->n_head * sh->head_dim,
             f = sizeof(float), u = sizeof(uint32_t);

    d->step = dev_array(a, 1, 1, sizeof(*d->step));
    d->waited = dev_array(a, 1, 1, sizeof(*d->waited));
    d->relay = dev_array(a, x->schedule->n_slots, 1, u);
    d->set.ticket = dev_array(a, 1, 64, u);
    d->residual = dev_array(a, n, e, f);
    d->normed = dev_array(a, n, e, f);
    if (s->keep_input)
        d->layer_input = dev_array(a, n, e, f);
    for (int i = 0; s->keep_prev && i < 2; i++)
        d->prev_attn[i] = dev_array(a, n, e, f);
    d->q = dev_array(a, n, q, f);
    d->attn = dev_array(a, n, q, f);
    d->attn_scratch = dev_array(a, 1, pi_k_attn_scratch(sh, (uint32_t)n), 1);
    d->hidden = dev_array(a, n, widest(x->dm), f);
    d->set.n = dev_array(a, x->dm->n_layer, 1, u);
    d->set.local = dev_array(a, x->n_hot_max, 1, u);
    d->set.tokens = dev_array(a, x->n_hot_max, 1, u);
    d->set.marks = dev_array(a, sh->n_ff, 1, u);
    d->set.gate = dev_array(a, n, x->n_hot_max, f);
    d->h = dev_array(a, n, x->n_hot_max, f);
    d->parts = dev_array(a, parts_floats(x), e, f);
    d->logits = dev_array(a, n, sh->n_vocab, f);
}

static void lay_out_maps(struct pi_exec_gpu *x, struct layout *a)
{
    const struct pi_shape *sh = x->dm->shape;
    struct pi_xg_maps *m = &x->m;
    uint64_t n = x->s->n_dec, e = sh->n_embd, f = sizeof(float), u = sizeof(uint32_t);

    map_array(a, &m->slots, x->schedule->n_slots, PI_K_SLOT_BYTES, 1);
    map_array(a, &m->abort, 1, 1, u);
    map_array(a, &m->step, 1, 1, sizeof(struct pi_k_step));
    map_array(a, &m->embd, n, e, f);
    for (int i = 0; i < 2; i++) {
        map_array(a, &m->normed[i], n, e, f);
        map_array(a, &m->residual[i], n, e, f);
        map_array(a, &m->hot_part[i], n, e, f);
        map_array(a, &m->cold_n[i], 1, 1, u);
        map_array(a, &m->cold_ids[i], x->n_cold_max, 1, u);
        map_array(a, &m->cold_tokens[i], x->n_cold_max, 1, u);
        map_array(a, &m->normed_up[i], n, e, f);
        map_array(a, &m->residual_up[i], n, e, f);
        map_array(a, &m->cold_part[i], n, e, f);
    }
    map_array(a, &m->logits, n, sh->n_vocab, f);
    map_array(a, &m->set_counts, x->dm->n_layer, 1, u);
}

static enum pi_code allocate(struct pi_exec_gpu *x, struct pi_err *err)
{
    struct layout dev = {0}, map = {0};
    enum pi_code rc;

    lay_out_device(x, &dev);
    lay_out_maps(x, &map);
    if (dev.overflow || map.overflow)
        return pi_err_set(err, PI_E_RANGE, "buffers of a step of %u tokens overflow", x->s->n_dec);
    PI_TRY(pi_gpu_alloc(x->index, dev.at, &x->buf, err));
    PI_TRY(pi_gpu_pin(x->index, map.at, &x->pinned, err));
    dev = (struct layout){.dev = x->buf.ptr};
    map = (struct layout){.host = x->pinned.host, .dev = x->pinned.dev};
    lay_out_device(x, &dev);
    lay_out_maps(x, &map);
out:
    if (rc != PI_OK)
        pi_err_wrap(err, "buffers of decode steps");
    return rc;
}

/* ---- watchdog ---- */

static uint32_t progress_of(const struct pi_exec_gpu *x)
{
    return atomic_load_explicit(&x->progress, memory_order_relaxed);
}

/* One tick is counted at a time, so that a process that was stopped and goes on is not taken for one that stalls. */
static void *watch(void *arg)
{
    struct pi_exec_gpu *x = arg;
    uint32_t seen = 0, ticks = 0;

    (void)pthread_mutex_lock(&x->lock);
    while (!x->stop) {
        struct timespec until;

        if (!x->in_flight) {
            (void)pthread_cond_wait(&x->wake, &x->lock);
            ticks = 0;
            continue;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCHDOG_TICK_NS;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&x->wake, &x->lock, &until);
        ticks = progress_of(x) == seen && x->in_flight && atomic_load(&x->waits) ? ticks + 1 : 0;
        seen = progress_of(x);
        if (ticks >= WATCHDOG_TICKS) {
            *(volatile uint32_t *)x->m.abort.host = 1;
            atomic_store(&x->give_up, true);
            ticks = 0;
        }
    }
    (void)pthread_mutex_unlock(&x->lock);
    return NULL;
}

static enum pi_code start_watchdog(struct pi_exec_gpu *x, struct pi_err *err)
{
    pthread_condattr_t attr;
    int e;

    (void)pthread_mutex_init(&x->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&x->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    e = pthread_create(&x->watchdog, NULL, watch, x);
    if (e != 0) {
        (void)pthread_cond_destroy(&x->wake);
        (void)pthread_mutex_destroy(&x->lock);
        return pi_err_set(err, PI_E_NOMEM, "watchdog thread: %s", strerror(e));
    }
    x->has_watchdog = true;
    return PI_OK;
}

static void set_in_flight(struct pi_exec_gpu *x, bool on)
{
    (void)pthread_mutex_lock(&x->lock);
    x->in_flight = on;
    if (on) /* at its end nobody needs to wake up for it */
        (void)pthread_cond_signal(&x->wake);
    (void)pthread_mutex_unlock(&x->lock);
}

/* ---- create ---- */

static enum pi_code check_agreement(const struct pi_exec_gpu *x, struct pi_err *err)
{
    const struct pi_graph *g = x->graph;

    if (x->schedule->n_units != 2)
        return pi_err_set(err, PI_E_SELFCHECK, "a schedule of %u units for a CPU and a GPU",
                          x->schedule->n_units);
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const struct pi_op *op = &g->ops[i];
        const struct pi_dev_layer *l = &x->dm->layers[op->layer];
        bool attn = op->kind >= PI_OP_ATTN_NORM && op->kind <= PI_OP_FFN_NORM;

        if (attn && l->has_attn != (op->unit != PI_UNIT_CPU))
            return pi_err_set(err, PI_E_SELFCHECK, "layer %u: attention is on another unit",
                              op->layer);
        if (op->kind == PI_OP_FFN && op->unit != PI_UNIT_CPU &&
            l->n_hot != x->s->units[1].layers[op->layer].n)
            return pi_err_set(err, PI_E_SELFCHECK, "layer %u: %u hot neurons on the device, not %u",
                              op->layer, l->n_hot, x->s->units[1].layers[op->layer].n);
        if (op->kind == PI_OP_OUTPUT && (op->unit != PI_UNIT_CPU) != (x->dm->output.data != NULL))
            return pi_err_set(err, PI_E_SELFCHECK, "the output head is on another unit");
    }
    return PI_OK;
}

static enum pi_code note_slots(struct pi_exec_gpu *x, struct pi_err *err)
{
    const struct pi_unit_list *cpu = &x->schedule->units[PI_UNIT_CPU],
                              *gpu = &x->schedule->units[1];
    enum pi_code rc = PI_OK;

    PI_ALLOC(x->posted_by, x->schedule->n_slots, err);
    for (uint32_t i = 0; i < x->schedule->n_slots; i++)
        x->posted_by[i] = UINT32_MAX;
    for (uint32_t i = 0; i < gpu->n; i++) {
        if (gpu->ops[i].post != PI_NO_SLOT)
            x->posted_by[gpu->ops[i].post] = i;
    }
    x->embed_slot = PI_NO_SLOT;
    for (uint32_t i = 0; i < cpu->n; i++) {
        enum pi_op_kind kind = x->graph->ops[cpu->ops[i].op].kind;

        if (kind == PI_OP_EMBED)
            x->embed_slot = cpu->ops[i].post;
        else
            x->any_cpu = true;
        x->rotates = x->rotates || kind == PI_OP_QKV;
    }
out:
    return rc;
}

static void size_up(struct pi_exec_gpu *x)
{
    x->n_hot_max = x->n_cold_max = 1;
    for (uint32_t l = 0; l < x->dm->n_layer; l++) {
        uint32_t hot = x->dm->layers[l].n_hot, cold = x->dm->layers[l].n_cold;

        x->n_hot_max = hot > x->n_hot_max ? hot : x->n_hot_max;
        x->n_cold_max = cold > x->n_cold_max ? cold : x->n_cold_max;
    }
    for (uint32_t n = 1; x->n_buckets < PI_XG_BUCKETS && n <= x->s->n_dec; n *= 2)
        x->buckets[x->n_buckets++].n_tok = n;
}

/* Hand-overs inside a graph are tried before they are relied on: once in a process for each GPU. */
static bool handovers_work(int index)
{
    enum {
        UNTRIED,
        WORK,
        FAIL
    };
    static atomic_int found[PI_MAX_GPUS];
    struct pi_err ignored;
    double seconds = 0.0;

    if (index >= PI_MAX_GPUS)
        return false;
    if (atomic_load(&found[index]) == UNTRIED) {
        bool ok = pi_gpu_measure_handover(index, &seconds, &ignored) == PI_OK &&
                  seconds < MOST_HANDOVER_SECONDS;

        atomic_store(&found[index], ok ? WORK : FAIL);
    }
    return atomic_load(&found[index]) == WORK;
}

enum pi_code pi_exec_gpu_create(struct pi_state *s, const struct pi_dev_model *dm,
                                const struct pi_graph *graph, const struct pi_schedule *schedule,
                                const struct pi_exec_gpu_options *opt, struct pi_exec_gpu **out,
                                struct pi_err *err)
{
    struct pi_exec_gpu *x = NULL;
    enum pi_code rc;

    PI_ALLOC_ALIGNED(x, 1, err);
    x->s = s;
    x->dm = dm;
    x->graph = graph;
    x->schedule = schedule;
    x->index = opt->index;
    PI_TRY(pi_gpu_use(x->index, err));
    PI_TRY(check_agreement(x, err));
    PI_TRY(note_slots(x, err));
    size_up(x);
    x->spin = opt->handover == PI_HANDOVER_SPIN ||
              (opt->handover == PI_HANDOVER_AUTO && (!x->any_cpu || handovers_work(x->index)));
    PI_TRY(pi_gpu_stream_create(x->index, &x->stream, err));
    PI_TRY(allocate(x, err));
    PI_TRY(pi_cold_scratch_create(x->n_cold_max, s->n_dec, dm->shape->n_embd, &x->cold, err));
    x->job = (struct pi_cold_job){
        .cpu = s->cpu, .shape = dm->shape, .pool = s->pool, .scratch = x->cold};
    for (uint32_t i = 0; i < x->n_buckets; i++)
        PI_TRY(pi_xg_capture(x, &x->buckets[i], err));
    PI_TRY(start_watchdog(x, err));
    *out = x;
    x = NULL;
out:
    pi_exec_gpu_destroy(x);
    return rc;
}

static void stop_watchdog(struct pi_exec_gpu *x)
{
    if (!x->has_watchdog)
        return;
    (void)pthread_mutex_lock(&x->lock);
    x->stop = true;
    (void)pthread_cond_signal(&x->wake);
    (void)pthread_mutex_unlock(&x->lock);
    (void)pthread_join(x->watchdog, NULL);
    (void)pthread_cond_destroy(&x->wake);
    (void)pthread_mutex_destroy(&x->lock);
}

void pi_xg_bucket_free(struct pi_xg_bucket *b)
{
    for (uint32_t k = 0; b->segments != NULL && k < b->n_segments; k++) {
        pi_gpu_graph_destroy(b->segments[k].graph);
        pi_gpu_event_destroy(b->segments[k].event);
    }
    free(b->segments);
    b->segments = NULL;
}

void pi_exec_gpu_destroy(struct pi_exec_gpu *x)
{
    if (x == NULL)
        return;
    stop_watchdog(x);
    if (x->hangs) /* freeing would wait for the device for ever; it is the process's end that frees */
        return;
    pi_xg_trace_free(x);
    for (uint32_t i = 0; i < x->n_buckets; i++)
        pi_xg_bucket_free(&x->buckets[i]);
    pi_gpu_stream_destroy(x->stream);
    pi_gpu_free(&x->buf);
    pi_gpu_unpin(&x->pinned);
    pi_cold_scratch_free(x->cold);
    free(x->posted_by);
    free(x);
}

/* ---- step ---- */

/* Token rows, positions and the step's number, where the first kernel reads them. */
static void write_inputs(struct pi_exec_gpu *x)
{
    struct pi_state *s = x->s;
    struct pi_k_step *in = x->m.step.host;
    float *embd = x->m.embd.host;
    uint32_t d = x->dm->shape->n_embd;

    memset(in, 0, sizeof(*in));
    in->step = ++x->epoch;
    in->n_tok = s->n_tok;
    for (uint32_t t = 0; t < PI_K_MAX_TOKENS; t++)
        in->want[t] = UINT32_MAX;
    for (uint32_t t = 0; t < s->n_tok; t++) {
        in->pos[t] = s->pos[t];
        in->seq[t] = pi_state_seq(s, t);
        if (pi_state_wants(s, t))
            in->want[t] = in->n_want++;
        pi_ops_embed(s, t, embd + (size_t)t * d, s->lanes[0].normed);
        if (x->rotates)
            pi_ops_rotation(s, t);
    }
    if (!x->dm->layers[0].has_attn)
        memcpy(s->residual, embd, (size_t)s->n_tok * d * sizeof(*embd));
    pi_ops_count(s, &s->stats.weights_other, &s->m->tok_embd, s->n_tok);
    if (s->m->shape.learned_pos)
        pi_ops_count(s, &s->stats.weights_other, &s->m->pos_embd, s->n_tok);
    s->stats.tokens += s->n_tok;
}

/* Waits for the graph's end. No hand-over is pending any more: a stream that neither ends nor fails is given up, and *hangs says so.
 * Like the watchdog, only time that this process could run counts. */
static enum pi_code await_end(struct pi_exec_gpu *x, double seconds, bool *hangs,
                              struct pi_err *err)
{
    double last = pi_xg_now(), waited = 0.0, now;
    bool done = false;

    for (uint32_t i = 1;; i++) {
        enum pi_code rc = pi_gpu_stream_query(x->stream, &done, err);

        if (rc != PI_OK || done)
            return rc;
        if (i > 4096)
            (void)sched_yield();
        if (i % 1024 != 0)
            continue;
        now = pi_xg_now();
        waited += now - last < LOOK_SECONDS ? now - last : LOOK_SECONDS;
        last = now;
        if (waited > seconds) {
            *(volatile uint32_t *)x->m.abort.host = 1;
            *hangs = true;
            return pi_err_set(err, PI_E_DEVICE, "GPU %d: step %u did not end in %.0f s", x->index,
                              x->epoch, seconds);
        }
    }
}

/* Rows that the GPU read, for the account: what is dense by shape, what is sparse by the sets' sizes. */
static void count_gpu(struct pi_exec_gpu *x)
{
    struct pi_state *s = x->s;
    const uint32_t *n_set = x->m.set_counts.host;

    for (uint32_t l = 0; l < x->dm->n_layer; l++) {
        const struct pi_dev_layer *y = &x->dm->layers[l];
        const struct pi_layer_weights *w = &s->m->layers[l];
        const struct pi_dev_predictor *p = &y->pred;
        enum pi_mode mode = s->mode[l];
        bool gated = x->dm->shape->gated;
        uint64_t n_set_l = mode == PI_MODE_DENSE ? y->n_hot : n_set[l];

        if (y->has_attn) {
            pi_ops_count(s, &s->stats.weights_attn, &w->q, w->q.n_rows);
            pi_ops_count(s, &s->stats.weights_attn, &w->k, w->k.n_rows);
            pi_ops_count(s, &s->stats.weights_attn, &w->v, w->v.n_rows);
            pi_ops_count(s, &s->stats.weights_attn, &w->o, w->o.n_rows);
        }
        if (p->width > 0) {
            const struct pi_predictor_layer *pl = &s->pred->layers[l];

            pi_ops_count(s, &s->stats.weights_pred, &pl->fc1, pl->width);
            pi_ops_count(s, &s->stats.weights_pred, &pl->fc2, p->fc2.n_rows);
        }
        if (y->n_hot == 0)
            continue;
        pi_ops_count(s, &s->stats.weights_ffn, gated ? &w->gate : &w->up,
                     mode == PI_MODE_PREDICTED && p->predict_hot ? n_set_l : y->n_hot);
        if (gated)
            pi_ops_count(s, &s->stats.weights_ffn, &w->up, n_set_l);
        pi_ops_count(s, &s->stats.weights_ffn, &w->down_t, n_set_l);
    }
    if (x->dm->output.data != NULL)
        pi_ops_count(s, &s->stats.weights_other, &s->m->output, s->m->output.n_rows);
}

static void copy_logits(struct pi_exec_gpu *x)
{
    const struct pi_k_step *in = x->m.step.host;

    if (x->dm->output.data != NULL && x->s->logits != NULL)
        memcpy(x->s->logits, x->m.logits.host,
               (size_t)in->n_want * x->dm->shape->n_vocab * sizeof(float));
}

static struct pi_xg_bucket *bucket_for(struct pi_exec_gpu *x, uint32_t n_tok)
{
    uint32_t i = 0;

    while (i + 1 < x->n_buckets && x->buckets[i].n_tok < n_tok)
        i++;
    return &x->buckets[i];
}

/* The end of a step that went well so far, or not: then nothing may be left that waits for the CPU. */
static enum pi_code land(struct pi_exec_gpu *x, enum pi_code rc, struct pi_err *err)
{
    const bool aborts = rc != PI_OK || atomic_load(&x->give_up);
    struct pi_err ignored;
    enum pi_code end;

    if (aborts)
        *(volatile uint32_t *)x->m.abort.host = 1;
    end =
        await_end(x, aborts ? ABORT_SECONDS : END_SECONDS, &x->hangs, rc == PI_OK ? err : &ignored);
    return rc != PI_OK ? rc : end;
}

static enum pi_code fly(struct pi_exec_gpu *x, struct pi_err *err)
{
    double begin = pi_xg_now();
    enum pi_code rc;

    x->rc = PI_OK;
    x->err = err;
    x->n_launched = 0;
    atomic_store(&x->give_up, false);
    atomic_store(&x->meetings, 0);
    atomic_fetch_add(&x->progress, 1);
    if (x->embed_slot != PI_NO_SLOT)
        atomic_store_explicit(pi_xg_slot(x, x->embed_slot), x->epoch, memory_order_release);
    if (x->any_cpu)
        set_in_flight(x, true);
    rc = pi_xg_launch_ready(x, err);
    if (rc == PI_OK && x->any_cpu) {
        pi_pool_run(x->s->pool, pi_xg_walk, x);
        rc = x->rc;
    }
    rc = land(x, rc, err);
    if (x->any_cpu)
        set_in_flight(x, false);
    if (rc == PI_OK && atomic_load(&x->give_up))
        rc = pi_err_set(err, PI_E_DEVICE,
                        "GPU %d and CPU: nothing moved for 3 s in step %u; gave up", x->index,
                        x->epoch);
    x->gpu_wall += pi_xg_now() - begin;
    return rc;
}

enum pi_code pi_exec_gpu_step(struct pi_exec_gpu *x, struct pi_err *err)
{
    uint64_t bytes = x->s->stats.bytes;
    enum pi_code rc;

    if (x->failed)
        return pi_err_set(err, PI_E_DEVICE, "GPU %d: an earlier step failed", x->index);
    x->bucket = bucket_for(x, x->s->n_tok);
    if (x->s->truth != NULL) {
        PI_TRY(pi_xg_trace_begin(x, err));
        x->bucket = pi_xg_trace_bucket(x);
    }
    write_inputs(x);
    rc = fly(x, err);
    x->failed = rc != PI_OK;
    if (rc != PI_OK)
        return rc;
    copy_logits(x);
    x->bytes_cpu += x->s->stats.bytes - bytes;
    bytes = x->s->stats.bytes;
    count_gpu(x);
    x->bytes_gpu += x->s->stats.bytes - bytes;
    rc = PI_OK;
    if (x->s->truth != NULL)
        PI_TRY(pi_xg_trace_end(x, err));
out:
    return rc;
}

enum pi_code pi_exec_gpu_take_timing(struct pi_exec_gpu *x, struct pi_engine_timing *out,
                                     struct pi_err *err)
{
    uint64_t waited = 0, zero = 0;
    size_t at = (size_t)((char *)x->d.waited - (char *)x->buf.ptr);
    enum pi_code rc;

    if (x->failed) /* a device that hangs would not answer */
        return pi_err_set(err, PI_E_DEVICE, "GPU %d: an earlier step failed", x->index);
    PI_TRY(pi_gpu_download(&waited, &x->buf, at, sizeof(waited), err));
    PI_TRY(pi_gpu_upload(&x->buf, at, &zero, sizeof(zero), err));
    out->seconds_cpu_busy += x->cpu_busy;
    out->seconds_wait += x->cpu_wait;
    out->seconds_gpu += x->gpu_wall;
    out->seconds_handover += 1e-9 * (double)waited;
    out->bytes_gpu += x->bytes_gpu;
    out->bytes_cpu += x->bytes_cpu;
    x->cpu_busy = x->cpu_wait = x->gpu_wall = 0.0;
    x->bytes_gpu = x->bytes_cpu = 0;
out:
    return rc;
}

void pi_exec_gpu_test_stall(struct pi_exec_gpu *x)
{
    x->stall = true;
}

void pi_exec_gpu_test_slow(struct pi_exec_gpu *x, double seconds)
{
    x->slow = seconds;
}

bool pi_exec_gpu_spins(const struct pi_exec_gpu *x)
{
    return x->spin;
}

bool pi_exec_gpu_hangs(const struct pi_exec_gpu *x)
{
    return x->hangs;
}

uint64_t pi_exec_gpu_memory(const struct pi_exec_gpu *x)
{
    return x->buf.bytes;
}
