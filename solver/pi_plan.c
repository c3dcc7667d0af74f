#include "config.h"

#include "solver/pi_plan.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "common/pi_size.h"
#include "solver/pi_cost.h"
#include "solver/pi_ilp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GPU_UNIT  1
#define MAX_BATCH 512
#define MIN_BATCH 8

/* tag of an option of the latency program */
#define TAG_ATTN            1u
#define TAG_MODE_GPU(tag)   ((enum pi_mode)((tag) >> 1 & 3))
#define TAG_MODE_CPU(tag)   ((enum pi_mode)((tag) >> 3))
#define TAG(attn, gpu, cpu) ((attn) | (uint32_t)(gpu) << 1 | (uint32_t)(cpu) << 3)

/* A plan under construction. */
struct job {
    const struct pi_plan_input *in;
    const struct pi_hw_gpu *gpu;          /* NULL: CPU only */
    const struct pi_predictor *predictor; /* NULL: none, or the mode takes none */
    struct pi_plan plan;
    const struct pi_cost *shared; /* of the same model and machine with a GPU; NULL: none */
    struct pi_cost cost;
    uint64_t room; /* bytes for what is placed */
    double t_none; /* seconds of a token on the CPU alone */
};

const char *pi_objective_name(enum pi_objective o)
{
    return o == PI_OBJECTIVE_PAPER ? "paper" : "latency";
}

void pi_plan_free(struct pi_plan *p)
{
    pi_placement_free(&p->place);
    pi_model_bytes_free(&p->bytes);
    free(p->layers);
    memset(p, 0, sizeof(*p));
}

/* ---- sizes */

/* Which neurons to split off is not known. */
static bool needs_profile(const struct job *j)
{
    return j->in->profile == NULL && j->in->mode != PI_MODE_DENSE &&
           pi_activation_has_zeros(j->in->shape->act);
}

static enum pi_code estimate(struct job *j, struct pi_run_size *run, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gpu_budget base;

    pi_model_bytes_free(&j->plan.bytes);
    PI_TRY(pi_estimate_model(j->in->model, j->in->shape, j->predictor, run, &j->plan.bytes, err));
    PI_TRY(pi_estimate_gpu_base(&j->plan.bytes, j->plan.context_bytes, true, &base, err));
    j->plan.base_bytes = base.total;
    j->room = pi_estimate_gpu_room(&base, j->plan.limit);
    if (base.total > UINT64_MAX / 4)
        PI_FAIL(err, PI_E_RANGE, "buffers: more bytes than can be counted");
out:
    return rc;
}

/* Fills run's batch and the sizes: prompt chunks get shorter where their buffers would crowd out weights, and as long as the budget does
 * not hold them: otherwise a budget a little above one that does not work could bring longer chunks and not work either. */
static enum pi_code choose_batch(struct job *j, struct pi_run_size *run, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool free_choice = run->n_batch == 0;

    if (free_choice)
        run->n_batch = run->n_ctx < MAX_BATCH ? run->n_ctx : MAX_BATCH;
    PI_TRY(estimate(j, run, err));
    while (free_choice && j->gpu != NULL && run->n_batch > MIN_BATCH &&
           (j->plan.bytes.dev.prompt > j->plan.limit / 16 || j->plan.base_bytes > j->plan.limit)) {
        run->n_batch = run->n_batch / 2 > MIN_BATCH ? run->n_batch / 2 : MIN_BATCH;
        PI_TRY(estimate(j, run, err));
    }
out:
    return rc;
}

