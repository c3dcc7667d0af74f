/*
 * pi_gpu.h: waiting for a device, with a limit, and giving it up.
 *
 * Nothing here blocks in the driver: it looks, again and again. What frees memory waits for the device first, since the driver would do so without a
 * limit; for that the process's streams are known.
 */
#include "config.h"

#include "runtime/pi_gpu.h"

#include "runtime/cuda/pi_cuda_port.cuh"
#include "runtime/cuda/pi_gpu_wait.h"
#include "runtime/pi_patience.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#define PATIENCE    30.0 /* seconds; what is waited for at once takes a few at most, on slow devices too */
#define SPINS       2000 /* looks before a waiting thread sleeps between them */
#define SLEEP_NS    20000L
#define MAX_STREAMS 64 /* of a process; more are not waited for by what frees */

/* Of the process, as the context is and a fault would be. */
static uint32_t gave_up;
static double patience_seconds = PATIENCE;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudaStream_t streams[MAX_STREAMS];
static uint32_t n_streams;

extern "C" void pi_gpu_give_up(void)
{
    __atomic_store_n(&gave_up, 1u, __ATOMIC_RELEASE);
}

extern "C" bool pi_gpu_gave_up(void)
{
    return __atomic_load_n(&gave_up, __ATOMIC_ACQUIRE) != 0;
}

extern "C" void pi_gpu_patience(double seconds)
{
    patience_seconds = seconds > 0.0 ? seconds : PATIENCE;
}

/* ---- streams ---- */

void pi_gpu_stream_note(void *stream)
{
    (void)pthread_mutex_lock(&lock);
    if (n_streams < MAX_STREAMS)
        streams[n_streams++] = (cudaStream_t)stream;
    (void)pthread_mutex_unlock(&lock);
}

void pi_gpu_stream_forget(void *stream)
{
    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n_streams; i++) {
        if (streams[i] == (cudaStream_t)stream)
            streams[i--] = streams[--n_streams];
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- waiting ---- */

typedef enum pi_code (*query_fn)(void *what, bool *done, struct pi_err *err);

static enum pi_code stopped(double seconds, struct pi_err *err)
{
    int index = 0;

    (void)cudaGetDevice(&index);
    pi_gpu_give_up();
    return pi_err_set(err, PI_E_DEVICE, "GPU %d has stopped: nothing moved for %.3g s", index,
                      seconds);
}

static enum pi_code await(query_fn query, void *what, struct pi_err *err)
{
    const struct timespec nap = {0, SLEEP_NS};
    struct pi_patience patience = pi_patience(patience_seconds);
    bool done = false;
    enum pi_code rc = PI_OK;

    for (uint32_t looks = 1;; looks++) {
        PI_TRY(query(what, &done, err));
        if (done)
            break;
        if (looks > SPINS)
            (void)nanosleep(&nap, NULL);
        else if (looks % 64 == 0)
            (void)sched_yield();
        if (looks % 64 == 0 || looks > SPINS) {
            if (pi_patience_ends(&patience))
                return stopped(patience.limit, err);
        }
    }
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_stream_sync(void *stream, struct pi_err *err)
{
    return await(pi_gpu_stream_query, stream, err);
}

extern "C" enum pi_code pi_gpu_event_sync(void *event, struct pi_err *err)
{
    return await(pi_gpu_event_query, event, err);
}

bool pi_gpu_may_free(void)
{
    cudaStream_t all[MAX_STREAMS + 1];
    struct pi_err ignored;
    uint32_t n;

    if (pi_gpu_gave_up())
        return false;
    (void)pthread_mutex_lock(&lock);
    n = n_streams;
    for (uint32_t i = 0; i < n; i++)
        all[i] = streams[i];
    (void)pthread_mutex_unlock(&lock);
    all[n++] = 0; /* what fills memory */
    for (uint32_t i = 0; i < n && !pi_gpu_gave_up(); i++)
        (void)!await(pi_gpu_stream_query, all[i], &ignored);
    return !pi_gpu_gave_up();
}
