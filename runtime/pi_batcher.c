#include "config.h"

#include "runtime/pi_batcher.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum state {
    FREE,
    PROMPT, /* n_fed of n_prompt tokens are in the cache */
    DECODE  /* all but the newest token are */
};

struct slot {
    enum state state;
    bool cancelled;
    uint64_t turn;        /* while the prompt waits: the smallest number is fed next */
    struct pi_sequence s; /* prompt is not borrowed: it is ids */
    struct pi_sampler *sampler;
    int32_t *
        ids; /* what the cache holds from position 0, then what is to be fed; kept when free, for reuse */
    size_t n_ids, cap_ids, n_fed;
    size_t n_pure; /* positions of the cache that prompts filled, from 0 on */
    size_t n_prompt;
    uint32_t n_most; /* tokens to draw */
    enum pi_finish at_most;
    struct pi_sequence_stats stats;
    double at; /* when the present part began */
};

struct pi_batcher {
    struct pi_batcher_options opt;
    const struct pi_tokenizer *tok;
    struct slot *slots; /* (n_slots) */
    uint64_t turns;     /* given out */
    struct pi_batcher_totals totals;
    float *logits; /* (n_slots, n_vocab) */
    /* a batch: (most tokens of one) */
    int32_t *token, *pos;
    uint32_t *seq;
    bool *want;
    struct pi_top_token top[PI_MAX_TOP];
};

const char *pi_finish_name(enum pi_finish f)
{
    static const char *const names[] = {"eos", "length", "context", "stop", "cancelled", "error"};

    return names[f];
}

enum pi_code pi_batcher_create(const struct pi_batcher_options *opt, const struct pi_tokenizer *tok,
                               struct pi_batcher **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_batcher *b = NULL;
    const size_t most = opt->n_slots > PI_PROMPT_CHUNK ? opt->n_slots : PI_PROMPT_CHUNK;

    PI_ALLOC(b, 1, err);
    b->opt = *opt;
    b->tok = tok;
    PI_ALLOC(b->slots, opt->n_slots, err);
    PI_ALLOC(b->logits, (size_t)opt->n_slots * opt->n_vocab, err);
    PI_ALLOC(b->token, most, err);
    PI_ALLOC(b->pos, most, err);
    PI_ALLOC(b->seq, most, err);
    PI_ALLOC(b->want, most, err);
    *out = b;
    b = NULL;
out:
    pi_batcher_destroy(b);
    return rc;
}

/* The last call for a sequence; the slot is free then, and still knows what the cache holds. */
static void end(struct slot *s, enum pi_finish finish, const struct pi_err *err)
{
    const double now = pi_now();

    if (s->state == DECODE)
        s->stats.s_decode = now - s->at;
    s->state = FREE;
    s->cancelled = false;
    s->n_ids = s->n_fed;
    pi_sampler_destroy(s->sampler);
    s->sampler = NULL;
    s->s.ended(s->s.ctx, finish, &s->stats, finish == PI_FINISH_ERROR ? err : NULL);
}

void pi_batcher_destroy(struct pi_batcher *b)
{
    if (b == NULL)
        return;
    for (uint32_t i = 0; b->slots != NULL && i < b->opt.n_slots; i++) {
        if (b->slots[i].state != FREE)
            end(&b->slots[i], PI_FINISH_CANCELLED, NULL);
        free(b->slots[i].ids);
    }
    free(b->slots);
    free(b->logits);
    free(b->token);
    free(b->pos);
    free(b->seq);
    free(b->want);
    free(b);
}

uint32_t pi_batcher_free_slots(const struct pi_batcher *b)
{
    return b->opt.n_slots - pi_batcher_active(b);
}

uint32_t pi_batcher_active(const struct pi_batcher *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->opt.n_slots; i++)
        n += b->slots[i].state != FREE;
    return n;
}

bool pi_batcher_is_free(const struct pi_batcher *b, uint32_t slot)
{
    return b->slots[slot].state == FREE;
}

void pi_batcher_totals(const struct pi_batcher *b, struct pi_batcher_totals *out)
{
    *out = b->totals;
}

