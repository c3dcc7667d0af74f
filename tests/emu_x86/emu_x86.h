/*
 * emu_x86.h - the AVX-512 and VNNI intrinsics that runtime/cpu uses, in plain C by Intel's descriptions, for processors that have AVX2 alone: with PI_CPU_EMU
 * defined the kernels' sources are compiled against it (tests/cpu_emu.mk), and the tests of kernels run on them. Whatever is not here does not compile then.
 * Functions that are not inlined: slow, but a quick build.
 */
#ifndef PI_EMU_X86_H
#define PI_EMU_X86_H

#include "runtime/cpu/pi_cpu_int.h"

#include <immintrin.h>
#include <math.h>

/* A register; masks of 16 bits for lanes of 32. */
union emu_v512 {
    float f[16];
    int32_t i[16];
    uint32_t u[16];
    int16_t w[32];
    int8_t b[64];
    uint8_t ub[64];
};

#define EMU static __attribute__((noinline, unused))
#define V   union emu_v512

/* An operation on lanes: out.FIELD[k] = VALUE. */
#define EMU_LANES(NAME, ARGS, N, FIELD, VALUE) \
    EMU V NAME ARGS                            \
    {                                          \
        V out;                                 \
                                               \
        for (int k = 0; k < (N); k++)          \
            out.FIELD[k] = VALUE;              \
        return out;                            \
    }

EMU_LANES(emu_setzero, (void), 16, i, 0)
EMU_LANES(emu_set1_ps, (float a), 16, f, a)
EMU_LANES(emu_set1_epi32, (int a), 16, i, a)
EMU_LANES(emu_set1_epi16, (short a), 32, w, a)
EMU_LANES(emu_add_ps, (V a, V b), 16, f, a.f[k] + b.f[k])
EMU_LANES(emu_sub_ps, (V a, V b), 16, f, a.f[k] - b.f[k])
EMU_LANES(emu_mul_ps, (V a, V b), 16, f, a.f[k] * b.f[k])
EMU_LANES(emu_fmadd_ps, (V a, V b, V c), 16, f, fmaf(a.f[k], b.f[k], c.f[k]))
EMU_LANES(emu_fmsub_ps, (V a, V b, V c), 16, f, fmaf(a.f[k], b.f[k], -c.f[k]))
EMU_LANES(emu_fnmadd_ps, (V a, V b, V c), 16, f, fmaf(-a.f[k], b.f[k], c.f[k]))
EMU_LANES(emu_add_epi32, (V a, V b), 16, u, a.u[k] + b.u[k])
EMU_LANES(emu_add_epi16, (V a, V b), 32, w, (int16_t)(a.w[k] + b.w[k]))
EMU_LANES(emu_slli_epi32, (V a, unsigned n), 16, u, n < 32 ? a.u[k] << n : 0)
EMU_LANES(emu_cvtepi32_ps, (V a), 16, f, (float)a.i[k])
EMU_LANES(emu_madd_epi16, (V a, V b), 16, u,
          (uint32_t)(a.w[2 * k] * b.w[2 * k]) + (uint32_t)(a.w[2 * k + 1] * b.w[2 * k + 1]))

static inline int emu_saturate(int v)
{
    return v > INT16_MAX ? INT16_MAX : v < INT16_MIN ? INT16_MIN : v;
}

EMU_LANES(emu_maddubs_epi16, (V a, V b), 32, w,
          (int16_t)emu_saturate(a.ub[2 * k] * b.b[2 * k] + a.ub[2 * k + 1] * b.b[2 * k + 1]))

/* Four products of unsigned with signed bytes, added to 32 bits, which wrap around. */
static inline int32_t emu_dp(int32_t sum, const uint8_t *a, const int8_t *b)
{
    int32_t four = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];

    return (int32_t)((uint32_t)sum + (uint32_t)four);
}

EMU_LANES(emu_dpbusd, (V s, V a, V b), 16, i, emu_dp(s.i[k], a.ub + 4 * k, b.b + 4 * k))

EMU_LANES(emu_abs_epi8, (V a), 64, b, (int8_t)(a.b[k] < 0 ? -a.b[k] : a.b[k]))
EMU_LANES(emu_mask_sub_epi8, (V src, uint64_t mask, V a, V b), 64, b,
          (int8_t)((mask >> k & 1) != 0 ? a.b[k] - b.b[k] : src.b[k]))

EMU uint64_t emu_movepi8_mask(V a)
{
    uint64_t mask = 0;

    for (int k = 0; k < 64; k++)
        mask |= (uint64_t)(a.b[k] < 0) << k;
    return mask;
}

EMU V emu_load(const void *p)
{
    V out;

    memcpy(&out, p, sizeof(out));
    return out;
}

EMU void emu_store(void *p, V v)
{
    memcpy(p, &v, sizeof(v));
}

EMU V emu_maskz_load_ps(unsigned mask, const float *p)
{
    V out = {.i = {0}};

    for (int k = 0; k < 16; k++) {
        if ((mask >> k & 1) != 0)
            out.f[k] = p[k];
    }
    return out;
}

EMU void emu_mask_store_ps(float *p, unsigned mask, V v)
{
    for (int k = 0; k < 16; k++) {
        if ((mask >> k & 1) != 0)
            p[k] = v.f[k];
    }
}

