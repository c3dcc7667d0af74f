/* t_engine.c - the engine against a model computed by hand, and its modes, units, threads and batches against each other. */
#include "config.h"

#include "runtime/pi_engine.h"

#include "tests/tap.h"
#include "tests/tiny_model.h"

#include <unistd.h>

#define N_TOK 12

static const int32_t tokens[N_TOK] = {1, 17, 5, 5, 40, 63, 0, 22, 9, 31, 48, 2};
static const int32_t positions[N_TOK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static const struct tiny llama = {.arch = PI_ARCH_LLAMA,
                                  .n_layer = 2,
                                  .n_embd = 64,
                                  .n_ff = 96,
                                  .n_head = 4,
                                  .n_head_kv = 4,
                                  .head_dim = 16,
                                  .n_vocab = 64,
                                  .n_ctx = 32,
                                  .type = PI_TYPE_F32,
                                  .down_t = true,
                                  .seed = 1};
static const struct tiny opt = {.arch = PI_ARCH_OPT,
                                .n_layer = 2,
                                .n_embd = 64,
                                .n_ff = 96,
                                .n_head = 4,
                                .n_head_kv = 4,
                                .head_dim = 16,
                                .n_vocab = 64,
                                .n_ctx = 32,
                                .type = PI_TYPE_F32,
                                .down_t = true,
                                .tied = true,
                                .seed = 2};

/* A model and what runs on it. */
struct rig {
    struct tiny t;
    struct pi_model m;
    struct pi_pool *pool;
    struct pi_placement place;
    struct pi_place_layer layers[4];
    struct pi_predictor pred;
    struct pi_predictor_layer pred_layers[4];
    uint32_t *order;
    float *fc1, *fc2[4];
    struct pi_err e;
};

static void rig_open(struct rig *r, const struct tiny *t, uint32_t n_threads)
{
    struct pi_model_options mo = {.check_crc = true};
    static int n_files;
    char name[32];
    const char *path;

    memset(r, 0, sizeof(*r));
    r->t = *t;
    (void)snprintf(name, sizeof(name), "m%d.gguf", n_files++);
    path = tiny_path(name);
    tiny_write(t, path);
    PASSES(pi_model_open(path, &mo, &r->m, &r->e), r->e);
    PASSES(pi_pool_create(n_threads, &r->pool, &r->e), r->e);
    r->order = malloc(t->n_ff * sizeof(*r->order));
    for (uint32_t i = 0; i < t->n_ff; i++)
        r->order[i] =
            (i * 35 + 7) % t->n_ff; /* 35 and n_ff have no common factor in all models here */
    r->place = (struct pi_placement){
        .n_layer = t->n_layer, .n_ff = t->n_ff, .n_units = 2, .layers = r->layers};
    for (uint32_t l = 0; l < t->n_layer; l++)
        r->layers[l] = (struct pi_place_layer){.order = r->order,
                                               .hot_unit = 1,
                                               .mode_cpu = PI_MODE_PREDICTED,
                                               .mode_gpu = PI_MODE_PREDICTED,
                                               .attn_unit = l & 1};
    r->place.output_unit = 1;
}

static void rig_close(struct rig *r)
{
    pi_model_close(&r->m);
    pi_pool_destroy(r->pool);
    free(r->order);
    free(r->fc1);
    for (int l = 0; l < 4; l++)
        free(r->fc2[l]);
}

static struct pi_engine *engine(struct rig *r, const struct pi_engine_options *o)
{
    struct pi_engine_options opts = *o;
    struct pi_engine *e = NULL;

    opts.n_ctx = opts.n_ctx == 0 ? 32 : opts.n_ctx;
    opts.n_seq = opts.n_seq == 0 ? 1 : opts.n_seq;
    opts.kv_type = opts.kv_type == PI_TYPE_F16 ? PI_TYPE_F16 : PI_TYPE_F32;
    PASSES(pi_engine_create(&r->m, opts.mode == PI_MODE_PREDICTED ? &r->pred : NULL,
                            opts.two_units ? &r->place : NULL, r->pool, &opts, &e, &r->e),
           r->e);
    if (e == NULL)
        exit(1);
    return e;
}

#define F32KV .kv_type = PI_TYPE_F32

/* Logits of all tokens, in one prompt or step by step; the caller's to free(). */
static float *run(struct rig *r, const struct pi_engine_options *o, bool step)
{
    struct pi_engine *e = engine(r, o);
    float *out = malloc(sizeof(*out) * N_TOK * r->t.n_vocab);
    struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};

    if (!step)
        PASSES(pi_engine_run(e, PI_PHASE_PROMPT, &b, out, &r->e), r->e);
    for (uint32_t i = 0; step && i < N_TOK; i++) {
        struct pi_batch one = {.n_tok = 1, .token = tokens + i, .pos = positions + i};

        if (pi_engine_run(e, PI_PHASE_DECODE, &one, out + (size_t)i * r->t.n_vocab, &r->e) != PI_OK)
            PASSES(r->e.code, r->e);
    }
    pi_engine_destroy(e);
    return out;
}

