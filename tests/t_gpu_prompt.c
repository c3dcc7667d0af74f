/* t_gpu_prompt.c - prompt chunks on a GPU and the CPU against the same chunks on the CPU alone. */
#include "config.h"

#include "runtime/pi_engine_int.h"
#include "runtime/pi_gpu_prompt.h"

#include "tests/engine_rig.h"

/* ---- two engines ---- */

struct setup {
    enum pi_type kv;
    uint32_t n_ctx, n_seq, n_batch;
    bool f32;
    enum pi_prompt_cold cold;
    enum pi_prompt_fill fill;
    uint32_t pin_slots, dev_slots;
    uint64_t slot_bytes;
    enum pi_act_type act;
};

/* The state of an engine on the CPU with the placement's tables, and what is on the GPU beside it. */
struct side {
    struct pi_engine *e;
    struct pi_dev_model dm;
    struct pi_gpu_prompt *p;
};

static void side_open(struct side *s, struct rig *r, const struct setup *u)
{
    struct pi_engine_options o = {.kv_type = u->kv,
                                  .n_ctx = u->n_ctx,
                                  .n_seq = u->n_seq,
                                  .n_batch = u->n_batch,
                                  .act = u->act,
                                  .two_units = true};
    struct pi_dev_model_options mo = {.n_ctx = u->n_ctx, .n_seq = u->n_seq, .kv_type = u->kv};
    struct pi_gpu_prompt_options po = {.n_batch = u->n_batch,
                                       .f32_gemm = u->f32,
                                       .cold = u->cold,
                                       .fill = u->fill,
                                       .pin_slots = u->pin_slots,
                                       .dev_slots = u->dev_slots,
                                       .slot_bytes = u->slot_bytes};

    memset(s, 0, sizeof(*s));
    s->e = engine(r, &o);
    mo.mode = s->e->s.mode;
    PASSES(pi_dev_model_create(&r->m, NULL, &r->place, s->e->tables, r->pool, &mo, &s->dm, &r->e),
           r->e);
    PASSES(pi_gpu_prompt_create(&s->dm, &s->e->s, &po, &s->p, &r->e), r->e);
    if (s->p == NULL)
        exit(1);
}

static void side_close(struct side *s)
{
    pi_gpu_prompt_destroy(s->p);
    pi_dev_model_free(&s->dm);
    pi_engine_destroy(s->e);
}

/* A batch in chunks of n_batch; logits of wanted tokens to out. */
static void feed(struct side *s, struct rig *r, const struct pi_batch *b, float *out)
{
    struct pi_state *st = &s->e->s;

    for (uint32_t t = 0; t < b->n_tok;) {
        st->n_tok = b->n_tok - t < s->e->n_batch ? b->n_tok - t : s->e->n_batch;
        st->token = b->token + t;
        st->pos = b->pos + t;
        st->seq = b->seq != NULL ? b->seq + t : NULL;
        st->want = b->want != NULL ? b->want + t : NULL;
        st->logits = out;
        if (pi_gpu_prompt_run(s->p, st, &r->e) != PI_OK)
            PASSES(r->e.code, r->e);
        for (uint32_t i = 0; i < st->n_tok; i++)
            out += pi_state_wants(st, i) ? st->m->shape.n_vocab : 0;
        t += st->n_tok;
    }
}

struct split {
    uint8_t attn_even, attn_odd, output;
    uint32_t n_hot_even, n_hot_odd;
};

#define ALL 9999
static const struct split splits[] = {{1, 1, 1, ALL, ALL}, {1, 1, 1, 41, 41},  {1, 1, 1, 0, 0},
                                      {1, 1, 0, 1, ALL},   {0, 1, 1, 41, 0},   {1, 0, 1, 41, 41},
                                      {0, 0, 1, 0, 0},     {0, 0, 0, 41, ALL}, {1, 0, 0, ALL, 0},
                                      {0, 0, 0, 0, 0},     {0, 1, 0, ALL, 41}, {1, 1, 1, 0, ALL}};
