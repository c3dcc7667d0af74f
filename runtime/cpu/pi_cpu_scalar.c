/*
 * The reference kernels, in plain C. A row is unpacked to F32 in chunks of 32 elements (a block, or a part of a K type's block);
 * a dot product keeps 8 running sums (element i goes to sum i % 8), which bounds the rounding error as the vector kernels do.
 */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_cpu_int.h"

#define LANES  8
#define INLINE static inline __attribute__((always_inline))

/* Elements [at, at + n) of a row, n <= 32; at is a multiple of 32. */
typedef void (*unpack_fn)(const void *row, uint32_t at, uint32_t n, float *out);

INLINE void unpack_f32(const void *row, uint32_t at, uint32_t n, float *out)
{
    memcpy(out, (const float *)row + at, n * sizeof(float));
}

INLINE void unpack_f16(const void *row, uint32_t at, uint32_t n, float *out)
{
    const uint16_t *h = (const uint16_t *)row + at;

    for (uint32_t i = 0; i < n; i++)
        out[i] = pi_widen_f16(h[i]);
}

INLINE void unpack_bf16(const void *row, uint32_t at, uint32_t n, float *out)
{
    const uint16_t *h = (const uint16_t *)row + at;

    for (uint32_t i = 0; i < n; i++)
        out[i] = pi_widen_bf16(h[i]);
}

INLINE void unpack_q8_0(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q8_0 *b = (const struct pi_block_q8_0 *)row + at / PI_BLOCK;
    float d = pi_widen_f16(b->d);

    for (uint32_t i = 0; i < n; i++)
        out[i] = d * b->q[i];
}

INLINE void unpack_q4_0(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q4_0 *b = (const struct pi_block_q4_0 *)row + at / PI_BLOCK;
    float d = pi_widen_f16(b->d);

    (void)n; /* whole blocks */
    for (uint32_t i = 0; i < PI_BLOCK / 2; i++) {
        out[i] = d * (float)((b->q[i] & 15) - 8);
        out[i + PI_BLOCK / 2] = d * (float)((b->q[i] >> 4) - 8);
    }
}

INLINE void unpack_q4_1(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q4_1 *b = (const struct pi_block_q4_1 *)row + at / PI_BLOCK;
    float d = pi_widen_f16(b->d), m = pi_widen_f16(b->m);

    (void)n; /* whole blocks */
    for (uint32_t i = 0; i < PI_BLOCK / 2; i++) {
        out[i] = d * (float)(b->q[i] & 15) + m;
        out[i + PI_BLOCK / 2] = d * (float)(b->q[i] >> 4) + m;
    }
}

/* Element i of a block of 5-bit values, whose half is in q. */
INLINE float five_bits(const uint8_t *qh, uint32_t half, uint32_t i)
{
    return (float)(half | (uint32_t)(qh[i / 8] >> i % 8 & 1) << 4);
}

INLINE void unpack_q5_0(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q5_0 *b = (const struct pi_block_q5_0 *)row + at / PI_BLOCK;
    float d = pi_widen_f16(b->d);

    (void)n; /* whole blocks */
    for (uint32_t i = 0; i < PI_BLOCK / 2; i++) {
        out[i] = d * (five_bits(b->qh, b->q[i] & 15, i) - 16.0f);
        out[i + PI_BLOCK / 2] = d * (five_bits(b->qh, b->q[i] >> 4, i + PI_BLOCK / 2) - 16.0f);
    }
}

INLINE void unpack_q5_1(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q5_1 *b = (const struct pi_block_q5_1 *)row + at / PI_BLOCK;
    float d = pi_widen_f16(b->d), m = pi_widen_f16(b->m);

    (void)n; /* whole blocks */
    for (uint32_t i = 0; i < PI_BLOCK / 2; i++) {
        out[i] = d * five_bits(b->qh, b->q[i] & 15, i) + m;
        out[i + PI_BLOCK / 2] = d * five_bits(b->qh, b->q[i] >> 4, i + PI_BLOCK / 2) + m;
    }
}

