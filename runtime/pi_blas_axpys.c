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

struct job {
    const struct pi_cpu *cpu;
    const struct pi_gemm *g;
    const struct pi_blas_in *in;
    const struct pi_blas_out *o;
    uint32_t first, n;           /* rows of the piece */
    uint32_t n_blocks, n_panels; /* of tokens, of columns */
    float *w, *x, *sums,
        *tmp; /* panels of the piece; tiles (n_panels, n_blocks); a row for each thread */
    size_t tmp_floats;
    atomic_uint next;
};

/* Row k of the piece, converted, to its place in all panels. */
static void pack_row(const struct job *j, uint32_t k, float *tmp)
{
    const struct pi_mat *w = j->o->w;
    const uint32_t width = j->g->rows;

    j->cpu->type[w->type]->to_f32(pi_mat_row(w, j->first + k), tmp, w->n_cols);
    memset(tmp + w->n_cols, 0, ((size_t)j->n_panels * width - w->n_cols) * sizeof(*tmp));
    for (uint32_t p = 0; p < j->n_panels; p++)
        memcpy(j->w + ((size_t)p * PIECE_ROWS + k) * width, tmp + (size_t)p * width,
               width * sizeof(*tmp));
}

static void pack_tokens(const struct job *j, uint32_t block)
{
    const uint32_t toks = j->g->toks, t0 = block * toks;
    const uint32_t n = (uint32_t)pi_blas_min(toks, j->in->n_tok - t0);
    float *to = j->x + (size_t)block * PIECE_ROWS * toks;

    for (uint32_t k = 0; k < j->n; k++, to += toks) {
        for (uint32_t t = 0; t < n; t++)
            to[t] = j->in->x[(t0 + t) * j->in->ldx + j->first + k];
        for (uint32_t t = n; t < toks; t++)
            to[t] = 0.0f;
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
        for (uint32_t k = i * PACK_ROWS; k < j->n && k < (i + 1) * PACK_ROWS; k++)
            pack_row(j, k, j->tmp + thread * j->tmp_floats);
    }
}

static void unload(const struct job *j, const float *tile, uint32_t panel, uint32_t block)
{
    const uint32_t t0 = block * j->g->toks, c = panel * j->g->rows;
    const size_t n = pi_blas_min(j->g->rows, j->o->w->n_cols - c);

    for (uint32_t t = 0; t < j->g->toks && t0 + t < j->in->n_tok; t++)
        memcpy(j->o->out + (t0 + t) * j->o->ldo + c, tile + (size_t)t * j->g->rows,
               n * sizeof(*tile));
}

static void multiply_range(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const size_t size = (size_t)j->g->toks * j->g->rows;

    for (size_t p = begin; p < end; p++) {
        for (uint32_t b = 0; b < j->n_blocks; b++) {
            float *tile = j->sums + (p * j->n_blocks + b) * size;

            if (j->first == 0)
                memset(tile, 0, size * sizeof(*tile));
            j->g->axpy(j->n, j->w + p * PIECE_ROWS * j->g->rows,
                       j->x + (size_t)b * PIECE_ROWS * j->g->toks, tile);
            if (j->first + j->n == j->o->w->n_rows)
                unload(j, tile, (uint32_t)p, b);
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
    j->tmp_floats = (size_t)j->n_panels * g->rows;
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
