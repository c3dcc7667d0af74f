/* The part of a model on a GPU: rows in the device's layout, hot neurons gathered, predictors where they are due, every byte counted. Runs on
 * the emulated device and on a real one. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_dev_model.h"
#include "tests/engine_rig.h"
#ifdef PI_TEST_EMU
#include "tests/emu/emu_ctl.h"
#endif

#define KV_CTX 24u
#define KV_SEQ 2u

/* ---- an independent reader of the device's layout ---- */

static size_t up16(size_t n)
{
    return n % 16 == 0 ? n : n + 16 - n % 16;
}

static uint16_t half_at(const uint8_t *p, size_t i)
{
    return (uint16_t)(p[2 * i] | p[2 * i + 1] << 8);
}

static float dev_element(enum pi_type type, const uint8_t *row, uint32_t n_cols, uint32_t i)
{
    const uint8_t *scales = row + (type == PI_TYPE_Q8_0 ? up16(n_cols) : up16(n_cols / 2));
    float f;
    int q;

    switch (type) {
    case PI_TYPE_F32:
        memcpy(&f, row + 4 * (size_t)i, 4);
        return f;
    case PI_TYPE_F16:
        return pi_f16_to_f32(half_at(row, i));
    case PI_TYPE_BF16:
        return pi_bf16_to_f32(half_at(row, i));
    case PI_TYPE_Q8_0:
        return (float)(int8_t)row[i] * pi_f16_to_f32(half_at(scales, i / 32));
    default:
        q = row[i / 32 * 16 + i % 16];
        q = i % 32 < 16 ? q & 15 : q >> 4;
        return (float)(q - 8) * pi_f16_to_f32(half_at(scales, i / 32));
    }
}

static size_t dev_row_length(enum pi_type type, uint32_t n_cols)
{
    switch (type) {
    case PI_TYPE_F32:
        return up16(4 * (size_t)n_cols);
    case PI_TYPE_F16:
    case PI_TYPE_BF16:
        return up16(2 * (size_t)n_cols);
    case PI_TYPE_Q8_0:
        return up16(n_cols) + up16(n_cols / 32 * 2);
    default:
        return up16(n_cols / 2) + up16(n_cols / 32 * 2);
    }
}

/* Elements of packed rows that differ from rows ids[..] of src, read by the CPU's scalar kernels. */
static long long differences(const struct pi_mat *src, const uint32_t *ids, uint32_t n,
                             const uint8_t *packed, size_t row_bytes)
{
    float *want = malloc(src->n_cols * sizeof(*want));
    long long bad = 0;

    for (uint32_t r = 0; r < n; r++) {
        pi_cpu_get(PI_ISA_SCALAR)
            ->type[src->type]
            ->to_f32(pi_mat_row(src, ids != NULL ? ids[r] : r), want, src->n_cols);
        for (uint32_t i = 0; i < src->n_cols; i++)
            bad += dev_element(src->type, packed + r * row_bytes, src->n_cols, i) != want[i];
    }
    free(want);
    return bad;
}

/* ---- packing ---- */

static void pack_shape(enum pi_type type, uint32_t n_cols)
{
    enum {
        ROWS = 5,
        PICKED = 4
    };
    static const uint32_t ids[PICKED] = {4, 0, 3, 3};
    const uint64_t dev_row = pi_dev_row_bytes(type, n_cols);
    uint64_t src_row = 0;
    float *x = malloc(n_cols * sizeof(*x));
    uint8_t *src, *dst;

    OK(pi_type_row_bytes(type, n_cols, &src_row));
    EQ(dev_row, dev_row_length(type, n_cols));
    src = malloc(ROWS * src_row);
    dst = malloc(ROWS * dev_row + 64);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < n_cols; i++)
            x[i] = sinf((float)(r * n_cols + i) * 1.7f) * (float)(1 + i / 32);
        pi_cpu_get(PI_ISA_SCALAR)->type[type]->from_f32(x, src + r * src_row, n_cols);
    }
    for (int picked = 0; picked < 2; picked++) {
        const struct pi_mat m = {
            .type = type, .n_rows = ROWS, .n_cols = n_cols, .row_bytes = src_row, .data = src};
        const uint32_t n = picked ? PICKED : ROWS;
        long long stray = 0, padding = 0;

        memset(dst, 0xa5, ROWS * dev_row + 64);
        pi_dev_pack_rows(&m, picked ? ids : NULL, n, dst);
        EQ(differences(&m, picked ? ids : NULL, n, dst, dev_row), 0);
        for (size_t i = n * dev_row; i < ROWS * dev_row + 64; i++)
            stray += dst[i] != 0xa5;
        EQ(stray, 0);
        for (uint32_t r = 0; r < n && (type == PI_TYPE_F16 || type == PI_TYPE_F32); r++)
            for (size_t i = src_row; i < dev_row; i++)
                padding += dst[r * dev_row + i] != 0;
        for (uint32_t r = 0; r < n && type == PI_TYPE_Q8_0; r++)
            for (size_t i = n_cols + n_cols / 32 * 2; i < dev_row; i++)
                padding += dst[r * dev_row + i] != 0;
        EQ(padding, 0);
    }
    free(src);
    free(dst);
    free(x);
}

