/* pi_gpu_prompt_layer.c - what a chunk launches on the GPU: products, attention, pieces of feed-forward blocks, logits. */
#include "config.h"

#include "runtime/pi_gpu_prompt_int.h"

#include <string.h>

/* ---- products ---- */

/* Some rows of a matrix as a product reads them: as they are, or converted into the tile. */
struct operand {
    enum pi_type type;
    const void *data;
    size_t ld;
    uint32_t n; /* rows */
};

/* At most n rows from first on; fewer where the tile takes no more. The tile is free again once the product is launched: all is in one stream. */
static struct operand operand(const struct pi_gpu_prompt *p, const struct pi_dmat *w,
                              uint32_t first, uint32_t n)
{
    const enum pi_type type = pi_gp_half(p, w->type) ? PI_TYPE_F16 : PI_TYPE_F32;
    const size_t size = type == PI_TYPE_F16 ? 2 : 4;
    const uint64_t most = p->size.tile / (w->n_cols * size);

    if (w->type == type)
        return (struct operand){type, (const char *)w->data + (size_t)first * w->row_bytes,
                                w->row_bytes / size, n};
    n = n < most ? n : (uint32_t)most;
    pi_kp_convert(w, first, n, type, p->d.tile, p->stream);
    return (struct operand){type, p->d.tile, w->n_cols, n};
}

static const void *input_of(enum pi_type type, const struct pi_gp_in *x)
{
    return type == PI_TYPE_F16 ? x->f16 : (const void *)x->f32;
}

enum pi_code pi_gp_rows_product(struct pi_gpu_prompt *p, const struct pi_dmat *w, uint32_t first,
                                uint32_t n, const struct pi_gp_in *x, uint32_t n_tok, float *out,
                                uint32_t ldo, const float **scale, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    *scale = pi_gp_half(p, w->type) ? x->scale : NULL;
    for (uint32_t r = 0; r < n;) {
        const struct operand o = operand(p, w, first + r, n - r);

        PI_TRY(pi_gpu_gemm(p->blas, false, true, n_tok, o.n, w->n_cols, 1.0f, o.type,
                           input_of(o.type, x), w->n_cols, o.data, o.ld, 0.0f, out + r, ldo, err));
        r += o.n;
    }
out:
    return rc;
}

/* residual += x W^T + bias; W has n_embd rows. */
static enum pi_code add_rows_product(struct pi_gpu_prompt *p, const struct pi_dmat *w,
                                     const struct pi_gp_in *x, const float *bias,
                                     struct pi_err *err)
{
    const float *scale;
    enum pi_code rc;

    PI_TRY(pi_gp_rows_product(p, w, 0, w->n_rows, x, p->n_tok, p->d.tmp, p->shape->n_embd, &scale,
                              err));
    pi_kp_add(p->d.residual, p->d.tmp, scale, bias, p->n_tok, p->shape->n_embd, p->stream);
out:
    return rc;
}

/* residual += x W[first .. first + n): W's rows are one neuron's each. F32 products add themselves; F16 ones lack the rows' scales. */
static enum pi_code add_down(struct pi_gpu_prompt *p, const struct pi_dmat *w, uint32_t first,
                             uint32_t n, const struct pi_gp_in *x, uint32_t ldx, struct pi_err *err)
{
    const uint32_t d = p->shape->n_embd;
    const bool half = pi_gp_half(p, w->type);
    float *out = half ? p->d.tmp : p->d.residual;
    enum pi_code rc = PI_OK;

    for (uint32_t r = 0; r < n;) {
        const struct operand o = operand(p, w, first + r, n - r);
        const char *in = (const char *)input_of(o.type, x) + (size_t)r * (half ? 2 : 4);

        PI_TRY(pi_gpu_gemm(p->blas, false, false, p->n_tok, d, o.n, 1.0f, o.type, in, ldx, o.data,
                           o.ld, half && r == 0 ? 0.0f : 1.0f, out, d, err));
        r += o.n;
    }
    if (half)
        pi_kp_add(p->d.residual, p->d.tmp, x->scale, NULL, p->n_tok, d, p->stream);
out:
    return rc;
}

/* ---- the residual ---- */

static size_t residual_bytes(const struct pi_gpu_prompt *p)
{
    return (size_t)p->n_tok * p->shape->n_embd * sizeof(float);
}

enum pi_code pi_gp_to_device(struct pi_gpu_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (!p->on_host)
        return PI_OK;
    PI_TRY(pi_gpu_copy_async(p->d.residual, p->h.residual, residual_bytes(p), p->stream, err));
    p->on_host = false;
out:
    return rc;
}

