/*
 * Attention over the cache, the largest logits, the begin of a step and the norm that is published, against double precision or plain sorting, on the emulated
 * device or a real one. Outputs are poisoned before; each call is made twice and must give the same bytes.
 */
#include "config.h"

#include "tests/kernel_rig.h"

#define REL      1e-5
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- attention ---- */

struct attn {
    uint32_t n_head, n_head_kv, head_dim;
    enum pi_type kv;
    uint32_t n_tok, real; /* tokens from real on are padding */
    uint32_t n_ctx, n;    /* the first token's context; later ones' are shorter */
    float sharp;          /* size of queries: large ones make a softmax of few positions */
};

#define ATTN_SEQ 2u

struct attn_run {
    struct rig r;
    struct pi_shape shape;
    struct pi_k_step step;
    struct rig_mat k, v; /* rows of the cache */
    float *q;
    uint32_t n_q, n_kv;
};

static void attn_open(struct attn_run *a, const struct attn *c)
{
    uint32_t rows = ATTN_SEQ * c->n_ctx + 1;

    memset(a, 0, sizeof(*a));
    rig_open(&a->r, c->n * 7 + c->head_dim + c->n_tok);
    a->shape.n_head = c->n_head;
    a->shape.n_head_kv = c->n_head_kv;
    a->shape.head_dim = c->head_dim;
    a->n_q = c->n_head * c->head_dim;
    a->n_kv = c->n_head_kv * c->head_dim;
    a->k = rig_mat(&a->r, c->kv, rows, a->n_kv, 1.0f);
    a->v = rig_mat(&a->r, c->kv, rows, a->n_kv, 1.0f);
    a->q = rig_vector(&a->r, (size_t)c->n_tok * a->n_q, c->sharp / sqrtf((float)c->head_dim));
    a->step.step = 5;
    a->step.n_tok = c->real;
    for (uint32_t t = 0; t < PI_K_MAX_TOKENS; t++) {
        a->step.pos[t] = t < c->real ? (int32_t)(c->n - 1 - t * 37 % c->n) : 0x40000000;
        a->step.seq[t] = t < c->real ? t % ATTN_SEQ : UINT32_MAX;
    }
}

static void attn_close(struct attn_run *a)
{
    rig_mat_free(&a->k);
    rig_mat_free(&a->v);
    free(a->q);
    rig_close(&a->r);
}

static double dot_head(const float *q, const float *k, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)q[i] * (double)k[i];
    return sum;
}

static void attn_ref(const struct attn_run *a, const struct attn *c, uint32_t t, uint32_t head,
                     double *out)
{
    uint32_t n = (uint32_t)a->step.pos[t] + 1, hd = c->head_dim;
    size_t first = (size_t)a->step.seq[t] * c->n_ctx * a->n_kv +
                   (size_t)(head / (c->n_head / c->n_head_kv)) * hd;
    double *w = rig_alloc(n * sizeof(*w)), max = -INFINITY, sum = 0.0;

    for (uint32_t p = 0; p < n; p++) {
        w[p] = dot_head(a->q + (size_t)t * a->n_q + (size_t)head * hd,
                        a->k.f + first + (size_t)p * a->n_kv, hd);
        max = fmax(max, w[p]);
    }
    for (uint32_t p = 0; p < n; p++) {
        w[p] = exp(w[p] - max);
        sum += w[p];
    }
    for (uint32_t i = 0; i < hd; i++) {
        out[i] = 0.0;
        for (uint32_t p = 0; p < n; p++)
            out[i] += w[p] / sum * (double)a->v.f[first + (size_t)p * a->n_kv + i];
    }
    free(w);
}

