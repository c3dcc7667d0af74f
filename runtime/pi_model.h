/*
 * pi_model.h - a model in memory: its shape, its weights where the file is mapped, nothing converted.
 *
 * pi_model owns the map; every pi_mat and every borrowed pointer lives as long as it does. Norm weights and biases are kept as F32 (converted
 * copies are owned). Constant after opening: any number of engines may share one.
 *
 * Every form is one and the same chain here, with  n = norm(r), r = base + block(n)  for attention and feed-forward in turn and a norm before the output:
 *   norm before the blocks   base is r
 *   parallel                 the feed-forward's n is made of the layer's input: n = ffn_norm(r as it was before attention)
 *   norm behind the blocks   base is n, and norms stand one place further on: layer 0's attn_norm is absent (n = r), ffn_norm is the file's attn_norm, the
 *                            next layer's attn_norm the file's ffn_norm, the last one of those out_norm
 */
#ifndef PI_MODEL_H
#define PI_MODEL_H

#include "common/pi_artifact.h"
#include "common/pi_err.h"
#include "common/pi_predictor.h"
#include "common/pi_shape.h"

struct pi_layer_weights {
    const float *attn_norm,
        *attn_norm_b;                   /* (n_embd); biases NULL for RMSNorm; both NULL: no norm */
    const float *ffn_norm, *ffn_norm_b; /* (n_embd) */
    struct pi_mat q, k, v;              /* (n_embd_q | n_embd_kv, n_embd) */
    struct pi_mat o;                    /* (n_embd, n_embd_q) */
    const float *q_b, *k_b, *v_b, *o_b; /* or NULL */
    const float *q_norm, *k_norm;       /* (head_dim) with qk_norm */
    struct pi_mat gate;                 /* (n_ff, n_embd); absent when not gated */
    struct pi_mat up;                   /* (n_ff, n_embd) */
    /* (n_ff, n_embd): one row per neuron; absent until sparse modes need it when the file has
     * ffn_down */
    struct pi_mat down_t;
    /* (n_embd, n_ff): as files of others store it; absent when the file has ffn_down_t */
    struct pi_mat down;
    const float *gate_b; /* (n_ff) or NULL */
    const float *up_b;   /* (n_ff) or NULL */
    const float *down_b; /* (n_embd) or NULL */
};

struct pi_model {
    struct pi_gguf file;
    struct pi_shape shape;
    struct pi_lineage lineage;
    struct pi_fingerprint fingerprint;
    struct pi_mat tok_embd; /* (n_vocab, n_embd_tok) */
    struct pi_mat pos_embd; /* (pos_offset + n_ctx_train, n_embd); absent with rotary embedding */
    struct pi_mat output;   /* (n_vocab, n_embd_tok); tok_embd when tied */
    /* (n_embd, n_embd_tok), (n_embd_tok, n_embd): behind the embedding, before the output; absent where the widths are the same */
    struct pi_mat embd_in, embd_out;
    const float *out_norm, *out_norm_b;
    float *inv_freq;                 /* (n_rot / 2), scaling and rope_freqs applied; owned */
    float rope_mscale;               /* cos and sin are multiplied by it; 1 but for yarn */
    struct pi_layer_weights *layers; /* (n_layer); owned */
    /* the file stores ffn_down: sparse modes need pi_model_transpose_down() */
    bool has_down;
    void **owned; /* converted copies */
    size_t n_owned, cap_owned;
};

struct pi_model_options {
    const char *hidden_act; /* --hidden-act, or NULL */
    bool check_crc;         /* check the data of every tensor against the file's CRCs */
    bool accept_edited;     /* do not check the header's CRC */
    bool parts; /* take a model that is split over several files; else it is PI_E_UNSUPPORTED */
};

/* PI_E_IO, PI_E_CORRUPT (names tensor and figures), PI_E_UNSUPPORTED (architecture; a weight type without kernels, naming the tensor), PI_E_NOMEM. */
enum pi_code pi_model_open(const char *path, const struct pi_model_options *opt,
                           struct pi_model *out, struct pi_err *err) PI_MUST_CHECK;
void pi_model_close(struct pi_model *m); /* accepts a zeroed one */

/* Makes down_t of every layer from ffn_down: same type for F32, F16, BF16; Q8_0 (F16 where the row is no multiple of 32) for quantised
 * ones. bytes_out: what the copies take. Does nothing when the file has ffn_down_t. */
enum pi_code pi_model_transpose_down(struct pi_model *m, uint64_t *bytes_out,
                                     struct pi_err *err) PI_MUST_CHECK;

/* True if some matrix that decode steps multiply by has a quantised type. */
bool pi_model_is_quantised(const struct pi_model *m);

/* act(x) of the model's activation (the gate branch of gated models). */
float pi_activate(const struct pi_shape *s, float x);
/* The same for n values in place. */
void pi_activate_n(const struct pi_shape *s, float *x, size_t n);

#endif