static double worst(const float *a, const double *ref, size_t n)
{
    double max = 0.0, diff = 0.0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - ref[i]);

        max = fmax(max, fabs(ref[i]));
        diff = d > diff || isnan(d) ? d : diff;
    }
    return diff / max;
}

static double worst_f32(const float *a, const float *ref, size_t n)
{
    double *wide = malloc(n * sizeof(*wide)), w;

    for (size_t i = 0; i < n; i++)
        wide[i] = (double)ref[i];
    w = worst(a, wide, n);
    free(wide);
    return w;
}

/* ---- against the model by hand ---- */

static void check_by_hand(const struct tiny *t, const char *what)
{
    struct rig r;
    double *ref = tiny_forward(t, tokens, N_TOK);
    size_t n = (size_t)N_TOK * t->n_vocab;
    const struct {
        enum pi_mode mode;
        bool step;
        uint32_t n_batch;
        int n_hot;
    } ways[] = {{PI_MODE_DENSE, false, 0, -1},
                {PI_MODE_DENSE, false, 5, -1},
                {PI_MODE_DENSE, true, 0, -1},
                {PI_MODE_EXACT, true, 0, -1},
                {PI_MODE_EXACT, true, 0, 0},
                {PI_MODE_EXACT, true, 0, 1},
                {PI_MODE_EXACT, true, 0, 41},
                {PI_MODE_EXACT, true, 0, (int)t->n_ff - 1},
                {PI_MODE_EXACT, true, 0, (int)t->n_ff},
                {PI_MODE_DENSE, true, 0, 41}};

    printf("# %s\n", what);
    rig_open(&r, t, 2);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct pi_engine_options o = {F32KV, .mode = ways[i].mode, .n_batch = ways[i].n_batch,
                                      .two_units = ways[i].n_hot >= 0};
        float *out;

        for (uint32_t l = 0; l < t->n_layer; l++)
            r.layers[l].n_hot = o.two_units ? (uint32_t)ways[i].n_hot : 0;
        out = run(&r, &o, ways[i].step);
        NEAR(worst(out, ref, n), 0.0, 2e-5);
        free(out);
    }
    rig_close(&r);
    free(ref);
}

static void test_by_hand(void)
{
    struct tiny t = llama;

    check_by_hand(&llama, "llama");
    check_by_hand(&opt, "opt");
    t.n_head_kv = 2;
    t.head_dim = 24;
    t.bias = true;
    t.tied = true;
    t.down_t = false;
    t.n_embd = 80; /* no multiple of 32 */
    t.n_ff = 101;
    check_by_hand(&t, "grouped queries, own head_dim, biases, ffn_down, odd sizes");
    t = llama;
    t.type = PI_TYPE_F16;
    t.rope_freqs = true;
    check_by_hand(&t, "F16, rope_freqs");
    t.rope_freqs = false;
    t.type = PI_TYPE_BF16;
    t.rope_scaling = "linear";
    t.act = "fatrelu";
    t.act_threshold = 0.25f;
    check_by_hand(&t, "BF16, linear scaling, fatrelu");
    t.rope_scaling = "yarn";
    t.act = "silu";
    check_by_hand(&t, "yarn, silu");
    t = opt;
    t.down_t = false;
    t.act = "relu2";
    check_by_hand(&t, "opt, relu2, ffn_down");
    t.act = "gelu";
    check_by_hand(&t, "opt, gelu");
}

static void check_quantised(enum pi_type type, bool down_t)
{
    struct tiny t = llama;
    struct rig q, f;
    size_t n = (size_t)N_TOK * t.n_vocab;
    struct pi_engine_options dense = {F32KV, .mode = PI_MODE_DENSE},
                             exact = {F32KV, .mode = PI_MODE_EXACT};
    float *ref, *out;

    printf("# %s\n", pi_type_name(type));
    t.type = type;
    t.down_t = down_t;
    rig_open(&q, &t, 2);
    t.dequantised = true;
    rig_open(&f, &t, 2);
    ref = run(&f, &dense, true);
    out = run(&q, &dense, false);
    NEAR(worst_f32(out, ref, n), 0.0, 1e-4);
    free(out);
    out = run(&q, &dense, true);
    NEAR(worst_f32(out, ref, n), 0.0, 1e-4);
    free(out);
    out = run(&q, &exact, true);
    /* a Q8_0 copy of a transposed matrix rounds once more */
    NEAR(worst_f32(out, ref, n), 0.0, down_t ? 1e-4 : 2e-2);
    free(out);
    free(ref);
    rig_close(&q);
    rig_close(&f);
}

