/*
 * pi_cpu_q8_x86_many.h - rows side by side times several vectors of quantised activations, eight in AVX2 and sixteen in AVX-512; included by pi_cpu_simd_q8.h alone,
 * behind pi_cpu_q8_x86_eight.h, over the g_* of the ISA's blocked products.
 *
 * Some blocks of the rows are unpacked once for all vectors and transposed: a lane of 32 bits holds four weights of one row. Times four elements of x in all
 * lanes, each lane sums what belongs to its row, so that nothing is summed across lanes for a vector: 33 instructions for 256 multiplications of Q4_0 in AVX2
 * in place of 60, and as fast as the blocked products of prompts once unpacked, which costs what two vectors do (AVX-512 with VNNI: five). So it is for three
 * vectors and more; of Q6_K, for which pi_cpu_q8_x86_eight.h has no products with two, for two. Sapphire Rapids, rows in the L2 cache, sixteen rows in vectors of
 * 512 bits against eight in vectors of 256: 1.1 to 1.3 times as fast with three and four vectors, 1.3 to 1.45 with eight, 1.5 to 1.65 with 32.
 */
#ifndef PI_CPU_Q8_X86_MANY_H
#define PI_CPU_Q8_X86_MANY_H

#include "runtime/cpu/pi_cpu_q8_x86_panel.h"

#define E_X         (GW / 2) /* vectors side by side, at most: AVX-512 has 32 registers, AVX2 16 */
#define PADDED_ROWS 5        /* as many are taken as E_ROWS, the last one several times */
#define PANEL_X     64       /* vectors of a pass over the rows, at most */
#define LESS_ROOM   4096     /* numbers that e_less() makes of them, at most */

/* How a type is unpacked, n blocks from number b on of eight rows into one of a panel's halves, and summed. from: vectors that earn it; bias: what the weights are
 * less than the numbers unpacked; wide: half a block's sums fit into 16 bits, a whole one's do not; offset: the panel's second are offsets; parts: they are scales. */
struct e_kind {
    void (*unpack)(const void *const *row, uint32_t b, uint32_t n, struct e_half w);
    uint32_t from;
    int bias;
    bool wide, offset, parts;
};

#if defined(DPBUSD)
#define E_BIAS(bias) ((bias) == Q8_SIGNED ? 128 : (bias))
#define GS           GI

OP VB e_add(VB a, VB b)
{
    return _mm256_add_epi32(a, b);
}

/* w: the weights; size, sign: of signed ones, where there are no products of those. */
OP GI e_step(int bias, GI sum, GI w, GI size, GS sign, GI x)
{
    (void)bias;
    (void)size;
    (void)sign;
    return g_step(sum, w, x);
}

OP GI e_size(GI w)
{
    return w;
}

OP GS e_sign(GI w)
{
    return w;
}
#else
#define E_BIAS(bias) (bias)

OP VB e_add(VB a, VB b)
{
    return _mm256_add_epi16(a, b);
}

/* Signed weights: sums of 32 bits. */
OP GI e_step(int bias, GI sum, GI w, GI size, GS sign, GI x)
{
    if (bias != Q8_SIGNED)
        return g_step(sum, w, x);
    return g_madd(sum, g_step(g_zero(), size, g_turn(x, sign)), g_ones());
}

OP GI e_size(GI w)
{
    return g_abs(w);
}

OP GS e_sign(GI w)
{
    return g_signs(w);
}
#endif

/* ---- what is subtracted ---- */

/* Minus the bias times x in a lane, of a block or of each half: as a sum of 32 bits, or two of 16, of as many elements as such a lane sums. out (blocks or halves,
 * ld): x[0..n_x), of which there is room for a multiple of four. */