enum pi_code pi_gp_to_host(struct pi_gpu_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (p->on_host)
        return PI_OK;
    PI_TRY(pi_gpu_copy_async(p->h.residual, p->d.residual, residual_bytes(p), p->stream, err));
    PI_TRY(pi_gp_await_stream(p, p->stream, err));
    p->on_host = true;
out:
    return rc;
}

/* ---- attention ---- */

static struct pi_k_norm norm_of(const struct pi_gpu_prompt *p, const float *w, const float *b)
{
    return (struct pi_k_norm){
        .w = w, .b = b, .layer_norm = p->shape->layer_norm, .eps = p->shape->norm_eps};
}

/* Do matrices of the file take quantised activations? Then what they read is put on their grid. */
static bool takes_q8(const struct pi_gpu_prompt *p, const struct pi_mat *a, const struct pi_mat *b,
                     const struct pi_mat *c)
{
    return pi_ops_takes_q8(p->s, a) || pi_ops_takes_q8(p->s, b) || pi_ops_takes_q8(p->s, c);
}

/* The forms of an input that products with these matrices need (absent ones need none). */
struct forms {
    bool half, full;
};

static void need(const struct pi_gpu_prompt *p, const struct pi_dmat *w, struct forms *f)
{
    if (w->data == NULL)
        return;
    if (pi_gp_half(p, w->type))
        f->half = true;
    else
        f->full = true;
}

static void norm_input(struct pi_gpu_prompt *p, const struct pi_k_norm *norm, const float *in,
                       const uint32_t *rows, uint32_t n, struct forms f)
{
    pi_kp_norm(norm, in, rows, f.full ? p->d.x32 : NULL, f.half ? p->d.x16 : NULL, p->d.x_scale, n,
               p->shape->n_embd, p->stream);
}

static enum pi_code make_qkv(struct pi_gpu_prompt *p, const struct pi_dev_layer *y,
                             struct pi_err *err)
{
    const struct pi_gp_in x = {p->d.x32, p->d.x16, p->d.x_scale};
    struct pi_kp_qkv a = {.shape = p->shape,
                          .q_b = y->q_b,
                          .k_b = y->k_b,
                          .v_b = y->v_b,
                          .inv_freq = p->dm->inv_freq,
                          .rope_mscale = p->m->rope_mscale,
                          .kv_type = p->dm->kv_type,
                          .k_cache = y->k_cache,
                          .v_cache = y->v_cache,
                          .n_ctx = p->dm->n_ctx};
    enum pi_code rc;

    PI_TRY(pi_gp_rows_product(p, &y->q, 0, y->q.n_rows, &x, p->n_tok, p->d.q, y->q.n_rows,
                              &a.q_scale, err));
    PI_TRY(pi_gp_rows_product(p, &y->k, 0, y->k.n_rows, &x, p->n_tok, p->d.k, y->k.n_rows,
                              &a.k_scale, err));
    PI_TRY(pi_gp_rows_product(p, &y->v, 0, y->v.n_rows, &x, p->n_tok, p->d.v, y->v.n_rows,
                              &a.v_scale, err));
    pi_kp_rope_store(&a, p->d.q, p->d.k, p->d.v, p->d.tokens, p->n_tok, p->stream);
out:
    return rc;
}

enum pi_code pi_gp_attention(struct pi_gpu_prompt *p, uint32_t layer, struct pi_err *err)
{
    const struct pi_dev_layer *y = &p->dm->layers[layer];
    const struct pi_layer_weights *w = &p->m->layers[layer];
    struct pi_k_norm norm = norm_of(p, y->attn_norm, y->attn_norm_b), none = {0};
    const struct pi_gp_in attn = {p->d.attn, p->d.x16, p->d.x_scale};
    struct forms f = {false, false};
    enum pi_code rc;

    PI_TRY(pi_gp_to_device(p, err));
    need(p, &y->q, &f);
    need(p, &y->k, &f);
    need(p, &y->v, &f);
    norm.q8 = takes_q8(p, &w->q, &w->k, &w->v);
    none.q8 = takes_q8(p, &w->o, &w->o, &w->o);
    norm_input(p, &norm, p->d.residual, NULL, p->n_tok, f);
    PI_TRY(make_qkv(p, y, err));
    pi_kp_attn(p->shape, p->dm->kv_type, p->d.q, y->k_cache, y->v_cache, p->dm->n_ctx, p->d.tiles,
               p->n_tiles, p->d.attn, p->stream);
    if (pi_gp_half(p, y->o.type))
        pi_kp_norm(&none, p->d.attn, NULL, NULL, p->d.x16, p->d.x_scale, p->n_tok, y->o.n_cols,
                   p->stream);
    else if (none.q8)
        pi_kp_norm(&none, p->d.attn, NULL, p->d.attn, NULL, NULL, p->n_tok, y->o.n_cols, p->stream);
    PI_TRY(add_rows_product(p, &y->o, &attn, y->o_b, err));
    PI_TRY(pi_gpu_launched(err));
    PI_TRY(pi_gp_mark(p, err));
out:
    return rc;
}

