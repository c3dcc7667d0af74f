/*
 * pi_line.h - what people type: turns of one line or several, from a terminal with editing and history, or from a pipe.
 *
 * A line that ends in a backslash goes on in the next; lines between """ and """ are one turn as they stand. On a terminal lines are edited by libedit where the
 * build has it; prompts and what is typed appear on standard error, so that standard output holds answers alone. From a pipe a line is a turn, without prompts.
 */
#ifndef PI_LINE_H
#define PI_LINE_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>

#define PI_TURN_MAX ((size_t)16 << 20) /* bytes of a turn */

struct pi_line; /* owned by who opened it; reads standard input */

enum pi_line_kind {
    PI_LINE_TEXT,
    PI_LINE_END, /* no more input */
    PI_LINE_INTERRUPT /* Ctrl-C, or a signal that pi_interrupted() tells of; what had been typed is dropped */
};

struct pi_turn {
    enum pi_line_kind kind;
    const char *
        text; /* (n) of kind text: NUL behind it, no newline at its end; borrowed until the next call */
    size_t n;
    bool block; /* came in """: never a command */
    bool empty; /* of kind interrupt: nothing had been typed */
};

enum pi_code pi_line_open(struct pi_line **out, struct pi_err *err) PI_MUST_CHECK; /* PI_E_NOMEM */
void pi_line_close(struct pi_line *l);             /* accepts NULL */
bool pi_line_interactive(const struct pi_line *l); /* somebody sits at a terminal */

/* PI_E_IO; PI_E_RANGE above PI_TURN_MAX; PI_E_NOMEM. */
enum pi_code pi_line_turn(struct pi_line *l, struct pi_turn *out, struct pi_err *err) PI_MUST_CHECK;

#endif
