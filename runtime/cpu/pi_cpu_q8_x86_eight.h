/*
 * pi_cpu_q8_x86_eight.h - eight rows side by side times one vector of quantised activations or two; included by pi_cpu_simd_q8.h where the ISA has Q8_EIGHT.
 *
 * A vector of 32 bytes holds 16 of row p and 16 of row p + 4, so that four vectors hold eight rows and what four rows need to bring their sums together does
 * for eight; sums in F32 are those of eight rows in one vector. The same order of sums as of four rows, thus the same bits. Scales of the K types stay bytes
 * until their part is multiplied: rows are brought side by side as bytes, in a few shuffles for all parts.
 */
#ifndef PI_CPU_Q8_X86_EIGHT_H
#define PI_CPU_Q8_X86_EIGHT_H

#define EIGHT  8
#define Q8_FAR (GW > 8) /* rows of streams far from each other: pi_cpu_q8_x86_far.h */

/* 16 bytes of each of two rows. */
OP VB e_pair(const void *a, const void *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b),
                                   1);
}

OP VB e_low(VB v)
{
    return b_and(v, b_set(15));
}

OP VB e_high(VB v)
{
    return b_and(b_right(v, 4), b_set(15));
}

#if defined(DPBUSD)
OP VB e_next(VB sum, VB w, VB x)
{
    return DPBUSD(sum, w, x);
}

OP VB e_minus(VB v)
{
    return _mm256_sub_epi32(_mm256_setzero_si256(), v);
}

OP VB e_four(bool wide, const VB *p)
{
    (void)wide;
    return q8_four(p);
}
#else
/* Sums of pairs of 16 bits, modulo 2^16. */
OP VB e_next(VB sum, VB w, VB x)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
}

OP VB e_minus(VB v)
{
    return _mm256_sub_epi16(_mm256_setzero_si256(), v);
}

/* Four vectors, of which each half is a row's, to a number of 32 bits for each row. wide: of what was added to a vector, four sums fit into 16 bits, but all
 * eight do not. */
OP VB e_four(bool wide, const VB *p)
{
    const VB ones = _mm256_set1_epi16(1);
    VB a[2], low, high;

#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
        a[k] = _mm256_add_epi16(_mm256_unpacklo_epi32(p[2 * k], p[2 * k + 1]),
                                _mm256_unpackhi_epi32(p[2 * k], p[2 * k + 1]));
    low = _mm256_unpacklo_epi64(a[0], a[1]);
    high = _mm256_unpackhi_epi64(a[0], a[1]);
    if (wide)
        return _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones));
    return _mm256_madd_epi16(_mm256_add_epi16(low, high), ones);
}
#endif

OP __m256 e_floats(VB v)
{
    return _mm256_cvtepi32_ps(v);
}

/* ---- types without parts ---- */

/* unpack: elements 0..15 and 16..31 of a block of two rows. offset: an F16 behind the scale. */
struct e_reader {
    void (*unpack)(const void *a, const void *b, VB *first, VB *second);
    int bias;
    bool wide, offset;
    size_t size;
};

OP void e_halves(const void *a, const void *b, VB *first, VB *second)
{
    const VB v = e_pair(a, b);

    *first = e_low(v);
    *second = e_high(v);
}

/* Bits 0..15 and 16..31 of the numbers at a and b, as 16 where they are set. */
OP void e_fifths(const uint8_t *a, const uint8_t *b, VB *first, VB *second)
{
    const VB one = _mm256_set1_epi64x((long long)0x8040201008040201), sixteen = b_set(16),
             at = _mm256_broadcastsi128_si256(
                 _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)),
             v = e_pair(a, b), low = _mm256_shuffle_epi8(v, at),
             high = _mm256_shuffle_epi8(v, _mm256_add_epi8(at, b_set(2)));

    *first = b_or(*first, b_and(_mm256_cmpeq_epi8(b_and(low, one), one), sixteen));
    *second = b_or(*second, b_and(_mm256_cmpeq_epi8(b_and(high, one), one), sixteen));
}

