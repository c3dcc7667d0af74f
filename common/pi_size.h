/*
 * pi_size.h - the one helper for checked arithmetic on sizes.
 *
 * Every product, sum and padding that a file or a user has a hand in goes through
 * these. Each returns true and sets *out, or returns false (overflow) and leaves it.
 */
#ifndef PI_SIZE_H
#define PI_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#define PI_SIZE_CHECK __attribute__((warn_unused_result))

PI_SIZE_CHECK static inline bool pi_size_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;

    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

PI_SIZE_CHECK static inline bool pi_size_add(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;

    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Rounds a up to a multiple of align (a power of two). */
PI_SIZE_CHECK static inline bool pi_size_pad(uint64_t a, uint64_t align, uint64_t *out)
{
    uint64_t r;

    if (!pi_size_add(a, align - 1, &r))
        return false;
    *out = r & ~(align - 1);
    return true;
}

#endif
