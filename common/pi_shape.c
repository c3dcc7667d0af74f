#include "config.h"

#include "common/pi_shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_CTX (1u << 30)
#define OPT_EPS \
    1e-5f /* PowerInfer's OPT files carry none; this is PyTorch's default, which OPT uses */
#define OPT_POS_OFFSET 2 /* Hugging Face's OPTLearnedPositionalEmbedding */

/* What an architecture's name alone says of a model: the key's value and the parts of struct pi_shape that no key has. */
static const struct form {
    const char *name;
    bool layer_norm, biases, gated, act_up, learned_pos, rope_neox, qk_norm, parallel;
    enum pi_activation act; /* where no key says it */
} forms[PI_ARCH_COUNT] = {
    [PI_ARCH_LLAMA] = {.name = "llama", .gated = true, .act = PI_ACT_SILU},
    [PI_ARCH_OPT] = {.name = "opt",
                     .layer_norm = true,
                     .biases = true,
                     .learned_pos = true,
                     .act = PI_ACT_RELU},
    [PI_ARCH_ARCEE] = {.name = "arcee", .act = PI_ACT_RELU2},
    [PI_ARCH_NEMOTRON] = {.name = "nemotron",
                          .layer_norm = true,
                          .rope_neox = true,
                          .act = PI_ACT_RELU2},
    [PI_ARCH_QWEN2] = {.name = "qwen2", .gated = true, .rope_neox = true, .act = PI_ACT_SILU},
    [PI_ARCH_QWEN3] =
        {.name = "qwen3", .gated = true, .rope_neox = true, .qk_norm = true, .act = PI_ACT_SILU},
    [PI_ARCH_BAMBOO] = {.name = "bamboo", .gated = true, .act_up = true, .act = PI_ACT_RELU},
    [PI_ARCH_FALCON] = {.name = "falcon",
                        .layer_norm = true,
                        .rope_neox = true,
                        .parallel = true,
                        .act = PI_ACT_GELU},
};

static const struct {
    const char *name;
    enum pi_activation act;
} act_names[] = {
    /* Our names first, in the order of the enum; then what Hugging Face's configurations say. */
    {"relu", PI_ACT_RELU},
    {"relu2", PI_ACT_RELU2},
    {"fatrelu", PI_ACT_FATRELU},
    {"silu", PI_ACT_SILU},
    {"gelu", PI_ACT_GELU},
    {"gelu_tanh", PI_ACT_GELU_TANH},
    {"relu_squared", PI_ACT_RELU2},
    {"swish", PI_ACT_SILU},
    {"gelu_new", PI_ACT_GELU_TANH},
    {"gelu_fast", PI_ACT_GELU_TANH},
    {"gelu_pytorch_tanh", PI_ACT_GELU_TANH},
};

const char *pi_arch_name(enum pi_arch arch)
{
    return (unsigned)arch < PI_ARCH_COUNT ? forms[arch].name : "?";
}

const char *pi_activation_name(enum pi_activation act)
{
    return (unsigned)act < PI_ACT_COUNT ? act_names[act].name : "?";
}

bool pi_activation_from_name(const char *name, enum pi_activation *out)
{
    for (size_t i = 0; i < sizeof(act_names) / sizeof(act_names[0]); i++) {
        if (strcasecmp(name, act_names[i].name) == 0) {
            *out = act_names[i].act;
            return true;
        }
    }
    return false;
}

enum pi_code pi_activation_parse(const char *text, enum pi_activation *act_out,
                                 float *threshold_out, struct pi_err *err)
{
    size_t n = strcspn(text, ":");
    enum pi_activation act;
    float threshold;
    char name[32], *end;

    (void)snprintf(name, sizeof(name), "%.*s", (int)(n < sizeof(name) ? n : 0), text);
    if (!pi_activation_from_name(name, &act))
        return pi_err_set(err, PI_E_USAGE,
                          "--hidden-act %.80s: must be one of relu, relu2, fatrelu:THRESHOLD, "
                          "silu, gelu, gelu_tanh",
                          text);
    if (text[n] == ':') {
        threshold = strtof(text + n + 1, &end);
        if (act != PI_ACT_FATRELU || end == text + n + 1 || *end != '\0' ||
            strpbrk(text + n + 1, "xX") != NULL || /* nobody means hexadecimal */
            !(threshold >= 0.0f && threshold <= 1e6f))
            return pi_err_set(
                err, PI_E_USAGE,
                "--hidden-act %.80s: a threshold from 0 to 1e6, of fatrelu alone, may follow the colon",
                text);
        *threshold_out = threshold;
    }
    *act_out = act;
    return PI_OK;
}

