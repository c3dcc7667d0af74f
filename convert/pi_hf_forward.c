#include "config.h"

#include "convert/pi_hf_forward.h"
#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/cpu/pi_cpu.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE_ELEMS ((size_t)4 << 20) /* weights held as F32 at a time */

/* A checkpoint's names. */
struct names {
    const char *embd, *attn_norm, *o, *ffn_norm, *gate, *up, *down, *out_norm;
};

static const struct names llama_names = {
    "embed_tokens",  "input_layernorm", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj", "mlp.up_proj",     "mlp.down_proj",    "norm"};
static const struct names opt_names = {
    "embed_tokens", "self_attn_layer_norm", "self_attn.out_proj", "final_layer_norm", NULL, "fc1",
    "fc2",          "final_layer_norm"};
static const struct names falcon_names = {"word_embeddings",
                                          "input_layernorm",
                                          "self_attention.dense",
                                          "input_layernorm",
                                          NULL,
                                          "mlp.dense_h_to_4h",
                                          "mlp.dense_4h_to_h",
                                          "ln_f"};
static const struct names falcon_two_names = {
    "word_embeddings",   "ln_attn", "self_attention.dense", "ln_mlp", NULL, "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h", "ln_f"};

static const struct names *names_of(const struct pi_hf_config *c)
{
    switch (c->shape.arch) {
    case PI_ARCH_OPT:
        return &opt_names;
    case PI_ARCH_FALCON:
        return c->two_norms ? &falcon_two_names : &falcon_names;
    default:
        return &llama_names;
    }
}

/* Scratch of one pass; T = n_tok. */
struct pass {
    const struct pi_hf_config *c;
    const struct names *name;
    const struct pi_source *src;
    const struct pi_cpu *cpu;
    uint32_t n_tok, n_q, n_kv;
    float *tile; /* (TILE_ELEMS) */
    size_t cap_tile;
    float *vec;             /* one vector of weights, as long as the longest */
    float *x, *h, *a;       /* (T, n_embd) */
    float *qkv;             /* (T, n_q + 2 n_kv) where they are one matrix */
    float *tok;             /* (T, n_embd_tok) where embeddings are projected */
    float *q, *k, *v, *att; /* (T, n_q | n_kv | n_kv | n_q) */
    float *gate, *up;       /* (T, n_ff) */
    float *cosine, *sine;   /* (T, n_rot / 2) */
    float *scores;          /* (T) */
};

static uint64_t elem_bytes(const struct pi_src_tensor *t)
{
    return pi_type_info((uint32_t)t->type)->block_bytes;
}

/* n elements from element first on; an address that no element of the type may have goes through a copy at the end of out. */
static void read_elems(const struct pass *p, const struct pi_src_tensor *t, uint64_t first,
                       float *out, uint64_t n)
{
    const uint8_t *at = t->data + first * elem_bytes(t);
    uint64_t bytes = n * elem_bytes(t);

    if ((uintptr_t)at % elem_bytes(t) !=
        0) { /* element i is read before its bytes are overwritten */
        uint8_t *raw = (uint8_t *)out + (n * sizeof(float) - bytes);
        memcpy(raw, at, bytes);
        for (uint64_t i = 0; i < n; i++) {
            uint8_t one[4];
            float f;
            memcpy(one, raw + i * elem_bytes(t), elem_bytes(t));
            p->cpu->type[t->type]->to_f32(one, &f, 1);
            memcpy(out + i, &f, sizeof(f));
        }
        return;
    }
    p->cpu->type[t->type]->to_f32(at, out, (uint32_t)n);
}

static enum pi_code find(const struct pass *p, int64_t layer, const char *base,
                         const struct pi_src_tensor **out, struct pi_err *err)
{
    char name[128];

    if (layer < 0)
        (void)snprintf(name, sizeof(name), "%s", base);
    else
        (void)snprintf(name, sizeof(name), "%s%lld.%s", p->c->layers, (long long)layer, base);
    *out = pi_hf_find(p->src, name);
    if (*out == NULL || !(*out)->readable)
        return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %s is missing", p->src->maps[0].path,
                          name);
    return PI_OK;
}

