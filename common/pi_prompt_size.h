/*
 * pi_prompt_size.h - the device memory that prompt chunks need, to the byte: what runtime/pi_gpu_prompt.c allocates, and what a budget
 * has to count. Weights and KV cache are not in it.
 *
 * Neurons are worked on in pieces, so that their inner vectors never exist in full; weights that no product reads as they are (quantised,
 * BF16, or F16 where F32 was asked for) are converted a tile of rows at a time; rows of cold neurons arrive in slots.
 */
#ifndef PI_PROMPT_SIZE_H
#define PI_PROMPT_SIZE_H

#include "common/pi_err.h"
#include "common/pi_shape.h"

#include <stdint.h>

#define PI_PROMPT_ALIGN      256u  /* of every array */
#define PI_PROMPT_PIECE      2048u /* most neurons of a piece; a multiple of 16 */
#define PI_PROMPT_TILE_ROWS  1024u /* of a tile in F32; twice as many in F16 */
#define PI_PROMPT_SLOT_BYTES ((uint64_t)8 << 20)
/* Beside vectors, of each token: a tile of queries (16), position and sequence (8), index among the wanted (4), two row scales (8). */
#define PI_PROMPT_TOKEN_BYTES 48u
#define PI_PROMPT_DEV_SLOTS   3u /* slots on the device */
#define PI_PROMPT_PIN_SLOTS   4u /* slots in pinned memory */

struct pi_prompt_want {
    uint32_t n_batch; /* most tokens of a chunk */
    /* Largest sum of one neuron's rows (gate, up, down; pi_dev_row_bytes()) plus 4 where neurons have a bias, over all layers; 0: no layer has cold
     * neurons, nothing is streamed. */
    uint64_t bundle;
    uint64_t slot_bytes; /* aim; 0: PI_PROMPT_SLOT_BYTES */
    uint32_t dev_slots;  /* 0: PI_PROMPT_DEV_SLOTS */
};

/* Bytes, each a multiple of PI_PROMPT_ALIGN. */
struct pi_prompt_size {
    /* F32: residual, normed, spare (n_batch, n_embd); the larger of q, attention's output, k, v and of two times a piece; F16: the input of a product
     * (n_batch, max(n_embd, n_embd_q)), a piece's; row scales, positions and where attention's tiles of queries lie. */
    uint64_t activations;
    uint64_t
        tile; /* PI_PROMPT_TILE_ROWS (or all rows, where no matrix has as many) of the longest row in F32 */
    uint64_t workspace; /* of cuBLAS: room for two copies of the largest result, 64 KiB to 32 MiB */
    uint64_t staging;   /* dev_slots slots */
    uint64_t total;
    uint32_t
        piece; /* most neurons of a piece of resident rows: PI_PROMPT_PIECE, or n_ff rounded up to 16 */
    uint32_t slot_neurons; /* of a streamed piece; 0: nothing is streamed */
    uint64_t slot_bytes;   /* of one slot */
};

/* PI_E_RANGE for sizes that overflow or an n_batch of 0. */
enum pi_code pi_prompt_size(const struct pi_shape *shape, const struct pi_prompt_want *want,
                            struct pi_prompt_size *out, struct pi_err *err) PI_MUST_CHECK;

#endif
