#include "config.h"

#include "solver/pi_cost.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the model of pi_cost.h takes for granted, from steps of 7B and 13B models in F16 and Q4_0 on one H200 and 15 threads of 16 cores (bench/results/h200-*.json):
 * fifteen placements, dense and sparse, from a quarter to all in VRAM, within 10 % of what was measured (tests/t_cost.c); one more, 13B predicted at 75 %, is
 * expected 12 % faster than it was. */

/* Share of the measured read bandwidth that matrix-vector kernels reach between their start and their end, which cost hw.kernel each. */
#define GPU_EFFICIENCY 0.9
/* Kernels of a layer: QKV, attention, its output, norm, merge; the predictor's two; those of the neurons by mode. */
#define KERNELS_ATTN    5
#define KERNELS_PREDICT 2
static const int kernels_ffn[] = {
    [PI_MODE_DENSE] = 2, [PI_MODE_EXACT] = 3, [PI_MODE_PREDICTED] = 2};
/* Launching a step, waiting for it (9.2 us measured), its inputs and the sampler. */
#define GPU_STEP 20e-6

/* Share of the gather bandwidth that the CPU's products reach with scattered rows of GATHER_ROW bytes, which it is measured with: 0.92 to 0.98. */
#define CPU_EFFICIENCY 0.92
/* The same of rows in their order, one behind the other: 1.18 to 1.25 (dense steps of 7B and 13B, F16, from a quarter to half in VRAM). */
#define CPU_IN_ORDER 1.18
/* Shorter scattered rows take as long as if each were so many bytes longer: plain loads of rows of 8, 4.3 and 2.3 KB, four side by side, reach 1.03, 0.89 and 0.73 of
 * a sequential read. Shorter rows than that were not measured, and are taken for as slow. */
#define GATHER_ROW 8192.0
#define ROW_EXTRA  1600.0
#define ROW_LEAST  2304.0
/* A barrier of all threads; and how many: attention with its norms; the predictor; the neurons. */
#define CPU_BARRIER      1.5e-6
#define BARRIERS_ATTN    4
#define BARRIERS_PREDICT 2
#define BARRIERS_FFN     2

/* Bytes per second and thread that products of rows in the cache reach: what bounds quantised rows (AVX-512, docs/benchmarks.md). Four bits: in a dense step, 62 GB/s
 * with 15 threads, a little less than in the cache. */
static double thread_rate(enum pi_type t)
{
    switch ((int)t) {
    case PI_TYPE_F32:
    case PI_TYPE_F16:
    case PI_TYPE_BF16:
        return 12e9;
    case PI_TYPE_Q8_0:
        return 9.5e9;
    default:
        return 4.1e9;
    }
}

/* Bytes per second that a GPU's cores unpack: four bits are bound by that on an H200, 132 multiprocessors (3.7 GB in 1.5 ms, 2.25 in 1.05; h200-7b-q4_0.json). Devices with
 * fewer of them have less bandwidth too. */
static double gpu_rate(enum pi_type t)
{
    return t == PI_TYPE_Q4_0 ? 2.3e12 : (double)INFINITY;
}

/* More sampled tokens than this make neither plan nor score better. */
static const uint32_t max_draws[PI_DRAWS_COUNT] = {[PI_DRAWS_PLAN] = 256, [PI_DRAWS_SCORE] = 512};

static uint32_t share_of(uint64_t n_samples, enum pi_draw_set set)
{
    uint64_t n = n_samples / 2 + (set == PI_DRAWS_PLAN ? n_samples % 2 : 0);

    return (uint32_t)(n < max_draws[set] ? n : max_draws[set]);
}

/* Even samples plan, odd ones score, spread evenly when there are more than needed. */
static uint64_t sample_of(uint64_t n_samples, enum pi_draw_set set, uint32_t i, uint32_t n)
{
    uint64_t pairs = n_samples / 2 + (set == PI_DRAWS_PLAN ? n_samples % 2 : 0);

    return 2 * (pairs * i / n) + (set == PI_DRAWS_SCORE);
}

/* Active neurons of a mask by the group of the order that they are in; group (n_ff). Bits behind n_ff are zero. */
static void count_groups(const uint8_t *mask, size_t mask_bytes, const uint32_t *group,
                         uint32_t *count)
{
    for (size_t k = 0; k < mask_bytes; k++) {
        for (unsigned bits = mask[k]; bits != 0; bits &= bits - 1)
            count[group[8 * k + (unsigned)__builtin_ctz(bits)]]++;
    }
}

