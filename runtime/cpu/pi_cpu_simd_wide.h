/*
 * pi_cpu_simd_wide.h - the kernels for several vectors with rows of F16 and BF16 where there are 32 registers of 16 floats (W == 16); included by
 * pi_cpu_simd_many.h alone.
 *
 * There, unpacking 16 values takes both of a core's units for vectors of 512 bits, a multiply-add one of them: what counts is how many vectors share what is
 * unpacked. And two multiply-adds a cycle want more than comes out of the L2 cache: columns are taken in pieces, in which the vectors stay in the L1 cache, and
 * sums are laid aside between pieces. Each pair of row and vector has the sums, in the order, that it has in the kernels for one vector: the same bits.
 */
#ifndef PI_CPU_SIMD_WIDE_H
#define PI_CPU_SIMD_WIDE_H

/* Keeps a value in a register that the compiler would rather load again for each use. */
#if defined(__x86_64__) && !defined(PI_CPU_EMU)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define IN_REGISTER(v) ((void)0)
#endif

/* Fewer columns are left to the kernels that make one pass over them. */
#define WIDE_LEAST 256

/* A pair's product: its sums, columns [i, n), fewer than 2 W, added. */
INLINE float wide_end(load_fn load, part_fn part, const void *row, const float *x, uint32_t i,
                      uint32_t n, VF even, VF odd)
{
    if (n - i >= W) {
        even = v_fma(load(row, i), v_load(x + i), even);
        i += W;
    }
    if (i < n)
        odd = v_fma(part(row, i, n - i), v_load_part(x + i, n - i), odd);
    return v_sum(v_add(even, odd));
}

/* Columns of equal pieces, at most so many, of a whole. */
INLINE uint32_t wide_piece(uint32_t whole, uint32_t most)
{
    const uint32_t pieces = (whole + most - 1) / most;

    return (whole / pieces + 2 * W - 1) / (2 * W) * (2 * W);
}

/* ---- products of rows that all vectors want ---- */

/* Rows and vectors side by side: 24 sums of even blocks of W columns, then of odd ones. WIDE_TILES times WIDE_ROWS rows go through a piece together.
 * Measured on Sapphire Rapids (a virtual core, its other thread busy with others' work), F16, 8, 16 and 32 vectors, against three rows and four vectors with all
 * 24 sums in one pass: 2048 columns in the cache 1.26, 1.25, 1.23 times as fast, out of memory 1.16, 1.18, 1.23; 4096 columns 1.29, 1.30, 1.28 and 1.20, 1.20, 1.24; 11008
 * 1.26, 1.29, 1.17 and 1.28, 1.18, 1.23. Pieces of 256 columns 1.17, of 2048 columns 1.14 in the cache and nothing out of memory. */
#define WIDE_ROWS  3
#define WIDE_X     8
#define WIDE_TILES 8
#define WIDE_COLS  512
#define WIDE_SUMS  (WIDE_ROWS * WIDE_X)

struct wide {
    const void *row[WIDE_TILES * WIDE_ROWS];
    const char *next[WIDE_TILES * WIDE_ROWS]; /* rows that come next */
    uint32_t n_tiles, n_next;
    uint32_t pass, n_passes; /* of a piece: of even or odd blocks with some vectors */
    VF sums[WIDE_TILES][2][WIDE_SUMS];
};

/* Rows that are asked for during a pass, a line of each for every 2 W columns: up to two that come next; a vector, which is in the cache, where there are none. */
INLINE void wide_ask(const struct wide *w, uint32_t tile, uint32_t k, const float *x, uint32_t at,
                     const char **ask)
{
    const uint32_t first = (w->pass + k) * WIDE_ROWS / w->n_passes,
                   end = (w->pass + k + 1) * WIDE_ROWS / w->n_passes;

    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t r = tile * WIDE_ROWS + first + i;

        ask[i] = first + i < end && r < w->n_next ? w->next[r] + BYTES_F16(at) : (const char *)x;
    }
}

