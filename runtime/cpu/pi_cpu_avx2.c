/* AVX2 + FMA + F16C kernels: the vector operations; pi_cpu_simd.h makes kernels of them. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#include "runtime/cpu/pi_cpu_simd_x86.h"

#define W  8
#define VF __m256

OP VF v_zero(void)
{
    return _mm256_setzero_ps();
}

OP VF v_set(float a)
{
    return _mm256_set1_ps(a);
}

OP VF v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

OP void v_store(float *p, VF a)
{
    _mm256_storeu_ps(p, a);
}

/* All ones in the first n lanes. */
OP __m256i lanes(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

OP VF v_load_part(const float *p, uint32_t n)
{
    return _mm256_maskload_ps(p, lanes(n));
}

OP void v_store_part(float *p, uint32_t n, VF a)
{
    _mm256_maskstore_ps(p, lanes(n), a);
}

/* Eight floats: the first eight lanes, others 0. */
OP VF v_load8(const float *p)
{
    return v_load(p);
}

OP void v_store8(float *p, VF a)
{
    v_store(p, a);
}

OP VF v_add(VF a, VF b)
{
    return _mm256_add_ps(a, b);
}

OP VF v_sub(VF a, VF b)
{
    return _mm256_sub_ps(a, b);
}

OP VF v_mul(VF a, VF b)
{
    return _mm256_mul_ps(a, b);
}

OP VF v_fma(VF a, VF b, VF c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* a * b - c */
OP VF v_fms(VF a, VF b, VF c)
{
    return _mm256_fmsub_ps(a, b, c);
}

/* c - a * b */
OP VF v_fnma(VF a, VF b, VF c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

OP float v_sum(VF a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

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

OP __m128i load_half(const void *row, size_t at)
{
    return _mm_loadu_si128((const void *)((const uint16_t *)row + at));
}

/* There are no masked loads of 16-bit elements here. */
OP __m128i part_half(const void *row, size_t at, uint32_t n)
{
    uint16_t h[W] = {0};

    memcpy(h, (const uint16_t *)row + at, n * sizeof(h[0]));
    return load_half(h, 0);
}

OP VF load_f16(const void *row, size_t at)
{
    return _mm256_cvtph_ps(load_half(row, at));
}

OP VF part_f16(const void *row, size_t at, uint32_t n)
{
    return _mm256_cvtph_ps(part_half(row, at, n));
}

OP VF widen_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
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
    return _mm256_cvtph_ps(_mm_set1_epi16((short)h));
}

/* W signed bytes, unsigned bytes to floats. */
OP VF widen_i8(const uint8_t *q)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)q)));
}

OP VF widen_byte(const uint8_t *q)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)q)));
}

static TARGET void from_f32_f16(const float *x, void *row_out, uint32_t n)
{
    uint16_t *h = row_out;
    uint32_t i = 0;

    for (; n - i >= W; i += W)
        _mm_storeu_si128((void *)(h + i),
                         _mm256_cvtps_ph(v_load(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        h[i] = pi_f32_to_f16(x[i]);
}

#include "runtime/cpu/pi_cpu_simd.h"

TABLE(pi_avx2_, PI_ISA_AVX2);
#if defined(PI_CPU_VNNI)
TABLE(pi_avxvnni_, PI_ISA_AVXVNNI);
#endif

const struct pi_cpu *pi_cpu_avx2(bool vnni)
{
#if defined(PI_CPU_VNNI)
    if (vnni)
        return &pi_avxvnni_table;
#endif
    return vnni ? NULL : &pi_avx2_table;
}
#else
const struct pi_cpu *pi_cpu_avx2(bool vnni)
{
    (void)vnni;
    return NULL;
}
#endif
