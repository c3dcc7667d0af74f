/*
 * pi_random.h - the random numbers of this folder: splitmix64 (Steele, Lea and Flood 2014), state in the caller's hands, the same
 * on every machine.
 */
#ifndef PI_RANDOM_H
#define PI_RANDOM_H

#include <stdint.h>

struct pi_random {
    uint64_t state;
};

static inline uint64_t pi_random_u64(struct pi_random *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 <= result < n, n > 0; the bias of the remainder is below n / 2^64. */
static inline uint64_t pi_random_below(struct pi_random *r, uint64_t n)
{
    return pi_random_u64(r) % n;
}

#endif
