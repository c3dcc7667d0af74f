#include "config.h"

#include "convert/pi_gguf_import.h"
#include "common/pi_shape.h"

#include <stdio.h>
#include <string.h>

/* Keys of the file, not of the model: written anew or pointless in another file. */
static const char *const dropped_keys[] = {"general.alignment",
                                           "general.file_type",
                                           "general.quantization_version",
                                           "pi.crc32",
                                           "pi.header_crc32",
                                           "pi.created_by",
                                           "pi.model.lineage",
                                           "powerinfer.sparse_threshold"};

static bool ends_with(struct pi_str s, const char *end)
{
    size_t n = strlen(end);

    return s.n >= n && memcmp(s.p + s.n - n, end, n) == 0;
}

static bool is_predictor(struct pi_str name)
{
    return name.n > 4 && memcmp(name.p, "blk.", 4) == 0 &&
           (ends_with(name, ".fc1.weight") || ends_with(name, ".fc2.weight") ||
            ends_with(name, ".fc1.bias") || ends_with(name, ".fc2.bias"));
}

static enum pi_code check_source(const struct pi_gguf *g, struct pi_err *err)
{
    if (pi_gguf_find(g, "pi.artifact.kind") != NULL)
        return pi_err_set(err, PI_E_UNSUPPORTED, "%s: an artifact of this toolchain, no model",
                          g->map.path);
    return PI_OK;
}

static enum pi_code add_tensor(const struct pi_gguf_tensor *t, const struct pi_gguf *g,
                               struct pi_plan *plan, struct pi_err *err)
{
    const struct pi_type_info *info = pi_type_info((uint32_t)t->type);
    bool weights = info->quantised || t->type == PI_TYPE_F32 || t->type == PI_TYPE_F16 ||
                   t->type == PI_TYPE_BF16;
    bool down = ends_with(t->name, ".ffn_down.weight"),
         down_bias = ends_with(t->name, ".ffn_down.bias");
    struct pi_plan_tensor *p;
    char name[256];

    if (down || down_bias) {
        size_t stem = t->name.n - strlen(down ? ".weight" : ".bias");
        (void)snprintf(name, sizeof(name), "%.*s_t.%s", (int)stem, t->name.p,
                       down ? "weight" : "bias");
        if (pi_gguf_find_tensor(g, name) != NULL)
            return pi_err_set(err, PI_E_CORRUPT,
                              "%s: both %.*s and %s: which of them counts is not said", g->map.path,
                              (int)t->name.n, t->name.p, name);
    } else {
        (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.n, t->name.p);
    }
    p = pi_plan_add(plan, name, err);
    if (p == NULL)
        return PI_E_NOMEM;
    p->n_dims = t->n_dims;
    p->n_cols = t->ne[0];
    p->n_rows = t->ne[1];
    p->transpose = down && t->n_dims == 2;
    if (p->transpose) {
        p->n_cols = t->ne[1];
        p->n_rows = t->ne[0];
    }
    p->src_type = t->type;
    p->data = t->data;
    p->src_path = g->map.path;
    p->src_name = t->name.p;
    p->src_name_n = t->name.n;
    p->verbatim = !weights || t->n_dims > 2;
    p->bytes = t->bytes;
    memcpy(p->ne, t->ne, sizeof(p->ne));
    return PI_OK;
}

enum pi_code pi_gguf_map(const struct pi_gguf *g, struct pi_plan *plan, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(check_source(g, err));
    for (size_t i = 0; i < g->n_tensors; i++) {
        if (!is_predictor(g->tensors[i].name))
            PI_TRY(add_tensor(&g->tensors[i], g, plan, err));
    }
out:
    return rc;
}