/* out[t] = W x[t] (+ bias), W (n_out, n_in) named stem.weight; a tile of rows at a time. */
static enum pi_code linear(const struct pass *p, int64_t layer, const char *stem, bool bias,
                           const float *x, uint32_t n_in, float *out, uint32_t n_out,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_src_tensor *w, *b = NULL;
    uint32_t rows = (uint32_t)(p->cap_tile / n_in);
    char name[96];

    (void)snprintf(name, sizeof(name), "%s.weight", stem);
    PI_TRY(find(p, layer, name, &w, err));
    (void)snprintf(name, sizeof(name), "%s.bias", stem);
    if (bias)
        PI_TRY(find(p, layer, name, &b, err));
    for (uint32_t r = 0; r < n_out; r += rows) {
        uint32_t m = n_out - r < rows ? n_out - r : rows;
        read_elems(p, w, (uint64_t)r * n_in, p->tile, (uint64_t)m * n_in);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->n_tok, (int)m, (int)n_in, 1.0f,
                    x, (int)n_in, p->tile, (int)n_in, 0.0f, out + r, (int)n_out);
    }
    if (b != NULL) {
        read_elems(p, b, 0, p->vec, n_out);
        for (uint32_t t = 0; t < p->n_tok; t++)
            for (uint32_t i = 0; i < n_out; i++)
                out[(size_t)t * n_out + i] += p->vec[i];
    }
    PI_TRY(pi_interrupt_check(err));
out:
    return rc;
}

/* h[t] = norm(x[t]): RMSNorm, or LayerNorm with bias. h may be x. */
static enum pi_code norm(const struct pass *p, int64_t layer, const char *stem, float *h,
                         struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &p->c->shape;
    const struct pi_src_tensor *w, *b;
    uint32_t n = s->n_embd;
    char name[96];

    (void)snprintf(name, sizeof(name), "%s.weight", stem);
    PI_TRY(find(p, layer, name, &w, err));
    read_elems(p, w, 0, p->vec, n);
    for (uint32_t i = 0; p->c->norm_plus_one && i < n; i++)
        p->vec[i] += 1.0f;
    for (uint32_t t = 0; t < p->n_tok; t++) {
        const float *x = p->x + (size_t)t * n;
        double mean = 0.0, sq = 0.0, scale;

        for (uint32_t i = 0; i < n && s->layer_norm; i++)
            mean += (double)x[i] / n;
        for (uint32_t i = 0; i < n; i++)
            sq += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
        scale = 1.0 / sqrt(sq + (double)s->norm_eps);
        for (uint32_t i = 0; i < n; i++)
            h[(size_t)t * n + i] = (float)(((double)x[i] - mean) * scale * (double)p->vec[i]);
    }
    if (!s->layer_norm)
        goto out;
    (void)snprintf(name, sizeof(name), "%s.bias", stem);
    PI_TRY(find(p, layer, name, &b, err));
    read_elems(p, b, 0, p->vec, n);
    for (size_t i = 0; i < (size_t)p->n_tok * n; i++)
        h[i] += p->vec[i % n];
out:
    return rc;
}

/* ---- rotary embedding, as modeling_rope_utils computes it ---- */

static double yarn_dim(const struct pi_shape *s, double rotations)
{
    return s->n_rot * log(s->rope_n_ctx_orig / (rotations * 2.0 * M_PI)) /
           (2.0 * log((double)s->rope_base));
}

static double yarn_freq(const struct pi_shape *s, uint32_t i, double freq)
{
    double low = fmax(floor(yarn_dim(s, (double)s->rope_beta_fast)), 0.0);
    double high = fmin(ceil(yarn_dim(s, (double)s->rope_beta_slow)), s->n_rot - 1.0), ramp;

    if (low == high)
        high += 0.001;
    ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    return freq / (double)s->rope_factor * ramp + freq * (1.0 - ramp);
}

