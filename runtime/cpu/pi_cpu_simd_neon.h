/*
 * pi_cpu_simd_neon.h - vectors of 32 bytes and of 8 floats by NEON instructions, each in two registers of 16 bytes: the twin of pi_cpu_simd_x86.h. A
 * processor of 64 bits has 32 registers, as many pairs as AVX2 has registers, so that the kernels are laid out for it as they are.
 *
 * The file that includes it defines TARGET (the functions' target attribute, or nothing) before.
 */
#ifndef PI_CPU_SIMD_NEON_H
#define PI_CPU_SIMD_NEON_H

#include "runtime/cpu/pi_cpu_int.h"

#include <arm_neon.h>
#include <stdalign.h>

#define OP static inline __attribute__((always_inline)) TARGET
#define VB struct neon_bytes  /* 32 bytes */
#define VH struct neon_floats /* 8 floats */

struct neon_bytes {
    uint8x16_t a, b;
};

struct neon_floats {
    float32x4_t a, b;
};

OP VB b_load(const void *p)
{
    const uint8_t *q = p;

    return (VB){vld1q_u8(q), vld1q_u8(q + 16)};
}

OP void b_store(void *p, VB v)
{
    uint8_t *q = p;

    vst1q_u8(q, v.a);
    vst1q_u8(q + 16, v.b);
}

OP VB b_set(int m)
{
    const uint8x16_t v = vdupq_n_u8((uint8_t)m);

    return (VB){v, v};
}

OP VB b_and(VB v, VB w)
{
    return (VB){vandq_u8(v.a, w.a), vandq_u8(v.b, w.b)};
}

/* w where v has no bits */
OP VB b_andnot(VB v, VB w)
{
    return (VB){vbicq_u8(w.a, v.a), vbicq_u8(w.b, v.b)};
}

OP VB b_or(VB v, VB w)
{
    return (VB){vorrq_u8(v.a, w.a), vorrq_u8(v.b, w.b)};
}

OP VB b_xor(VB v, VB w)
{
    return (VB){veorq_u8(v.a, w.a), veorq_u8(v.b, w.b)};
}

OP VB b_sub(VB v, VB w)
{
    return (VB){vsubq_u8(v.a, w.a), vsubq_u8(v.b, w.b)};
}

/* Bytes shifted by n < 8 bits. */
OP VB b_left(VB v, int n)
{
    const int8x16_t by = vdupq_n_s8((int8_t)n);

    return (VB){vshlq_u8(v.a, by), vshlq_u8(v.b, by)};
}

OP VB b_right(VB v, int n)
{
    return b_left(v, -n);
}

/* 16 bytes to 32 of 0..15: low halves, then high halves; the same times 16. */
OP VB b_halves(const uint8_t *q)
{
    const uint8x16_t v = vld1q_u8(q);

    return (VB){vandq_u8(v, vdupq_n_u8(0x0f)), vshrq_n_u8(v, 4)};
}

OP VB b_halves16(const uint8_t *q)
{
    const uint8x16_t v = vld1q_u8(q);

    return (VB){vshlq_n_u8(v, 4), vandq_u8(v, vdupq_n_u8(0xf0))};
}

/* 32 bits to 32 bytes, all ones where the bit is 0. */
OP VB b_clear_bits(const uint8_t *bits)
{
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    const uint8x16_t a = vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1])),
                     b = vcombine_u8(vdup_n_u8(bits[2]), vdup_n_u8(bits[3]));

    return (VB){vceqzq_u8(vandq_u8(a, bit)), vceqzq_u8(vandq_u8(b, bit))};
}

/* Four rows of four numbers to columns. */
OP void neon_transpose(float32x4_t r0, float32x4_t r1, float32x4_t r2, float32x4_t r3,
                       float32x4_t *out)
{
    const float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)),
                      t1 = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1)),
                      t2 = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3)),
                      t3 = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));

    out[0] = vreinterpretq_f32_f64(vtrn1q_f64(t0, t2));
    out[1] = vreinterpretq_f32_f64(vtrn1q_f64(t1, t3));
    out[2] = vreinterpretq_f32_f64(vtrn2q_f64(t0, t2));
    out[3] = vreinterpretq_f32_f64(vtrn2q_f64(t1, t3));
}

