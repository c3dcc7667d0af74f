#include "config.h"

#include "common/pi_profile.h"

#include "common/pi_alloc.h"
#include "common/pi_artifact_int.h"
#include "common/pi_le.h"
#include "common/pi_shape.h"
#include "common/pi_size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Deflate cannot shrink by more than this (zlib's technical notes: 1032:1): a stream that is said to
 * hold more is a lie, and nothing is allocated for it. */
#define MAX_DEFLATE_RATIO 1032
#define BF16_EXPONENT     0x7f80

static uint64_t mask_bytes(const struct pi_profile *p)
{
    return ((uint64_t)p->n_ff + 7) / 8;
}

/* ---- loading -------------------------------------------------------------------------------- */

static enum pi_code read_sizes(struct pi_profile *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf *g = &p->file;

    PI_TRY(pi_artifact_lineage(g, &p->lineage, err));
    PI_TRY(pi_artifact_u32(g, "pi.profile.n_layer", 1, PI_MAX_LAYERS, &p->n_layer, err));
    PI_TRY(pi_artifact_u32(g, "pi.profile.n_ff", 1, PI_MAX_FF, &p->n_ff, err));
    PI_TRY(pi_artifact_u32(g, "pi.profile.n_embd", 1, PI_MAX_EMBD, &p->n_embd, err));
    PI_TRY(pi_gguf_u64(g, "pi.profile.tokens", true, &p->n_tokens, err));
    PI_TRY(pi_gguf_u64(g, "pi.profile.n_samples", true, &p->n_samples, err));
    if (p->n_tokens > INT64_MAX || p->n_samples > p->n_tokens)
        PI_FAIL(err, PI_E_CORRUPT, "%s: %" PRIu64 " samples of %" PRIu64 " tokens", g->map.path,
                p->n_samples, p->n_tokens);
    p->has_input = p->n_samples > 0 && pi_gguf_find_tensor(g, "blk.0.sample.input") != NULL;
out:
    return rc;
}

/* Shapes and types of a layer's tensors; the data pointers are only valid after this. */
static enum pi_code check_layer(const struct pi_profile *p, uint32_t layer, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf *g = &p->file;
    const struct pi_gguf_tensor *t = NULL;

    PI_TRY(pi_artifact_tensor(g, layer, "count", true, p->n_ff, 1, &t, err));
    PI_TRY(pi_artifact_want_type(g, t, PI_TYPE_I64, err));
    PI_TRY(pi_artifact_tensor(g, layer, "contribution", true, p->n_ff, 1, &t, err));
    PI_TRY(pi_artifact_want_type(g, t, PI_TYPE_F32, err));
    if (p->n_samples > 0) {
        PI_TRY(pi_artifact_tensor(g, layer, "sample.residual", true, p->n_embd, p->n_samples, &t,
                                  err));
        PI_TRY(pi_artifact_want_type(g, t, PI_TYPE_BF16, err));
    }
    if (p->has_input) {
        PI_TRY(
            pi_artifact_tensor(g, layer, "sample.input", true, p->n_embd, p->n_samples, &t, err));
        PI_TRY(pi_artifact_want_type(g, t, PI_TYPE_BF16, err));
    }
out:
    return rc;
}

static const void *layer_data(const struct pi_profile *p, uint32_t layer, const char *name,
                              uint64_t ne0, uint64_t ne1)
{
    const struct pi_gguf_tensor *t = NULL;

    /* Found and checked before: this cannot fail. */
    return pi_artifact_tensor(&p->file, layer, name, true, ne0, ne1, &t, NULL) == PI_OK ? t->data
                                                                                        : NULL;
}

static enum pi_code read_layer(struct pi_profile *p, uint32_t layer, struct pi_err *err)
{
    uint64_t *count = p->count + (size_t)layer * p->n_ff;
    float *contribution = p->contribution + (size_t)layer * p->n_ff;

    memcpy(count, layer_data(p, layer, "count", p->n_ff, 1), p->n_ff * sizeof(*count));
    memcpy(contribution, layer_data(p, layer, "contribution", p->n_ff, 1),
           p->n_ff * sizeof(*contribution));
    for (uint32_t i = 0; i < p->n_ff; i++) {
        if (count[i] > p->n_tokens)
            return pi_err_set(err, PI_E_CORRUPT,
                              "%s: layer %u, neuron %u: active on %" PRIu64 " of %" PRIu64
                              " tokens",
                              p->file.map.path, layer, i, count[i], p->n_tokens);
        if (!(contribution[i] >= 0.0f && contribution[i] < 1e38f))
            return pi_err_set(err, PI_E_CORRUPT, "%s: layer %u, neuron %u: contribution %g",
                              p->file.map.path, layer, i, (double)contribution[i]);
    }
    return PI_OK;
}

