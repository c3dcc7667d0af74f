#include "config.h"

#include "common/pi_size.h"
#include "common/pi_type.h"

#include <stddef.h>

static const struct pi_type_info types[PI_TYPE_COUNT] = {
    [PI_TYPE_F32] = {"F32", 1, 4, false},      [PI_TYPE_F16] = {"F16", 1, 2, false},
    [PI_TYPE_Q4_0] = {"Q4_0", 32, 18, true},   [PI_TYPE_Q4_1] = {"Q4_1", 32, 20, true},
    [PI_TYPE_Q5_0] = {"Q5_0", 32, 22, true},   [PI_TYPE_Q5_1] = {"Q5_1", 32, 24, true},
    [PI_TYPE_Q8_0] = {"Q8_0", 32, 34, true},   [PI_TYPE_Q2_K] = {"Q2_K", 256, 84, true},
    [PI_TYPE_Q3_K] = {"Q3_K", 256, 110, true}, [PI_TYPE_Q4_K] = {"Q4_K", 256, 144, true},
    [PI_TYPE_Q5_K] = {"Q5_K", 256, 176, true}, [PI_TYPE_Q6_K] = {"Q6_K", 256, 210, true},
    [PI_TYPE_I8] = {"I8", 1, 1, false},        [PI_TYPE_I16] = {"I16", 1, 2, false},
    [PI_TYPE_I32] = {"I32", 1, 4, false},      [PI_TYPE_I64] = {"I64", 1, 8, false},
    [PI_TYPE_F64] = {"F64", 1, 8, false},      [PI_TYPE_BF16] = {"BF16", 1, 2, false},
};

const struct pi_type_info *pi_type_info(uint32_t type)
{
    return type < PI_TYPE_COUNT && types[type].name != NULL ? &types[type] : NULL;
}

const char *pi_type_name(uint32_t type)
{
    const struct pi_type_info *t = pi_type_info(type);

    return t != NULL ? t->name : "?";
}

bool pi_type_row_bytes(enum pi_type type, uint64_t n, uint64_t *bytes_out)
{
    const struct pi_type_info *t = pi_type_info(type);

    if (t == NULL || n % t->block_elems != 0)
        return false;
    return pi_size_mul(n / t->block_elems, t->block_bytes, bytes_out);
}