/* ---- arrivals ------------------------------------------------------------------------------- */

/* Positions of a free slot's cache that a prompt may go on from. At least its last token is fed, for its logits. */
static size_t reusable(const struct slot *s, const struct pi_sequence *q)
{
    size_t most = q->reuse == PI_REUSE_NONE      ? 0
                  : q->reuse == PI_REUSE_PROMPTS ? s->n_pure
                                                 : s->n_fed,
           n = 0;

    if (most > q->n_prompt - 1)
        most = q->n_prompt - 1;
    while (n < most && s->ids[n] == q->prompt[n])
        n++;
    return q->reuse == PI_REUSE_PROMPTS ? n - n % PI_PROMPT_CHUNK : n;
}

/* The free slot with most to reuse; among equals the one that loses least. */
static uint32_t choose(const struct pi_batcher *b, const struct pi_sequence *q, size_t *reuse_out)
{
    uint32_t best = b->opt.n_slots;
    size_t most = 0;

    for (uint32_t i = 0; i < b->opt.n_slots; i++) {
        const struct slot *s = &b->slots[i];
        const size_t n = s->state == FREE ? reusable(s, q) : 0;

        if (s->state == FREE && (best == b->opt.n_slots || n > most ||
                                 (n == most && s->n_fed < b->slots[best].n_fed))) {
            best = i;
            most = n;
        }
    }
    *reuse_out = most;
    return best;
}

static enum pi_code check(const struct pi_batcher *b, const struct pi_sequence *q,
                          struct pi_err *err)
{
    if (q->n_prompt == 0)
        return pi_err_set(err, PI_E_RANGE, "a prompt without a token");
    if (q->n_prompt > b->opt.n_ctx)
        return pi_err_set(err, PI_E_RANGE,
                          "the prompt's %zu tokens are more than the context of %u", q->n_prompt,
                          (unsigned)b->opt.n_ctx);
    if (q->n_predict != UINT32_MAX && q->n_predict > b->opt.n_ctx - q->n_prompt)
        return pi_err_set(err, PI_E_RANGE,
                          "the prompt's %zu tokens and %u more are more than the context of %u",
                          q->n_prompt, (unsigned)q->n_predict, (unsigned)b->opt.n_ctx);
    if (q->n_top > PI_MAX_TOP)
        return pi_err_set(err, PI_E_RANGE, "%u most probable tokens, at most %u are told",
                          (unsigned)q->n_top, PI_MAX_TOP);
    return PI_OK;
}

enum pi_code pi_batcher_add(struct pi_batcher *b, const struct pi_sequence *q, uint32_t *slot_out,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_sampler *sampler = NULL;
    struct slot *s;
    size_t keep = 0;
    uint32_t i;

    PI_TRY(check(b, q, err));
    i = choose(b, q, &keep);
    if (i == b->opt.n_slots)
        PI_FAIL(err, PI_E_INFEASIBLE, "all %u slots are taken", (unsigned)b->opt.n_slots);
    s = &b->slots[i];
    PI_TRY(pi_grow_array(&s->ids, &s->cap_ids, q->n_prompt, sizeof(*s->ids), err));
    PI_TRY(pi_sampler_create(b->opt.n_vocab, &q->sampler, &sampler, err));
    memcpy(s->ids, q->prompt, q->n_prompt * sizeof(*s->ids));
    s->s = *q;
    s->s.prompt = NULL;
    s->sampler = sampler;
    s->state = PROMPT;
    s->turn = b->turns++;
    s->n_ids = s->n_prompt = q->n_prompt;
    s->n_fed = keep;
    if (s->n_pure > keep)
        s->n_pure = keep;
    s->n_most = b->opt.n_ctx - (uint32_t)q->n_prompt;
    s->at_most = PI_FINISH_CONTEXT;
    if (q->n_predict != UINT32_MAX) {
        s->n_most = q->n_predict;
        s->at_most = PI_FINISH_LENGTH;
    }
    s->stats = (struct pi_sequence_stats){.n_prompt = q->n_prompt, .n_reused = keep};
    s->at = pi_now();
    b->totals.reused_tokens += keep;
    *slot_out = i;
out:
    return rc;
}

