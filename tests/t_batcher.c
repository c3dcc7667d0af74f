/* Sequences that are decoded together: each has the text that it has alone, whoever comes and goes. */
#include "config.h"

#include "runtime/pi_batcher.h"
#include "tests/engine_rig.h"

#include <math.h>

#define MOST 32

/* What a sequence was told. */
struct heard {
    int32_t token[MOST];
    float logprob[MOST];
    struct pi_top_token top[MOST][3];
    uint32_t n, stop_after; /* 0: never */
    int ended;
    enum pi_finish finish;
    struct pi_sequence_stats stats;
    enum pi_code code;
};

static bool drawn(void *ctx, const struct pi_drawn *d)
{
    struct heard *h = ctx;

    OK(h->ended == 0 && h->n < MOST && d->n_top <= 3);
    for (uint32_t i = 0; i < d->n_top; i++)
        h->top[h->n][i] = d->top[i];
    h->logprob[h->n] = d->logprob;
    h->token[h->n++] = d->token;
    return h->stop_after == 0 || h->n < h->stop_after;
}

static void ended(void *ctx, enum pi_finish finish, const struct pi_sequence_stats *stats,
                  const struct pi_err *err)
{
    struct heard *h = ctx;

    h->ended++;
    h->finish = finish;
    h->stats = *stats;
    h->code = err != NULL ? err->code : PI_OK;
}

static struct rig r;
static struct pi_engine *shared_engine;

/* The engine, but for the n-th batch from now on, which fails. */
static int fail_in;

static enum pi_code run_batch(void *ctx, enum pi_phase phase, const struct pi_batch *b,
                              float *logits, struct pi_err *err)
{
    (void)ctx;
    if (fail_in > 0 && --fail_in == 0)
        return pi_err_set(err, PI_E_DEVICE, "gone");
    return pi_engine_run(shared_engine, phase, b, logits, err);
}

enum {
    N_SLOTS = 4
};

static struct pi_batcher *make(uint32_t n_slots)
{
    const struct pi_batcher_options o = {
        .n_slots = n_slots, .n_ctx = r.t.n_ctx, .n_vocab = r.t.n_vocab, .run = run_batch};
    struct pi_batcher *b = NULL;

    PASSES(pi_batcher_create(&o, NULL, &b, &r.e), r.e);
    return b;
}

static struct pi_sequence sequence(uint32_t i, struct heard *h)
{
    *h = (struct heard){.n = 0};
    return (struct pi_sequence){.prompt = tokens + i,
                                .n_prompt = N_TOK - 2 * i,
                                .sampler = {.temp = 1.0f,
                                            .top_k = 40,
                                            .top_p = 0.95f,
                                            .repeat_penalty = 1.1f,
                                            .repeat_last_n = 8,
                                            .seed = 7 + i},
                                .n_predict = 6 + 2 * i,
                                .logprobs = true,
                                .n_top = 3,
                                .ctx = h,
                                .drawn = drawn,
                                .ended = ended};
}

static void finish_all(struct pi_batcher *b)
{
    for (int i = 0; i < 200 && pi_batcher_active(b) > 0; i++)
        PASSES(pi_batcher_round(b, &r.e), r.e);
    EQ(pi_batcher_active(b), 0);
}

static void same(const struct heard *a, const struct heard *b)
{
    EQ(a->n, b->n);
    OK(memcmp(a->token, b->token, a->n * sizeof(a->token[0])) == 0);
    OK(memcmp(a->logprob, b->logprob, a->n * sizeof(a->logprob[0])) == 0);
    EQ(a->finish, b->finish);
    EQ(a->ended, 1);
    EQ(b->ended, 1);
}

static void test_together(void)
{
    struct heard alone[N_SLOTS], here[N_SLOTS];
    struct pi_batcher *b = make(1);
    struct pi_batcher_totals t;
    uint32_t slot;

    for (uint32_t i = 0; i < N_SLOTS; i++) {
        struct pi_sequence s = sequence(i, &alone[i]);

        PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
        finish_all(b);
        EQ(alone[i].n, 6 + 2 * i);
        EQ(alone[i].finish, PI_FINISH_LENGTH);
        EQ(alone[i].stats.n_steps, alone[i].n - 1);
    }
    pi_batcher_destroy(b);

    b = make(N_SLOTS);
    for (uint32_t i = 0; i < N_SLOTS; i++) { /* each joins while those before it decode */
        struct pi_sequence s = sequence(i, &here[i]);

        EQ(pi_batcher_free_slots(b), N_SLOTS - i);
        PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
        PASSES(pi_batcher_round(b, &r.e), r.e);
    }
    finish_all(b);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        same(&alone[i], &here[i]);
    pi_batcher_totals(b, &t);
    EQ(t.drawn_tokens, 6 + 8 + 10 + 12);
    EQ(t.prompt_tokens, N_TOK + N_TOK - 2 + N_TOK - 4 + N_TOK - 6);
    EQ(t.step_tokens, t.drawn_tokens - N_SLOTS);
    OK(t.steps < t.step_tokens);

    for (uint32_t i = 0; i < N_SLOTS; i++) { /* all at once, the other way round */
        struct pi_sequence s = sequence(N_SLOTS - 1 - i, &here[N_SLOTS - 1 - i]);

        PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    }
    finish_all(b);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        same(&alone[i], &here[i]);
    pi_batcher_destroy(b);
}

