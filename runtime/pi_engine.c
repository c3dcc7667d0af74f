/*
 * pi_engine.c - what an engine is made of, and the bookkeeping of its steps. The arithmetic is in pi_ops*.c, the order of operators in
 * common/pi_schedule.c, the walk in pi_exec_cpu.c.
 */
#include "config.h"

#include "runtime/pi_engine.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_ops.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_BATCH 512

struct pi_engine {
    struct pi_engine_options opt;
    struct pi_state s;
    uint32_t n_batch;
    struct pi_graph decode_graph, prompt_graph;
    struct pi_schedule decode, prompt;
    struct pi_exec exec, prompt_exec;
    struct pi_trace *trace;
    uint32_t *tables; /* (n_layer, n_ff): hot ids ascending, then cold ids ascending */
    void **scratch;   /* (n_scratch) everything of the memory plan */
    size_t n_scratch;
};

/* ---- modes ---- */

/* A layer runs predicted where that reads fewer bytes per token. Up and down rows of the truly active neurons are read either way, so the
 * predictor must cost less than the gate rows it saves. */
static bool predictor_pays(const struct pi_shape *sh, const struct pi_layer_weights *w,
                           const struct pi_predictor_layer *p)
{
    double row = (double)(sh->gated ? w->gate.row_bytes : w->up.row_bytes);
    double cost = (double)p->fc1.row_bytes * p->width + (double)p->fc2.row_bytes * sh->n_ff +
                  (p->bias != NULL ? 4.0 * sh->n_ff : 0.0);

    return cost + (double)p->density * sh->n_ff * row < row * sh->n_ff;
}

static enum pi_mode choose_mode(const struct pi_engine *e, const struct pi_place_layer *pl,
                                uint32_t layer)
{
    const struct pi_model *m = e->s.m;
    const struct pi_predictor_layer *p = e->s.pred != NULL ? &e->s.pred->layers[layer] : NULL;

    if (e->opt.mode == PI_MODE_DENSE || !pi_activation_has_zeros(m->shape.act))
        return PI_MODE_DENSE;
    if (e->opt.mode == PI_MODE_EXACT || p == NULL || p->width == 0)
        return PI_MODE_EXACT;
    if (p->input == PI_PRED_IN_PREV_ATTN && layer == 0)
        return PI_MODE_EXACT;
    if (e->opt.force_predicted)
        return PI_MODE_PREDICTED;
    if (pl != NULL) /* the placement knows how many neurons are left here and how fast memory is */
        return pl->mode_cpu == PI_MODE_PREDICTED ? PI_MODE_PREDICTED : PI_MODE_EXACT;
    return predictor_pays(&m->shape, &m->layers[layer], p) ? PI_MODE_PREDICTED : PI_MODE_EXACT;
}

static enum pi_code check_predictor(const struct pi_model *m, const struct pi_predictor *p,
                                    const struct pi_cpu *cpu, struct pi_err *err)
{
    const struct pi_shape *sh = &m->shape;

    if (p->n_layer != sh->n_layer || p->n_ff != sh->n_ff || p->n_embd != sh->n_embd)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "predictor is for %u layers, %u neurons, width %u; the model has %u, %u, %u",
            p->n_layer, p->n_ff, p->n_embd, sh->n_layer, sh->n_ff, sh->n_embd);
    for (uint32_t l = 0; l < p->n_layer; l++) {
        const struct pi_predictor_layer *pl = &p->layers[l];

        if (pl->width == 0)
            continue;
        if (pl->fc1.n_rows != pl->width || pl->fc1.n_cols != sh->n_embd ||
            pl->fc2.n_rows != sh->n_ff || pl->fc2.n_cols != pl->width || pl->fc1.data == NULL ||
            pl->fc2.data == NULL)
            return pi_err_set(
                err, PI_E_MISMATCH,
                "predictor of layer %u has matrices of other shapes than its width %u", l,
                pl->width);
        if (cpu->type[pl->fc1.type] == NULL || cpu->type[pl->fc2.type] == NULL)
            return pi_err_set(err, PI_E_UNSUPPORTED,
                              "predictor of layer %u has types %s and %s, which no kernel reads", l,
                              pi_type_name(pl->fc1.type), pi_type_name(pl->fc2.type));
        if ((unsigned)pl->input > PI_PRED_IN_PREV_ATTN)
            return pi_err_set(err, PI_E_MISMATCH,
                              "predictor of layer %u reads input %d, which is unknown", l,
                              (int)pl->input);
    }
    return PI_OK;
}

