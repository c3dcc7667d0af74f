/*
 * pi_gemm_simd.h - the kernels of pi_gemm.h over the vector operations of pi_cpu_simd.h, by which alone it is included.
 *
 * A tile of results is in registers: two vectors of rows for each token, beside two of weights and one value of x. AVX2 has 16 registers, AVX-512 and
 * others have 32.
 */
#ifndef PI_GEMM_SIMD_H
#define PI_GEMM_SIMD_H

#include "runtime/cpu/pi_gemm.h"

#define GEMM_TOKS (W == 16 ? 12 : 6)
#define GEMM_ROWS (2 * W)
#define GEMM_TILE (GEMM_TOKS * GEMM_ROWS)

/* Keeps the compiler from gathering the loads and products of several tokens before the first sum, for which registers are too few. */
#if defined(__x86_64__) && !defined(PI_CPU_EMU)
#define IN_ORDER(a, b) __asm__ volatile("" : "+v"(a), "+v"(b) : : "memory")
#else
#define IN_ORDER(a, b) ((void)0)
#endif

INLINE void gemm_load(const float *tile, VF sum[GEMM_TOKS][2])
{
#pragma GCC unroll 16
    for (int t = 0; t < GEMM_TOKS; t++) {
        sum[t][0] = v_load(tile + t * GEMM_ROWS);
        sum[t][1] = v_load(tile + t * GEMM_ROWS + W);
    }
}

INLINE void gemm_add(const float *tile, VF sum[GEMM_TOKS][2])
{
#pragma GCC unroll 16
    for (int t = 0; t < GEMM_TOKS; t++) {
        sum[t][0] = v_add(sum[t][0], v_load(tile + t * GEMM_ROWS));
        sum[t][1] = v_add(sum[t][1], v_load(tile + t * GEMM_ROWS + W));
    }
}

INLINE void gemm_store(VF sum[GEMM_TOKS][2], float *tile)
{
#pragma GCC unroll 16
    for (int t = 0; t < GEMM_TOKS; t++) {
        v_store(tile + t * GEMM_ROWS, sum[t][0]);
        v_store(tile + t * GEMM_ROWS + W, sum[t][1]);
    }
}

/* Floats of x that are asked for ahead: a panel's next part, or the next panel's. Panels of weights stay in the L1 cache while those of x pass. */
#define GEMM_AHEAD 768

INLINE void gemm_sums(uint32_t n, const float *w, const float *x, VF sum[GEMM_TOKS][2])
{
    for (uint32_t k = 0; k < n; k++, w += GEMM_ROWS, x += GEMM_TOKS) {
        VF w0 = v_load(w), w1 = v_load(w + W);

        __builtin_prefetch(x + GEMM_AHEAD);
#pragma GCC unroll 16
        for (int t = 0; t < GEMM_TOKS; t++) {
            VF xv = v_set(x[t]);

            sum[t][0] = v_fma(w0, xv, sum[t][0]);
            sum[t][1] = v_fma(w1, xv, sum[t][1]);
            IN_ORDER(sum[t][0], sum[t][1]);
        }
    }
}

static TARGET void gemm_dot(uint32_t n, const float *w, const float *x, float *out, size_t level,
                            uint32_t n_add)
{
    VF sum[GEMM_TOKS][2];

#pragma GCC unroll 16
    for (int t = 0; t < GEMM_TOKS; t++)
        sum[t][0] = sum[t][1] = v_zero();
    gemm_sums(n, w, x, sum);
    for (; n_add > 0; n_add--, out += level)
        gemm_add(out, sum);
    gemm_store(sum, out);
}

static TARGET void gemm_axpy(uint32_t n, const float *w, const float *x, float *out)
{
    VF sum[GEMM_TOKS][2];

    gemm_load(out, sum);
    gemm_sums(n, w, x, sum);
    gemm_store(sum, out);
}

_Static_assert(GEMM_TILE <= PI_GEMM_MAX_TILE && 2 * W <= PI_GEMM_MAX_CHAINS, "buffers");

/* Elements k..k + 8 of rows first..first + 8 of n, or of the width there are, side by side. */
INLINE void gemm_pack_eight(const float *src, size_t ld, uint32_t n, uint32_t first, uint32_t width,
                            float *const *to, size_t at)
{
    const uint32_t lanes = width - first < 8 ? width - first : 8;
    VB v[8], t[8];

#pragma GCC unroll 8
    for (uint32_t r = 0; r < 8; r++)
        v[r] = r < lanes && first + r < n ? b_load(src + (first + r) * ld) : b_set(0);
    b_transpose(v, t);
#pragma GCC unroll 8
    for (uint32_t k = 0; k < 8; k++) {
        alignas(32) float some[8];

        if (lanes == 8) {
            b_store(to[k] + at + first, t[k]);
            continue;
        }
        b_store(some, t[k]); /* behind a short one another thread may write */
        memcpy(to[k] + at + first, some, lanes * sizeof(*some));
    }
}

INLINE void gemm_pack_all(const float *src, size_t ld, uint32_t n, uint32_t width,
                          uint32_t n_groups, size_t step, float *const *to)
{
    for (uint32_t i = 0; i < n_groups; i++, src += 2 * W) {
#pragma GCC unroll 8
        for (uint32_t k = 0; k < 2 * W; k += 8) {
#pragma GCC unroll 4
            for (uint32_t first = 0; first < width; first += 8)
                gemm_pack_eight(src + k, ld, n, first, width, to + k, i * step);
        }
    }
}

/* pi_gemm.pack */
static TARGET void gemm_pack(const float *src, size_t ld, uint32_t n, uint32_t width,
                             uint32_t n_groups, size_t step, float *const *to)
{
    if (width == GEMM_ROWS && n == GEMM_ROWS)
        gemm_pack_all(src, ld, GEMM_ROWS, GEMM_ROWS, n_groups, step, to);
    else if (width == GEMM_ROWS)
        gemm_pack_all(src, ld, n, GEMM_ROWS, n_groups, step, to);
    else if (n == GEMM_TOKS)
        gemm_pack_all(src, ld, GEMM_TOKS, GEMM_TOKS, n_groups, step, to);
    else
        gemm_pack_all(src, ld, n, GEMM_TOKS, n_groups, step, to);
}

#define GEMM_TABLE(q8_set)                                                                         \
    {                                                                                              \
        .rows = GEMM_ROWS, .toks = GEMM_TOKS, .chains = 2 * W, .dot = gemm_dot, .axpy = gemm_axpy, \
        .pack = gemm_pack, .q8 = &(q8_set),                                                        \
    }

#endif
