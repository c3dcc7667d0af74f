/*
 * pi_bandwidth.h - how fast this machine's processors read memory.
 */
#ifndef PI_BANDWIDTH_H
#define PI_BANDWIDTH_H

#include "common/pi_err.h"
#include "common/pi_pool.h"

/* Bytes per second that all threads of a pool read together, out of memory that no cache holds; takes seconds and a little more. The best of many
 * short windows, half of them read in one stream a thread, half in eight, whichever this processor likes better. PI_E_NOMEM; PI_E_INTERRUPTED. */
enum pi_code pi_bandwidth_measure(struct pi_pool *pool, double seconds, double *out,
                                  struct pi_err *err) PI_MUST_CHECK;

/* The same of what sparse decoding reads: rows of 8 KB, one in ten, ascending. */
enum pi_code pi_bandwidth_gather(struct pi_pool *pool, double seconds, double *out,
                                 struct pi_err *err) PI_MUST_CHECK;

/* Reads bytes, whole words of eight, in order, as one thread of pi_bandwidth_measure() does with eight rows side by side; from: aligned to 8 bytes. The sum of
 * the words, which a caller keeps, so that no compiler drops the reads. */
uint64_t pi_bandwidth_read(const void *from, size_t bytes);

#endif