/* Adds every second block of columns [at, to), from number k on, of a tile's rows with nx vectors. */
INLINE void wide_pass(load_fn load, int nx, struct wide *w, uint32_t tile, uint32_t k,
                      const struct input *in, uint32_t at, uint32_t to)
{
    VF sum[WIDE_ROWS][WIDE_X], *sums = w->sums[tile][k];
    const void *const *row = w->row + (size_t)tile * WIDE_ROWS;
    const char *ask[2];

    wide_ask(w, tile, k, in[0].x, at, ask);
#pragma GCC unroll 24
    for (int p = 0; p < WIDE_ROWS * nx; p++)
        sum[p / nx][p % nx] = at == 0 ? v_zero() : sums[p];
    for (size_t i = at + (size_t)k * W; i < to; i += 2 * W) {
        VF wv[WIDE_ROWS];

        __builtin_prefetch(ask[0] + BYTES_F16(i - at), 0, 2);
        __builtin_prefetch(ask[1] + BYTES_F16(i - at), 0, 2);
#pragma GCC unroll 4
        for (int r = 0; r < WIDE_ROWS; r++) {
            wv[r] = load(row[r], i);
            IN_REGISTER(wv[r]);
        }
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) {
            VF xv = v_load(in[j].x + i);

            IN_REGISTER(xv);
#pragma GCC unroll 4
            for (int r = 0; r < WIDE_ROWS; r++)
                sum[r][j] = v_fma(wv[r], xv, sum[r][j]);
        }
    }
#pragma GCC unroll 24
    for (int p = 0; p < WIDE_ROWS * nx; p++)
        sums[p] = sum[p / nx][p % nx];
}

/* All tiles with nx vectors. */
INLINE void wide_tiles(load_fn load, part_fn part, int nx, struct wide *w, const struct input *x,
                       uint32_t n, float *out, size_t ldo)
{
    const uint32_t whole = n - n % (2 * W), each = wide_piece(whole, WIDE_COLS);

    for (uint32_t at = 0; at < whole; at += each) {
        const uint32_t to = least(at + each, whole);

        for (uint32_t t = 0; t < w->n_tiles; t++) {
            wide_pass(load, nx, w, t, 0, x, at, to);
            wide_pass(load, nx, w, t, 1, x, at, to);
        }
    }
    for (uint32_t t = 0; t < w->n_tiles; t++) {
        for (int p = 0; p < WIDE_ROWS * nx; p++) {
            const uint32_t r = t * WIDE_ROWS + (uint32_t)(p / nx);

            out[r * ldo + p % nx] = wide_end(load, part, w->row[r], x[p % nx].x, whole, n,
                                             w->sums[t][0][p], w->sums[t][1][p]);
        }
    }
    w->pass += 2;
}

/* Vectors that go together from number j on. */
INLINE uint32_t wide_step(uint32_t j, uint32_t n_x)
{
    return n_x - j >= WIDE_X ? WIDE_X : n_x - j >= WIDE_X / 2 ? WIDE_X / 2 : 1;
}

/* Rows from the first on, by WIDE_ROWS, with all n_x vectors; how many they are. */
INLINE uint32_t wide_all(load_fn load, part_fn part, const void *base, size_t stride,
                         const uint32_t *ids, uint32_t n_ids, uint32_t n_next,
                         const struct input *x, uint32_t n_x, uint32_t n, float *out, size_t ldo)
{
    struct wide w = {.n_passes = 0};
    uint32_t i = 0;

    if (W != 16 || n_x < WIDE_X || n < WIDE_LEAST)
        return 0;
    for (uint32_t j = 0; j < n_x; j += wide_step(j, n_x))
        w.n_passes += 2;
    for (uint32_t k; n_ids - i >= WIDE_ROWS; i += k, out += k * ldo) {
        w.n_tiles = least((n_ids - i) / WIDE_ROWS, WIDE_TILES);
        k = w.n_tiles * WIDE_ROWS;
        w.n_next = least(n_ids + n_next - i - k, k);
        w.pass = 0;
        for (uint32_t r = 0; r < k; r++)
            w.row[r] = row_at(base, stride, ids[i + r]);
        for (uint32_t r = 0; r < w.n_next; r++)
            w.next[r] = row_at(base, stride, ids[i + k + r]);
        for (uint32_t j = 0, nx; j < n_x; j += nx) {
            nx = wide_step(j, n_x);
            if (nx == WIDE_X)
                wide_tiles(load, part, WIDE_X, &w, x + j, n, out + j, ldo);
            else if (nx == WIDE_X / 2)
                wide_tiles(load, part, WIDE_X / 2, &w, x + j, n, out + j, ldo);
            else
                wide_tiles(load, part, 1, &w, x + j, n, out + j, ldo);
        }
    }
    return i;
}

