/*
 * pi_import.h - what others made for a model besides its weights: PowerInfer's predictors (inside its GGUF files, or a folder of model_N.pt) and its
 * activation statistics (activation/activation_N.pt beside a file).
 *
 * PowerInfer's rule (llm_build_ffn_sparse): neuron i is kept when  fc2[i] . relu(fc1 x) >= threshold,  one threshold for all layers, x the residual before the
 * feed-forward norm, in Falcon the layer's input.
 */
#ifndef PI_IMPORT_H
#define PI_IMPORT_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"
#include "common/pi_predictor.h"
#include "common/pi_shape.h"
#include "convert/pi_note.h"

#include <stdbool.h>

/* Predictors on their way to a file of their own: p's layers and what owned points to belong to it, other data to the source. */
struct pi_import {
    struct pi_predictor p; /* layers NULL: none */
    void **owned;
    size_t n_owned, cap_owned;
    const char *path; /* where they came from, for messages; borrowed */
    bool
        is_foreign; /* not inside the model's own file: whether they belong to it is an open question */
};

/* blk.N.fc1 and .fc2 of a GGUF file, as they are stored, and powerinfer.sparse_threshold; a file without them leaves *out as it is. PI_E_CORRUPT for shapes that do
 * not fit the model's (fc2 included, which upstream's loader does not look at), for a layer with one of the two, and for weights that are not finite; PI_E_UNSUPPORTED for biases. Pointers into g are borrowed. */
enum pi_code pi_import_gguf(const struct pi_gguf *g, const struct pi_shape *s,
                            struct pi_import *out, struct pi_err *err) PI_MUST_CHECK;

/* DIR/model_0.pt ... model_{n_layer - 1}.pt, dictionaries of fc1.weight (r, n_embd) and fc2.weight (n_ff, r), fc2.bias (n_ff) if there; or of two linear layers in a
 * row, 0.weight and 1.weight, or 2.weight with a ReLU between them. F32 is stored as F16 unless keep_f32. DIR/config.json may hold sparse_threshold.
 * PI_E_MISMATCH: another number of layers or other shapes than the model's, naming both; errors of pi_torch_parse(). */
enum pi_code pi_import_torch(const char *dir, const struct pi_shape *s, bool keep_f32,
                             struct pi_import *out, struct pi_err *err) PI_MUST_CHECK;
void pi_import_free(struct pi_import *i); /* accepts a zeroed one */

/* activation/activation_N.pt beside model_path, each one tensor of n_ff counts or frequencies, as a profile at path: its order is theirs; where they are
 * frequencies, they are of a million tokens. */
/* Read first, all of it checked: value_out (n_layer, n_ff) is the caller's to free(), NULL: there are none. Then written; the profile appears
 * when the caller commits *w_out. PI_E_MISMATCH: they are another
 * model's. */
enum pi_code pi_import_activation(const char *model_path, const struct pi_shape *s,
                                  double **value_out, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_import_write_profile(const char *model_path, const struct pi_shape *s,
                                     const struct pi_lineage *lineage, const double *value,
                                     const char *path, struct pi_gguf_writer **w_out,
                                     struct pi_err *err) PI_MUST_CHECK;

#endif
