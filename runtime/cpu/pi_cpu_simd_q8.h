/*
 * pi_cpu_simd_q8.h - the vector kernels for quantised activations, written once; included by one .c file for each ISA, which defines before: TARGET, PREFIX
 * (of the names of its functions), and the operations of pi_cpu_q8_x86.h or pi_cpu_q8_neon.h; for blocked products those that pi_gemm_simd_q8.h names.
 *
 * Four rows side by side, or zeros in place of them: their sums of integers meet in the four lanes of one vector, in which the rows' sums in F32 go on, in
 * the order of pi_cpu.h. Integers are exact, however an ISA makes them: all tables give the same bits. Where the ISA defines Q8_EIGHT, eight rows while there are.
 */
#ifndef PI_CPU_SIMD_Q8_H
#define PI_CPU_SIMD_Q8_H

#include "runtime/cpu/pi_cpu_simd_rows.h"

#define Q8_PARTS               (PI_SUPER / PI_BLOCK)
#define Q8_NAME_(prefix, name) prefix##name
#define Q8_NAME(prefix, name)  Q8_NAME_(prefix, name)
#define Q8_FN(name)            Q8_NAME(PREFIX, name)

/* How to read 32 weights of a row: those of block b; in K types those of part b % 8 of block b / 8. bias: what the weights are less than the numbers read;
 * Q8_SIGNED: they have a sign. */
struct q8_reader {
    VB (*unpack)(const void *row, uint32_t b);
    int bias;
    uint16_t (*scale)(const void *row, uint32_t b);  /* F16 */
    uint16_t (*offset)(const void *row, uint32_t b); /* NULL: none */
};

/* K types. factors: of 8 parts, with d and dmin applied; of the parts' first and last 8 where they are of 16 elements. */
struct q8_super_reader {
    VB (*unpack)(const void *row, uint32_t b);
    int bias;
    void (*factors)(const void *row, uint32_t b, VH *first, VH *second);
    bool minima; /* second is what is subtracted; false: parts of 16 */
};

/* ---- readers ---- */

/* 32 bits to 32 bytes of 0 or 16. */
OP VB q8_fifths(const uint8_t *qh)
{
    return b_andnot(b_clear_bits(qh), b_set(16));
}

#define Q8_BLOCK(T, row, b) ((const struct pi_block_##T *)(row) + (b))

OP VB q8_unpack_q8_0(const void *row, uint32_t b)
{
    return b_load(Q8_BLOCK(q8_0, row, b)->q);
}

OP VB q8_unpack_q4_0(const void *row, uint32_t b)
{
    return b_halves(Q8_BLOCK(q4_0, row, b)->q);
}

OP VB q8_unpack_q4_1(const void *row, uint32_t b)
{
    return b_halves(Q8_BLOCK(q4_1, row, b)->q);
}

OP VB q8_unpack_q5_0(const void *row, uint32_t b)
{
    return b_or(b_halves(Q8_BLOCK(q5_0, row, b)->q), q8_fifths(Q8_BLOCK(q5_0, row, b)->qh));
}

OP VB q8_unpack_q5_1(const void *row, uint32_t b)
{
    return b_or(b_halves(Q8_BLOCK(q5_1, row, b)->q), q8_fifths(Q8_BLOCK(q5_1, row, b)->qh));
}

#define Q8_FIELD(T, NAME, FIELD)                             \
    OP uint16_t q8_##NAME##_##T(const void *row, uint32_t b) \
    {                                                        \
        return Q8_BLOCK(T, row, b)->FIELD;                   \
    }
Q8_FIELD(q8_0, scale, d)
Q8_FIELD(q4_0, scale, d)
Q8_FIELD(q4_1, scale, d)
Q8_FIELD(q4_1, offset, m)
Q8_FIELD(q5_0, scale, d)
Q8_FIELD(q5_1, scale, d)
Q8_FIELD(q5_1, offset, m)

