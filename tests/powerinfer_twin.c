/* powerinfer_twin.c - see powerinfer_twin.h */
#include "config.h"

#include "tests/powerinfer_twin.h"

#include "runtime/cpu/pi_cpu.h"

#include <math.h>
#include <stdarg.h>

const int32_t twin_tokens[N_TOK] = {1, 70, 105, 104, 104, 200, 9, 33, 118};

/* ---- the model ---- */

static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 33) / 0x1p30 - 1.0);
}

/* n_rows 0: a vector. Its values are what the file holds: rounded to the type first. */
static void put(struct model *m, enum pi_type type, uint32_t n_rows, uint32_t n_cols,
                const char *format, ...) __attribute__((format(printf, 5, 6)));
static void put(struct model *m, enum pi_type type, uint32_t n_rows, uint32_t n_cols,
                const char *format, ...)
{
    struct tensor *t = &m->t[m->n++];
    const struct pi_cpu_type *cpu = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    uint64_t row = 0;
    va_list ap;

    if (m->n > MAX_TENSORS || !pi_type_row_bytes(type, n_cols, &row))
        exit(99);
    va_start(ap, format);
    (void)vsnprintf(t->name, sizeof(t->name), format, ap);
    va_end(ap);
    t->vector = n_rows == 0;
    t->n_rows = t->vector ? 1 : n_rows;
    t->n_cols = n_cols;
    t->type = type;
    t->n_bytes = (size_t)(t->n_rows * row);
    t->w = calloc((size_t)t->n_rows * n_cols, sizeof(float));
    t->data = calloc(t->n_bytes, 1);
    if (t->w == NULL || t->data == NULL)
        exit(99);
    for (size_t i = 0; i < (size_t)t->n_rows * n_cols; i++)
        t->w[i] = t->vector ? 0.25f * noise(&m->seed) + (strstr(t->name, "norm") != NULL &&
                                                                 strstr(t->name, "weight") != NULL
                                                             ? 1.0f
                                                             : 0.0f)
                            : 1.7f * noise(&m->seed) / sqrtf((float)n_cols);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        cpu->from_f32(t->w + (size_t)r * n_cols, t->data + r * row, n_cols);
        cpu->to_f32(t->data + r * row, t->w + (size_t)r * n_cols, n_cols);
    }
}

static void put_norm(struct model *m, const char *name)
{
    put(m, PI_TYPE_F32, 0, N_EMBD, "%s.weight", name);
    if (m->k->layer_norm)
        put(m, PI_TYPE_F32, 0, N_EMBD, "%s.bias", name);
}

/* A matrix of a layer, with a bias where the architecture has them. */
static void put_linear(struct model *m, uint32_t l, const char *name, uint32_t n_rows,
                       uint32_t n_cols, uint32_t n_bias)
{
    put(m, m->k->type, n_rows, n_cols, "blk.%u.%s.weight", l, name);
    if (m->k->biases)
        put(m, PI_TYPE_F32, 0, n_bias, "blk.%u.%s.bias", l, name);
}

static void put_layer(struct model *m, uint32_t l)
{
    const struct kind *k = m->k;
    const uint32_t kv = k->n_head_kv * HEAD_DIM;
    char name[32];

    (void)snprintf(name, sizeof(name), "blk.%u.attn_norm", l);
    put_norm(m, name);
    (void)snprintf(name, sizeof(name), k->parallel ? "blk.%u.attn_norm_2" : "blk.%u.ffn_norm", l);
    if (!k->parallel || k->two_norms)
        put_norm(m, name);
    if (k->parallel) {
        put_linear(m, l, "attn_qkv", N_EMBD + 2 * kv, N_EMBD, 0);
    } else {
        put_linear(m, l, "attn_q", N_EMBD, N_EMBD, N_EMBD);
        put_linear(m, l, "attn_k", kv, N_EMBD, kv);
        put_linear(m, l, "attn_v", kv, N_EMBD, kv);
    }
    put_linear(m, l, "attn_output", N_EMBD, N_EMBD, N_EMBD);
    if (k->gated)
        put_linear(m, l, "ffn_gate", N_FF, N_EMBD, N_FF);
    put_linear(m, l, "ffn_up", N_FF, N_EMBD, N_FF);
    put_linear(m, l, "ffn_down_t", N_FF, N_EMBD,
               N_EMBD); /* as tall as up: row i is neuron i's column */
    put(m, k->type, WIDTH, N_EMBD, "blk.%u.fc1.weight", l);
    put(m, k->type, N_FF, WIDTH, "blk.%u.fc2.weight", l);
}

