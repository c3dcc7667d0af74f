#include "config.h"

#include "common/pi_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void pi_svg_begin(struct pi_html *h, const char *id, double width, double height, const char *title,
                  const char *description)
{
    pi_html_markup(h,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" role=\"img\" "
                   "aria-labelledby=\"%s-t %s-d\">\n<title id=\"%s-t\">",
                   width, height, id, id, id);
    pi_html_text(h, title);
    pi_html_markup(h, "</title>\n<desc id=\"%s-d\">", id);
    pi_html_text(h, description);
    pi_html_markup(h, "</desc>\n");
}

void pi_svg_end(struct pi_html *h)
{
    pi_html_markup(h, "</svg>\n");
}

static double within(double v)
{
    return v >= 0.0 ? v <= 1.0 ? v : 1.0 : 0.0; /* not a number: 0 */
}

double pi_plot_x(const struct pi_plot *p, double x)
{
    return p->left + p->width * within((x - p->x0) / (p->x1 - p->x0));
}

double pi_plot_y(const struct pi_plot *p, double y)
{
    return p->top + p->height * (1.0 - within((y - p->y0) / (p->y1 - p->y0)));
}

/* A coordinate with at most one decimal, none where it is zero. */
static void coordinate(struct pi_html *h, char before, double v)
{
    const double r = round(10.0 * v) / 10.0;

    if (r == floor(r))
        pi_html_markup(h, "%c%.0f", before, r);
    else
        pi_html_markup(h, "%c%.1f", before, r);
}

/* ---- axes ---- */

double pi_tick_step(double span, int n)
{
    double power, v;

    if (!(span > 0.0) || !isfinite(span) || n < 1)
        return 1.0;
    power = pow(10.0, floor(log10(span / n)));
    v = span / n / power;
    /* rounding must not turn an exact 2 into a 5 */
    return power * (v <= 1.0 + 1e-9 ? 1.0 : v <= 2.0 + 1e-9 ? 2.0 : v <= 5.0 + 1e-9 ? 5.0 : 10.0);
}

/* The same in powers of two. */
static double byte_step(double span, int n)
{
    return span > 0.0 && isfinite(span) ? fmax(exp2(ceil(log2(span / n) - 1e-9)), 1.0) : 1.0;
}

static void tick_bytes(double v, double step, char buf[PI_FIGURE])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int i = 0, decimals = 0;

    for (; fabs(v) >= 1024.0 && i < 5; i++) {
        v /= 1024.0;
        step /= 1024.0;
    }
    for (; decimals < 2 && step != floor(step); decimals++)
        step *= 10.0;
    if (v == 0.0)
        (void)snprintf(buf, PI_FIGURE, "0");
    else if (v == floor(v))
        (void)snprintf(buf, PI_FIGURE, "%.0f %s", v, units[i]);
    else
        (void)snprintf(buf, PI_FIGURE, "%.*f %s", decimals, v, units[i]);
}

static int decimals_of(double step)
{
    return step < 1.0 ? (int)fmin(ceil(-log10(step) - 1e-9), 9.0) : 0;
}

/* top: the largest tick, which chooses the unit of seconds. */
static void tick_text(enum pi_tick kind, double v, double step, double top, char buf[PI_FIGURE])
{
    double unit = 1.0;
    const char *name = "";

    switch (kind) {
    case PI_TICK_BYTES:
        tick_bytes(v, step, buf);
        return;
    case PI_TICK_SHARE:
        unit = 0.01;
        name = " %";
        break;
    case PI_TICK_SECONDS:
        unit = top < 1e-3 ? 1e-6 : top < 1.0 ? 1e-3 : 1.0;
        name = top < 1e-3 ? " µs" : top < 1.0 ? " ms" : " s";
        break;
    case PI_TICK_NUMBER:
        if (v >= 9999.5) {
            (void)pi_figure_count(v, buf);
            return;
        }
        break;
    }
    (void)snprintf(buf, PI_FIGURE, "%.*f%s", decimals_of(step / unit), v / unit + 0.0, name);
}

static double step_of(enum pi_tick kind, double span, int n)
{
    return kind == PI_TICK_BYTES ? byte_step(span, n) : pi_tick_step(span, n);
}

void pi_plot_axis_y(const struct pi_plot *p, enum pi_tick kind, int n, const char *title)
{
    const double step = step_of(kind, p->y1 - p->y0, n);
    char text[PI_FIGURE];

    for (double k = ceil(p->y0 / step - 1e-9); k * step <= p->y1 + 1e-9 * step; k++) {
        const double y = pi_plot_y(p, k * step);

        pi_html_markup(p->h, "<path class=\"%s\" d=\"", k == 0.0 ? "axis" : "grid");
        coordinate(p->h, 'M', p->left);
        coordinate(p->h, ' ', y);
        coordinate(p->h, 'h', p->width);
        pi_html_markup(p->h, "\"/>");
        tick_text(kind, k * step, step, p->y1, text);
        pi_svg_label(p->h, "tick", "end", p->left - 7.0, y + 4.0, text);
    }
    if (title != NULL)
        pi_svg_label(p->h, "head", "start", 0.0, p->top - 14.0, title);
}