static double llama3_freq(const struct pi_hf_config *c, double freq)
{
    const struct pi_shape *s = &c->shape;
    double len = 2.0 * M_PI / freq, orig = s->rope_n_ctx_orig, factor = (double)s->rope_factor,
           smooth;

    if (len < orig / (double)c->rope_high_freq)
        return freq;
    if (len > orig / (double)c->rope_low_freq)
        return freq / factor;
    smooth = (orig / len - (double)c->rope_low_freq) /
             ((double)c->rope_high_freq - (double)c->rope_low_freq);
    return (1.0 - smooth) * freq / factor + smooth * freq;
}

static void fill_rotation(const struct pass *p)
{
    const struct pi_shape *s = &p->c->shape;
    uint32_t half = s->n_rot / 2;
    double scale = 1.0;

    if (p->c->rope == PI_HF_ROPE_YARN)
        scale = (double)s->rope_attn_factor * (0.1 * log((double)s->rope_factor) + 1.0);
    for (uint32_t i = 0; i < half; i++) {
        double freq = pow((double)s->rope_base, -2.0 * i / s->n_rot);

        if (p->c->rope == PI_HF_ROPE_LINEAR)
            freq /= (double)s->rope_factor;
        else if (p->c->rope == PI_HF_ROPE_LLAMA3)
            freq = llama3_freq(p->c, freq);
        else if (p->c->rope == PI_HF_ROPE_YARN)
            freq = yarn_freq(s, i, freq);
        for (uint32_t t = 0; t < p->n_tok; t++) {
            p->cosine[(size_t)t * half + i] = (float)(cos(t * freq) * scale);
            p->sine[(size_t)t * half + i] = (float)(sin(t * freq) * scale);
        }
    }
}

static void rotate(const struct pass *p, float *x, uint32_t n_heads)
{
    uint32_t width = p->c->shape.head_dim, half = p->c->shape.n_rot / 2;

    for (uint32_t t = 0; t < p->n_tok; t++)
        for (uint32_t h = 0; h < n_heads; h++) {
            float *a = x + ((size_t)t * n_heads + h) * width, *b = a + half;
            for (uint32_t i = 0; i < half; i++) {
                float co = p->cosine[(size_t)t * half + i], si = p->sine[(size_t)t * half + i],
                      a0 = a[i];
                a[i] = a0 * co - b[i] * si;
                b[i] = b[i] * co + a0 * si;
            }
        }
}

/* ---- blocks ---- */

/* One head of one token over positions 0..t. */
static void attend(const struct pass *p, uint32_t t, uint32_t head)
{
    const struct pi_shape *s = &p->c->shape;
    uint32_t d = s->head_dim, kv = head / (s->n_head / s->n_head_kv);
    const float *q = p->q + (size_t)t * p->n_q + (size_t)head * d;
    float *out = p->att + (size_t)t * p->n_q + (size_t)head * d, max = -INFINITY;
    double sum = 0.0;

    for (uint32_t j = 0; j <= t; j++) {
        p->scores[j] = cblas_sdot((int)d, q, 1, p->k + (size_t)j * p->n_kv + (size_t)kv * d, 1) /
                       sqrtf((float)d);
        max = fmaxf(max, p->scores[j]);
    }
    for (uint32_t j = 0; j <= t; j++)
        sum += (double)(p->scores[j] = expf(p->scores[j] - max));
    memset(out, 0, d * sizeof(*out));
    for (uint32_t j = 0; j <= t; j++)
        cblas_saxpy((int)d, (float)((double)p->scores[j] / sum),
                    p->v + (size_t)j * p->n_kv + (size_t)kv * d, 1, out, 1);
}

