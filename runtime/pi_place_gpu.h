/*
 * pi_place_gpu.h - the placement that needs no solver, everything on one GPU, and what a placement needs there.
 */
#ifndef PI_PLACE_GPU_H
#define PI_PLACE_GPU_H

#include "common/pi_err.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "runtime/pi_model.h"

#include <stdint.h>

/* Everything on GPU unit 1, neurons in natural order, predicted where pred (or NULL) has a layer for it; the budget is unlimited. *out is the caller's: free
 * with pi_placement_free(). */
enum pi_code pi_place_all(const struct pi_model *m, const struct pi_predictor *pred, uint32_t n_ctx,
                          uint32_t n_batch, enum pi_type kv_type, struct pi_placement *out,
                          struct pi_err *err) PI_MUST_CHECK;

/* Bytes of the fullest GPU of p at the run's context and KV type, without the CUDA context. pred may be NULL. */
enum pi_code pi_place_need(const struct pi_placement *p, const struct pi_model *m,
                           const struct pi_predictor *pred, uint32_t n_ctx, enum pi_type kv_type,
                           uint64_t *bytes_out, struct pi_err *err) PI_MUST_CHECK;

#endif
