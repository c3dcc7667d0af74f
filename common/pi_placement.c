#include "config.h"

#include "common/pi_placement.h"

#include "common/pi_alloc.h"
#include "common/pi_artifact_int.h"
#include "common/pi_shape.h"
#include "common/pi_type.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CTX (1u << 30)

const char *pi_mode_name(enum pi_mode mode)
{
    static const char *const names[] = {
        [PI_MODE_DENSE] = "dense", [PI_MODE_EXACT] = "exact", [PI_MODE_PREDICTED] = "predicted"};

    return (size_t)mode < sizeof(names) / sizeof(names[0]) ? names[mode] : "?";
}

static enum pi_code alloc_layers(struct pi_placement *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_ALLOC(p->layers, p->n_layer, err);
    for (uint32_t l = 0; l < p->n_layer; l++)
        PI_ALLOC(p->layers[l].order, p->n_ff, err);
out:
    return rc;
}

void pi_placement_free(struct pi_placement *p)
{
    for (uint32_t l = 0; p->layers != NULL && l < p->n_layer; l++)
        free(p->layers[l].order);
    free(p->layers);
    memset(p, 0, sizeof(*p));
}

enum pi_code pi_placement_cpu(uint32_t n_layer, uint32_t n_ff, struct pi_placement *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_placement p = {.n_layer = n_layer,
                             .n_ff = n_ff,
                             .n_units = 1,
                             .kv_type = PI_TYPE_F16,
                             .objective = "cpu",
                             .hardware = "CPU only"};

    PI_TRY(alloc_layers(&p, err));
    for (uint32_t l = 0; l < n_layer; l++)
        for (uint32_t i = 0; i < n_ff; i++)
            p.layers[l].order[i] = i;
    *out = p;
    return PI_OK;
out:
    pi_placement_free(&p);
    return rc;
}

/* ---- checking ------------------------------------------------------------------------------- */

static enum pi_code check_layer(const struct pi_placement *p, uint32_t l, uint8_t *seen,
                                struct pi_err *err)
{
    const struct pi_place_layer *x = &p->layers[l];

    if (x->n_hot > p->n_ff)
        return pi_err_set(err, PI_E_CORRUPT, "layer %u: %u hot neurons of %u", l, x->n_hot,
                          p->n_ff);
    if (x->n_hot > 0 && (x->hot_unit < 1 || x->hot_unit >= p->n_units))
        return pi_err_set(err, PI_E_CORRUPT, "layer %u: hot neurons on unit %u of %u", l,
                          x->hot_unit, p->n_units);
    if (x->attn_unit >= p->n_units)
        return pi_err_set(err, PI_E_CORRUPT, "layer %u: attention on unit %u of %u", l,
                          x->attn_unit, p->n_units);
    if ((unsigned)x->mode_cpu > PI_MODE_PREDICTED || (unsigned)x->mode_gpu > PI_MODE_PREDICTED)
        return pi_err_set(err, PI_E_CORRUPT, "layer %u: unknown mode %u or %u", l,
                          (unsigned)x->mode_cpu, (unsigned)x->mode_gpu);
    memset(seen, 0, p->n_ff);
    for (uint32_t i = 0; i < p->n_ff; i++) {
        uint32_t id = x->order[i];

        if (id >= p->n_ff || seen[id])
            return pi_err_set(err, PI_E_CORRUPT, "layer %u: neuron %u is %s", l, id,
                              id >= p->n_ff ? "out of range" : "placed twice");
        seen[id] = 1;
    }
    return PI_OK;
}

