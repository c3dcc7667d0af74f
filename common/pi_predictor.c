#include "config.h"

#include "common/pi_predictor.h"

#include "common/pi_alloc.h"
#include "common/pi_artifact_int.h"
#include "common/pi_shape.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FC1  "fc1.weight"
#define FC2  "fc2.weight"
#define BIAS "fc2.bias"

/* One value a layer, as they stand in the file's arrays. */
struct columns {
    uint32_t *width, *input, *relu;                  /* (n_layer) */
    float *threshold, *recall, *precision, *density; /* (n_layer) */
};

static void columns_free(struct columns *c)
{
    free(c->width);
    free(c->input);
    free(c->relu);
    free(c->threshold);
    free(c->recall);
    free(c->precision);
    free(c->density);
}

static enum pi_code columns_alloc(struct columns *c, uint32_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_ALLOC(c->width, n, err);
    PI_ALLOC(c->input, n, err);
    PI_ALLOC(c->relu, n, err);
    PI_ALLOC(c->threshold, n, err);
    PI_ALLOC(c->recall, n, err);
    PI_ALLOC(c->precision, n, err);
    PI_ALLOC(c->density, n, err);
out:
    return rc;
}

/* ---- loading -------------------------------------------------------------------------------- */

static enum pi_code read_columns(const struct pi_gguf *g, uint32_t n, struct columns *c,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(columns_alloc(c, n, err));
    PI_TRY(pi_artifact_ints(g, "pi.predictor.width", n, PI_MAX_FF, c->width, err));
    PI_TRY(pi_artifact_ints(g, "pi.predictor.input", n, PI_PRED_IN_PREV_ATTN, c->input, err));
    PI_TRY(pi_artifact_ints(g, "pi.predictor.activation", n, 1, c->relu, err));
    PI_TRY(
        pi_artifact_floats(g, "pi.predictor.threshold", n, -FLT_MAX, FLT_MAX, c->threshold, err));
    PI_TRY(pi_artifact_floats(g, "pi.predictor.recall", n, 0.0f, 1.0f, c->recall, err));
    PI_TRY(pi_artifact_floats(g, "pi.predictor.precision", n, 0.0f, 1.0f, c->precision, err));
    PI_TRY(pi_artifact_floats(g, "pi.predictor.density", n, 0.0f, 1.0f, c->density, err));
out:
    return rc;
}

static enum pi_code view_matrix(const struct pi_gguf *g, uint32_t layer, const char *name,
                                uint32_t n_rows, uint32_t n_cols, struct pi_mat *m,
                                struct pi_err *err)
{
    const struct pi_gguf_tensor *t = NULL;
    enum pi_code rc = pi_artifact_tensor(g, layer, name, true, n_cols, n_rows, &t, err);
    uint64_t row_bytes = 0;

    if (rc != PI_OK)
        return rc;
    if ((t->type >= PI_TYPE_I8 && t->type <= PI_TYPE_F64) ||
        !pi_type_row_bytes(t->type, n_cols, &row_bytes))
        return pi_err_set(err, PI_E_UNSUPPORTED, "%s: tensor %.*s has type %s", g->map.path,
                          (int)t->name.n, t->name.p, pi_type_name(t->type));
    *m = (struct pi_mat){.type = t->type,
                         .n_rows = n_rows,
                         .n_cols = n_cols,
                         .row_bytes = (size_t)row_bytes,
                         .data = t->data};
    return PI_OK;
}

/* A layer that says it has no predictor must not carry the tensors of one. */
static enum pi_code want_absent(const struct pi_gguf *g, uint32_t layer, struct pi_err *err)
{
    static const char *const names[] = {FC1, FC2, BIAS};
    char full[64];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(full, sizeof(full), "blk.%u.%s", layer, names[i]);
        if (pi_gguf_find_tensor(g, full) != NULL)
            return pi_err_set(err, PI_E_CORRUPT, "%s: layer %u has width 0 and a tensor %s",
                              g->map.path, layer, full);
    }
    return PI_OK;
}

