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

/* Of one layer; all are shares 0..1. */
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

/* {"tokens":…,"layers":[{"density":…,"hot80":…,"never":…}]} on standard output, or a table for people. */
enum pi_code pi_census_print(const struct pi_profile *p, bool json,
                             struct pi_err *err) PI_MUST_CHECK;

#endif