/* ---- bytes ---- */

#define SAME(a, b, n) EQ(memcmp((a), (b), (n) * sizeof(float)), 0)

static void test_threads(const struct tiny *t)
{
    static const uint32_t n_threads[] = {2, 3, 7};
    struct pi_engine_options o[3] = {{F32KV, .mode = PI_MODE_EXACT},
                                     {.kv_type = PI_TYPE_F16, .mode = PI_MODE_DENSE},
                                     {F32KV, .mode = PI_MODE_EXACT, .two_units = true}};
    size_t n = (size_t)N_TOK * t->n_vocab;
    struct rig one, many;

    rig_open(&one, t, 1);
    one.layers[0].n_hot = 30;
    one.layers[1].n_hot = 5;
    for (int i = 0; i < 3; i++) {
        rig_open(&many, t, n_threads[i]);
        many.layers[0].n_hot = 30;
        many.layers[1].n_hot = 5;
        for (int k = 0; k < 4; k++) {
            float *a = run(&one, &o[k % 3], k < 3), *b = run(&many, &o[k % 3], k < 3);

            SAME(a, b, n);
            free(a);
            free(b);
        }
        rig_close(&many);
    }
    rig_close(&one);
}

/* Going back and feeding the same again gives the same. */
static void test_truncate(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT};
    float a[2][64];
    struct pi_engine *e;
    struct rig r;

    rig_open(&r, &llama, 1);
    e = engine(&r, &o);
    for (int pass = 0; pass < 2; pass++) {
        int32_t other[3] = {60, 61, 62}, back[3] = {4, 5, 6};
        struct pi_batch b = {.n_tok = 8, .token = tokens, .pos = positions};
        struct pi_batch c = {.n_tok = 3, .token = other, .pos = back};
        struct pi_batch d = {.n_tok = 4, .token = tokens + 4, .pos = positions + 4};
        const bool last[8] = {[3] = true};

        pi_engine_truncate(e, 0, 0);
        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, NULL, &r.e), r.e);
        if (pass == 1) {
            pi_engine_truncate(e, 0, 4);
            PASSES(pi_engine_run(e, PI_PHASE_DECODE, &c, NULL, &r.e), r.e);
        }
        d.want = last;
        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &d, a[pass], &r.e), r.e);
    }
    SAME(a[0], a[1], 64);
    pi_engine_destroy(e);
    rig_close(&r);
}

/* ---- predictors ---- */

static struct pi_mat mat(const float *w, uint32_t n_rows, uint32_t n_cols)
{
    return (struct pi_mat){.type = PI_TYPE_F32,
                           .n_rows = n_rows,
                           .n_cols = n_cols,
                           .row_bytes = n_cols * sizeof(float),
                           .data = w};
}

/* fc1 the identity and fc2 the model's own gate: predicts exactly what fires where threshold is the activation's. */
static void oracle(struct rig *r, float threshold)
{
    const struct tiny *t = &r->t;
    const char *first = t->arch == PI_ARCH_OPT ? "ffn_up.weight" : "ffn_gate.weight";

    r->pred = (struct pi_predictor){
        .n_layer = t->n_layer, .n_ff = t->n_ff, .n_embd = t->n_embd, .layers = r->pred_layers};
    r->fc1 = calloc((size_t)t->n_embd * t->n_embd, sizeof(float));
    for (uint32_t i = 0; i < t->n_embd; i++)
        r->fc1[i * t->n_embd + i] = 1.0f;
    for (uint32_t l = 0; l < t->n_layer; l++) {
        r->fc2[l] = tiny_layer_tensor(t, l, first, t->n_ff, t->n_embd);
        r->pred_layers[l] = (struct pi_predictor_layer){.width = t->n_embd,
                                                        .threshold = threshold,
                                                        .recall = 1.0f,
                                                        .precision = 1.0f,
                                                        .density = 0.5f,
                                                        .fc1 = mat(r->fc1, t->n_embd, t->n_embd),
                                                        .fc2 = mat(r->fc2[l], t->n_ff, t->n_embd)};
    }
}

