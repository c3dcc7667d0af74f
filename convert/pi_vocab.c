#include "config.h"

#include "convert/pi_vocab.h"
#include "common/pi_alloc.h"
#include "common/pi_tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table this long is made for one hostile id; the largest vocabularies hold a quarter of it. */
#define MAX_IDS (1u << 20)

enum pi_code pi_vocab_set(struct pi_vocab *v, const char *where, uint64_t id, const char *text,
                          size_t n, float score, enum pi_token_type type, struct pi_err *err)
{
    struct pi_vocab_token *t;
    char *copy;

    if (id >= MAX_IDS)
        return pi_err_set(err, PI_E_CORRUPT, "%s: token id %" PRIu64 " is above %u", where, id,
                          MAX_IDS - 1);
    if (pi_grow_array(&v->t, &v->cap, (size_t)id + 1, sizeof(*v->t), err) != PI_OK)
        return PI_E_NOMEM;
    if (v->n <= id)
        v->n = (size_t)id + 1;
    t = &v->t[id];
    if (t->text != NULL && (t->n != n || memcmp(t->text, text, n) != 0))
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tokens \"%.40s\" and \"%.40s\" have one id, %" PRIu64, where,
                          t->text, text, id);
    copy = pi_strndup(text, n, err);
    if (copy == NULL)
        return PI_E_NOMEM;
    free(t->text);
    *t = (struct pi_vocab_token){copy, n, score, type};
    return PI_OK;
}

enum pi_code pi_vocab_add_merge(struct pi_vocab *v, const char *where, const char *text, size_t n,
                                struct pi_err *err)
{
    const char *space = memchr(text, ' ', n);
    size_t left = space != NULL ? (size_t)(space - text) : 0;
    char *copy;

    if (left == 0 || left + 1 >= n || memchr(space + 1, ' ', n - left - 1) != NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: merge %zu is no pair of parts: \"%.*s\"", where,
                          v->n_merges, (int)(n < 60 ? n : 60), text);
    if (pi_grow_array(&v->merges, &v->cap_merges, v->n_merges + 1, sizeof(*v->merges), err) !=
        PI_OK)
        return PI_E_NOMEM;
    copy = pi_strndup(text, n, err);
    if (copy == NULL)
        return PI_E_NOMEM;
    v->merges[v->n_merges++] = (struct pi_str){copy, n};
    return PI_OK;
}

int64_t pi_vocab_find(const struct pi_vocab *v, const char *text)
{
    size_t n = strlen(text);

    for (size_t i = 0; i < v->n; i++)
        if (v->t[i].text != NULL && v->t[i].n == n && memcmp(v->t[i].text, text, n) == 0)
            return (int64_t)i;
    return -1;
}

enum pi_code pi_vocab_fit(struct pi_vocab *v, size_t n, size_t *n_dropped, struct pi_err *err)
{
    int64_t *ids[] = {&v->bos, &v->eos, &v->eot, &v->unk, &v->pad};
    char text[32];

    *n_dropped = 0;
    for (; v->n > n; v->n--) {
        *n_dropped += v->t[v->n - 1].text != NULL;
        free(v->t[v->n - 1].text);
        v->t[v->n - 1].text = NULL;
    }
    for (size_t i = 0; i < n; i++) {
        int k = snprintf(text, sizeof(text), "[PAD%zu]", i);
        if (i < v->n && v->t[i].text != NULL)
            continue;
        enum pi_code rc =
            pi_vocab_set(v, "vocabulary", i, text, (size_t)k, 0.0f, PI_TOKEN_UNUSED, err);
        if (rc != PI_OK)
            return rc;
    }
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        if (*ids[i] < 0 || (uint64_t)*ids[i] >= n)
            *ids[i] = -1;
    return PI_OK;
}

static enum pi_code write_tokens(const struct pi_vocab *v, struct pi_gguf_writer *w,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_str *texts = NULL;
    float *scores = NULL;
    int32_t *types = NULL;

    PI_ALLOC(texts, v->n, err);
    PI_ALLOC(scores, v->n, err);
    PI_ALLOC(types, v->n, err);
    for (size_t i = 0; i < v->n; i++) {
        texts[i] = (struct pi_str){v->t[i].text, v->t[i].n};
        scores[i] = v->t[i].score;
        types[i] = v->t[i].type;
    }
    PI_TRY(pi_gguf_set_strings(w, "tokenizer.ggml.tokens", texts, v->n, err));
    if (v->spm)
        PI_TRY(pi_gguf_set_array(w, "tokenizer.ggml.scores", PI_GGUF_F32, scores, v->n, err));
    PI_TRY(pi_gguf_set_array(w, "tokenizer.ggml.token_type", PI_GGUF_I32, types, v->n, err));
out:
    free(types);
    free(scores);
    free(texts);
    return rc;
}

enum pi_code pi_vocab_write(const struct pi_vocab *v, struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct {
        const char *key;
        int64_t id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", v->bos},     {"tokenizer.ggml.eos_token_id", v->eos},
        {"tokenizer.ggml.eot_token_id", v->eot},     {"tokenizer.ggml.unknown_token_id", v->unk},
        {"tokenizer.ggml.padding_token_id", v->pad},
    };

    PI_TRY(pi_gguf_set_string(w, "tokenizer.ggml.model", v->spm ? "llama" : "gpt2", err));
    PI_TRY(pi_gguf_set_string(w, "tokenizer.ggml.pre", v->pre, err));
    PI_TRY(write_tokens(v, w, err));
    if (!v->spm && v->n_merges > 0)
        PI_TRY(pi_gguf_set_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges, err));
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        if (ids[i].id >= 0)
            PI_TRY(pi_gguf_set_u32(w, ids[i].key, (uint32_t)ids[i].id, err));
    PI_TRY(pi_gguf_set_bool(w, "tokenizer.ggml.add_bos_token", v->add_bos && v->bos >= 0, err));
    PI_TRY(pi_gguf_set_bool(w, "tokenizer.ggml.add_eos_token", v->add_eos && v->eos >= 0, err));
    PI_TRY(pi_gguf_set_bool(w, "tokenizer.ggml.add_space_prefix", v->add_space_prefix, err));
    if (v->add_space_prefix && v->metaspace != NULL)
        PI_TRY(pi_gguf_set_string(w, PI_TOK_KEY_METASPACE, v->metaspace, err));
    if (v->chat_template != NULL)
        PI_TRY(pi_gguf_set_string(w, "tokenizer.chat_template", v->chat_template, err));
out:
    return rc;
}

void pi_vocab_free(struct pi_vocab *v)
{
    for (size_t i = 0; i < v->n; i++)
        free(v->t[i].text);
    for (size_t i = 0; i < v->n_merges; i++)
        free((void *)(uintptr_t)v->merges[i].p);
    free(v->t);
    free(v->merges);
    free(v->chat_template);
    *v = (struct pi_vocab){0};
}
