/*
 * pi_ops_prompt.c - operators of prompt chunks: dense, products of many tokens through BLAS, attention per (token, head).
 */
#include "config.h"

#include "runtime/pi_ops.h"

#include "runtime/pi_blas.h"

#include <math.h>
#include <string.h>

/* What a pool function needs. */
struct job {
    struct pi_state *s;
    uint32_t layer, n_tok;
    const float *w, *b; /* norm of x */
    /* matrices that read the result, and whether others do (pi_ops_quantise_group()) */
    const struct pi_mat *mats[3];
    int n_mats;
    bool others;
    const float *x; /* what is normed, or quantised for mats[0] */
};

/* Tokens of one piece of element-wise work. */
#define TOKENS_A_PIECE 4
#define ACTIVATE_PIECE 1024

static void for_tokens(struct pi_state *s, pi_pool_range_fn fn, struct job *j)
{
    pi_pool_for(s->pool, j->n_tok, TOKENS_A_PIECE, fn, j);
}

static void embed_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct pi_shape *sh = &j->s->m->shape;
    uint32_t d = sh->n_embd, wide = d > sh->n_embd_tok ? d : sh->n_embd_tok;

    for (size_t t = begin; t < end; t++) {
        pi_ops_rotation(j->s, (uint32_t)t);
        pi_ops_embed(j->s, (uint32_t)t, j->s->residual + t * d, j->s->tmp + t * wide);
    }
}

static enum pi_code solo_embed(void *ctx, const struct pi_op *op, uint32_t n_tok,
                               struct pi_err *err)
{
    struct job j = {.s = ctx, .layer = op->layer, .n_tok = n_tok};

    (void)err;
    for_tokens(ctx, embed_range, &j);
    return PI_OK;
}

static void norm_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    uint32_t d = j->s->m->shape.n_embd;

    for (size_t t = begin; t < end; t++) {
        float *x = j->s->normed + t * d;

        pi_ops_norm(j->s, j->x + t * d, j->w, j->b, x);
        pi_ops_quantise_group(j->s, j->mats, j->n_mats, j->others, x, 1,
                              j->s->q8 != NULL ? j->s->q8 + t * d / PI_Q8_BLOCK : NULL);
    }
}

static void quantise_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    size_t n = j->mats[0]->n_cols;

    pi_ops_quantise(j->s, j->mats[0], j->x + begin * n, (uint32_t)(end - begin),
                    j->s->q8 + begin * n / PI_Q8_BLOCK);
}

/* x (n_tok, w->n_cols) to s->q8 if products with w want it there. */
static void quantise(struct pi_state *s, const struct pi_mat *w, const float *x, uint32_t n_tok)
{
    struct job j = {.s = s, .n_tok = n_tok, .mats = {w}, .n_mats = 1, .x = x};

    if (pi_ops_takes_q8(s, w))
        for_tokens(s, quantise_range, &j);
}

/* Products of in, and of s->q8 where matrices take it. */
static enum pi_code products(struct pi_state *s, struct pi_blas_in *in,
                             const struct pi_blas_out *outs, uint32_t n_outs, struct pi_err *err)
{
    if (s->products != NULL)
        return s->products(s->products_ctx, in, outs, n_outs, err);
    in->q8 = s->act == PI_ACT_TYPE_Q8 ? s->q8 : NULL;
    return pi_blas_products(s->pool, &s->blas, in, outs, n_outs, err);
}

static enum pi_code solo_attn_norm(void *ctx, const struct pi_op *op, uint32_t n_tok,
                                   struct pi_err *err)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = &s->m->layers[op->layer];
    struct job j = {.s = s,
                    .layer = op->layer,
                    .n_tok = n_tok,
                    .x = s->residual,
                    .w = w->attn_norm,
                    .b = w->attn_norm_b,
                    .mats = {&w->q, &w->k, &w->v},
                    .n_mats = 3};

    (void)err;
    if (s->m->shape.parallel)
        memcpy(s->layer_input, s->residual,
               (size_t)n_tok * s->m->shape.n_embd * sizeof(*s->residual));
    for_tokens(s, norm_range, &j);
    return PI_OK;
}

static enum pi_code solo_ffn_norm(void *ctx, const struct pi_op *op, uint32_t n_tok,
                                  struct pi_err *err)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = &s->m->layers[op->layer];
    struct job j = {.s = s,
                    .layer = op->layer,
                    .n_tok = n_tok,
                    .x = pi_ops_ffn_input(s),
                    .w = w->ffn_norm,
                    .b = w->ffn_norm_b,
                    .mats = {&w->gate, &w->up},
                    .n_mats = 2,
                    .others = s->n_units > 1};

    (void)err;
    for_tokens(s, norm_range, &j);
    return PI_OK;
}

