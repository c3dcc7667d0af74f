/*
 * pi_merge.h - two profiles of one model become one.
 *
 * Counts add, contributions average by tokens, the second stream's positions follow the first's. Where more samples come together than are
 * wanted, each profile gives a share in proportion to its tokens, chosen at random.
 */
#ifndef PI_MERGE_H
#define PI_MERGE_H

#include "profiler/pi_collect.h"

/* Reads a saved profile with all its samples. PI_E_* of pi_profile_load(). */
enum pi_code pi_merge_load(const char *path, struct pi_collected *out,
                           struct pi_err *err) PI_MUST_CHECK;

/* a becomes a and b, with at most n_samples samples. PI_E_MISMATCH where they are of different models. On an error a is as it was. */
enum pi_code pi_merge(struct pi_collected *a, const struct pi_collected *b, uint64_t n_samples,
                      uint64_t seed, struct pi_err *err) PI_MUST_CHECK;

#endif
