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

static uint32_t n_rot(const struct tiny *t)
{
    return t->n_rot != 0 ? t->n_rot : t->head_dim;
}

static uint32_t n_embd_tok(const struct tiny *t)
{
    return t->n_embd_tok != 0 ? t->n_embd_tok : t->n_embd;
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
    put(es, "token_embd.weight", t->n_vocab, n_embd_tok(t));
    if (!t->post_norm)
        put(es, "output_norm.weight", 1, t->n_embd);
    if (!t->tied)
        put(es, "output.weight", t->n_vocab, n_embd_tok(t));
    if (n_embd_tok(t) != t->n_embd) {
        put(es, "project_in.weight", t->n_embd, n_embd_tok(t));
        put(es, "project_out.weight", n_embd_tok(t), t->n_embd);
    }
    if (f.learned_pos)
        put(es, "position_embd.weight", t->n_ctx + 2, t->n_embd);
    if (f.layer_norm && !t->post_norm)
        put(es, "output_norm.bias", 1, t->n_embd);
    if (t->rope_freqs)
        put(es, "rope_freqs.weight", 1, n_rot(t) / 2);
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
        {"context_length", t->n_ctx},          {"embedding_length", t->n_embd},
        {"block_count", t->n_layer},           {"feed_forward_length", t->n_ff},
        {"attention.head_count", t->n_head},   {"attention.head_count_kv", t->n_head_kv},
        {"attention.key_length", t->head_dim}, {"attention.value_length", t->head_dim},
        {"rope.dimension_count", n_rot(t)},    {"token_embedding_length", n_embd_tok(t)},
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

/* ---- the model by hand ---- */

struct hand {
    const struct tiny *t;
    double *k, *v; /* (n_layer, n, kv) */
    uint32_t n;
};

/* out[r] = w[r] . x + b[r]; b may be NULL */
static void product(const float *w, const float *b, uint32_t rows, uint32_t cols, const double *x,
                    double *out)
{
    for (uint32_t r = 0; r < rows; r++) {
        out[r] = b != NULL ? (double)b[r] : 0.0;
        for (uint32_t i = 0; i < cols; i++)
            out[r] += (double)w[(size_t)r * cols + i] * x[i];
    }
}

/* The names of weight and bias are stem.weight and stem.bias. */
static void linear(const struct tiny *t, uint32_t l, const char *stem, bool bias, uint32_t rows,
                   uint32_t cols, const double *x, double *out)
{
    char name[96];
    float *w, *b = NULL;

    (void)snprintf(name, sizeof(name), "%s.weight", stem);
    w = tiny_layer_tensor(t, l, name, rows, cols);
    (void)snprintf(name, sizeof(name), "%s.bias", stem);
    if (bias)
        b = tiny_layer_tensor(t, l, name, 1, rows);
    product(w, b, rows, cols, x, out);
    free(w);
    free(b);
}

static void norm(const struct tiny *t, const char *stem, const double *x, double *out)
{
    char name[96];
    float *w, *b = NULL;
    double mean = 0.0, sq = 0.0;

    (void)snprintf(name, sizeof(name), "%s.weight", stem);
    w = tiny_tensor(t, name, 1, t->n_embd);
    (void)snprintf(name, sizeof(name), "%s.bias", stem);
    if (tiny_form(t).layer_norm) {
        b = tiny_tensor(t, name, 1, t->n_embd);
        for (uint32_t i = 0; i < t->n_embd; i++)
            mean += x[i] / t->n_embd;
    }
    for (uint32_t i = 0; i < t->n_embd; i++)
        sq += (x[i] - mean) * (x[i] - mean) / t->n_embd;
    for (uint32_t i = 0; i < t->n_embd; i++)
        out[i] = (x[i] - mean) / sqrt(sq + 1e-5) * (double)w[i] + (b != NULL ? (double)b[i] : 0.0);
    free(w);
    free(b);
}

static void layer_norm(const struct tiny *t, uint32_t l, const char *name, const double *x,
                       double *out)
{
    char stem[64];

    (void)snprintf(stem, sizeof(stem), "blk.%u.%s", l, name);
    norm(t, stem, x, out);
}

/* The YaRN paper's ramp over dimensions, scale 4, 8 original positions, turns between 32 and 1. */
static double scaled_frequency(const struct tiny *t, uint32_t i, const float *factors)
{
    double base = 10000.0, n = n_rot(t), f = pow(base, -2.0 * i / n);

    if (factors != NULL)
        f /= (double)factors[i];
    if (t->rope_scaling != NULL && strcmp(t->rope_scaling, "linear") == 0)
        return f / 4.0;
    if (t->rope_scaling != NULL) {
        double low = floor(n * log(8.0 / (32.0 * 2.0 * M_PI)) / (2.0 * log(base)));
        double high = ceil(n * log(8.0 / (1.0 * 2.0 * M_PI)) / (2.0 * log(base)));
        double ramp;

        low = fmax(low, 0.0);
        high = fmin(high, n - 1.0);
        ramp = (i - low) / (low == high ? 0.001 : high - low);
        ramp = fmin(fmax(ramp, 0.0), 1.0);
        return f * (1.0 - ramp) + f / 4.0 * ramp;
    }
    return f;
}

static void rotate(const struct tiny *t, double *x, uint32_t n_heads, uint32_t pos)
{
    double m = t->rope_scaling != NULL && strcmp(t->rope_scaling, "yarn") == 0
                   ? 0.1 * log(4.0) + 1.0
                   : 1.0;
    uint32_t half = n_rot(t) / 2;
    float *factors = t->rope_freqs ? tiny_tensor(t, "rope_freqs.weight", 1, half) : NULL;
    bool neox = tiny_form(t).neox;

    for (uint32_t h = 0; h < n_heads; h++) {
        for (uint32_t i = 0; i < half; i++) {
            double *p = x + h * t->head_dim + (neox ? i : 2 * i), *r = p + (neox ? half : 1);
            double a = *p, b = *r, angle = pos * scaled_frequency(t, i, factors);

            *p = m * (a * cos(angle) - b * sin(angle));
            *r = m * (a * sin(angle) + b * cos(angle));
        }
    }
    free(factors);
}

static void head_norm(const struct tiny *t, uint32_t l, const char *name, uint32_t n_heads,
                      double *x)
{
    float *w = tiny_layer_tensor(t, l, name, 1, t->head_dim);

    for (uint32_t h = 0; h < n_heads; h++, x += t->head_dim) {
        double sq = 0.0;

        for (uint32_t i = 0; i < t->head_dim; i++)
            sq += x[i] * x[i] / t->head_dim;
        for (uint32_t i = 0; i < t->head_dim; i++)
            x[i] *= (double)w[i] / sqrt(sq + 1e-5);
    }
    free(w);
}

static void make_qkv(const struct tiny *t, uint32_t l, uint32_t pos, const double *in, double *q,
                     double *k, double *v)
{
    const struct tiny_form f = tiny_form(t);
    uint32_t d = t->n_embd, nq = t->n_head * t->head_dim, kv = t->n_head_kv * t->head_dim;
    double *all = calloc(nq + 2 * kv, 8);

    if (f.fused_qkv) {
        linear(t, l, "attn_qkv", f.qkv_bias, nq + 2 * kv, d, in, all);
        memcpy(q, all, nq * 8);
        memcpy(k, all + nq, kv * 8);
        memcpy(v, all + nq + kv, kv * 8);
    } else {
        linear(t, l, "attn_q", f.qkv_bias, nq, d, in, q);
        linear(t, l, "attn_k", f.qkv_bias, kv, d, in, k);
        linear(t, l, "attn_v", f.qkv_bias, kv, d, in, v);
    }
    if (f.qk_norm) {
        head_norm(t, l, "attn_q_norm.weight", t->n_head, q);
        head_norm(t, l, "attn_k_norm.weight", t->n_head_kv, k);
    }
    if (!f.learned_pos) {
        rotate(t, q, t->n_head, pos);
        rotate(t, k, t->n_head_kv, pos);
    }
    free(all);
}

/* out (n_embd): what attention adds, for its normed input. */
static void attention(struct hand *h, uint32_t l, uint32_t pos, const double *in, double *out)
{
    const struct tiny *t = h->t;
    uint32_t d = t->n_embd, hd = t->head_dim, nq = t->n_head * hd, kv = t->n_head_kv * hd;
    double *q = calloc(nq, 8), *o = calloc(nq, 8), *p = calloc(pos + 1u, 8);
    double *k = h->k + (size_t)l * h->n * kv, *v = h->v + (size_t)l * h->n * kv;

    make_qkv(t, l, pos, in, q, k + pos * kv, v + pos * kv);
    for (uint32_t head = 0; head < t->n_head; head++) {
        uint32_t at = head / (t->n_head / t->n_head_kv) * hd;
        double sum = 0.0;

        for (uint32_t j = 0; j <= pos; j++) {
            p[j] = 0.0;
            for (uint32_t i = 0; i < hd; i++)
                p[j] += q[head * hd + i] * k[j * kv + at + i];
            p[j] = exp(p[j] / sqrt(hd));
            sum += p[j];
        }
        for (uint32_t j = 0; j <= pos; j++) {
            for (uint32_t i = 0; i < hd; i++)
                o[head * hd + i] += p[j] / sum * v[j * kv + at + i];
        }
    }
    linear(t, l, "attn_output", tiny_form(t).o_bias, d, nq, o, out);
    free(q);
    free(o);
    free(p);
}

static double activation(const struct tiny *t, double x)
{
    const char *act = t->act != NULL ? t->act : "relu";

    if (strcmp(act, "silu") == 0)
        return x / (1.0 + exp(-x));
    if (strcmp(act, "gelu") == 0)
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    if (strcmp(act, "fatrelu") == 0)
        return x > (double)t->act_threshold ? x : 0.0;
    x = fmax(x, 0.0);
    return strcmp(act, "relu2") == 0 ? x * x : x;
}

/* out (n_embd): what the feed-forward block adds, for its normed input. */
static void feed_forward(const struct tiny *t, uint32_t l, const double *in, double *out)
{
    const struct tiny_form form = tiny_form(t);
    uint32_t d = t->n_embd, f = t->n_ff;
    double *g = calloc(f, 8), *u = calloc(f, 8);
    float *down = tiny_layer_tensor(t, l, "ffn_down_t.weight", f, d);
    float *b = form.mlp_bias ? tiny_layer_tensor(t, l, "ffn_down.bias", 1, d) : NULL;

    linear(t, l, "ffn_up", form.mlp_bias, f, d, in, u);
    if (form.gated)
        linear(t, l, "ffn_gate", form.mlp_bias, f, d, in, g);
    for (uint32_t c = 0; c < d; c++)
        out[c] = b != NULL ? (double)b[c] : 0.0;
    for (uint32_t i = 0; i < f; i++) {
        double up = form.act_up ? activation(t, u[i]) : u[i];
        double h = form.gated ? activation(t, g[i]) * up : activation(t, u[i]);

        for (uint32_t c = 0; c < d; c++)
            out[c] += h * (double)down[(size_t)i * d + c];
    }
    free(g);
    free(u);
    free(down);
    free(b);
}

static void add(double *x, const double *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void layer(struct hand *h, uint32_t l, uint32_t pos, double *x)
{
    const struct tiny *t = h->t;
    uint32_t d = t->n_embd;
    double *in = calloc(d, 8), *a = calloc(d, 8), *f = calloc(d, 8);

    if (t->post_norm) {
        attention(h, l, pos, x, a);
        add(x, a, d);
        layer_norm(t, l, "attn_norm", x, x);
        feed_forward(t, l, x, f);
        add(x, f, d);
        layer_norm(t, l, "ffn_norm", x, x);
    } else if (tiny_form(t).parallel) {
        layer_norm(t, l, t->two_norms ? "attn_norm_2" : "attn_norm", x, in);
        attention(h, l, pos, in, a);
        layer_norm(t, l, "attn_norm", x, in);
        feed_forward(t, l, in, f);
        add(x, a, d);
        add(x, f, d);
    } else {
        layer_norm(t, l, "attn_norm", x, in);
        attention(h, l, pos, in, a);
        add(x, a, d);
        layer_norm(t, l, "ffn_norm", x, in);
        feed_forward(t, l, in, f);
        add(x, f, d);
    }
    free(in);
    free(a);
    free(f);
}

/* Embedding of a token at a position. */
static void embed(const struct tiny *t, const float *embd, int32_t token, uint32_t pos, double *x)
{
    uint32_t d = t->n_embd, w = n_embd_tok(t);
    double *row = calloc(w, 8);

    for (uint32_t i = 0; i < w; i++)
        row[i] = (double)embd[(size_t)token * w + i];
    if (w != d) {
        float *project = tiny_tensor(t, "project_in.weight", d, w);

        product(project, NULL, d, w, row, x);
        free(project);
    } else {
        memcpy(x, row, d * 8);
    }
    if (tiny_form(t).learned_pos) {
        float *pe = tiny_tensor(t, "position_embd.weight", t->n_ctx + 2, d);

        for (uint32_t i = 0; i < d; i++)
            x[i] += (double)pe[(size_t)(pos + 2) * d + i];
        free(pe);
    }
    free(row);
}

static void output(const struct tiny *t, const float *w, double *x, double *logits)
{
    uint32_t d = t->n_embd, n = n_embd_tok(t);
    double *y = calloc(n, 8);

    if (!t->post_norm)
        norm(t, "output_norm", x, x);
    if (n != d) {
        float *project = tiny_tensor(t, "project_out.weight", n, d);

        product(project, NULL, n, d, x, y);
        free(project);
    } else {
        memcpy(y, x, d * 8);
    }
    product(w, NULL, t->n_vocab, n, y, logits);
    free(y);
}

double *tiny_forward(const struct tiny *t, const int32_t *tokens, uint32_t n)
{
    uint32_t kv = t->n_head_kv * t->head_dim;
    struct hand h = {.t = t, .n = n};
    double *logits = calloc((size_t)n * t->n_vocab, 8), *x = calloc(t->n_embd, 8);
    float *embd = tiny_tensor(t, "token_embd.weight", t->n_vocab, n_embd_tok(t)), *out = embd;

    h.k = calloc((size_t)t->n_layer * n * kv, 8);
    h.v = calloc((size_t)t->n_layer * n * kv, 8);
    if (!t->tied)
        out = tiny_tensor(t, "output.weight", t->n_vocab, n_embd_tok(t));
    for (uint32_t p = 0; p < n; p++) {
        embed(t, embd, tokens[p], p, x);
        for (uint32_t l = 0; l < t->n_layer; l++)
            layer(&h, l, p, x);
        output(t, out, x, logits + (size_t)p * t->n_vocab);
    }
    if (!t->tied)
        free(out);
    free(embd);
    free(h.k);
    free(h.v);
    free(x);
    return logits;
}
