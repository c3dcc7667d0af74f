/*
 * pi_dev_model.c - what a placement puts on a GPU, brought there.
 *
 * First everything is listed (struct part: where it comes from, where it will lie and who wants its address), so that
 * all sizes are known, and checked, before the first byte is allocated. Then memory is made, addresses are given out, and the parts
 * stream through two pinned buffers: the pool's threads fill one while the other one is copied.
 */
#include "config.h"

#include "runtime/pi_dev_model.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN       PI_DEV_ALIGN
#define STAGE_BYTES ((uint64_t)32 << 20)  /* of each pinned buffer, at most */
#define PIECE_BYTES ((uint64_t)8 << 20)   /* filled before its copy starts */
#define CHUNK_BYTES ((uint64_t)128 << 10) /* that a thread fills at a time */

/* Something that lies on the device: rows of a matrix, 4-byte elements of a vector, or (neither given) zeros. */
struct part {
    void *to;            /* the pointer that takes the device address */
    uint64_t offset;     /* a multiple of ALIGN */
    struct pi_mat mat;   /* data NULL: none */
    const void *words;   /* NULL: none */
    const uint32_t *ids; /* (n) which rows or elements; NULL: the first n */
    uint32_t n;
    uint64_t row_bytes; /* on the device */
};

struct build {
    const struct pi_model *model;
    const struct pi_predictor *pred;
    const struct pi_placement *place;
    const uint32_t *tables;
    const struct pi_dev_model_options *opt;
    struct pi_pool *pool;
    struct pi_dev_model m;
    struct part *parts;
    size_t n_parts, cap_parts;
    uint64_t max_row; /* longest row */
};

/* ---- the list ---- */

/* Notes a part of count rows of row_bytes; *p has its source. */
static enum pi_code add_part(struct build *b, void *to, uint64_t count, uint64_t row_bytes,
                             struct part *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t bytes, end;

    p->to = to;
    p->row_bytes = row_bytes;
    p->offset = b->m.bytes;
    if (!pi_size_mul(count, row_bytes, &bytes) || !pi_size_add(p->offset, bytes, &end) ||
        !pi_size_pad(end, ALIGN, &end) || end > SIZE_MAX / 2)
        PI_FAIL(err, PI_E_RANGE, "more bytes for the GPU than can be counted");
    PI_TRY(pi_grow_array(&b->parts, &b->cap_parts, b->n_parts + 1, sizeof(*b->parts), err));
    b->parts[b->n_parts++] = *p;
    b->m.bytes = end;
    b->max_row = row_bytes > b->max_row ? row_bytes : b->max_row;
out:
    return rc;
}

/* The place of a matrix in messages. */
struct where {
    uint32_t layer; /* n_layer: outside layers */
    const char *name;
};

static enum pi_code no_kernel(const struct build *b, const struct pi_mat *src, struct where at,
                              struct pi_err *err)
{
    const struct pi_type_info *t = pi_type_info(src->type);
    const bool small = t != NULL && t->block_bytes * 8u <= 5u * t->block_elems;

    (void)pi_err_set(
        err, PI_E_UNSUPPORTED,
        "%s has weights of type %s, which no GPU kernel reads: convert with pi-convert %s --type %s -o FILE, or run with --device cpu",
        at.name, pi_type_name(src->type), b->model->file.map.path, small ? "q4_0" : "q8_0");
    if (at.layer < b->m.n_layer)
        pi_err_wrap(err, "layer %u", at.layer);
    return PI_E_UNSUPPORTED;
}

/* Rows ids[0..n) (NULL: the first n) of src; out->data once there is memory. An absent matrix stays absent. */
static enum pi_code add_rows(struct build *b, struct where at, const struct pi_mat *src,
                             const uint32_t *ids, uint32_t n, struct pi_dmat *out,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct part p = {.mat = *src, .ids = ids, .n = n};
    uint64_t row_bytes;

    if (src->data == NULL || n == 0)
        return PI_OK;
    if (!pi_dev_type_ok(src->type))
        return no_kernel(b, src, at, err);
    row_bytes = pi_dev_row_bytes(src->type, src->n_cols);
    if (row_bytes == 0)
        return pi_err_set(err, PI_E_RANGE, "%s: rows of %u elements of type %s", at.name,
                          src->n_cols, pi_type_name(src->type));
    *out = (struct pi_dmat){
        .type = src->type, .n_rows = n, .n_cols = src->n_cols, .row_bytes = (size_t)row_bytes};
    PI_TRY(add_part(b, &out->data, n, row_bytes, &p, err));
out:
    return rc;
}

