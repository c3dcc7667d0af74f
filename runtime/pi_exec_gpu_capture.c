/* pi_exec_gpu_capture.c - the GPU's list as CUDA graphs: which kernels an operator is. */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include "common/pi_alloc.h"

#include <string.h>

/* What the capture of one bucket carries from operator to operator. */
struct capture {
    struct pi_exec_gpu *x;
    struct pi_xg_bucket *b;
    uint32_t n_tok;
    uint32_t received;  /* layer whose normed input came from the CPU, plus one */
    uint32_t predicted; /* layer whose predictor has run, plus one */
    uint32_t unnormed;  /* layer whose products norm the residual themselves, plus one */
    uint32_t n_parts;   /* of the layer's down projection here */
    bool traced;
};

static const struct pi_dev_layer *layer_of(const struct capture *c, const struct pi_op *op)
{
    return &c->x->dm->layers[op->layer];
}

static struct pi_k_norm norm_of(const struct capture *c, const float *w, const float *b)
{
    const struct pi_shape *sh = c->x->dm->shape;

    return (struct pi_k_norm){.w = w, .b = b, .layer_norm = sh->layer_norm, .eps = sh->norm_eps};
}

/* Does one of three of the file's matrices take quantised activations? Then what they read is made on their grid, and read ready made. */
static bool takes_q8(const struct capture *c, const struct pi_mat *a, const struct pi_mat *b,
                     const struct pi_mat *d)
{
    const struct pi_state *s = c->x->s;

    return pi_ops_takes_q8(s, a) || pi_ops_takes_q8(s, b) || pi_ops_takes_q8(s, d);
}

/* to = in, normed unless norm->w is NULL, on the grid of quantised activations. */
static void emit_round(const struct capture *c, const struct pi_k_norm *norm, const float *in,
                       float *to, uint32_t n)
{
    struct pi_k_norm round = *norm;

    round.q8 = true;
    pi_k_norm_publish(&round, in, to, NULL, NULL, NULL, c->x->d.step, c->n_tok, n, c->x->stream);
}

static size_t state_bytes(const struct capture *c)
{
    return (size_t)c->n_tok * c->x->dm->shape->n_embd * sizeof(float);
}

/* Segments are launched when what they wait for is there; kernels wait themselves only inside one graph. */
static struct pi_k_wait wait_of(const struct capture *c, const struct pi_step_op *so)
{
    struct pi_k_wait w = {.abort_map = c->x->m.abort.dev, .waited = c->x->d.waited};

    if (c->x->spin &&
        so->n_waits > 0) { /* lists run in order: the last slot says that all are there */
        w.slot_map = pi_xg_slot_dev(c->x, so->waits[so->n_waits - 1]);
        w.relay = c->x->d.relay + so->waits[so->n_waits - 1];
    }
    return w;
}

static bool cold_on_cpu(const struct pi_dev_layer *l)
{
    return l->n_cold > 0;
}

/* The hot neurons' true set, where steps are traced; in front of everything that makes sets. */
static void emit_truth(struct capture *c, const struct pi_op *op)
{
    if (c->traced && layer_of(c, op)->n_hot > 0)
        pi_xg_trace_emit_truth(c->x, op->layer);
}

/* Where the layer's merge runs. */
static bool merge_on_gpu(const struct capture *c, uint32_t layer)
{
    const struct pi_exec_gpu *x = c->x;

    return layer + 1 < x->dm->n_layer ? x->dm->layers[layer + 1].has_attn
                                      : x->dm->output.data != NULL;
}

/* ---- attention ---- */