/* ---- products of groups of rows that choose among the vectors ---- */

/* Row after row, unpacked in registers for up to CHOSEN_X of the vectors that it wants; pieces of CHOSEN_BYTES of up to CHOSEN_MOST vectors stay in the L1 cache.
 * Measured as above, rows that want 40 % of 8, 16, 32 vectors, against vector after vector: 2048 columns in the cache 1.36, 1.45, 1.48 times as fast,
 * out of memory 1.19, 1.45, 1.42; 4096 columns 1.29, 1.25, 1.37 and 1.20, 1.47, 1.46. Of 4 vectors 1.0, for rows that want one or two have too few sums
 * side by side: CHOSEN_PAIRS, for every two rows. */
#define CHOSEN_X     8
#define CHOSEN_MOST  16
#define CHOSEN_BYTES 32768
#define CHOSEN_PAIRS 5

/* The rows of a group, in the order of their products: how many vectors each wants, and which. */
struct chosen {
    uint32_t n_x[GROUP_ROWS];
    const float *x[GROUP_ROWS * CHOSEN_MOST];
};

/* Adds columns [at, to) of a row to the sums of nx vectors; meanwhile a line of another row is asked for, for every 2 W columns. */
INLINE void chosen_pass(load_fn load, int nx, const void *row, const char *ask,
                        const float *const *x, uint32_t at, uint32_t to, VF (*sums)[2])
{
    VF sum[CHOSEN_X][2];

#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) {
        sum[j][0] = at == 0 ? v_zero() : sums[j][0];
        sum[j][1] = at == 0 ? v_zero() : sums[j][1];
    }
    for (size_t i = at; i < to; i += 2 * W) {
        VF w0 = load(row, i), w1 = load(row, i + W);

        __builtin_prefetch(ask + BYTES_F16(i), 0, 2);
#pragma GCC unroll 8
        for (int j = 0; j < nx; j++) {
            sum[j][0] = v_fma(w0, v_load(x[j] + i), sum[j][0]);
            sum[j][1] = v_fma(w1, v_load(x[j] + i + W), sum[j][1]);
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) {
        sums[j][0] = sum[j][0];
        sums[j][1] = sum[j][1];
    }
}

#define CHOSEN_CASE(nx)                                   \
    case nx:                                              \
        chosen_pass(load, nx, row, ask, x, at, to, sums); \
        break

/* The same with any number of vectors, in equal parts. */
INLINE void chosen_row(load_fn load, uint32_t n_x, const void *row, const char *ask,
                       const float *const *x, uint32_t at, uint32_t to, VF (*sums)[2])
{
    for (uint32_t parts = (n_x + CHOSEN_X - 1) / CHOSEN_X, k; parts > 0; parts--) {
        k = (n_x + parts - 1) / parts;
        switch (k) {
            CHOSEN_CASE(1);
            CHOSEN_CASE(2);
            CHOSEN_CASE(3);
            CHOSEN_CASE(4);
            CHOSEN_CASE(5);
            CHOSEN_CASE(6);
            CHOSEN_CASE(7);
        default:
            chosen_pass(load, CHOSEN_X, row, ask, x, at, to, sums);
        }
        n_x -= k;
        x += k;
        sums += k;
    }
}