static enum pi_code read_positions(struct pi_profile *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&p->file, "sample.position");
    int64_t last = -1;

    if (p->n_samples == 0)
        return PI_OK;
    if (t == NULL || t->n_dims != 1 || t->ne[0] != p->n_samples || t->type != PI_TYPE_I64)
        PI_FAIL(err, PI_E_CORRUPT, "%s: sample.position is missing or not %" PRIu64 " x I64",
                p->file.map.path, p->n_samples);
    PI_ALLOC(p->position, (size_t)p->n_samples, err);
    memcpy(p->position, t->data, t->bytes);
    for (uint64_t i = 0; i < p->n_samples; i++) {
        if (p->position[i] <= last || (uint64_t)p->position[i] >= p->n_tokens)
            PI_FAIL(err, PI_E_CORRUPT,
                    "%s: sample.position %" PRIu64 " is %" PRId64 " after %" PRId64 ", of %" PRIu64
                    " tokens",
                    p->file.map.path, i, p->position[i], last, p->n_tokens);
        last = p->position[i];
    }
out:
    return rc;
}

enum pi_code pi_profile_load(const char *path, struct pi_profile *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_profile p = {0};

    PI_TRY(pi_artifact_open(path, PI_ARTIFACT_PROFILE, PI_PROFILE_VERSION, &p.file, err));
    PI_TRY(read_sizes(&p, err));
    for (uint32_t l = 0; l < p.n_layer; l++)
        PI_TRY(check_layer(&p, l, err));
    /* The tensors are in the file, so these sizes are no larger than it. */
    PI_ALLOC(p.count, (size_t)p.n_layer * p.n_ff, err);
    PI_ALLOC(p.contribution, (size_t)p.n_layer * p.n_ff, err);
    for (uint32_t l = 0; l < p.n_layer; l++)
        PI_TRY(read_layer(&p, l, err));
    PI_TRY(read_positions(&p, err));
    *out = p;
    return PI_OK;
out:
    pi_profile_free(&p);
    return rc;
}

void pi_profile_free(struct pi_profile *p)
{
    free(p->count);
    free(p->contribution);
    free(p->position);
    pi_gguf_close(&p->file);
    memset(p, 0, sizeof(*p));
}

/* ---- samples -------------------------------------------------------------------------------- */

static enum pi_code need_samples(const struct pi_profile *p, uint32_t layer, struct pi_err *err)
{
    if (p->n_samples == 0)
        return pi_err_set(err, PI_E_MISMATCH,
                          "%s holds no samples; run pi-profile with --samples above 0",
                          p->file.map.path != NULL ? p->file.map.path : "the profile");
    if (layer >= p->n_layer || p->file.map.path == NULL)
        return pi_err_set(err, PI_E_RANGE, "no samples of layer %u", layer);
    return PI_OK;
}

enum pi_code pi_profile_masks(const struct pi_profile *p, uint32_t layer, uint8_t **mask_out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf_tensor *t;
    char name[64];
    uint8_t *mask = NULL, unused = (uint8_t)(p->n_ff % 8 != 0 ? 0xff << p->n_ff % 8 : 0);
    uint64_t size = 0;
    uLongf got;
    uLong used;
    int zrc;

    PI_TRY(need_samples(p, layer, err));
    (void)snprintf(name, sizeof(name), "blk.%u.sample.mask", layer);
    t = pi_gguf_find_tensor(&p->file, name);
    if (t == NULL || t->n_dims != 1 || t->type != PI_TYPE_I8)
        PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %s is missing or no row of I8", p->file.map.path,
                name);
    if (!pi_size_mul(p->n_samples, mask_bytes(p), &size) || size / MAX_DEFLATE_RATIO > t->bytes)
        PI_FAIL(err, PI_E_CORRUPT, "%s: %s: %" PRIu64 " bytes cannot hold %" PRIu64 " masks",
                p->file.map.path, name, t->bytes, p->n_samples);
    PI_ALLOC(mask, (size_t)size, err);
    got = size;
    used = t->bytes;
    zrc = uncompress2(mask, &got, t->data, &used);
    if (zrc == Z_MEM_ERROR)
        PI_FAIL(err, PI_E_NOMEM, "%s: cannot unpack %s: not enough memory", p->file.map.path, name);
    if (zrc != Z_OK || got != size || used != t->bytes)
        PI_FAIL(err, PI_E_CORRUPT, "%s: %s: damaged zlib stream (%lu of %" PRIu64 " bytes)",
                p->file.map.path, name, got, size);
    for (uint64_t i = mask_bytes(p) - 1; unused != 0 && i < size; i += mask_bytes(p))
        if (mask[i] & unused)
            PI_FAIL(err, PI_E_CORRUPT, "%s: %s: bits past neuron %u are set", p->file.map.path,
                    name, p->n_ff);
    *mask_out = mask;
    mask = NULL;
