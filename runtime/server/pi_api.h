/*
 * pi_api.h - requests of an OpenAI-compatible API, from JSON to calls.
 *
 * Every value is checked for type and range and refused with its name; parameters that would change the text and that are not implemented are refused when they
 * ask for something. Beyond OpenAI's: top_k, min_p, repeat_penalty, repeat_last_n, ignore_eos. What is not given is as on pi-run's command line, but for
 * max_tokens, which is as OpenAI has it.
 */
#ifndef PI_API_H
#define PI_API_H

#include "runtime/pi_chat.h"
#include "runtime/server/pi_calls.h"

#define PI_API_MAX_CHOICES 128u
#define PI_API_MAX_STOPS   16u
#define PI_API_MAX_STOP    1024u          /* bytes of a stop string */
#define PI_API_MAX_ANSWER  (256ull << 20) /* bytes of memory that an answer may need at most */

struct pi_api {
    const struct pi_tokenizer *tok;
    const struct pi_chat_format *format;
    struct pi_sampler_options sampler; /* defaults */
    bool ignore_eos, seed_given; /* seed_given: requests without one have the command line's */
    uint32_t n_ctx;
    const char *model; /* its name */
};

/* What a refusal names besides its message. */
struct pi_api_fault {
    unsigned status;   /* 400, 404 */
    const char *param; /* or NULL */
    const char *code;  /* or NULL */
};

/* PI_E_USAGE, PI_E_RANGE with *fault; PI_E_NOMEM. body (n) need not end in NUL. */
enum pi_code pi_api_parse(const struct pi_api *api, enum pi_call_kind kind, const char *body,
                          size_t n, struct pi_call **out, struct pi_api_fault *fault,
                          struct pi_err *err) PI_MUST_CHECK;

#endif
