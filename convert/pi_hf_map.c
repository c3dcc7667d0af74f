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
    NEVER,
    ALWAYS,
    IF_QKV_BIAS,
    IF_O_BIAS,
    IF_MLP_BIAS,
    IF_GATED,
    IF_LAYER_NORM,
    IF_PRE_NORM,
    IF_QK_NORM,
    IF_ONE_NORM,
    IF_TWO_NORMS,
    IF_PROJECTED,
    IF_UNTIED
};

/* A weight and its bias, which is a vector with an element for each of the weight's rows; a norm's weight is a vector itself. */
struct row {
    const char *hf, *gguf; /* without ".weight"; of a layer: behind "layers.N." and "blk.N." */
    enum dim rows, cols;   /* of the weight, as the checkpoint has them */
    enum op op;
    enum when when, bias; /* bias: of weights that are there */
};

/* Llama and what descends from it: names and order are the same, parts come and go. */
static const struct row llama_model[] = {
    {"embed_tokens", "token_embd", D_VOCAB, D_EMBD, OP_PLAIN, ALWAYS, NEVER},
    {"norm", "output_norm", D_1, D_EMBD, OP_NORM, ALWAYS, IF_LAYER_NORM},
    {"lm_head", "output", D_VOCAB, D_EMBD, OP_PLAIN, IF_UNTIED, NEVER},
    {NULL, NULL, D_1, D_1, OP_PLAIN, NEVER, NEVER},
};

static const struct row llama_layer[] = {
    {"input_layernorm", "attn_norm", D_1, D_EMBD, OP_NORM, ALWAYS, IF_LAYER_NORM},
    {"self_attn.q_proj", "attn_q", D_Q, D_EMBD, OP_ROT_Q, ALWAYS, IF_QKV_BIAS},
    {"self_attn.k_proj", "attn_k", D_KV, D_EMBD, OP_ROT_KV, ALWAYS, IF_QKV_BIAS},
    {"self_attn.v_proj", "attn_v", D_KV, D_EMBD, OP_PLAIN, ALWAYS, IF_QKV_BIAS},
    {"self_attn.q_norm", "attn_q_norm", D_1, D_HEAD, OP_PLAIN, IF_QK_NORM, NEVER},
    {"self_attn.k_norm", "attn_k_norm", D_1, D_HEAD, OP_PLAIN, IF_QK_NORM, NEVER},
    {"self_attn.o_proj", "attn_output", D_EMBD, D_Q, OP_PLAIN, ALWAYS, IF_O_BIAS},
    {"post_attention_layernorm", "ffn_norm", D_1, D_EMBD, OP_NORM, ALWAYS, IF_LAYER_NORM},
    {"mlp.gate_proj", "ffn_gate", D_FF, D_EMBD, OP_PLAIN, IF_GATED, IF_MLP_BIAS},
    {"mlp.up_proj", "ffn_up", D_FF, D_EMBD, OP_PLAIN, ALWAYS, IF_MLP_BIAS},
    {"mlp.down_proj", "ffn_down_t", D_EMBD, D_FF, OP_TRANSPOSE, ALWAYS, IF_MLP_BIAS},
    {NULL, NULL, D_1, D_1, OP_PLAIN, NEVER, NEVER},
};

static const struct row opt_model[] = {
    {"embed_tokens", "token_embd", D_VOCAB, D_TOK, OP_PLAIN, ALWAYS, NEVER},
    {"project_in", "project_in", D_EMBD, D_TOK, OP_PLAIN, IF_PROJECTED, NEVER},
    {"embed_positions", "position_embd", D_POS, D_EMBD, OP_PLAIN, ALWAYS, NEVER},
    {"final_layer_norm", "output_norm", D_1, D_EMBD, OP_PLAIN, IF_PRE_NORM, ALWAYS},
    {"project_out", "project_out", D_TOK, D_EMBD, OP_PLAIN, IF_PROJECTED, NEVER},
    {"lm_head", "output", D_VOCAB, D_TOK, OP_PLAIN, IF_UNTIED, NEVER},
    {NULL, NULL, D_1, D_1, OP_PLAIN, NEVER, NEVER},
};