static void tick_mark_x(const struct pi_plot *p, double x, const char *text, bool line)
{
    pi_html_markup(p->h, "<path class=\"%s\" d=\"", line ? "grid" : "axis");
    coordinate(p->h, 'M', x);
    coordinate(p->h, ' ', p->top + (line ? 0.0 : p->height));
    coordinate(p->h, 'v', line ? p->height : 5.0);
    pi_html_markup(p->h, "\"/>");
    pi_svg_label(p->h, "tick", "middle", x, p->top + p->height + 18.0, text);
}

void pi_plot_axis_x(const struct pi_plot *p, enum pi_tick kind, int n, const char *title)
{
    const double step = step_of(kind, p->x1 - p->x0, n);
    char text[PI_FIGURE];

    for (double k = ceil(p->x0 / step - 1e-9); k * step <= p->x1 + 1e-9 * step; k++) {
        tick_text(kind, k * step, step, p->x1, text);
        tick_mark_x(p, pi_plot_x(p, k * step), text, true);
    }
    if (title != NULL)
        pi_svg_label(p->h, "tick", "middle", p->left + 0.5 * p->width, p->top + p->height + 38.0,
                     title);
}

void pi_plot_axis_layers(const struct pi_plot *p, uint32_t n_layer, const char *title)
{
    const double step = fmax(pi_tick_step((double)n_layer, 12), 1.0);
    char text[PI_FIGURE];

    for (double v = 0.0; v < n_layer; v += step) {
        (void)snprintf(text, sizeof(text), "%.0f", v);
        tick_mark_x(p, pi_plot_x(p, v), text, false);
    }
    if (title != NULL)
        pi_svg_label(p->h, "tick", "middle", p->left + 0.5 * p->width, p->top + p->height + 38.0,
                     title);
}

/* ---- marks ---- */

void pi_plot_line(const struct pi_plot *p, const char *classes, const double *x, const double *y,
                  size_t n)
{
    bool pen = false;

    pi_html_markup(p->h, "<path class=\"ln %s\" d=\"", classes);
    for (size_t i = 0; i < n; i++) {
        const bool ok = isfinite(x[i]) && isfinite(y[i]);
        const bool alone = !pen && (i + 1 == n || !isfinite(x[i + 1]) || !isfinite(y[i + 1]));

        if (ok) {
            coordinate(p->h, pen ? 'L' : 'M', pi_plot_x(p, x[i]) - (alone ? 2.0 : 0.0));
            coordinate(p->h, ' ', pi_plot_y(p, y[i]));
            if (alone)
                pi_html_markup(p->h, "h4");
        }
        pen = ok;
    }
    pi_html_markup(p->h, "\"/>\n");
}

void pi_plot_bars_begin(const struct pi_plot *p, const char *classes)
{
    pi_html_markup(p->h, "<path class=\"%s\" d=\"", classes);
}

void pi_plot_bar(const struct pi_plot *p, double xa, double xb, double ya, double yb)
{
    const double x = pi_plot_x(p, xa), y = pi_plot_y(p, yb);
    const double w = pi_plot_x(p, xb) - x, h = pi_plot_y(p, ya) - y;

    if (!(isfinite(ya) && isfinite(yb)) || w <= 0.0 || h <= 0.0)
        return;
    pi_html_markup(p->h, "M%.2f %.2fh%.2fv%.2fh%.2fz", x, y, w, h, -w);
}

void pi_plot_bars_end(const struct pi_plot *p)
{
    pi_html_markup(p->h, "\"/>\n");
}

void pi_plot_dot(const struct pi_plot *p, const char *classes, double radius, double x, double y)
{
    if (isfinite(x) && isfinite(y))
        pi_html_markup(p->h, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%g\"/>\n", classes,
                       pi_plot_x(p, x), pi_plot_y(p, y), radius);
}

void pi_svg_label(struct pi_html *h, const char *classes, const char *anchor, double x, double y,
                  const char *text)
{
    pi_html_markup(h, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">", classes,
                   anchor, x, y);
    pi_html_text(h, text);
    pi_html_markup(h, "</text>\n");
}

void pi_plot_label(const struct pi_plot *p, const char *classes, const char *anchor, double x,
                   double y, double dx, double dy, const char *text)
{
    pi_svg_label(p->h, classes, anchor, pi_plot_x(p, x) + dx, pi_plot_y(p, y) + dy, text);
}

/* Characters of UTF-8. */
static size_t length(const char *s)
{
    size_t n = 0;

    for (; *s != '\0'; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

double pi_svg_key(struct pi_html *h, const char *classes, double x, double y, const char *text)
{
    pi_html_markup(h,
                   "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\" rx=\"2\"/>",
                   classes, x, y - 10.0);
    pi_svg_label(h, "tick", "start", x + 16.0, y, text);
    return x + 16.0 + 7.0 * (double)length(text) + 14.0;
}
