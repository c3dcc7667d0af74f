/*
 * pi_stop.h - stop strings in a text that grows: what may be shown, and where it ends.
 */
#ifndef PI_STOP_H
#define PI_STOP_H

#include <stdbool.h>
#include <stddef.h>

struct pi_stop {
    const char *const *strings; /* (n) borrowed; none is empty */
    size_t n;
};

/* text (n_text) of which n_seen bytes were looked at before. Returns how many bytes of it may be shown: all in front of the first stop string that it
 * holds (*found_out then), else all but an end that a stop string may begin with. */
size_t pi_stop_look(const struct pi_stop *s, const char *text, size_t n_text, size_t n_seen,
                    bool *found_out);

#endif