/* Rotates and scales q, rotates k, stores k and v. */
static void rope_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    struct pi_state *s = j->s;
    const struct pi_shape *sh = &s->m->shape;
    uint32_t n_q = sh->n_head * sh->head_dim, n_kv = sh->n_head_kv * sh->head_dim;
    float scale = 1.0f / sqrtf((float)sh->head_dim);
    const struct pi_layer_weights *w = &s->m->layers[j->layer];

    for (size_t t = begin; t < end; t++) {
        float *q = s->q + t * n_q;

        pi_ops_head_norm(s, w->q_norm, q, sh->n_head);
        pi_ops_rope(s, q, sh->n_head, (uint32_t)t);
        for (uint32_t i = 0; i < n_q; i++)
            q[i] *= scale;
        pi_ops_head_norm(s, w->k_norm, s->k + t * n_kv, sh->n_head_kv);
        pi_ops_rope(s, s->k + t * n_kv, sh->n_head_kv, (uint32_t)t);
        pi_ops_kv_store(s, s->kv.k, j->layer, (uint32_t)t, 0, s->k + t * n_kv, n_kv);
        pi_ops_kv_store(s, s->kv.v, j->layer, (uint32_t)t, 0, s->v + t * n_kv, n_kv);
    }
}

static enum pi_code solo_qkv(void *ctx, const struct pi_op *op, uint32_t n_tok, struct pi_err *err)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = &s->m->layers[op->layer];
    uint32_t d = s->m->shape.n_embd;
    struct job j = {.s = s, .layer = op->layer, .n_tok = n_tok};
    struct pi_blas_in in = {.x = s->normed, .ldx = d, .n_tok = n_tok, .n_cols = d};
    const struct pi_blas_out outs[] = {{&w->q, w->q_b, s->q, w->q.n_rows},
                                       {&w->k, w->k_b, s->k, w->k.n_rows},
                                       {&w->v, w->v_b, s->v, w->v.n_rows}};
    enum pi_code rc;

    PI_TRY(products(s, &in, outs, 3, err));
    for_tokens(s, rope_range, &j);
out:
    return rc;
}

/* Pairs of (some tokens, head) dealt out in turn: later tokens see more positions, so spans would be uneven. */
static void attend_thread(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct job *j = ctx;
    struct pi_state *s = j->s;
    const uint32_t n_head = s->m->shape.n_head;
    const uint64_t blocks = (j->n_tok + PI_ATTEND_TOKENS - 1) / PI_ATTEND_TOKENS;

    for (uint64_t i = thread; i < blocks * n_head; i += n_threads) {
        uint32_t t = (uint32_t)(i / n_head) * PI_ATTEND_TOKENS, n = j->n_tok - t;

        pi_ops_attend_tokens(s, j->layer, t, n < PI_ATTEND_TOKENS ? n : PI_ATTEND_TOKENS,
                             (uint32_t)(i % n_head), s->lanes[thread].scores);
    }
}

static enum pi_code solo_attn(void *ctx, const struct pi_op *op, uint32_t n_tok, struct pi_err *err)
{
    struct pi_state *s = ctx;
    struct job j = {.s = s, .layer = op->layer, .n_tok = n_tok};

    (void)err;
    pi_pool_run(s->pool, attend_thread, &j);
    return PI_OK;
}

/* What a block's output is added to: see pi_model.h. */
static const float *base_of(const struct pi_state *s)
{
    return s->m->shape.post_norm ? s->normed : s->residual;
}

static void add_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const float *base = base_of(j->s);
    uint32_t d = j->s->m->shape.n_embd;

    for (size_t i = begin * d; i < end * d; i++)
        j->s->residual[i] = base[i] + j->s->tmp[i];
}

static enum pi_code solo_attn_out(void *ctx, const struct pi_op *op, uint32_t n_tok,
                                  struct pi_err *err)
{
    struct pi_state *s = ctx;
    const struct pi_layer_weights *w = &s->m->layers[op->layer];
    struct pi_blas_in in = {
        .x = s->attn, .ldx = w->o.n_cols, .n_tok = n_tok, .n_cols = w->o.n_cols};
    const struct pi_blas_out out = {&w->o, w->o_b, s->tmp, s->m->shape.n_embd};
    struct job j = {.s = s, .layer = op->layer, .n_tok = n_tok};
    enum pi_code rc;

    quantise(s, &w->o, s->attn, n_tok);
    PI_TRY(products(s, &in, &out, 1, err));
    for_tokens(s, add_range, &j);
out:
    return rc;
}

/* Some values at a time, which stay in the L1 cache. */
static void activate_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    struct pi_state *s = j->s;
    const struct pi_shape *sh = &s->m->shape;
    const size_t last = end * sh->n_ff;

    for (size_t i = begin * sh->n_ff, n; i < last; i += n) {
        float *h = s->h + i, *prod = s->prod + i;

        n = last - i < ACTIVATE_PIECE ? last - i : ACTIVATE_PIECE;
        pi_activate_n(sh, h, n);
        if (sh->act_up)
            pi_activate_n(sh, prod, n);
        for (size_t k = 0; sh->gated && k < n; k++)
            prod[k] *= h[k];
    }
}