void pi_batcher_cancel(struct pi_batcher *b, uint32_t slot)
{
    b->slots[slot].cancelled = b->slots[slot].state != FREE;
}

/* ---- draws ---------------------------------------------------------------------------------- */

static bool is_end(const struct pi_batcher *b, int32_t token)
{
    return b->tok != NULL && pi_tokenizer_is_eog(b->tok, token);
}

/* --ignore-eos: tokens that would end the text cannot be drawn. */
static void ban_ends(const struct pi_batcher *b, float *logits)
{
    for (uint32_t i = 0; i < b->opt.n_vocab; i++)
        if (is_end(b, (int32_t)i))
            logits[i] = -INFINITY;
}

/* The n most probable tokens, most probable first, the lower id among equals; insertion into a short list. */
static uint32_t find_top(const float *logits, uint32_t n_vocab, uint32_t n,
                         struct pi_top_token *top)
{
    uint32_t have = 0;

    for (uint32_t i = 0; i < n_vocab && n > 0; i++) {
        uint32_t at = have;

        if (!isfinite(logits[i]) || !(have < n || logits[i] > top[have - 1].logprob))
            continue;
        if (have < n)
            have++;
        else
            at--;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct pi_top_token){.token = (int32_t)i, .logprob = logits[i]};
    }
    return have;
}

/* log of the sum of exponentials, of the finite logits: what the sampler looks at. */
static double log_total(const float *logits, uint32_t n_vocab)
{
    double most = -INFINITY, sum = 0.0;

    for (uint32_t i = 0; i < n_vocab; i++)
        most = isfinite(logits[i]) ? fmax(most, (double)logits[i]) : most;
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += isfinite(logits[i]) ? exp((double)logits[i] - most) : 0.0;
    return most + log(sum);
}

static void tell_probabilities(struct pi_batcher *b, const struct slot *s, const float *logits,
                               struct pi_drawn *d)
{
    const double total = log_total(logits, b->opt.n_vocab);

    d->logprob = (float)((double)logits[d->token] - total);
    d->n_top = find_top(logits, b->opt.n_vocab, s->s.n_top, b->top);
    d->top = b->top;
    for (uint32_t i = 0; i < d->n_top; i++)
        b->top[i].logprob = (float)((double)b->top[i].logprob - total);
}

/* Draws from the logits of a slot's newest token; ends the sequence where that is due. logits may be changed. PI_E_NOMEM, PI_E_SELFCHECK: of this sequence
 * alone. */
static enum pi_code draw(struct pi_batcher *b, struct slot *s, float *logits, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_drawn d = {.token = 0};

    if (s->stats.n_drawn >= s->n_most) { /* a prompt alone */
        end(s, s->at_most, NULL);
        return PI_OK;
    }
    if (s->s.ignore_eos)
        ban_ends(b, logits);
    PI_TRY(pi_sampler_pick(s->sampler, logits, s->n_ids, s->ids, s->n_ids, &d.token, err));
    if (is_end(b, d.token)) {
        end(s, PI_FINISH_EOS, NULL);
        return PI_OK;
    }
    PI_TRY(pi_grow_array(&s->ids, &s->cap_ids, s->n_ids + 1, sizeof(*s->ids), err));
    s->ids[s->n_ids++] = d.token;
    s->stats.n_drawn++;
    b->totals.drawn_tokens++;
    if (s->s.logprobs)
        tell_probabilities(b, s, logits, &d);
    if (!s->s.drawn(s->s.ctx, &d))
        end(s, PI_FINISH_STOPPED, NULL);
    else if (s->stats.n_drawn >= s->n_most)
        end(s, s->at_most, NULL);
out:
    return rc;
}

static void draw_or_end(struct pi_batcher *b, struct slot *s, float *logits)
{
    struct pi_err err = {0};

    if (draw(b, s, logits, &err) != PI_OK)
        end(s, PI_FINISH_ERROR, &err);
}

/* ---- a round -------------------------------------------------------------------------------- */

