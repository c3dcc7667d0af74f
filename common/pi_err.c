#include "config.h"

#include "common/pi_err.h"
#include "common/pi_utf8.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void pi_one_line(char *s)
{
    size_t n = strlen(s), len = 0, end = 0;

    for (size_t i = 0; i < n; i += len) {
        unsigned char c = (unsigned char)s[i], next = (unsigned char)s[i + 1];
        bool ok;

        len = pi_utf8_part(s + i, n - i, &ok);
        /* U+0080 to U+009F are control characters too: terminals take U+009B for ESC [ */
        if (!ok || c < 0x20 || c == 0x7f || (c == 0xc2 && next < 0xa0)) {
            s[end++] = '?';
        } else {
            memmove(s + end, s + i, len);
            end += len;
        }
    }
    s[end] = '\0';
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
    pi_one_line(err->msg);
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
    pi_one_line(err->msg);
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
