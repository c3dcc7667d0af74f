#include "config.h"

#include "common/pi_page.h"

#include "common/pi_alloc.h"
#include "common/pi_svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_CHARS 120 /* of names out of files: more is no name */

/* ---- figures ---- */

static enum pi_code check_shapes(const struct pi_page *p, struct pi_err *err)
{
    const struct pi_shape *s = p->shape;

    if (p->profile != NULL && (p->profile->n_layer != s->n_layer || p->profile->n_ff != s->n_ff))
        return pi_err_set(err, PI_E_MISMATCH,
                          "profile of %u layers of %u neurons, the model has %u of %u",
                          p->profile->n_layer, p->profile->n_ff, s->n_layer, s->n_ff);
    if (p->predictor != NULL &&
        (p->predictor->n_layer != s->n_layer || p->predictor->n_ff != s->n_ff))
        return pi_err_set(err, PI_E_MISMATCH,
                          "predictor of %u layers of %u neurons, the model has %u of %u",
                          p->predictor->n_layer, p->predictor->n_ff, s->n_layer, s->n_ff);
    return PI_OK;
}

static enum pi_code make_curves(struct pi_page *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n_layer = p->shape->n_layer;
    double *mean;
    uint32_t n = 0;

    p->n_cuts = pi_census_cuts(p->shape->n_ff, p->cuts);
    PI_ALLOC(p->curves, ((size_t)n_layer + 1) * p->n_cuts, err);
    mean = p->curves + (size_t)n_layer * p->n_cuts;
    for (uint32_t l = 0; l < n_layer; l++) {
        double *y = p->curves + (size_t)l * p->n_cuts;

        PI_TRY(pi_census_curve(p->profile, l, p->cuts, p->n_cuts, y, err));
        if (!isfinite(y[0]))
            continue;
        n++;
        for (size_t i = 0; i < p->n_cuts; i++)
            mean[i] += y[i];
    }
    for (size_t i = 0; i < p->n_cuts; i++)
        mean[i] = n > 0 ? mean[i] / n : (double)NAN;
out:
    return rc;
}

static void rate_predictors(struct pi_page *p)
{
    for (uint32_t l = 0; p->predictor != NULL && l < p->shape->n_layer; l++) {
        const struct pi_predictor_layer *x = &p->predictor->layers[l];

        if (x->width == 0)
            continue;
        p->n_predictors++;
        p->recall += (double)x->recall;
        p->precision += (double)x->precision;
        p->pred += (double)x->density;
    }
    if (p->n_predictors > 0) {
        p->recall /= p->n_predictors;
        p->precision /= p->n_predictors;
        p->pred /= p->n_predictors;
    }
}

enum pi_code pi_page_init(struct pi_page *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (p->profile != NULL && p->profile->n_tokens == 0)
        p->profile = NULL;
    PI_TRY(check_shapes(p, err));
    p->sparse = pi_activation_has_zeros(p->shape->act);
    rate_predictors(p);
    if (p->profile != NULL) {
        PI_ALLOC(p->census, p->shape->n_layer, err);
        PI_TRY(pi_census_take(p->profile, p->census, err));
        pi_census_mean(p->census, p->shape->n_layer, &p->mean);
        PI_TRY(make_curves(p, err));
    }
out:
    return rc;
}

void pi_page_free(struct pi_page *p)
{
    free(p->census);
    free(p->curves);
    pi_html_free(&p->html);
    memset(p, 0, sizeof(*p));
}

/* ---- head ---- */

static void print_name(struct pi_page *p)
{
    struct pi_str name = {0};

    if (pi_gguf_string(p->model, "general.name", false, &name, NULL) == PI_OK && name.n > 0)
        pi_html_text_n(&p->html, name.p, name.n, NAME_CHARS);
    else
        pi_html_text_n(&p->html, pi_base_name(p->model_path), strlen(pi_base_name(p->model_path)),
                       NAME_CHARS);
}

static void print_file(struct pi_page *p, const char *what, const char *path)
{
    pi_html_markup(&p->html, "; %s <code>", what);
    pi_html_text_n(&p->html, pi_base_name(path), strlen(pi_base_name(path)), 2 * NAME_CHARS);
    pi_html_markup(&p->html, "</code>");
}

