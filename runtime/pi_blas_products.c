/* Products of many tokens with weights as stored: packs both into panels and deals out tiles of rows. */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_gemm.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_blas_int.h"

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
#define GROUP_FLOATS 49152
#define GROUP_BLOCKS 16
/* With quantised activations: 1024 elements of a panel of weights are 20 KB. */
#define Q8_STEP  32
#define Q8_GROUP 24

struct job;

/* How products are made. */
struct method {
    void (*plan)(struct job *j, uint32_t n_threads); /* sizes */
    pi_pool_range_fn pack;                           /* panels of tokens; NULL: none */
    /* rows [row, row + n) of an output for all tokens; mem: the thread's */
    void (*tile)(const struct job *j, const struct pi_blas_out *o, uint32_t row, uint32_t n,
                 float *mem);
};

struct job {
    const struct method *how;
    const struct pi_cpu *cpu;
    const struct pi_gemm *g;
    const struct pi_gemm_q8 *q8; /* with quantised activations */
    const struct pi_blas_in *in;
    const struct pi_blas_out *outs;
    uint32_t n_outs;
    uint32_t toks, rows, n_blocks, group;   /* of panels; panels of tokens, and those in a group */
    uint32_t tile_rows;                     /* rows of a tile */
    uint32_t n_tiles[PI_BLAS_MAX_OUTS + 1]; /* tiles of the outs before; all */
    float *x_panels, *thread_mem;
    /* floats: a panel of x and of w (of a chain of it), partial sums, all of a thread, all panels of x */
    size_t x_floats, w_floats, part_floats, thread_floats, all_x;
    atomic_uint next_tile;
};

void pi_blas_scratch_free(struct pi_blas_scratch *s)
{
    if (s == NULL)
        return;
    free(s->mem);
    *s = (struct pi_blas_scratch){0};
}

enum pi_code pi_blas_scratch_get(struct pi_blas_scratch *s, size_t floats, struct pi_err *err)
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

static bool takes_q8(const struct pi_cpu *cpu, const struct pi_blas_in *in, const struct pi_mat *w)
{
    return in->q8 != NULL && cpu->type[w->type]->dot_rows_q8 != NULL;
}

/* True if the two read the same panels of activations. */
static bool alike(const struct pi_cpu *cpu, const struct pi_blas_in *in, const struct pi_mat *a,
                  const struct pi_mat *b)
{
    const bool q8 = takes_q8(cpu, in, a);

    return q8 == takes_q8(cpu, in, b) && (!q8 || a->type == b->type);
}

/* Tiles of partial sums that are kept: one for each size of what has been added up. */
static uint32_t levels(const struct pi_gemm *g)
{
    return (uint32_t)__builtin_ctz(g->chains) + 1;
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
            tiles += pi_blas_pieces(j->outs[k].w->n_rows, p * j->rows);
        cost = (uint64_t)pi_blas_pieces(tiles, n_threads) * (p * 100 + 12);
        if (cost <= least) {
            least = cost;
            best = p;
        }
    }
    return best;
}

/* A tile of results, tokens from t and rows from row on. */
static void unload(const struct job *j, const struct pi_blas_out *o, const float *tile, uint32_t t,
                   uint32_t row)
{
    uint32_t nt = (uint32_t)pi_blas_min(j->toks, j->in->n_tok - t);
    uint32_t nr = (uint32_t)pi_blas_min(j->rows, o->w->n_rows - row);

    for (uint32_t i = 0; i < nt; i++, tile += j->rows) {
        float *out = o->out + (t + i) * o->ldo + row;

        pi_blas_copy_results(tile, nr, j->rows, out);
        for (uint32_t r = 0; o->bias != NULL && r < nr; r++)
            out[r] += o->bias[row + r];
    }
}

/* ---- panels in F32 ---- */

/* Floats from one chain of a tile's panels to the next: no power of two, or chains would share few sets of a cache while they are packed. */
static size_t w_stride(const struct job *j, uint32_t n_panels)
{
    return n_panels * j->w_floats + PI_BLAS_ALIGN;
}

