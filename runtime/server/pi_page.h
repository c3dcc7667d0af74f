/*
 * pi_page.h - the page that a server shows to browsers: files that are part of the program (page.html, page.css, page.js in this folder; build-aux/embed.sh makes
 * pi_page_data.c of them). They load nothing from elsewhere, and the policy sent along forbids it.
 */
#ifndef PI_SERVER_PAGE_H
#define PI_SERVER_PAGE_H

#include <stddef.h>

struct pi_page_file {
    const char *path, *type;   /* "/", "/page.css" ...; the media type */
    const unsigned char *data; /* (*size) */
    const size_t *size;
};

struct pi_page_header {
    const char *name, *value;
};

/* NULL: the page has no such path. */
const struct pi_page_file *pi_page_find(const char *path);
/* What every file of the page is sent with; the last one's name is NULL. */
extern const struct pi_page_header pi_page_headers[];

/* pi_page_data.c */
extern const unsigned char pi_page_html[], pi_page_css[], pi_page_js[];
extern const size_t pi_page_html_size, pi_page_css_size, pi_page_js_size;

#endif