INLINE void e_less(struct e_kind t, const struct pi_q8 *const *x, uint32_t n_x, uint32_t n_blocks,
                   int32_t *out, uint32_t ld)
{
    const VB zero = _mm256_setzero_si256(), bias = b_set(E_BIAS(t.bias));

    for (uint32_t j = 0; j < n_x; j += 4) {
        const struct pi_q8 *four[4];
        int32_t *to = out + j;

#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++)
            four[i] = x[least(j + i, n_x - 1)];
        for (uint32_t b = 0; b < n_blocks; b++, to += ld) {
            VB v[4], a[2];

#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                v[i] = e_next(zero, bias, b_load(four[i][b].q));
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++)
                a[i] = e_add(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                             _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
            v[0] = e_minus(
                e_add(_mm256_unpacklo_epi64(a[0], a[1]), _mm256_unpackhi_epi64(a[0], a[1])));
            v[1] = _mm256_permute2x128_si256(v[0], v[0], 1);
            if (!t.parts)
                v[0] = e_add(v[0], v[1]);
            _mm_storeu_si128((void *)to, _mm256_castsi256_si128(v[0]));
            if (t.parts)
                _mm_storeu_si128((void *)(to += ld), _mm256_castsi256_si128(v[1]));
        }
    }
}

/* Numbers of it for a block. */
OP uint32_t e_numbers(struct e_kind t)
{
    return E_BIAS(t.bias) <= 0 ? 0 : t.parts ? 2 : 1;
}

/* ---- multiplication ---- */

/* Keeps the compiler from gathering products of several steps before they are added, for which registers are too few. */
#if defined(PI_CPU_EMU) /* a loop of calls */
#define E_IN_ORDER(v) ((void)0)
#define E_UNROLLED
#else
#define E_IN_ORDER(v) __asm__ volatile("" : "+v"(v))
#define E_UNROLLED    _Pragma("GCC unroll 16")
#endif

/* Keeps it from adding b to the pointers in vectors, from which they come back through memory. */
#define E_APART(p) __asm__ volatile("" : "+r"(p))

/* What nx vectors bring: from block 0 of a panel on, and what is subtracted, (blocks or halves, ld). */
struct e_input {
    const struct pi_q8 *x[E_X];
    const int32_t *less;
    uint32_t ld;
};

/* Half h of nb blocks from number i on, or all of them: sums of 32 bits, (nb, nx). Of two blocks in turn where vectors are few, so that sums need not wait for each
 * other. */
INLINE void e_steps(struct e_kind t, int nb, int nx, int h, const struct e_panel *w, uint32_t i,
                    const struct e_input *in, GI *sum)
{
    const int n_steps = t.wide || t.parts ? 4 : 8, from = h * n_steps;

    E_UNROLLED
    for (int j = 0; j < nb * nx; j++) {
        const uint32_t at = e_numbers(t) * (i + (uint32_t)(j / nx)) + (t.parts ? (uint32_t)h : 0);

        sum[j] = g_zero();
        if (E_BIAS(t.bias) > 0) {
            sum[j] = g_spread(in->less + at * in->ld + j % nx);
            E_IN_ORDER(sum[j]);
        }
    }
    E_UNROLLED
    for (int k = from; k < from + n_steps; k++) {
        E_UNROLLED
        for (int c = 0; c < nb; c++) {
            const GI v = g_load(w->q[i + (uint32_t)c][k]), size = e_size(v);
            const GS sign = e_sign(v);

            E_UNROLLED
            for (int j = 0; j < nx; j++) {
                GI *s = &sum[c * nx + j];

                *s = e_step(E_BIAS(t.bias), *s, v, size, sign,
                            g_spread(in->x[j][i + (uint32_t)c].q + 4 * k));
                E_IN_ORDER(*s);
            }
        }
    }
    E_UNROLLED
    for (int j = 0; j < nb * nx; j++)
        sum[j] = E_BIAS(t.bias) == Q8_SIGNED ? sum[j] : g_sums(sum[j]);
}

