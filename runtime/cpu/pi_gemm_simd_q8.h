/*
 * pi_gemm_simd_q8.h - blocked products with quantised activations (pi_gemm.h), in vectors of 256 bits in every table; included by pi_gemm_simd.h alone. The
 * readers of rows are those of pi_cpu_simd_q8.h.
 *
 * Four elements of a row stand in 32 bits, eight rows in a vector, so that a lane sums what belongs to one row. Unsigned weights times signed activations
 * are added in pairs to 16 bits and summed there, a whole block of 32 where weights have 4 bits (16 * 15 * 127 = 30480), else half a block. What weights are
 * less than the numbers read is subtracted at the start, as its product with x; sums in between may wrap around. Q8_0: numbers of 16 bits, sums of 32.
 * Sums in F32 are in memory between blocks; registers hold those of the integers.
 */
#ifndef PI_GEMM_SIMD_Q8_H
#define PI_GEMM_SIMD_Q8_H

#define Q8G_ROWS 16
#define Q8G_TOKS 6

/* A block of a panel: bytes in fours, or numbers of 16 bits in pairs. second: offsets, or scales of the second half. */
struct q8g_w {
    uint8_t q[8][Q8G_ROWS][4];
    float scale[Q8G_ROWS], second[Q8G_ROWS];
};

struct q8g_wide_w {
    int16_t q[16][Q8G_ROWS][2];
    float scale[Q8G_ROWS];
};

/* less[h]: minus the bias times x, in the two lanes of 16 bits that sum a half (of which a block may have one alone). */
struct q8g_x {
    int8_t q[8][Q8G_TOKS][4];
    int16_t less[2][Q8G_TOKS][2];
    float d[Q8G_TOKS], s[Q8G_TOKS];
};

struct q8g_wide_x {
    int16_t q[16][Q8G_TOKS][2];
    float d[Q8G_TOKS];
};

/* How a block is summed: in one piece of 32 elements or in two of 16, which have scales of their own or one. */
struct q8g_form {
    int bias, pieces;
    bool parts, offset;
};

INLINE __m256i q8g_spread(const void *four)
{
    int32_t v;

    memcpy(&v, four, sizeof(v));
    return _mm256_set1_epi32(v);
}

INLINE void q8g_fma(float *out, __m256 a, __m256 b)
{
    _mm256_storeu_ps(out, _mm256_fmadd_ps(a, b, _mm256_loadu_ps(out)));
}

/* ---- multiplication ---- */

/* sum: integers of each token for two vectors of rows, times their scales and x's, into out. */
INLINE void q8g_finish(__m256i sum[Q8G_TOKS][2], const float *scale, const float *d, float *out)
{
    const __m256 s0 = _mm256_loadu_ps(scale), s1 = _mm256_loadu_ps(scale + 8);

#pragma GCC unroll 6
    for (int t = 0; t < Q8G_TOKS; t++) {
        const __m256 xd = _mm256_set1_ps(d[t]);

        q8g_fma(out + t * Q8G_ROWS, _mm256_mul_ps(s0, xd), _mm256_cvtepi32_ps(sum[t][0]));
        q8g_fma(out + t * Q8G_ROWS + 8, _mm256_mul_ps(s1, xd), _mm256_cvtepi32_ps(sum[t][1]));
        __asm__ volatile("" : : : "memory");
    }
}

INLINE void q8g_offset(const float *offset, const float *s, float *out)
{
    const __m256 m0 = _mm256_loadu_ps(offset), m1 = _mm256_loadu_ps(offset + 8);

#pragma GCC unroll 6
    for (int t = 0; t < Q8G_TOKS; t++) {
        const __m256 xs = _mm256_set1_ps(s[t]);

        q8g_fma(out + t * Q8G_ROWS, m0, xs);
        q8g_fma(out + t * Q8G_ROWS + 8, m1, xs);
    }
}

/* Piece number h of a block: sums of 32 bits. */
INLINE void q8g_piece(struct q8g_form f, int h, const struct q8g_w *w, const struct q8g_x *x,
                      __m256i sum[Q8G_TOKS][2])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int steps = 8 / f.pieces;

#pragma GCC unroll 6
    for (int t = 0; t < Q8G_TOKS; t++)
        sum[t][0] = sum[t][1] = f.bias > 0 ? q8g_spread(x->less[h][t]) : _mm256_setzero_si256();
