/*
 * pi_predictor.h - the predictor artifact: small per-layer networks that say which neurons will fire.
 *
 * Layer l predicts neuron i active when  fc2[i] . g(fc1 x) + bias[i] >= threshold  with g = identity or ReLU
 * and x as input says. Tensors of M.predictor.gguf: blk.N.fc1.weight (n_embd x r), blk.N.fc2.weight (r x n_ff),
 * blk.N.fc2.bias (F32, n_ff; optional); a layer without tensors has no predictor and runs exact. Keys, arrays over
 * layers: pi.predictor.threshold (F32), .input and .activation (U8), .recall, .precision, .density (F32,
 * on held-out samples), .width (U32; 0: none). Scalars: pi.predictor.n_layer, .n_ff, .n_embd (U32).
 */
#ifndef PI_PREDICTOR_H
#define PI_PREDICTOR_H

#include "common/pi_artifact.h"
#include "common/pi_err.h"
#include "common/pi_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_PREDICTOR_VERSION PI_ARTIFACT_VERSION(1, 0)

/* A matrix of weights, row by row, in any of the weight types. Borrowed view; never owns. */
struct pi_mat {
    enum pi_type type;
    uint32_t n_rows, n_cols;
    size_t row_bytes; /* stride from row to row */
    const void *data; /* NULL: absent */
};

static inline const void *pi_mat_row(const struct pi_mat *m, uint32_t row)
{
    return (const char *)m->data + (size_t)row * m->row_bytes;
}

enum pi_predictor_input {
    PI_PRED_IN_FFN_NORMED = 0, /* what the feed-forward block sees (our default) */
    /* the residual before the feed-forward norm (PowerInfer's llama, opt) */
    PI_PRED_IN_FFN_RESIDUAL = 1,
    PI_PRED_IN_LAYER = 2, /* the layer's input (PowerInfer's falcon) */
    /* look-ahead: the residual of the layer before, attention added, before its feed-forward
     * norm */
    PI_PRED_IN_PREV_ATTN = 3
};

struct pi_predictor_layer {
    uint32_t width; /* r; 0: no predictor for this layer */
    enum pi_predictor_input input;
    bool relu; /* between the two layers */
    float threshold;
    struct pi_mat fc1;                /* (r, n_embd) */
    struct pi_mat fc2;                /* (n_ff, r) */
    const float *bias;                /* (n_ff) or NULL */
    float recall, precision, density; /* on held-out samples, 0..1 */
};

struct pi_predictor {
    uint32_t n_layer, n_ff, n_embd;
    struct pi_predictor_layer *layers; /* (n_layer) */
    struct pi_lineage lineage;
    struct pi_gguf file; /* owns what fc1, fc2, bias point to, when loaded */
};

/* Checks every shape and value (PI_E_CORRUPT), kind and version (PI_E_MISMATCH), types of weights (PI_E_UNSUPPORTED). */
enum pi_code pi_predictor_load(const char *path, struct pi_predictor *out,
                               struct pi_err *err) PI_MUST_CHECK;
/* frees layers and closes the file; accepts a zeroed one */
void pi_predictor_free(struct pi_predictor *p);

/* Writes p; every pointer in it is borrowed. */
enum pi_code pi_predictor_save(const char *path, const struct pi_predictor *p,
                               struct pi_err *err) PI_MUST_CHECK;
/* As above, but the file appears when the caller commits *w_out (or never: pi_gguf_abort). */
enum pi_code pi_predictor_write(const char *path, const struct pi_predictor *p,
                                struct pi_gguf_writer **w_out, struct pi_err *err) PI_MUST_CHECK;

#endif