static enum pi_code sizes(struct job *j, struct pi_run_size *run, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (j->gpu != NULL) {
        j->plan.context_bytes = (uint64_t)j->gpu->context_bytes;
        j->plan.above_memory = (double)j->in->budget > j->gpu->memory;
        j->plan.limit = j->plan.above_memory ? (uint64_t)j->gpu->memory : j->in->budget;
    }
    PI_TRY(choose_batch(j, run, err));
    if (j->gpu != NULL && j->plan.base_bytes > j->plan.limit)
        PI_FAIL(
            err, PI_E_INFEASIBLE,
            "a budget of %llu bytes does not even hold the GPU context (%llu) and the buffers of %u positions in chunks of %u "
            "(%llu): the smallest that works is --vram-budget %lluK%s%s; 0G is for the CPU alone",
            (unsigned long long)j->plan.limit, (unsigned long long)j->plan.context_bytes,
            run->n_ctx, run->n_batch,
            (unsigned long long)(j->plan.base_bytes - j->plan.context_bytes),
            (unsigned long long)((j->plan.base_bytes + 1023) / 1024),
            (double)j->plan.base_bytes > j->gpu->memory ? ", more than the GPU has" : "",
            needs_profile(j) ? ", with a profile of the model (made by pi-profile)" : "");
out:
    return rc;
}

/* Bytes that a layer takes on the GPU under p. */
static enum pi_code layer_bytes(const struct job *j, uint32_t layer, const struct pi_place_layer *p,
                                uint64_t *out, struct pi_err *err)
{
    struct pi_gpu_budget g;
    enum pi_code rc = pi_estimate_gpu_layer(&j->plan.bytes, layer, p, GPU_UNIT, &g, err);

    if (rc == PI_OK)
        *out = g.total;
    return rc;
}

/* What the placement in hand takes of the GPU, context included. */
static enum pi_code gpu_bytes(struct job *j, uint64_t *total, struct pi_err *err)
{
    enum pi_code rc;

    PI_TRY(pi_estimate_gpu(&j->plan.bytes, &j->plan.place, GPU_UNIT, j->plan.context_bytes,
                           &j->plan.vram, err));
    *total = j->plan.vram.total;
out:
    return rc;
}

/* ---- all or nothing */

static void place_all(struct job *j, bool plain)
{
    struct pi_placement *p = &j->plan.place;

    for (uint32_t l = 0; l < p->n_layer; l++) {
        struct pi_place_layer *y = &p->layers[l];

        y->n_hot = p->n_ff;
        y->hot_unit = y->attn_unit = GPU_UNIT;
        y->mode_cpu = y->mode_gpu = j->cost.plain;
        if (!plain)
            pi_cost_best_modes(&j->cost, l, y);
    }
    p->embd_unit = PI_UNIT_CPU;
    p->output_unit = GPU_UNIT;
}

static void place_none(struct job *j)
{
    struct pi_placement *p = &j->plan.place;

    for (uint32_t l = 0; l < p->n_layer; l++) {
        struct pi_place_layer *y = &p->layers[l];

        y->n_hot = 0;
        y->attn_unit = PI_UNIT_CPU;
        pi_cost_best_modes(&j->cost, l, y);
        y->mode_gpu = y->mode_cpu;
    }
    p->embd_unit = p->output_unit = PI_UNIT_CPU;
}

/* ---- the paper's program */

/* The output head and attention layer by layer, as far as they fit; with it the predictor of the layer's neurons, where that pays. */
static enum pi_code place_fixed(struct job *j, uint64_t *left, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint64_t head = j->plan.bytes.dev_output;
    struct pi_placement *p = &j->plan.place;
    bool room = true;

    *left = j->room;
    if (head <= *left) {
        p->output_unit = GPU_UNIT;
        *left -= head;
    }
    for (uint32_t l = 0; l < p->n_layer; l++) {
        struct pi_place_layer y = p->layers[l];
        uint64_t bytes;

        y.attn_unit = y.hot_unit = GPU_UNIT;
        y.n_hot = p->n_ff / 2; /* some are cold, some hot */
        pi_cost_best_modes(&j->cost, l, &y);
        y.n_hot = 0;
        PI_TRY(layer_bytes(j, l, &y, &bytes, err));
        room = room && bytes <= *left;
        if (room)
            *left -= bytes;
        else
            y.attn_unit = PI_UNIT_CPU;
        p->layers[l] = y;
    }
out:
    return rc;
}

