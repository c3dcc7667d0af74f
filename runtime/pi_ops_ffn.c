/*
 * pi_ops_ffn.c - the feed-forward block of decode steps: predict, gate, up, down, merge.
 *
 * Neurons are addressed by a unit's local index; unit->layers[l].ids maps it to the row in the model's matrices. A thread
 * computes gate and up of its own span of local indices and leaves ids and products of the active ones there, in ascending order.
 * After one barrier every thread adds all active rows of down_t into its own columns, again in ascending order, so that no
 * sum depends on the number of threads.
 */
#include "config.h"

#include "runtime/pi_ops.h"

#include <string.h>

/* What the steps of one block share. */
struct block {
    struct pi_state *s;
    struct pi_unit *u;
    const struct pi_unit_layer *ul;
    const struct pi_layer_weights *w;
    uint32_t layer, n_tok, thread, n_threads;
    struct pi_span mine; /* the thread's local indices */
};

static struct block block_of(struct pi_state *s, const struct pi_op *op, uint32_t n_tok,
                             uint32_t thread, uint32_t n_threads)
{
    struct block b = {.s = s,
                      .u = &s->units[op->unit],
                      .layer = op->layer,
                      .n_tok = n_tok,
                      .thread = thread,
                      .n_threads = n_threads};

    b.ul = &b.u->layers[op->layer];
    b.w = &s->m->layers[op->layer];
    b.mine = pi_span(b.ul->n, PI_SPAN_ROWS, thread, n_threads);
    return b;
}

static uint32_t original(const struct block *b, uint32_t local)
{
    return b->ul->ids != NULL ? b->ul->ids[local] : local;
}

/* The matrix that the activation is applied to: gate, or up where there is no gate; its bias. */
static const struct pi_mat *first_mat(const struct block *b, const float **bias)
{
    bool gated = b->s->m->shape.gated;

    *bias = gated ? NULL : b->w->up_b;
    return gated ? &b->w->gate : &b->w->up;
}

static const float *lane_input(const struct block *b, uint32_t t)
{
    return b->s->lanes[b->thread].normed + (size_t)t * b->s->m->shape.n_embd;
}

/* ---- predictor ---- */

static const float *predictor_input(const struct block *b, enum pi_predictor_input input,
                                    uint32_t t)
{
    const struct pi_state *s = b->s;
    size_t at = (size_t)t * s->m->shape.n_embd;

    switch (input) {
    case PI_PRED_IN_FFN_RESIDUAL:
        return s->residual + at;
    case PI_PRED_IN_LAYER:
        return s->layer_input + at;
    case PI_PRED_IN_PREV_ATTN:
        return s->prev_attn[(b->layer - 1) & 1] + at;
    case PI_PRED_IN_FFN_NORMED:
        break;
    }
    return lane_input(b, t);
}

static void predict_hidden(const struct block *b, const struct pi_predictor_layer *p)
{
    struct pi_span rows = pi_span(p->width, PI_SPAN_ROWS, b->thread, b->n_threads);

    for (uint32_t t = 0; t < b->n_tok; t++) {
        float *hidden = b->u->hidden + (size_t)t * p->width;

        pi_ops_dots(b->s->cpu, &p->fc1, NULL, rows, predictor_input(b, p->input, t), NULL,
                    hidden + rows.begin);
        for (uint32_t i = rows.begin; p->relu && i < rows.end; i++)
            hidden[i] = hidden[i] > 0.0f ? hidden[i] : 0.0f;
    }
}

void pi_team_predict(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                     uint32_t n_threads)
{
    struct block b = block_of(ctx, op, n_tok, thread, n_threads);
    struct pi_state *s = b.s;
    const struct pi_predictor_layer *p = &s->pred->layers[op->layer];

    predict_hidden(&b, p);
    if (n_threads > 1)
        pi_pool_barrier(s->pool, thread);
    for (uint32_t t = 0; t < n_tok; t++) {
        float *score = b.u->gate + (size_t)t * b.u->n_max;
        uint32_t *cand = b.u->cand + (size_t)t * b.u->n_max + b.mine.begin, n = 0;

        pi_ops_dots(s->cpu, &p->fc2, b.ul->ids, b.mine, b.u->hidden + (size_t)t * p->width, p->bias,
                    score + b.mine.begin);
        for (uint32_t i = b.mine.begin; i < b.mine.end; i++) {
            cand[n] = original(&b, i);
            n += score[i] >= p->threshold;
        }
        b.u->n_cand[thread * PI_COUNT_STRIDE + t] = n;
    }
    if (thread == 0) {
        pi_ops_count(s, &s->stats.weights_pred, &p->fc1, (uint64_t)n_tok * p->width);
        pi_ops_count(s, &s->stats.weights_pred, &p->fc2, (uint64_t)n_tok * b.ul->n);
    }
}

