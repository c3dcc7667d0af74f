/* pi_html_style.h - the style sheet of pi_html.h's pages; not for others. */
#ifndef PI_HTML_STYLE_H
#define PI_HTML_STYLE_H

extern const char *const pi_html_style[]; /* pieces, ended by NULL */

#endif
