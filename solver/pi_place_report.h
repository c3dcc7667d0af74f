/*
 * pi_place_report.h - pi-place --report: a placement as a page for people.
 *
 * The verdict compares what the planner expects of this placement with what it expects of the same budget without sparsity, and with the CPU alone; what
 * counts as a gain is in common/pi_page.h.
 */
#ifndef PI_PLACE_REPORT_H
#define PI_PLACE_REPORT_H

#include "common/pi_err.h"
#include "solver/pi_plan.h"

#include <stdbool.h>

/* in: what plan was made of. Writes the page; progress is drawn on standard error. Errors of pi_study_make() and pi_html_save(). */
enum pi_code pi_place_report_write(const struct pi_plan_input *in, const struct pi_plan *plan,
                                   bool progress, const char *path,
                                   struct pi_err *err) PI_MUST_CHECK;

#endif
