/*
 * Layout: u64 header length (little-endian), that many bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}}, then the data;
 * offsets count from the end of the header. The data holds no holes (the format's own rule, kept by its reference reader).
 */
#include "config.h"

#include "convert/pi_safetensors.h"
#include "common/pi_alloc.h"
#include "common/pi_le.h"
#include "common/pi_size.h"
#include "convert/pi_json.h"

#include <stdlib.h>
#include <string.h>

#define MAX_HEADER_BYTES ((uint64_t)100000000) /* the format's own limit */

struct dtype {
    const char *name;
    uint32_t bytes;
    bool readable;
    enum pi_type type;
};

static const struct dtype dtypes[] = {
    {"F32", 4, true, PI_TYPE_F32},        {"F16", 2, true, PI_TYPE_F16},
    {"BF16", 2, true, PI_TYPE_BF16},      {"F64", 8, false, PI_TYPE_F64},
    {"I64", 8, false, PI_TYPE_I64},       {"I32", 4, false, PI_TYPE_I32},
    {"I16", 2, false, PI_TYPE_I16},       {"I8", 1, false, PI_TYPE_I8},
    {"U8", 1, false, PI_TYPE_COUNT},      {"U16", 2, false, PI_TYPE_COUNT},
    {"U32", 4, false, PI_TYPE_COUNT},     {"U64", 8, false, PI_TYPE_COUNT},
    {"BOOL", 1, false, PI_TYPE_COUNT},    {"F8_E4M3", 1, false, PI_TYPE_COUNT},
    {"F8_E5M2", 1, false, PI_TYPE_COUNT}, {"F8_E8M0", 1, false, PI_TYPE_COUNT},
    {"C64", 8, false, PI_TYPE_COUNT},
};

static const struct dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

/* A JSON array of n whole numbers >= 0 at most. */
static bool read_numbers(const json_t *v, uint64_t *out, size_t max, size_t *n_out)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v) || n > max)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(v, i);
        if (!json_is_integer(e) || json_integer_value(e) < 0)
            return false;
        out[i] = (uint64_t)json_integer_value(e);
    }
    *n_out = n;
    return true;
}

static enum pi_code read_shape(const json_t *v, const char *path, struct pi_src_tensor *t,
                               uint64_t *n_elems, struct pi_err *err)
{
    size_t n = 0;

    if (json_array_size(v) > PI_SRC_MAX_DIMS)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: tensor %s has %zu dimensions, at most %d are known", path, t->name,
                          json_array_size(v), PI_SRC_MAX_DIMS);
    if (!read_numbers(v, t->dim, PI_SRC_MAX_DIMS, &n))
        return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %s: \"shape\" is no list of sizes", path,
                          t->name);
    t->n_dims = (uint32_t)n;
    *n_elems = 1;
    for (size_t i = 0; i < PI_SRC_MAX_DIMS; i++) {
        if (i >= n)
            t->dim[i] = 1;
        else if (!pi_size_mul(*n_elems, t->dim[i], n_elems))
            return pi_err_set(err, PI_E_CORRUPT,
                              "%s: tensor %s: the product of its shape does not fit 64 bits", path,
                              t->name);
    }
    return PI_OK;
}

/* One entry of the header; data begins at base and holds n_data bytes. */
static enum pi_code read_entry(const char *name, const json_t *v, const char *path,
                               const uint8_t *base, uint64_t n_data, struct pi_src_tensor *t,
                               struct pi_err *err)
{
    const char *dtype_name = json_string_value(json_object_get(v, "dtype"));
    const struct dtype *d;
    uint64_t at[2], n_elems = 0, need;
    size_t n = 0;

    if (!json_is_object(v) || dtype_name == NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %s: no \"dtype\"", path, name);
    d = find_dtype(dtype_name);
    if (d == NULL)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: tensor %s: unknown dtype %.32s (supported: " PI_SRC_DTYPES ")", path,
                          name, dtype_name);
    if (read_shape(json_object_get(v, "shape"), path, t, &n_elems, err) != PI_OK)
        return err->code;
    if (!read_numbers(json_object_get(v, "data_offsets"), at, 2, &n) || n != 2)
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor %s: \"data_offsets\" is no pair of offsets", path, name);
    if (at[1] < at[0] || at[1] > n_data)
        return pi_err_set(
            err, PI_E_CORRUPT,
            "%s: tensor %s: bytes %llu to %llu do not lie in the file's %llu bytes of data (an interrupted download?)", path,
            name, (unsigned long long)at[0], (unsigned long long)at[1], (unsigned long long)n_data);
    if (!pi_size_mul(n_elems, d->bytes, &need) || need != at[1] - at[0])
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor %s: %llu elements of %s do not take the %llu bytes given",
                          path, name, (unsigned long long)n_elems, d->name,
                          (unsigned long long)(at[1] - at[0]));
    t->dtype = d->name;
    t->readable = d->readable;
    t->type = d->type;
    t->data = base + at[0];
    t->bytes = need;
    return PI_OK;
}