static void packing(void)
{
    static const enum pi_type plain[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16};
    static const uint32_t plain_cols[] = {1, 7, 8, 33, 64, 4096},
                          block_cols[] = {32, 64, 96, 256, 288, 4096};

    for (size_t t = 0; t < 3; t++)
        for (size_t c = 0; c < 6; c++)
            pack_shape(plain[t], plain_cols[c]);
    for (size_t c = 0; c < 6; c++) {
        pack_shape(PI_TYPE_Q8_0, block_cols[c]);
        pack_shape(PI_TYPE_Q4_0, block_cols[c]);
    }
    OK(!pi_dev_type_ok(PI_TYPE_Q4_1) && !pi_dev_type_ok(PI_TYPE_Q4_K) &&
       !pi_dev_type_ok(PI_TYPE_I32));
}

/* ---- a model ---- */

struct case_ {
    struct rig r;
    enum pi_mode mode[4];
    uint32_t *tables;
    struct pi_dev_model d;
    uint64_t expect; /* bytes, counted by hand while checking */
};

static void make_tables(struct case_ *c)
{
    const uint32_t n_ff = c->r.t.n_ff;

    free(c->tables);
    c->tables = malloc((size_t)c->r.t.n_layer * n_ff * sizeof(*c->tables));
    for (uint32_t l = 0; l < c->r.t.n_layer; l++) {
        uint32_t *row = c->tables + (size_t)l * n_ff, at = 0;

        for (int cold = 0; cold < 2; cold++) {
            for (uint32_t id = 0; id < n_ff; id++) {
                bool hot = false;

                for (uint32_t i = 0; i < c->r.layers[l].n_hot; i++)
                    hot = hot || c->r.layers[l].order[i] == id;
                if (hot != cold)
                    row[at++] = id;
            }
        }
    }
}

static enum pi_code create(struct case_ *c)
{
    const struct pi_dev_model_options o = {
        .n_ctx = KV_CTX, .n_seq = KV_SEQ, .kv_type = PI_TYPE_F16, .mode = c->mode};

    make_tables(c);
    return pi_dev_model_create(&c->r.m, &c->r.pred, &c->r.place, c->tables, c->r.pool, &o, &c->d,
                               &c->r.e);
}

/* n bytes from a device address inside one of the model's buffers. */
static void fetch(const struct case_ *c, const void *at, void *to, size_t n)
{
    struct pi_err e = {0};

    for (size_t i = 0; i < c->d.n_bufs; i++) {
        const uintptr_t lo = (uintptr_t)c->d.bufs[i].ptr, p = (uintptr_t)at;

        if (p >= lo && p - lo < c->d.bufs[i].bytes) {
            if (pi_gpu_download(to, &c->d.bufs[i], p - lo, n, &e) != PI_OK)
                PASSES(e.code, e);
            return;
        }
    }
    OK(!"an address outside all buffers");
}

static void count(struct case_ *c, uint64_t bytes)
{
    c->expect += (bytes + 255) / 256 * 256;
}

/* Prints a line only where something is wrong: there are hundreds of them. */
static void same_matrix(struct case_ *c, const struct pi_dmat *d, const struct pi_mat *src,
                        const uint32_t *ids, uint32_t n, const char *name)
{
    uint8_t *bytes;

    if (n == 0 || src->data == NULL) {
        if (d->data != NULL)
            OK(!"a matrix that should be absent");
        return;
    }
    if (d->data == NULL || (uintptr_t)d->data % 256 != 0 || d->n_rows != n ||
        d->n_cols != src->n_cols || d->type != src->type ||
        d->row_bytes != dev_row_length(src->type, src->n_cols)) {
        printf("# %s: %u rows of %u, %zu bytes a row\n", name, d->n_rows, d->n_cols, d->row_bytes);
        OK(!"a matrix of another shape");
        return;
    }
    bytes = malloc(n * d->row_bytes);
    fetch(c, d->data, bytes, n * d->row_bytes);
    if (differences(src, ids, n, bytes, d->row_bytes) != 0) {
        printf("# %s\n", name);
        OK(!"a matrix of other values");
    }
    count(c, n * d->row_bytes);
    free(bytes);
}

