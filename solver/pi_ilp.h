/*
 * pi_ilp.h - the integer program behind a placement, solved to proven optimality.
 *
 * Every layer is placed in one of several ways, its options: so many bytes of VRAM for so much gain. One option per layer
 * is chosen, the gain is maximal, the bytes stay within a capacity (a multiple-choice knapsack). Both objectives come down to
 * it: the paper's equations (1)-(8) through pi_ilp_paper_options(), expected latency through solver/pi_cost.h.
 *
 * Method: the linear relaxation (one multiplier, the price of a byte) gives a bound and the regret of every option at that price.
 * Options whose regret alone exceeds the gap between bound and best known solution are fixed out. What is left is small; a
 * list of undominated partial solutions (bytes, gain) grows layer by layer, cut by regret, and ends in the optimum. Where that
 * list would grow past its limit, GLPK gets the rest. Everything is deterministic; no state outlives a call.
 */
#ifndef PI_ILP_H
#define PI_ILP_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_ilp_option {
    uint64_t bytes;
    double gain; /* finite; may be negative */
    /* what the caller wants to know of the option when it is picked: neurons on the GPU ... */
    uint32_t hot;
    uint32_t tag; /* ... and whatever else */
};

struct pi_ilp_layer {
    size_t n;                  /* options, >= 1; at least one of 0 bytes */
    struct pi_ilp_option *opt; /* (n), any order; borrowed */
};

struct pi_ilp_limits {
    size_t max_states; /* of the list, all layers together; 0: 16 Mi */
    double seconds;    /* for GLPK; 0: 30 */
    bool glpk_only;    /* skip the list: tests compare the two */
};

struct pi_ilp_result {
    size_t *pick;   /* (n_layer) index into each layer's options; owned, free() */
    double gain;    /* sum over the picks */
    double bound;   /* no solution gains more; equals gain when optimal */
    uint64_t bytes; /* sum over the picks, <= capacity */
    bool optimal;   /* proven: gain is within 1e-12 of its own size of the optimum (GLPK: 1e-7) */
    bool by_glpk;
    size_t n_states; /* list length summed over layers, for the curious */
    double seconds;
};

/* limits may be NULL. PI_E_RANGE when a layer has no option of 0 bytes or a gain is not finite; PI_E_NOMEM;
 * PI_E_INTERRUPTED. */
enum pi_code pi_ilp_solve(const struct pi_ilp_layer *layers, size_t n_layer, uint64_t capacity,
                          const struct pi_ilp_limits *limits, struct pi_ilp_result *out,
                          struct pi_err *err) PI_MUST_CHECK;
void pi_ilp_result_free(struct pi_ilp_result *r);

#define PI_ILP_GROUP 64

/* C_l of the paper's equation (4): the fewest neurons of a layer worth a hand-over. t_cpu, t_gpu: seconds for one neuron (5).
 * UINT32_MAX when the GPU is not faster (then y_l = 0). */
uint32_t pi_ilp_min_neurons(double t_sync, double t_cpu, double t_gpu);

/* The paper's program for one layer: neurons in groups of PI_ILP_GROUP by falling count, the last group possibly smaller; a layer
 * has 0 neurons on the GPU or at least c_min (7), (8). prefix (n_ff + 1): prefix[i] = activations of the hottest i neurons. Gains are
 * counts (1), (2). Bytes: fixed (once, if anything is hot) + bytes_neuron each. opt_out: (pi_ilp_paper_size(n_ff)), the caller's.
 * Full groups are taken hottest first, which is optimal as all weigh the same; the smaller last group is in or out on its own. */
size_t pi_ilp_paper_size(uint32_t n_ff);
enum pi_code pi_ilp_paper_options(uint32_t n_ff, const double *prefix, uint64_t bytes_neuron,
                                  uint64_t fixed, uint32_t c_min, struct pi_ilp_option *opt_out,
                                  size_t *n_out, struct pi_err *err) PI_MUST_CHECK;

#endif
