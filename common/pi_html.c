#include "config.h"

#include "common/pi_html.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_html_style.h"
#include "common/pi_utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN "\xef\xbf\xbd" /* U+FFFD */

void pi_html_free(struct pi_html *h)
{
    free(h->s);
    memset(h, 0, sizeof(*h));
}

enum pi_code pi_html_save(const struct pi_html *h, const char *path, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_out *f = NULL;

    if (h->failed)
        PI_FAIL(err, PI_E_NOMEM, "%s: no memory for the report", path);
    PI_TRY(pi_out_open(path, &f, err));
    PI_TRY(pi_out_write(f, h->s, h->n, err));
    rc = pi_out_commit(f, err);
    f = NULL;
out:
    pi_out_abort(f);
    return rc;
}

/* Room for n more bytes and a NUL. */
static bool grow(struct pi_html *h, size_t n)
{
    if (!h->failed &&
        (n > SIZE_MAX / 2 - h->n || pi_grow_array(&h->s, &h->cap, h->n + n + 1, 1, NULL) != PI_OK))
        h->failed = true;
    return !h->failed;
}

static void append(struct pi_html *h, const char *s, size_t n)
{
    if (!grow(h, n))
        return;
    memcpy(h->s + h->n, s, n);
    h->n += n;
    h->s[h->n] = '\0';
}

static __attribute__((format(printf, 2, 0))) void append_format(struct pi_html *h, const char *fmt,
                                                                va_list ap)
{
    va_list again;
    int n;

    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        h->failed = true;
    if (n < 0 || !grow(h, (size_t)n))
        return;
    (void)vsnprintf(h->s + h->n, (size_t)n + 1, fmt, ap);
    h->n += (size_t)n;
}

void pi_html_markup(struct pi_html *h, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    append_format(h, fmt, ap);
    va_end(ap);
}

/* ---- text ---- */

/* Controls, and the marks that turn the direction of the text around them (U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069). */
static bool unwanted(const char *s, unsigned len)
{
    const unsigned char *c = (const unsigned char *)s;

    if (len == 1)
        return (c[0] < 0x20 && c[0] != '\n' && c[0] != '\t') || c[0] == 0x7f;
    if (len == 2)
        return c[0] == 0xc2 && c[1] < 0xa0;
    if (len != 3 || c[0] != 0xe2)
        return false;
    return (c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xaa && c[2] <= 0xae))) ||
           (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9);
}

static void append_char(struct pi_html *h, const char *s, unsigned len)
{
    switch (len == 1 ? *s : 'x') {
    case '&':
        append(h, "&amp;", 5);
        break;
    case '<':
        append(h, "&lt;", 4);
        break;
    case '>':
        append(h, "&gt;", 4);
        break;
    case '"':
        append(h, "&quot;", 6);
        break;
    case '\'':
        append(h, "&#39;", 5);
        break;
    default:
        append(h, s, len);
    }
}

void pi_html_text_n(struct pi_html *h, const char *text, size_t n, size_t most)
{
    size_t done = 0;

    for (size_t i = 0; i < n; done++) {
        bool ok;
        const unsigned len = pi_utf8_part(text + i, n - i, &ok);

        if (most > 0 && done == most) {
            append(h, "…", sizeof("…") - 1);
            return;
        }
        if (!ok || unwanted(text + i, len))
            append(h, UNKNOWN, sizeof(UNKNOWN) - 1);
        else
            append_char(h, text + i, len);
        i += len > 0 ? len : 1;
    }
}

void pi_html_text(struct pi_html *h, const char *text)
{
    pi_html_text_n(h, text, strlen(text), 0);
}

void pi_html_textf(struct pi_html *h, const char *fmt, ...)
{
    struct pi_html plain = {0};
    va_list ap;

    va_start(ap, fmt);
    append_format(&plain, fmt, ap);
    va_end(ap);
    h->failed = h->failed || plain.failed;
    if (plain.n > 0)
        pi_html_text_n(h, plain.s, plain.n, 0);
    pi_html_free(&plain);
}

void pi_html_data(struct pi_html *h, double value, const char *shown)
{
    if (!isfinite(value)) {
        pi_html_markup(h, "–");
        return;
    }
    pi_html_markup(h, "<data value=\"%.17g\">", value);
    pi_html_text(h, shown);
    pi_html_markup(h, "</data>");
}

void pi_html_cell(struct pi_html *h, double value, const char *shown)
{
    pi_html_markup(h, "<td>");
    pi_html_data(h, value, shown);
    pi_html_markup(h, "</td>");
}

/* ---- the page ---- */