/* Scale and min of part j of a Q4_K or Q5_K block. */
INLINE void scale_min(const uint8_t *s, uint32_t j, uint32_t *scale_out, uint32_t *min_out)
{
    if (j < 4) {
        *scale_out = s[j] & 63;
        *min_out = s[j + 4] & 63;
    } else {
        *scale_out = (s[j + 4] & 15u) | (s[j - 4] >> 6 & 3u) << 4;
        *min_out = (uint32_t)s[j + 4] >> 4 | (s[j] >> 6 & 3u) << 4;
    }
}

INLINE void unpack_q4_k(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q4_k *b = (const struct pi_block_q4_k *)row + at / PI_SUPER;
    uint32_t j = at % PI_SUPER / PI_BLOCK, scale, min;
    float d, m;

    (void)n; /* whole parts */
    scale_min(b->scales, j, &scale, &min);
    d = pi_widen_f16(b->d) * (float)scale;
    m = pi_widen_f16(b->dmin) * (float)min;
    for (uint32_t i = 0; i < PI_BLOCK; i++)
        out[i] = d * (float)(b->q[j / 2 * PI_BLOCK + i] >> j % 2 * 4 & 15) - m;
}

INLINE void unpack_q5_k(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q5_k *b = (const struct pi_block_q5_k *)row + at / PI_SUPER;
    uint32_t j = at % PI_SUPER / PI_BLOCK, scale, min;
    float d, m;

    (void)n; /* whole parts */
    scale_min(b->scales, j, &scale, &min);
    d = pi_widen_f16(b->d) * (float)scale;
    m = pi_widen_f16(b->dmin) * (float)min;
    for (uint32_t i = 0; i < PI_BLOCK; i++) {
        int q = (b->q[j / 2 * PI_BLOCK + i] >> j % 2 * 4 & 15) | (b->qh[i] >> j & 1) << 4;

        out[i] = d * (float)q - m;
    }
}

INLINE void unpack_q6_k(const void *row, uint32_t at, uint32_t n, float *out)
{
    const struct pi_block_q6_k *b = (const struct pi_block_q6_k *)row + at / PI_SUPER;
    uint32_t j = at % PI_SUPER / PI_BLOCK, quarter = j % 4;
    const uint8_t *ql = b->ql + j / 4 * 64 + quarter % 2 * 32, *qh = b->qh + j / 4 * 32;
    float d = pi_widen_f16(b->d);

    (void)n; /* whole parts */
    for (uint32_t i = 0; i < PI_BLOCK; i++) {
        int q = (ql[i] >> quarter / 2 * 4 & 15) | (qh[i] >> 2 * quarter & 3) << 4;

        out[i] = d * (float)b->scale[2 * j + i / 16] * (float)(q - 32);
    }
}

INLINE float dot_row(unpack_fn unpack, const void *row, const float *x, uint32_t n)
{
    float sum[LANES] = {0}, w[PI_BLOCK];
    uint32_t at = 0;

    for (; n - at >= PI_BLOCK; at += PI_BLOCK) {
        unpack(row, at, PI_BLOCK, w);
        for (uint32_t i = 0; i < PI_BLOCK; i += LANES) {
            for (uint32_t l = 0; l < LANES; l++)
                sum[l] += w[i + l] * x[at + i + l];
        }
    }
    if (at < n)
        unpack(row, at, n - at, w);
    for (uint32_t i = 0; at + i < n; i++)
        sum[i % LANES] += w[i] * x[at + i];
    for (int l = 1; l < LANES; l++)
        sum[0] += sum[l];
    return sum[0];
}

INLINE void axpy_row(unpack_fn unpack, float a, const void *row, uint32_t begin, uint32_t end,
                     float *y)
{
    float w[PI_BLOCK];

    for (uint32_t at = begin; at < end; at += PI_BLOCK) {
        uint32_t len = end - at < PI_BLOCK ? end - at : PI_BLOCK;

        unpack(row, at, len, w);
        for (uint32_t i = 0; i < len; i++)
            y[at + i] += a * w[i];
    }
}

static const void *row_at(const void *base, size_t stride, uint32_t i)
{
    return (const char *)base + stride * i;
}