static void same_vector(struct case_ *c, const void *d, const void *src, const uint32_t *ids,
                        uint32_t n, const char *name)
{
    const uint32_t *want = src;
    uint32_t *got;
    long long bad = 0;

    if (n == 0 || src == NULL) {
        if (d != NULL)
            OK(!"a vector that should be absent");
        return;
    }
    got = malloc(n * sizeof(*got));
    fetch(c, d, got, n * sizeof(*got));
    for (uint32_t i = 0; i < n; i++)
        bad += got[i] != want[ids != NULL ? ids[i] : i];
    if (bad != 0) {
        printf("# %s: %lld of %u elements\n", name, bad, n);
        OK(!"a vector of other values");
    }
    count(c, n * sizeof(*got));
    free(got);
}

static void check_attention(struct case_ *c, uint32_t l)
{
    const struct pi_layer_weights *w = &c->r.m.layers[l];
    const struct pi_dev_layer *y = &c->d.layers[l];
    const bool here = c->r.layers[l].attn_unit != 0;
    const struct pi_mat none = {0};
    const uint32_t n = here ? c->r.t.n_embd : 0, nq = here ? w->q.n_rows : 0,
                   nkv = here ? w->k.n_rows : 0;
    const size_t cache = (size_t)(KV_CTX * KV_SEQ + 1) * w->k.n_rows * 2;

    if (y->has_attn != here)
        OK(!"attention elsewhere");
    same_matrix(c, &y->q, here ? &w->q : &none, NULL, w->q.n_rows, "q");
    same_matrix(c, &y->k, here ? &w->k : &none, NULL, w->k.n_rows, "k");
    same_matrix(c, &y->v, here ? &w->v : &none, NULL, w->v.n_rows, "v");
    same_matrix(c, &y->o, here ? &w->o : &none, NULL, w->o.n_rows, "o");
    same_vector(c, y->attn_norm, w->attn_norm, NULL, n, "attn_norm");
    same_vector(c, y->attn_norm_b, w->attn_norm_b, NULL, n, "attn_norm_b");
    same_vector(c, y->ffn_norm, w->ffn_norm, NULL, n, "ffn_norm");
    same_vector(c, y->ffn_norm_b, w->ffn_norm_b, NULL, n, "ffn_norm_b");
    same_vector(c, y->q_b, w->q_b, NULL, nq, "q_b");
    same_vector(c, y->k_b, w->k_b, NULL, nkv, "k_b");
    same_vector(c, y->v_b, w->v_b, NULL, nkv, "v_b");
    same_vector(c, y->o_b, w->o_b, NULL, n, "o_b");
    same_vector(c, y->down_b, w->down_b, NULL, c->r.t.n_embd, "down_b");
    if ((y->k_cache != NULL) != here || (y->v_cache != NULL) != here)
        OK(!"a cache elsewhere");
    for (int i = 0; here && i < 2; i++) {
        uint8_t *bytes = malloc(cache);
        long long bad = 0;

        fetch(c, i == 0 ? y->k_cache : y->v_cache, bytes, cache);
        for (size_t k = 0; k < cache; k++)
            bad += bytes[k] != 0;
        if (bad != 0)
            OK(!"a cache that is not zero");
        count(c, cache);
        free(bytes);
    }
}

