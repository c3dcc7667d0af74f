/*
 * pi_cpu_simd_q8.h - the vector kernels for quantised activations; included by pi_cpu_simd.h alone. In vectors of 256 bits in every table.
 *
 * 32 products of unsigned weights with signed activations are added in pairs to 16 bits (vpmaddubsw). What is subtracted from weights (8 in Q4_0) is
 * subtracted from the pairs as its product with x, which all rows share; in Q8_0 the weight's sign moves to the activation. Nothing saturates: a pair is at
 * most 63 * 127 * 2; 128 * 127 * 2 = 32512 in Q8_0. Four rows side by side, or zeros in place of them: their sums meet in the four lanes of one vector, in
 * which the rows' sums in F32 go on, in the order of pi_cpu.h. On the way there four pairs of a row are added in 16 bits, where they fit (all but Q8_0: at
 * most 4 * 31 * 127 * 2 = 31496 in Q5_1, 4 * 32 * 127 * 2 = 32512 in Q6_K).
 */
#ifndef PI_CPU_SIMD_Q8_H
#define PI_CPU_SIMD_Q8_H

#define Q8_SIGNED (-1) /* in place of a bias: weights have a sign */
#define Q8_PARTS  (PI_SUPER / PI_BLOCK)

/* How to read 32 weights of a row: those of block b; in K types those of part b % 8 of block b / 8. bias: what the weights are less than the numbers read. */
struct q8_reader {
    __m256i (*unpack)(const void *row, uint32_t b);
    int bias;
    uint16_t (*scale)(const void *row, uint32_t b);  /* F16 */
    uint16_t (*offset)(const void *row, uint32_t b); /* NULL: none */
};

/* K types. factors: of 8 parts, with d and dmin applied; of the parts' first and last 8 where they are of 16 elements. */
struct q8_super_reader {
    __m256i (*unpack)(const void *row, uint32_t b);
    int bias;
    void (*factors)(const void *row, uint32_t b, __m256 *first, __m256 *second);
    bool minima; /* second is what is subtracted; false: parts of 16 */
};

INLINE float q8_half(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

INLINE __m256i q8_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* ---- readers ---- */

/* The low halves of 16 bytes, then the high ones. */
INLINE __m256i q8_halves(const uint8_t *q)
{
    __m128i v = _mm_loadu_si128((const void *)q);

    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
}

/* 32 bits to 32 bytes of 0 or 16. */
INLINE __m256i q8_fifths(const uint8_t *qh)
{
    const __m256i pick = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                            0x0303030303030303),
                  bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    uint32_t bits;
    __m256i v;

    memcpy(&bits, qh, sizeof(bits));
    v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), pick);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit), _mm256_set1_epi8(16));
}

#define Q8_BLOCK(T, row, b) ((const struct pi_block_##T *)(row) + (b))

INLINE __m256i q8_unpack_q8_0(const void *row, uint32_t b)
{
    return q8_load(Q8_BLOCK(q8_0, row, b)->q);
}

INLINE __m256i q8_unpack_q4_0(const void *row, uint32_t b)
{
    return q8_halves(Q8_BLOCK(q4_0, row, b)->q);
}

INLINE __m256i q8_unpack_q4_1(const void *row, uint32_t b)
{
    return q8_halves(Q8_BLOCK(q4_1, row, b)->q);
}

INLINE __m256i q8_unpack_q5_0(const void *row, uint32_t b)
{
    return _mm256_or_si256(q8_halves(Q8_BLOCK(q5_0, row, b)->q),
                           q8_fifths(Q8_BLOCK(q5_0, row, b)->qh));
}

INLINE __m256i q8_unpack_q5_1(const void *row, uint32_t b)
{
    return _mm256_or_si256(q8_halves(Q8_BLOCK(q5_1, row, b)->q),
                           q8_fifths(Q8_BLOCK(q5_1, row, b)->qh));
}

#define Q8_FIELD(T, NAME, FIELD)                                 \
    INLINE uint16_t q8_##NAME##_##T(const void *row, uint32_t b) \
    {                                                            \
        return Q8_BLOCK(T, row, b)->FIELD;                       \
    }
