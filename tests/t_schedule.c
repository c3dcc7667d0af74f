/* t_schedule.c - shapes of graphs and schedules, slots, and an executor that never hangs. */
#include "config.h"

#include "common/pi_schedule.h"
#include "runtime/pi_exec_cpu.h"

#include "tests/tap.h"

#define N_LAYER 3
#define N_FF    8

static struct pi_shape shape = {.n_layer = N_LAYER, .n_ff = N_FF};

struct fixture {
    struct pi_placement p;
    struct pi_place_layer layers[N_LAYER];
    enum pi_mode mode[N_LAYER];
};

static void fixture_init(struct fixture *f, uint32_t n_hot, uint8_t attn_unit, enum pi_mode mode)
{
    memset(f, 0, sizeof(*f));
    f->p =
        (struct pi_placement){.n_layer = N_LAYER, .n_ff = N_FF, .n_units = 2, .layers = f->layers};
    for (int l = 0; l < N_LAYER; l++) {
        f->layers[l] = (struct pi_place_layer){.n_hot = n_hot,
                                               .hot_unit = 1,
                                               .attn_unit = attn_unit,
                                               .mode_cpu = mode,
                                               .mode_gpu = mode};
        f->mode[l] = mode;
    }
    f->p.embd_unit = f->p.output_unit = attn_unit;
}

static uint32_t count_kind(const struct pi_graph *g, enum pi_op_kind kind, int unit)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_ops; i++)
        n += g->ops[i].kind == kind && (unit < 0 || g->ops[i].unit == unit);
    return n;
}

/* Every operator once, in the graph's order inside a unit; every wait is for a slot that some operator posts. */
static bool well_formed(const struct pi_graph *g, const struct pi_schedule *s)
{
    uint32_t n = 0, posted[64] = {0};

    for (uint32_t u = 0; u < s->n_units; u++) {
        for (uint32_t i = 0; i < s->units[u].n; i++, n++) {
            const struct pi_step_op *so = &s->units[u].ops[i];

            if (g->ops[so->op].unit != u || (i > 0 && so->op <= s->units[u].ops[i - 1].op))
                return false;
            if (so->post != PI_NO_SLOT)
                posted[so->post]++;
        }
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (posted[i] != 1)
            return false;
    }
    for (uint32_t u = 0; u < s->n_units; u++) {
        for (uint32_t i = 0; i < s->units[u].n; i++) {
            for (uint32_t k = 0; k < s->units[u].ops[i].n_waits; k++) {
                if (s->units[u].ops[i].waits[k] >= s->n_slots)
                    return false;
            }
        }
    }
    return n == g->n_ops;
}

static void build(struct fixture *f, bool sparse, struct pi_graph *g, struct pi_schedule *s)
{
    struct pi_err e;

    PASSES(pi_graph_build(&shape, &f->p, f->mode, sparse, g, &e), e);
    PASSES(pi_schedule_compile(g, 2, s, &e), e);
    OK(well_formed(g, s));
}

static void test_one_unit(void)
{
    struct fixture f;
    struct pi_graph g;
    struct pi_schedule s;

    fixture_init(&f, 0, 0, PI_MODE_EXACT);
    build(&f, true, &g, &s);
    EQ(g.n_ops, 3 + 7 * N_LAYER);
    EQ(s.n_slots, 0);
    EQ(s.units[0].n, g.n_ops);
    EQ(s.units[1].n, 0);
    EQ(count_kind(&g, PI_OP_PREDICT, -1), 0);
    pi_schedule_free(&s);
    pi_graph_free(&g);
}

static void test_cpu_attention(void)
{
    struct fixture f;
    struct pi_graph g;
    struct pi_schedule s;

    fixture_init(&f, 3, 0, PI_MODE_PREDICTED);
    build(&f, true, &g, &s);
    EQ(count_kind(&g, PI_OP_PREDICT, 0), N_LAYER);
    EQ(count_kind(&g, PI_OP_PREDICT, 1), N_LAYER);
    EQ(count_kind(&g, PI_OP_FFN, 1), N_LAYER);
    EQ(count_kind(&g, PI_OP_MERGE, 0), N_LAYER);
    for (uint32_t l = 0; l < N_LAYER; l++)
        EQ(pi_schedule_crossings(&g, &s, l), 2); /* one hand-over, one merge */
    EQ(s.n_slots, 2 * N_LAYER);
    pi_schedule_free(&s);
    pi_graph_free(&g);
    build(&f, false, &g, &s);
    EQ(count_kind(&g, PI_OP_PREDICT, -1), 0);
    pi_schedule_free(&s);
    pi_graph_free(&g);
}

