/*
 * pi_html.h - self-contained HTML pages, written in one piece in memory: escaping, figures for people and programs, tables, the frame of a page.
 *
 * A page under construction remembers that memory ran out; every call after that does nothing, and pi_html_save() reports it. So callers write markup
 * without a check behind each line. Text from files (names, descriptions) goes through pi_html_text() alone: what is special in HTML
 * is escaped, what is no UTF-8, controls and marks that turn the direction of text become U+FFFD. pi_html_markup() is for our own markup and numbers.
 *
 * The page's style has classes for what reports share; it follows the reader's colour scheme, prints in light colours, and
 * asks for nothing outside the file.
 */
#ifndef PI_HTML_H
#define PI_HTML_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_html {
    char *s; /* (n) and a NUL; owned; NULL before anything is written */
    size_t n, cap;
    bool failed; /* memory ran out */
};

void pi_html_free(struct pi_html *h); /* accepts a zeroed one */

/* Writes the page: complete under that name, or not at all. PI_E_NOMEM where it ran out before; PI_E_IO, PI_E_NOSPACE. */
enum pi_code pi_html_save(const struct pi_html *h, const char *path,
                          struct pi_err *err) PI_MUST_CHECK;

/* Markup as it stands; printf. Nothing that comes from a file may be among the arguments but numbers. */
void pi_html_markup(struct pi_html *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Text, escaped for element content and quoted attributes alike. */
void pi_html_text(struct pi_html *h, const char *text);
void pi_html_textf(struct pi_html *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* n bytes that need not be text at all; behind `most` characters (0: no limit) there is an ellipsis. */
void pi_html_text_n(struct pi_html *h, const char *text, size_t n, size_t most);

/* <data value="0.125">12.5 %</data>: the figure for people, which is text, and beside it the exact one for programs. A value that is
 * not finite is shown as a dash. */
void pi_html_data(struct pi_html *h, double value, const char *shown);
/* The same as a table's cell. */
void pi_html_cell(struct pi_html *h, double value, const char *shown);

/* The frame: everything up to <main>, with the style; and what closes it. */
void pi_html_begin(struct pi_html *h, const char *title);
void pi_html_end(struct pi_html *h);

/* A table of figures in a box that scrolls on a screen and is whole in print; heads are its columns' titles (markup, ours). Rows follow, then pi_html_table_end(). */
void pi_html_table(struct pi_html *h, const char *caption, const char *const *heads, size_t n);
void pi_html_table_end(struct pi_html *h);

/* The last part of a path. */
const char *pi_base_name(const char *path);

/* ---- figures for people: each fills buf and returns it; about three digits; "–" where the value is not finite ---- */
#define PI_FIGURE 40
const char *pi_figure_share(double share, char buf[PI_FIGURE]); /* 0..1: "12.5 %" */
const char *pi_figure_bytes(double bytes, char buf[PI_FIGURE]); /* "7.81 GiB" */
const char *pi_figure_time(double seconds, char buf[PI_FIGURE]);
const char *pi_figure_rate(double per_second, char buf[PI_FIGURE]); /* without its unit */
const char *pi_figure_count(double n, char buf[PI_FIGURE]);         /* digits in groups of three */
const char *pi_figure_factor(double factor, char buf[PI_FIGURE]);   /* "1.52 ×" */

#endif
