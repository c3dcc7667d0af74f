/*
 * pi_cpu_int.h - shared by the CPU kernel files alone: block layouts of GGUF and what every table reuses.
 */
#ifndef PI_CPU_INT_H
#define PI_CPU_INT_H

#include "runtime/cpu/pi_cpu.h"

#include <string.h>

#define PI_BLOCK 32 /* elements of a block; of a part that kernels take at once in the K types */

/* w = d * q */
struct pi_block_q8_0 {
    uint16_t d; /* F16 */
    int8_t q[PI_BLOCK];
};

/* w = d * (q - 8); element i in the low half of q[i], i + 16 in the high half of q[i] */
struct pi_block_q4_0 {
    uint16_t d; /* F16 */
    uint8_t q[PI_BLOCK / 2];
};

/* w = d * q + m; halves as in Q4_0 */
struct pi_block_q4_1 {
    uint16_t d, m; /* F16 */
    uint8_t q[PI_BLOCK / 2];
};

/* w = d * (q - 16): low four bits as in Q4_0, the fifth of element i is bit i of qh */
struct pi_block_q5_0 {
    uint16_t d; /* F16 */
    uint8_t qh[4], q[PI_BLOCK / 2];
};

/* w = d * q + m */
struct pi_block_q5_1 {
    uint16_t d, m; /* F16 */
    uint8_t qh[4], q[PI_BLOCK / 2];
};

#define PI_SUPER 256 /* elements of a block of the K types */

/* 8 parts of 32: w = d * scale * q - dmin * min. scale and min of 6 bits: those of part j < 4 are the low bits of scales[j] and scales[j + 4]; of part
 * j >= 4 the low four bits are the halves of scales[j + 4], the upper two the top bits of scales[j - 4] and scales[j]. q: parts 2i and 2i + 1 are the low
 * and the high halves of q[32i..32i + 32). */
struct pi_block_q4_k {
    uint16_t d, dmin; /* F16 */
    uint8_t scales[12], q[PI_SUPER / 2];
};

/* As Q4_K with a fifth bit: that of element i of part j is bit j of qh[i]. */
struct pi_block_q5_k {
    uint16_t d, dmin; /* F16 */
    uint8_t scales[12], qh[PI_SUPER / 8], q[PI_SUPER / 2];
};

/* 16 parts of 16: w = d * scale * (q - 32). Each half of 128 elements has 64 bytes of ql and 32 of qh: elements 0..31 and 32..63 are the low halves of
 * ql[0..31] and ql[32..63], 64..95 and 96..127 their high halves; the upper two bits of element i are bits 2 * (i / 32) of qh[i % 32]. */
struct pi_block_q6_k {
    uint8_t ql[PI_SUPER / 2], qh[PI_SUPER / 4];
    int8_t scale[PI_SUPER / 16];
    uint16_t d; /* F16 */
};

_Static_assert(sizeof(struct pi_block_q5_0) == 22, "GGUF layout");
_Static_assert(sizeof(struct pi_block_q5_1) == 24, "GGUF layout");
_Static_assert(sizeof(struct pi_block_q4_k) == 144, "GGUF layout");
_Static_assert(sizeof(struct pi_block_q5_k) == 176, "GGUF layout");
_Static_assert(sizeof(struct pi_block_q6_k) == 210, "GGUF layout");
_Static_assert(sizeof(struct pi_block_q8_0) == 34, "GGUF layout");
_Static_assert(sizeof(struct pi_block_q4_0) == 18, "GGUF layout");
_Static_assert(sizeof(struct pi_block_q4_1) == 20, "GGUF layout");

static inline uint32_t pi_float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float pi_bits_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint16_t pi_read_u16(const void *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return h;
}

static inline float pi_widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023;

    if (exp == 31) /* infinity, or NaN made quiet as the hardware does */
        return pi_bits_float(sign | 0x7f800000 | man << 13 | (man != 0 ? 0x400000 : 0));
    if (exp == 0) /* zero or subnormal: man units of 2^-24, exact */
        return pi_bits_float(sign | pi_float_bits((float)man * 0x1p-24f));
    return pi_bits_float(sign | (exp + 127 - 15) << 23 | man << 13);
}

static inline float pi_widen_bf16(uint16_t h)
{
    return pi_bits_float((uint32_t)h << 16);
}

