/*
 * pi_schedule.c - builds the graph of a step and compiles it into lists with slots.
 *
 * The residual lives where it was last written: attention's operators run on the layer's attention unit, the merge on the unit that
 * reads the residual next, so that a layer whose neighbours live elsewhere costs one more hand-over, not two.
 */
#include "config.h"

#include "common/pi_schedule.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>

/* Operators of one layer at most: 5 of attention and norms, a predictor and a block on each of two units, the merge. */
#define MAX_LAYER_OPS 10
#define OUTER_OPS     3
#define NO_OP         UINT32_MAX

static uint32_t add_op(struct pi_graph *g, enum pi_op_kind kind, uint32_t layer, uint32_t unit)
{
    struct pi_op *op = &g->ops[g->n_ops];

    op->kind = kind;
    op->layer = layer;
    op->unit = op->owner = (uint8_t)unit;
    op->n_deps = 0;
    return g->n_ops++;
}

static void add_dep(struct pi_graph *g, uint32_t op, uint32_t dep)
{
    struct pi_op *o = &g->ops[op];

    for (uint32_t i = 0; i < o->n_deps; i++) {
        if (o->deps[i] == dep)
            return;
    }
    if (dep != NO_OP)
        o->deps[o->n_deps++] = dep;
}

/* The predictor of owner's neurons, run by unit; from: the operator that makes its input. Returns what their block waits for:
 * from itself when they are not predicted. */
static uint32_t add_predict(struct pi_graph *g, uint32_t layer, uint32_t unit, uint32_t owner,
                            bool predicted, uint32_t from)
{
    uint32_t op;

    if (!predicted)
        return from;
    op = add_op(g, PI_OP_PREDICT, layer, unit);
    g->ops[op].owner = (uint8_t)owner;
    add_dep(g, op, from);
    return op;
}

static uint32_t add_ffn(struct pi_graph *g, uint32_t layer, uint32_t unit, uint32_t from)
{
    uint32_t op = add_op(g, PI_OP_FFN, layer, unit);

    add_dep(g, op, from);
    return op;
}

/* prev: the operator that wrote the residual; next_unit: where the residual is read next. Returns the merge. */
static uint32_t add_layer(struct pi_graph *g, const struct pi_place_layer *pl, uint32_t n_ff,
                          enum pi_mode mode, bool sparse, uint32_t layer, uint32_t prev,
                          uint32_t next_unit)
{
    static const enum pi_op_kind chain[] = {PI_OP_ATTN_NORM, PI_OP_QKV, PI_OP_ATTN, PI_OP_ATTN_OUT,
                                            PI_OP_FFN_NORM};
    uint32_t cold = NO_OP, hot = NO_OP, merge, last = prev;
    bool predicted = sparse && mode == PI_MODE_PREDICTED;

    for (size_t i = 0; i < sizeof(chain) / sizeof(chain[0]); i++) {
        uint32_t op = add_op(g, chain[i], layer, pl->attn_unit);

        add_dep(g, op, last);
        last = op;
    }
    /* what the other unit waits for goes first */
    if (pl->n_hot < n_ff)
        cold =
            add_predict(g, layer, pl->attn_unit, PI_UNIT_CPU,
                        predicted && (pl->n_hot == 0 || pl->mode_cpu == PI_MODE_PREDICTED), last);
    if (pl->n_hot > 0) {
        hot = add_predict(g, layer, pl->hot_unit, pl->hot_unit,
                          predicted && pl->mode_gpu == PI_MODE_PREDICTED, last);
        hot = add_ffn(g, layer, pl->hot_unit, hot);
    }
    if (pl->n_hot < n_ff)
        cold = add_ffn(g, layer, PI_UNIT_CPU, cold);
    merge = add_op(g, PI_OP_MERGE, layer, next_unit);
    add_dep(g, merge, last);
    add_dep(g, merge, cold);
    add_dep(g, merge, hot);
    return merge;
}

enum pi_code pi_graph_build(const struct pi_shape *shape, const struct pi_placement *place,
                            const enum pi_mode *mode, bool sparse, struct pi_graph *out,
                            struct pi_err *err)
{
    struct pi_graph g = {0};
    uint64_t n;
    uint32_t last, op;
    enum pi_code rc = PI_OK;

    if (place->n_layer != shape->n_layer || place->n_ff != shape->n_ff)
        PI_FAIL(err, PI_E_MISMATCH, "placement for %u layers of %u neurons, model has %u of %u",
                place->n_layer, place->n_ff, shape->n_layer, shape->n_ff);
    if (!pi_size_mul(shape->n_layer, MAX_LAYER_OPS, &n) || !pi_size_add(n, OUTER_OPS, &n) ||
        n >= NO_OP)
        PI_FAIL(err, PI_E_RANGE, "%u layers are too many for a graph", shape->n_layer);
    PI_ALLOC(g.ops, n, err);
    last = add_op(&g, PI_OP_EMBED, 0, place->embd_unit);
    for (uint32_t l = 0; l < shape->n_layer; l++) {
        uint32_t next =
            l + 1 < shape->n_layer ? place->layers[l + 1].attn_unit : place->output_unit;

        last = add_layer(&g, &place->layers[l], shape->n_ff, mode[l], sparse, l, last, next);
    }
    op = add_op(&g, PI_OP_OUT_NORM, 0, place->output_unit);
    add_dep(&g, op, last);
    last = op;
    op = add_op(&g, PI_OP_OUTPUT, 0, place->output_unit);
    add_dep(&g, op, last);
    *out = g;
out:
    if (rc != PI_OK)
        pi_graph_free(&g);
    return rc;
}