/* Bytes shifted right by a few bits, of which the mask keeps what is wanted. */
OP VB q8_shifted(const uint8_t *q, uint32_t shift, int mask)
{
    return b_and(b_right(b_load(q), (int)shift), b_set(mask));
}

OP VB q8_unpack_q4_k(const void *row, uint32_t b)
{
    return q8_shifted(Q8_BLOCK(q4_k, row, b / 8)->q + b % 8 / 2 * PI_BLOCK, b % 2 * 4, 15);
}

OP VB q8_unpack_q5_k(const void *row, uint32_t b)
{
    const struct pi_block_q5_k *w = Q8_BLOCK(q5_k, row, b / 8);

    return b_or(q8_shifted(w->q + b % 8 / 2 * PI_BLOCK, b % 2 * 4, 15),
                b_left(q8_shifted(w->qh, b % 8, 1), 4));
}

OP VB q8_unpack_q6_k(const void *row, uint32_t b)
{
    const struct pi_block_q6_k *w = Q8_BLOCK(q6_k, row, b / 8);
    uint32_t half = b % 8 / 4, k = b % 4;

    return b_or(q8_shifted(w->ql + 64 * half + 32 * (k % 2), k / 2 * 4, 15),
                b_left(q8_shifted(w->qh + 32 * half, 2 * k, 3), 4));
}

OP void q8_factors_q4_k(const void *row, uint32_t b, VH *first, VH *second)
{
    k_scales(Q8_BLOCK(q4_k, row, b), first, second);
}

OP void q8_factors_q5_k(const void *row, uint32_t b, VH *first, VH *second)
{
    k_scales(Q8_BLOCK(q5_k, row, b), first, second);
}

OP void q8_factors_q6_k(const void *row, uint32_t b, VH *first, VH *second)
{
    const struct pi_block_q6_k *w = Q8_BLOCK(q6_k, row, b);
    const VH d = h_set(half_value(w->d));

    *first = h_mul(d, h_widen(w->scale));
    *second = h_mul(d, h_widen(w->scale + 8));
}

/* ---- products ---- */

INLINE void q8_store(int rows, int nx, const VQ *sum, float *out, size_t ldo)
{
#pragma GCC unroll 4
    for (int j = 0; j < nx; j++) {
        float v[ROWS];

        q_store(v, sum[j]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            out[(size_t)r * ldo + (size_t)j] = v[r];
    }
}

/* Adds what block b gives. */
INLINE void q8_add_block(struct q8_reader rd, int rows, int nx, const void *const *row,
                         const struct pi_q8 *const *x, uint32_t b, VQ *sum)
{
    VQ d = q_gather(rd.scale, rows, row, b), m = d;
    VB w[ROWS];

    if (rd.offset != NULL)
        m = q_gather(rd.offset, rows, row, b);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        w[r] = rd.unpack(row[r], b);
#pragma GCC unroll 4
    for (int j = 0; j < nx; j++) {
        VS p = q8_products(rd.bias, false, rows, w, x[j][b].q);

        sum[j] = q_fma(q_mul(d, q_set(x[j][b].d)), q_both(p), sum[j]);
        if (rd.offset != NULL)
            sum[j] = q_fma(m, q_set(x[j][b].s), sum[j]);
    }
}

/* Types without parts: out[r][j] = row r . x[j]. One vector: four blocks without a loop between them, 1.2 times as fast on Zen 3, rows of Q8_0 in the cache. */
INLINE void q8_block(struct q8_reader rd, int rows, int nx, const void *const *row,
                     const struct pi_q8 *const *x, uint32_t n, float *out, size_t ldo,
                     struct ahead ahead)
{
    const uint32_t some = AHEAD / PI_BLOCK, n_blocks = n / PI_BLOCK;
    uint32_t b = 0;
    VQ sum[MANY_X];

#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = q_zero();
    for (; nx == 1 && n_blocks - b >= some; b += some) {
        look_ahead(&ahead);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < some; i++)
            q8_add_block(rd, rows, 1, row, x, b + i, sum);
    }
    for (; b < n_blocks; b++) {
        if (b % some == 0)
            look_ahead(&ahead);
        q8_add_block(rd, rows, nx, row, x, b, sum);
    }
    q8_store(rows, nx, sum, out, ldo);
}

