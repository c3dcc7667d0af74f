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

/* axpy_plain() into several y: a (rows, lda), of which n_y columns. A few at a time: y of equal columns often lie at the same place of a page, in the same few
 * lines of the cache. */
INLINE void axpys_plain(load_fn load, part_fn part, int rows, const void *const *row,
                        const float *a, size_t lda, float *const *y, uint32_t n_y, uint32_t begin,
                        uint32_t end, struct ahead ahead)
{
    uint32_t i = begin;

    for (; i < end && end - i >= 2 * W; i += 2 * W) {
        VF w[ROWS][2];

        if ((i - begin) % AHEAD == 0)
            look_ahead(&ahead);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            w[r][0] = load(row[r], i);
            w[r][1] = load(row[r], i + W);
        }
        for (uint32_t j = 0; j < n_y; j++) {
            VF y0 = v_load(y[j] + i), y1 = v_load(y[j] + i + W);

#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                VF av = v_set(a[(size_t)r * lda + j]);

                y0 = v_fma(av, w[r][0], y0);
                y1 = v_fma(av, w[r][1], y1);
            }
            v_store(y[j] + i, y0);
            v_store(y[j] + i + W, y1);
        }
    }
    for (; i < end; i += W) {
        uint32_t n = end - i < W ? end - i : W;

        for (uint32_t j = 0; j < n_y; j++) {
            VF y0 = v_load_part(y[j] + i, n);

#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                y0 = v_fma(v_set(a[(size_t)r * lda + j]), part(row[r], i, n), y0);
            v_store_part(y[j] + i, n, y0);
        }
    }
}

/* axpy_block() into several y. */
INLINE void axpys_block(struct reader rd, int rows, const void *const *row, const float *a,
                        size_t lda, float *const *y, uint32_t n_y, uint32_t begin, uint32_t end,
                        struct ahead ahead)
{
    const uint32_t last = end / PI_BLOCK;
    struct group g[MANY_ROWS];

    for (uint32_t b = begin / PI_BLOCK, next; b < last; b = next) {
        uint32_t first = rd.super ? b / GROUP * GROUP : b;

        next = least(first + GROUP, last);
        if (!rd.in_row)
            rd.read(rows, row, first, rd.super ? GROUP : next - first, g);
        for (; b < next; b++) {
            VF q[MANY_ROWS][NV];
            uint32_t i = b - first;

            if ((b - begin / PI_BLOCK) % (AHEAD / PI_BLOCK) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
                widen_block(rd, bytes_of(rd, row[r], &g[r], first, i), q[r]);
                if (rd.offset != 0) {
#pragma GCC unroll 4
                    for (int k = 0; k < NV; k++)
                        q[r][k] =
                            with_offset(rd, v_set(g[r].scale[i]), q[r][k], v_set(g[r].offset[i]));
                }
            }
            for (uint32_t j = 0; j < n_y; j++) {
                float *at = y[j] + (size_t)b * PI_BLOCK;
                VF yv[NV];

#pragma GCC unroll 4
                for (int k = 0; k < NV; k++)
                    yv[k] = v_load(at + k * W);
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++) {
                    VF av = v_set(a[(size_t)r * lda + j]);

#pragma GCC unroll 4
                    for (int k = 0; k < NV; k++) {
                        VF s = scale_of(rd, row[r], &g[r], first, i, 2 * k / NV);

                        yv[k] = v_fma(rd.offset != 0 ? av : v_mul(av, s), q[r][k], yv[k]);
                    }
                }
#pragma GCC unroll 4
                for (int k = 0; k < NV; k++)
                    v_store(at + k * W, yv[k]);
            }
        }
    }
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

/* All y, MANY_X at a time. */
#define AXPYS_ALL(rows, AXPYS, BYTES)                                                    \
    do {                                                                                 \
        const struct share each = share_of(BYTES(end) - BYTES(begin), end - begin, n_y); \
        NEXT_ROWS(rows);                                                                 \
        for (uint32_t r = 0; r < n_next_rows; r++)                                       \
            next[r] += BYTES(begin);                                                     \
        for (uint32_t j = 0; j < n_y; j += MANY_X) {                                     \
            uint32_t k = n_y - j < MANY_X ? n_y - j : MANY_X;                            \
            AXPYS(rows, row, a + (size_t)i * n_y + j, n_y, y + j, k, begin, end,         \
                  ahead_of(next, n_next_rows, each, j, k));                              \
        }                                                                                \
    } while (0)

