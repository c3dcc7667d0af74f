/* The writer: collects keys and the tensor table, then streams data behind a header of known size. */
#include "config.h"

#include "common/pi_gguf.h"

#include "common/pi_alloc.h"
#include "common/pi_gguf_int.h"
#include "common/pi_le.h"
#include "common/pi_size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Bytes under construction. */
struct bytes {
    uint8_t *p;
    size_t n, cap;
};

struct entry {
    char *key;
    struct bytes value; /* the type tag and what follows it in the file */
    size_t seq;         /* order of the calls: the last one of a key wins */
};

struct out_tensor {
    char *name;
    enum pi_type type;
    uint32_t n_dims;
    uint64_t ne[PI_GGUF_MAX_DIMS];
    uint64_t bytes, offset;
};

struct pi_gguf_writer {
    struct pi_out *out;
    char *path;
    struct entry *entries;
    size_t n_entries, cap_entries;
    struct out_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct bytes header;          /* kept until commit, which fills in the CRCs */
    size_t crc_at, header_crc_at; /* where they stand in the header */
    uint32_t alignment;
    bool laid_out; /* the header is built: no more keys and tensors */
    bool begun;
    bool open_all; /* data comes by pi_gguf_put() */
    uint64_t data_offset;
    size_t current;  /* tensor that is being written */
    uint64_t filled; /* bytes of it written */
    uLong crc;
};

static enum pi_code put(struct bytes *b, const void *data, size_t n, struct pi_err *err)
{
    enum pi_code rc = pi_grow_array(&b->p, &b->cap, b->n + n, 1, err);

    if (rc == PI_OK && n > 0) {
        memcpy(b->p + b->n, data, n);
        b->n += n;
    }
    return rc;
}

static enum pi_code put_u32(struct bytes *b, uint32_t v, struct pi_err *err)
{
    uint8_t p[4];

    pi_store_u32(p, v);
    return put(b, p, sizeof(p), err);
}

static enum pi_code put_u64(struct bytes *b, uint64_t v, struct pi_err *err)
{
    uint8_t p[8];

    pi_store_u64(p, v);
    return put(b, p, sizeof(p), err);
}

static enum pi_code put_str(struct bytes *b, const char *s, size_t n, struct pi_err *err)
{
    enum pi_code rc = put_u64(b, n, err);

    return rc == PI_OK ? put(b, s, n, err) : rc;
}

static enum pi_code misused(const struct pi_gguf_writer *w, const char *what, struct pi_err *err)
{
    return pi_err_set(err, PI_E_RANGE, "%s: internal error: %s", w->path, what);
}

