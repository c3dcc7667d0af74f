/* A copy of a GGUF file with a few things changed, which need not make sense: for tests of the command line. Checksums are left out.
 *
 *   edit_gguf FROM TO [EDIT...]
 *     -KEY             leaves a key out
 *     KEY:TYPE=VALUE   sets it; TYPE is u8, i8, u16, i16, u32, i32, f32, bool, str, u64, i64 or f64, a number VALUE may be negative
 *     KEY:TYPE*N=VALUE an array of N times VALUE
 *     token:ID=TEXT    a token's text; token:ID*N=TEXT is N times TEXT
 *     value:KEY:I=V    element I of an array of u32, i32 or f32
 *     drop=NAME        leaves a tensor out
 *     name=OLD=NEW     renames one; a % in NEW is a NUL byte
 *     type=NAME=N      says that what is written under NAME has type N, a number of GGUF's; its bytes stay
 *     copy=OLD=NEW     has it twice, the second time under this name
 *     only=A-B         tensors A to B - 1 of the file alone
 *     bare             no key but those that are set */
#include "config.h"

#include "common/pi_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *out;
static uint64_t alignment; /* of TO: that of FROM, where its key goes along */
static char **edits;
static int n_edits;

static void die(const char *what)
{
    (void)fprintf(stderr, "edit_gguf: %s\n", what);
    exit(1);
}

static void put(uint64_t v, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++)
        (void)fputc((int)(v >> 8 * i & 255), out);
}

static void put_text(const char *s, size_t n)
{
    put(n, 8);
    (void)fwrite(s, 1, n, out);
}

/* What follows prefix and name in an edit, or NULL. */
static const char *edit_of(const char *prefix, struct pi_str name, char end)
{
    const size_t n = strlen(prefix);

    for (int i = 0; i < n_edits; i++) {
        const char *e = edits[i];

        if (strncmp(e, prefix, n) == 0 && strlen(e) >= n + name.n &&
            memcmp(e + n, name.p, name.n) == 0 && e[n + name.n] == end)
            return e + n + name.n + (end != '\0');
    }
    return NULL;
}

static bool has(const char *edit)
{
    for (int i = 0; i < n_edits; i++)
        if (strcmp(edits[i], edit) == 0)
            return true;
    return false;
}

/* ---- keys ---- */

static bool is_kept(const struct pi_gguf_kv *kv)
{
    return !has("bare") && !pi_str_eq(kv->key, "pi.crc32") &&
           !pi_str_eq(kv->key, "pi.header_crc32") && edit_of("-", kv->key, '\0') == NULL &&
           edit_of("", kv->key, ':') == NULL;
}

static void put_token(const struct pi_str text, uint64_t id)
{
    char name[32];
    const char *plain, *times;

    (void)snprintf(name, sizeof(name), "%llu", (unsigned long long)id);
    plain = edit_of("token:", (struct pi_str){name, strlen(name)}, '=');
    times = edit_of("token:", (struct pi_str){name, strlen(name)}, '*');
    if (times != NULL) {
        char *s;
        const unsigned long n = strtoul(times, &s, 10);

        put(n * strlen(s + 1), 8);
        for (unsigned long i = 0; i < n; i++)
            (void)fputs(s + 1, out);
    } else if (plain != NULL) {
        put_text(plain, strlen(plain));
    } else {
        put_text(text.p, text.n);
    }
}

/* As it is, but for elements of arrays. */
static void put_old(const struct pi_gguf_kv *kv)
{
    const uint32_t size = pi_gguf_scalar_bytes(kv->elem);

    put_text(kv->key.p, kv->key.n);
    put(kv->type, 4);
    if (kv->type == PI_GGUF_ARR) {
        put(kv->elem, 4);
        put(kv->n, 8);
    }
    for (uint64_t i = 0; i < kv->n; i++) {
        char index[160];
        const char *edit;

        (void)snprintf(index, sizeof(index), "%.*s:%llu", (int)kv->key.n, kv->key.p,
                       (unsigned long long)i);
        edit = size == 4 ? edit_of("value:", (struct pi_str){index, strlen(index)}, '=') : NULL;
        if (edit != NULL && kv->elem == PI_GGUF_F32) {
            const float f = strtof(edit, NULL);
            (void)fwrite(&f, sizeof(f), 1, out);
        } else if (edit != NULL) {
            put((uint64_t)strtoll(edit, NULL, 0), 4);
        } else if (kv->elem == PI_GGUF_STR && pi_str_eq(kv->key, "tokenizer.ggml.tokens")) {
            put_token(kv->strs[i], i);
        } else if (kv->elem == PI_GGUF_STR) {
            put_text(kv->strs[i].p, kv->strs[i].n);
        } else {
            (void)fwrite(kv->data + i * size, size, 1, out);
        }
    }
}

static void put_scalar(uint32_t type, const char *value)
{
    const float f = strtof(value, NULL);
    const double d = strtod(value, NULL);

    if (type == PI_GGUF_STR)
        put_text(value, strlen(value));
    else if (type == PI_GGUF_F32)
        (void)fwrite(&f, sizeof(f), 1, out);
    else if (type == PI_GGUF_F64)
        (void)fwrite(&d, sizeof(d), 1, out);
    else
        put(*value == '-' ? (uint64_t)strtoll(value, NULL, 0) : strtoull(value, NULL, 0),
            pi_gguf_scalar_bytes(type));
}