static struct vocab *make_vocab(const struct kind *k)
{
    struct vocab *v =
        strcmp(k->arch, "llama") == 0 || strcmp(k->arch, "bamboo") == 0 ? vocab_spm() : vocab_bpe();

    if (strcmp(v->model, "gpt2") == 0) {
        (void)vocab_merge(v, " ", "a");
        (void)vocab_merge(v, "h", "e");
    } else {
        (void)vocab_add(v, "\xe2\x96\x81", T_NORMAL, -1.0f);
        for (char c[2] = "a"; *c <= 'z'; (*c)++)
            (void)vocab_add(v, c, T_NORMAL, -2.0f);
    }
    return v;
}

struct model *twin_make(const struct kind *k)
{
    struct model *m = calloc(1, sizeof(*m));

    if (m == NULL)
        exit(99);
    m->k = k;
    m->seed = 7;
    m->v = make_vocab(k);
    put(m, k->type, m->v->n, N_EMBD, "token_embd.weight");
    if (k->learned_pos)
        put(m, k->type, N_POS, N_EMBD, "position_embd.weight");
    put_norm(m, "output_norm");
    if (!k->learned_pos) /* OPT's logits are made of token_embd; rows of no multiple of 256 got Q8_0 for Q6_K */
        put(m, k->type == PI_TYPE_Q4_0 ? PI_TYPE_Q8_0 : k->type, m->v->n, N_EMBD, "output.weight");
    for (uint32_t l = 0; l < N_LAYER; l++)
        put_layer(m, l);
    return m;
}

void twin_free(struct model *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->t[i].w);
        free(m->t[i].data);
    }
    free(m->v);
    free(m);
}

/* ---- the file ---- */

static void put_number(FILE *f, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        (void)fputc((int)(v >> 8 * i & 255), f);
}

static void put_str(FILE *f, struct pi_str s)
{
    put_number(f, s.n, 8);
    (void)fwrite(s.p, 1, s.n, f);
}

/* Keys are counted before they are written: once without a file. */
struct keys {
    FILE *f;
    const char *arch;
    uint64_t n;
};

/* A name that starts with a dot is the architecture's. */
static FILE *put_key(struct keys *k, const char *name, uint32_t type)
{
    char full[96];

    k->n++;
    (void)snprintf(full, sizeof(full), "%s%s", *name == '.' ? k->arch : "", name);
    if (k->f != NULL) {
        put_str(k->f, (struct pi_str){full, strlen(full)});
        put_number(k->f, type, 4);
    }
    return k->f;
}

static void key_u32(struct keys *k, const char *name, uint32_t v)
{
    FILE *f = put_key(k, name, PI_GGUF_U32);

    if (f != NULL)
        put_number(f, v, 4);
}

static void key_f32(struct keys *k, const char *name, float v)
{
    FILE *f = put_key(k, name, PI_GGUF_F32);

    if (f != NULL)
        (void)fwrite(&v, sizeof(v), 1, f);
}

static void key_str(struct keys *k, const char *name, const char *v)
{
    FILE *f = put_key(k, name, PI_GGUF_STR);

    if (f != NULL)
        put_str(f, (struct pi_str){v, strlen(v)});
}

static void key_strs(struct keys *k, const char *name, const struct pi_str *v, uint32_t n)
{
    FILE *f = put_key(k, name, PI_GGUF_ARR);

    if (f == NULL)
        return;
    put_number(f, PI_GGUF_STR, 4);
    put_number(f, n, 8);
    for (uint32_t i = 0; i < n; i++)
        put_str(f, v[i]);
}

static void key_array(struct keys *k, const char *name, uint32_t type, const void *v, uint32_t n)
{
    FILE *f = put_key(k, name, PI_GGUF_ARR);

    if (f == NULL)
        return;
    put_number(f, type, 4);
    put_number(f, n, 8);
    (void)fwrite(v, 4, n, f);
}

