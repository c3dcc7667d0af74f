/* pi_gpu_prompt.c - makes what prompt chunks on a GPU need, and walks over the layers of a chunk. */
#include "config.h"

#include "runtime/pi_gpu_prompt_int.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_BATCH 32768u /* rows of a launch */
#define PATIENCE  30.0   /* seconds for a piece of a layer, which takes a GPU some milliseconds */
/* Defaults of the crossover; what streaming reaches of PCIe; how many tokens the row kernels compute in the time that reading takes. */
#define PCIE          50e9
#define CPU_BANDWIDTH 80e9
#define STREAM_SHARE  0.8
#define CPU_TOKENS    4.0
#define MAX_CROSSOVER 16u

uint32_t pi_gpu_prompt_crossover(double pcie, double cpu_bandwidth)
{
    const double ratio = (cpu_bandwidth > 0.0 ? cpu_bandwidth : CPU_BANDWIDTH) /
                         (STREAM_SHARE * (pcie > 0.0 ? pcie : PCIE));
    uint32_t n = 0;

    if (ratio <= 1.0)
        return 0;
    for (uint32_t i = 1; i <= MAX_CROSSOVER && i <= CPU_TOKENS * ratio; i *= 2)
        n = i;
    return n;
}

/* ---- memory ---- */

enum pi_code pi_gpu_prompt_want(const struct pi_dev_model *dm, const struct pi_model *m,
                                const struct pi_gpu_prompt_options *opt, struct pi_prompt_want *out,
                                struct pi_err *err)
{
    struct pi_prompt_want w = {
        .n_batch = opt->n_batch, .slot_bytes = opt->slot_bytes, .dev_slots = opt->dev_slots};
    uint64_t bundle = 0;
    bool cold = false;

    if (opt->n_batch == 0 || opt->n_batch > MAX_BATCH)
        return pi_err_set(err, PI_E_RANGE, "prompt chunks of %u tokens; 1 to %u on a GPU",
                          opt->n_batch, MAX_BATCH);
    for (uint32_t l = 0; l < dm->n_layer; l++) {
        const struct pi_layer_weights *y = &m->layers[l];
        const struct pi_mat *mats[3] = {&y->gate, &y->up, &y->down_t};
        uint64_t sum = y->up_b != NULL ? sizeof(float) : 0;

        for (int i = 0; i < 3; i++)
            sum += mats[i]->data != NULL ? pi_dev_row_bytes(mats[i]->type, mats[i]->n_cols) : 0;
        bundle = sum > bundle ? sum : bundle;
        cold = cold || dm->layers[l].n_cold > 0;
    }
    if (cold && opt->cold != PI_PROMPT_COLD_CPU)
        w.bundle = bundle;
    *out = w;
    return PI_OK;
}

/* Arrays cut out of one block, each padded; base NULL: only counted. */
struct cut {
    char *base;
    uint64_t at;
};

static void *take(struct cut *c, uint64_t n, uint64_t size)
{
    void *p = c->base != NULL ? c->base + c->at : NULL;

    c->at += (n * size + PI_PROMPT_ALIGN - 1) / PI_PROMPT_ALIGN * PI_PROMPT_ALIGN;
    return p;
}

/* In the order and with the sizes that pi_prompt_size() counts; it has checked all products. */
static void cut_device(struct pi_gpu_prompt *p)
{
    const struct pi_shape *s = p->shape;
    const uint64_t n = p->opt.n_batch, d = s->n_embd, q = (uint64_t)s->n_head * s->head_dim,
                   kv = (uint64_t)s->n_head_kv * s->head_dim;
    struct pi_gp_dev *v = &p->d;
    struct cut c = {p->buf.ptr, 0}, attn, ffn;
    char *tokens;

    v->tile = take(&c, 1, p->size.tile);
    v->workspace = (struct pi_dev_buf){take(&c, 1, p->size.workspace), (size_t)p->size.workspace};
    for (uint32_t i = 0; p->size.slot_bytes > 0 && i < p->opt.dev_slots; i++)
        v->slots[i] = take(&c, 1, p->size.slot_bytes);
    v->residual = take(&c, n, d * 4);
    v->x32 = take(&c, n, d * 4);
    v->tmp = take(&c, n, d * 4);
    v->x16 = take(&c, n, (d > q ? d : q) * 2);
    tokens = take(&c, n, PI_PROMPT_TOKEN_BYTES);
    v->tiles = (struct pi_kp_tile *)(void *)tokens;
    v->tokens = (struct pi_kp_token *)(void *)(tokens + n * 16);
    v->rows = (uint32_t *)(void *)(tokens + n * 24);
    v->x_scale = (float *)(void *)(tokens + n * 28);
    v->prod_scale = (float *)(void *)(tokens + n * 32);
    attn = ffn = c;
    v->q = take(&attn, n, q * 4);
    v->attn = take(&attn, n, q * 4);
    v->k = take(&attn, n, kv * 4);
    v->v = take(&attn, n, kv * 4);
    v->gate = take(&ffn, n, p->size.piece * (uint64_t)4);
    v->up = take(&ffn, n, p->size.piece * (uint64_t)4);
    v->prod16 = take(&ffn, n, p->size.piece * (uint64_t)2);
}