/* ---- memory plan ---- */

/* One array to come: everything is summed up and compared with the machine's memory before the first is allocated. */
struct need {
    void *slot; /* points to the pointer to set */
    uint64_t n, m, size;
};

struct plan {
    struct need *needs; /* (cap) */
    size_t n, cap;
    uint64_t bytes;
};

static enum pi_code plan_add(struct plan *p, void *slot, uint64_t n, uint64_t m, uint64_t size,
                             struct pi_err *err)
{
    uint64_t bytes;
    enum pi_code rc = pi_grow_array(&p->needs, &p->cap, p->n + 1, sizeof(*p->needs), err);

    if (rc != PI_OK)
        return rc;
    if (!pi_size_mul(n, m, &bytes) || !pi_size_mul(bytes, size, &bytes) ||
        !pi_size_pad(bytes, 64, &bytes) || !pi_size_add(p->bytes, bytes, &p->bytes))
        return pi_err_set(err, PI_E_NOMEM,
                          "scratch buffers of %llu x %llu elements overflow memory",
                          (unsigned long long)n, (unsigned long long)m);
    p->needs[p->n++] = (struct need){slot, n, m, size};
    return PI_OK;
}

static enum pi_code check_memory(uint64_t scratch, uint64_t kv, struct pi_err *err)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t have = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX, sum;

    if (!pi_size_add(scratch, kv, &sum) || sum > have)
        return pi_err_set(
            err, PI_E_NOMEM,
            "the KV cache needs %llu MiB and buffers %llu MiB, the machine has %llu MiB: use a smaller context (-c)",
            (unsigned long long)(kv >> 20), (unsigned long long)(scratch >> 20),
            (unsigned long long)(have >> 20));
    return PI_OK;
}

static enum pi_code plan_allocate(struct pi_engine *e, const struct plan *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_ALLOC(e->scratch, p->n, err);
    for (size_t i = 0; i < p->n; i++) {
        void *block;

        block = pi_calloc_aligned(p->needs[i].n * p->needs[i].m, p->needs[i].size, err);
        if (block == NULL) {
            pi_err_wrap(err, "buffers of %llu MiB for %u tokens a chunk",
                        (unsigned long long)(p->bytes >> 20), e->n_batch);
            return PI_E_NOMEM;
        }
        e->scratch[e->n_scratch++] = block;
        memcpy(p->needs[i].slot, &block, sizeof(block));
    }
out:
    return rc;
}

