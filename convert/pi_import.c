#include "config.h"

#include "convert/pi_import.h"
#include "common/pi_alloc.h"
#include "common/pi_profile.h"
#include "common/pi_size.h"
#include "convert/pi_json.h"
#include "convert/pi_source.h"
#include "runtime/cpu/pi_cpu.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THRESHOLD    1e6f
#define FREQUENCY_TOKENS 1000000 /* that frequencies are counts of */

static enum pi_code begin(const struct pi_shape *s, const char *path, struct pi_import *i,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    i->path = path;
    i->p.n_layer = s->n_layer;
    i->p.n_ff = s->n_ff;
    i->p.n_embd = s->n_embd;
    PI_ALLOC(i->p.layers, s->n_layer, err);
out:
    return rc;
}

/* PowerInfer's predictors read what stands before the feed-forward norm; where blocks are parallel that is the layer's input. */
static void set_rule(const struct pi_shape *s, struct pi_predictor_layer *l, bool relu,
                     float threshold)
{
    l->width = l->fc1.n_rows;
    l->input = s->parallel ? PI_PRED_IN_LAYER : PI_PRED_IN_FFN_RESIDUAL;
    l->relu = relu;
    l->threshold = threshold;
}

void pi_import_free(struct pi_import *i)
{
    for (size_t k = 0; k < i->n_owned; k++)
        free(i->owned[k]);
    free(i->owned);
    free(i->p.layers);
    *i = (struct pi_import){0};
}

/* ---- inside a GGUF file --------------------------------------------------------------------- */

/* A tensor of layer l, or NULL. */
static const struct pi_gguf_tensor *find(const struct pi_gguf *g, uint32_t l, const char *name)
{
    char full[64];

    (void)snprintf(full, sizeof(full), "blk.%u.%s", l, name);
    return pi_gguf_find_tensor(g, full);
}

static enum pi_code view(const struct pi_gguf *g, const struct pi_gguf_tensor *t, uint64_t n_cols,
                         uint64_t n_rows, struct pi_mat *m, struct pi_err *err)
{
    uint64_t row_bytes = 0;

    if (t->n_dims != 2 || t->ne[0] != n_cols || t->ne[1] != n_rows)
        return pi_err_set(
            err, PI_E_CORRUPT, "%s: tensor %.*s is %llu x %llu, the model needs %llu x %llu",
            g->map.path, (int)t->name.n, t->name.p, (unsigned long long)t->ne[0],
            (unsigned long long)t->ne[1], (unsigned long long)n_cols, (unsigned long long)n_rows);
    if (t->type >= PI_TYPE_I8 && t->type <= PI_TYPE_F64)
        return pi_err_set(err, PI_E_UNSUPPORTED, "%s: tensor %.*s has type %s", g->map.path,
                          (int)t->name.n, t->name.p, pi_type_name(t->type));
    if (!pi_type_row_bytes(t->type, n_cols, &row_bytes))
        return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %.*s: rows of %llu elements of %s",
                          g->map.path, (int)t->name.n, t->name.p, (unsigned long long)n_cols,
                          pi_type_name(t->type));
    *m = (struct pi_mat){.type = t->type,
                         .n_rows = (uint32_t)n_rows,
                         .n_cols = (uint32_t)n_cols,
                         .row_bytes = (size_t)row_bytes,
                         .data = t->data};
    return PI_OK;
}

static enum pi_code gguf_layer(const struct pi_gguf *g, const struct pi_shape *s, uint32_t l,
                               float threshold, struct pi_import *i, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf_tensor *fc1 = find(g, l, "fc1.weight"), *fc2 = find(g, l, "fc2.weight");
    struct pi_predictor_layer *x = &i->p.layers[l];
    uint64_t width;

    if (find(g, l, "fc1.bias") != NULL || find(g, l, "fc2.bias") != NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED, "%s: layer %u: a predictor with biases", g->map.path, l);
    if (fc1 == NULL && fc2 == NULL)
        return PI_OK;
    if (fc1 == NULL || fc2 == NULL)
        PI_FAIL(err, PI_E_CORRUPT, "%s: layer %u has only one of fc1.weight and fc2.weight",
                g->map.path, l);
    width = fc1->n_dims == 2 ? fc1->ne[1] : 0;
    if (width == 0 || width > PI_MAX_FF)
        PI_FAIL(err, PI_E_CORRUPT, "%s: layer %u: a predictor of width %llu", g->map.path, l,
                (unsigned long long)width);
    PI_TRY(view(g, fc1, s->n_embd, width, &x->fc1, err));
    PI_TRY(view(g, fc2, width, s->n_ff, &x->fc2, err));
    set_rule(s, x, true, threshold);
out:
    return rc;
}

