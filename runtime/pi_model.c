/*
 * pi_model.c - opens a model file: finds every tensor, checks its shape and type, borrows its data from the map.
 */
#include "config.h"

#include "runtime/pi_model.h"

#include "common/pi_alloc.h"
#include "common/pi_estimate.h"
#include "common/pi_size.h"
#include "runtime/cpu/pi_cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 64

/* Remembers a converted copy, which the model frees; takes p in every case. */
static enum pi_code model_own(struct pi_model *m, void *p, struct pi_err *err)
{
    enum pi_code rc =
        pi_grow_array(&m->owned, &m->cap_owned, m->n_owned + 1, sizeof(*m->owned), err);

    if (rc != PI_OK) {
        free(p);
        return rc;
    }
    m->owned[m->n_owned++] = p;
    return PI_OK;
}

static const struct pi_gguf_tensor *find(const struct pi_model *m, const char *name)
{
    return pi_gguf_find_tensor(&m->file, name);
}

static enum pi_code missing(const struct pi_model *m, const char *name, struct pi_err *err)
{
    return pi_err_set(err, PI_E_CORRUPT, "%s: tensor '%s' is missing", m->file.map.path, name);
}

/* Both tables that the rows may meet: the one that runs, and the scalar one, which converts at load. */
static enum pi_code check_type(const struct pi_model *m, const struct pi_gguf_tensor *t,
                               const char *name, struct pi_err *err)
{
    const struct pi_cpu *cpu = NULL;
    enum pi_code rc;

    if ((unsigned)t->type >= PI_TYPE_COUNT || pi_cpu_get(PI_ISA_SCALAR)->type[t->type] == NULL)
        PI_FAIL(
            err, PI_E_UNSUPPORTED,
            "%s: tensor '%s' has type %s, which no kernel reads: convert the model with pi-convert --type",
            m->file.map.path, name, pi_type_name(t->type));
    PI_TRY(pi_cpu_select(&cpu, err));
    if (cpu->type[t->type] == NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "%s: tensor '%s' has type %s, which no kernel for %s reads: convert the model with "
                "pi-convert --type, or run with PI_CPU=scalar",
                m->file.map.path, name, pi_type_name(t->type), pi_isa_name(cpu->isa));
out:
    return rc;
}

/* What every tensor must pass: a type the kernels read, data aligned for its elements, the shape (n_rows, n_cols). */
static enum pi_code check_tensor(const struct pi_model *m, const struct pi_gguf_tensor *t,
                                 const char *name, uint64_t n_rows, uint64_t n_cols,
                                 struct pi_err *err)
{
    uintptr_t align = t->type == PI_TYPE_F32 ? 4 : 2;

    if (t->ne[0] != n_cols || t->ne[1] != n_rows || t->ne[2] != 1 || t->ne[3] != 1)
        return pi_err_set(
            err, PI_E_CORRUPT,
            "%s: tensor '%s' has shape [%llu, %llu, %llu, %llu], the model's keys ask for [%llu, %llu]",
            m->file.map.path, name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
            (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], (unsigned long long)n_cols,
            (unsigned long long)n_rows);
    if ((uintptr_t)t->data % align != 0)
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: the data of tensor '%s' is not aligned to its %u-byte elements",
                          m->file.map.path, name, (unsigned)align);
    return check_type(m, t, name, err);
}

static enum pi_code load_mat(const struct pi_model *m, const char *name, uint32_t n_rows,
                             uint32_t n_cols, struct pi_mat *out, struct pi_err *err)
{
    const struct pi_gguf_tensor *t = find(m, name);
    uint64_t row_bytes;
    enum pi_code rc;

    if (t == NULL)
        return missing(m, name, err);
    rc = check_tensor(m, t, name, n_rows, n_cols, err);
    if (rc != PI_OK)
        return rc;
    if (!pi_type_row_bytes(t->type, n_cols, &row_bytes))
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor '%s': rows of %u elements are no multiple of %s blocks",
                          m->file.map.path, name, n_cols, pi_type_name(t->type));
    out->type = t->type;
    out->n_rows = n_rows;
    out->n_cols = n_cols;
    out->row_bytes = row_bytes;
    out->data = t->data;
    return PI_OK;
}