/* An engine that tries how many of them go through a step: the same texts. */
static void test_widths(void)
{
    enum {
        MANY = 12
    };
    const struct pi_engine_options o = {.mode = PI_MODE_EXACT,
                                        .n_ctx = llama.n_ctx,
                                        .n_seq = MANY,
                                        .kv_type = PI_TYPE_F16,
                                        .choose_width = true};
    struct pi_engine *const wide = shared_engine;
    struct heard alone[MANY], here[MANY];
    struct pi_batcher *b = make(1);
    struct pi_batcher_totals t;
    struct pi_engine_timing timing;
    uint32_t slot;

    for (uint32_t i = 0; i < 2 * MANY; i++) {
        struct pi_sequence s = sequence(i % MANY % N_SLOTS, i < MANY ? &alone[i] : &here[i - MANY]);

        s.sampler.seed = 100 + i % MANY;
        s.n_predict = 18 + i % 3;
        if (i == MANY) {
            pi_batcher_destroy(b);
            PASSES(pi_engine_create(&r.m, NULL, NULL, r.pool, &o, &shared_engine, &r.e), r.e);
            b = make(MANY);
        }
        PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
        if (i < MANY)
            finish_all(b);
    }
    finish_all(b);
    for (uint32_t i = 0; i < MANY; i++)
        same(&alone[i], &here[i]);
    pi_batcher_totals(b, &t);
    pi_engine_take_timing(shared_engine, &timing);
    OK(timing.steps > t.steps); /* some batches went in several steps */
    pi_batcher_destroy(b);
    pi_engine_destroy(shared_engine);
    shared_engine = wide;
}

static void test_probabilities(void)
{
    struct pi_batcher *b = make(1);
    struct heard h;
    struct pi_sequence s = sequence(0, &h);
    uint32_t slot;
    double sum;

    s.sampler = (struct pi_sampler_options){.temp = 0, .repeat_penalty = 1.0f};
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    finish_all(b);
    for (uint32_t i = 0; i < h.n; i++) { /* greedy: what was drawn leads */
        EQ(h.top[i][0].token, h.token[i]);
        OK(h.top[i][0].logprob == h.logprob[i]);
        OK(h.top[i][1].logprob <= h.top[i][0].logprob &&
           h.top[i][2].logprob <= h.top[i][1].logprob);
        OK(h.top[i][0].token != h.top[i][1].token && h.top[i][1].token != h.top[i][2].token);
        sum = exp((double)h.top[i][0].logprob) + exp((double)h.top[i][1].logprob) +
              exp((double)h.top[i][2].logprob);
        OK(sum > 3.0 / r.t.n_vocab && sum < 1.0);
    }
    pi_batcher_destroy(b);
}

