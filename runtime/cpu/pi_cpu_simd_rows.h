/*
 * pi_cpu_simd_rows.h - how the vector kernels walk over rows, whatever they make of them: a few side by side, the next ones asked for meanwhile.
 *
 * The file that includes it defines TARGET (the functions' target attribute) before.
 */
#ifndef PI_CPU_SIMD_ROWS_H
#define PI_CPU_SIMD_ROWS_H

#include "runtime/cpu/pi_cpu_int.h"

#define ROWS   4 /* rows computed side by side */
#define MANY_X 4 /* vectors x of which the products with some rows are made side by side, at most */
#define INLINE static inline __attribute__((always_inline)) TARGET
/* Bytes of a row that are asked for while the rows before it are computed: until the hardware's own prefetcher has seen where it leads. Four rows side
 * by side are four streams, which it finds anew in each row: measured on Zen 3, rows of 408 bytes, decoding was 1.2 times as fast for it. */
#define PREFETCH_BYTES 512

/* What a pass asks for ahead: its share of the rows that come next, a little for every AHEAD elements. So the stream from memory does not stop where the rows
 * in hand end, nor while they are taken through several vectors out of the cache; the hardware's own prefetcher would have to find each row anew. Measured on
 * two Zen 3 cores, rows of 4096: all rows of Q8_0 and Q4_0 1.2 times as fast as with the first 512 bytes of each row asked for. */
#define AHEAD 128
struct ahead {
    const char *const *row; /* that come next */
    uint32_t n;             /* of them */
    uint64_t at, step;      /* bytes, in 1/256 */
};

/* How near, as __builtin_prefetch has it: 3 into L1, 2 into L2. */
#ifndef AHEAD_HINT
#define AHEAD_HINT 2
#endif

/* Called before every AHEAD elements. */
INLINE void look_ahead(struct ahead *a)
{
    uint64_t from = (a->at / 256 + 63) & ~(uint64_t)63, to = (a->at + a->step) / 256;

    for (uint32_t r = 0; r < a->n; r++) {
        for (uint64_t b = from; b < to; b += 64)
            __builtin_prefetch(a->row[r] + b, 0, AHEAD_HINT);
    }
    a->at += a->step;
}

/* The same for kernels that are bound by instructions: whole lines, of as many rows as are in hand (those themselves, where fewer come next; they are in the
 * cache), so that nothing is left to find out but where a share ends. Measured on Zen 3, eight vectors, with 25 instructions in place of 31 for 12 multiply-adds: as
 * fast on a core of its own, 1.15 times where another thread of the core is busy, which takes half of what can start in a cycle. */
struct along {
    const char *row[ROWS];
    size_t at, step, end; /* bytes */
};

INLINE struct along along_of(const struct ahead *a, uint32_t rows, const void *const *row,
                             uint32_t n)
{
    const uint64_t blocks = (n + AHEAD - 1) / AHEAD;
    struct along l = {.at = (size_t)(a->at / 256 + 63) & ~(size_t)63,
                      .step = (size_t)(a->step / 256 + 63) & ~(size_t)63,
                      .end = a->n > 0 ? (size_t)((a->at + a->step * blocks) / 256) : 0};

    for (uint32_t r = 0; r < rows; r++)
        l.row[r] = r < a->n ? a->row[r] : (const char *)row[r];
    return l;
}

/* Called before every AHEAD elements; rows: a constant. */
INLINE void look_along(struct along *l, uint32_t rows)
{
    const size_t to = l->at + l->step < l->end ? l->at + l->step : l->end;

#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        for (size_t b = l->at; b < to; b += 64)
            __builtin_prefetch(l->row[r] + b, 0, 2);
    }
    l->at += l->step;
}

/* Of a pass over n elements of each row with one vector: bytes [from, to) of the next rows. */
INLINE struct ahead ahead_one(const char *const *next, uint32_t n_next, size_t from, size_t to,
                              uint32_t n)
{
    return (struct ahead){next, n_next, (uint64_t)from * 256,
                          n > 0 ? (uint64_t)(to - from) * 256 * AHEAD / n : 0};
}

/* The same of quantised rows: where they lie one behind the other and are TOGETHER_BYTES at most, they are asked for as one row, in one stream, which the hardware
 * goes on with; several streams inside a page or two it loses. Measured on Zen 3, all rows of Q8_0, GB/s of a core beside a plain read of 20: 2048 columns, products
 * with quantised activations 15.4 and 20.4, sums 14.6 and 16.7; 4096 columns 18.3 and 20.4, 15.3 and 15.8; longer ones nothing. Worse for scattered rows one
 * after the other (one in ten 11.5 and 9.2), and for rows of F16 of 4 KB and more (17.9 and 14.7). */
