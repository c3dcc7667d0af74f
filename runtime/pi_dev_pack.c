/* pi_dev_pack.c - rows of weights from the layout of files into the device's (pi_dev_model.h says how that looks). */
#include "config.h"

#include "runtime/pi_dev_model.h"

#include <string.h>

#define BLOCK       32u /* elements that share a scale */
#define SCALE_BYTES 2u  /* F16, in front of each block of a file */

bool pi_dev_type_ok(enum pi_type t)
{
    return t == PI_TYPE_F32 || t == PI_TYPE_F16 || t == PI_TYPE_BF16 || t == PI_TYPE_Q8_0 ||
           t == PI_TYPE_Q4_0;
}

static size_t pad16(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* The values of a quantised row and its scales, apart; value_bytes: of one block. */
static void split_row(const uint8_t *src, uint32_t n_blocks, size_t value_bytes, uint8_t *dst)
{
    uint8_t *scales = dst + pad16(n_blocks * value_bytes);

    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint8_t *block = src + b * (SCALE_BYTES + value_bytes);

        memcpy(scales + (size_t)b * SCALE_BYTES, block, SCALE_BYTES);
        memcpy(dst + b * value_bytes, block + SCALE_BYTES, value_bytes);
    }
}

/* What stands between the end of a part of a row and the next multiple of 16 is zero, so that equal rows have equal bytes and kernels may
 * read whole vectors. */
void pi_dev_pack_rows(const struct pi_mat *src, const uint32_t *ids, uint32_t n, void *dst)
{
    const bool quantised = src->type == PI_TYPE_Q8_0 || src->type == PI_TYPE_Q4_0;
    const size_t value_bytes = src->type == PI_TYPE_Q8_0 ? BLOCK : BLOCK / 2;
    const uint32_t n_blocks = src->n_cols / BLOCK;
    const size_t elem = src->type == PI_TYPE_F32 ? 4 : 2;
    const size_t part = quantised ? n_blocks * (size_t)SCALE_BYTES : src->n_cols * elem;
    const size_t head = quantised ? n_blocks * value_bytes : 0; /* a multiple of 16 */
    const size_t row_bytes = head + pad16(part);
    uint8_t *to = dst;

    for (uint32_t i = 0; i < n; i++, to += row_bytes) {
        const void *row = pi_mat_row(src, ids != NULL ? ids[i] : i);

        if (quantised)
            split_row(row, n_blocks, value_bytes, to);
        else
            memcpy(to, row, part);
        memset(to + head + part, 0, pad16(part) - part);
    }
}
