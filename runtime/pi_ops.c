/* pi_ops.c - operators of decode steps but the feed-forward block, and the pieces that prompt chunks share. */
#include "config.h"

#include "runtime/pi_ops.h"

#include <math.h>
#include <string.h>

static const struct pi_layer_weights *layer_of(const struct pi_state *s, const struct pi_op *op)
{
    return &s->m->layers[op->layer];
}

void pi_ops_embed(const struct pi_state *s, uint32_t t, float *out, float *tmp)
{
    const struct pi_model *m = s->m;
    uint32_t n = m->shape.n_embd;
    bool projected = m->embd_in.data != NULL;

    s->cpu->type[m->tok_embd.type]->to_f32(pi_mat_row(&m->tok_embd, (uint32_t)s->token[t]),
                                           projected ? tmp : out, m->tok_embd.n_cols);
    if (projected)
        pi_ops_dots(s->cpu, &m->embd_in, NULL, (struct pi_span){0, n}, (struct pi_vecs){.x = tmp},
                    1, NULL, out, 0);
    if (!m->shape.learned_pos)
        return;
    s->cpu->type[m->pos_embd.type]->to_f32(
        pi_mat_row(&m->pos_embd, (uint32_t)s->pos[t] + m->shape.pos_offset), tmp, n);
    for (uint32_t i = 0; i < n; i++)
        out[i] += tmp[i];
}

void pi_ops_norm(const struct pi_state *s, const float *x, const float *w, const float *b,
                 float *out)
{
    const struct pi_shape *sh = &s->m->shape;

    if (w == NULL)
        memcpy(out, x, sh->n_embd * sizeof(*out));
    else if (sh->layer_norm)
        pi_layer_norm(x, w, b, sh->norm_eps, out, sh->n_embd);
    else
        pi_rms_norm(s->cpu, x, w, sh->norm_eps, out, sh->n_embd);
}

void pi_ops_head_norm(const struct pi_state *s, const float *w, float *x, uint32_t n_heads)
{
    const struct pi_shape *sh = &s->m->shape;

    for (uint32_t h = 0; w != NULL && h < n_heads; h++, x += sh->head_dim)
        pi_rms_norm(s->cpu, x, w, sh->norm_eps, x, sh->head_dim);
}

const float *pi_ops_ffn_input(const struct pi_state *s)
{
    return s->m->shape.parallel ? s->layer_input : s->residual;
}

void pi_ops_rotation(const struct pi_state *s, uint32_t t)
{
    const struct pi_shape *sh = &s->m->shape;
    float *r = s->rotation + (size_t)t * sh->n_rot;

    for (uint32_t i = 0; i < sh->n_rot / 2; i++) {
        float angle = (float)s->pos[t] * s->m->inv_freq[i];

        r[2 * i] = cosf(angle) * s->m->rope_mscale;
        r[2 * i + 1] = sinf(angle) * s->m->rope_mscale;
    }
}

void pi_ops_rope(const struct pi_state *s, float *x, uint32_t n_heads, uint32_t t)
{
    const struct pi_shape *sh = &s->m->shape;
    const float *r = s->rotation + (size_t)t * sh->n_rot;
    uint32_t half = sh->n_rot / 2, far = sh->rope_neox ? half : 1, step = sh->rope_neox ? 1 : 2;

    for (uint32_t h = 0; h < n_heads; h++) {
        float *head = x + (size_t)h * sh->head_dim;

        for (uint32_t i = 0; i < half; i++) {
            float a = head[i * step], b = head[i * step + far];

            head[i * step] = a * r[2 * i] - b * r[2 * i + 1];
            head[i * step + far] = a * r[2 * i + 1] + b * r[2 * i];
        }
    }
}

void pi_ops_kv_store(const struct pi_state *s, uint8_t *rows, uint32_t layer, uint32_t t,
                     uint32_t first, const float *x, uint32_t n)
{
    uint8_t *to = rows + pi_kv_row(&s->kv, layer, pi_state_seq(s, t), (uint32_t)s->pos[t]) +
                  pi_kv_elem(&s->kv, first);

    s->cpu->type[s->kv.type]->from_f32(x, to, n);
}