#pragma GCC unroll 1
    for (int k = h * steps; k < (h + 1) * steps; k++) {
        const __m256i w0 = q8_load(w->q[k]), w1 = q8_load(w->q[k][8]);

#pragma GCC unroll 6
        for (int t = 0; t < Q8G_TOKS; t++) {
            const __m256i xv = q8g_spread(x->q[k][t]);

            sum[t][0] = _mm256_add_epi16(sum[t][0], _mm256_maddubs_epi16(w0, xv));
            sum[t][1] = _mm256_add_epi16(sum[t][1], _mm256_maddubs_epi16(w1, xv));
            IN_ORDER(sum[t][0], sum[t][1]);
        }
    }
#pragma GCC unroll 6
    for (int t = 0; t < Q8G_TOKS; t++) {
        sum[t][0] = _mm256_madd_epi16(sum[t][0], ones);
        sum[t][1] = _mm256_madd_epi16(sum[t][1], ones);
    }
}

/* a += b */
INLINE void q8g_add(__m256i a[Q8G_TOKS][2], __m256i b[Q8G_TOKS][2])
{
#pragma GCC unroll 6
    for (int t = 0; t < Q8G_TOKS; t++) {
        a[t][0] = _mm256_add_epi32(a[t][0], b[t][0]);
        a[t][1] = _mm256_add_epi32(a[t][1], b[t][1]);
    }
}

INLINE void q8g_multiply(struct q8g_form f, uint32_t n, const struct q8g_w *w,
                         const struct q8g_x *x, float *out)
{
    for (uint32_t b = 0; b < n; b++, w++, x++) {
        __m256i sum[Q8G_TOKS][2], second[Q8G_TOKS][2];

        q8g_piece(f, 0, w, x, sum);
        if (f.parts)
            q8g_finish(sum, w->scale, x->d, out);
        if (f.pieces == 2)
            q8g_piece(f, 1, w, x, second);
        if (f.pieces == 2 && !f.parts)
            q8g_add(sum, second);
        if (f.parts)
            q8g_finish(second, w->second, x->d, out);
        else
            q8g_finish(sum, w->scale, x->d, out);
        if (f.offset)
            q8g_offset(w->second, x->s, out);
    }
}

static TARGET void q8g_multiply_q8_0(uint32_t n, const void *wp, const void *xp, float *out)
{
    const struct q8g_wide_w *w = wp;
    const struct q8g_wide_x *x = xp;

    for (uint32_t b = 0; b < n; b++, w++, x++) {
        __m256i sum[Q8G_TOKS][2];

#pragma GCC unroll 6
        for (int t = 0; t < Q8G_TOKS; t++)
            sum[t][0] = sum[t][1] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int k = 0; k < 16; k++) {
            const __m256i w0 = q8_load(w->q[k]), w1 = q8_load(w->q[k][8]);

#pragma GCC unroll 6
            for (int t = 0; t < Q8G_TOKS; t++) {
                const __m256i xv = q8g_spread(x->q[k][t]);

                sum[t][0] = _mm256_add_epi32(sum[t][0], _mm256_madd_epi16(w0, xv));
                sum[t][1] = _mm256_add_epi32(sum[t][1], _mm256_madd_epi16(w1, xv));
                IN_ORDER(sum[t][0], sum[t][1]);
            }
        }
        q8g_finish(sum, w->scale, x->d, out);
    }
}

/* ---- packing ---- */

INLINE void q8g_transpose(const __m256i *v, __m256i *out)
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

/* pi_gemm.transpose */
static TARGET void q8g_transpose_f32(const float *src, size_t ld, float *const *to)
{
    __m256i v[8], t[8];

#pragma GCC unroll 8
    for (int r = 0; r < 8; r++)
        v[r] = q8_load(src + (size_t)r * ld);
    q8g_transpose(v, t);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        _mm256_storeu_si256((void *)to[k], t[k]);
}

typedef __m256i (*q8g_unpack_fn)(const void *row, uint32_t b);

/* Block b of eight rows, or of the n there are, to lanes first..first + 8 of a panel's block. */
INLINE void q8g_pack_eight(q8g_unpack_fn unpack, const void *rows, size_t stride, uint32_t n,
                           uint32_t b, struct q8g_w *w, uint32_t first)
{
    __m256i v[8], t[8];

    for (uint32_t r = 0; r < 8; r++)
        v[r] = r < n ? unpack(row_at(rows, stride, r), b) : _mm256_setzero_si256();
    q8g_transpose(v, t);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        _mm256_storeu_si256((void *)w->q[k][first], t[k]);
}

