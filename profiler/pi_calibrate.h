/*
 * pi_calibrate.h - what a predictor finds at a row of thresholds.
 *
 * The rule for thresholds: on the calibration part recall must be target + margin, margin = PI_MARGIN + 2 standard errors, the error of recall being taken
 * over blocks of positions (a ratio estimator: tokens of one block resemble each other, so that counting single activations would flatter it). Behind that
 * first point come others with ever fewer misses (each PI_MISS_STEP of those before): which one a layer gets is decided by what its misses do
 * to the model (pi_damage.h, pi_choose.h). What is reported comes from the test part.
 */
#ifndef PI_CALIBRATE_H
#define PI_CALIBRATE_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "profiler/pi_net.h"
#include "profiler/pi_trainset.h"

#define PI_MARGIN       0.003
#define PI_MISS_STEP    0.85
#define PI_CURVE_POINTS 24

/* Shares 0..1 over a part. */
struct pi_found {
    double recall;    /* of the active neurons, those predicted; 1 when none is active */
    double precision; /* of the predicted neurons, those active; 1 when none is predicted */
    double density;   /* of all neurons, those predicted */
    double active;    /* of all neurons, those active */
    double
        accuracy; /* of all neurons, those called rightly: for the record, "never" does well on it */
    double error; /* standard error of recall over blocks */
};

/* Counts at n thresholds, falling, n <= PI_CURVE_POINTS; out (n). PI_E_NOMEM. */
enum pi_code pi_calibrate_count(const struct pi_net *net, const struct pi_trainset *s,
                                enum pi_part part, struct pi_pool *pool, const float *threshold,
                                uint32_t n, struct pi_found *out, struct pi_err *err) PI_MUST_CHECK;

/* The highest thresholds whose recall over the part is at least recall[i], i < n, rising; out (n), falling. -FLT_MAX / 2 when nothing is active. */
enum pi_code pi_calibrate_thresholds(const struct pi_net *net, const struct pi_trainset *s,
                                     enum pi_part part, struct pi_pool *pool, const double *recall,
                                     uint32_t n, float *out, struct pi_err *err) PI_MUST_CHECK;

/* The rule above: out (PI_CURVE_POINTS), falling. */
enum pi_code pi_calibrate_row(const struct pi_net *net, const struct pi_trainset *s,
                              struct pi_pool *pool, double target, float *out,
                              struct pi_err *err) PI_MUST_CHECK;

/* The k-th smallest of n floats, k < n; reorders them so that none before place k is larger and none behind it smaller. */
float pi_calibrate_select(float *v, size_t n, size_t k);

/* Into which of the n falling thresholds a score falls: it is predicted at thresholds [result, n); n: at none. */
uint32_t pi_calibrate_place(const float *threshold, uint32_t n, float score);

#endif
