/*
 * tokenizer.json of the "tokenizers" library, and the older pair of vocab.json and merges.txt.
 */
#include "config.h"

#include "convert/pi_hf_vocab.h"
#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "convert/pi_tok_form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PIECE        4096 /* bytes; longer ones no tokenizer here takes */
#define MAX_MERGES_BYTES ((size_t)256 << 20)

static enum pi_code read_merge(const struct pi_json *j, struct pi_vocab *v, const json_t *m,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *a = json_string_value(json_array_get(m, 0)),
               *b = json_string_value(json_array_get(m, 1));
    char *joined = NULL;

    if (json_is_string(m))
        return pi_vocab_add_merge(v, j->path, json_string_value(m), json_string_length(m), err);
    if (a == NULL || b == NULL || json_array_size(m) != 2)
        return pi_err_set(err, PI_E_CORRUPT, "%s: merge %zu is no pair of parts", j->path,
                          v->n_merges);
    joined = pi_asprintf(err, "%s %s", a, b);
    if (joined == NULL)
        return PI_E_NOMEM;
    PI_TRY(pi_vocab_add_merge(v, j->path, joined, strlen(joined), err));
out:
    free(joined);
    return rc;
}

static enum pi_code read_vocab(const struct pi_json *j, const json_t *vocab, struct pi_vocab *v,
                               struct pi_err *err)
{
    const char *text;
    json_t *id;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return pi_err_set(err, PI_E_CORRUPT, "%s: no vocabulary", j->path);
    json_object_foreach((json_t *)(uintptr_t)vocab, text, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return pi_err_set(err, PI_E_CORRUPT, "%s: token \"%.60s\" has no id", j->path, text);
        enum pi_code rc = pi_vocab_set(v, j->path, (uint64_t)json_integer_value(id), text,
                                       strlen(text), 0.0f, PI_TOKEN_NORMAL, err);
        if (rc != PI_OK)
            return rc;
    }
    return PI_OK;
}

/* Flags by which a token takes white space with it, or is none inside a word. Before a normaliser that puts a space in front, "normalized" ones are
 * looked for with it. */
static enum pi_code check_added(const struct pi_json *j, const json_t *o, bool spm,
                                struct pi_err *err)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word", "normalized"};
    const json_t *norm = json_object_get(j->root, "normalizer");
    const bool matters =
        spm && norm != NULL && !json_is_null(norm) && !json_is_true(json_object_get(o, "special"));

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (json_is_true(json_object_get(o, flags[i])) && (i < 3 || matters))
            return pi_err_set(err, PI_E_UNSUPPORTED,
                              "%s: added token \"%.60s\": \"%s\": true is not supported", j->path,
                              json_string_value(json_object_get(o, "content")), flags[i]);
    return PI_OK;
}

static enum pi_code read_added(const struct pi_json *j, bool spm, struct pi_vocab *v,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const json_t *list = json_object_get(j->root, "added_tokens");

    if (list != NULL && !json_is_null(list) && !json_is_array(list))
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"added_tokens\" is no list", j->path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i), *id = json_object_get(o, "id");
        const char *text = json_string_value(json_object_get(o, "content"));
        bool special = json_is_true(json_object_get(o, "special"));
        enum pi_token_type type = special ? PI_TOKEN_CONTROL : PI_TOKEN_USER;

        if (text == NULL || *text == '\0' || !json_is_integer(id) || json_integer_value(id) < 0)
            return pi_err_set(err, PI_E_CORRUPT, "%s: added token %zu has no text or no id",
                              j->path, i);
        PI_TRY(check_added(j, o, spm, err));
        PI_TRY(pi_vocab_set(v, j->path, (uint64_t)json_integer_value(id), text, strlen(text), 0.0f,
                            type, err));
    }
out:
    return rc;
}