static void test_ends(void)
{
    struct pi_batcher *b = make(2);
    struct heard h[3];
    struct pi_sequence s = sequence(0, &h[0]);
    uint32_t slot, other;

    s.n_predict = UINT32_MAX;
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    finish_all(b);
    EQ(h[0].finish, PI_FINISH_CONTEXT);
    EQ(h[0].n, r.t.n_ctx - N_TOK);

    s = sequence(0, &h[0]);
    h[0].stop_after = 3;
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    s = sequence(1, &h[1]);
    PASSES(pi_batcher_add(b, &s, &other, &r.e), r.e);
    s = sequence(2, &h[2]);
    FAILS(pi_batcher_add(b, &s, &slot, &r.e), PI_E_INFEASIBLE, "all 2 slots are taken", r.e);
    EQ(h[2].ended, 0);
    PASSES(pi_batcher_round(b, &r.e), r.e);
    PASSES(pi_batcher_round(b, &r.e), r.e);
    pi_batcher_cancel(b, other);
    finish_all(b);
    EQ(h[0].finish, PI_FINISH_STOPPED);
    EQ(h[0].n, 3);
    EQ(h[1].finish, PI_FINISH_CANCELLED);
    OK(h[1].ended == 1 && h[1].n < 8);

    s = sequence(0, &h[0]);
    s.n_predict = 0;
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    finish_all(b);
    OK(h[0].finish == PI_FINISH_LENGTH && h[0].n == 0 && h[0].ended == 1);
    s.n_prompt = 0;
    FAILS(pi_batcher_add(b, &s, &slot, &r.e), PI_E_RANGE, "without a token", r.e);
    s.n_prompt = r.t.n_ctx + 1;
    FAILS(pi_batcher_add(b, &s, &slot, &r.e), PI_E_RANGE, "more than the context of 32", r.e);
    s.n_prompt = N_TOK;
    s.n_predict = r.t.n_ctx - N_TOK + 1;
    FAILS(pi_batcher_add(b, &s, &slot, &r.e), PI_E_RANGE, "12 tokens and 21 more", r.e);
    s.n_predict = 1;
    s.n_top = PI_MAX_TOP + 1;
    FAILS(pi_batcher_add(b, &s, &slot, &r.e), PI_E_RANGE, "at most 20 are told", r.e);

    s = sequence(0, &h[0]); /* left behind */
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    pi_batcher_destroy(b);
    OK(h[0].ended == 1 && h[0].finish == PI_FINISH_CANCELLED);
}

static void test_failure(void)
{
    struct pi_batcher *b = make(2);
    struct heard h[2], alone;
    uint32_t slot;

    for (uint32_t i = 0; i < 2; i++) {
        struct pi_sequence s = sequence(i, &h[i]);

        PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    }
    PASSES(pi_batcher_round(b, &r.e), r.e);
    PASSES(pi_batcher_round(b, &r.e), r.e);
    fail_in = 1;
    FAILS(pi_batcher_round(b, &r.e), PI_E_DEVICE, "gone", r.e);
    for (int i = 0; i < 2; i++)
        OK(h[i].ended == 1 && h[i].finish == PI_FINISH_ERROR && h[i].code == PI_E_DEVICE);
    for (int i = 0; i < 2; i++) { /* nothing of the cache is used again */
        struct pi_sequence s = sequence(0, i == 0 ? &alone : &h[0]);

        s.reuse = i == 0 ? PI_REUSE_NONE : PI_REUSE_ALL;
        if (i == 1) {
            PASSES(pi_batcher_add(b,
                                  &(struct pi_sequence){.prompt = tokens,
                                                        .n_prompt = 1,
                                                        .ctx = &h[1],
                                                        .drawn = drawn,
                                                        .ended = ended,
                                                        .sampler.repeat_penalty = 1.0f},
                                  &slot, &r.e),
                   r.e);
            fail_in = 1;
            FAILS(pi_batcher_round(b, &r.e), PI_E_DEVICE, "gone", r.e);
        }
        PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
        finish_all(b);
    }
    same(&alone, &h[0]);
    EQ(h[0].stats.n_reused, 0);
    pi_batcher_destroy(b);
}

/* A conversation goes on from what the cache holds. */
static void test_reuse(void)
{
    struct pi_batcher *b = make(2);
    struct heard first, again, fresh;
    struct pi_sequence s = sequence(0, &first);
    int32_t longer[N_TOK + 4];
    uint32_t slot;

    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    finish_all(b);
    memcpy(longer, tokens, sizeof(tokens));
    memcpy(longer + N_TOK, first.token, 4 * sizeof(longer[0]));
    s = sequence(0, &again);
    s.prompt = longer;
    s.n_prompt = N_TOK + 4;
    s.n_predict = 3;
    s.reuse = PI_REUSE_ALL;
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    finish_all(b);
    EQ(again.stats.n_reused, N_TOK + 3); /* the last is fed for its logits */
    /* the same positions, history and seed: the first text goes on */
    OK(memcmp(again.token, first.token + 4, 2 * sizeof(longer[0])) == 0);
    s.ctx = &fresh;
    fresh = (struct heard){.n = 0};
    s.reuse = PI_REUSE_PROMPTS; /* not a whole chunk */
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    finish_all(b);
    EQ(fresh.stats.n_reused, 0);
    EQ(fresh.n, 3);
    pi_batcher_destroy(b);
}

/* ---- turns ---- */

/* An engine that only notes what it is given: counted in batches, not in time. */
enum {
    CTX = 64 * PI_PROMPT_CHUNK,
    BATCHES = 4096
};
static struct {
    uint32_t seq, n_tok;
    bool prompt;
} noted[BATCHES];
static uint32_t n_noted;