out:
    free(mask);
    return rc;
}

/* A layer's vectors of all samples as F32; name: that of a tensor that check_layer() has seen. */
static enum pi_code unpack(const struct pi_profile *p, uint32_t layer, const char *name,
                           float **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float *x = NULL;
    const uint8_t *src = layer_data(p, layer, name, p->n_embd, p->n_samples);
    size_t n = (size_t)p->n_samples * p->n_embd; /* elements of a tensor that is there: fits */

    PI_ALLOC(x, n, err);
    for (size_t i = 0; i < n; i++) {
        uint32_t h = pi_load_u16(src + 2 * i);

        if ((h & BF16_EXPONENT) == BF16_EXPONENT)
            PI_FAIL(err, PI_E_CORRUPT, "%s: layer %u, sample %zu: the %s is not finite",
                    p->file.map.path, layer, i / p->n_embd, name + strlen("sample."));
        h <<= 16; /* BF16 is the upper half of F32 */
        memcpy(&x[i], &h, sizeof(h));
    }
    *out = x;
    x = NULL;
out:
    free(x);
    return rc;
}

enum pi_code pi_profile_samples(const struct pi_profile *p, uint32_t layer, float **residual_out,
                                uint8_t **mask_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float *residual = NULL;

    PI_TRY(need_samples(p, layer, err));
    PI_TRY(unpack(p, layer, "sample.residual", &residual, err));
    PI_TRY(pi_profile_masks(p, layer, mask_out, err));
    *residual_out = residual;
    residual = NULL;
out:
    free(residual);
    return rc;
}

enum pi_code pi_profile_inputs(const struct pi_profile *p, uint32_t layer, float **input_out,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(need_samples(p, layer, err));
    if (!p->has_input)
        PI_FAIL(
            err, PI_E_MISMATCH,
            "%s: its samples lack the layers' inputs, which this model's predictors are trained "
            "on: profile it again",
            p->file.map.path);
    PI_TRY(unpack(p, layer, "sample.input", input_out, err));
out:
    return rc;
}

/* ---- order ---------------------------------------------------------------------------------- */

