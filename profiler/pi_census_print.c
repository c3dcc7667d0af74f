#include "config.h"

#include "profiler/pi_census_print.h"

#include "common/pi_alloc.h"
#include "common/pi_census.h"
#include "profiler/pi_print.h"

#include <stdio.h>
#include <stdlib.h>

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
    struct pi_census mean;
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
    }
    pi_census_mean(c, p->n_layer, &mean);
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