void pi_ops_attend(const struct pi_state *s, uint32_t layer, uint32_t t, uint32_t head,
                   const float *q, float *scores, float *out)
{
    const struct pi_shape *sh = &s->m->shape;
    const struct pi_cpu_type *type = s->cpu->type[s->kv.type];
    uint32_t kv_head = head / (sh->n_head / sh->n_head_kv), n = (uint32_t)s->pos[t] + 1;
    size_t at = pi_kv_row(&s->kv, layer, pi_state_seq(s, t), 0) +
                pi_kv_elem(&s->kv, kv_head * sh->head_dim);

    type->dot_rows(s->kv.k + at, s->kv.row_bytes, n, q, sh->head_dim, scores);
    pi_softmax(scores, n);
    memset(out, 0, sh->head_dim * sizeof(*out));
    type->axpy_ids(s->kv.v + at, s->kv.row_bytes, s->iota, scores, n, 0, sh->head_dim, out);
}

/* One token, all rows. */
static void dots_one(const struct pi_cpu_type *type, const struct pi_mat *w, const uint32_t *ids,
                     struct pi_span rows, struct pi_vecs x, const float *bias, float *out)
{
    uint32_t n = rows.end - rows.begin;
    bool q8 = x.q8 != NULL && type->dot_rows_q8 != NULL;

    if (q8 && ids != NULL)
        type->dot_ids_q8(w->data, w->row_bytes, ids + rows.begin, n, x.q8, w->n_cols, out);
    else if (q8)
        type->dot_rows_q8(pi_mat_row(w, rows.begin), w->row_bytes, n, x.q8, w->n_cols, out);
    else if (ids != NULL)
        type->dot_ids(w->data, w->row_bytes, ids + rows.begin, n, x.x, w->n_cols, out);
    else
        type->dot_rows(pi_mat_row(w, rows.begin), w->row_bytes, n, x.x, w->n_cols, out);
    for (uint32_t i = 0; bias != NULL && i < n; i++)
        out[i] += bias[ids != NULL ? ids[rows.begin + i] : rows.begin + i];
}

/* A few tokens, at most PI_CACHE_ROWS rows, of which n_next follow: a row is read and unpacked once for all of them. made: (rows, n_tok) scratch. */
static void dots_some(const struct pi_cpu_type *type, const struct pi_mat *w, const uint32_t *ids,
                      uint32_t n, uint32_t n_next, struct pi_vecs x, uint32_t n_tok,
                      const float *bias, float *made, float *out, size_t ldo)
{
    const float *xs[PI_DECODE_TOKENS];
    const struct pi_q8 *qs[PI_DECODE_TOKENS];
    const bool q8 = x.q8 != NULL && type->dot_many_q8 != NULL;

    for (uint32_t t = 0; t < n_tok; t++) {
        xs[t] = x.x + (size_t)t * w->n_cols;
        qs[t] = q8 ? x.q8 + (size_t)t * (w->n_cols / PI_Q8_BLOCK) : NULL;
    }
    if (q8)
        type->dot_many_q8(w->data, w->row_bytes, ids, n, n_next, qs, n_tok, w->n_cols, made);
    else
        type->dot_many(w->data, w->row_bytes, ids, n, n_next, xs, n_tok, w->n_cols, made);
    for (uint32_t t = 0; t < n_tok; t++) {
        for (uint32_t i = 0; i < n; i++)
            out[t * ldo + i] = made[(size_t)i * n_tok + t];
        for (uint32_t i = 0; bias != NULL && i < n; i++)
            out[t * ldo + i] += bias[ids[i]];
    }
}

void pi_ops_dots(const struct pi_cpu *cpu, const struct pi_mat *w, const uint32_t *ids,
                 struct pi_span rows, struct pi_vecs x, uint32_t n_tok, const float *bias,
                 float *out, size_t ldo)
{
    const struct pi_cpu_type *type = cpu->type[w->type];
    float made[PI_CACHE_ROWS * PI_DECODE_TOKENS];
    uint32_t here[2 * PI_CACHE_ROWS];

    if (n_tok == 1) {
        dots_one(type, w, ids, rows, x, bias, out);
        return;
    }
    for (uint32_t r = rows.begin, n; r < rows.end; r += n, out += n) {
        uint32_t left = rows.end - r, n_next;

        n = left < PI_CACHE_ROWS ? left : PI_CACHE_ROWS;
        n_next = left - n < PI_CACHE_ROWS ? left - n : PI_CACHE_ROWS;
        for (uint32_t i = 0; ids == NULL && i < n + n_next; i++)
            here[i] = r + i;
        dots_some(type, w, ids != NULL ? ids + r : here, n, n_next, x, n_tok, bias, made, out, ldo);
    }
}