/* KEY:TYPE=VALUE or KEY:TYPE*N=VALUE. False for an edit of another kind; nothing is written unless write is set. */
static bool put_new(const char *edit, bool write)
{
    static const char *const types[] = {"u8",   "i8",  "u16", "i16", "u32", "i32", "f32",
                                        "bool", "str", NULL,  "u64", "i64", "f64"};
    const char *type = strchr(edit, ':'), *value = strchr(edit, '='), *times;
    uint32_t t = 0;
    unsigned long n;

    if (type == NULL || value == NULL || type > value || strncmp(edit, "token:", 6) == 0 ||
        strncmp(edit, "value:", 6) == 0)
        return false;
    times = memchr(type, '*', (size_t)(value - type));
    for (; t < sizeof(types) / sizeof(types[0]); t++)
        if (types[t] != NULL &&
            strlen(types[t]) == (size_t)((times != NULL ? times : value) - type - 1) &&
            memcmp(types[t], type + 1, strlen(types[t])) == 0)
            break;
    if (t == sizeof(types) / sizeof(types[0]))
        die(edit);
    if (!write)
        return true;
    put_text(edit, (size_t)(type - edit));
    n = 1;
    if (times != NULL) {
        n = strtoul(times + 1, NULL, 10);
        put(PI_GGUF_ARR, 4);
    }
    put(t, 4);
    if (times != NULL)
        put(n, 8);
    for (unsigned long i = 0; i < n; i++)
        put_scalar(t, value + 1);
    return true;
}

/* ---- tensors ---- */

static bool is_there(const struct pi_gguf *g, size_t i)
{
    const char *range = edit_of("only", (struct pi_str){"", 0}, '=');
    char *end;

    if (edit_of("drop=", g->tensors[i].name, '\0') != NULL)
        return false;
    if (range == NULL)
        return true;
    if (strtoul(range, &end, 10) > i || *end != '-')
        return false;
    return i < strtoul(end + 1, NULL, 10);
}

static void put_info(const struct pi_gguf_tensor *t, const char *name, uint64_t *at)
{
    const size_t n = name != NULL ? strlen(name) : t->name.n;
    const char *type = edit_of("type=", name != NULL ? (struct pi_str){name, n} : t->name, '=');

    put(n, 8);
    for (size_t i = 0; i < n; i++)
        (void)fputc(name == NULL ? t->name.p[i] : name[i] == '%' ? 0 : name[i], out);
    put(t->n_dims, 4);
    for (uint32_t d = 0; d < t->n_dims; d++)
        put(t->ne[d], 8);
    put(type != NULL ? strtoul(type, NULL, 10) : t->type, 4);
    put(*at, 8);
    *at = (*at + t->bytes + alignment - 1) / alignment * alignment;
}

static void put_data(const struct pi_gguf_tensor *t)
{
    while ((uint64_t)ftell(out) % alignment != 0)
        put(0, 1);
    (void)fwrite(t->data, 1, (size_t)t->bytes, out);
}

static void put_tensors(const struct pi_gguf *g)
{
    uint64_t at = 0;

    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        const char *copy = edit_of("copy=", t->name, '=');

        if (!is_there(g, i))
            continue;
        put_info(t, edit_of("name=", t->name, '='), &at);
        if (copy != NULL)
            put_info(t, copy, &at);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        if (!is_there(g, i))
            continue;
        put_data(&g->tensors[i]);
        if (edit_of("copy=", g->tensors[i].name, '=') != NULL)
            put_data(&g->tensors[i]);
    }
    while ((uint64_t)ftell(out) % alignment != 0)
        put(0, 1);
}

int main(int argc, char **argv)
{
    struct pi_gguf g = {0};
    struct pi_err e = {0};
    uint64_t n_keys = 0, n_tensors = 0;

    if (argc < 3)
        die("usage: edit_gguf FROM TO [EDIT...]");
    edits = argv + 3;
    n_edits = argc - 3;
    if (pi_gguf_open(argv[1], 0, &g, &e) != PI_OK)
        die(e.msg);
    out = fopen(argv[2], "wb");
    if (out == NULL)
        die(argv[2]);
    alignment = PI_GGUF_ALIGNMENT;
    for (size_t i = 0; i < g.n_kv; i++) {
        n_keys += is_kept(&g.kv[i]);
        if (is_kept(&g.kv[i]) && pi_str_eq(g.kv[i].key, "general.alignment"))
            alignment = g.alignment;
    }
    for (int i = 0; i < n_edits; i++)
        n_keys += put_new(edits[i], false);
    for (size_t i = 0; i < g.n_tensors; i++)
        n_tensors += is_there(&g, i) * (edit_of("copy=", g.tensors[i].name, '=') != NULL ? 2u : 1u);
    (void)fwrite("GGUF", 1, 4, out);
    put(3, 4);
    put(n_tensors, 8);
    put(n_keys, 8);
    for (size_t i = 0; i < g.n_kv; i++)
        if (is_kept(&g.kv[i]))
            put_old(&g.kv[i]);
    for (int i = 0; i < n_edits; i++)
        (void)put_new(edits[i], true);
    put_tensors(&g);
    if (ferror(out) || fclose(out) != 0)
        die(argv[2]);
    pi_gguf_close(&g);
    return 0;
}