static uint32_t widest(const struct pi_predictor *p)
{
    uint32_t r = 1;

    for (uint32_t l = 0; p != NULL && l < p->n_layer; l++)
        r = p->layers[l].width > r ? p->layers[l].width : r;
    return r;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static enum pi_code plan_shared(struct pi_engine *e, struct plan *p, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const struct pi_shape *sh = &s->m->shape;
    uint64_t d = sh->n_embd, n = max_u32(e->n_batch, s->n_dec);
    uint64_t n_q = (uint64_t)sh->n_head * sh->head_dim,
             n_kv = (uint64_t)sh->n_head_kv * sh->head_dim, f = sizeof(float);
    enum pi_code rc;

    PI_TRY(plan_add(p, &s->iota, 1, max_u32(sh->n_ff, s->kv.n_ctx), sizeof(*s->iota), err));
    PI_TRY(plan_add(p, &s->residual, n, d, f, err));
    PI_TRY(plan_add(p, &s->q, n, n_q, f, err));
    PI_TRY(plan_add(p, &s->attn, n, n_q, f, err));
    PI_TRY(plan_add(p, &s->rotation, n, sh->n_rot, f, err));
    PI_TRY(plan_add(p, &s->normed, e->n_batch, d, f, err));
    PI_TRY(plan_add(p, &s->tmp, e->n_batch, d, f, err));
    PI_TRY(plan_add(p, &s->k, e->n_batch, n_kv, f, err));
    PI_TRY(plan_add(p, &s->v, e->n_batch, n_kv, f, err));
    PI_TRY(plan_add(p, &s->h, e->n_batch, sh->n_ff, f, err));
    if (sh->gated)
        PI_TRY(plan_add(p, &s->prod, e->n_batch, sh->n_ff, f, err));
    PI_TRY(plan_add(p, &s->down_tile, PI_DOWN_TILE, d, f, err));
    if (s->keep_input)
        PI_TRY(plan_add(p, &s->layer_input, s->n_dec, d, f, err));
    for (int i = 0; s->keep_prev && i < 2; i++)
        PI_TRY(plan_add(p, &s->prev_attn[i], s->n_dec, d, f, err));
out:
    return rc;
}

static enum pi_code plan_units(struct pi_engine *e, struct plan *p, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    uint64_t d = s->m->shape.n_embd;
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < s->n_units; i++) {
        struct pi_unit *u = &s->units[i];

        PI_TRY(plan_add(p, &u->cand, s->n_dec, u->n_max, sizeof(*u->cand), err));
        PI_TRY(plan_add(p, &u->act, s->n_dec, u->n_max, sizeof(*u->act), err));
        PI_TRY(plan_add(p, &u->gate, s->n_dec, u->n_max, sizeof(*u->gate), err));
        PI_TRY(plan_add(p, &u->prod, s->n_dec, u->n_max, sizeof(*u->prod), err));
        PI_TRY(plan_add(p, &u->n_cand, s->n_lanes, PI_COUNT_STRIDE, sizeof(*u->n_cand), err));
        PI_TRY(plan_add(p, &u->n_act, s->n_lanes, PI_COUNT_STRIDE, sizeof(*u->n_act), err));
        PI_TRY(plan_add(p, &u->hidden, s->n_dec, widest(s->pred), sizeof(*u->hidden), err));
        PI_TRY(plan_add(p, &u->partial, s->n_dec, d, sizeof(*u->partial), err));
    }
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        struct pi_lane *lane = &s->lanes[i];

        PI_TRY(plan_add(p, &lane->normed, s->n_dec, d, sizeof(*lane->normed), err));
        PI_TRY(plan_add(p, &lane->scores, 1, s->kv.n_ctx, sizeof(*lane->scores), err));
        PI_TRY(plan_add(p, &lane->head, 1, s->m->shape.head_dim, sizeof(*lane->head), err));
        PI_TRY(plan_add(p, &lane->ids, 1, s->m->shape.n_ff, sizeof(*lane->ids), err));
        PI_TRY(plan_add(p, &lane->a, 1, s->m->shape.n_ff, sizeof(*lane->a), err));
    }
out:
    return rc;
}

static enum pi_code allocate_state(struct pi_engine *e, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const struct pi_shape *sh = &s->m->shape;
    struct plan p = {0};
    uint32_t n_kv = sh->n_head_kv * sh->head_dim;
    uint64_t kv_bytes;
    enum pi_code rc;

    s->kv.n_ctx = e->opt.n_ctx;
    PI_TRY(plan_shared(e, &p, err));
    PI_TRY(plan_units(e, &p, err));
    PI_TRY(
        pi_kv_bytes(e->opt.kv_type, sh->n_layer, e->opt.n_seq, e->opt.n_ctx, n_kv, &kv_bytes, err));
    PI_TRY(check_memory(p.bytes, kv_bytes, err));
    PI_TRY(pi_kv_init(&s->kv, e->opt.kv_type, sh->n_layer, e->opt.n_seq, e->opt.n_ctx, n_kv, err));
    PI_TRY(plan_allocate(e, &p, err));
    for (uint32_t i = 0; i < max_u32(sh->n_ff, e->opt.n_ctx); i++)
        s->iota[i] = i;
    if (!sh->gated)
        s->prod = s->h;
out:
    free(p.needs);
    return rc;
}

/* ---- neuron tables ---- */

/* Splits a layer: hot ids and cold ids, each ascending so that rows are read in memory order. Disjoint and complete because every neuron is
 * looked at once; PI_E_CORRUPT when the hot part of the order names one twice or none. mark: (n_ff) scratch. */