void pi_ops_count(struct pi_state *s, uint64_t *weights, const struct pi_mat *w, uint64_t n_rows)
{
    *weights += n_rows * w->n_cols;
    s->stats.bytes += n_rows * w->row_bytes;
}

void pi_ops_count_shared(struct pi_state *s, uint64_t *weights, const struct pi_mat *w,
                         uint64_t n_rows, uint32_t n_tok)
{
    pi_ops_count(s, weights, w, n_rows * n_tok);
    s->stats.bytes_shared += n_tok > 0 ? n_rows * (n_tok - 1) * w->row_bytes : 0;
}

static void team_embed(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                       uint32_t n_threads)
{
    struct pi_state *s = ctx;
    uint32_t d = s->m->shape.n_embd;

    (void)op;
    for (uint32_t t = thread; t < n_tok; t += n_threads) {
        pi_ops_rotation(s, t);
        pi_ops_embed(s, t, s->residual + (size_t)t * d, s->lanes[thread].normed);
    }
    if (thread == 0) {
        pi_ops_count(s, &s->stats.weights_other, &s->m->tok_embd, n_tok);
        if (s->m->shape.learned_pos)
            pi_ops_count(s, &s->stats.weights_other, &s->m->pos_embd, n_tok);
        pi_ops_count_shared(s, &s->stats.weights_other, &s->m->embd_in, s->m->embd_in.n_rows,
                            n_tok);
        s->stats.tokens += n_tok;
    }
}

/* x (n_tok, n_embd) normed into the thread's own lane: every thread needs all of it, and computing it again costs less than a barrier. So it is with its
 * quantised form. */
static void norm_lane(const struct pi_state *s, const float *x, const float *w, const float *b,
                      uint32_t n_tok, uint32_t thread)
{
    uint32_t d = s->m->shape.n_embd;

    for (uint32_t t = 0; t < n_tok; t++)
        pi_ops_norm(s, x + (size_t)t * d, w, b, s->lanes[thread].normed + (size_t)t * d);
}

/* Keeps this thread's columns of the residual for a predictor that reads it later. */
static void keep_residual(const struct pi_state *s, float *to, uint32_t n_tok, uint32_t thread,
                          uint32_t n_threads)
{
    uint32_t d = s->m->shape.n_embd;
    struct pi_span c = pi_span(d, PI_SPAN_COLS, thread, n_threads);

    for (uint32_t t = 0; t < n_tok; t++)
        memcpy(to + (size_t)t * d + c.begin, s->residual + (size_t)t * d + c.begin,
               (c.end - c.begin) * sizeof(*to));
}

static void team_attn_norm(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                           uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = layer_of(s, op);

    if (s->keep_input)
        keep_residual(s, s->layer_input, n_tok, thread, n_threads);
    norm_lane(s, s->residual, w->attn_norm, w->attn_norm_b, n_tok, thread);
    pi_ops_quantise_group(s, (const struct pi_mat *const[]){&w->q, &w->k, &w->v}, 3, false,
                          s->lanes[thread].normed, n_tok, s->lanes[thread].q8);
}

/* Is a layer's normed feed-forward input read by others than gate and up: by a predictor, or by another unit? */
static bool normed_goes_on(const struct pi_state *s, uint32_t layer)
{
    return s->n_units > 1 || (s->pred != NULL && s->pred->layers[layer].width > 0 &&
                              s->pred->layers[layer].input == PI_PRED_IN_FFN_NORMED);
}

static void team_ffn_norm(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                          uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = layer_of(s, op);

    if (s->keep_prev)
        keep_residual(s, s->prev_attn[op->layer & 1], n_tok, thread, n_threads);
    norm_lane(s, pi_ops_ffn_input(s), w->ffn_norm, w->ffn_norm_b, n_tok, thread);
    pi_ops_quantise_group(s, (const struct pi_mat *const[]){&w->gate, &w->up}, 2,
                          normed_goes_on(s, op->layer), s->lanes[thread].normed, n_tok,
                          s->lanes[thread].q8);
}

