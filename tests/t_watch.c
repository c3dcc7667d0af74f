/* Connections of a server: the one whose client is gone is told of, the one that takes too long over a request is shut down, others are left alone. */
#include "config.h"

#include "runtime/server/pi_watch.h"
#include "tests/tap.h"

#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

struct pair {
    int ours, theirs;
    struct pi_watched *watched;
    atomic_int gone;
};

static struct pi_watch *w;

static void open_pair(struct pair *p)
{
    int fd[2];

    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
    p->ours = fd[0];
    p->theirs = fd[1];
    p->watched = pi_watch_open(w, p->ours);
    OK(p->watched != NULL);
    atomic_init(&p->gone, 0);
}

static void close_pair(struct pair *p)
{
    pi_watch_close(w, p->watched);
    (void)close(p->ours);
    if (p->theirs >= 0)
        (void)close(p->theirs);
}

static void on_gone(void *ctx)
{
    atomic_fetch_add(&((struct pair *)ctx)->gone, 1);
}

static void leave(struct pair *p)
{
    (void)close(p->theirs);
    p->theirs = -1;
}

/* Until it is so, but for no longer than 20 s. */
#define UNTIL(c)                                  \
    do {                                          \
        for (int i_ = 0; i_ < 2000 && !(c); i_++) \
            (void)usleep(10000);                  \
        OK(c);                                    \
    } while (0)

static void test_gone(void)
{
    const struct pi_watch_options o = {.most = 100, .seconds = 1000, .crowded_seconds = 1000};
    struct pi_err err = {0};
    struct pair stays, leaves, reads, half;

    OK(pi_watch_create(&o, &w, &err) == PI_OK);
    open_pair(&stays);
    open_pair(&leaves);
    open_pair(&reads);
    open_pair(&half);
    pi_watch_waits(w, stays.watched, on_gone, &stays);
    pi_watch_waits(w, leaves.watched, on_gone, &leaves);
    pi_watch_waits(w, half.watched, on_gone, &half);
    OK(!pi_watch_is_gone(leaves.ours));
    leave(&leaves);
    OK(pi_watch_is_gone(leaves.ours));
    leave(&reads);
    (void)shutdown(half.theirs, SHUT_WR);
    UNTIL(atomic_load(&leaves.gone) >= 2); /* again and again: whoever is told may have been busy */
    UNTIL(atomic_load(&half.gone) >= 1);
    EQ(atomic_load(&stays.gone), 0);
    EQ(atomic_load(&reads.gone), 0);
    pi_watch_reads(w, leaves.watched);
    atomic_store(&leaves.gone, 0);
    (void)usleep(300000);
    EQ(atomic_load(&leaves.gone), 0);
    close_pair(&reads); /* from the list's middle, end and beginning */
    close_pair(&stays);
    close_pair(&half);
    close_pair(&leaves);
    pi_watch_destroy(w);
}

static bool is_shut(const struct pair *p)
{
    char c;

    return recv(p->theirs, &c, 1, MSG_DONTWAIT) == 0;
}

static void test_slow(void)
{
    const struct pi_watch_options o = {.most = 8, .seconds = 1000, .crowded_seconds = 0.2};
    struct pi_err err = {0};
    struct pair p[8];

    OK(pi_watch_create(&o, &w, &err) == PI_OK);
    for (int i = 0; i < 6; i++)
        open_pair(&p[i]);
    pi_watch_waits(w, p[0].watched, NULL, NULL);
    (void)usleep(500000);
    for (int i = 0; i < 6; i++)
        OK(!is_shut(&p[i]));
    open_pair(&p[6]); /* the seventh of eight: now it is crowded */
    for (int i = 1; i < 6; i++)
        UNTIL(is_shut(&p[i]));
    OK(!is_shut(&p[0])); /* waits for its answer */
    for (int i = 0; i < 7; i++)
        close_pair(&p[i]);
    pi_watch_destroy(w);
}

int main(void)
{
    test_gone();
    test_slow();
    pi_watch_destroy(NULL);
    return DONE();
}
