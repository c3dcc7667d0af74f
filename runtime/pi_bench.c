#include "config.h"

#include "runtime/pi_bench.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/pi_width.h"

#include <stdlib.h>
#include <string.h>

#define WARM_PROMPT 16u

/* A run. Arrays over sequences hold what the next step is fed. */
struct bench {
    const struct pi_run_options *o;
    struct pi_loaded *l;
    struct pi_sampler *sampler;
    uint32_t n_seq, n_prompt;
    uint64_t n_pos;  /* of a sequence */
    uint32_t at;     /* position of the next step */
    int32_t *tokens; /* (n_seq, n_pos) all that is fed */
    int32_t *next;   /* (n_seq) */
    int32_t *pos;    /* (max(n_seq, n_prompt)) */
    uint32_t *seq;   /* (max(n_seq, n_prompt)) */
    bool *want;      /* (n_prompt) */
    float *logits;   /* (n_seq, n_vocab) */
    struct pi_bench_figures f;
};

uint64_t pi_bench_positions(const struct pi_run_options *o)
{
    /* Without a prompt the first step stands for it. */
    return (uint64_t)o->bench_prompt + PI_BENCH_WARM_STEPS + o->bench_tokens;
}

enum pi_code pi_bench_check(const struct pi_run_options *o, const struct pi_loaded *l,
                            struct pi_err *err)
{
    if (pi_bench_positions(o) > l->n_ctx)
        return pi_err_set(
            err, PI_E_RANGE,
            "--bench-prompt %u, %u steps to warm up and --bench-tokens %u are more than the context of %u (-c)",
            (unsigned)o->bench_prompt, PI_BENCH_WARM_STEPS, (unsigned)o->bench_tokens,
            (unsigned)l->n_ctx);
    return PI_OK;
}

/* The token that stands at a position when tokens are random; prompts always are. */
static int32_t random_token(const struct bench *b, uint32_t seq, uint64_t at)
{
    const uint32_t n = b->l->model.shape.n_vocab;
    const uint32_t id =
        (uint32_t)(pi_random_unit(b->o->sampler.seed ^ UINT64_C(0xbe7c4), seq * b->n_pos + at) * n);

    return (int32_t)(id < n ? id : n - 1);
}

static enum pi_code start(struct bench *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n_vocab = b->l->model.shape.n_vocab;
    const size_t most = b->n_seq > b->n_prompt ? b->n_seq : b->n_prompt;

    PI_ALLOC(b->tokens, b->n_seq * b->n_pos, err);
    PI_ALLOC(b->next, b->n_seq, err);
    PI_ALLOC(b->pos, most, err);
    PI_ALLOC(b->seq, most, err);
    PI_ALLOC(b->want, most, err);
    PI_ALLOC(b->logits, (size_t)b->n_seq * n_vocab, err);
    PI_ALLOC(b->f.step_seconds, b->o->bench_tokens, err);
    PI_TRY(pi_sampler_create(n_vocab, &b->o->sampler, &b->sampler, err));
    for (uint32_t s = 0; s < b->n_seq; s++)
        for (uint64_t i = 0; i <= b->n_prompt && i < b->n_pos; i++)
            b->tokens[s * b->n_pos + i] = random_token(b, s, i);
out:
    return rc;
}

/* n tokens of a sequence's prompt in one call; logits of the last. */
static enum pi_code feed_prompt(struct bench *b, uint32_t seq, uint32_t n, struct pi_err *err)
{
    const struct pi_batch batch = {.n_tok = n,
                                   .token = b->tokens + seq * b->n_pos,
                                   .pos = b->pos,
                                   .seq = b->seq,
                                   .want = b->want};

    for (uint32_t i = 0; i < n; i++) {
        b->pos[i] = (int32_t)i;
        b->seq[i] = seq;
        b->want[i] = i + 1 == n;
    }
    return pi_engine_run(b->l->engine, PI_PHASE_PROMPT, &batch,
                         b->logits + (size_t)seq * b->l->model.shape.n_vocab, err);
}