/* Some layer's attention is on the CPU, and its products may be made here. */
static bool any_far(const struct pi_gpu_prompt *p)
{
    for (uint32_t l = 0; l < p->dm->n_layer; l++) {
        if (pi_gp_is_far(p, l))
            return true;
    }
    return false;
}

/* Counts, or once there is memory gives out, what is pinned. */
static uint64_t cut_host(struct pi_gpu_prompt *p)
{
    const struct pi_shape *s = p->shape;
    const uint64_t n = p->opt.n_batch, d = s->n_embd, q = (uint64_t)s->n_head * s->head_dim,
                   kv = (uint64_t)s->n_head_kv * s->head_dim;
    struct pi_gp_host *h = &p->h;
    struct cut c = {p->pinned.host, 0};

    h->residual = take(&c, n, d * 4);
    h->normed = take(&c, n, d * 4);
    h->part = take(&c, n, d * 4);
    h->out[0] = take(&c, n, p->size.piece * (uint64_t)4);
    h->out[1] = take(&c, n, p->size.piece * (uint64_t)4);
    h->tiles = take(&c, n, sizeof(*h->tiles));
    h->tokens = take(&c, n, sizeof(*h->tokens));
    h->rows = take(&c, n, sizeof(*h->rows));
    for (uint32_t i = 0; p->size.slot_bytes > 0 && i < p->opt.pin_slots; i++)
        h->slots[i] = take(&c, 1, p->size.slot_bytes);
    if (any_far(p)) {
        h->q = take(&c, n, q * 4);
        h->attn = take(&c, n, q * 4);
        h->k = take(&c, n, kv * 4);
        h->v = take(&c, n, kv * 4);
        h->tmp = take(&c, n, (d > s->n_embd_tok ? d : s->n_embd_tok) * 4);
    }
    return c.at;
}

/* ---- create ---- */

static enum pi_code check(const struct pi_dev_model *dm, const struct pi_model *m,
                          struct pi_gpu_prompt_options *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (dm->shape->head_dim > PI_KP_MAX_HEAD_DIM)
        PI_FAIL(err, PI_E_UNSUPPORTED, "attention heads of %u elements on a GPU, at most %u",
                dm->shape->head_dim, PI_KP_MAX_HEAD_DIM);
    for (uint32_t l = 0; l < dm->n_layer; l++) {
        if (m->layers[l].down_t.data == NULL)
            PI_FAIL(err, PI_E_MISMATCH, "layer %u: the down projection is not stored by neuron", l);
    }
    o->pin_slots = o->pin_slots == 0 ? PI_PROMPT_PIN_SLOTS : o->pin_slots;
    o->patience = o->patience > 0.0 ? o->patience : PATIENCE;
    o->dev_slots = o->dev_slots == 0 ? PI_PROMPT_DEV_SLOTS : o->dev_slots;
    if (o->pin_slots > PI_GP_MAX_SLOTS || o->dev_slots > PI_GP_MAX_SLOTS)
        PI_FAIL(err, PI_E_RANGE, "%u and %u slots for streaming, at most %u", o->pin_slots,
                o->dev_slots, PI_GP_MAX_SLOTS);
    if (o->cold == PI_PROMPT_COLD_CPU)
        o->cpu_tokens = UINT32_MAX;
    else if (o->cold == PI_PROMPT_COLD_STREAM)
        o->cpu_tokens = 0;
    else if (o->cpu_tokens == 0)
        o->cpu_tokens = pi_gpu_prompt_crossover(o->pcie, o->cpu_bandwidth);
out:
    return rc;
}

