/*
 * pi_cpu_q8_x86_many.h - eight rows side by side times several vectors of quantised activations; included by pi_cpu_simd_q8.h alone, behind
 * pi_cpu_q8_x86_eight.h.
 *
 * Some blocks of eight rows are unpacked once for all vectors and transposed: a lane of 32 bits holds four weights of one row. Times four elements of x in all
 * lanes, each lane sums what belongs to its row, so that nothing is summed across lanes for a vector: 33 instructions for 256 multiplications of Q4_0 in AVX2
 * in place of 60, and as fast as the blocked products of prompts once unpacked, which costs what two vectors do. So it is for three vectors and more; of Q6_K,
 * for which pi_cpu_q8_x86_eight.h has no products with two, for two.
 */
#ifndef PI_CPU_Q8_X86_MANY_H
#define PI_CPU_Q8_X86_MANY_H

#define PADDED_ROWS  5    /* as many are taken as eight, the last one several times */
#define PANEL_BLOCKS 8    /* 256 elements: what is unpacked takes 2.5 KB */
#define PANEL_X      64   /* vectors of a pass over the rows, at most */
#define LESS_ROOM    4096 /* numbers that e_less() makes of them, at most */

/* second: offsets, or scales of the second half of blocks. */
struct e_panel {
    VB q[PANEL_BLOCKS][8];
    __m256 scale[PANEL_BLOCKS], second[PANEL_BLOCKS];
};

/* How a type is unpacked, n blocks from number b on, and summed. from: vectors that earn it; bias: what the weights are less than the numbers unpacked; wide: half a
 * block's sums fit into 16 bits, a whole one's do not; offset: the panel's second are offsets; parts: they are scales. */
struct e_kind {
    void (*unpack)(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w);
    uint32_t from;
    int bias;
    bool wide, offset, parts;
};

#if defined(DPBUSD)
#define E_BIAS(bias) ((bias) == Q8_SIGNED ? 128 : (bias))

OP VB e_add(VB a, VB b)
{
    return _mm256_add_epi32(a, b);
}

OP VB e_step(int bias, VB sum, VB w, VB size, VB x)
{
    (void)bias;
    (void)size;
    return DPBUSD(sum, w, x);
}

OP VB e_sums(VB v)
{
    return v;
}
#else
#define E_BIAS(bias) (bias)

OP VB e_add(VB a, VB b)
{
    return _mm256_add_epi16(a, b);
}

/* Signed weights: sums of 32 bits. size: the weights without their signs. */
OP VB e_step(int bias, VB sum, VB w, VB size, VB x)
{
    if (bias != Q8_SIGNED)
        return e_next(sum, w, x);
    x = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, _mm256_set1_epi16(1)));
}

OP VB e_sums(VB v)
{
    return _mm256_madd_epi16(v, _mm256_set1_epi16(1));
}
#endif

/* ---- unpacking ---- */

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

/* A block of 5 bits. In registers until it is whole. */
OP void e_fives(const void *const *row, size_t q, size_t qh, VB *out)
{
    VB v[8];

    e_fours_halves(row, q, v, v + 4);
    e_add_fifths(e_four_bytes(row, qh), v);
    memcpy(out, v, sizeof(v));
}

