/*
 * tokenizer.json of the "tokenizers" library, and the older pair of vocab.json and merges.txt.
 */
#include "config.h"

#include "convert/pi_hf_vocab.h"
#include "common/pi_alloc.h"
#include "common/pi_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MERGES_BYTES ((size_t)256 << 20)

/* Patterns of pre-tokenisers by which a vocabulary is recognised; the names are those of tokenizer.ggml.pre. */
static const struct {
    const char *regex, *pre;
} known_splits[] = {
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "llama-bpe"},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "qwen2"},
};

struct split { /* what a chain of pre-tokenisers is made of */
    bool byte_level, regex, punctuation, digits_single, digits_three;
    const char *pre;     /* of a known regex */
    const char *unknown; /* the first part that is not understood */
};

static const char *type_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));

    return s != NULL ? s : "";
}

static void look_at_split(const json_t *o, struct split *s)
{
    const char *regex = json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));

    if (regex == NULL) {
        s->unknown = "Split without a regular expression";
        return;
    }
    for (size_t i = 0; i < sizeof(known_splits) / sizeof(known_splits[0]); i++)
        if (strcmp(regex, known_splits[i].regex) == 0) {
            s->pre = known_splits[i].pre;
            return;
        }
    if (strcmp(regex, "[0-9][0-9][0-9]") == 0)
        s->digits_three = true;
    else
        s->unknown = regex;
}

static void look_at_pre(const json_t *o, struct split *s)
{
    const char *type = type_of(o);

    if (strcmp(type, "ByteLevel") == 0) {
        s->byte_level = true;
        s->regex = !json_is_false(json_object_get(o, "use_regex"));
    } else if (strcmp(type, "Split") == 0) {
        look_at_split(o, s);
    } else if (strcmp(type, "Punctuation") == 0) {
        s->punctuation = true;
    } else if (strcmp(type, "Digits") == 0) {
        s->digits_single =
            s->digits_single || json_is_true(json_object_get(o, "individual_digits"));
    } else {
        s->unknown = type;
    }
}

static enum pi_code recognise_split(const struct pi_json *j, const char **pre_out,
                                    struct pi_err *err)
{
    const json_t *pre = json_object_get(j->root, "pre_tokenizer"),
                 *list = json_object_get(pre, "pretokenizers");
    struct split s = {0};

    for (size_t i = 0; i < json_array_size(list); i++)
        look_at_pre(json_array_get(list, i), &s);
    if (list == NULL)
        look_at_pre(pre, &s);
    if (s.unknown != NULL || !s.byte_level)
        return pi_err_set(err, PI_E_UNSUPPORTED, "%s: pre-tokeniser \"%.200s\" is not supported",
                          j->path, s.unknown != NULL ? s.unknown : "(not byte-level)");
    if (s.pre != NULL)
        *pre_out = s.pre;
    else if (s.punctuation && s.digits_three)
        *pre_out = "falcon";
    else if (s.digits_single && s.regex)
        *pre_out = "starcoder";
    else if (s.regex && !s.punctuation && !s.digits_three)
        *pre_out = "gpt-2";
    else
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: this chain of pre-tokenisers is not supported", j->path);
    return PI_OK;
}

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

static enum pi_code read_added(const struct pi_json *j, struct pi_vocab *v, struct pi_err *err)
{
    const json_t *list = json_object_get(j->root, "added_tokens");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i), *id = json_object_get(o, "id");
        const char *text = json_string_value(json_object_get(o, "content"));
        bool special = json_is_true(json_object_get(o, "special"));
        enum pi_token_type type = special ? PI_TOKEN_CONTROL : PI_TOKEN_USER;

        if (text == NULL || !json_is_integer(id) || json_integer_value(id) < 0)
            return pi_err_set(err, PI_E_CORRUPT, "%s: added token %zu has no text or no id",
                              j->path, i);
        enum pi_code rc = pi_vocab_set(v, j->path, (uint64_t)json_integer_value(id), text,
                                       strlen(text), 0.0f, type, err);
        if (rc != PI_OK)
            return rc;
    }
    return PI_OK;
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

static bool has_prepend(const json_t *root)
{
    const json_t *norm = json_object_get(root, "normalizer"),
                 *list = json_object_get(norm, "normalizers");
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const char *scheme = json_string_value(json_object_get(pre, "prepend_scheme"));

    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(type_of(json_array_get(list, i)), "Prepend") == 0)
            return true;
    if (strcmp(type_of(norm), "Prepend") == 0)
        return true;
    if (strcmp(type_of(pre), "Metaspace") != 0)
        return false;
    return scheme != NULL ? strcmp(scheme, "never") != 0
                          : !json_is_false(json_object_get(pre, "add_prefix_space"));
}

/* Does the post-processor put a special token in front? Then a BOS is wanted even where no key says so. */
static bool template_begins_special(const json_t *post)
{
    const json_t *list = json_object_get(post, "processors");

    for (size_t i = 0; i < json_array_size(list); i++)
        if (template_begins_special(json_array_get(list, i)))
            return true;
    return strcmp(type_of(post), "TemplateProcessing") == 0 &&
           json_object_get(json_array_get(json_object_get(post, "single"), 0), "SpecialToken") !=
               NULL;
}

enum pi_code pi_tok_json_parse(const struct pi_json *j, const struct pi_notes *notes,
                               struct pi_vocab *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const json_t *model = json_object_get(j->root, "model"),
                 *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const char *unk = json_string_value(json_object_get(model, "unk_token"));

    v->bos = v->eos = v->eot = v->unk = v->pad = -1;
    if (strcmp(type_of(model), "BPE") != 0 && !(*type_of(model) == '\0' && json_is_array(merges)))
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "%s: tokenizer model \"%.40s\" is not supported (supported: BPE)", j->path,
                type_of(model));
    v->spm = json_is_true(json_object_get(model, "byte_fallback"));
    v->pre = "default";
    if (!v->spm)
        PI_TRY(recognise_split(j, &v->pre, err));
    else
        v->add_space_prefix = has_prepend(j->root);
    PI_TRY(read_vocab(j, vocab, v, err));
    PI_TRY(read_added(j, v, err));
    for (size_t i = 0; i < json_array_size(merges); i++)
        PI_TRY(read_merge(j, v, json_array_get(merges, i), err));
    if (v->spm) {
        PI_TRY(score_by_merges(j, v, vocab, err));
        pi_note(notes,
                "%s: no tokenizer.model: SentencePiece scores are taken from the order of merges",
                j->path);
    }
    if (unk != NULL)
        v->unk = pi_vocab_find(v, unk);
    if (v->spm && v->unk >= 0)
        v->t[v->unk].type = PI_TOKEN_UNKNOWN;
    v->add_bos = template_begins_special(json_object_get(j->root, "post_processor"));
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
    PI_TRY(pi_file_read_all(merges_path, false, MAX_MERGES_BYTES, &text, &n, err));
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