#define N_SPLITS (sizeof(splits) / sizeof(splits[0]))

static void place(struct rig *r, const struct split *s)
{
    for (uint32_t l = 0; l < r->t.n_layer; l++) {
        const uint32_t n_hot = l & 1 ? s->n_hot_odd : s->n_hot_even;

        r->layers[l].attn_unit = l & 1 ? s->attn_odd : s->attn_even;
        r->layers[l].n_hot = n_hot < r->t.n_ff ? n_hot : r->t.n_ff;
    }
    r->place.output_unit = s->output;
}

/* ---- logits ---- */

/* Tolerances of design.md, 5.5: F32 throughout, F16 products; an F16 cache rounds what differs by an ulp to neighbours. */
static double tolerance(const struct setup *u)
{
    return !u->f32 ? 3e-3 : u->kv == PI_TYPE_F16 ? 1e-3 : 1e-4;
}

/* Ways of cold neurons and of numbers. */
static const struct way {
    enum pi_prompt_cold cold;
    enum pi_prompt_fill fill;
    bool f32;
    uint32_t n_batch;
} ways[] = {{PI_PROMPT_COLD_STREAM, PI_PROMPT_FILL_STORES, false, 32},
            {PI_PROMPT_COLD_STREAM, PI_PROMPT_FILL_STREAMING, true, 5},
            {PI_PROMPT_COLD_STREAM, PI_PROMPT_FILL_DIRECT, true, 32},
            {PI_PROMPT_COLD_CPU, PI_PROMPT_FILL_STORES, false, 32},
            {PI_PROMPT_COLD_CPU, PI_PROMPT_FILL_STORES, true, 7}};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))

/* All splits, every step-th way, another first one for each split. The reference is the CPU's prompt with F32 weights that hold what t's type keeps. */
static void check_logits(const struct tiny *t, size_t step, const char *what)
{
    struct tiny plain = *t;
    struct rig r, f;
    struct pi_engine_options dense = {F32KV, .mode = PI_MODE_DENSE};
    const struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};
    size_t n = (size_t)N_TOK * t->n_vocab;
    float *ref, *out = malloc(sizeof(*out) * n);

    printf("# %s\n", what);
    plain.dequantised = true;
    rig_open(&r, t, 2);
    rig_open(&f, &plain, 2);
    ref = run(&f, &dense, false);
    for (size_t i = 0; i < N_SPLITS; i++) {
        place(&r, &splits[i]);
        for (size_t k = i % step; k < N_WAYS; k += step) {
            const struct setup u = {.kv = PI_TYPE_F32,
                                    .n_ctx = 32,
                                    .n_seq = 1,
                                    .n_batch = ways[k].n_batch,
                                    .f32 = ways[k].f32,
                                    .cold = ways[k].cold,
                                    .fill = ways[k].fill,
                                    .slot_bytes = 1};
            struct side s;

            side_open(&s, &r, &u);
            feed(&s, &r, &b, out);
            NEAR(worst_f32(out, ref, n), 0.0, tolerance(&u));
            side_close(&s);
        }
    }
    free(ref);
    free(out);
    rig_close(&r);
    rig_close(&f);
}

static void test_logits(void)
{
    static const enum pi_type types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16, PI_TYPE_Q8_0,
                                         PI_TYPE_Q4_0};
    struct tiny t;

    for (int i = 0; i < 5; i++) {
        t = llama;
        t.type = types[i];
        check_logits(&t, i == 1 ? 1 : 3, pi_type_name(types[i]));
        t = opt;
        t.type = types[i];
        check_logits(&t, 3, "the same, opt");
    }
    t = llama;
    t.n_layer = 4;
    t.n_head_kv = 2;
    t.head_dim = 24;
    t.bias = true;
    t.tied = true;
    t.n_embd = 80;
    t.n_ff = 101;
    t.rope_scaling = "yarn";
    check_logits(&t, 2, "four layers, grouped queries, own head_dim, biases, odd sizes, yarn");
    t.down_t = false;
    t.type = PI_TYPE_F16;
    t.act = "silu";
    check_logits(&t, 3, "the same in F16, ffn_down, silu");
    t = opt;
    t.act = "relu2";
    t.type = PI_TYPE_F16;
    check_logits(&t, 3, "opt, relu2");
}