#define KERNELS(T)                                                                                 \
    static void dot_rows_##T(const void *rows, size_t stride, uint32_t n_rows, const float *x,     \
                             uint32_t n, float *out)                                               \
    {                                                                                              \
        for (uint32_t i = 0; i < n_rows; i++)                                                      \
            out[i] = dot_row(unpack_##T, row_at(rows, stride, i), x, n);                           \
    }                                                                                              \
    static void dot_ids_##T(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,  \
                            const float *x, uint32_t n, float *out)                                \
    {                                                                                              \
        for (uint32_t i = 0; i < n_ids; i++)                                                       \
            out[i] = dot_row(unpack_##T, row_at(base, stride, ids[i]), x, n);                      \
    }                                                                                              \
    static void axpy_ids_##T(const void *base, size_t stride, const uint32_t *ids, const float *a, \
                             uint32_t n_ids, uint32_t begin, uint32_t end, float *y)               \
    {                                                                                              \
        for (uint32_t i = 0; i < n_ids; i++)                                                       \
            axpy_row(unpack_##T, a[i], row_at(base, stride, ids[i]), begin, end, y);               \
    }                                                                                              \
    static void dot_many_##T(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids, \
                             uint32_t n_next, const float *const *x, uint32_t n_x, uint32_t n,     \
                             float *out)                                                           \
    {                                                                                              \
        (void)n_next;                                                                              \
        for (size_t i = 0; i < (size_t)n_ids * n_x; i++)                                           \
            out[i] = dot_row(unpack_##T, row_at(base, stride, ids[i / n_x]), x[i % n_x], n);       \
    }                                                                                              \
    static void axpy_many_##T(const void *base, size_t stride, const uint32_t *ids,                \
                              uint32_t n_ids, uint32_t n_next, const float *a, float *const *y,    \
                              uint32_t n_y, uint32_t begin, uint32_t end)                          \
    {                                                                                              \
        (void)n_next;                                                                              \
        for (size_t i = 0; i < (size_t)n_ids * n_y; i++)                                           \
            axpy_row(unpack_##T, a[i], row_at(base, stride, ids[i / n_y]), begin, end,             \
                     y[i % n_y]);                                                                  \
    }                                                                                              \
    static void dot_masked_##T(const void *base, size_t stride, const uint32_t *ids,               \
                               const uint32_t *mask, uint32_t n_ids, uint32_t n_next,              \
                               const float *const *x, uint32_t n_x, uint32_t n, float *out)        \
    {                                                                                              \
        (void)n_next;                                                                              \
        for (size_t i = 0; i < (size_t)n_ids * n_x; i++) {                                         \
            if ((mask[i / n_x] >> i % n_x & 1) != 0)                                               \
                *out++ = dot_row(unpack_##T, row_at(base, stride, ids[i / n_x]), x[i % n_x], n);   \
        }                                                                                          \
    }                                                                                              \
    static void axpy_masked_##T(const void *base, size_t stride, const uint32_t *ids,              \
                                const uint32_t *mask, uint32_t n_ids, uint32_t n_next,             \
                                const float *a, float *const *y, uint32_t n_y, uint32_t begin,     \
                                uint32_t end)                                                      \
    {                                                                                              \
        (void)n_next;                                                                              \
        for (size_t i = 0; i < (size_t)n_ids * n_y; i++) {                                         \
            if ((mask[i / n_y] >> i % n_y & 1) != 0)                                               \
                axpy_row(unpack_##T, *a++, row_at(base, stride, ids[i / n_y]), begin, end,         \
                         y[i % n_y]);                                                              \
        }                                                                                          \
    }                                                                                              \
    static void to_f32_##T(const void *row, float *out, uint32_t n)                                \
    {                                                                                              \
        for (uint32_t at = 0; at < n; at += PI_BLOCK)                                              \
            unpack_##T(row, at, n - at < PI_BLOCK ? n - at : PI_BLOCK, out + at);                  \
    }                                                                                              \
    static const struct pi_cpu_type type_##T = {.dot_rows = dot_rows_##T,                          \
                                                .dot_ids = dot_ids_##T,                            \
                                                .axpy_ids = axpy_ids_##T,                          \
                                                .dot_many = dot_many_##T,                          \
                                                .axpy_many = axpy_many_##T,                        \
                                                .dot_masked = dot_masked_##T,                      \
                                                .axpy_masked = axpy_masked_##T,                    \
                                                .to_f32 = to_f32_##T,                              \
                                                .from_f32 = from_f32_##T,                          \
                                                Q8_OF_##T};

