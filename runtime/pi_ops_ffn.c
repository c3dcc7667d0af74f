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
                      .u = &s->units[op->owner],
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

/* The matrix that decides which neurons fire: gate, or up where there is no gate; its bias. */
static const struct pi_mat *first_mat(const struct block *b, const float **bias)
{
    bool gated = b->s->m->shape.gated;

    *bias = gated ? b->w->gate_b : b->w->up_b;
    return gated ? &b->w->gate : &b->w->up;
}

static struct pi_vecs lane_input(const struct block *b, uint32_t t)
{
    const struct pi_lane *lane = &b->s->lanes[b->thread];
    size_t at = (size_t)t * b->s->m->shape.n_embd;

    return (struct pi_vecs){lane->normed + at,
                            lane->q8 != NULL ? lane->q8 + at / PI_Q8_BLOCK : NULL};
}

/* ---- predictor ---- */

/* (n_tok, n_embd) */
static const float *predictor_input(const struct block *b, enum pi_predictor_input input)
{
    const struct pi_state *s = b->s;

    switch (input) {
    case PI_PRED_IN_FFN_RESIDUAL:
        return s->residual;
    case PI_PRED_IN_LAYER:
        return s->layer_input;
    case PI_PRED_IN_PREV_ATTN:
        return s->prev_attn[(b->layer - 1) & 1];
    case PI_PRED_IN_FFN_NORMED:
        break;
    }
    return lane_input(b, 0).x;
}

