/* t_engine_sparse.c - predictors, what observers and traces see, what is counted. */
#include "config.h"

#include "tests/engine_rig.h"

/* ---- predictors ---- */

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
    struct pi_engine_timing time;
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
    pi_engine_take_timing(e, &time);
    EQ(time.steps, 1);
    EQ(time.bytes_cpu, st.bytes);
    EQ(time.bytes_cpu_once, st.bytes);
    EQ(time.bytes_gpu, 0);
    OK(time.seconds_total > 0 && time.seconds_cpu_busy == time.seconds_total);
    OK(time.seconds_wait == 0 && time.seconds_gpu == 0 && time.seconds_handover == 0);
    pi_engine_take_timing(e, &time);
    OK(time.steps == 0 && time.bytes_cpu == 0 && time.seconds_total == 0);
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
                            const float *input, const float *normed, const float *h,
                            const float *prod, struct pi_err *err)
{
    struct seen *s = ctx;
    size_t last = n_tok - 1;

    OK(input == residual);
    (void)err;
    s->calls++;
    memcpy(s->residual[layer], residual + last * 64, sizeof(s->residual[0]));
    memcpy(s->normed[layer], normed + last * 64, sizeof(s->normed[0]));
    memcpy(s->h[layer], h + last * 96, sizeof(s->h[0]));
    memcpy(s->prod[layer], prod + last * 96, sizeof(s->prod[0]));
    return PI_OK;
}

static enum pi_code refuse(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                           const float *input, const float *normed, const float *h,
                           const float *prod, struct pi_err *err)
{
    (void)ctx, (void)layer, (void)n_tok, (void)residual, (void)input, (void)normed, (void)h,
        (void)prod;
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

int main(void)
{
    test_predict_all(&llama);
    test_predict_all(&opt);
    test_predict_nothing();
    test_where_it_pays();
    test_trace(&llama);
    test_trace(&opt);
    test_exact_stats();
    for (int i = PI_PRED_IN_FFN_NORMED; i <= PI_PRED_IN_PREV_ATTN; i++)
        test_inputs((enum pi_predictor_input)i);
    return DONE();
}
