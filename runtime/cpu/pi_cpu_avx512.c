/* AVX-512 kernels (F, BW, VL, DQ: every such processor since 2017): the vector operations; pi_cpu_simd.h makes kernels of them.
 * No vdpbf16ps for BF16 rows (AVX512_BF16): it takes subnormals for 0, rounds on its way into a sum, and wants x in BF16, which would lose 16 of its bits. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(__x86_64__)
#if defined(PI_CPU_EMU)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#endif
#include "runtime/cpu/pi_cpu_simd_x86.h"

#define W  16
#define VF __m512

OP VF v_zero(void)
{
    return _mm512_setzero_ps();
}

OP VF v_set(float a)
{
    return _mm512_set1_ps(a);
}

OP VF v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

OP void v_store(float *p, VF a)
{
    _mm512_storeu_ps(p, a);
}

/* The first n lanes, n <= 16. */
OP __mmask16 lanes(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}

OP VF v_load_part(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(lanes(n), p);
}

OP void v_store_part(float *p, uint32_t n, VF a)
{
    _mm512_mask_storeu_ps(p, lanes(n), a);
}

/* Eight floats: the first eight lanes, others 0. */
OP VF v_load8(const float *p)
{
    return _mm512_maskz_loadu_ps(0xff, p);
}

OP void v_store8(float *p, VF a)
{
    _mm512_mask_storeu_ps(p, 0xff, a);
}

OP VF v_add(VF a, VF b)
{
    return _mm512_add_ps(a, b);
}

OP VF v_sub(VF a, VF b)
{
    return _mm512_sub_ps(a, b);
}

OP VF v_mul(VF a, VF b)
{
    return _mm512_mul_ps(a, b);
}

OP VF v_fma(VF a, VF b, VF c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a * b - c */
OP VF v_fms(VF a, VF b, VF c)
{
    return _mm512_fmsub_ps(a, b, c);
}

/* c - a * b */
OP VF v_fnma(VF a, VF b, VF c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* Spelt out: the order of _mm512_reduce_add_ps is the compiler's. */
OP float v_sum(VF a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

OP VF load_f32(const void *row, size_t at)
{
    return v_load((const float *)row + at);
}

OP VF part_f32(const void *row, size_t at, uint32_t n)
{
    return v_load_part((const float *)row + at, n);
}

OP __m256i load_half(const void *row, size_t at)
{
    return _mm256_loadu_si256((const void *)((const uint16_t *)row + at));
}

OP __m256i part_half(const void *row, size_t at, uint32_t n)
{
    return _mm256_maskz_loadu_epi16(lanes(n), (const uint16_t *)row + at);
}

OP VF load_f16(const void *row, size_t at)
{
    return _mm512_cvtph_ps(load_half(row, at));
}

OP VF part_f16(const void *row, size_t at, uint32_t n)
{
    return _mm512_cvtph_ps(part_half(row, at, n));
}

OP VF widen_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
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
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)h));
}

/* W signed bytes, unsigned bytes to floats. */
OP VF widen_i8(const uint8_t *q)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)q)));
}

OP VF widen_byte(const uint8_t *q)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)q)));
}

static TARGET void from_f32_f16(const float *x, void *row_out, uint32_t n)
{
    uint16_t *h = row_out;
    uint32_t i = 0;

    for (; n - i >= W; i += W)
        _mm256_storeu_si256((void *)(h + i),
                            _mm512_cvtps_ph(v_load(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        h[i] = pi_f32_to_f16(x[i]);
}

#include "runtime/cpu/pi_cpu_simd.h"

TABLE(pi_avx512_, PI_ISA_AVX512);
#if defined(PI_CPU_VNNI)
TABLE(pi_avx512vnni_, PI_ISA_AVX512VNNI);
#endif

const struct pi_cpu *pi_cpu_avx512(bool vnni)
{
#if defined(PI_CPU_VNNI)
    if (vnni)
        return &pi_avx512vnni_table;
#endif
    return vnni ? NULL : &pi_avx512_table;
}
#else
const struct pi_cpu *pi_cpu_avx512(bool vnni)
{
    (void)vnni;
    return NULL;
}
#endif