static int cmp_hotter(const void *a, const void *b, void *ctx)
{
    const uint64_t *count = ctx;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (count[i] != count[j])
        return count[i] > count[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

enum pi_code pi_profile_order(const struct pi_profile *p, uint32_t layer, uint32_t *order_out,
                              struct pi_err *err)
{
    if (layer >= p->n_layer)
        return pi_err_set(err, PI_E_RANGE, "layer %u of a profile with %u", layer, p->n_layer);
    for (uint32_t i = 0; i < p->n_ff; i++)
        order_out[i] = i;
    qsort_r(order_out, p->n_ff, sizeof(*order_out), cmp_hotter, p->count + (size_t)layer * p->n_ff);
    return PI_OK;
}

/* ---- saving --------------------------------------------------------------------------------- */

struct packed {
    uint8_t *p;
    uLongf n;
};

static enum pi_code pack_mask(const struct pi_profile *p, const uint8_t *mask, struct packed *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uLong n = (uLong)(p->n_samples * mask_bytes(p));

    out->n = compressBound(n);
    PI_ALLOC(out->p, out->n, err);
    if (compress2(out->p, &out->n, mask, n, Z_DEFAULT_COMPRESSION) != Z_OK)
        PI_FAIL(err, PI_E_NOMEM, "cannot compress %lu bytes of masks", n);
out:
    return rc;
}

static enum pi_code set_keys(struct pi_gguf_writer *w, const struct pi_profile *p, uint32_t window,
                             const char *data_names, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_set_u32(w, "pi.profile.n_layer", p->n_layer, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.profile.n_ff", p->n_ff, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.profile.n_embd", p->n_embd, err));
    PI_TRY(pi_gguf_set_u64(w, "pi.profile.tokens", p->n_tokens, err));
    PI_TRY(pi_gguf_set_u64(w, "pi.profile.n_samples", p->n_samples, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.profile.window", window, err));
    PI_TRY(pi_gguf_set_string(w, "pi.profile.data", data_names, err));
out:
    return rc;
}

static enum pi_code add_tensors(struct pi_gguf_writer *w, const struct pi_profile *p,
                                const struct packed *masks, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (p->n_samples > 0)
        PI_TRY(pi_gguf_add_tensor(w, "sample.position", PI_TYPE_I64, &p->n_samples, 1, err));
    for (uint32_t l = 0; l < p->n_layer; l++) {
        PI_TRY(pi_artifact_add(w, l, "count", PI_TYPE_I64, p->n_ff, 0, err));
        PI_TRY(pi_artifact_add(w, l, "contribution", PI_TYPE_F32, p->n_ff, 0, err));
        if (p->n_samples == 0)
            continue;
        PI_TRY(
            pi_artifact_add(w, l, "sample.residual", PI_TYPE_BF16, p->n_embd, p->n_samples, err));
        if (p->has_input)
            PI_TRY(
                pi_artifact_add(w, l, "sample.input", PI_TYPE_BF16, p->n_embd, p->n_samples, err));
        PI_TRY(pi_artifact_add(w, l, "sample.mask", PI_TYPE_I8, masks[l].n, 0, err));
    }
out:
    return rc;
}

static enum pi_code append_tensors(struct pi_gguf_writer *w, const struct pi_profile *p,
                                   const struct pi_profile_samples_in *s,
                                   const struct packed *masks, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t n = (size_t)p->n_samples * p->n_embd, n_ff = p->n_ff;

    if (p->n_samples > 0)
        PI_TRY(pi_gguf_append(w, p->position, (size_t)p->n_samples * sizeof(*p->position), err));
    for (size_t l = 0; l < p->n_layer; l++) {
        PI_TRY(pi_gguf_append(w, p->count + l * n_ff, n_ff * sizeof(*p->count), err));
        PI_TRY(pi_gguf_append(w, p->contribution + l * n_ff, n_ff * sizeof(*p->contribution), err));
        if (p->n_samples == 0)
            continue;
        PI_TRY(pi_gguf_append(w, s->residual + l * n, n * sizeof(*s->residual), err));
        if (p->has_input)
            PI_TRY(pi_gguf_append(w, s->input + l * n, n * sizeof(*s->input), err));
        PI_TRY(pi_gguf_append(w, masks[l].p, masks[l].n, err));
    }
out:
    return rc;
}

enum pi_code pi_profile_write(const char *path, const struct pi_profile *p,
                              const struct pi_profile_samples_in *s, uint32_t window,
                              const char *data_names, struct pi_gguf_writer **w_out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;
    struct packed *masks = NULL;
    uint64_t per_layer = p->n_samples * mask_bytes(p);

    PI_ALLOC(masks, p->n_layer, err);
    PI_TRY(pi_artifact_create(path, PI_ARTIFACT_PROFILE, PI_PROFILE_VERSION, &p->lineage, NULL, &w,
                              err));
    PI_TRY(set_keys(w, p, window, data_names, err));
    for (uint32_t l = 0; p->n_samples > 0 && l < p->n_layer; l++)
        PI_TRY(pack_mask(p, s->mask + l * per_layer, &masks[l], err));
    PI_TRY(add_tensors(w, p, masks, err));
    PI_TRY(pi_gguf_begin(w, err));
    PI_TRY(append_tensors(w, p, s, masks, err));
    *w_out = w;
    w = NULL;
out:
    pi_gguf_abort(w);
    for (uint32_t l = 0; masks != NULL && l < p->n_layer; l++)
        free(masks[l].p);
    free(masks);
    return rc;
}

enum pi_code pi_profile_save(const char *path, const struct pi_profile *p,
                             const struct pi_profile_samples_in *s, uint32_t window,
                             const char *data_names, struct pi_err *err)
{
    struct pi_gguf_writer *w = NULL;
    const enum pi_code rc = pi_profile_write(path, p, s, window, data_names, &w, err);

    return rc != PI_OK ? rc : pi_gguf_commit(w, err);
}
