/*
 * pi_generate.h - prompt in, text out: streams to standard output, or one JSON object at the end.
 */
#ifndef PI_GENERATE_H
#define PI_GENERATE_H

#include "runtime/pi_load.h"
#include "runtime/pi_prompt.h"

/* PI_E_RANGE when prompt and -n do not fit the context: to be called before the engine is made. */
enum pi_code pi_generate_check(const struct pi_run_options *o, const struct pi_loaded *l,
                               const struct pi_prompt *p, struct pi_err *err) PI_MUST_CHECK;

/* Generates. PI_E_INTERRUPTED after what there was has been printed; PI_E_IO when standard output fails. */
enum pi_code pi_generate(const struct pi_run_options *o, const struct pi_run_log *log,
                         struct pi_loaded *l, const struct pi_prompt *p,
                         struct pi_err *err) PI_MUST_CHECK;

#endif
