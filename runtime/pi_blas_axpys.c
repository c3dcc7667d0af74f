/* Products of many tokens with weights stored row by row of what is summed over: neuron-major down-projections. */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_gemm.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_blas_int.h"

#include <stdatomic.h>
#include <string.h>

/* Rows of weights that are packed for all tokens before they are multiplied: 16 KB of each panel. */
#define PIECE_ROWS 256
/* Rows converted, panels multiplied, tokens done without panels by one thread at a time. */
#define PACK_ROWS   16
#define MULT_PANELS 2
#define PLAIN_TOKS  8

/* Columns of rows that are converted before they are packed: whole blocks of every type, and whole panels. */
#define PACK_COLS 256
/* Tokens' panels that stay in the L2 cache while they are multiplied by the panels of a range. */
#define GROUP_BLOCKS 32

struct job {
    const struct pi_cpu *cpu;
    const struct pi_gemm *g;
    const struct pi_blas_in *in;
    const struct pi_blas_out *o;
    uint32_t first, n;           /* rows of the piece */
    uint32_t n_blocks, n_panels; /* of tokens, of columns */
    float *w, *x, *sums,
        *tmp; /* panels of the piece; tiles (n_panels, n_blocks); rows for each thread */
    size_t tmp_floats;
    atomic_uint next;
};

/* Rows [k, k + n) of the piece, n at most PACK_ROWS, some columns at a time: converted, then a panel after the other. */
static void pack_rows(const struct job *j, uint32_t k, uint32_t n, float *tmp)
{
    const struct pi_mat *w = j->o->w;
    const struct pi_type_info *info = pi_type_info(w->type);
    const uint32_t width = j->g->rows;

    for (uint32_t c = 0; c < w->n_cols; c += PACK_COLS) {
        const uint32_t count = (uint32_t)pi_blas_min(PACK_COLS, w->n_cols - c);
        const size_t skip = (size_t)(c / info->block_elems) * info->block_bytes;

        for (uint32_t i = 0; i < n; i++) {
            float *to = tmp + (size_t)i * PACK_COLS;

            j->cpu->type[w->type]->to_f32((const char *)pi_mat_row(w, j->first + k + i) + skip, to,
                                          count);
            memset(to + count, 0, (PACK_COLS - count) * sizeof(*to));
        }
        for (uint32_t p = 0; p * width < count; p++) {
            float *to = j->w + ((size_t)(c / width + p) * PIECE_ROWS + k) * width;

            for (uint32_t i = 0; i < n; i++)
                pi_blas_copy_eights(tmp + (size_t)i * PACK_COLS + p * width, width,
                                    to + (size_t)i * width);
        }
    }
}

static void pack_tokens(const struct job *j, uint32_t block)
{
    const struct pi_gemm *g = j->g;
    const uint32_t t0 = block * g->toks, n = (uint32_t)pi_blas_min(g->toks, j->in->n_tok - t0);
    const uint32_t groups = j->n / g->chains;
    const float *x = j->in->x + t0 * j->in->ldx + j->first;
    float *to = j->x + (size_t)block * PIECE_ROWS * g->toks, *each[PI_GEMM_MAX_CHAINS];

    for (uint32_t i = 0; i < g->chains; i++)
        each[i] = to + (size_t)i * g->toks;
    g->pack(x, j->in->ldx, n, g->toks, groups, (size_t)g->chains * g->toks, each);
    to += (size_t)groups * g->chains * g->toks;
    for (uint32_t k = groups * g->chains; k < j->n; k++, to += g->toks) {
        for (uint32_t t = 0; t < g->toks; t++)
            to[t] = t < n ? x[t * j->in->ldx + k] : 0.0f;
    }
}

static void pack_thread(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    const uint32_t of_rows = pi_blas_pieces(j->n, PACK_ROWS);
    uint32_t i;

    (void)n_threads;
    while ((i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) <
           of_rows + j->n_blocks) {
        if (i >= of_rows) {
            pack_tokens(j, i - of_rows);
            continue;
        }
        pack_rows(j, i * PACK_ROWS, (uint32_t)pi_blas_min(PACK_ROWS, j->n - i * PACK_ROWS),
                  j->tmp + thread * j->tmp_floats);
    }
}

static void unload(const struct job *j, const float *tile, uint32_t panel, uint32_t block)
{
    const uint32_t t0 = block * j->g->toks, c = panel * j->g->rows;
    const uint32_t n = (uint32_t)pi_blas_min(j->g->rows, j->o->w->n_cols - c);

    for (uint32_t t = 0; t < j->g->toks && t0 + t < j->in->n_tok; t++, tile += j->g->rows)
        pi_blas_copy_results(tile, n, j->g->rows, j->o->out + (t0 + t) * j->o->ldo + c);
}

