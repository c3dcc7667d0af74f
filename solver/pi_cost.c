#include "config.h"

#include "solver/pi_cost.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static enum pi_code draws_from_masks(const struct pi_cost *c, const struct pi_profile *prof,
                                     const uint8_t *masks, enum pi_draw_set set,
                                     struct pi_cost_layer *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_draws *d = &l->draws[set];
    size_t mask_bytes = ((size_t)c->n_ff + 7) / 8;

    d->n = share_of(prof->n_samples, set);
    PI_ALLOC(d->fired, (size_t)d->n * c->n_cuts, err);
    for (uint32_t s = 0; s < d->n; s++) {
        const uint8_t *mask = masks + sample_of(prof->n_samples, set, s, d->n) * mask_bytes;
        float *fired = d->fired + (size_t)s * c->n_cuts;
        uint32_t sum = 0;

        for (uint32_t i = 1; i < c->n_cuts; i++) {
            for (uint32_t k = pi_cost_cut(c, i - 1); k < pi_cost_cut(c, i); k++)
                sum += mask[l->order[k] / 8] >> l->order[k] % 8 & 1;
            fired[i] = (float)sum;
        }
    }
out:
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

        c->layers[l].predictor = p->width > 0;
        c->layers[l].recall = fmin(fmax((double)p->recall, 0.0), 1.0);
        if (active < 1.0)
            c->layers[l].excess = fmin(
                fmax(((double)p->density - c->layers[l].recall * active) / (1.0 - active), 0.0),
                1.0);
    }
}

enum pi_code pi_cost_create(const struct pi_model_bytes *bytes, const struct pi_shape *shape,
                            const struct pi_profile *prof, const struct pi_predictor *pred,
                            const struct pi_hw_cpu *cpu, const struct pi_hw_gpu *gpu,
                            struct pi_cost *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_cost c = {.bytes = bytes, .n_layer = bytes->n_layer, .n_ff = bytes->n_ff};

    c.n_cuts = (c.n_ff + PI_ILP_GROUP - 1) / PI_ILP_GROUP + 1;
    c.zeros = pi_activation_has_zeros(shape->act);
    c.sampled = prof != NULL && prof->n_samples >= 2;
    c.cpu_bandwidth = cpu->bandwidth;
    c.gpu_bandwidth = gpu != NULL ? gpu->bandwidth : 0.0;
    c.sync = gpu != NULL ? gpu->sync : 0.0;
    if (prof != NULL && (prof->n_layer != c.n_layer || prof->n_ff != c.n_ff))
        PI_FAIL(err, PI_E_MISMATCH, "profile of %u layers of %u neurons, the model has %u of %u",
                prof->n_layer, prof->n_ff, c.n_layer, c.n_ff);
    PI_ALLOC(c.layers, c.n_layer, err);
    for (uint32_t l = 0; l < c.n_layer; l++)
        PI_TRY(make_layer(&c, prof, l, err));
    if (pred != NULL)
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
    return mode == PI_MODE_DENSE || (mode == PI_MODE_EXACT && c->zeros) ||
           (mode == PI_MODE_PREDICTED && c->layers[layer].predictor);
}

/* Bytes read for n neurons of which `fired` fire. */
static double bytes_read(const struct pi_cost *c, uint32_t layer, enum pi_mode mode, double n,
                         double fired)
{
    const struct pi_layer_bytes *b = &c->bytes->layers[layer];
    double first = (double)(b->gate_row > 0 ? b->gate_row : b->up_row);
    double rest = (double)b->neuron - first, found;

    if (!(n > 0.0))
        return 0.0;
    switch (mode) {
    case PI_MODE_EXACT:
        return n * first + fired * rest;
    case PI_MODE_PREDICTED:
        found = c->layers[layer].recall * fired;
        return (double)b->pred_fixed + n * (double)b->pred_per_neuron + found * rest +
               (found + c->layers[layer].excess * (n - fired)) * first;
    case PI_MODE_DENSE:
        break;
    }
    return n * (double)b->neuron;
}

