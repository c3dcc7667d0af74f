/* The queue between HTTP threads and the thread that owns the engine. Locks: the queue's before a call's. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/server/pi_call_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SEND_SECONDS 5.0          /* for the last answers to be sent */
#define MOST_BYTES   (1ull << 30) /* that answers which are not taken yet may need */

struct pi_calls {
    struct pi_calls_options opt;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct pi_choice *first, **last; /* that wait, oldest first */
    uint32_t n_waiting;
    uint32_t n_open;            /* calls that were handed in and not dropped yet */
    uint64_t most_bytes;        /* that their answers may need */
    struct pi_choice **running; /* (n_slots) by slot; NULL: none */
    bool closed, dirty;         /* nothing more is taken in; something was dropped */
    struct pi_calls_totals totals;
};

enum pi_code pi_calls_create(const struct pi_calls_options *opt, struct pi_calls **out,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_calls *q = NULL;
    pthread_condattr_t attr;

    PI_ALLOC(q, 1, err);
    q->opt = *opt;
    q->last = &q->first;
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&q->more, &attr);
    (void)pthread_condattr_destroy(&attr);
    PI_ALLOC(q->running, opt->n_slots, err);
    *out = q;
    q = NULL;
out:
    pi_calls_destroy(q);
    return rc;
}

void pi_calls_destroy(struct pi_calls *q)
{
    if (q == NULL)
        return;
    (void)pthread_mutex_destroy(&q->lock);
    (void)pthread_cond_destroy(&q->more);
    free(q->running);
    free(q);
}

/* Lets go of a call; the lock of the call is held and is released. */
static void unref(struct pi_call *c)
{
    const bool last = --c->refs == 0;

    (void)pthread_mutex_unlock(&c->lock);
    if (last)
        pi_call_free(c);
}

static void wake(struct pi_call *c)
{
    if (c->wake != NULL) {
        const pi_call_wake f = c->wake;

        c->wake = NULL;
        f(c->wake_ctx);
    }
}

/* A choice is at its end for whatever reason; its reference goes. */
static void finish(struct pi_choice *x, enum pi_finish how, const struct pi_err *err)
{
    struct pi_call *c = x->call;

    (void)pthread_mutex_lock(&c->lock);
    pi_choice_ended(x, how, err);
    wake(c);
    unref(c);
}

/* ---- the HTTP side -------------------------------------------------------------------------- */

enum pi_code pi_calls_submit(struct pi_calls *q, struct pi_call *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    (void)pthread_mutex_lock(&q->lock);
    if (q->closed)
        PI_FAIL(err, PI_E_INTERRUPTED, "the server is going down");
    if (c->n_choices > q->opt.n_queue)
        PI_FAIL(err, PI_E_RANGE, "%zu choices, at most %u can wait", c->n_choices,
                (unsigned)q->opt.n_queue);
    if (c->n_choices > q->opt.n_queue - q->n_waiting)
        PI_FAIL(err, PI_E_INFEASIBLE, "%u requests wait already: try again later",
                (unsigned)q->n_waiting);
    c->most_bytes = pi_call_most_bytes(&c->spec, q->opt.n_ctx);
    if (c->most_bytes > MOST_BYTES - q->most_bytes)
        PI_FAIL(
            err, PI_E_INFEASIBLE,
            "the answers that are being made may need %.0f MB of memory already: try again later",
            1e-6 * (double)q->most_bytes);
    (void)pthread_mutex_lock(&c->lock);
    c->refs += (uint32_t)c->n_choices;
    (void)pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < c->n_choices; i++) {
        *q->last = &c->choices[i];
        q->last = &c->choices[i].next;
        q->n_waiting++;
    }
    c->submitted = true;
    q->n_open++;
    q->most_bytes += c->most_bytes;
    q->totals.calls++;
    q->totals.choices += c->n_choices;
    (void)pthread_cond_signal(&q->more);
out:
    (void)pthread_mutex_unlock(&q->lock);
    return rc;
}

/* Takes what waits of a call out of the queue, whose lock is held. */
static void weed(struct pi_calls *q, const struct pi_call *c)
{
    struct pi_choice **at = &q->first, *x;

    while ((x = *at) != NULL) {
        if (x->call != c) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        q->n_waiting--;
        finish(x, PI_FINISH_CANCELLED, NULL);
    }
    q->last = at;
}

