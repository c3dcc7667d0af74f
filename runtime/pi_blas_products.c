/* Products of many tokens with weights as stored: packs both into panels and deals out tiles of rows. */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_gemm.h"
#include "runtime/pi_blas.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Up to here dot products on converted rows are faster than panels; tables without panels do all tokens so. */
#define FEW_TOKENS 8
#define FEW_ROWS   16
/* Rows that dot_rows computes side by side. */
#define FEW_SIDE 4
/* Panels of rows in a tile, at most. */
#define TILE_PANELS 4
/* A group of tokens' part of a chain stays in the L2 cache while it is multiplied by a tile's panels: at most so many floats. */
#ifndef GROUP_FLOATS
#define GROUP_FLOATS 49152
#define GROUP_BLOCKS 64
#endif
#define ALIGN_FLOATS  16
#define MAX_LEVELS(c) ((uint32_t)__builtin_ctz(c) + 1)

struct job {
    const struct pi_cpu *cpu;
    const struct pi_gemm *g; /* NULL: by dot products */
    const struct pi_blas_in *in;
    const struct pi_blas_out *outs;
    uint32_t n_outs, n_blocks, group;       /* panels of tokens, and those in a group */
    uint32_t tile_rows;                     /* rows of a tile */
    uint32_t n_tiles[PI_BLAS_MAX_OUTS + 1]; /* tiles of the outs before; all */
    float *x_panels, *thread_mem;
    size_t x_floats, w_floats, part_floats,
        thread_floats; /* a chain of a panel of x, of w; partial sums; all of a thread */
    atomic_uint next_tile;
};

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static uint32_t pieces(uint32_t n, uint32_t size)
{
    return n / size + (n % size != 0);
}