/* Several sequences in one batch give the bytes that each gives alone, in any mode. */
static void test_batches(const struct tiny *t, enum pi_mode mode)
{
    struct pi_engine_options o = {F32KV, .mode = mode, .n_seq = 3};
    size_t v = t->n_vocab;
    float *single[3], *out = malloc(sizeof(*out) * 6 * v);
    struct pi_engine *e;
    struct rig r;

    rig_open(&r, t, 2);
    if (mode == PI_MODE_PREDICTED) {
        oracle(&r, 0.3f);
        o.force_predicted = o.two_units = true;
        r.layers[0].n_hot = 20;
    }
    for (uint32_t q = 0; q < 3; q++) {
        e = engine(&r, &o);
        single[q] = malloc(sizeof(float) * 4 * v);
        for (int32_t i = 0; i < 4; i++) {
            struct pi_batch b = {.n_tok = 1, .token = tokens + 2 * q + (uint32_t)i, .pos = &i};

            PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, single[q] + (size_t)i * v, &r.e), r.e);
        }
        pi_engine_destroy(e);
    }
    e = engine(&r, &o);
    for (int32_t i = 0; i < 4; i++) {
        int32_t token[3] = {tokens[i + 4], tokens[i], tokens[i + 2]}, pos[3] = {i, i, i};
        uint32_t seq[3] = {2, 0, 1};
        bool want[3] = {true, false, true};
        struct pi_batch b = {
            .n_tok = 3, .token = token, .pos = pos, .seq = seq, .want = i == 3 ? want : NULL};

        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, out, &r.e), r.e);
        SAME(out, single[2] + (size_t)i * v, v);
        SAME(out + (i == 3 ? v : 2 * v), single[1] + (size_t)i * v, v);
        if (i < 3)
            SAME(out + v, single[0] + (size_t)i * v, v);
    }
    /* tokens of one sequence together, and more of them than fit one step */
    {
        float *all = malloc(sizeof(float) * N_TOK * v);
        struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};

        pi_engine_truncate(e, 0, 0);
        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, all, &r.e), r.e);
        SAME(all, single[0], 4 * v);
        free(all);
    }
    pi_engine_destroy(e);
    for (int q = 0; q < 3; q++)
        free(single[q]);
    free(out);
    rig_close(&r);
}

static void test_predict_all(const struct tiny *t)
{
    struct pi_engine_options exact = {F32KV, .mode = PI_MODE_EXACT};
    struct pi_engine_options pred = {F32KV, .mode = PI_MODE_PREDICTED, .force_predicted = true};
    static const float thresholds[] = {-1e30f, 1e-20f};
    size_t n = (size_t)N_TOK * t->n_vocab;

    for (int k = 0; k < (t->arch == PI_ARCH_OPT ? 1 : 2); k++) {
        struct rig r;
        float *a, *b;

        rig_open(&r, t, 2);
        oracle(&r, thresholds[k]);
        for (int units = 1; units <= 2; units++) {
            exact.two_units = pred.two_units = units == 2;
            r.layers[0].n_hot = 33;
            r.layers[1].n_hot = units == 2 ? 96 : 0;
            a = run(&r, &exact, true);
            b = run(&r, &pred, true);
            SAME(a, b, n);
            free(a);
            free(b);
        }
        rig_close(&r);
    }
}

static void test_predict_nothing(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_PREDICTED, .force_predicted = true};
    struct pi_engine_stats st;
    struct pi_engine *e;
    struct rig r;
    float logits[64];
    struct pi_batch b = {.n_tok = 1, .token = tokens, .pos = positions};

    rig_open(&r, &llama, 2);
    oracle(&r, 1e30f);
    e = engine(&r, &o);
    PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r.e), r.e);
    pi_engine_take_stats(e, &st);
    EQ(st.tokens, 1);
    EQ(st.weights_ffn, 0);
    EQ(st.weights_pred, 2 * (64 * 64 + 96 * 64));
    EQ(st.weights_attn, 2 * 4 * 64 * 64);
    EQ(st.weights_other, 64 + 64 * 64);
    EQ(st.bytes, 4 * (st.weights_pred + st.weights_attn + st.weights_other));
    pi_engine_take_stats(e, &st);
    EQ(st.bytes, 0);
    pi_engine_destroy(e);
    rig_close(&r);
}

static void test_where_it_pays(void)
{
    const struct tiny *t = &llama;
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_PREDICTED};
    struct pi_engine *e;
    struct rig r;

    rig_open(&r, t, 1);
    oracle(&r, 0.0f);
    r.pred_layers[0].density = 0.1f;
    r.pred_layers[0].width = 8; /* cheap: pays */
    r.pred_layers[0].fc1 = mat(r.fc1, 8, t->n_embd);
    r.pred_layers[0].fc2 = mat(r.fc2[0], t->n_ff, 8);
    e = engine(&r, &o);
    EQ(pi_engine_layer_mode(e, 0), PI_MODE_PREDICTED);
    EQ(pi_engine_layer_mode(e, 1), PI_MODE_EXACT); /* as wide as the gate itself */
    pi_engine_destroy(e);
    o.two_units = true; /* a placement decides for each unit */
    r.layers[0].n_hot = r.layers[1].n_hot = 10;
    r.layers[0].mode_cpu = r.layers[1].mode_gpu = PI_MODE_EXACT;
    e = engine(&r, &o);
    EQ(pi_engine_layer_mode(e, 0), PI_MODE_EXACT);
    EQ(pi_engine_layer_mode(e, 1), PI_MODE_PREDICTED);
    pi_engine_destroy(e);
    o.two_units = false;
    r.pred_layers[1].width = 0;
    o.force_predicted = true;
    e = engine(&r, &o);
    EQ(pi_engine_layer_mode(e, 1), PI_MODE_EXACT); /* has none */
    pi_engine_destroy(e);
    rig_close(&r);
}