/* Products of a group with n_x vectors, at most CHOSEN_MOST, from number j on; to[r]: where row r's go. */
INLINE void chosen_products(load_fn load, part_fn part, const struct rows_group *g,
                            const uint32_t *mask, const struct input *in, uint32_t j, uint32_t n_x,
                            uint32_t n, float **to)
{
    const uint32_t whole = n - n % (2 * W),
                   each = wide_piece(whole, CHOSEN_BYTES / 4 / n_x / (2 * W) * (2 * W));
    VF sums[GROUP_ROWS * CHOSEN_MOST][2];
    struct chosen c;
    uint32_t p = 0;

    for (uint32_t r = 0; r < g->n; r++) {
        c.n_x[r] = 0;
        for (uint32_t k = 0; k < n_x; k++) {
            c.x[p] = in[j + k].x;
            c.n_x[r] += mask[r] >> (j + k) & 1;
            p += mask[r] >> (j + k) & 1;
        }
    }
    for (uint32_t at = 0; at < whole; at += each) {
        p = 0;
        for (uint32_t r = 0; r < g->n; p += c.n_x[r++])
            chosen_row(load, c.n_x[r], g->row[r],
                       j == 0 && r < g->n_next ? g->next[r] : (const char *)g->row[r], c.x + p, at,
                       least(at + each, whole), sums + p);
    }
    p = 0;
    for (uint32_t r = 0; r < g->n; r++) {
        for (uint32_t k = 0; k < c.n_x[r]; k++, p++)
            *to[r]++ = wide_end(load, part, g->row[r], c.x[p], whole, n, sums[p][0], sums[p][1]);
    }
}

/* A group's products, where enough vectors share its rows; whether they were made. */
INLINE bool chosen_group(load_fn load, part_fn part, const struct rows_group *g,
                         const uint32_t *mask, const struct input *x, uint32_t n_x, uint32_t n,
                         float **to)
{
    const uint32_t parts = (n_x + CHOSEN_MOST - 1) / CHOSEN_MOST, each = (n_x + parts - 1) / parts;

    if (W != 16 || n < WIDE_LEAST || 2 * g->pairs < CHOSEN_PAIRS * g->n)
        return false;
    for (uint32_t j = 0; j < n_x; j += each)
        chosen_products(load, part, g, mask, x, j, least(each, n_x - j), n, to);
    return true;
}

/* ---- sums of groups of rows that choose among the vectors ---- */

/* Rows are unpacked ADDED_COLS columns at a time, into the L1 cache, where each vector takes those that it wants. ADDED_PAIRS: pairs of row and vector for each row from
 * which it pays: measured as above, rows that want 40 % of 8, 16, 32 vectors: in the cache 1.0, 1.19, 1.37 times as fast, out of memory 1.07, 1.36, 1.49. */
#define ADDED_COLS  128
#define ADDED_LD    (ADDED_COLS + W) /* rows begin in different sets of the cache */
#define ADDED_PAIRS 4
#define ADDED_Y     32

/* Which of a group's rows each vector wants, and by what they are multiplied. */
struct added {
    uint32_t n, row[GROUP_ROWS + 1];
    float by[GROUP_ROWS];
};

/* Columns [at, at + n) of all rows; n: any number. */
INLINE void added_unpack(load_fn load, part_fn part, const struct rows_group *g, size_t at,
                         uint32_t n, float (*piece)[ADDED_LD])
{
    for (uint32_t r = 0; r < g->n; r++) {
        uint32_t i = 0;

        for (; n - i >= W; i += W)
            v_store(&piece[r][i], load(g->row[r], at + i));
        if (i < n)
            v_store(&piece[r][i], part(g->row[r], at + i, n - i));
    }
}

