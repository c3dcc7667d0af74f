/*
 * pi_gpu_prompt_wait.c - a prompt chunk waits for the device, but not for ever.
 *
 * Behind every group of launches an event is recorded. Who waits looks at these too: as long as they pass, the device is at work, however slowly. That
 * many of them at most are on the way, so that a launch never finds the driver's queue full, where it would block.
 */
#include "config.h"

#include "runtime/pi_gpu_prompt_int.h"

#include <sched.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SPINS    2000 /* looks before a waiting thread sleeps between them */
#define SLEEP_NS 20000L

void pi_gp_relax(uint32_t *n)
{
    const struct timespec t = {0, SLEEP_NS};

    if (++*n > SPINS) {
        (void)nanosleep(&t, NULL);
        return;
    }
    if (*n % 64 == 0)
        (void)sched_yield();
#if defined(__x86_64__)
    _mm_pause();
#endif
}

enum pi_code pi_gp_marks_create(struct pi_gpu_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (int i = 0; i < PI_GP_MARKS; i++)
        PI_TRY(pi_gpu_event_create(false, &p->marks.event[i], err));
out:
    return rc;
}

void pi_gp_marks_destroy(struct pi_gpu_prompt *p)
{
    for (int i = 0; i < PI_GP_MARKS; i++)
        pi_gpu_event_destroy(p->marks.event[i]);
}

enum pi_code pi_gp_look(struct pi_gpu_prompt *p, struct pi_patience *patience, struct pi_err *err)
{
    struct pi_gp_marks *m = &p->marks;
    bool passed = true, moved = false;
    enum pi_code rc = PI_OK;

    while (passed && m->n_passed != m->n) {
        PI_TRY(pi_gpu_event_query(m->event[m->n_passed % PI_GP_MARKS], &passed, err));
        m->n_passed += passed;
        moved = moved || passed;
    }
    if (moved) {
        pi_patience_renew(patience);
    } else if (pi_patience_ends(patience)) {
        pi_gpu_give_up();
        PI_FAIL(err, PI_E_DEVICE, "GPU %d has stopped: nothing moved for %.3g s in a prompt chunk",
                p->dm->index, patience->limit);
    }
out:
    return rc;
}

/* The event, or without one the stream. */
static enum pi_code await(struct pi_gpu_prompt *p, void *stream, void *event, struct pi_err *err)
{
    struct pi_patience patience = pi_patience(p->opt.patience);
    uint32_t looks = 0;
    bool done = false;
    enum pi_code rc;

    for (;;) {
        PI_TRY(event != NULL ? pi_gpu_event_query(event, &done, err)
                             : pi_gpu_stream_query(stream, &done, err));
        if (done)
            break;
        PI_TRY(pi_gp_look(p, &patience, err));
        pi_gp_relax(&looks);
    }
out:
    return rc;
}

enum pi_code pi_gp_await_stream(struct pi_gpu_prompt *p, void *stream, struct pi_err *err)
{
    return await(p, stream, NULL, err);
}

enum pi_code pi_gp_await_event(struct pi_gpu_prompt *p, void *event, struct pi_err *err)
{
    return await(p, NULL, event, err);
}

enum pi_code pi_gp_mark(struct pi_gpu_prompt *p, struct pi_err *err)
{
    struct pi_gp_marks *m = &p->marks;
    struct pi_patience patience = pi_patience(p->opt.patience);
    uint32_t looks = 0;
    enum pi_code rc = PI_OK;

    while (m->n - m->n_passed == PI_GP_MARKS) {
        PI_TRY(pi_gp_look(p, &patience, err));
        if (m->n - m->n_passed == PI_GP_MARKS)
            pi_gp_relax(&looks);
    }
    PI_TRY(pi_gpu_event_record(m->event[m->n % PI_GP_MARKS], p->stream, err));
    m->n++;
out:
    return rc;
}