static enum pi_code note_batch(void *ctx, enum pi_phase phase, const struct pi_batch *b,
                               float *logits, struct pi_err *err)
{
    (void)ctx;
    (void)err;
    for (uint32_t i = 0; logits != NULL && i < 8 * (phase == PI_PHASE_DECODE ? b->n_tok : 1); i++)
        logits[i] = (float)(i % 8);
    OK(n_noted < BATCHES);
    noted[n_noted].seq = b->seq[0];
    noted[n_noted].n_tok = b->n_tok;
    noted[n_noted++].prompt = phase == PI_PHASE_PROMPT;
    return PI_OK;
}

static uint32_t add_prompt(struct pi_batcher *b, uint32_t n_chunks, uint32_t n_predict,
                           struct heard *h)
{
    static int32_t ids[CTX];
    const struct pi_sequence s = {.prompt = ids,
                                  .n_prompt = n_chunks * PI_PROMPT_CHUNK,
                                  .sampler.repeat_penalty = 1.0f,
                                  .n_predict = n_predict,
                                  .ctx = h,
                                  .drawn = drawn,
                                  .ended = ended};
    uint32_t slot = 0;

    *h = (struct heard){.n = 0};
    PASSES(pi_batcher_add(b, &s, &slot, &r.e), r.e);
    return slot;
}

/* Most chunks of others between two of a sequence's, from its arrival on. */
static uint32_t longest_wait(uint32_t slot, uint32_t from)
{
    uint32_t most = 0, now = 0;

    for (uint32_t i = from; i < n_noted; i++) {
        if (!noted[i].prompt)
            continue;
        now = noted[i].seq == slot ? 0 : now + 1;
        most = now > most ? now : most;
    }
    return most;
}

static void test_turns(void)
{
    const struct pi_batcher_options o = {
        .n_slots = 4, .n_ctx = CTX, .n_vocab = 8, .run = note_batch};
    struct pi_batcher *b = NULL;
    struct heard speaks, far, near[2];
    uint32_t slot, rounds = 0, chunks = 0, steps = 0;

    PASSES(pi_batcher_create(&o, NULL, &b, &r.e), r.e);
    n_noted = 0;
    (void)add_prompt(b, 1, 30, &speaks);
    PASSES(pi_batcher_round(b, &r.e), r.e);
    slot = add_prompt(b, 20, 1, &far); /* a long prompt ... */
    PASSES(pi_batcher_round(b, &r.e), r.e);
    for (int i = 0; i < 2; i++)
        near[i] = (struct heard){.ended = 1};
    for (; far.ended == 0 && rounds < 200;
         rounds++) { /* ... beside short ones that never end to come */
        for (int i = 0; i < 2; i++) {
            if (near[i].ended > 0)
                (void)add_prompt(b, 1, 1, &near[i]);
        }
        PASSES(pi_batcher_round(b, &r.e), r.e);
    }
    OK(far.ended == 1);
    OK(longest_wait(slot, 0) <= 2); /* a chunk of each of the others */
    OK(rounds <= 3 * 20);
    EQ(speaks.n, 30); /* a token in every round, prompts or not */
    for (uint32_t i = 0; i < n_noted; i++) {
        chunks += noted[i].prompt;
        steps += !noted[i].prompt;
        OK(i == 0 || steps >= 29 || !noted[i].prompt || !noted[i - 1].prompt);
    }
    OK(chunks >= 40); /* of which 20 are the long one's */
    EQ(steps, 29);

    /* a short prompt behind a long one has its turn next */
    n_noted = 0;
    (void)add_prompt(b, 60, 1, &far);
    PASSES(pi_batcher_round(b, &r.e), r.e);
    slot = add_prompt(b, 1, 1, &speaks);
    for (rounds = 0; speaks.ended == 0 && rounds < 100; rounds++)
        PASSES(pi_batcher_round(b, &r.e), r.e);
    OK(rounds <= 3 && far.ended == 0);
    pi_batcher_destroy(b);
}

int main(void)
{
    const struct pi_engine_options o = {
        .mode = PI_MODE_EXACT, .n_ctx = llama.n_ctx, .n_seq = N_SLOTS, .kv_type = PI_TYPE_F16};

    rig_open(&r, &llama, 2);
    PASSES(pi_engine_create(&r.m, NULL, NULL, r.pool, &o, &shared_engine, &r.e), r.e);
    test_together();
    test_widths();
    test_probabilities();
    test_ends();
    test_failure();
    test_reuse();
    test_turns();
    pi_engine_destroy(shared_engine);
    rig_close(&r);
    return DONE();
}