#define TOGETHER_BYTES 18432
INLINE struct ahead ahead_rows(const char *const *next, uint32_t n_next, size_t from, size_t to,
                               uint32_t n)
{
    const size_t bytes = to - from;
    bool one = n_next > 1 && bytes * n_next <= TOGETHER_BYTES;

    for (uint32_t r = 1; r < n_next; r++)
        one = one && next[r] == next[r - 1] + bytes;
    if (one)
        return ahead_one(next, 1, from, from + n_next * bytes, n);
    return ahead_one(next, n_next, from, to, n);
}

/* One of both. */
typedef struct ahead (*ahead_fn)(const char *const *next, uint32_t n_next, size_t from, size_t to,
                                 uint32_t n);

INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

INLINE const char *row_at(const void *base, size_t stride, uint32_t i)
{
    return (const char *)base + stride * i;
}

/* Asks for bytes [from, to) of a row, or as many of them as PREFETCH_BYTES says. */
INLINE void prefetch_row(const char *row, size_t from, size_t to)
{
    size_t end = to - from < PREFETCH_BYTES ? to : from + PREFETCH_BYTES;

    for (size_t i = from; i < end; i += 64)
        __builtin_prefetch(row + i, 0, 2);
}

/* Where element i is in a row; of K types: the block it is in. */
#define BYTES_F32(i)  ((size_t)(i)*4)
#define BYTES_F16(i)  ((size_t)(i)*2)
#define BYTES_Q8_0(i) ((size_t)(i) / PI_BLOCK * sizeof(struct pi_block_q8_0))
#define BYTES_Q4_0(i) ((size_t)(i) / PI_BLOCK * sizeof(struct pi_block_q4_0))
#define BYTES_Q4_1(i) ((size_t)(i) / PI_BLOCK * sizeof(struct pi_block_q4_1))
#define BYTES_Q5_0(i) ((size_t)(i) / PI_BLOCK * sizeof(struct pi_block_q5_0))
#define BYTES_Q5_1(i) ((size_t)(i) / PI_BLOCK * sizeof(struct pi_block_q5_1))
#define BYTES_Q4_K(i) ((size_t)(i) / PI_SUPER * sizeof(struct pi_block_q4_k))
#define BYTES_Q5_K(i) ((size_t)(i) / PI_SUPER * sizeof(struct pi_block_q5_k))
#define BYTES_Q6_K(i) ((size_t)(i) / PI_SUPER * sizeof(struct pi_block_q6_k))

/* The last rows of a list stand side by side too: one stream alone leaves memory half idle. F: with the number of rows as a constant before its arguments. */
#define UP_TO_ROWS(rows, F, ...)  \
    do {                          \
        switch (rows) {           \
        case 1:                   \
            F(1, __VA_ARGS__);    \
            break;                \
        case 2:                   \
            F(2, __VA_ARGS__);    \
            break;                \
        case 3:                   \
            F(3, __VA_ARGS__);    \
            break;                \
        default:                  \
            F(ROWS, __VA_ARGS__); \
        }                         \
    } while (0)

/* out[0..rows): what some rows, at most ROWS, make with x. */
typedef void (*some_rows_fn)(uint32_t rows, const void *const *row, const void *x, uint32_t n,
                             float *out, struct ahead ahead);

/* All of n_rows rows, of which row_bytes bytes are read: number ids[i], or i where ids is NULL. */
INLINE void take_rows_by(ahead_fn ahead, some_rows_fn some, const void *base, size_t stride,
                         const uint32_t *ids, uint32_t n_rows, const void *x, uint32_t n,
                         size_t row_bytes, float *out)
{
    for (uint32_t i = 0; i < n_rows; i += ROWS) {
        uint32_t k = least(n_rows - i, ROWS), n_next = least(n_rows - i - k, ROWS);
        const void *row[ROWS];
        const char *next[ROWS];

        for (uint32_t r = 0; r < k; r++)
            row[r] = row_at(base, stride, ids != NULL ? ids[i + r] : i + r);
        for (uint32_t r = 0; r < n_next; r++)
            next[r] = row_at(base, stride, ids != NULL ? ids[i + k + r] : i + k + r);
        some(k, row, x, n, out + i, ahead(next, n_next, 0, row_bytes, n));
    }
}

/* Quantised rows. */
INLINE void take_rows(some_rows_fn some, const void *base, size_t stride, const uint32_t *ids,
                      uint32_t n_rows, const void *x, uint32_t n, size_t row_bytes, float *out)
{
    take_rows_by(ahead_rows, some, base, stride, ids, n_rows, x, n, row_bytes, out);
}

/* ---- several vectors ---- */

/* What one of n_x vectors is to ask for of each row that comes next, in 1/256 bytes: in all, and for every AHEAD of n elements. */
struct share {
    uint64_t all, step;
};

