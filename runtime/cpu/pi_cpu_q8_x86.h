/*
 * pi_cpu_q8_x86.h - products of bytes in vectors of 256 bits, for pi_cpu_simd_q8.h. Its twin for other processors: pi_cpu_q8_neon.h.
 *
 * Unsigned weights times signed activations. What is subtracted from weights (8 in Q4_0) is subtracted as its product with x, which all rows share.
 *   AVX2: 32 products are added in pairs to 16 bits (vpmaddubsw); in Q8_0 the weight's sign moves to the activation. Nothing saturates: a pair is at most
 *   63 * 127 * 2; 128 * 127 * 2 = 32512 in Q8_0. Four pairs of a row are added in 16 bits on the way to 32, where they fit (all but Q8_0: at most
 *   4 * 31 * 127 * 2 = 31496 in Q5_1, 4 * 32 * 127 * 2 = 32512 in Q6_K).
 *   With DPBUSD defined (the instruction's name for this ISA: vpdpbusd): four products are added to 32 bits at once, from minus the bias times x on; Q8_0 is
 *   read as unsigned with a bias of 128.
 * Integers are exact either way: the same bits.
 */
#ifndef PI_CPU_Q8_X86_H
#define PI_CPU_Q8_X86_H

#include "runtime/cpu/pi_cpu_simd_rows.h"
#include "runtime/cpu/pi_cpu_simd_x86.h"

#define Q8_EIGHT  /* pi_cpu_q8_x86_eight.h */
#define VQ __m128 /* a float of each of four rows */
#define VS \
    __m256i /* the rows' integer sums: of the first 16 products of each, then of the others */

OP VQ q_zero(void)
{
    return _mm_setzero_ps();
}

OP VQ q_set(float a)
{
    return _mm_set1_ps(a);
}

OP VQ q_mul(VQ a, VQ b)
{
    return _mm_mul_ps(a, b);
}

OP VQ q_fma(VQ a, VQ b, VQ c)
{
    return _mm_fmadd_ps(a, b, c);
}

/* c - a * b */
OP VQ q_fnma(VQ a, VQ b, VQ c)
{
    return _mm_fnmadd_ps(a, b, c);
}

OP void q_store(float *p, VQ v)
{
    _mm_storeu_ps(p, v);
}

/* A field of F16 of block b of each row. */
OP VQ q_gather(uint16_t (*field)(const void *, uint32_t), int rows, const void *const *row,
               uint32_t b)
{
    __m128i h = _mm_cvtsi32_si128(field(row[0], b));

    if (rows > 1)
        h = _mm_insert_epi16(h, field(row[1], b), 1);
    if (rows > 2)
        h = _mm_insert_epi16(h, field(row[2], b), 2);
    if (rows > 3)
        h = _mm_insert_epi16(h, field(row[3], b), 3);
    return _mm_cvtph_ps(h);
}

/* Lane r of out[i]: lane i of v[r], i < 8. */
OP void q_transpose(int rows, const VH *v, VQ *out)
{
    const __m256 v1 = v[rows > 1 ? 1 : 0], v2 = v[rows > 2 ? 2 : 0], v3 = v[rows > 3 ? 3 : 0];
    const __m256 a = _mm256_unpacklo_ps(v[0], v1), b = _mm256_unpackhi_ps(v[0], v1),
                 c = _mm256_unpacklo_ps(v2, v3), d = _mm256_unpackhi_ps(v2, v3);
    const __m256 t[4] = {_mm256_shuffle_ps(a, c, 0x44), _mm256_shuffle_ps(a, c, 0xee),
                         _mm256_shuffle_ps(b, d, 0x44), _mm256_shuffle_ps(b, d, 0xee)};

#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        out[k] = _mm256_castps256_ps128(t[k]);
        out[k + 4] = _mm256_extractf128_ps(t[k], 1);
    }
}

OP VQ q_first(VS v)
{
    return _mm_cvtepi32_ps(_mm256_castsi256_si128(v));
}

