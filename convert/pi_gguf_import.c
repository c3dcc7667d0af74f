#include "config.h"

#include "convert/pi_gguf_import.h"
#include "common/pi_shape.h"
#include "runtime/cpu/pi_cpu.h"

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

    if (memchr(t->name.p, '\0', t->name.n) != NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: the name of tensor %zu holds a NUL byte",
                          g->map.path, (size_t)(t - g->tensors));
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

enum pi_code pi_gguf_copy_keys(const struct pi_gguf *g, const struct pi_shape *s,
                               struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *arch = pi_arch_name(s->arch);
    char key[96];

    for (size_t i = 0; i < g->n_kv; i++) {
        bool drop = g->kv[i].key.n > 6 && memcmp(g->kv[i].key.p, "split.", 6) == 0;

        for (size_t k = 0; k < sizeof(dropped_keys) / sizeof(dropped_keys[0]); k++)
            drop = drop || pi_str_eq(g->kv[i].key, dropped_keys[k]);
        if (!drop)
            PI_TRY(pi_gguf_set_copy(w, &g->kv[i], err));
    }
    (void)snprintf(key, sizeof(key), "%s.hidden_activation", arch);
    PI_TRY(pi_gguf_set_string(w, key, pi_activation_name(s->act), err));
    if (s->act == PI_ACT_FATRELU) {
        (void)snprintf(key, sizeof(key), "%s.hidden_activation_threshold", arch);
        PI_TRY(pi_gguf_set_f32(w, key, s->act_threshold, err));
    }
    if (s->layer_norm) { /* PowerInfer's OPT files lack it and say a context of 2050 */
        (void)snprintf(key, sizeof(key), "%s.attention.layer_norm_epsilon", arch);
        PI_TRY(pi_gguf_set_f32(w, key, s->norm_eps, err));
    }
    if (s->learned_pos) {
        (void)snprintf(key, sizeof(key), "%s.context_length", arch);
        PI_TRY(pi_gguf_set_u32(w, key, s->n_ctx_train, err));
    }
out:
    return rc;
}

/* What of a stem somebody reads; its other tensors would be lost without a word, and the model be another one. */
struct place {
    const char *stem;
    bool weight, bias;
};

static bool has_place(const struct place *p, size_t n, const char *name, size_t name_n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t stem = strlen(p[i].stem);
        const struct pi_str end = {name + stem, name_n - stem};

        if (name_n > stem && memcmp(p[i].stem, name, stem) == 0 && *end.p == '.')
            return (p[i].weight && pi_str_eq(end, ".weight")) ||
                   (p[i].bias && pi_str_eq(end, ".bias"));
    }
    return false;
}

/* A layer's tensor, by its name behind "blk.N.". pi_model.c takes a bias of every projection. */
static bool has_place_in_layer(const struct pi_shape *s, const char *name, size_t n)
{
    static const char rotary[] = "attn_rot_embd"; /* frequencies that the keys say again */
    const size_t n_rotary = sizeof(rotary) - 1;
    const struct place known[] = {
        {"attn_norm", true, s->layer_norm},
        {"attn_norm_2", s->parallel, s->parallel && s->layer_norm},
        {"attn_q", true, true},
        {"attn_k", true, true},
        {"attn_v", true, true},
        {"attn_qkv", true, true},
        {"attn_output", true, true},
        {"attn_q_norm", s->qk_norm, false},
        {"attn_k_norm", s->qk_norm, false},
        {"ffn_norm", !s->parallel, !s->parallel && s->layer_norm},
        {"ffn_gate", s->gated, s->gated},
        {"ffn_up", true, true},
        {"ffn_down", true, true},
        {"ffn_down_t", true, true},
        {"fc1", true, true},
        {"fc2", true, true},
    };

    if (n >= n_rotary && memcmp(name, rotary, n_rotary) == 0 &&
        (n == n_rotary || name[n_rotary] == '.'))
        return true;
    return has_place(known, sizeof(known) / sizeof(known[0]), name, n);
}

