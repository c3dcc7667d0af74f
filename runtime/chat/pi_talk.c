#include "config.h"

#include "runtime/chat/pi_talk.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "runtime/pi_text.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define FORMAT_NAME    "pi-session"
#define FORMAT_VERSION 1
#define MAX_FILE_BYTES ((size_t)256 << 20)
#define SHOWN_DIGITS   12 /* of a lineage, in messages */

static const char *const role_names[] = {"system", "user", "assistant"};

enum pi_code pi_talk_add(struct pi_talk *t, enum pi_role role, const char *text, size_t n,
                         struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_text clean = {0};
    char *copy;

    PI_TRY(pi_text_push(&clean, text, n, err));
    PI_TRY(pi_text_finish(&clean, err));
    PI_TRY(pi_grow_array(&t->m, &t->cap, t->n + 1, sizeof(*t->m), err));
    copy = pi_strndup(clean.clean, clean.n_clean, err);
    if (copy == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    t->m[t->n++] = (struct pi_message){.role = role, .text = copy, .n = clean.n_clean};
out:
    pi_text_free(&clean);
    return rc;
}

void pi_talk_drop(struct pi_talk *t, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++)
        free((void *)(uintptr_t)t->m[i].text);
    if (n > 0)
        memmove(t->m + at, t->m + at + n, (t->n - at - n) * sizeof(*t->m));
    t->n -= n;
}

size_t pi_talk_first(const struct pi_talk *t)
{
    return t->n > 0 && t->m[0].role == PI_ROLE_SYSTEM;
}

void pi_talk_free(struct pi_talk *t)
{
    pi_talk_drop(t, 0, t->n);
    free(t->m);
    memset(t, 0, sizeof(*t));
}

/* ---- session files -------------------------------------------------------------------------- */

/* The file's text: the caller's to free(), NULL without memory. */
static char *session_text(const struct pi_talk *t, const struct pi_lineage *lineage)
{
    json_t *list = json_array(), *o;
    char *text;

    for (size_t i = 0; i < t->n; i++)
        if (json_array_append_new(list, json_pack("{s:s, s:s%}", "role", role_names[t->m[i].role],
                                                  "content", t->m[i].text, t->m[i].n)) != 0) {
            json_decref(list);
            return NULL;
        }
    o = json_pack("{s:s, s:i, s:s, s:s, s:o}", "format", FORMAT_NAME, "version", FORMAT_VERSION,
                  "created_by", PACKAGE_STRING, "lineage", lineage->hex, "messages", list);
    text = o != NULL ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return text;
}

enum pi_code pi_talk_save(const struct pi_talk *t, const char *path,
                          const struct pi_lineage *lineage, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_out *out = NULL;
    char *text = session_text(t, lineage);

    if (text == NULL)
        PI_FAIL(err, PI_E_NOMEM, "no memory for %s", path);
    PI_TRY(pi_out_open(path, &out, err));
    PI_TRY(pi_out_write(out, text, strlen(text), err));
    PI_TRY(pi_out_write(out, "\n", 1, err));
    rc = pi_out_commit(out, err);
    out = NULL;
out:
    pi_out_abort(out);
    free(text);
    return rc;
}

/* Whose it is. */
static enum pi_code check_head(const json_t *o, const char *path, const struct pi_lineage *lineage,
                               struct pi_err *err)
{
    const char *format = json_string_value(json_object_get(o, "format")),
               *hex = json_string_value(json_object_get(o, "lineage"));
    const json_t *version = json_object_get(o, "version");

    if (format == NULL || strcmp(format, FORMAT_NAME) != 0)
        return pi_err_set(err, PI_E_CORRUPT, "%s: no session file", path);
    if (!json_is_integer(version) || json_integer_value(version) < 1)
        return pi_err_set(err, PI_E_CORRUPT, "%s: version is not a number from 1 on", path);
    if (json_integer_value(version) > FORMAT_VERSION)
        return pi_err_set(err, PI_E_MISMATCH, "%s: version %lld, this program knows %d", path,
                          (long long)json_integer_value(version), FORMAT_VERSION);
    if (hex == NULL || strlen(hex) != PI_HASH_HEX)
        return pi_err_set(err, PI_E_CORRUPT, "%s: lineage is not %d hexadecimal digits", path,
                          PI_HASH_HEX);
    if (strcmp(hex, lineage->hex) != 0)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "%s: a conversation with another model (lineage %.*s, this one's is %.*s)", path,
            SHOWN_DIGITS, hex, SHOWN_DIGITS, lineage->hex);
    return PI_OK;
}

static enum pi_code add_message(struct pi_talk *t, size_t i, const json_t *o, const char *path,
                                struct pi_err *err)
{
    const char *role = json_string_value(json_object_get(o, "role"));
    const json_t *content = json_object_get(o, "content");
    const bool after_user = t->n > 0 && t->m[t->n - 1].role == PI_ROLE_USER;
    enum pi_role r = PI_ROLE_SYSTEM;

    if (role == NULL || !json_is_string(content))
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: message %zu: role and content are not both strings", path, i);
    while (r < PI_ROLE_ASSISTANT && strcmp(role, role_names[r]) != 0)
        r++;
    if (strcmp(role, role_names[r]) != 0)
        return pi_err_set(err, PI_E_CORRUPT, "%s: message %zu: role %.20s is not known", path, i,
                          role);
    if (r == PI_ROLE_SYSTEM ? i > 0 : (r == PI_ROLE_ASSISTANT) != after_user)
        return pi_err_set(err, PI_E_CORRUPT, "%s: message %zu: it is not the turn of %s", path, i,
                          role);
    return pi_talk_add(t, r, json_string_value(content), json_string_length(content), err);
}

static enum pi_code read_messages(const json_t *o, const char *path, struct pi_talk *t,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const json_t *list = json_object_get(o, "messages");

    if (!json_is_array(list))
        PI_FAIL(err, PI_E_CORRUPT, "%s: messages is no list", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        PI_TRY(add_message(t, i, json_array_get(list, i), path, err));
    if (t->n > 0 && t->m[t->n - 1].role == PI_ROLE_USER)
        PI_FAIL(err, PI_E_CORRUPT, "%s: the last message has no answer", path);
out:
    return rc;
}

enum pi_code pi_talk_load(const char *path, const struct pi_lineage *lineage, struct pi_talk *out,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_map file = {0};
    struct pi_talk t = {0};
    json_error_t where;
    json_t *o = NULL;

    PI_TRY(pi_map_open(path, &file, err));
    if (file.size > MAX_FILE_BYTES)
        PI_FAIL(err, PI_E_RANGE, "%s: %zu bytes, more than %zu MiB", path, file.size,
                MAX_FILE_BYTES >> 20);
    o = file.size > 0 ? json_loadb((const char *)file.data, file.size,
                                   JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where)
                      : NULL;
    if (o == NULL)
        PI_FAIL(err, PI_E_CORRUPT, "%s: line %d: %s", path, file.size > 0 ? where.line : 1,
                file.size > 0 ? where.text : "empty");
    PI_TRY(check_head(o, path, lineage, err));
    PI_TRY(read_messages(o, path, &t, err));
    pi_talk_free(out);
    *out = t;
    memset(&t, 0, sizeof(t));
out:
    pi_talk_free(&t);
    json_decref(o);
    pi_map_close(&file);
    return rc;
}