#define E_EACH_BLOCK(T)                                  \
    size_t at = (size_t)b * sizeof(struct pi_block_##T); \
    for (uint32_t i = 0; i < n; i++, at += sizeof(struct pi_block_##T))
#define E_AT(T, field) (at + offsetof(struct pi_block_##T, field))

OP void e_panel_q8_0(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    E_EACH_BLOCK(q8_0)
    {
        e_fours(row, E_AT(q8_0, q), w->q[i]);
        e_fours(row, E_AT(q8_0, q) + 16, w->q[i] + 4);
#if defined(DPBUSD)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            w->q[i][k] = b_xor(w->q[i][k], b_set(128));
#endif
        w->scale[i] = e_gather(row, at);
    }
}

OP void e_panel_q4_0(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    E_EACH_BLOCK(q4_0)
    {
        e_fours_halves(row, E_AT(q4_0, q), w->q[i], w->q[i] + 4);
        w->scale[i] = e_gather(row, at);
    }
}

OP void e_panel_q4_1(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    E_EACH_BLOCK(q4_1)
    {
        e_fours_halves(row, E_AT(q4_1, q), w->q[i], w->q[i] + 4);
        e_gather_two(row, at, &w->scale[i], &w->second[i]);
    }
}

OP void e_panel_q5_0(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    E_EACH_BLOCK(q5_0)
    {
        e_fives(row, E_AT(q5_0, q), E_AT(q5_0, qh), w->q[i]);
        w->scale[i] = e_gather(row, at);
    }
}

OP void e_panel_q5_1(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    E_EACH_BLOCK(q5_1)
    {
        e_fives(row, E_AT(q5_1, q), E_AT(q5_1, qh), w->q[i]);
        e_gather_two(row, at, &w->scale[i], &w->second[i]);
    }
}

/* Scales of the 8 parts, and minima as what is added. */
OP void e_panel_scales(const void *const *row, size_t at, struct e_panel *w)
{
    const struct e_factors f = e_scales(row, at);
    const __m256 less = _mm256_xor_ps(f.dmin, _mm256_set1_ps(-0.0f));

#pragma GCC unroll 8
    for (int j = 0; j < Q8_PARTS; j++) {
        w->scale[j] = _mm256_mul_ps(e_floats(e_spread(f.scale[j / 4], j % 4)), f.d);
        w->second[j] = _mm256_mul_ps(e_floats(e_spread(f.scale[2 + j / 4], j % 4)), less);
    }
}

OP void e_panel_q4_k(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    const size_t at = (size_t)(b / Q8_PARTS) * sizeof(struct pi_block_q4_k);

    (void)n;
    e_panel_scales(row, at, w);
    for (uint32_t i = 0; i < Q8_PARTS; i += 2) {
        e_fours_halves(row, E_AT(q4_k, q) + 16 * i, w->q[i], w->q[i + 1]);
        e_fours_halves(row, E_AT(q4_k, q) + 16 * i + 16, w->q[i] + 4, w->q[i + 1] + 4);
    }
}

OP void e_panel_q5_k(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    const size_t at = (size_t)(b / Q8_PARTS) * sizeof(struct pi_block_q5_k);

    (void)n;
    e_panel_scales(row, at, w);
    for (int h = 0; h < 2; h++) {
        VB top[4];

        e_fours(row, E_AT(q5_k, qh) + 16 * (size_t)h, top);
#pragma GCC unroll 4
        for (int i = 0; i < Q8_PARTS; i += 2) {
            VB low[4], high[4];

            e_fours_halves(row, E_AT(q5_k, q) + 16 * (size_t)(i + h), low, high);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                const VB t = i < 4 ? b_left(top[k], 4 - i) : b_right(top[k], i - 4),
                         u = i < 4 ? b_left(top[k], 3 - i) : b_right(top[k], i - 3);

                w->q[i][4 * h + k] = b_or(low[k], b_and(t, b_set(16)));
                w->q[i + 1][4 * h + k] = b_or(high[k], b_and(u, b_set(16)));
            }
        }
    }
}

/* 16 elements of each of parts 0..3 of 128: half h of them. */
OP void e_fours_q6_k(const void *const *row, size_t ql, size_t qh, int h, VB (*q)[8])
{
    const VB upper = b_set(0x30);
    VB top[4];

    e_fours(row, qh + 16 * (size_t)h, top);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        VB low[4], high[4];

        e_fours_halves(row, ql + 32 * (size_t)i + 16 * (size_t)h, low, high);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            const VB u = i == 0 ? top[k] : b_right(top[k], 2);

            q[i][4 * h + k] = b_or(low[k], b_and(b_left(top[k], 4 - 2 * i), upper));
            q[i + 2][4 * h + k] = b_or(high[k], b_and(u, upper));
        }
    }
}

