#include "config.h"

#include "convert/pi_hf_int.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum pi_code pi_hf_need_u32(const struct pi_hf_rd *r, const char *key, uint32_t max, uint32_t *out,
                            struct pi_err *err)
{
    if (!pi_json_has(r->o, key))
        return pi_err_set(err, PI_E_CORRUPT, "%s: no \"%s\"", r->path, key);
    return pi_json_u32(r->o, r->path, key, 1, max, out, err);
}

enum pi_code pi_hf_refuse(const struct pi_hf_rd *r, const char *what, struct pi_err *err)
{
    return pi_err_set(err, PI_E_UNSUPPORTED, "%s: %s is not supported", r->path, what);
}

/* "hidden_act", "activation_function", "activation": which of them says it differs from class to class and from year to year. */
static enum pi_code read_activation(const struct pi_hf_rd *r, const struct pi_hf_class *k,
                                    struct pi_hf_config *c, struct pi_err *err)
{
    static const char *const names[] = {"hidden_act", "activation_function", "activation"};
    static const char *const thresholds[] = {"hidden_act_param", "hidden_act_threshold",
                                             "activation_threshold"};
    enum pi_code rc = PI_OK;
    const char *name = NULL;
    float threshold = -1.0f;

    for (size_t i = 0; i < sizeof(thresholds) / sizeof(thresholds[0]); i++)
        PI_TRY(pi_json_f32(r->o, r->path, thresholds[i], 0.0, 1e6, &threshold, err));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *said = NULL;

        PI_TRY(pi_json_string(r->o, r->path, names[i], &said, err));
        if (said != NULL && name != NULL && strcmp(said, name) != 0)
            PI_FAIL(err, PI_E_CORRUPT, "%s: two activations, \"%.40s\" and \"%.40s\"", r->path,
                    name, said);
        name = said != NULL ? said : name;
    }
    name = name != NULL ? name : k->act;
    if (r->act_override != NULL)
        PI_TRY(pi_activation_parse(r->act_override, &c->shape.act, &threshold, err));
    else if (name == NULL)
        PI_FAIL(err, PI_E_CORRUPT, "%s: no \"hidden_act\"", r->path);
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

/* The same under an older name. */
static enum pi_code need_either(const struct pi_hf_rd *r, const char *key, const char *old,
                                uint32_t max, uint32_t *out, struct pi_err *err)
{
    return pi_hf_need_u32(r, !pi_json_has(r->o, key) && pi_json_has(r->o, old) ? old : key, max,
                          out, err);
}

static enum pi_code read_token_ids(const struct pi_hf_rd *r, struct pi_hf_config *c,
                                   struct pi_err *err)
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

static enum pi_code check_shape(const struct pi_hf_rd *r, struct pi_hf_config *c,
                                struct pi_err *err)
{
    struct pi_shape *s = &c->shape;

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
    s->n_rot = s->learned_pos ? 0 : (uint32_t)(c->rotary_share * (float)s->head_dim);
    if (!s->learned_pos && (s->n_rot == 0 || s->n_rot % 2 != 0))
        return pi_err_set(err, PI_E_CORRUPT, "%s: rotary heads of odd width %u", r->path, s->n_rot);
    if ((uint64_t)s->n_head * s->head_dim > PI_MAX_EMBD)
        return pi_err_set(err, PI_E_CORRUPT, "%s: %u heads of width %u", r->path, s->n_head,
                          s->head_dim);
    return PI_OK;
}

/* The last part of "_name_or_path", else of the directory. */
static void read_name(const struct pi_hf_rd *r, char *out, size_t n)
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
    struct pi_hf_config c = {.layers = "layers.", .rotary_share = 1.0f};
    struct pi_hf_rd r = {config->root, config->path, notes, act_override};
    const struct pi_hf_class *k = NULL;

    PI_TRY(pi_hf_class_find(&r, &k, err));
    if (pi_json_has(r.o, "quantization_config"))
        PI_TRY(pi_hf_refuse(&r, "a quantised checkpoint (\"quantization_config\")", err));
    pi_shape_set_arch(&c.shape, k->arch);
    PI_TRY(pi_hf_need_u32(&r, "hidden_size", PI_MAX_EMBD, &c.shape.n_embd, err));
    PI_TRY(need_either(&r, "num_hidden_layers", "n_layer", PI_MAX_LAYERS, &c.shape.n_layer, err));
    PI_TRY(need_either(&r, "num_attention_heads", "n_head", 65536, &c.shape.n_head, err));
    PI_TRY(pi_hf_need_u32(&r, "vocab_size", PI_MAX_VOCAB, &c.shape.n_vocab, err));
    c.shape.n_head_kv = c.shape.n_head;
    c.shape.n_embd_tok = c.shape.n_embd;
    c.shape.n_ctx_train = 2048;
    PI_TRY(pi_json_u32(r.o, r.path, "max_sequence_length", 1, PI_HF_MAX_CTX, &c.shape.n_ctx_train,
                       err));
    PI_TRY(pi_json_u32(r.o, r.path, "max_position_embeddings", 1, PI_HF_MAX_CTX,
                       &c.shape.n_ctx_train, err));
    c.tie_said = pi_json_has(r.o, "tie_word_embeddings");
    PI_TRY(read_token_ids(&r, &c, err));
    PI_TRY(read_activation(&r, k, &c, err));
    PI_TRY(k->read(&r, k, &c, err));
    PI_TRY(pi_json_bool(r.o, r.path, "tie_word_embeddings", &c.tied, err));
    PI_TRY(check_shape(&r, &c, err));
    read_name(&r, c.name, sizeof(c.name));
    *out = c;
out:
    return rc;
}