static int by_place(const void *pa, const void *pb)
{
    const struct pi_src_tensor *a = *(const struct pi_src_tensor *const *)pa,
                               *b = *(const struct pi_src_tensor *const *)pb;

    if (a->data != b->data)
        return a->data < b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Tensors from first on tile the file's data: no overlap, no hole, nothing behind. */
static enum pi_code check_tiling(const struct pi_source *src, size_t first, const uint8_t *base,
                                 uint64_t n_data, const char *path, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_src_tensor **order = NULL;
    const uint8_t *at = base;
    size_t n = src->n - first;

    PI_ALLOC(order, n, err);
    for (size_t i = 0; i < n; i++)
        order[i] = &src->t[first + i];
    qsort(order, n, sizeof(*order), by_place);
    for (size_t i = 0; i < n; i++) {
        if (order[i]->data < at)
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensors %s and %s overlap", path, order[i - 1]->name,
                    order[i]->name);
        if (order[i]->data > at)
            PI_FAIL(err, PI_E_CORRUPT, "%s: %llu bytes before tensor %s belong to no tensor", path,
                    (unsigned long long)(order[i]->data - at), order[i]->name);
        at = order[i]->data + order[i]->bytes;
    }
    if ((uint64_t)(at - base) != n_data)
        PI_FAIL(err, PI_E_CORRUPT, "%s: %llu bytes behind the last tensor", path,
                (unsigned long long)(n_data - (uint64_t)(at - base)));
out:
    free(order);
    return rc;
}

static enum pi_code read_length(const uint8_t *data, size_t size, const char *path, uint64_t *n_out,
                                struct pi_err *err)
{
    uint64_t n;

    if (size < 8)
        return pi_err_set(err, PI_E_CORRUPT, "%s: %zu bytes are no safetensors file", path, size);
    n = pi_load_u64(data);
    if (n > size - 8)
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: a header of %llu bytes does not fit a file of %zu", path,
                          (unsigned long long)n, size);
    if (n > MAX_HEADER_BYTES)
        return pi_err_set(err, PI_E_CORRUPT, "%s: a header of %llu bytes, more than %llu", path,
                          (unsigned long long)n, (unsigned long long)MAX_HEADER_BYTES);
    if (n < 2 || data[8] != '{')
        return pi_err_set(err, PI_E_CORRUPT, "%s: a header of %llu bytes that is no JSON object",
                          path, (unsigned long long)n);
    *n_out = n;
    return PI_OK;
}

enum pi_code pi_safetensors_parse(const uint8_t *data, size_t size, const char *path,
                                  struct pi_source *src, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_err local;
    json_t *root = NULL, *v;
    const char *name;
    size_t first = src->n;
    uint64_t n_header = 0, n_data;
    const uint8_t *base;

    if (err == NULL)
        err = &local;
    PI_TRY(read_length(data, size, path, &n_header, err));
    base = data + 8 + n_header;
    n_data = size - 8 - n_header;
    PI_TRY(pi_json_parse((const char *)data + 8, (size_t)n_header, path, &root, err));
    PI_TRY(
        pi_grow_array(&src->t, &src->cap, src->n + json_object_size(root), sizeof(*src->t), err));
    json_object_foreach(root, name, v)
    {
        struct pi_src_tensor *t = &src->t[src->n];

        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (strlen(name) == 0 || strlen(name) > 1024)
            PI_FAIL(err, PI_E_CORRUPT, "%s: a tensor name of %zu bytes", path, strlen(name));
        *t = (struct pi_src_tensor){.name = pi_strndup(name, strlen(name), err), .path = path};
        if (t->name == NULL) {
            rc = PI_E_NOMEM;
            goto out;
        }
        src->n++;
        PI_TRY(read_entry(t->name, v, path, base, n_data, t, err));
    }
    PI_TRY(check_tiling(src, first, base, n_data, path, err));
out:
    json_decref(root);
    return rc;
}
