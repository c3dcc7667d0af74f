/*
 * pi_place_fit.h - fits a placement to a run: hottest-first order means that any shorter or longer prefix is a placement too.
 */
#ifndef PI_PLACE_FIT_H
#define PI_PLACE_FIT_H

#include "common/pi_err.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "runtime/pi_model.h"

#include <stddef.h>
#include <stdint.h>

/* Scales every layer's hot prefix by the same factor, the largest with which each GPU stays within budget bytes at the run's context and KV type, and notes
 * the new budget in p. A placement fits its own budget, unless the context takes more than it was made for: then, or with a smaller budget, prefixes are cut. On a GPU
 * where more than a fiftieth would be left over (a smaller KV cache, no predictors) they grow; layers without hot neurons stay so. pred: NULL where
 * the run has none (all layers dense or exact). context_bytes: what a CUDA context takes, as measured, charged to the budget (0: no GPU).
 * PI_E_INFEASIBLE, naming the smallest budget, when not even an empty hot set fits. */
enum pi_code pi_place_fit(struct pi_placement *p, const struct pi_model *m,
                          const struct pi_predictor *pred, uint64_t budget, uint64_t context_bytes,
                          uint32_t n_ctx, enum pi_type kv_type, struct pi_err *err) PI_MUST_CHECK;

/* Bytes as pi_parse_bytes() reads them, exact: "8G", "1536M", or rounded up to "513K". */
void pi_format_bytes(uint64_t bytes, char *text, size_t n);

#endif