/* A weight that is no number decides for every token. */
static enum pi_code check_finite(const struct pi_import *i, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cpu *cpu = NULL;
    float *row = NULL;
    uint32_t most = i->p.n_embd;

    for (uint32_t l = 0; l < i->p.n_layer; l++)
        most = i->p.layers[l].width > most ? i->p.layers[l].width : most;
    PI_TRY(pi_cpu_select(&cpu, err));
    PI_ALLOC(row, most, err);
    for (uint32_t l = 0; l < i->p.n_layer; l++) {
        const struct pi_mat *m[] = {&i->p.layers[l].fc1, &i->p.layers[l].fc2};

        for (size_t k = 0; i->p.layers[l].width > 0 && k < 2; k++) {
            if (cpu->type[m[k]->type] == NULL)
                PI_FAIL(err, PI_E_UNSUPPORTED, "%s: layer %u: a predictor of type %s", i->path, l,
                        pi_type_name(m[k]->type));
            for (uint32_t r = 0; r < m[k]->n_rows; r++) {
                cpu->type[m[k]->type]->to_f32(pi_mat_row(m[k], r), row, m[k]->n_cols);
                for (uint32_t c = 0; c < m[k]->n_cols; c++)
                    if (!isfinite(row[c]))
                        PI_FAIL(err, PI_E_CORRUPT,
                                "%s: layer %u: fc%zu of the predictor: row %u, element %u is not "
                                "finite as %s",
                                i->path, l, k + 1, r, c, pi_type_name(m[k]->type));
            }
        }
    }
out:
    free(row);
    return rc;
}

enum pi_code pi_import_gguf(const struct pi_gguf *g, const struct pi_shape *s,
                            struct pi_import *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_import i = {0};
    float threshold = 0.0f;
    bool any = false;

    for (uint32_t l = 0; l < s->n_layer && !any; l++)
        any = find(g, l, "fc1.weight") != NULL || find(g, l, "fc2.weight") != NULL;
    if (!any)
        return PI_OK;
    PI_TRY(pi_gguf_f32(g, "powerinfer.sparse_threshold", false, &threshold, err));
    if (!(fabsf(threshold) <= MAX_THRESHOLD))
        PI_FAIL(err, PI_E_CORRUPT, "%s: powerinfer.sparse_threshold is %g, outside -1e6 to 1e6",
                g->map.path, (double)threshold);
    PI_TRY(begin(s, g->map.path, &i, err));
    for (uint32_t l = 0; l < s->n_layer; l++)
        PI_TRY(gguf_layer(g, s, l, threshold, &i, err));
    PI_TRY(check_finite(&i, err));
    *out = i;
    i = (struct pi_import){0};
out:
    pi_import_free(&i);
    return rc;
}

static enum pi_code check_all(struct pi_source *src, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (size_t i = 0; i < src->n_maps && rc == PI_OK; i++)
        rc = pi_source_check(src, src->maps[i].data, src->maps[i].size, NULL, err);
    return rc;
}

/* ---- a folder of checkpoints ---------------------------------------------------------------- */