Q8_FIELD(q8_0, scale, d)
Q8_FIELD(q4_0, scale, d)
Q8_FIELD(q4_1, scale, d)
Q8_FIELD(q4_1, offset, m)
Q8_FIELD(q5_0, scale, d)
Q8_FIELD(q5_1, scale, d)
Q8_FIELD(q5_1, offset, m)

/* Bytes shifted right by a few bits, of which the mask keeps what is wanted. */
INLINE __m256i q8_shifted(const uint8_t *q, uint32_t shift, int mask)
{
    return _mm256_and_si256(_mm256_srl_epi16(q8_load(q), _mm_cvtsi32_si128((int)shift)),
                            _mm256_set1_epi8((char)mask));
}

INLINE __m256i q8_unpack_q4_k(const void *row, uint32_t b)
{
    return q8_shifted(Q8_BLOCK(q4_k, row, b / 8)->q + b % 8 / 2 * PI_BLOCK, b % 2 * 4, 15);
}

INLINE __m256i q8_unpack_q5_k(const void *row, uint32_t b)
{
    const struct pi_block_q5_k *w = Q8_BLOCK(q5_k, row, b / 8);

    return _mm256_or_si256(q8_shifted(w->q + b % 8 / 2 * PI_BLOCK, b % 2 * 4, 15),
                           _mm256_slli_epi16(q8_shifted(w->qh, b % 8, 1), 4));
}

INLINE __m256i q8_unpack_q6_k(const void *row, uint32_t b)
{
    const struct pi_block_q6_k *w = Q8_BLOCK(q6_k, row, b / 8);
    uint32_t half = b % 8 / 4, k = b % 4;

    return _mm256_or_si256(q8_shifted(w->ql + 64 * half + 32 * (k % 2), k / 2 * 4, 15),
                           _mm256_slli_epi16(q8_shifted(w->qh + 32 * half, 2 * k, 3), 4));
}

/* Six bits each: 8 scales, then 8 minima, as bytes. */
INLINE __m128i q8_scales_minima(const uint8_t *s)
{
    uint32_t u[4];

    memcpy(u, s, 12);
    u[3] = (u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 6 & 0x03030303) << 4;
    u[2] = (u[2] & 0x0f0f0f0f) | (u[0] >> 6 & 0x03030303) << 4;
    return _mm_setr_epi32((int)(u[0] & 0x3f3f3f3f), (int)u[2], (int)(u[1] & 0x3f3f3f3f), (int)u[3]);
}

INLINE __m256 q8_times(uint16_t d, __m256i v)
{
    return _mm256_mul_ps(_mm256_set1_ps(q8_half(d)), _mm256_cvtepi32_ps(v));
}

INLINE void q8_factors(const uint8_t *scales, uint16_t d, uint16_t dmin, __m256 *first,
                       __m256 *second)
{
    __m128i s = q8_scales_minima(scales);

    *first = q8_times(d, _mm256_cvtepu8_epi32(s));
    *second = q8_times(dmin, _mm256_cvtepu8_epi32(_mm_srli_si128(s, 8)));
}

INLINE void q8_factors_q4_k(const void *row, uint32_t b, __m256 *first, __m256 *second)
{
    const struct pi_block_q4_k *w = Q8_BLOCK(q4_k, row, b);

    q8_factors(w->scales, w->d, w->dmin, first, second);
}

INLINE void q8_factors_q5_k(const void *row, uint32_t b, __m256 *first, __m256 *second)
{
    const struct pi_block_q5_k *w = Q8_BLOCK(q5_k, row, b);

    q8_factors(w->scales, w->d, w->dmin, first, second);
}

INLINE void q8_factors_q6_k(const void *row, uint32_t b, __m256 *first, __m256 *second)
{
    const struct pi_block_q6_k *w = Q8_BLOCK(q6_k, row, b);

    *first = q8_times(w->d, _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)w->scale)));
    *second = q8_times(w->d, _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(w->scale + 8))));
}