static enum pi_code create_cold(struct pi_gpu_prompt *p, struct pi_err *err)
{
    const uint64_t n = p->opt.n_batch;
    uint32_t most = 0;
    enum pi_code rc = PI_OK;

    for (uint32_t l = 0; l < p->dm->n_layer; l++)
        most = p->dm->layers[l].n_cold > most ? p->dm->layers[l].n_cold : most;
    if (most == 0)
        return PI_OK;
    PI_TRY(pi_cold_scratch_create(most, n < PI_COLD_TOKENS ? (uint32_t)n : PI_COLD_TOKENS,
                                  p->shape->n_embd, &p->cold, err));
    PI_ALLOC_ALIGNED(p->cold_gate, n * PI_DOWN_TILE, err);
    PI_ALLOC_ALIGNED(p->cold_up, n * PI_DOWN_TILE, err);
out:
    return rc;
}

static enum pi_code create_gpu(struct pi_gpu_prompt *p, struct pi_err *err)
{
    const int index = p->dm->index;
    enum pi_code rc;

    PI_TRY(pi_gpu_alloc(index, (size_t)p->size.total, &p->buf, err));
    PI_TRY(pi_gpu_pin(index, (size_t)cut_host(p), &p->pinned, err));
    cut_device(p);
    (void)cut_host(p);
    PI_TRY(pi_gpu_stream_create(index, &p->stream, err));
    PI_TRY(pi_gpu_stream_create(index, &p->copy_stream, err));
    PI_TRY(pi_gpu_blas_create(p->stream, &p->d.workspace, &p->blas, err));
    for (int i = 0; i < 2; i++)
        PI_TRY(pi_gpu_event_create(false, &p->out_done[i], err));
    PI_TRY(pi_gp_marks_create(p, err));
    PI_TRY(pi_gp_stream_create(p, err));
    PI_TRY(pi_gp_far_create(p, err));
    if (p->opt.fill == PI_PROMPT_FILL_DIRECT && p->size.slot_neurons > 0)
        PI_TRY(pi_gp_direct_create(p, err));
out:
    return rc;
}

enum pi_code pi_gpu_prompt_create(const struct pi_dev_model *dm, struct pi_state *s,
                                  const struct pi_gpu_prompt_options *opt,
                                  struct pi_gpu_prompt **out, struct pi_err *err)
{
    struct pi_gpu_prompt *p = NULL;
    struct pi_prompt_want want;
    enum pi_code rc;

    PI_ALLOC(p, 1, err);
    p->dm = dm;
    p->m = s->m;
    p->shape = &s->m->shape;
    p->pool = s->pool;
    p->opt = *opt;
    PI_TRY(check(dm, s->m, &p->opt, err));
    PI_TRY(pi_gpu_prompt_want(dm, s->m, &p->opt, &want, err));
    PI_TRY(pi_prompt_size(p->shape, &want, &p->size, err));
    PI_TRY(create_cold(p, err));
    rc = create_gpu(p, err);
    if (rc == PI_E_NOMEM)
        pi_err_wrap(err, "GPU %d: %.1f MiB for prompt chunks of %u tokens", dm->index,
                    (double)p->size.total / 1048576.0, p->opt.n_batch);
    if (rc != PI_OK)
        goto out;
    *out = p;
    p = NULL;
out:
    pi_gpu_prompt_destroy(p);
    return rc;
}

void pi_gpu_prompt_destroy(struct pi_gpu_prompt *p)
{
    if (p == NULL)
        return;
    pi_gp_direct_destroy(p);
    pi_gp_stream_destroy(p);
    pi_gp_marks_destroy(p);
    for (int i = 0; i < 2; i++) {
        if (p->out_done[i] != NULL)
            pi_gpu_event_destroy(p->out_done[i]);
    }
    if (p->blas != NULL)
        pi_gpu_blas_destroy(p->blas);
    if (p->copy_stream != NULL)
        pi_gpu_stream_destroy(p->copy_stream);
    if (p->stream != NULL)
        pi_gpu_stream_destroy(p->stream);
    pi_gpu_unpin(&p->pinned);
    pi_gpu_free(&p->buf);
    pi_cold_scratch_free(p->cold);
    free(p->cold_gate);
    free(p->cold_up);
    free(p);
}

uint64_t pi_gpu_prompt_memory(const struct pi_gpu_prompt *p)
{
    return p->size.total;
}