/* Bytes of this type for n elements of t, in memory of i's own. */
static enum pi_code keep(struct pi_import *i, const struct pi_src_tensor *t, enum pi_type type,
                         uint32_t n_rows, uint32_t n_cols, struct pi_mat *m, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cpu *cpu = NULL;
    const uint64_t n = (uint64_t)n_rows * n_cols;
    const uint32_t bytes = pi_type_info((uint32_t)type)->block_bytes;
    uint8_t *p = NULL;
    float row[512];

    PI_TRY(pi_cpu_select(&cpu, err));
    PI_TRY(pi_grow_array(&i->owned, &i->cap_owned, i->n_owned + 1, sizeof(*i->owned), err));
    p = pi_calloc_array((size_t)n, bytes, err);
    if (p == NULL)
        return PI_E_NOMEM;
    i->owned[i->n_owned++] = p;
    if (type == t->type) {
        memcpy(p, t->data, (size_t)(n * bytes));
    } else {
        for (uint64_t at = 0; at < n; at += 512) {
            const uint32_t some = (uint32_t)(n - at < 512 ? n - at : 512);

            memcpy(row, t->data + at * sizeof(float), some * sizeof(float)); /* F32: see caller */
            cpu->type[type]->from_f32(row, p + at * bytes, some);
        }
    }
    *m = (struct pi_mat){.type = type,
                         .n_rows = n_rows,
                         .n_cols = n_cols,
                         .row_bytes = (size_t)n_cols * bytes,
                         .data = p};
out:
    return rc;
}

static enum pi_code want_matrix(const struct pi_src_tensor *t, uint64_t n_rows, uint64_t n_cols,
                                struct pi_err *err)
{
    if (!t->readable)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: tensor %s is %s (supported: " PI_SRC_DTYPES ")", t->path, t->name,
                          t->dtype);
    if (t->n_dims != 2 || t->dim[0] != n_rows || t->dim[1] != n_cols)
        return pi_err_set(err, PI_E_MISMATCH,
                          "%s: tensor %s is %llu x %llu, a predictor of this model needs %llu x "
                          "%llu: made for another model",
                          t->path, t->name, (unsigned long long)t->dim[0],
                          (unsigned long long)t->dim[1], (unsigned long long)n_rows,
                          (unsigned long long)n_cols);
    return PI_OK;
}

/* The bias of fc2, as F32. */
static enum pi_code keep_bias(struct pi_import *i, const struct pi_src_tensor *t, uint32_t n_ff,
                              const float **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cpu *cpu = NULL;
    float *p = NULL;

    if (!t->readable || t->n_dims != 1 || t->dim[0] != n_ff)
        PI_FAIL(err, PI_E_MISMATCH, "%s: tensor %s is no vector of %u numbers", t->path, t->name,
                (unsigned)n_ff);
    PI_TRY(pi_cpu_select(&cpu, err));
    PI_TRY(pi_grow_array(&i->owned, &i->cap_owned, i->n_owned + 1, sizeof(*i->owned), err));
    PI_ALLOC(p, n_ff, err);
    i->owned[i->n_owned++] = p;
    cpu->type[t->type]->to_f32(t->data, p, n_ff);
    for (uint32_t k = 0; k < n_ff; k++)
        if (!isfinite(p[k]))
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %s: element %u is no number", t->path, t->name,
                    (unsigned)k);
    *out = p;
out:
    return rc;
}

/* How two linear layers may be called; relu: one lies between them. */
static const struct {
    const char *fc1, *fc2, *bias1, *bias2;
    bool relu;
} namings[] = {
    {"fc1.weight", "fc2.weight", "fc1.bias", "fc2.bias", true},
    {"0.weight", "2.weight", "0.bias", "2.bias", true},
    {"0.weight", "1.weight", "0.bias", "1.bias", false},
};

