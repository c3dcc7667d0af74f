/*
 * pi_gpu_prompt_far.c - layers whose attention is on the CPU: the products of long chunks are made on the GPU all the same, with rows of the weights streamed through
 * the slots of cold neurons. Inputs and results cross; rotation, cache and attention itself stay on the CPU, where the cache is.
 *
 * A chunk's products take the CPU time in proportion to its tokens, streaming takes the same time for any number of them: where cold neurons are streamed
 * (more tokens than opt.cpu_tokens) these weights are too.
 */
#include "config.h"

#include "runtime/pi_gpu_prompt_int.h"

#include "common/pi_alloc.h"

#define MAX_OUTS 3

/* ---- create ---- */

static bool streamable(const struct pi_gpu_prompt *p, const struct pi_mat *w)
{
    return pi_dev_type_ok(w->type) && pi_dev_row_bytes(w->type, w->n_cols) <= p->size.slot_bytes;
}

static uint32_t rows_a_piece(const struct pi_gpu_prompt *p, const struct pi_mat *w)
{
    const uint64_t n = p->size.slot_bytes / pi_dev_row_bytes(w->type, w->n_cols);

    return n < w->n_rows ? (uint32_t)n : w->n_rows;
}

static uint32_t n_pieces(const struct pi_gpu_prompt *p, const struct pi_mat *w)
{
    const uint32_t each = rows_a_piece(p, w);

    return (w->n_rows + each - 1) / each;
}

bool pi_gp_is_far(const struct pi_gpu_prompt *p, uint32_t layer)
{
    const struct pi_layer_weights *w = &p->m->layers[layer];

    return p->size.slot_bytes > 0 && !p->dm->layers[layer].has_attn && streamable(p, &w->q) &&
           streamable(p, &w->k) && streamable(p, &w->v) && streamable(p, &w->o);
}

enum pi_code pi_gp_far_create(struct pi_gpu_prompt *p, struct pi_err *err)
{
    uint32_t most = 0;
    enum pi_code rc = PI_OK;

    if (p->ring.begin == NULL) /* nothing can be streamed */
        return PI_OK;
    for (uint32_t l = 0; l < p->dm->n_layer; l++) {
        const struct pi_layer_weights *w = &p->m->layers[l];
        uint32_t qkv, o;

        if (!pi_gp_is_far(p, l))
            continue;
        qkv = n_pieces(p, &w->q) + n_pieces(p, &w->k) + n_pieces(p, &w->v);
        o = n_pieces(p, &w->o);
        most = qkv > most ? qkv : most;
        most = o > most ? o : most;
    }
    if (most > 0)
        PI_ALLOC(p->far_pieces, most, err);
out:
    return rc;
}

/* ---- run ---- */

/* Some products of one input. */
struct far {
    struct pi_gp_run run;
    const struct pi_blas_in *in;
    const struct pi_blas_out *outs;
    uint32_t n_outs;
    float *x32;                   /* the input on the device */
    float *dev[MAX_OUTS];         /* the results there, (n_tok, n_rows) */
    const float *scale[MAX_OUTS]; /* what their rows have yet to be multiplied by; NULL: 1 */
};

/* Pieces of all matrices, one after the other; their number. */
static uint32_t cut_pieces(struct pi_gpu_prompt *p, const struct far *f)
{
    uint32_t n = 0;

    for (uint32_t m = 0; m < f->n_outs; m++) {
        const struct pi_mat *w = f->outs[m].w;
        const uint32_t each = rows_a_piece(p, w);

        for (uint32_t i = 0; i < w->n_rows; i += each)
            p->far_pieces[n++] = (struct pi_gp_piece){
                .first = i, .n = w->n_rows - i < each ? w->n_rows - i : each, .mat = w};
    }
    return n;
}

/* The input to the device, in the forms that these matrices' products take; on the grid of quantised activations where one of them takes those. */
static enum pi_code send_input(struct pi_gpu_prompt *p, const struct far *f, struct pi_err *err)
{
    struct pi_k_norm none = {0};
    bool half = false;
    enum pi_code rc;

