/* pi_page_layers.c - the sections of pi_page.h that go layer by layer, what modes read, and the words. */
#include "config.h"

#include "common/pi_page.h"
#include "common/pi_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- density and predictors ---- */

/* A round value a little above the largest. */
static double top_of(double largest, double least)
{
    const double step = pi_tick_step(largest > least ? largest : least, 4);

    return step * ceil((largest > least ? largest : least) / step - 1e-9);
}

/* A gap between bars where they are wide enough to have one. */
static double bar_half(uint32_t n_layer)
{
    return n_layer > 100 ? 0.5 : 0.4;
}

static void bar_values(const struct pi_plot *plot, const char *classes, const double *v, uint32_t n)
{
    const double half = bar_half(n);

    pi_plot_bars_begin(plot, classes);
    for (uint32_t l = 0; l < n; l++)
        pi_plot_bar(plot, l - half, l + half, 0.0, v[l]);
    pi_plot_bars_end(plot);
}

/* What a pointer that rests on a layer shows. */
static void hover(const struct pi_page *p, const struct pi_plot *plot, uint32_t l, const char *text)
{
    if (p->shape->n_layer > 256)
        return;
    pi_html_markup(plot->h, "<path class=\"hit\" d=\"M%.2f %.2fH%.2fV%.2fH%.2fz\"><title>",
                   pi_plot_x(plot, l - 0.5), plot->top, pi_plot_x(plot, l + 0.5),
                   plot->top + plot->height, pi_plot_x(plot, l - 0.5));
    pi_html_text(plot->h, text);
    pi_html_markup(plot->h, "</title></path>\n");
}

static double density_of(const struct pi_page *p, uint32_t l)
{
    return p->census != NULL ? p->census[l].density : (double)NAN;
}

static const struct pi_predictor_layer *predictor_of(const struct pi_page *p, uint32_t l)
{
    return p->predictor != NULL && p->predictor->layers[l].width > 0 ? &p->predictor->layers[l]
                                                                     : NULL;
}

static void draw_density(struct pi_page *p, double top)
{
    const uint32_t n = p->shape->n_layer;
    struct pi_plot plot = {&p->html, 58, top, 488, 128, -0.5, n - 0.5, 0, 1};
    double most = 0.0;
    char text[96], share[PI_FIGURE];
    double v[PI_MAX_LAYERS] = {0};

    for (uint32_t l = 0; l < n; l++) {
        v[l] = density_of(p, l);
        most = fmax(most, v[l]);
    }
    plot.y1 = fmin(top_of(most, 0.01), 1.0);
    pi_plot_axis_y(&plot, PI_TICK_SHARE, 4, "Density: neurons active for a token");
    bar_values(&plot, "fdens", v, n);
    pi_plot_axis_layers(&plot, n, p->n_predictors > 0 ? NULL : "Layer");
    for (uint32_t l = 0; l < n; l++) {
        (void)snprintf(text, sizeof(text), "layer %u: %s active", l, pi_figure_share(v[l], share));
        hover(p, &plot, l, text);
    }
}

static void draw_width(struct pi_page *p, double top)
{
    const uint32_t n = p->shape->n_layer;
    struct pi_plot plot = {&p->html, 58, top, 488, 128, -0.5, n - 0.5, 0, 1};
    double most = 0.0;
    double v[PI_MAX_LAYERS] = {0};
    char text[96];

    for (uint32_t l = 0; l < n; l++) {
        v[l] = p->predictor->layers[l].width;
        most = fmax(most, v[l]);
    }
    plot.y1 = top_of(most, 1.0);
    pi_plot_axis_y(&plot, PI_TICK_NUMBER, 4, "Width of the layer’s predictor");
    bar_values(&plot, "fpred", v, n);
    pi_plot_axis_layers(&plot, n, "Layer");
    for (uint32_t l = 0; l < n; l++) {
        (void)snprintf(text, sizeof(text),
                       v[l] > 0 ? "layer %u: width %.0f" : "layer %u: none, runs exact", l, v[l]);
        hover(p, &plot, l, text);
    }
}