/* A vector of n as F32: borrowed where the file has F32, else a converted copy. An absent one is NULL unless required. */
static enum pi_code load_vec(struct pi_model *m, const char *name, uint32_t n, bool required,
                             const float **out, struct pi_err *err)
{
    const struct pi_gguf_tensor *t = find(m, name);
    uint64_t row_bytes;
    float *copy;
    enum pi_code rc;

    *out = NULL;
    if (t == NULL)
        return required ? missing(m, name, err) : PI_OK;
    rc = check_tensor(m, t, name, 1, n, err);
    if (rc != PI_OK)
        return rc;
    if (t->type == PI_TYPE_F32) {
        *out = (const float *)(const void *)t->data;
        return PI_OK;
    }
    if (!pi_type_row_bytes(t->type, n, &row_bytes))
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: tensor '%s': %u elements are no multiple of %s blocks",
                          m->file.map.path, name, n, pi_type_name(t->type));
    copy = pi_calloc_array(n, sizeof(*copy), err);
    if (copy == NULL)
        return PI_E_NOMEM;
    pi_cpu_get(PI_ISA_SCALAR)->type[t->type]->to_f32(t->data, copy, n);
    *out = copy;
    return model_own(m, copy, err);
}

/* "blk.N.stem" */
static const char *layer_name(char *buf, uint32_t layer, const char *stem)
{
    (void)snprintf(buf, NAME_MAX_BYTES, "blk.%u.%s", layer, stem);
    return buf;
}

/* One matrix with the rows of q, k and v, in that order. */
static enum pi_code load_fused(struct pi_model *m, uint32_t l, uint32_t n_q, uint32_t n_kv,
                               struct pi_err *err)
{
    struct pi_layer_weights *w = &m->layers[l];
    struct pi_mat qkv = {0};
    char b[NAME_MAX_BYTES];
    enum pi_code rc;

    PI_TRY(load_mat(m, layer_name(b, l, "attn_qkv.weight"), n_q + 2 * n_kv, m->shape.n_embd, &qkv,
                    err));
    w->q = w->k = w->v = qkv;
    w->q.n_rows = n_q;
    w->k.n_rows = w->v.n_rows = n_kv;
    w->k.data = pi_mat_row(&qkv, n_q);
    w->v.data = pi_mat_row(&qkv, n_q + n_kv);
    PI_TRY(load_vec(m, layer_name(b, l, "attn_qkv.bias"), n_q + 2 * n_kv, m->shape.biases, &w->q_b,
                    err));
    if (w->q_b != NULL) {
        w->k_b = w->q_b + n_q;
        w->v_b = w->k_b + n_kv;
    }
out:
    return rc;
}

