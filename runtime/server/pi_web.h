/*
 * pi_web.h - the page that a server shows to browsers: files that are part of the program (page.html, page.css, page.js in this folder; build-aux/embed.sh makes
 * pi_web_data.c of them). They load nothing from elsewhere, and the policy sent along forbids it.
 */
#ifndef PI_WEB_H
#define PI_WEB_H

#include <stddef.h>

struct pi_web_file {
    const char *path, *type;   /* "/", "/page.css" ...; the media type */
    const unsigned char *data; /* (*size) */
    const size_t *size;
};

struct pi_web_header {
    const char *name, *value;
};

/* NULL: the page has no such path. */
const struct pi_web_file *pi_web_find(const char *path);
/* What every file of the page is sent with; the last one's name is NULL. */
extern const struct pi_web_header pi_web_headers[];

/* pi_web_data.c */
extern const unsigned char pi_web_html[], pi_web_css[], pi_web_js[];
extern const size_t pi_web_html_size, pi_web_css_size, pi_web_js_size;

#endif