static void layer_row(struct pi_page *p, uint32_t l)
{
    struct pi_html *h = &p->html;
    const struct pi_predictor_layer *x = predictor_of(p, l);
    char s[PI_FIGURE];

    pi_html_markup(h, "<tr><th scope=\"row\">%u</th>", l);
    if (p->census != NULL) {
        pi_html_cell(h, p->census[l].density, pi_figure_share(p->census[l].density, s));
        pi_html_cell(h, p->census[l].hot80, pi_figure_share(p->census[l].hot80, s));
        pi_html_cell(h, p->census[l].never, pi_figure_share(p->census[l].never, s));
    }
    if (p->predictor != NULL && x == NULL) {
        pi_html_markup(h, "<td>none</td><td>–</td><td>–</td><td>–</td>");
    } else if (x != NULL) {
        pi_html_cell(h, x->width, pi_figure_count(x->width, s));
        pi_html_cell(h, (double)x->recall, pi_figure_share((double)x->recall, s));
        pi_html_cell(h, (double)x->precision, pi_figure_share((double)x->precision, s));
        pi_html_cell(h, (double)x->density, pi_figure_share((double)x->density, s));
    }
    pi_html_markup(h, "</tr>\n");
}

static void layer_means(struct pi_page *p)
{
    struct pi_html *h = &p->html;
    char s[PI_FIGURE];

    pi_html_markup(h, "<tr class=\"sum\"><th scope=\"row\">mean</th>");
    if (p->census != NULL) {
        pi_html_cell(h, p->mean.density, pi_figure_share(p->mean.density, s));
        pi_html_cell(h, p->mean.hot80, pi_figure_share(p->mean.hot80, s));
        pi_html_cell(h, p->mean.never, pi_figure_share(p->mean.never, s));
    }
    if (p->n_predictors > 0) {
        pi_html_markup(h, "<td></td>");
        pi_html_cell(h, p->recall, pi_figure_share(p->recall, s));
        pi_html_cell(h, p->precision, pi_figure_share(p->precision, s));
        pi_html_cell(h, p->pred, pi_figure_share(p->pred, s));
    } else if (p->predictor != NULL) {
        pi_html_markup(h, "<td></td><td></td><td></td><td></td>");
    }
    pi_html_markup(h, "</tr>\n");
}

static void layer_table(struct pi_page *p)
{
    static const char *const all[] = {"Layer", "Density", "Hot 80&nbsp;%", "Never active",
                                      "Width", "Recall",  "Precision",     "Predicted"};
    const char *heads[8] = {"Layer"};
    size_t n = 1;

    for (size_t i = 1; i < 8; i++)
        if (i < 4 ? p->census != NULL : p->predictor != NULL)
            heads[n++] = all[i];
    pi_html_table(&p->html, "Every layer in figures", heads, n);
    for (uint32_t l = 0; l < p->shape->n_layer; l++)
        layer_row(p, l);
    layer_means(p);
    pi_html_table_end(&p->html);
}

static void predictor_text(struct pi_page *p)
{
    struct pi_html *h = &p->html;

    if (p->predictor == NULL) {
        pi_html_markup(h, "<p>There is no predictor: sparse runs compute the gate of every neuron "
                          "(exact mode). Make one with <code>pi-train-predictor ");
        pi_html_text_n(h, pi_base_name(p->model_path), strlen(pi_base_name(p->model_path)), 200);
        pi_html_markup(h, "</code>.</p>\n");
        return;
    }
    pi_html_markup(h, "<p>A predictor is a small network that says, before a layer’s weights are "
                      "read, which of its neurons will be active. ");
    if (p->n_predictors == p->shape->n_layer)
        pi_html_textf(h, p->n_predictors == 1 ? "The layer has one" : "All %u layers have one",
                      p->n_predictors);
    else
        pi_html_textf(h, "%u of %u layers have one", p->n_predictors, p->shape->n_layer);
    pi_html_markup(h, "; a layer without runs exact.</p>\n");
}

/* ---- quality of predictors ---- */