static enum pi_code emit_qkv(struct capture *c, const struct pi_op *op, struct pi_err *err)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_dev_layer *l = layer_of(c, op);
    const struct pi_layer_weights *w = &x->s->m->layers[op->layer];
    const float *in = x->d.residual;
    struct pi_k_qkv a = {.norm = norm_of(c, l->attn_norm, l->attn_norm_b),
                         .q = &l->q,
                         .k = &l->k,
                         .v = &l->v,
                         .q_b = l->q_b,
                         .k_b = l->k_b,
                         .v_b = l->v_b,
                         .shape = x->dm->shape,
                         .inv_freq = x->dm->inv_freq,
                         .rope_mscale = x->s->m->rope_mscale,
                         .kv_type = x->dm->kv_type,
                         .k_cache = l->k_cache,
                         .v_cache = l->v_cache,
                         .n_ctx = x->dm->n_ctx,
                         .n_seq = x->dm->n_seq};
    enum pi_code rc = PI_OK;

    if (x->d.layer_input != NULL)
        PI_TRY(pi_gpu_copy_async(x->d.layer_input, x->d.residual, state_bytes(c), x->stream, err));
    if (takes_q8(c, &w->q, &w->k, &w->v)) {
        emit_round(c, &a.norm, in, x->d.normed, x->dm->shape->n_embd);
        a.norm = (struct pi_k_norm){.w = NULL};
        in = x->d.normed;
    }
    pi_k_qkv(&a, in, x->d.step, x->d.q, c->n_tok, x->stream);
out:
    return rc;
}

static enum pi_code emit_attn_out(struct capture *c, const struct pi_op *op, struct pi_err *err)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_dev_layer *l = layer_of(c, op);
    const struct pi_mat *o = &x->s->m->layers[op->layer].o;
    const struct pi_k_norm none = {.w = NULL};

    if (takes_q8(c, o, o, o))
        emit_round(c, &none, x->d.attn, x->d.attn, o->n_cols);
    pi_k_matvec(&l->o, l->o_b, NULL, x->d.attn, x->d.residual, true, false, c->n_tok, x->stream);
    if (x->d.prev_attn[0] == NULL)
        return PI_OK;
    return pi_gpu_copy_async(x->d.prev_attn[op->layer & 1], x->d.residual, state_bytes(c),
                             x->stream, err);
}

/* ---- feed-forward ---- */

/* How the layer's hot neurons are computed, as far as its mode and its predictor say. */
static enum pi_k_ffn_kind kind_of(const struct capture *c, uint32_t layer)
{
    const struct pi_dev_layer *l = &c->x->dm->layers[layer];

    if (c->x->s->mode[layer] == PI_MODE_DENSE)
        return PI_K_FFN_DENSE;
    return c->x->s->mode[layer] == PI_MODE_PREDICTED && l->pred.predict_hot ? PI_K_FFN_PREDICTED
                                                                            : PI_K_FFN_EXACT;
}

/* Does nobody but the layer's first products want the normed input? They can make it themselves then, and a kernel is saved. */
static bool norms_itself(const struct capture *c, const struct pi_op *op,
                         const struct pi_step_op *so, const struct pi_k_norm *norm)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_dev_layer *l = layer_of(c, op);

    return l->has_attn && l->n_hot > 0 && !cold_on_cpu(l) && merge_on_gpu(c, op->layer) &&
           so->post == PI_NO_SLOT && !norm->q8 && !c->traced &&
           pi_k_ffn_up_norms(x->dm->shape, l, kind_of(c, op->layer), c->n_tok);
}

/* The normed input goes to the CPU when it has neurons of this layer, the residual when the merge is there. The flag is raised by the
 * operator that the schedule says. */
static void emit_ffn_norm(struct capture *c, const struct pi_op *op, const struct pi_step_op *so)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_dev_layer *l = layer_of(c, op);
    const struct pi_layer_weights *w = &x->s->m->layers[op->layer];
    struct pi_k_norm norm = norm_of(c, l->ffn_norm, l->ffn_norm_b);
    uint32_t side = op->layer & 1;

    norm.q8 = takes_q8(c, &w->gate, &w->up, &w->up);
    if (norms_itself(c, op, so, &norm)) {
        c->unnormed = op->layer + 1;
        return;
    }
    pi_k_norm_publish(
        &norm, x->d.residual, x->d.normed, cold_on_cpu(l) ? x->m.normed[side].dev : NULL,
        merge_on_gpu(c, op->layer) ? NULL : x->m.residual[side].dev, pi_xg_slot_dev(x, so->post),
        x->d.step, c->n_tok, x->dm->shape->n_embd, x->stream);
    emit_truth(c, op);
}