void pi_graph_free(struct pi_graph *g)
{
    free(g->ops);
    memset(g, 0, sizeof(*g));
}

static enum pi_code check_graph(const struct pi_graph *g, uint32_t n_units, struct pi_err *err)
{
    if (n_units == 0 || n_units > UINT8_MAX)
        return pi_err_set(err, PI_E_CORRUPT, "a schedule for %u units", n_units);
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const struct pi_op *op = &g->ops[i];

        if (op->unit >= n_units)
            return pi_err_set(err, PI_E_CORRUPT, "operator %u names unit %u of %u", i, op->unit,
                              n_units);
        if (op->n_deps > PI_OP_MAX_DEPS)
            return pi_err_set(err, PI_E_CORRUPT, "operator %u has %u dependencies", i, op->n_deps);
        for (uint32_t d = 0; d < op->n_deps; d++) {
            if (op->deps[d] >= i)
                return pi_err_set(
                    err, PI_E_CORRUPT,
                    "operator %u depends on operator %u, which does not come before it", i,
                    op->deps[d]);
        }
    }
    return PI_OK;
}

/* What compiling keeps beside the result. */
struct compile {
    const struct pi_graph *g;
    uint32_t n_units;
    uint32_t *slot; /* (n_ops) slot of each operator or PI_NO_SLOT */
    uint32_t *
        seen; /* (n_units consumers, n_units producers): operators of the producer known to be done, as index + 1 */
    struct pi_step_op **at; /* (n_ops) where each operator stands in its list */
};

/* Waits of operator i: per producing unit the latest operator needed, unless this unit has waited for it or a later
 * one already (a unit's list runs in order, so a slot says that all before it are done too). */
static void compile_waits(struct compile *c, uint32_t i, struct pi_step_op *so, uint32_t *n_slots)
{
    const struct pi_op *op = &c->g->ops[i];

    for (uint32_t u = 0; u < c->n_units; u++) {
        uint32_t *seen = &c->seen[op->unit * c->n_units + u], latest = 0;

        for (uint32_t d = 0; u != op->unit && d < op->n_deps; d++) {
            if (c->g->ops[op->deps[d]].unit == u && op->deps[d] + 1 > latest)
                latest = op->deps[d] + 1;
        }
        if (latest <= *seen)
            continue;
        *seen = latest;
        if (c->slot[latest - 1] == PI_NO_SLOT) {
            c->slot[latest - 1] = (*n_slots)++;
            c->at[latest - 1]->post = c->slot[latest - 1];
        }
        so->waits[so->n_waits++] = c->slot[latest - 1];
    }
}

static enum pi_code alloc_lists(const struct pi_graph *g, struct pi_schedule *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (uint32_t u = 0; u < s->n_units; u++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < g->n_ops; i++)
            n += g->ops[i].unit == u;
        PI_ALLOC(s->units[u].ops, n, err);
    }
out:
    return rc;
}

enum pi_code pi_schedule_compile(const struct pi_graph *g, uint32_t n_units,
                                 struct pi_schedule *out, struct pi_err *err)
{
    struct pi_schedule s = {0};
    struct compile c = {.g = g, .n_units = n_units};
    enum pi_code rc;

    PI_TRY(check_graph(g, n_units, err));
    PI_ALLOC(c.slot, g->n_ops, err);
    PI_ALLOC(c.at, g->n_ops, err);
    PI_ALLOC(c.seen, (size_t)n_units * n_units, err);
    PI_ALLOC(s.units, n_units, err);
    s.n_units = n_units;
    PI_TRY(alloc_lists(g, &s, err));
    for (uint32_t i = 0; i < g->n_ops; i++) {
        struct pi_unit_list *list = &s.units[g->ops[i].unit];
        struct pi_step_op *so = &list->ops[list->n++];

        so->op = i;
        so->post = PI_NO_SLOT;
        c.at[i] = so;
        c.slot[i] = PI_NO_SLOT;
        compile_waits(&c, i, so, &s.n_slots);
    }
    *out = s;
out:
    if (rc != PI_OK)
        pi_schedule_free(&s);
    free(c.slot);
    free(c.at);
    free(c.seen);
    return rc;
}

void pi_schedule_free(struct pi_schedule *s)
{
    for (uint32_t u = 0; s->units != NULL && u < s->n_units; u++)
        free(s->units[u].ops);
    free(s->units);
    memset(s, 0, sizeof(*s));
}

uint32_t pi_schedule_crossings(const struct pi_graph *g, const struct pi_schedule *s,
                               uint32_t layer)
{
    uint32_t n = 0;

    for (uint32_t u = 0; u < s->n_units; u++) {
        for (uint32_t i = 0; i < s->units[u].n; i++) {
            const struct pi_step_op *so = &s->units[u].ops[i];
            const struct pi_op *op = &g->ops[so->op];
            bool outer =
                op->kind == PI_OP_EMBED || op->kind == PI_OP_OUT_NORM || op->kind == PI_OP_OUTPUT;

            n += so->post != PI_NO_SLOT && !outer && op->layer == layer;
        }
    }
    return n;
}