static void draw_quality(struct pi_page *p)
{
    const uint32_t n = p->shape->n_layer;
    struct pi_plot plot = {&p->html, 58, 34, 488, 150, -0.5, n - 0.5, 0, 1};
    double x[PI_MAX_LAYERS], recall[PI_MAX_LAYERS], precision[PI_MAX_LAYERS], at;
    const double radius = n > 64 ? 2.0 : 3.6;
    char text[96], a[PI_FIGURE], b[PI_FIGURE];

    pi_svg_begin(
        &p->html, "quality", 560, 240, "Recall and precision of the predictors",
        "Two points for each layer that has a predictor. The table holds the same figures.");
    pi_plot_axis_y(&plot, PI_TICK_SHARE, 5, NULL);
    at = pi_svg_key(&p->html, "fdens", 58, 16, "recall: active neurons that are found");
    (void)pi_svg_key(&p->html, "fgpu", at, 16, "precision: called and active");
    for (uint32_t l = 0; l < n; l++) {
        const struct pi_predictor_layer *y = predictor_of(p, l);

        x[l] = l;
        recall[l] = y != NULL ? (double)y->recall : (double)NAN;
        precision[l] = y != NULL ? (double)y->precision : (double)NAN;
    }
    pi_plot_line(&plot, "ldens thin", x, recall, n);
    pi_plot_line(&plot, "lgpu thin", x, precision, n);
    for (uint32_t l = 0; l < n; l++) {
        pi_plot_dot(&plot, "fgpu", radius, l, precision[l]);
        pi_plot_dot(&plot, "fdens", radius, l, recall[l]);
    }
    pi_plot_axis_layers(&plot, n, "Layer");
    for (uint32_t l = 0; l < n; l++) {
        (void)snprintf(text, sizeof(text), "layer %u: recall %s, precision %s", l,
                       pi_figure_share(recall[l], a), pi_figure_share(precision[l], b));
        hover(p, &plot, l, text);
    }
    pi_svg_end(&p->html);
}

void pi_page_layers(struct pi_page *p)
{
    struct pi_html *h = &p->html;
    const bool widths = p->n_predictors > 0;
    double top = 34;

    if (!p->sparse || (p->census == NULL && p->predictor == NULL))
        return;
    pi_html_markup(h, "<section>\n<h2>Density and predictors, layer by layer</h2>\n");
    predictor_text(p);
    pi_html_markup(h, "<div class=\"pair\">\n<div>\n");
    if (p->census != NULL || widths) {
        pi_html_markup(h, "<figure>\n");
        pi_svg_begin(h, "layers", 560, p->census != NULL && widths ? 412 : 214,
                     "Density and width of predictors by layer",
                     "Bars for each layer. The table holds the same figures.");
        if (p->census != NULL) {
            draw_density(p, top);
            top += 196;
        }
        if (widths)
            draw_width(p, top);
        pi_svg_end(h);
        pi_html_markup(h, "</figure>\n");
    }
    if (widths) {
        pi_html_markup(h, "<figure>\n");
        draw_quality(p);
        pi_html_markup(
            h, "<figcaption>On tokens held out of training, as the predictor’s file says. A missed "
               "neuron costs accuracy, a wrongly called one costs time.</figcaption>\n</figure>\n");
    }
    pi_html_markup(h, "</div>\n");
    layer_table(p);
    pi_html_markup(h, "</div>\n</section>\n");
}

/* ---- what modes read ---- */

struct part {
    const char *name, *fill;
    double bytes;
};

static void reads_parts(const struct pi_reads *r, struct part out[5])
{
    const struct part parts[5] = {{"feed-forward", "fdens", r->ffn},
                                  {"predictors", "fpred", r->predictor},
                                  {"attention", "fattn", r->attn},
                                  {"KV cache", "fsync", r->kv},
                                  {"output head", "k2", r->output}};

    memcpy(out, parts, sizeof(parts));
}

static void draw_reads(struct pi_page *p, const struct pi_reads *r, int n_modes)
{
    struct pi_plot plot = {&p->html, 82, 34, 464, 40.0 * n_modes, 0, r[0].total, 0, n_modes};
    char s[PI_FIGURE];
    double at = 0;

    for (int m = 1; m < n_modes; m++)
        plot.x1 = fmax(plot.x1, r[m].total);
    plot.x1 = fmax(plot.x1 * 1.2, 1.0); /* room for the figure behind the longest bar */
    pi_svg_begin(&p->html, "reads", 560, plot.height + 92, "Bytes read for a token, by mode",
                 "One bar for each mode, in parts. The table holds the same figures.");
    pi_plot_axis_x(&plot, PI_TICK_BYTES, 5, "Read for each token");
    for (int m = 0; m < n_modes; m++) {
        const double y = n_modes - m - 0.5;
        struct part parts[5];
        double x = 0.0;

        reads_parts(&r[m], parts);
        for (int i = 0; i < 5; i++) {
            pi_plot_bars_begin(&plot, parts[i].fill);
            pi_plot_bar(&plot, x, x + parts[i].bytes, y - 0.32, y + 0.32);
            pi_plot_bars_end(&plot);
            x += parts[i].bytes;
        }
        pi_svg_label(&p->html, "head", "end", 74, pi_plot_y(&plot, y) + 5,
                     pi_mode_name((enum pi_mode)m));
        pi_plot_label(&plot, "halo", "start", x, y, 7, 5, pi_figure_bytes(r[m].total, s));
    }
    for (int i = 0; i < 5; i++) {
        struct part parts[5];

        reads_parts(&r[n_modes - 1], parts);
        if (parts[i].bytes > 0.0 || (i == 0))
            at = pi_svg_key(&p->html, parts[i].fill, at, 16, parts[i].name);
    }
    pi_svg_end(&p->html);
}

