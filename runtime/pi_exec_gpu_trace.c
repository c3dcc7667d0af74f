/*
 * pi_exec_gpu_trace.c - traced steps: beside what the step does, the full gate on its own input, on either unit.
 *
 * A graph of its own, made when the first traced step comes: behind each feed-forward norm the exact gate over all hot neurons into
 * a set of that layer's, and a copy of what the predictor called.
 */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>

struct pi_xg_trace {
    struct pi_dev_buf buf; /* n_true (n_layer), then two lists (n_layer, n_hot_max): true, called */
    uint32_t *n_true, *local_true, *local_called; /* device */
    uint32_t *host;                               /* the same, downloaded */
    struct pi_xg_bucket bucket;
};

static enum pi_code allocate(struct pi_exec_gpu *x, struct pi_xg_trace *t, struct pi_err *err)
{
    uint64_t list, n;
    enum pi_code rc;

    if (!pi_size_mul(x->dm->n_layer, x->n_hot_max, &list) || !pi_size_mul(list, 2, &n) ||
        !pi_size_add(n, x->dm->n_layer, &n) || n > SIZE_MAX / sizeof(uint32_t))
        return pi_err_set(err, PI_E_RANGE, "the trace of a step overflows");
    PI_TRY(pi_gpu_alloc(x->index, n * sizeof(uint32_t), &t->buf, err));
    PI_ALLOC(t->host, n, err);
    t->n_true = t->buf.ptr;
    t->local_true = t->n_true + x->dm->n_layer;
    t->local_called = t->local_true + list;
out:
    return rc;
}

enum pi_code pi_xg_trace_begin(struct pi_exec_gpu *x, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (x->trace != NULL)
        return PI_OK;
    PI_ALLOC(x->trace, 1, err);
    x->trace->bucket.n_tok = 1;
    PI_TRY(allocate(x, x->trace, err));
    PI_TRY(pi_xg_capture(x, &x->trace->bucket, err));
out:
    if (rc != PI_OK)
        pi_xg_trace_free(x);
    return rc;
}

struct pi_xg_bucket *pi_xg_trace_bucket(struct pi_exec_gpu *x)
{
    return &x->trace->bucket;
}

void pi_xg_trace_free(struct pi_exec_gpu *x)
{
    if (x->trace == NULL)
        return;
    pi_xg_bucket_free(&x->trace->bucket);
    pi_gpu_free(&x->trace->buf);
    free(x->trace->host);
    free(x->trace);
    x->trace = NULL;
}

void pi_xg_trace_emit_truth(struct pi_exec_gpu *x, uint32_t layer)
{
    struct pi_xg_trace *t = x->trace;
    struct pi_k_set set = x->d.set;

    set.n = t->n_true + layer;
    set.local = t->local_true + (size_t)layer * x->n_hot_max;
    pi_k_gate_exact(x->dm->shape, &x->dm->layers[layer], x->d.normed, x->d.step, &set, 1,
                    x->stream);
}

enum pi_code pi_xg_trace_emit_called(struct pi_exec_gpu *x, uint32_t layer, struct pi_err *err)
{
    return pi_gpu_copy_async(x->trace->local_called + (size_t)layer * x->n_hot_max, x->d.set.local,
                             x->dm->layers[layer].n_hot * sizeof(uint32_t), x->stream, err);
}

/* The thread's share of a layer's cold neurons: the full gate, and what was called. The job is the one about to run. */
void pi_xg_trace_cold(struct pi_exec_gpu *x, uint32_t layer, uint32_t thread, uint32_t n_threads)
{
    struct pi_state *s = x->s;
    const struct pi_shape *sh = x->dm->shape;
    const struct pi_unit_layer *ul = &s->units[0].layers[layer];
    const struct pi_layer_weights *w = &s->m->layers[layer];
    const struct pi_dev_predictor *p = &x->dm->layers[layer].pred;
    struct pi_span mine = pi_span(ul->n, PI_SPAN_ROWS, thread, n_threads);
    uint8_t *truth = s->truth + (size_t)layer * sh->n_ff,
            *called = s->traced + (size_t)layer * sh->n_ff;
    float *gate = s->units[0].gate + mine.begin;
    bool predicted = p->width > 0 && p->predict_cold;

    pi_ops_dots(s->cpu, sh->gated ? &w->gate : &w->up, ul->ids, mine,
                (struct pi_vecs){x->job.x, x->job.q8}, 1, sh->gated ? NULL : w->up_b, gate, 0);
    for (uint32_t i = mine.begin; i < mine.end; i++) {
        uint32_t id = ul->ids != NULL ? ul->ids[i] : i;

        truth[id] = pi_activate(sh, gate[i - mine.begin]) != 0.0f;
        called[id] = !predicted && truth[id];
    }
    if (predicted && thread == 0)
        x->mark_called = true; /* behind the barrier: pi_xg_trace_mark() */
}

void pi_xg_trace_mark(struct pi_exec_gpu *x, uint32_t layer)
{
    uint8_t *called = x->s->traced + (size_t)layer * x->dm->shape->n_ff;

    for (uint32_t i = 0; x->mark_called && i < x->job.n; i++)
        called[x->job.ids[i]] = 1;
    x->mark_called = false;
}

static void mark(uint8_t *sets, const struct pi_dev_layer *l, const uint32_t *local, uint32_t n)
{
    for (uint32_t i = 0; i < l->n_hot; i++)
        sets[l->host_hot_ids[i]] = 0;
    for (uint32_t i = 0; i < n && i < l->n_hot; i++) {
        if (local[i] < l->n_hot)
            sets[l->host_hot_ids[local[i]]] = 1;
    }
}

/* After the step: the hot neurons' sets, which lie on the device. */
enum pi_code pi_xg_trace_end(struct pi_exec_gpu *x, struct pi_err *err)
{
    struct pi_xg_trace *t = x->trace;
    const uint32_t *n_true = t->host, *local_true = t->host + x->dm->n_layer,
                   *local_called = local_true + (size_t)x->dm->n_layer * x->n_hot_max,
                   *n_called = x->m.set_counts.host;
    enum pi_code rc;

    PI_TRY(pi_gpu_download(t->host, &t->buf, 0, t->buf.bytes, err));
    for (uint32_t l = 0; l < x->dm->n_layer; l++) {
        const struct pi_dev_layer *y = &x->dm->layers[l];
        size_t at = (size_t)l * x->n_hot_max, row = (size_t)l * x->dm->shape->n_ff;
        bool predicted = y->pred.width > 0 && y->pred.predict_hot;

        if (y->n_hot == 0)
            continue;
        mark(x->s->truth + row, y, local_true + at, n_true[l]);
        mark(x->s->traced + row, y, predicted ? local_called + at : local_true + at,
             predicted ? n_called[l] : n_true[l]);
    }
out:
    return rc;
}
