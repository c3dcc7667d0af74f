/* tiny_model.c - see tiny_model.h */
#include "config.h"

#include "tests/tiny_model.h"

#include "common/pi_gguf.h"
#include "runtime/cpu/pi_cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(call)                             \
    do {                                       \
        if ((call) != PI_OK) {                 \
            printf("Bail out! %s\n", err.msg); \
            exit(1);                           \
        }                                      \
    } while (0)

/* ---- scratch folder ---- */

static char scratch[64];
static char paths[256][128];
static int n_paths;

static void remove_scratch(void)
{
    for (int i = 0; i < n_paths; i++)
        (void)unlink(paths[i]);
    (void)rmdir(scratch);
}

const char *tiny_path(const char *name)
{
    if (n_paths == 0) {
        (void)snprintf(scratch, sizeof(scratch), "/tmp/pi-test-XXXXXX");
        if (mkdtemp(scratch) == NULL)
            exit(1);
        (void)atexit(remove_scratch);
    }
    if (n_paths == 256)
        exit(1);
    (void)snprintf(paths[n_paths], sizeof(paths[0]), "%s/%s", scratch, name);
    return paths[n_paths++];
}

/* ---- forms ---- */

struct tiny_form tiny_form(const struct tiny *t)
{
    struct tiny_form f = {
        .gated = true, .qkv_bias = t->bias, .o_bias = t->bias, .mlp_bias = t->mlp_bias};

    switch (t->arch) {
    case PI_ARCH_OPT:
        f = (struct tiny_form){.layer_norm = true,
                               .learned_pos = true,
                               .qkv_bias = true,
                               .o_bias = true,
                               .mlp_bias = true};
        break;
    case PI_ARCH_NEMOTRON:
        f.layer_norm = f.neox = true;
        f.gated = false;
        break;
    case PI_ARCH_ARCEE:
        f.gated = false;
        break;
    case PI_ARCH_QWEN2:
        f.neox = f.qkv_bias = true;
        f.o_bias = false;
        break;
    case PI_ARCH_QWEN3:
        f.neox = f.qk_norm = true;
        break;
    case PI_ARCH_BAMBOO:
        f.act_up = true;
        break;
    case PI_ARCH_FALCON:
        f.layer_norm = f.neox = f.parallel = f.fused_qkv = true;
        f.gated = false;
        break;
    default:
        break;
    }
    return f;
}

/* ---- weights ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void round_rows(enum pi_type type, float *w, uint32_t n_rows, uint32_t n_cols)
{
    const struct pi_cpu_type *k = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    uint64_t bytes = 0;
    void *row;

    if (!pi_type_row_bytes(type, n_cols, &bytes) || (row = malloc(bytes)) == NULL)
        exit(1);
    for (uint32_t r = 0; r < n_rows; r++) {
        k->from_f32(w + (size_t)r * n_cols, row, n_cols);
        k->to_f32(row, w + (size_t)r * n_cols, n_cols);
    }
    free(row);
}

static void transpose(float *w, uint32_t n_rows, uint32_t n_cols)
{
    size_t n = (size_t)n_rows * n_cols;
    float *copy = malloc(n * sizeof(*copy));

    if (copy == NULL)
        exit(1);
    memcpy(copy, w, n * sizeof(*copy));
    for (size_t i = 0; i < n; i++)
        w[i % n_cols * n_rows + i / n_cols] = copy[i];
    free(copy);
}

float *tiny_tensor(const struct tiny *t, const char *name, uint32_t n_rows, uint32_t n_cols)
{
    float *w = malloc((size_t)n_rows * n_cols * sizeof(*w));
    bool matrix = n_rows > 1, norm = strstr(name, "norm.weight") != NULL;
    float range = matrix ? 1.7f / sqrtf((float)n_cols) : 0.2f;
    uint64_t h = t->seed;

    if (w == NULL)
        exit(1);
    for (const char *c = name; *c != '\0'; c++)
        h = mix(h + (unsigned char)*c + 0x9e3779b97f4a7c15u);
    for (size_t i = 0; i < (size_t)n_rows * n_cols; i++) {
        double u = (double)(mix(h + (i + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;

        w[i] = (float)(2.0 * u - 1.0) * range + (norm ? 1.0f : 0.0f);
    }
    if (strcmp(name, "rope_freqs.weight") == 0) {
        for (uint32_t i = 0; i < n_cols; i++)
            w[i] = 1.0f + 7.0f * fabsf(w[i]);
    }
    if (matrix && !t->down_t && strstr(name, "ffn_down_t.") != NULL) {
        transpose(w, n_rows, n_cols); /* blocks lie along the stored rows */
        round_rows(t->type, w, n_cols, n_rows);
        transpose(w, n_cols, n_rows);
    } else if (matrix) {
        round_rows(t->type, w, n_rows, n_cols);
    }
    return w;
}