INLINE void e_finish(int nx, const GI *sum, const __m256 *scale, const struct e_input *in,
                     uint32_t i, GF *out)
{
    const GF s = gf_load((const float *)scale);

    E_UNROLLED
    for (int j = 0; j < nx; j++)
        out[j] = gf_fma(gf_mul(s, gf_set(in->x[j][i].d)), g_floats(sum[j]), out[j]);
}

/* Blocks i.. of a panel, nb of them. */
INLINE void e_blocks(struct e_kind t, int nb, int nx, const struct e_panel *w, uint32_t i,
                     const struct e_input *in, GF *out)
{
    GI sum[E_X], second[E_X];

    e_steps(t, nb, nx, 0, w, i, in, sum);
    if (t.parts)
        e_finish(nx, sum, w->scale[i], in, i, out);
    if (t.wide || t.parts)
        e_steps(t, nb, nx, 1, w, i, in, second);
    if (t.wide) {
        E_UNROLLED
        for (int j = 0; j < nb * nx; j++)
            sum[j] = g_add(sum[j], second[j]);
    }
    if (t.parts) {
        e_finish(nx, second, w->second[i], in, i, out);
        return;
    }
    E_UNROLLED
    for (int c = 0; c < nb; c++, i++) {
        e_finish(nx, sum + c * nx, w->scale[i], in, i, out);
        if (t.offset) {
            const GF m = gf_load((const float *)w->second[i]);

            E_UNROLLED
            for (int j = 0; j < nx; j++)
                out[j] = gf_fma(m, gf_set(in->x[j][i].s), out[j]);
        }
    }
}

/* What a pass asks for of the next rows: a little of all of them with every few vectors that a panel is multiplied by, in 1/256 bytes. Where fewer come next, the
 * others are some in hand, which are in the cache: no loop over the rows, which cost 1.1 times the time of all (Zen 3, rows in the cache, eight vectors).
 * Not with far streams: pi_cpu_q8_x86_far.h. */
struct e_ahead {
    const char *row[E_ROWS];
    uint64_t at, step; /* of a vector's block */
};

/* n: blocks times vectors. */
OP void e_look(struct e_ahead *a, uint32_t n)
{
    const uint64_t to = (a->at + a->step * n) / 256;

    for (uint64_t b = (a->at / 256 + 63) & ~(uint64_t)63; b < to; b += 64) {
        E_UNROLLED
        for (uint32_t r = 0; r < E_ROWS; r++)
            __builtin_prefetch(a->row[r] + b, 0, 2);
    }
    a->at += a->step * n;
}

/* Adds to out what a panel's n blocks make with blocks b.. of nx vectors; the first block begins with 0. */
INLINE void e_multiply(struct e_kind t, int nx, const struct e_panel *w, uint32_t n,
                       const struct pi_q8 *const *x, uint32_t b, const int32_t *less, uint32_t ld,
                       struct e_ahead *ahead, float (*out)[E_ROWS])
{
    struct e_input in = {.less = less, .ld = ld};
    uint32_t i = 0;
    GF s[E_X];

#pragma GCC unroll 8
    for (int j = 0; j < nx; j++) {
        in.x[j] = x[j] + b;
        s[j] = b > 0 ? gf_load(out[j]) : gf_set(0.0f);
        E_APART(in.x[j]);
    }
    if (!Q8_FAR)
        e_look(ahead, n * (uint32_t)nx);
    for (; 2 * nx <= E_X && E_X > 4 && !t.parts && n - i >= 2; i += 2)
        e_blocks(t, 2, nx, w, i, &in, s);
    for (; i < n; i++)
        e_blocks(t, 1, nx, w, i, &in, s);
#pragma GCC unroll 8
    for (int j = 0; j < nx; j++)
        gf_store(out[j], s[j]);
}

/* ---- passes over the rows ---- */

typedef void (*e_multiply_fn)(uint32_t nx, const struct e_panel *w, uint32_t n,
                              const struct pi_q8 *const *x, uint32_t b, const int32_t *less,
                              uint32_t ld, struct e_ahead *ahead, float (*out)[E_ROWS]);

