/*
 * pi_calls.h - calls of an HTTP API on their way through the decode core.
 *
 * A call is one request: k choices (prompts times n), each a sequence. HTTP threads make calls, hand them in and read what they wrote; one thread, the owner of the
 * engine, runs them (pi_calls_work()). A call is shared by the two sides and freed when both have let go. What a choice generates becomes bytes of the answer here,
 * as it is drawn: server-sent events, or the parts of one JSON object at the end.
 */
#ifndef PI_CALLS_H
#define PI_CALLS_H

#include "common/pi_tokenizer.h"
#include "runtime/pi_batcher.h"
#include "runtime/pi_stop.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pi_call_kind {
    PI_CALL_TEXT, /* /v1/completions */
    PI_CALL_CHAT  /* /v1/chat/completions */
};

struct pi_calls; /* the queue, and who works on it */
struct pi_call;

/* What a request asks for; everything is copied by pi_call_create(). */
struct pi_call_spec {
    enum pi_call_kind kind;
    const struct pi_tokens *prompts; /* (n_prompts) */
    size_t n_prompts;
    uint32_t n;                        /* choices of each prompt */
    struct pi_sampler_options sampler; /* of a prompt's first choice; its choice i has seed + i */
    uint32_t n_predict;                /* UINT32_MAX: what the context has room for */
    bool soft;                         /* n_predict is a default: less where there is less room */
    const char *const *stops;
    size_t n_stops;
    bool stream, usage, logprobs, ignore_eos;
    uint32_t n_top;
    const char *model; /* as the answer calls it */
};

/* Bytes of memory that the answer to a request may need, from above: tokens, their texts, probabilities, and the JSON that is made of them. UINT64_MAX: more than can be counted. */
uint64_t pi_call_most_bytes(const struct pi_call_spec *spec, uint32_t n_ctx);

/* Called, with the call's lock held, when bytes were added or the call ended: from any thread. */
typedef void (*pi_call_wake)(void *ctx);

enum pi_code pi_call_create(const struct pi_call_spec *spec, const struct pi_tokenizer *tok,
                            struct pi_call **out, struct pi_err *err) PI_MUST_CHECK;
/* The HTTP side lets go: what waits leaves the queue at once, what is being decoded is cancelled behind the round. */
void pi_call_drop(struct pi_calls *q, struct pi_call *c);
/* Calls the wake that pi_call_read() or pi_call_wait() left, if any, though nothing is new: somebody else has something to say. */
void pi_call_poke(struct pi_call *c);

/* Takes up to n bytes of the answer that were not taken yet; *done: there will be no more. When there are none now, wake(ctx) is called once there are; prepare, if
 * not NULL, is called before that under the call's lock (to stop listening without losing the wake). */
size_t pi_call_read(struct pi_call *c, char *to, size_t n, bool *done, pi_call_wake wake,
                    void (*prepare)(void *ctx), void *ctx);
/* Whether the call is at its end; else wake is called then, as above. */
bool pi_call_wait(struct pi_call *c, pi_call_wake wake, void (*prepare)(void *ctx), void *ctx);
/* Of a call that is at its end and does not stream: the status, and the body (the caller's to free()). */
unsigned pi_call_answer(struct pi_call *c, char **body_out);

struct pi_calls_options {
    struct pi_batcher *batcher; /* borrowed; used by pi_calls_work() alone */
    uint32_t n_slots, n_queue;  /* sequences decoded at once; choices that may wait */
    uint32_t n_ctx;             /* positions of a sequence */
    double
        time_limit; /* seconds from when a choice has a slot, then it ends as if by length; 0: none */
    void (*look)(
        void *
            ctx); /* called by pi_calls_work(), between rounds and at least every 0.1 s of rest; or NULL */
    void *look_ctx;
};

struct pi_calls_totals {
    uint64_t calls, choices;
    uint32_t active, waiting;
    struct pi_batcher_totals batch;
};

enum pi_code pi_calls_create(const struct pi_calls_options *opt, struct pi_calls **out,
                             struct pi_err *err) PI_MUST_CHECK;
void pi_calls_destroy(struct pi_calls *q); /* after pi_calls_work() returned; accepts NULL */

/* Hands a call in. PI_E_INFEASIBLE: too many wait; PI_E_RANGE: more than may ever wait; PI_E_INTERRUPTED: the server is going down. Then the call is still the caller's to drop. */
enum pi_code pi_calls_submit(struct pi_calls *q, struct pi_call *c,
                             struct pi_err *err) PI_MUST_CHECK;
void pi_calls_get_totals(struct pi_calls *q, struct pi_calls_totals *out);

/* Runs calls until stop(ctx) says so (asked once a round, or every 0.1 s): what waits then is told so, what is being decoded may end within grace seconds. An error of
 * the engine ends all calls and is returned. Returns once the HTTP side has dropped all calls, or 5 s after the last was at its end. */
enum pi_code pi_calls_work(struct pi_calls *q, bool (*stop)(void *ctx), void *ctx, double grace,
                           struct pi_err *err) PI_MUST_CHECK;

#endif