static enum pi_code add_matrix(struct build *b, struct where at, const struct pi_mat *src,
                               struct pi_dmat *out, struct pi_err *err)
{
    return add_rows(b, at, src, NULL, src->n_rows, out, err);
}

/* Elements of 4 bytes; to: the address of the pointer. A vector the model lacks stays NULL. */
static enum pi_code add_vector(struct build *b, const void *src, const uint32_t *ids, uint32_t n,
                               void *to, struct pi_err *err)
{
    struct part p = {.words = src, .ids = ids, .n = n};

    return src == NULL || n == 0 ? PI_OK : add_part(b, to, n, 4, &p, err);
}

static enum pi_code add_attention(struct build *b, uint32_t l, struct pi_dev_layer *y,
                                  struct pi_err *err)
{
    const struct pi_layer_weights *w = &b->model->layers[l];
    const struct pi_shape *s = &b->model->shape;
    const struct {
        const float *from;
        const float **to;
        uint32_t n;
    } vectors[] = {
        {w->attn_norm, &y->attn_norm, s->n_embd}, {w->attn_norm_b, &y->attn_norm_b, s->n_embd},
        {w->ffn_norm, &y->ffn_norm, s->n_embd},   {w->ffn_norm_b, &y->ffn_norm_b, s->n_embd},
        {w->q_b, &y->q_b, w->q.n_rows},           {w->k_b, &y->k_b, w->k.n_rows},
        {w->v_b, &y->v_b, w->v.n_rows},           {w->o_b, &y->o_b, w->o.n_rows},
    };
    enum pi_code rc = PI_OK;
    struct part kv = {.n = 0};
    uint64_t cells, row;

    if (s->head_dim > PI_DEV_MAX_HEAD_DIM)
        PI_FAIL(
            err, PI_E_UNSUPPORTED,
            "layer %u: attention heads of %u elements: GPU kernels have at most %u; run with --device cpu",
            l, s->head_dim, PI_DEV_MAX_HEAD_DIM);
    y->has_attn = true;
    PI_TRY(add_matrix(b, (struct where){l, "attn_q.weight"}, &w->q, &y->q, err));
    PI_TRY(add_matrix(b, (struct where){l, "attn_k.weight"}, &w->k, &y->k, err));
    PI_TRY(add_matrix(b, (struct where){l, "attn_v.weight"}, &w->v, &y->v, err));
    PI_TRY(add_matrix(b, (struct where){l, "attn_output.weight"}, &w->o, &y->o, err));
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
        PI_TRY(add_vector(b, vectors[i].from, NULL, vectors[i].n, vectors[i].to, err));
    cells = (uint64_t)b->opt->n_seq * b->opt->n_ctx + 1; /* one spare, for padding tokens */
    if (!pi_type_row_bytes(b->opt->kv_type, w->k.n_rows, &row))
        PI_FAIL(err, PI_E_RANGE, "KV cache of type %s", pi_type_name(b->opt->kv_type));
    PI_TRY(add_part(b, &y->k_cache, cells, row, &kv, err));
    PI_TRY(add_part(b, &y->v_cache, cells, row, &kv, err));
out:
    return rc;
}

/* The hot neurons' rows. */
static enum pi_code add_neurons(struct build *b, uint32_t l, struct pi_dev_layer *y,
                                struct pi_err *err)
{
    const struct pi_layer_weights *w = &b->model->layers[l];
    enum pi_code rc = PI_OK;

    if (y->n_hot == 0)
        return PI_OK;
    if (w->down_t.data == NULL)
        PI_FAIL(err, PI_E_MISMATCH, "layer %u: the down projection is not stored by neuron", l);
    PI_TRY(add_vector(b, y->host_hot_ids, NULL, y->n_hot, &y->hot_ids, err));
    PI_TRY(add_rows(b, (struct where){l, "ffn_gate.weight"}, &w->gate, y->host_hot_ids, y->n_hot,
                    &y->gate, err));
    PI_TRY(add_rows(b, (struct where){l, "ffn_up.weight"}, &w->up, y->host_hot_ids, y->n_hot,
                    &y->up, err));
    PI_TRY(add_rows(b, (struct where){l, "the down projection (as sparse modes read it)"},
                    &w->down_t, y->host_hot_ids, y->n_hot, &y->down_t, err));
    PI_TRY(add_vector(b, w->up_b, y->host_hot_ids, y->n_hot, &y->up_b, err));
out:
    return rc;
}

