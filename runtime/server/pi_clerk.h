/*
 * pi_clerk.h - a thread for what takes long and needs neither the engine nor the HTTP library: reading large requests, writing large answers. The HTTP thread hands
 * them over and goes on with everybody else; one at a time, first come, first served.
 */
#ifndef PI_CLERK_H
#define PI_CLERK_H

#include "common/pi_err.h"

struct pi_clerk;

/* Borrowed until work(ctx) is called; that may free it. */
struct pi_clerk_job {
    void (*work)(void *ctx);
    void *ctx;
    struct pi_clerk_job *next;
};

enum pi_code pi_clerk_create(struct pi_clerk **out, struct pi_err *err) PI_MUST_CHECK;
/* From any thread; behind pi_clerk_close() the work is done at once by the caller. */
void pi_clerk_add(struct pi_clerk *k, struct pi_clerk_job *job);
/* Returns once all that was handed over is done; accepts NULL. */
void pi_clerk_close(struct pi_clerk *k);
void pi_clerk_destroy(struct pi_clerk *k); /* closes first; accepts NULL */

#endif