static enum pi_code paper_layers(struct job *j, struct pi_ilp_layer *layers, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cost *c = &j->cost;

    for (uint32_t l = 0; l < c->n_layer; l++) {
        const struct pi_cost_layer *y = &c->layers[l];
        struct pi_place_layer p = j->plan.place.layers[l];
        uint32_t c_min =
            pi_ilp_min_neurons(c->sync, y->cpu.first + y->cpu.rest, y->gpu.first + y->gpu.rest);
        uint64_t none, bytes;

        PI_ALLOC(layers[l].opt, pi_ilp_paper_size(c->n_ff), err);
        PI_TRY(pi_ilp_paper_options(c->n_ff, y->prefix, 1, 0, c_min, layers[l].opt, &layers[l].n,
                                    err));
        PI_TRY(layer_bytes(j, l, &p, &none, err));
        for (size_t i = 0; i < layers[l].n; i++) {
            p.n_hot = layers[l].opt[i].hot;
            PI_TRY(layer_bytes(j, l, &p, &bytes, err));
            layers[l].opt[i].bytes = bytes > none ? bytes - none : 0;
        }
    }
out:
    return rc;
}

/* ---- the latency program */

/* The ways to place a layer with y->n_hot neurons on the GPU. */
static enum pi_code latency_options(const struct job *j, uint32_t layer, struct pi_place_layer *y,
                                    struct pi_ilp_layer *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cost *c = &j->cost;
    const bool predictor = c->layers[layer].predictor;

    for (uint32_t i = 0; i < 8; i++) {
        struct pi_ilp_option *o = &out->opt[out->n];
        const bool gpu = i & 2, cpu = i & 4;

        /* the mode of a unit without neurons does not matter; all but one are left out */
        if ((gpu && (!predictor || y->n_hot == 0)) || (cpu && (!predictor || y->n_hot == c->n_ff)))
            continue;
        y->attn_unit = i & 1 ? GPU_UNIT : PI_UNIT_CPU;
        y->mode_gpu = gpu ? PI_MODE_PREDICTED : c->plain;
        y->mode_cpu = cpu ? PI_MODE_PREDICTED : c->plain;
        o->hot = y->n_hot;
        o->tag = TAG(i & 1, y->mode_gpu, y->mode_cpu);
        o->gain = -pi_cost_attn(c, layer, i & 1) - pi_cost_ffn(c, PI_DRAWS_PLAN, layer, y);
        PI_TRY(layer_bytes(j, layer, y, &o->bytes, err));
        out->n++;
    }
out:
    return rc;
}

static enum pi_code latency_layer(const struct job *j, uint32_t layer, struct pi_ilp_layer *out,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cost *c = &j->cost;
    struct pi_place_layer y = {.hot_unit = GPU_UNIT};

    PI_ALLOC(out->opt, 8 * (size_t)c->n_cuts, err);
    for (uint32_t i = 0; i < c->n_cuts; i++) {
        y.n_hot = pi_cost_cut(c, i);
        PI_TRY(latency_options(j, layer, &y, out, err));
    }
out:
    return rc;
}

/* layers (n_layer + 1): the last one is the output head. */
static enum pi_code latency_layers(struct job *j, struct pi_ilp_layer *layers, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cost *c = &j->cost;

    for (uint32_t l = 0; l < c->n_layer; l++)
        PI_TRY(latency_layer(j, l, &layers[l], err));
    PI_ALLOC(layers[c->n_layer].opt, 2, err);
    layers[c->n_layer].opt[0] = (struct pi_ilp_option){.gain = -c->head_cpu};
    layers[c->n_layer].opt[1] = (struct pi_ilp_option){
        .bytes = j->plan.bytes.dev_output, .gain = -c->head_gpu, .tag = TAG_ATTN};
    layers[c->n_layer].n = 2;
out:
    return rc;
}

/* ---- solving */

