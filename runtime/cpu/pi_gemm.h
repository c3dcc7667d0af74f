/*
 * pi_gemm.h - blocked products of many tokens: panels of weights and of activations, and the kernels that multiply a panel by a panel.
 *
 * Weights are converted while they are packed, once for all tokens. A panel of weights holds rows side by side (the lanes of registers), a panel of
 * activations a few tokens; short ones are filled up with zeros, so that each product is made by the same instructions whatever stands beside it.
 * A token's result depends on its vector and on the weights alone:
 *   dot     the bits of dot_f32 on the row as to_f32 converts it. A dot product keeps pi_gemm.chains partial sums (element k belongs to sum k % chains) and
 *           adds them in pairs at the end. Panels are stored one chain after the other, in the order in which the sums are added: a product needs one lane.
 *   axpy    one running sum, over k in order: the bits of axpy_ids on rows of F32.
 *   q8      the bits of dot_rows_q8.
 * Measured on Zen 3 at 3.5 GHz, GFLOP/s of one core: OpenBLAS 0.3.21 on tiles in F32 72 to 85, dot and axpy 103 (AVX2 can do 112), q8 with weights of
 * 4 bits 250, others 146 (by products of bytes, with signs moved over, 130).
 * Pure functions on the caller's memory; thread safe.
 */
#ifndef PI_GEMM_H
#define PI_GEMM_H

#include "common/pi_predictor.h"
#include "runtime/cpu/pi_cpu.h"

#define PI_GEMM_MAX_CHAINS 32
#define PI_GEMM_MAX_TILE   (32 * 12) /* floats of the largest tile of results */

/* Weights of one type with quantised activations. A panel is a record for each block of 32 elements. */
struct pi_gemm_q8 {
    uint32_t w_bytes, x_bytes; /* of a record */
    /* n rows, stride bytes apart, n at most the set's rows; n tokens, ldx blocks apart, n at most its toks */
    void (*pack_w)(const void *rows, size_t stride, uint32_t n, uint32_t n_blocks, void *panel);
    void (*pack_x)(const struct pi_q8 *x, size_t ldx, uint32_t n, uint32_t n_blocks, void *panel);
    /* out (toks, rows) += n_blocks blocks, one after the other */
    void (*multiply)(uint32_t n_blocks, const void *w, const void *x, float *out);
};

struct pi_gemm_q8_set {
    uint32_t rows, toks;                          /* of a panel */
    const struct pi_gemm_q8 *type[PI_TYPE_COUNT]; /* NULL: none */
};

/* Kernels of one ISA. A tile of results is (toks, rows), dense; panels and tiles of weights lie on 64-byte boundaries. */
struct pi_gemm {
    uint32_t rows, toks; /* of a panel */
    uint32_t chains;     /* a power of two */
    /* w (n, rows), x (n, toks): the sums over n. The tiles at out, out + level, ... are added to them (n_add tiles, in order); the result is stored behind
     * those, at out + n_add * level. */
    void (*dot)(uint32_t n, const float *w, const float *x, float *out, size_t level,
                uint32_t n_add);
    /* out += w[k] x[k], k < n, one after the other */
    void (*axpy)(uint32_t n, const float *w, const float *x, float *out);
    /* src (n, ld), n_groups * chains elements of each row, to a panel width rows wide (rows or toks, n at most that; rows from n on are 0):
     * to[k % chains][k / chains * step + r] = element k of row r. */
    void (*pack)(const float *src, size_t ld, uint32_t n, uint32_t width, uint32_t n_groups,
                 size_t step, float *const *to);
    const struct pi_gemm_q8_set *q8;
};

/* Elements of a chain in rows of n_cols elements. */
uint32_t pi_gemm_chain(const struct pi_gemm *g, uint32_t n_cols);
/* Rows that are packed: src (n, ld), into a panel that is width rows wide (n <= width; the others 0). A chain's part of it is (chain, width) floats, the
 * next one's stands stride floats behind: chains of several panels are kept together, or panels as long as a power of two would share few sets of a cache. */
struct pi_gemm_rows {
    const float *src;
    size_t ld, stride;
    uint32_t n, width, n_cols;
};

/* Elements [first, first + count), at src[0..count) of each row. first is a multiple of chains, and so is count but for the last piece. */
void pi_gemm_pack_dot(const struct pi_gemm *g, const struct pi_gemm_rows *rows, uint32_t first,
                      uint32_t count, float *panel);
/* Rows [row, row + n) of w to a panel; n at most g->rows. tmp: pi_gemm_tmp_floats() floats. */
void pi_gemm_pack_weights(const struct pi_cpu *cpu, const struct pi_mat *w, uint32_t row,
                          uint32_t n, float *tmp, size_t stride, float *panel);
size_t pi_gemm_tmp_floats(const struct pi_gemm *g);

#endif