static enum pi_code split_layer(struct pi_engine *e, const struct pi_place_layer *pl,
                                uint32_t layer, uint8_t *mark, struct pi_err *err)
{
    uint32_t n_ff = e->s.m->shape.n_ff, n_hot = 0, n_cold;
    uint32_t *hot = e->tables + (size_t)layer * n_ff, *cold = hot + pl->n_hot;

    if (pl->n_hot > n_ff)
        return pi_err_set(err, PI_E_CORRUPT, "placement: layer %u has %u hot neurons of %u", layer,
                          pl->n_hot, n_ff);
    memset(mark, 0, n_ff);
    for (uint32_t i = 0; i < pl->n_hot; i++) {
        uint32_t id = pl->order[i];

        if (id >= n_ff || mark[id])
            return pi_err_set(err, PI_E_CORRUPT, "placement: layer %u names neuron %u %s", layer,
                              id, id >= n_ff ? "of too few" : "twice");
        mark[id] = 1;
    }
    n_cold = 0;
    for (uint32_t id = 0; id < n_ff; id++) {
        if (mark[id])
            hot[n_hot++] = id;
        else
            cold[n_cold++] = id;
    }
    e->s.units[0].layers[layer].n = n_cold;
    e->s.units[0].layers[layer].ids = n_hot > 0 ? cold : NULL;
    e->s.units[1].layers[layer].n = n_hot;
    e->s.units[1].layers[layer].ids = n_cold > 0 ? hot : NULL;
    return PI_OK;
}

static enum pi_code make_tables(struct pi_engine *e, const struct pi_placement *place,
                                struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const struct pi_shape *sh = &s->m->shape;
    uint8_t *mark = NULL;
    uint64_t n;
    enum pi_code rc = PI_OK;

    for (uint32_t u = 0; u < s->n_units; u++) {
        PI_ALLOC(s->units[u].layers, sh->n_layer, err);
        for (uint32_t l = 0; l < sh->n_layer; l++)
            s->units[u].layers[l].n = u == 0 ? sh->n_ff : 0;
    }
    if (place != NULL) {
        if (!pi_size_mul(sh->n_layer, sh->n_ff, &n))
            PI_FAIL(err, PI_E_RANGE, "neuron tables overflow");
        PI_ALLOC(e->tables, n, err);
        PI_ALLOC(mark, sh->n_ff, err);
        for (uint32_t l = 0; l < sh->n_layer; l++)
            PI_TRY(split_layer(e, &place->layers[l], l, mark, err));
    }
    for (uint32_t u = 0; u < s->n_units; u++) {
        s->units[u].n_max = 1;
        for (uint32_t l = 0; l < sh->n_layer; l++)
            s->units[u].n_max = max_u32(s->units[u].n_max, s->units[u].layers[l].n);
    }
out:
    free(mark);
    return rc;
}

/* ---- graphs ---- */

/* The placement that the decode graph is built from: the caller's, with everything that is not the CPU folded into unit 1. */
static enum pi_code decode_placement(const struct pi_engine *e, const struct pi_placement *place,
                                     struct pi_placement *out, struct pi_err *err)
{
    const struct pi_shape *sh = &e->s.m->shape;
    enum pi_code rc;

    memset(out, 0, sizeof(*out));
    out->n_layer = sh->n_layer;
    out->n_ff = sh->n_ff;
    out->n_units = e->s.n_units;
    PI_ALLOC(out->layers, sh->n_layer, err);
    rc = PI_OK;
    for (uint32_t l = 0; l < sh->n_layer; l++) {
        struct pi_place_layer *pl = &out->layers[l];

        pl->mode_cpu = e->s.mode[l];
        if (place == NULL)
            continue;
        pl->n_hot = place->layers[l].n_hot;
        pl->hot_unit = 1;
        pl->attn_unit = place->layers[l].attn_unit != PI_UNIT_CPU;
        pl->mode_gpu = e->opt.force_predicted ? PI_MODE_PREDICTED : place->layers[l].mode_gpu;
    }
    if (place != NULL) {
        out->embd_unit = place->embd_unit != PI_UNIT_CPU;
        out->output_unit = place->output_unit != PI_UNIT_CPU;
    }
out:
    return rc;
}

/* Which unit runs a predictor is what the graph says. */
static void note_predicted(struct pi_engine *e)
{
    for (uint32_t i = 0; i < e->decode_graph.n_ops; i++) {
        const struct pi_op *op = &e->decode_graph.ops[i];

        if (op->kind == PI_OP_PREDICT)
            e->s.units[op->unit].layers[op->layer].predicted = true;
    }
}