#if defined(DPBUSD) && Q8_FAR
/* Read as unsigned, with a bias of 128. */
OP void e_unpack_q8_0(const void *a, const void *b, VB *first, VB *second)
{
    const int8_t *qa = Q8_BLOCK(q8_0, a, 0)->q, *qb = Q8_BLOCK(q8_0, b, 0)->q;

    *first = b_xor(e_pair(qa, qb), b_set(128));
    *second = b_xor(e_pair(qa + 16, qb + 16), b_set(128));
}
#endif

OP void e_unpack_q4_0(const void *a, const void *b, VB *first, VB *second)
{
    e_halves(Q8_BLOCK(q4_0, a, 0)->q, Q8_BLOCK(q4_0, b, 0)->q, first, second);
}

OP void e_unpack_q4_1(const void *a, const void *b, VB *first, VB *second)
{
    e_halves(Q8_BLOCK(q4_1, a, 0)->q, Q8_BLOCK(q4_1, b, 0)->q, first, second);
}

OP void e_unpack_q5_0(const void *a, const void *b, VB *first, VB *second)
{
    e_halves(Q8_BLOCK(q5_0, a, 0)->q, Q8_BLOCK(q5_0, b, 0)->q, first, second);
    e_fifths(Q8_BLOCK(q5_0, a, 0)->qh, Q8_BLOCK(q5_0, b, 0)->qh, first, second);
}

OP void e_unpack_q5_1(const void *a, const void *b, VB *first, VB *second)
{
    e_halves(Q8_BLOCK(q5_1, a, 0)->q, Q8_BLOCK(q5_1, b, 0)->q, first, second);
    e_fifths(Q8_BLOCK(q5_1, a, 0)->qh, Q8_BLOCK(q5_1, b, 0)->qh, first, second);
}

/* An F16 of each row. */
OP __m256 e_gather(const void *const *row, size_t at)
{
    __m128i h[2];

#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        const void *const *r = row + 4 * k;

        h[k] = _mm_cvtsi32_si128(pi_read_u16((const char *)r[0] + at));
        h[k] = _mm_insert_epi16(h[k], pi_read_u16((const char *)r[1] + at), 1);
        h[k] = _mm_insert_epi16(h[k], pi_read_u16((const char *)r[2] + at), 2);
        h[k] = _mm_insert_epi16(h[k], pi_read_u16((const char *)r[3] + at), 3);
    }
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(h[0], h[1]));
}

INLINE void e_block(struct e_reader rd, const void *const *row, const struct pi_q8 *x, uint32_t n,
                    float *out, struct ahead ahead)
{
    __m256 sum = _mm256_setzero_ps();
    size_t at = 0;

    for (uint32_t b = 0; b < n / PI_BLOCK; b++, x++, at += rd.size) {
        const VB x0 = b_twice(x->q), x1 = b_twice(x->q + 16);
        VB start = _mm256_setzero_si256(), p[4];

        if (b % (AHEAD / PI_BLOCK) == 0)
            look_ahead(&ahead);
        if (rd.bias != 0)
            start = e_minus(e_next(e_next(start, b_set(rd.bias), x0), b_set(rd.bias), x1));
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            VB w0, w1;

            rd.unpack((const char *)row[r] + at, (const char *)row[r + 4] + at, &w0, &w1);
            p[r] = e_next(e_next(start, w0, x0), w1, x1);
        }
        sum = _mm256_fmadd_ps(_mm256_mul_ps(e_gather(row, at), _mm256_set1_ps(x->d)),
                              e_floats(e_four(rd.wide, p)), sum);
        if (rd.offset)
            sum = _mm256_fmadd_ps(e_gather(row, at + 2), _mm256_set1_ps(x->s), sum);
    }
    _mm256_storeu_ps(out, sum);
}

/* ---- K types ---- */

/* Scales of eight rows: bytes of part k % 4 of each of four rows in dword k % 4 of a half of scale[k / 4], minima likewise. */
struct e_factors {
    VB scale[4];
    __m256 d, dmin;
};

