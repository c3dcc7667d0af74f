/*
 * pi_hf_vocab.h - the tokenizer of a Hugging Face directory.
 *
 * tokenizer.model (SentencePiece) where there is one; else tokenizer.json (byte-level BPE, or SentencePiece's BPE with byte fallback); else vocab.json and
 * merges.txt. tokenizer_config.json and config.json say which tokens are special and whether a BOS is put in front.
 */
#ifndef PI_HF_VOCAB_H
#define PI_HF_VOCAB_H

#include "common/pi_err.h"
#include "convert/pi_hf.h"
#include "convert/pi_json.h"
#include "convert/pi_note.h"
#include "convert/pi_vocab.h"

#include <stddef.h>
#include <stdint.h>

/* Fitted to c->shape.n_vocab tokens. PI_E_CORRUPT, PI_E_UNSUPPORTED (a tokenizer of another kind, by name), PI_E_IO (none at all). *out must be zeroed. */
enum pi_code pi_hf_vocab_load(const char *dir, const struct pi_hf_config *c,
                              const struct pi_notes *notes, struct pi_vocab *out,
                              struct pi_err *err) PI_MUST_CHECK;

/* The parts of it, each filling v. */
enum pi_code pi_spm_parse(const uint8_t *data, size_t n, const char *path,
                          const struct pi_notes *notes, struct pi_vocab *v,
                          struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_tok_json_parse(const struct pi_json *j, const struct pi_notes *notes,
                               struct pi_vocab *v, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_vocab_json_parse(const struct pi_json *j, const char *merges_path,
                                 struct pi_vocab *v, struct pi_err *err) PI_MUST_CHECK;

#endif
