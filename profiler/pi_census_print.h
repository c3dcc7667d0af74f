/*
 * pi_census_print.h - the figures of common/pi_census.h on standard output.
 */
#ifndef PI_CENSUS_PRINT_H
#define PI_CENSUS_PRINT_H

#include "common/pi_err.h"
#include "common/pi_profile.h"

#include <stdbool.h>

/* {"tokens":…,"layers":[{"density":…,"hot80":…,"never":…}]} on standard output, or a table for people. */
enum pi_code pi_census_print(const struct pi_profile *p, bool json,
                             struct pi_err *err) PI_MUST_CHECK;

#endif