/* ---- products ---- */

/* 16 sums of two. x_bias: the bias times x in the same pairs. */
INLINE __m256i q8_pairs(int bias, __m256i w, __m256i x, __m256i x_bias)
{
    if (bias == Q8_SIGNED)
        return _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
    w = _mm256_maddubs_epi16(w, x);
    return bias > 0 ? _mm256_sub_epi16(w, x_bias) : w;
}

INLINE __m256i q8_bias(int bias, __m256i x)
{
    return bias > 0 ? _mm256_maddubs_epi16(_mm256_set1_epi8((char)bias), x) : x;
}

/* Lane r of each half: the sum of that half of p[r], in 32 bits. narrow: four of its numbers fit into 16. */
INLINE __m256i q8_four(bool narrow, const __m256i *p)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i a[2];

    if (narrow) {
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++)
            a[k] = _mm256_add_epi16(_mm256_unpacklo_epi32(p[2 * k], p[2 * k + 1]),
                                    _mm256_unpackhi_epi32(p[2 * k], p[2 * k + 1]));
        a[0] =
            _mm256_add_epi16(_mm256_unpacklo_epi64(a[0], a[1]), _mm256_unpackhi_epi64(a[0], a[1]));
        return _mm256_madd_epi16(a[0], ones);
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        __m256i p0 = _mm256_madd_epi16(p[2 * k], ones), p1 = _mm256_madd_epi16(p[2 * k + 1], ones);

        a[k] = _mm256_add_epi32(_mm256_unpacklo_epi32(p0, p1), _mm256_unpackhi_epi32(p0, p1));
    }
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a[0], a[1]), _mm256_unpackhi_epi64(a[0], a[1]));
}

/* The rows' sums of products with 32 numbers of x, as q8_four() leaves them. */
INLINE __m256i q8_products(int bias, int rows, const __m256i *w, const int8_t *q)
{
    __m256i x = q8_load(q), x_bias = q8_bias(bias, x), p[ROWS];

#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
        p[r] = r < rows ? q8_pairs(bias, w[r], x, x_bias) : _mm256_setzero_si256();
    return q8_four(bias != Q8_SIGNED, p);
}

INLINE __m128 q8_low(__m256i v)
{
    return _mm_cvtepi32_ps(_mm256_castsi256_si128(v));
}

INLINE __m128 q8_high(__m256i v)
{
    return _mm_cvtepi32_ps(_mm256_extracti128_si256(v, 1));
}

