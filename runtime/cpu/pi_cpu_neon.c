/* NEON kernels, of which every processor of 64 bits has the instructions: the vector operations; pi_cpu_simd.h makes kernels of them. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(PI_CPU_NEON)
#define TARGET
#include "runtime/cpu/pi_cpu_simd_neon.h"

#define W  8
#define VF VH

OP VF v_zero(void)
{
    return h_set(0.0f);
}

OP VF v_set(float a)
{
    return h_set(a);
}

OP VF v_load(const float *p)
{
    return h_load(p);
}

OP void v_store(float *p, VF a)
{
    h_store(p, a);
}

/* The first n lanes, n < 8; the others 0. */
OP VF v_load_part(const float *p, uint32_t n)
{
    float f[W] = {0};

    memcpy(f, p, n * sizeof(f[0]));
    return h_load(f);
}

OP void v_store_part(float *p, uint32_t n, VF a)
{
    float f[W];

    h_store(f, a);
    memcpy(p, f, n * sizeof(f[0]));
}

/* Eight floats: the first eight lanes, others 0. */
OP VF v_load8(const float *p)
{
    return h_load(p);
}

OP void v_store8(float *p, VF a)
{
    h_store(p, a);
}

OP VF v_add(VF v, VF w)
{
    return (VF){vaddq_f32(v.a, w.a), vaddq_f32(v.b, w.b)};
}

OP VF v_sub(VF v, VF w)
{
    return (VF){vsubq_f32(v.a, w.a), vsubq_f32(v.b, w.b)};
}

OP VF v_mul(VF v, VF w)
{
    return h_mul(v, w);
}

OP VF v_fma(VF v, VF w, VF sum)
{
    return h_fma(v, w, sum);
}

/* v * w - sum */
OP VF v_fms(VF v, VF w, VF sum)
{
    return h_fma(v, w, (VF){vnegq_f32(sum.a), vnegq_f32(sum.b)});
}

/* sum - v * w */
OP VF v_fnma(VF v, VF w, VF sum)
{
    return (VF){vfmsq_f32(sum.a, v.a, w.a), vfmsq_f32(sum.b, v.b, w.b)};
}

/* In the order of the AVX2 kernels. */
OP float v_sum(VF v)
{
    float32x4_t s = vaddq_f32(v.a, v.b);

    return vpadds_f32(vadd_f32(vget_low_f32(s), vget_high_f32(s)));
}

OP VF load_f32(const void *row, size_t at)
{
    return v_load((const float *)row + at);
}

OP VF part_f32(const void *row, size_t at, uint32_t n)
{
    return v_load_part((const float *)row + at, n);
}

OP uint16x8_t load_half(const void *row, size_t at)
{
    return vld1q_u16((const uint16_t *)row + at);
}

OP uint16x8_t part_half(const void *row, size_t at, uint32_t n)
{
    uint16_t h[W] = {0};

    memcpy(h, (const uint16_t *)row + at, n * sizeof(h[0]));
    return vld1q_u16(h);
}

OP VF load_f16(const void *row, size_t at)
{
    return h_halves(load_half(row, at));
}

OP VF part_f16(const void *row, size_t at, uint32_t n)
{
    return h_halves(part_half(row, at, n));
}

OP VF widen_bf16(uint16x8_t h)
{
    return (VF){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}

OP VF load_bf16(const void *row, size_t at)
{
    return widen_bf16(load_half(row, at));
}

OP VF part_bf16(const void *row, size_t at, uint32_t n)
{
    return widen_bf16(part_half(row, at, n));
}

/* An F16 value in all lanes. */
OP VF v_half(uint16_t h)
{
    const float32x4_t v = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));

    return (VF){v, v};
}

/* W signed bytes, unsigned bytes to floats. */
OP VF widen_i8(const uint8_t *q)
{
    return h_widen((const int8_t *)q);
}

OP VF widen_byte(const uint8_t *q)
{
    return h_widen_u8(vld1_u8(q));
}

static TARGET void from_f32_f16(const float *x, void *row_out, uint32_t n)
{
    uint16_t *h = row_out;
    uint32_t i = 0;

    for (; n - i >= 4; i += 4)
        vst1_u16(h + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    for (; i < n; i++)
        h[i] = pi_f32_to_f16(x[i]);
}

#include "runtime/cpu/pi_cpu_simd.h"

TABLE(pi_neon_, PI_ISA_NEON);
TABLE(pi_neondot_, PI_ISA_NEONDOT);

const struct pi_cpu *pi_cpu_neon(bool dot)
{
    return dot ? &pi_neondot_table : &pi_neon_table;
}
#else
const struct pi_cpu *pi_cpu_neon(bool dot)
{
    (void)dot;
    return NULL;
}
#endif
