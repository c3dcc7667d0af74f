/*
 * pi_batcher.h - the decode core of every front end: sequences that come and go, decoded together (continuous batching, Orca, Yu et al. 2022).
 *
 * A round feeds one chunk of one waiting prompt (they take turns, first come, first served; sequences that are being decoded wait for no more than that), then one token of
 * each sequence that is being decoded, in one batch, which the engine may cut into steps. Prompts are cut at multiples of PI_PROMPT_CHUNK from position 0, draws depend on (seed, position)
 * alone and the engine's results for a token on that token's sequence alone, so a sequence's text does not depend on who else is there. (An engine on a GPU keeps that to the last bit
 * with a step_width of 1 alone.)
 *
 * A batcher owns slots (one sequence of the engine's KV cache each) and borrows engine and tokenizer. One thread at a time; callbacks run inside
 * pi_batcher_round() and must not call back into it.
 */
#ifndef PI_BATCHER_H
#define PI_BATCHER_H

#include "common/pi_tokenizer.h"
#include "runtime/pi_engine.h"
#include "runtime/pi_sampler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_PROMPT_CHUNK 512u /* tokens; the engine's default batch */

struct pi_batcher;

struct pi_top_token {
    int32_t token;
    float
        logprob; /* natural, of the model's own distribution: no penalty, temperature 1, nothing cut off but what ignore_eos bans */
};

struct pi_drawn {
    int32_t token;
    float logprob;                  /* as above; 0 where not asked for */
    const struct pi_top_token *top; /* (n_top) most probable first; borrowed for the call */
    uint32_t n_top;
};

enum pi_finish {
    PI_FINISH_EOS,       /* the model ended its text (that token is not reported) */
    PI_FINISH_LENGTH,    /* n_predict tokens were drawn */
    PI_FINISH_CONTEXT,   /* the context is full */
    PI_FINISH_STOPPED,   /* drawn() said so */
    PI_FINISH_CANCELLED, /* pi_batcher_cancel() */
    PI_FINISH_ERROR
};

struct pi_sequence_stats {
    size_t n_prompt, n_reused; /* tokens of the prompt; of them, those still in the cache */
    uint32_t n_drawn, n_steps; /* tokens; decode steps: one less but for the end of a text */
    double s_wait, s_prompt,
        s_decode; /* seconds: before its first chunk; until its first token; from there on */
};

/* What of a slot's KV cache a new sequence may go on from. */
enum pi_reuse {
    PI_REUSE_NONE,
    PI_REUSE_PROMPTS, /* whole chunks that were fed as a prompt: the same text as without */
    PI_REUSE_ALL /* decoded tokens too, whose numbers differ in the last digits (and by what predictors missed) */
};

struct pi_sequence {
    const int32_t *prompt; /* (n_prompt), n_prompt >= 1; copied */
    size_t n_prompt;
    struct pi_sampler_options sampler;
    uint32_t n_predict; /* most tokens to draw; UINT32_MAX: what the context has room for */
    bool ignore_eos;    /* tokens that would end the text cannot be drawn */
    bool logprobs;      /* fill in pi_drawn's logprob and top */
    uint32_t n_top;     /* at most PI_MAX_TOP */
    enum pi_reuse reuse;
    void *ctx;
    /* Each token in order; false: enough (PI_FINISH_STOPPED, this token counts). */
    bool (*drawn)(void *ctx, const struct pi_drawn *d);
    /* Exactly once, the last call; err is NULL but for PI_FINISH_ERROR. */
    void (*ended)(void *ctx, enum pi_finish finish, const struct pi_sequence_stats *stats,
                  const struct pi_err *err);
};

#define PI_MAX_TOP 20u

/* One batch through the model: pi_engine_run(), or somebody who compares (pi_verify.h). */
typedef enum pi_code (*pi_batch_fn)(void *ctx, enum pi_phase phase, const struct pi_batch *batch,
                                    float *logits_out, struct pi_err *err);

struct pi_batcher_options {
    uint32_t n_slots; /* at most the engine's n_seq */
    uint32_t n_ctx;   /* the engine's positions per sequence */
    uint32_t n_vocab;
    bool stepwise; /* prompts go through decode steps, a token at a time */
    pi_batch_fn run;
    void *run_ctx;
};

/* PI_E_NOMEM. tok is borrowed; NULL: no token ends a text. */
enum pi_code pi_batcher_create(const struct pi_batcher_options *opt, const struct pi_tokenizer *tok,
                               struct pi_batcher **out, struct pi_err *err) PI_MUST_CHECK;
/* Sequences that are still there end as cancelled. Accepts NULL. */
void pi_batcher_destroy(struct pi_batcher *b);

uint32_t pi_batcher_free_slots(const struct pi_batcher *b);
/* Sequences that are there: 0: a round has nothing to do. */
uint32_t pi_batcher_active(const struct pi_batcher *b);

bool pi_batcher_is_free(const struct pi_batcher *b, uint32_t slot);

/* Takes a sequence into a free slot; *slot_out names it until it ended. PI_E_RANGE: a prompt that is empty or longer than the context, or n_predict
 * beyond what it leaves room for (not UINT32_MAX); PI_E_INFEASIBLE: no slot is free; PI_E_NOMEM. On an error no callback is called. */
enum pi_code pi_batcher_add(struct pi_batcher *b, const struct pi_sequence *s, uint32_t *slot_out,
                            struct pi_err *err) PI_MUST_CHECK;
/* The sequence of a slot ends at the beginning of the next round. */
void pi_batcher_cancel(struct pi_batcher *b, uint32_t slot);

/* One round. An engine's error ends all sequences with it and is returned: the engine may be of no more use. */
enum pi_code pi_batcher_round(struct pi_batcher *b, struct pi_err *err) PI_MUST_CHECK;

/* Totals since the batcher was made. */
struct pi_batcher_totals {
    /* steps: batches of decode, whatever the engine makes of them */
    uint64_t prompt_tokens, reused_tokens, drawn_tokens, steps, step_tokens;
    double s_prompt, s_decode; /* seconds in chunks and in steps */
};
void pi_batcher_totals(const struct pi_batcher *b, struct pi_batcher_totals *out);

const char *
pi_finish_name(enum pi_finish f); /* "eos", "length", "context", "stop", "cancelled", "error" */

#endif
