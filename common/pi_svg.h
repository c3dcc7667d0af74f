/*
 * pi_svg.h - drawings inside a page: axes with round ticks, lines, bars, labels.
 *
 * A drawing is an <svg> with a title and a description for who does not see it. Sizes are in its own units (one is a pixel where it
 * is shown as wide as it says). A plot maps data to a box of it: x from x0 (left) to x1 (right), y from y0 (bottom) to y1 (top); what lies beyond is drawn at the box's edge. Colours are
 * classes of the page's style (pi_html_style.c). Text is escaped.
 */
#ifndef PI_SVG_H
#define PI_SVG_H

#include "common/pi_html.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_plot {
    struct pi_html *h;
    double left, top, width, height; /* the box */
    double x0, x1, y0, y1;           /* data at its edges; x0 != x1, y0 != y1 */
};

/* id: unique in the page, letters alone. */
void pi_svg_begin(struct pi_html *h, const char *id, double width, double height, const char *title,
                  const char *description);
void pi_svg_end(struct pi_html *h);

double pi_plot_x(const struct pi_plot *p, double x);
double pi_plot_y(const struct pi_plot *p, double y);

/* 1, 2 or 5 times a power of ten, so that span holds at most n of it; 1 for a span that is not positive. */
double pi_tick_step(double span, int n);

/* How a tick's number is written. */
enum pi_tick {
    PI_TICK_NUMBER,
    PI_TICK_SHARE,  /* 0..1 as percent */
    PI_TICK_BYTES,  /* steps are powers of two */
    PI_TICK_SECONDS /* in the unit that suits the axis */
};

/* Grid lines with their numbers at about n places; title above the axis (y) or below it (x). */
void pi_plot_axis_y(const struct pi_plot *p, enum pi_tick kind, int n, const char *title);
void pi_plot_axis_x(const struct pi_plot *p, enum pi_tick kind, int n, const char *title);
/* x is a layer's number, from -0.5 to n - 0.5: whole numbers only. */
void pi_plot_axis_layers(const struct pi_plot *p, uint32_t n_layer, const char *title);

/* A line through n points; a point that is not finite leaves a gap, one alone between gaps is a short dash. */
void pi_plot_line(const struct pi_plot *p, const char *classes, const double *x, const double *y,
                  size_t n);
/* Bars are one path each kind: begin, bar by bar, end. Data coordinates; empty ones are left out. */
void pi_plot_bars_begin(const struct pi_plot *p, const char *classes);
void pi_plot_bar(const struct pi_plot *p, double xa, double xb, double ya, double yb);
void pi_plot_bars_end(const struct pi_plot *p);

void pi_plot_dot(const struct pi_plot *p, const char *classes, double radius, double x, double y);

/* A short text at data (x, y), moved by (dx, dy) in the drawing's units. anchor: "start", "middle" or "end". */
void pi_plot_label(const struct pi_plot *p, const char *classes, const char *anchor, double x,
                   double y, double dx, double dy, const char *text);
/* The same at a place of the drawing. */
void pi_svg_label(struct pi_html *h, const char *classes, const char *anchor, double x, double y,
                  const char *text);
/* A square of a colour and its name; returns where the next one may start. */
double pi_svg_key(struct pi_html *h, const char *classes, double x, double y, const char *text);

#endif
