/*
 * pi_cpu_simd_many.h - the vector kernels for several vectors at once (batches of tokens); included by pi_cpu_simd.h alone, whose vector operations and
 * row readers it uses.
 *
 * A row's elements are loaded and unpacked once for a few vectors. Each pair of row and vector has the running sums, in the order, that it has in the kernels
 * for one vector: the same bits.
 */
#ifndef PI_CPU_SIMD_MANY_H
#define PI_CPU_SIMD_MANY_H

/* Rows of which the products with MANY_X vectors are made side by side. PLAIN_X: vectors with rows that are not quantised, whose sums are twice as many;
 * AVX2 has 16 registers for them, AVX-512 has 32. */
#define MANY_ROWS 2
#define PLAIN_X   (W == 16 ? 4 : 2)
#define PLAIN_ROWS \
    3 /* three rows and two vectors: 12 sums of 16 registers; measured on Zen 3, eight vectors: 1.27 times as fast as two rows */

/* Vectors of a pass over the rows at most. */
#define INPUTS 64

/* Down rows that are unpacked together, a block of columns at a time, and added to each of up to DOWN_Y vectors, which is then loaded and stored once for all of
 * them. ROWS where there are fewer vectors than DOWN_MIN, for unpacking counts for more then, and in ranges of fewer columns than DOWN_COLS, for eight rows that
 * come next are too many to ask for at once (measured on Zen 3, F16 out of memory, 256 columns, eight vectors: 1.1 and 1.7 times as fast as four rows and four vectors). */
#define DOWN_ROWS 8
#define DOWN_Y    32
#define DOWN_MIN  4
#define DOWN_COLS 512

/* dot_plain() for several x at once, nx at most MANY_X: each pair of row and x has the sums that it has alone. */
INLINE void many_plain(load_fn load, part_fn part, int rows, int nx, const void *const *row,
                       const struct input *x, uint32_t n, float *out, size_t ldo,
                       struct ahead ahead)
{
    VF sum[PLAIN_ROWS][MANY_X][2], w, xv[MANY_X];
    struct along along = along_of(&ahead, (uint32_t)rows, row, n);
    const size_t whole = n - n % (2 * W);
    uint32_t i = (uint32_t)whole;

#pragma GCC unroll 16
    for (int p = 0; p < rows * nx; p++)
        sum[p / nx][p % nx][0] = sum[p / nx][p % nx][1] = v_zero();
    for (size_t at = 0, to; at < whole;) {
        to = whole - at < AHEAD ? whole : at + AHEAD;
        look_along(&along, (uint32_t)rows);
        for (; at < to; at += 2 * W) {
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++) {
#pragma GCC unroll 4
                for (int j = 0; j < nx; j++)
                    xv[j] = v_load(x[j].x + at + k * W);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    w = load(row[r], at + (size_t)k * W);
#pragma GCC unroll 4
                    for (int j = 0; j < nx; j++)
                        sum[r][j][k] = v_fma(w, xv[j], sum[r][j][k]);
                }
            }
        }
    }
    if (n - i >= W) {
#pragma GCC unroll 16
        for (int p = 0; p < rows * nx; p++)
            sum[p / nx][p % nx][0] =
                v_fma(load(row[p / nx], i), v_load(x[p % nx].x + i), sum[p / nx][p % nx][0]);
        i += W;
    }
    if (i < n) {
#pragma GCC unroll 16
        for (int p = 0; p < rows * nx; p++)
            sum[p / nx][p % nx][1] =
                v_fma(part(row[p / nx], i, n - i), v_load_part(x[p % nx].x + i, n - i),
                      sum[p / nx][p % nx][1]);
    }
#pragma GCC unroll 16
    for (int p = 0; p < rows * nx; p++)
        out[(size_t)(p / nx) * ldo + p % nx] =
            v_sum(v_add(sum[p / nx][p % nx][0], sum[p / nx][p % nx][1]));
}

/* Adds what block i of the groups that begin with block b gives. */
INLINE void many_bytes(struct reader rd, int rows, int nx, const void *const *row,
                       const struct group *g, const struct input *x, uint32_t b, uint32_t i,
                       VF sum[MANY_ROWS][MANY_X])
{
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) {
        VF q[NV],
            scale[2] = {scale_of(rd, row[r], &g[r], b, i, 0), scale_of(rd, row[r], &g[r], b, i, 1)};

        widen_block(rd, bytes_of(rd, row[r], &g[r], b, i), q);
#pragma GCC unroll 4
        for (int j = 0; j < nx; j++) {
            VF xv[NV];

#pragma GCC unroll 4
            for (int k = 0; k < NV; k++)
                xv[k] = v_load(x[j].x + (size_t)(b + i) * PI_BLOCK + k * W);
            sum[r][j] = add_block(rd, scale, q, xv, sum[r][j]);
        }
    }
}

