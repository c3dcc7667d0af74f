/* pi_gguf_int.h - what reader and writer of GGUF files share; private to common/ */
#ifndef PI_GGUF_INT_H
#define PI_GGUF_INT_H

#include "common/pi_gguf.h"

#define PI_GGUF_KEY_CRC        "pi.crc32"
#define PI_GGUF_KEY_HEADER_CRC "pi.header_crc32"

/* Limits on names; the specification says 65535 for keys and 64 for tensors, which some writers
 * pass by a little. */
#define PI_GGUF_MAX_KEY  65535
#define PI_GGUF_MAX_NAME 255

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

/* The end of a message about a CRC that does not fit: what it may mean, and for models the way out. */
const char *pi_gguf_edited_hint(const struct pi_gguf *g);

/* tensor_by_name anew, for all tensors: PI_E_CORRUPT for a name that occurs twice. */
enum pi_code pi_gguf_index_tensors(struct pi_gguf *g, struct pi_err *err) PI_MUST_CHECK;

/* Orders byte strings, shorter first among equals. */
int pi_str_cmp(struct pi_str a, struct pi_str b);

#endif
