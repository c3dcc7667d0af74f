/*
 * pi_progress.h - progress with an estimate of the time left, on a terminal's standard error; silent in a pipe or with --quiet.
 * Shown only for work that has lasted a second. Also: whether the user asked to stop.
 */
#ifndef PI_PROGRESS_H
#define PI_PROGRESS_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pi_progress {
    const char *what; /* borrowed */
    uint64_t total;   /* 0: unknown */
    double t_start, t_shown;
    bool on, drawn;
};

/* on: usually isatty(2) && !quiet, see pi_progress_wanted(). */
void pi_progress_begin(struct pi_progress *p, const char *what, uint64_t total, bool on);
void pi_progress_at(struct pi_progress *p, uint64_t done);
void pi_progress_end(struct pi_progress *p); /* wipes the line */
bool pi_progress_wanted(bool quiet);

/* Seconds of a monotonic clock. */
double pi_now(void);

/* SIGINT and SIGTERM set a flag from now on; a second one of its kind ends the process at once. */
void pi_interrupt_install(void);
bool pi_interrupted(void);
/* For who goes on after a SIGINT: forgets it, and from now on any number of them only set the flag. False after SIGTERM, which stays. */
bool pi_interrupt_forget(void);
/* For who writes to a terminal meanwhile: a SIGINT sets the flag, and a write that it comes into goes on. Until pi_interrupt_forget(), behind which such calls end with EINTR. */
void pi_interrupt_restart(void);
/* PI_E_INTERRUPTED once the flag is set: long loops forward it, so that outputs are dropped cleanly. */
enum pi_code pi_interrupt_check(struct pi_err *err) PI_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
