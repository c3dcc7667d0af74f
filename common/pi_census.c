#include "config.h"

#include "common/pi_census.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>

const double pi_census_share[PI_CENSUS_POINTS] = {0.01, 0.05, 0.1, 0.2, 0.3, 0.5};

static void take_layer(const struct pi_profile *p, const uint64_t *count, const uint32_t *order,
                       struct pi_census *out)
{
    double total = 0, sum = 0, never = 0;

    for (uint32_t i = 0; i < p->n_ff; i++) {
        total += (double)count[i];
        never += count[i] == 0;
    }
    *out = (struct pi_census){.never = never / p->n_ff};
    if (total == 0)
        return;
    out->density = total / ((double)p->n_tokens * p->n_ff);
    for (uint32_t i = 0; i < p->n_ff; i++) {
        sum += (double)count[order[i]];
        if (out->hot80 == 0 && sum >= 0.8 * total)
            out->hot80 = (i + 1.0) / p->n_ff;
        /* a share that is no whole number of neurons counts those that are wholly in it */
        for (int k = 0; k < PI_CENSUS_POINTS; k++)
            if (i + 1.0 <= pi_census_share[k] * p->n_ff)
                out->covered[k] = sum / total;
    }
}

enum pi_code pi_census_take(const struct pi_profile *p, struct pi_census *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t *order = NULL;

    PI_ALLOC(order, p->n_ff, err);
    for (uint32_t l = 0; l < p->n_layer; l++) {
        PI_TRY(pi_profile_order(p, l, order, err));
        take_layer(p, p->count + (size_t)l * p->n_ff, order, &out[l]);
    }
out:
    free(order);
    return rc;
}

void pi_census_mean(const struct pi_census *c, uint32_t n, struct pi_census *out)
{
    *out = (struct pi_census){0};
    for (uint32_t l = 0; l < n; l++) {
        out->density += c[l].density / n;
        out->hot80 += c[l].hot80 / n;
        out->never += c[l].never / n;
        for (int i = 0; i < PI_CENSUS_POINTS; i++)
            out->covered[i] += c[l].covered[i] / n;
    }
}

/* Steps of a quarter of a percent at first, where curves bend, of 2.5 % later. */
size_t pi_census_cuts(uint32_t n_ff, uint32_t cuts_out[PI_CENSUS_CUTS])
{
    size_t n = 0;
    double share = 0.0;

    while (n + 1 < PI_CENSUS_CUTS && share < 1.0 - 1e-9) {
        const uint32_t k = (uint32_t)lround(share * n_ff);

        if (n == 0 || k > cuts_out[n - 1])
            cuts_out[n++] = k;
        share += share < 0.0199 ? 0.0025 : share < 0.0999 ? 0.01 : 0.025;
    }
    if (n == 0 || cuts_out[n - 1] < n_ff)
        cuts_out[n++] = n_ff;
    return n;
}

enum pi_code pi_census_curve(const struct pi_profile *p, uint32_t layer, const uint32_t *cuts,
                             size_t n, double *covered_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint64_t *count = p->count + (size_t)layer * p->n_ff;
    uint32_t *order = NULL, done = 0;
    double total = 0.0, sum = 0.0;

    PI_ALLOC(order, p->n_ff, err);
    PI_TRY(pi_profile_order(p, layer, order, err));
    for (uint32_t i = 0; i < p->n_ff; i++)
        total += (double)count[i];
    for (size_t k = 0; k < n; k++) {
        for (; done < cuts[k]; done++)
            sum += (double)count[order[done]];
        covered_out[k] = total > 0.0 ? sum / total : (double)NAN;
    }
out:
    free(order);
    return rc;
}
