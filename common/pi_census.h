/*
 * pi_census.h - what a profile says, as figures: density, hot share, silent neurons, how steeply activations concentrate.
 */
#ifndef PI_CENSUS_H
#define PI_CENSUS_H

#include "common/pi_err.h"
#include "common/pi_profile.h"

#include <stdbool.h>

#define PI_CENSUS_POINTS 6
extern const double pi_census_share
    [PI_CENSUS_POINTS]; /* 0.01, 0.05, 0.1, 0.2, 0.3, 0.5 of the neurons, hottest first */

/* Of one layer; all are shares 0..1, and 0 where nothing fires. */
struct pi_census {
    double density; /* neurons active per token, mean */
    double hot80; /* neurons, hottest first, that make 80 % of the activations; 0 when none fires */
    double never; /* neurons that never fired */
    double covered
        [PI_CENSUS_POINTS]; /* activations made by the hottest pi_census_share[i] of the neurons */
};

/* out (n_layer), the caller's. */
enum pi_code pi_census_take(const struct pi_profile *p, struct pi_census *out,
                            struct pi_err *err) PI_MUST_CHECK;

/* The mean of n layers' figures. */
void pi_census_mean(const struct pi_census *c, uint32_t n, struct pi_census *out);

/* Places for a curve of activations over neurons: rising numbers of neurons from 0 to n_ff, closer together where there are few. Returns how many. */
#define PI_CENSUS_CUTS 64
size_t pi_census_cuts(uint32_t n_ff, uint32_t cuts_out[PI_CENSUS_CUTS]);
/* covered_out (n): the share of a layer's activations that its hottest cuts[i] neurons make; not a number in a layer where nothing fires.
 * cuts (n) rise, none is above n_ff. PI_E_NOMEM. */
enum pi_code pi_census_curve(const struct pi_profile *p, uint32_t layer, const uint32_t *cuts,
                             size_t n, double *covered_out, struct pi_err *err) PI_MUST_CHECK;

#endif