/* A block's norm, "attn_norm" or the like; *w_out stays NULL where it may be absent and is. */
static enum pi_code load_norm(struct pi_model *m, uint32_t l, const char *stem, bool required,
                              const float **w_out, const float **b_out, struct pi_err *err)
{
    const struct pi_shape *s = &m->shape;
    char name[NAME_MAX_BYTES];
    enum pi_code rc;

    (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", l, stem);
    PI_TRY(load_vec(m, name, s->n_embd, required, w_out, err));
    (void)snprintf(name, sizeof(name), "blk.%u.%s.bias", l, stem);
    PI_TRY(load_vec(m, name, s->n_embd, s->layer_norm && *w_out != NULL, b_out, err));
out:
    return rc;
}

/* Parallel blocks have one norm, or attention has one of its own, attn_norm_2. */
static enum pi_code load_norms(struct pi_model *m, uint32_t l, struct pi_err *err)
{
    struct pi_layer_weights *w = &m->layers[l];
    enum pi_code rc;

    if (!m->shape.parallel) {
        PI_TRY(load_norm(m, l, "attn_norm", true, &w->attn_norm, &w->attn_norm_b, err));
        PI_TRY(load_norm(m, l, "ffn_norm", true, &w->ffn_norm, &w->ffn_norm_b, err));
        goto out;
    }
    PI_TRY(load_norm(m, l, "attn_norm", true, &w->ffn_norm, &w->ffn_norm_b, err));
    PI_TRY(load_norm(m, l, "attn_norm_2", false, &w->attn_norm, &w->attn_norm_b, err));
    if (w->attn_norm == NULL) {
        w->attn_norm = w->ffn_norm;
        w->attn_norm_b = w->ffn_norm_b;
    }
out:
    return rc;
}

/* Norms behind the blocks become norms before the next one: see pi_model.h. */
static void shift_norms(struct pi_model *m)
{
    const struct pi_layer_weights *last = &m->layers[m->shape.n_layer - 1];

    m->out_norm = last->ffn_norm;
    m->out_norm_b = last->ffn_norm_b;
    for (uint32_t l = m->shape.n_layer; l-- > 0;) {
        struct pi_layer_weights *w = &m->layers[l];

        w->ffn_norm = w->attn_norm;
        w->ffn_norm_b = w->attn_norm_b;
        w->attn_norm = l > 0 ? m->layers[l - 1].ffn_norm : NULL;
        w->attn_norm_b = l > 0 ? m->layers[l - 1].ffn_norm_b : NULL;
    }
}

static enum pi_code load_attn(struct pi_model *m, uint32_t l, struct pi_err *err)
{
    const struct pi_shape *s = &m->shape;
    struct pi_layer_weights *w = &m->layers[l];
    uint32_t n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    char b[NAME_MAX_BYTES];
    bool bias = s->biases;
    enum pi_code rc;

    PI_TRY(load_mat(m, layer_name(b, l, "attn_output.weight"), s->n_embd, n_q, &w->o, err));
    PI_TRY(load_vec(m, layer_name(b, l, "attn_output.bias"), s->n_embd, bias, &w->o_b, err));
    if (find(m, layer_name(b, l, "attn_qkv.weight")) != NULL) {
        PI_TRY(load_fused(m, l, n_q, n_kv, err));
    } else {
        PI_TRY(load_mat(m, layer_name(b, l, "attn_q.weight"), n_q, s->n_embd, &w->q, err));
        PI_TRY(load_mat(m, layer_name(b, l, "attn_k.weight"), n_kv, s->n_embd, &w->k, err));
        PI_TRY(load_mat(m, layer_name(b, l, "attn_v.weight"), n_kv, s->n_embd, &w->v, err));
        PI_TRY(load_vec(m, layer_name(b, l, "attn_q.bias"), n_q, bias, &w->q_b, err));
        PI_TRY(load_vec(m, layer_name(b, l, "attn_k.bias"), n_kv, bias, &w->k_b, err));
        PI_TRY(load_vec(m, layer_name(b, l, "attn_v.bias"), n_kv, bias, &w->v_b, err));
    }
    if (s->qk_norm) {
        PI_TRY(load_vec(m, layer_name(b, l, "attn_q_norm.weight"), s->head_dim, true, &w->q_norm,
                        err));
        PI_TRY(load_vec(m, layer_name(b, l, "attn_k_norm.weight"), s->head_dim, true, &w->k_norm,
                        err));
    }
out:
    return rc;
}

static enum pi_code load_ffn(struct pi_model *m, uint32_t l, struct pi_err *err)
{
    const struct pi_shape *s = &m->shape;
    struct pi_layer_weights *w = &m->layers[l];
    char b[NAME_MAX_BYTES];
    bool bias = s->biases;
    enum pi_code rc;

    if (s->gated)
        PI_TRY(load_mat(m, layer_name(b, l, "ffn_gate.weight"), s->n_ff, s->n_embd, &w->gate, err));
    if (s->gated)
        PI_TRY(load_vec(m, layer_name(b, l, "ffn_gate.bias"), s->n_ff, bias, &w->gate_b, err));
    PI_TRY(load_mat(m, layer_name(b, l, "ffn_up.weight"), s->n_ff, s->n_embd, &w->up, err));
    PI_TRY(load_vec(m, layer_name(b, l, "ffn_up.bias"), s->n_ff, bias, &w->up_b, err));
    if (find(m, layer_name(b, l, "ffn_down_t.weight")) != NULL) {
        PI_TRY(load_mat(m, b, s->n_ff, s->n_embd, &w->down_t, err));
    } else if (find(m, layer_name(b, l, "ffn_down.weight")) != NULL) {
        PI_TRY(load_mat(m, b, s->n_embd, s->n_ff, &w->down, err));
        m->has_down = true;
    } else {
        PI_TRY(missing(m, layer_name(b, l, "ffn_down_t.weight"), err));
    }
    PI_TRY(load_vec(m, layer_name(b, l, "ffn_down_t.bias"), s->n_embd, false, &w->down_b, err));
    if (w->down_b == NULL)
        PI_TRY(load_vec(m, layer_name(b, l, "ffn_down.bias"), s->n_embd, bias, &w->down_b, err));
out:
    return rc;
}

/* The table may hold more positions than the model was trained on. */
static enum pi_code load_positions(struct pi_model *m, struct pi_err *err)
{
    const struct pi_shape *s = &m->shape;
    const struct pi_gguf_tensor *t = find(m, "position_embd.weight");

    if (t == NULL)
        return missing(m, "position_embd.weight", err);
    if (t->ne[1] < (uint64_t)s->pos_offset + s->n_ctx_train || t->ne[1] > UINT32_MAX)
        return pi_err_set(
            err, PI_E_CORRUPT,
            "%s: 'position_embd.weight' has %llu rows for %u positions and an offset of %u",
            m->file.map.path, (unsigned long long)t->ne[1], s->n_ctx_train, s->pos_offset);
    return load_mat(m, "position_embd.weight", (uint32_t)t->ne[1], s->n_embd, &m->pos_embd, err);
}

static enum pi_code load_outer(struct pi_model *m, struct pi_err *err)
{
    const struct pi_shape *s = &m->shape;
    enum pi_code rc;

    PI_TRY(load_mat(m, "token_embd.weight", s->n_vocab, s->n_embd_tok, &m->tok_embd, err));
    if (s->n_embd_tok != s->n_embd) {
        PI_TRY(load_mat(m, "project_in.weight", s->n_embd, s->n_embd_tok, &m->embd_in, err));
        PI_TRY(load_mat(m, "project_out.weight", s->n_embd_tok, s->n_embd, &m->embd_out, err));
    }
    if (s->learned_pos)
        PI_TRY(load_positions(m, err));
    if (!s->post_norm) {
        PI_TRY(load_vec(m, "output_norm.weight", s->n_embd, true, &m->out_norm, err));
        PI_TRY(load_vec(m, "output_norm.bias", s->n_embd, s->layer_norm, &m->out_norm_b, err));
    }
    m->output = m->tok_embd;
    if (find(m, "output.weight") != NULL)
        PI_TRY(load_mat(m, "output.weight", s->n_vocab, s->n_embd_tok, &m->output, err));
out:
    return rc;
}

/* The dimension at which a wavelength makes n_rot turns over the original context (YaRN, Peng et al. 2023, section 3.2). */
static double yarn_dim(const struct pi_shape *s, double turns)
{
    return s->n_rot * log(s->rope_n_ctx_orig / (turns * 2.0 * M_PI)) /
           (2.0 * log((double)s->rope_base));
}

/* YaRN: wavelengths that turn more often than beta_fast stay, slower than beta_slow are interpolated, a linear ramp between; the
 * same roundings as transformers makes. */
static void apply_yarn(const struct pi_shape *s, float *inv_freq)
{
    float low = fmaxf(floorf((float)yarn_dim(s, (double)s->rope_beta_fast)), 0.0f);
    float high = fminf(ceilf((float)yarn_dim(s, (double)s->rope_beta_slow)), (float)(s->n_rot - 1));

    if (low == high)
        high += 0.001f;
    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        float ramp = fminf(fmaxf(((float)i - low) / (high - low), 0.0f), 1.0f);

        inv_freq[i] = inv_freq[i] / s->rope_factor * ramp + inv_freq[i] * (1.0f - ramp);
    }
}

