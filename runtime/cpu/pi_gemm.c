/* Panels for the blocked products. */
#include "config.h"

#include "runtime/cpu/pi_gemm.h"

#include <string.h>

/* Elements of rows that are converted before they are packed: whole blocks of every type, a panel of them in the L1 cache. */
#define PIECE 256
/* Rows and elements that pi_gemm.transpose takes. */
#define SIDE 8

uint32_t pi_gemm_chain(const struct pi_gemm *g, uint32_t n_cols)
{
    return n_cols / g->chains + (n_cols % g->chains != 0);
}

/* order[i]: the partial sum that comes i-th when neighbours are added: sum c to sum c + chains / 2, then the result to that of c + chains / 4, and so on. */
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

/* Rows from first on; those after n are 0. */
static void pack_element(const struct pi_gemm_rows *rows, uint32_t first, uint32_t k, float *to)
{
    for (uint32_t r = first; r < rows->n; r++)
        to[r] = rows->src[r * rows->ld + k];
    for (uint32_t r = rows->n; r < rows->width; r++)
        to[r] = 0.0f;
}

void pi_gemm_pack_dot(const struct pi_gemm *g, const struct pi_gemm_rows *rows, uint32_t first,
                      uint32_t count, float *panel)
{
    const size_t chain = pi_gemm_chain(g, rows->n_cols);
    uint32_t order[PI_GEMM_MAX_CHAINS], at[PI_GEMM_MAX_CHAINS];

    order_chains(g->chains, order);
    for (uint32_t i = 0; i < g->chains; i++)
        at[order[i]] = i;
    if (first + count == rows->n_cols && rows->n_cols % g->chains != 0) {
        for (uint32_t i = 0; i < g->chains; i++)
            memset(panel + i * rows->stride + (chain - 1) * rows->width, 0,
                   rows->width * sizeof(*panel));
    }
    for (uint32_t k = first; k < first + count; k += SIDE) {
        float *to[SIDE];
        uint32_t n = first + count - k < SIDE ? first + count - k : SIDE, done = 0;

        for (uint32_t i = 0; i < n; i++) {
            uint32_t place = place_of(g, rows->n_cols, k + i);

            to[i] = panel + at[place % g->chains] * rows->stride +
                    (size_t)(place / g->chains) * rows->width;
        }
        for (; g->transpose != NULL && n == SIDE && rows->n - done >= SIDE; done += SIDE) {
            g->transpose(rows->src + done * rows->ld + (k - first), rows->ld, to);
            for (uint32_t i = 0; i < SIDE; i++)
                to[i] += SIDE;
        }
        for (uint32_t i = 0; i < n; i++)
            pack_element(rows, done, k - first + i, to[i] - done);
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

    for (uint32_t k = 0; k < w->n_cols; k += PIECE) {
        uint32_t count = w->n_cols - k < PIECE ? w->n_cols - k : PIECE;
        size_t skip = (size_t)(k / info->block_elems) * info->block_bytes;

        for (uint32_t r = 0; r < n; r++)
            cpu->type[w->type]->to_f32((const char *)pi_mat_row(w, row + r) + skip, tmp + r * PIECE,
                                       count);
        pi_gemm_pack_dot(cpu->gemm, &rows, k, count, panel);
    }
}