/* Normed, rotated and scaled: one head of q or k of all tokens, ldo apart. */
static void turn_head(const struct pi_state *s, const float *norm, float scale, float *out,
                      size_t ldo, uint32_t n_tok)
{
    const uint32_t hd = s->m->shape.head_dim;

    for (uint32_t t = 0; t < n_tok; t++, out += ldo) {
        pi_ops_head_norm(s, norm, out, 1);
        pi_ops_rope(s, out, 1, t);
        for (uint32_t i = 0; scale != 1.0f && i < hd; i++)
            out[i] *= scale;
    }
}

/* Some heads of q for all tokens: their rows are read as one stretch. */
static void q_heads(struct pi_state *s, uint32_t layer, struct pi_span heads, uint32_t n_tok,
                    const struct pi_lane *lane)
{
    const struct pi_shape *sh = &s->m->shape;
    const struct pi_layer_weights *w = &s->m->layers[layer];
    const uint32_t hd = sh->head_dim;
    const size_t ldo = (size_t)sh->n_head * hd;

    pi_ops_dots(s->cpu, &w->q, NULL, (struct pi_span){heads.begin * hd, heads.end * hd},
                (struct pi_vecs){lane->normed, lane->q8}, n_tok, w->q_b,
                s->q + (size_t)heads.begin * hd, ldo);
    for (uint32_t h = heads.begin; h < heads.end; h++)
        turn_head(s, w->q_norm, 1.0f / sqrtf((float)hd), s->q + (size_t)h * hd, ldo, n_tok);
}

/* One head of k or v for all tokens, into the cache; those of v are numbered behind those of k. */
static void kv_head(struct pi_state *s, uint32_t layer, uint32_t head, uint32_t n_tok,
                    const struct pi_lane *lane)
{
    const struct pi_shape *sh = &s->m->shape;
    const struct pi_layer_weights *w = &s->m->layers[layer];
    const bool is_k = head < sh->n_head_kv;
    const uint32_t hd = sh->head_dim, row = head % sh->n_head_kv * hd;

    pi_ops_dots(s->cpu, is_k ? &w->k : &w->v, NULL, (struct pi_span){row, row + hd},
                (struct pi_vecs){lane->normed, lane->q8}, n_tok, is_k ? w->k_b : w->v_b, lane->head,
                hd);
    if (is_k)
        turn_head(s, w->k_norm, 1.0f, lane->head, hd, n_tok);
    for (uint32_t t = 0; t < n_tok; t++)
        pi_ops_kv_store(s, is_k ? s->kv.k : s->kv.v, layer, t, row, lane->head + (size_t)t * hd,
                        hd);
}

/* Heads are numbered q first, then k, then v. */
static void team_qkv(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                     uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_shape *sh = &s->m->shape;
    const struct pi_layer_weights *w = layer_of(s, op);
    struct pi_span heads = pi_span(sh->n_head + 2 * sh->n_head_kv, 1, thread, n_threads), of_q;

    of_q = (struct pi_span){heads.begin, heads.end < sh->n_head ? heads.end : sh->n_head};
    if (of_q.begin < of_q.end)
        q_heads(s, op->layer, of_q, n_tok, &s->lanes[thread]);
    for (uint32_t h = heads.begin < sh->n_head ? sh->n_head : heads.begin; h < heads.end; h++)
        kv_head(s, op->layer, h - sh->n_head, n_tok, &s->lanes[thread]);
    if (thread == 0) {
        pi_ops_count_shared(s, &s->stats.weights_attn, &w->q, w->q.n_rows, n_tok);
        pi_ops_count_shared(s, &s->stats.weights_attn, &w->k, w->k.n_rows, n_tok);
        pi_ops_count_shared(s, &s->stats.weights_attn, &w->v, w->v.n_rows, n_tok);
    }
}

static void team_attn(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                      uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_shape *sh = &s->m->shape;
    struct pi_span tasks = pi_span(n_tok * sh->n_head, 1, thread, n_threads);

    for (uint32_t i = tasks.begin; i < tasks.end; i++) {
        size_t at = (size_t)i *
                    sh->head_dim; /* tasks are numbered (token, head), as q and attn are stored */

        pi_ops_attend(s, op->layer, i / sh->n_head, i % sh->n_head, s->q + at,
                      s->lanes[thread].scores, s->attn + at);
    }
}