bool pi_activation_has_zeros(enum pi_activation act)
{
    return act == PI_ACT_RELU || act == PI_ACT_RELU2 || act == PI_ACT_FATRELU;
}

const char *pi_shape_gpu_lacks(const struct pi_shape *s)
{
    return s->parallel                  ? "attention and feed-forward in parallel"
           : s->post_norm               ? "norms behind the blocks"
           : s->qk_norm                 ? "norms on q and k"
           : s->act_up                  ? "an activation on up"
           : s->n_embd_tok != s->n_embd ? "projections of the embedding"
                                        : NULL;
}

/* ---- reading keys --------------------------------------------------------------------------- */

struct reader {
    const struct pi_gguf *g;
    const char *arch;
    struct pi_err *err;
};

static const char *arch_key(const struct reader *r, const char *name, char key[static 128])
{
    (void)snprintf(key, 128, "%s.%s", r->arch, name);
    return key;
}

/* A count in [1, max]; *out stays as it is when the key may be absent and is. */
static enum pi_code read_count(const struct reader *r, const char *name, bool required,
                               uint32_t max, uint32_t *out)
{
    char key[128];
    enum pi_code rc = pi_gguf_u32(r->g, arch_key(r, name, key), required, out, r->err);

    if (rc == PI_OK && (*out < 1 || *out > max))
        return pi_err_set(r->err, PI_E_CORRUPT, "%s: %s is %u; 1 to %u are possible",
                          r->g->map.path, key, *out, max);
    return rc;
}

static enum pi_code read_f32(const struct reader *r, const char *name, bool required, float min,
                             float max, float *out)
{
    char key[128];
    enum pi_code rc = pi_gguf_f32(r->g, arch_key(r, name, key), required, out, r->err);

    if (rc == PI_OK && !(*out >= min && *out <= max))
        return pi_err_set(r->err, PI_E_CORRUPT, "%s: %s is %g; %g to %g are possible",
                          r->g->map.path, key, (double)*out, (double)min, (double)max);
    return rc;
}

void pi_shape_set_arch(struct pi_shape *s, enum pi_arch arch)
{
    const struct form *f = &forms[arch];

    s->arch = arch;
    s->layer_norm = f->layer_norm;
    s->biases = f->biases;
    s->gated = f->gated;
    s->act_up = f->act_up;
    s->qk_norm = f->qk_norm;
    s->parallel = f->parallel;
    s->learned_pos = f->learned_pos;
    s->pos_offset = f->learned_pos ? OPT_POS_OFFSET : 0;
    s->rope_neox = f->rope_neox;
    s->act = f->act;
}

static enum pi_code read_arch(const struct pi_gguf *g, struct pi_shape *s, struct pi_err *err)
{
    struct pi_str name = {"", 0};
    enum pi_code rc = pi_gguf_string(g, "general.architecture", true, &name, err);
    char list[256] = ""; /* the names above are a third of it */
    size_t at = 0;

    if (rc != PI_OK)
        return rc;
    for (int i = 0; i < PI_ARCH_COUNT; i++) {
        if (pi_str_eq(name, forms[i].name)) {
            pi_shape_set_arch(s, (enum pi_arch)i);
            return PI_OK;
        }
    }
    for (int i = 0; i < PI_ARCH_COUNT; i++)
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i > 0 ? ", " : "",
                               forms[i].name);
    return pi_err_set(err, PI_E_UNSUPPORTED,
                      "%s: architecture %.*s is not supported (supported: %s)", g->map.path,
                      (int)(name.n < 64 ? name.n : 64), name.p, list);
}

static enum pi_code read_sizes(const struct reader *r, struct pi_shape *s)
{
    enum pi_code rc = PI_OK;
    const char *path = r->g->map.path;
    uint32_t value_dim, n_experts = 0;
    char key[128];