/* ---- observer and trace ---- */

struct seen {
    uint32_t calls;
    float residual[2][64], normed[2][64], h[2][96], prod[2][96]; /* of the last token */
};

static enum pi_code observe(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                            const float *normed, const float *h, const float *prod,
                            struct pi_err *err)
{
    struct seen *s = ctx;
    size_t last = n_tok - 1;

    (void)err;
    s->calls++;
    memcpy(s->residual[layer], residual + last * 64, sizeof(s->residual[0]));
    memcpy(s->normed[layer], normed + last * 64, sizeof(s->normed[0]));
    memcpy(s->h[layer], h + last * 96, sizeof(s->h[0]));
    memcpy(s->prod[layer], prod + last * 96, sizeof(s->prod[0]));
    return PI_OK;
}

static enum pi_code refuse(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                           const float *normed, const float *h, const float *prod,
                           struct pi_err *err)
{
    (void)ctx, (void)layer, (void)n_tok, (void)residual, (void)normed, (void)h, (void)prod;
    return pi_err_set(err, PI_E_INTERRUPTED, "enough");
}

static void observe_prompt(struct rig *r, struct seen *s)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_DENSE};
    struct pi_observer obs = {.ctx = s, .ffn = observe};
    struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};
    struct pi_engine *e = engine(r, &o);

    memset(s, 0, sizeof(*s));
    pi_engine_observe(e, &obs);
    PASSES(pi_engine_run(e, PI_PHASE_PROMPT, &b, NULL, &r->e), r->e);
    EQ(s->calls, 2);
    pi_engine_truncate(e, 0, 0);
    obs.ffn = refuse;
    FAILS(pi_engine_run(e, PI_PHASE_PROMPT, &b, NULL, &r->e), PI_E_INTERRUPTED, "enough", r->e);
    pi_engine_destroy(e);
}

static bool bit(const uint8_t *mask, uint32_t layer, uint32_t i)
{
    return mask[layer * 12 + i / 8] >> i % 8 & 1;
}

/* Feeds all tokens with a trace; masks of the last one stay. */
static void trace_last(struct rig *r, const struct pi_engine_options *o, uint8_t predicted[24],
                       uint8_t truth[24])
{
    struct pi_trace tr = {.mask_bytes = 12, .predicted = predicted, .truth = truth};
    struct pi_engine *e = engine(r, o);

    pi_engine_trace(e, &tr);
    for (uint32_t i = 0; i < N_TOK; i++) {
        struct pi_batch b = {.n_tok = 1, .token = tokens + i, .pos = positions + i};

        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, NULL, &r->e), r->e);
    }
    pi_engine_destroy(e);
}

static void check_truth(const struct seen *s, const uint8_t *truth, uint32_t layer)
{
    uint32_t wrong = 0;

    /* prompt and step differ in the last bits: leave out what is that near to the edge */
    for (uint32_t i = 0; i < 96; i++)
        wrong += bit(truth, layer, i) != (s->h[layer][i] != 0.0f) && s->h[layer][i] > 1e-5f;
    EQ(wrong, 0);
}

