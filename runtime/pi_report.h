/*
 * pi_report.h - results of pi-run on standard output: one JSON object, or lines for people.
 */
#ifndef PI_REPORT_H
#define PI_REPORT_H

#include "common/pi_err.h"
#include "runtime/pi_verify.h"

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* A JSON array of ids, NULL without memory. */
json_t *pi_json_tokens(const int32_t *ids, size_t n);
/* x, or null where JSON lacks the number (infinite, or none); NULL without memory. */
json_t *pi_json_number(double x);
/* Prints an object on one line and releases it; NULL (no memory) is PI_E_NOMEM. */
enum pi_code pi_json_print(json_t *o, struct pi_err *err) PI_MUST_CHECK;
/* PI_E_IO when what went to standard output could not be written; PI_E_INTERRUPTED where a signal asked to stop. */
enum pi_code pi_stdout_check(struct pi_err *err) PI_MUST_CHECK;

/* Adds kl, top1, missed and wasted to an object; NULL (o was NULL, or no memory) releases it. */
json_t *pi_json_add_verify(json_t *o, const struct pi_verify_result *v);
/* The same for people, one line without a newline. */
void pi_format_verify(const struct pi_verify_result *v, char *text, size_t n);

#endif
