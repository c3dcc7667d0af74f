/* Panels for the blocked products. */
#include "config.h"

#include "runtime/cpu/pi_gemm.h"

#include <string.h>

/* Elements of rows that are converted before they are packed: whole blocks of every type, a panel of them in the L1 cache. */
#define PIECE 256
/* What is asked for of the next piece of a row at a time. */
#define LINE 64

uint32_t pi_gemm_chain(const struct pi_gemm *g, uint32_t n_cols)
{
    return n_cols / g->chains + (n_cols % g->chains != 0);
}

/* order[i]: the partial sum that comes i-th when neighbours are added: sum c to sum c + chains / 2, then the result to that of c + chains / 4, and so on. These
 * are the bits of i in reverse, so it is the place of sum i too. */
static void order_chains(uint32_t chains, uint32_t *order)
{
    order[0] = 0;
    for (uint32_t n = 1; n < chains; n *= 2) {
        for (uint32_t i = n; i-- > 0;) {
            order[2 * i + 1] = order[i] + n;
            order[2 * i] = order[i];
        }
    }
}

/* The place of element k: dot_f32 gives a rest of less than half the chains to the second half. */
static uint32_t place_of(const struct pi_gemm *g, uint32_t n_cols, uint32_t k)
{
    uint32_t rest = n_cols % g->chains;

    return k >= n_cols - rest && rest < g->chains / 2 ? k + g->chains / 2 : k;
}

static void pack_element(const struct pi_gemm_rows *rows, uint32_t k, float *to)
{
    for (uint32_t r = 0; r < rows->n; r++)
        to[r] = rows->src[r * rows->ld + k];
    for (uint32_t r = rows->n; r < rows->width; r++)
        to[r] = 0.0f;
}

void pi_gemm_pack_dot(const struct pi_gemm *g, const struct pi_gemm_rows *rows, uint32_t first,
                      uint32_t count, float *panel)
{
    const uint32_t chain = pi_gemm_chain(g, rows->n_cols), groups = count / g->chains;
    uint32_t at[PI_GEMM_MAX_CHAINS];
    float *to[PI_GEMM_MAX_CHAINS];

    order_chains(g->chains, at);
    for (uint32_t i = 0; i < g->chains; i++)
        to[i] = panel + at[i] * rows->stride + (size_t)(first / g->chains) * rows->width;
    g->pack(rows->src, rows->ld, rows->n, rows->width, groups, rows->width, to);
    if (groups * g->chains == count)
        return;
    for (uint32_t i = 0; i < g->chains; i++)
        memset(panel + i * rows->stride + (size_t)(chain - 1) * rows->width, 0,
               rows->width * sizeof(*panel));
    for (uint32_t k = groups * g->chains; k < count; k++) {
        uint32_t place = place_of(g, rows->n_cols, first + k);

        pack_element(rows, k,
                     panel + at[place % g->chains] * rows->stride +
                         (size_t)(place / g->chains) * rows->width);
    }
}

size_t pi_gemm_tmp_floats(const struct pi_gemm *g)
{
    return (size_t)g->rows * PIECE;
}

void pi_gemm_pack_weights(const struct pi_cpu *cpu, const struct pi_mat *w, uint32_t row,
                          uint32_t n, float *tmp, size_t stride, float *panel)
{
    const struct pi_type_info *info = pi_type_info(w->type);
    const struct pi_gemm_rows rows = {.src = tmp,
                                      .ld = PIECE,
                                      .stride = stride,
                                      .n = n,
                                      .width = cpu->gemm->rows,
                                      .n_cols = w->n_cols};
    const size_t piece = (size_t)(PIECE / info->block_elems) * info->block_bytes;

    for (uint32_t k = 0; k < w->n_cols; k += PIECE) {
        uint32_t count = w->n_cols - k < PIECE ? w->n_cols - k : PIECE;
        size_t skip = (size_t)(k / info->block_elems) * info->block_bytes;

        for (uint32_t r = 0; r < n; r++) {
            const char *src = (const char *)pi_mat_row(w, row + r) + skip;

            for (size_t i = 0; i < piece && k + count < w->n_cols; i += LINE)
                __builtin_prefetch(src + piece + i);
            cpu->type[w->type]->to_f32(src, tmp + r * PIECE, count);
        }
        pi_gemm_pack_dot(cpu->gemm, &rows, k, count, panel);
    }
}
