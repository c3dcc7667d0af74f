#include "config.h"

#include "profiler/pi_census.h"

#include "common/pi_alloc.h"
#include "profiler/pi_print.h"

#include <stdio.h>
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
    *out = (struct pi_census){.density = total / ((double)p->n_tokens * p->n_ff),
                              .never = never / p->n_ff};
    if (total == 0)
        return;
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

static enum pi_code print_json(const struct pi_profile *p, const struct pi_census *c,
                               struct pi_err *err)
{
    json_t *layers = json_array();

    for (uint32_t l = 0; l < p->n_layer; l++)
        pi_print_append(&layers, json_pack("{s:f, s:f, s:f}", "density", c[l].density, "hot80",
                                           c[l].hot80, "never", c[l].never));
    return pi_print_json(
        json_pack("{s:I, s:o}", "tokens", (json_int_t)p->n_tokens, "layers", layers), err);
}

static void print_row(const char *name, const struct pi_census *c)
{
    printf("%5s %8.2f %8.2f %8.2f  ", name, 100 * c->density, 100 * c->hot80, 100 * c->never);
    for (int i = 0; i < PI_CENSUS_POINTS; i++)
        printf(" %6.1f", 100 * c->covered[i]);
    printf("\n");
}

static void print_table(const struct pi_profile *p, const struct pi_census *c)
{
    struct pi_census mean = {0};
    char name[16];

    printf("%llu tokens, %u layers of %u neurons, %llu samples; all figures in %%\n",
           (unsigned long long)p->n_tokens, p->n_layer, p->n_ff, (unsigned long long)p->n_samples);
    printf("layer  density    hot80    never   activations made by the hottest");
    for (int i = 0; i < PI_CENSUS_POINTS; i++)
        printf(" %g", 100 * pi_census_share[i]);
    printf("\n");
    for (uint32_t l = 0; l < p->n_layer; l++) {
        (void)snprintf(name, sizeof(name), "%u", l);
        print_row(name, &c[l]);
        mean.density += c[l].density / p->n_layer;
        mean.hot80 += c[l].hot80 / p->n_layer;
        mean.never += c[l].never / p->n_layer;
        for (int i = 0; i < PI_CENSUS_POINTS; i++)
            mean.covered[i] += c[l].covered[i] / p->n_layer;
    }
    print_row("mean", &mean);
}

enum pi_code pi_census_print(const struct pi_profile *p, bool json, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_census *c = NULL;

    PI_ALLOC(c, p->n_layer, err);
    PI_TRY(pi_census_take(p, c, err));
    if (json)
        PI_TRY(print_json(p, c, err));
    else
        print_table(p, c);
out:
    free(c);
    return rc;
}
