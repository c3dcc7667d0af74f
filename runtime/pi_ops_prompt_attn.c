/*
 * pi_ops_prompt_attn.c - attention of prompt chunks: a few tokens of a head go over the keys and values together.
 *
 * A key is read and widened once for all tokens of a block, and so is a value. Each token has the sums, in the order, that pi_ops_attend() gives it: the same
 * bits, whatever tokens stand beside it.
 */
#include "config.h"

#include "runtime/pi_ops.h"

#include <math.h>
#include <string.h>

#define TOKS PI_ATTEND_TOKENS

/* Some tokens, one position after the other, of one head. */
struct block {
    uint32_t n_tok;
    uint32_t
        n_common; /* positions that all of them see: as many as the first sees; each token behind it sees one more */
    const float *q[TOKS];
    float *out[TOKS];
};

/* pi_softmax() of each token's column of scores (positions, n_tok). */
static void softmax_columns(const struct block *b, float *scores)
{
    float max[TOKS], scale[TOKS];
    double sum[TOKS] = {0.0};

    for (uint32_t j = 0; j < b->n_tok; j++)
        max[j] = -INFINITY;
    for (uint32_t k = 0; k < b->n_common + b->n_tok - 1; k++) {
        const float *x = scores + (size_t)k * b->n_tok;

        for (uint32_t j = k < b->n_common ? 0 : k - b->n_common + 1; j < b->n_tok; j++)
            max[j] = x[j] > max[j] ? x[j] : max[j];
    }
    for (uint32_t k = 0; k < b->n_common + b->n_tok - 1; k++) {
        float *x = scores + (size_t)k * b->n_tok;

        for (uint32_t j = k < b->n_common ? 0 : k - b->n_common + 1; j < b->n_tok; j++) {
            x[j] = expf(x[j] - max[j]);
            sum[j] += (double)x[j];
        }
    }
    for (uint32_t j = 0; j < b->n_tok; j++)
        scale[j] = (float)(1.0 / sum[j]);
    for (uint32_t k = 0; k < b->n_common + b->n_tok - 1; k++) {
        float *x = scores + (size_t)k * b->n_tok;

        for (uint32_t j = 0; j < b->n_tok; j++)
            x[j] *= scale[j];
    }
}

/* k, v: the head's part of position 0's rows. */
static void attend_block(const struct pi_state *s, const struct block *b, const uint8_t *k,
                         const uint8_t *v, float *scores)
{
    const struct pi_cpu_type *type = s->cpu->type[s->kv.type];
    const uint32_t hd = s->m->shape.head_dim, n = b->n_common + b->n_tok - 1;
    const size_t stride = s->kv.row_bytes;

    type->dot_many(k, stride, s->iota, n, 0, b->q, b->n_tok, hd, scores);
    softmax_columns(b, scores);
    for (uint32_t j = 0; j < b->n_tok; j++)
        memset(b->out[j], 0, hd * sizeof(*b->out[j]));
    type->axpy_many(v, stride, s->iota, b->n_common, 0, scores, b->out, b->n_tok, 0, hd);
    for (uint32_t j = 1; j < b->n_tok; j++) { /* what not all of them see */
        float own[TOKS];

        for (uint32_t i = 0; i < j; i++)
            own[i] = scores[(size_t)(b->n_common + i) * b->n_tok + j];
        type->axpy_ids(v, stride, s->iota + b->n_common, own, j, 0, hd, b->out[j]);
    }
}

void pi_ops_attend_tokens(const struct pi_state *s, uint32_t layer, uint32_t t, uint32_t n_tok,
                          uint32_t head, float *scores)
{
    const struct pi_shape *sh = &s->m->shape;
    const uint32_t kv_head = head / (sh->n_head / sh->n_head_kv);

    for (uint32_t end = t + n_tok; t < end;) {
        const uint32_t seq = pi_state_seq(s, t), pos = (uint32_t)s->pos[t];
        const size_t at =
            pi_kv_row(&s->kv, layer, seq, 0) + pi_kv_elem(&s->kv, kv_head * sh->head_dim);
        struct block b = {.n_common = pos + 1};

        for (; t < end && b.n_tok < TOKS && pi_state_seq(s, t) == seq &&
               (uint32_t)s->pos[t] == pos + b.n_tok;
             t++, b.n_tok++) {
            size_t mine = ((size_t)t * sh->n_head + head) * sh->head_dim;

            b.q[b.n_tok] = s->q + mine;
            b.out[b.n_tok] = s->attn + mine;
        }
        attend_block(s, &b, s->kv.k + at, s->kv.v + at, scores);
    }
}