/* ---- many tokens ---- */

#define LONG 110

/* Two sequences in turns, then more of the first; chunks that cut them anywhere; only some logits wanted. */
static void check_long(const struct tiny *t, const struct setup *u, const struct split *split)
{
    static int32_t token[LONG], pos[LONG];
    static uint32_t seq[LONG];
    static bool want[LONG];
    const struct pi_batch b = {.n_tok = LONG, .token = token, .pos = pos, .seq = seq, .want = want};
    struct pi_engine_options o = {.mode = PI_MODE_DENSE,
                                  .kv_type = u->kv,
                                  .n_ctx = u->n_ctx,
                                  .n_seq = u->n_seq,
                                  .n_batch = u->n_batch};
    int32_t next[2] = {0, 0};
    uint32_t n_want = 0;
    struct pi_engine *e;
    struct side s;
    struct rig r;
    float *ref, *out, *again;
    size_t n;

    for (uint32_t i = 0; i < LONG; i++) {
        token[i] = (int32_t)((i * 37 + i / 7) % t->n_vocab);
        seq[i] = i < 40 ? 0 : i < 60 ? 1 : i < 75 ? i & 1 : 0;
        pos[i] = next[seq[i]]++;
        want[i] = i % 3 == 0 || i == LONG - 1;
        n_want += want[i];
    }
    n = (size_t)n_want * t->n_vocab;
    ref = malloc(sizeof(*ref) * n);
    out = malloc(sizeof(*out) * n);
    again = malloc(sizeof(*again) * n);
    rig_open(&r, t, 3);
    place(&r, split);
    e = engine(&r, &o);
    PASSES(pi_engine_run(e, PI_PHASE_PROMPT, &b, ref, &r.e), r.e);
    side_open(&s, &r, u);
    feed(&s, &r, &b, out);
    NEAR(worst_f32(out, ref, n), 0.0, tolerance(u));
    /* what is in the caches is written over by the same: the same bytes */
    feed(&s, &r, &b, again);
    SAME(out, again, n);
    side_close(&s);
    pi_engine_destroy(e);
    free(ref);
    free(out);
    free(again);
    rig_close(&r);
}

static void test_long(void)
{
    static const uint32_t batch[] = {7, 64, 110};
    struct tiny t = llama;

    t.n_ctx = 128;
    t.n_head_kv = 2;
    t.n_ff = 299;
    for (int i = 0; i < 9; i++) {
        struct setup u = {.kv = i & 1 ? PI_TYPE_F16 : PI_TYPE_F32,
                          .n_ctx = 128,
                          .n_seq = 2,
                          .n_batch = batch[i % 3],
                          .f32 = i % 4 < 2,
                          .cold = i < 6 ? PI_PROMPT_COLD_STREAM : PI_PROMPT_COLD_CPU,
                          .pin_slots = i % 5 == 0 ? 1 : 0,
                          .dev_slots = i % 4 == 1 ? 1 : 0,
                          .slot_bytes = i % 3 == 0 ? 20000 : 0};

        t.type = i % 2 == 0 ? PI_TYPE_F16 : PI_TYPE_Q8_0;
        check_long(&t, &u, &splits[(size_t)i % N_SPLITS]);
    }
}