OP void e_panel_q6_k(const void *const *row, uint32_t b, uint32_t n, struct e_panel *w)
{
    const size_t at = (size_t)(b / Q8_PARTS) * sizeof(struct pi_block_q6_k);
    struct e_factors f;

    (void)n;
    e_scales_q6_k(row, at, &f);
#pragma GCC unroll 16
    for (int j = 0; j < 2 * Q8_PARTS; j++) {
        const __m256 s = _mm256_mul_ps(e_floats(e_spread_high(f.scale[j / 4], j % 4)), f.d);

        *(j % 2 == 0 ? &w->scale[j / 2] : &w->second[j / 2]) = s;
    }
    for (int i = 0; i < 4; i++)
        e_fours_q6_k(row, E_AT(q6_k, ql) + 64 * (size_t)(i / 2),
                     E_AT(q6_k, qh) + 32 * (size_t)(i / 2), i % 2, w->q + 4 * (i / 2));
}

/* ---- what is subtracted ---- */

/* Minus the bias times x in a lane, of a block or of each half: as a sum of 32 bits, or two of 16, of as many elements as such a lane sums. */
INLINE void e_less(struct e_kind t, const struct pi_q8 *x, uint32_t n_blocks, int32_t *out)
{
    const VB zero = _mm256_setzero_si256();

    for (uint32_t b = 0; b < n_blocks; b++) {
        VB v = e_minus(e_next(zero, b_set(E_BIAS(t.bias)), b_load(x[b].q)));

        v = e_add(v, _mm256_shuffle_epi32(v, 0x4e));
        v = e_add(v, _mm256_shuffle_epi32(v, 0xb1));
        if (!t.parts)
            v = e_add(v, _mm256_permute2x128_si256(v, v, 1));
        *out++ = _mm256_extract_epi32(v, 0);
        if (t.parts)
            *out++ = _mm256_extract_epi32(v, 4);
    }
}

/* ---- multiplication ---- */

/* Keeps the compiler from gathering products of several steps before they are added, for which registers are too few. */
#define E_IN_ORDER(v) __asm__ volatile("" : "+v"(v))

/* Keeps it from adding b to the pointers in vectors, from which they come back through memory. */
#define E_APART(p) __asm__ volatile("" : "+r"(p))