static void test_trace(const struct tiny *t)
{
    uint8_t predicted[24], truth[24];
    struct seen *s = malloc(sizeof(*s));
    struct rig r;

    rig_open(&r, t, 2);
    oracle(&r, 1e-20f);
    observe_prompt(&r, s);
    for (int mode = PI_MODE_DENSE; mode <= PI_MODE_PREDICTED; mode++) {
        for (int units = 1; units <= 2; units++) {
            struct pi_engine_options o = {F32KV, .mode = (enum pi_mode)mode,
                                          .force_predicted = true, .two_units = units == 2};

            r.layers[0].n_hot = r.layers[1].n_hot = 40;
            trace_last(&r, &o, predicted, truth);
            check_truth(s, truth, 0);
            if (t->arch == PI_ARCH_LLAMA ||
                mode != PI_MODE_PREDICTED) { /* the oracle knows no bias */
                check_truth(s, truth, 1);
                EQ(memcmp(predicted, truth, sizeof(truth)), 0);
            }
        }
    }
    free(s);
    rig_close(&r);
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Each input that a predictor may read: layer 1's predictions against those made from what the observer saw. */
static void test_inputs(enum pi_predictor_input input)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_PREDICTED, .force_predicted = true};
    uint8_t predicted[24], truth[24];
    struct seen *s = malloc(sizeof(*s));
    float *fc1, *fc2, *down, *bias, x[64], hidden[8];
    uint32_t wrong = 0, n = 0;
    struct rig r;

    rig_open(&r, &llama, 2);
    oracle(&r, 0.0f);
    fc1 = tiny_tensor(&llama, "fc1", 8, 64);
    fc2 = tiny_tensor(&llama, "fc2", 96, 8);
    bias = tiny_tensor(&llama, "fc2.bias", 1, 96);
    down = tiny_layer_tensor(&llama, 0, "ffn_down_t.weight", 96, 64);
    r.pred_layers[0].width = 0;
    r.pred_layers[1] = (struct pi_predictor_layer){.width = 8,
                                                   .input = input,
                                                   .relu = true,
                                                   .threshold = 0.01f,
                                                   .bias = bias,
                                                   .fc1 = mat(fc1, 8, 64),
                                                   .fc2 = mat(fc2, 96, 8)};
    observe_prompt(&r, s);
    memcpy(x,
           input == PI_PRED_IN_FFN_NORMED     ? s->normed[1]
           : input == PI_PRED_IN_FFN_RESIDUAL ? s->residual[1]
                                              : s->residual[0],
           sizeof(x));
    for (uint32_t c = 0; input == PI_PRED_IN_LAYER && c < 64; c++) {
        for (uint32_t i = 0; i < 96; i++)
            x[c] += s->prod[0][i] * down[i * 64 + c];
    }
    for (uint32_t i = 0; i < 8; i++)
        hidden[i] = fmaxf((float)dot(fc1 + i * 64, x, 64), 0.0f);
    trace_last(&r, &o, predicted, truth);
    for (uint32_t i = 0; i < 96; i++) {
        double score = dot(fc2 + i * 8, hidden, 8) + (double)bias[i];

        n += bit(predicted, 1, i);
        wrong += bit(predicted, 1, i) != (score >= 0.01) && fabs(score - 0.01) > 1e-4;
    }
    EQ(wrong, 0);
    OK(n > 5 && n < 91);
    EQ(memcmp(predicted, truth, 12), 0); /* layer 0 has no predictor */
    free(fc1);
    free(fc2);
    free(bias);
    free(down);
    free(s);
    rig_close(&r);
}

static void test_exact_stats(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT};
    uint8_t predicted[24], truth[24];
    struct pi_trace tr = {.mask_bytes = 12, .predicted = predicted, .truth = truth};
    struct pi_batch b = {.n_tok = 1, .token = tokens, .pos = positions};
    struct pi_engine_stats st;
    struct pi_engine *e;
    struct rig r;
    uint64_t active = 0;

    rig_open(&r, &llama, 3);
    e = engine(&r, &o);
    pi_engine_trace(e, &tr);
    PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, NULL, &r.e), r.e);
    for (int i = 0; i < 24; i++)
        active += (uint64_t)__builtin_popcount(truth[i]);
    pi_engine_take_stats(e, &st);
    OK(active > 20 && active < 172);
    EQ(st.weights_ffn, 64 * (2 * 96 + 2 * active));
    pi_engine_destroy(e);
    o.mode = PI_MODE_DENSE;
    e = engine(&r, &o);
    PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, NULL, &r.e), r.e);
    pi_engine_take_stats(e, &st);
    EQ(st.weights_ffn, 64 * 2 * 3 * 96);
    pi_engine_destroy(e);
    rig_close(&r);
}

/* ---- errors ---- */

static void refuse_batch(struct pi_engine *e, int32_t token, int32_t pos, uint32_t seq,
                         const char *words)
{
    struct pi_batch b = {.n_tok = 1, .token = &token, .pos = &pos, .seq = &seq};
    struct pi_err err;

    for (int phase = PI_PHASE_PROMPT; phase <= PI_PHASE_DECODE; phase++) {
        EQ(pi_engine_run(e, (enum pi_phase)phase, &b, NULL, &err), PI_E_RANGE);
        OK(strstr(err.msg, words) != NULL);
    }
}