static void attn_case(const struct attn *c)
{
    struct attn_run a;
    struct pi_dmat dk, dv;
    size_t n, scratch;
    float *got, *again;
    double *want;
    void *d_q, *d_out, *d_step, *d_scratch, *zeros;
    char what[160];

    attn_open(&a, c);
    n = (size_t)c->n_tok * a.n_q;
    scratch = pi_k_attn_scratch(&a.shape, c->n_tok);
    got = rig_alloc(n * sizeof(*got));
    again = rig_alloc(n * sizeof(*again));
    want = rig_alloc(n * sizeof(*want));
    dk = rig_dmat(&a.r, &a.k);
    dv = rig_dmat(&a.r, &a.v);
    EQ(dk.row_bytes, a.n_kv * (c->kv == PI_TYPE_F16 ? 2 : 4)); /* as in a cache */
    d_q = rig_dev(&a.r, a.q, n * sizeof(float));
    d_out = rig_dev(&a.r, NULL, n * sizeof(float));
    d_step = rig_dev(&a.r, &a.step, sizeof(a.step));
    zeros = rig_alloc(scratch);
    d_scratch = rig_dev(&a.r, zeros, scratch);
    for (int run = 0; run < 2; run++) { /* the second time with the tickets that the first left */
        rig_poison(d_out, n * sizeof(float));
        pi_k_attn(&a.shape, c->kv, d_q, dk.data, dv.data, c->n_ctx, ATTN_SEQ, d_step, d_scratch,
                  d_out, c->n_tok, a.r.stream);
        rig_wait(&a.r);
        rig_get(run == 0 ? got : again, d_out, n * sizeof(float));
    }
    for (uint32_t i = 0; i < c->real * c->n_head; i++)
        attn_ref(&a, c, i / c->n_head, i % c->n_head, want + (size_t)i * c->head_dim);
    (void)snprintf(what, sizeof(what),
                   "attention: %u/%u heads of %u, KV %s, %u tokens (%u real), context %u of %u",
                   c->n_head, c->n_head_kv, c->head_dim, pi_type_name(c->kv), c->n_tok, c->real,
                   c->n, c->n_ctx);
    rms_all(want, got, (size_t)c->real * a.n_q, REL, what);
    for (size_t i = (size_t)c->real * a.n_q; i < n; i++) {
        if (!isfinite(got[i])) {
            OK(!"padding tokens have finite output");
            break;
        }
    }
    tap_ok(memcmp(got, again, n * sizeof(float)) == 0, __FILE__, __LINE__, "the same bytes again");
    free(got);
    free(again);
    free(want);
    free(zeros);
    attn_close(&a);
}

static void attn_cases(void)
{
    static const uint32_t contexts[] = {1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 129, 1000};
    static const struct {
        uint32_t n_head, n_head_kv, head_dim;
    } shapes[] = {{2, 2, 128}, {4, 2, 64},  {4, 1, 80},  {6, 2, 32}, {7, 1, 128}, {2, 1, 7},
                  {2, 2, 160}, {16, 2, 20}, {1, 1, 300}, {8, 1, 96}, {2, 1, 512}, {2, 2, 4}};
    int turn = 0;

    for (size_t i = 0; i < COUNT(shapes); i++) {
        for (size_t k = 0; k < COUNT(contexts); k++, turn++) {
            uint32_t tok = 1u << (turn % 4), n = contexts[k];
            struct attn c = {shapes[i].n_head,
                             shapes[i].n_head_kv,
                             shapes[i].head_dim,
                             turn % 2 ? PI_TYPE_F16 : PI_TYPE_F32,
                             tok,
                             tok,
                             0,
                             n,
                             turn % 3 ? 4.0f : 40.0f};

            if (c.kv == PI_TYPE_F16 && c.n_head_kv * c.head_dim % 8 != 0)
                c.kv = PI_TYPE_F32; /* the test's rows would be padded */
            if (c.kv == PI_TYPE_F32 && c.n_head_kv * c.head_dim % 4 != 0)
                continue;
            if (i != k % COUNT(shapes) && n > 500)
                continue;
            c.n_ctx = n + 3;
            attn_case(&c);
        }
    }
    attn_case(&(struct attn){2, 2, 128, PI_TYPE_F16, 1, 1, 4096, 4096, 4.0f});
    attn_case(&(struct attn){2, 1, 64, PI_TYPE_F32, 1, 1, 4200, 4097, 4.0f});
    attn_case(&(struct attn){4, 1, 64, PI_TYPE_F16, 32, 27, 128, 100, 4.0f});
    attn_case(&(struct attn){3, 3, 32, PI_TYPE_F16, 16, 9, 64, 33, 4.0f});
    attn_case(&(struct attn){4, 2, 28, PI_TYPE_F16, 8, 8, 64, 40,
                             4.0f}); /* heads that are no whole groups */
    attn_case(&(struct attn){4, 4, 2, PI_TYPE_F32, 2, 2, 64, 40, 4.0f});
}