static enum pi_code torch_layer(const struct pi_source *src, const char *path,
                                const struct pi_shape *s, uint32_t l, float threshold,
                                bool keep_f32, struct pi_import *i, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_predictor_layer *x = &i->p.layers[l];
    const struct pi_src_tensor *fc1 = NULL, *fc2 = NULL, *bias;
    size_t k = 0;
    uint64_t width;

    for (; k < sizeof(namings) / sizeof(namings[0]); k++) {
        fc1 = pi_source_find(src, namings[k].fc1);
        fc2 = pi_source_find(src, namings[k].fc2);
        if (fc1 != NULL && fc2 != NULL)
            break;
    }
    if (k == sizeof(namings) / sizeof(namings[0]))
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "%s: no predictor: neither fc1.weight and fc2.weight nor two layers "
                "in a row",
                path);
    if (pi_source_find(src, namings[k].bias1) != NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED, "%s: tensor %s: a bias in front of the hidden layer", path,
                namings[k].bias1);
    width = fc1->n_dims == 2 ? fc1->dim[0] : 0;
    if (width == 0 || width > PI_MAX_FF)
        PI_FAIL(err, PI_E_CORRUPT, "%s: a predictor of width %llu", path,
                (unsigned long long)width);
    PI_TRY(want_matrix(fc1, width, s->n_embd, err));
    PI_TRY(want_matrix(fc2, s->n_ff, width, err));
    PI_TRY(keep(i, fc1, fc1->type == PI_TYPE_F32 && !keep_f32 ? PI_TYPE_F16 : fc1->type,
                (uint32_t)width, s->n_embd, &x->fc1, err));
    PI_TRY(keep(i, fc2, fc2->type == PI_TYPE_F32 && !keep_f32 ? PI_TYPE_F16 : fc2->type, s->n_ff,
                (uint32_t)width, &x->fc2, err));
    bias = pi_source_find(src, namings[k].bias2);
    if (bias != NULL)
        PI_TRY(keep_bias(i, bias, s->n_ff, &x->bias, err));
    set_rule(s, x, namings[k].relu, threshold);
out:
    return rc;
}

/* DIR/STEM_N.pt, the caller's to free(). */
static char *numbered(const char *dir, const char *stem, uint32_t n, struct pi_err *err)
{
    return pi_asprintf(err, "%s/%s_%u.pt", dir, stem, (unsigned)n);
}

/* Exactly one file a layer. */
static enum pi_code count_files(const char *dir, const char *stem, uint32_t n_layer,
                                uint32_t *n_out, struct pi_err *err)
{
    char name[64];
    uint32_t n = 0;

    for (; n <= n_layer; n++) {
        (void)snprintf(name, sizeof(name), "%s_%u.pt", stem, (unsigned)n);
        if (!pi_json_exists(dir, name))
            break;
    }
    *n_out = n;
    if (n > 0 && n != n_layer)
        return pi_err_set(err, PI_E_MISMATCH,
                          "%s: %s%u files %s_N.pt from 0 on, the model has %u layers", dir,
                          n > n_layer ? "at least " : "", (unsigned)n, stem, (unsigned)n_layer);
    return PI_OK;
}

enum pi_code pi_import_torch(const char *dir, const struct pi_shape *s, bool keep_f32,
                             struct pi_import *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_import i = {0};
    struct pi_json config = {0};
    struct pi_source src = {0};
    char *path = NULL;
    float threshold = 0.0f;
    uint32_t n = 0;

    PI_TRY(count_files(dir, "model", s->n_layer, &n, err));
    if (n == 0)
        PI_FAIL(err, PI_E_IO, "%s: no predictors: model_0.pt is not there", dir);
    PI_TRY(pi_json_load(dir, "config.json", true, &config, err));
    PI_TRY(pi_json_f32(config.root, config.path, "sparse_threshold", (double)-MAX_THRESHOLD,
                       (double)MAX_THRESHOLD, &threshold, err));
    PI_TRY(begin(s, dir, &i, err));
    i.is_foreign = true;
    for (uint32_t l = 0; l < s->n_layer; l++) {
        path = numbered(dir, "model", l, err);
        if (path == NULL) {
            rc = PI_E_NOMEM;
            goto out;
        }
        PI_TRY(pi_source_open(path, &src, err));
        PI_TRY(check_all(&src, err));
        PI_TRY(torch_layer(&src, path, s, l, threshold, keep_f32, &i, err));
        pi_source_close(&src);
        free(path);
        path = NULL;
    }
    PI_TRY(check_finite(&i, err));
    *out = i;
    i = (struct pi_import){0};
out:
    free(path);
    pi_source_close(&src);
    pi_json_free(&config);
    pi_import_free(&i);
    return rc;
}

/* ---- statistics ----------------------------------------------------------------------------- */