static enum pi_code feed_prompts(struct bench *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t warm = b->n_prompt < WARM_PROMPT ? b->n_prompt : WARM_PROMPT;
    double begin;

    if (b->n_prompt == 0)
        return PI_OK;
    PI_TRY(feed_prompt(b, 0, warm, err));
    pi_engine_truncate(b->l->engine, 0, 0);
    pi_engine_take_timing(b->l->engine, &b->f.prompts);
    begin = pi_now();
    for (uint32_t s = 0; s < b->n_seq; s++) {
        PI_TRY(pi_interrupt_check(err));
        PI_TRY(feed_prompt(b, s, b->n_prompt, err));
    }
    b->f.prompt_seconds = pi_now() - begin;
    b->f.n_prompt = (uint64_t)b->n_seq * b->n_prompt;
    pi_engine_take_timing(b->l->engine, &b->f.prompts);
out:
    return rc;
}

/* What the step at position b->at is fed: random tokens, or drawn from the logits of the step before. */
static enum pi_code pick(struct bench *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (uint32_t s = 0; s < b->n_seq; s++) {
        int32_t *tokens = b->tokens + s * b->n_pos;

        if (b->o->bench_random || b->at == 0)
            tokens[b->at] = random_token(b, s, b->at);
        else
            PI_TRY(pi_sampler_pick(b->sampler, b->logits + (size_t)s * b->l->model.shape.n_vocab,
                                   (uint64_t)s << 32 | b->at, tokens, b->at, &tokens[b->at], err));
        b->next[s] = tokens[b->at];
    }
out:
    return rc;
}

static enum pi_code step(struct bench *b, struct pi_err *err)
{
    const struct pi_batch batch = {
        .n_tok = b->n_seq, .token = b->next, .pos = b->pos, .seq = b->seq};

    for (uint32_t s = 0; s < b->n_seq; s++) {
        b->pos[s] = (int32_t)b->at;
        b->seq[s] = s;
    }
    b->at++;
    return pi_engine_run(b->l->engine, PI_PHASE_DECODE, &batch, b->logits, err);
}

/* The last of these steps is repeated until all ways to cut the batch are measured, so that they take no more of the context. */
static enum pi_code warm_up(struct bench *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < PI_BENCH_WARM_STEPS; i++) {
        PI_TRY(pick(b, err));
        PI_TRY(step(b, err));
    }
    for (uint32_t i = 0; i < PI_WIDTH_TRIES && !pi_engine_hold_width(b->l->engine, b->n_seq); i++) {
        PI_TRY(pi_interrupt_check(err));
        b->at--;
        PI_TRY(step(b, err));
    }
out:
    return rc;
}

static enum pi_code decode(struct bench *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    b->at = b->n_prompt;
    PI_TRY(warm_up(b, err));
    pi_engine_take_stats(b->l->engine, &b->f.stats);
    pi_engine_take_timing(b->l->engine, &b->f.timing);
    for (uint32_t i = 0; i < b->o->bench_tokens; i++) {
        const double begin = pi_now();
        double ready;

        PI_TRY(pi_interrupt_check(err));
        PI_TRY(pick(b, err));
        ready = pi_now();
        PI_TRY(step(b, err));
        b->f.step_seconds[b->f.n_steps++] = pi_now() - ready;
        b->f.sampling_seconds += ready - begin;
    }
    pi_engine_take_stats(b->l->engine, &b->f.stats);
    pi_engine_take_timing(b->l->engine, &b->f.timing);
    b->f.at_once = pi_width_share(b->n_seq, (uint32_t)(b->f.timing.steps / b->f.n_steps));
out:
    return rc;
}

static int cmp_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

enum pi_code pi_bench(const struct pi_run_options *o, const struct pi_run_log *log,
                      struct pi_loaded *l, double began, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct bench b = {.o = o,
                      .l = l,
                      .n_seq = o->n_parallel,
                      .n_prompt = o->bench_prompt,
                      .n_pos = pi_bench_positions(o),
                      .f.load_seconds = pi_now() - began};

    PI_TRY(start(&b, err));
    PI_TRY(feed_prompts(&b, err));
    PI_TRY(decode(&b, err));
    for (uint32_t i = 0; i < b.f.n_steps; i++)
        b.f.decode_seconds += b.f.step_seconds[i];
    qsort(b.f.step_seconds, b.f.n_steps, sizeof(double), cmp_double);
    PI_TRY(pi_bench_report(o, log, l, &b.f, err));
out:
    pi_sampler_destroy(b.sampler);
    free(b.tokens);
    free(b.next);
    free(b.pos);
    free(b.seq);
    free(b.want);
    free(b.logits);
    free(b.f.step_seconds);
    return rc;
}
