/*
 * pi_profile_run.h - pi-profile without its main: the options, and the work in one call.
 */
#ifndef PI_PROFILE_RUN_H
#define PI_PROFILE_RUN_H

#include "common/pi_err.h"
#include "common/pi_opt.h"
#include "runtime/pi_device.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_profile_options {
    const char *model, *field, *counts, *out, *hidden_act; /* borrowed from argv */
    const char *report, *profile,
        *predictor; /* the page; what it reads where nothing is profiled */
    struct pi_opt_list data, merge;
    uint32_t window, n_threads; /* window 0: 512, or the model's context where that is smaller */
    uint64_t n_samples, max_sample_bytes, seed;
    const char *device_text;
    struct pi_device device; /* parsed from device_text */
    bool json;
    struct pi_common_opts common;
};

extern const struct pi_program pi_profile_program; /* its name, for messages */

/* Reads the command line; o->common.help or .version: all is printed. PI_E_USAGE, PI_E_RANGE. */
enum pi_code pi_profile_options_parse(int argc, char **argv, struct pi_profile_options *o,
                                      struct pi_err *err) PI_MUST_CHECK;

/* There is something to profile or to merge; else an existing profile is reported on. */
bool pi_profile_makes_one(const struct pi_profile_options *o);

/* Profiles, merges, writes the artifact, prints the report. */
enum pi_code pi_profile_run(const struct pi_profile_options *o, struct pi_err *err) PI_MUST_CHECK;

#endif