/* Steps [from, to) of a block: sums of 32 bits. less: of each vector, where there is a bias. */
INLINE void e_steps(struct e_kind t, int nx, int from, int to, const VB *w,
                    const struct pi_q8 *const *x, uint32_t b, const int32_t *const *less,
                    uint32_t l, VB *sum)
{
#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = E_BIAS(t.bias) > 0 ? _mm256_set1_epi32(less[j][l]) : _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int k = from; k < to; k++) {
        const VB v = w[k], size = _mm256_abs_epi8(v);

#pragma GCC unroll 4
        for (int j = 0; j < nx; j++) {
            int32_t four;

            memcpy(&four, x[j][b].q + 4 * k, sizeof(four));
            sum[j] = e_step(E_BIAS(t.bias), sum[j], v, size, _mm256_set1_epi32(four));
            E_IN_ORDER(sum[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = E_BIAS(t.bias) == Q8_SIGNED ? sum[j] : e_sums(sum[j]);
}

INLINE void e_finish(int nx, const VB *sum, __m256 scale, const struct pi_q8 *const *x, uint32_t b,
                     __m256 *out)
{
#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        out[j] = _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_set1_ps(x[j][b].d)), e_floats(sum[j]),
                                 out[j]);
}

/* Adds to out what a panel's n blocks make with blocks b.. of nx vectors; the first block begins with 0. */
INLINE void e_multiply(struct e_kind t, int nx, const struct e_panel *w, uint32_t n,
                       const struct pi_q8 *const *x, uint32_t b, const int32_t *const *less,
                       __m256 *out)
{
    const struct pi_q8 *xs[MANY_X];
    __m256 s[MANY_X];

#pragma GCC unroll 4
    for (int j = 0; j < nx; j++) {
        xs[j] = x[j] + b;
        s[j] = b > 0 ? out[j] : _mm256_setzero_ps();
        E_APART(xs[j]);
    }
    for (uint32_t i = 0; i < n; i++) {
        VB sum[MANY_X], second[MANY_X];

        e_steps(t, nx, 0, t.wide || t.parts ? 4 : 8, w->q[i], xs, i, less, t.parts ? 2 * i : i,
                sum);
        if (t.parts)
            e_finish(nx, sum, w->scale[i], xs, i, s);
        if (t.wide || t.parts)
            e_steps(t, nx, 4, 8, w->q[i], xs, i, less, 2 * i + 1, second);
        if (t.wide) {
#pragma GCC unroll 4
            for (int j = 0; j < nx; j++)
                sum[j] = _mm256_add_epi32(sum[j], second[j]);
        }
        if (t.parts)
            e_finish(nx, second, w->second[i], xs, i, s);
        else
            e_finish(nx, sum, w->scale[i], xs, i, s);
        if (t.offset) {
#pragma GCC unroll 4
            for (int j = 0; j < nx; j++)
                s[j] = _mm256_fmadd_ps(w->second[i], _mm256_set1_ps(xs[j][i].s), s[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        out[j] = s[j];
}

/* ---- passes over the rows ---- */

/* What a pass asks for of the next rows: a little of all eight with every few vectors that a panel is multiplied by, in 1/256 bytes. Where fewer come next, the
 * others are some in hand, which are in the cache: no loop over the rows, which cost 1.1 times the time of all (Zen 3, rows in the cache, eight vectors). */
struct e_ahead {
    const char *row[EIGHT];
    uint64_t at, step; /* of a vector */
};

OP void e_look(struct e_ahead *a, uint32_t n_x)
{
    const uint64_t to = (a->at + a->step * n_x) / 256;

    for (uint64_t b = (a->at / 256 + 63) & ~(uint64_t)63; b < to; b += 64) {
#pragma GCC unroll 8
        for (uint32_t r = 0; r < EIGHT; r++)
            __builtin_prefetch(a->row[r] + b, 0, 2);
    }
    a->at += a->step * n_x;
}

typedef void (*e_multiply_fn)(uint32_t nx, const struct e_panel *w, uint32_t n,
                              const struct pi_q8 *const *x, uint32_t b, const int32_t *const *less,
                              __m256 *out);

/* out[r][j]: sum r of sum[j]. */
INLINE void e_put(const __m256 *sum, uint32_t n_x, uint32_t n_rows, float *out, size_t ldo)
{
    for (uint32_t j = 0; j < n_x; j++) {
        float v[EIGHT];

        _mm256_storeu_ps(v, sum[j]);
        for (uint32_t r = 0; r < n_rows; r++)
            out[(size_t)r * ldo + j] = v[r];
    }
}

/* The vectors of a pass over the rows. less: what is subtracted, (n_x, each). */
struct e_vectors {
    const struct pi_q8 *const *x;
    uint32_t n_x, n_blocks;
    const int32_t *less;
    size_t each;
};

/* sum[j]: eight rows times x[j]. */
INLINE void e_pass(struct e_kind t, e_multiply_fn multiply, const void *const *row,
                   struct e_vectors v, struct e_ahead *ahead, __m256 *sum)
{
    for (uint32_t b = 0, n; b < v.n_blocks; b += n) {
        const size_t at = v.each * b / v.n_blocks;
        struct e_panel w;

        n = least(v.n_blocks - b, PANEL_BLOCKS);
        t.unpack(row, b, n, &w);
        for (uint32_t j = 0, k; j < v.n_x; j += k) {
            const int32_t *less[MANY_X];

            k = least(v.n_x - j, MANY_X);
            e_look(ahead, k);
            for (uint32_t i = 0; i < k; i++)
                less[i] = v.less + (j + i) * v.each + at;
            multiply(k, &w, n, v.x + j, b, less, sum + j);
        }
    }
}

/* Rows i.. of a list of n_ids, behind which n_next more are known, at most eight; how many they are. The last one stands for those that lack. */
INLINE uint32_t e_take_rows(const void *base, size_t stride, const uint32_t *ids, uint32_t i,
                            uint32_t n_ids, uint32_t n_next, const void **row,
                            struct e_ahead *ahead)
{
    const uint32_t n = least(n_ids - i, EIGHT), n_ahead = least(n_ids + n_next - i - n, EIGHT);

    for (uint32_t r = 0; r < EIGHT; r++)
        row[r] = row_at(base, stride, ids[i + least(r, n - 1)]);
    for (uint32_t r = 0; r < EIGHT; r++)
        ahead->row[r] = r < n_ahead ? row_at(base, stride, ids[i + n + r]) : row[r];
    ahead->at = 0;
    if (n_ahead == 0)
        ahead->step = 0;
    return n;
}

/* The products of a dot_many: of how many rows they are made, from the first on. */
INLINE uint32_t e_take_many(struct e_kind t, e_multiply_fn multiply, const void *base,
                            size_t stride, const uint32_t *ids, uint32_t n_ids, uint32_t n_next,
                            const struct pi_q8 *const *x, uint32_t n_x, size_t row_bytes,
                            uint32_t n, float *out)
{
    const uint32_t n_blocks = n / PI_BLOCK, n_panels = (n_blocks + PANEL_BLOCKS - 1) / PANEL_BLOCKS;
    const size_t each = E_BIAS(t.bias) <= 0 ? 0 : t.parts ? 2 * (size_t)n_blocks : n_blocks;
    uint32_t most = PANEL_X, i = 0;
    int32_t less[LESS_ROOM];

    if (each > 0 && LESS_ROOM / each < most)
        most = (uint32_t)(LESS_ROOM / each);
    if (n_x < t.from || most < t.from || n == 0)
        return 0;
    for (uint32_t j = 0, k; j < n_x; j += k) {
        k = least(n_x - j, most);
        for (uint32_t v = 0; v < k && each > 0; v++)
            e_less(t, x[j + v], n_blocks, less + v * each);
        for (uint32_t rows = i = 0; n_ids - i >= PADDED_ROWS; i += rows) {
            struct e_ahead ahead = {.step = j == 0 ? (uint64_t)row_bytes * 256 / k / n_panels : 0};
            const void *row[EIGHT];
            __m256 sum[PANEL_X];

            rows = e_take_rows(base, stride, ids, i, n_ids, n_next, row, &ahead);
            e_pass(t, multiply, row, (struct e_vectors){x + j, k, n_blocks, less, each}, &ahead,
                   sum);
            e_put(sum, k, rows, out + (size_t)i * n_x + j, n_x);
        }
    }
    return i;
}

#define E_KIND(T, FROM, BIAS, WIDE, OFFSET, PARTS) \
    ((struct e_kind){.unpack = e_panel_##T,        \
                     .from = (FROM),               \
                     .bias = (BIAS),               \
                     .wide = (WIDE),               \
                     .offset = (OFFSET),           \
                     .parts = (PARTS)})
#if defined(DPBUSD)
#define E_WIDE false
#else
#define E_WIDE true
#endif

#define E_MANY(T, ...)                                                                         \
    static TARGET __attribute__((noinline)) void e_multiply_##T(                               \
        uint32_t nx, const struct e_panel *w, uint32_t n, const struct pi_q8 *const *x,        \
        uint32_t b, const int32_t *const *less, __m256 *out)                                   \
    {                                                                                          \
        UP_TO_ROWS(nx, E_MULTIPLY, E_KIND(T, __VA_ARGS__), w, n, x, b, less, out);             \
    }                                                                                          \
    static TARGET __attribute__((noinline)) uint32_t e_take_many_##T(                          \
        const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids, uint32_t n_next, \
        const struct pi_q8 *const *x, uint32_t n_x, size_t row_bytes, uint32_t n, float *out)  \
    {                                                                                          \
        return e_take_many(E_KIND(T, __VA_ARGS__), e_multiply_##T, base, stride, ids, n_ids,   \
                           n_next, x, n_x, row_bytes, n, out);                                 \
    }
#define E_MULTIPLY(nx, kind, ...) e_multiply(kind, nx, __VA_ARGS__)

E_MANY(q8_0, 3, Q8_SIGNED, false, false, false)
E_MANY(q4_0, 3, 8, false, false, false)
E_MANY(q4_1, 3, 0, false, true, false)
E_MANY(q5_0, 3, 16, false, false, false)
E_MANY(q5_1, 3, 0, E_WIDE, true, false)
E_MANY(q4_k, 3, 0, false, true, false)
E_MANY(q5_k, 3, 0, E_WIDE, true, false)
E_MANY(q6_k, 2, 32, false, false, true)

#endif