/* MANY(rows, nx, row, in, n, out, ldo, ahead) and AXPYS(rows, row, a, lda, y, n_y, begin, end, ahead) with the readers of type T; X: vectors side by side; R:
 * rows added side by side; N_SUMS as in KERNELS. */
#define KERNELS_MANY(T, MANY, M, X, AXPYS, R, BYTES, N_SUMS)                                      \
    static TARGET void dot_some_##T(const void *base, size_t stride, const uint32_t *ids,         \
                                    uint32_t n_ids, uint32_t n_next, const struct input *x,       \
                                    uint32_t n_x, uint32_t n, float *out, size_t ldo)             \
    {                                                                                             \
        const struct share each = share_of(BYTES(n), n, n_x);                                     \
        uint32_t i = 0;                                                                           \
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
        uint32_t i = 0;                                                                           \
        for (; n_ids - i >= (R); i += (R)) {                                                      \
            const void *row[R];                                                                   \
            for (int r = 0; r < (R); r++)                                                         \
                row[r] = row_at(base, stride, ids[i + (uint32_t)r]);                              \
            for (uint32_t r = i + (R); r < n_ids + n_next && r < i + 2 * (R); r++)                \
                prefetch_row(row_at(base, stride, ids[r]), BYTES(begin), BYTES(end));             \
            for (uint32_t j = 0; j < n_y; j += MANY_X)                                            \
                AXPYS(R, row, a + (size_t)i * n_y + j, n_y, y + j,                                \
                      n_y - j < MANY_X ? n_y - j : MANY_X, begin, end, (struct ahead){.n = 0});   \
        }                                                                                         \
        for (; i < n_ids; i++) {                                                                  \
            const void *row[1] = {row_at(base, stride, ids[i])};                                  \
            AXPYS_ALL(1, AXPYS, BYTES);                                                           \
        }                                                                                         \
    }

/* The numbers of a group's rows. */
static const uint32_t all_rows[GROUP_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

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

KERNELS_MANY(f32, MANY_F32, PLAIN_ROWS, PLAIN_X, AXPYS_F32, ROWS, BYTES_F32, 1)
KERNELS_MANY(f16, MANY_F16, PLAIN_ROWS, PLAIN_X, AXPYS_F16, ROWS, BYTES_F16, 1)
KERNELS_MANY(bf16, MANY_BF16, PLAIN_ROWS, PLAIN_X, AXPYS_BF16, ROWS, BYTES_F16, 1)
KERNELS_MANY(q8_0, MANY_Q8_0, MANY_ROWS, MANY_X, AXPYS_Q8_0, MANY_ROWS, BYTES_Q8_0, 1)
KERNELS_MANY(q4_0, MANY_Q4_0, MANY_ROWS, MANY_X, AXPYS_Q4_0, MANY_ROWS, BYTES_Q4_0, 1)
KERNELS_MANY(q4_1, MANY_Q4_1, MANY_ROWS, MANY_X, AXPYS_Q4_1, MANY_ROWS, BYTES_Q4_1, SUMS)
KERNELS_MANY(q5_0, MANY_Q5_0, MANY_ROWS, MANY_X, AXPYS_Q5_0, MANY_ROWS, BYTES_Q5_0, 1)
KERNELS_MANY(q5_1, MANY_Q5_1, MANY_ROWS, MANY_X, AXPYS_Q5_1, MANY_ROWS, BYTES_Q5_1, SUMS)
KERNELS_MANY(q4_k, MANY_Q4_K, MANY_ROWS, MANY_X, AXPYS_Q4_K, MANY_ROWS, BYTES_Q4_K, SUMS)
KERNELS_MANY(q5_k, MANY_Q5_K, MANY_ROWS, MANY_X, AXPYS_Q5_K, MANY_ROWS, BYTES_Q5_K, SUMS)
KERNELS_MANY(q6_k, MANY_Q6_K, MANY_ROWS, MANY_X, AXPYS_Q6_K, MANY_ROWS, BYTES_Q6_K, 1)

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