/* Eight rows of eight numbers of 32 bits to columns. */
OP void b_transpose(const VB *v, VB *out)
{
#define F(x) vreinterpretq_f32_u8(x)
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) { /* rows 0..3, 4..7 */
        const VB *r = v + 4 * i;
        float32x4_t t[8];

        neon_transpose(F(r[0].a), F(r[1].a), F(r[2].a), F(r[3].a), t);
        neon_transpose(F(r[0].b), F(r[1].b), F(r[2].b), F(r[3].b), t + 4);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            *(i == 0 ? &out[k].a : &out[k].b) = vreinterpretq_u8_f32(t[k]);
    }
#undef F
}

OP VH h_load(const float *p)
{
    return (VH){vld1q_f32(p), vld1q_f32(p + 4)};
}

OP void h_store(float *p, VH v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
}

OP VH h_set(float x)
{
    const float32x4_t v = vdupq_n_f32(x);

    return (VH){v, v};
}

OP VH h_mul(VH v, VH w)
{
    return (VH){vmulq_f32(v.a, w.a), vmulq_f32(v.b, w.b)};
}

OP VH h_fma(VH v, VH w, VH sum)
{
    return (VH){vfmaq_f32(sum.a, v.a, w.a), vfmaq_f32(sum.b, v.b, w.b)};
}

/* Values of F16. */
OP VH h_halves(uint16x8_t h)
{
    return (VH){vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))),
                vcvt_high_f32_f16(vreinterpretq_f16_u16(h))};
}

OP float half_value(uint16_t h)
{
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}

/* Eight bytes to floats. */
OP VH h_widen(const int8_t *q)
{
    const int16x8_t v = vmovl_s8(vld1_s8(q));

    return (VH){vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
}

OP VH h_widen_u8(uint8x8_t q)
{
    const uint16x8_t v = vmovl_u8(q);

    return (VH){vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v))};
}

/* n <= 8 values of F16, stride bytes apart, as floats; 0 up to the eighth. */
OP VH h_gather(const void *p, size_t stride, uint32_t n)
{
    const char *at = p;
    uint16x8_t h = vdupq_n_u16(0);

    if (n < 8) {
        uint16_t few[8] = {0};

        for (uint32_t i = 0; i < n; i++)
            few[i] = pi_read_u16(at + i * stride);
        return h_halves(vld1q_u16(few));
    }
    h = vsetq_lane_u16(pi_read_u16(at), h, 0);
    h = vsetq_lane_u16(pi_read_u16(at + stride), h, 1);
    h = vsetq_lane_u16(pi_read_u16(at + 2 * stride), h, 2);
    h = vsetq_lane_u16(pi_read_u16(at + 3 * stride), h, 3);
    h = vsetq_lane_u16(pi_read_u16(at + 4 * stride), h, 4);
    h = vsetq_lane_u16(pi_read_u16(at + 5 * stride), h, 5);
    h = vsetq_lane_u16(pi_read_u16(at + 6 * stride), h, 6);
    h = vsetq_lane_u16(pi_read_u16(at + 7 * stride), h, 7);
    return h_halves(h);
}

/* d * scale and dmin * min of the 8 parts of a Q4_K or Q5_K block, out of its first 16 bytes: d, dmin, 12 bytes of scales. The products are exact. */
OP void k_scales(const void *head, VH *scale, VH *min)
{
    uint16_t d[2];
    uint32_t u
        [3]; /* low bits of scales 0..3 and of minima 0..3, halves of the later ones; the top bits of these above the former */

    memcpy(d, head, sizeof(d));
    memcpy(u, (const char *)head + sizeof(d), sizeof(u));
    *scale = h_mul(h_set(half_value(d[0])),
                   h_widen_u8(vcreate_u8(
                       (u[0] & 0x3f3f3f3f) |
                       (uint64_t)((u[2] & 0x0f0f0f0f) | (u[0] >> 6 & 0x03030303) << 4) << 32)));
    *min = h_mul(h_set(half_value(d[1])),
                 h_widen_u8(vcreate_u8(
                     (u[1] & 0x3f3f3f3f) |
                     (uint64_t)((u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 6 & 0x03030303) << 4) << 32)));
}

#endif