static const struct row opt_layer[] = {
    {"self_attn_layer_norm", "attn_norm", D_1, D_EMBD, OP_PLAIN, ALWAYS, ALWAYS},
    {"self_attn.q_proj", "attn_q", D_Q, D_EMBD, OP_PLAIN, ALWAYS, ALWAYS},
    {"self_attn.k_proj", "attn_k", D_KV, D_EMBD, OP_PLAIN, ALWAYS, ALWAYS},
    {"self_attn.v_proj", "attn_v", D_KV, D_EMBD, OP_PLAIN, ALWAYS, ALWAYS},
    {"self_attn.out_proj", "attn_output", D_EMBD, D_Q, OP_PLAIN, ALWAYS, ALWAYS},
    {"final_layer_norm", "ffn_norm", D_1, D_EMBD, OP_PLAIN, ALWAYS, ALWAYS},
    {"fc1", "ffn_up", D_FF, D_EMBD, OP_PLAIN, ALWAYS, ALWAYS},
    {"fc2", "ffn_down_t", D_EMBD, D_FF, OP_TRANSPOSE, ALWAYS, ALWAYS},
    {NULL, NULL, D_1, D_1, OP_PLAIN, NEVER, NEVER},
};

static const struct row falcon_model[] = {
    {"word_embeddings", "token_embd", D_VOCAB, D_EMBD, OP_PLAIN, ALWAYS, NEVER},
    {"ln_f", "output_norm", D_1, D_EMBD, OP_PLAIN, ALWAYS, ALWAYS},
    {"lm_head", "output", D_VOCAB, D_EMBD, OP_PLAIN, IF_UNTIED, NEVER},
    {NULL, NULL, D_1, D_1, OP_PLAIN, NEVER, NEVER},
};

static const struct row falcon_layer[] = {
    {"input_layernorm", "attn_norm", D_1, D_EMBD, OP_PLAIN, IF_ONE_NORM, ALWAYS},
    {"ln_mlp", "attn_norm", D_1, D_EMBD, OP_PLAIN, IF_TWO_NORMS, ALWAYS},
    {"ln_attn", "attn_norm_2", D_1, D_EMBD, OP_PLAIN, IF_TWO_NORMS, ALWAYS},
    {"self_attention.query_key_value", "attn_qkv", D_QKV, D_EMBD, OP_QKV, ALWAYS, IF_QKV_BIAS},
    {"self_attention.dense", "attn_output", D_EMBD, D_Q, OP_PLAIN, ALWAYS, IF_O_BIAS},
    {"mlp.dense_h_to_4h", "ffn_up", D_FF, D_EMBD, OP_PLAIN, ALWAYS, IF_MLP_BIAS},
    {"mlp.dense_4h_to_h", "ffn_down_t", D_EMBD, D_FF, OP_TRANSPOSE, ALWAYS, IF_MLP_BIAS},
    {NULL, NULL, D_1, D_1, OP_PLAIN, NEVER, NEVER},
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
    if (t->n_dims != n_dims)
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor %s has %u dimensions where config.json asks for %u", t->path,
                          t->name, t->n_dims, n_dims);
    if (t->dim[0] != (n_dims == 1 ? cols : rows) || t->dim[1] != (n_dims == 1 ? 1 : cols))
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
    case NEVER:
        return false;
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

static struct row bias_of(const struct row *r)
{
    struct row b = *r;

    b.rows = D_1;
    b.cols = r->rows == D_1 ? r->cols : r->rows;
    if (r->op == OP_TRANSPOSE || r->op == OP_NORM)
        b.op = OP_PLAIN;
    return b;
}

/* layer < 0: outside of the blocks. */
static enum pi_code map_row(struct mapper *m, const struct row *r, const char *part, int64_t layer,
                            struct pi_err *err)
{
    char hf[128], name[64];
    const struct pi_src_tensor *t;

    (void)snprintf(hf, sizeof(hf), "%s.%s", r->hf, part);
    (void)snprintf(name, sizeof(name), "%s.%s", r->gguf, part);
    if (layer >= 0) {
        (void)snprintf(hf, sizeof(hf), "%s%lld.%s.%s", m->c->layers, (long long)layer, r->hf, part);
        (void)snprintf(name, sizeof(name), "blk.%lld.%s.%s", (long long)layer, r->gguf, part);
    }
    t = pi_hf_find(m->src, hf);
    if (t == NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %s is missing", m->src->maps[0].path, hf);
    return add_mapped(m, r, t, name, err);
}

static enum pi_code map_rows(struct mapper *m, const struct row *rows, int64_t layer,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (const struct row *r = rows; r->hf != NULL; r++) {
        const struct row bias = bias_of(r);

        if (!is_there(m, r->when))
            continue;
        PI_TRY(map_row(m, r, "weight", layer, err));
        if (is_there(m, r->bias))
            PI_TRY(map_row(m, &bias, "bias", layer, err));
    }
out:
    return rc;
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