/* ---- to and from vectors of AVX2 ---- */

#define EMU_AVX2 static __attribute__((noinline, unused, target("avx2")))
#define EMU_FROM(NAME, TYPE, STORE, ELEMENT, FIELD, VALUE) \
    EMU_AVX2 V NAME(TYPE from)                             \
    {                                                      \
        ELEMENT e[sizeof(TYPE) / sizeof(ELEMENT)];         \
        V out;                                             \
                                                           \
        STORE((void *)e, from);                            \
        for (int k = 0; k < 16; k++)                       \
            out.FIELD[k] = VALUE;                          \
        return out;                                        \
    }

EMU_FROM(emu_cvtepi8_epi32, __m128i, _mm_storeu_si128, int8_t, i, e[k])
EMU_FROM(emu_cvtepu8_epi32, __m128i, _mm_storeu_si128, uint8_t, i, e[k])
EMU_FROM(emu_cvtepu16_epi32, __m256i, _mm256_storeu_si256, uint16_t, i, e[k])
EMU_FROM(emu_cvtph_ps, __m256i, _mm256_storeu_si256, uint16_t, f, pi_widen_f16(e[k]))

EMU_AVX2 __m256i emu_cvtps_ph(V v)
{
    uint16_t h[16];

    for (int k = 0; k < 16; k++)
        h[k] = pi_f32_to_f16(v.f[k]);
    return _mm256_loadu_si256((const void *)h);
}

EMU_AVX2 __m256 emu_half(V v, int upper)
{
    return _mm256_loadu_ps(v.f + 8 * upper);
}

EMU_AVX2 __m256i emu_maskz_load_epi16(unsigned mask, const void *p)
{
    uint16_t h[16] = {0};

    for (int k = 0; k < 16; k++) {
        if ((mask >> k & 1) != 0)
            h[k] = pi_read_u16((const uint16_t *)p + k);
    }
    return _mm256_loadu_si256((const void *)h);
}

EMU_AVX2 __m256i emu_dpbusd_256(__m256i s, __m256i a, __m256i b)
{
    int32_t sum[8];
    uint8_t ab[32];
    int8_t bb[32];

    _mm256_storeu_si256((void *)sum, s);
    _mm256_storeu_si256((void *)ab, a);
    _mm256_storeu_si256((void *)bb, b);
    for (int k = 0; k < 8; k++)
        sum[k] = emu_dp(sum[k], ab + 4 * k, bb + 4 * k);
    return _mm256_loadu_si256((const void *)sum);
}

#undef V

/* ---- in place of the real ones ---- */

/* Macros of the compilers' headers. */
#undef _mm512_cvtps_ph
#undef _mm512_extractf32x8_ps
#undef _mm512_dpbusd_epi32
#undef _mm256_dpbusd_epi32
#undef _mm256_dpbusd_avx_epi32

#define __m512                           union emu_v512
#define __m512i                          union emu_v512
#define _mm512_setzero_ps                emu_setzero
#define _mm512_setzero_si512             emu_setzero
#define _mm512_set1_ps                   emu_set1_ps
#define _mm512_set1_epi32                emu_set1_epi32
#define _mm512_set1_epi16                emu_set1_epi16
#define _mm512_loadu_ps                  emu_load
#define _mm512_loadu_si512               emu_load
#define _mm512_storeu_ps                 emu_store
#define _mm512_maskz_loadu_ps            emu_maskz_load_ps
#define _mm512_mask_storeu_ps            emu_mask_store_ps
#define _mm512_add_ps                    emu_add_ps
#define _mm512_sub_ps                    emu_sub_ps
#define _mm512_mul_ps                    emu_mul_ps
#define _mm512_fmadd_ps                  emu_fmadd_ps
#define _mm512_fmsub_ps                  emu_fmsub_ps
#define _mm512_fnmadd_ps                 emu_fnmadd_ps
#define _mm512_add_epi32                 emu_add_epi32
#define _mm512_add_epi16                 emu_add_epi16
#define _mm512_slli_epi32                emu_slli_epi32
#define _mm512_madd_epi16                emu_madd_epi16
#define _mm512_maddubs_epi16             emu_maddubs_epi16
#define _mm512_dpbusd_epi32              emu_dpbusd
#define _mm512_abs_epi8                  emu_abs_epi8
#define _mm512_mask_sub_epi8             emu_mask_sub_epi8
#define _mm512_movepi8_mask              emu_movepi8_mask
#define _mm512_cvtepi32_ps               emu_cvtepi32_ps
#define _mm512_cvtepi8_epi32             emu_cvtepi8_epi32
#define _mm512_cvtepu8_epi32             emu_cvtepu8_epi32
#define _mm512_cvtepu16_epi32            emu_cvtepu16_epi32
#define _mm512_cvtph_ps                  emu_cvtph_ps
#define _mm512_cvtps_ph(v, rounding)     emu_cvtps_ph(v)
#define _mm512_castsi512_ps(v)           (v)
#define _mm512_castps512_ps256(v)        emu_half(v, 0)
#define _mm512_extractf32x8_ps(v, upper) emu_half(v, upper)
#define _mm256_maskz_loadu_epi16         emu_maskz_load_epi16
#define _mm256_dpbusd_epi32              emu_dpbusd_256
#define _mm256_dpbusd_avx_epi32          emu_dpbusd_256

#endif