enum pi_code pi_placement_check(const struct pi_placement *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint8_t *seen = NULL;

    if (p->n_layer < 1 || p->n_layer > PI_MAX_LAYERS || p->n_ff < 1 || p->n_ff > PI_MAX_FF)
        PI_FAIL(err, PI_E_CORRUPT, "%u layers of %u neurons", p->n_layer, p->n_ff);
    if (p->n_units < 1 || p->n_units > PI_MAX_UNITS || p->embd_unit >= p->n_units ||
        p->output_unit >= p->n_units)
        PI_FAIL(err, PI_E_CORRUPT, "embedding on unit %u, output on unit %u of %u", p->embd_unit,
                p->output_unit, p->n_units);
    if (p->kv_type != PI_TYPE_F16 && p->kv_type != PI_TYPE_F32)
        PI_FAIL(err, PI_E_CORRUPT, "a KV cache of %s", pi_type_name(p->kv_type));
    PI_ALLOC(seen, p->n_ff, err);
    for (uint32_t l = 0; l < p->n_layer; l++)
        PI_TRY(check_layer(p, l, seen, err));
out:
    free(seen);
    return rc;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* Text of at most size - 1 bytes into the caller's array. */
static enum pi_code read_text(const struct pi_gguf *g, const char *key, char *out, size_t size,
                              struct pi_err *err)
{
    struct pi_str s = {"", 0};
    enum pi_code rc = pi_gguf_string(g, key, true, &s, err);

    if (rc != PI_OK)
        return rc;
    if (s.n >= size || memchr(s.p, '\0', s.n) != NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: %s is longer than %zu bytes or holds a NUL",
                          g->map.path, key, size - 1);
    memcpy(out, s.p, s.n);
    out[s.n] = '\0';
    return PI_OK;
}

static enum pi_code read_scalars(const struct pi_gguf *g, struct pi_placement *p,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t embd = 0, output = 0;

    PI_TRY(pi_artifact_lineage(g, &p->lineage, err));
    PI_TRY(pi_artifact_fingerprint(g, &p->fingerprint, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.n_layer", 1, PI_MAX_LAYERS, &p->n_layer, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.n_ff", 1, PI_MAX_FF, &p->n_ff, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.n_units", 1, PI_MAX_UNITS, &p->n_units, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.embd_unit", 0, p->n_units - 1, &embd, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.output_unit", 0, p->n_units - 1, &output, err));
    p->embd_unit = (uint8_t)embd;
    p->output_unit = (uint8_t)output;
    PI_TRY(pi_gguf_u64(g, "pi.placement.budget", true, &p->budget, err));
    PI_TRY(pi_gguf_u64(g, "pi.placement.context_bytes", false, &p->context_bytes, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.n_ctx", 0, MAX_CTX, &p->n_ctx, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.n_seq", 0, MAX_CTX, &p->n_seq, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.n_batch", 0, MAX_CTX, &p->n_batch, err));
    PI_TRY(pi_artifact_u32(g, "pi.placement.kv_type", 0, UINT32_MAX, &p->kv_type, err));
    PI_TRY(read_text(g, "pi.placement.objective", p->objective, sizeof(p->objective), err));
    PI_TRY(read_text(g, "pi.placement.hardware", p->hardware, sizeof(p->hardware), err));
out:
    return rc;
}

/* The five arrays over layers, one after the other through one buffer. */
static enum pi_code read_columns(const struct pi_gguf *g, struct pi_placement *p,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t *v = NULL, n = p->n_layer;

    PI_ALLOC(v, n, err);
    PI_TRY(pi_artifact_ints(g, "pi.placement.n_hot", n, p->n_ff, v, err));
    for (uint32_t l = 0; l < n; l++)
        p->layers[l].n_hot = v[l];
    PI_TRY(pi_artifact_ints(g, "pi.placement.hot_unit", n, UINT8_MAX, v, err));
    for (uint32_t l = 0; l < n; l++)
        p->layers[l].hot_unit = (uint8_t)v[l];
    PI_TRY(pi_artifact_ints(g, "pi.placement.attn_unit", n, UINT8_MAX, v, err));
    for (uint32_t l = 0; l < n; l++)
        p->layers[l].attn_unit = (uint8_t)v[l];
    PI_TRY(pi_artifact_ints(g, "pi.placement.mode_cpu", n, PI_MODE_PREDICTED, v, err));
    for (uint32_t l = 0; l < n; l++)
        p->layers[l].mode_cpu = (enum pi_mode)v[l];
    PI_TRY(pi_artifact_ints(g, "pi.placement.mode_gpu", n, PI_MODE_PREDICTED, v, err));
    for (uint32_t l = 0; l < n; l++)
        p->layers[l].mode_gpu = (enum pi_mode)v[l];
out:
    free(v);
    return rc;
}

static enum pi_code read_order(const struct pi_gguf *g, const struct pi_placement *p, uint32_t l,
                               uint32_t *order, struct pi_err *err)
{
    const struct pi_gguf_tensor *t = NULL;
    enum pi_code rc = pi_artifact_tensor(g, l, "order", true, p->n_ff, 1, &t, err);

    if (rc == PI_OK)
        rc = pi_artifact_want_type(g, t, PI_TYPE_I32, err);
    /* A negative id becomes one out of range, which pi_placement_check() refuses. */
    if (rc == PI_OK && order != NULL)
        memcpy(order, t->data, p->n_ff * sizeof(*order));
    return rc;
}

enum pi_code pi_placement_load(const char *path, struct pi_placement *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_placement p = {0};
    struct pi_gguf g = {0};

    PI_TRY(pi_artifact_open(path, PI_ARTIFACT_PLACEMENT, PI_PLACEMENT_VERSION, &g, err));
    PI_TRY(read_scalars(&g, &p, err));
    for (uint32_t l = 0; l < p.n_layer; l++)
        PI_TRY(read_order(&g, &p, l, NULL,
                          err)); /* all there, so the arrays are no larger than the file */
    PI_TRY(alloc_layers(&p, err));
    PI_TRY(read_columns(&g, &p, err));
    for (uint32_t l = 0; l < p.n_layer; l++)
        PI_TRY(read_order(&g, &p, l, p.layers[l].order, err));
    rc = pi_placement_check(&p, err);
    if (rc != PI_OK) {
        pi_err_wrap(err, "%s", path);
        goto out;
    }
    *out = p;
    memset(&p, 0, sizeof(p));
out:
    pi_placement_free(&p);
    pi_gguf_close(&g);
    return rc;
}

enum pi_code pi_placement_check_model(const struct pi_placement *p, const char *path,
                                      const char *model_path, const struct pi_lineage *lineage,
                                      const struct pi_fingerprint *fp, struct pi_err *err)
{
    struct pi_binding b = {.kind = PI_ARTIFACT_PLACEMENT,
                           .path = path,
                           .lineage = p->lineage,
                           .fingerprint = p->fingerprint};

    return pi_binding_check(&b, model_path, lineage, fp, err);
}

/* ---- saving --------------------------------------------------------------------------------- */

static enum pi_code set_scalars(struct pi_gguf_writer *w, const struct pi_placement *p,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_set_u32(w, "pi.placement.n_layer", p->n_layer, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.n_ff", p->n_ff, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.n_units", p->n_units, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.embd_unit", p->embd_unit, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.output_unit", p->output_unit, err));
    PI_TRY(pi_gguf_set_u64(w, "pi.placement.budget", p->budget, err));
    PI_TRY(pi_gguf_set_u64(w, "pi.placement.context_bytes", p->context_bytes, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.n_ctx", p->n_ctx, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.n_seq", p->n_seq, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.n_batch", p->n_batch, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.placement.kv_type", p->kv_type, err));
    PI_TRY(pi_gguf_set_string(w, "pi.placement.objective", p->objective, err));
    PI_TRY(pi_gguf_set_string(w, "pi.placement.hardware", p->hardware, err));
out:
    return rc;
}

static enum pi_code set_columns(struct pi_gguf_writer *w, const struct pi_placement *p,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t *n_hot = NULL, n = p->n_layer;
    uint8_t *bytes = NULL; /* (4, n_layer) */

    PI_ALLOC(n_hot, n, err);
    PI_ALLOC(bytes, 4 * (size_t)n, err);
    for (uint32_t l = 0; l < n; l++) {
        n_hot[l] = p->layers[l].n_hot;
        bytes[l] = p->layers[l].hot_unit;
        bytes[n + l] = p->layers[l].attn_unit;
        bytes[2 * n + l] = (uint8_t)p->layers[l].mode_cpu;
        bytes[3 * n + l] = (uint8_t)p->layers[l].mode_gpu;
    }
    PI_TRY(pi_gguf_set_array(w, "pi.placement.n_hot", PI_GGUF_U32, n_hot, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.placement.hot_unit", PI_GGUF_U8, bytes, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.placement.attn_unit", PI_GGUF_U8, bytes + n, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.placement.mode_cpu", PI_GGUF_U8, bytes + 2 * n, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.placement.mode_gpu", PI_GGUF_U8, bytes + 3 * n, n, err));
out:
    free(n_hot);
    free(bytes);
    return rc;
}

enum pi_code pi_placement_save(const char *path, const struct pi_placement *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;

    PI_TRY(pi_placement_check(p, err));
    PI_TRY(pi_artifact_create(path, PI_ARTIFACT_PLACEMENT, PI_PLACEMENT_VERSION, &p->lineage,
                              &p->fingerprint, &w, err));
    PI_TRY(set_scalars(w, p, err));
    PI_TRY(set_columns(w, p, err));
    for (uint32_t l = 0; l < p->n_layer; l++)
        PI_TRY(pi_artifact_add(w, l, "order", PI_TYPE_I32, p->n_ff, 0, err));
    PI_TRY(pi_gguf_begin(w, err));
    for (uint32_t l = 0; l < p->n_layer; l++)
        PI_TRY(pi_gguf_append(w, p->layers[l].order, p->n_ff * sizeof(uint32_t), err));
    rc = pi_gguf_commit(w, err);
    w = NULL;
out:
    pi_gguf_abort(w);
    return rc;
}