static size_t padded(size_t floats)
{
    return (floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

void pi_blas_scratch_free(struct pi_blas_scratch *s)
{
    if (s == NULL)
        return;
    free(s->mem);
    *s = (struct pi_blas_scratch){0};
}

static enum pi_code scratch_get(struct pi_blas_scratch *s, size_t floats, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (floats <= s->floats)
        return PI_OK;
    pi_blas_scratch_free(s);
    PI_ALLOC_ALIGNED(s->mem, floats, err);
    s->floats = floats;
out:
    return rc;
}

/* ---- tiles by panels ---- */

static void pack_x(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct pi_blas_in *in = j->in;

    for (size_t b = begin; b < end; b++) {
        uint32_t t = (uint32_t)b * j->g->toks;
        const struct pi_gemm_rows rows = {.src = in->x + t * in->ldx,
                                          .ld = in->ldx,
                                          .stride = j->n_blocks * j->x_floats,
                                          .n = (uint32_t)min_size(j->g->toks, in->n_tok - t),
                                          .width = j->g->toks,
                                          .n_cols = in->n_cols};

        pi_gemm_pack_dot(j->g, &rows, 0, in->n_cols, j->x_panels + b * j->x_floats);
    }
}

/* A tile of results, tokens from t and rows from row on. */
static void unload(const struct job *j, const struct pi_blas_out *o, const float *tile, uint32_t t,
                   uint32_t row)
{
    uint32_t nt = (uint32_t)min_size(j->g->toks, j->in->n_tok - t);
    uint32_t nr = (uint32_t)min_size(j->g->rows, o->w->n_rows - row);

    for (uint32_t i = 0; i < nt; i++, tile += j->g->rows) {
        float *out = o->out + (t + i) * o->ldo + row;

        memcpy(out, tile, nr * sizeof(*out));
        for (uint32_t r = 0; o->bias != NULL && r < nr; r++)
            out[r] += o->bias[row + r];
    }
}

/* All chains of a group of tokens with the packed panels of a tile. */
static void multiply_group(const struct job *j, const struct pi_blas_out *o, uint32_t row,
                           uint32_t n_panels, uint32_t first, const float *w, float *part)
{
    const struct pi_gemm *g = j->g;
    const uint32_t n = pi_gemm_chain(g, j->in->n_cols);
    const uint32_t blocks = (uint32_t)min_size(j->group, j->n_blocks - first);
    const size_t tile = (size_t)g->toks * g->rows, level = tile * blocks * n_panels;

    for (uint32_t i = 0; i < g->chains; i++) {
        uint32_t n_add = (uint32_t)__builtin_ctz(i + 1);

        for (uint32_t p = 0; p < n_panels; p++) {
            for (uint32_t b = 0; b < blocks; b++)
                g->dot(n, w + (i * n_panels + p) * j->w_floats,
                       j->x_panels + (i * j->n_blocks + first + b) * j->x_floats,
                       part + tile * (p * blocks + b), level, n_add);
        }
    }
    part += level * (MAX_LEVELS(g->chains) - 1);
    for (uint32_t p = 0; p < n_panels; p++) {
        for (uint32_t b = 0; b < blocks; b++)
            unload(j, o, part + tile * (p * blocks + b), (first + b) * g->toks, row + p * g->rows);
    }
}

static void panel_tile(const struct job *j, const struct pi_blas_out *o, uint32_t row, uint32_t n,
                       float *mem)
{
    float *part = mem, *tmp = part + j->part_floats, *w = tmp + pi_gemm_tmp_floats(j->g);
    uint32_t n_panels = pieces(n, j->g->rows);

    for (uint32_t p = 0; p < n_panels; p++)
        pi_gemm_pack_weights(j->cpu, o->w, row + p * j->g->rows,
                             (uint32_t)min_size(j->g->rows, n - p * j->g->rows), tmp,
                             n_panels * j->w_floats, w + p * j->w_floats);
    for (uint32_t b = 0; b < j->n_blocks; b += j->group)
        multiply_group(j, o, row, n_panels, b, w, part);
}

/* ---- tiles by dot products ---- */

/* rows (n, n_cols) in F32 times all tokens. */
static void dot_tokens(const struct job *j, const struct pi_blas_out *o, uint32_t row, uint32_t n,
                       const void *rows, size_t stride)
{
    for (uint32_t t = 0; t < j->in->n_tok; t++) {
        float *out = o->out + t * o->ldo + row;

        j->cpu->type[PI_TYPE_F32]->dot_rows(rows, stride, n, j->in->x + t * j->in->ldx,
                                            j->in->n_cols, out);
        for (uint32_t r = 0; o->bias != NULL && r < n; r++)
            out[r] += o->bias[row + r];
    }
}

static void dot_tile(const struct job *j, const struct pi_blas_out *o, uint32_t row, uint32_t n,
                     float *mem)
{
    const struct pi_mat *w = o->w;

    if (w->type == PI_TYPE_F32) {
        dot_tokens(j, o, row, n, pi_mat_row(w, row), w->row_bytes);
        return;
    }
    for (uint32_t i = 0; i < n; i += FEW_SIDE) {
        uint32_t side = (uint32_t)min_size(FEW_SIDE, n - i);

        for (uint32_t r = 0; r < side; r++)
            j->cpu->type[w->type]->to_f32(pi_mat_row(w, row + i + r), mem + (size_t)r * w->n_cols,
                                          w->n_cols);
        dot_tokens(j, o, row + i, side, mem, w->n_cols * sizeof(float));
    }
}

/* ---- all ---- */

static void tiles_thread(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    float *mem = j->thread_mem + thread * j->thread_floats;
    uint32_t i;

    (void)n_threads;
    while ((i = atomic_fetch_add_explicit(&j->next_tile, 1, memory_order_relaxed)) <
           j->n_tiles[j->n_outs]) {
        const struct pi_blas_out *o = j->outs;
        uint32_t k = 0, row, n;

        while (i >= j->n_tiles[k + 1])
            k++;
        o += k;
        row = (i - j->n_tiles[k]) * j->tile_rows;
        n = (uint32_t)min_size(j->tile_rows, o->w->n_rows - row);
        if (j->g != NULL)
            panel_tile(j, o, row, n, mem);
        else
            dot_tile(j, o, row, n, mem);
    }
}

/* Panels of a tile: many share what is read of the activations, few leave threads less to wait for at the end. */
static uint32_t tile_panels(const struct job *j, uint32_t n_threads)
{
    uint64_t least = UINT64_MAX;
    uint32_t best = 1;

    for (uint32_t p = 1; p <= TILE_PANELS; p++) {
        uint32_t tiles = 0;
        uint64_t cost;

        for (uint32_t k = 0; k < j->n_outs; k++)
            tiles += pieces(j->outs[k].w->n_rows, p * j->g->rows);
        cost = (uint64_t)pieces(tiles, n_threads) * (p * 100 + 12);
        if (cost <= least) {
            least = cost;
            best = p;
        }
    }
    return best;
}

/* Sizes of everything; the floats of scratch for all threads. */
static size_t plan(struct job *j, uint32_t n_threads)
{
    const struct pi_gemm *g = j->g;
    uint32_t chain, panels;

    if (g == NULL) {
        j->tile_rows = FEW_ROWS;
        j->thread_floats = padded((size_t)FEW_SIDE * j->in->n_cols);
        return j->thread_floats * n_threads;
    }
    chain = pi_gemm_chain(g, j->in->n_cols);
    panels = tile_panels(j, n_threads);
    j->n_blocks = pieces(j->in->n_tok, g->toks);
    j->group = chain > 0 ? GROUP_FLOATS / (chain * g->toks) : GROUP_BLOCKS;
    j->group = j->group < 1 ? 1 : (uint32_t)min_size(j->group, GROUP_BLOCKS);
    j->tile_rows = panels * g->rows;
    j->x_floats = (size_t)chain * g->toks;
    j->w_floats = (size_t)chain * g->rows;
    j->part_floats = padded((size_t)MAX_LEVELS(g->chains) * g->toks * g->rows * j->group * panels);
    j->thread_floats =
        j->part_floats + padded(pi_gemm_tmp_floats(g)) + g->chains * panels * j->w_floats;
    return j->thread_floats * n_threads + g->chains * j->n_blocks * j->x_floats;
}

enum pi_code pi_blas_products(struct pi_pool *pool, struct pi_blas_scratch *scratch,
                              const struct pi_blas_in *in, const struct pi_blas_out *outs,
                              uint32_t n_outs, struct pi_err *err)
{
    const uint32_t n_threads = pi_pool_size(pool);
    struct job j = {.in = in, .outs = outs, .n_outs = n_outs};
    enum pi_code rc = PI_OK;

    PI_TRY(pi_cpu_select(&j.cpu, err));
    for (uint32_t k = 0; k < n_outs; k++) {
        if (j.cpu->type[outs[k].w->type] == NULL)
            PI_FAIL(err, PI_E_UNSUPPORTED, "no kernels for weights of type %s",
                    pi_type_name(outs[k].w->type));
    }
    j.g = in->n_tok > FEW_TOKENS ? j.cpu->gemm : NULL;
    PI_TRY(scratch_get(scratch, plan(&j, n_threads), err));
    for (uint32_t k = 0; k < n_outs; k++)
        j.n_tiles[k + 1] = j.n_tiles[k] + pieces(outs[k].w->n_rows, j.tile_rows);
    j.thread_mem = scratch->mem;
    j.x_panels = scratch->mem + j.thread_floats * n_threads;
    if (j.g != NULL)
        pi_pool_for(pool, j.n_blocks, 1, pack_x, &j);
    pi_pool_run(pool, tiles_thread, &j);
out:
    return rc;
}

enum pi_code pi_blas_matmul(struct pi_pool *pool, const struct pi_mat *w, const float *x,
                            size_t ldx, uint32_t n_tok, const float *bias, float *out, size_t ldo,
                            struct pi_err *err)
{
    const struct pi_blas_in in = {.x = x, .ldx = ldx, .n_tok = n_tok, .n_cols = w->n_cols};
    const struct pi_blas_out o = {.w = w, .bias = bias, .out = out, .ldo = ldo};
    struct pi_blas_scratch scratch = {0};
    enum pi_code rc = pi_blas_products(pool, &scratch, &in, &o, 1, err);

    pi_blas_scratch_free(&scratch);
    return rc;
}
