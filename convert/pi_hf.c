#include "config.h"

#include "convert/pi_hf.h"
#include "common/pi_alloc.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CTX (1u << 24)

/* Where a key is looked up, bound once. */
struct rd {
    const json_t *o;
    const char *path;
    const struct pi_notes *notes;
};

static enum pi_code need_u32(const struct rd *r, const char *key, uint32_t max, uint32_t *out,
                             struct pi_err *err)
{
    if (!pi_json_has(r->o, key))
        return pi_err_set(err, PI_E_CORRUPT, "%s: no \"%s\"", r->path, key);
    return pi_json_u32(r->o, r->path, key, 1, max, out, err);
}

static enum pi_code refuse(const struct rd *r, const char *what, struct pi_err *err)
{
    return pi_err_set(err, PI_E_UNSUPPORTED, "%s: %s is not supported", r->path, what);
}

static enum pi_code read_arch(const struct rd *r, struct pi_hf_config *c, bool *mistral,
                              struct pi_err *err)
{
    const json_t *list = json_object_get(r->o, "architectures");
    const char *a = json_string_value(json_array_get(list, 0)),
               *type = json_string_value(json_object_get(r->o, "model_type"));

    *mistral = false;
    if (a == NULL) /* old configs name the type alone */
        a = type == NULL                   ? "(none)"
            : strcmp(type, "llama") == 0   ? "LlamaForCausalLM"
            : strcmp(type, "mistral") == 0 ? "MistralForCausalLM"
            : strcmp(type, "opt") == 0     ? "OPTForCausalLM"
                                           : type;
    if (strcmp(a, "LlamaForCausalLM") == 0 || strcmp(a, "LLaMAForCausalLM") == 0) {
        c->shape.arch = PI_ARCH_LLAMA;
    } else if (strcmp(a, "MistralForCausalLM") == 0) {
        c->shape.arch = PI_ARCH_LLAMA;
        *mistral = true;
    } else if (strcmp(a, "OPTForCausalLM") == 0) {
        c->shape.arch = PI_ARCH_OPT;
    } else {
        return pi_err_set(
            err, PI_E_UNSUPPORTED,
            "%s: architecture %.80s is not supported (supported: LlamaForCausalLM, MistralForCausalLM, OPTForCausalLM)",
            r->path, a);
    }
    if (pi_json_has(r->o, "quantization_config"))
        return refuse(r, "a quantised checkpoint (\"quantization_config\")", err);
    return PI_OK;
}

static enum pi_code read_activation(const struct rd *r, const char *key, const char *fallback,
                                    const char *act_override, struct pi_hf_config *c,
                                    struct pi_err *err)
{
    static const char *const thresholds[] = {"hidden_act_param", "hidden_act_threshold",
                                             "activation_threshold"};
    enum pi_code rc = PI_OK;
    const char *name = fallback;
    float threshold = -1.0f;

    for (size_t i = 0; i < sizeof(thresholds) / sizeof(thresholds[0]); i++)
        PI_TRY(pi_json_f32(r->o, r->path, thresholds[i], 0.0, 1e6, &threshold, err));
    PI_TRY(pi_json_string(r->o, r->path, key, &name, err));
    if (act_override != NULL)
        PI_TRY(pi_activation_parse(act_override, &c->shape.act, &threshold, err));
    else if (!pi_activation_from_name(name, &c->shape.act))
        PI_FAIL(err, PI_E_UNSUPPORTED, "%s: activation \"%.80s\" is not supported", r->path, name);
    if (c->shape.act == PI_ACT_FATRELU && threshold < 0.0f)
        pi_note(r->notes,
                "%s: fatrelu without a threshold (\"hidden_act_param\"): it is taken as 0",
                r->path);
    c->shape.act_threshold = c->shape.act == PI_ACT_FATRELU && threshold > 0.0f ? threshold : 0.0f;
out:
    return rc;
}

