/*
 * pi_load_int.h - the two halves of loading: what runs (pi_load.c), and where (pi_load_place.c).
 */
#ifndef PI_LOAD_INT_H
#define PI_LOAD_INT_H

#include "runtime/pi_load.h"

/* Loads the placement if there is one and it could matter, and settles the device: l->two_units, l->gpu, l->all_gpu. */
enum pi_code pi_load_device(const struct pi_run_options *o, const struct pi_run_log *log,
                            struct pi_loaded *l, struct pi_err *err) PI_MUST_CHECK;

/* With a placement or all_gpu: makes the placement fit budget and device, at l->n_ctx. pred: that the engine gets, or NULL. */
enum pi_code pi_load_fit(const struct pi_run_options *o, const struct pi_run_log *log,
                         struct pi_loaded *l, const struct pi_predictor *pred, enum pi_type kv,
                         struct pi_err *err) PI_MUST_CHECK;

#endif
