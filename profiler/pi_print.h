/*
 * pi_print.h - results on standard output: one JSON object on one line.
 */
#ifndef PI_PRINT_H
#define PI_PRINT_H

#include "common/pi_err.h"

#include <jansson.h>

/* Prints o and releases it; NULL (no memory, or a number that JSON lacks) is PI_E_NOMEM. */
enum pi_code pi_print_json(json_t *o, struct pi_err *err) PI_MUST_CHECK;
/* Appends item, which it takes, to *array; on failure *array is released and NULL. */
void pi_print_append(json_t **array, json_t *item);

#endif