static enum pi_code read_token_ids(const struct rd *r, struct pi_hf_config *c, struct pi_err *err)
{
    const struct {
        const char *key;
        int64_t *out;
    } ids[] = {{"bos_token_id", &c->bos}, {"eos_token_id", &c->eos}, {"pad_token_id", &c->pad}};

    c->eot = -1;
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_object_get(r->o, ids[i].key);
        *ids[i].out = -1;
        if (json_is_array(v)) { /* several tokens end a text: the first is eos, the second eot */
            if (i == 1 && json_is_integer(json_array_get(v, 1)))
                c->eot = json_integer_value(json_array_get(v, 1));
            v = json_array_get(v, 0);
        }
        if (v == NULL || json_is_null(v))
            continue;
        if (!json_is_integer(v))
            return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is no token id", r->path, ids[i].key);
        *ids[i].out = json_integer_value(v);
    }
    return PI_OK;
}

static enum pi_code read_yarn(const struct rd *r, const struct rd *s, struct pi_hf_config *c,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float given = -1.0f, mscale = 0.0f, mscale_all = 0.0f, def;
    bool truncate = true;

    c->shape.rope_scaling = PI_ROPE_YARN;
    c->shape.rope_beta_fast = 32.0f;
    c->shape.rope_beta_slow = 1.0f;
    PI_TRY(pi_json_f32(s->o, s->path, "beta_fast", 1e-3, 1e6, &c->shape.rope_beta_fast, err));
    PI_TRY(pi_json_f32(s->o, s->path, "beta_slow", 1e-3, 1e6, &c->shape.rope_beta_slow, err));
    PI_TRY(pi_json_f32(s->o, s->path, "attention_factor", 0.0, 1e3, &given, err));
    PI_TRY(pi_json_f32(s->o, s->path, "mscale", 0.0, 1e3, &mscale, err));
    PI_TRY(pi_json_f32(s->o, s->path, "mscale_all_dim", 0.0, 1e3, &mscale_all, err));
    PI_TRY(pi_json_bool(s->o, s->path, "truncate", &truncate, err));
    if (!truncate)
        PI_TRY(refuse(r, "yarn with \"truncate\": false", err));
    /* GGUF readers multiply 1 + 0.1 ln(factor) by the attention factor; transformers gives the product. */
    def = 0.1f * logf(c->shape.rope_factor) + 1.0f;
    if (given >= 0.0f)
        c->shape.rope_attn_factor = given / def;
    else if (mscale > 0.0f && mscale_all > 0.0f)
        c->shape.rope_attn_factor = (0.1f * mscale * logf(c->shape.rope_factor) + 1.0f) /
                                    (0.1f * mscale_all * logf(c->shape.rope_factor) + 1.0f) / def;
    else
        c->shape.rope_attn_factor = 1.0f;
out:
    return rc;
}

static enum pi_code read_llama3(const struct rd *s, struct pi_hf_config *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    c->rope_low_freq = 1.0f;
    c->rope_high_freq = 4.0f;
    PI_TRY(pi_json_f32(s->o, s->path, "low_freq_factor", 1e-3, 1e6, &c->rope_low_freq, err));
    PI_TRY(pi_json_f32(s->o, s->path, "high_freq_factor", 1e-3, 1e6, &c->rope_high_freq, err));
    if (c->rope_high_freq <= c->rope_low_freq)
        PI_FAIL(err, PI_E_CORRUPT,
                "%s: \"high_freq_factor\" %g is not above \"low_freq_factor\" %g", s->path,
                (double)c->rope_high_freq, (double)c->rope_low_freq);
out:
    return rc;
}

/* Dynamic NTK scaling leaves the frequencies alone up to the original context. */
static void limit_dynamic(const struct rd *r, uint32_t orig, struct pi_hf_config *c)
{
    if (orig != 0 && orig < c->shape.n_ctx_train)
        c->shape.n_ctx_train = orig;
    pi_note(
        r->notes,
        "%s: rope scaling \"dynamic\" is exact up to the original context: context limited to %u",
        r->path, c->shape.n_ctx_train);
}

