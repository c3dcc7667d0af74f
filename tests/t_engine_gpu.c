/*
 * t_engine_gpu.c - the engine on a GPU and the CPU at the same time: against a model computed by hand, and its ways against each other.
 *
 * PI_HANDOVER_AUTO begins with a trial, which takes an emulated device half a second: a few tests have it, the others name the way that it finds.
 */
#include "config.h"

#include "runtime/pi_engine_int.h"
#include "runtime/pi_exec_gpu.h"
#include "runtime/pi_gpu.h"

#include "tests/engine_rig.h"

#include <unistd.h>

/* Where attention of even and odd layers and the output are, and how many neurons are hot. */
struct split {
    uint8_t attn_even, attn_odd, output;
    uint32_t n_hot_even, n_hot_odd;
};

static void place(struct rig *r, const struct split *s)
{
    for (uint32_t l = 0; l < r->t.n_layer; l++) {
        r->layers[l].attn_unit = l & 1 ? s->attn_odd : s->attn_even;
        r->layers[l].n_hot = l & 1 ? s->n_hot_odd : s->n_hot_even;
        if (r->layers[l].n_hot > r->t.n_ff)
            r->layers[l].n_hot = r->t.n_ff;
    }
    r->place.output_unit = s->output;
}

static const struct split splits[] = {{1, 1, 1, 96, 96}, {1, 1, 1, 999, 999}, {1, 1, 1, 41, 41},
                                      {1, 1, 1, 1, 95},  {1, 1, 1, 0, 0},     {1, 1, 1, 0, 999},
                                      {0, 1, 1, 41, 0},  {1, 0, 1, 41, 41},   {0, 0, 1, 0, 0},
                                      {0, 0, 1, 41, 41}, {0, 0, 0, 41, 999},  {1, 1, 0, 41, 41},
                                      {0, 1, 0, 0, 41},  {1, 0, 0, 999, 0},   {0, 0, 0, 0, 0}};
#define N_SPLITS (sizeof(splits) / sizeof(splits[0]))

/* way 0: dense steps, 1: exact steps, 2: a prompt. */
static void run_split(struct rig *r, const struct split *sp, int way, bool events,
                      const double *ref)
{
    struct pi_engine_options o = {F32KV, .on_gpu = true, .f32_gemm = true,
                                  .mode = way == 0 ? PI_MODE_DENSE : PI_MODE_EXACT,
                                  .gpu_handover = events ? PI_HANDOVER_EVENTS : PI_HANDOVER_SPIN};
    float *out;

    place(r, sp);
    out = run(r, &o, way < 2);
    NEAR(worst(out, ref, (size_t)N_TOK * r->t.n_vocab), 0.0, 2e-5);
    free(out);
}

static void check_by_hand(const struct tiny *t, const char *what, bool every)
{
    struct rig r;
    double *ref = tiny_forward(t, tokens, N_TOK);

    printf("# %s\n", what);
    rig_open(&r, t, 1);
    for (size_t i = 0; i < N_SPLITS; i++) {
        for (int k = 0; k < 3; k++) {
            if (!every && k != (int)(i % 3))
                continue;
            run_split(&r, &splits[i], k, i % 2 == 0, ref);
        }
    }
    rig_close(&r);
    free(ref);
}

static void test_forms(void)
{
    struct tiny t = llama;

    check_by_hand(&opt, "opt", false);
    t.n_layer = 4;
    t.n_head_kv = 2;
    t.head_dim = 24;
    t.bias = true;
    t.tied = true;
    t.down_t = false;
    t.n_embd = 80;
    t.n_ff = 101;
    check_by_hand(&t, "four layers, grouped queries, own head_dim, biases, ffn_down, odd sizes",
                  false);
    t = llama;
    t.type = PI_TYPE_F16;
    t.rope_freqs = true;
    check_by_hand(&t, "F16, rope_freqs", false);
    t.rope_freqs = false;
    t.type = PI_TYPE_BF16;
    t.rope_scaling = "yarn";
    t.act = "fatrelu";
    t.act_threshold = 0.25f;
    check_by_hand(&t, "BF16, yarn, fatrelu", false);
    t = opt;
    t.act = "relu2";
    check_by_hand(&t, "opt, relu2", false);
}