INLINE __m128 q8_both(__m256i v)
{
    return _mm_cvtepi32_ps(
        _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}

/* A field of block b of each row. */
INLINE __m128 q8_gather(uint16_t (*field)(const void *, uint32_t), int rows, const void *const *row,
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

INLINE void q8_store(int rows, int nx, const __m128 *sum, float *out, size_t ldo)
{
#pragma GCC unroll 4
    for (int j = 0; j < nx; j++) {
        float v[ROWS];

        _mm_storeu_ps(v, sum[j]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            out[(size_t)r * ldo + (size_t)j] = v[r];
    }
}

/* Types without parts: out[r][j] = row r . x[j]. */
INLINE void q8_block(struct q8_reader rd, int rows, int nx, const void *const *row,
                     const struct pi_q8 *const *x, uint32_t n, float *out, size_t ldo,
                     struct ahead ahead)
{
    __m128 sum[MANY_X];

#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = _mm_setzero_ps();
    for (uint32_t b = 0; b < n / PI_BLOCK; b++) {
        __m128 d = q8_gather(rd.scale, rows, row, b), m = d;
        __m256i w[ROWS];

        if (b % (AHEAD / PI_BLOCK) == 0)
            look_ahead(&ahead);
        if (rd.offset != NULL)
            m = q8_gather(rd.offset, rows, row, b);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            w[r] = rd.unpack(row[r], b);
#pragma GCC unroll 4
        for (int j = 0; j < nx; j++) {
            __m256i p = q8_products(rd.bias, rows, w, x[j][b].q);

            sum[j] = _mm_fmadd_ps(_mm_mul_ps(d, _mm_set1_ps(x[j][b].d)), q8_both(p), sum[j]);
            if (rd.offset != NULL)
                sum[j] = _mm_fmadd_ps(m, _mm_set1_ps(x[j][b].s), sum[j]);
        }
    }
    q8_store(rows, nx, sum, out, ldo);
}

/* Lane r of out[i]: lane i of v[r]. */
INLINE void q8_transpose(int rows, const __m256 *v, __m128 *out)
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

/* K types. */
INLINE void q8_super(struct q8_super_reader rd, int rows, int nx, const void *const *row,
                     const struct pi_q8 *const *x, uint32_t n, float *out, size_t ldo,
                     struct ahead ahead)
{
    __m128 sum[MANY_X];

#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = _mm_setzero_ps();
    for (uint32_t b = 0; b < n / PI_SUPER; b++) {
        __m256 first[ROWS], second[ROWS];
        __m128 f[2 * Q8_PARTS];

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            rd.factors(row[r], b, &first[r], &second[r]);
        q8_transpose(rows, first, f);
        q8_transpose(rows, second, f + Q8_PARTS);
        for (uint32_t i = 0; i < Q8_PARTS; i++) {
            __m256i w[ROWS];

            if (i % (AHEAD / PI_BLOCK) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                w[r] = rd.unpack(row[r], b * Q8_PARTS + i);
#pragma GCC unroll 4
            for (int j = 0; j < nx; j++) {
                const struct pi_q8 *xb = x[j] + b * Q8_PARTS + i;
                __m256i p = q8_products(rd.bias, rows, w, xb->q);
                __m128 d = _mm_set1_ps(xb->d);

                if (rd.minima) {
                    sum[j] = _mm_fmadd_ps(_mm_mul_ps(f[i], d), q8_both(p), sum[j]);
                    sum[j] = _mm_fnmadd_ps(f[Q8_PARTS + i], _mm_set1_ps(xb->s), sum[j]);
                } else {
                    sum[j] = _mm_fmadd_ps(_mm_mul_ps(f[2 * i], d), q8_low(p), sum[j]);
                    sum[j] = _mm_fmadd_ps(_mm_mul_ps(f[2 * i + 1], d), q8_high(p), sum[j]);
                }
            }
        }
    }
    q8_store(rows, nx, sum, out, ldo);
}

/* ---- functions of a type ---- */

/* DOT(rows, nx, row, x, n, out, ldo, ahead) with the readers of type T. */
#define KERNELS_Q8(T, DOT, BYTES)                                                              \
    static TARGET void dot_up_to_q8_##T(uint32_t rows, const void *const *row,                 \
                                        const struct pi_q8 *x, uint32_t n, float *out,         \
                                        struct ahead ahead)                                    \
    {                                                                                          \
        const struct pi_q8 *const one[1] = {x};                                                \
        switch (rows) {                                                                        \
        case 1:                                                                                \
            DOT(1, 1, row, one, n, out, 1, ahead);                                             \
            break;                                                                             \
        case 2:                                                                                \
            DOT(2, 1, row, one, n, out, 1, ahead);                                             \
            break;                                                                             \
        case 3:                                                                                \
            DOT(3, 1, row, one, n, out, 1, ahead);                                             \
            break;                                                                             \
        default:                                                                               \
            DOT(ROWS, 1, row, one, n, out, 1, ahead);                                          \
        }                                                                                      \
    }                                                                                          \
    static TARGET void dot_rows_q8_##T(const void *rows, size_t stride, uint32_t n_rows,       \
                                       const struct pi_q8 *x, uint32_t n, float *out)          \
    {                                                                                          \
        for (uint32_t i = 0; i < n_rows; i += ROWS) {                                          \
            const char *p = row_at(rows, stride, i);                                           \
            uint32_t k = n_rows - i < ROWS ? n_rows - i : ROWS;                                \
            uint32_t n_next = n_rows - i - k < ROWS ? n_rows - i - k : ROWS;                   \
            const void *row[ROWS];                                                             \
            const char *next[ROWS];                                                            \
            for (uint32_t r = 0; r < k; r++)                                                   \
                row[r] = p + r * stride;                                                       \
            for (uint32_t r = 0; r < n_next; r++)                                              \
                next[r] = p + (ROWS + r) * stride;                                             \
            dot_up_to_q8_##T(k, row, x, n, out + i, ahead_one(next, n_next, 0, BYTES(n), n));  \
        }                                                                                      \
    }                                                                                          \
    static TARGET void dot_ids_q8_##T(const void *base, size_t stride, const uint32_t *ids,    \
                                      uint32_t n_ids, const struct pi_q8 *x, uint32_t n,       \
                                      float *out)                                              \
    {                                                                                          \
        for (uint32_t i = 0; i < n_ids; i += ROWS) {                                           \
            const void *row[ROWS];                                                             \
            const char *next[ROWS];                                                            \
            uint32_t k = n_ids - i < ROWS ? n_ids - i : ROWS;                                  \
            uint32_t n_next = n_ids - i - k < ROWS ? n_ids - i - k : ROWS;                     \
            for (uint32_t r = 0; r < k; r++)                                                   \
                row[r] = row_at(base, stride, ids[i + r]);                                     \
            for (uint32_t r = 0; r < n_next; r++)                                              \
                next[r] = row_at(base, stride, ids[i + k + r]);                                \
            dot_up_to_q8_##T(k, row, x, n, out + i, ahead_one(next, n_next, 0, BYTES(n), n));  \
        }                                                                                      \
    }                                                                                          \
    static TARGET void dot_many_q8_##T(                                                        \
        const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids, uint32_t n_next, \
        const struct pi_q8 *const *x, uint32_t n_x, uint32_t n, float *out)                    \
    {                                                                                          \
        size_t row_bytes = BYTES(n);                                                           \
        uint32_t i = 0;                                                                        \
        for (; n_ids - i >= ROWS; i += ROWS) {                                                 \
            const void *row[ROWS];                                                             \
            for (uint32_t r = 0; r < ROWS; r++)                                                \
                row[r] = row_at(base, stride, ids[i + r]);                                     \
            MANY_ALL(ROWS, MANY_X, DOT);                                                       \
        }                                                                                      \
        for (; i < n_ids; i++) {                                                               \
            const void *row[1] = {row_at(base, stride, ids[i])};                               \
            MANY_ALL(1, MANY_X, DOT);                                                          \
        }                                                                                      \
    }

