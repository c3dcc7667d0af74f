/* The reader's parser: every byte is checked before anything is allocated for what it describes. */
#include "config.h"

#include "common/pi_gguf.h"

#include "common/pi_alloc.h"
#include "common/pi_gguf_int.h"
#include "common/pi_le.h"
#include "common/pi_size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

/* The smallest pair is an 8-byte length, one byte of key, a type and one byte of value; the
 * smallest tensor entry a length, one byte of name, n_dims, one dimension, type and offset. */
#define MIN_KV_BYTES     14
#define MIN_TENSOR_BYTES 33
#define MIN_ALIGNMENT    8
#define MAX_ALIGNMENT    65536

struct cursor {
    const uint8_t *p;
    size_t size, at;
    const char *path;
};

static enum pi_code cut_short(const struct cursor *c, const char *what, uint64_t need,
                              struct pi_err *err)
{
    return pi_err_set(err, PI_E_CORRUPT,
                      "%s: truncated: %s at byte %zu needs %" PRIu64 " bytes, %zu are left",
                      c->path, what, c->at, need, c->size - c->at);
}

static enum pi_code take_u32(struct cursor *c, const char *what, uint32_t *out, struct pi_err *err)
{
    if (c->size - c->at < 4)
        return cut_short(c, what, 4, err);
    *out = pi_load_u32(c->p + c->at);
    c->at += 4;
    return PI_OK;
}

static enum pi_code take_u64(struct cursor *c, const char *what, uint64_t *out, struct pi_err *err)
{
    if (c->size - c->at < 8)
        return cut_short(c, what, 8, err);
    *out = pi_load_u64(c->p + c->at);
    c->at += 8;
    return PI_OK;
}

static enum pi_code take_str(struct cursor *c, const char *what, struct pi_str *out,
                             struct pi_err *err)
{
    uint64_t n = 0;
    enum pi_code rc = take_u64(c, what, &n, err);

    if (rc != PI_OK)
        return rc;
    if (n > c->size - c->at)
        return cut_short(c, what, n, err);
    out->p = (const char *)c->p + c->at;
    out->n = (size_t)n;
    c->at += (size_t)n;
    return PI_OK;
}

uint32_t pi_gguf_scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [PI_GGUF_U8] = 1,  [PI_GGUF_I8] = 1,  [PI_GGUF_U16] = 2, [PI_GGUF_I16] = 2,
        [PI_GGUF_U32] = 4, [PI_GGUF_I32] = 4, [PI_GGUF_F32] = 4, [PI_GGUF_BOOL] = 1,
        [PI_GGUF_U64] = 8, [PI_GGUF_I64] = 8, [PI_GGUF_F64] = 8,
    };

    return type < sizeof(bytes) ? bytes[type] : 0;
}

/* ---- header --------------------------------------------------------------------------------- */

static enum pi_code parse_header(struct cursor *c, struct pi_gguf *g, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t n_tensors = 0, n_kv = 0;

    if (pi_is_lfs_pointer(c->p, c->size))
        PI_FAIL(err, PI_E_CORRUPT, "%s: " PI_LFS_POINTER, c->path);
    if (c->size < 4 || (memcmp(c->p, "GGUF", 4) != 0 && memcmp(c->p, "PWRI", 4) != 0))
        PI_FAIL(err, PI_E_CORRUPT, "%s: not a GGUF file (it does not start with GGUF or PWRI)",
                c->path);
    g->sparse_magic = c->p[0] == 'P';
    c->at = 4;
    PI_TRY(take_u32(c, "the version", &g->version, err));
    if (g->version != 0 && (g->version & 0xffff) == 0)
        PI_FAIL(err, PI_E_UNSUPPORTED, "%s: a big-endian GGUF file; convert it to little-endian",
                c->path);
    if (g->version != 2 && g->version != 3)
        PI_FAIL(err, PI_E_UNSUPPORTED, "%s: GGUF version %u; versions 2 and 3 are supported",
                c->path, g->version);
    PI_TRY(take_u64(c, "the number of tensors", &n_tensors, err));
    PI_TRY(take_u64(c, "the number of keys", &n_kv, err));
    if (n_kv > (c->size - c->at) / MIN_KV_BYTES || n_kv > UINT32_MAX)
        PI_FAIL(err, PI_E_CORRUPT, "%s: truncated: %" PRIu64 " keys cannot fit the %zu bytes left",
                c->path, n_kv, c->size - c->at);
    if (n_tensors > (c->size - c->at) / MIN_TENSOR_BYTES || n_tensors > UINT32_MAX)
        PI_FAIL(err, PI_E_CORRUPT,
                "%s: truncated: %" PRIu64 " tensors cannot fit the %zu bytes left", c->path,
                n_tensors, c->size - c->at);
    g->n_kv = (size_t)n_kv;
    g->n_tensors = (size_t)n_tensors;
out:
    return rc;
}

