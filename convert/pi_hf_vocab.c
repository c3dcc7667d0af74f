#include "config.h"

#include "convert/pi_hf_vocab.h"
#include "common/pi_alloc.h"
#include "common/pi_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct sources {
    struct pi_json config, map,
        generation; /* tokenizer_config.json, special_tokens_map.json, generation_config.json */
};

static enum pi_code load_spm(const char *dir, const struct pi_notes *notes, struct pi_vocab *v,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_map m = {0};
    char *path = pi_asprintf(err, "%s/tokenizer.model", dir);

    if (path == NULL)
        return PI_E_NOMEM;
    PI_TRY(pi_map_open(path, &m, err));
    if (pi_is_lfs_pointer(m.data, m.size))
        PI_FAIL(err, PI_E_CORRUPT, "%s: " PI_LFS_POINTER, path);
    PI_TRY(pi_spm_parse(m.data, m.size, path, notes, v, err));
    v->add_bos = true;
out:
    pi_map_close(&m);
    free(path);
    return rc;
}

static enum pi_code load_json(const char *dir, const struct pi_notes *notes, struct pi_vocab *v,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_json j = {0};
    char *merges = NULL;

    if (pi_json_exists(dir, "tokenizer.json")) {
        PI_TRY(pi_json_load(dir, "tokenizer.json", false, &j, err));
        PI_TRY(pi_tok_json_parse(&j, notes, v, err));
    } else if (pi_json_exists(dir, "vocab.json") && pi_json_exists(dir, "merges.txt")) {
        PI_TRY(pi_json_load(dir, "vocab.json", false, &j, err));
        merges = pi_asprintf(err, "%s/merges.txt", dir);
        if (merges == NULL) {
            rc = PI_E_NOMEM;
            goto out;
        }
        PI_TRY(pi_vocab_json_parse(&j, merges, v, err));
    } else {
        PI_FAIL(
            err, PI_E_IO,
            "%s: no tokenizer in it (tokenizer.model, tokenizer.json, or vocab.json with merges.txt)",
            dir);
    }
out:
    free(merges);
    pi_json_free(&j);
    return rc;
}

/* A special token is written as its text or as an object with "content". */
static const char *token_text(const json_t *v)
{
    return json_is_object(v) ? json_string_value(json_object_get(v, "content"))
                             : json_string_value(v);
}

/* The tokenizer's own word first, then config.json's id, then what the vocabulary file said. */
static void resolve_id(const struct sources *s, const struct pi_vocab *v, const char *key,
                       int64_t config_id, int64_t *id)
{
    const char *text = token_text(json_object_get(s->config.root, key));
    int64_t found;

    if (text == NULL)
        text = token_text(json_object_get(s->map.root, key));
    found = text != NULL ? pi_vocab_find(v, text) : -1;
    if (found >= 0)
        *id = found;
    else if (config_id >= 0)
        *id = config_id;
}

static enum pi_code add_decoder_tokens(const struct pi_json *j, struct pi_vocab *v,
                                       struct pi_err *err)
{
    const json_t *map = json_object_get(j->root, "added_tokens_decoder");
    const char *key;
    json_t *o;

    json_object_foreach((json_t *)(uintptr_t)map, key, o)
    {
        char *end;
        const char *text = token_text(o);
        enum pi_token_type type =
            json_is_true(json_object_get(o, "special")) ? PI_TOKEN_CONTROL : PI_TOKEN_USER;
        unsigned long long id;

        errno = 0;
        id = strtoull(key, &end, 10);
        if (text == NULL || *end != '\0' || end == key || *key == '-' || errno != 0)
            return pi_err_set(
                err, PI_E_CORRUPT,
                "%s: \"added_tokens_decoder\" has an entry \"%.40s\" that is no token", j->path,
                key);
        if (id < v->n && v->t[id].text != NULL && v->t[id].type != PI_TOKEN_NORMAL)
            continue; /* the vocabulary file knows better: unknown, byte, control */
        enum pi_code rc = pi_vocab_set(v, j->path, id, text, strlen(text),
                                       id < v->n ? v->t[id].score : 0.0f, type, err);
        if (rc != PI_OK)
            return rc;
    }
    return PI_OK;
}

/* added_tokens.json: {"text": id}, written by older versions. */
static enum pi_code add_listed_tokens(const char *dir, struct pi_vocab *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_json j = {0};
    const char *text;
    json_t *id;

    PI_TRY(pi_json_load(dir, "added_tokens.json", true, &j, err));
    json_object_foreach(j.root, text, id)
    {
        json_int_t i = json_integer_value(id);
        if (!json_is_integer(id) || i < 0)
            PI_FAIL(err, PI_E_CORRUPT, "%s: token \"%.60s\" has no id", j.path, text);
        if ((uint64_t)i < v->n && v->t[i].text != NULL)
            continue;
        PI_TRY(pi_vocab_set(v, j.path, (uint64_t)i, text, strlen(text), 0.0f, PI_TOKEN_USER, err));
    }
out:
    pi_json_free(&j);
    return rc;
}