/* Byte number k of each dword's row to numbers of 32 bits; to their upper bytes. */
OP VB e_spread(VB v, int k)
{
    const VB first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -64, -64, -64, 1, -64, -64, -64, 2, -64, -64, -64, 3, -64, -64, -64));

    return _mm256_shuffle_epi8(v, _mm256_add_epi8(first, b_set(4 * k)));
}

OP VB e_spread_high(VB v, int k)
{
    const VB first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-64, -64, -64, 0, -64, -64, -64, 1, -64, -64, -64, 2, -64, -64, -64, 3));

    return _mm256_shuffle_epi8(v, _mm256_add_epi8(first, b_set(4 * k)));
}

/* Rows of bytes to columns: bytes 0..3 of every row to out[0], and so on. */
OP void e_columns(const VB *v, VB *out)
{
    const VB a = _mm256_unpacklo_epi8(v[0], v[1]), b = _mm256_unpackhi_epi8(v[0], v[1]),
             c = _mm256_unpacklo_epi8(v[2], v[3]), d = _mm256_unpackhi_epi8(v[2], v[3]);

    out[0] = _mm256_unpacklo_epi16(a, c);
    out[1] = _mm256_unpackhi_epi16(a, c);
    out[2] = _mm256_unpacklo_epi16(b, d);
    out[3] = _mm256_unpackhi_epi16(b, d);
}

/* As k_scales(): scales in scale[0..1], minima in scale[2..3]. */
OP struct e_factors e_scales(const void *const *row, size_t at)
{
    const VB low_at = _mm256_broadcastsi128_si256(
                 _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15)),
             top_at = _mm256_broadcastsi128_si256(
                 _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11)),
             d_at = _mm256_broadcastsi128_si256(
                 _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    struct e_factors f;
    VB head[4], v[4], d;

#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) {
        VB h = e_pair((const char *)row[p] + at, (const char *)row[p + 4] + at), low, top;

        head[p] = h;
        low = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(h, low_at),
                                                 _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4)),
                               _mm256_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f,
                                                 0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
        top = _mm256_and_si256(_mm256_srli_epi16(_mm256_shuffle_epi8(h, top_at), 2), b_set(0x30));
        v[p] = _mm256_or_si256(low, top);
    }
    e_columns(v, f.scale);
    d = _mm256_unpacklo_epi64(_mm256_unpacklo_epi32(head[0], head[1]),
                              _mm256_unpacklo_epi32(head[2], head[3]));
    d = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(d, d_at), 0xd8);
    f.d = _mm256_cvtph_ps(_mm256_castsi256_si128(d));
    f.dmin = _mm256_cvtph_ps(_mm256_extracti128_si256(d, 1));
    return f;
}

/* Adds part j of a block of Q4_K or Q5_K. */
OP __m256 e_part(const struct e_factors *f, int j, VB products, const struct pi_q8 *x, __m256 sum)
{
    const __m256 scale = _mm256_mul_ps(e_floats(e_spread(f->scale[j / 4], j % 4)), f->d),
                 min = _mm256_mul_ps(e_floats(e_spread(f->scale[2 + j / 4], j % 4)), f->dmin);

    sum = _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_set1_ps(x->d)), e_floats(products), sum);
    return _mm256_fnmadd_ps(min, _mm256_set1_ps(x->s), sum);
}

/* Parts 2i and 2i + 1 of a block of two rows, 16 elements in each vector. */
typedef void (*e_unpack_fn)(const void *a, const void *b, int i, VB *even, VB *odd);

OP void e_unpack_q4_k(const void *a, const void *b, int i, VB *even, VB *odd)
{
    const uint8_t *qa = Q8_BLOCK(q4_k, a, 0)->q + 32 * i, *qb = Q8_BLOCK(q4_k, b, 0)->q + 32 * i;

    e_halves(qa, qb, even, odd);
    e_halves(qa + 16, qb + 16, even + 1, odd + 1);
}

