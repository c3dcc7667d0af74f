#include "config.h"

#include "convert/pi_note.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

void pi_note(const struct pi_notes *notes, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if (notes == NULL || notes->say == NULL)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    notes->say(notes->ctx, line);
}
