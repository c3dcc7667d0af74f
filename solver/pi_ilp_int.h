/* pi_ilp_int.h - what the parts of the integer-program solver share; not for others. */
#ifndef PI_ILP_INT_H
#define PI_ILP_INT_H

#include "solver/pi_ilp.h"

/* A layer's options without the dominated ones: bytes and gain both strictly rising. */
struct ilp_set {
    size_t n;
    struct pi_ilp_option *opt; /* (n) */
    size_t *from;              /* (n) index in the caller's array */
    double *regret;            /* (n) best - (gain - price * bytes), >= 0 */
    double best;               /* max over options of gain - price * bytes */
    size_t at;                 /* the option the greedy solution takes */
};

struct ilp {
    size_t n;
    struct ilp_set *sets;
    uint64_t capacity;
    double price; /* gain per byte at the break of the relaxation */
    double bound; /* price * capacity + sum of best */
    double tol;   /* rounding of a sum of gains */
    size_t *pick; /* (n) incumbent */
    double gain;
    uint64_t bytes;
};

/* Looks for the best solution that loses at most gap against the bound. found: one exists, and the incumbent is now it: optimal.
 * full: the list passed max_states and nothing is known. */
enum pi_code pi_ilp_list(struct ilp *p, double gap, size_t max_states, bool *found, bool *full,
                         size_t *n_states, struct pi_err *err) PI_MUST_CHECK;

/* The options of regret <= gap as a GLPK program. proven: the incumbent is optimal; bound_io is lowered otherwise. */
enum pi_code pi_ilp_glpk(struct ilp *p, double gap, double seconds, bool *proven, double *bound_io,
                         struct pi_err *err) PI_MUST_CHECK;

#endif