static void multiply(const struct job *j, uint32_t panel, uint32_t block)
{
    const size_t size = (size_t)j->g->toks * j->g->rows;
    float *tile = j->sums + ((size_t)panel * j->n_blocks + block) * size;

    if (j->first == 0)
        memset(tile, 0, size * sizeof(*tile));
    j->g->axpy(j->n, j->w + (size_t)panel * PIECE_ROWS * j->g->rows,
               j->x + (size_t)block * PIECE_ROWS * j->g->toks, tile);
    if (j->first + j->n == j->o->w->n_rows)
        unload(j, tile, panel, block);
}

static void multiply_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (uint32_t b0 = 0; b0 < j->n_blocks; b0 += GROUP_BLOCKS) {
        for (size_t p = begin; p < end; p++) {
            for (uint32_t b = b0; b < j->n_blocks && b < b0 + GROUP_BLOCKS; b++)
                multiply(j, (uint32_t)p, b);
        }
    }
}

static enum pi_code by_panels(struct pi_pool *pool, struct pi_blas_scratch *scratch, struct job *j,
                              struct pi_err *err)
{
    const struct pi_gemm *g = j->g;
    const size_t n_threads = pi_pool_size(pool);
    size_t w, x, sums;
    enum pi_code rc;

    j->n_blocks = pi_blas_pieces(j->in->n_tok, g->toks);
    j->n_panels = pi_blas_pieces(j->o->w->n_cols, g->rows);
    w = (size_t)j->n_panels * g->rows * PIECE_ROWS;
    x = pi_blas_padded((size_t)j->n_blocks * g->toks * PIECE_ROWS);
    sums = (size_t)j->n_panels * g->rows * j->n_blocks * g->toks;
    j->tmp_floats = PACK_ROWS * PACK_COLS;
    PI_TRY(pi_blas_scratch_get(scratch, w + x + sums + n_threads * j->tmp_floats, err));
    j->w = scratch->mem;
    j->x = j->w + w;
    j->sums = j->x + x;
    j->tmp = j->sums + sums;
    for (; j->first < j->o->w->n_rows; j->first += PIECE_ROWS) {
        j->n = (uint32_t)pi_blas_min(PIECE_ROWS, j->o->w->n_rows - j->first);
        atomic_store_explicit(&j->next, 0, memory_order_relaxed);
        pi_pool_run(pool, pack_thread, j);
        pi_pool_for(pool, j->n_panels, MULT_PANELS, multiply_range, j);
    }
out:
    return rc;
}

/* Tokens [PLAIN_TOKS * begin, PLAIN_TOKS * end), a row after the other. */
static void plain_thread(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct job *j = ctx;
    const struct pi_mat *w = j->o->w;
    float *row = j->tmp + thread * j->tmp_floats;
    uint32_t i;

    (void)n_threads;
    while ((i = atomic_fetch_add_explicit(&j->next, PLAIN_TOKS, memory_order_relaxed)) <
           j->in->n_tok) {
        const uint32_t end = (uint32_t)pi_blas_min(j->in->n_tok, (size_t)i + PLAIN_TOKS);

        for (uint32_t t = i; t < end; t++)
            memset(j->o->out + t * j->o->ldo, 0, w->n_cols * sizeof(float));
        for (uint32_t k = 0; k < w->n_rows; k++) {
            j->cpu->type[w->type]->to_f32(pi_mat_row(w, k), row, w->n_cols);
            for (uint32_t t = i; t < end; t++)
                j->cpu->axpy_f32(j->in->x[t * j->in->ldx + k], row, j->o->out + t * j->o->ldo,
                                 w->n_cols);
        }
    }
}

enum pi_code pi_blas_axpys(struct pi_pool *pool, struct pi_blas_scratch *scratch,
                           const struct pi_blas_in *in, const struct pi_blas_out *out,
                           struct pi_err *err)
{
    struct job j = {.in = in, .o = out};
    enum pi_code rc;

    PI_TRY(pi_cpu_select(&j.cpu, err));
    j.g = j.cpu->gemm;
    if (j.cpu->type[out->w->type] == NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED, "no kernels for weights of type %s",
                pi_type_name(out->w->type));
    if (j.g != NULL && out->w->n_rows > 0)
        return by_panels(pool, scratch, &j, err);
    j.tmp_floats = pi_blas_padded(out->w->n_cols);
    PI_TRY(pi_blas_scratch_get(scratch, j.tmp_floats * pi_pool_size(pool), err));
    j.tmp = scratch->mem;
    pi_pool_run(pool, plain_thread, &j);
out:
    return rc;
}