/* ---- feed-forward ---- */

/* Of resident and of streamed rows: a streamed matrix has the type that it has in the file. */
static struct forms ffn_forms(const struct pi_gpu_prompt *p, uint32_t layer)
{
    const struct pi_layer_weights *w = &p->m->layers[layer];
    struct pi_dmat gate = {.type = w->gate.type, .data = w->gate.data},
                   up = {.type = w->up.type, .data = w->up.data};
    struct forms f = {false, false};

    need(p, &gate, &f);
    need(p, &up, &f);
    return f;
}

enum pi_code pi_gp_ffn_begin(struct pi_gpu_prompt *p, uint32_t layer, bool to_host,
                             struct pi_err *err)
{
    const struct pi_dev_layer *y = &p->dm->layers[layer];
    const struct pi_layer_weights *w = &p->m->layers[layer];
    struct pi_k_norm norm = norm_of(p, y->ffn_norm, y->ffn_norm_b);
    const struct pi_k_norm none = {0};
    struct forms f = ffn_forms(p, layer);
    enum pi_code rc;

    norm.q8 = takes_q8(p, &w->gate, &w->up, &w->up);
    PI_TRY(pi_gp_to_device(p, err));
    if (y->has_attn) {
        f.full = f.full || to_host;
        norm_input(p, &norm, p->d.residual, NULL, p->n_tok, f);
        if (to_host)
            PI_TRY(pi_gpu_copy_async(p->h.normed, p->d.x32, residual_bytes(p), p->stream, err));
        if (p->s->obs != NULL)
            PI_TRY(
                pi_gpu_copy_async(p->h.residual, p->d.residual, residual_bytes(p), p->stream, err));
        if (to_host || p->s->obs != NULL)
            PI_TRY(pi_gp_await_stream(p, p->stream, err));
    } else { /* the CPU has normed it */
        PI_TRY(pi_gpu_copy_async(p->d.x32, p->h.normed, residual_bytes(p), p->stream, err));
        f.full = false;
        if (f.half)
            norm_input(p, &none, p->d.x32, NULL, p->n_tok, f);
    }
    pi_kp_add(p->d.residual, NULL, NULL, y->down_b, p->n_tok, p->shape->n_embd, p->stream);
    PI_TRY(pi_gpu_launched(err));
out:
    return rc;
}

/* Inner vectors of a piece to where the observer looks for them: columns ids of s->h and s->prod. */
static enum pi_code observe_piece(struct pi_gpu_prompt *p, const struct pi_gp_ffn *f, uint32_t ld,
                                  struct pi_err *err)
{
    const size_t bytes = (size_t)p->n_tok * ld * sizeof(float);
    const uint32_t n_ff = p->shape->n_ff;
    enum pi_code rc;

    if (p->shape->gated)
        PI_TRY(pi_gpu_copy_async(p->h.out[0], p->d.gate, bytes, p->stream, err));
    PI_TRY(pi_gpu_copy_async(p->h.out[1], p->d.up, bytes, p->stream, err));
    PI_TRY(pi_gp_await_stream(p, p->stream, err));
    for (uint32_t t = 0; t < p->n_tok; t++) {
        const float *h = p->h.out[0] + (size_t)t * ld, *prod = p->h.out[1] + (size_t)t * ld;
        const size_t to = (size_t)t * n_ff;

        for (uint32_t i = 0; p->shape->gated && i < f->n; i++)
            p->s->h[to + f->ids[i]] = h[i];
        for (uint32_t i = 0; i < f->n; i++) /* not gated: h is the same array */
            p->s->prod[to + f->ids[i]] = prod[i];
    }
out:
    return rc;
}

enum pi_code pi_gp_ffn_piece(struct pi_gpu_prompt *p, const struct pi_gp_ffn *f, struct pi_err *err)
{
    const struct pi_gp_in x = {p->d.x32, p->d.x16, p->d.x_scale},
                          prod = {p->d.up, p->d.prod16, p->d.prod_scale};
    const uint32_t ld = (f->n + 15) / 16 * 16;
    struct pi_kp_act a = {.shape = p->shape,
                          .up_b = f->up_b,
                          .gate = p->d.gate,
                          .up = p->d.up,
                          .n = f->n,
                          .ld = ld,
                          .prod16 = pi_gp_half(p, f->down_t.type) ? p->d.prod16 : NULL,
                          .scale = p->d.prod_scale};
    enum pi_code rc;

