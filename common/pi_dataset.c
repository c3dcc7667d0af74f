#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_dataset.h"
#include "common/pi_file.h"
#include "common/pi_progress.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((size_t)1 << 30) /* of one file, unpacked */
#define MAX_DOC_BYTES \
    ((size_t)1 << 27) /* of one document: tokenizing takes up to 24 bytes a byte */

/* Jansson bounds the nesting (2048 levels); NUL is a character like any other; numbers, which nobody reads here, may have any number
 * of digits. */
#define JSON_FLAGS (JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL)

/* One file while it is read. */
struct source {
    struct pi_dataset *d;
    const char *path, *field;
    const char *text; /* behind the byte order mark, if there is one */
    size_t n;
    size_t n_mark; /* bytes of the mark, which plain text keeps */
};

/* Where a record stands, for messages: a line of JSON lines or an element of an array. */
struct place {
    const char *what; /* "line" or "record" */
    size_t no;        /* from 1 */
};

/* ---- documents ---- */

/* A document under construction: strings with line breaks between. */
struct builder {
    char *text;
    size_t n, cap;
    bool any;
};

static enum pi_code add_part(struct builder *b, const char *s, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (n == 0)
        return PI_OK;
    PI_TRY(pi_grow_array(&b->text, &b->cap, b->n + n + 2, 1, err));
    if (b->n > 0)
        b->text[b->n++] = '\n';
    memcpy(b->text + b->n, s, n);
    b->n += n;
    b->text[b->n] = '\0';
out:
    return rc;
}

/* Adds a string value; false when there is none of that name. */
static enum pi_code add_value(struct builder *b, const json_t *value, bool *found,
                              struct pi_err *err)
{
    *found = json_is_string(value);
    if (!*found)
        return PI_OK;
    b->any = true;
    return add_part(b, json_string_value(value), json_string_length(value), err);
}

/* Moves what was built into the data set; empty documents are dropped. */
static enum pi_code finish(struct pi_dataset *d, struct builder *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (b->n > 0) {
        PI_TRY(pi_grow_array(&d->docs, &d->cap, d->n + 1, sizeof(*d->docs), err));
        d->docs[d->n++] = (struct pi_doc){b->text, b->n};
        b->text = NULL;
    }
out:
    return rc;
}

/* ---- records ---- */

/* The turns of a conversation: ShareGPT's conversations[].value, or messages[].content. */
static enum pi_code add_turns(struct builder *b, const json_t *turns, const char *key,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const json_t *turn;
    size_t i;
    bool found;

    json_array_foreach(turns, i, turn)
        PI_TRY(add_value(b, json_object_get(turn, key), &found, err));
out:
    return rc;
}

static enum pi_code build_default(struct builder *b, const json_t *record, struct pi_err *err)
{
    static const char *const alone[] = {"text", "prompt", "content"};
    static const char *const alpaca[] = {"instruction", "input", "output"};
    enum pi_code rc = PI_OK;
    bool found = false;

    for (size_t i = 0; i < 3 && !found; i++)
        PI_TRY(add_value(b, json_object_get(record, alone[i]), &found, err));
    if (found)
        return PI_OK;
    if (json_is_string(json_object_get(record, "instruction"))) {
        for (size_t i = 0; i < 3; i++)
            PI_TRY(add_value(b, json_object_get(record, alpaca[i]), &found, err));
        return PI_OK;
    }
    PI_TRY(add_turns(b, json_object_get(record, "conversations"), "value", err));
    if (!b->any)
        PI_TRY(add_turns(b, json_object_get(record, "messages"), "content", err));
out:
    return rc;
}

static enum pi_code add_record(const struct source *s, struct place at, const json_t *record,
                               struct pi_err *err)
{
    struct builder b = {0};
    enum pi_code rc = PI_OK;