/* inv_freq[i] = base^(-2i / n_rot) (RoFormer, section 3.2.2), in F32 as transformers computes it, then the scaling the file asks for. */
static enum pi_code load_rope(struct pi_model *m, struct pi_err *err)
{
    const struct pi_shape *s = &m->shape;
    const float *factors;
    enum pi_code rc;

    m->rope_mscale = 1.0f;
    if (s->n_rot == 0)
        return PI_OK;
    PI_ALLOC(m->inv_freq, s->n_rot / 2, err);
    for (uint32_t i = 0; i < s->n_rot / 2; i++)
        m->inv_freq[i] = 1.0f / powf(s->rope_base, (float)(2 * i) / (float)s->n_rot);
    PI_TRY(load_vec(m, "rope_freqs.weight", s->n_rot / 2, false, &factors, err));
    for (uint32_t i = 0; factors != NULL && i < s->n_rot / 2; i++) {
        if (!(factors[i] > 0.0f) || isinf(factors[i]))
            PI_FAIL(err, PI_E_CORRUPT,
                    "%s: element %u of 'rope_freqs.weight' is %g, not a positive number",
                    m->file.map.path, i, (double)factors[i]);
        m->inv_freq[i] /= factors[i];
    }
    if (s->rope_scaling == PI_ROPE_LINEAR) {
        for (uint32_t i = 0; i < s->n_rot / 2; i++)
            m->inv_freq[i] /= s->rope_factor;
    } else if (s->rope_scaling == PI_ROPE_YARN) {
        apply_yarn(s, m->inv_freq);
        m->rope_mscale = s->rope_attn_factor * (0.1f * logf(s->rope_factor) + 1.0f);
    }
out:
    return rc;
}

