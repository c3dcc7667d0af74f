/*
 * pi_blas_int.h - shared by the files of pi_blas.h alone.
 */
#ifndef PI_BLAS_INT_H
#define PI_BLAS_INT_H

#include "runtime/pi_blas.h"

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

/* At least so many floats at s->mem, their content undefined. */
enum pi_code pi_blas_scratch_get(struct pi_blas_scratch *s, size_t floats,
                                 struct pi_err *err) PI_MUST_CHECK;

#endif
