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

/* Bytes of a matrix on a device, its padding to PI_DEV_ALIGN included. False on overflow. */
bool pi_dev_matrix_bytes(uint64_t n_rows, uint64_t row_bytes, uint64_t *out);

/* ---- sizes of a model ---- */

/* Bytes of the weights of one layer, from the file's tensor types. Vectors (norms, biases) count as the F32 they are kept in. */
struct pi_layer_bytes {
    /* as stored: what the CPU reads */
    uint64_t attn; /* q, k, v, output projections, biases, both norms */
    /* one neuron's row in each matrix (gate 0 when not gated) */
    uint64_t gate_row, up_row, down_row;
    uint64_t neuron;    /* a bundle: the three rows and the neuron's biases */
    uint64_t ffn_fixed; /* what the block has beside neurons (down bias) */
    uint64_t predictor; /* fc1, fc2, bias; 0 without one */
    /* predictor = pred_fixed + pred_per_neuron * n_ff */
    uint64_t pred_fixed, pred_per_neuron;
    enum pi_type attn_type, gate_type, up_type, down_type,
        pred_type; /* gate: up's without a gate */

    /* in the device's layout, arrays padded */
    uint64_t dev_attn, dev_ffn_fixed, dev_fc1;
    uint64_t dev_gate_row, dev_up_row, dev_down_row, dev_pred_row;
    bool up_bias, pred_bias; /* one F32 a neuron */
};

struct pi_run_size {
    uint32_t n_ctx, n_seq, n_batch; /* context per sequence, sequences, tokens per prompt chunk */
    enum pi_type kv_type;
};

/* What the kernels of a decode step take is known to them alone (pi_k_down_parts(), pi_k_attn_scratch()); this is what they are held to: partial sums of a
 * down product for each token; bytes of attention's scratch. Tests compare. */
#define PI_DEV_DOWN_PARTS 64
uint64_t pi_dev_attn_scratch(const struct pi_shape *shape, uint32_t n_tok);

#define PI_DEV_MAX_TOKENS 32

/* Most tokens of a decode step: a power of two, as graphs are made for. */
static inline uint32_t pi_dev_decode_tokens(uint32_t n_seq)
{
    uint32_t n = 1;

    while (n < n_seq && n < PI_DEV_MAX_TOKENS)
        n *= 2;
    return n;
}

/* Buffers of a run on a GPU beside weights and KV cache; the same for all placements. */
struct pi_dev_buffers {
    uint64_t decode; /* laid out by runtime/pi_exec_gpu.c; here with n_ff hot neurons in a layer */
    uint64_t prompt; /* pi_prompt_size(): activations and tile */
    uint64_t workspace, staging; /* the same: cuBLAS; what cold rows stream through */
    uint64_t graphs;             /* captured steps, one for 1, 2, 4 ... tokens */
    uint64_t frequencies;        /* of the rotary embedding */
};

struct pi_model_bytes {
    uint32_t n_layer, n_ff;
    struct pi_layer_bytes *layers; /* (n_layer); owned */
    uint64_t embd;                 /* token and position embeddings (read one row a token) */
    uint64_t output;               /* output matrix; the token embeddings' bytes when tied */
    bool tied; /* output is the token embeddings: counted once on the CPU where that holds both */
    enum pi_type output_type;
    uint64_t output_norm;
    uint64_t dev_output;  /* matrix and norm */
    uint64_t kv_layer;    /* KV cache of one layer at the run's context and sequences */
    uint64_t dev_kv;      /* the same on a device: a spare row, padding */
    uint64_t activations; /* the CPU's scratch buffers for the largest batch, logits included */
    uint64_t tables;      /* the CPU's neuron tables, slots */
    struct pi_dev_buffers dev;
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

/* What a run takes of a GPU's memory, by what it is for. pi-place fills a budget with it, pi-run allocates this: weights, predictors, KV cache and tables to the byte
 * (runtime/pi_dev_model.c), buffers at most. All zero where the GPU has no part. */
struct pi_gpu_budget {
    uint64_t context;     /* of CUDA, kernels and libraries loaded: measured */
    uint64_t weights;     /* attention, norms, hot neurons, output head */
    uint64_t predictors;  /* of the neurons that this GPU predicts for, its own and the CPU's */
    uint64_t kv;          /* of the layers whose attention is here */
    uint64_t activations; /* dev.decode + dev.prompt */
    uint64_t tables;      /* hot and cold ids, frequencies of the rotary embedding */
    uint64_t graphs, workspace;
    uint64_t staging; /* 0 where everything is on the GPU */
    uint64_t
        rounding; /* the driver's, of what is one allocation: all of the device model, each buffer */
    uint64_t total;
};

/* The budget of a GPU unit under a placement. Where attention is on the GPU and mode_cpu is PREDICTED, the predictor of the cold neurons is here too, and
 * none of it on the CPU. Embeddings are never here: the host reads one row a token. */
enum pi_code pi_estimate_gpu(const struct pi_model_bytes *b, const struct pi_placement *p,
                             uint32_t unit, uint64_t context_bytes, struct pi_gpu_budget *out,
                             struct pi_err *err) PI_MUST_CHECK;

/* The same in pieces, for who weighs options: base (if the GPU has any part at all) + dev_output (if there) + each layer's is the total, but for the rounding
 * of the device model; a layer's is 0 without attention and hot neurons. staged: neurons are left on the CPU. pi_estimate_gpu_room(): what layers
 * and output head may take so that the total, with that rounding, is at most limit; 0 where the base alone is more. */
uint64_t pi_estimate_gpu_room(const struct pi_gpu_budget *base, uint64_t limit);
enum pi_code pi_estimate_gpu_base(const struct pi_model_bytes *b, uint64_t context_bytes,
                                  bool staged, struct pi_gpu_budget *out,
                                  struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_estimate_gpu_layer(const struct pi_model_bytes *b, uint32_t layer,
                                   const struct pi_place_layer *p, uint32_t unit,
                                   struct pi_gpu_budget *out, struct pi_err *err) PI_MUST_CHECK;

/* What a placement puts on a unit. A GPU: the total of pi_estimate_gpu() without context. The CPU: weights as stored, KV, predictors' shares, buffers,
 * tables; a layer's down bias counts where its attention lives. */
enum pi_code pi_estimate_unit(const struct pi_model_bytes *b, const struct pi_placement *p,
                              uint32_t unit, uint64_t *bytes_out, struct pi_err *err) PI_MUST_CHECK;

/* "8G", "8192M", "500K", "0G", "1.5G" (powers of 1024) -> bytes. A bare number, a sign, anything else: PI_E_USAGE naming the units. */
enum pi_code pi_parse_bytes(const char *text, const char *option, uint64_t *out,
                            struct pi_err *err) PI_MUST_CHECK;

#endif