void pi_html_begin(struct pi_html *h, const char *title)
{
    pi_html_markup(h,
                   "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                   "<meta name=\"color-scheme\" content=\"light dark\">\n"
                   "<meta name=\"generator\" content=\"%s %s\">\n<title>",
                   PACKAGE, VERSION);
    pi_html_text(h, title);
    pi_html_markup(h, "</title>\n<style>\n");
    for (size_t i = 0; pi_html_style[i] != NULL; i++)
        append(h, pi_html_style[i], strlen(pi_html_style[i]));
    pi_html_markup(h, "</style>\n</head>\n<body>\n<main>\n");
}

void pi_html_end(struct pi_html *h)
{
    pi_html_markup(h, "</main>\n</body>\n</html>\n");
}

void pi_html_table(struct pi_html *h, const char *caption, const char *const *heads, size_t n)
{
    pi_html_markup(h, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
    pi_html_text(h, caption);
    pi_html_markup(h, "\"><table>\n<caption>");
    pi_html_text(h, caption);
    pi_html_markup(h, "</caption>\n<thead><tr>");
    for (size_t i = 0; i < n; i++)
        pi_html_markup(h, "<th scope=\"col\">%s</th>", heads[i]);
    pi_html_markup(h, "</tr></thead>\n<tbody>\n");
}

void pi_html_table_end(struct pi_html *h)
{
    pi_html_markup(h, "</tbody></table></div>\n");
}

const char *pi_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* ---- figures ---- */

/* Decimals that make about three digits. */
static int decimals(double v)
{
    v = fabs(v);
    return v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
}

static const char *unknown(char buf[PI_FIGURE])
{
    (void)snprintf(buf, PI_FIGURE, "–");
    return buf;
}

const char *pi_figure_share(double share, char buf[PI_FIGURE])
{
    const double v = 100.0 * share;

    if (!isfinite(v))
        return unknown(buf);
    /* "100 %" is for all, "0 %" for none */
    if (v > 0.0 && v < 0.005)
        (void)snprintf(buf, PI_FIGURE, "< 0.01 %%");
    else
        (void)snprintf(buf, PI_FIGURE, "%.*f %%",
                       v == 0.0 || v == 100.0 ? 0
                       : v < 0.995            ? 2
                                              : 1,
                       v);
    return buf;
}

const char *pi_figure_bytes(double bytes, char buf[PI_FIGURE])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int i = 0;

    if (!isfinite(bytes))
        return unknown(buf);
    for (; fabs(bytes) >= 1024.0 && i < 5; i++)
        bytes /= 1024.0;
    (void)snprintf(buf, PI_FIGURE, "%.*f %s", i == 0 ? 0 : decimals(bytes), bytes, units[i]);
    return buf;
}

const char *pi_figure_time(double seconds, char buf[PI_FIGURE])
{
    double v = seconds * 1e6;
    const char *unit = "µs";

    if (!isfinite(seconds))
        return unknown(buf);
    if (v >= 999500.0) {
        v = seconds;
        unit = "s";
    } else if (v >= 999.5) {
        v = seconds * 1e3;
        unit = "ms";
    }
    (void)snprintf(buf, PI_FIGURE, "%.*f %s", v == 0.0 ? 0 : decimals(v), v, unit);
    return buf;
}

const char *pi_figure_rate(double per_second, char buf[PI_FIGURE])
{
    if (!isfinite(per_second))
        return unknown(buf);
    if (per_second >= 9999.5)
        return pi_figure_count(per_second, buf);
    (void)snprintf(buf, PI_FIGURE, "%.*f", decimals(per_second), per_second);
    return buf;
}

const char *pi_figure_count(double n, char buf[PI_FIGURE])
{
    static const char gap[] = "\xe2\x80\xaf"; /* a narrow space that does not break */
    char digits[32];
    int len;
    size_t at = 0;

    if (!isfinite(n) || fabs(n) >= 1e18)
        return unknown(buf);
    len = snprintf(digits, sizeof(digits), "%.0f", n);
    for (int i = 0; i < len; i++) {
        /* four digits stand together, as they do in print */
        if (i > 0 && digits[i - 1] != '-' && (len - i) % 3 == 0 && len > 4) {
            memcpy(buf + at, gap, 3);
            at += 3;
        }
        buf[at++] = digits[i];
    }
    buf[at] = '\0';
    return buf;
}

const char *pi_figure_factor(double factor, char buf[PI_FIGURE])
{
    if (!isfinite(factor))
        return unknown(buf);
    (void)snprintf(buf, PI_FIGURE, "%.*f ×", decimals(factor), factor);
    return buf;
}