    PI_TRY(read_count(r, "context_length", true, MAX_CTX, &s->n_ctx_train));
    PI_TRY(read_count(r, "embedding_length", true, PI_MAX_EMBD, &s->n_embd));
    PI_TRY(read_count(r, "block_count", true, PI_MAX_LAYERS, &s->n_layer));
    PI_TRY(read_count(r, "feed_forward_length", true, PI_MAX_FF, &s->n_ff));
    PI_TRY(read_count(r, "attention.head_count", true, PI_MAX_EMBD, &s->n_head));
    s->n_head_kv = s->n_head;
    PI_TRY(read_count(r, "attention.head_count_kv", false, PI_MAX_EMBD, &s->n_head_kv));
    if (s->n_head % s->n_head_kv != 0)
        PI_FAIL(r->err, PI_E_CORRUPT, "%s: %u query heads are no multiple of %u key/value heads",
                path, s->n_head, s->n_head_kv);
    s->head_dim = s->n_embd / s->n_head;
    if (pi_gguf_find(r->g, arch_key(r, "attention.key_length", key)) == NULL &&
        (s->head_dim == 0 || s->n_embd % s->n_head != 0))
        PI_FAIL(r->err, PI_E_CORRUPT, "%s: an embedding of %u does not divide into %u heads", path,
                s->n_embd, s->n_head);
    PI_TRY(read_count(r, "attention.key_length", false, PI_MAX_EMBD, &s->head_dim));
    if ((uint64_t)s->n_head * s->head_dim > PI_MAX_EMBD)
        PI_FAIL(r->err, PI_E_CORRUPT, "%s: %u heads of %u are wider than %u", path, s->n_head,
                s->head_dim, PI_MAX_EMBD);
    value_dim = s->head_dim;
    PI_TRY(read_count(r, "attention.value_length", false, PI_MAX_EMBD, &value_dim));
    s->n_embd_tok = s->n_embd;
    PI_TRY(read_count(r, "token_embedding_length", false, PI_MAX_EMBD, &s->n_embd_tok));
    PI_TRY(pi_gguf_bool(r->g, arch_key(r, "post_norm", key), false, &s->post_norm, r->err));
    if (s->post_norm && s->parallel)
        PI_FAIL(r->err, PI_E_UNSUPPORTED, "%s: norms behind blocks that run in parallel", path);
    if (value_dim != s->head_dim)
        PI_FAIL(r->err, PI_E_UNSUPPORTED, "%s: values of width %u with keys of width %u", path,
                value_dim, s->head_dim);
    PI_TRY(pi_gguf_u32(r->g, arch_key(r, "expert_count", key), false, &n_experts, r->err));
    if (n_experts > 0)
        PI_FAIL(r->err, PI_E_UNSUPPORTED, "%s: a mixture of %u experts", path, n_experts);
out:
    return rc;
}

static enum pi_code read_norm(const struct reader *r, struct pi_shape *s)
{
    if (s->layer_norm) {
        s->norm_eps = OPT_EPS;
        return read_f32(r, "attention.layer_norm_epsilon", s->arch != PI_ARCH_OPT, 0.0f, 1.0f,
                        &s->norm_eps);
    }
    return read_f32(r, "attention.layer_norm_rms_epsilon", true, 0.0f, 1.0f, &s->norm_eps);
}

/* ---- rotary embedding ----------------------------------------------------------------------- */

static enum pi_code read_rope_scaling_type(const struct reader *r, struct pi_shape *s)
{
    struct pi_str type = {"none", 4};
    char key[128];
    enum pi_code rc =
        pi_gguf_string(r->g, arch_key(r, "rope.scaling.type", key), false, &type, r->err);

    if (rc != PI_OK)
        return rc;
    if (pi_str_eq(type, "none"))
        s->rope_scaling = PI_ROPE_NONE;
    else if (pi_str_eq(type, "linear"))
        s->rope_scaling = PI_ROPE_LINEAR;
    else if (pi_str_eq(type, "yarn"))
        s->rope_scaling = PI_ROPE_YARN;
    else
        return pi_err_set(r->err, PI_E_UNSUPPORTED,
                          "%s: %s \"%.*s\" is not supported (none, linear and yarn are)",
                          r->g->map.path, key, (int)(type.n < 64 ? type.n : 64), type.p);
    return PI_OK;
}

static enum pi_code read_rope(const struct reader *r, struct pi_shape *s)
{
    enum pi_code rc = PI_OK;
    char key[128];

