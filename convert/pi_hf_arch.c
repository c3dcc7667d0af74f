/*
 * Classes of transformers, and what each family says in config.json beside the keys that all have.
 */
#include "config.h"

#include "convert/pi_hf_int.h"

#include <stdio.h>
#include <string.h>

/* Within the window, sliding attention is full attention. Qwen's configurations name a window that "use_sliding_window" alone puts to use. */
static enum pi_code limit_window(const struct pi_hf_rd *r, bool used, struct pi_hf_config *c,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t window = 0;

    PI_TRY(pi_json_bool(r->o, r->path, "use_sliding_window", &used, err));
    PI_TRY(pi_json_u32(r->o, r->path, "sliding_window", 1, PI_HF_MAX_CTX, &window, err));
    if (!used || window == 0 || window >= c->shape.n_ctx_train)
        goto out;
    pi_note(r->notes,
            "%s: sliding window attention is not built in: context limited to the window, %u of %u",
            r->path, window, c->shape.n_ctx_train);
    c->shape.n_ctx_train = window;
out:
    return rc;
}

/* Some have biases without a key for them. */
static enum pi_code read_biases(const struct pi_hf_rd *r, struct pi_hf_config *c,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool attention = false;

    c->qkv_bias = c->shape.arch == PI_ARCH_QWEN2;
    if (c->qkv_bias)
        goto out;
    PI_TRY(pi_json_bool(r->o, r->path, "attention_bias", &attention, err));
    PI_TRY(pi_json_bool(r->o, r->path, "mlp_bias", &c->mlp_bias, err));
    c->qkv_bias = c->o_bias = attention;
out:
    return rc;
}

static enum pi_code read_llama(const struct pi_hf_rd *r, const struct pi_hf_class *k,
                               struct pi_hf_config *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_shape *s = &c->shape;
    const bool nemotron = k->arch == PI_ARCH_NEMOTRON;

    PI_TRY(pi_hf_need_u32(r, "intermediate_size", PI_MAX_FF, &s->n_ff, err));
    PI_TRY(pi_json_u32(r->o, r->path, "num_key_value_heads", 1, s->n_head, &s->n_head_kv, err));
    PI_TRY(pi_json_u32(r->o, r->path, "head_dim", 2, 65536, &s->head_dim, err));
    s->norm_eps = nemotron ? 1e-5f : 1e-6f;
    PI_TRY(pi_json_f32(r->o, r->path, nemotron ? "norm_eps" : "rms_norm_eps", 0.0, 1.0,
                       &s->norm_eps, err));
    c->norm_plus_one = nemotron;
    c->rotary_share = nemotron ? 0.5f : 1.0f;
    PI_TRY(read_biases(r, c, err));
    PI_TRY(pi_hf_read_rope(r, nemotron, c, err));
    PI_TRY(limit_window(r, k->windowed, c, err));
out:
    return rc;
}

static enum pi_code read_opt(const struct pi_hf_rd *r, const struct pi_hf_class *k,
                             struct pi_hf_config *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_shape *s = &c->shape;
    bool before = true, bias = true, affine = true, no_final = false;

    (void)k;
    PI_TRY(pi_hf_need_u32(r, "ffn_dim", PI_MAX_FF, &s->n_ff, err));
    PI_TRY(pi_json_bool(r->o, r->path, "do_layer_norm_before", &before, err));
    PI_TRY(pi_json_bool(r->o, r->path, "enable_bias", &bias, err));
    PI_TRY(pi_json_bool(r->o, r->path, "layer_norm_elementwise_affine", &affine, err));
    PI_TRY(pi_json_bool(r->o, r->path, "_remove_final_layer_norm", &no_final, err));
    PI_TRY(pi_json_u32(r->o, r->path, "word_embed_proj_dim", 1, PI_MAX_EMBD, &s->n_embd_tok, err));
    if (!bias || !affine || (no_final && before))
        PI_TRY(pi_hf_refuse(r, "OPT without biases, norm weights or final norm", err));
    s->post_norm = !before;
    s->norm_eps = 1e-5f; /* torch's default: config.json has no key for it */
    c->tied = true;
    c->qkv_bias = c->o_bias = c->mlp_bias = true;
out:
    return rc;
}