/* Beside the layers: does it belong there? *foreign_out: it does not, and would change what is computed. */
static bool has_place_beside(const struct pi_shape *s, struct pi_str name, bool *foreign_out)
{
    const bool projected = s->n_embd_tok != s->n_embd;
    const struct place known[] = {
        {"token_embd", true, false},
        {"position_embd", s->learned_pos, false},
        {"project_in", projected, false},
        {"project_out", projected, false},
        {"output", true, false},
        {"output_norm", !s->post_norm, !s->post_norm && s->layer_norm},
        {"token_embd_norm", false, false},
    };

    *foreign_out = false;
    if (has_place(known, sizeof(known) / sizeof(known[0]), name.p, name.n) ||
        pi_str_eq(name, "rope_freqs.weight"))
        return true;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const size_t n = strlen(known[i].stem);

        *foreign_out = *foreign_out ||
                       (name.n > n && memcmp(known[i].stem, name.p, n) == 0 && name.p[n] == '.');
    }
    return false;
}

/* Is it a tensor of a layer, and if so does it belong there? A layer has one spelling: "blk.0.", not "blk.00.". */
static bool of_layer(const struct pi_gguf_tensor *t, const struct pi_shape *s, bool *fits)
{
    const char *p = t->name.p, *end = p + t->name.n, *digits;
    uint64_t layer = 0;

    if (t->name.n < 4 || memcmp(p, "blk.", 4) != 0)
        return false;
    p += 4;
    for (digits = p; p < end && *p >= '0' && *p <= '9' && layer < UINT32_MAX; p++)
        layer = 10 * layer + (uint64_t)(*p - '0');
    *fits = p > digits && (*digits != '0' || p == digits + 1) && p < end && *p == '.' &&
            layer < s->n_layer && has_place_in_layer(s, p + 1, (size_t)(end - p - 1));
    return true;
}

/* Query, key and value in one matrix or in three. */
static enum pi_code check_fused(const struct pi_gguf *g, const struct pi_shape *s,
                                struct pi_err *err)
{
    static const char *const ends[] = {"weight", "bias"}, *const parts[] = {"q", "k", "v"};
    char fused[64], part[64];

    for (uint32_t i = 0; i < 2 * s->n_layer; i++) {
        (void)snprintf(fused, sizeof(fused), "blk.%u.attn_qkv.%s", i / 2, ends[i % 2]);
        if (pi_gguf_find_tensor(g, fused) == NULL)
            continue;
        for (size_t k = 0; k < 6; k++) {
            (void)snprintf(part, sizeof(part), "blk.%u.attn_%s.%s", i / 2, parts[k / 2],
                           ends[k % 2]);
            if (pi_gguf_find_tensor(g, part) != NULL)
                return pi_err_set(err, PI_E_CORRUPT,
                                  "%s: both %s and %s: which of them counts is not said",
                                  g->map.path, part, fused);
        }
    }
    return PI_OK;
}

/* Integers, and types without kernels: better told now than when all is written. What files say of the rotation is not read. */
static bool is_read(const struct pi_gguf_tensor *t)
{
    static const char rotary[] = "attn_rot_embd";
    const struct pi_cpu_type *k = pi_cpu_get(PI_ISA_SCALAR)->type[t->type];

    return (k != NULL && k->to_f32 != NULL) ||
           memmem(t->name.p, t->name.n, rotary, sizeof(rotary) - 1) != NULL;
}

enum pi_code pi_gguf_check_names(const struct pi_gguf *g, const struct pi_shape *s,
                                 const struct pi_notes *notes, struct pi_err *err)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        const int n = (int)(t->name.n < 80 ? t->name.n : 80);
        bool known = false, foreign = true;

        if (!of_layer(t, s, &known))
            known = has_place_beside(s, t->name, &foreign);
        if (!known && foreign)
            return pi_err_set(err, PI_E_UNSUPPORTED,
                              "%s: tensor %.*s has no place in architecture %s of %u layers",
                              g->map.path, n, t->name.p, pi_arch_name(s->arch), s->n_layer);
        if (known && !is_read(t))
            return pi_err_set(err, PI_E_UNSUPPORTED,
                              "%s: tensor %.*s is %s, which no kernel here reads", g->map.path, n,
                              t->name.p, pi_type_name((uint32_t)t->type));
        if (!known)
            pi_note(notes, "%s: tensor %.*s is not used here; it is carried over", g->map.path, n,
                    t->name.p);
    }
    return check_fused(g, s, err);
}