    if (p->shape->gated)
        PI_TRY(pi_gp_rows_product(p, &f->gate, f->first, f->n, &x, p->n_tok, p->d.gate, ld,
                                  &a.gate_scale, err));
    PI_TRY(
        pi_gp_rows_product(p, &f->up, f->first, f->n, &x, p->n_tok, p->d.up, ld, &a.up_scale, err));
    pi_kp_act(&a, p->n_tok, p->stream);
    if (p->s->obs != NULL)
        PI_TRY(observe_piece(p, f, ld, err));
    PI_TRY(add_down(p, &f->down_t, f->first, f->n, &prod, ld, err));
    PI_TRY(pi_gpu_launched(err));
    PI_TRY(pi_gp_mark(p, err));
out:
    return rc;
}

enum pi_code pi_gp_ffn_hot(struct pi_gpu_prompt *p, uint32_t layer, struct pi_err *err)
{
    const struct pi_dev_layer *y = &p->dm->layers[layer];
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < y->n_hot;) {
        const uint32_t n = y->n_hot - i < p->size.piece ? y->n_hot - i : p->size.piece;
        const struct pi_gp_ffn f = {.gate = y->gate,
                                    .up = y->up,
                                    .down_t = y->down_t,
                                    .up_b = y->up_b != NULL ? y->up_b + i : NULL,
                                    .ids = y->host_hot_ids + i,
                                    .first = i,
                                    .n = n};

        PI_TRY(pi_gp_ffn_piece(p, &f, err));
        i += n;
    }
out:
    return rc;
}

/* ---- logits ---- */

struct scatter {
    const float *from;
    float *to;
    size_t n, ldo;
};

static void scatter_rows(void *ctx, size_t begin, size_t end)
{
    const struct scatter *j = ctx;

    for (size_t t = begin; t < end; t++)
        memcpy(j->to + t * j->ldo, j->from + t * j->n, j->n * sizeof(float));
}

/* Columns of logits that lie in h.out[k], once they are there. */
static enum pi_code take_logits(struct pi_gpu_prompt *p, int k, uint32_t first, uint32_t n,
                                struct pi_err *err)
{
    struct scatter j = {p->h.out[k], p->s->logits + first, n, p->shape->n_vocab};
    enum pi_code rc;

    PI_TRY(pi_gp_await_event(p, p->out_done[k], err));
    pi_pool_for(p->pool, p->n_rows, 8, scatter_rows, &j);
out:
    return rc;
}

/* Rows of the output matrix a piece at a time, through the pieces' buffers in turn: while one comes down the next is computed. */
enum pi_code pi_gp_output(struct pi_gpu_prompt *p, struct pi_err *err)
{
    const struct pi_dmat *w = &p->dm->output;
    struct pi_k_norm norm = norm_of(p, p->dm->out_norm, p->dm->out_norm_b);
    const struct pi_gp_in x = {p->d.x32, p->d.x16, p->d.x_scale};
    const uint32_t step = p->size.piece;
    struct forms f = {false, false};
    const float *scale;
    uint32_t done = 0; /* columns that the host has */
    int k = 0;
    enum pi_code rc;

    PI_TRY(pi_gp_to_device(p, err));
    need(p, w, &f);
    norm.q8 = takes_q8(p, &p->m->output, &p->m->output, &p->m->output);
    norm_input(p, &norm, p->d.residual, p->d.rows, p->n_rows, f);
    for (uint32_t r = 0; r < w->n_rows; r += step, k ^= 1) {
        const uint32_t n = w->n_rows - r < step ? w->n_rows - r : step;
        float *out = k == 0 ? p->d.gate : p->d.up;

        if (r >=
            2 * step) { /* what came down into this buffer is taken before it is written again */
            PI_TRY(take_logits(p, k, done, step, err));
            done += step;
        }
        PI_TRY(pi_gp_rows_product(p, w, r, n, &x, p->n_rows, out, n, &scale, err));
        if (scale != NULL)
            pi_kp_scale(out, n, n, scale, p->n_rows, p->stream);
        PI_TRY(pi_gpu_launched(err));
        PI_TRY(pi_gpu_copy_async(p->h.out[k], out, (size_t)p->n_rows * n * sizeof(float), p->stream,
                                 err));
        PI_TRY(pi_gpu_event_record(p->out_done[k], p->stream, err));
        PI_TRY(pi_gp_mark(p, err));
    }
    while (done < w->n_rows) {
        const uint32_t n = w->n_rows - done < step ? w->n_rows - done : step;

        k = (int)(done / step % 2);
        PI_TRY(take_logits(p, k, done, n, err));
        done += n;
    }
out:
    return rc;
}