void pi_gpu_prompt_take_stats(struct pi_gpu_prompt *p, struct pi_gpu_prompt_stats *out)
{
    *out = p->stats;
    memset(&p->stats, 0, sizeof(p->stats));
}

/* ---- run ---- */

/* Tiles of queries: neighbouring tokens of a sequence at neighbouring positions. */
static void cut_tiles(struct pi_gpu_prompt *p)
{
    const struct pi_state *s = p->s;
    const uint32_t most = pi_kp_tile_size(p->shape->head_dim);
    struct pi_kp_tile *tile = NULL;

    p->n_tiles = 0;
    for (uint32_t t = 0; t < s->n_tok; t++) {
        const uint32_t seq = pi_state_seq(s, t), pos = (uint32_t)s->pos[t];

        p->h.tokens[t] = (struct pi_kp_token){s->pos[t], seq};
        if (tile == NULL || tile->n == most || tile->seq != seq || tile->pos + tile->n != pos) {
            tile = &p->h.tiles[p->n_tiles++];
            *tile = (struct pi_kp_tile){t, 0, pos, seq};
        }
        tile->n++;
    }
}

static enum pi_code solo(struct pi_gpu_prompt *p, enum pi_op_kind kind, uint32_t layer,
                         struct pi_err *err)
{
    const struct pi_op op = {.kind = kind, .layer = layer};

    return pi_solo_ops[kind](p->s, &op, p->n_tok, err);
}

static enum pi_code begin(struct pi_gpu_prompt *p, struct pi_state *s, struct pi_err *err)
{
    enum pi_code rc;

    p->s = s;
    p->n_tok = s->n_tok;
    p->on_host = true;
    if (s->n_tok > p->opt.n_batch)
        PI_FAIL(err, PI_E_RANGE, "a chunk of %u tokens, at most %u", s->n_tok, p->opt.n_batch);
    PI_TRY(pi_gpu_use(p->dm->index, err));
    cut_tiles(p);
    p->n_rows = 0;
    for (uint32_t t = 0; t < s->n_tok; t++) {
        if (pi_state_wants(s, t))
            p->h.rows[p->n_rows++] = t;
    }
    PI_TRY(pi_gpu_copy_async(p->d.tiles, p->h.tiles, p->n_tiles * sizeof(*p->h.tiles), p->stream,
                             err));
    PI_TRY(pi_gpu_copy_async(p->d.tokens, p->h.tokens, p->n_tok * sizeof(*p->h.tokens), p->stream,
                             err));
    PI_TRY(pi_gpu_copy_async(p->d.rows, p->h.rows, p->n_rows * sizeof(*p->h.rows), p->stream, err));
    PI_TRY(solo(p, PI_OP_EMBED, 0, err));
out:
    return rc;
}

static bool streams(const struct pi_gpu_prompt *p, uint32_t layer)
{
    return p->dm->layers[layer].n_cold > 0 && p->n_tok > p->opt.cpu_tokens &&
           pi_gp_can_stream(p, layer);
}

/* Attention on the CPU, but for the products of long chunks; the residual is on the host then, the feed-forward's input in h.normed. */
static enum pi_code attention_cpu(struct pi_gpu_prompt *p, uint32_t layer, struct pi_err *err)
{
    struct pi_state *st = p->s;
    enum pi_code rc;

    PI_TRY(pi_gp_to_host(p, err));
    PI_TRY(solo(p, PI_OP_ATTN_NORM, layer, err));
    if (p->far_pieces != NULL && p->n_tok > p->opt.cpu_tokens && pi_gp_is_far(p, layer)) {
        st->products = pi_gp_far_products;
        st->products_ctx = p;
    }
    PI_TRY(solo(p, PI_OP_QKV, layer, err));
    PI_TRY(solo(p, PI_OP_ATTN, layer, err));
    PI_TRY(solo(p, PI_OP_ATTN_OUT, layer, err));
    st->products = NULL;
    PI_TRY(solo(p, PI_OP_FFN_NORM, layer, err));
out:
    st->products = NULL;
    return rc;
}

/* Hot neurons on the GPU, cold ones on the CPU at the same time. */
static enum pi_code ffn_both(struct pi_gpu_prompt *p, uint32_t layer, struct pi_err *err)
{
    const struct pi_dev_layer *y = &p->dm->layers[layer];
    const size_t bytes = (size_t)p->n_tok * p->shape->n_embd * sizeof(float);
    enum pi_code rc;

