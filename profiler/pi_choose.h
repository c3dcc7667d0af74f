/*
 * pi_choose.h - which threshold each layer gets, or whether it runs exact: the fewest bytes per token for a bounded damage.
 *
 * Every layer offers points: thresholds that reach the recall asked for, each with the bytes it reads per token and the damage it does (pi_damage.h); running
 * exact is one more, without damage. All layers start at their cheapest point. While the damage of all together is above the bound, the step to a
 * later point (of any layer) that takes away most damage per added byte is made: on the points' convex hulls this is the optimum of the Lagrangian
 * relaxation.
 */
#ifndef PI_CHOOSE_H
#define PI_CHOOSE_H

#include "profiler/pi_calibrate.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_point {
    float threshold;
    double damage;
    double bytes; /* read per token */
    bool allowed; /* reaches the recall on the test part */
    struct pi_found on_test;
};

struct pi_curve {
    struct pi_point point[PI_CURVE_POINTS]; /* falling thresholds; bytes rise and damage falls */
    uint32_t n;                             /* 0: no predictor at all */
    double exact_bytes;                     /* of exact mode */
};

/* choice_out (n): index of the point, or curve.n for exact. */
void pi_choose(const struct pi_curve *const *curve, uint32_t n, double max_damage,
               uint32_t *choice_out);

#endif
