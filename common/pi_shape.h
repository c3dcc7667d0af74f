/*
 * pi_shape.h - the shape of a model: its hyper-parameters, read from GGUF metadata and cross-checked.
 *
 * The letters used in every shape comment of the project:
 *   n_layer   transformer blocks              n_embd   width of the residual stream
 *   n_ff      feed-forward neurons per block   n_vocab  tokens
 *   n_head    query heads                     n_head_kv  key/value heads
 *   head_dim  width of one head               n_embd_q = n_head * head_dim, n_embd_kv = n_head_kv * head_dim
 *   n_ctx     positions of a sequence         n_tok    tokens in one call (any sequences, any positions)
 * Arrays are row-major, slowest dimension first: (n_tok, n_embd).
 */
#ifndef PI_SHAPE_H
#define PI_SHAPE_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"

#include <stdbool.h>
#include <stdint.h>

enum pi_arch {
    PI_ARCH_LLAMA,
    PI_ARCH_OPT,
    PI_ARCH_ARCEE,
    PI_ARCH_NEMOTRON,
    PI_ARCH_QWEN2,
    PI_ARCH_QWEN3,
    PI_ARCH_BAMBOO,
    PI_ARCH_FALCON,
    PI_ARCH_COUNT
};

enum pi_activation {
    PI_ACT_RELU,
    PI_ACT_RELU2,   /* relu(x)^2 */
    PI_ACT_FATRELU, /* x if x > threshold else 0 */
    PI_ACT_SILU,
    PI_ACT_GELU,      /* erf form */
    PI_ACT_GELU_TANH, /* tanh approximation */
    PI_ACT_COUNT
};

enum pi_rope_scaling {
    PI_ROPE_NONE,
    PI_ROPE_LINEAR,
    PI_ROPE_YARN
};

/* Limits that no real model reaches; a file beyond them is corrupt. */
#define PI_MAX_LAYERS 1024
#define PI_MAX_EMBD   (1u << 20)
#define PI_MAX_FF     (1u << 22)
#define PI_MAX_VOCAB  (1u << 24)

struct pi_shape {
    enum pi_arch arch;
    uint32_t n_layer, n_embd, n_ff, n_vocab;
    uint32_t n_head, n_head_kv, head_dim;
    uint32_t n_ctx_train;
    float norm_eps;
    bool layer_norm; /* LayerNorm with bias (OPT, Nemotron); else RMSNorm */
    bool biases;     /* every projection has one (OPT); else those have that the file gives one */
    bool act_up;     /* gated: the activation is applied to up as well (Bamboo) */
    bool qk_norm;    /* RMSNorm over each head of q and k, before rotation (Qwen3) */
    bool parallel; /* the feed-forward block reads the layer's input, as attention does (Falcon) */
    bool
        post_norm; /* norms stand behind the blocks (OPT-350m); pi_model.h says what becomes of that */
    uint32_t
        n_embd_tok; /* width of the token embeddings; other than n_embd with projections (OPT-350m) */
    bool gated;     /* gate and up; else up (fc1) alone carries the activation */
    bool learned_pos;    /* position_embd, no rotary embedding */
    uint32_t pos_offset; /* rows of position_embd before position 0 (OPT: 2) */
    enum pi_activation act;
    float act_threshold; /* PI_ACT_FATRELU */
    uint32_t n_rot;      /* rotated part of each head; 0 without rotary embedding */
    /* pairs (i, i + n_rot/2); else (2i, 2i + 1) as llama's permuted rows want */
    bool rope_neox;
    float rope_base;
    enum pi_rope_scaling rope_scaling;
    float rope_factor;
    uint32_t rope_n_ctx_orig;
    float rope_attn_factor, rope_beta_fast, rope_beta_slow; /* yarn */
};

/* Reads {arch}.* keys and cross-checks them with each other and with the shapes of tensors that are there. n_vocab is the
 * number of rows of token_embd.weight, else the length of the tokenizer's list; n_ctx_train is at most what position_embd.weight
 * has room for. The activation: act_override unless NULL (--hidden-act's value: a name, for fatrelu "fatrelu:0.01"), else
 * {arch}.hidden_activation (with {arch}.hidden_activation_threshold), else the architecture's default, as in the table of pi_shape.c
 * (relu in PowerInfer's files, which start with PWRI).
 *
 * PI_E_UNSUPPORTED for an architecture, activation or rotary scaling we do not have; PI_E_CORRUPT for values that
 * contradict each other or pass the limits above; PI_E_USAGE for a bad act_override. */
enum pi_code pi_shape_read(const struct pi_gguf *g, const char *act_override, struct pi_shape *out,
                           struct pi_err *err) PI_MUST_CHECK;

/* Sets arch and what the architecture's name says of the form: norms, gate, kind of positions, the usual activation. */
void pi_shape_set_arch(struct pi_shape *s, enum pi_arch arch);

const char *pi_arch_name(enum pi_arch arch);
const char *pi_activation_name(enum pi_activation act);
/* Hugging Face's spellings too. */
bool pi_activation_from_name(const char *name, enum pi_activation *out);

/* --hidden-act's value: a name, of fatrelu with its threshold behind a colon ("fatrelu:0.01"); without one *threshold_out
 * stays as it is. PI_E_USAGE. */
enum pi_code pi_activation_parse(const char *text, enum pi_activation *act_out,
                                 float *threshold_out, struct pi_err *err) PI_MUST_CHECK;

/* What of a form the GPU's kernels do not have, or NULL: "norms on q and k". */
const char *pi_shape_gpu_lacks(const struct pi_shape *s);

/* True when the activation is exactly 0 for part of its inputs, so that sparse modes are lossless. */
bool pi_activation_has_zeros(enum pi_activation act);

#endif