void pi_call_drop(struct pi_calls *q, struct pi_call *c)
{
    (void)pthread_mutex_lock(&q->lock);
    (void)pthread_mutex_lock(&c->lock);
    c->dropped = true;
    c->wake = NULL;
    (void)pthread_mutex_unlock(&c->lock);
    weed(q, c);
    q->n_open -= c->submitted;
    q->most_bytes -= c->submitted ? c->most_bytes : 0;
    q->dirty = true;
    (void)pthread_cond_signal(&q->more);
    (void)pthread_mutex_lock(&c->lock);
    unref(c);
    (void)pthread_mutex_unlock(&q->lock);
}

void pi_call_poke(struct pi_call *c)
{
    (void)pthread_mutex_lock(&c->lock);
    wake(c);
    (void)pthread_mutex_unlock(&c->lock);
}

/* The call's lock is held. */
static void wake_later(struct pi_call *c, pi_call_wake wake_fn, void (*prepare)(void *ctx),
                       void *ctx)
{
    c->wake = wake_fn;
    c->wake_ctx = ctx;
    if (prepare != NULL)
        prepare(ctx);
}

size_t pi_call_read(struct pi_call *c, char *to, size_t n, bool *done, pi_call_wake wake_fn,
                    void (*prepare)(void *ctx), void *ctx)
{
    size_t k;

    (void)pthread_mutex_lock(&c->lock);
    k = c->n_out - c->n_read < n ? c->n_out - c->n_read : n;
    if (k > 0)
        memcpy(to, c->out + c->n_read, k);
    c->n_read += k;
    if (c->n_read == c->n_out)
        c->n_read = c->n_out = 0;
    *done = k == 0 && c->n_ended == c->n_choices;
    if (k == 0 && !*done) {
        wake_later(c, wake_fn, prepare, ctx);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return k;
}

bool pi_call_wait(struct pi_call *c, pi_call_wake wake_fn, void (*prepare)(void *ctx), void *ctx)
{
    bool done;

    (void)pthread_mutex_lock(&c->lock);
    done = c->n_ended == c->n_choices;
    if (!done) {
        wake_later(c, wake_fn, prepare, ctx);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return done;
}

void pi_calls_get_totals(struct pi_calls *q, struct pi_calls_totals *out)
{
    (void)pthread_mutex_lock(&q->lock);
    *out = q->totals;
    out->waiting = q->n_waiting;
    (void)pthread_mutex_unlock(&q->lock);
}

/* ---- the engine's side ---------------------------------------------------------------------- */

static bool drawn(void *ctx, const struct pi_drawn *d)
{
    struct pi_choice *x = ctx;
    bool more;

    (void)pthread_mutex_lock(&x->call->lock);
    more = pi_choice_drawn(x, d);
    if (x->call->spec.stream)
        wake(x->call);
    (void)pthread_mutex_unlock(&x->call->lock);
    return more;
}

static void ended(void *ctx, enum pi_finish how, const struct pi_sequence_stats *stats,
                  const struct pi_err *err)
{
    struct pi_choice *x = ctx;

    (void)stats;
    finish(x, how, err);
}

/* Takes a choice into a slot. */
static void begin(struct pi_calls *q, struct pi_choice *x)
{
    const struct pi_call_spec *s = &x->call->spec;
    struct pi_sequence seq = {.prompt = s->prompts[x->prompt].ids,
                              .n_prompt = s->prompts[x->prompt].n,
                              .sampler = s->sampler,
                              .n_predict = s->n_predict,
                              .ignore_eos = s->ignore_eos,
                              .logprobs = s->logprobs,
                              .n_top = s->n_top,
                              .reuse = PI_REUSE_PROMPTS,
                              .ctx = x,
                              .drawn = drawn,
                              .ended = ended};
    struct pi_err err = {0};
    uint32_t slot = 0;

    seq.sampler.seed = x->seed;
    if (s->soft && s->n_predict != UINT32_MAX && s->n_predict > q->opt.n_ctx - seq.n_prompt)
        seq.n_predict = UINT32_MAX;
    x->began = pi_now();
    if (pi_batcher_add(q->opt.batcher, &seq, &slot, &err) != PI_OK) {
        finish(x, PI_FINISH_ERROR, &err);
        return;
    }
    q->running[slot] = x;
}

/* Takes the oldest choice that waits out of the queue; the queue's lock is held. NULL: none. */
static struct pi_choice *take(struct pi_calls *q)
{
    struct pi_choice *x = q->first;

    if (x == NULL)
        return NULL;
    q->first = x->next;
    if (q->first == NULL)
        q->last = &q->first;
    q->n_waiting--;
    return x;
}

static bool is_dropped(struct pi_choice *x)
{
    bool d;

    (void)pthread_mutex_lock(&x->call->lock);
    d = x->call->dropped;
    (void)pthread_mutex_unlock(&x->call->lock);
    return d;
}

/* Choices whose client is gone, or whose time is over. running[] holds only those in slots: ended() is called in rounds alone. */
static void cancel_some(struct pi_calls *q, bool dropped)
{
    for (uint32_t i = 0; i < q->opt.n_slots; i++) {
        struct pi_choice *x = q->running[i];

        if (x == NULL)
            continue;
        if ((dropped && is_dropped(x)) ||
            (q->opt.time_limit > 0 && pi_now() - x->began > q->opt.time_limit))
            pi_batcher_cancel(q->opt.batcher, i);
    }
}

/* Fills free slots from the queue; says whether there is something to do. */
static bool fill(struct pi_calls *q)
{
    struct pi_choice *x;
    bool dropped;

    (void)pthread_mutex_lock(&q->lock);
    dropped = q->dirty;
    q->dirty = false;
    while (pi_batcher_free_slots(q->opt.batcher) > 0 && (x = take(q)) != NULL) {
        (void)pthread_mutex_unlock(&q->lock);
        if (is_dropped(x))
            finish(x, PI_FINISH_CANCELLED, NULL);
        else
            begin(q, x);
        (void)pthread_mutex_lock(&q->lock);
    }
    q->totals.active = pi_batcher_active(q->opt.batcher);
    pi_batcher_totals(q->opt.batcher, &q->totals.batch);
    (void)pthread_mutex_unlock(&q->lock);
    cancel_some(q, dropped);
    if (q->opt.look != NULL)
        q->opt.look(q->opt.look_ctx);
    return pi_batcher_active(q->opt.batcher) > 0;
}

/* At most 0.1 s. */
static void rest(struct pi_calls *q)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += 100000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    (void)pthread_mutex_lock(&q->lock);
    if (q->first == NULL && !q->dirty)
        (void)pthread_cond_timedwait(&q->more, &q->lock, &t);
    (void)pthread_mutex_unlock(&q->lock);
}

/* Answers that are whole are on their way for a moment. */
static void let_go(struct pi_calls *q, double seconds)
{
    const double until = pi_now() + seconds;
    bool open = true;

    while (open && pi_now() < until) {
        (void)pthread_mutex_lock(&q->lock);
        q->dirty = false;
        open = q->n_open > 0;
        (void)pthread_mutex_unlock(&q->lock);
        if (open)
            rest(q);
    }
}

/* Takes nothing in any more; what waits is told. */
static void close_queue(struct pi_calls *q, const struct pi_err *why)
{
    struct pi_choice *x;

    (void)pthread_mutex_lock(&q->lock);
    q->closed = true;
    while ((x = take(q)) != NULL) {
        (void)pthread_mutex_unlock(&q->lock);
        finish(x, PI_FINISH_ERROR, why);
        (void)pthread_mutex_lock(&q->lock);
    }
    (void)pthread_mutex_unlock(&q->lock);
}

static enum pi_code round_once(struct pi_calls *q, struct pi_err *err)
{
    const enum pi_code rc = pi_batcher_round(q->opt.batcher, err);

    for (uint32_t i = 0; i < q->opt.n_slots; i++)
        if (q->running[i] != NULL && pi_batcher_is_free(q->opt.batcher, i))
            q->running[i] = NULL; /* and may be freed already */
    return rc;
}

enum pi_code pi_calls_work(struct pi_calls *q, bool (*stop)(void *ctx), void *ctx, double grace,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_err down = {0};
    double until;

    (void)pi_err_set(&down, PI_E_INTERRUPTED, "the server is going down");
    while (!stop(ctx)) {
        if (fill(q))
            PI_TRY(round_once(q, err));
        else
            rest(q);
    }
    close_queue(q, &down);
    until = pi_now() + grace;
    while (fill(q) && pi_now() < until)
        PI_TRY(round_once(q, err));
    for (uint32_t i = 0; i < q->opt.n_slots; i++)
        pi_batcher_cancel(q->opt.batcher, i);
    if (pi_batcher_active(q->opt.batcher) > 0)
        PI_TRY(round_once(q, err));
out:
    if (rc != PI_OK)
        close_queue(q, err);
    let_go(q, SEND_SECONDS);
    return rc;
}