    PI_TRY(pi_gp_ffn_begin(p, layer, y->n_cold > 0 || p->s->obs != NULL, err));
    PI_TRY(pi_gp_ffn_hot(p, layer, err));
    if (y->n_cold > 0) {
        pi_gp_cold_cpu(p, layer);
        PI_TRY(pi_gpu_copy_async(p->d.tmp, p->h.part, bytes, p->stream, err));
        pi_kp_add(p->d.residual, p->d.tmp, NULL, NULL, p->n_tok, p->shape->n_embd, p->stream);
        PI_TRY(pi_gpu_launched(err));
        PI_TRY(pi_gp_mark(p, err));
    }
out:
    return rc;
}

/* What the observer is promised is on the host once a layer was worked on. */
static enum pi_code observe(struct pi_gpu_prompt *p, uint32_t layer, struct pi_err *err)
{
    const struct pi_state *s = p->s;

    if (s->obs == NULL)
        return PI_OK;
    return s->obs->ffn(s->obs->ctx, layer, p->n_tok, p->h.residual, p->h.residual, p->h.normed,
                       s->h, s->prod, err);
}

/* One layer, or several that are streamed in one run; *next: the first that was not worked on. */
static enum pi_code run_layers(struct pi_gpu_prompt *p, uint32_t l, uint32_t *next,
                               struct pi_err *err)
{
    const struct pi_dev_layer *y = &p->dm->layers[l];
    uint32_t end = l + 1;
    enum pi_code rc;

    if (y->has_attn)
        PI_TRY(pi_gp_attention(p, l, err));
    else
        PI_TRY(attention_cpu(p, l, err));
    if (streams(p, l)) {
        while (p->s->obs == NULL && end < p->dm->n_layer && p->dm->layers[end].has_attn &&
               (p->dm->layers[end].n_cold == 0 || streams(p, end)))
            end++;
        PI_TRY(pi_gp_stream_layers(p, l, end, err));
    } else if (!y->has_attn && y->n_hot == 0) { /* nothing of it is on the GPU */
        PI_TRY(solo(p, PI_OP_FFN, l, err));     /* calls the observer */
        PI_TRY(solo(p, PI_OP_MERGE, l, err));
        *next = end;
        return PI_OK;
    } else {
        PI_TRY(ffn_both(p, l, err));
    }
    PI_TRY(observe(p, l, err));
    *next = end;
out:
    return rc;
}

static enum pi_code output(struct pi_gpu_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (p->n_rows == 0)
        return PI_OK;
    if (p->dm->output.data != NULL)
        return pi_gp_output(p, err);
    PI_TRY(pi_gp_to_host(p, err));
    PI_TRY(solo(p, PI_OP_OUT_NORM, 0, err));
    PI_TRY(solo(p, PI_OP_OUTPUT, 0, err));
out:
    return rc;
}

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum pi_code pi_gpu_prompt_run(struct pi_gpu_prompt *p, struct pi_state *s, struct pi_err *err)
{
    const struct pi_state kept = *s;
    const double start = now();
    struct pi_err ignored;
    enum pi_code rc;

    /* what the CPU's operators read and write lies where the GPU can copy it */
    s->residual = p->h.residual;
    s->normed = p->h.normed;
    if (p->far_pieces != NULL) {
        s->q = p->h.q;
        s->attn = p->h.attn;
        s->k = p->h.k;
        s->v = p->h.v;
        s->tmp = p->h.tmp;
    }
    PI_TRY(begin(p, s, err));
    for (uint32_t l = 0; l < p->dm->n_layer;)
        PI_TRY(run_layers(p, l, &l, err));
    PI_TRY(output(p, err));
    PI_TRY(pi_gp_await_stream(p, p->stream, err));
    p->stats.chunks++;
    p->stats.tokens += p->n_tok;
    p->stats.seconds_total += now() - start;
out:
    if (rc != PI_OK) { /* nothing may be on its way when the caller goes on */
        (void)!pi_gp_await_stream(p, p->copy_stream, &ignored);
        (void)!pi_gp_await_stream(p, p->stream, &ignored);
    }
    s->residual = kept.residual;
    s->normed = kept.normed;
    s->q = kept.q;
    s->attn = kept.attn;
    s->k = kept.k;
    s->v = kept.v;
    s->tmp = kept.tmp;
    return rc;
}
