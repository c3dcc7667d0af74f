/* t_engine_q8.c - engines with quantised activations: how far from F32 they are, and the bytes that must not depend on threads, chunks, batches and modes. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "tests/engine_rig.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define Q8       .act = PI_ACT_TYPE_Q8

static const enum pi_type types[] = {PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0,
                                     PI_TYPE_Q5_1, PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};

static bool parted(enum pi_type type)
{
    return type == PI_TYPE_Q4_K || type == PI_TYPE_Q5_K || type == PI_TYPE_Q6_K;
}

/* A model in a type: K types want rows of whole blocks. False: the processor's table lacks the type. */
static bool model_in(enum pi_type type, struct tiny *t)
{
    const struct pi_cpu *cpu = NULL;
    struct pi_err e;

    t->type = type;
    if (parted(type)) {
        t->n_embd = t->n_ff = 256;
        t->head_dim = t->n_embd / t->n_head;
    }
    return pi_cpu_select(&cpu, &e) == PI_OK && cpu->type[type] != NULL;
}

/* Kullback-Leibler divergence of softmax(b) from softmax(a), mean over tokens, nats. */
static double mean_kl(const float *a, const float *b, uint32_t n_vocab)
{
    double sum = 0.0;

    for (uint32_t t = 0; t < N_TOK; t++, a += n_vocab, b += n_vocab) {
        double za = 0.0, zb = 0.0;

        for (uint32_t i = 0; i < n_vocab; i++) {
            za += exp((double)a[i]);
            zb += exp((double)b[i]);
        }
        for (uint32_t i = 0; i < n_vocab; i++) {
            double pa = exp((double)a[i]) / za;

            sum += pa * (log(pa) - (double)b[i] + log(zb));
        }
    }
    return sum / N_TOK;
}

static void test_against_f32(const struct tiny *model, enum pi_type type)
{
    struct pi_engine_options plain = {F32KV, .mode = PI_MODE_EXACT},
                             q8 = {F32KV, Q8, .mode = PI_MODE_EXACT},
                             split = {F32KV, Q8, .mode = PI_MODE_EXACT, .two_units = true};
    size_t n = (size_t)N_TOK * model->n_vocab;
    struct tiny t = *model;
    float *ref, *out, *two;
    struct rig r;

    if (!model_in(type, &t))
        return;
    printf("# %s %s\n", t.arch == PI_ARCH_OPT ? "opt" : "llama", pi_type_name(type));
    rig_open(&r, &t, 2);
    r.layers[0].n_hot = 41;
    r.layers[1].n_hot = 7;
    ref = run(&r, &plain, true);
    out = run(&r, &q8, true);
    two = run(&r, &split, true);
    printf("# KL %.2e, with two units %.2e\n", mean_kl(ref, out, t.n_vocab),
           mean_kl(out, two, t.n_vocab));
    OK(worst_f32(out, ref, n) > 1e-5);
    OK(mean_kl(ref, out, t.n_vocab) <= 1e-3);
    OK(mean_kl(out, two, t.n_vocab) <= 1e-5);
    free(two);
    two = run(&r, &q8, false);
    OK(mean_kl(out, two, t.n_vocab) <= 1e-5);
    free(two);
    free(out);
    free(ref);
    rig_close(&r);
}

/* Float matrices are not concerned. */
static void test_float_model(void)
{
    struct pi_engine_options plain = {F32KV, .mode = PI_MODE_EXACT},
                             q8 = {F32KV, Q8, .mode = PI_MODE_EXACT};
    struct tiny t = llama;
    struct rig r;

    t.type = PI_TYPE_F16;
    rig_open(&r, &t, 2);
    for (int step = 0; step < 2; step++) {
        float *a = run(&r, &plain, step == 1), *b = run(&r, &q8, step == 1);

        SAME(a, b, (size_t)N_TOK * t.n_vocab);
        free(a);
        free(b);
    }
    rig_close(&r);
}

static void test_threads(const struct tiny *model, bool two_units)
{
    static const uint32_t n_threads[] = {2, 3, 7};
    struct pi_engine_options o = {F32KV, Q8, .mode = PI_MODE_EXACT, .two_units = two_units};
    size_t n = (size_t)N_TOK * model->n_vocab;
    struct rig one, many;

    rig_open(&one, model, 1);
    one.layers[0].n_hot = 30;
    for (size_t i = 0; i < COUNT(n_threads); i++) {
        rig_open(&many, model, n_threads[i]);
        many.layers[0].n_hot = 30;
        for (int step = 0; step < 2; step++) {
            float *a = run(&one, &o, step == 1), *b = run(&many, &o, step == 1);

            SAME(a, b, n);
            free(a);
            free(b);
        }
        rig_close(&many);
    }
    rig_close(&one);
}

/* Prompts in chunks of any length and token by token, all matrices by rows: the same bytes. The same of modes that add the same rows. */
static void test_chunks(const struct tiny *model, enum pi_type type)
{
    static const uint32_t chunks[] = {1, 5, 11};
    struct tiny t = *model;
    size_t n = (size_t)N_TOK * t.n_vocab;
    struct pi_engine_options o = {F32KV, Q8, .mode = PI_MODE_DENSE};
    float *whole, *other;
    struct rig r;

    t.down_t = false;
    if (!model_in(type, &t))
        return;
    rig_open(&r, &t, 3);
    whole = run(&r, &o, false);
    other = run(&r, &o, true);
    SAME(whole, other, n);
    free(other);
    for (size_t i = 0; i < COUNT(chunks); i++) {
        o.n_batch = chunks[i];
        other = run(&r, &o, false);
        SAME(whole, other, n);
        free(other);
    }
    free(whole);
    rig_close(&r);
}

static void test_modes(const struct tiny *model)
{
    struct pi_engine_options dense = {F32KV, Q8, .mode = PI_MODE_DENSE},
                             exact = {F32KV, Q8, .mode = PI_MODE_EXACT};
    struct rig r;
    float *a, *b;

    rig_open(&r, model, 2);
    a = run(&r, &dense, true);
    b = run(&r, &exact, true);
    SAME(a, b, (size_t)N_TOK * model->n_vocab);
    free(a);
    free(b);
    rig_close(&r);
}

/* The oracle's predictor has the gate as it is: it calls what fires, on the input that the gate reads. */
static void test_predicted(const struct tiny *model)
{
    struct pi_engine_options exact = {F32KV, Q8, .mode = PI_MODE_EXACT},
                             pred = {F32KV, Q8, .mode = PI_MODE_PREDICTED, .force_predicted = true};
    struct rig r;
    float *a, *b;

    rig_open(&r, model, 2);
    oracle(&r, -1e-4f);
    a = run(&r, &exact, true);
    b = run(&r, &pred, true);
    SAME(a, b, (size_t)N_TOK * model->n_vocab);
    free(a);
    free(b);
    rig_close(&r);
}

int main(void)
{
    struct tiny q = llama, rows = llama;

    for (size_t i = 0; i < COUNT(types); i++) {
        test_against_f32(&llama, types[i]);
        test_against_f32(&opt, types[i]);
        test_chunks(&llama, types[i]);
    }
    test_chunks(&opt, PI_TYPE_Q4_1);
    test_float_model();
    q.type = PI_TYPE_Q4_0;
    test_threads(&q, false);
    test_threads(&q, true);
    test_modes(&q);
    test_predicted(&q);
    rows.type = PI_TYPE_Q8_0;
    rows.down_t = false;
    rows.n_head_kv = 2;
    rows.bias = true;
    test_threads(&rows, false);
    return DONE();
}