static void pack_x(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct pi_blas_in *in = j->in;

    for (size_t b = begin; b < end; b++) {
        uint32_t t = (uint32_t)b * j->g->toks;
        const struct pi_gemm_rows rows = {.src = in->x + t * in->ldx,
                                          .ld = in->ldx,
                                          .stride = j->n_blocks * j->x_floats,
                                          .n = (uint32_t)pi_blas_min(j->g->toks, in->n_tok - t),
                                          .width = j->g->toks,
                                          .n_cols = in->n_cols};

        pi_gemm_pack_dot(j->g, &rows, 0, in->n_cols, j->x_panels + b * j->x_floats);
    }
}

/* All chains of a group of tokens with the packed panels of a tile. */
static void multiply_group(const struct job *j, const struct pi_blas_out *o, uint32_t row,
                           uint32_t n_panels, uint32_t first, const float *w, float *part)
{
    const struct pi_gemm *g = j->g;
    const uint32_t n = pi_gemm_chain(g, j->in->n_cols);
    const uint32_t blocks = (uint32_t)pi_blas_min(j->group, j->n_blocks - first);
    const size_t tile = (size_t)g->toks * g->rows, level = tile * blocks * n_panels;

    for (uint32_t i = 0; i < g->chains; i++) {
        uint32_t n_add = (uint32_t)__builtin_ctz(i + 1);

        for (uint32_t p = 0; p < n_panels; p++) {
            for (uint32_t b = 0; b < blocks; b++)
                g->dot(n, w + i * w_stride(j, n_panels) + p * j->w_floats,
                       j->x_panels + (i * j->n_blocks + first + b) * j->x_floats,
                       part + tile * (p * blocks + b), level, n_add);
        }
    }
    part += level * (levels(g) - 1);
    for (uint32_t p = 0; p < n_panels; p++) {
        for (uint32_t b = 0; b < blocks; b++)
            unload(j, o, part + tile * (p * blocks + b), (first + b) * g->toks, row + p * g->rows);
    }
}

static void panel_tile(const struct job *j, const struct pi_blas_out *o, uint32_t row, uint32_t n,
                       float *mem)
{
    float *part = mem, *tmp = part + j->part_floats, *w = tmp + pi_gemm_tmp_floats(j->g);
    uint32_t n_panels = pi_blas_pieces(n, j->rows);

    for (uint32_t p = 0; p < n_panels; p++)
        pi_gemm_pack_weights(j->cpu, o->w, row + p * j->g->rows,
                             (uint32_t)pi_blas_min(j->g->rows, n - p * j->g->rows), tmp,
                             w_stride(j, n_panels), w + p * j->w_floats);
    for (uint32_t b = 0; b < j->n_blocks; b += j->group)
        multiply_group(j, o, row, n_panels, b, w, part);
}

static void plan_panels(struct job *j, uint32_t n_threads)
{
    const struct pi_gemm *g = j->g;
    const uint32_t chain = pi_gemm_chain(g, j->in->n_cols);
    uint32_t panels;

    j->toks = g->toks;
    j->rows = g->rows;
    panels = tile_panels(j, n_threads);
    j->tile_rows = panels * g->rows;
    j->n_blocks = pi_blas_pieces(j->in->n_tok, g->toks);
    j->group = chain > 0 ? GROUP_FLOATS / (chain * g->toks) : GROUP_BLOCKS;
    j->group = j->group < 1 ? 1 : (uint32_t)pi_blas_min(j->group, GROUP_BLOCKS);
    j->x_floats = (size_t)chain * g->toks;
    j->w_floats = (size_t)chain * g->rows;
    j->all_x = j->x_floats * g->chains * j->n_blocks;
    j->part_floats = pi_blas_padded((size_t)levels(g) * g->toks * g->rows * j->group * panels);
    j->thread_floats =
        j->part_floats + pi_blas_padded(pi_gemm_tmp_floats(g)) + g->chains * w_stride(j, panels);
}

/* ---- panels with quantised activations ---- */