/* Prompts take turns, a chunk each: between two chunks of one each other slot gets one at most, so that a long prompt neither holds up those behind it nor is
 * held up by those that keep coming. */
static struct slot *next_prompt(struct pi_batcher *b)
{
    struct slot *best = NULL;

    for (uint32_t i = 0; i < b->opt.n_slots; i++)
        if (b->slots[i].state == PROMPT && (best == NULL || b->slots[i].turn < best->turn))
            best = &b->slots[i];
    return best;
}

/* One chunk, up to the next multiple of its size. */
static enum pi_code feed_prompt(struct pi_batcher *b, struct slot *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const double start = pi_now();
    const size_t left = s->n_prompt - s->n_fed, cut = PI_PROMPT_CHUNK - s->n_fed % PI_PROMPT_CHUNK;
    const uint32_t n = b->opt.stepwise ? 1 : (uint32_t)(left < cut ? left : cut);
    const bool last = n == left, pure = !b->opt.stepwise && s->n_pure == s->n_fed;
    const struct pi_batch batch = {
        .n_tok = n, .token = s->ids + s->n_fed, .pos = b->pos, .seq = b->seq, .want = b->want};

    if (s->n_fed == s->stats.n_reused) {
        s->stats.s_wait = start - s->at;
        s->at = start;
    }
    for (uint32_t i = 0; i < n; i++) {
        b->pos[i] = (int32_t)(s->n_fed + i);
        b->seq[i] = (uint32_t)(s - b->slots);
        b->want[i] = last && i == n - 1;
    }
    PI_TRY(b->opt.run(b->opt.run_ctx, b->opt.stepwise ? PI_PHASE_DECODE : PI_PHASE_PROMPT, &batch,
                      last ? b->logits : NULL, err));
    s->n_fed += n;
    s->turn = b->turns++;
    if (pure)
        s->n_pure = s->n_fed;
    b->totals.prompt_tokens += n;
    b->totals.s_prompt += pi_now() - start;
    if (last) {
        s->stats.s_prompt = pi_now() - s->at;
        s->at = pi_now();
        s->state = DECODE;
        draw_or_end(b, s, b->logits);
    }
out:
    return rc;
}

/* The newest token of every sequence that is past its prompt. */
static enum pi_code decode(struct pi_batcher *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const double start = pi_now();
    uint32_t n = 0;
    const struct pi_batch batch = {.token = b->token, .pos = b->pos, .seq = b->seq};
    struct pi_batch some = batch;

    for (uint32_t i = 0; i < b->opt.n_slots; i++) {
        const struct slot *s = &b->slots[i];

        if (s->state != DECODE)
            continue;
        b->token[n] = s->ids[s->n_fed];
        b->pos[n] = (int32_t)s->n_fed;
        b->seq[n++] = i;
    }
    if (n == 0)
        return PI_OK;
    some.n_tok = n;
    PI_TRY(b->opt.run(b->opt.run_ctx, PI_PHASE_DECODE, &some, b->logits, err));
    b->totals.steps++;
    b->totals.step_tokens += n;
    b->totals.s_decode += pi_now() - start;
    for (uint32_t i = 0; i < n; i++) {
        struct slot *s = &b->slots[b->seq[i]];

        s->n_fed++;
        s->stats.n_steps++;
        draw_or_end(b, s, b->logits + (size_t)i * b->opt.n_vocab);
    }
out:
    return rc;
}

enum pi_code pi_batcher_round(struct pi_batcher *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct slot *s;

    for (uint32_t i = 0; i < b->opt.n_slots; i++)
        if (b->slots[i].cancelled)
            end(&b->slots[i], PI_FINISH_CANCELLED, NULL);
    s = next_prompt(b);
    if (s != NULL)
        PI_TRY(feed_prompt(b, s, err));
    PI_TRY(decode(b, err));
out:
    for (uint32_t i = 0; rc != PI_OK && i < b->opt.n_slots; i++) {
        b->slots[i].n_fed = b->slots[i].n_pure = 0; /* the cache may hold anything */
        if (b->slots[i].state != FREE)
            end(&b->slots[i], PI_FINISH_ERROR, err);
    }
    return rc;
}
