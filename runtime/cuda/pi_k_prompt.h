/*
 * pi_k_prompt.h - the device kernels of prompt chunks beside matrix products, as C functions that launch them into a stream.
 *
 * As in pi_kernels.h: no CUDA type, nothing allocated, nothing waited for; errors of launches show in pi_gpu_launched(); all pointers are device pointers; equal
 * inputs give equal bytes. A "scale" is what row t of a product has to be multiplied by because its input was multiplied by the reciprocal, both powers of two
 * (pi_kp_norm, pi_kp_act); NULL: 1.
 */
#ifndef PI_K_PROMPT_H
#define PI_K_PROMPT_H

#include "common/pi_shape.h"
#include "runtime/cuda/pi_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PI_KP_MAX_HEAD_DIM 256

struct pi_kp_token {
    int32_t pos;
    uint32_t seq;
};

/* Neighbouring tokens of a chunk that follow each other in one sequence: queries that attention works on together. */
struct pi_kp_tile {
    uint32_t first, n; /* tokens [first, first + n), n <= pi_kp_tile_size() */
    uint32_t pos, seq; /* position of the first */
};

/* out[t] = norm(in[rows[t]]) (rows NULL: in[t]; norm->w NULL: in as it is); in (..., n_embd). out32 (n_tok, n_embd) and out16 (the same in F16, of the row
 * times a power of two that brings its largest element near 1024; its reciprocal to scale[t]): either may be NULL. With norm->w and rows NULL out32 may be in. */
void pi_kp_norm(const struct pi_k_norm *norm, const float *in, const uint32_t *rows, float *out32,
                void *out16, float *scale, uint32_t n_tok, uint32_t n_embd, void *stream);

struct pi_kp_qkv {
    const struct pi_shape *shape;
    const float *q_b, *k_b, *v_b; /* or NULL */
    const float *q_scale, *k_scale, *v_scale;
    const float *inv_freq; /* or NULL */
    float rope_mscale;
    enum pi_type kv_type;
    void *k_cache, *v_cache;
    uint32_t n_ctx;
};
/* What pi_k_qkv() does behind its products: q = rope(q * scale + b) / sqrt(head_dim) in place; keys, rotated, and values to row seq * n_ctx + pos of
 * the caches. q (n_tok, n_embd_q), k, v (n_tok, n_embd_kv). */
void pi_kp_rope_store(const struct pi_kp_qkv *a, float *q, const float *k, const float *v,
                      const struct pi_kp_token *tokens, uint32_t n_tok, void *stream);

/* Most queries of a tile. */
uint32_t pi_kp_tile_size(uint32_t head_dim);
/* out (n_tok, n_embd_q): each head of each token over cache rows seq * n_ctx + [0, pos], softmax computed piece by piece of the context with a running maximum, all in
 * F32. q is scaled. head_dim <= PI_KP_MAX_HEAD_DIM. */
void pi_kp_attn(const struct pi_shape *shape, enum pi_type kv_type, const float *q,
                const void *k_cache, const void *v_cache, uint32_t n_ctx,
                const struct pi_kp_tile *tiles, uint32_t n_tiles, float *out, void *stream);

struct pi_kp_act {
    const struct pi_shape *shape;
    const float *gate_scale, *up_scale;
    const float *up_b; /* (n) or NULL */
    float *gate, *up;  /* (n_tok, ld), n columns used; gate only where gated */
    uint32_t n, ld;
    void *prod16; /* (n_tok, ld) F16, or NULL */
    float *scale; /* (n_tok) of prod16 */
};
/* gate = act(gate * scale), up = gate * up * scale; not gated: up = act(up * scale + up_b). prod16: up in F16, scaled as in pi_kp_norm(). */
void pi_kp_act(const struct pi_kp_act *a, uint32_t n_tok, void *stream);

/* residual[t] += src[t] * scale[t] + bias; (n_tok, n_embd); src may be NULL (the bias alone), bias too. */
void pi_kp_add(float *residual, const float *src, const float *scale, const float *bias,
               uint32_t n_tok, uint32_t n_embd, void *stream);

/* x[t][i] *= scale[t], i < n; rows ld apart. */
void pi_kp_scale(float *x, uint32_t ld, uint32_t n, const float *scale, uint32_t n_tok,
                 void *stream);

/* Rows [first, first + n) of w to out (n, n_cols) in F16 or F32, whatever pi_dev_type_ok() takes. */
void pi_kp_convert(const struct pi_dmat *w, uint32_t first, uint32_t n, enum pi_type type,
                   void *out, void *stream);

/* Rows ids[0..n) of a matrix that lies in host memory which the device can read, row_bytes apart, elem_bytes * n_cols long: to dst, dst_row_bytes
 * apart. Rows begin at multiples of elem_bytes. */
void pi_kp_gather(const void *src, size_t row_bytes, const uint32_t *ids, uint32_t n,
                  uint32_t n_cols, uint32_t elem_bytes, void *dst, size_t dst_row_bytes,
                  void *stream);

#ifdef __cplusplus
}
#endif
#endif
