/* Work that is handed over: done in order, all of it before the end, and by the caller behind the end. */
#include "config.h"

#include "runtime/server/pi_clerk.h"
#include "tests/tap.h"

#include <pthread.h>

enum {
    N = 100
};

struct work {
    struct pi_clerk_job job;
    int number;
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static int order[N], n_done; /* of the thread that works, then of whoever has joined it */
static pthread_t worker;

static void work(void *ctx)
{
    const struct work *w = ctx;

    (void)pthread_mutex_lock(&gate); /* closed until all are handed over */
    (void)pthread_mutex_unlock(&gate);
    worker = pthread_self();
    order[n_done++] = w->number;
}

int main(void)
{
    static struct work w[N];
    struct pi_clerk *k = NULL;
    struct pi_err err = {0};
    int in_order = 0;

    OK(pi_clerk_create(&k, &err) == PI_OK);
    (void)pthread_mutex_lock(&gate);
    for (int i = 0; i < N; i++)
        w[i] = (struct work){.job = {.work = work, .ctx = &w[i]}, .number = i};
    for (int i = 0; i < N - 1; i++)
        pi_clerk_add(k, &w[i].job);
    (void)pthread_mutex_unlock(&gate);
    pi_clerk_close(k);
    EQ(n_done, N - 1);
    OK(!pthread_equal(worker, pthread_self()));
    pi_clerk_add(k, &w[N - 1].job);
    EQ(n_done, N);
    OK(pthread_equal(worker, pthread_self()));
    for (int i = 0; i < N; i++)
        in_order += order[i] == i;
    EQ(in_order, N);
    pi_clerk_close(k);
    pi_clerk_destroy(k);
    pi_clerk_destroy(NULL);
    OK(pi_clerk_create(&k, &err) == PI_OK);
    pi_clerk_destroy(k); /* without a day's work */
    return DONE();
}