void pi_page_head(struct pi_page *p, const char *kind)
{
    struct pi_html *h = &p->html;
    const struct pi_shape *s = p->shape;
    char a[PI_FIGURE], b[PI_FIGURE], c[PI_FIGURE];

    pi_html_markup(h, "<header>\n<p class=\"kind\">%s</p>\n<h1>", kind);
    print_name(p);
    pi_html_markup(h, "</h1>\n<p class=\"facts\">");
    pi_html_textf(h, "%s architecture, %s %s of %s neurons, width %s; activation %s",
                  pi_arch_name(s->arch), pi_figure_count(s->n_layer, a),
                  s->n_layer == 1 ? "layer" : "layers", pi_figure_count(s->n_ff, b),
                  pi_figure_count(s->n_embd, c), pi_activation_name(s->act));
    pi_html_markup(h, "</p>\n<p class=\"facts\">Files: <code>");
    pi_html_text_n(h, pi_base_name(p->model_path), strlen(pi_base_name(p->model_path)),
                   2 * NAME_CHARS);
    pi_html_markup(h, "</code>");
    if (p->profile != NULL) {
        print_file(p, "profile", p->profile_path);
        pi_html_textf(h, " (%s tokens, %s sampled)",
                      pi_figure_count((double)p->profile->n_tokens, a),
                      pi_figure_count((double)p->profile->n_samples, b));
    }
    if (p->predictor != NULL)
        print_file(p, "predictor", p->predictor_path);
    pi_html_markup(h, "</p>\n</header>\n");
}

/* ---- verdict ---- */

void pi_page_verdict(struct pi_page *p, enum pi_page_call call, const char *word, const char *rest)
{
    static const struct {
        const char *class, *mark;
    } looks[] = {[PI_CALL_GOOD] = {"good", "▲"},
                 [PI_CALL_FAIR] = {"fair", "◆"},
                 [PI_CALL_BAD] = {"bad", "■"},
                 [PI_CALL_OPEN] = {"open", "○"}};
    struct pi_html *h = &p->html;

    pi_html_markup(h,
                   "<div class=\"verdict %s\" id=\"verdict\">\n<p class=\"call\"><span>"
                   "<span aria-hidden=\"true\">%s</span> ",
                   looks[call].class, looks[call].mark);
    pi_html_text(h, word);
    pi_html_markup(h, "</span> ");
    pi_html_text(h, rest);
    pi_html_markup(h, "</p>\n");
}

void pi_page_verdict_end(struct pi_page *p)
{
    pi_html_markup(&p->html, "</div>\n");
}

void pi_page_caution(struct pi_page *p)
{
    char a[PI_FIGURE], b[PI_FIGURE];

    if (p->profile == NULL || p->profile->n_tokens >= PI_PAGE_FEW_TOKENS)
        return;
    pi_html_markup(&p->html, "<p><strong>Few tokens.</strong> ");
    pi_html_textf(
        &p->html,
        "The profile counted %s tokens; below %s, figures of rarely active neurons are mostly chance. Profile more text of the kind that the model will see.",
        pi_figure_count((double)p->profile->n_tokens, a), pi_figure_count(PI_PAGE_FEW_TOKENS, b));
    pi_html_markup(&p->html, "</p>\n");
}

void pi_page_tiles(struct pi_page *p)
{
    pi_html_markup(&p->html, "<ul class=\"tiles\">\n");
}

void pi_page_tile(struct pi_page *p, double value, const char *shown, const char *what)
{
    pi_html_markup(&p->html, "<li><b>");
    pi_html_data(&p->html, value, shown);
    pi_html_markup(&p->html, "</b><span>");
    pi_html_text(&p->html, what);
    pi_html_markup(&p->html, "</span></li>\n");
}

void pi_page_tiles_end(struct pi_page *p)
{
    pi_html_markup(&p->html, "</ul>\n");
}

