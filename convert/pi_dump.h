/*
 * pi_dump.h - any model or artifact as YAML, for people.
 */
#ifndef PI_DUMP_H
#define PI_DUMP_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stdio.h>

/* Metadata (arrays of more than 8 elements shortened to a count and their first ones unless full is set), tensors (name, type, shape). PI_E_IO when
 * out cannot be written. */
enum pi_code pi_dump(const char *path, bool full, FILE *out, struct pi_err *err) PI_MUST_CHECK;

#endif