/* Attention is on the CPU: its normed input and residual come over, once. */
static void emit_receive(struct capture *c, const struct pi_op *op, const struct pi_step_op *so)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_k_wait w = wait_of(c, so);
    uint32_t side = op->layer & 1;

    if (layer_of(c, op)->has_attn || c->received == op->layer + 1)
        return;
    pi_k_receive(&w, x->d.step, x->m.normed_up[side].dev, x->d.normed, x->m.residual_up[side].dev,
                 x->d.residual, (size_t)c->n_tok * x->dm->shape->n_embd, x->stream);
    c->received = op->layer + 1;
    emit_truth(c, op);
}

static const float *predictor_input(const struct capture *c, const struct pi_op *op)
{
    const struct pi_xg_dev *d = &c->x->d;

    switch (layer_of(c, op)->pred.input) {
    case PI_PRED_IN_FFN_RESIDUAL:
        return d->residual;
    case PI_PRED_IN_LAYER:
        return d->layer_input;
    case PI_PRED_IN_PREV_ATTN:
        return d->prev_attn[(op->layer - 1) & 1];
    case PI_PRED_IN_FFN_NORMED:
        break;
    }
    return c->unnormed == op->layer + 1 ? d->residual : d->normed;
}

static struct pi_k_set set_of(const struct capture *c, uint32_t layer)
{
    struct pi_k_set set = c->x->d.set;

    set.n += layer;
    return set;
}

/* One kernel predicts for both owners: the schedule's first predictor of the layer stands for both. */
static enum pi_code emit_predict(struct capture *c, const struct pi_op *op,
                                 const struct pi_step_op *so, struct pi_err *err)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_dev_layer *l = layer_of(c, op);
    const struct pi_k_set set = set_of(c, op->layer);
    struct pi_k_norm norm = {.w = NULL};
    uint32_t side = op->layer & 1;
    const struct pi_k_cold_map cold = {.n = x->m.cold_n[side].dev,
                                       .ids = x->m.cold_ids[side].dev,
                                       .tokens = x->m.cold_tokens[side].dev,
                                       .slot = pi_xg_slot_dev(x, so->post)};

    if (l->pred.width == 0 ||
        (op->owner == PI_UNIT_CPU ? !l->pred.predict_cold : !l->pred.predict_hot))
        return pi_err_set(
            err, PI_E_SELFCHECK,
            "layer %u: the schedule predicts for unit %u, the device has no rows for it", op->layer,
            op->owner);
    emit_receive(c, op, so);
    if (c->predicted == op->layer + 1)
        return PI_OK;
    c->predicted = op->layer + 1;
    if (c->unnormed == op->layer + 1 && l->pred.input == PI_PRED_IN_FFN_NORMED)
        norm = norm_of(c, l->ffn_norm, l->ffn_norm_b);
    pi_k_matvec(&l->pred.fc1, NULL, &norm, predictor_input(c, op), x->d.hidden, false, l->pred.relu,
                c->n_tok, x->stream);
    pi_k_predict(l, x->d.hidden, x->d.step, &set, &cold, c->n_tok, x->stream);
    if (c->traced && l->pred.predict_hot)
        return pi_xg_trace_emit_called(c->x, op->layer, err);
    return PI_OK;
}