static enum pi_code make_schedules(struct pi_engine *e, const struct pi_placement *place,
                                   struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const struct pi_shape *sh = &s->m->shape;
    struct pi_placement decode = {0}, prompt = {0};
    enum pi_code rc;

    PI_TRY(decode_placement(e, place, &decode, err));
    PI_TRY(decode_placement(e, NULL, &prompt, err));
    PI_TRY(pi_graph_build(sh, &decode, s->mode, true, &e->decode_graph, err));
    PI_TRY(pi_graph_build(sh, &prompt, s->mode, false, &e->prompt_graph, err));
    PI_TRY(pi_schedule_compile(&e->decode_graph, s->n_units, &e->decode, err));
    PI_TRY(pi_schedule_compile(&e->prompt_graph, 1, &e->prompt, err));
    PI_TRY(pi_exec_init(&e->exec, s->pool, &e->decode, err));
    PI_TRY(pi_exec_init(&e->prompt_exec, s->pool, &e->prompt, err));
    note_predicted(e);
out:
    free(decode.layers);
    free(prompt.layers);
    return rc;
}

/* ---- create ---- */

static enum pi_code check_options(const struct pi_model *m, const struct pi_predictor *pred,
                                  const struct pi_placement *place,
                                  const struct pi_engine_options *opt, struct pi_err *err)
{
    const struct pi_shape *sh = &m->shape;

    if (opt->n_ctx == 0 || opt->n_ctx > INT32_MAX || opt->n_seq == 0)
        return pi_err_set(err, PI_E_RANGE, "a context of %u positions in %u sequences", opt->n_ctx,
                          opt->n_seq);
    if (sh->learned_pos && opt->n_ctx > sh->n_ctx_train)
        return pi_err_set(err, PI_E_RANGE,
                          "a context of %u positions, the model's position table holds %u",
                          opt->n_ctx, sh->n_ctx_train);
    if (opt->kv_type != PI_TYPE_F16 && opt->kv_type != PI_TYPE_F32)
        return pi_err_set(err, PI_E_RANGE, "KV cache of type %s, only F16 and F32 are there",
                          pi_type_name(opt->kv_type));
    if (opt->mode == PI_MODE_PREDICTED && pred == NULL)
        return pi_err_set(err, PI_E_MISMATCH,
                          "mode predicted needs a predictor: make one with pi-train-predictor %s",
                          m->file.map.path);
    if (place != NULL && (place->n_layer != sh->n_layer || place->n_ff != sh->n_ff))
        return pi_err_set(err, PI_E_MISMATCH,
                          "placement is for %u layers of %u neurons, the model has %u of %u",
                          place->n_layer, place->n_ff, sh->n_layer, sh->n_ff);
    if (opt->two_units && place == NULL)
        return pi_err_set(err, PI_E_MISMATCH,
                          "two units need a placement: make one with pi-place %s",
                          m->file.map.path);
    return PI_OK;
}

static enum pi_code resolve_modes(struct pi_engine *e, const struct pi_placement *place,
                                  bool *need_t, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    enum pi_code rc = PI_OK;

    *need_t = place != NULL;
    PI_ALLOC(s->mode, s->m->shape.n_layer, err);
    for (uint32_t l = 0; l < s->m->shape.n_layer; l++) {
        s->mode[l] = choose_mode(e, place != NULL ? &place->layers[l] : NULL, l);
        *need_t = *need_t || s->mode[l] != PI_MODE_DENSE;
        if (s->mode[l] == PI_MODE_PREDICTED) {
            s->keep_input = s->keep_input || s->pred->layers[l].input == PI_PRED_IN_LAYER;
            s->keep_prev = s->keep_prev || s->pred->layers[l].input == PI_PRED_IN_PREV_ATTN;
        }
    }
out:
    return rc;
}

enum pi_code pi_engine_create(struct pi_model *model, const struct pi_predictor *pred,
                              const struct pi_placement *place, struct pi_pool *pool,
                              const struct pi_engine_options *opt, struct pi_engine **out,
                              struct pi_err *err)
{
    const struct pi_placement *split = opt->two_units ? place : NULL;
    struct pi_engine *e = NULL;
    bool need_t;
    uint64_t copied;
    enum pi_code rc;

