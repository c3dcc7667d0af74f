/*
 * pi_calibrate.h - the threshold of a predictor, and what it then finds.
 *
 * The rule: a threshold is chosen on the calibration part so that recall there is target + margin, margin = PI_MARGIN + 2 standard errors. The error
 * of recall is taken over blocks of positions (a ratio estimator: tokens of one block resemble each other, so that counting single
 * activations would flatter it). What is reported comes from the test part alone.
 */
#ifndef PI_CALIBRATE_H
#define PI_CALIBRATE_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "profiler/pi_net.h"
#include "profiler/pi_trainset.h"

#define PI_MARGIN 0.005

/* Shares 0..1 over a part. */
struct pi_found {
    double recall;    /* of the active neurons, those predicted; 1 when none is active */
    double precision; /* of the predicted neurons, those active; 1 when none is predicted */
    double density;   /* of all neurons, those predicted */
    double active;    /* of all neurons, those active */
    double accuracy;  /* of all neurons, those called rightly: for the record, "never" does well on it */
    double error;     /* standard error of recall over blocks */
};

/* Counts at a threshold. PI_E_NOMEM. */
enum pi_code pi_calibrate_count(const struct pi_net *net, const struct pi_trainset *s, enum pi_part part, struct pi_pool *pool,
                                float threshold, struct pi_found *out, struct pi_err *err) PI_MUST_CHECK;

/* The highest threshold whose recall over the part is at least recall. -FLT_MAX / 2 when nothing is active. */
enum pi_code pi_calibrate_threshold(const struct pi_net *net, const struct pi_trainset *s, enum pi_part part,
                                    struct pi_pool *pool, double recall, float *out, struct pi_err *err) PI_MUST_CHECK;

/* The rule above, times scale (1; more where the test part showed that it was not enough). found_out: on the calibration part. */
enum pi_code pi_calibrate(const struct pi_net *net, const struct pi_trainset *s, struct pi_pool *pool, double target, double scale,
                          float *threshold_out, struct pi_found *found_out, struct pi_err *err) PI_MUST_CHECK;

/* The k-th smallest of n floats, k < n; reorders them. */
float pi_calibrate_select(float *v, size_t n, size_t k);

#endif
