/* Look-ups and typed values of an open GGUF file. */
#include "config.h"

#include "common/pi_gguf.h"

#include "common/pi_gguf_int.h"
#include "common/pi_le.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

bool pi_str_eq(struct pi_str s, const char *z)
{
    return strlen(z) == s.n && memcmp(s.p, z, s.n) == 0;
}

const struct pi_gguf_kv *pi_gguf_find(const struct pi_gguf *g, const char *key)
{
    struct pi_str want = {key, strlen(key)};
    size_t lo = 0, hi = g->n_kv;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct pi_gguf_kv *kv = &g->kv[g->kv_by_name[mid]];
        int d = pi_str_cmp(want, kv->key);

        if (d == 0)
            return kv;
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const struct pi_gguf_tensor *pi_gguf_find_tensor(const struct pi_gguf *g, const char *name)
{
    struct pi_str want = {name, strlen(name)};
    size_t lo = 0, hi = g->n_tensors;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct pi_gguf_tensor *t = &g->tensors[g->tensor_by_name[mid]];
        int d = pi_str_cmp(want, t->name);

        if (d == 0)
            return t;
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static const char *vtype_name(enum pi_gguf_vtype type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};

    return (size_t)type < sizeof(names) / sizeof(names[0]) ? names[type] : "?";
}

static enum pi_code wrong_type(const struct pi_gguf *g, const char *key, const char *want,
                               const struct pi_gguf_kv *kv, struct pi_err *err)
{
    const char *of = kv->type == PI_GGUF_ARR ? "an array of " : "";

    return pi_err_set(err, PI_E_CORRUPT, "%s: key %s is %s%s, not %s", g->map.path, key, of,
                      vtype_name(kv->elem), want);
}

/* *kv_out is NULL when the key is absent and that is allowed. */
static enum pi_code find_scalar(const struct pi_gguf *g, const char *key, bool required,
                                const struct pi_gguf_kv **kv_out, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = pi_gguf_find(g, key);

    *kv_out = kv;
    if (kv == NULL && required)
        return pi_err_set(err, PI_E_CORRUPT, "%s: key %s is missing", g->map.path, key);
    if (kv != NULL && kv->type == PI_GGUF_ARR)
        return wrong_type(g, key, "a single value", kv, err);
    return PI_OK;
}

static bool is_integer(enum pi_gguf_vtype type)
{
    switch (type) {
    case PI_GGUF_U8:
    case PI_GGUF_I8:
    case PI_GGUF_U16:
    case PI_GGUF_I16:
    case PI_GGUF_U32:
    case PI_GGUF_I32:
    case PI_GGUF_U64:
    case PI_GGUF_I64:
        return true;
    default:
        return false;
    }
}

int64_t pi_gguf_elem_i64(const struct pi_gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = kv->data + i * pi_gguf_scalar_bytes(kv->elem);
    uint64_t u;

    switch (kv->elem) {
    case PI_GGUF_U8:
    case PI_GGUF_BOOL:
        return *p;
    case PI_GGUF_I8:
        return (int8_t)*p;
    case PI_GGUF_U16:
        return pi_load_u16(p);
    case PI_GGUF_I16:
        return (int16_t)pi_load_u16(p);
    case PI_GGUF_U32:
        return pi_load_u32(p);
    case PI_GGUF_I32:
        return (int32_t)pi_load_u32(p);
    case PI_GGUF_U64:
        u = pi_load_u64(p);
        return u > INT64_MAX ? INT64_MAX : (int64_t)u;
    case PI_GGUF_I64:
        return (int64_t)pi_load_u64(p);
    default:
        return 0;
    }
}

float pi_gguf_elem_f32(const struct pi_gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = kv->data + i * pi_gguf_scalar_bytes(kv->elem);
    uint32_t u;
    uint64_t v;
    float f;
    double d;

    if (kv->elem == PI_GGUF_F32) {
        u = pi_load_u32(p);
        memcpy(&f, &u, sizeof(f));
        return f;
    }
    if (kv->elem == PI_GGUF_F64) {
        v = pi_load_u64(p);
        memcpy(&d, &v, sizeof(d));
        return (float)d;
    }
    return 0.0f;
}

/* An integer in [min, max]; a u64 above INT64_MAX counts as INT64_MAX and as negative for nothing. */
static enum pi_code get_integer(const struct pi_gguf *g, const char *key, bool required,
                                uint64_t max, bool *found, uint64_t *out, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    enum pi_code rc = find_scalar(g, key, required, &kv, err);
    int64_t v;

    *found = false;
    if (rc != PI_OK || kv == NULL)
        return rc;
    if (!is_integer(kv->elem))
        return wrong_type(g, key, "an integer", kv, err);
    v = pi_gguf_elem_i64(kv, 0);
    if (kv->elem != PI_GGUF_U64 && v < 0)
        return pi_err_set(err, PI_E_CORRUPT, "%s: key %s is negative: %" PRId64, g->map.path, key,
                          v);
    *out = kv->elem == PI_GGUF_U64 ? pi_load_u64(kv->data) : (uint64_t)v;
    if (*out > max)
        return pi_err_set(err, PI_E_CORRUPT, "%s: key %s is %" PRIu64 ", more than %" PRIu64,
                          g->map.path, key, *out, max);
    *found = true;
    return PI_OK;
}

enum pi_code pi_gguf_u32(const struct pi_gguf *g, const char *key, bool required, uint32_t *out,
                         struct pi_err *err)
{
    bool found = false;
    uint64_t v = 0;
    enum pi_code rc = get_integer(g, key, required, UINT32_MAX, &found, &v, err);

    if (rc == PI_OK && found)
        *out = (uint32_t)v;
    return rc;
}

enum pi_code pi_gguf_u64(const struct pi_gguf *g, const char *key, bool required, uint64_t *out,
                         struct pi_err *err)
{
    bool found = false;
    uint64_t v = 0;
    enum pi_code rc = get_integer(g, key, required, UINT64_MAX, &found, &v, err);

    if (rc == PI_OK && found)
        *out = v;
    return rc;
}

enum pi_code pi_gguf_f32(const struct pi_gguf *g, const char *key, bool required, float *out,
                         struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    enum pi_code rc = find_scalar(g, key, required, &kv, err);
    float v;

    if (rc != PI_OK || kv == NULL)
        return rc;
    if (kv->elem != PI_GGUF_F32 && kv->elem != PI_GGUF_F64)
        return wrong_type(g, key, "a floating-point number", kv, err);
    v = pi_gguf_elem_f32(kv, 0);
    if (!isfinite(v))
        return pi_err_set(err, PI_E_CORRUPT, "%s: key %s is not finite", g->map.path, key);
    *out = v;
    return PI_OK;
}

enum pi_code pi_gguf_bool(const struct pi_gguf *g, const char *key, bool required, bool *out,
                          struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    enum pi_code rc = find_scalar(g, key, required, &kv, err);

    if (rc != PI_OK || kv == NULL)
        return rc;
    if (kv->elem != PI_GGUF_BOOL)
        return wrong_type(g, key, "a truth value", kv, err);
    *out = kv->data[0] != 0;
    return PI_OK;
}

enum pi_code pi_gguf_string(const struct pi_gguf *g, const char *key, bool required,
                            struct pi_str *out, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    enum pi_code rc = find_scalar(g, key, required, &kv, err);

    if (rc != PI_OK || kv == NULL)
        return rc;
    if (kv->elem != PI_GGUF_STR)
        return wrong_type(g, key, "a string", kv, err);
    *out = kv->strs[0];
    return PI_OK;
}

enum pi_code pi_gguf_array(const struct pi_gguf *g, const char *key, enum pi_gguf_vtype elem,
                           bool required, const struct pi_gguf_kv **kv_out, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = pi_gguf_find(g, key);

    *kv_out = NULL;
    if (kv == NULL && required)
        return pi_err_set(err, PI_E_CORRUPT, "%s: key %s is missing", g->map.path, key);
    if (kv == NULL)
        return PI_OK;
    if (kv->type != PI_GGUF_ARR)
        return wrong_type(g, key, "an array", kv, err);
    if (elem == PI_GGUF_I64 ? !is_integer(kv->elem) : kv->elem != elem)
        return pi_err_set(err, PI_E_CORRUPT, "%s: key %s is an array of %s, not of %s", g->map.path,
                          key, vtype_name(kv->elem),
                          elem == PI_GGUF_I64 ? "integers" : vtype_name(elem));
    *kv_out = kv;
    return PI_OK;
}