enum pi_code pi_gguf_copy_keys(const struct pi_gguf *g, const char *act_override,
                               struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_shape s;
    char key[96];
    const char *arch;

    PI_TRY(pi_shape_read(g, act_override, &s, err));
    arch = pi_arch_name(s.arch);
    for (size_t i = 0; i < g->n_kv; i++) {
        bool drop = g->kv[i].key.n > 6 && memcmp(g->kv[i].key.p, "split.", 6) == 0;

        for (size_t k = 0; k < sizeof(dropped_keys) / sizeof(dropped_keys[0]); k++)
            drop = drop || pi_str_eq(g->kv[i].key, dropped_keys[k]);
        if (!drop)
            PI_TRY(pi_gguf_set_copy(w, &g->kv[i], err));
    }
    (void)snprintf(key, sizeof(key), "%s.hidden_activation", arch);
    PI_TRY(pi_gguf_set_string(w, key, pi_activation_name(s.act), err));
    if (s.act == PI_ACT_FATRELU) {
        (void)snprintf(key, sizeof(key), "%s.hidden_activation_threshold", arch);
        PI_TRY(pi_gguf_set_f32(w, key, s.act_threshold, err));
    }
    if (s.layer_norm) { /* PowerInfer's OPT files lack it and say a context of 2050 */
        (void)snprintf(key, sizeof(key), "%s.attention.layer_norm_epsilon", arch);
        PI_TRY(pi_gguf_set_f32(w, key, s.norm_eps, err));
    }
    if (s.learned_pos) {
        (void)snprintf(key, sizeof(key), "%s.context_length", arch);
        PI_TRY(pi_gguf_set_u32(w, key, s.n_ctx_train, err));
    }
out:
    return rc;
}

/* Parts of a layer, with what must be so for them to have a place; a weight or a bias. */
static bool has_place(const struct pi_shape *s, const char *part, size_t n)
{
    const struct {
        const char *name;
        bool is_there;
    } known[] = {
        {"attn_norm", true},
        {"attn_norm_2", s->parallel},
        {"attn_q", true},
        {"attn_k", true},
        {"attn_v", true},
        {"attn_qkv", true},
        {"attn_output", true},
        {"attn_q_norm", s->qk_norm},
        {"attn_k_norm", s->qk_norm},
        {"ffn_norm", true},
        {"ffn_gate", s->gated},
        {"ffn_up", true},
        {"ffn_down", true},
        {"ffn_down_t", true},
        {"fc1", true},
        {"fc2", true},
        {"attn_rot_embd", true},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, part, n) == 0)
            return known[i].is_there;
    return false;
}

/* Is it a tensor of a layer, and if so does it belong there? */
static bool of_layer(const struct pi_gguf_tensor *t, const struct pi_shape *s, bool *fits)
{
    const char *p = t->name.p, *end = p + t->name.n, *dot;
    uint64_t layer = 0;

    if (t->name.n < 5 || memcmp(p, "blk.", 4) != 0)
        return false;
    for (p += 4; p < end && *p >= '0' && *p <= '9' && layer < UINT32_MAX; p++)
        layer = 10 * layer + (uint64_t)(*p - '0');
    dot = p < end && *p == '.' ? memchr(p + 1, '.', (size_t)(end - p - 1)) : NULL;
    *fits = dot != NULL && layer < s->n_layer && has_place(s, p + 1, (size_t)(dot - p - 1));
    return true;
}

enum pi_code pi_gguf_check_names(const struct pi_gguf *g, const struct pi_shape *s,
                                 const struct pi_notes *notes, struct pi_err *err)
{
    static const char *const beside[] = {
        "token_embd.weight", "position_embd.weight", "output_norm.weight", "output_norm.bias",
        "output.weight",     "rope_freqs.weight",    "project_in.weight",  "project_out.weight"};

    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        const int n = (int)(t->name.n < 80 ? t->name.n : 80);
        bool known = false;

        if (of_layer(t, s, &known)) {
            if (!known)
                return pi_err_set(err, PI_E_UNSUPPORTED,
                                  "%s: tensor %.*s has no place in architecture %s of %u layers",
                                  g->map.path, n, t->name.p, pi_arch_name(s->arch), s->n_layer);
            continue;
        }
        for (size_t k = 0; k < sizeof(beside) / sizeof(beside[0]); k++)
            known = known || pi_str_eq(t->name, beside[k]);
        if (!known)
            pi_note(notes, "%s: tensor %.*s is not used here; it is carried over", g->map.path, n,
                    t->name.p);
    }
    return PI_OK;
}