/* Active ones among the hottest n of a draw; between two cuts they are taken as evenly spread. */
static double fired_in(const struct pi_cost *c, const float *fired, uint32_t n)
{
    uint32_t i = n / PI_ILP_GROUP, begin = pi_cost_cut(c, i), end;

    if (n >= c->n_ff)
        return (double)fired[c->n_cuts - 1];
    end = pi_cost_cut(c, i + 1);
    return (double)fired[i] +
           (double)(fired[i + 1] - fired[i]) * (double)(n - begin) / (double)(end - begin);
}

/* Seconds of the two units for one draw. */
static double gpu_time(const struct pi_cost *c, uint32_t layer, enum pi_mode mode,
                       const float *fired, uint32_t n_hot)
{
    return bytes_read(c, layer, mode, (double)n_hot, fired_in(c, fired, n_hot)) / c->gpu_bandwidth;
}

static double cpu_time(const struct pi_cost *c, uint32_t layer, enum pi_mode mode,
                       const float *fired, uint32_t n_hot)
{
    double cold = (double)(fired[c->n_cuts - 1]) - fired_in(c, fired, n_hot);

    return bytes_read(c, layer, mode, (double)(c->n_ff - n_hot), cold) / c->cpu_bandwidth;
}

/* A unit's time is linear in what fires, so that its mean is the time of the mean. */
double pi_cost_unit(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer, uint32_t unit,
                    enum pi_mode mode, uint32_t n_hot)
{
    const float *mean = c->layers[layer].draws[set].mean;

    if (unit != PI_UNIT_CPU)
        return n_hot > 0 ? gpu_time(c, layer, mode, mean, n_hot) : 0.0;
    return cpu_time(c, layer, mode, mean, n_hot);
}

enum pi_mode pi_cost_best_mode(const struct pi_cost *c, uint32_t layer, uint32_t unit,
                               uint32_t n_hot)
{
    enum pi_mode best = PI_MODE_DENSE;
    double least = (double)INFINITY;

    for (int m = PI_MODE_PREDICTED; m >= PI_MODE_DENSE; m--) {
        double t;

        if (!pi_cost_has_mode(c, layer, (enum pi_mode)m))
            continue;
        t = pi_cost_unit(c, PI_DRAWS_PLAN, layer, unit, (enum pi_mode)m, n_hot);
        if (t < least) {
            least = t;
            best = (enum pi_mode)m;
        }
    }
    return best;
}

double pi_cost_attn(const struct pi_cost *c, uint32_t layer, bool gpu)
{
    const struct pi_layer_bytes *b = &c->bytes->layers[layer];
    double bytes = (double)b->attn + (double)b->ffn_fixed + 0.5 * (double)c->bytes->kv_layer;

    return bytes / (gpu ? c->gpu_bandwidth : c->cpu_bandwidth);
}

double pi_cost_ffn(const struct pi_cost *c, enum pi_draw_set set, uint32_t layer,
                   const struct pi_place_layer *p)
{
    const struct pi_draws *d = &c->layers[layer].draws[set];
    bool gpu_attn = p->attn_unit != PI_UNIT_CPU, gpu_part = gpu_attn || p->n_hot > 0;
    double sync = gpu_part && p->n_hot < c->n_ff ? c->sync : 0.0, sum = 0.0;

    for (uint32_t s = 0; s < d->n; s++) {
        const float *fired = d->fired + (size_t)s * c->n_cuts;
        double cpu = cpu_time(c, layer, p->mode_cpu, fired, p->n_hot) + sync;

        sum += p->n_hot > 0 ? fmax(cpu, gpu_time(c, layer, p->mode_gpu, fired, p->n_hot)) : cpu;
    }
    return sum / d->n + (!gpu_attn && gpu_part ? c->sync : 0.0);
}

double pi_cost_token(const struct pi_cost *c, enum pi_draw_set set, const struct pi_placement *p)
{
    double out = (double)c->bytes->output + (double)c->bytes->output_norm;
    double t = out / (p->output_unit != PI_UNIT_CPU ? c->gpu_bandwidth : c->cpu_bandwidth);

    for (uint32_t l = 0; l < c->n_layer; l++)
        t += pi_cost_attn(c, l, p->layers[l].attn_unit != PI_UNIT_CPU) +
             pi_cost_ffn(c, set, l, &p->layers[l]);
    return t;
}