/* The vectors of a pass over the rows. less: what is subtracted, (numbers, ld). */
struct e_vectors {
    const struct pi_q8 *const *x;
    uint32_t n_x, n_blocks;
    const int32_t *less;
    uint32_t ld;
};

/* sum[j]: the rows times x[j]. */
INLINE void e_pass(struct e_kind t, e_multiply_fn multiply, const void *const *row,
                   struct e_vectors v, struct e_ahead *ahead, float (*sum)[E_ROWS])
{
    for (uint32_t b = 0, n; b < v.n_blocks; b += n) {
        const int32_t *less = v.less + (size_t)e_numbers(t) * b * v.ld;
        struct e_panel w;

        n = least(v.n_blocks - b, PANEL_BLOCKS);
        for (uint32_t h = 0; h < E_HALVES; h++)
            t.unpack(row + 8 * h, b, n, e_half_of(&w, h));
        for (uint32_t j = 0, k; j < v.n_x; j += k) {
            k = v.n_x - j >= E_X ? E_X : least(v.n_x - j, MANY_X);
            multiply(k, &w, n, v.x + j, b, less + j, v.ld, ahead, sum + j);
        }
    }
}

/* Rows i.. of a list of n_ids, behind which n_next more are known, at most E_ROWS; how many they are. The last one stands for those that lack. */
INLINE uint32_t e_take_rows(const void *base, size_t stride, const uint32_t *ids, uint32_t i,
                            uint32_t n_ids, uint32_t n_next, const void **row,
                            struct e_ahead *ahead)
{
    const uint32_t n = least(n_ids - i, E_ROWS), n_ahead = least(n_ids + n_next - i - n, E_ROWS);

    for (uint32_t r = 0; r < E_ROWS; r++)
        row[r] = row_at(base, stride, ids[i + least(r, n - 1)]);
    for (uint32_t r = 0; r < E_ROWS; r++)
        ahead->row[r] = r < n_ahead ? row_at(base, stride, ids[i + n + r]) : row[r];
    ahead->at = 0;
    if (n_ahead == 0)
        ahead->step = 0;
    return n;
}

/* What a dot_many has besides its rows. ldo: the products of a row are as far apart. */
struct e_work {
    e_multiply_fn multiply;
    const void *base;
    size_t stride;
    const uint32_t *ids;
    uint32_t n_ids, ldo;
    struct e_vectors v;
};

/* Products of n rows: numbers i, i + apart and so on of the list. */
INLINE void e_rows(struct e_kind t, const struct e_work *w, const void *const *row,
                   struct e_ahead *ahead, uint32_t i, uint32_t apart, uint32_t n, float *out)
{
    alignas(64) float sum[PANEL_X][E_ROWS];

    e_pass(t, w->multiply, row, w->v, ahead, sum);
    for (uint32_t v = 0; v < w->v.n_x; v++) {
        for (uint32_t r = 0; r < n; r++)
            out[(size_t)(i + r * apart) * w->ldo + v] = sum[v][r];
    }
}

/* Of rows in far streams, nothing of which is asked for; how many. */
INLINE uint32_t e_take_far(struct e_kind t, const struct e_work *w, float *out)
{
    const uint32_t each = w->n_ids / E_ROWS;

    for (uint32_t i = 0; i < each; i++) {
        struct e_ahead nothing = {.step = 0};
        const void *row[E_ROWS];

        for (uint32_t r = 0; r < E_ROWS; r++)
            row[r] = row_at(w->base, w->stride, w->ids[r * each + i]);
        e_rows(t, w, row, &nothing, i, each, E_ROWS, out);
    }
    return E_ROWS * each;
}

