#include "config.h"

#include "runtime/chat/pi_answer.h"

#include "common/pi_progress.h"
#include "runtime/pi_report.h"
#include "runtime/pi_stop.h"

#include <stdio.h>
#include <string.h>

#define ROOM_SHARE 8 /* an answer begins with this part of the context free */

/* An answer on its way. */
struct run {
    const struct pi_answerer *a;
    struct pi_talk *talk;
    struct pi_answer *x;
    struct pi_tokens
        prompt; /* the conversation, and behind it what was drawn before something was forgotten */
    struct pi_tokens drawn;
    struct pi_stop stop;
    const char *stops[1];
    size_t n_looked, n_shown; /* bytes of the text */
    bool found_stop;
    enum pi_finish finish;
    enum pi_code failed; /* what a callback ran into, told in err */
    struct pi_err err;
};

/* ---- text ----------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Prints up to byte to; formats differ in who brings the space in front of an answer: none is shown. */
static enum pi_code show(struct run *r, size_t to, struct pi_err *err)
{
    struct pi_answer *x = r->x;

    while (r->n_shown == x->from && x->from < to && is_space(x->text.clean[x->from]))
        r->n_shown = ++x->from;
    if (to <= r->n_shown)
        return PI_OK;
    (void)fwrite(x->text.clean + r->n_shown, 1, to - r->n_shown, stdout);
    r->n_shown = to;
    return pi_stdout_check(err);
}

/* What may be shown of the text; in the end that is all in front of a stop string. */
static enum pi_code look(struct run *r, bool ended, struct pi_err *err)
{
    struct pi_answer *x = r->x;
    size_t to;

    if (r->found_stop)
        return PI_OK;
    to = pi_stop_look(&r->stop, x->text.clean, x->text.n_clean, r->n_looked, &r->found_stop);
    r->n_looked = x->text.n_clean;
    x->to = ended && !r->found_stop ? x->text.n_clean : to;
    return show(r, x->to, err);
}

static enum pi_code add_token(struct run *r, int32_t token, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_str piece = pi_tokenizer_piece(r->a->tok, token);

    PI_TRY(pi_tokens_push(&r->drawn, token, err));
    PI_TRY(pi_text_push(&r->x->text, piece.p, piece.n, err));
    PI_TRY(look(r, false, err));
out:
    return rc;
}

static bool drawn(void *ctx, const struct pi_drawn *d)
{
    struct run *r = ctx;

    r->failed = add_token(r, d->token, &r->err);
    return r->failed == PI_OK && !r->found_stop;
}

static void ended(void *ctx, enum pi_finish finish, const struct pi_sequence_stats *s,
                  const struct pi_err *err)
{
    struct run *r = ctx;
    struct pi_sequence_stats *all = &r->x->all;

    r->finish = finish;
    if (finish == PI_FINISH_ERROR) {
        r->failed = err->code;
        r->err = *err;
    }
    if (all->n_prompt == 0)
        r->x->first = *s;
    all->n_prompt += s->n_prompt;
    all->n_reused += s->n_reused;
    all->n_drawn += s->n_drawn;
    all->n_steps += s->n_steps;
    all->s_prompt += s->s_prompt;
    all->s_decode += s->s_decode;
    r->x->n_used = s->n_prompt + s->n_drawn;
}

/* ---- what fits ------------------------------------------------------------------------------ */

static enum pi_code encode(struct run *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    r->prompt.n = 0;
    PI_TRY(pi_chat_encode(r->a->format, r->a->tok, r->talk->m, r->talk->n, &r->prompt, err));
    for (size_t i = 0; i < r->drawn.n; i++)
        PI_TRY(pi_tokens_push(&r->prompt, r->drawn.ids[i], err));
out:
    return rc;
}

/* The last message alone, behind the system's. */
static enum pi_code check_message(struct run *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t n_system = pi_talk_first(r->talk);
    struct pi_message m[2] = {r->talk->m[0], r->talk->m[r->talk->n - 1]};

    r->prompt.n = 0;
    PI_TRY(
        pi_chat_encode(r->a->format, r->a->tok, m + 1 - n_system, 1 + n_system, &r->prompt, err));
    if (r->prompt.n >= r->a->n_ctx)
        PI_FAIL(
            err, PI_E_RANGE,
            "the message takes %zu tokens%s and leaves no room for an answer in the context of %u (-c)",
            r->prompt.n, n_system > 0 ? " with the system's" : "", (unsigned)r->a->n_ctx);
out:
    return rc;
}

