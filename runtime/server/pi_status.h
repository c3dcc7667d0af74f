/*
 * pi_status.h - what a server is doing, for people who watch it: GET /status.
 *
 * The engine's counters belong to the thread that runs it. That thread leaves a copy here now and then (pi_status_look()), between rounds; HTTP threads read the copy.
 */
#ifndef PI_STATUS_H
#define PI_STATUS_H

#include "runtime/pi_load.h"
#include "runtime/server/pi_calls.h"

struct pi_status;

/* Borrowed; model is its name, format how conversations become prompts. */
struct pi_status_options {
    const struct pi_loaded *loaded;
    const char *model, *format;
    uint32_t n_slots;
};

enum pi_code pi_status_create(const struct pi_status_options *opt, struct pi_status **out,
                              struct pi_err *err) PI_MUST_CHECK;
void pi_status_destroy(struct pi_status *s); /* accepts NULL */

/* ctx: the status. For the thread that runs the engine; copies at most ten times a second. */
void pi_status_look(void *ctx);

/* The JSON of GET /status, a new reference; NULL: no memory. */
json_t *pi_status_json(struct pi_status *s, const struct pi_calls_totals *t);

/* The counters as Prometheus reads them; answers: by hundreds of their status; uptime: seconds. The caller's to free(); NULL: no memory. */
char *pi_status_metrics(const struct pi_calls_totals *t, const unsigned long long answers[6],
                        double uptime);

#endif
