/*
 * pi_watch.h - the connections of a server, watched by a thread of their own: the HTTP library does not look at a connection while an answer is being made, and lets
 * one that sends a byte a minute live for ever.
 *
 * A connection either reads a request (from its beginning, and again from the end of each answer), for which it has so many seconds, or waits for an answer, while
 * what was asked for is told when the other end is gone. An end that has closed its side for sending counts as gone: the two cannot be told apart before something
 * is written. Thread-safe; connections and contexts are borrowed until pi_watch_close(), pi_watch_reads().
 */
#ifndef PI_WATCH_H
#define PI_WATCH_H

#include "common/pi_err.h"

#include <stdbool.h>

struct pi_watch;
struct pi_watched; /* a connection; NULL where there was no memory: it is not watched */

struct pi_watch_options {
    unsigned most; /* connections there may be */
    double
        seconds; /* for a whole request, what came before it included; then the connection is shut down */
    double crowded_seconds; /* the same while more than three quarters of most are there */
};

enum pi_code pi_watch_create(const struct pi_watch_options *opt, struct pi_watch **out,
                             struct pi_err *err) PI_MUST_CHECK;
void pi_watch_destroy(struct pi_watch *w); /* after all are closed; accepts NULL */

struct pi_watched *pi_watch_open(struct pi_watch *w, int fd);  /* reads; NULL: no memory */
void pi_watch_close(struct pi_watch *w, struct pi_watched *c); /* before fd is closed */

/* Reads a request from now on. */
void pi_watch_reads(struct pi_watch *w, struct pi_watched *c);
/* Waits for an answer: gone(ctx), if not NULL, is called ten times a second, from the watch's thread and under its lock, once the other end is gone. */
void pi_watch_waits(struct pi_watch *w, struct pi_watched *c, void (*gone)(void *ctx), void *ctx);

/* Whether the other end of a socket is gone. */
bool pi_watch_is_gone(int fd);

#endif
