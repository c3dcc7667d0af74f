#include "config.h"

#include "common/pi_prompt_size.h"

#include "common/pi_size.h"

#include <stdbool.h>
#include <string.h>

#define MIN_WORKSPACE ((uint64_t)64 << 10)
#define MAX_WORKSPACE ((uint64_t)32 << 20)
#define MIN_PIECE     16u

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Adds an array of n elements of size bytes, padded; false on overflow. */
static bool add(uint64_t *sum, uint64_t n, uint64_t m, uint64_t size)
{
    uint64_t bytes;

    return pi_size_mul(n, m, &bytes) && pi_size_mul(bytes, size, &bytes) &&
           pi_size_pad(bytes, PI_PROMPT_ALIGN, &bytes) && pi_size_add(*sum, bytes, sum);
}

static bool sum_activations(const struct pi_shape *s, uint64_t n, uint32_t piece, uint64_t *out)
{
    uint64_t d = s->n_embd, q = (uint64_t)s->n_head * s->head_dim,
             kv = (uint64_t)s->n_head_kv * s->head_dim, attn = 0, ffn = 0;

    *out = 0;
    return add(out, n, d, 4) && add(out, n, d, 4) && add(out, n, d, 4) &&
           add(out, n, max_u64(d, q), 2) && add(out, n, 1, PI_PROMPT_TOKEN_BYTES) &&
           add(&attn, n, q, 4) && add(&attn, n, q, 4) && add(&attn, n, kv, 4) &&
           add(&attn, n, kv, 4) && add(&ffn, n, piece, 4) && add(&ffn, n, piece, 4) &&
           add(&ffn, n, piece, 2) && pi_size_add(*out, max_u64(attn, ffn), out);
}

/* Rows of a tile: no more than any matrix has. */
static uint64_t tile_rows(const struct pi_shape *s)
{
    uint64_t most = max_u64(max_u64(s->n_ff, s->n_vocab),
                            max_u64(s->n_embd, (uint64_t)s->n_head * s->head_dim));

    return most < PI_PROMPT_TILE_ROWS ? most : PI_PROMPT_TILE_ROWS;
}

static bool sum_workspace(const struct pi_shape *s, uint64_t n, uint64_t *out)
{
    uint64_t widest = max_u64(max_u64(s->n_embd, s->n_ff), (uint64_t)s->n_head * s->head_dim);

    *out = 0;
    if (!add(out, 2 * n, widest, 4))
        return false;
    *out = *out < MIN_WORKSPACE ? MIN_WORKSPACE : *out > MAX_WORKSPACE ? MAX_WORKSPACE : *out;
    return true;
}

/* A slot takes as many neurons as fit, but at least 16 and at most a quarter of a layer. Its arrays (three matrices and a bias) start on boundaries. */
static bool size_slots(const struct pi_shape *s, const struct pi_prompt_want *w,
                       struct pi_prompt_size *out)
{
    uint64_t aim = w->slot_bytes != 0 ? w->slot_bytes : PI_PROMPT_SLOT_BYTES, n,
             quarter = ((uint64_t)s->n_ff + 3) / 4;

    out->slot_neurons = 0;
    out->slot_bytes = out->staging = 0;
    if (w->bundle == 0)
        return true;
    n = aim / w->bundle;
    n = n < quarter ? n : quarter;
    n = n < out->piece ? n : out->piece;
    n = n / MIN_PIECE * MIN_PIECE;
    out->slot_neurons = (uint32_t)max_u64(n, MIN_PIECE);
    return add(&out->slot_bytes, out->slot_neurons, w->bundle, 1) &&
           pi_size_add(out->slot_bytes, 4 * PI_PROMPT_ALIGN, &out->slot_bytes) &&
           add(&out->staging, w->dev_slots != 0 ? w->dev_slots : PI_PROMPT_DEV_SLOTS,
               out->slot_bytes, 1);
}

enum pi_code pi_prompt_size(const struct pi_shape *s, const struct pi_prompt_want *want,
                            struct pi_prompt_size *out, struct pi_err *err)
{
    uint64_t q = (uint64_t)s->n_head * s->head_dim, padded = 0;

    memset(out, 0, sizeof(*out));
    if (want->n_batch == 0)
        return pi_err_set(err, PI_E_RANGE, "prompt chunks of 0 tokens");
    if (!pi_size_pad(s->n_ff, MIN_PIECE, &padded))
        return pi_err_set(err, PI_E_RANGE, "%u neurons", s->n_ff);
    out->piece = padded < PI_PROMPT_PIECE ? (uint32_t)padded : PI_PROMPT_PIECE;
    if (!sum_activations(s, want->n_batch, out->piece, &out->activations) ||
        !add(&out->tile, tile_rows(s), max_u64(s->n_embd, q), 4) ||
        !sum_workspace(s, want->n_batch, &out->workspace) || !size_slots(s, want, out) ||
        !pi_size_add(out->activations, out->tile, &out->total) ||
        !pi_size_add(out->total, out->workspace, &out->total) ||
        !pi_size_add(out->total, out->staging, &out->total))
        return pi_err_set(err, PI_E_RANGE, "buffers for %u tokens a chunk overflow memory",
                          want->n_batch);
    return PI_OK;
}