static void pack_x_q8(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const uint32_t n = j->in->n_cols / PI_Q8_BLOCK;

    for (size_t b = begin; b < end; b++) {
        uint32_t t = (uint32_t)b * j->toks;

        j->q8->pack_x(j->in->q8 + (size_t)t * n, n,
                      (uint32_t)pi_blas_min(j->toks, j->in->n_tok - t), n,
                      j->x_panels + b * j->x_floats);
    }
}

static void multiply_group_q8(const struct job *j, const struct pi_blas_out *o, uint32_t row,
                              uint32_t n_panels, uint32_t first, const float *w, float *part)
{
    const uint32_t n = j->in->n_cols / PI_Q8_BLOCK;
    const uint32_t blocks = (uint32_t)pi_blas_min(j->group, j->n_blocks - first);
    const size_t tile = (size_t)j->toks * j->rows;

    memset(part, 0, tile * n_panels * blocks * sizeof(*part));
    for (uint32_t k = 0; k < n; k += Q8_STEP) {
        for (uint32_t p = 0; p < n_panels; p++) {
            for (uint32_t b = 0; b < blocks; b++)
                j->q8->multiply((uint32_t)pi_blas_min(Q8_STEP, n - k),
                                w + p * j->w_floats + k * (j->q8->w_bytes / sizeof(float)),
                                j->x_panels + (first + b) * j->x_floats +
                                    k * (j->q8->x_bytes / sizeof(float)),
                                part + tile * (p * blocks + b));
        }
    }
    for (uint32_t p = 0; p < n_panels; p++) {
        for (uint32_t b = 0; b < blocks; b++)
            unload(j, o, part + tile * (p * blocks + b), (first + b) * j->toks, row + p * j->rows);
    }
}

static void panel_tile_q8(const struct job *j, const struct pi_blas_out *o, uint32_t row,
                          uint32_t n, float *mem)
{
    float *part = mem, *w = part + j->part_floats;
    uint32_t n_panels = pi_blas_pieces(n, j->rows);

    for (uint32_t p = 0; p < n_panels; p++)
        j->q8->pack_w(pi_mat_row(o->w, row + p * j->rows), o->w->row_bytes,
                      (uint32_t)pi_blas_min(j->rows, n - p * j->rows), j->in->n_cols / PI_Q8_BLOCK,
                      w + p * j->w_floats);
    for (uint32_t b = 0; b < j->n_blocks; b += j->group)
        multiply_group_q8(j, o, row, n_panels, b, w, part);
}

static void plan_panels_q8(struct job *j, uint32_t n_threads)
{
    const size_t n = j->in->n_cols / PI_Q8_BLOCK;
    uint32_t panels;

    j->toks = j->g->q8->toks;
    j->rows = j->g->q8->rows;
    panels = tile_panels(j, n_threads);
    j->tile_rows = panels * j->rows;
    j->n_blocks = pi_blas_pieces(j->in->n_tok, j->toks);
    j->group = Q8_GROUP;
    j->x_floats = n * j->q8->x_bytes / sizeof(float);
    j->w_floats = pi_blas_padded(n * j->q8->w_bytes / sizeof(float));
    j->all_x = j->x_floats * j->n_blocks;
    j->part_floats = pi_blas_padded((size_t)j->toks * j->rows * j->group * panels);
    j->thread_floats = j->part_floats + panels * j->w_floats;
}

/* ---- dot products ---- */

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

/* The same with quantised activations, on the rows as stored. */
static void dot_tokens_q8(const struct job *j, const struct pi_blas_out *o, uint32_t row,
                          uint32_t n)
{
    const size_t n_blocks = j->in->n_cols / PI_Q8_BLOCK;

    for (uint32_t t = 0; t < j->in->n_tok; t++) {
        float *out = o->out + t * o->ldo + row;

        j->cpu->type[o->w->type]->dot_rows_q8(pi_mat_row(o->w, row), o->w->row_bytes, n,
                                              j->in->q8 + t * n_blocks, j->in->n_cols, out);
        for (uint32_t r = 0; o->bias != NULL && r < n; r++)
            out[r] += o->bias[row + r];
    }
}

