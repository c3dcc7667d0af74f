/*
 * pi_vocab.h - a vocabulary on its way into a GGUF file: tokens with scores and types, merges, special ids.
 *
 * Filled by the readers of tokenizer.model (SentencePiece) and tokenizer.json / vocab.json (byte-level BPE); written as the tokenizer.ggml.* keys
 * that the ecosystem's readers expect.
 */
#ifndef PI_VOCAB_H
#define PI_VOCAB_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pi_token_type { /* numbered as in GGUF and in SentencePiece */
    PI_TOKEN_NORMAL = 1,
    PI_TOKEN_UNKNOWN = 2,
    PI_TOKEN_CONTROL = 3,
    PI_TOKEN_USER = 4,
    PI_TOKEN_UNUSED = 5,
    PI_TOKEN_BYTE = 6
};

struct pi_vocab_token {
    char *text; /* owned; NULL: no token has this id yet */
    size_t n;   /* bytes */
    float score;
    int32_t type; /* enum pi_token_type */
};

struct pi_vocab {
    bool spm;                 /* SentencePiece; else byte-level BPE */
    const char *pre;          /* static: "default", "gpt-2", "falcon", ... */
    struct pi_vocab_token *t; /* (n) by id */
    size_t n, cap;
    struct pi_str *merges; /* (n_merges) "a b" by rank; each .p owned */
    size_t n_merges, cap_merges;
    int64_t bos, eos, eot, unk, pad; /* -1: none */
    bool add_bos, add_eos, add_space_prefix;
    const char *metaspace; /* static: see pi_tok_form.h; NULL: none */
    char *chat_template;   /* owned, or NULL */
};

/* Sets token id (growing the table; below 2^20). PI_E_CORRUPT when another text has it already. */
enum pi_code pi_vocab_set(struct pi_vocab *v, const char *where, uint64_t id, const char *text,
                          size_t n, float score, enum pi_token_type type,
                          struct pi_err *err) PI_MUST_CHECK;
/* "a b": one space between two parts that hold none. */
enum pi_code pi_vocab_add_merge(struct pi_vocab *v, const char *where, const char *text, size_t n,
                                struct pi_err *err) PI_MUST_CHECK;
/* The id of a text, or -1. Linear. */
int64_t pi_vocab_find(const struct pi_vocab *v, const char *text);
/* Exactly n tokens: ids without text and those missing at the end become unused ones; ids from n on are dropped, *n_dropped counts them. */
enum pi_code pi_vocab_fit(struct pi_vocab *v, size_t n, size_t *n_dropped,
                          struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_vocab_write(const struct pi_vocab *v, struct pi_gguf_writer *w,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_vocab_free(struct pi_vocab *v); /* accepts a zeroed one */

#endif