    PI_TRY(check_options(model, pred, place, opt, err));
    PI_TRY(pi_blas_init(err));
    PI_ALLOC(e, 1, err);
    e->opt = *opt;
    e->n_batch = opt->n_batch == 0 ? DEFAULT_BATCH : opt->n_batch;
    if (e->n_batch > opt->n_ctx)
        e->n_batch = opt->n_ctx;
    e->s.m = model;
    e->s.pred = pred;
    e->s.pool = pool;
    e->s.n_units = split != NULL ? 2 : 1;
    e->s.n_lanes = pi_pool_size(pool);
    e->s.n_dec = opt->n_seq < 4 ? 4 : opt->n_seq < PI_DECODE_TOKENS ? opt->n_seq : PI_DECODE_TOKENS;
    PI_TRY(pi_cpu_select(&e->s.cpu, err));
    if (pred != NULL)
        PI_TRY(check_predictor(model, pred, e->s.cpu, err));
    PI_TRY(resolve_modes(e, split, &need_t, err));
    if (need_t)
        PI_TRY(pi_model_transpose_down(model, &copied, err));
    PI_TRY(make_tables(e, split, err));
    PI_ALLOC(e->s.lanes, e->s.n_lanes, err);
    PI_TRY(allocate_state(e, err));
    PI_TRY(make_schedules(e, split, err));
    *out = e;
    e = NULL;
out:
    pi_engine_destroy(e);
    return rc;
}

void pi_engine_destroy(struct pi_engine *e)
{
    if (e == NULL)
        return;
    for (size_t i = 0; i < e->n_scratch; i++)
        free(e->scratch[i]);
    free(e->scratch);
    for (uint32_t u = 0; u < PI_CPU_UNITS; u++)
        free(e->s.units[u].layers);
    free(e->s.lanes);
    free(e->s.mode);
    free(e->s.traced);
    free(e->s.truth);
    free(e->tables);
    pi_kv_free(&e->s.kv);
    pi_exec_free(&e->exec);
    pi_exec_free(&e->prompt_exec);
    pi_schedule_free(&e->decode);
    pi_schedule_free(&e->prompt);
    pi_graph_free(&e->decode_graph);
    pi_graph_free(&e->prompt_graph);
    free(e);
}

enum pi_mode pi_engine_layer_mode(const struct pi_engine *e, uint32_t layer)
{
    return e->s.mode[layer];
}

/* ---- run ---- */

/* Everything a batch may get wrong, before anything is written. Lengths are played through on a copy. len: (n_seq) scratch. */
static enum pi_code check_batch(const struct pi_engine *e, const struct pi_batch *b, int32_t *len,
                                struct pi_err *err)
{
    const struct pi_state *s = &e->s;

    memcpy(len, s->kv.len, s->kv.n_seq * sizeof(*len));
    for (uint32_t t = 0; t < b->n_tok; t++) {
        uint32_t seq = b->seq != NULL ? b->seq[t] : 0;

        if (b->token[t] < 0 || (uint32_t)b->token[t] >= s->m->shape.n_vocab)
            return pi_err_set(err, PI_E_RANGE, "token %d is outside the vocabulary of %u",
                              b->token[t], s->m->shape.n_vocab);
        if (seq >= s->kv.n_seq)
            return pi_err_set(err, PI_E_RANGE, "sequence %u of %u", seq, s->kv.n_seq);
        if (b->pos[t] >= 0 && (uint32_t)b->pos[t] >= s->kv.n_ctx)
            return pi_err_set(err, PI_E_RANGE, "context full: position %d, the context holds %u",
                              b->pos[t], s->kv.n_ctx);
        if (b->pos[t] < 0 || b->pos[t] > len[seq])
            return pi_err_set(err, PI_E_RANGE, "position %d of sequence %u, whose next is %d",
                              b->pos[t], seq, len[seq]);
        len[seq] = b->pos[t] + 1;
    }
    return PI_OK;
}

static enum pi_code begin_trace(struct pi_engine *e, enum pi_phase phase, const struct pi_batch *b,
                                struct pi_err *err)
{
    const struct pi_shape *sh = &e->s.m->shape;
    size_t n = (size_t)sh->n_layer * sh->n_ff;
    enum pi_code rc = PI_OK;

