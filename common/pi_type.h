/*
 * pi_type.h - the element types of tensors, numbered as in GGUF files.
 */
#ifndef PI_TYPE_H
#define PI_TYPE_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stdint.h>

enum pi_type {
    PI_TYPE_F32 = 0,
    PI_TYPE_F16 = 1,
    PI_TYPE_Q4_0 = 2,
    PI_TYPE_Q4_1 = 3,
    PI_TYPE_Q5_0 = 6,
    PI_TYPE_Q5_1 = 7,
    PI_TYPE_Q8_0 = 8,
    PI_TYPE_Q2_K = 10,
    PI_TYPE_Q3_K = 11,
    PI_TYPE_Q4_K = 12,
    PI_TYPE_Q5_K = 13,
    PI_TYPE_Q6_K = 14,
    PI_TYPE_I8 = 24,
    PI_TYPE_I16 = 25,
    PI_TYPE_I32 = 26,
    PI_TYPE_I64 = 27,
    PI_TYPE_F64 = 28,
    PI_TYPE_BF16 = 30,
    PI_TYPE_COUNT = 31
};

struct pi_type_info {
    const char *name;     /* "Q8_0"; NULL: a number that has no type */
    uint32_t block_elems; /* elements of one block; 1 for plain types */
    uint32_t block_bytes; /* bytes of one block */
    bool quantised;
};

/* The table row of a type; NULL for a number that is none we know. */
const struct pi_type_info *pi_type_info(uint32_t type);

/* "Q8_0", or "type 99" style text for unknown numbers is the caller's job: "?" then. */
const char *pi_type_name(uint32_t type);

/* Bytes of a row of n elements; false when n is no multiple of the block or the product
 * overflows. */
bool pi_type_row_bytes(enum pi_type type, uint64_t n, uint64_t *bytes_out);

#endif