/* dot_block() for several x at once. */
INLINE void many_block(struct reader rd, int rows, int nx, const void *const *row,
                       const struct input *x, uint32_t n, float *out, size_t ldo,
                       struct ahead ahead)
{
    struct group g[MANY_ROWS];
    VF sum[MANY_ROWS][MANY_X];

#pragma GCC unroll 8
    for (int p = 0; p < rows * nx; p++)
        sum[p / nx][p % nx] = v_zero();
    for (uint32_t b = 0; b < n / PI_BLOCK; b += GROUP) {
        uint32_t nb = rd.super ? GROUP : least(GROUP, n / PI_BLOCK - b);

        if (!rd.in_row)
            rd.read(rows, row, b, nb, g);
        if (rd.offset != 0) {
#pragma GCC unroll 4
            for (int j = 0; j < nx; j++) {
                VF x_sums = sums_at(x[j], b, nb);

#pragma GCC unroll 2
                for (int r = 0; r < rows; r++)
                    sum[r][j] = add_offsets(rd, &g[r], x_sums, sum[r][j]);
            }
        }
        for (uint32_t i = 0; i < nb; i++) {
            if (i % (AHEAD / PI_BLOCK) == 0)
                look_ahead(&ahead);
            many_bytes(rd, rows, nx, row, g, x, b, i, sum);
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < rows * nx; p++)
        out[(size_t)(p / nx) * ldo + p % nx] = v_sum(sum[p / nx][p % nx]);
}

/* y[0..32) += rows of as many columns, w; f: the factor of the first, those of the others step apart; halves: behind it that of the row's second half. */
INLINE void add_down(int rows, VF (*w)[NV], const float *f, size_t step, bool halves, float *y)
{
    VF sum[NV];

#pragma GCC unroll 8
    for (int k = 0; k < NV; k++)
        sum[k] = v_load(y + k * W);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        VF by[2] = {v_set(f[(size_t)r * step]), v_set(f[(size_t)r * step + halves])};

#pragma GCC unroll 8
        for (int k = 0; k < NV; k++)
            sum[k] = v_fma(by[2 * k / NV], w[r][k], sum[k]);
    }
#pragma GCC unroll 8
    for (int k = 0; k < NV; k++)
        v_store(y + k * W, sum[k]);
}

/* axpy_plain() into several y, at most DOWN_Y: a (rows, lda), of which n_y columns. */
INLINE void axpys_plain(load_fn load, part_fn part, int rows, const void *const *row,
                        const float *a, size_t lda, float *const *y, uint32_t n_y, uint32_t begin,
                        uint32_t end, struct ahead ahead)
{
    uint32_t i = begin;

    for (; i < end && end - i >= PI_BLOCK; i += PI_BLOCK) {
        VF w[DOWN_ROWS][NV];

        if ((i - begin) % AHEAD == 0)
            look_ahead(&ahead);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
            for (int k = 0; k < NV; k++)
                w[r][k] = load(row[r], i + (size_t)k * W);
        }
        for (uint32_t j = 0; j < n_y; j++)
            add_down(rows, w, a + j, lda, false, y[j] + i);
    }
    for (; i < end; i += W) {
        uint32_t n = least(end - i, W);

        for (uint32_t j = 0; j < n_y; j++) {
            VF sum = v_load_part(y[j] + i, n);

            for (int r = 0; r < rows; r++)
                sum = v_fma(v_set(a[(size_t)r * lda + j]), part(row[r], i, n), sum);
            v_store_part(y[j] + i, n, sum);
        }
    }
}

/* read() with the scales of Q8_0 too, whose bytes stay in the row. */
INLINE void read_scales(struct reader rd, int rows, const void *const *row, uint32_t b, uint32_t n,
                        struct group *g)
{
    if (!rd.in_row) {
        rd.read(rows, row, b, n, g);
        return;
    }
    for (int r = 0; r < rows; r++) {
        const struct pi_block_q8_0 *from = (const struct pi_block_q8_0 *)row[r] + b;

        spread_scales(&from->d, sizeof(*from), n, 1.0f, g[r].scale);
    }
}