static enum pi_code emit_ffn(struct capture *c, const struct pi_op *op, const struct pi_step_op *so,
                             struct pi_err *err)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_dev_layer *l = layer_of(c, op);
    const struct pi_shape *sh = x->dm->shape;
    const struct pi_k_set set = set_of(c, op->layer);
    const enum pi_k_ffn_kind kind = kind_of(c, op->layer);
    struct pi_k_norm norm = {.w = NULL};
    const float *in = x->d.normed;

    if ((kind == PI_K_FFN_PREDICTED) != (c->predicted == op->layer + 1 && l->pred.predict_hot))
        return pi_err_set(err, PI_E_SELFCHECK,
                          "layer %u: mode and schedule differ on its predictor", op->layer);
    emit_receive(c, op, so);
    if (c->unnormed == op->layer + 1) {
        norm = norm_of(c, l->ffn_norm, l->ffn_norm_b);
        in = x->d.residual;
    }
    if (kind == PI_K_FFN_EXACT)
        pi_k_gate_exact(sh, l, x->d.normed, x->d.step, &set, c->n_tok, x->stream);
    pi_k_ffn_up(sh, l, kind, &norm, in, x->d.step, &set, x->d.h, c->n_tok, x->stream);
    c->n_parts = pi_k_down_parts(kind, l->n_hot, sh->n_embd, c->n_tok);
    pi_k_ffn_down(l, kind, x->d.h, &set, x->d.parts, c->n_tok, sh->n_embd, x->stream);
    if (so->post != PI_NO_SLOT)
        pi_k_publish_parts(x->d.parts, c->n_parts, x->m.hot_part[op->layer & 1].dev,
                           pi_xg_slot_dev(x, so->post), x->d.step, x->d.set.ticket, c->n_tok,
                           sh->n_embd, x->stream);
    return PI_OK;
}

static void emit_merge(struct capture *c, const struct pi_op *op, const struct pi_step_op *so)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_dev_layer *l = layer_of(c, op);
    uint32_t side = op->layer & 1, d = x->dm->shape->n_embd;
    struct pi_k_wait w = wait_of(c, so);

    if (!l->has_attn &&
        c->received != op->layer + 1) { /* nothing hot: only the residual comes over */
        pi_k_receive(&w, x->d.step, x->m.residual_up[side].dev, x->d.residual, NULL, NULL,
                     (size_t)c->n_tok * d, x->stream);
        w.slot_map = NULL;
    }
    pi_k_merge(x->d.residual, l->down_b, x->d.parts, l->n_hot > 0 ? c->n_parts : 0,
               cold_on_cpu(l) ? x->m.cold_part[side].dev : NULL, &w, x->d.step, NULL, c->n_tok, d,
               x->stream);
}

/* ---- outer ---- */

static enum pi_code emit_output(struct capture *c, struct pi_err *err)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_mat *w = &x->s->m->output;
    struct pi_k_norm norm = norm_of(c, x->dm->out_norm, x->dm->out_norm_b);
    const float *in = x->d.residual;

    if (takes_q8(c, w, w, w)) {
        emit_round(c, &norm, in, x->d.normed, x->dm->shape->n_embd);
        norm = (struct pi_k_norm){.w = NULL};
        in = x->d.normed;
    }
    pi_k_output(&x->dm->output, &norm, in, x->d.step, x->d.logits, c->n_tok, x->stream);
    return pi_gpu_copy_async(x->m.logits.host, x->d.logits,
                             (size_t)c->n_tok * x->dm->shape->n_vocab * sizeof(float), x->stream,
                             err);
}

static enum pi_code emit_op(struct capture *c, const struct pi_step_op *so, struct pi_err *err)
{
    const struct pi_exec_gpu *x = c->x;
    const struct pi_op *op = &x->graph->ops[so->op];

    switch (op->kind) {
    case PI_OP_EMBED:     /* done by pi_k_begin() */
    case PI_OP_ATTN_NORM: /* part of the product behind it */
    case PI_OP_OUT_NORM:
        return PI_OK;
    case PI_OP_QKV:
        return emit_qkv(c, op, err);
    case PI_OP_ATTN:
        pi_k_attn(x->dm->shape, x->dm->kv_type, x->d.q, layer_of(c, op)->k_cache,
                  layer_of(c, op)->v_cache, x->dm->n_ctx, x->dm->n_seq, x->d.step,
                  x->d.attn_scratch, x->d.attn, c->n_tok, x->stream);
        return PI_OK;
    case PI_OP_ATTN_OUT:
        return emit_attn_out(c, op, err);
    case PI_OP_FFN_NORM:
        emit_ffn_norm(c, op, so);
        return PI_OK;
    case PI_OP_PREDICT:
        return emit_predict(c, op, so, err);
    case PI_OP_FFN:
        return emit_ffn(c, op, so, err);
    case PI_OP_MERGE:
        emit_merge(c, op, so);
        return PI_OK;
    case PI_OP_OUTPUT:
        return emit_output(c, err);
    }
    return PI_OK;
}

