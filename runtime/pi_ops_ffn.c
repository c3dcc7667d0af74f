/*
 * pi_ops_ffn.c - the feed-forward block of decode steps: predict, gate, up, down, merge.
 *
 * Neurons are addressed by a unit's local index; unit->layers[l].ids maps it to the row in the model's matrices. The predictor's threads leave a mask of tokens for
 * each neuron of their own span of local indices; gate, up and down are pi_cold_run()'s, of all neurons or of those that are wanted. Only where down is stored by output
 * row are gate and up made span by span, and down's rows behind a barrier. No sum depends on the number of threads.
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
    struct pi_cold_form form;
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

/* wanted[i]: what of it is in keep, and bit t where the score reaches the threshold; returns how many do. */
static inline uint32_t note_some(const float *score, float threshold, uint32_t n, uint32_t t,
                                 uint32_t keep, uint32_t *wanted)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t wants = score[i] >= threshold;

        wanted[i] = (wanted[i] & keep) | wants << t;
        sum += wants;
    }
    return sum;
}

/* Notes which neurons of the thread's span a token wants; returns how many. */
static uint32_t note_wanted(const struct block *b, float threshold, uint32_t t)
{
    const float *score = b->u->gate + (size_t)t * b->u->n_max;
    const uint32_t keep = t > 0 ? UINT32_MAX : 0, end = b->mine.end;
    uint32_t i = b->mine.begin, n = 0;

    /* in pieces of a length that the compiler knows, so that it makes vectors of them */
    for (; end - i >= PI_SPAN_ROWS; i += PI_SPAN_ROWS)
        n += note_some(score + i, threshold, PI_SPAN_ROWS, t, keep, b->u->wanted + i);
    return n + note_some(score + i, threshold, end - i, t, keep, b->u->wanted + i);
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
    for (uint32_t t = 0; t < n_tok; t++)
        b.u->n_cand[thread * PI_COUNT_STRIDE + t] = note_wanted(&b, p->threshold, t);
    if (thread == 0) {
        pi_ops_count_shared(s, &s->stats.weights_pred, &p->fc1, p->width, n_tok);
        pi_ops_count_shared(s, &s->stats.weights_pred, &p->fc2, b.ul->n, n_tok);
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

        traced[id] =
            b->ul->predicted ? b->u->wanted[i] & 1 : b->s->truth[(size_t)b->layer * sh->n_ff + id];
    }
}

/* ---- down as stored ---- */

/* Gate and up of every neuron of the span. */
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

static bool down_as_stored(const struct block *b, bool dense)
{
    return dense && b->w->down.data != NULL && b->ul->ids == NULL;
}

/* Down by output rows: then the unit has all neurons, and n_max is n_ff. */
static void down_rows(const struct block *b)
{
    uint32_t d = b->s->m->shape.n_embd;
    struct pi_span rows = pi_span(d, PI_SPAN_COLS, b->thread, b->n_threads);
    struct pi_q8 *q8 = b->s->lanes[b->thread].q8; /* gate and up are done with it */

    pi_ops_quantise(b->s, &b->w->down, b->u->prod, b->n_tok, q8);
    pi_ops_dots(b->s->cpu, &b->w->down, NULL, rows, (struct pi_vecs){b->u->prod, q8}, b->n_tok,
                NULL, b->u->partial + rows.begin, d);
}

/* ---- down by neuron ---- */

/* Neurons that the predictor of the layer wants, for each token those of its own. */
static uint64_t n_predicted(const struct block *b)
{
    uint64_t n = 0;

    for (uint32_t t = 0; t < b->n_tok; t++)
        for (uint32_t th = 0; th < b->n_threads; th++)
            n += b->u->n_cand[th * PI_COUNT_STRIDE + t];
    return n;
}

/* Each thread has a job of its own, alike but for the input, which is in its lane. */
static struct pi_cold_job job_of(const struct block *b, bool dense)
{
    const struct pi_state *s = b->s;
    const struct pi_vecs x = lane_input(b, 0);
    const float *bias;
    const struct pi_mat *first = first_mat(b, &bias);
    bool q8 = pi_ops_takes_q8(s, first) || pi_ops_takes_q8(s, &b->w->up);

    return (struct pi_cold_job){.cpu = s->cpu,
                                .shape = &s->m->shape,
                                .w = b->w,
                                .pool = s->pool,
                                .scratch = b->u->cold,
                                .n_tok = b->n_tok,
                                .x = x.x,
                                .q8 = q8 ? x.q8 : NULL,
                                .n = b->ul->n,
                                .ids = b->ul->ids != NULL ? b->ul->ids : s->iota,
                                .tokens = b->ul->predicted && !dense ? b->u->wanted : NULL,
                                .mode = dense              ? PI_MODE_DENSE
                                        : b->ul->predicted ? PI_MODE_PREDICTED
                                                           : PI_MODE_EXACT,
                                .form = &b->form,
                                .out = b->u->partial};
}

/* Rows of a matrix: n_pairs with each token that wants one counted, n_rows of them different ones. */
static void count_pairs(struct pi_state *s, const struct pi_mat *w, uint64_t n_pairs,
                        uint64_t n_rows)
{
    pi_ops_count(s, &s->stats.weights_ffn, w, n_pairs);
    s->stats.bytes_shared += (n_pairs - n_rows) * w->row_bytes;
}

static void count_block(const struct block *b, bool dense, const struct pi_cold_stats *st)
{
    struct pi_state *s = b->s;
    const bool listed = b->ul->predicted && !dense;
    const float *bias;
    const struct pi_mat *first = first_mat(b, &bias);

    count_pairs(s, first, listed ? n_predicted(b) : (uint64_t)b->n_tok * b->ul->n, st->first_rows);
    if (s->m->shape.gated)
        count_pairs(s, &b->w->up, st->up_active, st->up_rows);
    if (down_as_stored(b, dense))
        count_pairs(s, &b->w->down, (uint64_t)b->n_tok * b->w->down.n_rows, b->w->down.n_rows);
    else
        count_pairs(s, &b->w->down_t, st->active, st->down_rows);
    *(b->u == &s->units[0] ? &s->stats.neurons_cpu : &s->stats.neurons_gpu) += st->active;
}

void pi_team_ffn(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                 uint32_t n_threads)
{
    struct block b = block_of(ctx, op, n_tok, thread, n_threads);
    bool dense = b.s->mode[op->layer] == PI_MODE_DENSE;
    struct pi_cold_job job;

    if (b.s->truth != NULL)
        trace_block(&b, b.u->gate + b.mine.begin);
    if (down_as_stored(&b, dense)) {
        dense_span(&b);
        if (n_threads > 1)
            pi_pool_barrier(b.s->pool, thread);
        down_rows(&b);
        if (thread == 0) {
            count_block(&b, dense,
                        &(struct pi_cold_stats){.first_rows = b.ul->n,
                                                .up_rows = b.ul->n,
                                                .up_active = (uint64_t)n_tok * b.ul->n});
            pi_ops_note_work(b.s, op->layer, op->owner, b.ul->n);
        }
        return;
    }
    b.form = pi_cold_form_fixed(
        b.ul->n, b.ul->predicted && !dense ? (uint32_t)(n_predicted(&b) / n_tok) : b.ul->n);
    job = job_of(&b, dense);
    pi_cold_run(&job, thread, n_threads);
    if (thread == 0) {
        count_block(&b, dense, &job.stats);
        pi_ops_note_work(b.s, op->layer, op->owner, pi_cold_work(&job));
    }
}

/* The same columns per thread as down_rows() and pi_cold_run() write: no barrier lies between. */
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