static void check_predictor(struct case_ *c, uint32_t l, bool hot, bool cold)
{
    const struct pi_predictor_layer *p = &c->r.pred.layers[l];
    const struct pi_dev_layer *y = &c->d.layers[l];
    const struct pi_dev_predictor *d = &y->pred;
    const uint32_t *row = c->tables + (size_t)l * c->r.t.n_ff;
    const uint32_t n = (hot ? y->n_hot : 0) + (cold ? y->n_cold : 0);
    const struct pi_mat none = {0};

    if (d->predict_hot != hot || d->predict_cold != cold ||
        d->width != (hot || cold ? p->width : 0)) {
        printf("# layer %u: hot %d cold %d width %u\n", l, d->predict_hot, d->predict_cold,
               d->width);
        OK(!"another predictor");
    }
    same_matrix(c, &d->fc1, n > 0 ? &p->fc1 : &none, NULL, p->fc1.n_rows, "fc1");
    same_matrix(c, &d->fc2, &p->fc2, hot ? row : row + y->n_hot, n, "fc2");
    same_vector(c, d->bias, p->bias, hot ? row : row + y->n_hot, n, "bias");
    same_vector(c, y->cold_ids, row + y->n_hot, NULL, cold ? y->n_cold : 0, "cold_ids");
    if (n > 0 && (d->input != p->input || d->relu != p->relu || d->threshold != p->threshold))
        OK(!"a predictor of other settings");
}

static void check_layer(struct case_ *c, uint32_t l)
{
    const struct pi_layer_weights *w = &c->r.m.layers[l];
    const struct pi_place_layer *pl = &c->r.layers[l];
    const struct pi_dev_layer *y = &c->d.layers[l];
    const uint32_t *row = c->tables + (size_t)l * c->r.t.n_ff;
    const bool predicted = c->mode[l] == PI_MODE_PREDICTED;

    if (y->n_hot != pl->n_hot || y->n_hot + y->n_cold != c->r.t.n_ff || y->host_hot_ids != row ||
        y->host_cold_ids != row + y->n_hot)
        OK(!"other neurons");
    check_attention(c, l);
    same_vector(c, y->hot_ids, row, NULL, y->n_hot, "hot_ids");
    same_matrix(c, &y->gate, &w->gate, row, y->n_hot, "gate");
    same_matrix(c, &y->up, &w->up, row, y->n_hot, "up");
    same_matrix(c, &y->down_t, &w->down_t, row, y->n_hot, "down_t");
    same_vector(c, y->up_b, w->up_b, row, y->n_hot, "up_b");
    check_predictor(c, l, predicted && y->n_hot > 0 && pl->mode_gpu == PI_MODE_PREDICTED,
                    predicted && y->n_cold > 0 && pl->attn_unit != 0 &&
                        pl->mode_cpu == PI_MODE_PREDICTED);
}

static uint64_t free_bytes(void)
{
    struct pi_gpu_info info = {0};
    struct pi_err e = {0};

    PASSES(pi_gpu_describe(0, &info, &e), e);
    return info.free_bytes;
}

static bool emulated(void)
{
    struct pi_gpu_info info = {0};
    struct pi_err e = {0};

    return pi_gpu_describe(0, &info, &e) == PI_OK && strstr(info.name, "mulat") != NULL;
}

/* What the estimator says that the device model takes. */
static uint64_t estimated(const struct case_ *c)
{
    const struct pi_run_size run = {KV_CTX, KV_SEQ, 4, PI_TYPE_F16};
    struct pi_placement p = c->r.place;
    struct pi_place_layer layers[4];
    struct pi_model_bytes b = {0};
    struct pi_gpu_budget g = {0};
    struct pi_err e = {0};
    bool attn = false;

    p.layers = layers;
    for (uint32_t l = 0; l < p.n_layer; l++) {
        layers[l] = c->r.layers[l];
        attn = attn || layers[l].attn_unit != 0;
        if (c->mode[l] != PI_MODE_PREDICTED)
            layers[l].mode_cpu = layers[l].mode_gpu = c->mode[l];
    }
    PASSES(pi_estimate_model(&c->r.m.file, &c->r.m.shape, &c->r.pred, &run, &b, &e), e);
    PASSES(pi_estimate_gpu(&b, &p, 1, 0, &g, &e), e);
    g.tables -= attn || g.total == 0 ? 0 : b.dev.frequencies;
    pi_model_bytes_free(&b);
    return g.weights + g.predictors + g.kv + g.tables;
}