OP void e_unpack_q5_k(const void *a, const void *b, int i, VB *even, VB *odd)
{
    const struct pi_block_q5_k *wa = a, *wb = b;

#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        const VB h = e_pair(wa->qh + 16 * k, wb->qh + 16 * k), sixteen = b_set(16);

        e_halves(wa->q + 32 * i + 16 * k, wb->q + 32 * i + 16 * k, even + k, odd + k);
        even[k] =
            b_or(even[k], b_and(i < 2 ? b_left(h, 4 - 2 * i) : b_right(h, 2 * i - 4), sixteen));
        odd[k] = b_or(odd[k], b_and(i < 2 ? b_left(h, 3 - 2 * i) : b_right(h, 2 * i - 3), sixteen));
    }
}

INLINE void e_super(e_unpack_fn unpack, size_t size, bool wide, const void *const *row,
                    const struct pi_q8 *x, uint32_t n, float *out, struct ahead ahead)
{
    const VB zero = _mm256_setzero_si256();
    __m256 sum = _mm256_setzero_ps();
    size_t at = 0;

    for (uint32_t b = 0; b < n / PI_SUPER; b++, x += Q8_PARTS, at += size) {
        const struct e_factors f = e_scales(row, at);

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const struct pi_q8 *xe = x + 2 * i, *xo = xe + 1;
            const VB x0 = b_twice(xe->q), x1 = b_twice(xe->q + 16), y0 = b_twice(xo->q),
                     y1 = b_twice(xo->q + 16);
            VB even[4], odd[4];

            if (i % (AHEAD / PI_BLOCK / 2) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) {
                VB w[2], v[2];

                unpack((const char *)row[p] + at, (const char *)row[p + 4] + at, i, w, v);
                even[p] = e_next(e_next(zero, w[0], x0), w[1], x1);
                odd[p] = e_next(e_next(zero, v[0], y0), v[1], y1);
            }
            sum = e_part(&f, 2 * i, e_four(wide, even), xe, sum);
            sum = e_part(&f, 2 * i + 1, e_four(wide, odd), xo, sum);
        }
    }
    _mm256_storeu_ps(out, sum);
}

/* Scales are read as the upper bytes of numbers of 32 bits, and d is made less by as much: exact. */
OP void e_scales_q6_k(const void *const *row, size_t at, struct e_factors *f)
{
    const size_t scales = at + offsetof(struct pi_block_q6_k, scale);
    VB v[4];

#pragma GCC unroll 4
    for (int p = 0; p < 4; p++)
        v[p] = e_pair((const char *)row[p] + scales, (const char *)row[p + 4] + scales);
    e_columns(v, f->scale);
    f->d = _mm256_mul_ps(e_gather(row, at + offsetof(struct pi_block_q6_k, d)),
                         _mm256_set1_ps(0x1p-24f));
}

/* Products of half h (16 elements) of parts k and k + 2 of the 128 elements at ql and qh. */
OP void e_products_q6_k(const void *const *row, size_t ql, size_t qh, int k, int h,
                        const struct pi_q8 *x, VB *sum_out, VB *later_out)
{
    const VB x0 = b_twice(x[k].q + 16 * h), x1 = b_twice(x[k + 2].q + 16 * h), bias = b_set(32),
             zero = _mm256_setzero_si256(), upper = b_set(0x30);
    const VB start0 = e_minus(e_next(zero, bias, x0)), start1 = e_minus(e_next(zero, bias, x1));
    VB p0[4], p1[4];

    ql += 32 * (size_t)k + 16 * (size_t)h;
    qh += 16 * (size_t)h;
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) {
        const char *a = row[p], *b = row[p + 4];
        const VB low = e_pair(a + ql, b + ql), high = e_pair(a + qh, b + qh);
        const VB u0 = b_left(high, 4 - 2 * k), u1 = k == 0 ? high : b_right(high, 2);

        p0[p] = e_next(start0, b_or(e_low(low), b_and(u0, upper)), x0);
        p1[p] = e_next(start1, b_or(e_high(low), b_and(u1, upper)), x1);
    }
    *sum_out = e_four(false, p0);
    *later_out = e_four(false, p1);
}

OP void e_super_q6_k(const void *const *row, const struct pi_q8 *x, uint32_t n, float *out,
                     struct ahead ahead)
{
    __m256 sum = _mm256_setzero_ps();
    size_t at = 0;

