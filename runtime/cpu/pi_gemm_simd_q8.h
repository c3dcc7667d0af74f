/*
 * pi_gemm_simd_q8.h - blocked products with quantised activations (pi_gemm.h); included by pi_cpu_simd_q8.h alone, whose readers of rows it uses.
 *
 * The ISA's file defines before: GW (lanes of 32 bits of a vector), GI and GF (vectors of integers and of floats), Q8G_TOKS (tokens of a tile of results,
 * which has two vectors of rows for each), g_zero, g_load, g_spread (four bytes), g_add, g_step (adds products), g_sums (what it has added as numbers of 32
 * bits), g_floats, gf_set, gf_load, gf_store, gf_mul, gf_fma, and one of
 *   Q8G_PAIRS   Unsigned weights times signed activations are added in pairs to 16 bits and summed there, a whole block of 32 where weights have 4 bits
 *               (16 * 15 * 127 = 30480), else half a block; sums in between may wrap around. Q8_0: numbers of 16 bits, sums of 32 (g_madd, g_wide).
 *   Q8G_FOURS   Four products are added to 32 bits at once. Q8G_UNSIGNED: of unsigned weights with signed activations (a bias of 128 in Q8_0); otherwise
 *               both have signs, and the bias goes off when weights are packed.
 * Four elements of a row stand in 32 bits, GW rows in a vector, so that a lane sums what belongs to one row. What unsigned weights are less than the numbers
 * read is subtracted at the start, as its product with x. Sums in F32 are in memory between blocks; registers hold those of the integers.
 */
#ifndef PI_GEMM_SIMD_Q8_H
#define PI_GEMM_SIMD_Q8_H

#include "runtime/cpu/pi_gemm.h"

#define Q8G_ROWS (2 * GW)

/* A block of a panel: bytes in fours, or numbers of 16 bits in pairs. second: offsets, or scales of the second half. */
struct q8g_w {
    uint8_t q[8][Q8G_ROWS][4];
    float scale[Q8G_ROWS], second[Q8G_ROWS];
};

/* less[h]: minus the bias times x, in the lane that sums a half (of which a block may have one alone): 32 bits, or two of 16. */
struct q8g_x {
    int8_t q[8][Q8G_TOKS][4];
    union {
        int16_t pair[2];
        int32_t four;
    } less[2][Q8G_TOKS];
    float d[Q8G_TOKS], s[Q8G_TOKS];
};

/* How a block is summed: in one piece of 32 elements or in two of 16, which have scales of their own or one. */
struct q8g_form {
    int bias, pieces;
    bool parts, offset;
};

/* What is subtracted by the start of sums, and the pieces of a block of five bits. */
#if defined(Q8G_PAIRS)
#define Q8G_BIAS(bias) (bias)
#define Q8G_PIECES_5   2
#elif defined(Q8G_UNSIGNED)
#define Q8G_BIAS(bias) ((bias) == Q8_SIGNED ? 128 : (bias))
#define Q8G_PIECES_5   1
#else
#define Q8G_BIAS(bias) 0
#define Q8G_PIECES_5   1
#endif

/* Keeps the compiler from gathering what it can of several tokens before the first sum, for which registers are too few. */
#if defined(__x86_64__) && !defined(PI_CPU_EMU)
#define Q8G_IN_ORDER(a, b) __asm__ volatile("" : "+v"(a), "+v"(b) : : "memory")
#else
#define Q8G_IN_ORDER(a, b) ((void)0)
#endif

INLINE void q8g_fma(float *out, GF a, GF b)
{
    gf_store(out, gf_fma(a, b, gf_load(out)));
}

/* ---- multiplication ---- */