static void check_model(struct case_ *c)
{
    const struct pi_model *m = &c->r.m;
    const bool output = c->r.place.output_unit != 0;
    const uint64_t before = free_bytes();
    const struct pi_mat none = {0};
    uint64_t sum = 0;
    bool attn = false;

    c->expect = 0;
    PASSES(create(c), c->r.e);
    for (uint32_t l = 0; l < c->r.t.n_layer; l++) {
        check_layer(c, l);
        attn = attn || c->r.layers[l].attn_unit != 0;
    }
    same_matrix(c, &c->d.output, output ? &m->output : &none, NULL, m->output.n_rows, "output");
    same_vector(c, c->d.out_norm, m->out_norm, NULL, output ? m->shape.n_embd : 0, "out_norm");
    same_vector(c, c->d.out_norm_b, m->out_norm_b, NULL, output ? m->shape.n_embd : 0,
                "out_norm_b");
    same_vector(c, c->d.inv_freq, m->inv_freq, NULL, attn ? m->shape.n_rot / 2 : 0, "inv_freq");
    for (size_t i = 0; i < c->d.n_bufs; i++)
        sum += c->d.bufs[i].bytes;
    EQ(sum, c->d.bytes);
    EQ(c->expect, c->d.bytes);
    if (c->d.bytes > 0)
        EQ(estimated(c), c->d.bytes);
    if (emulated())
        EQ(before - free_bytes(), c->d.bytes);
    pi_dev_model_free(&c->d);
    if (emulated())
        EQ(free_bytes(), before);
    OK(c->d.bufs == NULL && c->d.layers == NULL);
    pi_dev_model_free(&c->d);
}

static void open_case(struct case_ *c, const struct tiny *t, enum pi_type type, bool bias)
{
    struct tiny typed = *t;
    uint64_t copied;

    memset(c, 0, sizeof(*c));
    typed.type = type;
    typed.bias = bias;
    rig_open(&c->r, &typed, 2);
    oracle(&c->r, 0.25f);
    PASSES(pi_model_transpose_down(&c->r.m, &copied, &c->r.e), c->r.e);
    for (uint32_t l = 0; l < t->n_layer; l++)
        c->mode[l] = PI_MODE_PREDICTED;
}

static void close_case(struct case_ *c)
{
    free(c->tables);
    rig_close(&c->r);
}

/* Who predicts: units' modes, where attention is, whether anything is hot or cold. */
static void all_placements(struct case_ *c)
{
    static const uint32_t hot[] = {0, 1, 40, 96};

    for (unsigned i = 0; i < 4 * 2 * 2 * 2 * 2; i++) {
        for (uint32_t l = 0; l < 2; l++) { /* layers differ from each other */
            const unsigned k = l == 0 ? i : 63 - i;

            c->r.layers[l].n_hot = hot[k % 4];
            c->r.layers[l].attn_unit = k / 4 & 1;
            c->r.layers[l].mode_gpu = k / 8 & 1 ? PI_MODE_PREDICTED : PI_MODE_EXACT;
            /* a layer that runs predicted has a unit that does */
            c->r.layers[l].mode_cpu =
                k / 16 & 1 || hot[k % 4] == 0 ? PI_MODE_PREDICTED : PI_MODE_EXACT;
            c->mode[l] = k / 32 & 1 ? PI_MODE_PREDICTED : PI_MODE_EXACT;
        }
        c->r.place.output_unit = i % 3 == 0;
        check_model(c);
    }
}

static void models(void)
{
    static const enum pi_type types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16, PI_TYPE_Q8_0,
                                         PI_TYPE_Q4_0};
    struct case_ c;
    float *bias;

    open_case(&c, &opt, PI_TYPE_F16, true);
    bias = tiny_layer_tensor(&c.r.t, 0, "ffn_up.bias", 1, c.r.t.n_ff);
    c.r.pred_layers[0].bias = bias;
    c.r.pred_layers[1].relu = true;
    c.r.pred_layers[1].input = PI_PRED_IN_LAYER;
    all_placements(&c);
    close_case(&c);
    free(bias);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct tiny t = llama;

        t.down_t = i % 2 == 0; /* a transposed copy of another type is no different */
        open_case(&c, &t, types[i], true);
        for (uint32_t l = 0; l < 2; l++)
            c.r.layers[l].n_hot = 60 - 50 * l;
        check_model(&c);
        c.r.layers[0].n_hot = c.r.layers[1].n_hot = 0;
        c.r.layers[1].attn_unit = 0;
        c.r.place.output_unit = 0;
        check_model(&c); /* nothing there: no bytes */
        EQ(c.expect, 0);
        close_case(&c);
    }
}

/* ---- what can go wrong ---- */