void pi_store_f32(const float *x, void *row_out, uint32_t n)
{
    memcpy(row_out, x, n * sizeof(float));
}

static void from_f32_f16(const float *x, void *row_out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ((uint16_t *)row_out)[i] = pi_f32_to_f16(x[i]);
}

void pi_store_bf16(const float *x, void *row_out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ((uint16_t *)row_out)[i] = pi_f32_to_bf16(x[i]);
}

#define from_f32_f32  pi_store_f32
#define from_f32_bf16 pi_store_bf16
#define from_f32_q8_0 pi_quantise_q8_0
#define from_f32_q4_0 pi_quantise_q4_0
#define from_f32_q4_1 pi_quantise_q4_1
#define from_f32_q5_0 pi_quantise_q5_0
#define from_f32_q5_1 pi_quantise_q5_1
#define from_f32_q4_k pi_quantise_q4_k
#define from_f32_q5_k pi_quantise_q5_k
#define from_f32_q6_k pi_quantise_q6_k

#define Q8_OF_f32  PI_Q8_NONE
#define Q8_OF_f16  PI_Q8_NONE
#define Q8_OF_bf16 PI_Q8_NONE
#define Q8_OF_q8_0 PI_Q8_ENTRIES(pi_scalar_, q8_0)
#define Q8_OF_q4_0 PI_Q8_ENTRIES(pi_scalar_, q4_0)
#define Q8_OF_q4_1 PI_Q8_ENTRIES(pi_scalar_, q4_1)
#define Q8_OF_q5_0 PI_Q8_ENTRIES(pi_scalar_, q5_0)
#define Q8_OF_q5_1 PI_Q8_ENTRIES(pi_scalar_, q5_1)
#define Q8_OF_q4_k PI_Q8_ENTRIES(pi_scalar_, q4_k)
#define Q8_OF_q5_k PI_Q8_ENTRIES(pi_scalar_, q5_k)
#define Q8_OF_q6_k PI_Q8_ENTRIES(pi_scalar_, q6_k)

KERNELS(f32)
KERNELS(f16)
KERNELS(bf16)
KERNELS(q8_0)
KERNELS(q4_0)
KERNELS(q4_1)
KERNELS(q5_0)
KERNELS(q5_1)
KERNELS(q4_k)
KERNELS(q5_k)
KERNELS(q6_k)

static float dot_f32(const float *a, const float *b, uint32_t n)
{
    return dot_row(unpack_f32, a, b, n);
}

static void axpy_f32(float a, const float *x, float *y, uint32_t n)
{
    axpy_row(unpack_f32, a, x, 0, n, y);
}

static float sum_squares(const float *x, uint32_t n)
{
    return dot_f32(x, x, n);
}

const struct pi_cpu pi_cpu_scalar = {
    .isa = PI_ISA_SCALAR,
    .type = {[PI_TYPE_F32] = &type_f32,
             [PI_TYPE_F16] = &type_f16,
             [PI_TYPE_BF16] = &type_bf16,
             [PI_TYPE_Q8_0] = &type_q8_0,
             [PI_TYPE_Q4_0] = &type_q4_0,
             [PI_TYPE_Q4_1] = &type_q4_1,
             [PI_TYPE_Q5_0] = &type_q5_0,
             [PI_TYPE_Q5_1] = &type_q5_1,
             [PI_TYPE_Q4_K] = &type_q4_k,
             [PI_TYPE_Q5_K] = &type_q5_k,
             [PI_TYPE_Q6_K] = &type_q6_k},
    .dot_f32 = dot_f32,
    .axpy_f32 = axpy_f32,
    .sum_squares = sum_squares,
    .quantise_q8 = pi_scalar_quantise_q8,
};