    if (json_is_string(record))
        PI_TRY(add_value(&b, record, &b.any, err));
    else if (!json_is_object(record))
        PI_FAIL(err, PI_E_CORRUPT, "%s: %s %zu is neither an object nor a string", s->path, at.what,
                at.no);
    else if (s->field != NULL)
        PI_TRY(add_value(&b, json_object_get(record, s->field), &b.any, err));
    else
        PI_TRY(build_default(&b, record, err));
    if (!b.any && s->field != NULL)
        PI_FAIL(err, PI_E_CORRUPT, "%s: %s %zu has no string \"%s\"", s->path, at.what, at.no,
                s->field);
    if (!b.any)
        PI_FAIL(err, PI_E_CORRUPT,
                "%s: %s %zu has no text, prompt, content, instruction or conversations", s->path,
                at.what, at.no);
    PI_TRY(finish(s->d, &b, err));
out:
    free(b.text);
    return rc;
}

/* ---- the forms of a file ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_spaces(const char *text, size_t i, size_t n)
{
    while (i < n && is_space(text[i]))
        i++;
    return i;
}

static enum pi_code parse_error(const struct source *s, size_t line, const json_error_t *e,
                                struct pi_err *err)
{
    if (json_error_code(e) == json_error_out_of_memory)
        return pi_err_set(err, PI_E_NOMEM, "%s: out of memory at line %zu", s->path, line);
    return pi_err_set(err, PI_E_CORRUPT, "%s: line %zu: %s", s->path, line, e->text);
}

static enum pi_code add_lines(const struct source *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    json_error_t e;
    json_t *record = NULL;
    size_t line = 0;

    for (size_t begin = 0, end; begin < s->n; begin = end + 1) {
        const char *nl = memchr(s->text + begin, '\n', s->n - begin);
        size_t first;

        end = nl != NULL ? (size_t)(nl - s->text) : s->n;
        line++;
        first = skip_spaces(s->text, begin, end);
        if (first == end)
            continue;
        record = json_loadb(s->text + first, end - first, JSON_FLAGS, &e);
        if (record == NULL) {
            rc = parse_error(s, line, &e, err);
            goto out;
        }
        PI_TRY(add_record(s, (struct place){"line", line}, record, err));
        json_decref(record);
        record = NULL;
    }
out:
    json_decref(record);
    return rc;
}

static enum pi_code add_whole(const struct source *s, const json_t *root, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const json_t *record;
    size_t i;

    if (json_is_object(root))
        return add_record(s, (struct place){"record", 1}, root, err);
    json_array_foreach(root, i, record)
        PI_TRY(add_record(s, (struct place){"record", i + 1}, record, err));
out:
    return rc;
}

static enum pi_code add_text(const struct source *s, struct pi_err *err)
{
    struct builder b = {0};
    const char *zero = memchr(s->text, '\0', s->n);
    enum pi_code rc = PI_OK;

    /* Counts over an archive or a model look like any others; other stray bytes are Latin-1 as often as not. */
    if (zero != NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "%s: no text: byte %zu is zero, as in binary files and UTF-16; give text in UTF-8",
                s->path, (size_t)(zero - s->text) + s->n_mark + 1);
    PI_TRY(add_part(&b, s->text - s->n_mark, s->n + s->n_mark, err));
    PI_TRY(finish(s->d, &b, err));
out:
    free(b.text);
    return rc;
}

/* Whether a text that does not parse was meant as JSON: prose may well start with a bracket, but not go on like this. */
static bool looks_like_json(const char *text, size_t begin, size_t n)
{
    size_t next = skip_spaces(text, begin + 1, n);

    if (next == n)
        return false;
    return text[begin] == '{' ? text[next] == '"' || text[next] == '}'
                              : text[next] == '{' || text[next] == ']';
}

/* Tells the forms apart. */
static enum pi_code add_any(const struct source *s, struct pi_err *err)
{
    /* Jansson counts bytes in an int. */
    size_t begin = skip_spaces(s->text, 0, s->n), n_json = s->n < INT_MAX ? s->n : INT_MAX, used;
    json_error_t e;
    json_t *root = NULL;
    enum pi_code rc = PI_OK;