static void refusals(void)
{
    struct pi_dev_model_options o = {.n_ctx = 1u << 30, .n_seq = 1u << 10, .kv_type = PI_TYPE_F32};
    struct case_ c;

    open_case(&c, &llama, PI_TYPE_Q4_1, false);
    c.r.layers[0].n_hot = 8;
    FAILS(create(&c), PI_E_UNSUPPORTED, "layer 0: ffn_gate.weight has weights of type Q4_1", c.r.e);
    OK(strstr(c.r.e.msg, "pi-convert") != NULL && strstr(c.r.e.msg, "--type q4_0") != NULL);
    c.r.layers[0].n_hot = c.r.layers[1].n_hot = c.r.layers[1].attn_unit = 0;
    FAILS(create(&c), PI_E_UNSUPPORTED, "the output matrix has weights of type Q4_1", c.r.e);
    close_case(&c);

    open_case(&c, &llama, PI_TYPE_F16, false);
    make_tables(&c);
    o.mode = c.mode;
    FAILS(pi_dev_model_create(&c.r.m, NULL, &c.r.place, c.tables, c.r.pool, &o, &c.d, &c.r.e),
          PI_E_NOMEM, "MiB are free; use a smaller --vram-budget", c.r.e);
    o.n_ctx = o.n_seq = UINT32_MAX;
    FAILS(pi_dev_model_create(&c.r.m, NULL, &c.r.place, c.tables, c.r.pool, &o, &c.d, &c.r.e),
          PI_E_RANGE, "more bytes", c.r.e);
    o.n_ctx = o.n_seq = 1;
    o.index = 99;
    FAILS(pi_dev_model_create(&c.r.m, NULL, &c.r.place, c.tables, c.r.pool, &o, &c.d, &c.r.e),
          PI_E_NODEV, "GPU 99", c.r.e);
    c.r.m.shape.head_dim = 600;
    FAILS(create(&c), PI_E_UNSUPPORTED, "layer 1: attention heads of 600 elements", c.r.e);
    c.r.place.n_ff = 95;
    FAILS(create(&c), PI_E_MISMATCH, "95", c.r.e);
    OK(c.d.bufs == NULL && c.d.layers == NULL);
    close_case(&c);
}

/* Every call that can fail does, at its first, second ... time: nothing is left on the device, or pinned, or open. */
static void failures(void)
{
#ifdef PI_TEST_EMU
    static const char *const calls[] = {"cudaMalloc",
                                        "cudaHostAlloc",
                                        "cudaStreamCreateWithFlags",
                                        "cudaEventCreateWithFlags",
                                        "cudaEventRecord",
                                        "cudaMemcpyAsync",
                                        "cudaMemGetInfo",
                                        "cudaEventQuery",
                                        "cudaStreamQuery"};
    struct case_ c;

    open_case(&c, &opt, PI_TYPE_Q8_0, true);
    c.r.layers[0].n_hot = c.r.layers[1].n_hot = 50;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        /* how often one looks depends on time */
        const int most = strstr(calls[i], "Query") != NULL ? 20 : 1000;
        int n = 0;
        enum pi_code rc;

        do {
            char text[64];

            (void)snprintf(text, sizeof(text), "%s:%d", calls[i], ++n);
            (void)setenv("PI_EMU_FAIL", text, 1);
            cudaEmuReload();
            rc = create(&c);
            if (rc != PI_OK && (c.d.bufs != NULL || c.r.e.msg[0] == '\0'))
                OK(!"a failure without message, or with a half-built model");
            pi_dev_model_free(&c.d);
            if (cudaEmuLiveAllocations() != 0 || cudaEmuLiveObjects() != 0 ||
                cudaEmuUsedBytes() != 0)
                OK(!"something is left");
        } while (rc != PI_OK && n < most);
        printf("# %s: failed %d times\n", calls[i], n - 1);
        OK(n > 1 && (n < most || most < 1000));
    }
    (void)unsetenv("PI_EMU_FAIL");
    cudaEmuReload();
    (void)setenv("PI_EMU_FAIL", "cudaMalloc:1", 1);
    cudaEmuReload();
    FAILS(create(&c), PI_E_NOMEM, "MiB of its memory; use a smaller --vram-budget", c.r.e);
    (void)unsetenv("PI_EMU_FAIL");
    cudaEmuReload();
    check_model(&c);
    close_case(&c);
#endif
}

int main(void)
{
    packing();
    if (pi_gpu_count() == 0) {
        OK(getenv("PI_REQUIRE_GPU") == NULL);
        return DONE();
    }
    models();
    refusals();
    failures();
    return DONE();
}