/* One matrix gives, for each key/value head, the queries that share it, then the key, then the value. */
static void split_fused(const struct pass *p)
{
    const struct pi_shape *s = &p->c->shape;
    uint32_t queries = s->n_head / s->n_head_kv, d = s->head_dim, n = p->n_q + 2 * p->n_kv;

    for (uint32_t t = 0; t < p->n_tok; t++)
        for (uint32_t g = 0; g < s->n_head_kv; g++) {
            const float *from = p->qkv + (size_t)t * n + (size_t)g * (queries + 2) * d;
            float *q = p->q + (size_t)t * p->n_q + (size_t)g * queries * d;

            memcpy(q, from, (size_t)queries * d * sizeof(*q));
            from += (size_t)queries * d;
            memcpy(p->k + (size_t)t * p->n_kv + (size_t)g * d, from, d * sizeof(*q));
            memcpy(p->v + (size_t)t * p->n_kv + (size_t)g * d, from + d, d * sizeof(*q));
        }
}

/* Each head of x (n_tok, n_heads, head_dim) RMS-normed by its own. */
static enum pi_code head_norm(const struct pass *p, uint32_t layer, const char *name, float *x,
                              uint32_t n_heads, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_src_tensor *w;
    uint32_t d = p->c->shape.head_dim;

    PI_TRY(find(p, layer, name, &w, err));
    read_elems(p, w, 0, p->vec, d);
    for (size_t h = 0; h < (size_t)p->n_tok * n_heads; h++, x += d) {
        double sq = 0.0;

        for (uint32_t i = 0; i < d; i++)
            sq += (double)x[i] * (double)x[i] / d;
        for (uint32_t i = 0; i < d; i++)
            x[i] =
                (float)((double)x[i] / sqrt(sq + (double)p->c->shape.norm_eps) * (double)p->vec[i]);
    }
out:
    return rc;
}

/* h -> q, k, v */
static enum pi_code make_qkv(const struct pass *p, uint32_t layer, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &p->c->shape;
    bool bias = p->c->qkv_bias;

    if (p->c->fused_qkv) {
        PI_TRY(linear(p, layer, "self_attention.query_key_value", bias, p->h, s->n_embd, p->qkv,
                      p->n_q + 2 * p->n_kv, err));
        split_fused(p);
    } else {
        PI_TRY(linear(p, layer, "self_attn.q_proj", bias, p->h, s->n_embd, p->q, p->n_q, err));
        PI_TRY(linear(p, layer, "self_attn.k_proj", bias, p->h, s->n_embd, p->k, p->n_kv, err));
        PI_TRY(linear(p, layer, "self_attn.v_proj", bias, p->h, s->n_embd, p->v, p->n_kv, err));
    }
    if (s->qk_norm) {
        PI_TRY(head_norm(p, layer, "self_attn.q_norm.weight", p->q, s->n_head, err));
        PI_TRY(head_norm(p, layer, "self_attn.k_norm.weight", p->k, s->n_head_kv, err));
    }
    if (!s->learned_pos) {
        rotate(p, p->q, s->n_head);
        rotate(p, p->k, s->n_head_kv);
    }
out:
    return rc;
}

/* h -> a */
static enum pi_code attention(const struct pass *p, uint32_t layer, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &p->c->shape;

    PI_TRY(make_qkv(p, layer, err));
    for (uint32_t t = 0; t < p->n_tok; t++)
        for (uint32_t h = 0; h < s->n_head; h++)
            attend(p, t, h);
    PI_TRY(linear(p, layer, p->name->o, p->c->o_bias, p->att, p->n_q, p->a, s->n_embd, err));
out:
    return rc;
}

/* Written out once more, apart from the engine's. */
static float activate(const struct pi_shape *s, float x)
{
    switch (s->act) {
    case PI_ACT_RELU:
        return fmaxf(x, 0.0f);
    case PI_ACT_RELU2:
        return x > 0.0f ? x * x : 0.0f;
    case PI_ACT_FATRELU:
        return x > s->act_threshold ? x : 0.0f;
    case PI_ACT_SILU:
        return x / (1.0f + expf(-x));
    case PI_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * (float)M_SQRT1_2));
    case PI_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case PI_ACT_COUNT:
        break;
    }
    return NAN;
}

