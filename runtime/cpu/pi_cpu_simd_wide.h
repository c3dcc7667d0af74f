/*
 * pi_cpu_simd_wide.h - products of many vectors with rows of F16 and BF16 that all of them want, where there are 32 registers of 16 floats (W == 16); included by
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

/* Rows and vectors side by side: 24 sums of even blocks of W columns, then of odd ones. WIDE_TILES times WIDE_ROWS rows go through a piece together.
 * Measured on Sapphire Rapids (a virtual core, its other thread busy with others' work), F16, 8, 16 and 32 vectors, against three rows and four vectors with all
 * 24 sums in one pass: 2048 columns in the cache 1.26, 1.25, 1.23 times as fast, out of memory 1.16, 1.18, 1.23; 4096 columns 1.29, 1.30, 1.28 and 1.20, 1.20, 1.24; 11008
 * 1.26, 1.29, 1.17 and 1.28, 1.18, 1.23. Pieces of 256 columns 1.17, of 2048 columns 1.14 in the cache and nothing out of memory. Whole steps on 15 threads of such a processor,
 * 4096 columns: 16 vectors 1.09 to 1.18 times as fast, 32 1.05 to 1.10.
 *
 * Of the rows that come next, the first WIDE_HEAD bytes are asked for, the hardware's prefetcher goes on from there: the rows' streams then advance together, while all of
 * each row asked for keeps the core's line buffers busy. One quiet core, 2048 columns out of memory, eight vectors: 8.8 GB/s with all asked for, 8.2 with nothing,
 * 10.2 with the heads (11.4 in the cache: bound by instructions). Whole steps, two threads: four vectors 1.10 to 1.13, six 1.12 to 1.15, eight 1.14 to 1.24 times
 * as fast as the kernels of one pass, which are left with two and three; 15 threads on eight cores or so: eight 1.05 to 1.10, four 0.95. Twelve rows at a time, for two
 * threads of a core share what the prefetcher follows: 24 are as fast on a quiet core and 1.0 to 1.03 times as fast as before with eight vectors on 15 threads. */
#define WIDE_ROWS  3
#define WIDE_X     8
#define WIDE_FROM  4
#define WIDE_HEAD  512 /* bytes; WIDE_LEAST columns have as many */
#define WIDE_LINES (WIDE_HEAD / 64)
#define WIDE_TILES 4
#define WIDE_COLS  512
#define WIDE_SUMS  (WIDE_ROWS * WIDE_X)

struct wide {
    const void *row[WIDE_TILES * WIDE_ROWS];
    const char *next[WIDE_TILES * WIDE_ROWS]; /* rows that come next */
    uint32_t n_tiles, n_next;
    uint32_t pass, n_passes; /* over a piece of a tile */
    uint32_t asked;          /* lines of the next rows' heads */
    VF sums[WIDE_TILES][2][WIDE_SUMS];
};

/* Asks for the heads of rows that come next, as many as are due with one pass more. */
INLINE void wide_ask(struct wide *w)
{
    const uint32_t due = (uint32_t)((uint64_t)w->n_next * WIDE_LINES * ++w->pass / w->n_passes);

    for (; w->asked < due; w->asked++)
        __builtin_prefetch(w->next[w->asked / WIDE_LINES] + (size_t)(w->asked % WIDE_LINES) * 64, 0,
                           2);
}

/* Adds every second block of columns [at, to), from number k on, of a tile's rows with nx vectors. */
INLINE void wide_pass(load_fn load, int nx, struct wide *w, uint32_t tile, uint32_t k,
                      const struct input *in, uint32_t at, uint32_t to)
{
    VF sum[WIDE_ROWS][WIDE_X], *sums = w->sums[tile][k];
    const void *const *row = w->row + (size_t)tile * WIDE_ROWS;

    wide_ask(w);
#pragma GCC unroll 24
    for (int p = 0; p < WIDE_ROWS * nx; p++)
        sum[p / nx][p % nx] = at == 0 ? v_zero() : sums[p];
    for (size_t i = at + (size_t)k * W; i < to; i += 2 * W) {
        VF wv[WIDE_ROWS];

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
}

/* Vectors that go together from number j on. */
INLINE uint32_t wide_step(uint32_t j, uint32_t n_x)
{
    const uint32_t left = n_x - j;

    return left >= WIDE_X ? WIDE_X : left >= WIDE_X / 2 ? WIDE_X / 2 : left >= 2 ? 2 : 1;
}

/* Passes over pieces of a tile with all n_x vectors. */
INLINE uint32_t wide_passes(uint32_t n, uint32_t n_x)
{
    const uint32_t whole = n - n % (2 * W), each = wide_piece(whole, WIDE_COLS);
    uint32_t groups = 0;

    for (uint32_t j = 0; j < n_x; j += wide_step(j, n_x))
        groups++;
    return 2 * groups * ((whole + each - 1) / each);
}

/* Rows from the first on, by WIDE_ROWS, with all n_x vectors; how many they are. */
INLINE uint32_t wide_all(load_fn load, part_fn part, const void *base, size_t stride,
                         const uint32_t *ids, uint32_t n_ids, uint32_t n_next,
                         const struct input *x, uint32_t n_x, uint32_t n, float *out, size_t ldo)
{
    struct wide w;
    uint32_t i = 0, passes;

    if (W != 16 || n_x < WIDE_FROM || n < WIDE_LEAST)
        return 0;
    passes = wide_passes(n, n_x);
    for (uint32_t k; n_ids - i >= WIDE_ROWS; i += k, out += k * ldo) {
        w.n_tiles = least((n_ids - i) / WIDE_ROWS, WIDE_TILES);
        k = w.n_tiles * WIDE_ROWS;
        w.n_next = least(n_ids + n_next - i - k, k);
        w.pass = w.asked = 0;
        w.n_passes = passes * w.n_tiles;
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
            else if (nx == 2)
                wide_tiles(load, part, 2, &w, x + j, n, out + j, ldo);
            else
                wide_tiles(load, part, 1, &w, x + j, n, out + j, ldo);
        }
    }
    return i;
}

/* The types that have this kernel; of others it makes no rows. */
#define WIDE_f16(...)  wide_all(load_f16, part_f16, __VA_ARGS__)
#define WIDE_bf16(...) wide_all(load_bf16, part_bf16, __VA_ARGS__)
#define WIDE_f32(...)  0
#define WIDE_q8_0(...) 0
#define WIDE_q4_0(...) 0
#define WIDE_q4_1(...) 0
#define WIDE_q5_0(...) 0
#define WIDE_q5_1(...) 0
#define WIDE_q4_k(...) 0
#define WIDE_q5_k(...) 0
#define WIDE_q6_k(...) 0

#endif
