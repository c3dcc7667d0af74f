#include "config.h"

#include "common/pi_estimate.h"

#include "common/pi_alloc.h"
#include "common/pi_estimate_int.h"

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
        return pi_err_set(err, PI_E_RANGE, "%s %s: must be at most 8367351T", option, text);
    *out = (uint64_t)v;
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

/* Bytes from row to row on a device of a row that takes stored bytes in the file. A type without a layout of its own, which pi-run will
 * refuse there, counts as it is stored. */
static uint64_t device_row(enum pi_type type, uint64_t n_cols, uint64_t stored)
{
    uint64_t row = n_cols <= UINT32_MAX ? pi_dev_row_bytes(type, (uint32_t)n_cols) : 0;

    return row > 0 || !pi_size_pad(stored, 16, &row) ? row : row;
}

/* A tensor in the device's layout, padded; vectors as F32. */
static void add_device_tensor(struct pi_tally *t, const struct pi_gguf_tensor *src)
{
    uint64_t stored = 0;

    if (src->n_dims == 1) {
        pi_tally_add_padded(t, src->ne[0], sizeof(float));
    } else {
        t->over = t->over || !pi_type_row_bytes(src->type, src->ne[0], &stored);
        pi_tally_add_padded(t, src->ne[1], device_row(src->type, src->ne[0], stored));
    }
}

/* Where a tensor of neurons' rows is noted. */
struct row_fields {
    uint64_t *stored, *device;
    enum pi_type *type;
};

static bool row_tensor(struct pi_str rest, struct pi_layer_bytes *l, struct row_fields *out)
{
    if (pi_str_eq(rest, "ffn_gate.weight"))
        *out = (struct row_fields){&l->gate_row, &l->dev_gate_row, &l->gate_type};
    else if (pi_str_eq(rest, "ffn_up.weight"))
        *out = (struct row_fields){&l->up_row, &l->dev_up_row, &l->up_type};
    else if (pi_str_eq(rest, "ffn_down_t.weight") || pi_str_eq(rest, "ffn_down.weight"))
        *out = (struct row_fields){&l->down_row, &l->dev_down_row, &l->down_type};
    else
        return false;
    return true;
}

/* Adds a tensor of a layer to what it belongs to. fc1 and fc2 inside a model file are a predictor's and come with that. */
static enum pi_code add_layer_tensor(const struct pi_gguf_tensor *t, struct pi_str rest,
                                     const struct pi_shape *shape, struct pi_layer_bytes *l,
                                     struct pi_err *err)
{
    struct row_fields to;
    struct pi_tally dev = {0};
    uint64_t *sum = &l->dev_attn;

    if (row_tensor(rest, l, &to)) {
        *to.type =
            pi_str_eq(rest, "ffn_down.weight") ? pi_down_t_type(t->type, shape->n_embd) : t->type;
        if (!pi_type_row_bytes(*to.type, shape->n_embd, to.stored))
            return pi_err_set(err, PI_E_CORRUPT, "%.*s: rows of %u elements do not fit type %s",
                              (int)t->name.n, t->name.p, shape->n_embd, pi_type_name(*to.type));
        *to.device = device_row(*to.type, shape->n_embd, *to.stored);
        return PI_OK;
    }
    if (name_starts(rest, "fc1.") || name_starts(rest, "fc2."))
        return PI_OK;
    if (pi_str_eq(rest, "ffn_gate.bias")) {
        l->neuron += sizeof(float);
        return PI_OK;
    }
    if (pi_str_eq(rest, "ffn_up.bias")) {
        l->neuron += sizeof(float);
        l->up_bias = true;
        return PI_OK;
    }
    if (name_starts(rest, "ffn_down")) {
        l->ffn_fixed += resident_bytes(t);
        sum = &l->dev_ffn_fixed;
    } else {
        l->attn += resident_bytes(t);
        if (t->n_dims > 1)
            l->attn_type = t->type;
    }
    pi_tally_add(&dev, 1, *sum);
    add_device_tensor(&dev, t);
    return pi_tally_end(&dev, "layer", sum, err);
}

static enum pi_code sum_tensors(const struct pi_gguf *g, const struct pi_shape *shape,
                                struct pi_model_bytes *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf_tensor *token = NULL, *output = NULL;
    struct pi_tally dev = {0};

    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        struct pi_str rest;
        uint32_t layer;

        if (split_name(t->name, shape->n_layer, &layer, &rest)) {
            PI_TRY(add_layer_tensor(t, rest, shape, &b->layers[layer], err));
        } else if (pi_str_eq(t->name, "token_embd.weight")) {
            token = t;
            b->embd += t->bytes;
        } else if (pi_str_eq(t->name, "position_embd.weight") ||
                   pi_str_eq(t->name, "project_in.weight") ||
                   pi_str_eq(t->name, "project_out.weight")) {
            b->embd += t->bytes;
        } else if (pi_str_eq(t->name, "output.weight")) {
            output = t;
        } else if (name_starts(t->name, "output_norm.")) {
            b->output_norm += resident_bytes(t);
            add_device_tensor(&dev, t);
        }
    }
    b->tied = output == NULL;
    output = b->tied ? token : output;
    if (output != NULL) {
        b->output = output->bytes;
        b->output_type = output->type;
        add_device_tensor(&dev, output);
    }
    PI_TRY(pi_tally_end(&dev, "output head", &b->dev_output, err));
    for (uint32_t l = 0; l < shape->n_layer; l++) {
        struct pi_layer_bytes *y = &b->layers[l];

        if (y->up_row == 0 || y->down_row == 0 || (shape->gated && y->gate_row == 0))
            PI_FAIL(err, PI_E_CORRUPT, "layer %u: a feed-forward matrix is missing", l);
        y->neuron += y->gate_row + y->up_row + y->down_row;
        y->gate_type = y->gate_row > 0 ? y->gate_type : y->up_type;
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
        struct pi_tally fixed = {0}, all = {0};

        if (p->width == 0)
            continue;
        pi_tally_add(&fixed, p->fc1.n_rows, p->fc1.row_bytes);
        PI_TRY(pi_tally_end(&fixed, "predictor", &y->pred_fixed, err));
        y->pred_per_neuron = p->fc2.row_bytes + (p->bias != NULL ? sizeof(float) : 0);
        y->pred_bias = p->bias != NULL;
        y->pred_type = p->fc2.type;
        y->dev_pred_row = device_row(p->fc2.type, p->fc2.n_cols, p->fc2.row_bytes);
        if (!pi_dev_matrix_bytes(p->fc1.n_rows,
                                 device_row(p->fc1.type, p->fc1.n_cols, p->fc1.row_bytes),
                                 &y->dev_fc1))
            PI_FAIL(err, PI_E_RANGE, "predictor: more bytes than can be counted");
        pi_tally_add(&all, 1, y->pred_fixed);
        pi_tally_add(&all, b->n_ff, y->pred_per_neuron);
        PI_TRY(pi_tally_end(&all, "predictor", &y->predictor, err));
    }