/* h -> h */
static enum pi_code feed_forward(const struct pass *p, uint32_t layer, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &p->c->shape;
    bool bias = p->c->mlp_bias;

    PI_TRY(linear(p, layer, s->gated ? p->name->gate : p->name->up, bias, p->h, s->n_embd, p->gate,
                  s->n_ff, err));
    if (s->gated)
        PI_TRY(linear(p, layer, p->name->up, bias, p->h, s->n_embd, p->up, s->n_ff, err));
    for (size_t i = 0; i < (size_t)p->n_tok * s->n_ff; i++) {
        float up = !s->gated ? 1.0f : s->act_up ? activate(s, p->up[i]) : p->up[i];
        p->gate[i] = activate(s, p->gate[i]) * up;
    }
    PI_TRY(linear(p, layer, p->name->down, bias, p->gate, s->n_ff, p->h, s->n_embd, err));
out:
    return rc;
}

static void add(const struct pass *p, const float *y)
{
    for (size_t i = 0; i < (size_t)p->n_tok * p->c->shape.n_embd; i++)
        p->x[i] += y[i];
}

/* Norms before the blocks; both blocks read x where they are parallel. */
static enum pi_code pre_norm_layer(const struct pass *p, uint32_t layer, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool parallel = p->c->shape.parallel;

    PI_TRY(norm(p, layer, p->name->attn_norm, p->h, err));
    PI_TRY(attention(p, layer, err));
    if (!parallel)
        add(p, p->a);
    PI_TRY(norm(p, layer, p->name->ffn_norm, p->h, err));
    PI_TRY(feed_forward(p, layer, err));
    if (parallel)
        add(p, p->a);
    add(p, p->h);
out:
    return rc;
}

static enum pi_code post_norm_layer(const struct pass *p, uint32_t layer, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t bytes = (size_t)p->n_tok * p->c->shape.n_embd * sizeof(float);

    memcpy(p->h, p->x, bytes);
    PI_TRY(attention(p, layer, err));
    add(p, p->a);
    PI_TRY(norm(p, layer, p->name->attn_norm, p->x, err));
    memcpy(p->h, p->x, bytes);
    PI_TRY(feed_forward(p, layer, err));
    add(p, p->h);
    PI_TRY(norm(p, layer, p->name->ffn_norm, p->x, err));
out:
    return rc;
}

static enum pi_code embed(const struct pass *p, const int32_t *tokens, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &p->c->shape;
    const struct pi_src_tensor *w, *pos = NULL;
    float *to = p->tok != NULL ? p->tok : p->x;
    char name[96];

    (void)snprintf(name, sizeof(name), "%s.weight", p->name->embd);
    PI_TRY(find(p, -1, name, &w, err));
    if (s->learned_pos)
        PI_TRY(find(p, -1, "embed_positions.weight", &pos, err));
    for (uint32_t t = 0; t < p->n_tok; t++)
        read_elems(p, w, (uint64_t)(uint32_t)tokens[t] * s->n_embd_tok,
                   to + (size_t)t * s->n_embd_tok, s->n_embd_tok);
    if (p->tok != NULL)
        PI_TRY(linear(p, -1, "project_in", false, p->tok, s->n_embd_tok, p->x, s->n_embd, err));
    for (uint32_t t = 0; pos != NULL && t < p->n_tok; t++) {
        float *x = p->x + (size_t)t * s->n_embd;
        read_elems(p, pos, ((uint64_t)t + s->pos_offset) * s->n_embd, p->vec, s->n_embd);
        for (uint32_t i = 0; i < s->n_embd; i++)
            x[i] += p->vec[i];
    }
out:
    return rc;
}