float *tiny_layer_tensor(const struct tiny *t, uint32_t layer, const char *stem, uint32_t n_rows,
                         uint32_t n_cols)
{
    char name[160];

    (void)snprintf(name, sizeof(name), "blk.%u.%s", layer, stem);
    return tiny_tensor(t, name, n_rows, n_cols);
}

/* ---- file ---- */

struct entry {
    char name[96];
    uint32_t n_rows, n_cols;
    bool transposed; /* stored (n_cols, n_rows) under another name */
};

struct entries {
    struct entry e[256];
    uint32_t n;
};

static void put(struct entries *es, const char *name, uint32_t n_rows, uint32_t n_cols)
{
    struct entry *e = &es->e[es->n++];

    (void)snprintf(e->name, sizeof(e->name), "%s", name);
    e->n_rows = n_rows;
    e->n_cols = n_cols;
    e->transposed = false;
}

static void put_layer(struct entries *es, uint32_t l, const char *stem, uint32_t n_rows,
                      uint32_t n_cols)
{
    char name[96];

    (void)snprintf(name, sizeof(name), "blk.%u.%s", l, stem);
    put(es, name, n_rows, n_cols);
}

static void list_norm(const struct tiny *t, uint32_t l, const char *stem, struct entries *es)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s.weight", stem);
    put_layer(es, l, name, 1, t->n_embd);
    (void)snprintf(name, sizeof(name), "%s.bias", stem);
    if (tiny_form(t).layer_norm)
        put_layer(es, l, name, 1, t->n_embd);
}

static void list_norms(const struct tiny *t, uint32_t l, struct entries *es)
{
    const struct tiny_form f = tiny_form(t);

    list_norm(t, l, "attn_norm", es);
    if (!f.parallel)
        list_norm(t, l, "ffn_norm", es);
    if (t->two_norms)
        list_norm(t, l, "attn_norm_2", es);
    if (f.qk_norm) {
        put_layer(es, l, "attn_q_norm.weight", 1, t->head_dim);
        put_layer(es, l, "attn_k_norm.weight", 1, t->head_dim);
    }
}

