/*
 * pi_line_int.h - the editor behind pi_line.h: libedit, or none.
 */
#ifndef PI_LINE_INT_H
#define PI_LINE_INT_H

#include "runtime/chat/pi_line.h"

struct pi_edit;

/* NULL in *out where there is no editor. PI_E_NOMEM. */
enum pi_code pi_edit_open(struct pi_edit **out, struct pi_err *err) PI_MUST_CHECK;
void pi_edit_close(struct pi_edit *e); /* accepts NULL */
/* One line, with its newline; borrowed until the next call. */
struct pi_turn pi_edit_line(struct pi_edit *e, const char *prompt);

#endif
