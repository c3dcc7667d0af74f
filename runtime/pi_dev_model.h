/*
 * pi_dev_model.h - the part of a model that lives on one GPU: matrices in the device's layout, hot neurons gathered.
 *
 * Device layout of a row: F32, F16, BF16 as stored, padded to 16 bytes. Quantised types with values and scales apart, so that both are read in whole
 * vectors: Q8_0: n_cols signed bytes, padded to 16; Q4_0: n_cols / 2 bytes, block after block, 16 bytes a block (low nibbles elements 0..15, high 16..31, as
 * stored), padded to 16; behind either n_cols / 32 scales (F16), padded to 16. pi_dev_row_bytes() (common/pi_estimate.h) says how
 * long that is. Every matrix starts at a multiple of 256 bytes.
 *
 * A pi_dev_model owns its device memory (one allocation: the driver rounds each up to 2 MiB) and borrows nothing after it was made, but host neuron
 * tables. Rows stream through a pinned buffer filled by the pool: there is never a second full copy in RAM.
 */
#ifndef PI_DEV_MODEL_H
#define PI_DEV_MODEL_H

#include "common/pi_err.h"
#include "common/pi_estimate.h"
#include "common/pi_placement.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_model.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Widest head that the attention kernels have; attention of models with wider ones stays on the CPU. */
#define PI_DEV_MAX_HEAD_DIM 512u

/* A matrix on the device; data NULL: absent. */
struct pi_dmat {
    enum pi_type type;
    uint32_t n_rows, n_cols;
    size_t row_bytes; /* from row to row; a multiple of 16 */
    const void *data;
};

struct pi_dev_predictor {
    uint32_t width;     /* r; 0: none here */
    struct pi_dmat fc1; /* (r, n_embd) */
    /* (n_here, r): rows of the hot neurons in the order of hot_ids if predict_hot, then of the cold ones in the order of cold_ids
     * if predict_cold */
    struct pi_dmat fc2;
    const float *bias; /* (n_here) device, or NULL */
    bool predict_hot, predict_cold;
    enum pi_predictor_input input;
    bool relu;
    float threshold;
};

struct pi_dev_layer {
    bool has_attn; /* norms, q, k, v, o, down_b and the KV cache are here */
    const float *attn_norm,
        *attn_norm_b; /* (n_embd) device; biases NULL where the model has none */
    const float *ffn_norm, *ffn_norm_b;
    struct pi_dmat q, k, v, o;
    const float *q_b, *k_b, *v_b, *o_b;
    const float *
        down_b; /* (n_embd) or NULL; always here: the merge may run here though attention does not */
    uint32_t n_hot, n_cold;
    const uint32_t *hot_ids;  /* (n_hot) device: original neuron of local index, ascending */
    const uint32_t *cold_ids; /* (n_cold) device, ascending; NULL without predict_cold */
    const uint32_t *host_hot_ids,
        *host_cold_ids;              /* the same on the host; borrowed from the engine's tables */
    struct pi_dmat gate, up, down_t; /* (n_hot, n_embd): row i is neuron hot_ids[i] */
    const float *up_b;               /* (n_hot) or NULL */
    struct pi_dev_predictor pred;
    void *k_cache,
        *v_cache; /* (n_seq * n_ctx + 1, n_embd_kv) of kv_type; the last row takes what padding tokens write; NULL without attention */
};

struct pi_dev_model {
    int index; /* GPU */
    const struct pi_shape *shape;
    uint32_t n_layer;
    struct pi_dev_layer *layers; /* (n_layer) */
    struct pi_dmat output;       /* (n_vocab, n_embd); absent when the output is on the CPU */
    const float *out_norm, *out_norm_b;
    const float *inv_freq; /* (n_rot / 2) device, NULL without rotary embedding */
    enum pi_type kv_type;
    uint32_t n_ctx, n_seq;
    struct pi_dev_buf *bufs; /* (n_bufs) what is owned */
    size_t n_bufs;
    uint64_t bytes; /* of all of them */
};

struct pi_dev_model_options {
    int index;
    uint32_t n_ctx, n_seq;
    enum pi_type kv_type;
    const enum pi_mode *
        mode; /* (n_layer) of decode: where PREDICTED, the placement's unit modes say who predicts */
};

/* tables (n_layer, n_ff): hot ids ascending then cold ids ascending of each layer (struct pi_engine). pred may be NULL. Uploads what place puts on its
 * GPU units (all GPU units are this device). PI_E_UNSUPPORTED for a weight type without device kernels, naming layer and matrix, and for heads wider than PI_DEV_MAX_HEAD_DIM; PI_E_NOMEM saying what did not fit. */
enum pi_code pi_dev_model_create(const struct pi_model *model, const struct pi_predictor *pred,
                                 const struct pi_placement *place, const uint32_t *tables,
                                 struct pi_pool *pool, const struct pi_dev_model_options *opt,
                                 struct pi_dev_model *out, struct pi_err *err) PI_MUST_CHECK;
void pi_dev_model_free(struct pi_dev_model *m); /* accepts a zeroed one */

/* Rows ids[0..n) (NULL: 0..n) of a host matrix into dst, in the device's layout; rows of pi_dev_row_bytes(). On the calling thread. */
void pi_dev_pack_rows(const struct pi_mat *src, const uint32_t *ids, uint32_t n, void *dst);

/* True for F32, F16, BF16, Q8_0, Q4_0. */
bool pi_dev_type_ok(enum pi_type t);

#ifdef __cplusplus
}
#endif
#endif