    s->n_rot = s->head_dim;
    s->rope_base = 10000.0f;
    s->rope_factor = 1.0f;
    s->rope_n_ctx_orig = s->n_ctx_train;
    s->rope_attn_factor = 1.0f;
    s->rope_beta_fast = 32.0f; /* the YaRN paper's, section 3.2 */
    s->rope_beta_slow = 1.0f;
    PI_TRY(read_count(r, "rope.dimension_count", false, s->head_dim, &s->n_rot));
    if (s->n_rot % 2 != 0)
        PI_FAIL(r->err, PI_E_CORRUPT, "%s: %s is odd: %u", r->g->map.path,
                arch_key(r, "rope.dimension_count", key), s->n_rot);
    PI_TRY(read_f32(r, "rope.freq_base", false, 1.0f, 1e30f, &s->rope_base));
    PI_TRY(read_rope_scaling_type(r, s));
    /* The key of 2023's files, before rope.scaling came. */
    if (pi_gguf_find(r->g, arch_key(r, "rope.scale_linear", key)) != NULL) {
        PI_TRY(read_f32(r, "rope.scale_linear", false, 1e-6f, 1e6f, &s->rope_factor));
        if (s->rope_scaling == PI_ROPE_NONE && s->rope_factor != 1.0f)
            s->rope_scaling = PI_ROPE_LINEAR;
    }
    if (s->rope_scaling != PI_ROPE_NONE) {
        PI_TRY(read_f32(r, "rope.scaling.factor", false, 1e-6f, 1e6f, &s->rope_factor));
        PI_TRY(read_count(r, "rope.scaling.original_context_length", false, MAX_CTX,
                          &s->rope_n_ctx_orig));
        PI_TRY(read_f32(r, "rope.scaling.attn_factor", false, 1e-6f, 1e6f, &s->rope_attn_factor));
        PI_TRY(read_f32(r, "rope.scaling.yarn_beta_fast", false, 0.0f, 1e6f, &s->rope_beta_fast));
        PI_TRY(read_f32(r, "rope.scaling.yarn_beta_slow", false, 0.0f, 1e6f, &s->rope_beta_slow));
    }
out:
    return rc;
}

/* ---- activation ----------------------------------------------------------------------------- */

static enum pi_code override_activation(const char *text, struct pi_shape *s, struct pi_err *err)
{
    float threshold = -1.0f;
    enum pi_code rc = pi_activation_parse(text, &s->act, &threshold, err);

    if (rc != PI_OK || s->act != PI_ACT_FATRELU)
        return rc;
    if (threshold < 0.0f)
        return pi_err_set(err, PI_E_USAGE,
                          "--hidden-act fatrelu needs its threshold, as in fatrelu:0.01");
    s->act_threshold = threshold;
    return PI_OK;
}

static enum pi_code read_activation(const struct reader *r, const char *act_override,
                                    struct pi_shape *s)
{
    struct pi_str text = {NULL, 0};
    char key[128], name[32];
    enum pi_code rc;

    if (r->g->sparse_magic)
        s->act = PI_ACT_RELU;
    if (act_override != NULL)
        return override_activation(act_override, s, r->err);
    rc = pi_gguf_string(r->g, arch_key(r, "hidden_activation", key), false, &text, r->err);
    if (rc != PI_OK || text.p == NULL)
        return rc;
    (void)snprintf(name, sizeof(name), "%.*s", (int)(text.n < 31 ? text.n : 31), text.p);
    if (text.n >= sizeof(name) || !pi_activation_from_name(name, &s->act))
        return pi_err_set(r->err, PI_E_UNSUPPORTED, "%s: %s \"%s\" is not supported",
                          r->g->map.path, key, name);
    if (s->act == PI_ACT_FATRELU)
        return read_f32(r, "hidden_activation_threshold", true, 0.0f, 1e6f, &s->act_threshold);
    return PI_OK;
}

/* ---- cross-checks with tensors -------------------------------------------------------------- */

/* A matrix that is there must have n_cols contiguous columns and n_rows rows. */
static enum pi_code check_matrix(const struct reader *r, const char *name, uint64_t n_cols,
                                 uint64_t n_rows)
{
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(r->g, name);

    if (t == NULL || (t->ne[0] == n_cols && t->ne[1] == n_rows && t->ne[2] == 1 && t->ne[3] == 1))
        return PI_OK;
    return pi_err_set(r->err, PI_E_CORRUPT,
                      "%s: tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                      ", the keys say %" PRIu64 " x %" PRIu64,
                      r->g->map.path, name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], n_cols, n_rows);
}