static void list_layer(const struct tiny *t, uint32_t l, struct entries *es)
{
    uint32_t d = t->n_embd, q = t->n_head * t->head_dim, kv = t->n_head_kv * t->head_dim;
    const struct tiny_form f = tiny_form(t);

    list_norms(t, l, es);
    if (f.fused_qkv) {
        put_layer(es, l, "attn_qkv.weight", q + 2 * kv, d);
    } else {
        put_layer(es, l, "attn_q.weight", q, d);
        put_layer(es, l, "attn_k.weight", kv, d);
        put_layer(es, l, "attn_v.weight", kv, d);
    }
    put_layer(es, l, "attn_output.weight", d, q);
    if (f.gated)
        put_layer(es, l, "ffn_gate.weight", t->n_ff, d);
    put_layer(es, l, "ffn_up.weight", t->n_ff, d);
    put_layer(es, l, "ffn_down_t.weight", t->n_ff, d);
    es->e[es->n - 1].transposed = !t->down_t;
    if (f.qkv_bias && f.fused_qkv) {
        put_layer(es, l, "attn_qkv.bias", 1, q + 2 * kv);
    } else if (f.qkv_bias) {
        put_layer(es, l, "attn_q.bias", 1, q);
        put_layer(es, l, "attn_k.bias", 1, kv);
        put_layer(es, l, "attn_v.bias", 1, kv);
    }
    if (f.o_bias)
        put_layer(es, l, "attn_output.bias", 1, d);
    if (f.mlp_bias && f.gated)
        put_layer(es, l, "ffn_gate.bias", 1, t->n_ff);
    if (f.mlp_bias) {
        put_layer(es, l, "ffn_up.bias", 1, t->n_ff);
        put_layer(es, l, "ffn_down.bias", 1, d);
    }
}

static void list_tensors(const struct tiny *t, struct entries *es)
{
    const struct tiny_form f = tiny_form(t);

    es->n = 0;
    put(es, "token_embd.weight", t->n_vocab, tiny_n_embd_tok(t));
    if (!t->post_norm)
        put(es, "output_norm.weight", 1, t->n_embd);
    if (!t->tied)
        put(es, "output.weight", t->n_vocab, tiny_n_embd_tok(t));
    if (tiny_n_embd_tok(t) != t->n_embd) {
        put(es, "project_in.weight", t->n_embd, tiny_n_embd_tok(t));
        put(es, "project_out.weight", tiny_n_embd_tok(t), t->n_embd);
    }
    if (f.learned_pos)
        put(es, "position_embd.weight", t->n_ctx + 2, t->n_embd);
    if (f.layer_norm && !t->post_norm)
        put(es, "output_norm.bias", 1, t->n_embd);
    if (t->rope_freqs)
        put(es, "rope_freqs.weight", 1, tiny_n_rot(t) / 2);
    for (uint32_t l = 0; l < t->n_layer; l++)
        list_layer(t, l, es);
}

static void set_keys(const struct tiny *t, struct pi_gguf_writer *w)
{
    const char *a = pi_arch_name(t->arch);
    char key[96];
    struct pi_err err;
    const struct {
        const char *name;
        uint32_t v;
    } u32[] = {
        {"context_length", t->n_ctx},
        {"embedding_length", t->n_embd},
        {"block_count", t->n_layer},
        {"feed_forward_length", t->n_ff},
        {"attention.head_count", t->n_head},
        {"attention.head_count_kv", t->n_head_kv},
        {"attention.key_length", t->head_dim},
        {"attention.value_length", t->head_dim},
        {"rope.dimension_count", tiny_n_rot(t)},
        {"token_embedding_length", tiny_n_embd_tok(t)},
    };

#define KEY(name) ((void)snprintf(key, sizeof(key), "%s.%s", a, (name)), key)
    MUST(pi_gguf_set_string(w, "general.architecture", a, &err));
    for (size_t i = 0; i < sizeof(u32) / sizeof(u32[0]); i++)
        MUST(pi_gguf_set_u32(w, KEY(u32[i].name), u32[i].v, &err));
    MUST(pi_gguf_set_string(w, KEY("hidden_activation"), t->act != NULL ? t->act : "relu", &err));
    MUST(pi_gguf_set_f32(w, KEY("hidden_activation_threshold"), t->act_threshold, &err));
    MUST(pi_gguf_set_f32(w, KEY("attention.layer_norm_rms_epsilon"), 1e-5f, &err));
    MUST(pi_gguf_set_f32(w, KEY("attention.layer_norm_epsilon"), 1e-5f, &err));
    if (t->post_norm)
        MUST(pi_gguf_set_bool(w, KEY("post_norm"), true, &err));
    if (t->rope_scaling != NULL) {
        MUST(pi_gguf_set_string(w, KEY("rope.scaling.type"), t->rope_scaling, &err));
        MUST(pi_gguf_set_f32(w, KEY("rope.scaling.factor"), 4.0f, &err));
        MUST(pi_gguf_set_u32(w, KEY("rope.scaling.original_context_length"), 8, &err));
    }
#undef KEY
}