/* The products of a dot_many: of how many rows they are made, from the first on. */
INLINE uint32_t e_take_many(struct e_kind t, e_multiply_fn multiply, const void *base,
                            size_t stride, const uint32_t *ids, uint32_t n_ids, uint32_t n_next,
                            const struct pi_q8 *const *x, uint32_t n_x, size_t row_bytes,
                            uint32_t n, float *out)
{
    const uint32_t n_blocks = n / PI_BLOCK;
    const size_t each = (size_t)e_numbers(t) * n_blocks;
    uint32_t most = PANEL_X, i = 0;
    int32_t less[LESS_ROOM];

    if (each > 0 && LESS_ROOM / each < most)
        most = (uint32_t)(LESS_ROOM / each) & ~3u;
    if (n_x < t.from || most < t.from || n == 0)
        return 0;
    for (uint32_t j = 0, k; j < n_x; j += k) {
        k = least(n_x - j, most);
        const uint32_t ld = (k + 3) & ~3u;
        const struct e_work w = {
            multiply, base, stride, ids, n_ids, n_x, {x + j, k, n_blocks, less, ld}};

        if (each > 0)
            e_less(t, x + j, k, n_blocks, less, ld);
        i = Q8_FAR ? e_take_far(t, &w, out + j) : 0;
        for (uint32_t rows; n_ids - i >= PADDED_ROWS; i += rows) {
            struct e_ahead ahead = {.step = j == 0 ? (uint64_t)row_bytes * 256 / k / n_blocks : 0};
            const void *row[E_ROWS];

            rows = e_take_rows(base, stride, ids, i, n_ids, n_next, row, &ahead);
            e_rows(t, &w, row, &ahead, i, 1, rows, out + j);
        }
    }
    return i;
}

/* ---- kernels of a type ---- */

#define E_KIND(T, FROM, BIAS, WIDE, OFFSET, PARTS) \
    ((struct e_kind){.unpack = e_panel_##T,        \
                     .from = (FROM),               \
                     .bias = (BIAS),               \
                     .wide = (WIDE),               \
                     .offset = (OFFSET),           \
                     .parts = (PARTS)})
#if defined(DPBUSD)
#define E_WIDE false
#else
#define E_WIDE true
#endif

#define E_MANY(T, ...)                                                                            \
    static TARGET __attribute__((noinline)) void e_multiply_##T(                                  \
        uint32_t nx, const struct e_panel *w, uint32_t n, const struct pi_q8 *const *x,           \
        uint32_t b, const int32_t *less, uint32_t ld, struct e_ahead *ahead, float(*out)[E_ROWS]) \
    {                                                                                             \
        if (nx > MANY_X)                                                                          \
            e_multiply(E_KIND(T, __VA_ARGS__), E_X, w, n, x, b, less, ld, ahead, out);            \
        else                                                                                      \
            UP_TO_ROWS(nx, E_MULTIPLY, E_KIND(T, __VA_ARGS__), w, n, x, b, less, ld, ahead, out); \
    }                                                                                             \
    static TARGET __attribute__((noinline)) uint32_t e_take_many_##T(                             \
        const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids, uint32_t n_next,    \
        const struct pi_q8 *const *x, uint32_t n_x, size_t row_bytes, uint32_t n, float *out)     \
    {                                                                                             \
        return e_take_many(E_KIND(T, __VA_ARGS__), e_multiply_##T, base, stride, ids, n_ids,      \
                           n_next, x, n_x, row_bytes, n, out);                                    \
    }
#define E_MULTIPLY(nx, kind, ...) e_multiply(kind, nx, __VA_ARGS__)

E_MANY(q8_0, 3, Q8_SIGNED, false, false, false)
E_MANY(q4_0, 3, 8, false, false, false)
E_MANY(q4_1, 3, 0, false, true, false)
E_MANY(q5_0, 3, 16, false, false, false)
E_MANY(q5_1, 3, 0, E_WIDE, true, false)
E_MANY(q4_k, 3, 0, false, true, false)
E_MANY(q5_k, 3, 0, E_WIDE, true, false)
E_MANY(q6_k, 2, 32, false, false, true)

#endif
