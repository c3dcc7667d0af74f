/*
 * pi_cpu_simd_read.h - how the vector kernels read quantised rows: a group of up to 8 blocks (256 elements, a block of the K types) at a time is brought into
 * one form: a byte for each weight, and a scale (and offset) for each 32 of them. Included by pi_cpu_simd.h alone.
 *
 * Bytes, so that all kernels share one inner loop, which widens 8 or 16 of them with one instruction out of memory. Some bytes are a multiple of the weight's
 * q (16 q for the upper halves of Q4_K): cheaper than a shift, and the scale takes it back. Both are powers of two: exact.
 *
 * AVX2 instructions throughout, in the AVX-512 kernels too: they are few for a weight.
 */
#ifndef PI_CPU_SIMD_READ_H
#define PI_CPU_SIMD_READ_H

#include <stdalign.h>

#define GROUP (PI_SUPER / PI_BLOCK) /* blocks of a group */

struct group {
    alignas(32) uint8_t q[PI_SUPER];
    float scale[2 * GROUP]; /* of each block, or of each half of a block */
    float offset[GROUP];    /* 0 beyond the blocks there are */
};

/* Groups of n blocks from block number b on (K types: b a multiple of 8, n 8), one of each row. */
typedef void (*read_fn)(int rows, const void *const *row, uint32_t b, uint32_t n, struct group *g);

struct reader {
    read_fn read;
    VF (*widen)(const uint8_t *q); /* W bytes to floats */
    bool in_row;                   /* Q8_0: the bytes stay where they are */
    bool super;                    /* K types */
    bool halves;                   /* a scale for each half of a block */
    int offset; /* w = scale * q + offset; 1: add it, -1: subtract it; 0: there is none */
};

OP __m256i load_bytes(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* The same 16 bytes in both halves. */
OP __m256i load_twice(const void *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
}

OP void keep_bytes(uint8_t *p, __m256i v)
{
    _mm256_store_si256((void *)p, v);
}

OP __m256i byte_mask(int m)
{
    return _mm256_set1_epi8((char)m);
}

OP uint16_t read_u16(const void *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return h;
}

OP uint32_t read_u32(const void *p)
{
    uint32_t u;

    memcpy(&u, p, sizeof(u));
    return u;
}

/* n values of F16, stride bytes apart; 0 up to the eighth. */
OP __m128i gather_u16(const void *p, size_t stride, uint32_t n)
{
    const char *at = p;
    __m128i a = _mm_setzero_si128(), b = a;

    if (n < GROUP) {
        alignas(16) uint16_t h[GROUP] = {0};

        for (uint32_t i = 0; i < n; i++)
            h[i] = read_u16(at + i * stride);
        return _mm_load_si128((const void *)h);
    }
    a = _mm_insert_epi16(a, read_u16(at), 0);
    b = _mm_insert_epi16(b, read_u16(at + 4 * stride), 0);
    a = _mm_insert_epi16(a, read_u16(at + stride), 1);
    b = _mm_insert_epi16(b, read_u16(at + 5 * stride), 1);
    a = _mm_insert_epi16(a, read_u16(at + 2 * stride), 2);
    b = _mm_insert_epi16(b, read_u16(at + 6 * stride), 2);
    a = _mm_insert_epi16(a, read_u16(at + 3 * stride), 3);
    b = _mm_insert_epi16(b, read_u16(at + 7 * stride), 3);
    return _mm_unpacklo_epi64(a, b);
}

/* The same times factor as floats. */
OP void spread_scales(const void *p, size_t stride, uint32_t n, float factor, float *out)
{
    __m256 v = _mm256_cvtph_ps(gather_u16(p, stride, n));

    _mm256_storeu_ps(out, factor == 1.0f ? v : _mm256_mul_ps(v, _mm256_set1_ps(factor)));
}

/* 16 bytes to 32 of 16 q: low halves, then high halves. */
OP __m256i split_halves(__m256i twice)
{
    return _mm256_and_si256(_mm256_sllv_epi32(twice, _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0)),
                            byte_mask(0xf0));
}

