/* What a predictor that others made is worth on the model it came with. */
#include "config.h"

#include "convert/pi_selfcheck.h"
#include "common/pi_alloc.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_engine.h"

#include <stdlib.h>

/* Of one layer, over all tokens. */
struct tally {
    uint64_t active, predicted, both;
};

static void count(const struct pi_trace *t, uint32_t n_layer, struct tally *tally)
{
    for (uint32_t l = 0; l < n_layer; l++) {
        for (size_t i = 0; i < t->mask_bytes; i++) {
            const uint8_t p = t->predicted[l * t->mask_bytes + i],
                          a = t->truth[l * t->mask_bytes + i];

            tally[l].active += (uint64_t)__builtin_popcount(a);
            tally[l].predicted += (uint64_t)__builtin_popcount(p);
            tally[l].both += (uint64_t)__builtin_popcount(a & p);
        }
    }
}

static float share(uint64_t part, uint64_t of)
{
    return of == 0 ? 1.0f : (float)((double)part / (double)of);
}

/* Every layer's figures, and all layers' gain. */
static double judge(struct pi_predictor *p, const struct tally *tally, uint64_t n_tok)
{
    uint64_t active = 0, both = 0, wasted = 0, idle = 0;

    for (uint32_t l = 0; l < p->n_layer; l++) {
        struct pi_predictor_layer *x = &p->layers[l];
        const struct tally *t = &tally[l];

        if (x->width == 0)
            continue;
        x->recall = share(t->both, t->active);
        x->precision = share(t->both, t->predicted);
        x->density = share(t->predicted, n_tok * p->n_ff);
        active += t->active;
        both += t->both;
        wasted += t->predicted - t->both;
        idle += n_tok * p->n_ff - t->active;
    }
    return (active == 0 ? 1.0 : (double)both / (double)active) -
           (idle == 0 ? 0.0 : (double)wasted / (double)idle);
}

enum pi_code pi_selfcheck_predictor(const struct pi_selfcheck *k, struct pi_predictor *p,
                                    double *gain_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_model_options mo = {.accept_edited = k->accept_edited};
    struct pi_engine_options eo = {
        .mode = PI_MODE_PREDICTED, .n_seq = 1, .kv_type = PI_TYPE_F32, .force_predicted = true};
    struct pi_model m = {0};
    struct pi_selfcheck_prompt prompt;
    struct pi_engine *e = NULL;
    struct pi_trace trace = {.mask_bytes = (p->n_ff + 7) / 8};
    struct tally *tally = NULL;
    const bool unwanted = false;

    PI_TRY(pi_blas_init(err));
    PI_TRY(pi_model_open(k->target, &mo, &m, err));
    PI_TRY(pi_selfcheck_make_prompt(&m, &prompt, err));
    PI_ALLOC(trace.predicted, p->n_layer * trace.mask_bytes, err);
    PI_ALLOC(trace.truth, p->n_layer * trace.mask_bytes, err);
    PI_ALLOC(tally, p->n_layer, err);
    eo.n_ctx = prompt.n;
    PI_TRY(pi_engine_create(&m, p, NULL, k->pool, &eo, &e, err));
    pi_engine_trace(e, &trace);
    for (uint32_t i = 0; i < prompt.n; i++) {
        const int32_t pos = (int32_t)i;
        const struct pi_batch one = {
            .n_tok = 1, .token = &prompt.ids[i], .pos = &pos, .want = &unwanted};

        PI_TRY(pi_engine_run(e, PI_PHASE_DECODE, &one, NULL, err));
        count(&trace, p->n_layer, tally);
    }
    *gain_out = judge(p, tally, prompt.n);
out:
    pi_engine_destroy(e);
    pi_model_close(&m);
    free(trace.predicted);
    free(trace.truth);
    free(tally);
    return rc;
}
