/*
 * pi_budgets.h - pi-run --bench --budgets: what more VRAM would buy.
 *
 * For each budget pi-place, a program of its own beside this one, makes a placement in a temporary folder and says what it expects; then the benchmark runs
 * with it in a process of its own, as pi-run --bench would. A budget that cannot be (exit status 6 of either) is a row that says why; anything else that goes
 * wrong ends the table. Where no GPU is, there are expectations alone.
 */
#ifndef PI_BUDGETS_H
#define PI_BUDGETS_H

#include "runtime/pi_run_options.h"

/* Runs a model as options say: prints on standard output, gives the error. */
typedef enum pi_code (*pi_run_fn)(const struct pi_run_options *o, const struct pi_run_log *log,
                                  struct pi_err *err);

/* Prints the table, a row as soon as it is there, or with o->json one object. PI_E_INFEASIBLE when no budget works; the error of pi-place or of a run. */
enum pi_code pi_budgets(const struct pi_run_options *o, const struct pi_run_log *log, pi_run_fn run,
                        struct pi_err *err) PI_MUST_CHECK;

#endif