/* As int8: 16 (q - 8). */
OP void group_q4_0(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q4_0 *from = (const struct pi_block_q4_0 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        keep_bytes(g->q + (size_t)i * PI_BLOCK,
                   split_halves(_mm256_xor_si256(load_twice(from[i].q), byte_mask(0x88))));
    spread_scales(&from->d, sizeof(*from), n, 1.0f / 16.0f, g->scale);
}

OP void group_q4_1(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q4_1 *from = (const struct pi_block_q4_1 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        keep_bytes(g->q + (size_t)i * PI_BLOCK, split_halves(load_twice(from[i].q)));
    spread_scales(&from->d, sizeof(*from), n, 1.0f / 16.0f, g->scale);
    spread_scales(&from->m, sizeof(*from), n, 1.0f, g->offset);
}

/* 16 bytes to 32 of 0..15: low halves, then high halves. */
OP __m256i split_low(const uint8_t *q)
{
    return _mm256_and_si256(
        _mm256_srlv_epi32(load_twice(q), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)),
        byte_mask(0x0f));
}

/* 32 bits to 32 bytes, all ones where the bit is 0. */
OP __m256i clear_bits(const uint8_t *bits)
{
    const __m256i one = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i v =
        _mm256_shuffle_epi8(_mm256_set1_epi32((int)read_u32(bits)),
                            _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                             2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));

    return _mm256_cmpeq_epi8(_mm256_and_si256(v, one), _mm256_setzero_si256());
}

/* As int8: q - 16. */
OP void group_q5_0(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q5_0 *from = (const struct pi_block_q5_0 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        keep_bytes(g->q + (size_t)i * PI_BLOCK,
                   _mm256_or_si256(split_low(from[i].q),
                                   _mm256_and_si256(clear_bits(from[i].qh), byte_mask(0xf0))));
    spread_scales(&from->d, sizeof(*from), n, 1.0f, g->scale);
}

OP void group_q5_1(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q5_1 *from = (const struct pi_block_q5_1 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        keep_bytes(g->q + (size_t)i * PI_BLOCK,
                   _mm256_or_si256(split_low(from[i].q),
                                   _mm256_andnot_si256(clear_bits(from[i].qh), byte_mask(0x10))));
    spread_scales(&from->d, sizeof(*from), n, 1.0f, g->scale);
    spread_scales(&from->m, sizeof(*from), n, 1.0f, g->offset);
}

/* d * scale * factor and dmin * min of the 8 parts of a Q4_K or Q5_K block, out of its first 16 bytes: d, dmin, 12 bytes of scales. The products of d and
 * scale are exact. */
OP void k_scales(const void *head, __m256 factor, struct group *g)
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
    __m256 s =
        _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)), _mm256_broadcastss_ps(d));
    __m256 m = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(low, low))),
                             _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
    _mm256_storeu_ps(g->scale, _mm256_mul_ps(s, factor));
    _mm256_storeu_ps(g->offset, m);
}

/* As uint8: q of even parts, 16 q of odd ones. */
OP void group_q4_k(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q4_k *from = (const struct pi_block_q4_k *)row + b / GROUP;
    const float odd = 1.0f / 16.0f;

    (void)n;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i v = load_bytes(from->q + 32 * i);

        keep_bytes(g->q + 64 * i, _mm256_and_si256(v, byte_mask(0x0f)));
        keep_bytes(g->q + 64 * i + 32, _mm256_and_si256(v, byte_mask(0xf0)));
    }
    k_scales(from, _mm256_setr_ps(1, odd, 1, odd, 1, odd, 1, odd), g);
}

/* Bit number bit of each byte as 0 or 16. */
OP __m256i fifth(__m256i v, int bit)
{
    v = bit < 4 ? _mm256_slli_epi16(v, 4 - bit) : _mm256_srli_epi16(v, bit - 4);
    return _mm256_and_si256(v, byte_mask(0x10));
}