static void test_gpu_attention(void)
{
    struct fixture f;
    struct pi_graph g;
    struct pi_schedule s;

    fixture_init(&f, 3, 1, PI_MODE_EXACT);
    f.layers[1].n_hot = N_FF; /* all hot: the CPU has no part in it */
    build(&f, true, &g, &s);
    EQ(pi_schedule_crossings(&g, &s, 0), 2);
    EQ(pi_schedule_crossings(&g, &s, 1), 0);
    EQ(pi_schedule_crossings(&g, &s, 2), 2);
    EQ(count_kind(&g, PI_OP_FFN, 0), N_LAYER - 1);
    pi_schedule_free(&s);
    pi_graph_free(&g);
    /* attention of the middle layer on the CPU: the residual comes over at the merge before, and goes back at its own */
    fixture_init(&f, N_FF, 1, PI_MODE_EXACT);
    f.layers[1].attn_unit = 0;
    build(&f, true, &g, &s);
    EQ(pi_schedule_crossings(&g, &s, 0), 1);
    EQ(pi_schedule_crossings(&g, &s, 1), 1);
    EQ(pi_schedule_crossings(&g, &s, 2), 0);
    pi_schedule_free(&s);
    pi_graph_free(&g);
}

static void test_hot_unit_mode(void)
{
    struct fixture f;
    struct pi_graph g;
    struct pi_schedule s;

    fixture_init(&f, 3, 0, PI_MODE_PREDICTED);
    f.layers[1].mode_gpu = PI_MODE_EXACT;
    build(&f, true, &g, &s);
    EQ(count_kind(&g, PI_OP_PREDICT, 1), N_LAYER - 1);
    EQ(count_kind(&g, PI_OP_PREDICT, 0), N_LAYER);
    pi_schedule_free(&s);
    pi_graph_free(&g);
    f.layers[0].mode_cpu = PI_MODE_EXACT;
    build(&f, true, &g, &s);
    EQ(count_kind(&g, PI_OP_PREDICT, 1), N_LAYER - 1);
    EQ(count_kind(&g, PI_OP_PREDICT, 0), N_LAYER - 1);
    pi_schedule_free(&s);
    pi_graph_free(&g);
}

/* Index in a unit's list of a layer's operator of a kind for an owner, -1: none. */
static int at(const struct pi_graph *g, const struct pi_schedule *s, uint32_t unit,
              enum pi_op_kind kind, uint32_t layer, uint32_t owner)
{
    for (uint32_t i = 0; i < s->units[unit].n; i++) {
        const struct pi_op *op = &g->ops[s->units[unit].ops[i].op];

        if (op->kind == kind && op->layer == layer && op->owner == owner)
            return (int)i;
    }
    return -1;
}

/* Attention on the GPU: it predicts for the CPU's neurons first, hands norm and cold set over in one slot, then goes on. */
static void test_gpu_predicts(void)
{
    struct fixture f;
    struct pi_graph g;
    struct pi_schedule s;

    fixture_init(&f, 3, 1, PI_MODE_PREDICTED);
    f.layers[1].n_hot = 0; /* no neuron here, its predictor all the same */
    f.layers[2].mode_cpu = PI_MODE_EXACT;
    build(&f, true, &g, &s);
    EQ(count_kind(&g, PI_OP_PREDICT, 0), 0);
    EQ(count_kind(&g, PI_OP_PREDICT, 1), 4);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        int norm = at(&g, &s, 1, PI_OP_FFN_NORM, l, 1), cold = at(&g, &s, 1, PI_OP_PREDICT, l, 0),
            hot = at(&g, &s, 1, PI_OP_PREDICT, l, 1), from = l == 2 ? norm : cold;
        int ffn = at(&g, &s, 0, PI_OP_FFN, l, 0);
        const struct pi_step_op *wait = &s.units[0].ops[ffn];

        EQ(cold, l == 2 ? -1 : norm + 1);
        EQ(hot, l == 1 ? -1 : l == 2 ? norm + 1 : norm + 2);
        EQ(at(&g, &s, 1, PI_OP_FFN, l, 1), l == 1 ? -1 : hot + 1);
        EQ(at(&g, &s, 1, PI_OP_MERGE, l, 1), l == 1 ? cold + 1 : hot + 2);
        EQ(wait->n_waits, 1);
        EQ(s.units[1].ops[from].post, wait->waits[0]);
        EQ(pi_schedule_crossings(&g, &s, l), 2);
    }
    EQ(s.n_slots, 2 * N_LAYER);
    pi_schedule_free(&s);
    pi_graph_free(&g);
    /* attention on the CPU: each predicts for itself, and the hot unit gets the normed input alone */
    fixture_init(&f, 3, 0, PI_MODE_PREDICTED);
    build(&f, true, &g, &s);
    EQ(at(&g, &s, 1, PI_OP_PREDICT, 0, 0), -1);
    EQ(at(&g, &s, 1, PI_OP_PREDICT, 0, 1), 0);
    EQ(s.units[0].ops[at(&g, &s, 0, PI_OP_FFN_NORM, 0, 0)].post, s.units[1].ops[0].waits[0]);
    pi_schedule_free(&s);
    pi_graph_free(&g);
}

