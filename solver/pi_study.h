/*
 * pi_study.h - what a report says beside one plan: what other budgets would buy, and what another machine or mode would change. All of it is
 * the same planner run again, with the same model of costs.
 */
#ifndef PI_STUDY_H
#define PI_STUDY_H

#include "common/pi_err.h"
#include "solver/pi_plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_STUDY_POINTS  26
#define PI_STUDY_CHANGES 8

struct pi_study_change {
    const char *what; /* "a CPU twice as fast" */
    const char *why;  /* what is changed in the description, for people */
    bool possible;    /* else it does not fit, or needs what is not there */
    bool beyond;      /* it needs a GPU with more memory than this one has */
    double placed;    /* tokens per second */
};

struct pi_study {
    /* budgets rising, the first 0, the chosen one among them; n_points 0 where there is no GPU, or no profile to split by */
    size_t n_points;
    struct pi_plan_point points[PI_STUDY_POINTS];
    size_t chosen;      /* index of the plan's own budget */
    uint64_t least;     /* bytes: the smallest budget that works; 0 without points */
    uint64_t all_bytes; /* what holds everything; 0 without points */
    double memory;      /* of the GPU; budgets above are as if it had more */

    size_t n_changes;
    struct pi_study_change changes[PI_STUDY_CHANGES];
    double
        dense; /* tokens per second of the same budget where every neuron is computed; 0: not known */
};

/* in: as for pi_plan_make(), which made plan. progress: drawn on standard error. Errors of pi_plan_make(), but that something does not fit is none. */
enum pi_code pi_study_make(const struct pi_plan_input *in, const struct pi_plan *plan,
                           bool progress, struct pi_study *out, struct pi_err *err) PI_MUST_CHECK;

#endif
