#include "config.h"

#include "common/pi_err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void make_one_line(char *s)
{
    for (; *s != '\0'; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

enum pi_code pi_err_set(struct pi_err *err, enum pi_code code, const char *fmt, ...)
{
    va_list ap;

    if (err == NULL)
        return code;
    err->code = code;
    va_start(ap, fmt);
    (void)vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    make_one_line(err->msg);
    return code;
}

void pi_err_wrap(struct pi_err *err, const char *fmt, ...)
{
    char tail[sizeof(err->msg)];
    va_list ap;
    int n;

    if (err == NULL)
        return;
    memcpy(tail, err->msg, sizeof(tail));
    va_start(ap, fmt);
    n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(err->msg))
        (void)snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %.400s", tail);
    make_one_line(err->msg);
}

const char *pi_code_text(enum pi_code code)
{
    switch (code) {
    case PI_OK:
        return "success";
#define X(name, status, text) \
    case PI_E_##name:         \
        return text;
        PI_CODE_MAP(X)
#undef X
    }
    return "unknown error";
}

int pi_code_exit_status(enum pi_code code)
{
    switch (code) {
    case PI_OK:
        return 0;
#define X(name, status, text) \
    case PI_E_##name:         \
        return status;
        PI_CODE_MAP(X)
#undef X
    }
    return 1;
}
