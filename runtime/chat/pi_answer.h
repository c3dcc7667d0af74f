/*
 * pi_answer.h - one answer of a conversation: prompt, tokens, text on standard output, and what is forgotten where the context is full.
 */
#ifndef PI_ANSWER_H
#define PI_ANSWER_H

#include "runtime/chat/pi_talk.h"
#include "runtime/pi_batcher.h"
#include "runtime/pi_run_options.h"
#include "runtime/pi_text.h"

struct pi_answerer {
    const struct pi_run_options *o; /* sampler, -n, --ignore-eos; borrowed, as all below */
    const struct pi_run_log *log;
    const struct pi_tokenizer *tok;
    const struct pi_chat_format *format;
    struct pi_batcher *batcher; /* of one slot */
    uint32_t n_ctx;
};

enum pi_answer_end {
    PI_ANSWER_DONE,
    PI_ANSWER_CUT,    /* -n tokens */
    PI_ANSWER_FULL,   /* the context is full of this question and its answer */
    PI_ANSWER_STOPPED /* SIGINT or SIGTERM */
};

struct pi_answer {
    enum pi_answer_end end;
    struct pi_text text; /* all that was made; owned */
    size_t from,
        to; /* the part of text.clean that is the answer: no space around it, no stop string */
    size_t n_forgotten; /* messages that were taken out of the conversation */
    size_t n_used;      /* tokens of the context */
    uint32_t n_drawn;   /* tokens */
    struct pi_sequence_stats first,
        all; /* of the first pass; of all: more where something was forgotten on the way */
};

/* Answers the last message of talk, which is the user's, and prints it as it comes. Forgets pairs of messages in front where they do not fit; what is printed ends
 * without a newline of its own. PI_E_RANGE: the message alone is too long (nothing was forgotten); errors of the engine; PI_E_IO of standard output. */
enum pi_code pi_answer(const struct pi_answerer *a, struct pi_talk *talk, struct pi_answer *out,
                       struct pi_err *err) PI_MUST_CHECK;
void pi_answer_free(struct pi_answer *x); /* accepts a zeroed one */

#endif