/* ---- trace ---- */

static void trace_truth(const struct block *b, const uint32_t *ids, const float *pre, uint32_t n)
{
    const struct pi_shape *sh = &b->s->m->shape;
    uint8_t *truth = b->s->truth + (size_t)b->layer * sh->n_ff;

    for (uint32_t i = 0; i < n; i++)
        truth[ids != NULL ? ids[b->mine.begin + i] : b->mine.begin + i] =
            pi_activate(sh, pre[i]) != 0.0f;
}

/* Full gate of the thread's neurons for token 0; pre: scratch of the span's length. */
static void trace_block(const struct block *b, float *pre)
{
    const struct pi_shape *sh = &b->s->m->shape;
    uint8_t *traced = b->s->traced + (size_t)b->layer * sh->n_ff;
    const float *bias;
    const struct pi_mat *w = first_mat(b, &bias);

    pi_ops_dots(b->s->cpu, w, b->ul->ids, b->mine, lane_input(b, 0), bias, pre);
    trace_truth(b, b->ul->ids, pre, b->mine.end - b->mine.begin);
    for (uint32_t i = b->mine.begin; i < b->mine.end; i++) {
        uint32_t id = original(b, i);

        traced[id] = !b->ul->predicted && b->s->truth[(size_t)b->layer * sh->n_ff + id];
    }
    for (uint32_t i = 0; b->ul->predicted && i < b->u->n_cand[b->thread * PI_COUNT_STRIDE]; i++)
        traced[b->u->cand[b->mine.begin + i]] = 1;
}

/* ---- gate and up ---- */

/* Dense: every neuron of the span, no short cut. */
static void dense_span(const struct block *b, uint32_t t)
{
    const struct pi_state *s = b->s;
    float *gate = b->u->gate + (size_t)t * b->u->n_max + b->mine.begin;
    float *prod = b->u->prod + (size_t)t * b->u->n_max + b->mine.begin;
    uint32_t n = b->mine.end - b->mine.begin;
    const float *bias;
    const struct pi_mat *w = first_mat(b, &bias);

    pi_ops_dots(s->cpu, w, b->ul->ids, b->mine, lane_input(b, t), bias, gate);
    if (s->m->shape.gated)
        pi_ops_dots(s->cpu, &b->w->up, b->ul->ids, b->mine, lane_input(b, t), NULL, prod);
    for (uint32_t i = 0; i < n; i++)
        prod[i] = s->m->shape.gated ? pi_activate(&s->m->shape, gate[i]) * prod[i]
                                    : pi_activate(&s->m->shape, gate[i]);
}

/* Exact and predicted: the activation of all neurons of the span or of its candidates, up only where it is not zero. */
static void sparse_span(const struct block *b, uint32_t t)
{
    const struct pi_state *s = b->s;
    const struct pi_shape *sh = &s->m->shape;
    size_t at = (size_t)t * b->u->n_max + b->mine.begin;
    const float *x = lane_input(b, t), *bias;
    const struct pi_mat *w = first_mat(b, &bias);
    float *gate = b->u->gate + at, *prod = b->u->prod + at;
    uint32_t *act = b->u->act + at, n_in = b->mine.end - b->mine.begin, n = 0;
    const uint32_t *ids = b->ul->ids != NULL ? b->ul->ids + b->mine.begin : NULL;

    if (b->ul->predicted) {
        ids = b->u->cand + at;
        n_in = b->u->n_cand[b->thread * PI_COUNT_STRIDE + t];
        pi_ops_dots(s->cpu, w, ids, (struct pi_span){0, n_in}, x, bias, gate);
    } else {
        pi_ops_dots(s->cpu, w, b->ul->ids, b->mine, x, bias, gate);
    }
    for (uint32_t i = 0; i < n_in; i++) {
        float h = pi_activate(sh, gate[i]);

        act[n] = ids != NULL ? ids[i] : b->mine.begin + i;
        gate[n] = h;
        n += h != 0.0f;
    }
    if (sh->gated) {
        pi_ops_dots(s->cpu, &b->w->up, act, (struct pi_span){0, n}, x, NULL, prod);
        for (uint32_t i = 0; i < n; i++)
            prod[i] *= gate[i];
    } else {
        memcpy(prod, gate, n * sizeof(*prod));
    }
    b->u->n_act[b->thread * PI_COUNT_STRIDE + t] = n;
}

/* ---- down ---- */

