/*
 * cpu_draw.h - what the tests of CPU kernels share: all types, lengths around those of vectors and blocks, random numbers, sums in F64.
 */
#ifndef PI_CPU_DRAW_H
#define PI_CPU_DRAW_H

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "tests/tap.h"

#include <stdbool.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const enum pi_type types[] = {PI_TYPE_F32,  PI_TYPE_F16,  PI_TYPE_BF16, PI_TYPE_Q8_0,
                                     PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0, PI_TYPE_Q5_1,
                                     PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};
#define PLAIN 3 /* that many types come first that are not quantised */
static const uint32_t lengths[] = {0,   1,   2,   7,   8,   9,    15,   16,  17, 24,
                                   31,  32,  33,  47,  63,  64,   65,   95,  96, 100,
                                   128, 256, 384, 385, 512, 1000, 1280, 4096};
static uint32_t seed = 1;
static struct pi_err e;

static inline uint32_t draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static inline float draw_float(void)
{
    return (float)draw() * 0x1p-23f - 1.0f;
}

static inline uint32_t bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline void *make(size_t n, size_t size)
{
    void *p = pi_calloc_array(n, size, &e);

    if (p == NULL)
        exit(1);
    return p;
}

static inline size_t row_size(enum pi_type type, uint32_t n)
{
    uint64_t bytes = 0;

    return pi_type_row_bytes(type, n, &bytes) ? bytes : SIZE_MAX;
}

static inline float *draw_vector(uint32_t n)
{
    float *x = make(n, sizeof(float));

    for (uint32_t i = 0; i < n; i++)
        x[i] = draw_float();
    return x;
}

/* Sums of at most 4096 products in 8 or more running sums: error well below 1e-6 of the sum of magnitudes. */
static inline int dot_wrong(const float *w, const float *x, uint32_t n, float got)
{
    double sum = 0.0, size = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)w[i] * (double)x[i];
        size += fabs((double)w[i] * (double)x[i]);
    }
    return !(fabs(sum - (double)got) <= 1e-6 * size);
}

#endif