static enum pi_code solo_ffn(void *ctx, const struct pi_op *op, uint32_t n_tok, struct pi_err *err)
{
    struct pi_state *s = ctx;
    const struct pi_shape *sh = &s->m->shape;
    const struct pi_layer_weights *w = &s->m->layers[op->layer];
    struct job j = {.s = s, .layer = op->layer, .n_tok = n_tok};
    uint32_t d = sh->n_embd;
    struct pi_blas_in normed = {.x = s->normed, .ldx = d, .n_tok = n_tok, .n_cols = d};
    struct pi_blas_in prod = {.x = s->prod, .ldx = sh->n_ff, .n_tok = n_tok, .n_cols = sh->n_ff};
    const struct pi_blas_out gated[] = {{&w->gate, w->gate_b, s->h, sh->n_ff},
                                        {&w->up, w->up_b, s->prod, sh->n_ff}};
    const struct pi_blas_out plain = {&w->up, w->up_b, s->h, sh->n_ff};
    const struct pi_blas_out down = {&w->down, NULL, s->tmp, d};
    const struct pi_blas_out down_t = {&w->down_t, NULL, s->tmp, d};
    enum pi_code rc;

    PI_TRY(products(s, &normed, sh->gated ? gated : &plain, sh->gated ? 2 : 1, err));
    for_tokens(s, activate_range, &j);
    if (s->obs != NULL)
        PI_TRY(s->obs->ffn(s->obs->ctx, op->layer, n_tok, s->residual, pi_ops_ffn_input(s),
                           s->normed, s->h, s->prod, err));
    if (w->down.data != NULL) {
        quantise(s, &w->down, s->prod, n_tok);
        PI_TRY(products(s, &prod, &down, 1, err));
    } else {
        PI_TRY(pi_blas_axpys(s->pool, &s->blas, &prod, &down_t, err));
    }
out:
    return rc;
}

static void merge_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const float *b = j->s->m->layers[j->layer].down_b, *base = base_of(j->s);
    uint32_t d = j->s->m->shape.n_embd;

    for (size_t t = begin; t < end; t++) {
        for (uint32_t c = 0; c < d; c++)
            j->s->residual[t * d + c] =
                base[t * d + c] + ((b != NULL ? b[c] : 0.0f) + j->s->tmp[t * d + c]);
    }
}

static enum pi_code solo_merge(void *ctx, const struct pi_op *op, uint32_t n_tok,
                               struct pi_err *err)
{
    struct job j = {.s = ctx, .layer = op->layer, .n_tok = n_tok};

    (void)err;
    for_tokens(ctx, merge_range, &j);
    return PI_OK;
}

/* Only wanted tokens, close together. */
static enum pi_code solo_out_norm(void *ctx, const struct pi_op *op, uint32_t n_tok,
                                  struct pi_err *err)
{
    struct pi_state *s = ctx;
    size_t d = s->m->shape.n_embd, n = 0;

    (void)op;
    (void)err;
    for (uint32_t t = 0; t < n_tok; t++) {
        if (pi_state_wants(s, t))
            pi_ops_norm(s, s->residual + t * d, s->m->out_norm, s->m->out_norm_b,
                        s->normed + n++ * d);
    }
    if (s->m->embd_out.data == NULL)
        quantise(s, &s->m->output, s->normed, (uint32_t)n);
    return PI_OK;
}

static enum pi_code solo_output(void *ctx, const struct pi_op *op, uint32_t n_tok,
                                struct pi_err *err)
{
    struct pi_state *s = ctx;
    const struct pi_shape *sh = &s->m->shape;
    const struct pi_mat *project = &s->m->embd_out;
    const struct pi_blas_out out = {&s->m->output, NULL, s->logits, s->m->output.n_rows};
    const struct pi_blas_out narrow = {project, NULL, s->tmp, project->n_rows};
    struct pi_blas_in in = {.x = s->normed, .ldx = sh->n_embd, .n_cols = sh->n_embd};
    enum pi_code rc = PI_OK;

    (void)op;
    for (uint32_t t = 0; t < n_tok; t++)
        in.n_tok += pi_state_wants(s, t);
    if (in.n_tok == 0)
        return PI_OK;
    if (project->data != NULL) {
        PI_TRY(pi_blas_products(s->pool, &s->blas, &in, &narrow, 1, err));
        in.x = s->tmp;
        in.ldx = in.n_cols = sh->n_embd_tok;
        quantise(s, &s->m->output, s->tmp, in.n_tok);
    }
    rc = products(s, &in, &out, 1, err);
out:
    return rc;
}

const pi_solo_op pi_solo_ops[PI_OP_KINDS] = {
    [PI_OP_EMBED] = solo_embed,       [PI_OP_ATTN_NORM] = solo_attn_norm,
    [PI_OP_QKV] = solo_qkv,           [PI_OP_ATTN] = solo_attn,
    [PI_OP_ATTN_OUT] = solo_attn_out, [PI_OP_FFN_NORM] = solo_ffn_norm,
    [PI_OP_FFN] = solo_ffn,           [PI_OP_MERGE] = solo_merge,
    [PI_OP_OUT_NORM] = solo_out_norm, [PI_OP_OUTPUT] = solo_output,
};
