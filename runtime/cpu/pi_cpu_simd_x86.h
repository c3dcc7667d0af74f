/*
 * pi_cpu_simd_x86.h - vectors of 32 bytes and of 8 floats by AVX2 instructions: what rows are unpacked with, in the AVX-512 tables too. Its twin for
 * other processors: pi_cpu_simd_neon.h. Both give the same bits.
 *
 * The file that includes it defines TARGET (the functions' target attribute) before.
 */
#ifndef PI_CPU_SIMD_X86_H
#define PI_CPU_SIMD_X86_H

#include "runtime/cpu/pi_cpu_int.h"

#include <immintrin.h>
#include <stdalign.h>
#if defined(PI_CPU_EMU)
#include "tests/emu_x86/emu_x86.h"
#endif

#define OP static inline __attribute__((always_inline)) TARGET
#define VB __m256i /* 32 bytes */
#define VH __m256  /* 8 floats */

OP VB b_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

OP void b_store(void *p, VB v)
{
    _mm256_storeu_si256(p, v);
}

OP VB b_set(int m)
{
    return _mm256_set1_epi8((char)m);
}

OP VB b_and(VB a, VB b)
{
    return _mm256_and_si256(a, b);
}

/* b where a has no bits */
OP VB b_andnot(VB a, VB b)
{
    return _mm256_andnot_si256(a, b);
}

OP VB b_or(VB a, VB b)
{
    return _mm256_or_si256(a, b);
}

OP VB b_xor(VB a, VB b)
{
    return _mm256_xor_si256(a, b);
}

/* Bytes shifted by n < 8 bits; what comes in may be bits of a neighbour or 0. */
OP VB b_left(VB v, int n)
{
    return _mm256_slli_epi16(v, n);
}

OP VB b_right(VB v, int n)
{
    return _mm256_srli_epi16(v, n);
}

/* The same 16 bytes in both halves. */
OP VB b_twice(const void *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
}

/* 16 bytes to 32 of 0..15: low halves, then high halves; the same times 16. */
OP VB b_halves(const uint8_t *q)
{
    return b_and(_mm256_srlv_epi32(b_twice(q), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)),
                 b_set(0x0f));
}

OP VB b_halves16(const uint8_t *q)
{
    return b_and(_mm256_sllv_epi32(b_twice(q), _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0)),
                 b_set(0xf0));
}

/* 32 bits to 32 bytes, all ones where the bit is 0. */
OP VB b_clear_bits(const uint8_t *bits)
{
    const __m256i one = _mm256_set1_epi64x((long long)0x8040201008040201);
    uint32_t u;
    __m256i v;

    memcpy(&u, bits, sizeof(u));
    v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)u),
                            _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                             2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, one), _mm256_setzero_si256());
}

/* Eight rows of eight numbers of 32 bits to columns. */
OP void b_transpose(const VB *v, VB *out)
{
    __m256i a[8], b[8];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

OP VH h_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

OP void h_store(float *p, VH v)
{
    _mm256_storeu_ps(p, v);
}

OP VH h_set(float a)
{
    return _mm256_set1_ps(a);
}

OP VH h_mul(VH a, VH b)
{
    return _mm256_mul_ps(a, b);
}

OP float half_value(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* Eight signed bytes to floats. */
OP VH h_widen(const int8_t *q)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)q)));
}

/* n <= 8 values of F16, stride bytes apart, as floats; 0 up to the eighth. */
OP VH h_gather(const void *p, size_t stride, uint32_t n)
{
    const char *at = p;
    __m128i a = _mm_setzero_si128(), b = a;

    if (n < 8) {
        alignas(16) uint16_t h[8] = {0};

        for (uint32_t i = 0; i < n; i++)
            h[i] = pi_read_u16(at + i * stride);
        return _mm256_cvtph_ps(_mm_load_si128((const void *)h));
    }
    a = _mm_insert_epi16(a, pi_read_u16(at), 0);
    b = _mm_insert_epi16(b, pi_read_u16(at + 4 * stride), 0);
    a = _mm_insert_epi16(a, pi_read_u16(at + stride), 1);
    b = _mm_insert_epi16(b, pi_read_u16(at + 5 * stride), 1);
    a = _mm_insert_epi16(a, pi_read_u16(at + 2 * stride), 2);
    b = _mm_insert_epi16(b, pi_read_u16(at + 6 * stride), 2);
    a = _mm_insert_epi16(a, pi_read_u16(at + 3 * stride), 3);
    b = _mm_insert_epi16(b, pi_read_u16(at + 7 * stride), 3);
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(a, b));
}

/* d * scale and dmin * min of the 8 parts of a Q4_K or Q5_K block, out of its first 16 bytes: d, dmin, 12 bytes of scales. The products are exact. */
OP void k_scales(const void *head, VH *scale, VH *min)
{
    const __m128i v = _mm_loadu_si128(head);
    /* scales of parts 0..3, 4..7, then minima: their low bits, and the bytes with the two upper bits of the later ones */
    __m128i low = _mm_shuffle_epi8(
        v, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    __m128i top = _mm_shuffle_epi8(
        v, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    __m128 d = _mm_cvtph_ps(v);

    low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                        _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    top = _mm_and_si128(_mm_srli_epi16(top, 2), _mm_set1_epi8(0x30));
    low = _mm_or_si128(low, top);
    *scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)), _mm256_broadcastss_ps(d));
    *min = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(low, low))),
                         _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
}

#endif
