/* t_engine.c - the engine against a model computed by hand, and its units, threads and batches against each other. */
#include "config.h"

#include "tests/engine_rig.h"

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

static void test_threads(const struct tiny *t);

/* Threads take other parts in these: a kept layer input, residuals that become what was normed, neurons that drop out behind up. */
static void test_threads_of_forms(void)
{
    struct tiny t = llama;

    t.arch = PI_ARCH_FALCON;
    test_threads(&t);
    t.arch = PI_ARCH_BAMBOO;
    test_threads(&t);
    t = opt;
    t.post_norm = true;
    t.n_embd_tok = 40;
    test_threads(&t);
}

static void test_architectures(void)
{
    struct tiny t = llama;

    t.arch = PI_ARCH_ARCEE;
    t.act = "relu2";
    t.n_head_kv = 2;
    check_by_hand(&t, "arcee");
    t.bias = true;
    t.mlp_bias = true;
    check_by_hand(&t, "arcee with all biases");
    t.bias = t.mlp_bias = false;
    t.arch = PI_ARCH_NEMOTRON;
    t.n_rot = 8;
    check_by_hand(&t, "nemotron");
    t.rope_freqs = true;
    check_by_hand(&t, "nemotron, rope_freqs");
    t = llama;
    t.arch = PI_ARCH_QWEN2;
    t.n_head_kv = 2;
    t.tied = true;
    t.act = "silu";
    check_by_hand(&t, "qwen2");
    t.arch = PI_ARCH_QWEN3;
    t.head_dim = 24;
    check_by_hand(&t, "qwen3");
    t = llama;
    t.mlp_bias = t.bias = true;
    check_by_hand(&t, "llama with all biases");
    t.arch = PI_ARCH_BAMBOO;
    t.mlp_bias = t.bias = false;
    check_by_hand(&t, "bamboo");
}

static void test_falcon_and_350m(void)
{
    struct tiny t = llama;

    t.arch = PI_ARCH_FALCON;
    t.tied = true;
    t.n_head_kv = 1;
    check_by_hand(&t, "falcon 7B");
    t.n_head_kv = 2;
    t.two_norms = true;
    check_by_hand(&t, "falcon 40B");
    t.bias = t.mlp_bias = true;
    t.down_t = false;
    check_by_hand(&t, "falcon with all biases, ffn_down");
    t = opt;
    t.post_norm = true;
    check_by_hand(&t, "opt, norms behind the blocks");
    t.n_embd_tok = 40;
    check_by_hand(&t, "opt-350m: projections too");
    t.n_embd_tok = 96;
    t.tied = false;
    check_by_hand(&t, "wider token embeddings");
    t.post_norm = false;
    check_by_hand(&t, "projections, norms before the blocks");
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
    if (pi_type_info((uint32_t)type)->block_elems == 256) {
        t.n_embd = t.n_head * 64;
        t.head_dim = 64;
        t.n_ff = 768;
    }
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

/* A batch in steps, whatever their width: the same bytes, with those of it that were asked for; and while the engine chooses, each way in turn. */
static void test_widths(enum pi_mode mode)
{
    enum {
        N = 20
    };
    static const uint32_t tries[] = {1, 2, 3, 1, 2, 3,
                                     1, 2, 3, 1, 2, 3}; /* 20; 10 + 10; 7 + 7 + 6 */
    struct pi_engine_options o = {F32KV, .mode = mode, .n_seq = N};
    size_t v = llama.n_vocab, n_bytes = sizeof(float) * N * v;
    float *want = malloc(n_bytes), *out = malloc(n_bytes);
    struct rig r;

    rig_open(&r, &llama, 2);
    for (uint32_t width = 0; width <= N + 1; width++) { /* of N + 1: chosen */
        struct pi_engine *e;
        struct pi_engine_timing t;

        o.step_width = width > N ? 0 : width;
        o.choose_width = width > N;
        e = engine(&r, &o);
        for (uint32_t i = 0; i < 12; i++) {
            int32_t token[N], pos[N];
            uint32_t seq[N];
            bool some[N];
            struct pi_batch b = {.n_tok = N, .token = token, .pos = pos, .seq = seq};
            uint32_t steps = width == 0 ? 1 : (N + width - 1) / width;

            for (uint32_t q = 0; q < N; q++) {
                token[q] = tokens[(q + i) % N_TOK];
                pos[q] = (int32_t)i;
                seq[q] = (q * 7 + 3) % N;
                some[q] = q % 3 == 0;
            }
            if (i == 11)
                b.want = some;
            PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, out, &r.e), r.e);
            pi_engine_take_timing(e, &t);
            if (width > N && i < sizeof(tries) / sizeof(tries[0]))
                EQ(t.steps, tries[i]);
            else if (width <= N)
                EQ(t.steps, steps);
            OK(width <= N || pi_engine_hold_width(e, N) == (i + 1 >= 12));
        }
        if (width == 0)
            memcpy(want, out, n_bytes);
        SAME(out, want, (N + 2) / 3 * v);
        pi_engine_destroy(e);
    }
    free(want);
    free(out);
    rig_close(&r);
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

/* So many neurons that their sums are made in chunks. */
static void test_large_batches(void)
{
    struct tiny t = llama;

    t.n_ff = 2301;
    test_batches(&t, PI_MODE_DENSE);
    test_batches(&t, PI_MODE_EXACT);
    test_batches(&t, PI_MODE_PREDICTED);
}

int main(void)
{
    test_by_hand();
    test_architectures();
    test_falcon_and_350m();
    check_quantised(PI_TYPE_Q8_0, true);
    check_quantised(PI_TYPE_Q8_0, false);
    check_quantised(PI_TYPE_Q4_0, true);
    check_quantised(PI_TYPE_Q4_1, true);
    check_quantised(PI_TYPE_Q5_0, true);
    check_quantised(PI_TYPE_Q5_1, false);
    check_quantised(PI_TYPE_Q4_K, true);
    check_quantised(PI_TYPE_Q4_K, false);
    check_quantised(PI_TYPE_Q5_K, true);
    check_quantised(PI_TYPE_Q6_K, false);
    test_threads(&llama);
    test_threads(&opt);
    test_threads_of_forms();
    test_widths(PI_MODE_DENSE);
    test_widths(PI_MODE_EXACT);
    test_batches(&llama, PI_MODE_EXACT);
    test_batches(&opt, PI_MODE_DENSE);
    test_batches(&llama, PI_MODE_PREDICTED);
    test_large_batches();
    test_truncate();
    return DONE();
}