    if (begin == s->n || (s->text[begin] != '{' && s->text[begin] != '['))
        return add_text(s, err);
    root = json_loadb(s->text, n_json, JSON_FLAGS | JSON_DISABLE_EOF_CHECK, &e);
    if (root == NULL) {
        if (s->n > INT_MAX && looks_like_json(s->text, begin, s->n))
            PI_FAIL(err, PI_E_RANGE, "%s: one JSON value of over %d bytes: use JSON lines", s->path,
                    INT_MAX);
        rc = looks_like_json(s->text, begin, s->n) ? parse_error(s, (size_t)e.line, &e, err)
                                                   : add_text(s, err);
        goto out;
    }
    used = (size_t)e.position;
    if (skip_spaces(s->text, used, s->n) == s->n)
        PI_TRY(add_whole(s, root, err));
    else if (json_is_object(root) && memchr(s->text + begin, '\n', used - begin) == NULL)
        PI_TRY(add_lines(s, err));
    else if (looks_like_json(s->text, begin, s->n))
        PI_FAIL(err, PI_E_CORRUPT, "%s: line %d: more text behind the end of the JSON value",
                s->path, e.line);
    else
        PI_TRY(add_text(s, err));
out:
    json_decref(root);
    return rc;
}

enum pi_code pi_dataset_add(struct pi_dataset *d, const char *path, const char *field,
                            struct pi_err *err)
{
    struct source s = {.d = d, .path = path, .field = field};
    size_t n_before = d->n;
    char *text = NULL;
    enum pi_code rc = PI_OK;

    PI_TRY(pi_file_read_all(path, true, MAX_BYTES, &text, &s.n, err));
    s.text = text;
    if (s.n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        s.n_mark = 3;
        s.text += 3;
        s.n -= 3;
    }
    PI_TRY(add_any(&s, err));
out:
    while (rc != PI_OK && d->n > n_before)
        free(d->docs[--d->n].text);
    free(text);
    return rc;
}

void pi_dataset_free(struct pi_dataset *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->docs[i].text);
    free(d->docs);
    *d = (struct pi_dataset){0};
}

/* ---- windows ---- */

static enum pi_code add_window(struct pi_windows *out, size_t begin, uint32_t n, uint32_t n_scored,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_grow_array(&out->w, &out->cap, out->n + 1, sizeof(*out->w), err));
    out->w[out->n++] = (struct pi_window){begin, n, n_scored};
out:
    return rc;
}

enum pi_code pi_windows_make(const struct pi_dataset *d, const struct pi_tokenizer *t,
                             uint32_t window, bool keep_short, struct pi_windows *out,
                             struct pi_err *err)
{
    struct pi_windows made = {0};
    enum pi_code rc = PI_OK;

    if (window == 0 || window > INT32_MAX)
        PI_FAIL(err, PI_E_RANGE, "a window of %u tokens, expected 1 to %d", window, INT32_MAX);
    for (size_t i = 0; i < d->n; i++) {
        size_t begin = made.tokens.n, n;

        if (d->docs[i].n > MAX_DOC_BYTES)
            PI_FAIL(err, PI_E_UNSUPPORTED,
                    "document %zu has %zu bytes, at most %zu are taken: split it", i + 1,
                    d->docs[i].n, MAX_DOC_BYTES);
        PI_TRY(pi_interrupt_check(err));
        PI_TRY(pi_tokenizer_encode(t, d->docs[i].text, d->docs[i].n, pi_tokenizer_add_bos(t), false,
                                   &made.tokens, err));
        n = made.tokens.n - begin;
        for (size_t k = 0; n > window && k < (n - 1) / window; k++)
            PI_TRY(add_window(&made, begin + k * window, window, window, err));
        if (n <= window && n > 0 && keep_short)
            PI_TRY(add_window(&made, begin, (uint32_t)n, (uint32_t)n - 1, err));
    }
    *out = made;
    made = (struct pi_windows){0};
out:
    pi_windows_free(&made);
    return rc;
}

void pi_windows_free(struct pi_windows *w)
{
    pi_tokens_free(&w->tokens);
    free(w->w);
    *w = (struct pi_windows){0};
}