static void predict_hidden(const struct block *b, const struct pi_predictor_layer *p)
{
    struct pi_span rows = pi_span(p->width, PI_SPAN_ROWS, b->thread, b->n_threads);

    pi_ops_dots(b->s->cpu, &p->fc1, NULL, rows, (struct pi_vecs){.x = predictor_input(b, p->input)},
                b->n_tok, NULL, b->u->hidden + rows.begin, p->width);
    for (uint32_t t = 0; p->relu && t < b->n_tok; t++) {
        float *hidden = b->u->hidden + (size_t)t * p->width;

        for (uint32_t i = rows.begin; i < rows.end; i++)
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
    pi_ops_dots(s->cpu, &p->fc2, b.ul->ids, b.mine, (struct pi_vecs){.x = b.u->hidden}, n_tok,
                p->bias, b.u->gate + b.mine.begin, b.u->n_max);
    for (uint32_t t = 0; t < n_tok; t++) {
        const float *score = b.u->gate + (size_t)t * b.u->n_max;
        uint32_t *cand = b.u->cand + (size_t)t * b.u->n_max + b.mine.begin, n = 0;

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

/* Where up is activated too, a neuron fires when both do. */
static void trace_up(const struct block *b, float *pre)
{
    const struct pi_shape *sh = &b->s->m->shape;
    uint8_t *truth = b->s->truth + (size_t)b->layer * sh->n_ff;

    pi_ops_dots(b->s->cpu, &b->w->up, b->ul->ids, b->mine, lane_input(b, 0), 1, b->w->up_b, pre, 0);
    for (uint32_t i = b->mine.begin; i < b->mine.end; i++)
        truth[original(b, i)] &= pi_activate(sh, pre[i - b->mine.begin]) != 0.0f;
}

/* Full gate of the thread's neurons for token 0; pre: scratch of the span's length. */
static void trace_block(const struct block *b, float *pre)
{
    const struct pi_shape *sh = &b->s->m->shape;
    uint8_t *traced = b->s->traced + (size_t)b->layer * sh->n_ff;
    const float *bias;
    const struct pi_mat *w = first_mat(b, &bias);

    pi_ops_dots(b->s->cpu, w, b->ul->ids, b->mine, lane_input(b, 0), 1, bias, pre, 0);
    trace_truth(b, b->ul->ids, pre, b->mine.end - b->mine.begin);
    if (sh->act_up)
        trace_up(b, pre);
    for (uint32_t i = b->mine.begin; i < b->mine.end; i++) {
        uint32_t id = original(b, i);

        traced[id] = !b->ul->predicted && b->s->truth[(size_t)b->layer * sh->n_ff + id];
    }
    for (uint32_t i = 0; b->ul->predicted && i < b->u->n_cand[b->thread * PI_COUNT_STRIDE]; i++)
        traced[b->u->cand[b->mine.begin + i]] = 1;
}

/* ---- gate and up ---- */

/* Dense: every neuron of the span, no short cut. */
static void dense_span(const struct block *b)
{
    const struct pi_state *s = b->s;
    const struct pi_shape *sh = &s->m->shape;
    float *gate = b->u->gate + b->mine.begin, *prod = b->u->prod + b->mine.begin;
    uint32_t n = b->mine.end - b->mine.begin;
    const float *bias;
    const struct pi_mat *w = first_mat(b, &bias);

    pi_ops_dots(s->cpu, w, b->ul->ids, b->mine, lane_input(b, 0), b->n_tok, bias, gate,
                b->u->n_max);
    if (sh->gated)
        pi_ops_dots(s->cpu, &b->w->up, b->ul->ids, b->mine, lane_input(b, 0), b->n_tok, b->w->up_b,
                    prod, b->u->n_max);
    for (uint32_t t = 0; t < b->n_tok; t++, gate += b->u->n_max, prod += b->u->n_max) {
        pi_activate_n(sh, gate, n);
        if (sh->act_up)
            pi_activate_n(sh, prod, n);
        for (uint32_t i = 0; i < n; i++)
            prod[i] = sh->gated ? gate[i] * prod[i] : gate[i];
    }
}

/* Keeps what fires of n_in pre-activations in gate: ids to act, the activation's output to gate itself. ids: of the neurons; NULL: counted
 * from the span's begin. Returns how many. */
static uint32_t compact(const struct block *b, const uint32_t *ids, uint32_t n_in, float *gate,
                        uint32_t *act)
{
    uint32_t n = 0;

    pi_activate_n(&b->s->m->shape, gate, n_in);
    for (uint32_t i = 0; i < n_in; i++) {
        float h = gate[i];

        act[n] = ids != NULL ? ids[i] : b->mine.begin + i;
        gate[n] = h;
        n += h != 0.0f;
    }
    return n;
}

/* Up of n neurons that fire, times what their gates give. Returns how many are left: where up is activated too, more of them drop out. */
static uint32_t apply_up(const struct block *b, uint32_t *act, uint32_t n, struct pi_vecs x,
                         const float *gate, float *prod)
{
    const struct pi_shape *sh = &b->s->m->shape;
    uint32_t left = 0;

    if (!sh->gated) {
        memcpy(prod, gate, n * sizeof(*prod));
        return n;
    }
    pi_ops_dots(b->s->cpu, &b->w->up, act, (struct pi_span){0, n}, x, 1, b->w->up_b, prod, 0);
    if (sh->act_up)
        pi_activate_n(sh, prod, n);
    for (uint32_t i = 0; i < n; i++)
        prod[i] *= gate[i];
    for (uint32_t i = 0; sh->act_up && i < n; i++) {
        float p = prod[i];

        act[left] = act[i];
        prod[left] = p;
        left += p != 0.0f;
    }
    return sh->act_up ? left : n;
}

/* Exact and predicted: the activation of all neurons of the span or of its candidates, up only where it is not zero. */
static void sparse_span(const struct block *b)
{
    const struct pi_state *s = b->s;
    const float *bias;
    const struct pi_mat *w = first_mat(b, &bias);

    if (!b->ul->predicted)
        pi_ops_dots(s->cpu, w, b->ul->ids, b->mine, lane_input(b, 0), b->n_tok, bias,
                    b->u->gate + b->mine.begin, b->u->n_max);
    for (uint32_t t = 0; t < b->n_tok; t++) {
        size_t at = (size_t)t * b->u->n_max + b->mine.begin;
        const struct pi_vecs x = lane_input(b, t);
        float *gate = b->u->gate + at, *prod = b->u->prod + at;
        const uint32_t *ids = b->ul->ids != NULL ? b->ul->ids + b->mine.begin : NULL;
        uint32_t *act = b->u->act + at, n = b->mine.end - b->mine.begin;

        if (b->ul->predicted) {
            ids = b->u->cand + at;
            n = b->u->n_cand[b->thread * PI_COUNT_STRIDE + t];
            pi_ops_dots(s->cpu, w, ids, (struct pi_span){0, n}, x, 1, bias, gate, 0);
        }
        n = compact(b, ids, n, gate, act);
        b->u->n_up[b->thread * PI_COUNT_STRIDE + t] = n;
        b->u->n_act[b->thread * PI_COUNT_STRIDE + t] = apply_up(b, act, n, x, gate, prod);
    }
}

/* ---- down ---- */

/* Adds a list of neurons' rows of down_t, times what token t has for them, into the thread's columns. at: where the list stands in the unit's arrays. */
static void add_rows(const struct block *b, uint32_t t, const uint32_t *ids, size_t at, uint32_t n,
                     struct pi_span cols)
{
    const struct pi_mat *down = &b->w->down_t;

    if (n > 0 && cols.begin < cols.end)
        b->s->cpu->type[down->type]->axpy_ids(down->data, down->row_bytes, ids, b->u->prod + at, n,
                                              cols.begin, cols.end,
                                              b->u->partial + (size_t)t * down->n_cols);
}

static void down_dense(const struct block *b, struct pi_span cols)
{
    const uint32_t *ids = b->ul->ids != NULL ? b->ul->ids : b->s->iota;

    for (uint32_t i = 0; i < b->ul->n; i += PI_CACHE_ROWS) {
        uint32_t n = b->ul->n - i < PI_CACHE_ROWS ? b->ul->n - i : PI_CACHE_ROWS;

        for (uint32_t t = 0; t < b->n_tok; t++)
            add_rows(b, t, ids + i, (size_t)t * b->u->n_max + i, n, cols);
    }
}

/* The threads' lists one after the other are all active neurons in ascending order: the order of the sum is that of one thread. */
static void down_sparse(const struct block *b, struct pi_span cols)
{
    for (uint32_t t = 0; t < b->n_tok; t++) {
        for (uint32_t th = 0; th < b->n_threads; th++) {
            size_t at =
                (size_t)t * b->u->n_max + pi_span(b->ul->n, PI_SPAN_ROWS, th, b->n_threads).begin;

            add_rows(b, t, b->u->act + at, at, b->u->n_act[th * PI_COUNT_STRIDE + t], cols);
        }
    }
}

static bool down_as_stored(const struct block *b, bool dense)
{
    return dense && b->w->down.data != NULL && b->ul->ids == NULL;
}

static void down_columns(const struct block *b, bool dense)
{
    uint32_t d = b->s->m->shape.n_embd;
    struct pi_span cols = pi_span(d, PI_SPAN_COLS, b->thread, b->n_threads);
    float *out = b->u->partial + cols.begin;

    if (down_as_stored(b, dense)) { /* then the unit has all neurons: n_max is n_ff */
        struct pi_q8 *q8 = b->s->lanes[b->thread].q8; /* gate and up are done with it */

        pi_ops_quantise(b->s, &b->w->down, b->u->prod, b->n_tok, q8);
        pi_ops_dots(b->s->cpu, &b->w->down, NULL, cols, (struct pi_vecs){b->u->prod, q8}, b->n_tok,
                    NULL, out, d);
        return;
    }
    for (uint32_t t = 0; t < b->n_tok; t++)
        memset(out + (size_t)t * d, 0, (cols.end - cols.begin) * sizeof(*out));
    if (dense)
        down_dense(b, cols);
    else
        down_sparse(b, cols);
}

static void count_block(const struct block *b, bool dense)
{
    struct pi_state *s = b->s;
    uint64_t n_first = 0, n_up = 0, n_act = 0;
    const float *bias;
    const struct pi_mat *first = first_mat(b, &bias);

    for (uint32_t t = 0; t < b->n_tok; t++) {
        for (uint32_t th = 0; !dense && th < b->n_threads; th++) {
            n_up += b->u->n_up[th * PI_COUNT_STRIDE + t];
            n_act += b->u->n_act[th * PI_COUNT_STRIDE + t];
            n_first += b->ul->predicted ? b->u->n_cand[th * PI_COUNT_STRIDE + t] : 0;
        }
    }
    if (dense)
        n_up = n_act = (uint64_t)b->n_tok * b->ul->n;
    if (!b->ul->predicted)
        n_first = (uint64_t)b->n_tok * b->ul->n;
    pi_ops_count(s, &s->stats.weights_ffn, first, n_first);
    if (s->m->shape.gated)
        pi_ops_count(s, &s->stats.weights_ffn, &b->w->up, n_up);
    if (down_as_stored(b, dense))
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
    if (dense)
        dense_span(&b);
    else
        sparse_span(&b);
    if (n_threads > 1)
        pi_pool_barrier(b.s->pool, thread);
    down_columns(&b, dense);
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
        const float *base = s->m->shape.post_norm ? s->lanes[thread].normed + (size_t)t * d : r;

        for (uint32_t c = cols.begin; c < cols.end; c++) {
            float sum = w->down_b != NULL ? w->down_b[c] : 0.0f;

            for (uint32_t u = 0; u < s->n_units; u++) {
                if (s->units[u].layers[op->layer].n > 0)
                    sum += s->units[u].partial[(size_t)t * d + c];
            }
            r[c] = base[c] + sum;
        }
    }
}