    PI_TRY(pi_gpu_copy_async(f->x32, f->in->x, (size_t)f->in->n_tok * f->in->n_cols * sizeof(float),
                             p->stream, err));
    for (uint32_t m = 0; m < f->n_outs; m++) {
        half = half || pi_gp_half(p, f->outs[m].w->type);
        none.q8 = none.q8 || pi_ops_takes_q8(p->s, f->outs[m].w);
    }
    if (half || none.q8)
        pi_kp_norm(&none, f->x32, NULL, none.q8 ? f->x32 : NULL, half ? p->d.x16 : NULL,
                   p->d.x_scale, f->in->n_tok, f->in->n_cols, p->stream);
    PI_TRY(pi_gpu_launched(err));
out:
    return rc;
}

static enum pi_code run_products(struct pi_gp_run *u, struct pi_err *err)
{
    struct far *f = (struct far *)u->ctx;
    struct pi_gpu_prompt *p = u->p;
    const struct pi_gp_in x = {f->x32, p->d.x16, p->d.x_scale};
    uint32_t i = 0;
    enum pi_code rc;

    PI_TRY(send_input(p, f, err));
    for (uint32_t m = 0; m < f->n_outs; m++) {
        const struct pi_mat *w = f->outs[m].w;

        for (uint32_t r = 0; r < w->n_rows; r += p->ring.pieces[i++].n) {
            struct pi_dmat rows;

            PI_TRY(pi_gp_piece_begin(u, i, err));
            rows = pi_gp_piece_rows(p, i, w, 0);
            PI_TRY(pi_gp_rows_product(p, &rows, 0, rows.n_rows, &x, f->in->n_tok, f->dev[m] + r,
                                      w->n_rows, &f->scale[m], err));
            PI_TRY(pi_gp_piece_end(u, i, err));
            PI_TRY(pi_gp_mark(p, err));
        }
    }
out:
    return rc;
}

/* Results to the host, complete when this returns. */
static enum pi_code take_results(struct pi_gpu_prompt *p, const struct far *f, struct pi_err *err)
{
    const uint32_t n_tok = f->in->n_tok;
    enum pi_code rc;

    for (uint32_t m = 0; m < f->n_outs; m++) {
        const uint32_t n = f->outs[m].w->n_rows;

        if (f->scale[m] != NULL)
            pi_kp_scale(f->dev[m], n, n, f->scale[m], n_tok, p->stream);
        PI_TRY(pi_gpu_launched(err));
        PI_TRY(pi_gpu_copy_async(f->outs[m].out, f->dev[m], (size_t)n_tok * n * sizeof(float),
                                 p->stream, err));
    }
    PI_TRY(pi_gp_await_stream(p, p->stream, err));
out:
    return rc;
}

static void bias_range(void *ctx, size_t begin, size_t end)
{
    const struct pi_blas_out *o = ctx;

    for (size_t t = begin; t < end; t++) {
        for (uint32_t i = 0; i < o->w->n_rows; i++)
            o->out[t * o->ldo + i] += o->bias[i];
    }
}

enum pi_code pi_gp_far_products(void *ctx, const struct pi_blas_in *in,
                                const struct pi_blas_out *outs, uint32_t n_outs, struct pi_err *err)
{
    struct pi_gpu_prompt *p = ctx;
    struct far f = {.run = {.p = p, .body = run_products, .err = err},
                    .in = in,
                    .outs = outs,
                    .n_outs = n_outs,
                    .x32 = n_outs == 1 ? p->d.attn : p->d.x32,
                    .dev = {n_outs == 1 ? p->d.tmp : p->d.q, p->d.k, p->d.v}};
    enum pi_code rc;

    f.run.ctx = &f;
    PI_TRY(pi_gp_ring_run(&f.run, p->far_pieces, cut_pieces(p, &f)));
    PI_TRY(take_results(p, &f, err));
    for (uint32_t m = 0; m < n_outs; m++) {
        struct pi_blas_out o = outs[m];

        if (o.bias != NULL)
            pi_pool_for(p->pool, in->n_tok, 8, bias_range, &o);
    }
out:
    return rc;
}
