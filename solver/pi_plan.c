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
#define TAG_ATTN        1u
#define TAG_MODE(tag)   ((enum pi_mode)((tag) >> 1))
#define TAG(attn, mode) ((attn) | (uint32_t)(mode) << 1)

/* A plan under construction. */
struct job {
    const struct pi_plan_input *in;
    const struct pi_hw_gpu *gpu; /* NULL: CPU only */
    struct pi_plan plan;
    struct pi_cost cost;
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

/* What the GPU needs before it can be of use. */
static uint64_t base_bytes(const struct job *j)
{
    return j->plan.context_bytes + j->plan.buffer_bytes;
}

/* Which neurons to split off is not known. */
static bool needs_profile(const struct job *j)
{
    return j->in->profile == NULL && pi_activation_has_zeros(j->in->shape->act);
}

static enum pi_code estimate(struct job *j, struct pi_run_size *run, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    pi_model_bytes_free(&j->plan.bytes);
    PI_TRY(
        pi_estimate_model(j->in->model, j->in->shape, j->in->predictor, run, &j->plan.bytes, err));
    if (!pi_size_add(j->plan.bytes.activations, j->plan.bytes.tables, &j->plan.buffer_bytes) ||
        j->plan.buffer_bytes > UINT64_MAX / 4)
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
           (j->plan.bytes.activations > j->plan.limit / 16 || base_bytes(j) > j->plan.limit)) {
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
    if (j->gpu != NULL && base_bytes(j) > j->plan.limit)
        PI_FAIL(
            err, PI_E_INFEASIBLE,
            "a budget of %llu bytes does not even hold the GPU context (%llu) and the buffers of %u positions in chunks of %u "
            "(%llu): the smallest that works is --vram-budget %lluK%s%s; 0G is for the CPU alone",
            (unsigned long long)j->plan.limit, (unsigned long long)j->plan.context_bytes,
            run->n_ctx, run->n_batch, (unsigned long long)j->plan.buffer_bytes,
            (unsigned long long)((base_bytes(j) + 1023) / 1024),
            (double)base_bytes(j) > j->gpu->memory ? ", more than the GPU has" : "",
            needs_profile(j) ? ", with a profile of the model (made by pi-profile)" : "");
out:
    return rc;
}

/* Bytes of a layer's n hot neurons, the predictor's part included when they run predicted. */
static uint64_t hot_bytes(const struct pi_layer_bytes *b, uint64_t n, enum pi_mode mode)
{
    if (n == 0)
        return 0;
    return n * b->neuron + (mode == PI_MODE_PREDICTED ? b->pred_fixed + n * b->pred_per_neuron : 0);
}

static uint64_t attn_bytes(const struct pi_model_bytes *b, uint32_t layer)
{
    return b->layers[layer].attn + b->kv_layer + b->layers[layer].ffn_fixed;
}

/* ---- all or nothing */

static void place_all(struct job *j)
{
    struct pi_placement *p = &j->plan.place;

    for (uint32_t l = 0; l < p->n_layer; l++) {
        p->layers[l].n_hot = p->n_ff;
        p->layers[l].hot_unit = p->layers[l].attn_unit = GPU_UNIT;
        p->layers[l].mode_gpu = pi_cost_best_mode(&j->cost, l, GPU_UNIT, p->n_ff);
        p->layers[l].mode_cpu = pi_cost_best_mode(&j->cost, l, PI_UNIT_CPU, 0);
    }
    p->embd_unit = p->output_unit = GPU_UNIT;
}

static void place_none(struct job *j)
{
    struct pi_placement *p = &j->plan.place;

    for (uint32_t l = 0; l < p->n_layer; l++) {
        p->layers[l].n_hot = 0;
        p->layers[l].attn_unit = PI_UNIT_CPU;
        p->layers[l].mode_cpu = p->layers[l].mode_gpu =
            pi_cost_best_mode(&j->cost, l, PI_UNIT_CPU, 0);
    }
    p->embd_unit = p->output_unit = PI_UNIT_CPU;
}

/* ---- the paper's program */

/* The output head and attention layer by layer, as far as they fit. */
static uint64_t place_fixed(struct job *j)
{
    const struct pi_model_bytes *b = &j->plan.bytes;
    struct pi_placement *p = &j->plan.place;
    uint64_t left = j->plan.limit - base_bytes(j);

    if (b->output + b->output_norm <= left) {
        p->output_unit = GPU_UNIT;
        left -= b->output + b->output_norm;
    }
    for (uint32_t l = 0; l < p->n_layer && attn_bytes(b, l) <= left; l++) {
        p->layers[l].attn_unit = GPU_UNIT;
        left -= attn_bytes(b, l);
    }
    return left;
}

static enum pi_code paper_layers(struct job *j, struct pi_ilp_layer *layers, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cost *c = &j->cost;

    for (uint32_t l = 0; l < c->n_layer; l++) {
        const struct pi_layer_bytes *b = &j->plan.bytes.layers[l];
        struct pi_place_layer *y = &j->plan.place.layers[l];
        double bytes = (double)b->neuron;
        uint32_t c_min =
            pi_ilp_min_neurons(c->sync, bytes / c->cpu_bandwidth, bytes / c->gpu_bandwidth);
        bool predicted;

        y->mode_gpu = pi_cost_best_mode(c, l, GPU_UNIT, c->n_ff);
        predicted = y->mode_gpu == PI_MODE_PREDICTED;
        PI_ALLOC(layers[l].opt, pi_ilp_paper_size(c->n_ff), err);
        PI_TRY(pi_ilp_paper_options(
            c->n_ff, c->layers[l].prefix, b->neuron + (predicted ? b->pred_per_neuron : 0),
            predicted ? b->pred_fixed : 0, c_min, layers[l].opt, &layers[l].n, err));
    }
out:
    return rc;
}

/* ---- the latency program */

static enum pi_code latency_layer(struct job *j, uint32_t layer, struct pi_ilp_layer *out,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cost *c = &j->cost;
    enum pi_mode plain = c->zeros ? PI_MODE_EXACT : PI_MODE_DENSE;
    struct pi_place_layer y = {.hot_unit = GPU_UNIT};
    double ffn = 0.0;

    PI_ALLOC(out->opt, 4 * (size_t)c->n_cuts, err);
    for (uint32_t i = 0; i < c->n_cuts; i++) {
        y.n_hot = pi_cost_cut(c, i);
        y.mode_cpu = pi_cost_best_mode(c, layer, PI_UNIT_CPU, y.n_hot);
        for (int predicted = 0; predicted <= (c->layers[layer].predictor && y.n_hot > 0);
             predicted++) {
            y.mode_gpu = predicted ? PI_MODE_PREDICTED : plain;
            for (uint32_t attn = 0; attn <= 1; attn++) {
                struct pi_ilp_option *o = &out->opt[out->n++];

                y.attn_unit = attn ? GPU_UNIT : PI_UNIT_CPU;
                o->hot = y.n_hot;
                o->tag = TAG(attn, y.mode_gpu);
                /* With hot neurons the two differ by a hand-over; walking through the draws once is enough. */
                if (attn == 0 || y.n_hot == 0)
                    ffn = pi_cost_ffn(c, PI_DRAWS_PLAN, layer, &y);
                else
                    ffn -= c->sync;
                o->gain = -pi_cost_attn(c, layer, attn) - ffn;
                o->bytes = hot_bytes(&j->plan.bytes.layers[layer], y.n_hot, y.mode_gpu) +
                           (attn ? attn_bytes(&j->plan.bytes, layer) : 0);
            }
        }
    }
out:
    return rc;
}

/* layers (n_layer + 1): the last one is the output head. */
static enum pi_code latency_layers(struct job *j, struct pi_ilp_layer *layers, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cost *c = &j->cost;
    uint64_t head = j->plan.bytes.output + j->plan.bytes.output_norm;

    for (uint32_t l = 0; l < c->n_layer; l++)
        PI_TRY(latency_layer(j, l, &layers[l], err));
    PI_ALLOC(layers[c->n_layer].opt, 2, err);
    layers[c->n_layer].opt[0] = (struct pi_ilp_option){.gain = -(double)head / c->cpu_bandwidth};
    layers[c->n_layer].opt[1] = (struct pi_ilp_option){
        .bytes = head, .gain = -(double)head / c->gpu_bandwidth, .tag = TAG_ATTN};
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
            y->mode_gpu = TAG_MODE(o->tag);
        }
        y->mode_cpu =
            pi_cost_best_mode(&j->cost, l, PI_UNIT_CPU, y->n_hot < p->n_ff ? y->n_hot : 0);
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
    uint64_t left = j->plan.limit - base_bytes(j);
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
        left = place_fixed(j);
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
        o->t_cpu = pi_cost_unit(c, PI_DRAWS_SCORE, l, PI_UNIT_CPU, y->mode_cpu, y->n_hot);
        o->t_gpu = y->n_hot > 0
                       ? pi_cost_unit(c, PI_DRAWS_SCORE, l, GPU_UNIT, y->mode_gpu, y->n_hot)
                       : 0.0;
        o->t_attn = pi_cost_attn(c, l, y->attn_unit != PI_UNIT_CPU);
        o->t_layer = o->t_attn + pi_cost_ffn(c, PI_DRAWS_SCORE, l, y);
        hot += prefix[y->n_hot];
        all += prefix[p->n_ff];
    }
    j->plan.activations_on_gpu = all > 0.0 ? hot / all : 0.0;