static void team_attn_out(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                          uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = layer_of(s, op);
    uint32_t d = s->m->shape.n_embd;
    struct pi_span rows = pi_span(d, PI_SPAN_ROWS, thread, n_threads);
    const struct pi_lane *lane = &s->lanes[thread];
    float *out = lane->normed; /* free since q, k and v were made from it */

    /* nobody has read the residual since QKV's barrier, so that it may become what was normed */
    for (uint32_t t = 0; s->m->shape.post_norm && t < n_tok; t++)
        memcpy(s->residual + (size_t)t * d + rows.begin, out + (size_t)t * d + rows.begin,
               (rows.end - rows.begin) * sizeof(*out));
    pi_ops_quantise(s, &w->o, s->attn, n_tok, lane->q8);
    pi_ops_dots(s->cpu, &w->o, NULL, rows, (struct pi_vecs){s->attn, lane->q8}, n_tok, w->o_b, out,
                d);
    for (uint32_t t = 0; t < n_tok; t++) {
        float *r = s->residual + (size_t)t * d + rows.begin;

        for (uint32_t i = 0; i < rows.end - rows.begin; i++)
            r[i] += out[(size_t)t * d + i];
    }
    if (thread == 0)
        pi_ops_count_shared(s, &s->stats.weights_attn, &w->o, d, n_tok);
}

/* The normed states of wanted tokens come close together, so that they are one batch. */
static void team_out_norm(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                          uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_mat *project = &s->m->embd_out;
    float *out = s->lanes[thread].normed;
    size_t d = s->m->shape.n_embd;
    uint32_t n_want = 0;

    (void)op;
    (void)n_threads;
    for (uint32_t t = 0; t < n_tok; t++) {
        if (!pi_state_wants(s, t))
            continue;
        pi_ops_norm(s, s->residual + t * d, s->m->out_norm, s->m->out_norm_b, out + n_want++ * d);
    }
    if (project->data !=
        NULL) { /* small beside the output matrix: each thread computes all of it */
        out = s->lanes[thread].embd;
        pi_ops_dots(s->cpu, project, NULL, (struct pi_span){0, project->n_rows},
                    (struct pi_vecs){.x = s->lanes[thread].normed}, n_want, NULL, out,
                    project->n_rows);
    }
    pi_ops_quantise(s, &s->m->output, out, n_want, s->lanes[thread].q8);
    if (thread == 0)
        pi_ops_count_shared(s, &s->stats.weights_other, project, project->n_rows, n_want);
}

static void team_output(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                        uint32_t n_threads)
{
    struct pi_state *s = ctx;
    const struct pi_mat *w = &s->m->output;
    struct pi_span rows = pi_span(w->n_rows, PI_SPAN_ROWS, thread, n_threads);
    uint32_t n_want = 0;

    (void)op;
    for (uint32_t t = 0; t < n_tok; t++)
        n_want += pi_state_wants(s, t);
    if (n_want == 0)
        return;
    pi_ops_dots(s->cpu, w, NULL, rows,
                (struct pi_vecs){s->m->embd_out.data != NULL ? s->lanes[thread].embd
                                                             : s->lanes[thread].normed,
                                 s->lanes[thread].q8},
                n_want, NULL, s->logits + rows.begin, w->n_rows);
    if (thread == 0)
        pi_ops_count_shared(s, &s->stats.weights_other, w, w->n_rows, n_want);
}

const struct pi_team_op pi_team_ops[PI_OP_KINDS] = {
    [PI_OP_EMBED] = {team_embed, true},
    [PI_OP_ATTN_NORM] = {team_attn_norm, false}, /* into the lane */
    [PI_OP_QKV] = {team_qkv, true},
    [PI_OP_ATTN] = {team_attn, true},
    [PI_OP_ATTN_OUT] = {team_attn_out, true},
    [PI_OP_FFN_NORM] = {team_ffn_norm, false}, /* into the lane */
    [PI_OP_PREDICT] = {pi_team_predict, true}, /* the mask of all neurons */
    [PI_OP_FFN] = {pi_team_ffn, false},        /* the thread's own columns of the partial sum */
    [PI_OP_MERGE] = {pi_team_merge, true},
    [PI_OP_OUT_NORM] = {team_out_norm, false}, /* into the lane */
    [PI_OP_OUTPUT] = {team_output, false},     /* the end of the run joins */
};