static enum pi_code draws_from_masks(const struct pi_cost *c, const struct pi_profile *prof,
                                     const uint8_t *masks, enum pi_draw_set set,
                                     struct pi_cost_layer *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_draws *d = &l->draws[set];
    size_t mask_bytes = ((size_t)c->n_ff + 7) / 8;
    uint32_t *group = NULL, *count = NULL;

    d->n = share_of(prof->n_samples, set);
    PI_ALLOC(d->fired, (size_t)d->n * c->n_cuts, err);
    PI_ALLOC(group, 8 * mask_bytes, err);
    PI_ALLOC(count, c->n_cuts, err);
    for (uint32_t k = 0; k < c->n_ff; k++)
        group[l->order[k]] = k / PI_ILP_GROUP;
    for (uint32_t s = 0; s < d->n; s++) {
        float *fired = d->fired + (size_t)s * c->n_cuts;
        uint32_t sum = 0;

        memset(count, 0, c->n_cuts * sizeof(*count));
        count_groups(masks + sample_of(prof->n_samples, set, s, d->n) * mask_bytes, mask_bytes,
                     group, count);
        for (uint32_t i = 1; i < c->n_cuts; i++) {
            sum += count[i - 1];
            fired[i] = (float)sum;
        }
    }
out:
    free(group);
    free(count);
    return rc;
}

/* One draw in which every neuron fires to the extent of its rate. */
static enum pi_code draws_from_rates(const struct pi_cost *c, double tokens, struct pi_draws *d,
                                     const double *prefix, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    d->n = 1;
    PI_ALLOC(d->fired, c->n_cuts, err);
    for (uint32_t i = 0; i < c->n_cuts; i++)
        d->fired[i] = (float)(prefix[pi_cost_cut(c, i)] / tokens);
out:
    return rc;
}

static enum pi_code average(const struct pi_cost *c, struct pi_draws *d, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_ALLOC(d->mean, c->n_cuts, err);
    for (uint32_t i = 0; i < c->n_cuts; i++) {
        double sum = 0.0;

        for (uint32_t s = 0; s < d->n; s++)
            sum += (double)d->fired[(size_t)s * c->n_cuts + i];
        d->mean[i] = (float)(sum / d->n);
    }
out:
    return rc;
}

static enum pi_code make_layer(struct pi_cost *c, const struct pi_profile *prof, uint32_t layer,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_cost_layer *l = &c->layers[layer];
    bool counted = prof != NULL && prof->n_tokens > 0;
    double tokens = counted ? (double)prof->n_tokens : 1.0;
    uint8_t *masks = NULL;

    PI_ALLOC(l->order, c->n_ff, err);
    PI_ALLOC(l->prefix, (size_t)c->n_ff + 1, err);
    for (uint32_t i = 0; i < c->n_ff; i++)
        l->order[i] = i;
    if (counted)
        PI_TRY(pi_profile_order(prof, layer, l->order, err));
    for (uint32_t i = 0; i < c->n_ff; i++)
        l->prefix[i + 1] =
            l->prefix[i] +
            (counted ? (double)prof->count[(size_t)layer * c->n_ff + l->order[i]] : 1.0);
    if (c->sampled)
        PI_TRY(pi_profile_masks(prof, layer, &masks, err));
    for (int set = 0; set < PI_DRAWS_COUNT; set++) {
        if (c->sampled)
            PI_TRY(draws_from_masks(c, prof, masks, (enum pi_draw_set)set, l, err));
        else
            PI_TRY(draws_from_rates(c, tokens, &l->draws[set], l->prefix, err));
        PI_TRY(average(c, &l->draws[set], err));
    }
out:
    free(masks);
    return rc;
}

/* e of the header: what the predictor predicts beyond the active ones it finds, among the silent. */
static void rate_predictor(const struct pi_predictor *pred, struct pi_cost *c, double tokens)
{
    for (uint32_t l = 0; l < c->n_layer; l++) {
        const struct pi_predictor_layer *p = &pred->layers[l];
        double active = c->layers[l].prefix[c->n_ff] / tokens / (double)c->n_ff;

        /* the first layer has none before it whose attention could be read */
        c->layers[l].predictor = p->width > 0 && !(l == 0 && p->input == PI_PRED_IN_PREV_ATTN);
        c->layers[l].recall = fmin(fmax((double)p->recall, 0.0), 1.0);
        if (active < 1.0)
            c->layers[l].excess = fmin(
                fmax(((double)p->density - c->layers[l].recall * active) / (1.0 - active), 0.0),
                1.0);
    }
}