/* ---- keys and values ------------------------------------------------------------------------ */

/* Steps over the values of kv, whose type, elem and n are set; *n_strs counts strings. */
static enum pi_code skip_values(struct cursor *c, const struct pi_gguf_kv *kv, uint64_t *n_strs,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t size = pi_gguf_scalar_bytes(kv->elem);
    struct pi_str s;
    uint64_t bytes = 0;

    if (kv->elem == PI_GGUF_STR) {
        if (kv->n > (c->size - c->at) / 8)
            return cut_short(c, "an array of strings", kv->n, err);
        for (uint64_t i = 0; i < kv->n; i++)
            PI_TRY(take_str(c, "a string", &s, err));
        *n_strs += kv->n;
        return PI_OK;
    }
    if (!pi_size_mul(kv->n, size, &bytes) || bytes > c->size - c->at)
        return cut_short(c, "a value", pi_size_mul(kv->n, size, &bytes) ? bytes : UINT64_MAX, err);
    if (kv->elem == PI_GGUF_BOOL)
        for (uint64_t i = 0; i < kv->n; i++)
            if (c->p[c->at + i] > 1)
                PI_FAIL(err, PI_E_CORRUPT, "%s: key %.*s: %u is no truth value", c->path,
                        (int)kv->key.n, kv->key.p, c->p[c->at + i]);
    c->at += (size_t)bytes;
out:
    return rc;
}

static enum pi_code parse_kv(struct cursor *c, struct pi_gguf_kv *kv, uint64_t *n_strs,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t type = 0, elem;

    PI_TRY(take_str(c, "a key", &kv->key, err));
    if (kv->key.n == 0 || kv->key.n > PI_GGUF_MAX_KEY)
        PI_FAIL(err, PI_E_CORRUPT, "%s: a key of %zu bytes before byte %zu", c->path, kv->key.n,
                c->at);
    PI_TRY(take_u32(c, "a value's type", &type, err));
    elem = type;
    kv->n = 1;
    if (type == PI_GGUF_ARR) {
        PI_TRY(take_u32(c, "an array's element type", &elem, err));
        PI_TRY(take_u64(c, "an array's length", &kv->n, err));
        if (elem == PI_GGUF_ARR)
            PI_FAIL(err, PI_E_UNSUPPORTED, "%s: key %.*s is an array of arrays", c->path,
                    (int)kv->key.n, kv->key.p);
    }
    if (elem != PI_GGUF_STR && pi_gguf_scalar_bytes(elem) == 0)
        PI_FAIL(err, PI_E_UNSUPPORTED, "%s: key %.*s has unknown value type %u", c->path,
                (int)kv->key.n, kv->key.p, elem);
    kv->type = (enum pi_gguf_vtype)type;
    kv->elem = (enum pi_gguf_vtype)elem;
    kv->data = c->p + c->at;
    PI_TRY(skip_values(c, kv, n_strs, err));
out:
    return rc;
}

/* Second walk over string values, all of whose lengths were checked by the first. */
static enum pi_code index_strings(struct pi_gguf *g, uint64_t n_strs, struct pi_err *err)
{
    struct pi_str *s;

    g->strs = s = pi_calloc_array((size_t)n_strs, sizeof(*s), err);
    if (s == NULL)
        return PI_E_NOMEM;
    for (size_t k = 0; k < g->n_kv; k++) {
        struct pi_gguf_kv *kv = &g->kv[k];
        const uint8_t *p = kv->data;

        if (kv->elem != PI_GGUF_STR)
            continue;
        kv->strs = s;
        for (uint64_t i = 0; i < kv->n; i++, s++) {
            s->n = (size_t)pi_load_u64(p);
            s->p = (const char *)p + 8;
            p += 8 + s->n;
        }
    }
    return PI_OK;
}

