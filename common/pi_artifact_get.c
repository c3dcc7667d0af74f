/* Checked values of an artifact, shared by the loaders. */
#include "config.h"

#include "common/pi_artifact_int.h"

#include <inttypes.h>
#include <stdio.h>

enum pi_code pi_artifact_u32(const struct pi_gguf *g, const char *key, uint32_t min, uint32_t max,
                             uint32_t *out, struct pi_err *err)
{
    enum pi_code rc = pi_gguf_u32(g, key, true, out, err);

    if (rc == PI_OK && (*out < min || *out > max))
        return pi_err_set(err, PI_E_CORRUPT, "%s: %s is %u; %u to %u are possible", g->map.path,
                          key, *out, min, max);
    return rc;
}

static enum pi_code find_array(const struct pi_gguf *g, const char *key, enum pi_gguf_vtype elem,
                               uint32_t n, const struct pi_gguf_kv **kv, struct pi_err *err)
{
    enum pi_code rc = pi_gguf_array(g, key, elem, true, kv, err);

    if (rc == PI_OK && (*kv)->n != n)
        return pi_err_set(err, PI_E_CORRUPT, "%s: %s has %" PRIu64 " values for %u layers",
                          g->map.path, key, (*kv)->n, n);
    return rc;
}

enum pi_code pi_artifact_ints(const struct pi_gguf *g, const char *key, uint32_t n, uint32_t max,
                              uint32_t *out, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    enum pi_code rc = find_array(g, key, PI_GGUF_I64, n, &kv, err);

    if (rc != PI_OK)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        int64_t v = pi_gguf_elem_i64(kv, i);

        if (v < 0 || v > max)
            return pi_err_set(err, PI_E_CORRUPT,
                              "%s: %s: layer %u has %" PRId64 "; 0 to %u are possible", g->map.path,
                              key, i, v, max);
        out[i] = (uint32_t)v;
    }
    return PI_OK;
}

enum pi_code pi_artifact_floats(const struct pi_gguf *g, const char *key, uint32_t n, float min,
                                float max, float *out, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    enum pi_code rc = find_array(g, key, PI_GGUF_F32, n, &kv, err);

    if (rc != PI_OK)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = pi_gguf_elem_f32(kv, i);
        if (!(out[i] >= min && out[i] <= max))
            return pi_err_set(err, PI_E_CORRUPT, "%s: %s: layer %u has %g; %g to %g are possible",
                              g->map.path, key, i, (double)out[i], (double)min, (double)max);
    }
    return PI_OK;
}

enum pi_code pi_artifact_tensor(const struct pi_gguf *g, uint32_t layer, const char *name,
                                bool required, uint64_t ne0, uint64_t ne1,
                                const struct pi_gguf_tensor **out, struct pi_err *err)
{
    char full[64];
    const struct pi_gguf_tensor *t;

    (void)snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
    *out = t = pi_gguf_find_tensor(g, full);
    if (t == NULL && !required)
        return PI_OK;
    if (t == NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %s is missing", g->map.path, full);
    if (t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == 1 && t->ne[3] == 1)
        return PI_OK;
    return pi_err_set(err, PI_E_CORRUPT,
                      "%s: tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                      ", not %" PRIu64 " x %" PRIu64,
                      g->map.path, full, t->ne[0], t->ne[1], t->ne[2], t->ne[3], ne0, ne1);
}

enum pi_code pi_artifact_want_type(const struct pi_gguf *g, const struct pi_gguf_tensor *t,
                                   enum pi_type type, struct pi_err *err)
{
    if (t->type == type)
        return PI_OK;
    return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %.*s is %s, not %s", g->map.path,
                      (int)t->name.n, t->name.p, pi_type_name(t->type), pi_type_name(type));
}

enum pi_code pi_artifact_add(struct pi_gguf_writer *w, uint32_t layer, const char *name,
                             enum pi_type type, uint64_t ne0, uint64_t ne1, struct pi_err *err)
{
    char full[64];
    uint64_t ne[2] = {ne0, ne1};

    (void)snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
    return pi_gguf_add_tensor(w, full, type, ne, ne1 > 0 ? 2 : 1, err);
}
