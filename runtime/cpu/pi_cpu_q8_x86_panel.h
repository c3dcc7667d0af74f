/*
 * pi_cpu_q8_x86_panel.h - some blocks of rows that lie side by side, unpacked and transposed: for pi_cpu_q8_x86_many.h alone, which includes it.
 *
 * A lane of 32 bits holds four weights of one row; as many rows as a vector of g_* has lanes, unpacked by eights in vectors of 256 bits, for which the processors
 * with AVX-512 have more units than for shuffles of 512.
 */
#ifndef PI_CPU_Q8_X86_PANEL_H
#define PI_CPU_Q8_X86_PANEL_H

#define E_ROWS       GW       /* rows side by side: a lane each */
#define E_HALVES     (GW / 8) /* rows are unpacked by eights */
#define PANEL_BLOCKS 8        /* 256 elements: what is unpacked takes 2.5 KB for eight rows */

/* second: offsets, or scales of the second half of blocks. */
struct e_panel {
    alignas(64) VB q[PANEL_BLOCKS][8][E_HALVES];
    __m256 scale[PANEL_BLOCKS][E_HALVES], second[PANEL_BLOCKS][E_HALVES];
};

/* Eight rows of a panel: what belongs to a block's four elements, and to a block, E_HALVES apart. */
struct e_half {
    VB *q;
    __m256 *scale, *second;
};

OP struct e_half e_half_of(struct e_panel *w, uint32_t half)
{
    return (struct e_half){&w->q[0][0][half], &w->scale[0][half], &w->second[0][half]};
}

/* n fours of block i, from number k on. */
OP void e_keep(struct e_half w, uint32_t i, uint32_t k, uint32_t n, const VB *v)
{
#pragma GCC unroll 8
    for (uint32_t j = 0; j < n; j++)
        w.q[(8 * i + k + j) * E_HALVES] = v[j];
}

/* 16 bytes of each row: bytes 4k..4k + 3 of row r in lane r of out[k]. */
OP void e_fours(const void *const *row, size_t at, VB *out)
{
    VB v[4], a[4];

#pragma GCC unroll 4
    for (int p = 0; p < 4; p++)
        v[p] = e_pair((const char *)row[p] + at, (const char *)row[p + 4] + at);
    a[0] = _mm256_unpacklo_epi32(v[0], v[1]);
    a[1] = _mm256_unpackhi_epi32(v[0], v[1]);
    a[2] = _mm256_unpacklo_epi32(v[2], v[3]);
    a[3] = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a[0], a[2]);
    out[1] = _mm256_unpackhi_epi64(a[0], a[2]);
    out[2] = _mm256_unpacklo_epi64(a[1], a[3]);
    out[3] = _mm256_unpackhi_epi64(a[1], a[3]);
}

/* Four bytes of each row. */
OP VB e_four_bytes(const void *const *row, size_t at)
{
    int32_t v[EIGHT];

#pragma GCC unroll 8
    for (int r = 0; r < EIGHT; r++)
        memcpy(&v[r], (const char *)row[r] + at, sizeof(v[r]));
    return _mm256_setr_epi32(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

/* Two F16 of each row. */
OP void e_gather_two(const void *const *row, size_t at, __m256 *first, __m256 *second)
{
    const VB v = _mm256_permute4x64_epi64(
        _mm256_shuffle_epi8(e_four_bytes(row, at),
                            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2,
                                                                      3, 6, 7, 10, 11, 14, 15))),
        0xd8);

    *first = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    *second = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
}

/* Adds 16 where bits of bits, 32 of each row, are set. Byte i of a lane of q[k] belongs to bit 4k + i: a byte of bits is brought to all four, and what
 * its two halves have at the bits of 16 and above becomes 16. */
OP void e_add_fifths(VB bits, VB *q)
{
    const VB at = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0,
                                   4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12),
             pick = _mm256_set1_epi32((int)0x80402010);

#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const VB v = _mm256_shuffle_epi8(bits, _mm256_add_epi8(at, b_set(k)));

        q[2 * k] = b_or(q[2 * k], _mm256_min_epu8(b_and(b_left(v, 4), pick), b_set(16)));
        q[2 * k + 1] = b_or(q[2 * k + 1], _mm256_min_epu8(b_and(v, pick), b_set(16)));
    }
}

/* The 16 bytes of a block of 4 bits, and 32 of two parts of the K types. */
OP void e_fours_halves(const void *const *row, size_t at, VB *low, VB *high)
{
    VB v[4];

    e_fours(row, at, v);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        low[k] = e_low(v[k]);
        high[k] = e_high(v[k]);
    }
}

/* Block i of 4 bits, of 5. */
OP void e_keep_fours(const void *const *row, size_t at, uint32_t i, struct e_half w)
{
    VB v[8];

    e_fours_halves(row, at, v, v + 4);
    e_keep(w, i, 0, 8, v);
}

OP void e_keep_fives(const void *const *row, size_t q, size_t qh, uint32_t i, struct e_half w)
{
    VB v[8];

    e_fours_halves(row, q, v, v + 4);
    e_add_fifths(e_four_bytes(row, qh), v);
    e_keep(w, i, 0, 8, v);
}