static void adopt(struct job *j, const struct pi_ilp_layer *layers, const struct pi_ilp_result *r,
                  bool latency)
{
    struct pi_placement *p = &j->plan.place;

    for (uint32_t l = 0; l < p->n_layer; l++) {
        const struct pi_ilp_option *o = &layers[l].opt[r->pick[l]];
        struct pi_place_layer *y = &p->layers[l];

        y->n_hot = o->hot;
        y->hot_unit = GPU_UNIT;
        if (latency) {
            y->attn_unit = o->tag & TAG_ATTN ? GPU_UNIT : PI_UNIT_CPU;
            y->mode_gpu = TAG_MODE_GPU(o->tag);
            y->mode_cpu = TAG_MODE_CPU(o->tag);
        }
        if (y->n_hot == p->n_ff && j->cost.layers[l].predictor)
            y->mode_cpu = PI_MODE_PREDICTED; /* should a run cut the hot set */
    }
    if (latency)
        p->output_unit =
            layers[p->n_layer].opt[r->pick[p->n_layer]].tag & TAG_ATTN ? GPU_UNIT : PI_UNIT_CPU;
    j->plan.optimal = r->optimal;
}

static enum pi_code split(struct job *j, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool latency = j->in->objective == PI_OBJECTIVE_LATENCY;
    uint32_t n = j->cost.n_layer + latency;
    uint64_t left = j->room;
    struct pi_ilp_layer *layers = NULL;
    struct pi_ilp_result r = {0};

    if (needs_profile(j))
        PI_FAIL(
            err, PI_E_MISMATCH,
            "the model does not fit the budget, and without a profile nothing is known about which of "
            "its neurons are hot; make one: pi-profile %s --data FILE",
            j->in->model->map.path);
    place_none(j);
    PI_ALLOC(layers, n, err);
    if (latency) {
        PI_TRY(latency_layers(j, layers, err));
    } else {
        PI_TRY(place_fixed(j, &left, err));
        PI_TRY(paper_layers(j, layers, err));
    }
    PI_TRY(pi_ilp_solve(layers, n, left, NULL, &r, err));
    adopt(j, layers, &r, latency);
out:
    for (uint32_t l = 0; layers != NULL && l < n; l++)
        free(layers[l].opt);
    free(layers);
    pi_ilp_result_free(&r);
    return rc;
}

/* ---- what to expect */

static enum pi_code rate_layers(struct job *j, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_placement *p = &j->plan.place;
    const struct pi_cost *c = &j->cost;
    double hot = 0.0, all = 0.0;

    PI_ALLOC(j->plan.layers, p->n_layer, err);
    for (uint32_t l = 0; l < p->n_layer; l++) {
        const struct pi_place_layer *y = &p->layers[l];
        struct pi_plan_layer *o = &j->plan.layers[l];
        const double *prefix = c->layers[l].prefix;

        o->share = prefix[p->n_ff] > 0.0 ? prefix[y->n_hot] / prefix[p->n_ff] : y->n_hot == p->n_ff;
        o->t_cpu = pi_cost_unit(c, PI_DRAWS_SCORE, l, PI_UNIT_CPU, y);
        o->t_gpu = pi_cost_unit(c, PI_DRAWS_SCORE, l, GPU_UNIT, y);
        o->t_attn = pi_cost_attn(c, l, y->attn_unit != PI_UNIT_CPU);
        o->t_layer = o->t_attn + pi_cost_ffn(c, PI_DRAWS_SCORE, l, y);
        o->t_lead = pi_cost_lead(c, l, y);
        o->t_sync =
            (y->attn_unit != PI_UNIT_CPU ? y->n_hot < p->n_ff : y->n_hot > 0) ? c->sync : 0.0;
        hot += prefix[y->n_hot];
        all += prefix[p->n_ff];
    }
    j->plan.activations_on_gpu = all > 0.0 ? hot / all : 0.0;
out:
    return rc;
}

/* The two ends of the scale, each placed in turn. Where everything fits the budget, it is what is left placed. */
static enum pi_code rate_extremes(struct job *j, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t all;

    place_none(j);
    j->plan.cpu = 1.0 / pi_cost_token(&j->cost, PI_DRAWS_SCORE, &j->plan.place);
    j->t_none = pi_cost_token(&j->cost, PI_DRAWS_PLAN, &j->plan.place);
    if (j->gpu == NULL)
        return PI_OK;
    place_all(j, false);
    PI_TRY(gpu_bytes(j, &all, err));
    if ((double)all <= j->gpu->memory)
        j->plan.gpu = 1.0 / pi_cost_token(&j->cost, PI_DRAWS_SCORE, &j->plan.place);
    j->plan.all_fits = all <= j->plan.limit;
out:
    return rc;
}

