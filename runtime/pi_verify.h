/*
 * pi_verify.h - runs a dense engine beside a sparse one, token by token, and says how far they are apart.
 *
 * Both get the same tokens; each keeps its own KV cache, so errors of the sparse run accumulate as they do in use. The true set of a layer is what
 * the full gate gives on the sparse run's own input. Masks go to a file that appears complete or not at all: little-endian u32 positions, layers,
 * neurons, then per position and layer the predicted and the true set, a bit a neuron, least significant first, each padded to a byte.
 */
#ifndef PI_VERIFY_H
#define PI_VERIFY_H

#include "common/pi_err.h"
#include "runtime/pi_engine.h"

#include <stdint.h>

struct pi_verify;

struct pi_verify_result {
    uint64_t positions;
    double kl;     /* mean KL(dense || sparse) over positions, nats */
    double top1;   /* share of positions with the same most likely token */
    double missed; /* active neurons that were not predicted, share of the active */
    double wasted; /* predicted neurons that were not active, share of the predicted */
};

/* Borrows all three; takes over the sparse engine's trace until it is destroyed. masks_path NULL: none. */
enum pi_code pi_verify_create(const struct pi_model *m, struct pi_engine *sparse,
                              struct pi_engine *dense, const char *masks_path,
                              struct pi_verify **out, struct pi_err *err) PI_MUST_CHECK;
/* Both caches forget everything. */
void pi_verify_restart(struct pi_verify *v);
/* Feeds one token to both; logits_out (n_vocab) are the sparse run's. PI_E_SELFCHECK when the divergence is not finite. */
enum pi_code pi_verify_step(struct pi_verify *v, int32_t token, uint32_t pos, float *logits_out,
                            struct pi_err *err) PI_MUST_CHECK;
/* The figures so far; makes the mask file appear. To be called once, after the last step. */
enum pi_code pi_verify_finish(struct pi_verify *v, struct pi_verify_result *out,
                              struct pi_err *err) PI_MUST_CHECK;
void pi_verify_destroy(struct pi_verify *v); /* accepts NULL; drops an unfinished mask file */

#endif
