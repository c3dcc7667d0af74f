/*
 * pi_cpu_q8_x86_256.h - blocked products with quantised activations in vectors of 256 bits: the operations that pi_gemm_simd_q8.h names. AVX2 has 16
 * registers: 12 sums, two vectors of weights, one of x.
 */
#ifndef PI_CPU_Q8_X86_256_H
#define PI_CPU_Q8_X86_256_H

#include "runtime/cpu/pi_cpu_q8_x86.h"

#define GW       8
#define GI       __m256i
#define GF       __m256
#define Q8G_TOKS 6

OP GI g_zero(void)
{
    return _mm256_setzero_si256();
}

OP GI g_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

OP GI g_spread(const void *four)
{
    int32_t v;

    memcpy(&v, four, sizeof(v));
    return _mm256_set1_epi32(v);
}

OP GI g_add(GI a, GI b)
{
    return _mm256_add_epi32(a, b);
}

OP GF g_floats(GI v)
{
    return _mm256_cvtepi32_ps(v);
}

OP GF gf_set(float a)
{
    return _mm256_set1_ps(a);
}

OP GF gf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

OP void gf_store(float *p, GF v)
{
    _mm256_storeu_ps(p, v);
}

OP GF gf_mul(GF a, GF b)
{
    return _mm256_mul_ps(a, b);
}

OP GF gf_fma(GF a, GF b, GF c)
{
    return _mm256_fmadd_ps(a, b, c);
}

#if defined(DPBUSD)
#define Q8G_FOURS
#define Q8G_UNSIGNED

OP GI g_step(GI sum, GI w, GI x)
{
    return DPBUSD(sum, w, x);
}

OP GI g_sums(GI sum)
{
    return sum;
}

#else
#define Q8G_PAIRS

OP GI g_step(GI sum, GI w, GI x)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
}

OP GI g_sums(GI sum)
{
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

/* What a product of signed bytes is made of: sizes, and x with the weights' signs. */
#define GS GI

OP GI g_abs(GI w)
{
    return _mm256_abs_epi8(w);
}

OP GS g_signs(GI w)
{
    return w;
}

OP GI g_turn(GI x, GS w)
{
    return _mm256_sign_epi8(x, w);
}

OP GI g_ones(void)
{
    return _mm256_set1_epi16(1);
}

/* Pairs of 16 bits. */
OP GI g_madd(GI sum, GI w, GI x)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
}

#endif

#endif