/* The object that holds scaling: "rope_parameters", or "rope_scaling" of older configurations; NULL without either. */
static enum pi_code find_rope(const struct rd *r, const json_t **out, struct pi_err *err)
{
    const char *name = pi_json_has(r->o, "rope_parameters") ? "rope_parameters" : "rope_scaling",
               *part;
    json_t *o = json_object_get(r->o, name), *v;

    *out = NULL;
    if (o == NULL || json_is_null(o))
        return PI_OK;
    if (!json_is_object(o))
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is no object", r->path, name);
    json_object_foreach(o, part, v)
    {
        if (json_is_object(v))
            return pi_err_set(err, PI_E_UNSUPPORTED,
                              "%s: \"%s\" of their own for \"%.40s\" layers are not supported",
                              r->path, name, part);
    }
    *out = o;
    return PI_OK;
}

static enum pi_code read_scaling(const struct rd *r, const struct rd *s, const char *type,
                                 uint32_t orig, struct pi_hf_config *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float factor = 0.0f;

    if (strcmp(type, "dynamic") == 0) {
        limit_dynamic(r, orig, c);
        goto out;
    }
    if (strcmp(type, "linear") == 0)
        c->rope = PI_HF_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        c->rope = PI_HF_ROPE_LLAMA3;
    else if (strcmp(type, "yarn") == 0)
        c->rope = PI_HF_ROPE_YARN;
    else
        PI_FAIL(
            err, PI_E_UNSUPPORTED,
            "%s: rope scaling \"%.40s\" is not supported (supported: default, linear, llama3, yarn, dynamic)",
            r->path, type);
    PI_TRY(pi_json_f32(s->o, r->path, "factor", 1.0, 1e6, &factor, err));
    if (factor == 0.0f && c->rope == PI_HF_ROPE_YARN && orig != 0 && orig <= c->shape.n_ctx_train)
        factor = (float)c->shape.n_ctx_train / (float)orig;
    if (factor == 0.0f)
        PI_FAIL(err, PI_E_CORRUPT, "%s: rope scaling \"%s\" without \"factor\"", r->path, type);
    c->shape.rope_factor = factor;
    if (c->rope == PI_HF_ROPE_LINEAR)
        c->shape.rope_scaling = PI_ROPE_LINEAR;
    else if (c->rope == PI_HF_ROPE_LLAMA3)
        PI_TRY(read_llama3(s, c, err));
    else
        PI_TRY(read_yarn(r, s, c, err));
out:
    return rc;
}

static enum pi_code read_rope(const struct rd *r, struct pi_hf_config *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *type = "default";
    struct rd s = *r;
    uint32_t orig = 0;
    float partial = 1.0f;

    PI_TRY(find_rope(r, &s.o, err));
    c->shape.rope_base = 10000.0f;
    PI_TRY(pi_json_f32(r->o, r->path, "rope_theta", 1.0, 1e12, &c->shape.rope_base, err));
    PI_TRY(pi_json_f32(s.o, r->path, "rope_theta", 1.0, 1e12, &c->shape.rope_base, err));
    PI_TRY(pi_json_string(s.o, r->path, "type", &type, err));
    PI_TRY(pi_json_string(s.o, r->path, "rope_type", &type, err));
    PI_TRY(pi_json_f32(r->o, r->path, "partial_rotary_factor", 0.0, 1.0, &partial, err));
    PI_TRY(pi_json_f32(s.o, r->path, "partial_rotary_factor", 0.0, 1.0, &partial, err));
    if (partial < 1.0f)
        PI_TRY(refuse(r, "\"partial_rotary_factor\" below 1", err));
    PI_TRY(pi_json_u32(s.o, r->path, "original_max_position_embeddings", 1, MAX_CTX, &orig, err));
    c->shape.rope_n_ctx_orig = orig != 0 ? orig : c->shape.n_ctx_train;
    if (strcmp(type, "default") != 0)
        PI_TRY(read_scaling(r, &s, type, orig, c, err));
out:
    return rc;
}