INLINE void q8g_pack_block(struct q8_reader rd, const void *rows, size_t stride, uint32_t n,
                           uint32_t n_blocks, struct q8g_w *w)
{
    for (uint32_t b = 0; b < n_blocks; b++, w++) {
        for (uint32_t i = 0; i < Q8G_ROWS; i += 8)
            q8g_pack_eight(rd.unpack, row_at(rows, stride, i), stride, n > i ? n - i : 0, b, w, i);
        for (uint32_t r = 0; r < Q8G_ROWS; r++) {
            const void *row = row_at(rows, stride, r);

            w->scale[r] = r < n ? q8_half(rd.scale(row, b)) : 0.0f;
            w->second[r] = r < n && rd.offset != NULL ? q8_half(rd.offset(row, b)) : 0.0f;
        }
    }
}

INLINE void q8g_pack_super(struct q8_super_reader rd, const void *rows, size_t stride, uint32_t n,
                           uint32_t n_blocks, struct q8g_w *w)
{
    for (uint32_t b = 0; b < n_blocks; b++) {
        for (uint32_t i = 0; i < Q8G_ROWS; i += 8)
            q8g_pack_eight(rd.unpack, row_at(rows, stride, i), stride, n > i ? n - i : 0, b, w + b,
                           i);
    }
    for (uint32_t r = 0; r < Q8G_ROWS; r++) {
        for (uint32_t b = 0; b < n_blocks; b += Q8_PARTS) {
            float v[2][Q8_PARTS] = {{0}};
            __m256 first, second;

            if (r < n) {
                rd.factors(row_at(rows, stride, r), b / Q8_PARTS, &first, &second);
                _mm256_storeu_ps(v[0], first);
                _mm256_storeu_ps(v[1], second);
            }
            for (uint32_t i = 0; i < Q8_PARTS; i++) {
                /* parts of 16: 16 factors in a row, two for each block */
                w[b + i].scale[r] = rd.minima ? v[0][i] : v[i / 4][2 * i % 8];
                w[b + i].second[r] = rd.minima ? -v[1][i] : v[i / 4][2 * i % 8 + 1];
            }
        }
    }
}

static TARGET void q8g_pack_w_q8_0(const void *rows, size_t stride, uint32_t n, uint32_t n_blocks,
                                   void *panel)
{
    struct q8g_wide_w *w = panel;

    for (uint32_t b = 0; b < n_blocks; b++, w++) {
        for (uint32_t i = 0; i < 2 * Q8G_ROWS; i += 8) { /* first the low halves of all rows */
            __m256i v[8], t[8];

            for (uint32_t r = 0; r < 8; r++) {
                const uint32_t at = i % Q8G_ROWS + r;
                const int8_t *q = Q8_BLOCK(q8_0, row_at(rows, stride, at < n ? at : 0), b)->q;

                v[r] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(q + i / Q8G_ROWS * 16)));
            }
            q8g_transpose(v, t);
            for (int k = 0; k < 8; k++)
                _mm256_storeu_si256((void *)w->q[i / Q8G_ROWS * 8 + (uint32_t)k][i % Q8G_ROWS],
                                    t[k]);
        }
        for (uint32_t r = 0; r < Q8G_ROWS; r++)
            w->scale[r] = r < n ? q8_half(Q8_BLOCK(q8_0, row_at(rows, stride, r), b)->d) : 0.0f;
    }
}

INLINE void q8g_pack_token(struct q8g_form f, const struct pi_q8 *x, int t, struct q8g_x *out)
{
    for (int k = 0; k < 8; k++)
        memcpy(out->q[k][t], x->q + 4 * k, 4);
    for (int i = 0; i < PI_BLOCK; i++) {
        int16_t *less = &out->less[f.pieces * i / PI_BLOCK][t][i / 2 % 2];

        *less = (int16_t)(*less - f.bias * x->q[i]);
    }
    out->d[t] = x->d;
    out->s[t] = x->s;
}

