/*
 * pi_run_rows.h - the table of pi-run's options: names, ranges, help, and where each value goes.
 */
#ifndef PI_RUN_ROWS_H
#define PI_RUN_ROWS_H

#include "common/pi_opt.h"
#include "runtime/pi_run_options.h"

#define PI_RUN_ROWS_MAX 96 /* with the row that ends the table */

/* Fills t (PI_RUN_ROWS_MAX), zeroed by the caller, with rows that point into o: "given" members are set where an option occurs. */
void pi_run_rows(struct pi_run_options *o, struct pi_opt *t);

#endif