static enum pi_code parse_keys(struct cursor *c, struct pi_gguf *g, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t n_strs = 0;

    PI_ALLOC(g->kv, g->n_kv, err);
    for (size_t i = 0; i < g->n_kv; i++)
        PI_TRY(parse_kv(c, &g->kv[i], &n_strs, err));
    PI_TRY(index_strings(g, n_strs, err));
out:
    return rc;
}

/* ---- tensor table --------------------------------------------------------------------------- */

static enum pi_code tensor_bytes(const char *path, struct pi_gguf_tensor *t, unsigned flags,
                                 struct pi_err *err)
{
    const struct pi_type_info *info = pi_type_info(t->type);
    uint64_t bytes = 0;

    if (info == NULL && (flags & PI_GGUF_NO_DATA))
        return PI_OK;
    if (info == NULL)
        return pi_err_set(err, PI_E_UNSUPPORTED, "%s: tensor %.*s has unsupported type %u", path,
                          (int)t->name.n, t->name.p, (unsigned)t->type);
    if (t->ne[0] % info->block_elems != 0)
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor %.*s: rows of %" PRIu64
                          " elements are no multiple of the %u in a block of %s",
                          path, (int)t->name.n, t->name.p, t->ne[0], info->block_elems, info->name);
    if (!pi_type_row_bytes(t->type, t->ne[0], &bytes) || !pi_size_mul(bytes, t->ne[1], &bytes) ||
        !pi_size_mul(bytes, t->ne[2], &bytes) || !pi_size_mul(bytes, t->ne[3], &bytes))
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor %.*s: %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                          " elements are too many",
                          path, (int)t->name.n, t->name.p, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    t->bytes = bytes;
    return PI_OK;
}

static enum pi_code parse_tensor(struct cursor *c, struct pi_gguf_tensor *t, uint64_t *offset_out,
                                 unsigned flags, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t type = 0;
    uint64_t n = 1;

    PI_TRY(take_str(c, "a tensor's name", &t->name, err));
    if (t->name.n == 0 || t->name.n > PI_GGUF_MAX_NAME)
        PI_FAIL(err, PI_E_CORRUPT, "%s: a tensor's name of %zu bytes before byte %zu", c->path,
                t->name.n, c->at);
    PI_TRY(take_u32(c, "a tensor's number of dimensions", &t->n_dims, err));
    if (t->n_dims == 0 || t->n_dims > PI_GGUF_MAX_DIMS)
        PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %.*s has %u dimensions; 1 to %d are possible",
                c->path, (int)t->name.n, t->name.p, t->n_dims, PI_GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < PI_GGUF_MAX_DIMS; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims)
            PI_TRY(take_u64(c, "a tensor's dimension", &t->ne[i], err));
        if (t->ne[i] == 0)
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %.*s: dimension %u is 0", c->path,
                    (int)t->name.n, t->name.p, i);
        /* Consumers multiply dimensions: their product must stay an element count. */
        if (!pi_size_mul(n, t->ne[i], &n) || n > INT64_MAX)
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %.*s has more than 2^63 elements", c->path,
                    (int)t->name.n, t->name.p);
    }
    PI_TRY(take_u32(c, "a tensor's type", &type, err));
    PI_TRY(take_u64(c, "a tensor's offset", offset_out, err));
    t->type = (enum pi_type)type;
    PI_TRY(tensor_bytes(c->path, t, flags, err));
out:
    return rc;
}

/* ---- indices -------------------------------------------------------------------------------- */

int pi_str_cmp(struct pi_str a, struct pi_str b)
{
    int d = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);

    return d != 0 ? d : (a.n > b.n) - (a.n < b.n);
}

static int cmp_kv(const void *a, const void *b, void *ctx)
{
    const struct pi_gguf_kv *kv = ctx;

    return pi_str_cmp(kv[*(const uint32_t *)a].key, kv[*(const uint32_t *)b].key);
}

static int cmp_tensor(const void *a, const void *b, void *ctx)
{
    const struct pi_gguf_tensor *t = ctx;

    return pi_str_cmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

enum pi_code pi_gguf_index_tensors(struct pi_gguf *g, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    free(g->tensor_by_name);
    PI_ALLOC(g->tensor_by_name, g->n_tensors, err);
    for (uint32_t i = 0; i < g->n_tensors; i++)
        g->tensor_by_name[i] = i;
    qsort_r(g->tensor_by_name, g->n_tensors, sizeof(uint32_t), cmp_tensor, g->tensors);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (cmp_tensor(&g->tensor_by_name[i - 1], &g->tensor_by_name[i], g->tensors) == 0)
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %.*s occurs twice", g->map.path,
                    (int)g->tensors[g->tensor_by_name[i]].name.n,
                    g->tensors[g->tensor_by_name[i]].name.p);
out:
    return rc;
}

