/*
 * gguf_bytes.h - GGUF files made by hand, byte by byte, so that they can lie.
 */
#ifndef PI_TEST_GGUF_BYTES_H
#define PI_TEST_GGUF_BYTES_H

#include "common/pi_gguf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gb {
    uint8_t p[1 << 16];
    size_t n;
};

static inline void gb_raw(struct gb *b, const void *p, size_t n)
{
    if (n > sizeof(b->p) - b->n)
        abort();
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static inline void gb_u8(struct gb *b, uint8_t v)
{
    gb_raw(b, &v, 1);
}

static inline void gb_u32(struct gb *b, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        gb_u8(b, (uint8_t)(v >> 8 * i));
}

static inline void gb_u64(struct gb *b, uint64_t v)
{
    gb_u32(b, (uint32_t)v);
    gb_u32(b, (uint32_t)(v >> 32));
}

static inline void gb_str(struct gb *b, const char *s)
{
    gb_u64(b, strlen(s));
    gb_raw(b, s, strlen(s));
}

static inline void gb_pad(struct gb *b, size_t align)
{
    while (b->n % align != 0)
        gb_u8(b, 0);
}

/* Starts a file. */
static inline void gb_head(struct gb *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    b->n = 0;
    gb_raw(b, "GGUF", 4);
    gb_u32(b, version);
    gb_u64(b, n_tensors);
    gb_u64(b, n_kv);
}

static inline void gb_key(struct gb *b, const char *key, uint32_t type)
{
    gb_str(b, key);
    gb_u32(b, type);
}

static inline void gb_kv_u32(struct gb *b, const char *key, uint32_t v)
{
    gb_key(b, key, PI_GGUF_U32);
    gb_u32(b, v);
}

static inline void gb_kv_str(struct gb *b, const char *key, const char *v)
{
    gb_key(b, key, PI_GGUF_STR);
    gb_str(b, v);
}

static inline void gb_kv_array(struct gb *b, const char *key, uint32_t elem, uint64_t n)
{
    gb_key(b, key, PI_GGUF_ARR);
    gb_u32(b, elem);
    gb_u64(b, n);
}

static inline void gb_tensor(struct gb *b, const char *name, uint32_t n_dims, const uint64_t *ne,
                             uint32_t type, uint64_t offset)
{
    gb_str(b, name);
    gb_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 8; i++)
        gb_u64(b, ne[i]);
    gb_u32(b, type);
    gb_u64(b, offset);
}

/* A file with one tensor and n_data bytes of data. */
static inline void gb_one_tensor(struct gb *b, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                                 uint64_t offset, size_t n_data)
{
    gb_head(b, 3, 1, 0);
    gb_tensor(b, "t", n_dims, ne, type, offset);
    gb_pad(b, 32);
    for (size_t i = 0; i < n_data; i++)
        gb_u8(b, (uint8_t)i);
}

#endif
