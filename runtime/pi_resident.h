/*
 * pi_resident.h - a model's weights in memory before the first step: touched by the threads that will read them, and locked.
 */
#ifndef PI_RESIDENT_H
#define PI_RESIDENT_H

#include "common/pi_gguf.h"
#include "common/pi_pool.h"

/* Maps the tensors' pages, reading from disk what is not in the page cache yet, each thread its own span of every tensor's rows: on machines of several memory nodes pages that
 * come from disk now lie on the node of the thread that reads them in decode steps. A file larger than three quarters of the memory is left alone.
 * progress: draw it. PI_E_INTERRUPTED. */
enum pi_code pi_resident_touch(const struct pi_gguf *g, struct pi_pool *pool, bool progress,
                               struct pi_err *err) PI_MUST_CHECK;

/* Replaces the maps by copies of the files in anonymous memory, in huge pages where the kernel gives them, at the same addresses; the file is not needed any more. Each thread's
 * rows lie on its memory node. To be called before anything else has a share in the maps' memory (locks, devices). PI_E_NOMEM where the files take more than
 * this process may use, PI_E_INTERRUPTED; each map is what it was, or its copy, then. */
enum pi_code pi_resident_copy(struct pi_gguf *g, struct pi_pool *pool, bool progress,
                              struct pi_err *err) PI_MUST_CHECK;

/* Locks a file's map in memory. 0, or the errno of why not. */
int pi_resident_lock(const struct pi_gguf *g);

/* Bytes that this process may lock; UINT64_MAX: all. */
uint64_t pi_resident_lock_limit(void);

#endif
