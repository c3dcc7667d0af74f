/*
 * pi_gpu_prompt_cold.c - cold neurons of a prompt chunk on the CPU: few tokens by row kernels, which read a row once for all of them; many by
 * products in F32, a tile of neurons after the other.
 */
#include "config.h"

#include "runtime/pi_gpu_prompt_int.h"

#include "runtime/pi_blas.h"

#include <string.h>

#define ROWS_A_PIECE 16

/* ---- few tokens ---- */

static void cold_thread(void *ctx, uint32_t thread, uint32_t n_threads)
{
    pi_cold_run(ctx, thread, n_threads);
}

static void by_rows(struct pi_gpu_prompt *p, uint32_t layer)
{
    const struct pi_dev_layer *y = &p->dm->layers[layer];
    const struct pi_layer_weights *w = &p->m->layers[layer];
    const struct pi_mat *takes = pi_ops_takes_q8(p->s, &w->gate) ? &w->gate : &w->up;
    const bool q8 = pi_ops_takes_q8(p->s, takes);
    struct pi_cold_job j = {.cpu = p->s->cpu,
                            .shape = p->shape,
                            .w = w,
                            .pool = p->pool,
                            .scratch = p->cold,
                            .n_tok = p->n_tok,
                            .x = p->h.normed,
                            .q8 = q8 ? p->s->q8 : NULL,
                            .n = y->n_cold,
                            .ids = y->host_cold_ids,
                            .mode = pi_activation_has_zeros(p->shape->act) ? PI_MODE_EXACT
                                                                           : PI_MODE_DENSE,
                            .out = p->h.part};

    if (q8)
        pi_ops_quantise(p->s, takes, p->h.normed, p->n_tok, p->s->q8);
    pi_pool_run(p->pool, cold_thread, &j);
}

/* ---- many tokens ---- */

struct tile {
    struct pi_gpu_prompt *p;
    uint32_t layer;
    const struct pi_mat *w; /* being converted */
    const uint32_t *ids;    /* (n) neurons */
    uint32_t n;
};

static void convert_range(void *ctx, size_t begin, size_t end)
{
    const struct tile *j = ctx;
    const struct pi_state *s = j->p->s;

    for (size_t i = begin; i < end; i++)
        s->cpu->type[j->w->type]->to_f32(pi_mat_row(j->w, j->ids[i]),
                                         s->down_tile + i * j->w->n_cols, j->w->n_cols);
}

/* Rows of a matrix to s->down_tile in F32. */
static void convert(struct tile *j, const struct pi_mat *w)
{
    j->w = w;
    pi_pool_for(j->p->pool, j->n, ROWS_A_PIECE, convert_range, j);
}

/* out (n_tok, n) = normed tile^T */
static void multiply(const struct tile *j, float *out)
{
    const struct pi_gpu_prompt *p = j->p;
    const uint32_t d = p->shape->n_embd;

    pi_blas_gemm(p->pool, false, true, p->n_tok, j->n, d, 1.0f, p->h.normed, d, p->s->down_tile, d,
                 0.0f, out, j->n);
}

/* cold_gate becomes the activation's output, cold_up what the down projection is given (not gated: both are cold_up). */
static void act_range(void *ctx, size_t begin, size_t end)
{
    const struct tile *j = ctx;
    struct pi_gpu_prompt *p = j->p;
    const float *bias = p->m->layers[j->layer].up_b;
    const bool gated = p->shape->gated;

    for (size_t t = begin; t < end; t++) {
        float *up = p->cold_up + t * j->n, *h = gated ? p->cold_gate + t * j->n : up;

        for (uint32_t i = 0; bias != NULL && i < j->n; i++)
            up[i] += bias[j->ids[i]];
        pi_activate_n(p->shape, h, j->n);
        for (uint32_t i = 0; gated && i < j->n; i++)
            up[i] *= h[i];
        for (uint32_t i = 0; p->s->obs != NULL && i < j->n; i++) {
            p->s->h[t * p->shape->n_ff + j->ids[i]] = h[i];
            p->s->prod[t * p->shape->n_ff + j->ids[i]] = up[i];
        }
    }
}

static void by_tiles(struct pi_gpu_prompt *p, uint32_t layer)
{
    const struct pi_dev_layer *y = &p->dm->layers[layer];
    const struct pi_layer_weights *w = &p->m->layers[layer];
    const uint32_t d = p->shape->n_embd;

    for (uint32_t i = 0; i < y->n_cold; i += PI_DOWN_TILE) {
        struct tile j = {.p = p,
                         .layer = layer,
                         .ids = y->host_cold_ids + i,
                         .n = y->n_cold - i < PI_DOWN_TILE ? y->n_cold - i : PI_DOWN_TILE};

        if (p->shape->gated) {
            convert(&j, &w->gate);
            multiply(&j, p->cold_gate);
        }
        convert(&j, &w->up);
        multiply(&j, p->cold_up);
        pi_pool_for(p->pool, p->n_tok, 4, act_range, &j);
        convert(&j, &w->down_t);
        pi_blas_gemm(p->pool, false, false, p->n_tok, d, j.n, 1.0f, p->cold_up, j.n,
                     p->s->down_tile, d, i == 0 ? 0.0f : 1.0f, p->h.part, d);
    }
}

void pi_gp_cold_cpu(struct pi_gpu_prompt *p, uint32_t layer)
{
    if (p->n_tok <= PI_COLD_TOKENS && p->s->obs == NULL)
        by_rows(p, layer);
    else
        by_tiles(p, layer);
}