/* The scales of groups times n_y columns of a (rows, lda): f (n_y, rows, n), n of a group. */
INLINE void factors_of(int rows, const struct group *g, uint32_t n, const float *a, size_t lda,
                       uint32_t n_y, float *f)
{
    for (uint32_t j = 0; j < n_y; j++) {
        for (int r = 0; r < rows; r++) {
            for (uint32_t i = 0; i < n; i += 8, f += 8)
                v_store8(f, v_mul(v_set(a[(size_t)r * lda + j]), v_load8(g[r].scale + i)));
        }
    }
}

/* axpy_block() into several y, as above. */
INLINE void axpys_block(struct reader rd, int rows, const void *const *row, const float *a,
                        size_t lda, float *const *y, uint32_t n_y, uint32_t begin, uint32_t end,
                        struct ahead ahead)
{
    const uint32_t last = end / PI_BLOCK, parts = rd.halves ? 2 : 1;
    const size_t step = (size_t)parts * GROUP;
    float f[DOWN_Y * DOWN_ROWS * 2 * GROUP];
    struct group g[DOWN_ROWS];

    for (uint32_t b = begin / PI_BLOCK, next; b < last; b = next) {
        uint32_t first = rd.super ? b / GROUP * GROUP : b;

        next = least(first + GROUP, last);
        read_scales(rd, rows, row, first, rd.super ? GROUP : next - first, g);
        if (rd.offset == 0)
            factors_of(rows, g, parts * GROUP, a, lda, n_y, f);
        for (; b < next; b++) {
            const uint32_t i = b - first;
            VF w[DOWN_ROWS][NV];

            if ((b - begin / PI_BLOCK) % (AHEAD / PI_BLOCK) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                widen_block(rd, bytes_of(rd, row[r], &g[r], first, i), w[r]);
                if (rd.offset != 0) {
#pragma GCC unroll 8
                    for (int k = 0; k < NV; k++)
                        w[r][k] =
                            with_offset(rd, v_set(g[r].scale[i]), w[r][k], v_set(g[r].offset[i]));
                }
            }
            for (uint32_t j = 0; j < n_y; j++) {
                float *to = y[j] + (size_t)b * PI_BLOCK;

                if (rd.offset != 0)
                    add_down(rows, w, a + j, lda, false, to);
                else
                    add_down(rows, w, f + j * (size_t)rows * step + parts * i, step, rd.halves, to);
            }
        }
    }
}

/* What is asked for while rows are added: of quantised rows those that come next, of others their heads, for the hardware's prefetcher follows eight long
 * rows better (measured on Zen 3, F16, 4096 columns, 4 and 32 vectors: 1.15 and 1.3 times as fast). */
INLINE struct ahead ahead_down(ahead_fn ahead, const char *const *next, uint32_t n_next,
                               size_t from, size_t to, uint32_t n)
{
    if (ahead != ahead_one)
        return ahead(next, n_next, from, to, n);
    for (uint32_t r = 0; r < n_next; r++)
        prefetch_row(next[r], from, to);
    return (struct ahead){.n = 0};
}

/* n_x vectors with their sums, as many as there is room for; how many. */
INLINE uint32_t inputs_of(const float *const *x, uint32_t n_x, uint32_t n, float *room,
                          uint32_t n_room, struct input *out)
{
    uint32_t each = (n / PI_BLOCK + GROUP - 1) / GROUP * GROUP, j = 0;
    bool made = n_room > 1 && each <= n_room;

    for (; j < n_x && j < INPUTS && (!made || (j + 1) * each <= n_room); j++)
        out[j] =
            (struct input){x[j], made ? sums_of(x[j], n, room + (size_t)j * each, n_room) : NULL};
    return j;
}

#include "runtime/cpu/pi_cpu_simd_wide.h"

/* MANY(rows, nx, row, in, n, out, ldo, ahead) and AXPYS(rows, row, a, lda, y, n_y, begin, end, ahead) with the readers of type T; M: rows and X: vectors side by
 * side; N_SUMS as in KERNELS. */