/* sum: integers of each token for two vectors of rows, times their scales and x's, into out. */
INLINE void q8g_finish(GI sum[Q8G_TOKS][2], const float *scale, const float *d, float *out)
{
    const GF s0 = gf_load(scale), s1 = gf_load(scale + GW);

#pragma GCC unroll 12
    for (int t = 0; t < Q8G_TOKS; t++) {
        const GF xd = gf_set(d[t]);

        q8g_fma(out + t * Q8G_ROWS, gf_mul(s0, xd), g_floats(sum[t][0]));
        q8g_fma(out + t * Q8G_ROWS + GW, gf_mul(s1, xd), g_floats(sum[t][1]));
        __asm__ volatile("" : : : "memory");
    }
}

INLINE void q8g_offset(const float *offset, const float *s, float *out)
{
    const GF m0 = gf_load(offset), m1 = gf_load(offset + GW);

#pragma GCC unroll 12
    for (int t = 0; t < Q8G_TOKS; t++) {
        const GF xs = gf_set(s[t]);

        q8g_fma(out + t * Q8G_ROWS, m0, xs);
        q8g_fma(out + t * Q8G_ROWS + GW, m1, xs);
    }
}

/* Piece number h of a block: sums of 32 bits. */
INLINE void q8g_piece(struct q8g_form f, int h, const struct q8g_w *w, const struct q8g_x *x,
                      GI sum[Q8G_TOKS][2])
{
    const int steps = 8 / f.pieces;

#pragma GCC unroll 12
    for (int t = 0; t < Q8G_TOKS; t++)
        sum[t][0] = sum[t][1] = f.bias > 0 ? g_spread(&x->less[h][t]) : g_zero();
#pragma GCC unroll 1
    for (int k = h * steps; k < (h + 1) * steps; k++) {
        const GI w0 = g_load(w->q[k]), w1 = g_load(w->q[k][GW]);

#pragma GCC unroll 12
        for (int t = 0; t < Q8G_TOKS; t++) {
            const GI xv = g_spread(x->q[k][t]);

            sum[t][0] = g_step(sum[t][0], w0, xv);
            sum[t][1] = g_step(sum[t][1], w1, xv);
            Q8G_IN_ORDER(sum[t][0], sum[t][1]);
        }
    }
#pragma GCC unroll 12
    for (int t = 0; t < Q8G_TOKS; t++) {
        sum[t][0] = g_sums(sum[t][0]);
        sum[t][1] = g_sums(sum[t][1]);
    }
}

/* a += b */
INLINE void q8g_add(GI a[Q8G_TOKS][2], GI b[Q8G_TOKS][2])
{
#pragma GCC unroll 12
    for (int t = 0; t < Q8G_TOKS; t++) {
        a[t][0] = g_add(a[t][0], b[t][0]);
        a[t][1] = g_add(a[t][1], b[t][1]);
    }
}