/* Tokens of -n that are still to come; UINT32_MAX: any number. */
static uint32_t wanted(const struct run *r)
{
    return r->a->o->n_given ? r->a->o->n_predict - (uint32_t)r->drawn.n : UINT32_MAX;
}

/* The prompt, with room for an answer: the oldest question and answer go until that is so, or none is left. */
static enum pi_code make_room(struct run *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n_ctx = r->a->n_ctx;
    uint32_t room = n_ctx / ROOM_SHARE > 0 ? n_ctx / ROOM_SHARE : 1;

    room = room < wanted(r) ? room : wanted(r);
    PI_TRY(encode(r, err));
    while (r->prompt.n + room > n_ctx && r->talk->n > pi_talk_first(r->talk) + 1) {
        pi_talk_drop(r->talk, pi_talk_first(r->talk), 2);
        r->x->n_forgotten += 2;
        PI_TRY(encode(r, err));
    }
out:
    return rc;
}

/* ---- the decode core ------------------------------------------------------------------------ */

/* From the prompt until something ends it. */
static enum pi_code decode(struct run *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t left = wanted(r);
    const struct pi_sequence s = {.prompt = r->prompt.ids,
                                  .n_prompt = r->prompt.n,
                                  .sampler = r->a->o->sampler,
                                  .n_predict =
                                      left <= r->a->n_ctx - r->prompt.n ? left : UINT32_MAX,
                                  .ignore_eos = r->a->o->ignore_eos,
                                  .reuse = PI_REUSE_ALL,
                                  .ctx = r,
                                  .drawn = drawn,
                                  .ended = ended};
    struct pi_batcher_totals t, before;
    struct pi_progress p;
    uint32_t slot;

    pi_batcher_totals(r->a->batcher, &before);
    pi_progress_begin(&p, "reading", r->prompt.n, pi_progress_wanted(r->a->log->common.quiet));
    PI_TRY(pi_batcher_add(r->a->batcher, &s, &slot, err));
    while (pi_batcher_active(r->a->batcher) > 0) {
        if (pi_interrupted())
            pi_batcher_cancel(r->a->batcher, slot);
        PI_TRY(pi_batcher_round(r->a->batcher, err));
        pi_batcher_totals(r->a->batcher, &t);
        if (t.drawn_tokens == before.drawn_tokens)
            pi_progress_at(&p, t.prompt_tokens + t.reused_tokens - before.prompt_tokens -
                                   before.reused_tokens);
        else
            pi_progress_end(&p);
    }
    if (r->failed != PI_OK) {
        rc = r->failed;
        *err = r->err;
    }
out:
    pi_progress_end(&p);
    return rc;
}

static enum pi_answer_end how_it_ended(enum pi_finish finish)
{
    switch (finish) {
    case PI_FINISH_LENGTH:
        return PI_ANSWER_CUT;
    case PI_FINISH_CONTEXT:
        return PI_ANSWER_FULL;
    case PI_FINISH_CANCELLED:
        return PI_ANSWER_STOPPED;
    default:
        return PI_ANSWER_DONE;
    }
}

enum pi_code pi_answer(const struct pi_answerer *a, struct pi_talk *talk, struct pi_answer *out,
                       struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct run r = {.a = a, .talk = talk, .x = out, .stops = {pi_chat_stop(a->format)}};

    r.stop = (struct pi_stop){.strings = r.stops, .n = r.stops[0] != NULL};
    memset(out, 0, sizeof(*out));
    PI_TRY(check_message(&r, err));
    do {
        const size_t before = out->n_forgotten;

        PI_TRY(make_room(&r, err));
        if (r.drawn.n > 0 && out->n_forgotten == before)
            break; /* nothing but this question and its answer is left */
        PI_TRY(decode(&r, err));
    } while (r.finish == PI_FINISH_CONTEXT);
    PI_TRY(pi_text_finish(&out->text, err));
    PI_TRY(look(&r, true, err));
    while (out->to > out->from && is_space(out->text.clean[out->to - 1]))
        out->to--;
    out->end = how_it_ended(r.finish);
    out->n_drawn = (uint32_t)r.drawn.n;
out:
    pi_tokens_free(&r.prompt);
    pi_tokens_free(&r.drawn);
    return rc;
}

void pi_answer_free(struct pi_answer *x)
{
    pi_text_free(&x->text);
    memset(x, 0, sizeof(*x));
}