#define KERNELS_MANY(T, MANY, M, X, AXPYS, BYTES, N_SUMS)                                         \
    static TARGET void dot_some_##T(const void *base, size_t stride, const uint32_t *ids,         \
                                    uint32_t n_ids, uint32_t n_next, const struct input *x,       \
                                    uint32_t n_x, uint32_t n, float *out, size_t ldo)             \
    {                                                                                             \
        const struct share each = share_of(BYTES(n), n, n_x);                                     \
        uint32_t i = WIDE_##T(base, stride, ids, n_ids, n_next, x, n_x, n, out, ldo);             \
        for (; n_ids - i >= (M); i += (M)) {                                                      \
            const void *row[M];                                                                   \
            for (uint32_t r = 0; r < (M); r++)                                                    \
                row[r] = row_at(base, stride, ids[i + r]);                                        \
            MANY_SOME(M, X, MANY, ldo);                                                           \
        }                                                                                         \
        for (; i < n_ids; i++) {                                                                  \
            const void *row[1] = {row_at(base, stride, ids[i])};                                  \
            MANY_SOME(1, MANY_X, MANY, ldo);                                                      \
        }                                                                                         \
    }                                                                                             \
    static TARGET void dot_many_##T(const void *base, size_t stride, const uint32_t *ids,         \
                                    uint32_t n_ids, uint32_t n_next, const float *const *x,       \
                                    uint32_t n_x, uint32_t n, float *out)                         \
    {                                                                                             \
        alignas(64) float room[N_SUMS];                                                           \
        struct input in[INPUTS];                                                                  \
        for (uint32_t j = 0, k; j < n_x; j += k) {                                                \
            k = inputs_of(x + j, n_x - j, n, room, N_SUMS, in);                                   \
            dot_some_##T(base, stride, ids, n_ids, n_next, in, k, n, out + j, n_x);               \
        }                                                                                         \
    }                                                                                             \
    static TARGET void axpy_many_##T(const void *base, size_t stride, const uint32_t *ids,        \
                                     uint32_t n_ids, uint32_t n_next, const float *a,             \
                                     float *const *y, uint32_t n_y, uint32_t begin, uint32_t end) \
    {                                                                                             \
        for (uint32_t i = 0, k; i < n_ids; i += k, a += (size_t)k * n_y) {                        \
            const void *row[DOWN_ROWS];                                                           \
            const char *next[DOWN_ROWS];                                                          \
            uint32_t n_near;                                                                      \
            bool many = n_y >= DOWN_MIN && end - begin >= DOWN_COLS;                              \
            k = many && n_ids - i >= DOWN_ROWS ? DOWN_ROWS : least(n_ids - i, ROWS);              \
            n_near = least(n_ids + n_next - i - k, k);                                            \
            for (uint32_t r = 0; r < k; r++)                                                      \
                row[r] = row_at(base, stride, ids[i + r]);                                        \
            for (uint32_t r = 0; r < n_near; r++)                                                 \
                next[r] = row_at(base, stride, ids[i + k + r]);                                   \
            struct ahead ahead =                                                                  \
                ahead_down(AHEAD_##T, next, n_near, BYTES(begin), BYTES(end), end - begin);       \
            for (uint32_t j = 0, nj; j < n_y; j += nj, ahead.n = 0) {                             \
                float some[ROWS];                                                                 \
                nj = n_y > 1 && k >= ROWS ? least(n_y - j, DOWN_Y) : 1;                           \
                for (uint32_t r = 0; r < k && r < ROWS; r++)                                      \
                    some[r] = a[(size_t)r * n_y + j];                                             \
                if (k > ROWS)                                                                     \
                    AXPYS(DOWN_ROWS, row, a + j, n_y, y + j, nj, begin, end, ahead);              \
                else if (k == ROWS && n_y > 1)                                                    \
                    AXPYS(ROWS, row, a + j, n_y, y + j, nj, begin, end, ahead);                   \
                else                                                                              \
                    axpy_up_to_##T(k, row, some, begin, end, y[j], ahead);                        \
            }                                                                                     \
        }                                                                                         \
    }

/* The numbers of a group's rows. */
static const uint32_t all_rows[GROUP_ROWS] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                              12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};

#define INPUT_AT(j) (&x[j])

/* The kernels of rows that choose among the vectors: stretches of rows that want all of them are done as above, the others in groups, vector after vector. A row alone with
 * its few vectors would have too few sums side by side: measured on Zen 3, rows of 2048 in F16 for 2 of 8 vectors: products 1.2, sums 1.65 times as fast
 * in groups. */