extern const struct pi_cpu pi_cpu_scalar;
/* NULL where this build lacks it. vnni, dot: with the products of bytes that processors have beside the base. */
const struct pi_cpu *pi_cpu_avx2(bool vnni);
const struct pi_cpu *pi_cpu_avx512(bool vnni);
const struct pi_cpu *pi_cpu_neon(bool dot);

void pi_store_f32(const float *x, void *row_out, uint32_t n);
void pi_store_bf16(const float *x, void *row_out, uint32_t n);
/* Quantisers: the same in every table, so that a file does not depend on who wrote it. */
void pi_quantise_q8_0(const float *x, void *row_out, uint32_t n);
void pi_quantise_q4_0(const float *x, void *row_out, uint32_t n);
void pi_quantise_q4_1(const float *x, void *row_out, uint32_t n);
void pi_quantise_q5_0(const float *x, void *row_out, uint32_t n);
void pi_quantise_q5_1(const float *x, void *row_out, uint32_t n);
void pi_quantise_q4_k(const float *x, void *row_out, uint32_t n);
void pi_quantise_q5_k(const float *x, void *row_out, uint32_t n);
void pi_quantise_q6_k(const float *x, void *row_out, uint32_t n);

/* Activations (pi_cpu.h). pi_q8_scale: d of a block whose largest magnitude has these bits. */
float pi_q8_scale(uint32_t max_bits);

#define Q8_SIGNED \
    (-1) /* in place of what is subtracted from numbers to get weights: weights have a sign */

/* Compilers that know AVX-VNNI. */
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define PI_CPU_VNNI 1
#endif

/* Bytes in the order of GGUF's. */
#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define PI_CPU_NEON 1
#endif

/* Kernels for quantised activations in a type's entry of a table, by the prefix of their names. */
#define PI_Q8_ENTRIES(prefix, T)                                                  \
    .dot_rows_q8 = prefix##dot_rows_q8_##T, .dot_ids_q8 = prefix##dot_ids_q8_##T, \
    .dot_many_q8 = prefix##dot_many_q8_##T, .dot_masked_q8 = prefix##dot_masked_q8_##T
#define PI_Q8_NONE .dot_rows_q8 = NULL

/* Those of all types, each ISA's in a file of its own, as other files see them. */
#define PI_Q8_FUNCTIONS(prefix, T)                                                              \
    void prefix##dot_rows_q8_##T(const void *rows, size_t stride, uint32_t n_rows,              \
                                 const struct pi_q8 *x, uint32_t n, float *out);                \
    void prefix##dot_ids_q8_##T(const void *base, size_t stride, const uint32_t *ids,           \
                                uint32_t n_ids, const struct pi_q8 *x, uint32_t n, float *out); \
    void prefix##dot_many_q8_##T(const void *base, size_t stride, const uint32_t *ids,          \
                                 uint32_t n_ids, uint32_t n_next, const struct pi_q8 *const *x, \
                                 uint32_t n_x, uint32_t n, float *out);                         \
    void prefix##dot_masked_q8_##T(const void *base, size_t stride, const uint32_t *ids,        \
                                   const uint32_t *mask, uint32_t n_ids, uint32_t n_next,       \
                                   const struct pi_q8 *const *x, uint32_t n_x, uint32_t n,      \
                                   float *out);
#define PI_Q8_DECLARE(prefix)                                                \
    PI_Q8_FUNCTIONS(prefix, q8_0)                                            \
    PI_Q8_FUNCTIONS(prefix, q4_0)                                            \
    PI_Q8_FUNCTIONS(prefix, q4_1)                                            \
    PI_Q8_FUNCTIONS(prefix, q5_0)                                            \
    PI_Q8_FUNCTIONS(prefix, q5_1)                                            \
    PI_Q8_FUNCTIONS(prefix, q4_k)                                            \
    PI_Q8_FUNCTIONS(prefix, q5_k)                                            \
    PI_Q8_FUNCTIONS(prefix, q6_k)                                            \
    void prefix##quantise_q8(const float *x, struct pi_q8 *out, uint32_t n); \
    extern const struct pi_gemm_q8_set prefix##gemm_q8;
PI_Q8_DECLARE(pi_scalar_)
PI_Q8_DECLARE(pi_avx2_)
PI_Q8_DECLARE(pi_avxvnni_)
PI_Q8_DECLARE(pi_avx512_)
PI_Q8_DECLARE(pi_avx512vnni_)
PI_Q8_DECLARE(pi_neon_)
PI_Q8_DECLARE(pi_neondot_)

#endif
