/* pi_exec_gpu_watch.c - the watchdog of an executor of GPU and CPU. */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define TICK_NS 100000000L

static uint32_t progress_of(const struct pi_exec_gpu *x)
{
    return atomic_load_explicit(&x->progress, memory_order_relaxed);
}

/* One tick is counted at a time, so that a process that was stopped and goes on is not taken for one that stalls. */
static void *watch(void *arg)
{
    struct pi_exec_gpu *x = arg;
    const uint32_t most = 1 + (uint32_t)(x->patience * 1e9 / TICK_NS);
    uint32_t seen = 0, ticks = 0;

    (void)pthread_mutex_lock(&x->lock);
    while (!x->stop) {
        struct timespec until;

        if (!x->in_flight) {
            (void)pthread_cond_wait(&x->wake, &x->lock);
            ticks = 0;
            continue;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_NS;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&x->wake, &x->lock, &until);
        ticks = progress_of(x) == seen && x->in_flight && atomic_load(&x->waits) ? ticks + 1 : 0;
        seen = progress_of(x);
        if (ticks >= most) {
            *(volatile uint32_t *)x->m.abort.host = 1;
            atomic_store(&x->give_up, true);
            ticks = 0;
        }
    }
    (void)pthread_mutex_unlock(&x->lock);
    return NULL;
}

enum pi_code pi_xg_watchdog_start(struct pi_exec_gpu *x, struct pi_err *err)
{
    pthread_condattr_t attr;
    int e;

    (void)pthread_mutex_init(&x->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&x->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    e = pthread_create(&x->watchdog, NULL, watch, x);
    if (e != 0) {
        (void)pthread_cond_destroy(&x->wake);
        (void)pthread_mutex_destroy(&x->lock);
        return pi_err_set(err, PI_E_NOMEM, "watchdog thread: %s", strerror(e));
    }
    x->has_watchdog = true;
    return PI_OK;
}

void pi_xg_in_flight(struct pi_exec_gpu *x, bool on)
{
    (void)pthread_mutex_lock(&x->lock);
    x->in_flight = on;
    if (on) /* at its end nobody needs to wake up for it */
        (void)pthread_cond_signal(&x->wake);
    (void)pthread_mutex_unlock(&x->lock);
}

void pi_xg_watchdog_stop(struct pi_exec_gpu *x)
{
    if (!x->has_watchdog)
        return;
    (void)pthread_mutex_lock(&x->lock);
    x->stop = true;
    (void)pthread_cond_signal(&x->wake);
    (void)pthread_mutex_unlock(&x->lock);
    (void)pthread_join(x->watchdog, NULL);
    (void)pthread_cond_destroy(&x->wake);
    (void)pthread_mutex_destroy(&x->lock);
}