void pi_page_rules(struct pi_page *p)
{
    static const char *const heads[] = {"Compared", "Value", "Thresholds", "Read as"};

    pi_html_markup(&p->html, "<section>\n<h2>How the verdict was reached</h2>\n"
                             "<p>Fixed rules over figures of the files, nothing else:</p>\n");
    pi_html_markup(&p->html, "<div class=\"rules\">\n");
    pi_html_table(&p->html, "Rules of the verdict", heads, 4);
}

void pi_page_rule(struct pi_page *p, const char *what, double value, const char *shown,
                  const char *thresholds, const char *reading)
{
    struct pi_html *h = &p->html;

    pi_html_markup(h, "<tr><th scope=\"row\">");
    pi_html_text(h, what);
    pi_html_markup(h, "</th>");
    pi_html_cell(h, value, shown);
    pi_html_markup(h, "<td class=\"word\">");
    pi_html_text(h, thresholds);
    pi_html_markup(h, "</td><td class=\"word\">");
    pi_html_text(h, reading);
    pi_html_markup(h, "</td></tr>\n");
}

void pi_page_rules_end(struct pi_page *p)
{
    pi_html_table_end(&p->html);
    pi_html_markup(&p->html, "</div>\n</section>\n");
}

void pi_page_rule_zeros(struct pi_page *p)
{
    pi_page_rule(p, "Has the activation zeros?", p->sparse ? 1.0 : 0.0, p->sparse ? "yes" : "no",
                 "no: the model will not gain from sparsity, whatever else the files say",
                 p->sparse ? "inactive neurons can be left out without changing the result"
                           : "every neuron counts for every token");
}

void pi_page_rule_hot(struct pi_page *p)
{
    char shown[PI_FIGURE];
    const double v = p->mean.hot80;

    if (p->profile == NULL || !p->sparse)
        return;
    pi_page_rule(
        p, "Neurons, hottest first, that make 80 % of the activations (mean of layers)", v,
        pi_figure_share(v, shown),
        "up to 30 %: a distinct hot set; up to 60 %: a blurred one; above: hardly any, as even use has 80 %",
        v <= PI_PAGE_STEEP  ? "a distinct hot set: little VRAM serves most activations"
        : v <= PI_PAGE_FLAT ? "a blurred hot set: VRAM helps in proportion"
                            : "hardly a hot set: it matters little which neurons are in VRAM");
}

/* ---- how activations concentrate ---- */

/* One of eight colours from the first layer to the last. */
static unsigned shade(uint32_t layer, uint32_t n_layer)
{
    return n_layer < 2 ? 3 : (unsigned)(((uint64_t)layer * 7 + (n_layer - 1) / 2) / (n_layer - 1));
}

/* The layer whose hottest fifth makes most (or least) of its activations. */
static uint32_t extreme(const struct pi_page *p, bool most)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t l = 0; l < p->shape->n_layer; l++) {
        const double v = p->census[l].covered[3];

        if (p->census[l].density > 0.0 &&
            (best == UINT32_MAX ||
             (most ? v > p->census[best].covered[3] : v < p->census[best].covered[3])))
            best = l;
    }
    return best;
}

static void ramp_key(struct pi_page *p, double x, double y)
{
    const uint32_t n = p->shape->n_layer;
    char text[64];

    if (n < 2) {
        (void)snprintf(text, sizeof(text), "the one layer");
        (void)pi_svg_key(&p->html, "k3", x, y, text);
        return;
    }
    for (int i = 0; i < 8; i++)
        pi_html_markup(&p->html,
                       "<rect class=\"k%d\" x=\"%g\" y=\"%g\" width=\"10\" height=\"11\"/>", i,
                       x + 10 * i, y - 10);
    (void)snprintf(text, sizeof(text), "layer 0 to layer %u", n - 1);
    pi_svg_label(&p->html, "tick", "start", x + 87, y, text);
}