static void write_tensor(const struct tiny *t, const struct entry *e, enum pi_type type,
                         struct pi_gguf_writer *w)
{
    struct tiny exact = *t;
    float *x, *row, *column = NULL;
    uint32_t rows = e->transposed ? e->n_cols : e->n_rows,
             cols = e->transposed ? e->n_rows : e->n_cols;
    uint64_t bytes = 0;
    void *out;
    struct pi_err err;

    /* quantised once: K types rounded again would not be the same */
    exact.type = t->dequantised ? t->type : PI_TYPE_F32;
    x = tiny_tensor(&exact, e->name, e->n_rows, e->n_cols);
    if (!pi_type_row_bytes(type, cols, &bytes) || (out = malloc(bytes)) == NULL ||
        (column = malloc(cols * sizeof(*column))) == NULL)
        exit(1);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; e->transposed && i < cols; i++)
            column[i] = x[(size_t)i * e->n_cols + r];
        row = e->transposed ? column : x + (size_t)r * cols;
        pi_cpu_get(PI_ISA_SCALAR)->type[type]->from_f32(row, out, cols);
        MUST(pi_gguf_append(w, out, bytes, &err));
    }
    free(out);
    free(column);
    free(x);
}

/* What the file says of an entry; damaged ones get zeros for data. */
static void describe(const struct tiny *t, const struct entry *e, char name[96], enum pi_type *type,
                     uint64_t ne[2])
{
    bool damaged = t->victim != NULL && strcmp(e->name, t->victim) == 0;

    (void)snprintf(name, 96, "%s", e->name);
    if (e->transposed)
        memcpy(strstr(name, "ffn_down_t.weight"), "ffn_down.weight", sizeof("ffn_down.weight"));
    *type = e->n_rows == 1 || t->dequantised ? PI_TYPE_F32 : t->type;
    ne[0] = e->transposed ? e->n_rows : e->n_cols;
    ne[1] = e->transposed ? e->n_cols : e->n_rows;
    if (damaged && t->damage == TINY_LONGER)
        ne[1]++;
    if (damaged && t->damage == TINY_NO_KERNEL)
        *type = PI_TYPE_Q2_K;
}

static void write_zeros(enum pi_type type, const uint64_t ne[2], struct pi_gguf_writer *w)
{
    struct pi_err err;
    uint64_t bytes = 0;
    void *zeros;

    if (!pi_type_row_bytes(type, ne[0], &bytes) || (zeros = calloc(ne[1], bytes)) == NULL)
        exit(1);
    MUST(pi_gguf_append(w, zeros, bytes * ne[1], &err));
    free(zeros);
}

void tiny_write(const struct tiny *t, const char *path)
{
    static struct entries es;
    struct pi_gguf_writer *w;
    struct pi_err err;

    list_tensors(t, &es);
    MUST(pi_gguf_writer_create(path, &w, &err));
    set_keys(t, w);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < es.n; i++) {
            const struct entry *e = &es.e[i];
            bool damaged = t->victim != NULL && strcmp(e->name, t->victim) == 0;
            enum pi_type type;
            uint64_t ne[2];
            char name[96];

            describe(t, e, name, &type, ne);
            if (damaged && t->damage == TINY_OMIT)
                continue;
            if (pass == 0)
                MUST(pi_gguf_add_tensor(w, name, type, ne, ne[1] == 1 ? 1 : 2, &err));
            else if (damaged)
                write_zeros(type, ne, w);
            else
                write_tensor(t, e, type, w);
        }
        if (pass == 0)
            MUST(pi_gguf_begin(w, &err));
    }
    MUST(pi_gguf_commit(w, &err));
}
