/* The reference of products with quantised activations, in plain C: products of a part are summed in integers, parts in F32 as pi_cpu.h says. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_cpu_int.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/* Adds to a sum what a row makes of block b of x. */
typedef float (*block_fn)(const void *row, uint32_t b, const struct pi_q8 *x, float sum);

float pi_q8_scale(uint32_t max_bits)
{
    float d;

    if (max_bits >= 0x7f800000)
        return NAN;
    d = pi_bits_float(pi_float_bits(pi_bits_float(max_bits) / 127.0f) & ~(uint32_t)0x7f);
    return d < 0x1p-126f ? 0.0f : d;
}

void pi_scalar_quantise_q8(const float *x, struct pi_q8 *out, uint32_t n)
{
    for (uint32_t b = 0; b < n / PI_BLOCK; b++, x += PI_BLOCK, out++) {
        uint32_t max = 0; /* magnitudes in the order of their bits: a NaN is the largest */
        int32_t sum = 0;

        for (int i = 0; i < PI_BLOCK; i++) {
            uint32_t a = pi_float_bits(x[i]) & 0x7fffffff;

            max = a > max ? a : max;
        }
        out->d = pi_q8_scale(max);
        for (int i = 0; i < PI_BLOCK; i++) {
            out->q[i] = (int8_t)(out->d > 0.0f ? (int)rintf(x[i] / out->d) : 0);
            sum += out->q[i];
        }
        out->s = out->d * (float)sum;
    }
}

INLINE int32_t dot_int(const int8_t *w, const int8_t *q, int n)
{
    int32_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += w[i] * q[i];
    return sum;
}

/* 16 bytes of halves to 32 integers, minus bias. */
INLINE void halves(const uint8_t *q, int bias, int8_t *out)
{
    for (int i = 0; i < PI_BLOCK / 2; i++) {
        out[i] = (int8_t)((q[i] & 15) - bias);
        out[i + PI_BLOCK / 2] = (int8_t)((q[i] >> 4) - bias);
    }
}

/* Adds the fifth bits. */
INLINE void fifths(const uint8_t *qh, int8_t *q)
{
    for (int i = 0; i < PI_BLOCK; i++)
        q[i] = (int8_t)(q[i] + ((qh[i / 8] >> i % 8 & 1) << 4));
}

INLINE float block_q8_0(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q8_0 *w = (const struct pi_block_q8_0 *)row + b;

    return fmaf(pi_widen_f16(w->d) * x[b].d, (float)dot_int(w->q, x[b].q, PI_BLOCK), sum);
}

INLINE float block_q4_0(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q4_0 *w = (const struct pi_block_q4_0 *)row + b;
    int8_t q[PI_BLOCK];

    halves(w->q, 8, q);
    return fmaf(pi_widen_f16(w->d) * x[b].d, (float)dot_int(q, x[b].q, PI_BLOCK), sum);
}

INLINE float block_q4_1(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q4_1 *w = (const struct pi_block_q4_1 *)row + b;
    int8_t q[PI_BLOCK];

    halves(w->q, 0, q);
    sum = fmaf(pi_widen_f16(w->d) * x[b].d, (float)dot_int(q, x[b].q, PI_BLOCK), sum);
    return fmaf(pi_widen_f16(w->m), x[b].s, sum);
}

INLINE float block_q5_0(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q5_0 *w = (const struct pi_block_q5_0 *)row + b;
    int8_t q[PI_BLOCK];

    halves(w->q, 16, q);
    fifths(w->qh, q);
    return fmaf(pi_widen_f16(w->d) * x[b].d, (float)dot_int(q, x[b].q, PI_BLOCK), sum);
}

INLINE float block_q5_1(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q5_1 *w = (const struct pi_block_q5_1 *)row + b;
    int8_t q[PI_BLOCK];

    halves(w->q, 0, q);
    fifths(w->qh, q);
    sum = fmaf(pi_widen_f16(w->d) * x[b].d, (float)dot_int(q, x[b].q, PI_BLOCK), sum);
    return fmaf(pi_widen_f16(w->m), x[b].s, sum);
}

/* Scale and minimum of part j of a Q4_K or Q5_K block. */
INLINE void scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}

/* Part j of a block: its numbers are the low or high halves of 32 bytes. */
INLINE void part_halves(const uint8_t *q, int j, int8_t *out)
{
    for (int i = 0; i < PI_BLOCK; i++)
        out[i] = (int8_t)(q[j / 2 * PI_BLOCK + i] >> 4 * (j % 2) & 15);
}

INLINE float block_q4_k(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q4_k *w = (const struct pi_block_q4_k *)row + b / 8;
    int scale, min, j = (int)(b % 8);
    int8_t q[PI_BLOCK];

    scale_min(w->scales, j, &scale, &min);
    part_halves(w->q, j, q);
    sum =
        fmaf(pi_widen_f16(w->d) * (float)scale * x[b].d, (float)dot_int(q, x[b].q, PI_BLOCK), sum);
    return fmaf(-(pi_widen_f16(w->dmin) * (float)min), x[b].s, sum);
}

