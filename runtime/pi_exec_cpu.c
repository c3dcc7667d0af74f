/* pi_exec_cpu.c - walks the lists of a schedule. */
#include "config.h"

#include "runtime/pi_exec_cpu.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <stdlib.h>
#include <string.h>

#define MAX_UNITS 16

/* One walker's place in all lists. */
struct walk {
    uint32_t at[MAX_UNITS];
    uint32_t unit; /* whose turn it is */
};

enum pi_code pi_exec_init(struct pi_exec *x, struct pi_pool *pool, const struct pi_schedule *s,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    memset(x, 0, sizeof(*x));
    if (s->n_units > MAX_UNITS)
        PI_FAIL(err, PI_E_RANGE, "a schedule of %u units, at most %u run on one pool", s->n_units,
                MAX_UNITS);
    x->pool = pool;
    x->n_slots = s->n_slots;
    PI_ALLOC(x->slots, s->n_slots, err);
out:
    return rc;
}

void pi_exec_free(struct pi_exec *x)
{
    free(x->slots);
    memset(x, 0, sizeof(*x));
}

static bool ready(const struct pi_exec *x, const struct pi_step_op *so)
{
    for (uint32_t i = 0; i < so->n_waits; i++) {
        if (atomic_load_explicit(&x->slots[so->waits[i]], memory_order_acquire) != x->epoch)
            return false;
    }
    return true;
}

/* The next operator in turn over the units, or NULL: all lists are done (*stuck false) or none can go on. */
static const struct pi_step_op *next_op(const struct pi_exec *x, const struct pi_schedule *s,
                                        struct walk *w, bool *stuck)
{
    *stuck = false;
    for (uint32_t i = 0; i < s->n_units; i++) {
        uint32_t u = (w->unit + i) % s->n_units;
        const struct pi_unit_list *list = &s->units[u];

        if (w->at[u] == list->n)
            continue;
        if (ready(x, &list->ops[w->at[u]])) {
            w->unit = (u + 1) % s->n_units;
            return &list->ops[w->at[u]++];
        }
        *stuck = true;
    }
    return NULL;
}

static void post(struct pi_exec *x, const struct pi_step_op *so)
{
    if (so->post != PI_NO_SLOT)
        atomic_store_explicit(&x->slots[so->post], x->epoch, memory_order_release);
}

static enum pi_code deadlock(const struct pi_exec *x, struct pi_err *err)
{
    return pi_err_set(err, PI_E_SELFCHECK,
                      "step %llu: the schedule can not go on, every unit waits for another",
                      (unsigned long long)x->epoch);
}

struct team {
    struct pi_exec *x;
    const struct pi_graph *g;
    const struct pi_schedule *s;
    const struct pi_team_op *table;
    void *ctx;
    uint32_t n_tok;
    bool stuck; /* written by thread 0 */
};

/* All threads take the same decisions: a slot is posted by each thread itself after the operator's barrier (the same value
 * by all), and none gets past the next barrier before all have decided. An operator that posts therefore always joins. */
static void team_main(void *arg, uint32_t thread, uint32_t n_threads)
{
    struct team *t = arg;
    struct walk w = {0};
    const struct pi_step_op *so;
    double *spent = thread == 0 ? t->x->spent : NULL, mark = spent != NULL ? pi_now() : 0.0;
    bool stuck;

    while ((so = next_op(t->x, t->s, &w, &stuck)) != NULL) {
        const struct pi_op *op = &t->g->ops[so->op];
        const struct pi_team_op *impl = &t->table[op->kind];

        impl->fn(t->ctx, op, t->n_tok, thread, n_threads);
        if (n_threads > 1 && (impl->joins || so->post != PI_NO_SLOT))
            pi_pool_barrier(t->x->pool, thread);
        post(t->x, so);
        if (spent != NULL) {
            double now = pi_now();

            spent[op->kind] += now - mark;
            mark = now;
        }
    }
    if (thread == 0)
        t->stuck = stuck;
}

enum pi_code pi_exec_team(struct pi_exec *x, const struct pi_graph *g, const struct pi_schedule *s,
                          const struct pi_team_op *table, void *ctx, uint32_t n_tok,
                          struct pi_err *err)
{
    struct team t = {.x = x, .g = g, .s = s, .table = table, .ctx = ctx, .n_tok = n_tok};

    x->epoch++;
    pi_pool_run(x->pool, team_main, &t);
    return t.stuck ? deadlock(x, err) : PI_OK;
}

enum pi_code pi_exec_solo(struct pi_exec *x, const struct pi_graph *g, const struct pi_schedule *s,
                          const pi_solo_op *table, void *ctx, uint32_t n_tok, struct pi_err *err)
{
    struct walk w = {0};
    const struct pi_step_op *so;
    bool stuck;

    x->epoch++;
    while ((so = next_op(x, s, &w, &stuck)) != NULL) {
        const struct pi_op *op = &g->ops[so->op];
        enum pi_code rc = table[op->kind](ctx, op, n_tok, err);

        if (rc != PI_OK)
            return rc;
        post(x, so);
    }
    return stuck ? deadlock(x, err) : PI_OK;
}