/* Keys of Falcon's first configurations ("RefinedWeb") too. There a count of key/value heads means what "new_decoder_architecture" says today. */
static enum pi_code read_falcon(const struct pi_hf_rd *r, const struct pi_hf_class *k,
                                struct pi_hf_config *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_shape *s = &c->shape;
    const bool first = pi_json_has(r->o, "n_head_kv"), old = strcmp(k->name, "RWForCausalLM") == 0;
    bool many = !old, grouped = old && first, parallel = true, alibi = false, bias = false;
    uint32_t n_norms = 0, n_kv = s->n_head;

    s->n_ff = 4 * s->n_embd;
    PI_TRY(pi_json_u32(r->o, r->path, "ffn_hidden_size", 1, PI_MAX_FF, &s->n_ff, err));
    PI_TRY(pi_json_bool(r->o, r->path, "multi_query", &many, err));
    PI_TRY(pi_json_bool(r->o, r->path, "new_decoder_architecture", &grouped, err));
    PI_TRY(pi_json_bool(r->o, r->path, "parallel_attn", &parallel, err));
    PI_TRY(pi_json_bool(r->o, r->path, "alibi", &alibi, err));
    PI_TRY(pi_json_bool(r->o, r->path, "bias", &bias, err));
    PI_TRY(pi_json_u32(r->o, r->path, "num_ln_in_parallel_attn", 1, 2, &n_norms, err));
    PI_TRY(
        pi_json_u32(r->o, r->path, first ? "n_head_kv" : "num_kv_heads", 1, s->n_head, &n_kv, err));
    if (alibi)
        PI_TRY(pi_hf_refuse(r, "\"alibi\": true", err));
    if (!parallel)
        PI_TRY(pi_hf_refuse(r, "\"parallel_attn\": false", err));
    s->n_head_kv = grouped ? n_kv : many ? 1 : s->n_head;
    s->norm_eps = 1e-5f;
    PI_TRY(pi_json_f32(r->o, r->path, "layer_norm_epsilon", 0.0, 1.0, &s->norm_eps, err));
    c->layers = "h.";
    c->tied = c->fused_qkv = true;
    c->two_norms = grouped && n_norms != 1;
    c->qkv_bias = c->o_bias = c->mlp_bias = bias;
    PI_TRY(pi_hf_read_rope(r, false, c, err));
out:
    return rc;
}

static const struct pi_hf_class classes[] = {
    {"LlamaForCausalLM", "llama", PI_ARCH_LLAMA, "silu", false, read_llama},
    {"LLaMAForCausalLM", NULL, PI_ARCH_LLAMA, "silu", false, read_llama},
    {"SparseLlamaForCausalLM", "sparsellama", PI_ARCH_LLAMA, NULL, false,
     read_llama}, /* ProSparse */
    {"MistralForCausalLM", "mistral", PI_ARCH_LLAMA, "silu", true, read_llama},
    {"PhoneLMForCausalLM", "phonelm", PI_ARCH_LLAMA, "relu", false, read_llama},
    {"ArceeForCausalLM", "arcee", PI_ARCH_ARCEE, "relu2", false, read_llama},
    {"NemotronForCausalLM", "nemotron", PI_ARCH_NEMOTRON, "relu2", false, read_llama},
    {"Qwen2ForCausalLM", "qwen2", PI_ARCH_QWEN2, "silu", false, read_llama},
    {"Qwen3ForCausalLM", "qwen3", PI_ARCH_QWEN3, "silu", false, read_llama},
    {"BambooForCausalLM", "bamboo", PI_ARCH_BAMBOO, "relu", true, read_llama},
    {"FalconForCausalLM", "falcon", PI_ARCH_FALCON, "gelu", false, read_falcon},
    {"RWForCausalLM", NULL, PI_ARCH_FALCON, "gelu", false, read_falcon},
    {"OPTForCausalLM", "opt", PI_ARCH_OPT, "relu", false, read_opt},
};

#define N_CLASSES (sizeof(classes) / sizeof(classes[0]))

enum pi_code pi_hf_class_find(const struct pi_hf_rd *r, const struct pi_hf_class **out,
                              struct pi_err *err)
{
    const json_t *list = json_object_get(r->o, "architectures");
    const char *name = json_string_value(json_array_get(list, 0)),
               *type = json_string_value(json_object_get(r->o, "model_type"));
    char known[512] = ""; /* the names above are half of it */
    size_t at = 0;

    for (size_t i = 0; i < N_CLASSES; i++) {
        const struct pi_hf_class *k = &classes[i];

        /* old configurations name the type alone */
        if (name != NULL ? strcmp(name, k->name) == 0
                         : type != NULL && k->type != NULL && strcmp(type, k->type) == 0) {
            *out = k;
            return PI_OK;
        }
        at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i > 0 ? ", " : "", k->name);
    }
    return pi_err_set(err, PI_E_UNSUPPORTED,
                      "%s: architecture %.80s is not supported (supported: %s)", r->path,
                      name != NULL   ? name
                      : type != NULL ? type
                                     : "(none)",
                      known);
}