/* SentencePiece joins the pair whose result scores highest; here the pair of lowest rank. So a piece scores by the first merge that makes it. */
static enum pi_code score_by_merges(const struct pi_json *j, struct pi_vocab *v,
                                    const json_t *vocab, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *piece = NULL;

    for (size_t m = 0; m < v->n_merges; m++) {
        const char *text = v->merges[m].p, *space = strchr(text, ' ');
        const json_t *id;

        free(piece);
        piece =
            space == NULL ? NULL : pi_asprintf(err, "%.*s%s", (int)(space - text), text, space + 1);
        if (piece == NULL)
            PI_FAIL(err, PI_E_NOMEM, "%s: merge %zu", j->path, m);
        id = json_object_get(vocab, piece);
        if (id == NULL)
            PI_FAIL(err, PI_E_CORRUPT, "%s: merge %zu makes \"%.60s\", which is no token", j->path,
                    m, piece);
        if (v->t[json_integer_value(id)].score >= 0.0f)
            v->t[json_integer_value(id)].score = -(float)(m + 1);
    }
    for (size_t i = 0; i < v->n; i++) {
        struct pi_vocab_token *t = &v->t[i];
        unsigned byte;
        char end;

        if (t->text == NULL)
            continue;
        if (t->n == 6 && sscanf(t->text, "<0x%2X%c", &byte, &end) == 2 && end == '>')
            t->type = PI_TOKEN_BYTE;
        else if (t->type == PI_TOKEN_NORMAL && t->score >= 0.0f)
            t->score = -(float)(v->n_merges + i + 1);
    }
out:
    free(piece);
    return rc;
}

/* Which texts may be tokens, told by a hash alone: a cut of a long token costs no walk over its bytes unless both parts may be. The hash of a text is the
 * sum of its bytes times powers of POWER, so that of an end follows from those of the whole and of the beginning. */
#define POWER 0x9e3779b97f4a7c15u

struct sieve {
    uint8_t *bits;
    uint64_t n_bits;               /* a power of two */
    uint64_t power[MAX_PIECE + 1]; /* POWER^i */
};

static uint64_t sieve_at(const struct sieve *s, uint64_t hash)
{
    hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93u;
    return (hash ^ hash >> 32) & (s->n_bits - 1);
}

static bool may_be(const struct sieve *s, uint64_t hash)
{
    const uint64_t at = sieve_at(s, hash);

    return (s->bits[at / 8] >> at % 8 & 1) != 0;
}

static enum pi_code sieve_fill(struct sieve *s, const json_t *vocab, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *text;
    json_t *id;

    for (s->n_bits = 64; s->n_bits / 32 < json_object_size(vocab);)
        s->n_bits *= 2;
    PI_ALLOC(s->bits, (size_t)(s->n_bits / 8), err);
    s->power[0] = 1;
    for (size_t i = 1; i <= MAX_PIECE; i++)
        s->power[i] = s->power[i - 1] * POWER;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, id)
    {
        uint64_t hash = 0;

        for (const char *p = text; *p != '\0'; p++)
            hash = hash * POWER + (uint8_t)*p;
        s->bits[sieve_at(s, hash) / 8] |= (uint8_t)(1u << sieve_at(s, hash) % 8);
    }
out:
    return rc;
}

/* The cuts of one token, of at most MAX_PIECE bytes, into two tokens: each must be in pairs. */
static enum pi_code check_cuts(const struct pi_json *j, const struct sieve *s,
                               const struct pi_vocab_token *t, const json_t *vocab,
                               const json_t *pairs, struct pi_err *err)
{
    char left[MAX_PIECE + 1], pair[2 * MAX_PIECE + 2];
    uint64_t whole = 0, begin = 0;

    for (size_t k = 0; k < t->n; k++)
        whole = whole * POWER + (uint8_t)t->text[k];
    for (size_t k = 1; k < t->n; k++) {
        begin = begin * POWER + (uint8_t)t->text[k - 1];
        if (((uint8_t)t->text[k] & 0xc0) == 0x80 || !may_be(s, begin) ||
            !may_be(s, whole - begin * s->power[t->n - k]))
            continue;
        memcpy(left, t->text, k);
        left[k] = '\0';
        if (json_object_get(vocab, left) == NULL || json_object_get(vocab, t->text + k) == NULL)
            continue;
        (void)snprintf(pair, sizeof(pair), "%s %s", left, t->text + k);
        if (json_object_get(pairs, pair) == NULL)
            return pi_err_set(
                err, PI_E_UNSUPPORTED,
                "%s: byte fallback with merges that are not SentencePiece's (there is none of "
                "\"%s\", though both parts and the whole are tokens): give tokenizer.model",
                j->path, pair);
    }
    return PI_OK;
}

/* The library joins the pairs of its list, SentencePiece any two pieces that make a third: the same where the list holds every such pair, those of one
 * piece together, and no piece begins a word inside where words are apart. */
