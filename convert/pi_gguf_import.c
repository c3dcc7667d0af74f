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
