/*
 * pi_cpu_q8_x86_512.h - blocked products with quantised activations in vectors of 512 bits: the operations that pi_gemm_simd_q8.h names. AVX-512 has 32
 * registers: 24 sums, two vectors of weights, one of x.
 */
#ifndef PI_CPU_Q8_X86_512_H
#define PI_CPU_Q8_X86_512_H

#define AHEAD_HINT 3 /* into L1: pi_cpu_q8_x86_far.h */
#include "runtime/cpu/pi_cpu_q8_x86.h"

#define GW       16
#define GI       __m512i
#define GF       __m512
#define Q8G_TOKS 12

OP GI g_zero(void)
{
    return _mm512_setzero_si512();
}

OP GI g_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

OP GI g_spread(const void *four)
{
    int32_t v;

    memcpy(&v, four, sizeof(v));
    return _mm512_set1_epi32(v);
}

OP GI g_add(GI a, GI b)
{
    return _mm512_add_epi32(a, b);
}

OP GF g_floats(GI v)
{
    return _mm512_cvtepi32_ps(v);
}

OP GF gf_set(float a)
{
    return _mm512_set1_ps(a);
}

OP GF gf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

OP void gf_store(float *p, GF v)
{
    _mm512_storeu_ps(p, v);
}

OP GF gf_mul(GF a, GF b)
{
    return _mm512_mul_ps(a, b);
}

OP GF gf_fma(GF a, GF b, GF c)
{
    return _mm512_fmadd_ps(a, b, c);
}

#if defined(DPBUSD512)
#define Q8G_FOURS
#define Q8G_UNSIGNED

OP GI g_step(GI sum, GI w, GI x)
{
    return DPBUSD512(sum, w, x);
}

OP GI g_sums(GI sum)
{
    return sum;
}

#else
#define Q8G_PAIRS

OP GI g_step(GI sum, GI w, GI x)
{
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x));
}

OP GI g_sums(GI sum)
{
    return _mm512_madd_epi16(sum, _mm512_set1_epi16(1));
}

/* What a product of signed bytes is made of: sizes, and x with the weights' signs. */
#define GS __mmask64

OP GI g_abs(GI w)
{
    return _mm512_abs_epi8(w);
}

OP GS g_signs(GI w)
{
    return _mm512_movepi8_mask(w);
}

OP GI g_turn(GI x, GS w)
{
    return _mm512_mask_sub_epi8(x, w, _mm512_setzero_si512(), x);
}

OP GI g_ones(void)
{
    return _mm512_set1_epi16(1);
}

/* Pairs of 16 bits. */
OP GI g_madd(GI sum, GI w, GI x)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
}

#endif

#endif
