/*
 * pi_cpu_simd_plain.h - the vector kernels for rows that are not quantised, and how they walk over such rows; included by pi_cpu_simd.h alone.
 */
#ifndef PI_CPU_SIMD_PLAIN_H
#define PI_CPU_SIMD_PLAIN_H

/* W elements of a plain row from element at; the first n of them, the others 0. */
typedef VF (*load_fn)(const void *row, size_t at);
typedef VF (*part_fn)(const void *row, size_t at, uint32_t n);

/* Adds elements [at, to) of some rows, a multiple of 2 W of them, to the rows' sums. */
INLINE void dot_piece(load_fn load, int rows, const void *const *row, const float *x, size_t at,
                      size_t to, VF (*sum)[2])
{
    for (; at < to; at += 2 * W) {
        VF x0 = v_load(x + at), x1 = v_load(x + at + W);

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            sum[r][0] = v_fma(load(row[r], at), x0, sum[r][0]);
            sum[r][1] = v_fma(load(row[r], at + W), x1, sum[r][1]);
        }
    }
}

/* Adds elements [i, n), fewer than 2 W, and brings the sums together. */
INLINE void dot_rest(load_fn load, part_fn part, int rows, const void *const *row, const float *x,
                     uint32_t i, uint32_t n, VF (*sum)[2], float *out)
{
    if (n - i >= W) {
        VF x0 = v_load(x + i);

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sum[r][0] = v_fma(load(row[r], i), x0, sum[r][0]);
        i += W;
    }
    if (i < n) {
        VF x1 = v_load_part(x + i, n - i);

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sum[r][1] = v_fma(part(row[r], i, n - i), x1, sum[r][1]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        out[r] = v_sum(v_add(sum[r][0], sum[r][1]));
}

/* Up to ROWS rows side by side, or twice ROWS: those in two halves, which take turns after every AHEAD elements, for there are not registers for all their sums. */
INLINE void dot_plain(load_fn load, part_fn part, int rows, const void *const *row, const float *x,
                      uint32_t n, float *out, struct ahead ahead)
{
    const int half = rows > ROWS ? ROWS : rows;
    const size_t whole = n - n % (2 * W);
    VF sum[2 * ROWS][2];

#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = v_zero();
    for (size_t at = 0, to; at < whole; at = to) {
        to = whole - at < AHEAD ? whole : at + AHEAD;
        look_ahead(&ahead);
        dot_piece(load, half, row, x, at, to, sum);
        if (rows > half)
            dot_piece(load, half, row + half, x, at, to, sum + half);
    }
    dot_rest(load, part, half, row, x, (uint32_t)whole, n, sum, out);
    if (rows > half)
        dot_rest(load, part, half, row + half, x, (uint32_t)whole, n, sum + half, out + half);
}

INLINE void axpy_plain(load_fn load, part_fn part, int rows, const void *const *row, const float *a,
                       uint32_t begin, uint32_t end, float *y, struct ahead ahead)
{
    const size_t whole = end > begin ? end - (end - begin) % (2 * W) : begin;
    size_t at = begin;
    uint32_t i = (uint32_t)whole;
    VF av[2 * ROWS];

#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        av[r] = v_set(a[r]);
    while (at < whole) {
        const size_t to = whole - at < AHEAD ? whole : at + AHEAD;

        look_ahead(&ahead);
        for (; at < to; at += 2 * W) {
            VF y0 = v_load(y + at), y1 = v_load(y + at + W);

#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                y0 = v_fma(av[r], load(row[r], at), y0);
                y1 = v_fma(av[r], load(row[r], at + W), y1);
            }
            v_store(y + at, y0);
            v_store(y + at + W, y1);
        }
    }
    for (; i < end; i += W) {
        uint32_t n = end - i < W ? end - i : W;
        VF y0 = v_load_part(y + i, n);

#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            y0 = v_fma(av[r], part(row[r], i, n), y0);
        v_store_part(y + i, n, y0);
    }
}

INLINE void to_f32_plain(load_fn load, part_fn part, const void *row, float *out, uint32_t n)
{
    uint32_t i = 0;

    for (; n - i >= W; i += W)
        v_store(out + i, load(row, i));
    if (i < n)
        v_store_part(out + i, n - i, part(row, i, n - i));
}

/* ---- walking over rows ---- */

/* Rows of up to SHORT_BYTES that lie one behind the other, or nearly so, are read one by one, and SHORT_AHEAD bytes before they are computed: four of them side by
 * side are streams inside one page, in which the prefetchers lose themselves. Measured on two Zen 3 cores, F16, GB/s of a core, one by one against four: 256
 * columns 17.5 and 13.4, 512 17.0 and 9.6, 1024 17.5 and 11.5, 1536 17.4 and 14.0, 2048 16.2 and 15.7; one row in ten of 1024: 10.0 and 12.6. Only for
 * types that are bound by memory. */
#define SHORT_BYTES 3072
#define SHORT_AHEAD 2048

/* Are the rows short, and most of those between the first and the last? */
INLINE bool short_rows(const uint32_t *ids, uint32_t n_rows, size_t stride, size_t row_bytes)
{
    if (row_bytes > SHORT_BYTES || n_rows <= ROWS)
        return false;
    return ids != NULL ? ids[n_rows - 1] - ids[0] < n_rows / 2 * 3 : stride == row_bytes;
}

/* Rows that are not quantised, side by side: twice ROWS with AVX2, without asking for the next ones but where those lie scattered and are shorter than
 * LONG_BYTES; the hardware's prefetchers follow eight rows as well as four, and what is asked for beside them takes their place. Measured on two Zen 3 cores, both ways in
 * turn, shares of a plain read, rows of 4 KB that begin where a page does: all rows 0.98 with four rows and asking, 1.10 with eight; one in ten 0.86 and 0.93 (with
 * asking 0.96); sums 0.95 and 1.04, 0.87 and 0.95 (1.00). 8 KB: 1.11 and 1.18, 0.97 and 1.05 (with asking 0.94), sums 1.05 and 1.26, 0.94 and 1.11. AVX-512
 * and NEON were not measured this way and stay at four. */
#define PLAIN_SIDE (W == 8 ? 2 * ROWS : ROWS)
#define LONG_BYTES 6144

/* Rows i.. of a list (NULL: all), as many as are side by side, and those that are to be asked for meanwhile. */
struct eight {
    const void *row[2 * ROWS];
    const char *next[2 * ROWS];
    uint32_t n_next;
};

INLINE struct eight take_eight(const void *base, size_t stride, const uint32_t *ids, uint32_t i,
                               uint32_t n_rows, size_t row_bytes)
{
    struct eight e = {.n_next = least(n_rows - i - 2 * ROWS, 2 * ROWS)};

    for (uint32_t r = 0; r < 2 * ROWS; r++)
        e.row[r] = row_at(base, stride, ids != NULL ? ids[i + r] : i + r);
    if (ids == NULL || row_bytes >= LONG_BYTES || ids[i + 2 * ROWS - 1] - ids[i] < 3 * ROWS)
        e.n_next = 0;
    for (uint32_t r = 0; r < e.n_next; r++)
        e.next[r] = row_at(base, stride, ids[i + 2 * ROWS + r]);
    return e;
}

/* out[0..2 ROWS) */
typedef void (*plain_eight_fn)(const void *const *row, const void *x, uint32_t n, float *out,
                               struct ahead ahead);

/* Rows that are not quantised; one by one where they are short. */
INLINE void take_plain_rows(plain_eight_fn eight, some_rows_fn some, const void *base,
                            size_t stride, const uint32_t *ids, uint32_t n_rows, const void *x,
                            uint32_t n, size_t row_bytes, float *out)
{
    const uint32_t far = (uint32_t)(SHORT_AHEAD / (row_bytes + 1)) + 1;
    const bool one_by_one = short_rows(ids, n_rows, stride, row_bytes);
    uint32_t i = 0;

    for (; one_by_one && i < n_rows; i++) {
        const void *row[1] = {row_at(base, stride, ids != NULL ? ids[i] : i)};
        const char *next[1] = {NULL};
        uint32_t n_next = n_rows - i > far;

        if (n_next > 0)
            next[0] = row_at(base, stride, ids != NULL ? ids[i + far] : i + far);
        some(1, row, x, n, out + i, ahead_one(next, n_next, 0, row_bytes, n));
    }
    for (; PLAIN_SIDE > ROWS && n_rows - i >= 2 * ROWS; i += 2 * ROWS) {
        const struct eight e = take_eight(base, stride, ids, i, n_rows, row_bytes);

        eight(e.row, x, n, out + i, ahead_one(e.next, e.n_next, 0, row_bytes, n));
    }
    take_rows_by(ahead_one, some, ids != NULL ? base : row_at(base, stride, i), stride,
                 ids != NULL ? ids + i : NULL, n_rows - i, x, n, row_bytes, out + i);
}

#endif