/* Which way cold neurons take follows from the chunk's length alone; both ways give the same. */
static void test_crossover(void)
{
    static const struct split split = {1, 1, 1, 41, 41};
    struct setup u = {.kv = PI_TYPE_F32, .n_ctx = 32, .n_seq = 1, .n_batch = 12, .f32 = true};
    struct pi_gpu_prompt_stats st;
    struct pi_engine_options dense = {F32KV, .mode = PI_MODE_DENSE};
    float *ref, *out = malloc(sizeof(*out) * N_TOK * llama.n_vocab);
    struct rig r;

    EQ(pi_gpu_prompt_crossover(50e9, 80e9), 8);
    EQ(pi_gpu_prompt_crossover(0.0, 0.0), 8);
    EQ(pi_gpu_prompt_crossover(50e9, 30e9), 0);
    EQ(pi_gpu_prompt_crossover(10e9, 100e9), 16);
    rig_open(&r, &llama, 2);
    place(&r, &split);
    ref = run(&r, &dense, false);
    for (int i = 0; i < 3; i++) {
        const uint32_t n_batch = i == 0 ? 8 : 9;
        const struct pi_batch b = {.n_tok = n_batch, .token = tokens, .pos = positions};
        struct side s;

        u.n_batch = n_batch;
        u.fill = i == 2 ? PI_PROMPT_FILL_DIRECT : PI_PROMPT_FILL_STORES;
        side_open(&s, &r, &u);
        feed(&s, &r, &b, out);
        NEAR(worst_f32(out, ref, (size_t)n_batch * llama.n_vocab), 0.0, 1e-5);
        pi_gpu_prompt_take_stats(s.p, &st);
        EQ(st.chunks, 1);
        EQ(st.tokens, n_batch);
        /* 55 cold neurons of three rows of 64 F32, in two layers */
        OK(i == 0 ? st.bytes_streamed == 0 : st.bytes_streamed >= 2u * 55 * 3 * 256);
        EQ(st.bytes_direct, i == 2 ? st.bytes_streamed : 0);
        OK(i == 0 ? st.seconds_copying == 0.0
                  : st.seconds_copying > 0.0 && st.seconds_copying <= st.seconds_streaming * 1.0001);
        side_close(&s);
    }
    free(ref);
    free(out);
    rig_close(&r);
}

/* Where attention is on the CPU its products' weights are streamed too, in chunks that stream cold neurons; the cache is the CPU's, and goes on from chunk to chunk. */
static void test_far(const struct tiny *t, enum pi_act_type act, uint64_t slot_bytes)
{
    static const struct split away = {0, 0, 1, 41, 0}, here = {1, 1, 1, 41, 0};
    const uint64_t row = pi_dev_row_bytes(t->type, t->n_embd),
                   q = (uint64_t)t->n_head * t->head_dim, kv = (uint64_t)t->n_head_kv * t->head_dim;
    const uint64_t attn = (q + 2 * kv) * row + t->n_embd * pi_dev_row_bytes(t->type, (uint32_t)q);
    const struct setup u = {.kv = PI_TYPE_F32,
                            .n_ctx = 32,
                            .n_seq = 1,
                            .n_batch = 9,
                            .slot_bytes = slot_bytes,
                            .act = act,
                            .f32 = true};
    const struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};
    struct pi_engine_options dense = {F32KV, .mode = PI_MODE_DENSE, .act = act};
    float *ref, *out = malloc(sizeof(*out) * N_TOK * t->n_vocab);
    struct pi_gpu_prompt_stats st[2];
    struct rig r;

    rig_open(&r, t, 2);
    ref = run(&r, &dense, false);
    for (int i = 0; i < 2; i++) {
        struct side s;

        place(&r, i == 0 ? &away : &here);
        side_open(&s, &r, &u);
        feed(&s, &r, &b, out); /* chunks of 9 tokens and of 3, which do not stream */
        /* what differs by an ulp may be rounded to neighbours on the grid */
        NEAR(worst_f32(out, ref, (size_t)N_TOK * t->n_vocab), 0.0,
             act == PI_ACT_TYPE_Q8 ? 3e-3 : 1e-5);
        pi_gpu_prompt_take_stats(s.p, &st[i]);
        side_close(&s);
    }
    EQ(st[0].bytes_streamed - st[1].bytes_streamed, t->n_layer * attn);
    free(ref);
    free(out);
    rig_close(&r);
}

/* ---- what the observer sees ---- */