/* One buffer of scratch serves graphs of all batch sizes, in any order. */
static void attn_shared_scratch(void)
{
    static const uint32_t tokens[] = {1, 8, 2, 8, 1};
    struct attn c = {4, 2, 64, PI_TYPE_F16, 8, 8, 256, 200, 4.0f};
    struct attn_run a;
    struct pi_dmat dk, dv;
    void *d_q, *d_out, *d_step, *d_scratch, *zeros;
    size_t n, scratch;
    float *got;
    double *want;

    attn_open(&a, &c);
    n = (size_t)c.n_tok * a.n_q;
    scratch = pi_k_attn_scratch(&a.shape, 1);
    scratch = pi_k_attn_scratch(&a.shape, 8) > scratch ? pi_k_attn_scratch(&a.shape, 8) : scratch;
    zeros = rig_alloc(scratch);
    got = rig_alloc(n * sizeof(*got));
    want = rig_alloc(n * sizeof(*want));
    dk = rig_dmat(&a.r, &a.k);
    dv = rig_dmat(&a.r, &a.v);
    d_q = rig_dev(&a.r, a.q, n * sizeof(float));
    d_out = rig_dev(&a.r, NULL, n * sizeof(float));
    d_step = rig_dev(&a.r, &a.step, sizeof(a.step));
    d_scratch = rig_dev(&a.r, zeros, scratch);
    for (uint32_t i = 0; i < c.n_tok * c.n_head; i++)
        attn_ref(&a, &c, i / c.n_head, i % c.n_head, want + (size_t)i * c.head_dim);
    for (size_t i = 0; i < COUNT(tokens); i++) {
        rig_poison(d_out, n * sizeof(float));
        pi_k_attn(&a.shape, c.kv, d_q, dk.data, dv.data, c.n_ctx, ATTN_SEQ, d_step, d_scratch,
                  d_out, tokens[i], a.r.stream);
        rig_wait(&a.r);
        rig_get(got, d_out, n * sizeof(float));
        rms_all(want, got, (size_t)tokens[i] * a.n_q, REL, "scratch shared between batch sizes");
    }
    free(got);
    free(want);
    free(zeros);
    attn_close(&a);
}

/* ---- the largest logits ---- */

static const float *sort_by; /* for qsort() */

