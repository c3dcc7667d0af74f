/*
 * tiny_model.h - random models of a few kilobytes for tests: weights are a function of (seed, tensor name, index), so that the same
 * model can be written in any weight type and layout, and computed by hand.
 */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include "common/pi_shape.h"
#include "common/pi_type.h"

#include <stdbool.h>
#include <stdint.h>

struct tiny {
    enum pi_arch arch;
    const char *act; /* NULL: relu */
    float act_threshold;
    uint32_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
    enum pi_type type;       /* of the matrices */
    uint32_t n_embd_tok;     /* width of token embeddings; 0: n_embd */
    bool post_norm;          /* norms behind the blocks, none before the output */
    bool mlp_bias;           /* where the architecture does not say */
    bool two_norms;          /* a parallel block's attention has one of its own */
    uint32_t n_rot;          /* 0: all of head_dim */
    bool down_t, tied, bias; /* bias: on q, k, v, o where the architecture does not say */
    bool dequantised;        /* F32 matrices that hold what type would have kept */
    bool rope_freqs;
    const char *rope_scaling; /* NULL, "linear" or "yarn", factor 4 over 8 positions */
    uint64_t seed;
    const char *victim; /* a tensor to damage, or NULL */
    enum {
        TINY_OMIT,
        TINY_LONGER,
        TINY_NO_KERNEL
    } damage;
};

/* What an architecture looks like, as the models by hand have it. */
struct tiny_form {
    bool layer_norm, gated, act_up, learned_pos, neox, qk_norm, parallel, fused_qkv;
    bool qkv_bias, o_bias, mlp_bias;
};
struct tiny_form tiny_form(const struct tiny *t);

/* Where 0 stands for the usual. */
static inline uint32_t tiny_n_rot(const struct tiny *t)
{
    return t->n_rot != 0 ? t->n_rot : t->head_dim;
}

static inline uint32_t tiny_n_embd_tok(const struct tiny *t)
{
    return t->n_embd_tok != 0 ? t->n_embd_tok : t->n_embd;
}

/* The tensor as F32, row by row; the caller's to free(). Down projections are (n_ff, n_embd) under the name ffn_down_t. Values after rounding to
 * the tiny's type. */
float *tiny_tensor(const struct tiny *t, const char *name, uint32_t n_rows, uint32_t n_cols);
float *tiny_layer_tensor(const struct tiny *t, uint32_t layer, const char *stem, uint32_t n_rows,
                         uint32_t n_cols);

/* Writes a GGUF file; ends the test program on failure. */
void tiny_write(const struct tiny *t, const char *path);

/* Logits (n, n_vocab) of a sequence from position 0, in F64, one token after the other: the independent reference. The caller's to free(). */
double *tiny_forward(const struct tiny *t, const int32_t *tokens, uint32_t n);

/* A file name in the test's scratch folder; removed at exit. */
const char *tiny_path(const char *name);

#endif
