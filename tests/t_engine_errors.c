/* t_engine_errors.c - what the engine refuses: batches, options, artifacts of other models, damaged files; memory that runs out. */
#include "config.h"

#include "tests/engine_rig.h"

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

/* Before a device is looked for. */
static void test_gpu_forms(void)
{
    static const struct {
        enum pi_arch arch;
        bool post_norm, mlp_bias;
        const char *words;
    } forms[] = {
        {PI_ARCH_QWEN3, false, false, "norms on q and k, which architecture qwen3 has"},
        {PI_ARCH_BAMBOO, false, false, "an activation on up"},
        {PI_ARCH_FALCON, false, false, "attention and feed-forward in parallel"},
        {PI_ARCH_OPT, true, false, "norms behind the blocks"},
        {PI_ARCH_LLAMA, false, true, "biases on gate and up"},
    };
    const struct pi_engine_options o = {F32KV, .n_ctx = 8, .n_seq = 1, .on_gpu = true};
    struct pi_engine *e = NULL;

    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tiny t = llama;
        struct rig r;

        t.arch = forms[i].arch;
        t.post_norm = forms[i].post_norm;
        t.mlp_bias = forms[i].mlp_bias;
        rig_open(&r, &t, 1);
        FAILS(pi_engine_create(&r.m, NULL, &r.place, r.pool, &o, &e, &r.e), PI_E_UNSUPPORTED,
              forms[i].words, r.e);
        rig_close(&r);
    }
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
    FAILS(pi_model_open(path, &mo, &m, &e), PI_E_USAGE, "no-such", e);
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

static void one_step(struct rig *r, struct pi_engine *e, float logits[64])
{
    struct pi_batch b = {.n_tok = 1, .token = tokens, .pos = positions};

    PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r->e), r->e);
}

/* Memory for a trace that runs out half-way. PI_TEST_ALLOC_FAIL counts through the whole process: returns its count, 0 before. */
static uint32_t test_trace_memory(void)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT};
    struct pi_batch b = {.n_tok = 1, .token = tokens, .pos = positions};
    uint8_t masks[2][24];
    struct pi_trace trace = {.mask_bytes = 12, .predicted = masks[0], .truth = masks[1]};
    struct pi_engine *e;
    float logits[64];
    struct rig r;

    rig_open(&r, &llama, 1);
    e = engine(&r, &o);
    pi_engine_trace(e, &trace);
    (void)setenv("PI_TEST_ALLOC_FAIL", "3", 1); /* the second of the two masks */
    FAILS(pi_engine_run(e, PI_PHASE_DECODE, &b, logits, &r.e), PI_E_NOMEM, "192 x 1", r.e);
    (void)unsetenv("PI_TEST_ALLOC_FAIL");
    one_step(&r, e, logits);
    pi_engine_destroy(e);
    rig_close(&r);
    return 3;
}

/* Whichever allocation fails: PI_E_NOMEM, nothing leaked or used after it was freed (the sanitizer build looks), and the engine that is made in
 * the end computes what one without failures does. done: allocations counted so far; each target lies behind the one before. */
static void test_allocation_failures(uint32_t done)
{
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_EXACT, .n_ctx = 16, .n_seq = 1,
                                  .two_units = true};
    struct tiny t = llama;
    struct pi_engine *e;
    enum pi_code rc = PI_E_NOMEM;
    uint32_t n_failed = 0;
    float before[64], after[64];
    char target[32];
    struct rig r;

    t.down_t = false;
    rig_open(&r, &t, 1);
    e = engine(&r, &(struct pi_engine_options){F32KV, .mode = PI_MODE_EXACT, .n_ctx = 16});
    one_step(&r, e, before);
    pi_engine_destroy(e);
    rig_close(&r);
    rig_open(&r, &t, 1);
    r.layers[0].n_hot = 10;
    for (uint32_t k = 1; rc != PI_OK && k < 500; k++, done += k - 1) {
        (void)snprintf(target, sizeof(target), "%u", done + k);
        (void)setenv("PI_TEST_ALLOC_FAIL", target, 1);
        e = NULL;
        rc = pi_engine_create(&r.m, NULL, &r.place, r.pool, &o, &e, &r.e);
        (void)unsetenv("PI_TEST_ALLOC_FAIL");
        n_failed += rc == PI_E_NOMEM && e == NULL;
        if (rc == PI_OK) {
            EQ(n_failed, k - 1);
            one_step(&r, e, after);
        }
        pi_engine_destroy(e);
    }
    EQ(rc, PI_OK);
    OK(n_failed > 20);
    OK(worst_f32(after, before, 64) < 1e-5);
    rig_close(&r);
}

int main(void)
{
    uint32_t n_allocs = test_trace_memory(); /* first: it knows the count */

    test_batch_errors();
    test_create_errors();
    test_gpu_forms();
    test_memory();
    test_model_errors();
    test_damaged_models();
    test_allocation_failures(n_allocs);
    return DONE();
}