static void check_quantised(enum pi_type type)
{
    struct tiny t = llama;
    struct rig q, f;
    size_t n = (size_t)N_TOK * t.n_vocab;
    struct pi_engine_options dense = {F32KV, .mode = PI_MODE_DENSE};
    float *ref;

    printf("# %s\n", pi_type_name(type));
    t.type = type;
    rig_open(&q, &t, 1);
    t.dequantised = true;
    rig_open(&f, &t, 2);
    ref = run(&f, &dense, true);
    for (size_t i = 0; i < N_SPLITS; i++) {
        struct pi_engine_options o = {F32KV, .on_gpu = true, .gpu_handover = PI_HANDOVER_SPIN,
                                      .mode = i % 2 == 0 ? PI_MODE_EXACT : PI_MODE_DENSE};
        float *out;

        place(&q, &splits[i]);
        out = run(&q, &o, true);
        NEAR(worst_f32(out, ref, n), 0.0, 1e-4);
        free(out);
    }
    free(ref);
    rig_close(&q);
    rig_close(&f);
}

/* ---- predicted ---- */

/* A predictor that misses some neurons: then the result says who was asked. */
static void test_predicted(enum pi_predictor_input input, float threshold)
{
    struct rig r;
    size_t n = (size_t)N_TOK * llama.n_vocab;

    printf("# predictor reads input %d\n", (int)input);
    rig_open(&r, &llama, 1);
    oracle(&r, threshold);
    for (uint32_t l = 0; l < 2; l++)
        r.pred_layers[l].input = input;
    for (size_t i = 0; i < N_SPLITS; i++) {
        struct pi_engine_options cpu = {F32KV, .mode = PI_MODE_PREDICTED, .force_predicted = true,
                                        .two_units = true},
                                 gpu = {F32KV, .mode = PI_MODE_PREDICTED, .force_predicted = true,
                                        .on_gpu = true,
                                        .gpu_handover =
                                            i % 2 == 1 ? PI_HANDOVER_EVENTS : PI_HANDOVER_SPIN};
        bool comparable = true; /* where the GPU can not see the input the layer is exact there */
        float *a, *b;

        place(&r, &splits[i]);
        for (uint32_t l = 0; l < 2; l++) {
            bool attn = r.layers[l].attn_unit != 0;

            if (input == PI_PRED_IN_LAYER && !attn && r.layers[l].n_hot > 0)
                comparable = false;
            if (input == PI_PRED_IN_PREV_ATTN && l == 1 &&
                (r.layers[0].attn_unit != r.layers[1].attn_unit ||
                 (!attn && r.layers[1].n_hot > 0)))
                comparable = false;
        }
        a = run(&r, &cpu, true);
        b = run(&r, &gpu, true);
        OK(!comparable || worst_f32(b, a, n) <= 2e-5);
        free(a);
        free(b);
    }
    rig_close(&r);
}

/* The placement's modes differ between the units. */
static void test_mixed_modes(void)
{
    struct pi_engine_options cpu = {F32KV, .mode = PI_MODE_PREDICTED, .two_units = true},
                             gpu = {F32KV, .mode = PI_MODE_PREDICTED, .on_gpu = true,
                                    .gpu_handover = PI_HANDOVER_SPIN};
    const struct split half = {1, 1, 1, 41, 41};
    struct rig r;

    rig_open(&r, &llama, 2);
    oracle(&r, 0.3f);
    place(&r, &half);
    for (int k = 0; k < 4; k++) {
        float *a, *b;

        for (uint32_t l = 0; l < 2; l++) {
            r.layers[l].mode_cpu = k & 1 ? PI_MODE_EXACT : PI_MODE_PREDICTED;
            r.layers[l].mode_gpu = k & 2 ? PI_MODE_EXACT : PI_MODE_PREDICTED;
        }
        a = run(&r, &cpu, true);
        b = run(&r, &gpu, true);
        NEAR(worst_f32(b, a, (size_t)N_TOK * llama.n_vocab), 0.0, 2e-5);
        free(a);
        free(b);
    }
    rig_close(&r);
}

/* ---- traces ---- */

/* Steps on either kind of engine see and call the same neurons. */
static void test_trace(enum pi_mode mode)
{
    const size_t bytes = (96 + 7) / 8;

    for (size_t i = 0; i < N_SPLITS; i++) {
        struct pi_engine_options cpu = {F32KV, .mode = mode, .force_predicted = true,
                                        .two_units = true},
                                 gpu = {F32KV, .mode = mode, .force_predicted = true,
                                        .on_gpu = true, .gpu_handover = PI_HANDOVER_SPIN};
        uint8_t called[2][2 * 12], truth[2][2 * 12];
        struct rig r;

        rig_open(&r, &llama, 1);
        oracle(&r, 0.3f);
        place(&r, &splits[i]);
        for (int k = 0; k < 2; k++) {
            struct pi_engine *e = engine(&r, k == 0 ? &cpu : &gpu);
            struct pi_trace tr = {.mask_bytes = bytes, .predicted = called[k], .truth = truth[k]};
            float logits[64];

            pi_engine_trace(e, &tr);
            for (int t = 0; t < 3; t++) {
                struct pi_batch b = {.n_tok = 1, .token = tokens + t, .pos = positions + t};

                PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r.e), r.e);
            }
            pi_engine_trace(e, NULL);
            pi_engine_destroy(e);
        }
        EQ(memcmp(called[0], called[1], 2 * bytes), 0);
        EQ(memcmp(truth[0], truth[1], 2 * bytes), 0);
        rig_close(&r);
    }
}