    for (uint32_t b = 0; b < n / PI_SUPER; b++, at += sizeof(struct pi_block_q6_k)) {
        struct e_factors f;

        e_scales_q6_k(row, at, &f);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++, x += 4) {
            VB sums[8];

            look_ahead(&ahead);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                e_products_q6_k(row, at + 64 * (size_t)i,
                                at + offsetof(struct pi_block_q6_k, qh) + 32 * (size_t)i, k / 2,
                                k % 2, x, &sums[k], &sums[k + 4]);
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++) {
                const __m256 scale =
                    _mm256_mul_ps(e_floats(e_spread_high(f.scale[2 * i + k / 4], k % 4)), f.d);

                sum = _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_set1_ps(x[k / 2].d)),
                                      e_floats(sums[k]), sum);
            }
        }
    }
    _mm256_storeu_ps(out, sum);
}

/* ---- two vectors: rows are unpacked once; several where pi_cpu_q8_x86_many.h has no room ---- */

INLINE void e_store(int nx, const __m256 *sum, float *out, size_t ldo)
{
#pragma GCC unroll 2
    for (int j = 0; j < nx; j++) {
        float v[EIGHT];

        _mm256_storeu_ps(v, sum[j]);
#pragma GCC unroll 8
        for (int r = 0; r < EIGHT; r++)
            out[(size_t)r * ldo + (size_t)j] = v[r];
    }
}

/* Products of 32 elements of eight rows, w: 16 and 16 elements. */
OP VB e_products(int bias, bool wide, VB w[2][4], const struct pi_q8 *x)
{
    const VB x0 = b_twice(x->q), x1 = b_twice(x->q + 16);
    VB start = _mm256_setzero_si256(), p[4];

    if (bias != 0)
        start = e_minus(e_next(e_next(start, b_set(bias), x0), b_set(bias), x1));
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
        p[r] = e_next(e_next(start, w[0][r], x0), w[1][r], x1);
    return e_four(wide, p);
}

INLINE void e_block_many(struct e_reader rd, int nx, const void *const *row,
                         const struct pi_q8 *const *x, uint32_t n, float *out, size_t ldo,
                         struct ahead ahead)
{
    __m256 sum[MANY_X];
    size_t at = 0;

#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < n / PI_BLOCK; b++, at += rd.size) {
        const __m256 d = e_gather(row, at), m = rd.offset ? e_gather(row, at + 2) : d;
        VB w[2][4];

        if (b % (AHEAD / PI_BLOCK) == 0)
            look_ahead(&ahead);
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
            rd.unpack((const char *)row[r] + at, (const char *)row[r + 4] + at, &w[0][r], &w[1][r]);
#pragma GCC unroll 4
        for (int j = 0; j < nx; j++) {
            const struct pi_q8 *xb = x[j] + b;

            sum[j] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(xb->d)),
                                     e_floats(e_products(rd.bias, rd.wide, w, xb)), sum[j]);
            if (rd.offset)
                sum[j] = _mm256_fmadd_ps(m, _mm256_set1_ps(xb->s), sum[j]);
        }
    }
    e_store(nx, sum, out, ldo);
}

/* Part j of a block, of which scales and minima are made once for all vectors. */
OP void e_parts_many(const struct e_factors *f, int j, bool wide, int nx, VB w[2][4],
                     const struct pi_q8 *const *x, uint32_t at, __m256 *sum)
{
    const __m256 scale = _mm256_mul_ps(e_floats(e_spread(f->scale[j / 4], j % 4)), f->d),
                 min = _mm256_mul_ps(e_floats(e_spread(f->scale[2 + j / 4], j % 4)), f->dmin);

#pragma GCC unroll 4
    for (int k = 0; k < nx; k++) {
        const struct pi_q8 *xb = x[k] + at;
        const __m256 products = e_floats(e_products(0, wide, w, xb));

        sum[k] = _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_set1_ps(xb->d)), products, sum[k]);
        sum[k] = _mm256_fnmadd_ps(min, _mm256_set1_ps(xb->s), sum[k]);
    }
}

