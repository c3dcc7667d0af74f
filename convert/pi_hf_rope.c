/*
 * Rotary embedding as config.json describes it, in its old and new forms.
 */
#include "config.h"

#include "convert/pi_hf_int.h"

#include <math.h>
#include <string.h>

static enum pi_code read_yarn(const struct pi_hf_rd *r, const struct pi_hf_rd *s,
                              struct pi_hf_config *c, struct pi_err *err)
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
        PI_TRY(pi_hf_refuse(r, "yarn with \"truncate\": false", err));
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

static enum pi_code read_llama3(const struct pi_hf_rd *s, struct pi_hf_config *c,
                                struct pi_err *err)
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
static void limit_dynamic(const struct pi_hf_rd *r, uint32_t orig, struct pi_hf_config *c)
{
    if (orig != 0 && orig < c->shape.n_ctx_train)
        c->shape.n_ctx_train = orig;
    pi_note(
        r->notes,
        "%s: rope scaling \"dynamic\" is exact up to the original context: context limited to %u",
        r->path, c->shape.n_ctx_train);
}

/* The object that holds scaling: "rope_parameters", or "rope_scaling" of older configurations; NULL without either. */
static enum pi_code find_rope(const struct pi_hf_rd *r, const json_t **out, struct pi_err *err)
{
    /* where both are there the old name is what somebody added: transformers goes by it too */
    const char *name = pi_json_has(r->o, "rope_scaling") ? "rope_scaling" : "rope_parameters",
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

static enum pi_code read_scaling(const struct pi_hf_rd *r, const struct pi_hf_rd *s,
                                 const char *type, uint32_t orig, struct pi_hf_config *c,
                                 struct pi_err *err)
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

enum pi_code pi_hf_read_rope(const struct pi_hf_rd *r, bool partial, struct pi_hf_config *c,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *type = "default";
    struct pi_hf_rd s = *r;
    uint32_t orig = 0;
    float share = c->rotary_share;

    PI_TRY(find_rope(r, &s.o, err));
    c->shape.rope_base = 10000.0f;
    PI_TRY(pi_json_f32(r->o, r->path, "rope_theta", 1.0, 1e12, &c->shape.rope_base, err));
    if (json_is_object(json_object_get(r->o, "rope_parameters")))
        PI_TRY(pi_json_f32(json_object_get(r->o, "rope_parameters"), r->path, "rope_theta", 1.0,
                           1e12, &c->shape.rope_base, err));
    PI_TRY(pi_json_f32(s.o, r->path, "rope_theta", 1.0, 1e12, &c->shape.rope_base, err));
    PI_TRY(pi_json_string(s.o, r->path, "type", &type, err));
    PI_TRY(pi_json_string(s.o, r->path, "rope_type", &type, err));
    PI_TRY(pi_json_f32(r->o, r->path, "partial_rotary_factor", 0.0, 1.0, &share, err));
    PI_TRY(pi_json_f32(s.o, r->path, "partial_rotary_factor", 0.0, 1.0, &share, err));
    if (share < 1.0f && !partial)
        PI_TRY(pi_hf_refuse(r, "\"partial_rotary_factor\" below 1 in this architecture", err));
    c->rotary_share = share;
    PI_TRY(pi_json_u32(s.o, r->path, "original_max_position_embeddings", 1, PI_HF_MAX_CTX, &orig,
                       err));
    c->shape.rope_n_ctx_orig = orig != 0 ? orig : c->shape.n_ctx_train;
    if (strcmp(type, "default") != 0)
        PI_TRY(read_scaling(r, &s, type, orig, c, err));
out:
    return rc;
}
