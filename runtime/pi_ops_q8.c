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
    others &= !s->m->shape.post_norm; /* there the residual goes on from x itself */
    n = (size_t)n_tok * takes->n_cols;
    for (size_t i = 0; others && i < n; i++)
        x[i] = out[i / PI_Q8_BLOCK].d * (float)out[i / PI_Q8_BLOCK].q[i % PI_Q8_BLOCK];
}
