/*
 * pi_child.h - work in a process of its own, which may fail, or leave a device in any state, without taking the caller along.
 *
 * The child is a fork: whoever calls must not have started threads or a GPU yet.
 */
#ifndef PI_CHILD_H
#define PI_CHILD_H

#include "common/pi_err.h"

/* What a child left; release with pi_child_free(). */
struct pi_child {
    int status; /* its exit status; 128 + n where signal n ended it */
    char *out;  /* all of its standard output */
    char *err;  /* the last line of its standard error, without the line's end; "" for none */
};

/* Gives the exit status. Standard input is empty, output and error are caught. It may call pi_child_exec(). */
typedef int (*pi_child_fn)(void *ctx);

/* Runs fn(ctx) in a child, whose output goes through files in the folder dir, and waits for its end. A signal that asks this process to end is passed on to
 * the child; then, and where there can be no child, an error: PI_E_INTERRUPTED, PI_E_IO, PI_E_NOMEM. How the child ended is in out->status alone. */
enum pi_code pi_child_run(const char *dir, pi_child_fn fn, void *ctx, struct pi_child *out,
                          struct pi_err *err) PI_MUST_CHECK;
void pi_child_free(struct pi_child *c); /* accepts a zeroed one */

/* In a child: becomes the program argv[0] (a path, or a name in PATH). Returns the status to exit with where that fails, having said why on standard error. */
int pi_child_exec(char *const argv[]);

#endif