/* ---- bytes ---- */

static void test_same_bytes(void)
{
    static const uint32_t n_threads[] = {1, 2, 3, 1};
    const struct split half = {1, 1, 1, 41, 17};
    size_t n = (size_t)N_TOK * llama.n_vocab;
    float *first = NULL;

    for (int k = 0; k < 4; k++) {
        struct pi_engine_options o = {.kv_type = PI_TYPE_F16,
                                      .mode = PI_MODE_EXACT,
                                      .on_gpu = true,
                                      .gpu_handover =
                                          k == 3 ? PI_HANDOVER_EVENTS : PI_HANDOVER_SPIN};
        struct rig r;
        float *out;

        rig_open(&r, &llama, n_threads[k]);
        place(&r, &half);
        out = run(&r, &o, true);
        if (first == NULL) {
            first = out;
        } else {
            SAME(first, out, n);
            free(out);
        }
        rig_close(&r);
    }
    free(first);
}

/* ---- batches ---- */

/* Sequences decode together as they do alone, one by one with the same bits; odd numbers leave padding in the bucket. */
static void test_batch(uint32_t n_seq, const struct split *sp, enum pi_mode mode,
                       uint32_t step_width)
{
    struct pi_engine_options o = {F32KV,
                                  .on_gpu = true,
                                  .mode = mode,
                                  .n_seq = n_seq,
                                  .gpu_handover = PI_HANDOVER_SPIN,
                                  .step_width = step_width,
                                  .force_predicted = mode == PI_MODE_PREDICTED},
                             one = o;
    struct rig r;
    struct pi_engine *e;
    uint32_t v = llama.n_vocab;
    float *out = malloc(sizeof(*out) * n_seq * v);

    one.n_seq = 1;
    one.step_width = 0;
    rig_open(&r, &llama, 2);
    oracle(&r, 0.2f);
    place(&r, sp);
    e = engine(&r, &o);
    for (uint32_t step = 0; step < 3; step++) {
        int32_t tok[32], pos[32];
        uint32_t seq[32];
        struct pi_batch b = {.n_tok = n_seq, .token = tok, .pos = pos, .seq = seq};

        for (uint32_t q = 0; q < n_seq; q++) {
            seq[q] = n_seq - 1 - q;
            tok[q] = (int32_t)((seq[q] * 7 + step * 3 + 1) % v);
            pos[q] = (int32_t)step;
        }
        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, out, &r.e), r.e);
    }
    pi_engine_destroy(e);
    for (uint32_t q = 0; q<n_seq; q += n_seq> 4 ? 5 : 1) {
        float alone[64];

        e = engine(&r, &one);
        for (uint32_t step = 0; step < 3; step++) {
            int32_t tok = (int32_t)(((n_seq - 1 - q) * 7 + step * 3 + 1) % v), pos = (int32_t)step;
            struct pi_batch b = {.n_tok = 1, .token = &tok, .pos = &pos};

            PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, alone, &r.e), r.e);
        }
        NEAR(worst_f32(out + (size_t)q * v, (const float *)alone, v), 0.0, 2e-5);
        OK(step_width != 1 || memcmp(out + (size_t)q * v, alone, v * sizeof(*alone)) == 0);
        pi_engine_destroy(e);
    }
    free(out);
    rig_close(&r);
}

/* ---- faults ---- */

#define HANG 300 /* seconds after which the test ends as hung, on however busy a machine */

/* A CPU that does not answer: an error, no hang, and no step after it. */
static void test_stall(bool events)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT, .on_gpu = true,
                                  .gpu_handover = events ? PI_HANDOVER_EVENTS : PI_HANDOVER_SPIN,
                                  .gpu_patience = 3.0};
    const struct split half = {1, 1, 1, 41, 41};
    struct rig r;
    struct pi_engine *e;
    float logits[64];
    struct pi_batch b = {.n_tok = 1, .token = tokens, .pos = positions};

    rig_open(&r, &llama, 2);
    place(&r, &half);
    e = engine(&r, &o);
    PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r.e), r.e);
    pi_exec_gpu_test_stall(pi_engine_gpu_exec(e));
    b.pos = positions + 1;
    (void)alarm(HANG);
    FAILS(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r.e), PI_E_DEVICE, "gave up", r.e);
    (void)alarm(0);
    OK(!pi_gpu_gave_up()); /* the device has done what it was told */
    EQ(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r.e), PI_E_DEVICE);
    pi_engine_destroy(e);
    rig_close(&r);
}

