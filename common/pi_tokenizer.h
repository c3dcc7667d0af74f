/*
 * pi_tokenizer.h - text to token ids and back, from the vocabulary in a GGUF file.
 *
 * Two algorithms: SentencePiece BPE with byte fallback (tokenizer.ggml.model "llama") and byte-level BPE
 * ("gpt2") with the pre-tokeniser patterns of GPT-2, Falcon, StarCoder, Llama 3 and Qwen2 (tokenizer.ggml.pre; where that is
 * absent, architecture falcon means Falcon's, any other GPT-2's). Time is O(n log n) in the text's length, stack O(1). Decoding
 * an encoded text gives the same bytes back, invalid UTF-8 included, where the vocabulary has a token for every byte (a byte
 * without one becomes U+FFFD or the unknown token). Constant after creation: any number of threads may use one.
 */
#ifndef PI_TOKENIZER_H
#define PI_TOKENIZER_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Key of our own: where a SentencePiece vocabulary gets the space in front that add_space_prefix asks for, as tokenizer.json's Metaspace does it, only where
 * the text has none yet: "first" of the text, "always" (behind special tokens too). Without it: as SentencePiece, and behind control tokens. */
#define PI_TOK_KEY_METASPACE "pi.tokenizer.metaspace"

struct pi_tokenizer;

/* Copies what it needs: g may be closed afterwards. PI_E_UNSUPPORTED names a tokenizer model or pre-tokeniser we do not have;
 * PI_E_CORRUPT a vocabulary that contradicts itself. */
enum pi_code pi_tokenizer_create(const struct pi_gguf *g, struct pi_tokenizer **out,
                                 struct pi_err *err) PI_MUST_CHECK;
void pi_tokenizer_destroy(struct pi_tokenizer *t); /* accepts NULL */

uint32_t pi_tokenizer_n_vocab(const struct pi_tokenizer *t);
int32_t pi_tokenizer_bos(const struct pi_tokenizer *t); /* -1: none */
int32_t pi_tokenizer_eos(const struct pi_tokenizer *t); /* -1: none */
/* what the model says; false when it has no BOS */
bool pi_tokenizer_add_bos(const struct pi_tokenizer *t);
/* ends a generation: eos, eot */
bool pi_tokenizer_is_eog(const struct pi_tokenizer *t, int32_t id);

struct pi_tokens {
    int32_t *ids; /* (n), owned */
    size_t n, cap;
};
void pi_tokens_free(struct pi_tokens *t); /* accepts a zeroed one */
enum pi_code pi_tokens_push(struct pi_tokens *t, int32_t id, struct pi_err *err) PI_MUST_CHECK;

/* Appends the ids of n bytes of text. add_bos: puts the BOS in front (PI_E_UNSUPPORTED if the model has none).
 * parse_special: control tokens written out in the text ("</s>") become their ids; user-defined tokens always do. */
enum pi_code pi_tokenizer_encode(const struct pi_tokenizer *t, const char *text, size_t n,
                                 bool add_bos, bool parse_special, struct pi_tokens *out,
                                 struct pi_err *err) PI_MUST_CHECK;

/* The same for what people write inside a conversation: neither control tokens nor user-defined ones that look like them ("<...>": some files list a
 * template's markers as such) come up. begins: a text begins here; false: SentencePiece's space does not stand in front of it. */
enum pi_code pi_tokenizer_encode_people(const struct pi_tokenizer *t, const char *text, size_t n,
                                        bool add_bos, bool begins, struct pi_tokens *out,
                                        struct pi_err *err) PI_MUST_CHECK;
/* The control or user-defined token that is written so; -1: none. *control_out: which of the two. */
int32_t pi_tokenizer_special(const struct pi_tokenizer *t, const char *text, size_t n,
                             bool *control_out);

/* The bytes of one token as it stands in running text (a leading SentencePiece space is a space); control tokens
 * give none. Valid as long as t; not terminated. An id out of range gives an empty string. */
struct pi_str pi_tokenizer_piece(const struct pi_tokenizer *t, int32_t id);

/* All of a sequence: what encode was given, without the space that SentencePiece puts in front of a text.
 * *text_out is the caller's to free(), NUL behind it. */
enum pi_code pi_tokenizer_decode(const struct pi_tokenizer *t, const int32_t *ids, size_t n,
                                 char **text_out, size_t *n_out, struct pi_err *err) PI_MUST_CHECK;

/* The length of the longest prefix of s that ends at a UTF-8 character's end or is invalid for good: what may be
 * printed while more bytes may come. At most three bytes stay behind. */
size_t pi_utf8_complete(const char *s, size_t n);

#endif