/* Seconds to read so many bytes of a type, one behind the other. */
static double cpu_seconds(const struct pi_hw_cpu *cpu, enum pi_type type, double bytes)
{
    return bytes / fmin(CPU_IN_ORDER * cpu->bandwidth, cpu->threads * thread_rate(type));
}

/* A row somewhere. */
static double cpu_row(const struct pi_hw_cpu *cpu, enum pi_type type, double bytes)
{
    const double slower =
                     (1.0 + ROW_EXTRA / fmax(bytes, ROW_LEAST)) / (1.0 + ROW_EXTRA / GATHER_ROW),
                 speed = CPU_EFFICIENCY * cpu->bandwidth / fmax(slower, 1.0);

    return bytes / fmin(speed, cpu->threads * thread_rate(type));
}

static struct pi_cost_rows cpu_rows(const struct pi_layer_bytes *b, double kv,
                                    const struct pi_hw_cpu *cpu)
{
    const bool gated = b->gate_row > 0;
    const double up = cpu_seconds(cpu, b->up_type, (double)b->up_row);
    const double down = cpu_seconds(cpu, b->down_type, (double)b->down_row);
    const double up_apart = cpu_row(cpu, b->up_type, (double)b->up_row);

    return (struct pi_cost_rows){
        .first = gated ? cpu_seconds(cpu, b->gate_type, (double)b->gate_row) : up,
        .rest = (gated ? up : 0.0) + down,
        .first_apart = gated ? cpu_row(cpu, b->gate_type, (double)b->gate_row) : up_apart,
        .rest_apart = (gated ? up_apart : 0.0) + cpu_row(cpu, b->down_type, (double)b->down_row),
        .fc1 = cpu_seconds(cpu, b->pred_type, (double)b->pred_fixed),
        .fc2 = cpu_seconds(cpu, b->pred_type, (double)b->pred_per_neuron),
        .attn = cpu_seconds(cpu, b->attn_type, (double)b->attn + (double)b->ffn_fixed) +
                cpu_seconds(cpu, PI_TYPE_F16, 0.5 * kv)};
}

static double gpu_seconds(double speed, enum pi_type type, double bytes)
{
    return bytes / fmin(speed, gpu_rate(type));
}

static struct pi_cost_rows gpu_rows(const struct pi_layer_bytes *b, double kv, double speed)
{
    const bool gated = b->dev_gate_row > 0;
    const double up = gpu_seconds(speed, b->up_type, (double)b->dev_up_row),
                 first = gated ? gpu_seconds(speed, b->gate_type, (double)b->dev_gate_row) : up,
                 rest =
                     (gated ? up : 0.0) + gpu_seconds(speed, b->down_type, (double)b->dev_down_row);

    return (struct pi_cost_rows){
        .first = first,
        .rest = rest,
        .first_apart = first,
        .rest_apart = rest,
        .fc1 = gpu_seconds(speed, b->pred_type, (double)b->dev_fc1),
        .fc2 =
            gpu_seconds(speed, b->pred_type, (double)b->dev_pred_row + (b->pred_bias ? 4.0 : 0.0)),
        .attn = gpu_seconds(speed, b->attn_type, (double)b->dev_attn + (double)b->dev_ffn_fixed) +
                0.5 * kv / speed};
}

static void rate_units(struct pi_cost *c, const struct pi_hw_cpu *cpu, const struct pi_hw_gpu *gpu)
{
    const struct pi_model_bytes *b = c->bytes;
    const double speed = gpu != NULL ? GPU_EFFICIENCY * gpu->bandwidth : 1.0;

    for (uint32_t l = 0; l < c->n_layer; l++) {
        c->layers[l].cpu = cpu_rows(&b->layers[l], (double)b->kv_layer, cpu);
        c->layers[l].gpu = gpu_rows(&b->layers[l], (double)b->kv_layer, speed);
    }
    c->head_cpu =
        cpu_seconds(cpu, b->output_type, (double)b->output + (double)b->output_norm) + CPU_BARRIER;
    c->head_gpu = gpu_seconds(speed, b->output_type, (double)b->dev_output) + c->kernel;
}