/* Within the window, sliding attention is full attention. */
static enum pi_code limit_window(const struct rd *r, struct pi_hf_config *c, struct pi_err *err)
{
    uint32_t window = 0;
    enum pi_code rc = pi_json_u32(r->o, r->path, "sliding_window", 1, MAX_CTX, &window, err);

    if (rc == PI_OK && window != 0 && window < c->shape.n_ctx_train) {
        pi_note(
            r->notes,
            "%s: sliding window attention is not built in: context limited to the window, %u of %u",
            r->path, window, c->shape.n_ctx_train);
        c->shape.n_ctx_train = window;
    }
    return rc;
}

static enum pi_code read_llama(const struct rd *r, bool mistral, const char *act_override,
                               struct pi_hf_config *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_shape *s = &c->shape;
    bool mlp_bias = false;

    PI_TRY(need_u32(r, "intermediate_size", PI_MAX_FF, &s->n_ff, err));
    s->n_head_kv = s->n_head;
    PI_TRY(pi_json_u32(r->o, r->path, "num_key_value_heads", 1, s->n_head, &s->n_head_kv, err));
    PI_TRY(pi_json_u32(r->o, r->path, "head_dim", 2, 65536, &s->head_dim, err));
    s->norm_eps = 1e-6f;
    PI_TRY(pi_json_f32(r->o, r->path, "rms_norm_eps", 0.0, 1.0, &s->norm_eps, err));
    PI_TRY(pi_json_bool(r->o, r->path, "attention_bias", &c->attn_bias, err));
    PI_TRY(pi_json_bool(r->o, r->path, "mlp_bias", &mlp_bias, err));
    if (mlp_bias)
        PI_TRY(refuse(r, "\"mlp_bias\": true", err));
    PI_TRY(read_activation(r, "hidden_act", "silu", act_override, c, err));
    s->gated = true;
    PI_TRY(read_rope(r, c, err));
    if (mistral)
        PI_TRY(limit_window(r, c, err));
out:
    return rc;
}

static enum pi_code read_opt(const struct rd *r, const char *act_override, struct pi_hf_config *c,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_shape *s = &c->shape;
    bool before = true, bias = true, affine = true, no_final = false;
    uint32_t proj = s->n_embd;

    PI_TRY(need_u32(r, "ffn_dim", PI_MAX_FF, &s->n_ff, err));
    PI_TRY(pi_json_bool(r->o, r->path, "do_layer_norm_before", &before, err));
    PI_TRY(pi_json_bool(r->o, r->path, "enable_bias", &bias, err));
    PI_TRY(pi_json_bool(r->o, r->path, "layer_norm_elementwise_affine", &affine, err));
    PI_TRY(pi_json_bool(r->o, r->path, "_remove_final_layer_norm", &no_final, err));
    PI_TRY(pi_json_u32(r->o, r->path, "word_embed_proj_dim", 1, PI_MAX_EMBD, &proj, err));
    if (!before)
        PI_TRY(refuse(r, "OPT with the norm behind the blocks (\"do_layer_norm_before\": false)",
                      err));
    if (proj != s->n_embd)
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "%s: \"word_embed_proj_dim\" %u other than \"hidden_size\" %u is not supported",
                r->path, proj, s->n_embd);
    if (!bias || !affine || no_final)
        PI_TRY(refuse(r, "OPT without biases, norm weights or final norm", err));
    s->n_head_kv = s->n_head;
    s->norm_eps = 1e-5f; /* torch's default: config.json has no key for it */
    s->layer_norm = true;
    s->learned_pos = true;
    s->pos_offset = 2;
    c->attn_bias = true;
    PI_TRY(read_activation(r, "activation_function", "relu", act_override, c, err));
out:
    return rc;
}

