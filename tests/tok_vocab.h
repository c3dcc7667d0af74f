/*
 * tok_vocab.h - small vocabularies for tests, written as GGUF files.
 *
 * A list of tokens is given as text in a form that is easy to write by hand; both kinds of vocabulary cover all 256 bytes.
 */
#ifndef TOK_VOCAB_H
#define TOK_VOCAB_H

#include "common/pi_gguf.h"
#include "common/pi_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VOCAB_MAX 1024

struct vocab {
    const char *model, *pre, *arch;
    uint32_t n, n_merges;
    struct pi_str tokens[VOCAB_MAX], merges[VOCAB_MAX];
    float scores[VOCAB_MAX];
    int32_t types[VOCAB_MAX];
    uint32_t bos, eos, unk; /* UINT32_MAX: none */
    char text[1 << 16];     /* what tokens and merges point into */
    size_t n_text;
    char path[64]; /* of the file last written */
};

enum {
    T_NORMAL = 1,
    T_UNKNOWN,
    T_CONTROL,
    T_USER,
    T_UNUSED,
    T_BYTE
};

static inline struct pi_str vocab_keep(struct vocab *v, const char *s, size_t n)
{
    struct pi_str kept = {v->text + v->n_text, n};

    if (v->n_text + n > sizeof(v->text))
        abort();
    memcpy(v->text + v->n_text, s, n);
    v->n_text += n;
    return kept;
}

/* Appends a token; returns its id. */
static inline int32_t vocab_add(struct vocab *v, const char *s, int32_t type, float score)
{
    v->tokens[v->n] = vocab_keep(v, s, strlen(s));
    v->types[v->n] = type;
    v->scores[v->n] = score;
    return (int32_t)v->n++;
}

/* The character of the byte alphabet that stands for a byte, as UTF-8. */
static inline size_t byte_char(uint8_t b, char out[2])
{
    unsigned c = 0, others = 0;

    for (unsigned i = 0; i <= b; i++) {
        bool self = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || i >= 0xae;

        c = self ? i : 0x100 + others;
        others += !self;
    }
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* A string of bytes in the byte alphabet. */
static inline struct pi_str vocab_escape(struct vocab *v, const char *s, size_t n)
{
    struct pi_str out = {v->text + v->n_text, 0};
    char c[2];

    for (size_t i = 0; i < n; i++)
        out.n += vocab_keep(v, c, byte_char((uint8_t)s[i], c)).n;
    return out;
}

/* Appends the merge of two byte strings, and its token. Returns the token's id. */
static inline int32_t vocab_merge(struct vocab *v, const char *left, const char *right)
{
    struct pi_str both, merge = vocab_escape(v, left, strlen(left));

    merge.n += vocab_keep(v, " ", 1).n;
    merge.n += vocab_escape(v, right, strlen(right)).n;
    v->merges[v->n_merges++] = merge;
    both = vocab_escape(v, left, strlen(left));
    both.n += vocab_escape(v, right, strlen(right)).n;
    v->tokens[v->n] = both;
    v->types[v->n] = T_NORMAL;
    return (int32_t)v->n++;
}

/* <unk> <s> </s>, 256 byte tokens (3 to 258), and nothing else yet. */
static inline struct vocab *vocab_spm(void)
{
    struct vocab *v = calloc(1, sizeof(*v));
    char name[16];

    if (v == NULL)
        abort();
    v->model = "llama";
    v->arch = "llama";
    v->unk = (uint32_t)vocab_add(v, "<unk>", T_UNKNOWN, 0.0f);
    v->bos = (uint32_t)vocab_add(v, "<s>", T_CONTROL, 0.0f);
    v->eos = (uint32_t)vocab_add(v, "</s>", T_CONTROL, 0.0f);
    for (unsigned b = 0; b < 256; b++) {
        (void)snprintf(name, sizeof(name), "<0x%02X>", b);
        (void)vocab_add(v, name, T_BYTE, 0.0f);
    }
    return v;
}

/* 256 bytes (token = byte), then <|end|> (256). */
static inline struct vocab *vocab_bpe(void)
{
    struct vocab *v = calloc(1, sizeof(*v));

    if (v == NULL)
        abort();
    v->model = "gpt2";
    v->arch = "gpt2";
    v->unk = v->bos = UINT32_MAX;
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b;

        v->tokens[v->n] = vocab_escape(v, &c, 1);
        v->types[v->n++] = T_NORMAL;
    }
    v->eos = (uint32_t)vocab_add(v, "<|end|>", T_CONTROL, 0.0f);
    return v;
}