static enum pi_code alloc_pass(struct pass *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &p->c->shape;
    size_t n = p->n_tok, widest = s->n_ff > s->n_embd ? s->n_ff : s->n_embd;

    widest = widest > p->n_q + 2 * (size_t)p->n_kv ? widest : p->n_q + 2 * (size_t)p->n_kv;
    widest = widest > s->n_embd_tok ? widest : s->n_embd_tok;
    p->cap_tile = TILE_ELEMS > widest ? TILE_ELEMS : widest;
    PI_ALLOC(p->tile, p->cap_tile, err);
    PI_ALLOC(p->vec, widest, err);
    PI_ALLOC(p->x, n * s->n_embd, err);
    PI_ALLOC(p->h, n * s->n_embd, err);
    PI_ALLOC(p->a, n * s->n_embd, err);
    if (p->c->fused_qkv)
        PI_ALLOC(p->qkv, n * (p->n_q + 2 * (size_t)p->n_kv), err);
    if (s->n_embd_tok != s->n_embd)
        PI_ALLOC(p->tok, n * s->n_embd_tok, err);
    PI_ALLOC(p->q, n * p->n_q, err);
    PI_ALLOC(p->k, n * p->n_kv, err);
    PI_ALLOC(p->v, n * p->n_kv, err);
    PI_ALLOC(p->att, n * p->n_q, err);
    PI_ALLOC(p->gate, n * s->n_ff, err);
    PI_ALLOC(p->up, n * s->n_ff, err);
    PI_ALLOC(p->cosine, n * (s->n_rot / 2), err);
    PI_ALLOC(p->sine, n * (s->n_rot / 2), err);
    PI_ALLOC(p->scores, n, err);
out:
    return rc;
}

static void free_pass(struct pass *p)
{
    float *all[] = {p->tile, p->vec, p->x,   p->h,    p->a,  p->qkv,    p->tok,  p->q,
                    p->k,    p->v,   p->att, p->gate, p->up, p->cosine, p->sine, p->scores};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

enum pi_code pi_hf_forward(const struct pi_hf_config *c, const struct pi_source *src,
                           const int32_t *tokens, uint32_t n_tok, float *logits_out,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *s = &c->shape;
    struct pass p = {.c = c,
                     .name = names_of(c),
                     .src = src,
                     .n_tok = n_tok,
                     .n_q = s->n_head * s->head_dim,
                     .n_kv = s->n_head_kv * s->head_dim};
    bool own_head = !pi_hf_is_tied(c, src);

    PI_TRY(pi_cpu_select(&p.cpu, err));
    PI_TRY(alloc_pass(&p, err));
    for (uint32_t t = 0; t < n_tok; t++)
        if (tokens[t] < 0 || (uint32_t)tokens[t] >= s->n_vocab)
            PI_FAIL(err, PI_E_RANGE, "token %d is not below %u", tokens[t], s->n_vocab);
    fill_rotation(&p);
    PI_TRY(embed(&p, tokens, err));
    for (uint32_t l = 0; l < s->n_layer; l++) {
        if (s->post_norm)
            PI_TRY(post_norm_layer(&p, l, err));
        else
            PI_TRY(pre_norm_layer(&p, l, err));
        pi_source_drop_all(src);
    }
    if (s->post_norm)
        memcpy(p.h, p.x, (size_t)n_tok * s->n_embd * sizeof(*p.h));
    else
        PI_TRY(norm(&p, -1, p.name->out_norm, p.h, err));
    if (p.tok != NULL)
        PI_TRY(linear(&p, -1, "project_out", false, p.h, s->n_embd, p.tok, s->n_embd_tok, err));
    PI_TRY(linear(&p, -1, own_head ? "lm_head" : p.name->embd, false, p.tok != NULL ? p.tok : p.h,
                  s->n_embd_tok, logits_out, s->n_vocab, err));
out:
    free_pass(&p);
    return rc;
}
