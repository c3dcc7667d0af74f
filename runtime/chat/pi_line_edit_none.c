/* Builds without libedit. */
#include "config.h"

#include "runtime/chat/pi_line_int.h"

enum pi_code pi_edit_open(struct pi_edit **out, struct pi_err *err)
{
    (void)err;
    *out = NULL;
    return PI_OK;
}

void pi_edit_close(struct pi_edit *e)
{
    (void)e;
}

struct pi_turn pi_edit_line(struct pi_edit *e, const char *prompt)
{
    (void)e;
    (void)prompt;
    return (struct pi_turn){.kind = PI_LINE_END};
}