out:
    return rc;
}

/* Total bytes of the placement in hand on the GPU, context included. */
static enum pi_code gpu_bytes(const struct job *j, uint64_t *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_estimate_unit(&j->plan.bytes, &j->plan.place, GPU_UNIT, out, err));
    if (*out > 0 && !pi_size_add(*out, j->plan.context_bytes, out))
        PI_FAIL(err, PI_E_RANGE, "placement: more bytes than can be counted");
out:
    return rc;
}

/* The two ends of the scale, each placed in turn; all: bytes that everything takes on the GPU. */
static enum pi_code rate_extremes(struct job *j, uint64_t *all, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    place_none(j);
    j->plan.cpu = 1.0 / pi_cost_token(&j->cost, PI_DRAWS_SCORE, &j->plan.place);
    *all = UINT64_MAX;
    if (j->gpu != NULL) {
        place_all(j);
        PI_TRY(gpu_bytes(j, all, err));
        if ((double)*all <= j->gpu->memory)
            j->plan.gpu = 1.0 / pi_cost_token(&j->cost, PI_DRAWS_SCORE, &j->plan.place);
    }
out:
    return rc;
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

static enum pi_code make(struct job *j, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_run_size run = j->in->run;
    const struct pi_hardware *hw = j->in->hw;
    double t0 = pi_now();
    uint64_t all;

    if (j->in->budget > 0 && hw->n_gpus == 0)
        PI_FAIL(
            err, PI_E_NODEV,
            "a VRAM budget, but no GPU in this machine or its description (hardware.yaml): describe one with "
            "--hardware FILE, or take --vram-budget 0G for the CPU alone");
    j->gpu = j->in->budget > 0 ? &hw->gpus[0] : NULL;
    PI_TRY(sizes(j, &run, err));
    PI_TRY(pi_cost_create(&j->plan.bytes, j->in->shape, j->in->profile, j->in->predictor, &hw->cpu,
                          j->gpu, &j->cost, err));
    PI_TRY(pi_placement_cpu(j->in->shape->n_layer, j->in->shape->n_ff, &j->plan.place, err));
    j->plan.sampled = j->cost.sampled;
    PI_TRY(rate_extremes(j, &all, err));
    j->plan.all_fits = j->gpu != NULL && all <= j->plan.limit;
    j->plan.optimal = true;
    if (j->gpu == NULL)
        place_none(j);
    else if (!j->plan.all_fits)
        PI_TRY(split(j, err));
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