static enum pi_code check_layer(const struct reader *r, const struct pi_shape *s, uint32_t layer)
{
    enum pi_code rc = PI_OK;
    uint64_t n_q = (uint64_t)s->n_head * s->head_dim, n_kv = (uint64_t)s->n_head_kv * s->head_dim;
    const struct {
        const char *name;
        uint64_t n_cols, n_rows;
    } want[] = {
        {"attn_q", s->n_embd, n_q},         {"attn_k", s->n_embd, n_kv},
        {"attn_v", s->n_embd, n_kv},        {"attn_qkv", s->n_embd, n_q + 2 * n_kv},
        {"attn_output", n_q, s->n_embd},    {"ffn_gate", s->n_embd, s->n_ff},
        {"ffn_up", s->n_embd, s->n_ff},     {"ffn_down", s->n_ff, s->n_embd},
        {"ffn_down_t", s->n_embd, s->n_ff},
    };
    char name[64], other[64];

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, want[i].name);
        PI_TRY(check_matrix(r, name, want[i].n_cols, want[i].n_rows));
    }
    (void)snprintf(other, sizeof(other), "blk.%u.ffn_down.weight", layer);
    if (pi_gguf_find_tensor(r->g, name) != NULL && pi_gguf_find_tensor(r->g, other) != NULL)
        PI_FAIL(r->err, PI_E_CORRUPT, "%s: both %s and %s: which of them counts is not said",
                r->g->map.path, other, name);
out:
    return rc;
}

static enum pi_code read_vocab(const struct reader *r, struct pi_shape *s)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf_tensor *embd = pi_gguf_find_tensor(r->g, "token_embd.weight");
    const struct pi_gguf_kv *tokens = NULL;
    uint64_t n_tokens, n;

    PI_TRY(pi_gguf_array(r->g, "tokenizer.ggml.tokens", PI_GGUF_STR, false, &tokens, r->err));
    n_tokens = tokens != NULL ? tokens->n : 0;
    n = embd != NULL ? embd->ne[1] : n_tokens;
    if (n < 1 || n > PI_MAX_VOCAB)
        PI_FAIL(r->err, PI_E_CORRUPT,
                "%s: a vocabulary of %" PRIu64 " tokens; 1 to %u are possible", r->g->map.path, n,
                PI_MAX_VOCAB);
    /* More rows than tokens are padding, as in OPT. */
    if (n_tokens > n)
        PI_FAIL(r->err, PI_E_CORRUPT,
                "%s: tokenizer.ggml.tokens has %" PRIu64 " tokens, token_embd.weight %" PRIu64
                " rows",
                r->g->map.path, n_tokens, n);
    s->n_vocab = (uint32_t)n;
    PI_TRY(check_matrix(r, "token_embd.weight", s->n_embd_tok, n));
    PI_TRY(check_matrix(r, "output.weight", s->n_embd_tok, n));
    PI_TRY(check_matrix(r, "project_in.weight", s->n_embd_tok, s->n_embd));
    PI_TRY(check_matrix(r, "project_out.weight", s->n_embd, s->n_embd_tok));
out:
    return rc;
}

static enum pi_code read_positions(const struct reader *r, struct pi_shape *s)
{
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(r->g, "position_embd.weight");

    if (t == NULL)
        return PI_OK;
    if (t->ne[1] <= s->pos_offset || t->ne[1] > MAX_CTX)
        return pi_err_set(r->err, PI_E_CORRUPT, "%s: position_embd.weight has %" PRIu64 " rows",
                          r->g->map.path, t->ne[1]);
    if (s->n_ctx_train > t->ne[1] - s->pos_offset)
        s->n_ctx_train = (uint32_t)t->ne[1] - s->pos_offset;
    return check_matrix(r, "position_embd.weight", s->n_embd, t->ne[1]);
}

enum pi_code pi_shape_read(const struct pi_gguf *g, const char *act_override, struct pi_shape *out,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_shape s = {0};
    struct reader r = {.g = g, .err = err};

    PI_TRY(read_arch(g, &s, err));
    r.arch = pi_arch_name(s.arch);
    PI_TRY(read_sizes(&r, &s));
    PI_TRY(read_norm(&r, &s));
    PI_TRY(read_activation(&r, act_override, &s));
    if (s.learned_pos)
        PI_TRY(read_positions(&r, &s));
    else
        PI_TRY(read_rope(&r, &s));
    PI_TRY(read_vocab(&r, &s));
    PI_TRY(check_layer(&r, &s, 0));
    PI_TRY(check_layer(&r, &s, s.n_layer - 1));
    *out = s;
out:
    return rc;
}