/* What PowerInfer's converters write: no activation, no head width, no epsilon for OPT, no pre-tokeniser. */
static void put_keys(const struct model *m, struct keys *out)
{
    const struct kind *k = m->k;

    key_str(out, "general.architecture", k->arch);
    key_str(out, "general.name", "a twin");
    if (k->parallel)
        key_str(out, ".tensor_data_layout", "jploski");
    key_u32(out, ".context_length", k->learned_pos ? N_POS : 2048);
    key_u32(out, ".embedding_length", N_EMBD);
    key_u32(out, ".block_count", N_LAYER);
    key_u32(out, ".feed_forward_length", N_FF);
    if (!k->learned_pos && !k->parallel)
        key_u32(out, ".rope.dimension_count", HEAD_DIM);
    key_u32(out, ".attention.head_count", N_HEAD);
    if (!k->learned_pos)
        key_u32(out, ".attention.head_count_kv", k->n_head_kv);
    if (!k->layer_norm)
        key_f32(out, ".attention.layer_norm_rms_epsilon", 1e-5f);
    else if (k->parallel)
        key_f32(out, ".attention.layer_norm_epsilon", 1e-5f);
    key_u32(out, "general.file_type", k->type == PI_TYPE_Q4_0 ? 2 : k->type == PI_TYPE_F16);
    key_str(out, "tokenizer.ggml.model", m->v->model);
    key_strs(out, "tokenizer.ggml.tokens", m->v->tokens, m->v->n);
    key_array(out, "tokenizer.ggml.scores", PI_GGUF_F32, m->v->scores, m->v->n);
    key_array(out, "tokenizer.ggml.token_type", PI_GGUF_I32, m->v->types, m->v->n);
    if (m->v->n_merges > 0)
        key_strs(out, "tokenizer.ggml.merges", m->v->merges, m->v->n_merges);
    key_u32(out, "tokenizer.ggml.bos_token_id", m->v->bos == UINT32_MAX ? m->v->eos : m->v->bos);
    key_u32(out, "tokenizer.ggml.eos_token_id", m->v->eos);
    if (!k->no_threshold)
        key_f32(out, "powerinfer.sparse_threshold", k->threshold);
}

static void pad(FILE *f)
{
    while (ftell(f) % 32 != 0)
        (void)fputc(0, f);
}

void twin_write(const struct model *m, const char *path)
{
    FILE *f = fopen(path, "wb");
    struct keys counted = {NULL, m->k->arch, 0}, keys = {f, m->k->arch, 0};
    uint64_t at = 0;

    if (f == NULL)
        exit(99);
    put_keys(m, &counted);
    (void)fwrite("PWRI", 1, 4, f);
    put_number(f, 3, 4);
    put_number(f, m->n, 8);
    put_number(f, counted.n, 8);
    put_keys(m, &keys);
    for (size_t i = 0; i < m->n; i++) {
        const struct tensor *t = &m->t[i];

        put_str(f, (struct pi_str){t->name, strlen(t->name)});
        put_number(f, t->vector ? 1 : 2, 4);
        put_number(f, t->n_cols, 8);
        if (!t->vector)
            put_number(f, t->n_rows, 8);
        put_number(f, t->type, 4);
        put_number(f, at, 8);
        at = (at + t->n_bytes + 31) / 32 * 32;
    }
    for (size_t i = 0; i < m->n; i++) {
        pad(f);
        (void)fwrite(m->t[i].data, 1, m->t[i].n_bytes, f);
    }
    pad(f);
    if (fclose(f) != 0)
        exit(99);
}

struct tensor *twin_tensor(struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0)
            return &m->t[i];
    exit(99);
}

/* ---- the twin ---- */

static const float *find(const struct model *m, uint32_t l, const char *name)
{
    char full[64];

    (void)snprintf(full, sizeof(full), "blk.%u.%s", l, name);
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0 || strcmp(m->t[i].name, full) == 0)
            return m->t[i].w;
    return NULL;
}

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum = 0.0f;

    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* y = W x + b for the rows that are kept, 0 + b elsewhere: mul_mat_sparse, and mul_mat where keep is NULL. */
