/*
 * pi_tok_form.h - which of the tokenizers built in here a tokenizer.json describes.
 *
 * A tokenizer.json is a pipeline of parts that anybody can put together anew. Each part is recognised by its content, every key included; what would give
 * other tokens than the tokenizers here do is refused by name, never skipped.
 */
#ifndef PI_TOK_FORM_H
#define PI_TOK_FORM_H

#include "common/pi_err.h"
#include "convert/pi_json.h"
#include "convert/pi_note.h"

#include <stdbool.h>

struct pi_tok_form {
    bool spm;              /* BPE over characters with byte fallback; else over bytes */
    const char *pre;       /* static: a name for tokenizer.ggml.pre */
    bool add_space_prefix; /* spm: a space in front of a text */
    const char *metaspace; /* NULL, or only where it has none yet: "first" of a text, "always" */
    bool add_bos, add_eos; /* the post-processor adds them */
    const char *bos, *eos; /* their texts, borrowed; NULL: not said */
};

/* Reads all of j but tokens and merges. PI_E_UNSUPPORTED: a part that is not built in, naming it, its key and value. */
enum pi_code pi_tok_form_read(const struct pi_json *j, const struct pi_notes *notes,
                              struct pi_tok_form *out, struct pi_err *err) PI_MUST_CHECK;

#endif
