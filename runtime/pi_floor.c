#include "config.h"

#include "runtime/pi_floor.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>

/* One unit's part of a layer's neurons. */
struct part {
    double n, active; /* neurons; those that fire for at least one sequence */
    enum pi_mode mode;
};

/* The mode of one unit: dense and exact hold for the whole layer. */
static enum pi_mode unit_mode(enum pi_mode layer, const struct pi_place_layer *p, bool gpu)
{
    if (layer != PI_MODE_PREDICTED || p == NULL || p->n_hot == 0)
        return layer;
    return gpu ? p->mode_gpu : p->mode_cpu;
}

static void split(const struct pi_floor_in *in, uint32_t l, double *fires, struct part part[2])
{
    const uint32_t n_ff = in->bytes->n_ff;
    const struct pi_place_layer *p = in->place != NULL ? &in->place->layers[l] : NULL;
    const uint32_t n_hot = p != NULL ? p->n_hot : 0;

    for (uint32_t i = 0; i < n_ff && in->profile != NULL; i++) {
        const double rate =
            (double)in->profile->count[(size_t)l * n_ff + i] / (double)in->profile->n_tokens;

        fires[i] = 1.0 - pow(1.0 - (rate < 1.0 ? rate : 1.0), in->n_seq);
    }
    for (int gpu = 0; gpu < 2; gpu++)
        part[gpu] = (struct part){.mode = unit_mode(in->mode[l], p, gpu)};
    for (uint32_t i = 0; i < n_ff; i++) {
        const uint32_t id = p != NULL ? p->order[i] : i;
        struct part *x = &part[i < n_hot];

        x->n++;
        x->active += fires[id];
    }
}

/* Bytes of a unit's neurons; the first matrix is the one that the activation is applied to. */
static double neuron_bytes(const struct pi_layer_bytes *y, const struct part *x)
{
    const double first = (double)(y->gate_row > 0 ? y->gate_row : y->up_row);
    const double rest = (double)(y->gate_row > 0 ? y->up_row : 0) + (double)y->down_row;

    switch (x->mode) {
    case PI_MODE_DENSE:
        return x->n * (first + rest);
    case PI_MODE_EXACT:
        return x->n * first + x->active * rest;
    case PI_MODE_PREDICTED:
        break;
    }
    return x->active * (first + rest);
}

static double predictor_bytes(const struct pi_layer_bytes *y, const struct part *x)
{
    if (x->n == 0 || x->mode != PI_MODE_PREDICTED)
        return 0;
    return (double)y->pred_fixed + x->n * (double)y->pred_per_neuron;
}

static void add_layer(const struct pi_floor_in *in, uint32_t l, const struct part part[2],
                      struct pi_floor *f)
{
    const struct pi_layer_bytes *y = &in->bytes->layers[l];
    const bool attn_gpu = in->place != NULL && in->place->layers[l].attn_unit != PI_UNIT_CPU;
    const double speed[2] = {in->cpu_bandwidth, in->gpu_bandwidth};
    const double alone = (double)y->attn + predictor_bytes(y, &part[0]);
    const double cold = neuron_bytes(y, &part[0]);
    const double hot = neuron_bytes(y, &part[1]) + predictor_bytes(y, &part[1]);
    const double t_cold = cold / speed[0], t_hot = hot > 0 ? hot / speed[1] : 0;

    f->seconds += alone / speed[attn_gpu] + (t_cold > t_hot ? t_cold : t_hot);
    *(attn_gpu ? &f->bytes_gpu : &f->bytes_cpu) += alone;
    f->bytes_cpu += cold;
    f->bytes_gpu += hot;
}

static enum pi_code check(const struct pi_floor_in *in, struct pi_err *err)
{
    const struct pi_model_bytes *b = in->bytes;
    bool sparse = false;

    for (uint32_t l = 0; l < b->n_layer; l++)
        sparse = sparse || in->mode[l] != PI_MODE_DENSE;
    if (sparse && in->profile == NULL)
        return pi_err_set(err, PI_E_MISMATCH, "a sparse mode's floor needs the model's profile");
    if (in->profile != NULL && (in->profile->n_layer != b->n_layer ||
                                in->profile->n_ff != b->n_ff || in->profile->n_tokens == 0))
        return pi_err_set(
            err, PI_E_MISMATCH,
            "a profile of %u layers of %u neurons over %llu tokens; the model has %u of %u",
            (unsigned)in->profile->n_layer, (unsigned)in->profile->n_ff,
            (unsigned long long)in->profile->n_tokens, (unsigned)b->n_layer, (unsigned)b->n_ff);
    return PI_OK;
}

enum pi_code pi_floor(const struct pi_floor_in *in, struct pi_floor *out, struct pi_err *err)
{
    const bool output_gpu = in->place != NULL && in->place->output_unit != PI_UNIT_CPU;
    const double output = (double)in->bytes->output + (double)in->bytes->output_norm;
    enum pi_code rc = PI_OK;
    struct pi_floor f = {0};
    double *fires = NULL;

    PI_TRY(check(in, err));
    PI_ALLOC(fires, in->bytes->n_ff, err);
    for (uint32_t l = 0; l < in->bytes->n_layer; l++) {
        struct part part[2];

        split(in, l, fires, part);
        add_layer(in, l, part, &f);
    }
    f.seconds += output / (output_gpu ? in->gpu_bandwidth : in->cpu_bandwidth);
    *(output_gpu ? &f.bytes_gpu : &f.bytes_cpu) += output;
    *out = f;
out:
    free(fires);
    return rc;
}