/* ---- segments ---- */

/* The embedding's slot is posted before the launch. */
static bool waits_for_cpu(const struct pi_exec_gpu *x, const struct pi_step_op *so)
{
    for (uint32_t i = 0; i < so->n_waits; i++) {
        if (x->posted_by[so->waits[i]] == UINT32_MAX && so->waits[i] != x->embed_slot)
            return true;
    }
    return false;
}

/* True where a new segment begins: in front of what waits for the CPU, behind what the CPU waits for. */
static bool cut_before(const struct pi_exec_gpu *x, uint32_t i)
{
    const struct pi_unit_list *list = &x->schedule->units[1];

    return !x->spin && i > 0 &&
           (waits_for_cpu(x, &list->ops[i]) || list->ops[i - 1].post != PI_NO_SLOT);
}

static uint32_t count_segments(const struct pi_exec_gpu *x)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < x->schedule->units[1].n; i++)
        n += cut_before(x, i);
    return n;
}

static enum pi_code capture_segment(struct capture *c, struct pi_xg_segment *seg,
                                    struct pi_err *err)
{
    struct pi_exec_gpu *x = c->x;
    const struct pi_unit_list *list = &x->schedule->units[1];
    enum pi_code rc;

    PI_TRY(pi_gpu_capture_begin(x->stream, err));
    if (seg->first == 0)
        pi_k_begin(x->m.step.dev, x->d.step, x->m.embd.dev, x->d.residual, c->n_tok,
                   x->dm->shape->n_embd, x->stream);
    for (uint32_t i = seg->first; rc == PI_OK && i < seg->end; i++) {
        rc = emit_op(c, &list->ops[i], err);
        if (rc == PI_OK)
            rc = pi_gpu_launched(err);
    }
    if (rc == PI_OK && seg->end == list->n) /* how many neurons each layer had, for the account */
        rc = pi_gpu_copy_async(x->m.set_counts.host, x->d.set.n, x->dm->n_layer * sizeof(uint32_t),
                               x->stream, err);
    if (rc != PI_OK) { /* a stream must not stay in capture */
        struct pi_err ignored;

        (void)!pi_gpu_capture_end(x->stream, &seg->graph, &ignored);
        goto out;
    }
    PI_TRY(pi_gpu_capture_end(x->stream, &seg->graph, err));
    if (!x->spin)
        PI_TRY(pi_gpu_event_create(false, &seg->event, err));
out:
    return rc;
}

enum pi_code pi_xg_capture(struct pi_exec_gpu *x, struct pi_xg_bucket *b, struct pi_err *err)
{
    const uint32_t n_ops = x->schedule->units[1].n;
    struct capture c = {.x = x,
                        .b = b,
                        .n_tok = b->n_tok,
                        .traced = x->trace != NULL && b == pi_xg_trace_bucket(x)};
    uint32_t n = count_segments(x), first = 0;
    enum pi_code rc;

    PI_ALLOC(b->segments, n, err);
    b->n_segments = n;
    rc = PI_OK;
    for (uint32_t i = 0; i < n; i++) {
        struct pi_xg_segment *seg = &b->segments[i];

        seg->first = first;
        for (seg->end = first + 1; seg->end < n_ops && !cut_before(x, seg->end);)
            seg->end++;
        if (seg->end > n_ops) /* a GPU that has nothing to do */
            seg->end = n_ops;
        first = seg->end;
        rc = capture_segment(&c, seg, err);
        if (rc != PI_OK) {
            pi_err_wrap(err, "graph of a step of %u tokens", b->n_tok);
            goto out;
        }
    }
out:
    return rc;
}