#define E_EACH_BLOCK(T)                                  \
    size_t at = (size_t)b * sizeof(struct pi_block_##T); \
    for (uint32_t i = 0; i < n; i++, at += sizeof(struct pi_block_##T))
#define E_AT(T, field) (at + offsetof(struct pi_block_##T, field))
#define E_SCALE        w.scale[i * E_HALVES]
#define E_SECOND       w.second[i * E_HALVES]

OP void e_panel_q8_0(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    E_EACH_BLOCK(q8_0)
    {
        VB v[8];

        e_fours(row, E_AT(q8_0, q), v);
        e_fours(row, E_AT(q8_0, q) + 16, v + 4);
#if defined(DPBUSD)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            v[k] = b_xor(v[k], b_set(128));
#endif
        e_keep(w, i, 0, 8, v);
        E_SCALE = e_gather(row, at);
    }
}

OP void e_panel_q4_0(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    E_EACH_BLOCK(q4_0)
    {
        e_keep_fours(row, E_AT(q4_0, q), i, w);
        E_SCALE = e_gather(row, at);
    }
}

OP void e_panel_q4_1(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    E_EACH_BLOCK(q4_1)
    {
        e_keep_fours(row, E_AT(q4_1, q), i, w);
        e_gather_two(row, at, &E_SCALE, &E_SECOND);
    }
}

OP void e_panel_q5_0(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    E_EACH_BLOCK(q5_0)
    {
        e_keep_fives(row, E_AT(q5_0, q), E_AT(q5_0, qh), i, w);
        E_SCALE = e_gather(row, at);
    }
}

OP void e_panel_q5_1(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    E_EACH_BLOCK(q5_1)
    {
        e_keep_fives(row, E_AT(q5_1, q), E_AT(q5_1, qh), i, w);
        e_gather_two(row, at, &E_SCALE, &E_SECOND);
    }
}

/* Scales of the 8 parts, and minima as what is added. */
OP void e_panel_scales(const void *const *row, size_t at, struct e_half w)
{
    const struct e_factors f = e_scales(row, at);
    const __m256 less = _mm256_xor_ps(f.dmin, _mm256_set1_ps(-0.0f));

#pragma GCC unroll 8
    for (int i = 0; i < Q8_PARTS; i++) {
        E_SCALE = _mm256_mul_ps(e_floats(e_spread(f.scale[i / 4], i % 4)), f.d);
        E_SECOND = _mm256_mul_ps(e_floats(e_spread(f.scale[2 + i / 4], i % 4)), less);
    }
}

OP void e_panel_q4_k(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    const size_t at = (size_t)(b / Q8_PARTS) * sizeof(struct pi_block_q4_k);

    (void)n;
    e_panel_scales(row, at, w);
    for (uint32_t i = 0; i < 2 * Q8_PARTS / 2; i++) {
        VB low[4], high[4];

        e_fours_halves(row, E_AT(q4_k, q) + 16 * i, low, high);
        e_keep(w, i / 2 * 2, i % 2 * 4, 4, low);
        e_keep(w, i / 2 * 2 + 1, i % 2 * 4, 4, high);
    }
}

OP void e_panel_q5_k(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    const size_t at = (size_t)(b / Q8_PARTS) * sizeof(struct pi_block_q5_k);

    (void)n;
    e_panel_scales(row, at, w);
    for (uint32_t h = 0; h < 2; h++) {
        VB top[4];

        e_fours(row, E_AT(q5_k, qh) + 16 * (size_t)h, top);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q8_PARTS; i += 2) {
            const int left = 4 - (int)i;
            VB low[4], high[4];

            e_fours_halves(row, E_AT(q5_k, q) + 16 * (size_t)(i + h), low, high);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                const VB t = left > 0 ? b_left(top[k], left) : b_right(top[k], -left),
                         u = left > 0 ? b_left(top[k], left - 1) : b_right(top[k], 1 - left);

                low[k] = b_or(low[k], b_and(t, b_set(16)));
                high[k] = b_or(high[k], b_and(u, b_set(16)));
            }
            e_keep(w, i, 4 * h, 4, low);
            e_keep(w, i + 1, 4 * h, 4, high);
        }
    }
}

/* 16 elements of each of parts 0..3 of 128, whose first is block number part: half h of them. */
OP void e_fours_q6_k(const void *const *row, size_t ql, size_t qh, uint32_t part, uint32_t h,
                     struct e_half w)
{
    const VB upper = b_set(0x30);
    VB top[4];

    e_fours(row, qh + 16 * (size_t)h, top);
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 2; i++) {
        VB low[4], high[4];

        e_fours_halves(row, ql + 32 * (size_t)i + 16 * (size_t)h, low, high);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            const VB u = i == 0 ? top[k] : b_right(top[k], 2);

            low[k] = b_or(low[k], b_and(b_left(top[k], 4 - 2 * (int)i), upper));
            high[k] = b_or(high[k], b_and(u, upper));
        }
        e_keep(w, part + i, 4 * h, 4, low);
        e_keep(w, part + i + 2, 4 * h, 4, high);
    }
}

OP void e_panel_q6_k(const void *const *row, uint32_t b, uint32_t n, struct e_half w)
{
    const size_t at = (size_t)(b / Q8_PARTS) * sizeof(struct pi_block_q6_k);
    struct e_factors f;

    (void)n;
    e_scales_q6_k(row, at, &f);
#pragma GCC unroll 8
    for (int i = 0; i < Q8_PARTS; i++) {
        const int j = 2 * i;

        E_SCALE = _mm256_mul_ps(e_floats(e_spread_high(f.scale[j / 4], j % 4)), f.d);
        E_SECOND = _mm256_mul_ps(e_floats(e_spread_high(f.scale[j / 4], j % 4 + 1)), f.d);
    }
    for (uint32_t i = 0; i < 4; i++)
        e_fours_q6_k(row, E_AT(q6_k, ql) + 64 * (size_t)(i / 2),
                     E_AT(q6_k, qh) + 32 * (size_t)(i / 2), i / 2 * 4, i % 2, w);
}

#endif