static enum pi_code read_layer(struct pi_predictor *p, uint32_t l, const struct columns *c,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_predictor_layer *x = &p->layers[l];
    const struct pi_gguf_tensor *bias = NULL;

    x->width = c->width[l];
    x->input = (enum pi_predictor_input)c->input[l];
    x->relu = c->relu[l] != 0;
    x->threshold = c->threshold[l];
    x->recall = c->recall[l];
    x->precision = c->precision[l];
    x->density = c->density[l];
    if (x->width == 0)
        return want_absent(&p->file, l, err);
    if (l == 0 && x->input == PI_PRED_IN_PREV_ATTN)
        PI_FAIL(err, PI_E_CORRUPT, "%s: layer 0 has no layer before it to look at",
                p->file.map.path);
    PI_TRY(view_matrix(&p->file, l, FC1, x->width, p->n_embd, &x->fc1, err));
    PI_TRY(view_matrix(&p->file, l, FC2, p->n_ff, x->width, &x->fc2, err));
    PI_TRY(pi_artifact_tensor(&p->file, l, BIAS, false, p->n_ff, 1, &bias, err));
    if (bias != NULL) {
        PI_TRY(pi_artifact_want_type(&p->file, bias, PI_TYPE_F32, err));
        x->bias = (const void *)bias->data; /* aligned: tensor data is, in the map */
    }
out:
    return rc;
}

enum pi_code pi_predictor_load(const char *path, struct pi_predictor *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_predictor p = {0};
    struct columns c = {0};

    PI_TRY(pi_artifact_open(path, PI_ARTIFACT_PREDICTOR, PI_PREDICTOR_VERSION, &p.file, err));
    PI_TRY(pi_artifact_lineage(&p.file, &p.lineage, err));
    PI_TRY(pi_artifact_u32(&p.file, "pi.predictor.n_layer", 1, PI_MAX_LAYERS, &p.n_layer, err));
    PI_TRY(pi_artifact_u32(&p.file, "pi.predictor.n_ff", 1, PI_MAX_FF, &p.n_ff, err));
    PI_TRY(pi_artifact_u32(&p.file, "pi.predictor.n_embd", 1, PI_MAX_EMBD, &p.n_embd, err));
    PI_TRY(read_columns(&p.file, p.n_layer, &c, err));
    PI_ALLOC(p.layers, p.n_layer, err);
    for (uint32_t l = 0; l < p.n_layer; l++)
        PI_TRY(read_layer(&p, l, &c, err));
    *out = p;
    memset(&p, 0, sizeof(p));
out:
    columns_free(&c);
    pi_predictor_free(&p);
    return rc;
}

void pi_predictor_free(struct pi_predictor *p)
{
    free(p->layers);
    pi_gguf_close(&p->file);
    memset(p, 0, sizeof(*p));
}

/* ---- saving --------------------------------------------------------------------------------- */

static enum pi_code set_bytes(struct pi_gguf_writer *w, const char *key, const uint32_t *v,
                              uint32_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint8_t *b = NULL;

    PI_ALLOC(b, n, err);
    for (uint32_t i = 0; i < n; i++)
        b[i] = (uint8_t)v[i];
    PI_TRY(pi_gguf_set_array(w, key, PI_GGUF_U8, b, n, err));
out:
    free(b);
    return rc;
}

