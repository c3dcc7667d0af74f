/*
 * pi_prompt.h - the prompt of a run: where its bytes come from and which tokens they become; pi-run --tokenize.
 */
#ifndef PI_PROMPT_H
#define PI_PROMPT_H

#include "common/pi_tokenizer.h"
#include "runtime/pi_run_options.h"

struct pi_prompt {
    char *text; /* (n) owned; NULL with --tokens */
    size_t n;
    struct pi_tokens tokens;
};

/* Reads -p, -f or standard input, byte for byte; nothing with --tokens. PI_E_USAGE when nothing is given and standard input is a terminal. */
enum pi_code pi_prompt_read(const struct pi_run_options *o, struct pi_prompt *out,
                            struct pi_err *err) PI_MUST_CHECK;
/* Fills tokens: text with the BOS where the model says so, or --tokens as they stand. PI_E_RANGE for an id that the model does not have
 * and for a prompt without a token. */
enum pi_code pi_prompt_encode(const struct pi_run_options *o, const struct pi_tokenizer *t,
                              struct pi_prompt *p, struct pi_err *err) PI_MUST_CHECK;
void pi_prompt_free(struct pi_prompt *p); /* accepts a zeroed one */

/* Prints {"tokens":[...]} for the prompt. Opens the vocabulary alone. */
enum pi_code pi_prompt_tokenize(const struct pi_run_options *o, struct pi_err *err) PI_MUST_CHECK;

#endif
