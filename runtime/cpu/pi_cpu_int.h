/*
 * pi_cpu_int.h - shared by the CPU kernel files alone: block layouts of GGUF and what every table reuses.
 */
#ifndef PI_CPU_INT_H
#define PI_CPU_INT_H

#include "runtime/cpu/pi_cpu.h"

#include <string.h>

#define PI_BLOCK 32 /* elements of a block in every quantised type here */

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

extern const struct pi_cpu pi_cpu_scalar;
/* NULL where the compiler's target is not x86-64. */
const struct pi_cpu *pi_cpu_avx2(void);
const struct pi_cpu *pi_cpu_avx512(void);

void pi_store_f32(const float *x, void *row_out, uint32_t n);
void pi_store_bf16(const float *x, void *row_out, uint32_t n);
/* Quantisers: the same in every table, so that a file does not depend on who wrote it. */
void pi_quantise_q8_0(const float *x, void *row_out, uint32_t n);
void pi_quantise_q4_0(const float *x, void *row_out, uint32_t n);
void pi_quantise_q4_1(const float *x, void *row_out, uint32_t n);

#endif
