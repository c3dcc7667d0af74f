/*
 * pi_call_int.h - a call as both of its files see it: pi_calls.c moves it, pi_call.c makes its answer.
 */
#ifndef PI_CALL_INT_H
#define PI_CALL_INT_H

#include "runtime/pi_text.h"
#include "runtime/server/pi_calls.h"

#include <pthread.h>

struct pi_choice_token {
    int32_t token;
    float logprob;
    uint32_t n_top, first_top; /* in the choice's tops */
};

struct pi_choice {
    struct pi_call *call;
    uint32_t index;
    size_t prompt; /* its number */
    uint64_t seed;
    struct pi_text text;
    size_t n_sent,
        n_limit;     /* bytes of text that were told; that may be: all, or up to a stop string */
    size_t n_looked; /* that stop strings were looked for in */
    struct pi_choice_token *tokens;
    size_t n_tokens, cap_tokens, n_tokens_sent;
    struct pi_top_token *tops;
    size_t n_tops, cap_tops;
    const char *finish; /* "stop", "length"; NULL: not at its end */
    double began;
    struct pi_choice *next; /* in the queue */
};

struct pi_call {
    pthread_mutex_t lock;     /* of everything below that changes */
    struct pi_call_spec spec; /* its pointers are owned */
    const struct pi_tokenizer *tok;
    struct pi_choice *choices; /* (n_choices) */
    size_t n_choices, n_ended;
    bool submitted, dropped; /* by the HTTP side */
    uint64_t most_bytes;     /* that the answer may need; set when it is handed in */
    uint32_t refs;
    unsigned status; /* HTTP; 200 until something fails */
    struct pi_err failure;
    char id[48];
    long long created;
    size_t n_prompt_tokens, n_drawn_tokens;
    /* a stream's bytes */
    char *out;
    size_t n_out, cap_out, n_read;
    pi_call_wake wake;
    void *wake_ctx;
};

/* A token was drawn for a choice: false when it is enough. Lock held. Failures of memory end in c->status. */
bool pi_choice_drawn(struct pi_choice *x, const struct pi_drawn *d);
/* A choice is at its end. Lock held. */
void pi_choice_ended(struct pi_choice *x, enum pi_finish finish, const struct pi_err *err);
void pi_call_free(struct pi_call *c);
/* The JSON of an error, the caller's to free(); NULL: no memory. param and code may be NULL. */
char *pi_error_json(unsigned status, const char *message, const char *param, const char *code);
unsigned pi_status_of(enum pi_code code);

#endif