static enum pi_code index_names(struct pi_gguf *g, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_ALLOC(g->kv_by_name, g->n_kv, err);
    for (uint32_t i = 0; i < g->n_kv; i++)
        g->kv_by_name[i] = i;
    qsort_r(g->kv_by_name, g->n_kv, sizeof(uint32_t), cmp_kv, g->kv);
    for (size_t i = 1; i < g->n_kv; i++)
        if (cmp_kv(&g->kv_by_name[i - 1], &g->kv_by_name[i], g->kv) == 0)
            PI_FAIL(err, PI_E_CORRUPT, "%s: key %.*s occurs twice", g->map.path,
                    (int)g->kv[g->kv_by_name[i]].key.n, g->kv[g->kv_by_name[i]].key.p);
    rc = pi_gguf_index_tensors(g, err);
out:
    return rc;
}

/* ---- where the data lies -------------------------------------------------------------------- */

static enum pi_code read_alignment(struct pi_gguf *g, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = pi_gguf_find(g, "general.alignment");
    uint32_t a = PI_GGUF_ALIGNMENT;

    if (kv != NULL) {
        if (kv->type != PI_GGUF_U32)
            return pi_err_set(err, PI_E_CORRUPT, "%s: general.alignment is no u32 value",
                              g->map.path);
        a = pi_load_u32(kv->data);
    }
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: alignment %u is no power of two between %d and %d", g->map.path, a,
                          MIN_ALIGNMENT, MAX_ALIGNMENT);
    g->alignment = a;
    return PI_OK;
}

struct extent {
    uint64_t offset;
    uint32_t tensor;
};

static int cmp_extent(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Tensors must fill the data section without holes: a tensor whose region is larger or smaller than
 * its type needs was given the wrong type or shape somewhere. */
static enum pi_code place_tensors(struct pi_gguf *g, struct extent *x, struct pi_err *err)
{
    uint64_t size = g->map.size > g->data_offset ? g->map.size - g->data_offset : 0, next = 0;

    qsort(x, g->n_tensors, sizeof(*x), cmp_extent);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct pi_gguf_tensor *t = &g->tensors[x[i].tensor];

        if (x[i].offset > size || t->bytes > size - x[i].offset)
            return pi_err_set(err, PI_E_CORRUPT,
                              "%s: truncated: tensor %.*s needs %" PRIu64 " bytes at %" PRIu64
                              " of the tensor data, the file has %" PRIu64,
                              g->map.path, (int)t->name.n, t->name.p, t->bytes, x[i].offset, size);
        if (x[i].offset != next)
            return pi_err_set(err, PI_E_CORRUPT,
                              "%s: tensor %.*s starts at %" PRIu64
                              " of the tensor data, where the tensors before it end at %" PRIu64,
                              g->map.path, (int)t->name.n, t->name.p, x[i].offset, next);
        t->data = g->map.data + g->data_offset + x[i].offset;
        next = x[i].offset + t->bytes; /* inside the file, so no overflow here or in the padding */
        next = (next + g->alignment - 1) & ~(g->alignment - 1);
    }
    return PI_OK;
}

static enum pi_code parse_tensors(struct cursor *c, struct pi_gguf *g, unsigned flags,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct extent *x = NULL;

    PI_ALLOC(g->tensors, g->n_tensors, err);
    PI_ALLOC(x, g->n_tensors, err);
    for (size_t i = 0; i < g->n_tensors; i++) {
        x[i].tensor = (uint32_t)i;
        PI_TRY(parse_tensor(c, &g->tensors[i], &x[i].offset, flags, err));
    }
    g->header_bytes = c->at;
    PI_TRY(index_names(g, err));
    PI_TRY(read_alignment(g, err));
    /* at <= the file's size and the alignment is small: no overflow */
    g->data_offset = (c->at + g->alignment - 1) & ~(g->alignment - 1);
    for (size_t i = 0; i < g->n_tensors; i++)
        if (x[i].offset % g->alignment != 0)
            PI_FAIL(err, PI_E_CORRUPT,
                    "%s: tensor %.*s: offset %" PRIu64 " is no multiple of the alignment %" PRIu64,
                    c->path, (int)g->tensors[i].name.n, g->tensors[i].name.p, x[i].offset,
                    g->alignment);
    if (!(flags & PI_GGUF_NO_DATA))
        PI_TRY(place_tensors(g, x, err));
out:
    free(x);
    return rc;
}