static void test_bad_graphs(void)
{
    struct pi_op cyc[2] = {{.n_deps = 1, .deps = {1}}, {.n_deps = 1, .deps = {0}}};
    struct pi_op self[1] = {{.n_deps = 1, .deps = {0}}};
    struct pi_op unit[1] = {{.unit = 2}};
    struct pi_graph g = {.n_ops = 2, .ops = cyc};
    struct pi_schedule s;
    struct fixture f;
    struct pi_err e;

    FAILS(pi_schedule_compile(&g, 2, &s, &e), PI_E_CORRUPT, "does not come before", e);
    g = (struct pi_graph){.n_ops = 1, .ops = self};
    FAILS(pi_schedule_compile(&g, 2, &s, &e), PI_E_CORRUPT, "does not come before", e);
    g = (struct pi_graph){.n_ops = 1, .ops = unit};
    FAILS(pi_schedule_compile(&g, 2, &s, &e), PI_E_CORRUPT, "unit 2 of 2", e);
    fixture_init(&f, 0, 0, PI_MODE_EXACT);
    f.p.n_layer = N_LAYER - 1;
    FAILS(pi_graph_build(&shape, &f.p, f.mode, true, &g, &e), PI_E_MISMATCH,
          "placement for 2 layers", e);
}

/* One hand-over is waited for once, however many operators need it. */
static void test_waits_once(void)
{
    struct pi_op ops[4] = {{.unit = 0},
                           {.unit = 0, .n_deps = 1, .deps = {0}},
                           {.unit = 1, .n_deps = 2, .deps = {0, 1}},
                           {.unit = 1, .n_deps = 1, .deps = {0}}};
    struct pi_graph g = {.n_ops = 4, .ops = ops};
    struct pi_schedule s;
    struct pi_err e;

    PASSES(pi_schedule_compile(&g, 2, &s, &e), e);
    EQ(s.n_slots, 1);
    EQ(s.units[0].ops[0].post, PI_NO_SLOT);
    EQ(s.units[0].ops[1].post, 0);
    EQ(s.units[1].ops[0].n_waits, 1);
    EQ(s.units[1].ops[1].n_waits, 0);
    pi_schedule_free(&s);
}

/* ---- executor ---- */

struct log {
    uint32_t n, layer[16];
    struct pi_pool *pool;
};

static void note(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                 uint32_t n_threads)
{
    struct log *l = ctx;

    (void)n_tok;
    (void)n_threads;
    if (thread == 0)
        l->layer[l->n++ % 16] = op->layer;
}

static enum pi_code note_solo(void *ctx, const struct pi_op *op, uint32_t n_tok, struct pi_err *err)
{
    note(ctx, op, n_tok, 0, 1);
    return op->layer == 99 ? pi_err_set(err, PI_E_IO, "as told") : PI_OK;
}

static void test_executor(uint32_t n_threads)
{
    struct pi_team_op team[1] = {{note, true}};
    pi_solo_op solo[1] = {note_solo};
    /* unit 1 comes first in the graph's order of things it waits for: 0 (unit 1) -> 1 (unit 0) -> 2 (unit 1) */
    struct pi_op ops[3] = {{.unit = 1, .layer = 0},
                           {.unit = 0, .layer = 1, .n_deps = 1, .deps = {0}},
                           {.unit = 1, .layer = 2, .n_deps = 1, .deps = {1}}};
    struct pi_graph g = {.n_ops = 3, .ops = ops};
    struct pi_schedule s;
    struct pi_exec x;
    struct pi_pool *pool;
    struct log l = {0};
    struct pi_err e;

    PASSES(pi_pool_create(n_threads, &pool, &e), e);
    PASSES(pi_schedule_compile(&g, 2, &s, &e), e);
    PASSES(pi_exec_init(&x, pool, &s, &e), e);
    for (uint32_t step = 0; step < 3; step++) {
        PASSES(pi_exec_team(&x, &g, &s, team, &l, 1, &e), e);
        EQ(l.n, 3 * (step + 1));
        OK(l.layer[3 * step] == 0 && l.layer[3 * step + 1] == 1 && l.layer[3 * step + 2] == 2);
    }
    PASSES(pi_exec_solo(&x, &g, &s, solo, &l, 1, &e), e);
    EQ(l.n, 12);
    ops[1].layer = 99;
    FAILS(pi_exec_solo(&x, &g, &s, solo, &l, 1, &e), PI_E_IO, "as told", e);
    ops[1].layer = 1;
    /* unit 0 now waits for the slot it posts itself: all slots still hold the steps before, none this one */
    s.units[0].ops[0].waits[0] = s.units[0].ops[0].post;
    FAILS(pi_exec_team(&x, &g, &s, team, &l, 1, &e), PI_E_SELFCHECK, "can not go on", e);
    FAILS(pi_exec_solo(&x, &g, &s, solo, &l, 1, &e), PI_E_SELFCHECK, "can not go on", e);
    pi_exec_free(&x);
    pi_schedule_free(&s);
    pi_pool_destroy(pool);
}

int main(void)
{
    test_one_unit();
    test_cpu_attention();
    test_gpu_attention();
    test_hot_unit_mode();
    test_gpu_predicts();
    test_bad_graphs();
    test_waits_once();
    test_executor(1);
    test_executor(3);
    return DONE();
}