INLINE float block_q5_k(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q5_k *w = (const struct pi_block_q5_k *)row + b / 8;
    int scale, min, j = (int)(b % 8);
    int8_t q[PI_BLOCK];

    scale_min(w->scales, j, &scale, &min);
    part_halves(w->q, j, q);
    for (int i = 0; i < PI_BLOCK; i++)
        q[i] = (int8_t)(q[i] + ((w->qh[i] >> j & 1) << 4));
    sum =
        fmaf(pi_widen_f16(w->d) * (float)scale * x[b].d, (float)dot_int(q, x[b].q, PI_BLOCK), sum);
    return fmaf(-(pi_widen_f16(w->dmin) * (float)min), x[b].s, sum);
}

INLINE float block_q6_k(const void *row, uint32_t b, const struct pi_q8 *x, float sum)
{
    const struct pi_block_q6_k *w = (const struct pi_block_q6_k *)row + b / 8;
    int half = (int)(b % 8 / 4), k = (int)(b % 4);
    const uint8_t *ql = w->ql + 64 * half + 32 * (k % 2), *qh = w->qh + 32 * half;
    const int8_t *scale = w->scale + 2 * (b % 8);
    int8_t q[PI_BLOCK];

    for (int i = 0; i < PI_BLOCK; i++)
        q[i] = (int8_t)((ql[i] >> 4 * (k / 2) & 15) + ((qh[i] >> 2 * k & 3) << 4) - 32);
    sum = fmaf(pi_widen_f16(w->d) * (float)scale[0] * x[b].d, (float)dot_int(q, x[b].q, 16), sum);
    return fmaf(pi_widen_f16(w->d) * (float)scale[1] * x[b].d,
                (float)dot_int(q + 16, x[b].q + 16, 16), sum);
}

INLINE float dot_row(block_fn block, const void *row, const struct pi_q8 *x, uint32_t n)
{
    float sum = 0.0f;

    for (uint32_t b = 0; b < n / PI_BLOCK; b++)
        sum = block(row, b, x, sum);
    return sum;
}

static const void *row_at(const void *base, size_t stride, uint32_t i)
{
    return (const char *)base + stride * i;
}

#define KERNELS(T)                                                                                \
    void pi_scalar_dot_rows_q8_##T(const void *rows, size_t stride, uint32_t n_rows,              \
                                   const struct pi_q8 *x, uint32_t n, float *out)                 \
    {                                                                                             \
        for (uint32_t i = 0; i < n_rows; i++)                                                     \
            out[i] = dot_row(block_##T, row_at(rows, stride, i), x, n);                           \
    }                                                                                             \
    void pi_scalar_dot_ids_q8_##T(const void *base, size_t stride, const uint32_t *ids,           \
                                  uint32_t n_ids, const struct pi_q8 *x, uint32_t n, float *out)  \
    {                                                                                             \
        for (uint32_t i = 0; i < n_ids; i++)                                                      \
            out[i] = dot_row(block_##T, row_at(base, stride, ids[i]), x, n);                      \
    }                                                                                             \
    void pi_scalar_dot_many_q8_##T(const void *base, size_t stride, const uint32_t *ids,          \
                                   uint32_t n_ids, uint32_t n_next, const struct pi_q8 *const *x, \
                                   uint32_t n_x, uint32_t n, float *out)                          \
    {                                                                                             \
        (void)n_next;                                                                             \
        for (size_t i = 0; i < (size_t)n_ids * n_x; i++)                                          \
            out[i] = dot_row(block_##T, row_at(base, stride, ids[i / n_x]), x[i % n_x], n);       \
    }                                                                                             \
    void pi_scalar_dot_masked_q8_##T(const void *base, size_t stride, const uint32_t *ids,        \
                                     const uint32_t *mask, uint32_t n_ids, uint32_t n_next,       \
                                     const struct pi_q8 *const *x, uint32_t n_x, uint32_t n,      \
                                     float *out)                                                  \
    {                                                                                             \
        (void)n_next;                                                                             \
        for (size_t i = 0; i < (size_t)n_ids * n_x; i++) {                                        \
            if ((mask[i / n_x] >> i % n_x & 1) != 0)                                              \
                *out++ = dot_row(block_##T, row_at(base, stride, ids[i / n_x]), x[i % n_x], n);   \
        }                                                                                         \
    }

KERNELS(q8_0)
KERNELS(q4_0)
KERNELS(q4_1)
KERNELS(q5_0)
KERNELS(q5_1)
KERNELS(q4_k)
KERNELS(q5_k)
KERNELS(q6_k)