static void linear(const struct model *m, uint32_t l, const char *name, uint32_t n_rows,
                   uint32_t n_cols, const bool *keep, const float *x, float *y)
{
    char weight[32], bias[32];
    const float *w, *b;

    (void)snprintf(weight, sizeof(weight), "%s.weight", name);
    (void)snprintf(bias, sizeof(bias), "%s.bias", name);
    w = find(m, l, weight);
    b = find(m, l, bias);
    for (uint32_t r = 0; r < n_rows; r++)
        y[r] = (keep == NULL || keep[r] ? dot(w + (size_t)r * n_cols, x, n_cols) : 0.0f) +
               (b != NULL ? b[r] : 0.0f);
}

/* OPT gets the epsilon it was trained with: PowerInfer's reader takes 0, which moves these logits by less than their rounding. */
static void norm(const struct model *m, uint32_t l, const char *name, const float *x, float *y)
{
    char weight[32], bias[32];
    const float *w, *b;
    float mean = 0.0f, sq = 0.0f, scale;

    (void)snprintf(weight, sizeof(weight), "%s.weight", name);
    (void)snprintf(bias, sizeof(bias), "%s.bias", name);
    w = find(m, l, weight);
    b = find(m, l, bias);
    for (uint32_t i = 0; m->k->layer_norm && i < N_EMBD; i++)
        mean += x[i] / N_EMBD;
    for (uint32_t i = 0; i < N_EMBD; i++)
        sq += (x[i] - mean) * (x[i] - mean) / N_EMBD;
    scale = 1.0f / sqrtf(sq + 1e-5f);
    for (uint32_t i = 0; i < N_EMBD; i++)
        y[i] = (x[i] - mean) * scale * w[i] + (b != NULL ? b[i] : 0.0f);
}

static void rotate(const struct kind *k, float *x, uint32_t n_heads, uint32_t pos)
{
    for (uint32_t h = 0; h < n_heads && !k->learned_pos; h++)
        for (uint32_t i = 0; i < HEAD_DIM / 2; i++) {
            float *p = x + h * HEAD_DIM + (k->neox ? i : 2 * i),
                  *r = p + (k->neox ? HEAD_DIM / 2 : 1);
            const float angle = (float)pos * powf(10000.0f, -2.0f * (float)i / HEAD_DIM), a = *p,
                        b = *r;

            *p = a * cosf(angle) - b * sinf(angle);
            *r = a * sinf(angle) + b * cosf(angle);
        }
}

static void attention(struct run *r, uint32_t l, uint32_t pos, const float *in, float *out)
{
    const struct kind *kind = r->m->k;
    const uint32_t n_kv = kind->n_head_kv * HEAD_DIM;
    float q[N_EMBD], all[3 * N_EMBD], o[N_EMBD] = {0}, p[N_TOK];

    if (kind->parallel) {
        linear(r->m, l, "attn_qkv", N_EMBD + 2 * n_kv, N_EMBD, NULL, in, all);
        memcpy(q, all, sizeof(q));
        memcpy(r->k[l][pos], all + N_EMBD, n_kv * sizeof(float));
        memcpy(r->v[l][pos], all + N_EMBD + n_kv, n_kv * sizeof(float));
    } else {
        linear(r->m, l, "attn_q", N_EMBD, N_EMBD, NULL, in, q);
        linear(r->m, l, "attn_k", n_kv, N_EMBD, NULL, in, r->k[l][pos]);
        linear(r->m, l, "attn_v", n_kv, N_EMBD, NULL, in, r->v[l][pos]);
    }
    rotate(kind, q, N_HEAD, pos);
    rotate(kind, r->k[l][pos], kind->n_head_kv, pos);
    for (uint32_t h = 0; h < N_HEAD; h++) {
        const uint32_t at = h / (N_HEAD / kind->n_head_kv) * HEAD_DIM;
        float sum = 0.0f;

        for (uint32_t j = 0; j <= pos; j++) {
            p[j] = expf(dot(q + h * HEAD_DIM, r->k[l][j] + at, HEAD_DIM) / sqrtf(HEAD_DIM));
            sum += p[j];
        }
        for (uint32_t j = 0; j <= pos; j++)
            for (uint32_t i = 0; i < HEAD_DIM; i++)
                o[h * HEAD_DIM + i] += p[j] / sum * r->v[l][j][at + i];
    }
    linear(r->m, l, "attn_output", N_EMBD, N_EMBD, NULL, o, out);
}