enum pi_code pi_cost_create(const struct pi_model_bytes *bytes, const struct pi_shape *shape,
                            const struct pi_profile *prof, const struct pi_predictor *pred,
                            enum pi_mode mode, const struct pi_hw_cpu *cpu,
                            const struct pi_hw_gpu *gpu, struct pi_cost *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_cost c = {.bytes = bytes, .n_layer = bytes->n_layer, .n_ff = bytes->n_ff};

    c.n_cuts = (c.n_ff + PI_ILP_GROUP - 1) / PI_ILP_GROUP + 1;
    c.plain = mode != PI_MODE_DENSE && pi_activation_has_zeros(shape->act) ? PI_MODE_EXACT
                                                                           : PI_MODE_DENSE;
    c.sampled = prof != NULL && prof->n_samples >= 2;
    c.gpu = gpu != NULL;
    c.sync = gpu != NULL ? gpu->sync : 0.0;
    c.kernel = gpu != NULL ? gpu->kernel : 0.0;
    if (prof != NULL && (prof->n_layer != c.n_layer || prof->n_ff != c.n_ff))
        PI_FAIL(err, PI_E_MISMATCH, "profile of %u layers of %u neurons, the model has %u of %u",
                prof->n_layer, prof->n_ff, c.n_layer, c.n_ff);
    PI_ALLOC(c.layers, c.n_layer, err);
    for (uint32_t l = 0; l < c.n_layer; l++)
        PI_TRY(make_layer(&c, prof, l, err));
    rate_units(&c, cpu, gpu);
    if (pred != NULL && mode == PI_MODE_PREDICTED && c.plain == PI_MODE_EXACT)
        rate_predictor(pred, &c, prof != NULL && prof->n_tokens > 0 ? (double)prof->n_tokens : 1.0);
    *out = c;
    c.layers = NULL;
out:
    pi_cost_free(&c);
    return rc;
}

static void draws_free(struct pi_draws *d)
{
    free(d->fired);
    free(d->mean);
}

void pi_cost_free(struct pi_cost *c)
{
    for (uint32_t l = 0; c->layers != NULL && l < c->n_layer; l++) {
        free(c->layers[l].order);
        free(c->layers[l].prefix);
        for (int set = 0; set < PI_DRAWS_COUNT; set++)
            draws_free(&c->layers[l].draws[set]);
    }
    free(c->layers);
    memset(c, 0, sizeof(*c));
}

bool pi_cost_has_mode(const struct pi_cost *c, uint32_t layer, enum pi_mode mode)
{
    return mode == c->plain || (mode == PI_MODE_PREDICTED && c->layers[layer].predictor);
}

/* Seconds that a unit reads the rows of n neurons of which `fired` fire. */
static double rows_time(const struct pi_cost_layer *l, const struct pi_cost_rows *r,
                        enum pi_mode mode, double n, double fired)
{
    double found;

    switch (mode) {
    case PI_MODE_EXACT:
        return n * r->first + fired * r->rest_apart;
    case PI_MODE_PREDICTED:
        found = l->recall * fired;
        return (found + l->excess * (n - fired)) * r->first_apart + found * r->rest_apart;
    case PI_MODE_DENSE:
        break;
    }
    return n * (r->first + r->rest);
}

/* Active ones among the hottest n of a draw; between two cuts they are taken as evenly spread. */
static double fired_in(const struct pi_cost *c, const float *fired, uint32_t n)
{
    uint32_t i = n / PI_ILP_GROUP, begin = pi_cost_cut(c, i), end;

    if (n >= c->n_ff)
        return (double)fired[c->n_cuts - 1];
    if (n == begin)
        return (double)fired[i];
    end = pi_cost_cut(c, i + 1);
    return (double)fired[i] +
           (double)(fired[i + 1] - fired[i]) * (double)(n - begin) / (double)(end - begin);
}

/* A layer's time but for its attention, of one draw: before, then max(hot + t_gpu, cold + t_cpu). */
struct split {
    double before, hot, cold;
    bool has_hot, has_cold;
};

static double gpu_predict(const struct pi_cost *c, const struct pi_cost_layer *l, double n)
{
    return KERNELS_PREDICT * c->kernel + l->gpu.fc1 + n * l->gpu.fc2;
}

static double cpu_predict(const struct pi_cost_layer *l, double n)
{
    return BARRIERS_PREDICT * CPU_BARRIER + l->cpu.fc1 + n * l->cpu.fc2;
}