/* A CPU that is slow, as where its rows come from a disk, is waited for. */
static void test_slow(bool events)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT, .on_gpu = true,
                                  .gpu_handover = events ? PI_HANDOVER_EVENTS : PI_HANDOVER_SPIN,
                                  .gpu_patience = 3.0};
    const struct split half = {1, 1, 1, 41, 41};
    struct rig r;
    float logits[2][64];
    struct pi_batch b = {.n_tok = 1, .token = tokens, .pos = positions};

    rig_open(&r, &llama, 2);
    place(&r, &half);
    for (int k = 0; k < 2; k++) {
        struct pi_engine *e = engine(&r, &o);

        if (k == 1)
            pi_exec_gpu_test_slow(pi_engine_gpu_exec(e), 4.0);
        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, logits[k], &r.e), r.e);
        pi_engine_destroy(e);
    }
    SAME(logits[0], logits[1], llama.n_vocab);
    rig_close(&r);
}

static void test_account(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_DENSE, .on_gpu = true};
    const struct split half = {1, 1, 1, 32, 32};
    struct rig r;
    struct pi_engine *e;
    float logits[64];
    struct pi_batch b = {.n_tok = 1, .token = tokens, .pos = positions};
    struct pi_engine_timing time;

    rig_open(&r, &llama, 2);
    place(&r, &half);
    e = engine(&r, &o);
    PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r.e), r.e);
    pi_engine_take_timing(e, &time);
    EQ(time.steps, 1);
    EQ(time.bytes_gpu, 4 * (2 * 4 * 64 * 64 + 64 * 64 + 2 * 3 * 32 * 64));
    EQ(time.bytes_cpu, 4 * (64 + 2 * 3 * 64 * 64));
    OK(time.seconds_gpu > 0.0 && time.seconds_gpu <= time.seconds_total);
    OK(time.seconds_cpu_busy > 0.0 && time.seconds_wait >= 0.0);
    pi_engine_destroy(e);
    rig_close(&r);
}

static void test_llama(void)
{
    check_by_hand(&llama, "llama", true);
}

static void test_quantised(void)
{
    check_quantised(PI_TYPE_Q8_0);
    check_quantised(PI_TYPE_Q4_0);
}

static void test_predictors(void)
{
    test_predicted(PI_PRED_IN_FFN_NORMED, 0.3f);
    test_predicted(PI_PRED_IN_FFN_RESIDUAL, 0.1f);
    test_predicted(PI_PRED_IN_LAYER, 0.1f);
    test_predicted(PI_PRED_IN_PREV_ATTN, 0.1f);
    test_mixed_modes();
}

static void test_steps(void)
{
    test_trace(PI_MODE_PREDICTED);
    test_trace(PI_MODE_EXACT);
    test_same_bytes();
    test_account();
}

static void test_batches(void)
{
    const struct split half = {1, 1, 1, 41, 17}, mixed = {0, 1, 1, 41, 0}, all = {1, 1, 1, 96, 96};

    test_batch(4, &half, PI_MODE_EXACT, 0);
    test_batch(3, &half, PI_MODE_PREDICTED, 0);
    test_batch(7, &mixed, PI_MODE_DENSE, 0);
    test_batch(32, &half, PI_MODE_PREDICTED, 0);
    test_batch(17, &all, PI_MODE_PREDICTED, 0);
    test_batch(5, &half, PI_MODE_PREDICTED, 1);
    test_batch(3, &mixed, PI_MODE_EXACT, 1);
    test_batch(17, &mixed, PI_MODE_PREDICTED, 6); /* 6, 6, 5 in graphs of 8 */
}

static void test_stops(void)
{
    test_stall(false);
    test_stall(true);
    test_slow(false);
    test_slow(true);
}

/* Parts, to be asked for by name: under a sanitizer all of them take long. */
static const struct part {
    const char *name;
    void (*run)(void);
} parts[] = {{"llama", test_llama},          {"forms", test_forms}, {"quantised", test_quantised},
             {"predicted", test_predictors}, {"steps", test_steps}, {"batches", test_batches},
             {"stops", test_stops}};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

static bool asked_for(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return argc == 1;
}

int main(int argc, char **argv)
{
    if (pi_gpu_count() == 0) {
        if (getenv("PI_REQUIRE_GPU") == NULL)
            return SKIP_ALL("no GPU");
        OK(pi_gpu_count() > 0);
        return DONE();
    }
    for (size_t i = 0; i < N_PARTS; i++) {
        if (asked_for(parts[i].name, argc, argv))
            parts[i].run();
    }
    return DONE();
}
