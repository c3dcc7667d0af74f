/*
 * pi_cpu_q8_neon.h - products of bytes by NEON instructions, for pi_cpu_simd_q8.h and pi_gemm_simd_q8.h: the twin of pi_cpu_q8_x86.h.
 *
 * Both factors have signs. Four products are added to 32 bits: by one instruction (sdot) where NEON_DOT is defined, else by way of pairs in 16 bits, which
 * hold them (128 * 127 * 2 = 32512). What is subtracted from weights is subtracted as its product with x, which all rows share; in blocked products when
 * weights are packed.
 */
#ifndef PI_CPU_Q8_NEON_H
#define PI_CPU_Q8_NEON_H

#include "runtime/cpu/pi_cpu_simd_neon.h"
#include "runtime/cpu/pi_cpu_simd_rows.h"

#define VQ float32x4_t /* a float of each of four rows */
#define VS struct neon_sums

/* The rows' integer sums: of the first 16 products of each and of the others, or of all and nothing. */
struct neon_sums {
    int32x4_t first, second;
};

/* sum + the products of four bytes in each lane */
OP int32x4_t neon_dot(int32x4_t sum, int8x16_t w, int8x16_t x)
{
#if defined(NEON_DOT)
    return vdotq_s32(sum, w, x);
#else
    return vpadalq_s16(sum,
                       vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x)));
#endif
}

OP VQ q_zero(void)
{
    return vdupq_n_f32(0.0f);
}

OP VQ q_set(float a)
{
    return vdupq_n_f32(a);
}

OP VQ q_mul(VQ a, VQ b)
{
    return vmulq_f32(a, b);
}

OP VQ q_fma(VQ a, VQ b, VQ c)
{
    return vfmaq_f32(c, a, b);
}

/* c - a * b */
OP VQ q_fnma(VQ a, VQ b, VQ c)
{
    return vfmsq_f32(c, a, b);
}

OP void q_store(float *p, VQ v)
{
    vst1q_f32(p, v);
}

/* A field of F16 of block b of each row. */
OP VQ q_gather(uint16_t (*field)(const void *, uint32_t), int rows, const void *const *row,
               uint32_t b)
{
    uint16x4_t h = vdup_n_u16(field(row[0], b));

    if (rows > 1)
        h = vset_lane_u16(field(row[1], b), h, 1);
    if (rows > 2)
        h = vset_lane_u16(field(row[2], b), h, 2);
    if (rows > 3)
        h = vset_lane_u16(field(row[3], b), h, 3);
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

/* Lane r of out[i]: lane i of v[r], i < 8. */
OP void q_transpose(int rows, const VH *v, VQ *out)
{
    const VH v1 = v[rows > 1 ? 1 : 0], v2 = v[rows > 2 ? 2 : 0], v3 = v[rows > 3 ? 3 : 0];

    neon_transpose(v[0].a, v1.a, v2.a, v3.a, out);
    neon_transpose(v[0].b, v1.b, v2.b, v3.b, out + 4);
}

OP VQ q_first(VS v)
{
    return vcvtq_f32_s32(v.first);
}

OP VQ q_second(VS v)
{
    return vcvtq_f32_s32(v.second);
}

OP VQ q_both(VS v)
{
    return vcvtq_f32_s32(v.first); /* where q8_products() was asked for no parts */
}

/* Lane r: the sum of p[r]. */
OP int32x4_t q8_four(const int32x4_t *p)
{
    return vpaddq_s32(vpaddq_s32(p[0], p[1]), vpaddq_s32(p[2], p[3]));
}

/* The rows' sums of products of 32 weights with as many of x; parts: those of both halves apart. */
OP VS q8_products(int bias, bool parts, int rows, const VB *w, const int8_t *q)
{
    const int8x16_t x0 = vld1q_s8(q), x1 = vld1q_s8(q + 16);
    int32x4_t start[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, p[2][ROWS];

    if (bias > 0) {
        const int8x16_t less = vdupq_n_s8((int8_t)-bias);

        start[0] = neon_dot(start[0], less, x0);
        start[1] = neon_dot(parts ? start[1] : start[0], less, x1);
        start[0] = parts ? start[0] : start[1];
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
        p[0][r] = p[1][r] = vdupq_n_s32(0);
        if (r >= rows)
            continue;
        p[0][r] = neon_dot(start[0], vreinterpretq_s8_u8(w[r].a), x0);
        p[1][r] = neon_dot(parts ? start[1] : p[0][r], vreinterpretq_s8_u8(w[r].b), x1);
    }
    return parts ? (VS){q8_four(p[0]), q8_four(p[1])} : (VS){q8_four(p[1]), vdupq_n_s32(0)};
}

/* ---- blocked products: 24 sums, four vectors of weights, one of x in 32 registers ---- */

#define GW       8
#define GI       struct neon_ints
#define GF       VH
#define Q8G_TOKS 6
#define Q8G_FOURS

struct neon_ints {
    int32x4_t a, b;
};

OP GI g_zero(void)
{
    return (GI){vdupq_n_s32(0), vdupq_n_s32(0)};
}

OP GI g_load(const void *p)
{
    const int32_t *i = p;

    return (GI){vld1q_s32(i), vld1q_s32(i + 4)};
}

OP GI g_spread(const void *four)
{
    const int32x4_t v = vld1q_dup_s32((const int32_t *)four);

    return (GI){v, v};
}

OP GI g_add(GI v, GI w)
{
    return (GI){vaddq_s32(v.a, w.a), vaddq_s32(v.b, w.b)};
}

OP GI g_step(GI sum, GI w, GI x)
{
    return (GI){neon_dot(sum.a, vreinterpretq_s8_s32(w.a), vreinterpretq_s8_s32(x.a)),
                neon_dot(sum.b, vreinterpretq_s8_s32(w.b), vreinterpretq_s8_s32(x.b))};
}

OP GI g_sums(GI sum)
{
    return sum;
}

OP GF g_floats(GI v)
{
    return (GF){vcvtq_f32_s32(v.a), vcvtq_f32_s32(v.b)};
}

OP GF gf_set(float a)
{
    return h_set(a);
}

OP GF gf_load(const float *p)
{
    return h_load(p);
}

OP void gf_store(float *p, GF v)
{
    h_store(p, v);
}

OP GF gf_mul(GF v, GF w)
{
    return h_mul(v, w);
}

OP GF gf_fma(GF v, GF w, GF sum)
{
    return h_fma(v, w, sum);
}

/* ---- activations ---- */

/* The largest magnitude of 32 as bits: they are in the order of the magnitudes, NaN last. */
OP uint32_t q8_max_bits(const float *x)
{
    const uint32x4_t mask = vdupq_n_u32(0x7fffffff);
    uint32x4_t max = vdupq_n_u32(0);

#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        max = vmaxq_u32(max, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + 4 * k)), mask));
    return vmaxvq_u32(max);
}

/* q = x / d, rounded, and what they add up to. */
OP int32_t q8_round(const float *x, float d, int8_t *out)
{
    int32x4_t sum = vdupq_n_s32(0);

#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const int32x4_t a = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(x + 8 * k), vdupq_n_f32(d))),
                        b = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(x + 8 * k + 4), vdupq_n_f32(d)));

        sum = vaddq_s32(sum, vaddq_s32(a, b));
        vst1_s8(out + 8 * k, vqmovn_s16(vcombine_s16(vqmovn_s32(a), vqmovn_s32(b))));
    }
    return vaddvq_s32(sum);
}

#endif