/* Everything on the GPU without predictors, where that fits and is faster than the split in hand: it needs no buffers for what would be left
 * on the CPU, which no split knows. */
static enum pi_code prefer_all(struct job *j, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_placement *p = &j->plan.place;
    const double t = pi_cost_token(&j->cost, PI_DRAWS_PLAN, p);
    const uint8_t output_unit = p->output_unit;
    struct pi_place_layer *kept = NULL;
    uint64_t all;

    PI_ALLOC(kept, p->n_layer, err);
    memcpy(kept, p->layers, p->n_layer * sizeof(*kept));
    place_all(j, true);
    PI_TRY(gpu_bytes(j, &all, err));
    j->plan.all_fits = all <= j->plan.limit && pi_cost_token(&j->cost, PI_DRAWS_PLAN, p) < t;
    if (!j->plan.all_fits) {
        memcpy(p->layers, kept, p->n_layer * sizeof(*kept));
        p->output_unit = output_unit;
    }
out:
    free(kept);
    return rc;
}

/* A step on a GPU costs something beside its layers, which their options do not know: gains below that are none. */
static void prefer_none(struct job *j)
{
    if (pi_cost_token(&j->cost, PI_DRAWS_PLAN, &j->plan.place) > j->t_none)
        place_none(j);
}

static void describe(struct job *j, const struct pi_run_size *run)
{
    struct pi_placement *p = &j->plan.place;
    const struct pi_hw_cpu *cpu = &j->in->hw->cpu;
    int n;

    for (uint32_t l = 0; l < p->n_layer; l++)
        memcpy(p->layers[l].order, j->cost.layers[l].order, p->n_ff * sizeof(uint32_t));
    p->n_units = j->gpu != NULL ? 2 : 1;
    p->budget = j->plan.limit;
    p->context_bytes = j->plan.context_bytes;
    p->n_ctx = run->n_ctx;
    p->n_seq = run->n_seq;
    p->n_batch = run->n_batch;
    p->kv_type = (uint32_t)run->kv_type;
    (void)snprintf(p->objective, sizeof(p->objective), "%s", pi_objective_name(j->in->objective));
    n = snprintf(p->hardware, sizeof(p->hardware), "%s, %u threads, %.3g GB/s", cpu->name,
                 cpu->threads, cpu->bandwidth / 1e9);
    if (j->gpu != NULL)
        (void)snprintf(p->hardware + n, sizeof(p->hardware) - (size_t)n,
                       "; %s, %.3g GB, %.3g GB/s, %.3g us a hand-over", j->gpu->name,
                       j->gpu->memory / 1e9, j->gpu->bandwidth / 1e9, j->gpu->sync * 1e6);
}

static enum pi_code make_cost(struct job *j, struct pi_err *err)
{
    if (j->shared == NULL)
        return pi_cost_create(&j->plan.bytes, j->in->shape, j->in->profile, j->predictor,
                              j->in->mode, &j->in->hw->cpu, j->gpu, &j->cost, err);
    j->cost = *j->shared;
    j->cost.bytes = &j->plan.bytes;
    return PI_OK;
}