static enum pi_code check_shape(const struct rd *r, struct pi_shape *s, struct pi_err *err)
{
    if (s->head_dim == 0) {
        if (s->n_embd % s->n_head != 0)
            return pi_err_set(err, PI_E_CORRUPT,
                              "%s: \"hidden_size\" %u is no multiple of \"num_attention_heads\" %u",
                              r->path, s->n_embd, s->n_head);
        s->head_dim = s->n_embd / s->n_head;
    }
    if (s->n_head % s->n_head_kv != 0)
        return pi_err_set(
            err, PI_E_CORRUPT,
            "%s: \"num_attention_heads\" %u is no multiple of \"num_key_value_heads\" %u", r->path,
            s->n_head, s->n_head_kv);
    if (!s->learned_pos && s->head_dim % 2 != 0)
        return pi_err_set(err, PI_E_CORRUPT, "%s: rotary heads of odd width %u", r->path,
                          s->head_dim);
    if ((uint64_t)s->n_head * s->head_dim > PI_MAX_EMBD)
        return pi_err_set(err, PI_E_CORRUPT, "%s: %u heads of width %u", r->path, s->n_head,
                          s->head_dim);
    s->n_rot = s->learned_pos ? 0 : s->head_dim;
    s->rope_neox = !s->learned_pos;
    return PI_OK;
}

/* The last part of "_name_or_path", else of the directory. */
static void read_name(const struct rd *r, char *out, size_t n)
{
    const char *said = json_string_value(json_object_get(r->o, "_name_or_path"));
    char dir[PATH_MAX], full[PATH_MAX], *cut;

    (void)snprintf(dir, sizeof(dir), "%s", r->path);
    cut = strrchr(dir, '/');
    if (cut != NULL)
        cut[cut == dir] = '\0'; /* the root keeps its slash */
    if ((said == NULL || *said == '\0') && cut != NULL)
        said = realpath(dir, full);
    if (said != NULL && strrchr(said, '/') != NULL && strrchr(said, '/')[1] != '\0')
        said = strrchr(said, '/') + 1;
    (void)snprintf(out, n, "%s", said != NULL ? said : "model");
}

enum pi_code pi_hf_config_read(const struct pi_json *config, const char *act_override,
                               const struct pi_notes *notes, struct pi_hf_config *out,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_hf_config c = {0};
    struct rd r = {config->root, config->path, notes};
    bool mistral = false;

    PI_TRY(read_arch(&r, &c, &mistral, err));
    PI_TRY(need_u32(&r, "hidden_size", PI_MAX_EMBD, &c.shape.n_embd, err));
    PI_TRY(need_u32(&r, "num_hidden_layers", PI_MAX_LAYERS, &c.shape.n_layer, err));
    PI_TRY(need_u32(&r, "num_attention_heads", 65536, &c.shape.n_head, err));
    PI_TRY(need_u32(&r, "vocab_size", PI_MAX_VOCAB, &c.shape.n_vocab, err));
    c.shape.n_ctx_train = 2048;
    PI_TRY(pi_json_u32(r.o, r.path, "max_sequence_length", 1, MAX_CTX, &c.shape.n_ctx_train, err));
    PI_TRY(
        pi_json_u32(r.o, r.path, "max_position_embeddings", 1, MAX_CTX, &c.shape.n_ctx_train, err));
    c.tied = c.shape.arch == PI_ARCH_OPT;
    c.tie_said = pi_json_has(r.o, "tie_word_embeddings");
    PI_TRY(pi_json_bool(r.o, r.path, "tie_word_embeddings", &c.tied, err));
    PI_TRY(read_token_ids(&r, &c, err));
    if (c.shape.arch == PI_ARCH_OPT)
        PI_TRY(read_opt(&r, act_override, &c, err));
    else
        PI_TRY(read_llama(&r, mistral, act_override, &c, err));
    PI_TRY(check_shape(&r, &c.shape, err));
    read_name(&r, c.name, sizeof(c.name));
    *out = c;
out:
    return rc;
}