/* Who predicts is what common/pi_schedule.c says: each unit for itself, but the unit of attention for the CPU too. */
static enum pi_code add_predictor(struct build *b, uint32_t l, struct pi_dev_layer *y,
                                  struct pi_err *err)
{
    const struct pi_place_layer *pl = &b->place->layers[l];
    const struct pi_predictor_layer *p = b->pred != NULL ? &b->pred->layers[l] : NULL;
    struct pi_dev_predictor *d = &y->pred;
    const uint32_t *ids;
    uint32_t n;
    enum pi_code rc = PI_OK;

    if (b->opt->mode[l] != PI_MODE_PREDICTED || p == NULL || p->width == 0)
        return PI_OK;
    d->predict_hot = y->n_hot > 0 && pl->mode_gpu == PI_MODE_PREDICTED;
    d->predict_cold =
        y->has_attn && y->n_cold > 0 && (y->n_hot == 0 || pl->mode_cpu == PI_MODE_PREDICTED);
    if (!d->predict_hot && !d->predict_cold)
        return PI_OK;
    d->width = p->width;
    d->input = p->input;
    d->relu = p->relu;
    d->threshold = p->threshold;
    ids = d->predict_hot ? y->host_hot_ids : y->host_cold_ids;
    n = (d->predict_hot ? y->n_hot : 0) + (d->predict_cold ? y->n_cold : 0);
    PI_TRY(add_matrix(b, (struct where){l, "the predictor's first matrix"}, &p->fc1, &d->fc1, err));
    PI_TRY(add_rows(b, (struct where){l, "the predictor's second matrix"}, &p->fc2, ids, n, &d->fc2,
                    err));
    PI_TRY(add_vector(b, p->bias, ids, n, &d->bias, err));
    if (d->predict_cold)
        PI_TRY(add_vector(b, y->host_cold_ids, NULL, y->n_cold, &y->cold_ids, err));
out:
    return rc;
}

static enum pi_code list_layer(struct build *b, uint32_t l, struct pi_err *err)
{
    const struct pi_place_layer *pl = &b->place->layers[l];
    const uint32_t n_ff = b->model->shape.n_ff;
    struct pi_dev_layer *y = &b->m.layers[l];
    enum pi_code rc = PI_OK;

    if (pl->n_hot > n_ff)
        PI_FAIL(err, PI_E_MISMATCH, "layer %u: %u hot neurons of %u", l, pl->n_hot, n_ff);
    y->n_hot = pl->n_hot;
    y->n_cold = n_ff - pl->n_hot;
    y->host_hot_ids = b->tables + (size_t)l * n_ff;
    y->host_cold_ids = y->host_hot_ids + y->n_hot;
    if (pl->attn_unit != PI_UNIT_CPU)
        PI_TRY(add_attention(b, l, y, err));
    PI_TRY(
        add_vector(b, b->model->layers[l].down_b, NULL, b->model->shape.n_embd, &y->down_b, err));
    PI_TRY(add_neurons(b, l, y, err));
    PI_TRY(add_predictor(b, l, y, err));
out:
    return rc;
}

static enum pi_code list_rest(struct build *b, struct pi_err *err)
{
    const struct pi_model *m = b->model;
    const uint32_t n_embd = m->shape.n_embd;
    bool attn = false;
    enum pi_code rc = PI_OK;

    for (uint32_t l = 0; l < b->m.n_layer; l++)
        attn = attn || b->m.layers[l].has_attn;
    if (attn && m->shape.n_rot > 0)
        PI_TRY(add_vector(b, m->inv_freq, NULL, m->shape.n_rot / 2, &b->m.inv_freq, err));
    if (b->place->output_unit == PI_UNIT_CPU)
        return PI_OK;
    PI_TRY(add_vector(b, m->out_norm, NULL, n_embd, &b->m.out_norm, err));
    PI_TRY(add_vector(b, m->out_norm_b, NULL, n_embd, &b->m.out_norm_b, err));
    PI_TRY(add_matrix(b, (struct where){b->m.n_layer, "the output matrix"}, &m->output,
                      &b->m.output, err));
out:
    return rc;
}

