/*
 * pi_hf.h - Hugging Face model directories: config.json understood, tensors mapped to GGUF names.
 *
 * Which classes of transformers are read is the table in pi_hf_arch.c. What changes the model's result and is not understood is refused by name,
 * never skipped.
 */
#ifndef PI_HF_H
#define PI_HF_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"
#include "common/pi_shape.h"
#include "convert/pi_json.h"
#include "convert/pi_note.h"
#include "convert/pi_source.h"
#include "convert/pi_write_model.h"

#include <stdbool.h>
#include <stdint.h>

enum pi_hf_rope {
    PI_HF_ROPE_DEFAULT,
    PI_HF_ROPE_LINEAR,
    PI_HF_ROPE_LLAMA3,
    PI_HF_ROPE_YARN
};

/* What config.json says, defaults of the architecture filled in. */
struct pi_hf_config {
    /* n_rot, rope_base and the like included. rope_neox is the target's: where it is false, rows of q and k are permuted on their way */
    struct pi_shape shape;
    const char *layers; /* before a layer's number in names: "layers." */
    enum pi_hf_rope rope;
    float rope_low_freq, rope_high_freq; /* llama3 */
    bool tied;                           /* the output matrix is the embedding */
    bool tie_said;                       /* config.json says whether */
    bool qkv_bias, o_bias, mlp_bias;     /* which projections have biases */
    bool fused_qkv; /* one matrix, rows grouped by key/value head: its queries, k, v (Falcon) */
    bool
        two_norms; /* of a parallel block: one for attention, one for the feed-forward (Falcon 40B) */
    bool norm_plus_one;         /* norm weights are stored less 1 (Nemotron's LayerNorm1p) */
    float rotary_share;         /* of each head; 1: all of it */
    int64_t bos, eos, eot, pad; /* -1: not given; eot: the second of a list of eos ids */
    char name[128];
};

/* act_override: --hidden-act or NULL. PI_E_CORRUPT (key and range), PI_E_UNSUPPORTED (what, and its value). */
enum pi_code pi_hf_config_read(const struct pi_json *config, const char *act_override,
                               const struct pi_notes *notes, struct pi_hf_config *out,
                               struct pi_err *err) PI_MUST_CHECK;

/* Adds every tensor of the model to plan in GGUF's order and names, with the shapes checked. PI_E_CORRUPT: a tensor is missing or of another shape;
 * PI_E_UNSUPPORTED: dtypes we do not read, tensors of layers that we have no place for; others are left out with a note. */
enum pi_code pi_hf_map(const struct pi_hf_config *c, const struct pi_source *src,
                       const struct pi_notes *notes, struct pi_plan *plan,
                       struct pi_err *err) PI_MUST_CHECK;

/* Whether the output head is the embedding: as the configuration says, unless the checkpoint has a head of its own with other numbers; where it says nothing,
 * whether there is none. */
bool pi_hf_is_tied(const struct pi_hf_config *c, const struct pi_source *src);

/* general.* and {arch}.* keys. */
enum pi_code pi_hf_set_keys(const struct pi_hf_config *c, struct pi_gguf_writer *w,
                            struct pi_err *err) PI_MUST_CHECK;

/* Divisors of the rotary frequencies, (n_rot / 2), as rope_freqs.weight holds them: llama3 scaling. */
void pi_hf_llama3_factors(const struct pi_hf_config *c, float *out);

/* Source names without their prefix ("model.", "model.decoder.", "decoder." or none): how pi_hf_map() and the self-check find tensors. NULL
 * when there is none. */
const struct pi_src_tensor *pi_hf_find(const struct pi_source *src, const char *base);

#endif