struct seen {
    const struct tiny *t;
    float *data[4]; /* residual, normed, h, prod of all layers and tokens */
    uint32_t n_tok; /* of the chunks before */
    int calls;
};

static enum pi_code see(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                        const float *input, const float *normed, const float *h, const float *prod,
                        struct pi_err *err)
{
    struct seen *s = ctx;
    const float *from[4] = {residual, normed, h, prod};

    (void)err;
    (void)input;
    for (int i = 0; i < 4; i++) {
        const size_t w = i < 2 ? s->t->n_embd : s->t->n_ff;

        memcpy(s->data[i] + ((size_t)layer * N_TOK + s->n_tok) * w, from[i],
               n_tok * w * sizeof(float));
    }
    s->n_tok += layer == s->t->n_layer - 1 ? n_tok : 0;
    s->calls++;
    return PI_OK;
}

static enum pi_code refuse(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                           const float *input, const float *normed, const float *h,
                           const float *prod, struct pi_err *err)
{
    (void)ctx, (void)n_tok, (void)residual, (void)input, (void)normed, (void)h, (void)prod;
    return layer == 1 ? pi_err_set(err, PI_E_INTERRUPTED, "enough") : PI_OK;
}

static void seen_open(struct seen *s, const struct tiny *t)
{
    s->t = t;
    s->n_tok = 0;
    s->calls = 0;
    for (int i = 0; i < 4; i++)
        s->data[i] =
            calloc((size_t)t->n_layer * N_TOK * (i < 2 ? t->n_embd : t->n_ff), sizeof(float));
}

static void seen_close(struct seen *s)
{
    for (int i = 0; i < 4; i++)
        free(s->data[i]);
}

/* Splits from first on, every step-th. */
static void check_observer(const struct tiny *t, size_t first, size_t step)
{
    const struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};
    float *out = malloc(sizeof(*out) * N_TOK * t->n_vocab);
    struct pi_engine_options o = {F32KV, .mode = PI_MODE_DENSE};
    struct seen ref, got;
    struct pi_engine *e;
    struct rig r;

    rig_open(&r, t, 2);
    seen_open(&ref, t);
    e = engine(&r, &o);
    pi_engine_observe(e, &(struct pi_observer){&ref, see});
    PASSES(pi_engine_run(e, PI_PHASE_PROMPT, &b, out, &r.e), r.e);
    pi_engine_destroy(e);
    for (size_t i = first; i < N_SPLITS; i += step) {
        for (int way = 0; way < 2; way++) {
            const struct setup u = {.kv = PI_TYPE_F32,
                                    .n_ctx = 32,
                                    .n_seq = 1,
                                    .n_batch = 9,
                                    .f32 = true,
                                    .cold = way == 0 ? PI_PROMPT_COLD_STREAM : PI_PROMPT_COLD_CPU,
                                    .slot_bytes = 1};
            const struct pi_observer obs = {&got, see}, no = {NULL, refuse};
            struct side s;

            place(&r, &splits[i]);
            seen_open(&got, t);
            side_open(&s, &r, &u);
            s.e->s.obs = &obs;
            feed(&s, &r, &b, out);
            EQ(got.calls, 2 * (int)t->n_layer); /* chunks of 9 and 3 */
            for (int k = 0; k < 4; k++)
                NEAR(worst_f32(got.data[k], ref.data[k],
                               (size_t)t->n_layer * N_TOK * (k < 2 ? t->n_embd : t->n_ff)),
                     0.0, 1e-5);
            s.e->s.obs = &no;
            FAILS(pi_gpu_prompt_run(s.p, &s.e->s, &r.e), PI_E_INTERRUPTED, "enough", r.e);
            side_close(&s);
            seen_close(&got);
        }
    }
    seen_close(&ref);
    free(out);
    rig_close(&r);
}

/* ---- refusals, sizes ---- */