/* Asks for bytes [from, to) of the share of vector j of n_y in the rows that come next. */
INLINE void added_ask(const struct rows_group *g, uint32_t j, uint32_t n_y, size_t from, size_t to)
{
    for (uint32_t r = g->n_next * j / n_y; r < g->n_next * (j + 1) / n_y; r++) {
        for (size_t b = from; b < to; b += 64)
            __builtin_prefetch(g->next[r] + b, 0, 2);
    }
}

/* y[at..at + nv W) += rows of a piece. */
INLINE void added_blocks(int nv, const struct added *a, float (*piece)[ADDED_LD], uint32_t at,
                         float *y)
{
    VF sum[ADDED_COLS / W];

#pragma GCC unroll 8
    for (int k = 0; k < nv; k++)
        sum[k] = v_load(y + at + (size_t)k * W);
    for (uint32_t i = 0; i < a->n; i++) {
        const float *row = piece[a->row[i]] + at;
        const VF by = v_set(a->by[i]);

#pragma GCC unroll 8
        for (int k = 0; k < nv; k++)
            sum[k] = v_fma(by, v_load(row + (size_t)k * W), sum[k]);
    }
#pragma GCC unroll 8
    for (int k = 0; k < nv; k++)
        v_store(y + at + (size_t)k * W, sum[k]);
}

/* y[0..n) += one vector's rows of a piece of n columns. */
INLINE void added_piece(const struct added *a, float (*piece)[ADDED_LD], uint32_t n, float *y)
{
    uint32_t at = 0;

    for (; n - at >= ADDED_COLS; at += ADDED_COLS)
        added_blocks(ADDED_COLS / W, a, piece, at, y);
    for (; n - at >= 2 * W; at += 2 * W)
        added_blocks(2, a, piece, at, y);
    for (; at < n; at += W) {
        const uint32_t k = least(n - at, W);
        VF sum = v_load_part(y + at, k);

        for (uint32_t i = 0; i < a->n; i++)
            sum = v_fma(v_set(a->by[i]), v_load(piece[a->row[i]] + at), sum);
        v_store_part(y + at, k, sum);
    }
}

/* A group's sums, where enough vectors share its rows; whether they were made. a[r]: row r's factors. */
INLINE bool added_group(load_fn load, part_fn part, const struct rows_group *g,
                        const uint32_t *mask, const float **a, float *const *y, uint32_t n_y,
                        uint32_t begin, uint32_t end)
{
    alignas(64) float piece[GROUP_ROWS][ADDED_LD];
    struct added of[ADDED_Y];

    if (W != 16 || n_y > ADDED_Y || g->pairs < ADDED_PAIRS * g->n)
        return false;
    for (uint32_t j = 0; j < n_y; j++) {
        of[j].n = list_rows(g->n, all_rows, mask, j, of[j].row);
        for (uint32_t i = 0; i < of[j].n; i++)
            of[j].by[i] = *a[of[j].row[i]]++;
    }
    for (uint32_t at = begin, k; at < end; at += k) {
        k = least(end - at, ADDED_COLS);
        added_unpack(load, part, g, at, k, piece);
        for (uint32_t j = 0; j < n_y; j++) {
            added_ask(g, j, n_y, BYTES_F16(at), BYTES_F16(at + k));
            added_piece(&of[j], piece, k, y[j] + at);
        }
    }
    return true;
}

/* CALL for the types that have these kernels; those that have none did nothing. */
#define WIDE_f16(CALL, ...)  CALL(load_f16, part_f16, __VA_ARGS__)
#define WIDE_bf16(CALL, ...) CALL(load_bf16, part_bf16, __VA_ARGS__)
#define WIDE_f32(CALL, ...)  0
#define WIDE_q8_0(CALL, ...) 0
#define WIDE_q4_0(CALL, ...) 0
#define WIDE_q4_1(CALL, ...) 0
#define WIDE_q5_0(CALL, ...) 0
#define WIDE_q5_1(CALL, ...) 0
#define WIDE_q4_k(CALL, ...) 0
#define WIDE_q5_k(CALL, ...) 0
#define WIDE_q6_k(CALL, ...) 0

#endif