#define Q8_PLAIN(T, BIAS, OFFSET) \
    ((struct q8_reader){          \
        .unpack = q8_unpack_##T, .bias = (BIAS), .scale = q8_scale_##T, .offset = (OFFSET)})
#define Q8_PARTED(T, BIAS, MINIMA) \
    ((struct q8_super_reader){     \
        .unpack = q8_unpack_##T, .bias = (BIAS), .factors = q8_factors_##T, .minima = (MINIMA)})

#define Q8_DOT_Q8_0(...) q8_block(Q8_PLAIN(q8_0, Q8_SIGNED, NULL), __VA_ARGS__)
#define Q8_DOT_Q4_0(...) q8_block(Q8_PLAIN(q4_0, 8, NULL), __VA_ARGS__)
#define Q8_DOT_Q4_1(...) q8_block(Q8_PLAIN(q4_1, 0, q8_offset_q4_1), __VA_ARGS__)
#define Q8_DOT_Q5_0(...) q8_block(Q8_PLAIN(q5_0, 16, NULL), __VA_ARGS__)
#define Q8_DOT_Q5_1(...) q8_block(Q8_PLAIN(q5_1, 0, q8_offset_q5_1), __VA_ARGS__)
#define Q8_DOT_Q4_K(...) q8_super(Q8_PARTED(q4_k, 0, true), __VA_ARGS__)
#define Q8_DOT_Q5_K(...) q8_super(Q8_PARTED(q5_k, 0, true), __VA_ARGS__)
#define Q8_DOT_Q6_K(...) q8_super(Q8_PARTED(q6_k, 32, false), __VA_ARGS__)

#define Q8_BYTES(T, n)       ((size_t)(n) / PI_BLOCK * sizeof(struct pi_block_##T))
#define Q8_BYTES_SUPER(T, n) ((size_t)(n) / PI_SUPER * sizeof(struct pi_block_##T))
#define Q8_BYTES_Q8_0(n)     Q8_BYTES(q8_0, n)
#define Q8_BYTES_Q4_0(n)     Q8_BYTES(q4_0, n)
#define Q8_BYTES_Q4_1(n)     Q8_BYTES(q4_1, n)
#define Q8_BYTES_Q5_0(n)     Q8_BYTES(q5_0, n)
#define Q8_BYTES_Q5_1(n)     Q8_BYTES(q5_1, n)
#define Q8_BYTES_Q4_K(n)     Q8_BYTES_SUPER(q4_k, n)
#define Q8_BYTES_Q5_K(n)     Q8_BYTES_SUPER(q5_k, n)
#define Q8_BYTES_Q6_K(n)     Q8_BYTES_SUPER(q6_k, n)

KERNELS_Q8(q8_0, Q8_DOT_Q8_0, Q8_BYTES_Q8_0)
KERNELS_Q8(q4_0, Q8_DOT_Q4_0, Q8_BYTES_Q4_0)
KERNELS_Q8(q4_1, Q8_DOT_Q4_1, Q8_BYTES_Q4_1)
KERNELS_Q8(q5_0, Q8_DOT_Q5_0, Q8_BYTES_Q5_0)
KERNELS_Q8(q5_1, Q8_DOT_Q5_1, Q8_BYTES_Q5_1)
KERNELS_Q8(q4_k, Q8_DOT_Q4_K, Q8_BYTES_Q4_K)
KERNELS_Q8(q5_k, Q8_DOT_Q5_K, Q8_BYTES_Q5_K)
KERNELS_Q8(q6_k, Q8_DOT_Q6_K, Q8_BYTES_Q6_K)

/* What a type's entry in the table has of them. */
#define Q8_OF_f32  PI_Q8_NONE
#define Q8_OF_f16  PI_Q8_NONE
#define Q8_OF_bf16 PI_Q8_NONE
#define Q8_OF_q8_0 PI_Q8_ENTRIES(, q8_0)
#define Q8_OF_q4_0 PI_Q8_ENTRIES(, q4_0)
#define Q8_OF_q4_1 PI_Q8_ENTRIES(, q4_1)
#define Q8_OF_q5_0 PI_Q8_ENTRIES(, q5_0)
#define Q8_OF_q5_1 PI_Q8_ENTRIES(, q5_1)
#define Q8_OF_q4_k PI_Q8_ENTRIES(, q4_k)
#define Q8_OF_q5_k PI_Q8_ENTRIES(, q5_k)
#define Q8_OF_q6_k PI_Q8_ENTRIES(, q6_k)

/* ---- activations ---- */

/* The largest magnitude of 32 as bits: they are in the order of the magnitudes, NaN last. */
INLINE uint32_t q8_max_bits(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_and_si256(q8_load(x), mask);
    __m128i m;

#pragma GCC unroll 4
    for (int k = 1; k < 4; k++)
        max = _mm256_max_epi32(max, _mm256_and_si256(q8_load(x + 8 * k), mask));
    m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

static TARGET void quantise_q8(const float *x, struct pi_q8 *out, uint32_t n)
{
    for (uint32_t b = 0; b < n / PI_BLOCK; b++, x += PI_BLOCK, out++) {
        float d = pi_q8_scale(q8_max_bits(x));
        __m256i q[4], sum;
        __m128i s;

        *out = (struct pi_q8){.d = d, .s = d};
        if (!(d > 0.0f))
            continue;
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            q[k] = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(x + 8 * k), _mm256_set1_ps(d)));
        sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
        out->s = d * (float)_mm_cvtsi128_si32(s);
        q[0] = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        q[0] = _mm256_permutevar8x32_epi32(q[0], _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((void *)out->q, q[0]);
    }
}

#endif