    if (e->trace == NULL || phase != PI_PHASE_DECODE)
        return PI_OK;
    if (b->n_tok != 1)
        PI_FAIL(err, PI_E_RANGE, "a traced step of %u tokens, traces are of one", b->n_tok);
    if (e->trace->mask_bytes != (sh->n_ff + 7u) / 8u)
        PI_FAIL(err, PI_E_RANGE, "trace masks of %zu bytes for %u neurons", e->trace->mask_bytes,
                sh->n_ff);
    if (e->s.truth == NULL) {
        PI_ALLOC(e->s.traced, n, err);
        e->s.truth = pi_calloc_array(n, 1, err);
        rc = e->s.truth == NULL ? PI_E_NOMEM : PI_OK;
    }
out:
    return rc;
}

static void end_trace(struct pi_engine *e)
{
    const struct pi_shape *sh = &e->s.m->shape;
    size_t n = e->trace->mask_bytes * sh->n_layer;

    memset(e->trace->predicted, 0, n);
    memset(e->trace->truth, 0, n);
    for (uint32_t l = 0; l < sh->n_layer; l++) {
        for (uint32_t i = 0; i < sh->n_ff; i++) {
            size_t at = (size_t)l * sh->n_ff + i, byte = l * e->trace->mask_bytes + i / 8;

            e->trace->predicted[byte] |= (uint8_t)(e->s.traced[at] << i % 8);
            e->trace->truth[byte] |= (uint8_t)(e->s.truth[at] << i % 8);
        }
    }
}

static enum pi_code run_piece(struct pi_engine *e, enum pi_phase phase, const struct pi_batch *b,
                              uint32_t first, uint32_t n, float *logits, struct pi_err *err)
{
    struct pi_state *s = &e->s;

    s->n_tok = n;
    s->token = b->token + first;
    s->pos = b->pos + first;
    s->seq = b->seq != NULL ? b->seq + first : NULL;
    s->want = b->want != NULL ? b->want + first : NULL;
    s->logits = logits;
    if (phase == PI_PHASE_DECODE)
        return pi_exec_team(&e->exec, &e->decode_graph, &e->decode, pi_team_ops, s, n, err);
    return pi_exec_solo(&e->prompt_exec, &e->prompt_graph, &e->prompt, pi_solo_ops, s, n, err);
}

enum pi_code pi_engine_run(struct pi_engine *e, enum pi_phase phase, const struct pi_batch *batch,
                           float *logits_out, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    uint32_t most = phase == PI_PHASE_DECODE ? s->n_dec : e->n_batch;
    int32_t *len = NULL;
    enum pi_code rc;

    PI_ALLOC(len, s->kv.n_seq, err);
    PI_TRY(check_batch(e, batch, len, err));
    PI_TRY(begin_trace(e, phase, batch, err));
    for (uint32_t t = 0; t < batch->n_tok;) {
        uint32_t n = batch->n_tok - t < most ? batch->n_tok - t : most;

        PI_TRY(run_piece(e, phase, batch, t, n, logits_out, err));
        for (uint32_t i = 0; i < n; i++) {
            s->kv.len[pi_state_seq(s, i)] = s->pos[i] + 1;
            if (logits_out != NULL && pi_state_wants(s, i))
                logits_out += s->m->shape.n_vocab;
        }
        t += n;
    }
    if (e->trace != NULL && phase == PI_PHASE_DECODE)
        end_trace(e);
out:
    free(len);
    return rc;
}

void pi_engine_truncate(struct pi_engine *e, uint32_t seq, int32_t pos)
{
    if (seq < e->s.kv.n_seq && pos < e->s.kv.len[seq])
        e->s.kv.len[seq] = pos < 0 ? 0 : pos;
}

void pi_engine_observe(struct pi_engine *e, const struct pi_observer *obs)
{
    e->s.obs = obs;
}

void pi_engine_trace(struct pi_engine *e, struct pi_trace *trace)
{
    e->trace = trace;
    if (trace == NULL) {
        free(e->s.traced);
        free(e->s.truth);
        e->s.traced = NULL;
        e->s.truth = NULL;
    }
}

void pi_engine_take_stats(struct pi_engine *e, struct pi_engine_stats *out)
{
    *out = e->s.stats;
    memset(&e->s.stats, 0, sizeof(e->s.stats));
}
