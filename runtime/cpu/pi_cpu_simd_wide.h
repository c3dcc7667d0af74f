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
 * 4096 columns: 16 vectors 1.09 to 1.18 times as fast, 32 1.05 to 1.10, but 8 0.93 to 1.0, on two threads with 2048 columns 0.8 to 1.0: so from WIDE_FROM vectors on. */
#define WIDE_ROWS  3
#define WIDE_X     8
#define WIDE_FROM  16
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

    if (W != 16 || n_x < WIDE_FROM || n < WIDE_LEAST)
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