/* K types. */
INLINE void q8_super(struct q8_super_reader rd, int rows, int nx, const void *const *row,
                     const struct pi_q8 *const *x, uint32_t n, float *out, size_t ldo,
                     struct ahead ahead)
{
    VQ sum[MANY_X];

#pragma GCC unroll 4
    for (int j = 0; j < nx; j++)
        sum[j] = q_zero();
    for (uint32_t b = 0; b < n / PI_SUPER; b++) {
        VH first[ROWS], second[ROWS];
        VQ f[2 * Q8_PARTS];

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            rd.factors(row[r], b, &first[r], &second[r]);
        q_transpose(rows, first, f);
        q_transpose(rows, second, f + Q8_PARTS);
        for (uint32_t i = 0; i < Q8_PARTS; i++) {
            VB w[ROWS];

            if (i % (AHEAD / PI_BLOCK) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                w[r] = rd.unpack(row[r], b * Q8_PARTS + i);
#pragma GCC unroll 4
            for (int j = 0; j < nx; j++) {
                const struct pi_q8 *xb = x[j] + b * Q8_PARTS + i;
                VS p = q8_products(rd.bias, !rd.minima, rows, w, xb->q);
                VQ d = q_set(xb->d);

                if (rd.minima) {
                    sum[j] = q_fma(q_mul(f[i], d), q_both(p), sum[j]);
                    sum[j] = q_fnma(f[Q8_PARTS + i], q_set(xb->s), sum[j]);
                } else {
                    sum[j] = q_fma(q_mul(f[2 * i], d), q_first(p), sum[j]);
                    sum[j] = q_fma(q_mul(f[2 * i + 1], d), q_second(p), sum[j]);
                }
            }
        }
    }
    q8_store(rows, nx, sum, out, ldo);
}

/* ---- eight rows side by side, where the ISA has it ---- */

#if defined(Q8_EIGHT)
#include "runtime/cpu/pi_cpu_q8_x86_eight.h"
#include "runtime/cpu/pi_cpu_q8_x86_far.h"
#include "runtime/cpu/pi_cpu_q8_x86_many.h"

/* take_rows(), by eights while there are; in far streams where the ISA has them. */
INLINE void q8_take(some_rows_fn some, eight_rows_fn eight, const void *base, size_t stride,
                    const uint32_t *ids, uint32_t n_rows, const struct pi_q8 *x, uint32_t n,
                    size_t row_bytes, float *out)
{
    uint32_t i = 0;

    if (Q8_FAR && eight != NULL)
        i = take_far(eight, base, stride, ids, n_rows, x, n, row_bytes, out);
    for (; eight != NULL && n_rows - i >= EIGHT; i += EIGHT) {
        uint32_t n_next = least(n_rows - i - EIGHT, EIGHT);
        const void *row[EIGHT];
        const char *next[EIGHT];

        for (uint32_t r = 0; r < EIGHT; r++)
            row[r] = row_at(base, stride, ids != NULL ? ids[i + r] : i + r);
        for (uint32_t r = 0; r < n_next; r++)
            next[r] = row_at(base, stride, ids != NULL ? ids[i + EIGHT + r] : i + EIGHT + r);
        eight(row, x, n, out + i, ahead_rows(next, n_next, 0, row_bytes, n));
    }
    if (ids == NULL)
        take_rows(some, row_at(base, stride, i), stride, NULL, n_rows - i, x, n, row_bytes,
                  out + i);
    else
        take_rows(some, base, stride, ids + i, n_rows - i, x, n, row_bytes, out + i);
}
#define Q8_TAKE(T, ...) q8_take(dot_up_to_q8_##T, eight_rows_##T, __VA_ARGS__)
/* The eights of a dot_many: with several vectors, then those of two. */
#define Q8_EIGHTS(T, BYTES)                                                          \
    i = e_take_many_##T(base, stride, ids, n_ids, n_next, x, n_x, BYTES(n), n, out); \
    Q8_FEW_##T
#define Q8_FEW_q8_0
#define Q8_FEW_q6_k
#define Q8_FEW_q4_0 Q8_FEW(q4_0)
#define Q8_FEW_q4_1 Q8_FEW(q4_1)
#define Q8_FEW_q5_0 Q8_FEW(q5_0)
#define Q8_FEW_q5_1 Q8_FEW(q5_1)
#define Q8_FEW_q4_k Q8_FEW(q4_k)
#define Q8_FEW_q5_k Q8_FEW(q5_k)
#define Q8_FEW(T)                                      \
    for (; n_ids - i >= EIGHT; i += EIGHT) {           \
        const void *row[EIGHT];                        \
        for (uint32_t r = 0; r < EIGHT; r++)           \
            row[r] = row_at(base, stride, ids[i + r]); \
        MANY_ALL(EIGHT, 2, EIGHT_MANY_##T);            \
    }
#else
#define Q8_TAKE(T, ...) take_rows(dot_up_to_q8_##T, __VA_ARGS__)
#define Q8_EIGHTS(T, BYTES)
#endif

/* ---- functions of a type ---- */

/* DOT(rows, nx, row, x, n, out, ldo, ahead) with the readers of type T. */
#define KERNELS_Q8(T, DOT, BYTES)                                                              \
    static TARGET void dot_up_to_q8_##T(uint32_t rows, const void *const *row, const void *x,  \
                                        uint32_t n, float *out, struct ahead ahead)            \
    {                                                                                          \
        const struct pi_q8 *const one[1] = {x};                                                \
        UP_TO_ROWS(rows, DOT, 1, row, one, n, out, 1, ahead);                                  \
    }                                                                                          \
    TARGET void Q8_FN(dot_rows_q8_##T)(const void *rows, size_t stride, uint32_t n_rows,       \
                                       const struct pi_q8 *x, uint32_t n, float *out)          \
    {                                                                                          \
        Q8_TAKE(T, rows, stride, NULL, n_rows, x, n, BYTES(n), out);                           \
    }                                                                                          \
    TARGET void Q8_FN(dot_ids_q8_##T)(const void *base, size_t stride, const uint32_t *ids,    \
                                      uint32_t n_ids, const struct pi_q8 *x, uint32_t n,       \
                                      float *out)                                              \
    {                                                                                          \
        Q8_TAKE(T, base, stride, ids, n_ids, x, n, BYTES(n), out);                             \
    }                                                                                          \
    TARGET void Q8_FN(dot_many_q8_##T)(                                                        \
        const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids, uint32_t n_next, \
        const struct pi_q8 *const *x, uint32_t n_x, uint32_t n, float *out)                    \
    {                                                                                          \
        const struct share each = share_of(BYTES(n), n, n_x);                                  \
        uint32_t i = 0;                                                                        \
        Q8_EIGHTS(T, BYTES)                                                                    \
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

#if defined(Q8_EIGHT) && GW == 16

/* Rows that choose among the vectors, in the tables of AVX-512: so many at a time that a vector finds eight and more that it wants, which kernels of one vector
 * take side by side; out of the L2 cache but for the first time. Those that many vectors want are multiplied by all. Sapphire Rapids, 2 to 32 vectors that want
 * one row in eight, against groups of 24: Q4_K 1.7 to 1.95 times as fast in the cache, 1.15 to 1.7 out of memory; Q4_0 1.1 to 1.3 and 1.0 to 1.25; Q8_0, as it had no
 * kernel of eight rows, 0.95 to 1.25 and 0.93 to 1.13. */
#define LIST_ROWS  192
#define LIST_BYTES (1 << 18)

typedef void (*q8_ids_fn)(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,
                          const struct pi_q8 *x, uint32_t n, float *out);
typedef void (*q8_many_fn)(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,
                           uint32_t n_next, const struct pi_q8 *const *x, uint32_t n_x, uint32_t n,
                           float *out);

/* k rows of a list. left: what vectors want of each; at: where the next product of a row goes. */
struct q8_list {
    uint32_t k, left[LIST_ROWS];
    float *at[LIST_ROWS];
};

/* Numbers of the list's rows for which test is true, and which rows they are; how many. */
#define LIST_PICK(TEST)                   \
    for (uint32_t r = 0; r < l->k; r++) { \
        which[n_ids] = r;                 \
        here[n_ids] = ids[r];             \
        n_ids += (TEST);                  \
    }

/* Products with all vectors are 2 to 4 times as fast as one by one (Sapphire Rapids): for rows that more than a third want. */
INLINE bool list_busy(uint32_t mask, uint32_t n_x)
{
    return 3 * bits_of(mask) > n_x + 1;
}

INLINE void list_many(q8_many_fn many, const void *base, size_t stride, const uint32_t *ids,
                      const struct pi_q8 *const *x, uint32_t n_x, uint32_t n, struct q8_list *l)
{
    uint32_t which[LIST_ROWS + 1], here[LIST_ROWS + 1], n_ids = 0;
    float made[LIST_ROWS * 32];

    LIST_PICK(list_busy(l->left[r], n_x))
    if (n_ids < PADDED_ROWS)
        return;
    many(base, stride, here, n_ids, 0, x, n_x, n, made);
    for (uint32_t i = 0; i < n_ids; i++) {
        const uint32_t r = which[i];

        for (uint32_t j = 0; j < n_x; j++) {
            if ((l->left[r] >> j & 1) != 0)
                *l->at[r]++ = made[i * n_x + j];
        }
        l->left[r] = 0;
    }
}

INLINE void list_one(q8_ids_fn one, const void *base, size_t stride, const uint32_t *ids,
                     const struct pi_q8 *x, uint32_t j, uint32_t n, struct q8_list *l)
{
    uint32_t which[LIST_ROWS + 1], here[LIST_ROWS + EIGHT], n_ids = 0, n_all;
    float made[LIST_ROWS + EIGHT];

    LIST_PICK(l->left[r] >> j & 1)
    /* five to seven rows at the end as eight */
    for (n_all = n_ids; n_all % EIGHT >= PADDED_ROWS; n_all++)
        here[n_all] = here[n_ids - 1];
    one(base, stride, here, n_all, x, n, made);
    for (uint32_t i = 0; i < n_ids; i++)
        *l->at[which[i]]++ = made[i];
}

INLINE void q8_masked(q8_ids_fn one, q8_many_fn many, const void *base, size_t stride,
                      const uint32_t *ids, const uint32_t *mask, uint32_t n_ids,
                      const struct pi_q8 *const *x, uint32_t n_x, uint32_t n, size_t row_bytes,
                      float *out)
{
    uint32_t most = LIST_ROWS;

    if (row_bytes > LIST_BYTES / LIST_ROWS)
        most =
            row_bytes < LIST_BYTES / GROUP_ROWS ? (uint32_t)(LIST_BYTES / row_bytes) : GROUP_ROWS;
    for (uint32_t i = 0; i < n_ids; i += most) {
        struct q8_list l = {.k = least(n_ids - i, most)};

        for (uint32_t r = 0; r < l.k; r++) {
            l.left[r] = mask[i + r];
            l.at[r] = out;
            out += bits_of(mask[i + r]);
        }
        list_many(many, base, stride, ids + i, x, n_x, n, &l);
        for (uint32_t j = 0; j < n_x; j++)
            list_one(one, base, stride, ids + i, x[j], j, n, &l);
    }
}

#define KERNELS_Q8_MASKED(T, DOT, BYTES)                                                         \
    TARGET void Q8_FN(dot_masked_q8_##T)(const void *base, size_t stride, const uint32_t *ids,   \
                                         const uint32_t *mask, uint32_t n_ids, uint32_t n_next,  \
                                         const struct pi_q8 *const *x, uint32_t n_x, uint32_t n, \
                                         float *out)                                             \
    {                                                                                            \
        (void)n_next;                                                                            \
        q8_masked(Q8_FN(dot_ids_q8_##T), Q8_FN(dot_many_q8_##T), base, stride, ids, mask, n_ids, \
                  x, n_x, n, BYTES(n), out);                                                     \
    }

#else

/* Rows that choose among the vectors: as in pi_cpu_simd_many.h. A row alone would leave three of four lanes empty. */
#define Q8_INPUT_AT(j) x[j]
#define KERNELS_Q8_MASKED(T, DOT, BYTES)                                                         \
    static TARGET void dot_group_q8_##T(struct rows_group *g, const uint32_t *mask,              \
                                        const struct pi_q8 *const *x, uint32_t n_x, uint32_t n,  \
                                        float **to)                                              \
    {                                                                                            \
        const size_t row_bytes = BYTES(n);                                                       \
        GROUP_PRODUCTS(ROWS, MANY_X, DOT, dot_up_to_q8_##T, Q8_INPUT_AT);                        \
    }                                                                                            \
    TARGET void Q8_FN(dot_masked_q8_##T)(const void *base, size_t stride, const uint32_t *ids,   \
                                         const uint32_t *mask, uint32_t n_ids, uint32_t n_next,  \
                                         const struct pi_q8 *const *x, uint32_t n_x, uint32_t n, \
                                         float *out)                                             \
    {                                                                                            \
        EACH_STRETCH(float, out, n_x,                                                            \
                     Q8_FN(dot_many_q8_##T)(base, stride, ids + i, k, n_ids + n_next - i - k, x, \
                                            n_x, n, out),                                        \
                     dot_group_q8_##T(&g, mask + i, x, n_x, n, at));                             \
    }

#endif

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

KERNELS_Q8(q8_0, Q8_DOT_Q8_0, BYTES_Q8_0)
KERNELS_Q8(q4_0, Q8_DOT_Q4_0, BYTES_Q4_0)
KERNELS_Q8(q4_1, Q8_DOT_Q4_1, BYTES_Q4_1)
KERNELS_Q8(q5_0, Q8_DOT_Q5_0, BYTES_Q5_0)
KERNELS_Q8(q5_1, Q8_DOT_Q5_1, BYTES_Q5_1)
KERNELS_Q8(q4_k, Q8_DOT_Q4_K, BYTES_Q4_K)
KERNELS_Q8(q5_k, Q8_DOT_Q5_K, BYTES_Q5_K)
KERNELS_Q8(q6_k, Q8_DOT_Q6_K, BYTES_Q6_K)

KERNELS_Q8_MASKED(q8_0, Q8_DOT_Q8_0, BYTES_Q8_0)
KERNELS_Q8_MASKED(q4_0, Q8_DOT_Q4_0, BYTES_Q4_0)
KERNELS_Q8_MASKED(q4_1, Q8_DOT_Q4_1, BYTES_Q4_1)
KERNELS_Q8_MASKED(q5_0, Q8_DOT_Q5_0, BYTES_Q5_0)
KERNELS_Q8_MASKED(q5_1, Q8_DOT_Q5_1, BYTES_Q5_1)
KERNELS_Q8_MASKED(q4_k, Q8_DOT_Q4_K, BYTES_Q4_K)
KERNELS_Q8_MASKED(q5_k, Q8_DOT_Q5_K, BYTES_Q5_K)
KERNELS_Q8_MASKED(q6_k, Q8_DOT_Q6_K, BYTES_Q6_K)

/* ---- activations ---- */

TARGET void Q8_FN(quantise_q8)(const float *x, struct pi_q8 *out, uint32_t n)
{
    for (uint32_t b = 0; b < n / PI_BLOCK; b++, x += PI_BLOCK, out++) {
        float d = pi_q8_scale(q8_max_bits(x));

        *out = (struct pi_q8){.d = d, .s = d};
        if (d > 0.0f)
            out->s = d * (float)q8_round(x, d, out->q);
    }
}

#include "runtime/cpu/pi_gemm_simd_q8.h"

#endif