INLINE struct share share_of(size_t row_bytes, uint32_t n, uint32_t n_x)
{
    const uint64_t all = n_x > 0 ? (uint64_t)row_bytes * 256 / n_x : 0;

    return (struct share){all, n > 0 ? all * AHEAD / n : 0};
}

/* Of a pass with nx vectors from number j on: its share of the next rows. */
INLINE struct ahead ahead_of(const char *const *next, uint32_t n_next, struct share each,
                             uint32_t j, uint32_t nx)
{
    return (struct ahead){next, n_next, each.all * j, each.step * nx};
}

/* The rows behind those in hand, as many as are in hand. */
#define NEXT_ROWS(rows)                                                              \
    const char *next[(rows) > ROWS ? (rows) : ROWS] = {0};                           \
    uint32_t n_next_rows =                                                           \
        n_ids + n_next - i - (rows) < (rows) ? n_ids + n_next - i - (rows) : (rows); \
    for (uint32_t r = 0; r < n_next_rows; r++)                                       \
    next[r] = row_at(base, stride, ids[i + (rows) + r])

/* All x of some rows: by X, then by 2, then one; the products of a row are ldo apart; each: share_of() a vector. */
#define MANY_SOME(rows, X, MANY, ldo)                                      \
    do {                                                                   \
        uint32_t j = 0;                                                    \
        NEXT_ROWS(rows);                                                   \
        for (; n_x - j >= (X); j += (X))                                   \
            MANY(rows, X, row, x + j, n, out + (size_t)i * (ldo) + j, ldo, \
                 ahead_of(next, n_next_rows, each, j, X));                 \
        for (; (X) > 2 && n_x - j >= 2; j += 2)                            \
            MANY(rows, 2, row, x + j, n, out + (size_t)i * (ldo) + j, ldo, \
                 ahead_of(next, n_next_rows, each, j, 2));                 \
        for (; j < n_x; j++)                                               \
            MANY(rows, 1, row, x + j, n, out + (size_t)i * (ldo) + j, ldo, \
                 ahead_of(next, n_next_rows, each, j, 1));                 \
    } while (0)
#define MANY_ALL(rows, X, MANY) MANY_SOME(rows, X, MANY, n_x)

/* ---- vectors that each row chooses ---- */

/* Rows of a group: they are taken through the vectors one after the other, or two, and come out of the L2 cache but for the first time, while the
 * vectors stay in the L1 cache. A multiple of the rows that kernels take side by side. 24: of 12 a vector often wants one or two alone. Measured on Zen 3, as many
 * against 12, 2 to 32 vectors that want one row in ten: sums 1.0 to 1.2, products with quantised activations 1.05 to 1.2 times as fast in the cache, 0.97 to 1.15 out of
 * memory; 48 rows 0.93 there with two vectors. */
#define GROUP_ROWS 24

struct rows_group {
    uint32_t n, n_next;
    const void *row[GROUP_ROWS];
    const char *next[GROUP_ROWS]; /* those that come next */
    uint32_t pairs, done;         /* of row and vector */
    uint64_t each;                /* rows that come next for each pair, in 2^-32 */
};

INLINE uint32_t bits_of(uint32_t mask)
{
    uint32_t n = 0;

    for (; mask != 0; mask &= mask - 1)
        n++;
    return n;
}

/* How many of n rows, from the first on, all n_x vectors want. */
INLINE uint32_t full_rows(const uint32_t *mask, uint32_t n, uint32_t n_x)
{
    uint32_t k = 0;

    while (k < n && mask[k] == UINT32_MAX >> (32 - n_x))
        k++;
    return k;
}

/* Rows i.. of a list of n_ids, behind which n_next more are known; how many they are. */
INLINE uint32_t take_group(struct rows_group *g, const void *base, size_t stride,
                           const uint32_t *ids, const uint32_t *mask, uint32_t i, uint32_t n_ids,
                           uint32_t n_next)
{
    g->n = least(n_ids - i, GROUP_ROWS);
    g->n_next = least(n_ids + n_next - i - g->n, GROUP_ROWS);
    g->pairs = g->done = 0;
    for (uint32_t r = 0; r < g->n; r++) {
        g->row[r] = row_at(base, stride, ids[i + r]);
        g->pairs += bits_of(mask[i + r]);
    }
    for (uint32_t r = 0; r < g->n_next; r++)
        g->next[r] = row_at(base, stride, ids[i + g->n + r]);
    g->each = g->pairs > 0 ? (((uint64_t)g->n_next << 32) + g->pairs - 1) / g->pairs : 0;
    return g->n;
}

/* What is asked for during a call for k pairs: bytes [from, to) of whole rows, as many as are due by then; the call goes over n elements. Of all rows that come next a
 * little with each call would cost more than it brings. */
