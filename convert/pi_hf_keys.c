/*
 * The metadata of a model that came from a Hugging Face directory, named as llama.cpp names it.
 */
#include "config.h"

#include "convert/pi_hf.h"

#include <math.h>
#include <stdio.h>

void pi_hf_llama3_factors(const struct pi_hf_config *c, float *out)
{
    const struct pi_shape *s = &c->shape;
    double orig = s->rope_n_ctx_orig, low = (double)c->rope_low_freq,
           high = (double)c->rope_high_freq;

    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        double freq = pow((double)s->rope_base, -2.0 * i / s->n_rot);
        double wavelength = 2.0 * M_PI / freq, smooth = (orig / wavelength - low) / (high - low);

        if (wavelength < orig / high)
            out[i] = 1.0f;
        else if (wavelength > orig / low)
            out[i] = s->rope_factor;
        else
            out[i] = (float)(1.0 / ((1.0 - smooth) / (double)s->rope_factor + smooth));
    }
}

/* ---- keys ---- */

struct kw {
    struct pi_gguf_writer *w;
    const char *arch;
    char key[96];
};

static const char *key(struct kw *k, const char *name)
{
    (void)snprintf(k->key, sizeof(k->key), "%s.%s", k->arch, name);
    return k->key;
}

static enum pi_code set_rope_keys(struct kw *k, const struct pi_shape *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_set_u32(k->w, key(k, "rope.dimension_count"), s->n_rot, err));
    PI_TRY(pi_gguf_set_f32(k->w, key(k, "rope.freq_base"), s->rope_base, err));
    if (s->rope_scaling == PI_ROPE_NONE)
        goto out;
    PI_TRY(pi_gguf_set_string(k->w, key(k, "rope.scaling.type"),
                              s->rope_scaling == PI_ROPE_YARN ? "yarn" : "linear", err));
    PI_TRY(pi_gguf_set_f32(k->w, key(k, "rope.scaling.factor"), s->rope_factor, err));
    if (s->rope_scaling == PI_ROPE_LINEAR)
        goto out;
    PI_TRY(pi_gguf_set_u32(k->w, key(k, "rope.scaling.original_context_length"), s->rope_n_ctx_orig,
                           err));
    PI_TRY(pi_gguf_set_f32(k->w, key(k, "rope.scaling.attn_factor"), s->rope_attn_factor, err));
    PI_TRY(pi_gguf_set_f32(k->w, key(k, "rope.scaling.yarn_beta_fast"), s->rope_beta_fast, err));
    PI_TRY(pi_gguf_set_f32(k->w, key(k, "rope.scaling.yarn_beta_slow"), s->rope_beta_slow, err));
out:
    return rc;
}

enum pi_code pi_hf_set_keys(const struct pi_hf_config *c, struct pi_gguf_writer *w,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &c->shape;
    struct kw k = {.w = w, .arch = pi_arch_name(s->arch)};

    PI_TRY(pi_gguf_set_string(w, "general.architecture", k.arch, err));
    PI_TRY(pi_gguf_set_string(w, "general.type", "model", err));
    PI_TRY(pi_gguf_set_string(w, "general.name", c->name, err));
    PI_TRY(pi_gguf_set_u32(w, key(&k, "vocab_size"), s->n_vocab, err));
    PI_TRY(pi_gguf_set_u32(w, key(&k, "context_length"), s->n_ctx_train, err));
    PI_TRY(pi_gguf_set_u32(w, key(&k, "embedding_length"), s->n_embd, err));
    PI_TRY(pi_gguf_set_u32(w, key(&k, "block_count"), s->n_layer, err));
    PI_TRY(pi_gguf_set_u32(w, key(&k, "feed_forward_length"), s->n_ff, err));
    PI_TRY(pi_gguf_set_u32(w, key(&k, "attention.head_count"), s->n_head, err));
    PI_TRY(pi_gguf_set_u32(w, key(&k, "attention.head_count_kv"), s->n_head_kv, err));
    PI_TRY(pi_gguf_set_f32(w,
                           key(&k, s->layer_norm ? "attention.layer_norm_epsilon"
                                                 : "attention.layer_norm_rms_epsilon"),
                           s->norm_eps, err));
    if (!s->learned_pos) {
        PI_TRY(pi_gguf_set_u32(w, key(&k, "attention.key_length"), s->head_dim, err));
        PI_TRY(pi_gguf_set_u32(w, key(&k, "attention.value_length"), s->head_dim, err));
        PI_TRY(set_rope_keys(&k, s, err));
    }
    if (s->post_norm)
        PI_TRY(pi_gguf_set_bool(w, key(&k, "post_norm"), true, err));
    if (s->n_embd_tok != s->n_embd)
        PI_TRY(pi_gguf_set_u32(w, key(&k, "token_embedding_length"), s->n_embd_tok, err));
    if (c->fused_qkv) /* llama.cpp asks for it */
        PI_TRY(pi_gguf_set_string(w, key(&k, "tensor_data_layout"), "jploski", err));
    PI_TRY(pi_gguf_set_string(w, key(&k, "hidden_activation"), pi_activation_name(s->act), err));
    if (s->act == PI_ACT_FATRELU)
        PI_TRY(pi_gguf_set_f32(w, key(&k, "hidden_activation_threshold"), s->act_threshold, err));
out:
    return rc;
}
