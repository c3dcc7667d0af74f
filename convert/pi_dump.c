#include "config.h"

#include "convert/pi_dump.h"
#include "common/pi_artifact.h"
#include "common/pi_gguf.h"
#include "common/pi_le.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "common/pi_shape.h"
#include "convert/pi_yaml_out.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_ARRAY 8 /* longer ones are shortened to their length and first elements */

static void put_scalar(struct pi_yaml_out *y, enum pi_gguf_vtype type, const uint8_t *p)
{
    uint32_t bits32;
    uint64_t bits64;
    float f;
    double d;

    switch (type) {
    case PI_GGUF_U8:
        pi_yaml_u64(y, p[0]);
        return;
    case PI_GGUF_I8:
        pi_yaml_i64(y, (int8_t)p[0]);
        return;
    case PI_GGUF_U16:
        pi_yaml_u64(y, pi_load_u16(p));
        return;
    case PI_GGUF_I16:
        pi_yaml_i64(y, (int16_t)pi_load_u16(p));
        return;
    case PI_GGUF_U32:
        pi_yaml_u64(y, pi_load_u32(p));
        return;
    case PI_GGUF_I32:
        pi_yaml_i64(y, (int32_t)pi_load_u32(p));
        return;
    case PI_GGUF_F32:
        bits32 = pi_load_u32(p);
        memcpy(&f, &bits32, sizeof(f));
        pi_yaml_f32(y, f);
        return;
    case PI_GGUF_BOOL:
        pi_yaml_bool(y, p[0] != 0);
        return;
    case PI_GGUF_U64:
        pi_yaml_u64(y, pi_load_u64(p));
        return;
    case PI_GGUF_I64:
        pi_yaml_i64(y, (int64_t)pi_load_u64(p));
        return;
    case PI_GGUF_F64:
        bits64 = pi_load_u64(p);
        memcpy(&d, &bits64, sizeof(d));
        pi_yaml_f64(y, d);
        return;
    case PI_GGUF_STR:
    case PI_GGUF_ARR:
        break;
    }
    pi_yaml_key(y, "?");
}

static void put_elements(struct pi_yaml_out *y, const struct pi_gguf_kv *kv, uint64_t n)
{
    pi_yaml_list(y, true);
    for (uint64_t i = 0; i < n; i++) {
        if (kv->elem == PI_GGUF_STR)
            pi_yaml_text(y, kv->strs[i].p, kv->strs[i].n);
        else
            put_scalar(y, kv->elem, kv->data + i * pi_gguf_scalar_bytes(kv->elem));
    }
    pi_yaml_list_end(y);
}

static void put_value(struct pi_yaml_out *y, const struct pi_gguf_kv *kv, bool full)
{
    if (kv->type == PI_GGUF_STR) {
        pi_yaml_text(y, kv->strs[0].p, kv->strs[0].n);
    } else if (kv->type != PI_GGUF_ARR) {
        put_scalar(y, kv->type, kv->data);
    } else if (full || kv->n <= SHORT_ARRAY) {
        put_elements(y, kv, kv->n);
    } else {
        pi_yaml_map(y, true);
        pi_yaml_key(y, "count");
        pi_yaml_u64(y, kv->n);
        pi_yaml_key(y, "first");
        put_elements(y, kv, SHORT_ARRAY);
        pi_yaml_map_end(y);
    }
}

static void put_metadata(struct pi_yaml_out *y, const struct pi_gguf *g, bool full)
{
    pi_yaml_key(y, "metadata");
    pi_yaml_map(y, g->n_kv == 0);
    for (size_t i = 0; i < g->n_kv; i++) {
        pi_yaml_text(y, g->kv[i].key.p, g->kv[i].key.n);
        put_value(y, &g->kv[i], full);
    }
    pi_yaml_map_end(y);
}

static void put_tensors(struct pi_yaml_out *y, const struct pi_gguf *g)
{
    pi_yaml_key(y, "tensors");
    pi_yaml_list(y, g->n_tensors == 0);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];

        pi_yaml_map(y, true);
        pi_yaml_key(y, "name");
        pi_yaml_text(y, t->name.p, t->name.n);
        pi_yaml_key(y, "type");
        pi_yaml_key(y, pi_type_name((uint32_t)t->type));
        pi_yaml_key(y, "shape"); /* contiguous dimension first, as GGUF has it */
        pi_yaml_list(y, true);
        for (uint32_t d = 0; d < t->n_dims; d++)
            pi_yaml_u64(y, t->ne[d]);
        pi_yaml_list_end(y);
        pi_yaml_map_end(y);
    }
    pi_yaml_list_end(y);
}

