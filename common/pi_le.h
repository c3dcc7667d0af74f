/*
 * pi_le.h - little-endian numbers in files, at any address.
 */
#ifndef PI_LE_H
#define PI_LE_H

#include <stdint.h>

/* Of n bytes, at most 8. */
static inline uint64_t pi_load_le(const uint8_t *p, unsigned n)
{
    uint64_t v = 0;

    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

static inline uint16_t pi_load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t pi_load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t pi_load_u64(const uint8_t *p)
{
    return (uint64_t)pi_load_u32(p) | (uint64_t)pi_load_u32(p + 4) << 32;
}

static inline void pi_store_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static inline void pi_store_u64(uint8_t *p, uint64_t v)
{
    pi_store_u32(p, (uint32_t)v);
    pi_store_u32(p + 4, (uint32_t)(v >> 32));
}

#endif
