/* pi_engine_graph.c - an engine's modes, neuron tables, graphs and schedules. */
#include "config.h"

#include "runtime/pi_engine_int.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>

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

/* What the predictor reads was left on another unit than the one that would run it: hand-overs carry the feed-forward's input and the residual alone.
 * pl: of this layer; the placement's layers are one array. */
static bool input_is_elsewhere(const struct pi_engine *e, const struct pi_place_layer *pl,
                               uint32_t layer, enum pi_predictor_input input)
{
    bool attn_gpu = pl->attn_unit != PI_UNIT_CPU;

    (void)e;
    if (input == PI_PRED_IN_LAYER)
        return !attn_gpu && pl->n_hot > 0;
    if (input == PI_PRED_IN_PREV_ATTN)
        return layer == 0 || (pl[-1].attn_unit != PI_UNIT_CPU) != attn_gpu ||
               (!attn_gpu && pl->n_hot > 0);
    return false;
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
    if (e->opt.on_gpu && input_is_elsewhere(e, pl, layer, p->input))
        return PI_MODE_EXACT;
    if (e->opt.force_predicted)
        return PI_MODE_PREDICTED;
    if (pl != NULL) { /* the placement knows what is left on each unit and how fast its memory is */
        bool hot = pl->n_hot > 0 && pl->mode_gpu == PI_MODE_PREDICTED;
        bool cold = pl->n_hot < m->shape.n_ff && pl->mode_cpu == PI_MODE_PREDICTED;

        return hot || cold ? PI_MODE_PREDICTED : PI_MODE_EXACT;
    }
    return predictor_pays(&m->shape, &m->layers[layer], p) ? PI_MODE_PREDICTED : PI_MODE_EXACT;
}

enum pi_code pi_engine_resolve_modes(struct pi_engine *e, const struct pi_placement *place,
                                     bool *need_t, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    enum pi_code rc = PI_OK;

    *need_t = place != NULL;
    s->keep_input = s->m->shape.parallel;
    PI_ALLOC(s->mode, s->m->shape.n_layer, err);
    PI_ALLOC(s->work, s->m->shape.n_layer, err);
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

enum pi_code pi_engine_make_tables(struct pi_engine *e, const struct pi_placement *place,
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
            s->units[u].n_max = pi_max_u32(s->units[u].n_max, s->units[u].layers[l].n);
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
        pl->mode_cpu = e->opt.force_predicted ? PI_MODE_PREDICTED : place->layers[l].mode_cpu;
        pl->mode_gpu = e->opt.force_predicted ? PI_MODE_PREDICTED : place->layers[l].mode_gpu;
        if (pl->n_hot == 0) /* then there is no other unit's mode to differ from */
            pl->mode_cpu = e->s.mode[l];
    }
    if (place != NULL) {
        /* a GPU gets each token's row with the step's inputs */
        out->embd_unit = !e->opt.on_gpu && place->embd_unit != PI_UNIT_CPU;
        out->output_unit = place->output_unit != PI_UNIT_CPU;
    }
out:
    return rc;
}

/* Whose neurons are predicted is what the graph says. */
static void note_predicted(struct pi_engine *e)
{
    for (uint32_t i = 0; i < e->decode_graph.n_ops; i++) {
        const struct pi_op *op = &e->decode_graph.ops[i];

        if (op->kind == PI_OP_PREDICT)
            e->s.units[op->owner].layers[op->layer].predicted = true;
    }
}

enum pi_code pi_engine_make_schedules(struct pi_engine *e, const struct pi_placement *place,
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
    if (e->opt.on_gpu)
        PI_TRY(pi_engine_gpu_create(e, &decode, err));
out:
    free(decode.layers);
    free(prompt.layers);
    return rc;
}
