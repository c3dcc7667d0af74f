#include "config.h"

#include "runtime/pi_place_gpu.h"

#include "common/pi_estimate.h"

enum pi_code pi_place_all(const struct pi_model *m, const struct pi_predictor *pred, uint32_t n_ctx,
                          uint32_t n_batch, enum pi_type kv_type, struct pi_placement *out,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_placement p = {0};

    PI_TRY(pi_placement_cpu(m->shape.n_layer, m->shape.n_ff, &p, err));
    for (uint32_t l = 0; l < p.n_layer; l++) {
        struct pi_place_layer *y = &p.layers[l];

        y->n_hot = p.n_ff;
        y->hot_unit = y->attn_unit = 1;
        y->mode_gpu = y->mode_cpu =
            pred != NULL && pred->layers[l].width > 0 ? PI_MODE_PREDICTED : PI_MODE_EXACT;
    }
    p.n_units = 2;
    p.output_unit = 1;
    p.budget = UINT64_MAX;
    p.n_ctx = n_ctx;
    p.n_seq = 1;
    p.n_batch = n_batch;
    p.kv_type = kv_type;
    p.lineage = m->lineage;
    p.fingerprint = m->fingerprint;
    *out = p;
out:
    return rc;
}

enum pi_code pi_place_need(const struct pi_placement *p, const struct pi_model *m,
                           const struct pi_predictor *pred, uint32_t n_ctx, enum pi_type kv_type,
                           uint64_t *bytes_out, struct pi_err *err)
{
    const struct pi_run_size run = {
        .n_ctx = n_ctx, .n_seq = p->n_seq, .n_batch = p->n_batch, .kv_type = kv_type};
    struct pi_model_bytes b = {0};
    uint64_t most = 0, bytes;
    enum pi_code rc;

    PI_TRY(pi_estimate_model(&m->file, &m->shape, pred, &run, &b, err));
    for (uint32_t u = 1; u < p->n_units; u++) {
        PI_TRY(pi_estimate_unit(&b, p, u, &bytes, err));
        most = bytes > most ? bytes : most;
    }
    *bytes_out = most;
out:
    pi_model_bytes_free(&b);
    return rc;
}