static enum pi_code check_merges(const struct pi_json *j, const struct pi_vocab *v,
                                 const json_t *vocab, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    json_t *pairs = json_object();
    const json_t *pre = json_object_get(j->root, "pre_tokenizer");
    const bool apart =
        pre != NULL && !json_is_null(pre) && !json_is_false(json_object_get(pre, "split"));
    struct sieve s = {0};

    for (size_t m = 0; m < v->n_merges && pairs != NULL; m++)
        if (json_object_set_new(pairs, v->merges[m].p, json_true()) != 0)
            PI_FAIL(err, PI_E_NOMEM, "%s: merge %zu", j->path, m);
    if (pairs == NULL)
        return pi_err_set(err, PI_E_NOMEM, "%s: merges", j->path);
    PI_TRY(sieve_fill(&s, vocab, err));
    for (size_t i = 0; i < v->n; i++) {
        const struct pi_vocab_token *t = &v->t[i];

        if (t->text == NULL || t->type != PI_TOKEN_NORMAL || t->n < 2)
            continue;
        if (t->n > MAX_PIECE)
            PI_FAIL(err, PI_E_UNSUPPORTED, "%s: token %zu has %zu bytes, at most %d are known",
                    j->path, i, t->n, MAX_PIECE);
        if (apart && strstr(t->text + 1, "\xe2\x96\x81") != NULL)
            PI_FAIL(err, PI_E_UNSUPPORTED,
                    "%s: token \"%s\" goes over words that the pre-tokeniser cuts apart", j->path,
                    t->text);
        PI_TRY(check_cuts(j, &s, t, vocab, pairs, err));
    }
out:
    free(s.bits);
    json_decref(pairs);
    return rc;
}

/* Without one of them a character may become an unknown token, and those are joined or not as fuse_unk says. */
static enum pi_code check_bytes(const struct pi_json *j, const struct pi_vocab *v,
                                struct pi_err *err)
{
    size_t n = 0;

    for (size_t i = 0; i < v->n; i++)
        n += v->t[i].text != NULL && v->t[i].type == PI_TOKEN_BYTE;
    if (n != 256)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: \"byte_fallback\" with %zu of the 256 byte tokens is not supported",
                          j->path, n);
    return PI_OK;
}

enum pi_code pi_tok_json_parse(const struct pi_json *j, const struct pi_notes *notes,
                               struct pi_vocab *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const json_t *model = json_object_get(j->root, "model"),
                 *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const char *unk = json_string_value(json_object_get(model, "unk_token"));
    struct pi_tok_form f;

    v->bos = v->eos = v->eot = v->unk = v->pad = -1;
    PI_TRY(pi_tok_form_read(j, notes, &f, err));
    v->spm = f.spm;
    v->pre = f.pre;
    v->add_space_prefix = f.add_space_prefix;
    v->metaspace = f.metaspace;
    PI_TRY(read_vocab(j, vocab, v, err));
    PI_TRY(read_added(j, f.spm, v, err));
    for (size_t i = 0; i < json_array_size(merges); i++)
        PI_TRY(read_merge(j, v, json_array_get(merges, i), err));
    if (v->spm) {
        PI_TRY(score_by_merges(j, v, vocab, err));
        PI_TRY(check_merges(j, v, vocab, err));
        PI_TRY(check_bytes(j, v, err));
        pi_note(notes,
                "%s: no tokenizer.model: SentencePiece scores are taken from the order of merges",
                j->path);
    }
    if (unk != NULL)
        v->unk = pi_vocab_find(v, unk);
    if (v->spm && v->unk >= 0)
        v->t[v->unk].type = PI_TOKEN_UNKNOWN;
    v->add_bos = f.add_bos;
    v->add_eos = f.add_eos;
    v->bos = f.bos != NULL ? pi_vocab_find(v, f.bos) : -1;
    v->eos = f.eos != NULL ? pi_vocab_find(v, f.eos) : -1;
out:
    return rc;
}

enum pi_code pi_vocab_json_parse(const struct pi_json *j, const char *merges_path,
                                 struct pi_vocab *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *text = NULL;
    size_t n = 0;

    v->bos = v->eos = v->eot = v->unk = v->pad = -1;
    v->pre = "gpt-2";
    PI_TRY(read_vocab(j, j->root, v, err));
    PI_TRY(pi_read_side_file(merges_path, MAX_MERGES_BYTES, &text, &n, err));
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t len = nl != NULL ? (size_t)(nl - text) - at : n - at, full = len;

        if (len > 0 && text[at + len - 1] == '\r')
            len--;
        if (len > 0 && !(at == 0 && strncmp(text, "#version", 8) == 0))
            PI_TRY(pi_vocab_add_merge(v, merges_path, text + at, len, err));
        at += full + 1;
    }
out:
    free(text);
    return rc;
}