enum pi_code pi_gguf_writer_create(const char *path, struct pi_gguf_writer **w_out,
                                   struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;

    PI_ALLOC(w, 1, err);
    w->alignment = PI_GGUF_ALIGNMENT;
    w->path = path != NULL ? pi_strndup(path, strlen(path), err) : pi_strndup("output", 6, err);
    if (w->path == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    if (path != NULL)
        PI_TRY(pi_out_open(path, &w->out, err));
    *w_out = w;
    w = NULL;
out:
    pi_gguf_abort(w);
    return rc;
}

enum pi_code pi_gguf_align_pages(struct pi_gguf_writer *w, struct pi_err *err)
{
    if (w->n_tensors > 0)
        return misused(w, "the alignment was set behind a tensor", err);
    w->alignment = PI_GGUF_PAGE;
    return PI_OK;
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* A new entry that holds the type tag; its value is appended by the caller. */
static enum pi_code new_entry(struct pi_gguf_writer *w, const char *key, size_t n, uint32_t type,
                              struct bytes **value_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct entry *e;

    if (w->laid_out)
        return misused(w, "a key was set after the header was written", err);
    if (n == 0 || n > PI_GGUF_MAX_KEY)
        return pi_err_set(err, PI_E_RANGE, "%s: a key of %zu bytes", w->path, n);
    PI_TRY(pi_grow_array(&w->entries, &w->cap_entries, w->n_entries + 1, sizeof(*w->entries), err));
    e = &w->entries[w->n_entries];
    memset(e, 0, sizeof(*e));
    e->key = pi_strndup(key, n, err);
    if (e->key == NULL)
        return PI_E_NOMEM;
    e->seq = w->n_entries++;
    *value_out = &e->value;
    PI_TRY(put_u32(&e->value, type, err));
out:
    return rc;
}

static enum pi_code set_scalar(struct pi_gguf_writer *w, const char *key, enum pi_gguf_vtype type,
                               const uint8_t *p, struct pi_err *err)
{
    struct bytes *v = NULL;
    enum pi_code rc = new_entry(w, key, strlen(key), type, &v, err);

    return rc == PI_OK ? put(v, p, pi_gguf_scalar_bytes(type), err) : rc;
}

enum pi_code pi_gguf_set_u32(struct pi_gguf_writer *w, const char *key, uint32_t v,
                             struct pi_err *err)
{
    uint8_t p[4];

    pi_store_u32(p, v);
    return set_scalar(w, key, PI_GGUF_U32, p, err);
}

enum pi_code pi_gguf_set_u64(struct pi_gguf_writer *w, const char *key, uint64_t v,
                             struct pi_err *err)
{
    uint8_t p[8];

    pi_store_u64(p, v);
    return set_scalar(w, key, PI_GGUF_U64, p, err);
}

enum pi_code pi_gguf_set_f32(struct pi_gguf_writer *w, const char *key, float v, struct pi_err *err)
{
    uint8_t p[4];
    uint32_t u;

    memcpy(&u, &v, sizeof(u));
    pi_store_u32(p, u);
    return set_scalar(w, key, PI_GGUF_F32, p, err);
}

enum pi_code pi_gguf_set_bool(struct pi_gguf_writer *w, const char *key, bool v, struct pi_err *err)
{
    uint8_t p = v;

    return set_scalar(w, key, PI_GGUF_BOOL, &p, err);
}

enum pi_code pi_gguf_set_string(struct pi_gguf_writer *w, const char *key, const char *v,
                                struct pi_err *err)
{
    struct bytes *b = NULL;
    enum pi_code rc = new_entry(w, key, strlen(key), PI_GGUF_STR, &b, err);

    return rc == PI_OK ? put_str(b, v, strlen(v), err) : rc;
}

static enum pi_code set_string_array(struct pi_gguf_writer *w, const char *key, size_t n_key,
                                     const struct pi_str *v, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct bytes *b = NULL;

    PI_TRY(new_entry(w, key, n_key, PI_GGUF_ARR, &b, err));
    PI_TRY(put_u32(b, PI_GGUF_STR, err));
    PI_TRY(put_u64(b, n, err));
    for (size_t i = 0; i < n; i++)
        PI_TRY(put_str(b, v[i].p, v[i].n, err));
out:
    return rc;
}

enum pi_code pi_gguf_set_strings(struct pi_gguf_writer *w, const char *key, const struct pi_str *v,
                                 size_t n, struct pi_err *err)
{
    return set_string_array(w, key, strlen(key), v, n, err);
}

static enum pi_code set_scalar_array(struct pi_gguf_writer *w, const char *key, size_t n_key,
                                     enum pi_gguf_vtype elem, const void *v, size_t n,
                                     struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct bytes *b = NULL;
    uint64_t bytes = 0;

    if (pi_gguf_scalar_bytes(elem) == 0 || !pi_size_mul(n, pi_gguf_scalar_bytes(elem), &bytes))
        return misused(w, "an array of no scalars", err);
    PI_TRY(new_entry(w, key, n_key, PI_GGUF_ARR, &b, err));
    PI_TRY(put_u32(b, elem, err));
    PI_TRY(put_u64(b, n, err));
    PI_TRY(put(b, v, (size_t)bytes, err));
out:
    return rc;
}

enum pi_code pi_gguf_set_array(struct pi_gguf_writer *w, const char *key, enum pi_gguf_vtype elem,
                               const void *v, size_t n, struct pi_err *err)
{
    return set_scalar_array(w, key, strlen(key), elem, v, n, err);
}

enum pi_code pi_gguf_set_copy(struct pi_gguf_writer *w, const struct pi_gguf_kv *kv,
                              struct pi_err *err)
{
    struct bytes *b = NULL;
    enum pi_code rc;

    if (kv->type == PI_GGUF_ARR && kv->elem == PI_GGUF_STR)
        return set_string_array(w, kv->key.p, kv->key.n, kv->strs, (size_t)kv->n, err);
    if (kv->type == PI_GGUF_ARR)
        return set_scalar_array(w, kv->key.p, kv->key.n, kv->elem, kv->data, (size_t)kv->n, err);
    rc = new_entry(w, kv->key.p, kv->key.n, kv->type, &b, err);
    if (rc != PI_OK)
        return rc;
    if (kv->type == PI_GGUF_STR)
        return put_str(b, kv->strs[0].p, kv->strs[0].n, err);
    return put(b, kv->data, pi_gguf_scalar_bytes(kv->type), err);
}

/* ---- tensor table --------------------------------------------------------------------------- */

enum pi_code pi_gguf_add_tensor(struct pi_gguf_writer *w, const char *name, enum pi_type type,
                                const uint64_t *ne, uint32_t n_dims, struct pi_err *err)
{
    struct out_tensor *t;
    uint64_t bytes = 0, end = 0;
    enum pi_code rc;

    if (w->laid_out)
        return misused(w, "a tensor was added after the header was written", err);
    if (n_dims == 0 || n_dims > PI_GGUF_MAX_DIMS || !pi_type_row_bytes(type, ne[0], &bytes))
        return pi_err_set(err, PI_E_RANGE,
                          "%s: tensor %s: rows of %" PRIu64 " elements cannot be %s", w->path, name,
                          n_dims > 0 ? ne[0] : 0, pi_type_name(type));
    for (uint32_t i = 0; i < n_dims; i++)
        if (ne[i] == 0 || (i > 0 && !pi_size_mul(bytes, ne[i], &bytes)))
            return pi_err_set(err, PI_E_RANGE, "%s: tensor %s: dimension %u is %" PRIu64, w->path,
                              name, i, ne[i]);
    if (*name == '\0' || strlen(name) > PI_GGUF_MAX_NAME)
        return pi_err_set(err, PI_E_RANGE, "%s: a tensor's name of %zu bytes", w->path,
                          strlen(name));
    rc = pi_grow_array(&w->tensors, &w->cap_tensors, w->n_tensors + 1, sizeof(*w->tensors), err);
    if (rc != PI_OK)
        return rc;
    t = &w->tensors[w->n_tensors];
    memset(t, 0, sizeof(*t));
    if (w->n_tensors > 0)
        end = t[-1].offset + t[-1].bytes; /* checked when that one was added */
    if (!pi_size_pad(end, w->alignment, &t->offset) || !pi_size_add(t->offset, bytes, &end) ||
        end > INT64_MAX)
        return pi_err_set(err, PI_E_RANGE, "%s: the file would pass 2^63 bytes", w->path);
    t->name = pi_strndup(name, strlen(name), err);
    if (t->name == NULL)
        return PI_E_NOMEM;
    t->type = type;
    t->n_dims = n_dims;
    memcpy(t->ne, ne, n_dims * sizeof(*ne));
    t->bytes = bytes;
    w->n_tensors++;
    return PI_OK;
}

/* ---- header --------------------------------------------------------------------------------- */

static int cmp_entry(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int d = strcmp(x->key, y->key);

    return d != 0 ? d : (x->seq > y->seq) - (x->seq < y->seq);
}

static void free_entry(struct entry *e)
{
    free(e->key);
    free(e->value.p);
    memset(e, 0, sizeof(*e));
}

/* Sorts by key and keeps the last value of each. */
static void settle_entries(struct pi_gguf_writer *w)
{
    size_t n = 0;

    qsort(w->entries, w->n_entries, sizeof(*w->entries), cmp_entry);
    for (size_t i = 0; i < w->n_entries; i++) {
        if (n > 0 && strcmp(w->entries[n - 1].key, w->entries[i].key) == 0)
            free_entry(&w->entries[--n]);
        w->entries[n++] = w->entries[i];
        if (n - 1 != i)
            memset(&w->entries[i], 0, sizeof(w->entries[i]));
    }
    w->n_entries = n;
}

static int cmp_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum pi_code check_names(const struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char **names = NULL;

    PI_ALLOC(names, w->n_tensors, err);
    for (size_t i = 0; i < w->n_tensors; i++)
        names[i] = w->tensors[i].name;
    qsort(names, w->n_tensors, sizeof(*names), cmp_name);
    for (size_t i = 1; i < w->n_tensors; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %s would occur twice", w->path, names[i]);
out:
    free(names);
    return rc;
}

/* Room for the CRCs, zero for now. A stale value copied from another file is replaced. */
static enum pi_code add_crc_keys(struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t *zeros = NULL;

    PI_ALLOC(zeros, w->n_tensors, err);
    PI_TRY(pi_gguf_set_u32(w, PI_GGUF_KEY_HEADER_CRC, 0, err));
    PI_TRY(pi_gguf_set_array(w, PI_GGUF_KEY_CRC, PI_GGUF_U32, zeros, w->n_tensors, err));
    settle_entries(w);
    /* Some readers refuse empty arrays. */
    for (size_t i = 0; w->n_tensors == 0 && i < w->n_entries; i++) {
        if (strcmp(w->entries[i].key, PI_GGUF_KEY_CRC) == 0) {
            free_entry(&w->entries[i]);
            memmove(&w->entries[i], &w->entries[i + 1], (--w->n_entries - i) * sizeof(*w->entries));
            memset(&w->entries[w->n_entries], 0, sizeof(*w->entries));
        }
    }
out:
    free(zeros);
    return rc;
}

static enum pi_code build_header(struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct bytes *h = &w->header;

    PI_TRY(put(h, "GGUF", 4, err));
    PI_TRY(put_u32(h, 3, err));
    PI_TRY(put_u64(h, w->n_tensors, err));
    PI_TRY(put_u64(h, w->n_entries, err));
    for (size_t i = 0; i < w->n_entries; i++) {
        const struct entry *e = &w->entries[i];

        PI_TRY(put_str(h, e->key, strlen(e->key), err));
        if (strcmp(e->key, PI_GGUF_KEY_CRC) == 0)
            w->crc_at = h->n + 4 + 4 + 8; /* past the type, the element type and the length */
        if (strcmp(e->key, PI_GGUF_KEY_HEADER_CRC) == 0)
            w->header_crc_at = h->n + 4;
        PI_TRY(put(h, e->value.p, e->value.n, err));
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        const struct out_tensor *t = &w->tensors[i];

        PI_TRY(put_str(h, t->name, strlen(t->name), err));
        PI_TRY(put_u32(h, t->n_dims, err));
        for (uint32_t d = 0; d < t->n_dims; d++)
            PI_TRY(put_u64(h, t->ne[d], err));
        PI_TRY(put_u32(h, t->type, err));
        PI_TRY(put_u64(h, t->offset, err));
    }
out:
    return rc;
}

static enum pi_code pad_out(struct pi_gguf_writer *w, struct pi_err *err)
{
    static const uint8_t zeros[PI_GGUF_PAGE];
    size_t n = (size_t)(-pi_out_size(w->out) & (w->alignment - 1));

    return pi_out_write(w->out, zeros, n, err);
}

static enum pi_code lay_out(struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (w->laid_out)
        return PI_OK;
    PI_TRY(check_names(w, err));
    PI_TRY(pi_gguf_set_u32(w, "general.alignment", w->alignment, err));
    PI_TRY(add_crc_keys(w, err));
    PI_TRY(build_header(w, err));
    w->laid_out = true;
out:
    return rc;
}

/* Where the data ends, counted from where it starts; false on overflow. */
static bool data_end(const struct pi_gguf_writer *w, uint64_t *out)
{
    uint64_t end = 0;

    if (w->n_tensors > 0) {
        const struct out_tensor *last = &w->tensors[w->n_tensors - 1];

        end = last->offset + last->bytes; /* checked when it was added */
    }
    return pi_size_pad(end, w->alignment, out);
}

enum pi_code pi_gguf_size(struct pi_gguf_writer *w, uint64_t *bytes_out, struct pi_err *err)
{
    enum pi_code rc = lay_out(w, err);
    uint64_t head = 0, data = 0, all = 0;

    if (rc != PI_OK)
        return rc;
    if (!pi_size_pad(w->header.n, w->alignment, &head) || !data_end(w, &data) ||
        !pi_size_add(head, data, &all))
        return pi_err_set(err, PI_E_RANGE, "%s: the file would pass 2^63 bytes", w->path);
    *bytes_out = all;
    return PI_OK;
}

enum pi_code pi_gguf_begin(struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (w->begun || w->out == NULL)
        return misused(w, "the header was begun twice, or without a file", err);
    PI_TRY(lay_out(w, err));
    PI_TRY(pi_out_write(w->out, w->header.p, w->header.n, err));
    PI_TRY(pad_out(w, err));
    w->data_offset = pi_out_size(w->out);
    w->begun = true;
    w->crc = crc32_z(0, NULL, 0);
out:
    return rc;
}

/* ---- data ----------------------------------------------------------------------------------- */

enum pi_code pi_gguf_append(struct pi_gguf_writer *w, const void *data, size_t n,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint8_t *p = data;

    if (!w->begun || w->open_all)
        return misused(w, "data before the header, or appended to what is written in pieces", err);
    while (n > 0) {
        const struct out_tensor *t = &w->tensors[w->current];
        size_t part;

        if (w->current == w->n_tensors)
            return misused(w, "more data than the tensors hold", err);
        part = t->bytes - w->filled < n ? (size_t)(t->bytes - w->filled) : n;
        PI_TRY(pi_out_write(w->out, p, part, err));
        w->crc = crc32_z(w->crc, p, part);
        w->filled += part;
        p += part;
        n -= part;
        if (w->filled == t->bytes) {
            PI_TRY(pad_out(w, err));
            pi_store_u32(w->header.p + w->crc_at + 4 * w->current, (uint32_t)w->crc);
            w->current++;
            w->filled = 0;
            w->crc = crc32_z(0, NULL, 0);
        }
    }
out:
    return rc;
}

enum pi_code pi_gguf_open_all(struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t end = 0;

    if (!w->begun || w->open_all || w->current > 0 || w->filled > 0)
        return misused(w, "opened for pieces at the wrong time", err);
    if (!data_end(w, &end) || !pi_size_add(end, w->data_offset, &end))
        return pi_err_set(err, PI_E_RANGE, "%s: the file would pass 2^63 bytes", w->path);
    PI_TRY(pi_out_extend(w->out, end, err));
    w->open_all = true;
out:
    return rc;
}

enum pi_code pi_gguf_put(const struct pi_gguf_writer *w, size_t i, uint64_t offset,
                         const void *data, size_t n, struct pi_err *err)
{
    const struct out_tensor *t = w->tensors + i;

    if (!w->open_all || i >= w->n_tensors || offset > t->bytes || n > t->bytes - offset)
        return misused(w, "a piece of data outside its tensor", err);
    return pi_out_put(w->out, w->data_offset + t->offset + offset, data, n, err);
}

enum pi_code pi_gguf_put_crc(struct pi_gguf_writer *w, size_t i, uint32_t crc, struct pi_err *err)
{
    if (!w->open_all || i >= w->n_tensors || w->current == w->n_tensors)
        return misused(w, "a checksum of no tensor", err);
    pi_store_u32(w->header.p + w->crc_at + 4 * i, crc);
    w->current++; /* counts the complete ones */
    return PI_OK;
}

static enum pi_code write_crcs(struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uLong crc;

    if (!w->begun || w->current != w->n_tensors)
        PI_TRY(misused(w, "a tensor is not complete", err));
    pi_store_u32(w->header.p + w->header_crc_at, 0); /* the CRC is taken over a header without it */
    crc = crc32_z(0, w->header.p, w->header.n);
    pi_store_u32(w->header.p + w->header_crc_at, (uint32_t)crc);
    PI_TRY(pi_out_patch(w->out, 0, w->header.p, w->header.n, err));
out:
    return rc;
}

enum pi_code pi_gguf_finish(struct pi_gguf_writer *w, char **path_out, struct pi_err *err)
{
    enum pi_code rc = write_crcs(w, err);

    return rc != PI_OK ? rc : pi_out_peek(w->out, path_out, err);
}

enum pi_code pi_gguf_commit_all(struct pi_gguf_writer *const *w, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_out **o = NULL;
    size_t n_out = 0;

    PI_ALLOC(o, n, err);
    for (size_t i = 0; i < n; i++)
        if (w[i] != NULL)
            PI_TRY(write_crcs(w[i], err));
    for (size_t i = 0; i < n; i++) {
        if (w[i] == NULL)
            continue;
        o[n_out++] = w[i]->out;
        w[i]->out = NULL; /* commit frees it in every case */
    }
    PI_TRY(pi_out_commit_all(o, n_out, err));
out:
    for (size_t i = 0; i < n; i++)
        pi_gguf_abort(w[i]);
    free(o);
    return rc;
}

enum pi_code pi_gguf_commit(struct pi_gguf_writer *w, struct pi_err *err)
{
    return pi_gguf_commit_all(&w, 1, err);
}

void pi_gguf_abort(struct pi_gguf_writer *w)
{
    if (w == NULL)
        return;
    pi_out_abort(w->out);
    for (size_t i = 0; i < w->n_entries; i++)
        free_entry(&w->entries[i]);
    for (size_t i = 0; i < w->n_tensors; i++)
        free(w->tensors[i].name);
    free(w->entries);
    free(w->tensors);
    free(w->header.p);
    free(w->path);
    free(w);
}