static enum pi_code set_keys(struct pi_gguf_writer *w, const struct pi_predictor *p,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct columns c = {0};
    uint32_t n = p->n_layer;

    PI_TRY(columns_alloc(&c, n, err));
    for (uint32_t l = 0; l < n; l++) {
        const struct pi_predictor_layer *x = &p->layers[l];

        c.width[l] = x->width;
        c.input[l] = x->input;
        c.relu[l] = x->relu;
        c.threshold[l] = x->threshold;
        c.recall[l] = x->recall;
        c.precision[l] = x->precision;
        c.density[l] = x->density;
    }
    PI_TRY(pi_gguf_set_u32(w, "pi.predictor.n_layer", n, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.predictor.n_ff", p->n_ff, err));
    PI_TRY(pi_gguf_set_u32(w, "pi.predictor.n_embd", p->n_embd, err));
    PI_TRY(pi_gguf_set_array(w, "pi.predictor.width", PI_GGUF_U32, c.width, n, err));
    PI_TRY(set_bytes(w, "pi.predictor.input", c.input, n, err));
    PI_TRY(set_bytes(w, "pi.predictor.activation", c.relu, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.predictor.threshold", PI_GGUF_F32, c.threshold, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.predictor.recall", PI_GGUF_F32, c.recall, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.predictor.precision", PI_GGUF_F32, c.precision, n, err));
    PI_TRY(pi_gguf_set_array(w, "pi.predictor.density", PI_GGUF_F32, c.density, n, err));
out:
    columns_free(&c);
    return rc;
}

/* What pi_predictor_load() would refuse is not written. */
static enum pi_code check_layer(const struct pi_predictor *p, uint32_t l, const char *path,
                                struct pi_err *err)
{
    const struct pi_predictor_layer *x = &p->layers[l];

    if (x->fc1.n_rows != x->width || x->fc1.n_cols != p->n_embd || x->fc2.n_rows != p->n_ff ||
        x->fc2.n_cols != x->width || x->fc1.data == NULL || x->fc2.data == NULL ||
        (l == 0 && x->input == PI_PRED_IN_PREV_ATTN))
        return pi_err_set(err, PI_E_RANGE,
                          "%s: layer %u: a predictor of width %u with matrices "
                          "%u x %u and %u x %u",
                          path, l, x->width, x->fc1.n_rows, x->fc1.n_cols, x->fc2.n_rows,
                          x->fc2.n_cols);
    return PI_OK;
}

static enum pi_code append_matrix(struct pi_gguf_writer *w, const struct pi_mat *m,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t bytes = 0;

    if (!pi_type_row_bytes(m->type, m->n_cols, &bytes))
        PI_FAIL(err, PI_E_RANGE, "rows of %u elements cannot be %s", m->n_cols,
                pi_type_name(m->type));
    for (uint32_t r = 0; r < m->n_rows; r++)
        PI_TRY(pi_gguf_append(w, pi_mat_row(m, r), (size_t)bytes, err));
out:
    return rc;
}

enum pi_code pi_predictor_write(const char *path, const struct pi_predictor *p,
                                struct pi_gguf_writer **w_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;

    PI_TRY(pi_artifact_create(path, PI_ARTIFACT_PREDICTOR, PI_PREDICTOR_VERSION, &p->lineage, NULL,
                              &w, err));
    PI_TRY(pi_gguf_align_pages(w, err));
    PI_TRY(set_keys(w, p, err));
    for (uint32_t l = 0; l < p->n_layer; l++) {
        const struct pi_predictor_layer *x = &p->layers[l];

        if (x->width == 0)
            continue;
        PI_TRY(check_layer(p, l, path, err));
        PI_TRY(pi_artifact_add(w, l, FC1, x->fc1.type, p->n_embd, x->width, err));
        PI_TRY(pi_artifact_add(w, l, FC2, x->fc2.type, x->width, p->n_ff, err));
        if (x->bias != NULL)
            PI_TRY(pi_artifact_add(w, l, BIAS, PI_TYPE_F32, p->n_ff, 0, err));
    }
    PI_TRY(pi_gguf_begin(w, err));
    for (uint32_t l = 0; l < p->n_layer; l++) {
        const struct pi_predictor_layer *x = &p->layers[l];

        if (x->width == 0)
            continue;
        PI_TRY(append_matrix(w, &x->fc1, err));
        PI_TRY(append_matrix(w, &x->fc2, err));
        if (x->bias != NULL)
            PI_TRY(pi_gguf_append(w, x->bias, p->n_ff * sizeof(*x->bias), err));
    }
    *w_out = w;
    w = NULL;
out:
    pi_gguf_abort(w);
    return rc;
}

enum pi_code pi_predictor_save(const char *path, const struct pi_predictor *p, struct pi_err *err)
{
    struct pi_gguf_writer *w = NULL;
    const enum pi_code rc = pi_predictor_write(path, p, &w, err);

    return rc != PI_OK ? rc : pi_gguf_commit(w, err);
}