/* Split models are joined before they are run: units map one file. */
static enum pi_code open_file(const char *path, const struct pi_model_options *opt,
                              struct pi_gguf *g, struct pi_err *err)
{
    const unsigned flags = opt->accept_edited ? PI_GGUF_NO_HEADER_CRC : 0;
    enum pi_code rc = PI_OK;
    uint32_t n_parts = 0;

    if (opt->parts)
        return pi_gguf_open_parts(path, flags, g, err);
    PI_TRY(pi_gguf_open(path, flags, g, err));
    PI_TRY(pi_gguf_u32(g, "split.count", false, &n_parts, err));
    if (n_parts > 1)
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "%s: one of %u parts of a split model: join them with: pi-convert FIRST_PART -o "
                "M.gguf",
                path, (unsigned)n_parts);
out:
    return rc;
}

enum pi_code pi_model_open(const char *path, const struct pi_model_options *opt,
                           struct pi_model *out, struct pi_err *err)
{
    enum pi_code rc;

    memset(out, 0, sizeof(*out));
    PI_TRY(open_file(path, opt, &out->file, err));
    if (opt->check_crc)
        PI_TRY(pi_gguf_check_crc(&out->file, err));
    PI_TRY(pi_shape_read(&out->file, opt->hidden_act, &out->shape, err));
    PI_TRY(load_outer(out, err));
    PI_ALLOC(out->layers, out->shape.n_layer, err);
    for (uint32_t l = 0; l < out->shape.n_layer; l++) {
        PI_TRY(load_norms(out, l, err));
        PI_TRY(load_attn(out, l, err));
        PI_TRY(load_ffn(out, l, err));
    }
    if (out->shape.post_norm)
        shift_norms(out);
    PI_TRY(load_rope(out, err));
    PI_TRY(pi_model_lineage(&out->file, &out->lineage, err));
    PI_TRY(pi_model_fingerprint(&out->file, &out->fingerprint, err));
out:
    if (rc != PI_OK)
        pi_model_close(out);
    return rc;
}

void pi_model_close(struct pi_model *m)
{
    for (size_t i = 0; i < m->n_owned; i++)
        free(m->owned[i]);
    free(m->owned);
    free(m->layers);
    free(m->inv_freq);
    pi_gguf_close(&m->file);
    memset(m, 0, sizeof(*m));
}

#define BAND \
    256 /* neurons that a matrix is transposed by: a multiple of every block; keeps the F32 scratch small */

/* scratch: (n_ff) + (BAND, n_embd) floats */
static void transpose_mat(const struct pi_mat *down, const struct pi_mat *to, uint8_t *data,
                          float *scratch)
{
    const struct pi_cpu *cpu = pi_cpu_get(PI_ISA_SCALAR);
    float *row = scratch, *band = scratch + down->n_cols;

    for (uint32_t i0 = 0; i0 < to->n_rows; i0 += BAND) {
        uint32_t n = to->n_rows - i0 < BAND ? to->n_rows - i0 : BAND;

        for (uint32_t r = 0; r < down->n_rows; r++) {
            uint64_t offset = 0;

            (void)pi_type_row_bytes(down->type, i0, &offset); /* bands start and end with blocks */
            cpu->type[down->type]->to_f32((const uint8_t *)pi_mat_row(down, r) + offset, row, n);
            for (uint32_t i = 0; i < n; i++)
                band[(size_t)i * to->n_cols + r] = row[i];
        }
        for (uint32_t i = 0; i < n; i++)
            cpu->type[to->type]->from_f32(band + (size_t)i * to->n_cols,
                                          data + (size_t)(i0 + i) * to->row_bytes, to->n_cols);
    }
}

