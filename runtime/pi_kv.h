/*
 * pi_kv.h - the KV cache: one row of keys and one of values per (layer, sequence, position), in F16 or F32.
 *
 * A sequence is filled from position 0 without gaps; len says how far. Memory is owned by the cache and touched first when it is
 * written, so that an unused context costs nothing.
 */
#ifndef PI_KV_H
#define PI_KV_H

#include "common/pi_err.h"
#include "common/pi_type.h"
#include "runtime/cpu/pi_cpu.h"

#include <stddef.h>
#include <stdint.h>

struct pi_kv {
    enum pi_type type;
    uint32_t n_layer, n_seq, n_ctx;
    uint32_t n_embd_kv;
    size_t row_bytes;
    uint8_t *k, *v; /* (n_layer, n_seq, n_ctx, n_embd_kv) */
    int32_t *len;   /* (n_seq) positions filled */
};

/* Bytes of keys and values together. PI_E_RANGE on overflow or for a type that is neither F16 nor F32. */
enum pi_code pi_kv_bytes(enum pi_type type, uint32_t n_layer, uint32_t n_seq, uint32_t n_ctx,
                         uint32_t n_embd_kv, uint64_t *bytes_out, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_kv_init(struct pi_kv *kv, enum pi_type type, uint32_t n_layer, uint32_t n_seq,
                        uint32_t n_ctx, uint32_t n_embd_kv, struct pi_err *err) PI_MUST_CHECK;
void pi_kv_free(struct pi_kv *kv); /* accepts a zeroed one */

/* Byte offset of a row into k and v. */
static inline size_t pi_kv_row(const struct pi_kv *kv, uint32_t layer, uint32_t seq, uint32_t pos)
{
    return (((size_t)layer * kv->n_seq + seq) * kv->n_ctx + pos) * kv->row_bytes;
}

/* Byte offset of element i of a row. */
static inline size_t pi_kv_elem(const struct pi_kv *kv, uint32_t i)
{
    return (size_t)i * (kv->type == PI_TYPE_F16 ? 2 : 4);
}

#endif
