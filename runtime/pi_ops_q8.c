/* pi_ops_q8.c - quantised activations: which products take them, and the products of many tokens. */
#include "config.h"

#include "runtime/pi_ops.h"

bool pi_ops_takes_q8(const struct pi_state *s, const struct pi_mat *w)
{
    return s->act == PI_ACT_TYPE_Q8 && w->data != NULL &&
           s->cpu->type[w->type]->dot_rows_q8 != NULL;
}

void pi_ops_quantise(const struct pi_state *s, const struct pi_mat *w, const float *x,
                     uint32_t n_tok, struct pi_q8 *out)
{
    size_t n = w->n_cols; /* rows of quantised matrices are whole blocks: so are the vectors */

    for (uint32_t t = 0; t < n_tok && pi_ops_takes_q8(s, w); t++)
        s->cpu->quantise_q8(x + t * n, out + t * n / PI_Q8_BLOCK, w->n_cols);
}

void pi_ops_quantise_group(const struct pi_state *s, const struct pi_mat *const *mats, int n_mats,
                           bool others, float *x, uint32_t n_tok, struct pi_q8 *out)
{
    const struct pi_mat *takes = NULL;
    size_t n;

    for (int i = 0; i < n_mats; i++) {
        if (pi_ops_takes_q8(s, mats[i]))
            takes = mats[i];
        else
            others |= mats[i]->data != NULL;
    }
    if (takes == NULL)
        return;
    pi_ops_quantise(s, takes, x, n_tok, out);
    n = (size_t)n_tok * takes->n_cols;
    for (size_t i = 0; others && i < n; i++)
        x[i] = out[i / PI_Q8_BLOCK].d * (float)out[i / PI_Q8_BLOCK].q[i % PI_Q8_BLOCK];
}

/* ---- many tokens ---- */

#define TILE_ROWS 32 /* stay in the cache while all tokens are taken through them */
#define TILE_TOKS 32

struct product {
    const struct pi_cpu_type *type;
    const struct pi_mat *w;
    const struct pi_q8 *x;
    uint32_t n_tok;
    const float *bias;
    float *out;
};

/* Rows [row, row + n) for tokens [tok, tok + n_x). */
static void multiply_tile(const struct product *p, uint32_t row, uint32_t n, uint32_t tok,
                          uint32_t n_x)
{
    float tile[TILE_ROWS * TILE_TOKS];
    uint32_t ids[TILE_ROWS];
    const struct pi_q8 *x[TILE_TOKS];

    for (uint32_t i = 0; i < n; i++)
        ids[i] = row + i;
    for (uint32_t t = 0; t < n_x; t++)
        x[t] = p->x + (size_t)(tok + t) * (p->w->n_cols / PI_Q8_BLOCK);
    p->type->dot_many_q8(p->w->data, p->w->row_bytes, ids, n, 0, x, n_x, p->w->n_cols, tile);
    for (uint32_t t = 0; t < n_x; t++) {
        float *out = p->out + (size_t)(tok + t) * p->w->n_rows + row;

        for (uint32_t i = 0; i < n; i++)
            out[i] = tile[i * n_x + t];
        for (uint32_t i = 0; p->bias != NULL && i < n; i++)
            out[i] += p->bias[row + i];
    }
}

static void multiply_range(void *ctx, size_t begin, size_t end)
{
    const struct product *p = ctx;

    for (size_t r = begin; r < end; r += TILE_ROWS) {
        uint32_t n = end - r < TILE_ROWS ? (uint32_t)(end - r) : TILE_ROWS;

        for (uint32_t t = 0; t < p->n_tok; t += TILE_TOKS)
            multiply_tile(p, (uint32_t)r, n, t,
                          p->n_tok - t < TILE_TOKS ? p->n_tok - t : TILE_TOKS);
    }
}

void pi_ops_product_q8(const struct pi_state *s, const struct pi_mat *w, const struct pi_q8 *x,
                       uint32_t n_tok, const float *bias, float *out)
{
    struct product p = {s->cpu->type[w->type], w, x, n_tok, bias, out};

    pi_pool_for(s->pool, w->n_rows, TILE_ROWS, multiply_range, &p);
}