static void test_batch_errors(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT, .n_ctx = 8};
    static const int32_t twice[8] = {0, 1, 1, 2, 3, 4, 5, 6};
    struct pi_batch all = {.n_tok = 8, .token = tokens, .pos = positions};
    struct pi_engine *e;
    struct rig r;

    rig_open(&r, &llama, 1);
    e = engine(&r, &o);
    refuse_batch(e, 64, 0, 0, "token 64 is outside");
    refuse_batch(e, -1, 0, 0, "token -1 is outside");
    refuse_batch(e, 1, 1, 0, "whose next is 0");
    refuse_batch(e, 1, -1, 0, "whose next is 0");
    refuse_batch(e, 1, 0, 1, "sequence 1 of 1");
    all.pos = twice;
    FAILS(pi_engine_run(e, PI_PHASE_PROMPT, &all, NULL, &r.e), PI_E_RANGE,
          "position 1 of sequence 0, whose next is 2", r.e);
    all.pos = positions;
    PASSES(pi_engine_run(e, PI_PHASE_PROMPT, &all, NULL, &r.e), r.e);
    refuse_batch(e, 1, 8, 0, "context full");
    pi_engine_destroy(e);
    rig_close(&r);
}

static void test_create_errors(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT, .n_ctx = 33, .n_seq = 1};
    struct pi_engine *e = NULL;
    struct rig r;

    rig_open(&r, &opt, 1);
    FAILS(pi_engine_create(&r.m, NULL, NULL, r.pool, &o, &e, &r.e), PI_E_RANGE,
          "position table holds 32", r.e);
    o.n_ctx = 32;
    o.mode = PI_MODE_PREDICTED;
    FAILS(pi_engine_create(&r.m, NULL, NULL, r.pool, &o, &e, &r.e), PI_E_MISMATCH,
          "pi-train-predictor", r.e);
    oracle(&r, 0.0f);
    r.pred.n_ff = 95;
    FAILS(pi_engine_create(&r.m, &r.pred, NULL, r.pool, &o, &e, &r.e), PI_E_MISMATCH, "95 neurons",
          r.e);
    r.pred.n_ff = 96;
    r.pred_layers[1].fc2.n_rows = 95;
    FAILS(pi_engine_create(&r.m, &r.pred, NULL, r.pool, &o, &e, &r.e), PI_E_MISMATCH, "layer 1",
          r.e);
    o.mode = PI_MODE_EXACT;
    o.two_units = true;
    FAILS(pi_engine_create(&r.m, NULL, NULL, r.pool, &o, &e, &r.e), PI_E_MISMATCH, "pi-place", r.e);
    r.place.n_ff = 95;
    FAILS(pi_engine_create(&r.m, NULL, &r.place, r.pool, &o, &e, &r.e), PI_E_MISMATCH, "95 neurons",
          r.e);
    r.place.n_ff = 96;
    r.layers[1].n_hot = 10;
    r.order[3] = r.order[2];
    FAILS(pi_engine_create(&r.m, NULL, &r.place, r.pool, &o, &e, &r.e), PI_E_CORRUPT, "twice", r.e);
    r.order[3] = 96;
    FAILS(pi_engine_create(&r.m, NULL, &r.place, r.pool, &o, &e, &r.e), PI_E_CORRUPT,
          "layer 1 names neuron 96", r.e);
    OK(e == NULL);
    rig_close(&r);
}

static void test_memory(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT, .n_ctx = 1u << 30,
                                  .n_seq = 1u << 20};
    struct pi_engine *e = NULL;
    struct rig r;

    rig_open(&r, &llama, 1);
    FAILS(pi_engine_create(&r.m, NULL, NULL, r.pool, &o, &e, &r.e), PI_E_NOMEM, "KV cache", r.e);
    o.n_seq = UINT32_MAX;
    o.n_ctx = INT32_MAX;
    FAILS(pi_engine_create(&r.m, NULL, NULL, r.pool, &o, &e, &r.e), PI_E_RANGE, "KV cache", r.e);
    OK(e == NULL);
    rig_close(&r);
}

/* ---- model files ---- */

static void test_model_errors(void)
{
    struct pi_model_options mo = {.check_crc = true};
    struct pi_model m;
    struct pi_err e;
    struct tiny t = llama;
    const char *path = tiny_path("bad.gguf");
    FILE *f;

    FAILS(pi_model_open(tiny_path("none.gguf"), &mo, &m, &e), PI_E_IO, "none.gguf", e);
    tiny_write(&t, path);
    f = fopen(path, "r+b");
    OK(f != NULL && fseek(f, -5, SEEK_END) == 0 && fputc(0x55, f) == 0x55 && fclose(f) == 0);
    FAILS(pi_model_open(path, &mo, &m, &e), PI_E_CORRUPT, "blk.1.", e);
    mo.check_crc = false;
    PASSES(pi_model_open(path, &mo, &m, &e), e);
    pi_model_close(&m);
    pi_model_close(&m); /* twice is fine */
    mo.hidden_act = "no-such";
    FAILS(pi_model_open(path, &mo, &m, &e), PI_E_UNSUPPORTED, "no-such", e);
}

