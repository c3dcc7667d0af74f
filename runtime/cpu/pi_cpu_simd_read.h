/*
 * pi_cpu_simd_read.h - how the vector kernels read quantised rows: a group of up to 8 blocks (256 elements, a block of the K types) at a time is brought into
 * one form: a byte for each weight, and a scale (and offset) for each 32 of them. Included by pi_cpu_simd.h alone.
 *
 * Bytes, so that all kernels share one inner loop, which widens 8 or 16 of them with one instruction out of memory. Some bytes are a multiple of the weight's
 * q (16 q for the upper halves of Q4_K): cheaper than a shift, and the scale takes it back. Both are powers of two: exact.
 *
 * In vectors of 32 bytes (pi_cpu_simd_x86.h, pi_cpu_simd_neon.h) throughout, in the AVX-512 kernels too: the instructions are few for a weight.
 */
#ifndef PI_CPU_SIMD_READ_H
#define PI_CPU_SIMD_READ_H

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

/* n values of F16, stride bytes apart, as floats times factor. */
OP void spread_scales(const void *p, size_t stride, uint32_t n, float factor, float *out)
{
    VH v = h_gather(p, stride, n);

    h_store(out, factor == 1.0f ? v : h_mul(v, h_set(factor)));
}

/* As int8: 16 (q - 8). */
OP void group_q4_0(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q4_0 *from = (const struct pi_block_q4_0 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        b_store(g->q + (size_t)i * PI_BLOCK, b_xor(b_halves16(from[i].q), b_set(0x80)));
    spread_scales(&from->d, sizeof(*from), n, 1.0f / 16.0f, g->scale);
}

OP void group_q4_1(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q4_1 *from = (const struct pi_block_q4_1 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        b_store(g->q + (size_t)i * PI_BLOCK, b_halves16(from[i].q));
    spread_scales(&from->d, sizeof(*from), n, 1.0f / 16.0f, g->scale);
    spread_scales(&from->m, sizeof(*from), n, 1.0f, g->offset);
}

/* As int8: q - 16. */
OP void group_q5_0(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q5_0 *from = (const struct pi_block_q5_0 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        b_store(g->q + (size_t)i * PI_BLOCK,
                b_or(b_halves(from[i].q), b_and(b_clear_bits(from[i].qh), b_set(0xf0))));
    spread_scales(&from->d, sizeof(*from), n, 1.0f, g->scale);
}

OP void group_q5_1(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q5_1 *from = (const struct pi_block_q5_1 *)row + b;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++)
        b_store(g->q + (size_t)i * PI_BLOCK,
                b_or(b_halves(from[i].q), b_andnot(b_clear_bits(from[i].qh), b_set(0x10))));
    spread_scales(&from->d, sizeof(*from), n, 1.0f, g->scale);
    spread_scales(&from->m, sizeof(*from), n, 1.0f, g->offset);
}

/* Scales times factor, and offsets. */
OP void group_scales(const void *head, VH factor, struct group *g)
{
    VH scale, min;

    k_scales(head, &scale, &min);
    h_store(g->scale, h_mul(scale, factor));
    h_store(g->offset, min);
}

/* As uint8: q of even parts, 16 q of odd ones. */
OP void group_q4_k(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q4_k *from = (const struct pi_block_q4_k *)row + b / GROUP;
    static const float factor[8] = {1.0f, 0x1p-4f, 1.0f, 0x1p-4f, 1.0f, 0x1p-4f, 1.0f, 0x1p-4f};

    (void)n;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        VB v = b_load(from->q + 32 * i);

        b_store(g->q + 64 * i, b_and(v, b_set(0x0f)));
        b_store(g->q + 64 * i + 32, b_and(v, b_set(0xf0)));
    }
    group_scales(from, h_load(factor), g);
}

/* Bit number bit of each byte as 0 or 16. */
OP VB fifth(VB v, int bit)
{
    v = bit < 4 ? b_left(v, 4 - bit) : b_right(v, bit - 4);
    return b_and(v, b_set(0x10));
}

OP void group_q5_k(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q5_k *from = (const struct pi_block_q5_k *)row + b / GROUP;
    VB h = b_load(from->qh), low = b_set(0x0f);

    (void)n;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        VB v = b_load(from->q + 32 * i);

        b_store(g->q + 64 * i, b_or(b_and(v, low), fifth(h, 2 * i)));
        b_store(g->q + 64 * i + 32, b_or(b_and(b_right(v, 4), low), fifth(h, 2 * i + 1)));
    }
    group_scales(from, h_set(1.0f), g);
}

/* As int8: 4 (q - 32), four bits of it from low (its low halves), two from high, whose upper one is flipped already. */
OP VB six_bits(VB low, VB high)
{
    return b_or(b_and(low, b_set(0x3c)), b_and(high, b_set(0xc0)));
}

OP void group_q6_k(const void *row, uint32_t b, uint32_t n, struct group *g)
{
    const struct pi_block_q6_k *from = (const struct pi_block_q6_k *)row + b / GROUP;
    VH d = h_set(half_value(from->d) * (1.0f / 4.0f));

    (void)n;
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        VB l0 = b_load(from->ql + 64 * i), l1 = b_load(from->ql + 64 * i + 32);
        VB h = b_xor(b_load(from->qh + 32 * i), b_set(0xaa));
        uint8_t *q = g->q + 128 * i;

        b_store(q, six_bits(b_left(l0, 2), b_left(h, 6)));
        b_store(q + 32, six_bits(b_left(l1, 2), b_left(h, 4)));
        b_store(q + 64, six_bits(b_right(l0, 2), b_left(h, 2)));
        b_store(q + 96, six_bits(b_right(l1, 2), h));
        h_store(g->scale + 8 * i, h_mul(d, h_widen(from->scale + 8 * i)));
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
