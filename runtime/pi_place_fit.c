#include "config.h"

#include "runtime/pi_place_fit.h"

#include "common/pi_alloc.h"
#include "common/pi_estimate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS     1024u /* the factor is a multiple of 1 / STEPS */
#define MAX_STEPS (64 * STEPS)
#define SPARE     50u /* sets grow where more than one part in so many is left over */

void pi_format_bytes(uint64_t bytes, char *text, size_t n)
{
    if (bytes % ((uint64_t)1 << 30) == 0)
        (void)snprintf(text, n, "%lluG", (unsigned long long)(bytes >> 30));
    else if (bytes % ((uint64_t)1 << 20) == 0)
        (void)snprintf(text, n, "%lluM", (unsigned long long)(bytes >> 20));
    else
        (void)snprintf(text, n, "%lluK", (unsigned long long)(bytes / 1024 + (bytes % 1024 != 0)));
}

static uint32_t scaled(uint32_t n_hot, uint32_t step, uint32_t n_ff)
{
    const uint64_t n = (uint64_t)n_hot * step / STEPS;

    return n < n_ff ? (uint32_t)n : n_ff;
}

/* The fullest GPU's bytes with hot sets of step / STEPS of full (n_layer). */
static enum pi_code fullest(struct pi_placement *p, const uint32_t *full, uint32_t step,
                            const struct pi_model_bytes *b, uint64_t context_bytes,
                            uint64_t *bytes_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    *bytes_out = 0;
    for (uint32_t l = 0; l < p->n_layer; l++)
        p->layers[l].n_hot = scaled(full[l], step, p->n_ff);
    for (uint32_t u = 1; u < p->n_units; u++) {
        struct pi_gpu_budget g;

        PI_TRY(pi_estimate_gpu(b, p, u, context_bytes, &g, err));
        *bytes_out = g.total > *bytes_out ? g.total : *bytes_out;
    }
out:
    return rc;
}

/* The largest step between lo, which fits, and hi, which does not, or was not tried; leaves p at it. */
static enum pi_code search(struct pi_placement *p, const uint32_t *full, uint32_t lo, uint32_t hi,
                           const struct pi_model_bytes *b, uint64_t context_bytes, uint64_t budget,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t bytes;

    while (hi - lo > 1) {
        const uint32_t mid = lo + (hi - lo) / 2;

        PI_TRY(fullest(p, full, mid, b, context_bytes, &bytes, err));
        if (bytes <= budget)
            lo = mid;
        else
            hi = mid;
    }
    PI_TRY(fullest(p, full, lo, b, context_bytes, &bytes, err));
out:
    return rc;
}

static enum pi_code shrink(struct pi_placement *p, const uint32_t *full,
                           const struct pi_model_bytes *b, uint64_t context_bytes, uint64_t budget,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t bytes;
    char need[32], have[32];

    PI_TRY(fullest(p, full, 0, b, context_bytes, &bytes, err));
    if (bytes > budget) {
        pi_format_bytes(bytes, need, sizeof(need));
        pi_format_bytes(budget, have, sizeof(have));
        PI_FAIL(err, PI_E_INFEASIBLE,
                "--vram-budget %s: this placement's attention and buffers alone need %s", have,
                need);
    }
    PI_TRY(search(p, full, 0, STEPS, b, context_bytes, budget, err));
out:
    return rc;
}

enum pi_code pi_place_fit(struct pi_placement *p, const struct pi_model *m,
                          const struct pi_predictor *pred, uint64_t budget, uint64_t context_bytes,
                          uint32_t n_ctx, enum pi_type kv_type, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_run_size run = {
        .n_ctx = n_ctx, .n_seq = p->n_seq, .n_batch = p->n_batch, .kv_type = kv_type};
    struct pi_model_bytes b = {0};
    uint32_t *full = NULL;
    uint64_t bytes;

    if (p->n_units < 2)
        return PI_OK;
    PI_ALLOC(full, p->n_layer, err);
    for (uint32_t l = 0; l < p->n_layer; l++)
        full[l] = p->layers[l].n_hot;
    PI_TRY(pi_estimate_model(&m->file, &m->shape, pred, &run, &b, err));
    PI_TRY(fullest(p, full, STEPS, &b, context_bytes, &bytes, err));
    if (bytes > budget)
        PI_TRY(shrink(p, full, &b, context_bytes, budget, err));
    else if (context_bytes > 0 && budget - bytes > budget / SPARE)
        PI_TRY(search(p, full, STEPS, MAX_STEPS + 1, &b, context_bytes, budget, err));
    p->budget = budget;
out:
    free(full);
    pi_model_bytes_free(&b);
    return rc;
}
