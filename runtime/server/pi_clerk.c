#include "config.h"

#include "runtime/server/pi_clerk.h"

#include "common/pi_alloc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct pi_clerk {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t more;
    pthread_t thread;
    bool started, closed;
    struct pi_clerk_job *first, **last;
};

static void *serve(void *arg)
{
    struct pi_clerk *k = arg;

    (void)pthread_mutex_lock(&k->lock);
    while (k->first != NULL || !k->closed) {
        struct pi_clerk_job *job = k->first;

        if (job == NULL) {
            (void)pthread_cond_wait(&k->more, &k->lock);
            continue;
        }
        k->first = job->next;
        if (k->first == NULL)
            k->last = &k->first;
        (void)pthread_mutex_unlock(&k->lock);
        job->work(job->ctx);
        (void)pthread_mutex_lock(&k->lock);
    }
    (void)pthread_mutex_unlock(&k->lock);
    return NULL;
}

enum pi_code pi_clerk_create(struct pi_clerk **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_clerk *k = NULL;
    int failed;

    PI_ALLOC(k, 1, err);
    k->last = &k->first;
    (void)pthread_mutex_init(&k->lock, NULL);
    (void)pthread_cond_init(&k->more, NULL);
    failed = pthread_create(&k->thread, NULL, serve, k);
    if (failed != 0)
        PI_FAIL(err, PI_E_NOMEM, "cannot start a thread: %s", strerror(failed));
    k->started = true;
    *out = k;
    k = NULL;
out:
    pi_clerk_destroy(k);
    return rc;
}

void pi_clerk_add(struct pi_clerk *k, struct pi_clerk_job *job)
{
    bool closed;

    (void)pthread_mutex_lock(&k->lock);
    closed = k->closed;
    if (!closed) {
        job->next = NULL;
        *k->last = job;
        k->last = &job->next;
        (void)pthread_cond_signal(&k->more);
    }
    (void)pthread_mutex_unlock(&k->lock);
    if (closed)
        job->work(job->ctx);
}

void pi_clerk_close(struct pi_clerk *k)
{
    if (k == NULL || !k->started)
        return;
    (void)pthread_mutex_lock(&k->lock);
    k->closed = true;
    (void)pthread_cond_signal(&k->more);
    (void)pthread_mutex_unlock(&k->lock);
    (void)pthread_join(k->thread, NULL);
    k->started = false;
}

void pi_clerk_destroy(struct pi_clerk *k)
{
    if (k == NULL)
        return;
    pi_clerk_close(k);
    (void)pthread_mutex_destroy(&k->lock);
    (void)pthread_cond_destroy(&k->more);
    free(k);
}