/* llm_build_ffn_sparse: logit = fc2 . relu(fc1 . x), no bias, kept at or above the threshold. */
static void predict(struct run *r, uint32_t l, const float *x, bool *keep)
{
    const float threshold = r->m->k->no_threshold ? 0.0f : r->m->k->threshold;
    float hidden[WIDTH], logit[N_FF];

    linear(r->m, l, "fc1", WIDTH, N_EMBD, NULL, x, hidden);
    for (uint32_t i = 0; i < WIDTH; i++)
        hidden[i] = fmaxf(hidden[i], 0.0f);
    linear(r->m, l, "fc2", N_FF, WIDTH, NULL, hidden, logit);
    for (uint32_t i = 0; i < N_FF; i++) {
        keep[i] = !(logit[i] < threshold);
        r->kept += keep[i];
        r->closest = fminf(r->closest, fabsf(logit[i] - threshold));
    }
    r->seen += N_FF;
}

/* x: what the predictor reads; in: what the block reads. Adds to out. */
static void feed_forward(struct run *r, uint32_t l, const float *x, const float *in, float *out)
{
    const struct kind *k = r->m->k;
    const float *down = find(r->m, l, "ffn_down_t.weight"),
                *bias = find(r->m, l, "ffn_down_t.bias");
    bool keep[N_FF];
    float gate[N_FF], up[N_FF];

    if (r->sparse)
        predict(r, l, x, keep);
    if (k->gated)
        linear(r->m, l, "ffn_gate", N_FF, N_EMBD, r->sparse ? keep : NULL, in, gate);
    linear(r->m, l, "ffn_up", N_FF, N_EMBD, r->sparse ? keep : NULL, in, up);
    for (uint32_t i = 0; i < N_FF; i++) {
        float h = k->gated ? fmaxf(gate[i], 0.0f) * (k->relu_up ? fmaxf(up[i], 0.0f) : up[i])
                           : fmaxf(up[i], 0.0f);

        for (uint32_t c = 0; (!r->sparse || keep[i]) && c < N_EMBD; c++) /* axpy */
            out[c] += h * down[(size_t)i * N_EMBD + c];
    }
    for (uint32_t c = 0; bias != NULL && c < N_EMBD; c++)
        out[c] += bias[c];
}

static void layer(struct run *r, uint32_t l, uint32_t pos, float *x)
{
    float in[N_EMBD], a[N_EMBD], out[N_EMBD] = {0};
    const struct kind *k = r->m->k;

    norm(r->m, l, k->two_norms ? "attn_norm_2" : "attn_norm", x, in);
    attention(r, l, pos, in, a);
    if (k->parallel) { /* the predictor reads the layer's input */
        norm(r->m, l, "attn_norm", x, in);
        feed_forward(r, l, x, in, out);
        for (uint32_t i = 0; i < N_EMBD; i++)
            x[i] += a[i] + out[i];
        return;
    }
    for (uint32_t i = 0; i < N_EMBD; i++)
        x[i] += a[i];
    norm(r->m, l, "ffn_norm", x, in);
    feed_forward(r, l, x, in, out); /* the predictor reads what the norm reads */
    for (uint32_t i = 0; i < N_EMBD; i++)
        x[i] += out[i];
}

/* Logits (N_TOK, n_vocab), and on how many neurons it worked; the caller's to free(). */
float *twin_run(const struct model *m, bool sparse, struct run *r)
{
    const float *embd = find(m, 0, "token_embd.weight"), *pos = find(m, 0, "position_embd.weight"),
                *head = find(m, 0, "output.weight");
    float *logits = calloc((size_t)N_TOK * m->v->n, sizeof(float)), x[N_EMBD];

    memset(r, 0, sizeof(*r));
    r->m = m;
    r->sparse = sparse;
    r->closest = INFINITY;
    for (uint32_t p = 0; p < N_TOK; p++) {
        for (uint32_t i = 0; i < N_EMBD; i++)
            x[i] = embd[(size_t)twin_tokens[p] * N_EMBD + i] +
                   (pos != NULL ? pos[(p + 2) * N_EMBD + i] : 0.0f);
        for (uint32_t l = 0; l < N_LAYER; l++)
            layer(r, l, p, x);
        norm(m, 0, "output_norm", x, x);
        for (uint32_t i = 0; i < m->v->n; i++)
            logits[p * m->v->n + i] =
                dot((head != NULL ? head : embd) + (size_t)i * N_EMBD, x, N_EMBD);
    }
    return logits;
}