static void draw_curves(struct pi_page *p)
{
    const struct pi_plot plot = {&p->html, 52, 34, 484, 264, 0, 1, 0, 1};
    const uint32_t n_layer = p->shape->n_layer;
    const double *mean = p->curves + (size_t)n_layer * p->n_cuts;
    const double diagonal[] = {0, 1};
    double x[PI_CENSUS_CUTS];
    char text[96], share[PI_FIGURE], classes[24];

    for (size_t i = 0; i < p->n_cuts; i++)
        x[i] = (double)p->cuts[i] / p->shape->n_ff;
    pi_svg_begin(
        &p->html, "cdf", 560, 346, "Share of activations over share of neurons",
        "One curve for each layer: how much of all activations its hottest neurons make. The table holds the same figures.");
    pi_plot_axis_y(&plot, PI_TICK_SHARE, 5, "Activations made by them");
    pi_plot_axis_x(&plot, PI_TICK_SHARE, 5, "Neurons of a layer, hottest first");
    pi_plot_line(&plot, "even dash", diagonal, diagonal, 2);
    for (uint32_t l = 0; l < n_layer; l++) {
        (void)snprintf(classes, sizeof(classes), "l%u%s", shade(l, n_layer),
                       n_layer > 40 ? " thin" : "");
        pi_plot_line(&plot, classes, x, p->curves + (size_t)l * p->n_cuts, p->n_cuts);
    }
    if (n_layer > 1)
        pi_plot_line(&plot, "lmean bold", x, mean, p->n_cuts);
    (void)snprintf(text, sizeof(text), "the hottest 20 %% make %s",
                   pi_figure_share(p->mean.covered[3], share));
    pi_plot_dot(&plot, "fmean", 4.5, 0.2, p->mean.covered[3]);
    pi_plot_label(&plot, "halo tmean", "start", 0.2, p->mean.covered[3], 12, 18, text);
    pi_plot_label(&plot, "halo tmuted", "start", 0.52, 0.52, 10, 16, "if all fired equally often");
    ramp_key(p, 330, 284);
    pi_svg_end(&p->html);
}

static void curve_row(struct pi_page *p, const char *name, const char *class,
                      const struct pi_census *c)
{
    char shown[PI_FIGURE];

    pi_html_markup(&p->html, "<tr%s><th scope=\"row\">%s</th>", class, name);
    for (int i = 0; i < PI_CENSUS_POINTS; i++)
        pi_html_cell(&p->html, c->covered[i], pi_figure_share(c->covered[i], shown));
    pi_html_markup(&p->html, "</tr>\n");
}

static void curve_table(struct pi_page *p)
{
    static const char *const heads[] = {"Layer",     "1&nbsp;%",  "5&nbsp;%", "10&nbsp;%",
                                        "20&nbsp;%", "30&nbsp;%", "50&nbsp;%"};
    char name[16];

    pi_html_table(&p->html, "Share of activations made by the hottest … of the neurons", heads, 7);
    for (uint32_t l = 0; l < p->shape->n_layer; l++) {
        (void)snprintf(name, sizeof(name), "%u", l);
        curve_row(p, name, "", &p->census[l]);
    }
    curve_row(p, "mean", " class=\"sum\"", &p->mean);
    pi_html_table_end(&p->html);
}

void pi_page_concentration(struct pi_page *p)
{
    struct pi_html *h = &p->html;
    char a[PI_FIGURE], b[PI_FIGURE];
    uint32_t most, least;

    if (p->profile == NULL || !p->sparse)
        return;
    most = extreme(p, true);
    least = extreme(p, false);
    pi_html_markup(h, "<section>\n<h2>How activations concentrate</h2>\n"
                      "<p>The steeper a curve rises, the more of the work a small hot set does. "
                      "On the dashed line every neuron would fire equally often, and it would not "
                      "matter which of them are in VRAM.</p>\n<div class=\"pair\">\n<figure>\n");
    draw_curves(p);
    pi_html_markup(h, "<figcaption>");
    if (most != UINT32_MAX)
        pi_html_textf(
            h,
            "Steepest: layer %u, whose hottest 20 %% make %s; flattest: layer %u with %s. The bold line is the mean.",
            most, pi_figure_share(p->census[most].covered[3], a), least,
            pi_figure_share(p->census[least].covered[3], b));
    pi_html_markup(h, "</figcaption>\n</figure>\n");
    curve_table(p);
    pi_html_markup(h, "</div>\n</section>\n");
}
