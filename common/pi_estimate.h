/*
 * pi_estimate.h - the one place that knows what things weigh: used by pi-place to fill a budget and by pi-run to
 * keep it. All figures are bytes; sums are checked, so that a hostile shape gives PI_E_RANGE, not a wrong figure.
 */
#ifndef PI_ESTIMATE_H
#define PI_ESTIMATE_H

#include "common/pi_err.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_shape.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- the device's layout (runtime/pi_dev_model.h) ---- */

#define PI_DEV_ALIGN 256 /* every array on a device starts at a multiple of it */

/* Bytes from row to row of a matrix on a device; 0 for a type that has no layout there. */
static inline uint64_t pi_dev_row_bytes(enum pi_type type, uint32_t n_cols)
{
    const uint64_t n = n_cols, pad = ~(uint64_t)15;

    switch ((int)type) {
    case PI_TYPE_F32:
        return (4 * n + 15) & pad;
    case PI_TYPE_F16:
    case PI_TYPE_BF16:
        return (2 * n + 15) & pad;
    case PI_TYPE_Q8_0: /* values, then scales */
        return ((n + 15) & pad) + ((2 * (n / 32) + 15) & pad);
    case PI_TYPE_Q4_0:
        return ((n / 2 + 15) & pad) + ((2 * (n / 32) + 15) & pad);
    default:
        return 0;
    }
}

/* Bytes of the weights of one layer, from the file's tensor types. Vectors (norms, biases) count as the F32 they are kept in. */
struct pi_layer_bytes {
    uint64_t attn; /* q, k, v, output projections, biases, both norms */
    /* one neuron's row in each matrix (gate 0 when not gated) */
    uint64_t gate_row, up_row, down_row;
    uint64_t neuron;    /* a bundle: the three rows and the neuron's biases */
    uint64_t ffn_fixed; /* what the block has beside neurons (down bias) */
    uint64_t predictor; /* fc1, fc2, bias; 0 without one */
    /* predictor = pred_fixed + pred_per_neuron * n_ff: a unit keeps fc2 rows of its own neurons */
    uint64_t pred_fixed, pred_per_neuron;
};

struct pi_run_size {
    uint32_t n_ctx, n_seq, n_batch; /* context per sequence, sequences, tokens per prompt chunk */
    enum pi_type kv_type;
};

struct pi_model_bytes {
    uint32_t n_layer, n_ff;
    struct pi_layer_bytes *layers; /* (n_layer); owned */
    uint64_t embd;                 /* token and position embeddings (read one row a token) */
    uint64_t output;               /* output matrix; the token embeddings' bytes when tied */
    bool tied; /* output is the token embeddings: counted once on a unit that holds both */
    uint64_t output_norm;
    uint64_t kv_layer;    /* KV cache of one layer at the run's context and sequences */
    uint64_t activations; /* scratch buffers of a unit for the largest batch, logits included */
    uint64_t tables;      /* neuron tables, slots */
};

/* Fills sizes from a model file and an optional predictor. A down projection stored as ffn_down counts as the transposed copy that
 * sparse modes make of it. Free with pi_model_bytes_free(). PI_E_CORRUPT for a layer without its feed-forward matrices. */
enum pi_code pi_estimate_model(const struct pi_gguf *model, const struct pi_shape *shape,
                               const struct pi_predictor *pred, const struct pi_run_size *run,
                               struct pi_model_bytes *out, struct pi_err *err) PI_MUST_CHECK;
void pi_model_bytes_free(struct pi_model_bytes *b); /* accepts a zeroed one */

/* The type that the transposed copy of a down projection has, stored as ffn_down of type t (design: formats): t itself for F32, F16
 * and BF16; else Q8_0, or F16 where n_embd is no multiple of its block. */
enum pi_type pi_down_t_type(enum pi_type t, uint32_t n_embd);

/* What a placement puts on a unit, everything but the CUDA context: weights, KV, predictors' shares, buffers, tables. A layer's down
 * bias counts where its attention lives, which is where the residual is. A GPU that holds nothing needs nothing. */
enum pi_code pi_estimate_unit(const struct pi_model_bytes *b, const struct pi_placement *p,
                              uint32_t unit, uint64_t *bytes_out, struct pi_err *err) PI_MUST_CHECK;

/* "8G", "8192M", "500K", "0G", "1.5G" (powers of 1024) -> bytes. A bare number, a sign, anything else: PI_E_USAGE naming the units. */
enum pi_code pi_parse_bytes(const char *text, const char *option, uint64_t *out,
                            struct pi_err *err) PI_MUST_CHECK;

#endif
