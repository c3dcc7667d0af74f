/*
 * Which tensor of a Hugging Face checkpoint becomes which of a GGUF file, as tables.
 */
#include "config.h"

#include "convert/pi_hf.h"
#include "common/pi_alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum dim {
    D_1,
    D_EMBD,
    D_TOK, /* width of the token embeddings */
    D_HEAD,
    D_QKV,
    D_FF,
    D_Q,
    D_KV,
    D_VOCAB,
    D_POS
};
enum op {
    OP_PLAIN,
    OP_TRANSPOSE,
    OP_NORM, /* + 1 where the architecture stores norms less 1 */
    OP_ROT_Q,
    OP_ROT_KV,
    OP_QKV /* rows grouped by key/value head become all of q, all of k, all of v */
};
enum when {
    ALWAYS,
    IF_QKV_BIAS,
    IF_O_BIAS,
    IF_MLP_BIAS,
    IF_GATED,
    IF_GATE_BIAS,
    IF_LAYER_NORM,
    IF_PRE_NORM,
    IF_QK_NORM,
    IF_ONE_NORM,
    IF_TWO_NORMS,
    IF_PROJECTED,
    IF_UNTIED
};

struct row {
    const char *hf, *gguf; /* of a layer: behind "layers.N." and "blk.N." */
    enum dim rows, cols;   /* as the checkpoint has them */
    enum op op;
    enum when when;
};

/* Llama and what descends from it: names and order are the same, parts come and go. */
static const struct row llama_model[] = {
    {"embed_tokens.weight", "token_embd.weight", D_VOCAB, D_EMBD, OP_PLAIN, ALWAYS},
    {"norm.weight", "output_norm.weight", D_1, D_EMBD, OP_NORM, ALWAYS},
    {"norm.bias", "output_norm.bias", D_1, D_EMBD, OP_PLAIN, IF_LAYER_NORM},
    {"lm_head.weight", "output.weight", D_VOCAB, D_EMBD, OP_PLAIN, IF_UNTIED},
    {NULL, NULL, D_1, D_1, OP_PLAIN, ALWAYS},
};

static const struct row llama_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight", D_1, D_EMBD, OP_NORM, ALWAYS},
    {"input_layernorm.bias", "attn_norm.bias", D_1, D_EMBD, OP_PLAIN, IF_LAYER_NORM},
    {"self_attn.q_proj.weight", "attn_q.weight", D_Q, D_EMBD, OP_ROT_Q, ALWAYS},
    {"self_attn.q_proj.bias", "attn_q.bias", D_1, D_Q, OP_ROT_Q, IF_QKV_BIAS},
    {"self_attn.k_proj.weight", "attn_k.weight", D_KV, D_EMBD, OP_ROT_KV, ALWAYS},
    {"self_attn.k_proj.bias", "attn_k.bias", D_1, D_KV, OP_ROT_KV, IF_QKV_BIAS},
    {"self_attn.v_proj.weight", "attn_v.weight", D_KV, D_EMBD, OP_PLAIN, ALWAYS},
    {"self_attn.v_proj.bias", "attn_v.bias", D_1, D_KV, OP_PLAIN, IF_QKV_BIAS},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", D_1, D_HEAD, OP_PLAIN, IF_QK_NORM},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", D_1, D_HEAD, OP_PLAIN, IF_QK_NORM},
    {"self_attn.o_proj.weight", "attn_output.weight", D_EMBD, D_Q, OP_PLAIN, ALWAYS},
    {"self_attn.o_proj.bias", "attn_output.bias", D_1, D_EMBD, OP_PLAIN, IF_O_BIAS},
    {"post_attention_layernorm.weight", "ffn_norm.weight", D_1, D_EMBD, OP_NORM, ALWAYS},
    {"post_attention_layernorm.bias", "ffn_norm.bias", D_1, D_EMBD, OP_PLAIN, IF_LAYER_NORM},
    {"mlp.gate_proj.weight", "ffn_gate.weight", D_FF, D_EMBD, OP_PLAIN, IF_GATED},
    {"mlp.gate_proj.bias", "ffn_gate.bias", D_1, D_FF, OP_PLAIN, IF_GATE_BIAS},
    {"mlp.up_proj.weight", "ffn_up.weight", D_FF, D_EMBD, OP_PLAIN, ALWAYS},
    {"mlp.up_proj.bias", "ffn_up.bias", D_1, D_FF, OP_PLAIN, IF_MLP_BIAS},
    {"mlp.down_proj.weight", "ffn_down_t.weight", D_EMBD, D_FF, OP_TRANSPOSE, ALWAYS},
    {"mlp.down_proj.bias", "ffn_down_t.bias", D_1, D_EMBD, OP_PLAIN, IF_MLP_BIAS},
    {NULL, NULL, D_1, D_1, OP_PLAIN, ALWAYS},
};