/* All threads' active neurons of token t as one list in ascending order; the lane's copy where there is more than one piece. */
static uint32_t gather_active(const struct block *b, uint32_t t, const uint32_t **ids,
                              const float **a)
{
    const struct pi_unit *u = b->u;
    size_t at = (size_t)t * u->n_max;
    struct pi_lane *lane = &b->s->lanes[b->thread];
    uint32_t n = 0;

    *ids = u->act + at;
    *a = u->prod + at;
    if (b->n_threads == 1)
        return u->n_act[t];
    for (uint32_t th = 0; th < b->n_threads; th++) {
        struct pi_span span = pi_span(b->ul->n, PI_SPAN_ROWS, th, b->n_threads);
        uint32_t n_th = u->n_act[th * PI_COUNT_STRIDE + t];

        memcpy(lane->ids + n, u->act + at + span.begin, n_th * sizeof(*lane->ids));
        memcpy(lane->a + n, u->prod + at + span.begin, n_th * sizeof(*lane->a));
        n += n_th;
    }
    *ids = lane->ids;
    *a = lane->a;
    return n;
}

static void down_columns(const struct block *b, uint32_t t, bool dense)
{
    const struct pi_state *s = b->s;
    uint32_t d = s->m->shape.n_embd, n = b->ul->n;
    struct pi_span cols = pi_span(d, PI_SPAN_COLS, b->thread, b->n_threads);
    float *out = b->u->partial + (size_t)t * d;
    const float *a = b->u->prod + (size_t)t * b->u->n_max;
    const uint32_t *ids = b->ul->ids != NULL ? b->ul->ids : s->iota;
    const struct pi_mat *down = &b->w->down_t;

    if (dense && b->w->down.data != NULL && b->ul->ids == NULL) {
        pi_ops_dots(s->cpu, &b->w->down, NULL, cols, a, NULL, out + cols.begin);
        return;
    }
    if (!dense)
        n = gather_active(b, t, &ids, &a);
    memset(out + cols.begin, 0, (cols.end - cols.begin) * sizeof(*out));
    if (cols.begin < cols.end && n > 0)
        s->cpu->type[down->type]->axpy_ids(down->data, down->row_bytes, ids, a, n, cols.begin,
                                           cols.end, out);
}

static void count_block(const struct block *b, bool dense)
{
    struct pi_state *s = b->s;
    uint64_t n_first = 0, n_act = 0;
    const float *bias;
    const struct pi_mat *first = first_mat(b, &bias);

    for (uint32_t t = 0; t < b->n_tok; t++) {
        for (uint32_t th = 0; !dense && th < b->n_threads; th++) {
            n_act += b->u->n_act[th * PI_COUNT_STRIDE + t];
            n_first += b->ul->predicted ? b->u->n_cand[th * PI_COUNT_STRIDE + t] : 0;
        }
    }
    if (dense)
        n_act = (uint64_t)b->n_tok * b->ul->n;
    if (!b->ul->predicted)
        n_first = (uint64_t)b->n_tok * b->ul->n;
    pi_ops_count(s, &s->stats.weights_ffn, first, n_first);
    if (s->m->shape.gated)
        pi_ops_count(s, &s->stats.weights_ffn, &b->w->up, n_act);
    if (dense && b->w->down.data != NULL && b->ul->ids == NULL)
        pi_ops_count(s, &s->stats.weights_ffn, &b->w->down, (uint64_t)b->n_tok * b->w->down.n_rows);
    else
        pi_ops_count(s, &s->stats.weights_ffn, &b->w->down_t, n_act);
}

void pi_team_ffn(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                 uint32_t n_threads)
{
    struct block b = block_of(ctx, op, n_tok, thread, n_threads);
    bool dense = b.s->mode[op->layer] == PI_MODE_DENSE;

    if (b.s->truth != NULL)
        trace_block(&b, b.u->gate + b.mine.begin);
    for (uint32_t t = 0; t < n_tok; t++) {
        if (dense)
            dense_span(&b, t);
        else
            sparse_span(&b, t);
    }
    if (n_threads > 1)
        pi_pool_barrier(b.s->pool, thread);
    for (uint32_t t = 0; t < n_tok; t++)
        down_columns(&b, t, dense);
    if (thread == 0)
        count_block(&b, dense);
}

/* The same columns per thread as down_columns(): no barrier lies between. */
void pi_team_merge(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                   uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = &s->m->layers[op->layer];
    uint32_t d = s->m->shape.n_embd;
    struct pi_span cols = pi_span(d, PI_SPAN_COLS, thread, n_threads);

    for (uint32_t t = 0; t < n_tok; t++) {
        float *r = s->residual + (size_t)t * d;

        for (uint32_t c = cols.begin; c < cols.end; c++) {
            float sum = w->down_b != NULL ? w->down_b[c] : 0.0f;

            for (uint32_t u = 0; u < s->n_units; u++) {
                if (s->units[u].layers[op->layer].n > 0)
                    sum += s->units[u].partial[(size_t)t * d + c];
            }
            r[c] += sum;
        }
    }
}
