/*
 * pi_pool.h - a team of threads that runs one function at a time.
 *
 * The caller is thread 0 and takes part. Between two runs threads spin for at most 0.2 ms, at barriers 1 ms, less where others want the CPU (yielding the CPU now and then, since whom they wait
 * for may need it), then sleep on a futex; a pool with more threads than CPUs does not spin. Threads run where the caller may, or where pi_pool_bind() puts them. One caller at a time. The work is split by
 * the function itself from (thread, n_threads), or by pi_pool_for() in fixed chunks; results never depend on the thread count if
 * every output element is computed by one thread in a fixed order.
 */
#ifndef PI_POOL_H
#define PI_POOL_H

#include "common/pi_affinity.h"
#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_pool;

/* Cores that may be used: physical cores inside the affinity mask, at most the cgroup's CPU quota, at least 1. */
uint32_t pi_pool_usable_cores(void);

/* n_threads 0: usable cores. PI_E_NOMEM; PI_E_RANGE above 1024. */
enum pi_code pi_pool_create(uint32_t n_threads, struct pi_pool **out,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_pool_destroy(struct pi_pool *p); /* accepts NULL */
uint32_t pi_pool_size(const struct pi_pool *p);

/* Chooses CPUs for the threads, the caller included, as pi_affinity.h says, once in a pool's life. Threads that have a core each keep it only while they are alone there: when
 * others make one of them wait, all get the mask (or their node) back, for a thread that is held to a busy core keeps the team waiting while other cores
 * are idle. The caller gets its own mask back when the pool is destroyed. Where the kernel forbids it nothing happens. PI_E_NOMEM. */
enum pi_code pi_pool_bind(struct pi_pool *p, enum pi_numa numa, bool own_cores,
                          struct pi_err *err) PI_MUST_CHECK;

struct pi_pool_place {
    uint32_t n_nodes; /* memory nodes that threads were spread over; 1 without pi_pool_bind() */
    bool own_cores;   /* threads have a core each, at the moment */
};
struct pi_pool_place pi_pool_place(const struct pi_pool *p);

/* The memory node of a thread; 0 where there is but one. */
uint32_t pi_pool_node(const struct pi_pool *p, uint32_t thread);

/* Runs fn(ctx, thread, n_threads) on all threads and returns when all are done. Not reentrant. */
typedef void (*pi_pool_fn)(void *ctx, uint32_t thread, uint32_t n_threads);
void pi_pool_run(struct pi_pool *p, pi_pool_fn fn, void *ctx);

/* Inside a run: returns on all threads once all have called it. */
void pi_pool_barrier(struct pi_pool *p, uint32_t thread);

/* Runs fn(ctx, begin, end) for [0, n) cut into chunks of chunk elements, handed out dynamically (a single chunk: on the caller alone).
 * Not inside a run. */
typedef void (*pi_pool_range_fn)(void *ctx, size_t begin, size_t end);
void pi_pool_for(struct pi_pool *p, size_t n, size_t chunk, pi_pool_range_fn fn, void *ctx);

#endif
