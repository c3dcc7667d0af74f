/* tiny_forward.c - the model of tiny_model.h computed by hand, in F64. */
#include "config.h"

#include "tests/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    double base = 10000.0, n = tiny_n_rot(t), f = pow(base, -2.0 * i / n);

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
    uint32_t half = tiny_n_rot(t) / 2;
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
    uint32_t d = t->n_embd, w = tiny_n_embd_tok(t);
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
    uint32_t d = t->n_embd, n = tiny_n_embd_tok(t);
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
    float *embd = tiny_tensor(t, "token_embd.weight", t->n_vocab, tiny_n_embd_tok(t)), *out = embd;

    h.k = calloc((size_t)t->n_layer * n * kv, 8);
    h.v = calloc((size_t)t->n_layer * n * kv, 8);
    if (!t->tied)
        out = tiny_tensor(t, "output.weight", t->n_vocab, tiny_n_embd_tok(t));
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
