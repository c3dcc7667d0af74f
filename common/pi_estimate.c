#include "config.h"

#include "common/pi_estimate.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum pi_code pi_parse_bytes(const char *text, const char *option, uint64_t *out, struct pi_err *err)
{
    static const char units[] = "KMGT";
    const char *u = NULL;
    char *end = NULL;
    double v = isdigit((unsigned char)text[0]) ? strtod(text, &end) : -1.0;

    if (end != NULL && strspn(text, "0123456789.") == (size_t)(end - text) && *end != '\0' &&
        end[1] == '\0')
        u = strchr(units, toupper((unsigned char)*end));
    if (u == NULL)
        return pi_err_set(err, PI_E_USAGE, "%s %s: needs a unit, as in 8G, 8192M or 500K", option,
                          text);
    v *= (double)((uint64_t)1 << (10 * (u - units + 1)));
    if (!(v < 9.2e18))
        return pi_err_set(err, PI_E_RANGE, "%s %s: too large", option, text);
    *out = (uint64_t)v;
    return PI_OK;
}

/* A sum of products that remembers whether it ever overflowed. */
struct tally {
    uint64_t sum;
    bool over;
};

static void add(struct tally *t, uint64_t n, uint64_t bytes)
{
    uint64_t v;

    if (!pi_size_mul(n, bytes, &v) || !pi_size_add(t->sum, v, &t->sum))
        t->over = true;
}

static enum pi_code finish(const struct tally *t, const char *what, uint64_t *out,
                           struct pi_err *err)
{
    if (t->over)
        return pi_err_set(err, PI_E_RANGE, "%s: more bytes than can be counted", what);
    *out = t->sum;
    return PI_OK;
}

/* Vectors are kept as F32 whatever the file has. */
static uint64_t resident_bytes(const struct pi_gguf_tensor *t)
{
    uint64_t f32 = 0;

    if (t->n_dims == 1 && pi_size_mul(t->ne[0], sizeof(float), &f32) && f32 > t->bytes)
        return f32;
    return t->bytes;
}

static bool name_starts(struct pi_str s, const char *z)
{
    return s.n >= strlen(z) && memcmp(s.p, z, strlen(z)) == 0;
}

/* "blk.12.rest": the number and the rest; false for other names and for layers the shape does not have. */
static bool split_name(struct pi_str s, uint32_t n_layer, uint32_t *layer, struct pi_str *rest)
{
    size_t i = 4;
    uint32_t n = 0;

    if (!name_starts(s, "blk."))
        return false;
    for (; i < s.n && isdigit((unsigned char)s.p[i]) && n < n_layer; i++)
        n = 10 * n + (uint32_t)(s.p[i] - '0');
    if (i == 4 || i >= s.n || s.p[i] != '.' || n >= n_layer)
        return false;
    *layer = n;
    *rest = (struct pi_str){s.p + i + 1, s.n - i - 1};
    return true;
}

enum pi_type pi_down_t_type(enum pi_type t, uint32_t n_embd)
{
    if (t == PI_TYPE_F32 || t == PI_TYPE_F16 || t == PI_TYPE_BF16)
        return t;
    return n_embd % pi_type_info(PI_TYPE_Q8_0)->block_elems == 0 ? PI_TYPE_Q8_0 : PI_TYPE_F16;
}

/* Adds a tensor of a layer to what it belongs to. fc1 and fc2 inside a model file are a predictor's and come with that. */
static enum pi_code add_layer_tensor(const struct pi_gguf_tensor *t, struct pi_str rest,
                                     const struct pi_shape *shape, struct pi_layer_bytes *l,
                                     struct pi_err *err)
{
    uint64_t *row = NULL;
    enum pi_type type = t->type;