/* ---- summaries of artifacts ---- */

static void put_share(struct pi_yaml_out *y, const char *key, double share)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%.4f", share);
    pi_yaml_key(y, key);
    pi_yaml_f64(y, strtod(text, NULL));
}

static enum pi_code put_profile(struct pi_yaml_out *y, const char *path, struct pi_err *err)
{
    struct pi_profile p = {0};
    enum pi_code rc = pi_profile_load(path, &p, err);

    if (rc != PI_OK)
        return rc;
    pi_yaml_key(y, "profile");
    pi_yaml_map(y, false);
    pi_yaml_key(y, "tokens");
    pi_yaml_u64(y, p.n_tokens);
    pi_yaml_key(y, "samples");
    pi_yaml_u64(y, p.n_samples);
    pi_yaml_key(y, "layers");
    pi_yaml_list(y, false);
    for (uint32_t l = 0; l < p.n_layer; l++) {
        double sum = 0.0, never = 0.0;

        for (uint32_t i = 0; i < p.n_ff; i++) {
            sum += (double)p.count[(size_t)l * p.n_ff + i];
            never += p.count[(size_t)l * p.n_ff + i] == 0;
        }
        pi_yaml_map(y, true);
        put_share(y, "density", p.n_tokens > 0 ? sum / ((double)p.n_tokens * p.n_ff) : 0.0);
        put_share(y, "never", never / p.n_ff);
        pi_yaml_map_end(y);
    }
    pi_yaml_list_end(y);
    pi_yaml_map_end(y);
    pi_profile_free(&p);
    return PI_OK;
}

static enum pi_code put_predictor(struct pi_yaml_out *y, const char *path, struct pi_err *err)
{
    static const char *const inputs[] = {"ffn_normed", "ffn_residual", "layer_input",
                                         "previous_attention"};
    struct pi_predictor p = {0};
    enum pi_code rc = pi_predictor_load(path, &p, err);

    if (rc != PI_OK)
        return rc;
    pi_yaml_key(y, "predictor");
    pi_yaml_list(y, false);
    for (uint32_t l = 0; l < p.n_layer; l++) {
        const struct pi_predictor_layer *q = &p.layers[l];

        pi_yaml_map(y, true);
        pi_yaml_key(y, "width");
        pi_yaml_u64(y, q->width);
        if (q->width > 0) {
            pi_yaml_key(y, "input");
            pi_yaml_key(y, (unsigned)q->input < 4 ? inputs[q->input] : "?");
            pi_yaml_key(y, "relu");
            pi_yaml_bool(y, q->relu);
            pi_yaml_key(y, "threshold");
            pi_yaml_f32(y, q->threshold);
            put_share(y, "recall", (double)q->recall);
            put_share(y, "precision", (double)q->precision);
            put_share(y, "density", (double)q->density);
        }
        pi_yaml_map_end(y);
    }
    pi_yaml_list_end(y);
    pi_predictor_free(&p);
    return PI_OK;
}

static void put_unit(struct pi_yaml_out *y, const char *key, uint32_t unit)
{
    char text[16];

    (void)snprintf(text, sizeof(text), unit == PI_UNIT_CPU ? "cpu" : "gpu%u", unit - 1);
    pi_yaml_key(y, key);
    pi_yaml_key(y, text);
}

static void put_place_layer(struct pi_yaml_out *y, const struct pi_place_layer *q)
{
    pi_yaml_map(y, true);
    pi_yaml_key(y, "hot");
    pi_yaml_u64(y, q->n_hot);
    if (q->n_hot > 0) {
        put_unit(y, "on", q->hot_unit);
        pi_yaml_key(y, "mode_gpu");
        pi_yaml_key(y, pi_mode_name(q->mode_gpu));
    }
    pi_yaml_key(y, "mode_cpu");
    pi_yaml_key(y, pi_mode_name(q->mode_cpu));
    put_unit(y, "attention", q->attn_unit);
    pi_yaml_map_end(y);
}

