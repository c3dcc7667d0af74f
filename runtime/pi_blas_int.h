/*
 * pi_blas_int.h - shared by the files of pi_blas.h alone.
 */
#ifndef PI_BLAS_INT_H
#define PI_BLAS_INT_H

#include "runtime/pi_blas.h"

#include <string.h>

#define PI_BLAS_ALIGN 16 /* floats of a cache line */

static inline size_t pi_blas_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline uint32_t pi_blas_pieces(uint32_t n, uint32_t size)
{
    return n / size + (n % size != 0);
}

static inline size_t pi_blas_padded(size_t floats)
{
    return (floats + PI_BLAS_ALIGN - 1) / PI_BLAS_ALIGN * PI_BLAS_ALIGN;
}

/* n floats, a multiple of 8, as the widths of panels of weights are. */
static inline void pi_blas_copy_eights(const float *from, uint32_t n, float *to)
{
    for (uint32_t i = 0; i < n; i += 8)
        memcpy(to + i, from + i, 8 * sizeof(*to));
}

/* The first n of a tile's row of results, which is width floats wide. */
static inline void pi_blas_copy_results(const float *from, uint32_t n, uint32_t width, float *to)
{
    if (n == width)
        pi_blas_copy_eights(from, n, to);
    else
        memcpy(to, from, n * sizeof(*to));
}

/* At least so many floats at s->mem, their content undefined. */
enum pi_code pi_blas_scratch_get(struct pi_blas_scratch *s, size_t floats,
                                 struct pi_err *err) PI_MUST_CHECK;

#endif