out:
    return rc;
}

/* The CPU's scratch for n_batch tokens in F32: residual, normed, attention and feed-forward output, a spare (n_embd each); q and the heads'
 * output; k and v; the feed-forward's inner vectors, three of n_ff when gated, else two; the widest of all once more, packed for products; logits of the last token of each
 * sequence. */
static enum pi_code sum_run(const struct pi_shape *s, const struct pi_run_size *run,
                            struct pi_model_bytes *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t q = (uint64_t)s->n_head * s->head_dim, kv = (uint64_t)s->n_head_kv * s->head_dim,
             cells, per_cell;
    struct pi_tally cache = {0}, scratch = {0}, tables = {0}, dev = {0};

    if (!pi_type_row_bytes(run->kv_type, kv, &per_cell))
        PI_FAIL(err, PI_E_RANGE, "a KV cache of type %s does not fit rows of %llu",
                pi_type_name(run->kv_type), (unsigned long long)kv);
    cells = (uint64_t)run->n_ctx * run->n_seq;
    pi_tally_add(&cache, cells, per_cell);
    pi_tally_add(&cache, cells, per_cell);
    PI_TRY(pi_tally_end(&cache, "KV cache", &b->kv_layer, err));
    pi_tally_add_padded(&dev, cells + 1, per_cell);
    pi_tally_add_padded(&dev, cells + 1, per_cell);
    PI_TRY(pi_tally_end(&dev, "KV cache", &b->dev_kv, err));
    pi_tally_add(
        &scratch, run->n_batch,
        4 * (5 * (uint64_t)s->n_embd + 2 * q + 2 * kv + (s->gated ? 3 : 2) * (uint64_t)s->n_ff));
    pi_tally_add(&scratch, run->n_batch, 4 * (uint64_t)(s->n_ff > s->n_embd ? s->n_ff : s->n_embd));
    pi_tally_add(&scratch, run->n_seq, 4 * (uint64_t)s->n_vocab);
    PI_TRY(pi_tally_end(&scratch, "buffers", &b->activations, err));
    pi_tally_add(&tables, s->n_layer, 2 * sizeof(uint32_t) * (uint64_t)s->n_ff + 2 * 64);
    PI_TRY(pi_tally_end(&tables, "neuron tables", &b->tables, err));
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
    PI_TRY(pi_estimate_buffers(shape, pred, run, &b, err));
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

/* What the CPU has of a layer. The predictor is where it runs: with attention. */
static void add_layer(const struct pi_model_bytes *b, const struct pi_place_layer *p,
                      const struct pi_layer_bytes *y, struct pi_tally *t)
{
    const uint64_t n = b->n_ff - (uint64_t)p->n_hot;
    const bool attn = p->attn_unit == PI_UNIT_CPU;

    if (attn) {
        pi_tally_add(t, 1, y->attn);
        pi_tally_add(t, 1, b->kv_layer);
        pi_tally_add(t, 1, y->ffn_fixed);
    }
    pi_tally_add(t, n, y->neuron);
    if (attn && n > 0 && p->mode_cpu == PI_MODE_PREDICTED) {
        pi_tally_add(t, 1, y->pred_fixed);
        pi_tally_add(t, n, y->pred_per_neuron);
    }
}

enum pi_code pi_estimate_unit(const struct pi_model_bytes *b, const struct pi_placement *p,
                              uint32_t unit, uint64_t *bytes_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_tally t = {0};
    struct pi_gpu_budget gpu;

    if (unit != PI_UNIT_CPU) {
        PI_TRY(pi_estimate_gpu(b, p, unit, 0, &gpu, err));
        *bytes_out = gpu.total;
        return PI_OK;
    }
    PI_TRY(pi_estimate_check(b, p, err));
    for (uint32_t l = 0; l < p->n_layer; l++)
        add_layer(b, &p->layers[l], &b->layers[l], &t);
    pi_tally_add(&t, 1, b->embd);
    if (p->output_unit == PI_UNIT_CPU) {
        pi_tally_add(&t, 1, b->output_norm);
        pi_tally_add(&t, b->tied ? 0 : 1, b->output);
    }
    pi_tally_add(&t, 1, b->activations);
    pi_tally_add(&t, 1, b->tables);
    PI_TRY(pi_tally_end(&t, "placement", bytes_out, err));
out:
    return rc;
}