/* A file of its own comes before what the tokenizer's settings say, as in transformers. */
static enum pi_code read_template(const char *dir, const json_t *t, struct pi_vocab *v,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *text = json_string_value(t);
    char *path = NULL;
    size_t n = 0;

    if (pi_json_exists(dir, "chat_template.jinja")) {
        path = pi_asprintf(err, "%s/chat_template.jinja", dir);
        if (path == NULL)
            return PI_E_NOMEM;
        PI_TRY(pi_read_side_file(path, (size_t)1 << 20, &v->chat_template, &n, err));
        goto out;
    }
    for (size_t i = 0; i < json_array_size(t); i++) { /* several by name: the one called default */
        const char *name = json_string_value(json_object_get(json_array_get(t, i), "name"));
        if (text == NULL || (name != NULL && strcmp(name, "default") == 0))
            text = json_string_value(json_object_get(json_array_get(t, i), "template"));
    }
    if (text != NULL) {
        v->chat_template = pi_strndup(text, strlen(text), err);
        rc = v->chat_template != NULL ? PI_OK : PI_E_NOMEM;
    }
out:
    free(path);
    return rc;
}

static enum pi_code read_special(const char *dir, const struct sources *s,
                                 const struct pi_hf_config *c, struct pi_vocab *v,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *class = json_string_value(json_object_get(s->config.root, "tokenizer_class"));
    const json_t *ends = json_object_get(s->generation.root, "eos_token_id");

    PI_TRY(add_decoder_tokens(&s->config, v, err));
    PI_TRY(add_listed_tokens(dir, v, err));
    resolve_id(s, v, "bos_token", c->bos, &v->bos);
    resolve_id(s, v, "eos_token", c->eos, &v->eos);
    resolve_id(s, v, "unk_token", -1, &v->unk);
    resolve_id(s, v, "pad_token", c->pad, &v->pad);
    v->eot = c->eot;
    for (size_t i = 0; i < json_array_size(ends) && v->eot < 0; i++) {
        const json_t *e = json_array_get(ends, i);
        if (json_is_integer(e) && json_integer_value(e) != v->eos)
            v->eot = json_integer_value(e);
    }
    v->eot =
        v->eot == v->eos ? c->eos : v->eot; /* a list whose order differs from the tokenizer's */
    if (v->eot == v->eos)
        v->eot = -1;
    if (class != NULL && strncmp(class, "Llama", 5) == 0 && v->spm)
        v->add_bos = true;
    PI_TRY(pi_json_bool(s->config.root, s->config.path, "add_bos_token", &v->add_bos, err));
    PI_TRY(pi_json_bool(s->config.root, s->config.path, "add_eos_token", &v->add_eos, err));
    PI_TRY(pi_json_bool(s->config.root, s->config.path, "add_prefix_space", &v->add_space_prefix,
                        err));
    PI_TRY(read_template(dir, json_object_get(s->config.root, "chat_template"), v, err));
out:
    return rc;
}

enum pi_code pi_hf_vocab_load(const char *dir, const struct pi_hf_config *c,
                              const struct pi_notes *notes, struct pi_vocab *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_vocab v = {0};
    struct sources s = {0};
    size_t n_dropped = 0, n_had;

    PI_TRY(pi_json_load(dir, "tokenizer_config.json", true, &s.config, err));
    PI_TRY(pi_json_load(dir, "special_tokens_map.json", true, &s.map, err));
    PI_TRY(pi_json_load(dir, "generation_config.json", true, &s.generation, err));
    if (pi_json_exists(dir, "tokenizer.model"))
        PI_TRY(load_spm(dir, notes, &v, err));
    else
        PI_TRY(load_json(dir, notes, &v, err));
    PI_TRY(read_special(dir, &s, c, &v, err));
    n_had = v.n;
    PI_TRY(pi_vocab_fit(&v, c->shape.n_vocab, &n_dropped, err));
    if (n_dropped > 0)
        pi_note(notes,
                "%s: the last %zu of %zu tokens have no row in the embedding and are left out", dir,
                n_dropped, n_had);
    *out = v;
    v = (struct pi_vocab){0};
out:
    pi_json_free(&s.config);
    pi_json_free(&s.map);
    pi_json_free(&s.generation);
    pi_vocab_free(&v);
    return rc;
}
