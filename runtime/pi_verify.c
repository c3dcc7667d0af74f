#include "config.h"

#include "runtime/pi_verify.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "runtime/pi_eval.h"

#include <math.h>
#include <stdlib.h>

struct pi_verify {
    const struct pi_model *model;
    struct pi_engine *sparse, *dense;
    struct pi_trace trace;
    float *dense_logits; /* (n_vocab), owned */
    struct pi_out *masks;
    uint64_t positions, top1;
    double kl;
    uint64_t active, missed, predicted, wasted; /* neurons, over positions and layers */
};

static void put_u32(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static enum pi_code write_header(struct pi_verify *v, bool patch, struct pi_err *err)
{
    uint8_t head[12];

    if (v->positions > UINT32_MAX)
        return pi_err_set(err, PI_E_RANGE, "more positions than a mask file can count");
    put_u32(head, v->positions);
    put_u32(head + 4, v->model->shape.n_layer);
    put_u32(head + 8, v->model->shape.n_ff);
    return patch ? pi_out_patch(v->masks, 0, head, sizeof(head), err)
                 : pi_out_write(v->masks, head, sizeof(head), err);
}

enum pi_code pi_verify_create(const struct pi_model *m, struct pi_engine *sparse,
                              struct pi_engine *dense, const char *masks_path,
                              struct pi_verify **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_verify *v = NULL;
    size_t n;

    PI_ALLOC(v, 1, err);
    v->model = m;
    v->sparse = sparse;
    v->dense = dense;
    v->trace.mask_bytes = ((size_t)m->shape.n_ff + 7) / 8;
    n = v->trace.mask_bytes * m->shape.n_layer; /* both are bounded by pi_shape.h */
    PI_ALLOC(v->trace.predicted, n, err);
    PI_ALLOC(v->trace.truth, n, err);
    PI_ALLOC(v->dense_logits, m->shape.n_vocab, err);
    if (masks_path != NULL) {
        PI_TRY(pi_out_open(masks_path, &v->masks, err));
        PI_TRY(write_header(v, false, err));
    }
    pi_engine_trace(sparse, &v->trace);
    *out = v;
    v = NULL;
out:
    if (v != NULL)
        v->sparse = NULL;
    pi_verify_destroy(v);
    return rc;
}

void pi_verify_destroy(struct pi_verify *v)
{
    if (v == NULL)
        return;
    if (v->sparse != NULL)
        pi_engine_trace(v->sparse, NULL);
    pi_out_abort(v->masks);
    free(v->trace.predicted);
    free(v->trace.truth);
    free(v->dense_logits);
    free(v);
}

void pi_verify_restart(struct pi_verify *v)
{
    pi_engine_truncate(v->sparse, 0, 0);
    pi_engine_truncate(v->dense, 0, 0);
}

static void count_masks(struct pi_verify *v)
{
    const size_t n = v->trace.mask_bytes * v->model->shape.n_layer;

    for (size_t i = 0; i < n; i++) {
        const unsigned p = v->trace.predicted[i], t = v->trace.truth[i];

        v->predicted += (unsigned)__builtin_popcount(p);
        v->active += (unsigned)__builtin_popcount(t);
        v->missed += (unsigned)__builtin_popcount(t & ~p);
        v->wasted += (unsigned)__builtin_popcount(p & ~t);
    }
}

static enum pi_code write_masks(struct pi_verify *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t n = v->trace.mask_bytes;

    for (uint32_t l = 0; l < v->model->shape.n_layer; l++) {
        PI_TRY(pi_out_write(v->masks, v->trace.predicted + l * n, n, err));
        PI_TRY(pi_out_write(v->masks, v->trace.truth + l * n, n, err));
    }
out:
    return rc;
}

enum pi_code pi_verify_step(struct pi_verify *v, int32_t token, uint32_t pos, float *logits_out,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n_vocab = v->model->shape.n_vocab;
    const int32_t position = (int32_t)pos;
    const struct pi_batch b = {.n_tok = 1, .token = &token, .pos = &position};
    double kl;

    PI_TRY(pi_engine_run(v->sparse, PI_PHASE_DECODE, &b, logits_out, err));
    PI_TRY(pi_engine_run(v->dense, PI_PHASE_DECODE, &b, v->dense_logits, err));
    kl = pi_kl(v->dense_logits, logits_out, n_vocab);
    if (!isfinite(kl))
        PI_FAIL(err, PI_E_SELFCHECK,
                "position %llu: the divergence from the dense run is not finite",
                (unsigned long long)v->positions);
    v->positions++;
    v->kl += kl;
    v->top1 += pi_argmax(v->dense_logits, n_vocab) == pi_argmax(logits_out, n_vocab);
    count_masks(v);
    if (v->masks != NULL)
        PI_TRY(write_masks(v, err));
out:
    return rc;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

enum pi_code pi_verify_finish(struct pi_verify *v, struct pi_verify_result *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_out *masks = v->masks;

    *out = (struct pi_verify_result){
        .positions = v->positions,
        .kl = share(v->kl, (double)v->positions),
        .top1 = share((double)v->top1, (double)v->positions),
        .missed = share((double)v->missed, (double)v->active),
        .wasted = share((double)v->wasted, (double)v->predicted),
    };
    if (masks != NULL) {
        PI_TRY(write_header(v, true, err));
        v->masks = NULL; /* commit frees it in every case */
        PI_TRY(pi_out_commit(masks, err));
    }
out:
    return rc;
}