static enum pi_code put_placement(struct pi_yaml_out *y, const char *path, struct pi_err *err)
{
    struct pi_placement p = {0};
    enum pi_code rc = pi_placement_load(path, &p, err);

    if (rc != PI_OK)
        return rc;
    pi_yaml_key(y, "placement");
    pi_yaml_map(y, false);
    pi_yaml_key(y, "objective");
    pi_yaml_text(y, p.objective, strlen(p.objective));
    pi_yaml_key(y, "hardware");
    pi_yaml_text(y, p.hardware, strlen(p.hardware));
    pi_yaml_key(y, "budget");
    pi_yaml_u64(y, p.budget);
    pi_yaml_key(y, "context_bytes");
    pi_yaml_u64(y, p.context_bytes);
    pi_yaml_key(y, "context");
    pi_yaml_u64(y, p.n_ctx);
    pi_yaml_key(y, "neurons");
    pi_yaml_u64(y, p.n_ff);
    put_unit(y, "embedding", p.embd_unit);
    put_unit(y, "output", p.output_unit);
    pi_yaml_key(y, "layers");
    pi_yaml_list(y, false);
    for (uint32_t l = 0; l < p.n_layer; l++)
        put_place_layer(y, &p.layers[l]);
    pi_yaml_list_end(y);
    pi_yaml_map_end(y);
    pi_placement_free(&p);
    return PI_OK;
}

/* Can inactive neurons be left out? Nothing of models that nobody here runs. */
static void put_activation(struct pi_yaml_out *y, const struct pi_gguf *g)
{
    struct pi_shape s;

    if (pi_shape_read(g, NULL, &s, NULL) != PI_OK)
        return;
    pi_yaml_key(y, "activation");
    pi_yaml_map(y, true);
    pi_yaml_key(y, "name");
    pi_yaml_key(y, pi_activation_name(s.act));
    if (s.act == PI_ACT_FATRELU) {
        pi_yaml_key(y, "threshold");
        pi_yaml_f32(y, s.act_threshold);
    }
    pi_yaml_key(y, "sparse");
    pi_yaml_bool(y, pi_activation_has_zeros(s.act));
    pi_yaml_map_end(y);
}

static enum pi_code put_summary(struct pi_yaml_out *y, const struct pi_gguf *g, const char *path,
                                struct pi_err *err)
{
    struct pi_str kind = {"model", 5};
    enum pi_code rc = pi_gguf_string(g, "pi.artifact.kind", false, &kind, err);

    if (rc != PI_OK)
        return rc;
    pi_yaml_key(y, "kind");
    pi_yaml_text(y, kind.p, kind.n);
    if (pi_str_eq(kind, "profile"))
        return put_profile(y, path, err);
    if (pi_str_eq(kind, "predictor"))
        return put_predictor(y, path, err);
    if (pi_str_eq(kind, "placement"))
        return put_placement(y, path, err);
    if (pi_str_eq(kind, "model"))
        put_activation(y, g);
    return PI_OK;
}

enum pi_code pi_dump(const char *path, bool full, FILE *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK, ended;
    struct pi_gguf g = {0};
    struct pi_yaml_out y;
    char format[40];

    rc = pi_gguf_open(path, PI_GGUF_NO_DATA, &g, err);
    if (rc != PI_OK)
        return rc;
    rc = pi_yaml_begin(&y, out, err);
    if (rc != PI_OK) {
        pi_gguf_close(&g);
        return rc;
    }
    (void)snprintf(format, sizeof(format), "GGUF v%u%s", g.version,
                   g.sparse_magic ? " (PWRI)" : "");
    pi_yaml_map(&y, false);
    pi_yaml_key(&y, "file");
    pi_yaml_text(&y, path, strlen(path));
    pi_yaml_key(&y, "format");
    pi_yaml_text(&y, format, strlen(format));
    rc = put_summary(&y, &g, path, err);
    if (rc == PI_OK) {
        put_metadata(&y, &g, full);
        put_tensors(&y, &g);
        pi_yaml_map_end(&y);
    } else {
        y.failed = true; /* the document stays unfinished; rc says why */
    }
    ended = pi_yaml_end(&y, rc == PI_OK ? err : NULL);
    pi_gguf_close(&g);
    return rc != PI_OK ? rc : ended;
}