OP void group_q5_k(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q5_k *from = (const struct pi_block_q5_k *)row + b / GROUP;
    __m256i h = load_bytes(from->qh), low = byte_mask(0x0f);

    (void)n;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i v = load_bytes(from->q + 32 * i);

        keep_bytes(g->q + 64 * i, _mm256_or_si256(_mm256_and_si256(v, low), fifth(h, 2 * i)));
        keep_bytes(
            g->q + 64 * i + 32,
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 4), low), fifth(h, 2 * i + 1)));
    }
    k_scales(from, _mm256_set1_ps(1.0f), g);
}

/* As int8: 4 (q - 32), four bits of it from low (its low halves), two from high, whose upper one is flipped already. */
OP __m256i six_bits(__m256i low, __m256i high)
{
    return _mm256_or_si256(_mm256_and_si256(low, byte_mask(0x3c)),
                           _mm256_and_si256(high, byte_mask(0xc0)));
}

OP void group_q6_k(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q6_k *from = (const struct pi_block_q6_k *)row + b / GROUP;
    __m256 d =
        _mm256_mul_ps(_mm256_cvtph_ps(_mm_set1_epi16((short)from->d)), _mm256_set1_ps(1.0f / 4.0f));

    (void)n;
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256i l0 = load_bytes(from->ql + 64 * i), l1 = load_bytes(from->ql + 64 * i + 32);
        __m256i h = _mm256_xor_si256(load_bytes(from->qh + 32 * i), byte_mask(0xaa));
        uint8_t *q = g->q + 128 * i;

        keep_bytes(q, six_bits(_mm256_slli_epi16(l0, 2), _mm256_slli_epi16(h, 6)));
        keep_bytes(q + 32, six_bits(_mm256_slli_epi16(l1, 2), _mm256_slli_epi16(h, 4)));
        keep_bytes(q + 64, six_bits(_mm256_srli_epi16(l0, 2), _mm256_slli_epi16(h, 2)));
        keep_bytes(q + 96, six_bits(_mm256_srli_epi16(l1, 2), h));
        _mm256_storeu_ps(g->scale + 8 * i,
                         _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(
                                              (const void *)(from->scale + 8 * i))))));
    }
}

/* Not inlined: there are many kernels of a type. Whole groups, nearly all there are, without a loop over their blocks. */
#define READ(T)                                                                                    \
    static TARGET __attribute__((noinline)) void read_##T(int rows, const void *const *row,        \
                                                          uint32_t b, uint32_t n, struct group *g) \
    {                                                                                              \
        for (int r = 0; r < rows; r++) {                                                           \
            if (n == GROUP)                                                                        \
                group_##T(row[r], b, GROUP, &g[r]);                                                \
            else                                                                                   \
                group_##T(row[r], b, n, &g[r]);                                                    \
        }                                                                                          \
    }

READ(q4_0)
READ(q4_1)
READ(q5_0)
READ(q5_1)
READ(q4_k)
READ(q5_k)
READ(q6_k)

#define READ_Q8_0 ((struct reader){.widen = widen_i8, .in_row = true})
#define READ_Q4_0 ((struct reader){.read = read_q4_0, .widen = widen_i8})
#define READ_Q4_1 ((struct reader){.read = read_q4_1, .widen = widen_byte, .offset = 1})
#define READ_Q5_0 ((struct reader){.read = read_q5_0, .widen = widen_i8})
#define READ_Q5_1 ((struct reader){.read = read_q5_1, .widen = widen_byte, .offset = 1})
#define READ_Q4_K \
    ((struct reader){.read = read_q4_k, .widen = widen_byte, .super = true, .offset = -1})
#define READ_Q5_K \
    ((struct reader){.read = read_q5_k, .widen = widen_byte, .super = true, .offset = -1})
#define READ_Q6_K \
    ((struct reader){.read = read_q6_k, .widen = widen_i8, .super = true, .halves = true})

#endif