static void check_damage(const struct tiny *base, const char *victim, int damage, int code)
{
    struct pi_model_options mo = {.check_crc = true};
    static int n_files;
    struct tiny t = *base;
    struct pi_model m;
    struct pi_err e;
    char name[32];
    const char *path;

    t.victim = victim;
    t.damage = damage;
    (void)snprintf(name, sizeof(name), "d%d.gguf", n_files++);
    path = tiny_path(name);
    tiny_write(&t, path);
    e.msg[0] = '\0';
    EQ(pi_model_open(path, &mo, &m, &e), code);
    if (!OK(strstr(e.msg, victim) != NULL))
        printf("# %s: \"%s\"\n", victim, e.msg);
    EQ(m.layers == NULL && m.file.map.data == NULL, 1); /* nothing is left open */
}

static void test_damaged_models(void)
{
    static const char *const names[] = {"token_embd.weight",      "output_norm.weight",
                                        "blk.1.attn_norm.weight", "blk.1.attn_k.weight",
                                        "blk.1.attn_q.weight",    "blk.1.ffn_norm.weight",
                                        "blk.1.ffn_gate.weight",  "blk.1.ffn_down_t.weight"};
    static const char *const opt_names[] = {"position_embd.weight", "output_norm.bias",
                                            "blk.1.attn_q.bias", "blk.1.ffn_up.bias"};
    struct tiny t = llama;

    t.n_layer = 3; /* the one in the middle is damaged */
    t.n_embd = 256;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (i > 0)
            check_damage(&t, names[i], TINY_OMIT, PI_E_CORRUPT);
        if (i > 0)
            check_damage(&t, names[i], TINY_LONGER, PI_E_CORRUPT);
        check_damage(&t, names[i], TINY_NO_KERNEL, PI_E_UNSUPPORTED);
    }
    for (size_t i = 0; i < sizeof(opt_names) / sizeof(opt_names[0]); i++)
        check_damage(&opt, opt_names[i], TINY_OMIT, PI_E_CORRUPT);
}

/* Whichever allocation fails: PI_E_NOMEM and nothing leaked (the sanitizer build looks). PI_TEST_ALLOC_FAIL counts through the whole
 * process, so each target lies behind the one before. */
static void test_allocation_failures(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT, .n_ctx = 16, .n_seq = 1,
                                  .two_units = true};
    struct tiny t = llama;
    struct pi_engine *e;
    enum pi_code rc = PI_E_NOMEM;
    uint32_t n_failed = 0, done = 0;
    char target[32];
    struct rig r;

    t.down_t = false;
    rig_open(&r, &t, 1);
    r.layers[0].n_hot = 10;
    for (uint32_t k = 1; rc != PI_OK && k < 500; k++, done += k - 1) {
        (void)snprintf(target, sizeof(target), "%u", done + k);
        (void)setenv("PI_TEST_ALLOC_FAIL", target, 1);
        e = NULL;
        rc = pi_engine_create(&r.m, NULL, &r.place, r.pool, &o, &e, &r.e);
        (void)unsetenv("PI_TEST_ALLOC_FAIL");
        n_failed += rc == PI_E_NOMEM && e == NULL;
        if (rc == PI_OK)
            EQ(n_failed, k - 1);
        pi_engine_destroy(e);
    }
    EQ(rc, PI_OK);
    OK(n_failed > 20);
    rig_close(&r);
}

int main(void)
{
    test_by_hand();
    check_quantised(PI_TYPE_Q8_0, true);
    check_quantised(PI_TYPE_Q8_0, false);
    check_quantised(PI_TYPE_Q4_0, true);
    check_quantised(PI_TYPE_Q4_1, true);
    test_threads(&llama);
    test_threads(&opt);
    test_batches(&llama, PI_MODE_EXACT);
    test_batches(&opt, PI_MODE_DENSE);
    test_batches(&llama, PI_MODE_PREDICTED);
    test_truncate();
    test_predict_all(&llama);
    test_predict_all(&opt);
    test_predict_nothing();
    test_where_it_pays();
    test_trace(&llama);
    test_trace(&opt);
    for (int i = PI_PRED_IN_FFN_NORMED; i <= PI_PRED_IN_PREV_ATTN; i++)
        test_inputs((enum pi_predictor_input)i);
    test_exact_stats();
    test_batch_errors();
    test_create_errors();
    test_memory();
    test_model_errors();
    test_damaged_models();
    test_allocation_failures();
    return DONE();
}
