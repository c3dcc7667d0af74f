/*
 * pi_dataset.h - documents out of the files people have: plain text, JSON lines, Alpaca and ShareGPT JSON, gzipped or not.
 *
 * Told apart by content, not by name: a JSON array of records, or one; JSON lines, a record each; else plain text, which is one document. A
 * record is an object, or a string in an array: the field named by --field, by default "text", else "prompt", else "content"; else Alpaca's instruction,
 * input and output; else ShareGPT's conversations[].value or messages[].content, with line breaks between. Empty documents are dropped.
 */
#ifndef PI_DATASET_H
#define PI_DATASET_H

#include "common/pi_err.h"
#include "common/pi_tokenizer.h"

#include <stddef.h>
#include <stdint.h>

struct pi_doc {
    char *text; /* owned */
    size_t n;   /* bytes */
};

struct pi_dataset {
    struct pi_doc *docs; /* owned */
    size_t n, cap;
};

/* Appends a file's documents. field may be NULL. PI_E_IO; PI_E_CORRUPT with file and line (or record) of what is wrong; PI_E_UNSUPPORTED for
 * plain text with a zero byte in it, which is no text; PI_E_RANGE for more than 1 GiB, unpacked. d is as it was then. */
enum pi_code pi_dataset_add(struct pi_dataset *d, const char *path, const char *field,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_dataset_free(struct pi_dataset *d);

/* The token windows that profiling, training and perplexity run over. For each document: t = BOS (if pi_tokenizer_add_bos()) + encode(text);
 * W = (len(t) - 1) div C windows of C tokens; window k is t[kC .. kC + C) fed from position 0 with an empty cache, and scored against
 * t[kC + 1 .. kC + C + 1). Remainders are dropped; a document shorter than C + 1 tokens gives one short window when
 * keep_short is true (its last token is scored against nothing: n_scored = n - 1). */
struct pi_window {
    /* into tokens.ids; the token after the window is at begin + n when scored in full */
    size_t begin;
    uint32_t n;        /* tokens fed */
    uint32_t n_scored; /* n, or n - 1 */
};

struct pi_windows {
    struct pi_tokens tokens; /* all documents, one after the other */
    struct pi_window *w;     /* owned */
    size_t n, cap;
};

/* *out is set on success: free with pi_windows_free(). PI_E_RANGE for window 0; PI_E_UNSUPPORTED for a document of
 * more than 128 MiB; PI_E_INTERRUPTED between documents. */
enum pi_code pi_windows_make(const struct pi_dataset *d, const struct pi_tokenizer *t,
                             uint32_t window, bool keep_short, struct pi_windows *out,
                             struct pi_err *err) PI_MUST_CHECK;
void pi_windows_free(struct pi_windows *w);

#endif