    if (pi_str_eq(rest, "ffn_gate.weight"))
        row = &l->gate_row;
    else if (pi_str_eq(rest, "ffn_up.weight"))
        row = &l->up_row;
    else if (pi_str_eq(rest, "ffn_down_t.weight") || pi_str_eq(rest, "ffn_down.weight"))
        row = &l->down_row;
    if (pi_str_eq(rest, "ffn_down.weight"))
        type = pi_down_t_type(type, shape->n_embd);
    if (row != NULL) {
        if (!pi_type_row_bytes(type, shape->n_embd, row))
            return pi_err_set(err, PI_E_CORRUPT, "%.*s: rows of %u elements do not fit type %s",
                              (int)t->name.n, t->name.p, shape->n_embd, pi_type_name(type));
        return PI_OK;
    }
    if (name_starts(rest, "fc1.") || name_starts(rest, "fc2.") || pi_str_eq(rest, "ffn_gate.bias"))
        return PI_OK;
    if (pi_str_eq(rest, "ffn_up.bias"))
        l->neuron = sizeof(float);
    else if (name_starts(rest, "ffn_down"))
        l->ffn_fixed += resident_bytes(t);
    else
        l->attn += resident_bytes(t);
    return PI_OK;
}

static enum pi_code sum_tensors(const struct pi_gguf *g, const struct pi_shape *shape,
                                struct pi_model_bytes *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t token = 0;

    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        struct pi_str rest;
        uint32_t layer;

        if (split_name(t->name, shape->n_layer, &layer, &rest)) {
            PI_TRY(add_layer_tensor(t, rest, shape, &b->layers[layer], err));
        } else if (pi_str_eq(t->name, "token_embd.weight")) {
            token = t->bytes;
            b->embd += t->bytes;
        } else if (pi_str_eq(t->name, "position_embd.weight")) {
            b->embd += t->bytes;
        } else if (pi_str_eq(t->name, "output.weight")) {
            b->output = t->bytes;
        } else if (name_starts(t->name, "output_norm.")) {
            b->output_norm += resident_bytes(t);
        }
    }
    b->tied = b->output == 0;
    if (b->tied)
        b->output = token;
    for (uint32_t l = 0; l < shape->n_layer; l++) {
        struct pi_layer_bytes *y = &b->layers[l];

        if (y->up_row == 0 || y->down_row == 0 || (shape->gated && y->gate_row == 0))
            PI_FAIL(err, PI_E_CORRUPT, "layer %u: a feed-forward matrix is missing", l);
        y->neuron += y->gate_row + y->up_row + y->down_row;
    }
out:
    return rc;
}

static enum pi_code sum_predictor(const struct pi_predictor *pred, struct pi_model_bytes *b,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (pred->n_layer != b->n_layer || pred->n_ff != b->n_ff)
        PI_FAIL(err, PI_E_MISMATCH, "predictor for %u layers of %u neurons, the model has %u of %u",
                pred->n_layer, pred->n_ff, b->n_layer, b->n_ff);
    for (uint32_t l = 0; l < b->n_layer; l++) {
        const struct pi_predictor_layer *p = &pred->layers[l];
        struct pi_layer_bytes *y = &b->layers[l];
        struct tally fixed = {0}, all = {0};

        if (p->width == 0)
            continue;
        add(&fixed, p->fc1.n_rows, p->fc1.row_bytes);
        PI_TRY(finish(&fixed, "predictor", &y->pred_fixed, err));
        y->pred_per_neuron = p->fc2.row_bytes + (p->bias != NULL ? sizeof(float) : 0);
        add(&all, 1, y->pred_fixed);
        add(&all, b->n_ff, y->pred_per_neuron);
        PI_TRY(finish(&all, "predictor", &y->predictor, err));
    }
out:
    return rc;
}

/* Scratch for n_batch tokens in F32: residual, normed, attention and feed-forward output, a spare (n_embd each); q and the heads'
 * output; k and v; the feed-forward's inner vectors, three of n_ff when gated, else two; logits of the last token of each sequence. */
