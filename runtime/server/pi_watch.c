#include "config.h"

#include "runtime/server/pi_watch.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define LOOK_SECONDS 0.1

struct pi_watched {
    int fd;
    bool waits, shut;
    double since; /* it reads */
    void (*gone)(void *ctx);
    void *ctx;
    struct pi_watched *next, **at; /* at: what points to it */
};

struct pi_watch {
    struct pi_watch_options opt;
    pthread_mutex_t lock; /* of all below and of the connections */
    pthread_cond_t more;
    pthread_t thread;
    bool started, ends;
    struct pi_watched *first;
    unsigned n;
};

bool pi_watch_is_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};

    return poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* The lock is held. */
static void look(struct pi_watch *w)
{
    const double now = pi_now(),
                 most = w->n > w->opt.most / 4 * 3 ? w->opt.crowded_seconds : w->opt.seconds;

    for (struct pi_watched *c = w->first; c != NULL; c = c->next) {
        if (c->waits) {
            if (c->gone != NULL && pi_watch_is_gone(c->fd))
                c->gone(c->ctx);
        } else if (!c->shut && now - c->since > most) {
            (void)shutdown(c->fd, SHUT_RDWR); /* the library sees the end and closes it */
            c->shut = true;
        }
    }
}

static void *watch(void *arg)
{
    struct pi_watch *w = arg;

    (void)pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        struct timespec t;

        if (w->first == NULL) {
            (void)pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        look(w);
        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += (long)(LOOK_SECONDS * 1e9);
        if (t.tv_nsec >= 1000000000) {
            t.tv_nsec -= 1000000000;
            t.tv_sec++;
        }
        while (!w->ends && pthread_cond_timedwait(&w->more, &w->lock, &t) != ETIMEDOUT)
            ;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum pi_code pi_watch_create(const struct pi_watch_options *opt, struct pi_watch **out,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_watch *w = NULL;
    pthread_condattr_t attr;
    int failed;

    PI_ALLOC(w, 1, err);
    w->opt = *opt;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->more, &attr);
    (void)pthread_condattr_destroy(&attr);
    failed = pthread_create(&w->thread, NULL, watch, w);
    if (failed != 0)
        PI_FAIL(err, PI_E_NOMEM, "cannot start a thread: %s", strerror(failed));
    w->started = true;
    *out = w;
    w = NULL;
out:
    pi_watch_destroy(w);
    return rc;
}

void pi_watch_destroy(struct pi_watch *w)
{
    if (w == NULL)
        return;
    if (w->started) {
        (void)pthread_mutex_lock(&w->lock);
        w->ends = true;
        (void)pthread_cond_signal(&w->more);
        (void)pthread_mutex_unlock(&w->lock);
        (void)pthread_join(w->thread, NULL);
    }
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->more);
    free(w);
}

struct pi_watched *pi_watch_open(struct pi_watch *w, int fd)
{
    struct pi_watched *c = pi_calloc_array(1, sizeof(*c), NULL);

    if (c == NULL)
        return NULL;
    c->fd = fd;
    c->since = pi_now();
    (void)pthread_mutex_lock(&w->lock);
    c->next = w->first;
    c->at = &w->first;
    if (c->next != NULL)
        c->next->at = &c->next;
    else
        (void)pthread_cond_signal(&w->more);
    w->first = c;
    w->n++;
    (void)pthread_mutex_unlock(&w->lock);
    return c;
}

void pi_watch_close(struct pi_watch *w, struct pi_watched *c)
{
    if (c == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    *c->at = c->next;
    if (c->next != NULL)
        c->next->at = c->at;
    w->n--;
    (void)pthread_mutex_unlock(&w->lock);
    free(c);
}

void pi_watch_reads(struct pi_watch *w, struct pi_watched *c)
{
    if (c == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    c->waits = false;
    c->gone = NULL;
    c->ctx = NULL;
    c->since = pi_now();
    (void)pthread_mutex_unlock(&w->lock);
}

void pi_watch_waits(struct pi_watch *w, struct pi_watched *c, void (*gone)(void *ctx), void *ctx)
{
    if (c == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    c->waits = true;
    c->gone = gone;
    c->ctx = ctx;
    (void)pthread_mutex_unlock(&w->lock);
}