/* A writer that holds the vocabulary; a test may replace keys before vocab_commit(). */
static inline struct pi_gguf_writer *vocab_begin(struct vocab *v)
{
    static int n_files;
    struct pi_gguf_writer *w = NULL;
    struct pi_err e = {0};
    int rc;

    (void)snprintf(v->path, sizeof(v->path), "t_tok_%ld_%d.gguf", (long)getpid(), n_files++);
    rc = pi_gguf_writer_create(v->path, &w, &e) ||
         pi_gguf_set_string(w, "general.architecture", v->arch, &e) ||
         pi_gguf_set_string(w, "tokenizer.ggml.model", v->model, &e) ||
         pi_gguf_set_strings(w, "tokenizer.ggml.tokens", v->tokens, v->n, &e) ||
         pi_gguf_set_array(w, "tokenizer.ggml.token_type", PI_GGUF_I32, v->types, v->n, &e);
    if (rc == 0 && strcmp(v->model, "llama") == 0)
        rc = pi_gguf_set_array(w, "tokenizer.ggml.scores", PI_GGUF_F32, v->scores, v->n, &e);
    else if (rc == 0)
        rc = pi_gguf_set_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges, &e);
    if (rc == 0 && v->pre != NULL)
        rc = pi_gguf_set_string(w, "tokenizer.ggml.pre", v->pre, &e);
    rc = rc || pi_gguf_set_u32(w, "tokenizer.ggml.bos_token_id", v->bos, &e) ||
         pi_gguf_set_u32(w, "tokenizer.ggml.eos_token_id", v->eos, &e) ||
         pi_gguf_set_u32(w, "tokenizer.ggml.unknown_token_id", v->unk, &e);
    if (rc != 0) {
        printf("Bail out! cannot write a vocabulary: %s\n", e.msg);
        exit(1);
    }
    return w;
}

/* Writes the file, opens it, removes its name. */
static inline enum pi_code vocab_gguf(struct vocab *v, struct pi_gguf_writer *w, struct pi_gguf *g,
                                      struct pi_err *e)
{
    enum pi_code rc;

    if (pi_gguf_begin(w, e) != PI_OK || pi_gguf_commit(w, e) != PI_OK) {
        printf("Bail out! cannot write a vocabulary: %s\n", e->msg);
        exit(1);
    }
    rc = pi_gguf_open(v->path, 0, g, e);
    (void)unlink(v->path);
    return rc;
}

/* The tokenizer of what w holds. *t is NULL unless PI_OK comes back. */
static inline enum pi_code vocab_commit(struct vocab *v, struct pi_gguf_writer *w,
                                        struct pi_tokenizer **t, struct pi_err *e)
{
    struct pi_gguf g = {0};
    enum pi_code rc = vocab_gguf(v, w, &g, e);

    *t = NULL;
    if (rc == PI_OK)
        rc = pi_tokenizer_create(&g, t, e);
    pi_gguf_close(&g);
    return rc;
}

/* The tokenizer of a vocabulary that must be good. */
static inline struct pi_tokenizer *vocab_open(struct vocab *v)
{
    struct pi_tokenizer *t;
    struct pi_err e = {0};

    if (vocab_commit(v, vocab_begin(v), &t, &e) != PI_OK) {
        printf("Bail out! cannot open a vocabulary: %s\n", e.msg);
        exit(1);
    }
    return t;
}

#endif