static enum pi_code make(struct job *j, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_run_size run = j->in->run;
    const struct pi_hardware *hw = j->in->hw;
    double t0 = pi_now();
    bool predicted = j->in->mode == PI_MODE_PREDICTED;

    if (j->in->budget > 0 && hw->n_gpus == 0)
        PI_FAIL(
            err, PI_E_NODEV,
            "a VRAM budget, but no GPU in this machine or its description (hardware.yaml): describe one with "
            "--hardware FILE, or take --vram-budget 0G for the CPU alone");
    j->gpu = j->in->budget > 0 ? &hw->gpus[0] : NULL;
    j->predictor = predicted ? j->in->predictor : NULL;
    PI_TRY(sizes(j, &run, err));
    PI_TRY(make_cost(j, err));
    PI_TRY(pi_placement_cpu(j->in->shape->n_layer, j->in->shape->n_ff, &j->plan.place, err));
    j->plan.sampled = j->cost.sampled;
    j->plan.optimal = true;
    PI_TRY(rate_extremes(j, err));
    if (j->gpu == NULL)
        place_none(j);
    else if (!j->plan.all_fits)
        PI_TRY(split(j, err));
    if (j->gpu != NULL && !j->plan.all_fits)
        PI_TRY(prefer_all(j, err));
    if (j->gpu != NULL && !j->plan.all_fits && j->in->objective == PI_OBJECTIVE_LATENCY)
        prefer_none(j);
    if (j->gpu != NULL)
        PI_TRY(gpu_bytes(j, &j->plan.vram_bytes, err));
    j->plan.seconds = pi_now() - t0;
    PI_TRY(rate_layers(j, err));
    j->plan.placed = 1.0 / pi_cost_token(&j->cost, PI_DRAWS_SCORE, &j->plan.place);
    describe(j, &run);
out:
    return rc;
}

enum pi_code pi_plan_make(const struct pi_plan_input *in, struct pi_plan *out, struct pi_err *err)
{
    struct job j = {.in = in};
    enum pi_code rc = make(&j, err);

    pi_cost_free(&j.cost);
    if (rc == PI_OK)
        *out = j.plan;
    else
        pi_plan_free(&j.plan);
    return rc;
}

/* ---- several budgets */

/* What budgets have in common: chunks of prompts, and so bytes, depend on the budget, but nothing that costs time in a decode step does. */
static enum pi_code share_cost(const struct pi_plan_input *in, struct pi_model_bytes *bytes,
                               struct pi_cost *cost, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_predictor *pred = in->mode == PI_MODE_PREDICTED ? in->predictor : NULL;
    struct pi_run_size run = in->run;

    if (run.n_batch == 0)
        run.n_batch = MIN_BATCH;
    PI_TRY(pi_estimate_model(in->model, in->shape, pred, &run, bytes, err));
    PI_TRY(pi_cost_create(bytes, in->shape, in->profile, pred, in->mode, &in->hw->cpu,
                          &in->hw->gpus[0], cost, err));
out:
    return rc;
}

static enum pi_code plan_point(const struct pi_plan_input *in, const struct pi_cost *shared,
                               struct pi_plan_point *out, struct pi_err *err)
{
    struct job j = {.in = in, .shared = shared};
    enum pi_code rc = make(&j, err);

    *out = (struct pi_plan_point){.budget = in->budget, .base_bytes = j.plan.base_bytes};
    if (rc == PI_OK) {
        out->feasible = true;
        out->vram_bytes = j.plan.vram_bytes;
        out->activations_on_gpu = j.plan.activations_on_gpu;
        out->placed = j.plan.placed;
        out->optimal = j.plan.optimal;
        out->all_fits = j.plan.all_fits;
    }
    pi_plan_free(&j.plan);
    if (shared == NULL)
        pi_cost_free(&j.cost);
    return rc == PI_E_INFEASIBLE ? PI_OK : rc;
}

enum pi_code pi_plan_curve(const struct pi_plan_input *in, const uint64_t *budgets, size_t n,
                           bool progress, struct pi_plan_point *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_plan_input at = *in;
    struct pi_model_bytes bytes = {0};
    struct pi_cost cost = {0};
    struct pi_progress bar;

    pi_progress_begin(&bar, "budgets", n, progress);
    if (in->hw->n_gpus > 0)
        PI_TRY(share_cost(in, &bytes, &cost, err));
    for (size_t i = 0; i < n; i++) {
        pi_progress_at(&bar, i);
        PI_TRY(pi_interrupt_check(err));
        at.budget = budgets[i];
        PI_TRY(plan_point(&at, at.budget > 0 && in->hw->n_gpus > 0 ? &cost : NULL, &out[i], err));
    }
out:
    pi_progress_end(&bar);
    pi_cost_free(&cost);
    pi_model_bytes_free(&bytes);
    return rc;
}
