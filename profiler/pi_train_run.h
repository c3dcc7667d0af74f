/*
 * pi_train_run.h - pi-train-predictor without its main: the options, and the work in one call.
 */
#ifndef PI_TRAIN_RUN_H
#define PI_TRAIN_RUN_H

#include "common/pi_err.h"
#include "common/pi_opt.h"
#include "runtime/pi_device.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_train_run_options {
    const char *model, *profile, *out, *hidden_act; /* borrowed from argv */
    float recall, max_params, max_damage;
    uint32_t steps, n_threads;
    uint64_t seed;
    int type; /* index into f16|q8_0|f32 */
    bool type_given, relu, look_ahead, json;
    const char *device_text;
    struct pi_device device; /* parsed from device_text */
    struct pi_common_opts common;
};

extern const struct pi_program pi_train_program; /* its name, for messages */

/* Reads the command line; o->common.help or .version: all is printed. PI_E_USAGE, PI_E_RANGE. */
enum pi_code pi_train_options_parse(int argc, char **argv, struct pi_train_run_options *o,
                                    struct pi_err *err) PI_MUST_CHECK;

/* Trains, writes the artifact, prints the report. */
enum pi_code pi_train_run(const struct pi_train_run_options *o, struct pi_err *err) PI_MUST_CHECK;

#endif