const char *pi_gguf_edited_hint(const struct pi_gguf *g)
{
    return pi_gguf_find(g, "pi.artifact.kind") != NULL
               ? ": the file is damaged, or another program edited it"
               : ": the file is damaged, or another program edited it (then make a sound copy with: "
                 "pi-convert FILE -o COPY --accept-edited)";
}

/* CRC-32 of the header with the four bytes of the stored value taken as zero. */
enum pi_code pi_gguf_check_header_crc(const struct pi_gguf *g, struct pi_err *err)
{
    static const uint8_t zero[4];
    const struct pi_gguf_kv *kv = pi_gguf_find(g, PI_GGUF_KEY_HEADER_CRC);
    uint32_t want;
    size_t at;
    uLong crc;

    if (kv == NULL)
        return PI_OK;
    if (kv->type != PI_GGUF_U32)
        return pi_err_set(err, PI_E_CORRUPT, "%s: " PI_GGUF_KEY_HEADER_CRC " is no u32 value",
                          g->map.path);
    want = pi_load_u32(kv->data);
    at = (size_t)(kv->data - g->map.data);
    crc = crc32_z(0, g->map.data, at);
    crc = crc32_z(crc, zero, 4);
    crc = crc32_z(crc, kv->data + 4, g->header_bytes - at - 4);
    if (crc != want)
        return pi_err_set(err, PI_E_CORRUPT, "%s: the header's CRC-32 is %08lx, %08x is stored%s",
                          g->map.path, crc, want, pi_gguf_edited_hint(g));
    return PI_OK;
}

static enum pi_code parse(struct pi_map *map, unsigned flags, struct pi_gguf *g_out,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf g = {.map = *map};
    struct cursor c = {.p = map->data, .size = map->size, .path = map->path};

    PI_TRY(parse_header(&c, &g, err));
    PI_TRY(parse_keys(&c, &g, err));
    PI_TRY(parse_tensors(&c, &g, flags, err));
    if (!(flags & PI_GGUF_NO_HEADER_CRC))
        PI_TRY(pi_gguf_check_header_crc(&g, err));
    *g_out = g;
    return PI_OK;
out:
    pi_gguf_close(&g);
    return rc;
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum pi_code pi_gguf_open(const char *path, unsigned flags, struct pi_gguf *g_out,
                          struct pi_err *err)
{
    struct pi_map map = {0};
    enum pi_code rc = pi_map_open(path, &map, err);

    if (rc == PI_E_IO && is_folder(path))
        rc = pi_err_set(err, rc,
                        "%s: is a folder; pi-convert makes a file of a Hugging Face model's folder",
                        path);
    return rc == PI_OK ? parse(&map, flags, g_out, err) : rc;
}

enum pi_code pi_gguf_open_memory(const void *data, size_t size, const char *name, unsigned flags,
                                 struct pi_gguf *g_out, struct pi_err *err)
{
    struct pi_map map = {0};
    enum pi_code rc = pi_map_memory(data, size, name, &map, err);

    return rc == PI_OK ? parse(&map, flags, g_out, err) : rc;
}

void pi_gguf_drop(const struct pi_gguf *g, const void *p, size_t n)
{
    pi_map_drop(&g->map, p, n);
    for (size_t i = 0; i < g->n_parts; i++)
        pi_map_drop(&g->parts[i], p, n);
}

void pi_gguf_drop_all(const struct pi_gguf *g)
{
    pi_map_drop(&g->map, g->map.data, g->map.size);
    for (size_t i = 0; i < g->n_parts; i++)
        pi_map_drop(&g->parts[i], g->parts[i].data, g->parts[i].size);
}

void pi_gguf_close(struct pi_gguf *g)
{
    free(g->kv);
    free(g->tensors);
    free(g->kv_by_name);
    free(g->tensor_by_name);
    free(g->strs);
    for (size_t i = 0; i < g->n_parts; i++)
        pi_map_close(&g->parts[i]);
    free(g->parts);
    pi_map_close(&g->map);
    memset(g, 0, sizeof(*g));
}
