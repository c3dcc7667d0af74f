/* pi_exec_gpu_step.c - one decode step of an executor of GPU and CPU: inputs, launch, end, account. */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include "runtime/pi_patience.h"

#include <sched.h>
#include <string.h>

/* Times the patience that a graph without pending hand-overs may take to end, which is the whole step where the CPU has no part in it; and behind an
 * abort. */
#define END_FACTOR   5.0
#define ABORT_FACTOR 3.0
#define SPINS        4096 /* of a wait, before others may run */

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

/* Waits for the graph's end. No hand-over is pending any more: a device that neither ends nor fails is given up. */
static enum pi_code await_end(struct pi_exec_gpu *x, double seconds, struct pi_err *err)
{
    struct pi_patience patience = pi_patience(seconds);
    bool done = false;

    for (uint32_t i = 1;; i++) {
        enum pi_code rc = pi_gpu_stream_query(x->stream, &done, err);

        if (rc != PI_OK || done)
            return rc;
        if (i > SPINS)
            (void)sched_yield(); /* on a busy machine that takes its time: look each time */
        if ((i > SPINS || i % 1024 == 0) && pi_patience_ends(&patience)) {
            *(volatile uint32_t *)x->m.abort.host = 1;
            pi_gpu_give_up();
            return pi_err_set(err, PI_E_DEVICE, "GPU %d has stopped: step %u did not end in %.3g s",
                              x->index, x->epoch, seconds);
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
        pi_ops_note_work(s, l, 1, n_set_l);
        pi_ops_count(s, &s->stats.weights_ffn, gated ? &w->gate : &w->up,
                     mode == PI_MODE_PREDICTED && p->predict_hot ? n_set_l : y->n_hot);
        if (gated)
            pi_ops_count(s, &s->stats.weights_ffn, &w->up, n_set_l);
        pi_ops_count(s, &s->stats.weights_ffn, &w->down_t, n_set_l);
        s->stats.neurons_gpu += n_set_l;
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
    end = await_end(x, (aborts ? ABORT_FACTOR : END_FACTOR) * x->patience,
                    rc == PI_OK ? err : &ignored);
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
        pi_xg_in_flight(x, true);
    rc = pi_xg_launch_ready(x, err);
    if (rc == PI_OK && x->any_cpu) {
        pi_pool_run(x->s->pool, pi_xg_walk, x);
        rc = x->rc;
    }
    rc = land(x, rc, err);
    if (x->any_cpu)
        pi_xg_in_flight(x, false);
    if (rc == PI_OK && atomic_load(&x->give_up))
        rc = pi_err_set(err, PI_E_DEVICE,
                        "GPU %d and CPU: nothing moved for %.3g s in step %u; gave up", x->index,
                        x->patience, x->epoch);
    x->gpu_wall += pi_xg_now() - begin;
    return rc;
}

enum pi_code pi_exec_gpu_step(struct pi_exec_gpu *x, struct pi_err *err)
{
    uint64_t bytes = x->s->stats.bytes, shared = x->s->stats.bytes_shared;
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
    x->bytes_cpu_once += x->s->stats.bytes - bytes - (x->s->stats.bytes_shared - shared);
    bytes = x->s->stats.bytes;
    count_gpu(x);
    x->bytes_gpu += x->s->stats.bytes - bytes;
    rc = PI_OK;
    if (x->s->truth != NULL)
        PI_TRY(pi_xg_trace_end(x, err));
out:
    return rc;
}
