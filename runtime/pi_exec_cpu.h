/*
 * pi_exec_cpu.h - interprets a schedule on one thread pool: one unit, or several that share the pool (cpu+cpu).
 *
 * It knows operators only as entries of a table. In a team run every thread walks the lists in the same order; an operator starts once all
 * slots it waits for hold this step's epoch. When no unit can go on, the step ends with an error, never with a hang.
 */
#ifndef PI_EXEC_CPU_H
#define PI_EXEC_CPU_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_schedule.h"

#include <stdatomic.h>
#include <stdint.h>

/* An operator of a team run: called by all threads. joins: the next operator may read what other threads wrote. */
struct pi_team_op {
    void (*fn)(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
               uint32_t n_threads);
    bool joins;
};

/* An operator of a solo run: called on the caller's thread; uses the pool inside; may fail. */
typedef enum pi_code (*pi_solo_op)(void *ctx, const struct pi_op *op, uint32_t n_tok,
                                   struct pi_err *err);

struct pi_exec {
    struct pi_pool *pool; /* borrowed */
    uint64_t epoch;       /* number of the step; never repeats */
    uint32_t n_slots;
    _Atomic uint64_t *slots; /* (n_slots); owned */
    /* (operator kinds) or NULL: seconds of thread 0 in each kind of a team run, the barrier behind it included, are added up here; borrowed (benchmarks) */
    double *spent;
};

enum pi_code pi_exec_init(struct pi_exec *x, struct pi_pool *pool, const struct pi_schedule *s,
                          struct pi_err *err) PI_MUST_CHECK;
void pi_exec_free(struct pi_exec *x); /* accepts a zeroed one */

/* Tables are indexed by enum pi_op_kind. PI_E_SELFCHECK for a schedule that can not end. */
enum pi_code pi_exec_team(struct pi_exec *x, const struct pi_graph *g, const struct pi_schedule *s,
                          const struct pi_team_op *table, void *ctx, uint32_t n_tok,
                          struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_exec_solo(struct pi_exec *x, const struct pi_graph *g, const struct pi_schedule *s,
                          const pi_solo_op *table, void *ctx, uint32_t n_tok,
                          struct pi_err *err) PI_MUST_CHECK;

#endif