static enum pi_code sum_run(const struct pi_shape *s, const struct pi_run_size *run,
                            struct pi_model_bytes *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t q = (uint64_t)s->n_head * s->head_dim, kv = (uint64_t)s->n_head_kv * s->head_dim,
             cells, per_cell;
    struct tally cache = {0}, scratch = {0}, tables = {0};

    if (!pi_type_row_bytes(run->kv_type, kv, &per_cell))
        PI_FAIL(err, PI_E_RANGE, "a KV cache of type %s does not fit rows of %llu",
                pi_type_name(run->kv_type), (unsigned long long)kv);
    cells = (uint64_t)run->n_ctx * run->n_seq;
    add(&cache, cells, per_cell);
    add(&cache, cells, per_cell);
    PI_TRY(finish(&cache, "KV cache", &b->kv_layer, err));
    add(&scratch, run->n_batch,
        4 * (5 * (uint64_t)s->n_embd + 2 * q + 2 * kv + (s->gated ? 3 : 2) * (uint64_t)s->n_ff));
    add(&scratch, run->n_seq, 4 * (uint64_t)s->n_vocab);
    PI_TRY(finish(&scratch, "buffers", &b->activations, err));
    add(&tables, s->n_layer, 2 * sizeof(uint32_t) * (uint64_t)s->n_ff + 2 * 64);
    PI_TRY(finish(&tables, "neuron tables", &b->tables, err));
out:
    return rc;
}

enum pi_code pi_estimate_model(const struct pi_gguf *model, const struct pi_shape *shape,
                               const struct pi_predictor *pred, const struct pi_run_size *run,
                               struct pi_model_bytes *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_model_bytes b = {.n_layer = shape->n_layer, .n_ff = shape->n_ff};

    PI_ALLOC(b.layers, shape->n_layer, err);
    PI_TRY(sum_tensors(model, shape, &b, err));
    if (pred != NULL)
        PI_TRY(sum_predictor(pred, &b, err));
    PI_TRY(sum_run(shape, run, &b, err));
    *out = b;
    b.layers = NULL;
out:
    free(b.layers);
    return rc;
}

void pi_model_bytes_free(struct pi_model_bytes *b)
{
    free(b->layers);
    memset(b, 0, sizeof(*b));
}

static void add_layer(const struct pi_model_bytes *b, const struct pi_place_layer *p,
                      const struct pi_layer_bytes *y, uint32_t unit, struct tally *t)
{
    bool hot_here = p->n_hot > 0 && p->hot_unit == unit;
    uint64_t n = unit == PI_UNIT_CPU ? b->n_ff - p->n_hot : hot_here ? p->n_hot : 0;
    enum pi_mode mode = unit == PI_UNIT_CPU ? p->mode_cpu : p->mode_gpu;

    if (p->attn_unit == unit) {
        add(t, 1, y->attn);
        add(t, 1, b->kv_layer);
        add(t, 1, y->ffn_fixed);
    }
    add(t, n, y->neuron);
    if (n > 0 && mode == PI_MODE_PREDICTED) {
        add(t, 1, y->pred_fixed);
        add(t, n, y->pred_per_neuron);
    }
}

enum pi_code pi_estimate_unit(const struct pi_model_bytes *b, const struct pi_placement *p,
                              uint32_t unit, uint64_t *bytes_out, struct pi_err *err)
{
    struct tally t = {0};

    if (p->n_layer != b->n_layer || p->n_ff != b->n_ff)
        return pi_err_set(err, PI_E_MISMATCH,
                          "placement for %u layers of %u neurons, the model has %u of %u",
                          p->n_layer, p->n_ff, b->n_layer, b->n_ff);
    for (uint32_t l = 0; l < p->n_layer; l++)
        add_layer(b, &p->layers[l], &b->layers[l], unit, &t);
    if (p->embd_unit == unit)
        add(&t, 1, b->embd);
    if (p->output_unit == unit) {
        add(&t, 1, b->output_norm);
        add(&t, b->tied && p->embd_unit == unit ? 0 : 1, b->output);
    }
    if (t.sum > 0 || unit == PI_UNIT_CPU) {
        add(&t, 1, b->activations);
        add(&t, 1, b->tables);
    }
    return finish(&t, "placement", bytes_out, err);
}