/* Element i of a tensor of any plain type, or NaN. */
static double element(const struct pi_src_tensor *t, uint64_t i)
{
    const uint8_t *p = t->data;
    float f;
    double d;
    uint16_t h;
    int32_t n;
    int64_t l;

    switch (t->type) {
    case PI_TYPE_F32:
        memcpy(&f, p + 4 * i, sizeof(f));
        return (double)f;
    case PI_TYPE_F64:
        memcpy(&d, p + 8 * i, sizeof(d));
        return d;
    case PI_TYPE_F16:
        memcpy(&h, p + 2 * i, sizeof(h));
        return (double)pi_f16_to_f32(h);
    case PI_TYPE_BF16:
        memcpy(&h, p + 2 * i, sizeof(h));
        return (double)pi_bf16_to_f32(h);
    case PI_TYPE_I32:
        memcpy(&n, p + 4 * i, sizeof(n));
        return n;
    case PI_TYPE_I64:
        memcpy(&l, p + 8 * i, sizeof(l));
        return (double)l;
    default:
        return NAN;
    }
}

static enum pi_code read_counts(const char *path, uint32_t n_ff, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_source src = {0};
    const struct pi_src_tensor *t;

    PI_TRY(pi_source_open(path, &src, err));
    PI_TRY(check_all(&src, err));
    t = src.n == 1 ? &src.t[0] : NULL;
    if (t == NULL || t->n_dims != 1 || t->dim[0] != n_ff)
        PI_FAIL(err, PI_E_MISMATCH, "%s: not one vector of %u activation counts", path,
                (unsigned)n_ff);
    for (uint32_t i = 0; i < n_ff; i++) {
        out[i] = element(t, i);
        if (!(out[i] >= 0.0 && out[i] < 0x1p53))
            PI_FAIL(err, PI_E_CORRUPT, "%s: neuron %u: %g is no count", path, (unsigned)i, out[i]);
    }
out:
    pi_source_close(&src);
    return rc;
}

/* "DIR/activation" of a model "DIR/M.gguf"; the caller's to free(). */
static char *activation_dir(const char *model_path, struct pi_err *err)
{
    const char *slash = strrchr(model_path, '/');

    return slash == NULL
               ? pi_asprintf(err, "activation")
               : pi_asprintf(err, "%.*s/activation", (int)(slash - model_path), model_path);
}

enum pi_code pi_import_write_profile(const char *model_path, const struct pi_shape *s,
                                     const struct pi_lineage *lineage, const double *value,
                                     const char *path, struct pi_gguf_writer **w_out,
                                     struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_profile p = {
        .n_layer = s->n_layer, .n_ff = s->n_ff, .n_embd = s->n_embd, .lineage = *lineage};
    const struct pi_profile_samples_in none = {NULL, NULL, NULL};
    const size_t n = (size_t)s->n_layer * s->n_ff;
    double most = 0.0;
    char *dir = activation_dir(model_path, err);

    if (dir == NULL)
        return PI_E_NOMEM;
    PI_ALLOC(p.count, n, err);
    PI_ALLOC(p.contribution, n, err); /* not told: 0 */
    for (size_t i = 0; i < n; i++)
        most = fmax(most, value[i]);
    p.n_tokens = most <= 1.0 ? FREQUENCY_TOKENS : (uint64_t)ceil(most);
    for (size_t i = 0; i < n; i++)
        p.count[i] = (uint64_t)llround(most <= 1.0 ? value[i] * FREQUENCY_TOKENS : value[i]);
    PI_TRY(pi_profile_write(path, &p, &none, 0, dir, w_out, err));
out:
    free(p.count);
    free(p.contribution);
    free(dir);
    return rc;
}

enum pi_code pi_import_activation(const char *model_path, const struct pi_shape *s,
                                  double **value_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double *value = NULL;
    char *file = NULL, *dir = activation_dir(model_path, err);
    uint32_t n = 0;

    *value_out = NULL;
    if (dir == NULL)
        return PI_E_NOMEM;
    PI_TRY(count_files(dir, "activation", s->n_layer, &n, err));
    if (n == 0)
        goto out;
    PI_ALLOC(value, (size_t)s->n_layer * s->n_ff, err);
    for (uint32_t l = 0; l < s->n_layer; l++) {
        free(file);
        file = numbered(dir, "activation", l, err);
        if (file == NULL) {
            rc = PI_E_NOMEM;
            goto out;
        }
        PI_TRY(read_counts(file, s->n_ff, value + (size_t)l * s->n_ff, err));
    }
    *value_out = value;
    value = NULL;
out:
    free(value);
    free(file);
    free(dir);
    return rc;
}