INLINE struct ahead group_ahead(struct rows_group *g, uint32_t k, size_t from, size_t to,
                                uint32_t n)
{
    const uint32_t first = (uint32_t)(g->each * g->done >> 32),
                   end = (uint32_t)(g->each * (g->done + k) >> 32);

    g->done += k;
    return ahead_one(g->next + first, end - first, from, to, n);
}

/* Which of n rows some vectors want all of: their numbers to full, the others' to some. */
INLINE uint32_t split_rows(uint32_t n, const uint32_t *mask, uint32_t all, uint32_t *full,
                           uint32_t *some)
{
    uint32_t n_full = 0, n_some = 0;

    for (uint32_t r = 0; r < n; r++) {
        full[n_full] = some[n_some] = r;
        n_full += mask[r] == all;
        n_some += mask[r] != all;
    }
    return n_full;
}

/* Which of n rows, numbers in some, vector j wants: their numbers to list. */
INLINE uint32_t list_rows(uint32_t n, const uint32_t *some, const uint32_t *mask, uint32_t j,
                          uint32_t *list)
{
    uint32_t k = 0;

    for (uint32_t i = 0; i < n; i++) {
        list[k] = some[i];
        k += mask[some[i]] >> j & 1;
    }
    return k;
}

/* Products of rows that all n_x vectors want: M side by side with X, then 2, then one of them; to[r]: where a row's products go. MANY as in MANY_SOME. */
#define GROUP_PASS(rows, nx, MANY)                                          \
    for (; n_x - j >= (nx); j += (nx)) {                                    \
        for (uint32_t r = 0; r < n_full; r += k) {                          \
            const void *row[ROWS];                                          \
            float made[ROWS * MANY_X];                                      \
            k = n_full - r >= (rows) ? (rows) : 1;                          \
            for (uint32_t i = 0; i < k; i++)                                \
                row[i] = g->row[full[r + i]];                               \
            struct ahead ahead = group_ahead(g, k * (nx), 0, row_bytes, n); \
            if (k == (rows))                                                \
                MANY(rows, nx, row, x + j, n, made, nx, ahead);             \
            else                                                            \
                MANY(1, nx, row, x + j, n, made, nx, ahead);                \
            for (uint32_t i = 0; i < k * (nx); i++)                         \
                to[full[r + i / (nx)]][j + i % (nx)] = made[i];             \
        }                                                                   \
    }

/* Products of a group with n_x vectors, at most 32; UP_TO: of up to ROWS rows with one vector, VEC(j). */
#define GROUP_PRODUCTS(M, X, MANY, UP_TO, VEC)                                                     \
    do {                                                                                           \
        uint32_t full[GROUP_ROWS + 1], some[GROUP_ROWS + 1],                                       \
            j = 0, k, n_full = split_rows(g->n, mask, UINT32_MAX >> (32 - n_x), full, some);       \
        GROUP_PASS(M, X, MANY)                                                                     \
        if ((X) > 2)                                                                               \
            GROUP_PASS(M, 2, MANY)                                                                 \
        GROUP_PASS(M, 1, MANY)                                                                     \
        for (j = 0; n_full < g->n && j < n_x; j++) {                                               \
            uint32_t list[GROUP_ROWS + 1], n_list = list_rows(g->n - n_full, some, mask, j, list); \
            for (uint32_t r = 0; r < n_list; r += k) {                                             \
                const void *row[ROWS];                                                             \
                float made[ROWS];                                                                  \
                k = least(n_list - r, ROWS);                                                       \
                for (uint32_t i = 0; i < k; i++)                                                   \
                    row[i] = g->row[list[r + i]];                                                  \
                UP_TO(k, row, VEC(j), n, made, group_ahead(g, k, 0, row_bytes, n));                \
                for (uint32_t i = 0; i < k; i++)                                                   \
                    *to[list[r + i]]++ = made[i];                                                  \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* A list's rows from number i on, k of them, with the packed values v, of type V, that belong to them: a stretch that all n_x vectors want by the call ALL, other
 * rows as a group g by the call GROUP; at[r]: where the values of its row r begin. */
#define EACH_STRETCH(V, v, n_x, ALL, GROUP)                                \
    do {                                                                   \
        for (uint32_t i = 0, k; i < n_ids; i += k) {                       \
            struct rows_group g;                                           \
            V *at[GROUP_ROWS];                                             \
            k = full_rows(mask + i, n_ids - i, n_x);                       \
            if (k >= GROUP_ROWS) {                                         \
                ALL;                                                       \
                (v) += (size_t)k * (n_x);                                  \
                continue;                                                  \
            }                                                              \
            k = take_group(&g, base, stride, ids, mask, i, n_ids, n_next); \
            for (uint32_t r = 0; r < k; r++) {                             \
                at[r] = (v);                                               \
                (v) += bits_of(mask[i + r]);                               \
            }                                                              \
            GROUP;                                                         \
        }                                                                  \
    } while (0)

#endif