/* Larger first, NaN last, ties by smaller index. */
static int by_logit(const void *pa, const void *pb)
{
    uint32_t a, b;
    float x, y;

    memcpy(&a, pa, sizeof(a));
    memcpy(&b, pb, sizeof(b));
    x = sort_by[a];
    y = sort_by[b];
    if (isnan(x) != isnan(y))
        return isnan(x) ? 1 : -1;
    if (!isnan(x) && x != y)
        return x > y ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* Kinds of logits: spread, with many ties, all equal, some NaN and infinities, descending, NaN alone, both zeros. */
static float logit(struct rig *r, int kind, uint32_t i)
{
    float v = rig_random(r);

    switch (kind) {
    case 0:
        return 10.0f * v;
    case 1:
        return roundf(4.0f * v);
    case 2:
        return 1.5f;
    case 3:
        return i % 3 == 0 ? NAN : i % 50 == 1 ? -INFINITY : i % 97 == 2 ? INFINITY : v;
    case 4:
        return -(float)i;
    case 5:
        return i % 2 ? NAN : -NAN;
    default:
        return v > 0.0f ? 0.0f : -0.0f;
    }
}

static void topk_case(uint32_t n, uint32_t n_vocab, uint32_t k, int kind)
{
    struct rig r;
    size_t all = (size_t)n * n_vocab, out = (size_t)n * k,
           scratch = pi_k_topk_scratch(n, n_vocab, k);
    float *logits = rig_alloc(all * sizeof(*logits)), *values = rig_alloc(out * sizeof(*values));
    uint32_t *order = rig_alloc(n_vocab * sizeof(*order)), *ids = rig_alloc(out * sizeof(*ids));
    void *d_logits, *d_values, *d_ids, *d_scratch;
    size_t wrong = 0;
    char what[96];

    rig_open(&r, n_vocab + k + (uint32_t)kind);
    for (size_t i = 0; i < all; i++)
        logits[i] = logit(&r, kind, (uint32_t)(i % n_vocab));
    d_logits = rig_dev(&r, logits, all * sizeof(float));
    d_scratch = rig_dev(&r, NULL, scratch);
    d_values = rig_dev(&r, NULL, out * sizeof(float));
    d_ids = rig_dev(&r, NULL, out * sizeof(uint32_t));
    pi_k_topk(d_logits, n, n_vocab, k, d_scratch, d_values, d_ids, r.stream);
    rig_wait(&r);
    rig_get(values, d_values, out * sizeof(float));
    rig_get(ids, d_ids, out * sizeof(uint32_t));
    for (uint32_t row = 0; row < n; row++) {
        sort_by = logits + (size_t)row * n_vocab;
        for (uint32_t i = 0; i < n_vocab; i++)
            order[i] = i;
        qsort(order, n_vocab, sizeof(*order), by_logit);
        for (uint32_t i = 0; i < k; i++) {
            size_t at = (size_t)row * k + i;

            wrong +=
                ids[at] != order[i] || memcmp(&values[at], &sort_by[order[i]], sizeof(float)) != 0;
        }
    }
    (void)snprintf(what, sizeof(what), "top %u of %u rows of %u, kind %d", k, n, n_vocab, kind);
    if (!tap_ok(wrong == 0, __FILE__, __LINE__, what))
        printf("# %zu wrong\n", wrong);
    free(logits);
    free(values);
    free(order);
    free(ids);
    rig_close(&r);
}

static void topk_cases(void)
{
    static const uint32_t vocab[] = {1, 31, 100, 2047, 2049, 5000, 32000};
    static const uint32_t ks[] = {1, 5, 32, 33, 64, 100, 128, 129, 200, 256};
    int turn = 0;

    for (size_t v = 0; v < COUNT(vocab); v++) {
        for (size_t i = 0; i < COUNT(ks); i++, turn++) {
            if (ks[i] <= vocab[v])
                topk_case(v < 5 ? 1 + (uint32_t)turn % 3 : 1, vocab[v], ks[i], turn % 7);
        }
    }
    for (int kind = 0; kind < 7; kind++)
        topk_case(2, 4999, 256, kind);
    topk_case(1, 256000, 40, 0);
    topk_case(1, 151936, 256, 4);
}

/* ---- the begin of a step, and the published norm ---- */

static void begin_case(uint32_t n_tok, uint32_t n_embd)
{
    size_t n = (size_t)n_tok * n_embd;
    struct rig r;
    struct pi_k_step step;
    struct pi_pinned step_map, embd_map;
    float *x, *got = rig_alloc(n * sizeof(*got));
    void *d_step, *d_residual;

    rig_open(&r, n_embd);
    x = rig_vector(&r, 2 * n, 1.0f);
    step_map = rig_pin(&r, sizeof(step));
    embd_map = rig_pin(&r, n * sizeof(float));
    d_step = rig_dev(&r, NULL, sizeof(step));
    d_residual = rig_dev(&r, NULL, n * sizeof(float));
    for (uint32_t run = 0; run < 2; run++) { /* what the host wrote since the last time */
        struct pi_k_step in = {.step = 100 + run, .n_tok = n_tok, .n_want = run};

        for (uint32_t t = 0; t < PI_K_MAX_TOKENS; t++) {
            in.pos[t] = (int32_t)(t * 3 + run);
            in.seq[t] = t + 7;
            in.want[t] = UINT32_MAX - t;
        }
        memcpy(step_map.host, &in, sizeof(in));
        memcpy(embd_map.host, x + run * n, n * sizeof(float));
        pi_k_begin(step_map.dev, d_step, embd_map.dev, d_residual, n_tok, n_embd, r.stream);
        rig_wait(&r);
        rig_get(&step, d_step, sizeof(step));
        rig_get(got, d_residual, n * sizeof(float));
        OK(memcmp(&step, &in, sizeof(step)) == 0);
        OK(memcmp(got, x + run * n, n * sizeof(float)) == 0);
    }
    free(x);
    free(got);
    rig_close(&r);
}

/* kind 0: no norm, 1: RMSNorm, 2: LayerNorm, 3: LayerNorm without biases */
static void norm_case(int kind, uint32_t n_tok, uint32_t n_embd, bool maps, bool slot)
{
    size_t n = (size_t)n_tok * n_embd, bytes = n * sizeof(float);
    struct rig r;
    struct pi_k_step step = {.step = 77, .n_tok = n_tok};
    struct pi_k_norm norm = {.layer_norm = kind >= 2, .eps = 1e-5f};
    struct pi_pinned out_map, raw_map, slot_map;
    float *x, *w, *b, *got = rig_alloc(bytes);
    double *want = rig_alloc(n * sizeof(*want));
    void *d_x, *d_out, *d_step;
    char what[96];

    rig_open(&r, n_embd + n_tok);
    x = rig_vector(&r, n, 3.0f);
    w = rig_vector(&r, n_embd, 1.0f);
    b = rig_vector(&r, n_embd, 1.0f);
    if (kind > 0)
        norm.w = rig_dev(&r, w, n_embd * sizeof(float));
    if (kind == 2)
        norm.b = rig_dev(&r, b, n_embd * sizeof(float));
    d_x = rig_dev(&r, x, bytes);
    d_out = rig_dev(&r, NULL, bytes);
    d_step = rig_dev(&r, &step, sizeof(step));
    out_map = rig_pin(&r, bytes);
    raw_map = rig_pin(&r, bytes);
    slot_map = rig_pin(&r, PI_K_SLOT_BYTES);
    for (int run = 0; run < 2; run++) {
        rig_poison(d_out, bytes);
        memset(out_map.host, 0xff, bytes);
        memset(raw_map.host, 0xff, bytes);
        memset(slot_map.host, 0, PI_K_SLOT_BYTES);
        pi_k_norm_publish(&norm, d_x, d_out, maps ? out_map.dev : NULL, maps ? raw_map.dev : NULL,
                          slot ? slot_map.dev : NULL, d_step, n_tok, n_embd, r.stream);
        rig_wait(&r);
    }
    rig_get(got, d_out, bytes);
    for (uint32_t t = 0; t < n_tok; t++)
        norm_exact(x + (size_t)t * n_embd, kind > 0 ? w : NULL, kind == 2 ? b : NULL, kind >= 2,
                   norm.eps, n_embd, want + (size_t)t * n_embd);
    (void)snprintf(what, sizeof(what), "norm %d of %u tokens, %u wide", kind, n_tok, n_embd);
    rms_all(want, got, n, REL, what);
    if (maps) {
        OK(memcmp(out_map.host, got, bytes) == 0);
        OK(memcmp(raw_map.host, x, bytes) == 0);
    } else {
        OK(isnan(((const float *)out_map.host)[0]) && isnan(((const float *)raw_map.host)[0]));
    }
    EQ(*(const uint32_t *)slot_map.host, slot ? 77 : 0);
    free(x);
    free(w);
    free(b);
    free(got);
    free(want);
    rig_close(&r);
}

/* Rounded to the grid of quantised activations: what the CPU's rule makes of the same norm, and the same blocks again from it; in place too. Token 1 has a block of
 * zeros, token 2 a NaN and token 3 an infinity. */
static void round_case(bool normed, uint32_t n_tok, uint32_t n_embd)
{
    const struct pi_cpu *cpu = pi_cpu_get(PI_ISA_SCALAR);
    size_t n = (size_t)n_tok * n_embd, bytes = n * sizeof(float);
    struct pi_k_step step = {.step = 5, .n_tok = n_tok};
    struct pi_k_norm norm = {.eps = 1e-5f};
    struct pi_q8 *q = rig_alloc(n / 32 * sizeof(*q)), *again = rig_alloc(n / 32 * sizeof(*q));
    float *x, *w, *plain = rig_alloc(bytes), *got = rig_alloc(bytes);
    int wrong = 0, other = 0;
    void *d_x, *d_out, *d_step;
    struct rig r;

    rig_open(&r, n_embd + n_tok);
    x = rig_vector(&r, n, 3.0f);
    w = rig_vector(&r, n_embd, 1.0f);
    for (uint32_t i = 0; n_tok > 3 && i < 32; i++)
        x[n_embd + i] = 0.0f;
    if (n_tok > 3 && !normed) {
        x[2 * n_embd + 40] = NAN;
        x[3 * n_embd + 1] = -INFINITY;
    }
    if (normed)
        norm.w = rig_dev(&r, w, n_embd * sizeof(float));
    d_x = rig_dev(&r, x, bytes);
    d_out = rig_dev(&r, NULL, bytes);
    d_step = rig_dev(&r, &step, sizeof(step));
    pi_k_norm_publish(&norm, d_x, d_out, NULL, NULL, NULL, d_step, n_tok, n_embd, r.stream);
    rig_wait(&r);
    rig_get(plain, d_out, bytes);
    norm.q8 = true;
    if (!normed)
        d_out = d_x;
    pi_k_norm_publish(&norm, d_x, d_out, NULL, NULL, NULL, d_step, n_tok, n_embd, r.stream);
    rig_wait(&r);
    rig_get(got, d_out, bytes);
    cpu->quantise_q8(plain, q, (uint32_t)n);
    cpu->quantise_q8(got, again, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        float want = q[i / 32].d * (float)q[i / 32].q[i % 32];

        wrong += isnan(want) ? !isnan(got[i]) : want != got[i];
    }
    for (size_t i = 0; i < n / 32; i++)
        other += isnan(q[i].d) ? !isnan(again[i].d) : memcmp(&q[i], &again[i], sizeof(*q)) != 0;
    printf("# rounded, %u tokens, %u wide\n", n_tok, n_embd);
    EQ(wrong, 0);
    EQ(other, 0);
    free(x);
    free(w);
    free(plain);
    free(got);
    free(q);
    free(again);
    rig_close(&r);
}

int main(void)
{
    if (pi_gpu_count() == 0) {
        OK(getenv("PI_REQUIRE_GPU") == NULL);
        return DONE();
    }
    begin_case(1, 64);
    begin_case(3, 37);
    begin_case(32, 1000);
    for (int kind = 0; kind < 4; kind++) {
        norm_case(kind, 1, 4096, true, true);
        norm_case(kind, 8, 37, true, true);
        norm_case(kind, 3, 5000, false, false);
        norm_case(kind, 32, 96, true, false);
        norm_case(kind, 2, 3, false, true);
    }
    for (int normed = 0; normed < 2; normed++) {
        round_case(normed != 0, 1, 4096);
        round_case(normed != 0, 5, 96);
        round_case(normed != 0, 32, 160);
        round_case(normed != 0, 4, 5120);
    }
    attn_cases();
    attn_shared_scratch();
    topk_cases();
    return DONE();
}