INLINE void q8g_multiply(struct q8g_form f, uint32_t n, const struct q8g_w *w,
                         const struct q8g_x *x, float *out)
{
    for (uint32_t b = 0; b < n; b++, w++, x++) {
        GI sum[Q8G_TOKS][2], second[Q8G_TOKS][2];

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

/* ---- packing ---- */

/* The numbers that products are made of. */
INLINE VB q8g_number(int bias, VB v)
{
#if defined(Q8G_PAIRS)
    (void)bias;
    return v;
#elif defined(Q8G_UNSIGNED)
    return bias == Q8_SIGNED ? b_xor(v, b_set(128)) : v;
#else
    return bias > 0 ? b_sub(v, b_set(bias)) : v;
#endif
}

typedef VB (*q8g_unpack_fn)(const void *row, uint32_t b);

/* Block b of eight rows, or of the n there are, to lanes first..first + 8 of a panel's block. */
INLINE void q8g_pack_eight(q8g_unpack_fn unpack, int bias, const void *rows, size_t stride,
                           uint32_t n, uint32_t b, struct q8g_w *w, uint32_t first)
{
    VB v[8], t[8];

    for (uint32_t r = 0; r < 8; r++)
        v[r] = r < n ? q8g_number(bias, unpack(row_at(rows, stride, r), b)) : b_set(0);
    b_transpose(v, t);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        b_store(w->q[k][first], t[k]);
}

INLINE void q8g_pack_block(struct q8_reader rd, const void *rows, size_t stride, uint32_t n,
                           uint32_t n_blocks, struct q8g_w *w)
{
    for (uint32_t b = 0; b < n_blocks; b++, w++) {
        for (uint32_t i = 0; i < Q8G_ROWS; i += 8)
            q8g_pack_eight(rd.unpack, rd.bias, row_at(rows, stride, i), stride, n > i ? n - i : 0,
                           b, w, i);
        for (uint32_t r = 0; r < Q8G_ROWS; r++) {
            const void *row = row_at(rows, stride, r);

            w->scale[r] = r < n ? half_value(rd.scale(row, b)) : 0.0f;
            w->second[r] = r < n && rd.offset != NULL ? half_value(rd.offset(row, b)) : 0.0f;
        }
    }
}

INLINE void q8g_pack_super(struct q8_super_reader rd, const void *rows, size_t stride, uint32_t n,
                           uint32_t n_blocks, struct q8g_w *w)
{
    for (uint32_t b = 0; b < n_blocks; b++) {
        for (uint32_t i = 0; i < Q8G_ROWS; i += 8)
            q8g_pack_eight(rd.unpack, rd.bias, row_at(rows, stride, i), stride, n > i ? n - i : 0,
                           b, w + b, i);
    }
    for (uint32_t r = 0; r < Q8G_ROWS; r++) {
        for (uint32_t b = 0; b < n_blocks; b += Q8_PARTS) {
            float v[2][Q8_PARTS] = {{0}};
            VH first, second;

            if (r < n) {
                rd.factors(row_at(rows, stride, r), b / Q8_PARTS, &first, &second);
                h_store(v[0], first);
                h_store(v[1], second);
            }
            for (uint32_t i = 0; i < Q8_PARTS; i++) {
                /* parts of 16: 16 factors in a row, two for each block */
                w[b + i].scale[r] = rd.minima ? v[0][i] : v[i / 4][2 * i % 8];
                w[b + i].second[r] = rd.minima ? -v[1][i] : v[i / 4][2 * i % 8 + 1];
            }
        }
    }
}

INLINE void q8g_pack_token(struct q8g_form f, const struct pi_q8 *x, int t, struct q8g_x *out)
{
    for (int k = 0; k < 8; k++)
        memcpy(out->q[k][t], x->q + 4 * k, 4);
    for (int i = 0; i < PI_BLOCK; i++) {
#if defined(Q8G_PAIRS)
        int16_t *less = &out->less[f.pieces * i / PI_BLOCK][t].pair[i / 2 % 2];

        *less = (int16_t)(*less - f.bias * x->q[i]);
#else
        out->less[f.pieces * i / PI_BLOCK][t].four -= f.bias * x->q[i];
#endif
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

Q8G_KERNELS(q4_0, q8g_pack_block, Q8_PLAIN(q4_0, 8, NULL), .bias = Q8G_BIAS(8), .pieces = 1)
Q8G_KERNELS(q4_1, q8g_pack_block, Q8_PLAIN(q4_1, 0, q8_offset_q4_1), .pieces = 1, .offset = true)
Q8G_KERNELS(q5_0, q8g_pack_block, Q8_PLAIN(q5_0, 16, NULL), .bias = Q8G_BIAS(16),
            .pieces = Q8G_PIECES_5)
Q8G_KERNELS(q5_1, q8g_pack_block, Q8_PLAIN(q5_1, 0, q8_offset_q5_1), .pieces = Q8G_PIECES_5,
            .offset = true)
Q8G_KERNELS(q4_k, q8g_pack_super, Q8_PARTED(q4_k, 0, true), .pieces = 1, .offset = true)
Q8G_KERNELS(q5_k, q8g_pack_super, Q8_PARTED(q5_k, 0, true), .pieces = Q8G_PIECES_5, .offset = true)
Q8G_KERNELS(q6_k, q8g_pack_super, Q8_PARTED(q6_k, 32, false), .bias = Q8G_BIAS(32), .pieces = 2,
            .parts = true)

/* ---- Q8_0 with numbers of 16 bits ---- */

#if defined(Q8G_PAIRS)

struct q8g_wide_w {
    int16_t q[16][Q8G_ROWS][2];
    float scale[Q8G_ROWS];
};

struct q8g_wide_x {
    int16_t q[16][Q8G_TOKS][2];
    float d[Q8G_TOKS];
};

static TARGET void q8g_multiply_q8_0(uint32_t n, const void *wp, const void *xp, float *out)
{
    const struct q8g_wide_w *w = wp;
    const struct q8g_wide_x *x = xp;

    for (uint32_t b = 0; b < n; b++, w++, x++) {
        GI sum[Q8G_TOKS][2];

#pragma GCC unroll 12
        for (int t = 0; t < Q8G_TOKS; t++)
            sum[t][0] = sum[t][1] = g_zero();
#pragma GCC unroll 1
        for (int k = 0; k < 16; k++) {
            const GI w0 = g_load(w->q[k]), w1 = g_load(w->q[k][GW]);

#pragma GCC unroll 12
            for (int t = 0; t < Q8G_TOKS; t++) {
                const GI xv = g_spread(x->q[k][t]);

                sum[t][0] = g_madd(sum[t][0], w0, xv);
                sum[t][1] = g_madd(sum[t][1], w1, xv);
                Q8G_IN_ORDER(sum[t][0], sum[t][1]);
            }
        }
        q8g_finish(sum, w->scale, x->d, out);
    }
}

static TARGET void q8g_pack_w_q8_0(const void *rows, size_t stride, uint32_t n, uint32_t n_blocks,
                                   void *panel)
{
    struct q8g_wide_w *w = panel;

    for (uint32_t b = 0; b < n_blocks; b++, w++) {
        for (uint32_t i = 0; i < 2 * Q8G_ROWS; i += 8) { /* first the low halves of all rows */
            VB v[8], t[8];

            for (uint32_t r = 0; r < 8; r++) {
                const uint32_t at = i % Q8G_ROWS + r;
                const int8_t *q = Q8_BLOCK(q8_0, row_at(rows, stride, at < n ? at : 0), b)->q;

                v[r] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(q + i / Q8G_ROWS * 16)));
            }
            b_transpose(v, t);
            for (int k = 0; k < 8; k++)
                b_store(w->q[i / Q8G_ROWS * 8 + (uint32_t)k][i % Q8G_ROWS], t[k]);
        }
        for (uint32_t r = 0; r < Q8G_ROWS; r++)
            w->scale[r] = r < n ? half_value(Q8_BLOCK(q8_0, row_at(rows, stride, r), b)->d) : 0.0f;
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

static const struct pi_gemm_q8 q8g_q8_0 = {sizeof(struct q8g_wide_w), sizeof(struct q8g_wide_x),
                                           q8g_pack_w_q8_0, q8g_pack_x_q8_0, q8g_multiply_q8_0};

#else

Q8G_KERNELS(q8_0, q8g_pack_block, Q8_PLAIN(q8_0, Q8_SIGNED, NULL), .bias = Q8G_BIAS(Q8_SIGNED),
            .pieces = 1)

#endif

const struct pi_gemm_q8_set Q8_FN(gemm_q8) = {
    .rows = Q8G_ROWS,
    .toks = Q8G_TOKS,
    .type = {[PI_TYPE_Q8_0] = &q8g_q8_0,
             [PI_TYPE_Q4_0] = &q8g_q4_0,
             [PI_TYPE_Q4_1] = &q8g_q4_1,
             [PI_TYPE_Q5_0] = &q8g_q5_0,
             [PI_TYPE_Q5_1] = &q8g_q5_1,
             [PI_TYPE_Q4_K] = &q8g_q4_k,
             [PI_TYPE_Q5_K] = &q8g_q5_k,
             [PI_TYPE_Q6_K] = &q8g_q6_k},
};

#endif
