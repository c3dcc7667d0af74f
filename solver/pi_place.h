/*
 * pi_place.h - the work of the program pi-place behind its option table: find files, check that they belong together, plan, write.
 */
#ifndef PI_PLACE_H
#define PI_PLACE_H

#include "common/pi_err.h"
#include "common/pi_opt.h"
#include "solver/pi_plan.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_place_options {
    const char *hardware, *profile, *predictor, *output, *probe, *hidden_act,
        *report; /* NULL: not given */
    uint64_t budget;
    bool budget_given, mode_given, explain, json;
    int objective, kv, mode;        /* enum pi_objective; 0: f16, 1: f32; enum pi_mode */
    uint32_t n_ctx, n_seq, n_batch; /* 0: default */
};

/* model_path may be NULL when only the hardware is to be probed. Prints the report to stdout, notices to stderr. */
enum pi_code pi_place(const struct pi_program *prog, const struct pi_common_opts *common,
                      const char *model_path, const struct pi_place_options *opt,
                      struct pi_err *err) PI_MUST_CHECK;

#endif
