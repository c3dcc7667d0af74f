/*
 * pi_patience.h - how long to wait for a device that may have stopped.
 *
 * Only time counts that the waiting process could run: more than a tenth of a second between two looks means that it was stopped, or did not get
 * the CPU, and the device's side may not have run either (where it is emulated, it is a thread of this process).
 */
#ifndef PI_PATIENCE_H
#define PI_PATIENCE_H

#include "common/pi_progress.h"

#include <stdbool.h>

#define PI_PATIENCE_LOOK 0.1

struct pi_patience {
    double limit; /* seconds */
    double waited, last;
};

/* Something moved: the wait starts again. */
static inline void pi_patience_renew(struct pi_patience *p)
{
    p->waited = 0.0;
    p->last = pi_now();
}

static inline struct pi_patience pi_patience(double limit)
{
    struct pi_patience p;

    p.limit = limit;
    pi_patience_renew(&p);
    return p;
}

/* One look; true once nothing has moved for the limit. */
static inline bool pi_patience_ends(struct pi_patience *p)
{
    const double now = pi_now(), took = now - p->last;

    p->waited += took < PI_PATIENCE_LOOK ? took : PI_PATIENCE_LOOK;
    p->last = now;
    return p->waited > p->limit;
}

#endif