static const struct row opt_model[] = {
    {"embed_tokens.weight", "token_embd.weight", D_VOCAB, D_TOK, OP_PLAIN, ALWAYS},
    {"project_in.weight", "project_in.weight", D_EMBD, D_TOK, OP_PLAIN, IF_PROJECTED},
    {"embed_positions.weight", "position_embd.weight", D_POS, D_EMBD, OP_PLAIN, ALWAYS},
    {"final_layer_norm.weight", "output_norm.weight", D_1, D_EMBD, OP_PLAIN, IF_PRE_NORM},
    {"final_layer_norm.bias", "output_norm.bias", D_1, D_EMBD, OP_PLAIN, IF_PRE_NORM},
    {"project_out.weight", "project_out.weight", D_TOK, D_EMBD, OP_PLAIN, IF_PROJECTED},
    {"lm_head.weight", "output.weight", D_VOCAB, D_TOK, OP_PLAIN, IF_UNTIED},
    {NULL, NULL, D_1, D_1, OP_PLAIN, ALWAYS},
};

static const struct row opt_layer[] = {
    {"self_attn_layer_norm.weight", "attn_norm.weight", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {"self_attn_layer_norm.bias", "attn_norm.bias", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {"self_attn.q_proj.weight", "attn_q.weight", D_Q, D_EMBD, OP_PLAIN, ALWAYS},
    {"self_attn.q_proj.bias", "attn_q.bias", D_1, D_Q, OP_PLAIN, ALWAYS},
    {"self_attn.k_proj.weight", "attn_k.weight", D_KV, D_EMBD, OP_PLAIN, ALWAYS},
    {"self_attn.k_proj.bias", "attn_k.bias", D_1, D_KV, OP_PLAIN, ALWAYS},
    {"self_attn.v_proj.weight", "attn_v.weight", D_KV, D_EMBD, OP_PLAIN, ALWAYS},
    {"self_attn.v_proj.bias", "attn_v.bias", D_1, D_KV, OP_PLAIN, ALWAYS},
    {"self_attn.out_proj.weight", "attn_output.weight", D_EMBD, D_Q, OP_PLAIN, ALWAYS},
    {"self_attn.out_proj.bias", "attn_output.bias", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {"final_layer_norm.weight", "ffn_norm.weight", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {"final_layer_norm.bias", "ffn_norm.bias", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {"fc1.weight", "ffn_up.weight", D_FF, D_EMBD, OP_PLAIN, ALWAYS},
    {"fc1.bias", "ffn_up.bias", D_1, D_FF, OP_PLAIN, ALWAYS},
    {"fc2.weight", "ffn_down_t.weight", D_EMBD, D_FF, OP_TRANSPOSE, ALWAYS},
    {"fc2.bias", "ffn_down_t.bias", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {NULL, NULL, D_1, D_1, OP_PLAIN, ALWAYS},
};

static const struct row falcon_model[] = {
    {"word_embeddings.weight", "token_embd.weight", D_VOCAB, D_EMBD, OP_PLAIN, ALWAYS},
    {"ln_f.weight", "output_norm.weight", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {"ln_f.bias", "output_norm.bias", D_1, D_EMBD, OP_PLAIN, ALWAYS},
    {"lm_head.weight", "output.weight", D_VOCAB, D_EMBD, OP_PLAIN, IF_UNTIED},
    {NULL, NULL, D_1, D_1, OP_PLAIN, ALWAYS},
};

static const struct row falcon_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight", D_1, D_EMBD, OP_PLAIN, IF_ONE_NORM},
    {"input_layernorm.bias", "attn_norm.bias", D_1, D_EMBD, OP_PLAIN, IF_ONE_NORM},
    {"ln_mlp.weight", "attn_norm.weight", D_1, D_EMBD, OP_PLAIN, IF_TWO_NORMS},
    {"ln_mlp.bias", "attn_norm.bias", D_1, D_EMBD, OP_PLAIN, IF_TWO_NORMS},
    {"ln_attn.weight", "attn_norm_2.weight", D_1, D_EMBD, OP_PLAIN, IF_TWO_NORMS},
    {"ln_attn.bias", "attn_norm_2.bias", D_1, D_EMBD, OP_PLAIN, IF_TWO_NORMS},
    {"self_attention.query_key_value.weight", "attn_qkv.weight", D_QKV, D_EMBD, OP_QKV, ALWAYS},
    {"self_attention.query_key_value.bias", "attn_qkv.bias", D_1, D_QKV, OP_QKV, IF_QKV_BIAS},
    {"self_attention.dense.weight", "attn_output.weight", D_EMBD, D_Q, OP_PLAIN, ALWAYS},
    {"self_attention.dense.bias", "attn_output.bias", D_1, D_EMBD, OP_PLAIN, IF_O_BIAS},
    {"mlp.dense_h_to_4h.weight", "ffn_up.weight", D_FF, D_EMBD, OP_PLAIN, ALWAYS},
    {"mlp.dense_h_to_4h.bias", "ffn_up.bias", D_1, D_FF, OP_PLAIN, IF_MLP_BIAS},
    {"mlp.dense_4h_to_h.weight", "ffn_down_t.weight", D_EMBD, D_FF, OP_TRANSPOSE, ALWAYS},
    {"mlp.dense_4h_to_h.bias", "ffn_down_t.bias", D_1, D_EMBD, OP_PLAIN, IF_MLP_BIAS},
    {NULL, NULL, D_1, D_1, OP_PLAIN, ALWAYS},
};

/* Names that checkpoints carry and that hold nothing to keep. */
static const char *const ignored[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached",
                                      "rotary_emb.sin_cached", "attn.masked_bias"};

static const char *const prefixes[] = {"model.", "", "model.decoder.", "decoder.", "transformer."};

struct mapper {
    const struct pi_hf_config *c;
    const struct pi_source *src;
    struct pi_plan *plan;
    bool *used; /* (src->n) */
    bool tied;
};

const struct pi_src_tensor *pi_hf_find(const struct pi_source *src, const char *base)
{
    char name[256];

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        int n = snprintf(name, sizeof(name), "%s%s", prefixes[i], base);
        const struct pi_src_tensor *t = n < (int)sizeof(name) ? pi_source_find(src, name) : NULL;
        if (t != NULL)
            return t;
    }
    return NULL;
}

static uint64_t dim_of(const struct pi_shape *s, enum dim d)
{
    switch (d) {
    case D_EMBD:
        return s->n_embd;
    case D_TOK:
        return s->n_embd_tok;
    case D_HEAD:
        return s->head_dim;
    case D_QKV:
        return ((uint64_t)s->n_head + 2 * (uint64_t)s->n_head_kv) * s->head_dim;
    case D_FF:
        return s->n_ff;
    case D_Q:
        return (uint64_t)s->n_head * s->head_dim;
    case D_KV:
        return (uint64_t)s->n_head_kv * s->head_dim;
    case D_VOCAB:
        return s->n_vocab;
    case D_POS:
        return (uint64_t)s->n_ctx_train + s->pos_offset;
    case D_1:
        break;
    }
    return 1;
}

static enum pi_code check_source(const struct pi_src_tensor *t, const struct row *r,
                                 const struct pi_shape *s, struct pi_err *err)
{
    uint64_t rows = dim_of(s, r->rows), cols = dim_of(s, r->cols);
    uint32_t n_dims = r->rows == D_1 ? 1 : 2;

    if (!t->readable)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: tensor %s is %s (supported: " PI_SRC_DTYPES ")", t->path, t->name,
                          t->dtype);
    if (t->n_dims != n_dims || t->dim[0] != (n_dims == 1 ? cols : rows) ||
        t->dim[1] != (n_dims == 1 ? 1 : cols))
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor %s is [%llu, %llu] where config.json asks for [%llu, %llu]",
                          t->path, t->name, (unsigned long long)t->dim[0],
                          (unsigned long long)t->dim[1],
                          (unsigned long long)(n_dims == 1 ? cols : rows),
                          (unsigned long long)(n_dims == 1 ? 1 : cols));
    return PI_OK;
}

static enum pi_code add_mapped(struct mapper *m, const struct row *r, const struct pi_src_tensor *t,
                               const char *name, struct pi_err *err)
{
    const struct pi_shape *s = &m->c->shape;
    enum pi_code rc = check_source(t, r, s, err);
    struct pi_plan_tensor *p;

    if (rc != PI_OK)
        return rc;
    p = pi_plan_add(m->plan, name, err);
    if (p == NULL)
        return PI_E_NOMEM;
    p->n_dims = t->n_dims;
    p->n_rows = dim_of(s, r->op == OP_TRANSPOSE ? r->cols : r->rows);
    p->n_cols = dim_of(s, r->op == OP_TRANSPOSE ? r->rows : r->cols);
    p->src_type = t->type;
    p->data = t->data;
    p->src_path = t->path;
    p->src_name = t->name;
    p->src_name_n = strlen(t->name);
    p->transpose = r->op == OP_TRANSPOSE;
    if (!s->rope_neox)
        p->rot_heads = r->op == OP_ROT_Q ? s->n_head : r->op == OP_ROT_KV ? s->n_head_kv : 0;
    if (r->op == OP_QKV) {
        p->qkv_groups = s->n_head_kv;
        p->qkv_queries = s->n_head / s->n_head_kv;
    }
    p->add = r->op == OP_NORM && m->c->norm_plus_one ? 1.0f : 0.0f;
    m->used[t - m->src->t] = true;
    return PI_OK;
}

static bool is_there(const struct mapper *m, enum when when)
{
    const struct pi_hf_config *c = m->c;

    switch (when) {
    case ALWAYS:
        break;
    case IF_QKV_BIAS:
        return c->qkv_bias;
    case IF_O_BIAS:
        return c->o_bias;
    case IF_MLP_BIAS:
        return c->mlp_bias;
    case IF_GATED:
        return c->shape.gated;
    case IF_GATE_BIAS:
        return c->shape.gated && c->mlp_bias;
    case IF_LAYER_NORM:
        return c->shape.layer_norm;
    case IF_PRE_NORM:
        return !c->shape.post_norm;
    case IF_QK_NORM:
        return c->shape.qk_norm;
    case IF_ONE_NORM:
        return !c->two_norms;
    case IF_TWO_NORMS:
        return c->two_norms;
    case IF_PROJECTED:
        return c->shape.n_embd_tok != c->shape.n_embd;
    case IF_UNTIED:
        return !m->tied;
    }
    return true;
}

/* layer < 0: the tensors outside of the blocks. */
static enum pi_code map_rows(struct mapper *m, const struct row *rows, int64_t layer,
                             struct pi_err *err)
{
    for (const struct row *r = rows; r->hf != NULL; r++) {
        char hf[128], name[64];
        const struct pi_src_tensor *t;

        if (!is_there(m, r->when))
            continue;
        (void)snprintf(hf, sizeof(hf), "%s", r->hf);
        (void)snprintf(name, sizeof(name), "%s", r->gguf);
        if (layer >= 0) {
            (void)snprintf(hf, sizeof(hf), "%s%lld.%s", m->c->layers, (long long)layer, r->hf);
            (void)snprintf(name, sizeof(name), "blk.%lld.%s", (long long)layer, r->gguf);
        }
        t = pi_hf_find(m->src, hf);
        if (t == NULL)
            return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %s is missing", m->src->maps[0].path,
                              hf);
        enum pi_code rc = add_mapped(m, r, t, name, err);
        if (rc != PI_OK)
            return rc;
    }
    return PI_OK;
}

static bool is_ignored(const struct mapper *m, const char *name)
{
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
        size_t n = strlen(name), k = strlen(ignored[i]);
        if (n >= k && strcmp(name + n - k, ignored[i]) == 0)
            return true;
    }
    return m->tied && strcmp(name, "lm_head.weight") == 0;
}

/* Tensors that nobody asked for, of layers or outside of them: how many, and the names of the first. */
struct left_over {
    size_t n, at;
    char list[320];
};

static void list_left_over(const struct mapper *m, bool of_layers, struct left_over *out)
{
    *out = (struct left_over){.n = 0};
    for (size_t i = 0; i < m->src->n; i++) {
        const char *name = m->src->t[i].name;
        if (m->used[i] || is_ignored(m, name) || (strstr(name, m->c->layers) != NULL) != of_layers)
            continue;
        if (out->n++ < 6 && out->at < sizeof(out->list) - 1) {
            int k = snprintf(out->list + out->at, sizeof(out->list) - out->at, "%s%.60s",
                             out->n > 1 ? ", " : "", name);
            out->at += k > 0 ? (size_t)k : 0;
        }
    }
}

/* A layer with parts that we do not compute is another architecture. What stands beside the layers (another head, counters of training) is left out. */
static enum pi_code check_all_used(const struct mapper *m, const struct pi_notes *notes,
                                   struct pi_err *err)
{
    struct left_over x;

    list_left_over(m, true, &x);
    if (x.n > 0)
        return pi_err_set(
            err, PI_E_UNSUPPORTED, "%s: %zu tensor%s without a place in this architecture: %s%s",
            m->src->maps[0].path, x.n, x.n == 1 ? "" : "s", x.list, x.n > 6 ? ", …" : "");
    list_left_over(m, false, &x);
    if (x.n > 0)
        pi_note(notes, "%s: %zu tensor%s beside the layers without a use here, left out: %s%s",
                m->src->maps[0].path, x.n, x.n == 1 ? "" : "s", x.list, x.n > 6 ? ", …" : "");
    return PI_OK;
}

static enum pi_code add_rope_factors(struct mapper *m, struct pi_err *err)
{
    struct pi_plan_tensor *p = pi_plan_add(m->plan, "rope_freqs.weight", err);

    if (p == NULL)
        return PI_E_NOMEM;
    p->n_dims = 1;
    p->n_rows = 1;
    p->n_cols = m->c->shape.n_rot / 2;
    p->src_type = PI_TYPE_F32;
    p->src_path = "config.json";
    p->src_name = "rope_parameters";
    p->src_name_n = strlen(p->src_name);
    p->owned = pi_calloc_array((size_t)p->n_cols, sizeof(float), err);
    if (p->owned == NULL)
        return PI_E_NOMEM;
    pi_hf_llama3_factors(m->c, p->owned);
    p->data = (const uint8_t *)p->owned;
    return PI_OK;
}

/* The tables of an architecture: opt and falcon have names of their own. */
static const struct row *rows_of(const struct pi_hf_config *c, bool layer)
{
    switch (c->shape.arch) {
    case PI_ARCH_OPT:
        return layer ? opt_layer : opt_model;
    case PI_ARCH_FALCON:
        return layer ? falcon_layer : falcon_model;
    default:
        return layer ? llama_layer : llama_model;
    }
}

bool pi_hf_is_tied(const struct pi_hf_config *c, const struct pi_source *src)
{
    const struct pi_src_tensor *head = pi_hf_find(src, "lm_head.weight"),
                               *embd = pi_hf_find(src, "embed_tokens.weight");

    if (head == NULL)
        return c->tied || !c->tie_said; /* no key and no matrix of its own */
    if (!c->tied || embd == NULL)
        return c->tied;
    return head->bytes == embd->bytes && head->type == embd->type &&
           (head->data == embd->data || memcmp(head->data, embd->data, head->bytes) == 0);
}

enum pi_code pi_hf_map(const struct pi_hf_config *c, const struct pi_source *src,
                       const struct pi_notes *notes, struct pi_plan *plan, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct mapper m = {.c = c, .src = src, .plan = plan, .tied = pi_hf_is_tied(c, src)};

    PI_ALLOC(m.used, src->n, err);
    PI_TRY(map_rows(&m, rows_of(c, false), -1, err));
    if (c->rope == PI_HF_ROPE_LLAMA3)
        PI_TRY(add_rope_factors(&m, err));
    for (uint32_t l = 0; l < c->shape.n_layer; l++)
        PI_TRY(map_rows(&m, rows_of(c, true), l, err));
    PI_TRY(check_all_used(&m, notes, err));
out:
    free(m.used);
    return rc;
}