INLINE void e_super_many(e_unpack_fn unpack, size_t size, bool wide, int nx, const void *const *row,
                         const struct pi_q8 *const *x, uint32_t n, float *out, size_t ldo,
                         struct ahead ahead)
{
    __m256 sum[MANY_X];
    size_t at = 0;

#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < n / PI_SUPER; b++, at += size) {
        const struct e_factors f = e_scales(row, at);

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            VB even[2][4], odd[2][4];

            if (i % (AHEAD / PI_BLOCK / 2) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) {
                VB w[2], v[2];

                unpack((const char *)row[p] + at, (const char *)row[p + 4] + at, i, w, v);
                even[0][p] = w[0];
                even[1][p] = w[1];
                odd[0][p] = v[0];
                odd[1][p] = v[1];
            }
            e_parts_many(&f, 2 * i, wide, nx, even, x, b * Q8_PARTS + 2 * (uint32_t)i, sum);
            e_parts_many(&f, 2 * i + 1, wide, nx, odd, x, b * Q8_PARTS + 2 * (uint32_t)i + 1, sum);
        }
    }
    e_store(nx, sum, out, ldo);
}

/* ---- what pi_cpu_simd_q8.h takes eight rows with; for Q8_0 with DPBUSD and far streams alone ---- */

typedef void (*eight_rows_fn)(const void *const *row, const struct pi_q8 *x, uint32_t n, float *out,
                              struct ahead ahead);

#define E_DOT(T, EIGHT_ROWS, ...)                                                                \
    static TARGET void eight_rows_##T(const void *const *row, const struct pi_q8 *x, uint32_t n, \
                                      float *out, struct ahead ahead)                            \
    {                                                                                            \
        EIGHT_ROWS(__VA_ARGS__ row, x, n, out, ahead);                                           \
    }
#define E_READER(T, BIAS, WIDE, OFFSET)        \
    ((struct e_reader){.unpack = e_unpack_##T, \
                       .bias = (BIAS),         \
                       .wide = (WIDE),         \
                       .offset = (OFFSET),     \
                       .size = sizeof(struct pi_block_##T)})
#define E_Q8_0 E_READER(q8_0, 128, false, false)
#define E_Q4_0 E_READER(q4_0, 8, false, false)
#define E_Q4_1 E_READER(q4_1, 0, false, true)
#define E_Q5_0 E_READER(q5_0, 16, false, false)
#define E_Q5_1 E_READER(q5_1, 0, true, true)

#if defined(DPBUSD) && Q8_FAR
E_DOT(q8_0, e_block, E_Q8_0, )
#else
#define eight_rows_q8_0 NULL
#endif
E_DOT(q4_0, e_block, E_Q4_0, )
E_DOT(q4_1, e_block, E_Q4_1, )
E_DOT(q5_0, e_block, E_Q5_0, )
E_DOT(q5_1, e_block, E_Q5_1, )
E_DOT(q4_k, e_super, e_unpack_q4_k, sizeof(struct pi_block_q4_k), false, )
E_DOT(q5_k, e_super, e_unpack_q5_k, sizeof(struct pi_block_q5_k), true, )
E_DOT(q6_k, e_super_q6_k, )

/* Those of dot_many, which has none for Q6_K. */
#define EIGHT_MANY_q4_0(rows, ...) e_block_many(E_Q4_0, __VA_ARGS__)
#define EIGHT_MANY_q4_1(rows, ...) e_block_many(E_Q4_1, __VA_ARGS__)
#define EIGHT_MANY_q5_0(rows, ...) e_block_many(E_Q5_0, __VA_ARGS__)
#define EIGHT_MANY_q5_1(rows, ...) e_block_many(E_Q5_1, __VA_ARGS__)
#define EIGHT_MANY_q4_k(rows, ...) \
    e_super_many(e_unpack_q4_k, sizeof(struct pi_block_q4_k), false, __VA_ARGS__)
#define EIGHT_MANY_q5_k(rows, ...) \
    e_super_many(e_unpack_q5_k, sizeof(struct pi_block_q5_k), true, __VA_ARGS__)

#endif