static void reads_table(struct pi_page *p, const struct pi_reads *r, int n_modes)
{
    static const char *const heads[] = {"Part", "dense", "exact", "predicted"};
    char s[PI_FIGURE];
    struct part parts[3][5];

    for (int m = 0; m < n_modes; m++)
        reads_parts(&r[m], parts[m]);
    pi_html_table(&p->html, "Bytes read for a token", heads, 1 + (size_t)n_modes);
    for (int i = 0; i < 5; i++) {
        pi_html_markup(&p->html, "<tr><th scope=\"row\">%s</th>", parts[0][i].name);
        for (int m = 0; m < n_modes; m++)
            pi_html_cell(&p->html, parts[m][i].bytes, pi_figure_bytes(parts[m][i].bytes, s));
        pi_html_markup(&p->html, "</tr>\n");
    }
    pi_html_markup(&p->html, "<tr class=\"sum\"><th scope=\"row\">all</th>");
    for (int m = 0; m < n_modes; m++)
        pi_html_cell(&p->html, r[m].total, pi_figure_bytes(r[m].total, s));
    pi_html_markup(&p->html, "</tr>\n<tr><th scope=\"row\">of dense</th>");
    for (int m = 0; m < n_modes; m++)
        pi_html_cell(&p->html, r[m].total / r[0].total,
                     pi_figure_share(r[m].total / r[0].total, s));
    pi_html_markup(&p->html, "</tr>\n");
    pi_html_table_end(&p->html);
}

void pi_page_reads(struct pi_page *p, const struct pi_reads *r, uint32_t n_ctx)
{
    struct pi_html *h = &p->html;
    const int n_modes = !p->sparse || p->profile == NULL ? 1 : p->n_predictors == 0 ? 2 : 3;
    char a[PI_FIGURE];

    pi_html_markup(h, "<section>\n<h2>What a token has to read</h2>\n<p>");
    pi_html_markup(
        h, "Writing text is bound by reading weights, so bytes are time, on any machine. "
           "Dense reads everything; exact reads the gate of every neuron and the rest of "
           "active ones alone, with the same result; predicted reads what predictors call. ");
    pi_html_textf(h, "The KV cache counts as half full, of %s positions.",
                  pi_figure_count(n_ctx, a));
    pi_html_markup(h, "</p>\n<div class=\"pair\">\n<figure>\n");
    draw_reads(p, r, n_modes);
    pi_html_markup(h, "</figure>\n");
    reads_table(p, r, n_modes);
    pi_html_markup(h, "</div>\n</section>\n");
}

void pi_page_words(struct pi_page *p)
{
    pi_html_markup(
        &p->html,
        "<section>\n<h2>Words</h2>\n<dl>\n"
        "<dt>neuron</dt><dd>One unit of a feed-forward block: a row of gate and up, a column of down.</dd>\n"
        "<dt>active</dt><dd>Its activation is not zero for a token. Inactive neurons add nothing, so their weights need not be read.</dd>\n"
        "<dt>density</dt><dd>The share of a layer’s neurons that is active for a token, on average.</dd>\n"
        "<dt>hot, cold</dt><dd>Active for many tokens and kept on the GPU; the rest, kept on the CPU.</dd>\n"
        "<dt>hot 80 %%</dt><dd>The share of a layer’s neurons, hottest first, that makes 80 %% of its activations.</dd>\n"
        "<dt>never active</dt><dd>The share that was not active once in the profiled text.</dd>\n"
        "<dt>recall, precision</dt><dd>Of a predictor: active neurons that it calls; called neurons that are active. Predicted: the share of neurons that it calls.</dd>\n"
        "<dt>dense, exact, predicted</dt><dd>Modes of a run: all weights; the gate of every neuron, then the active ones; what predictors call.</dd>\n"
        "</dl>\n</section>\n");
}