/* ---- memory ---- */

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* All sizes are known: refuses what can not fit before anything is allocated. */
static enum pi_code check_memory(struct build *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gpu_info info;

    PI_TRY(pi_gpu_describe(b->opt->index, &info, err));
    if (b->m.bytes > info.free_bytes)
        PI_FAIL(
            err, PI_E_NOMEM,
            "GPU %d: weights and KV cache need %.1f MiB of its memory, %.1f MiB are free; use a smaller --vram-budget (pi-run, pi-place) or a smaller -c",
            b->opt->index, mib(b->m.bytes), mib(info.free_bytes));
out:
    return rc;
}

static enum pi_code allocate(struct build *b, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (b->m.bytes == 0)
        return PI_OK;
    PI_ALLOC(b->m.bufs, 1, err);
    b->m.n_bufs = 1;
    rc = pi_gpu_alloc(b->opt->index, (size_t)b->m.bytes, &b->m.bufs[0], err);
    if (rc == PI_E_NOMEM)
        pi_err_wrap(
            err,
            "GPU %d: weights and KV cache need %.1f MiB of its memory; use a smaller --vram-budget (pi-run, pi-place) or a smaller -c",
            b->opt->index, mib(b->m.bytes));
    if (rc != PI_OK)
        goto out;
    for (size_t i = 0; i < b->n_parts; i++) {
        const struct part *p = &b->parts[i];
        void *at = (char *)b->m.bufs[0].ptr + p->offset;

        memcpy(p->to, &at, sizeof(at)); /* pointers to const and to void alike */
    }
out:
    return rc;
}

/* ---- upload ---- */

struct stage {
    struct pi_pinned pin[2];
    void *done[2]; /* events: what was copied out of each buffer is */
    void *stream;
    uint64_t bytes; /* of each buffer */
    uint64_t used;  /* of the current one */
    int cur;
};

static enum pi_code stage_open(const struct build *b, struct stage *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    /* a small model needs no large buffers */
    s->bytes = b->m.bytes / 4 < STAGE_BYTES ? b->m.bytes / 4 : STAGE_BYTES;
    if (s->bytes < b->max_row)
        s->bytes = b->max_row;
    PI_TRY(pi_gpu_stream_create(b->opt->index, &s->stream, err));
    for (int i = 0; i < 2; i++) {
        PI_TRY(pi_gpu_pin(b->opt->index, (size_t)s->bytes, &s->pin[i], err));
        PI_TRY(pi_gpu_event_create(false, &s->done[i], err));
    }
out:
    return rc;
}

static void stage_close(struct stage *s)
{
    struct pi_err ignored;

    if (s->stream != NULL) /* nothing may be on its way out of memory that is given back */
        (void)!pi_gpu_stream_sync(s->stream, &ignored);
    for (int i = 0; i < 2; i++) {
        if (s->done[i] != NULL)
            pi_gpu_event_destroy(s->done[i]);
        pi_gpu_unpin(&s->pin[i]);
    }
    if (s->stream != NULL)
        pi_gpu_stream_destroy(s->stream);
}

/* Goes on in the other buffer, once it is free. */
static enum pi_code stage_flip(struct stage *s, struct pi_err *err)
{
    enum pi_code rc;

    PI_TRY(pi_gpu_event_record(s->done[s->cur], s->stream, err));
    s->cur ^= 1;
    s->used = 0;
    PI_TRY(pi_gpu_event_sync(s->done[s->cur], err)); /* at once when it was never recorded */
out:
    return rc;
}

struct fill {
    const struct part *part;
    uint32_t first; /* row of the part that dst begins with */
    uint8_t *dst;
};

static void fill_words(const struct part *p, size_t first, size_t n, uint8_t *dst)
{
    const uint8_t *words = p->words;

    if (p->ids == NULL)
        memcpy(dst, words + first * 4, n * 4);
    for (size_t i = 0; p->ids != NULL && i < n; i++)
        memcpy(dst + i * 4, words + (size_t)p->ids[first + i] * 4, 4);
}

/* Rows [begin, end) of a piece; on any thread. */
static void fill_range(void *ctx, size_t begin, size_t end)
{
    const struct fill *f = ctx;
    const struct part *p = f->part;
    const uint32_t first = f->first + (uint32_t)begin, n = (uint32_t)(end - begin);
    uint8_t *dst = f->dst + begin * p->row_bytes;
    struct pi_mat m = p->mat;

    if (p->words != NULL) {
        fill_words(p, first, n, dst);
        return;
    }
    if (p->ids == NULL)
        m.data = pi_mat_row(&m, first);
    pi_dev_pack_rows(&m, p->ids != NULL ? p->ids + first : NULL, n, dst);
}

