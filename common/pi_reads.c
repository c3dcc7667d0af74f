#include "config.h"

#include "common/pi_reads.h"

#include <math.h>

/* Neurons of a layer that fire for a token, mean. */
static double active_of(const struct pi_profile *prof, uint32_t layer, uint32_t n_ff)
{
    double sum = 0.0;

    if (prof == NULL || prof->n_tokens == 0)
        return n_ff;
    for (uint32_t i = 0; i < n_ff; i++)
        sum += (double)prof->count[(size_t)layer * n_ff + i];
    return sum / (double)prof->n_tokens;
}

static void add_layer(const struct pi_layer_bytes *y, double n, double active,
                      const struct pi_predictor_layer *pred, enum pi_mode mode,
                      struct pi_reads *out)
{
    const bool gated = y->gate_row > 0;
    const double first = (double)(gated ? y->gate_row : y->up_row);
    const double rest = (double)(gated ? y->up_row : 0) + (double)y->down_row;
    const double exact = n * first + active * rest;
    double found, called = 0.0, rows, network;

    if (mode == PI_MODE_DENSE) {
        out->ffn += n * (first + rest);
        return;
    }
    if (mode == PI_MODE_PREDICTED && pred != NULL && pred->width > 0) {
        found = (double)pred->recall * active;
        if (active < n)
            called = fmin(fmax((double)pred->density * n - found, 0.0), n - active);
        rows = (found + called) * first + found * rest;
        network = (double)y->pred_fixed + (double)y->pred_per_neuron * n;
        if (rows + network < exact) {
            out->ffn += rows;
            out->predictor += network;
            out->n_predicted++;
            return;
        }
    }
    out->ffn += exact;
}

void pi_reads_take(const struct pi_model_bytes *b, const struct pi_profile *prof,
                   const struct pi_predictor *pred, enum pi_mode mode, struct pi_reads *out)
{
    struct pi_reads r = {.kv = 0.5 * (double)b->kv_layer * b->n_layer,
                         .output = (double)b->output + (double)b->output_norm};

    for (uint32_t l = 0; l < b->n_layer; l++) {
        r.attn += (double)b->layers[l].attn + (double)b->layers[l].ffn_fixed;
        add_layer(&b->layers[l], b->n_ff, active_of(prof, l, b->n_ff),
                  pred != NULL ? &pred->layers[l] : NULL, mode, &r);
    }
    r.total = r.attn + r.kv + r.ffn + r.predictor + r.output;
    *out = r;
}
