/*
 * pi_chat.h - conversations as prompts: the turn formats of the supported model families.
 *
 * A format is recognised in the chat template that a model's file carries (by the words that only it uses; templates are not run), or named by the user.
 * Control tokens come from the format alone: what people write is never parsed for them, nor for user-defined tokens that look like one. A format's beginning
 * and end of a text are the vocabulary's own, whatever it calls them.
 */
#ifndef PI_CHAT_H
#define PI_CHAT_H

#include "common/pi_tokenizer.h"

#include <stddef.h>

enum pi_role {
    PI_ROLE_SYSTEM,
    PI_ROLE_USER,
    PI_ROLE_ASSISTANT
};

struct pi_message {
    enum pi_role role;
    const char *text; /* (n) borrowed */
    size_t n;
};

struct pi_chat_format;

/* By name; PI_E_USAGE naming all there are. */
enum pi_code pi_chat_find(const char *name, const struct pi_chat_format **out,
                          struct pi_err *err) PI_MUST_CHECK;
/* From the file's tokenizer.chat_template. One that is not recognised, or none, gives "plain" (User: and Assistant: in words), and *known_out says so. */
const struct pi_chat_format *pi_chat_detect(const struct pi_gguf *g, bool *known_out);
const char *pi_chat_name(const struct pi_chat_format *f);
/* Text that ends an answer where the model's end-of-text does not: "\nUser:" for plain; NULL: none. */
const char *pi_chat_stop(const struct pi_chat_format *f);

/* Appends the tokens of a conversation, up to where the assistant's next answer begins. Formats without a system role put its text in front of the user's first.
 * PI_E_USAGE: no message, a system message that is not the first, two of a role in a row, an answer to nothing, an answer at the end; PI_E_NOMEM. */
enum pi_code pi_chat_encode(const struct pi_chat_format *f, const struct pi_tokenizer *tok,
                            const struct pi_message *m, size_t n, struct pi_tokens *out,
                            struct pi_err *err) PI_MUST_CHECK;

#define PI_CHAT_NAMES "chatml, llama2, llama3, mistral, zephyr, phi3, vicuna, alpaca or plain"

#endif