static void test_errors(void)
{
    struct setup u = {.kv = PI_TYPE_F32, .n_ctx = 32, .n_seq = 1, .n_batch = 8};
    struct pi_gpu_prompt_options o = {.n_batch = 0};
    struct pi_gpu_prompt *p = NULL;
    struct pi_prompt_want want;
    struct pi_prompt_size size;
    struct side s;
    struct rig r;

    rig_open(&r, &llama, 1);
    place(&r, &splits[1]);
    side_open(&s, &r, &u);
    FAILS(pi_gpu_prompt_create(&s.dm, &s.e->s, &o, &p, &r.e), PI_E_RANGE, "0 tokens", r.e);
    o = (struct pi_gpu_prompt_options){.n_batch = 8, .pin_slots = 17};
    FAILS(pi_gpu_prompt_create(&s.dm, &s.e->s, &o, &p, &r.e), PI_E_RANGE, "17 and 3 slots", r.e);
    o.pin_slots = 0;
    PASSES(pi_gpu_prompt_want(&s.dm, &r.m, &o, &want, &r.e), r.e);
    EQ(want.bundle, 3 * 256);
    PASSES(pi_prompt_size(&r.m.shape, &want, &size, &r.e), r.e);
    EQ(size.total, pi_gpu_prompt_memory(s.p));
    EQ(size.total, size.activations + size.tile + size.workspace + size.staging);
    s.e->s.n_tok = 9;
    FAILS(pi_gpu_prompt_run(s.p, &s.e->s, &r.e), PI_E_RANGE, "9 tokens, at most 8", r.e);
    side_close(&s);
    rig_close(&r);
}

/* A weight that is no number is seen in the logits, whichever unit has it. */
static void test_nan(void)
{
    const struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};
    float *out = malloc(sizeof(*out) * N_TOK * llama.n_vocab);
    struct tiny t = llama;
    struct rig r;

    t.type = PI_TYPE_F16;
    for (int way = 0; way < 4; way++) {
        const struct split split = {1, 1, 1, way < 2 ? ALL : 0, ALL};
        const struct setup u = {.kv = PI_TYPE_F32,
                                .n_ctx = 32,
                                .n_seq = 1,
                                .n_batch = 32,
                                .f32 = way & 1,
                                .cold = way == 3 ? PI_PROMPT_COLD_CPU : PI_PROMPT_COLD_STREAM};
        size_t bytes;
        uint16_t *copy;
        int n_nan = 0;
        struct side s;

        rig_open(&r, &t, 2);
        place(&r, &split);
        bytes = r.m.layers[0].down_t.row_bytes * t.n_ff;
        copy = malloc(bytes);
        memcpy(copy, r.m.layers[0].down_t.data, bytes);
        copy[(size_t)3 * t.n_embd + 5] = 0x7e00;
        r.m.layers[0].down_t.data = copy;
        side_open(&s, &r, &u);
        feed(&s, &r, &b, out);
        for (size_t i = 0; i < (size_t)N_TOK * t.n_vocab; i++)
            n_nan += isnan(out[i]) != 0;
        OK(n_nan > 0);
        side_close(&s);
        rig_close(&r);
        free(copy);
    }
    free(out);
}

int main(void)
{
    struct tiny q8 = llama, t = llama;

    if (pi_gpu_count() == 0) {
        if (getenv("PI_REQUIRE_GPU") == NULL)
            return SKIP_ALL("no GPU");
        OK(pi_gpu_count() > 0);
        return DONE();
    }
    test_logits();
    test_long();
    test_crossover();
    test_far(&llama, PI_ACT_TYPE_F32, 0);
    test_far(&llama, PI_ACT_TYPE_F32, 4096);
    test_far(&opt, PI_ACT_TYPE_F32, 2048);
    q8.type = PI_TYPE_Q8_0;
    test_far(&q8, PI_ACT_TYPE_Q8, 4096);
    check_observer(&llama, 0, 2);
    check_observer(&opt, 1, 2);
    t.n_embd = 80;
    t.n_ff = 101;
    check_observer(&t, 0, 3);
    test_errors();
    test_nan();
    return DONE();
}