static uint32_t at_least_one(uint64_t n)
{
    return n == 0 ? 1 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

static enum pi_code send_part(struct build *b, struct stage *s, const struct part *p,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *to = (char *)b->m.bufs[0].ptr + p->offset;
    const uint32_t piece = at_least_one(PIECE_BYTES / p->row_bytes);
    const uint32_t chunk = at_least_one(CHUNK_BYTES / p->row_bytes);

    for (uint32_t row = 0; row < p->n;) {
        const uint64_t room = (s->bytes - s->used) / p->row_bytes;
        uint32_t n = p->n - row < piece ? p->n - row : piece;
        struct fill f = {p, row, (uint8_t *)s->pin[s->cur].host + s->used};

        if (room == 0) {
            PI_TRY(stage_flip(s, err));
            continue;
        }
        n = n < room ? n : (uint32_t)room;
        pi_pool_for(b->pool, n, chunk, fill_range, &f);
        PI_TRY(pi_gpu_copy_async(to + (uint64_t)row * p->row_bytes, f.dst,
                                 (size_t)(n * p->row_bytes), s->stream, err));
        s->used += n * p->row_bytes;
        row += n;
    }
out:
    return rc;
}

/* The file's pages under a matrix that went to the device as a whole are not needed in memory. Converted copies stay. */
static void drop_pages(const struct build *b, const struct part *p)
{
    if (p->mat.data != NULL && p->n >= p->mat.n_rows)
        pi_map_drop(&b->model->file.map, p->mat.data, (size_t)p->mat.n_rows * p->mat.row_bytes);
}

static enum pi_code upload(struct build *b, struct pi_err *err)
{
    struct stage s = {0};
    enum pi_code rc = PI_OK;

    if (b->n_parts == 0)
        return PI_OK;
    PI_TRY(stage_open(b, &s, err));
    for (size_t i = 0; i < b->n_parts; i++) {
        PI_TRY(send_part(b, &s, &b->parts[i], err));
        drop_pages(b, &b->parts[i]);
    }
    PI_TRY(pi_gpu_stream_sync(s.stream, err));
out:
    stage_close(&s);
    return rc;
}

/* ---- public ---- */

enum pi_code pi_dev_model_create(const struct pi_model *model, const struct pi_predictor *pred,
                                 const struct pi_placement *place, const uint32_t *tables,
                                 struct pi_pool *pool, const struct pi_dev_model_options *opt,
                                 struct pi_dev_model *out, struct pi_err *err)
{
    struct build b = {.model = model,
                      .pred = pred,
                      .place = place,
                      .tables = tables,
                      .opt = opt,
                      .pool = pool,
                      .m = {.index = opt->index,
                            .shape = &model->shape,
                            .n_layer = model->shape.n_layer,
                            .kv_type = opt->kv_type,
                            .n_ctx = opt->n_ctx,
                            .n_seq = opt->n_seq}};
    enum pi_code rc;

    if (place->n_layer != model->shape.n_layer || place->n_ff != model->shape.n_ff)
        PI_FAIL(err, PI_E_MISMATCH, "placement for %u layers of %u neurons, the model has %u of %u",
                place->n_layer, place->n_ff, model->shape.n_layer, model->shape.n_ff);
    PI_TRY(pi_gpu_use(opt->index, err));
    PI_ALLOC(b.m.layers, b.m.n_layer, err);
    for (uint32_t l = 0; l < b.m.n_layer; l++)
        PI_TRY(list_layer(&b, l, err));
    PI_TRY(list_rest(&b, err));
    PI_TRY(check_memory(&b, err));
    PI_TRY(allocate(&b, err));
    PI_TRY(upload(&b, err));
    *out = b.m;
    memset(&b.m, 0, sizeof(b.m));
out:
    pi_dev_model_free(&b.m);
    free(b.parts);
    return rc;
}

void pi_dev_model_free(struct pi_dev_model *m)
{
    for (size_t i = 0; i < m->n_bufs; i++)
        if (m->bufs[i].ptr != NULL)
            pi_gpu_free(&m->bufs[i]);
    free(m->bufs);
    free(m->layers);
    memset(m, 0, sizeof(*m));
}