OP VQ q_second(VS v)
{
    return _mm_cvtepi32_ps(_mm256_extracti128_si256(v, 1));
}

OP VQ q_both(VS v)
{
    return _mm_cvtepi32_ps(
        _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}

/* Lane r of each half: the sum of that half of p[r], numbers of 32 bits. */
OP __m256i q8_four(const __m256i *p)
{
    __m256i a[2];

#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
        a[k] = _mm256_add_epi32(_mm256_unpacklo_epi32(p[2 * k], p[2 * k + 1]),
                                _mm256_unpackhi_epi32(p[2 * k], p[2 * k + 1]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a[0], a[1]), _mm256_unpackhi_epi64(a[0], a[1]));
}

#if defined(DPBUSD)

/* The rows' sums of products of 32 weights with as many of x. */
OP VS q8_products(int bias, bool parts, int rows, const VB *w, const int8_t *q)
{
    const __m256i zero = _mm256_setzero_si256(), x = b_load(q);
    __m256i start = zero, p[ROWS];

    (void)parts;
    if (bias != 0)
        start = _mm256_sub_epi32(zero, DPBUSD(zero, b_set(bias == Q8_SIGNED ? 128 : bias), x));
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
        p[r] = zero;
        if (r < rows)
            p[r] = DPBUSD(start, bias == Q8_SIGNED ? b_xor(w[r], b_set(128)) : w[r], x);
    }
    return q8_four(p);
}

#else

/* 16 sums of two. x_bias: the bias times x in the same pairs. */
OP __m256i q8_pairs(int bias, __m256i w, __m256i x, __m256i x_bias)
{
    if (bias == Q8_SIGNED)
        return _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
    w = _mm256_maddubs_epi16(w, x);
    return bias > 0 ? _mm256_sub_epi16(w, x_bias) : w;
}

/* q8_four() of pairs of 16 bits, of which four of a row fit into 16. */
OP __m256i q8_four_narrow(const __m256i *p)
{
    __m256i a[2];

#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
        a[k] = _mm256_add_epi16(_mm256_unpacklo_epi32(p[2 * k], p[2 * k + 1]),
                                _mm256_unpackhi_epi32(p[2 * k], p[2 * k + 1]));
    a[0] = _mm256_add_epi16(_mm256_unpacklo_epi64(a[0], a[1]), _mm256_unpackhi_epi64(a[0], a[1]));
    return _mm256_madd_epi16(a[0], _mm256_set1_epi16(1));
}

/* The rows' sums of products of 32 weights with as many of x. */
OP VS q8_products(int bias, bool parts, int rows, const VB *w, const int8_t *q)
{
    const __m256i x = b_load(q), ones = _mm256_set1_epi16(1);
    __m256i x_bias = bias > 0 ? _mm256_maddubs_epi16(b_set(bias), x) : x, p[ROWS];

    (void)parts;
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
        p[r] = r < rows ? q8_pairs(bias, w[r], x, x_bias) : _mm256_setzero_si256();
        if (bias == Q8_SIGNED)
            p[r] = _mm256_madd_epi16(p[r], ones);
    }
    return bias == Q8_SIGNED ? q8_four(p) : q8_four_narrow(p);
}

#endif

/* ---- activations ---- */

/* The largest magnitude of 32 as bits: they are in the order of the magnitudes, NaN last. */
OP uint32_t q8_max_bits(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_and_si256(b_load(x), mask);
    __m128i m;

#pragma GCC unroll 4
    for (int k = 1; k < 4; k++)
        max = _mm256_max_epi32(max, _mm256_and_si256(b_load(x + 8 * k), mask));
    m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* q = x / d, rounded, and what they add up to. */
OP int32_t q8_round(const float *x, float d, int8_t *out)
{
    __m256i q[4], sum;
    __m128i s;

#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        q[k] = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(x + 8 * k), _mm256_set1_ps(d)));
    sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    q[0] = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    b_store(out, _mm256_permutevar8x32_epi32(q[0], _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    return _mm_cvtsi128_si32(s);
}

#endif