static struct split split_of(const struct pi_cost *c, uint32_t layer,
                             const struct pi_place_layer *p)
{
    const struct pi_cost_layer *l = &c->layers[layer];
    const bool gpu_attn = p->attn_unit != PI_UNIT_CPU;
    const uint32_t n_cold = c->n_ff - p->n_hot;
    struct split s = {.has_hot = p->n_hot > 0, .has_cold = n_cold > 0};
    const bool hot_predicted = s.has_hot && p->mode_gpu == PI_MODE_PREDICTED;
    const bool cold_predicted = s.has_cold && p->mode_cpu == PI_MODE_PREDICTED;

    if (s.has_hot)
        s.hot = kernels_ffn[p->mode_gpu] * c->kernel;
    if (s.has_hot && !s.has_cold && gpu_attn && p->mode_gpu != PI_MODE_EXACT)
        s.hot -= c->kernel; /* nobody else wants the normed input: the products make it */
    if (s.has_cold)
        s.cold = BARRIERS_FFN * CPU_BARRIER;
    if (gpu_attn && cold_predicted) /* its own neurons by the same two kernels */
        s.before = gpu_predict(c, l, (double)n_cold + (hot_predicted ? (double)p->n_hot : 0.0));
    else if (hot_predicted)
        s.hot += gpu_predict(c, l, (double)p->n_hot);
    if (!gpu_attn && cold_predicted)
        s.cold += cpu_predict(l, (double)n_cold);
    if (gpu_attn)
        s.cold += c->sync;
    else
        s.hot += c->sync;
    return s;
}

static double split_time(const struct pi_cost *c, uint32_t layer, const struct pi_place_layer *p,
                         const struct split *s, const float *fired)
{
    const struct pi_cost_layer *l = &c->layers[layer];
    const double hot = fired_in(c, fired, p->n_hot), all = (double)fired[c->n_cuts - 1];
    double t = 0.0;

    if (s->has_hot)
        t = s->hot + rows_time(l, &l->gpu, p->mode_gpu, (double)p->n_hot, hot);
    if (s->has_cold)
        t = fmax(t, s->cold + rows_time(l, &l->cpu, p->mode_cpu, (double)(c->n_ff - p->n_hot),
                                        all - hot));
    return s->before + t;
}

/* A unit's time is linear in what fires, so that its mean is the time of the mean. */
double pi_cost_unit(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer, uint32_t unit,
                    const struct pi_place_layer *p)
{
    const float *mean = c->layers[layer].draws[set].mean;
    const bool gpu_attn = p->attn_unit != PI_UNIT_CPU;
    struct split s = split_of(c, layer, p);

    if (unit == PI_UNIT_CPU) {
        s.has_hot = false;
        s.before = 0.0;
        s.cold -= gpu_attn ? c->sync : 0.0;
    } else {
        s.has_cold = false;
        s.hot -= gpu_attn ? 0.0 : c->sync;
    }
    return split_time(c, layer, p, &s, mean);
}

double pi_cost_lead(const struct pi_cost *c, uint32_t layer, const struct pi_place_layer *p)
{
    return split_of(c, layer, p).before;
}

double pi_cost_attn(const struct pi_cost *c, uint32_t layer, bool gpu)
{
    const struct pi_cost_layer *l = &c->layers[layer];

    return gpu ? KERNELS_ATTN * c->kernel + l->gpu.attn : BARRIERS_ATTN * CPU_BARRIER + l->cpu.attn;
}

double pi_cost_ffn(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer,
                   const struct pi_place_layer *p)
{
    const struct pi_draws *d = &c->layers[layer].draws[set];
    const struct split s = split_of(c, layer, p);
    double sum = 0.0;

    for (uint32_t i = 0; i < d->n; i++)
        sum += split_time(c, layer, p, &s, d->fired + (size_t)i * c->n_cuts);
    return sum / d->n;
}

void pi_cost_best_modes(const struct pi_cost *c, uint32_t layer, struct pi_place_layer *p)
{
    struct pi_place_layer y = *p;
    double least = (double)INFINITY;

    for (int m = 0; m < 4; m++) {
        double t;

        y.mode_cpu = m & 1 ? c->plain : PI_MODE_PREDICTED;
        y.mode_gpu = m & 2 ? c->plain : PI_MODE_PREDICTED;
        if (!pi_cost_has_mode(c, layer, y.mode_cpu) || !pi_cost_has_mode(c, layer, y.mode_gpu))
            continue;
        t = pi_cost_ffn(c, PI_DRAWS_PLAN, layer, &y);
        if (t < least) {
            least = t;
            p->mode_cpu = y.mode_cpu;
            p->mode_gpu = y.mode_gpu;
        }
    }
}

double pi_cost_token(const struct pi_cost *c, enum pi_draw_set set, const struct pi_placement *p)
{
    bool gpu = p->output_unit != PI_UNIT_CPU;
    double t = gpu ? c->head_gpu : c->head_cpu;

    for (uint32_t l = 0; l < c->n_layer; l++) {
        const struct pi_place_layer *y = &p->layers[l];

        t += pi_cost_attn(c, l, y->attn_unit != PI_UNIT_CPU) + pi_cost_ffn(c, set, l, y);
        gpu = gpu || y->attn_unit != PI_UNIT_CPU || y->n_hot > 0;
    }
    return gpu ? t + GPU_STEP : t;
}
