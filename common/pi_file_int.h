/*
 * pi_file_int.h - the hidden names that outputs have before they appear, and what killed programs left under them.
 *
 * Such a name is ".BASE.P-T-N.tmp": the target's name (its first bytes), process, time and count in hex. Its writer holds an exclusive lock
 * (flock) on the file for as long as the name is there; a file that anybody can lock is nobody's.
 */
#ifndef PI_FILE_INT_H
#define PI_FILE_INT_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_OUT_NAME_TRIES 100

struct pi_out {
    int fd, dir_fd;
    char *path;       /* the target, as the user gave it */
    const char *base; /* its last part, inside path */
    char *tmp;        /* name of the hidden file in dir_fd; NULL while the file has no name */
    char *old;     /* hidden name of what stood under the target's, until all of a commit is done */
    bool replaces; /* there was something */
    uint8_t *buf;  /* (OUT_BUFFER) bytes not yet written */
    size_t n_buf;
    uint64_t written; /* bytes in the file; the buffer follows them */
};

/* "cannot WHAT FILE: reason of errno e", PI_E_NOSPACE or PI_E_IO. */
enum pi_code pi_out_error(const struct pi_out *o, const char *what, int e, struct pi_err *err);
/* A new hidden name in o->tmp. */
enum pi_code pi_out_next_name(struct pi_out *o, struct pi_err *err) PI_MUST_CHECK;
/* The buffer to the file. */
enum pi_code pi_out_flush(struct pi_out *o, struct pi_err *err) PI_MUST_CHECK;

/* A new hidden name next to base; the next call gives another. The caller's to free(); NULL with *err set on PI_E_NOMEM. */
char *pi_out_tmp_name(const char *base, struct pi_err *err) PI_MUST_CHECK;

/* Locks a file that was just made. False where somebody swept it away meanwhile. Where there are no locks nothing is swept. */
bool pi_out_lock(int fd, bool has_name);

/* Removes what dead writers of base left in a folder: regular files of this user under such names without a writer. Never fails. */
void pi_out_sweep(int dir_fd, const char *base);

#endif