#define KERNELS_MASKED(T, MANY, M, X, BYTES, N_SUMS)                                               \
    static TARGET void dot_group_##T(struct rows_group *g, const uint32_t *mask,                   \
                                     const struct input *x, uint32_t n_x, uint32_t n, float **to)  \
    {                                                                                              \
        const size_t row_bytes = BYTES(n);                                                         \
        GROUP_PRODUCTS(M, X, MANY, dot_up_to_##T, INPUT_AT);                                       \
    }                                                                                              \
    static TARGET void dot_masked_##T(const void *base, size_t stride, const uint32_t *ids,        \
                                      const uint32_t *mask, uint32_t n_ids, uint32_t n_next,       \
                                      const float *const *x, uint32_t n_x, uint32_t n, float *out) \
    {                                                                                              \
        alignas(64) float room[N_SUMS];                                                            \
        struct input in[INPUTS];                                                                   \
        if (inputs_of(x, n_x, n, room, N_SUMS, in) < n_x)                                          \
            (void)inputs_of(x, n_x, n, room, 1, in);                                               \
        EACH_STRETCH(                                                                              \
            float, out, n_x,                                                                       \
            dot_some_##T(base, stride, ids + i, k, n_ids + n_next - i - k, in, n_x, n, out, n_x),  \
            dot_group_##T(&g, mask + i, in, n_x, n, at));                                          \
    }                                                                                              \
    static TARGET void axpy_group_##T(struct rows_group *g, const uint32_t *mask, const float **a, \
                                      float *const *y, uint32_t n_y, uint32_t begin, uint32_t end) \
    {                                                                                              \
        for (uint32_t j = 0; j < n_y; j++) {                                                       \
            uint32_t list[GROUP_ROWS + 1], n = list_rows(g->n, all_rows, mask, j, list);           \
            for (uint32_t r = 0, k; r < n; r += k) {                                               \
                const void *row[ROWS];                                                             \
                float some[ROWS];                                                                  \
                k = least(n - r, ROWS);                                                            \
                for (uint32_t i = 0; i < k; i++) {                                                 \
                    row[i] = g->row[list[r + i]];                                                  \
                    some[i] = *a[list[r + i]]++;                                                   \
                }                                                                                  \
                axpy_up_to_##T(k, row, some, begin, end, y[j],                                     \
                               group_ahead(g, k, BYTES(begin), BYTES(end), end - begin));          \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static TARGET void axpy_masked_##T(const void *base, size_t stride, const uint32_t *ids,       \
                                       const uint32_t *mask, uint32_t n_ids, uint32_t n_next,      \
                                       const float *a, float *const *y, uint32_t n_y,              \
                                       uint32_t begin, uint32_t end)                               \
    {                                                                                              \
        EACH_STRETCH(const float, a, n_y,                                                          \
                     axpy_many_##T(base, stride, ids + i, k, n_ids + n_next - i - k, a, y, n_y,    \
                                   begin, end),                                                    \
                     axpy_group_##T(&g, mask + i, at, y, n_y, begin, end));                        \
    }

#define MANY_F32(rows, nx, row, in, ...) \
    many_plain(load_f32, part_f32, rows, nx, row, in, __VA_ARGS__)
#define AXPYS_F32(...) axpys_plain(load_f32, part_f32, __VA_ARGS__)
#define MANY_F16(rows, nx, row, in, ...) \
    many_plain(load_f16, part_f16, rows, nx, row, in, __VA_ARGS__)
#define AXPYS_F16(...) axpys_plain(load_f16, part_f16, __VA_ARGS__)
#define MANY_BF16(rows, nx, row, in, ...) \
    many_plain(load_bf16, part_bf16, rows, nx, row, in, __VA_ARGS__)
#define AXPYS_BF16(...) axpys_plain(load_bf16, part_bf16, __VA_ARGS__)
#define MANY_Q8_0(...)  many_block(READ_Q8_0, __VA_ARGS__)
#define AXPYS_Q8_0(...) axpys_block(READ_Q8_0, __VA_ARGS__)
#define MANY_Q4_0(...)  many_block(READ_Q4_0, __VA_ARGS__)
#define AXPYS_Q4_0(...) axpys_block(READ_Q4_0, __VA_ARGS__)
#define MANY_Q4_1(...)  many_block(READ_Q4_1, __VA_ARGS__)
#define AXPYS_Q4_1(...) axpys_block(READ_Q4_1, __VA_ARGS__)
#define MANY_Q5_0(...)  many_block(READ_Q5_0, __VA_ARGS__)
#define AXPYS_Q5_0(...) axpys_block(READ_Q5_0, __VA_ARGS__)
#define MANY_Q5_1(...)  many_block(READ_Q5_1, __VA_ARGS__)
#define AXPYS_Q5_1(...) axpys_block(READ_Q5_1, __VA_ARGS__)
#define MANY_Q4_K(...)  many_block(READ_Q4_K, __VA_ARGS__)
#define AXPYS_Q4_K(...) axpys_block(READ_Q4_K, __VA_ARGS__)
#define MANY_Q5_K(...)  many_block(READ_Q5_K, __VA_ARGS__)
#define AXPYS_Q5_K(...) axpys_block(READ_Q5_K, __VA_ARGS__)
#define MANY_Q6_K(...)  many_block(READ_Q6_K, __VA_ARGS__)
#define AXPYS_Q6_K(...) axpys_block(READ_Q6_K, __VA_ARGS__)

KERNELS_MANY(f32, MANY_F32, PLAIN_ROWS, PLAIN_X, AXPYS_F32, BYTES_F32, 1)
KERNELS_MANY(f16, MANY_F16, PLAIN_ROWS, PLAIN_X, AXPYS_F16, BYTES_F16, 1)
KERNELS_MANY(bf16, MANY_BF16, PLAIN_ROWS, PLAIN_X, AXPYS_BF16, BYTES_F16, 1)
KERNELS_MANY(q8_0, MANY_Q8_0, MANY_ROWS, MANY_X, AXPYS_Q8_0, BYTES_Q8_0, 1)
KERNELS_MANY(q4_0, MANY_Q4_0, MANY_ROWS, MANY_X, AXPYS_Q4_0, BYTES_Q4_0, 1)
KERNELS_MANY(q4_1, MANY_Q4_1, MANY_ROWS, MANY_X, AXPYS_Q4_1, BYTES_Q4_1, SUMS)
KERNELS_MANY(q5_0, MANY_Q5_0, MANY_ROWS, MANY_X, AXPYS_Q5_0, BYTES_Q5_0, 1)
KERNELS_MANY(q5_1, MANY_Q5_1, MANY_ROWS, MANY_X, AXPYS_Q5_1, BYTES_Q5_1, SUMS)
KERNELS_MANY(q4_k, MANY_Q4_K, MANY_ROWS, MANY_X, AXPYS_Q4_K, BYTES_Q4_K, SUMS)
KERNELS_MANY(q5_k, MANY_Q5_K, MANY_ROWS, MANY_X, AXPYS_Q5_K, BYTES_Q5_K, SUMS)
KERNELS_MANY(q6_k, MANY_Q6_K, MANY_ROWS, MANY_X, AXPYS_Q6_K, BYTES_Q6_K, 1)

KERNELS_MASKED(f32, MANY_F32, PLAIN_ROWS, PLAIN_X, BYTES_F32, 1)
KERNELS_MASKED(f16, MANY_F16, PLAIN_ROWS, PLAIN_X, BYTES_F16, 1)
KERNELS_MASKED(bf16, MANY_BF16, PLAIN_ROWS, PLAIN_X, BYTES_F16, 1)
KERNELS_MASKED(q8_0, MANY_Q8_0, MANY_ROWS, MANY_X, BYTES_Q8_0, 1)
KERNELS_MASKED(q4_0, MANY_Q4_0, MANY_ROWS, MANY_X, BYTES_Q4_0, 1)
KERNELS_MASKED(q4_1, MANY_Q4_1, MANY_ROWS, MANY_X, BYTES_Q4_1, SUMS)
KERNELS_MASKED(q5_0, MANY_Q5_0, MANY_ROWS, MANY_X, BYTES_Q5_0, 1)
KERNELS_MASKED(q5_1, MANY_Q5_1, MANY_ROWS, MANY_X, BYTES_Q5_1, SUMS)
KERNELS_MASKED(q4_k, MANY_Q4_K, MANY_ROWS, MANY_X, BYTES_Q4_K, SUMS)
KERNELS_MASKED(q5_k, MANY_Q5_K, MANY_ROWS, MANY_X, BYTES_Q5_K, SUMS)
KERNELS_MASKED(q6_k, MANY_Q6_K, MANY_ROWS, MANY_X, BYTES_Q6_K, 1)

#endif