static void dot_tile(const struct job *j, const struct pi_blas_out *o, uint32_t row, uint32_t n,
                     float *mem)
{
    const struct pi_mat *w = o->w;

    if (takes_q8(j->cpu, j->in, w)) {
        dot_tokens_q8(j, o, row, n);
        return;
    }
    if (w->type == PI_TYPE_F32) {
        dot_tokens(j, o, row, n, pi_mat_row(w, row), w->row_bytes);
        return;
    }
    for (uint32_t i = 0; i < n; i += FEW_SIDE) {
        uint32_t side = (uint32_t)pi_blas_min(FEW_SIDE, n - i);

        for (uint32_t r = 0; r < side; r++)
            j->cpu->type[w->type]->to_f32(pi_mat_row(w, row + i + r), mem + (size_t)r * w->n_cols,
                                          w->n_cols);
        dot_tokens(j, o, row + i, side, mem, w->n_cols * sizeof(float));
    }
}

static void plan_dots(struct job *j, uint32_t n_threads)
{
    (void)n_threads;
    j->tile_rows = FEW_ROWS;
    j->thread_floats = pi_blas_padded((size_t)FEW_SIDE * j->in->n_cols);
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
        n = (uint32_t)pi_blas_min(j->tile_rows, o->w->n_rows - row);
        j->how->tile(j, o, row, n, mem);
    }
}

static const struct method by_dots = {plan_dots, NULL, dot_tile};
static const struct method by_panels = {plan_panels, pack_x, panel_tile};
static const struct method by_panels_q8 = {plan_panels_q8, pack_x_q8, panel_tile_q8};

/* Outputs that one method makes together, j->outs[0] the first. */
static enum pi_code run(struct pi_pool *pool, struct pi_blas_scratch *scratch, struct job *j,
                        struct pi_err *err)
{
    const uint32_t n_threads = pi_pool_size(pool);
    const enum pi_type type = j->outs->w->type;
    enum pi_code rc;

    j->g = j->cpu->gemm;
    j->q8 = j->g != NULL && takes_q8(j->cpu, j->in, j->outs->w) ? j->g->q8->type[type] : NULL;
    if (j->in->n_tok <= FEW_TOKENS || j->g == NULL ||
        (j->q8 == NULL && takes_q8(j->cpu, j->in, j->outs->w)))
        j->how = &by_dots;
    else
        j->how = j->q8 != NULL ? &by_panels_q8 : &by_panels;
    j->how->plan(j, n_threads);
    PI_TRY(pi_blas_scratch_get(scratch, j->thread_floats * n_threads + j->all_x, err));
    for (uint32_t k = 0; k < j->n_outs; k++)
        j->n_tiles[k + 1] = j->n_tiles[k] + pi_blas_pieces(j->outs[k].w->n_rows, j->tile_rows);
    j->thread_mem = scratch->mem;
    j->x_panels = scratch->mem + j->thread_floats * n_threads;
    if (j->how->pack != NULL)
        pi_pool_for(pool, j->n_blocks, 1, j->how->pack, j);
    pi_pool_run(pool, tiles_thread, j);
out:
    return rc;
}

enum pi_code pi_blas_products(struct pi_pool *pool, struct pi_blas_scratch *scratch,
                              const struct pi_blas_in *in, const struct pi_blas_out *outs,
                              uint32_t n_outs, struct pi_err *err)
{
    const struct pi_cpu *cpu = NULL;
    enum pi_code rc;

    PI_TRY(pi_cpu_select(&cpu, err));
    for (uint32_t k = 0; k < n_outs; k++) {
        if (cpu->type[outs[k].w->type] == NULL)
            PI_FAIL(err, PI_E_UNSUPPORTED, "no kernels for weights of type %s",
                    pi_type_name(outs[k].w->type));
    }
    for (uint32_t k = 0, n; k < n_outs; k += n) {
        struct job j = {.cpu = cpu, .in = in, .outs = outs + k};

        for (n = 1; k + n < n_outs && alike(cpu, in, outs[k].w, outs[k + n].w); n++)
            ;
        j.n_outs = n;
        PI_TRY(run(pool, scratch, &j, err));
    }
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