static enum pi_code transpose_layer(struct pi_model *m, struct pi_layer_weights *w, float *scratch,
                                    uint64_t *bytes, struct pi_err *err)
{
    struct pi_mat t = {.n_rows = w->down.n_cols, .n_cols = w->down.n_rows};
    uint64_t row_bytes, total;
    uint8_t *data;
    enum pi_code rc;

    t.type = pi_down_t_type(w->down.type, t.n_cols);
    if (!pi_type_row_bytes(t.type, t.n_cols, &row_bytes) ||
        !pi_size_mul(row_bytes, t.n_rows, &total) || !pi_size_add(*bytes, total, bytes))
        return pi_err_set(err, PI_E_RANGE, "size of the transposed down projections overflows");
    t.row_bytes = row_bytes;
    data = pi_calloc_aligned(total, 1, err);
    if (data == NULL) {
        pi_err_wrap(
            err,
            "transposed copies of the down projections (which pi-convert would store that way)");
        return PI_E_NOMEM;
    }
    transpose_mat(&w->down, &t, data, scratch);
    rc = model_own(m, data, err);
    if (rc == PI_OK) {
        t.data = data;
        w->down_t = t;
    }
    return rc;
}

enum pi_code pi_model_transpose_down(struct pi_model *m, uint64_t *bytes_out, struct pi_err *err)
{
    uint64_t bytes = 0, n_scratch;
    float *scratch = NULL;
    enum pi_code rc = PI_OK;

    if (!pi_size_mul(BAND, m->shape.n_embd, &n_scratch) ||
        !pi_size_add(n_scratch, m->shape.n_ff, &n_scratch))
        PI_FAIL(err, PI_E_RANGE, "size of the transposed down projections overflows");
    PI_ALLOC(scratch, n_scratch, err);
    for (uint32_t l = 0; l < m->shape.n_layer; l++) {
        if (m->layers[l].down_t.data == NULL)
            PI_TRY(transpose_layer(m, &m->layers[l], scratch, &bytes, err));
    }
    *bytes_out = bytes;
out:
    free(scratch);
    return rc;
}

/* Comparisons are such that a NaN stays one: weights that are no numbers must show, not pass for neurons that never fire. */
static bool is_quantised(const struct pi_mat *w)
{
    return w->data != NULL && pi_type_info(w->type)->quantised;
}

bool pi_model_is_quantised(const struct pi_model *m)
{
    bool any = is_quantised(&m->output);

    for (uint32_t l = 0; l < m->shape.n_layer; l++) {
        const struct pi_layer_weights *w = &m->layers[l];
        const struct pi_mat *mats[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};

        for (size_t i = 0; i < sizeof(mats) / sizeof(mats[0]); i++)
            any |= is_quantised(mats[i]);
    }
    return any;
}

float pi_activate(const struct pi_shape *s, float x)
{
    switch (s->act) {
    case PI_ACT_RELU:
        return x <= 0.0f ? 0.0f : x;
    case PI_ACT_RELU2:
        return x <= 0.0f ? 0.0f : x * x;
    case PI_ACT_FATRELU:
        return x <= s->act_threshold ? 0.0f : x;
    case PI_ACT_SILU:
        return x / (1.0f + expf(-x));
    case PI_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * (float)M_SQRT1_2));
    case PI_ACT_GELU_TANH: {
        float c = (float)(M_2_SQRTPI * M_SQRT1_2); /* sqrt(2 / pi) */

        return 0.5f * x * (1.0f + tanhf(c * (x + 0.044715f * x * x * x)));
    }
    case PI_ACT_COUNT:
        break;
    }
    return 0.0f;
}

/* The activations that sparse models have get loops of their own, which vectorise. */
void pi_activate_n(const struct pi_shape *s, float *x, size_t n)
{
    float threshold = s->act == PI_ACT_FATRELU ? s->act_threshold : 0.0f;

    if (s->act == PI_ACT_RELU || s->act == PI_ACT_FATRELU) {
        size_t i = 0;

        for (; n - i >= 8; i += 8) { /* a fixed length is worth vectors to compilers */
            for (size_t k = i; k < i + 8; k++)
                x[k] = x[k] <= threshold ? 0.0f : x[k];
        }
        for (; i < n; i++)
            x[i] = x[i] <= threshold ? 0.0f : x[i];
    } else {
        for (size_t i = 0; i < n; i++)
            x[i] = pi_activate(s, x[i]);
    }
}