INLINE void q8g_pack_x(struct q8g_form f, const struct pi_q8 *x, size_t ldx, uint32_t n,
                       uint32_t n_blocks, struct q8g_x *out)
{
    memset(out, 0, n_blocks * sizeof(*out));
    for (uint32_t b = 0; b < n_blocks; b++) {
        for (uint32_t t = 0; t < n; t++)
            q8g_pack_token(f, x + t * ldx + b, (int)t, out + b);
    }
}

static TARGET void q8g_pack_x_q8_0(const struct pi_q8 *x, size_t ldx, uint32_t n, uint32_t n_blocks,
                                   void *panel)
{
    struct q8g_wide_x *out = panel;

    memset(out, 0, n_blocks * sizeof(*out));
    for (uint32_t b = 0; b < n_blocks; b++, out++) {
        for (uint32_t t = 0; t < n; t++) {
            for (int i = 0; i < PI_BLOCK; i++)
                out->q[i / 2][t][i % 2] = x[t * ldx + b].q[i];
            out->d[t] = x[t * ldx + b].d;
        }
    }
}

/* PACK: q8g_pack_block or q8g_pack_super with the readers of type T. */
#define Q8G_KERNELS(T, PACK, READER, ...)                                                     \
    static TARGET void q8g_pack_w_##T(const void *rows, size_t stride, uint32_t n,            \
                                      uint32_t n_blocks, void *panel)                         \
    {                                                                                         \
        PACK(READER, rows, stride, n, n_blocks, panel);                                       \
    }                                                                                         \
    static TARGET void q8g_pack_x_##T(const struct pi_q8 *x, size_t ldx, uint32_t n,          \
                                      uint32_t n_blocks, void *panel)                         \
    {                                                                                         \
        q8g_pack_x((struct q8g_form){__VA_ARGS__}, x, ldx, n, n_blocks, panel);               \
    }                                                                                         \
    static TARGET void q8g_multiply_##T(uint32_t n, const void *w, const void *x, float *out) \
    {                                                                                         \
        q8g_multiply((struct q8g_form){__VA_ARGS__}, n, w, x, out);                           \
    }                                                                                         \
    static const struct pi_gemm_q8 q8g_##T = {sizeof(struct q8g_w), sizeof(struct q8g_x),     \
                                              q8g_pack_w_##T, q8g_pack_x_##T, q8g_multiply_##T};

Q8G_KERNELS(q4_0, q8g_pack_block, Q8_PLAIN(q4_0, 8, NULL), .bias = 8, .pieces = 1)
Q8G_KERNELS(q4_1, q8g_pack_block, Q8_PLAIN(q4_1, 0, q8_offset_q4_1), .pieces = 1, .offset = true)
Q8G_KERNELS(q5_0, q8g_pack_block, Q8_PLAIN(q5_0, 16, NULL), .bias = 16, .pieces = 2)
Q8G_KERNELS(q5_1, q8g_pack_block, Q8_PLAIN(q5_1, 0, q8_offset_q5_1), .pieces = 2, .offset = true)
Q8G_KERNELS(q4_k, q8g_pack_super, Q8_PARTED(q4_k, 0, true), .pieces = 1, .offset = true)
Q8G_KERNELS(q5_k, q8g_pack_super, Q8_PARTED(q5_k, 0, true), .pieces = 2, .offset = true)
Q8G_KERNELS(q6_k, q8g_pack_super, Q8_PARTED(q6_k, 32, false), .bias = 32, .pieces = 2,
            .parts = true)

static const struct pi_gemm_q8 q8g_q8_0 = {sizeof(struct q8g_wide_w), sizeof(struct q8g_wide_x),
                                           q8g_pack_w_q8_0, q8g_pack_x_q8_0, q8g_multiply_q8_0};

#define Q8G_TABLE                                                                              \
    .transpose = q8g_transpose_f32, .q8_rows = Q8G_ROWS, .q8_toks = Q8G_TOKS,                  \
    .q8 = {[PI_TYPE_Q8_0] = &q8g_q8_0, [PI_TYPE_Q4_0] = &q8g_q4_0, [PI_TYPE_Q4_1] = &q8g_q4_1, \
           [PI_TYPE_Q5_0] = &q8g_q5_0, [PI_TYPE_Q5_1] = &q8g_q5_1, [PI_TYPE_Q4_K] = &q8g_q4_k, \
           [PI_TYPE_Q5_K] = &q8g_q5_k, [PI_TYPE_Q6_K] = &q8g_q6_k}

#endif
