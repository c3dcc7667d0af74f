#include "config.h"

#include "solver/pi_place_figures.h"

#include "common/pi_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- budgets ---- */

/* Activations were counted; else all neurons are taken as equal, and shares are of neurons. */
static bool counted(const struct pi_page *page)
{
    return page->sparse && page->profile != NULL;
}

/* The points that can be: budgets, and one of their figures. */
static size_t feasible(const struct pi_study *s, bool rates, double *x, double *y)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_points; i++) {
        const struct pi_plan_point *q = &s->points[i];

        if (!q->feasible)
            continue;
        x[n] = (double)q->budget;
        y[n++] = rates ? q->placed : q->activations_on_gpu;
    }
    return n;
}

/* What no budget of this GPU can be. */
static void shade_beyond(const struct pi_plot *plot, const struct pi_study *s, bool label)
{
    if (s->memory >= plot->x1)
        return;
    pi_plot_bars_begin(plot, "beyond");
    pi_plot_bar(plot, s->memory, plot->x1, plot->y0, plot->y1);
    pi_plot_bars_end(plot);
    if (label)
        pi_plot_label(plot, "tick halo", "end", plot->x1, plot->y0, -6, -8,
                      "more than this GPU has");
}

/* The label stands at the line's top, or below a high point: on the left, where the curve is lower, if there is room. */
static void mark_chosen(const struct pi_plot *plot, const struct pi_plan_point *q, double y,
                        const char *text)
{
    const double x = (double)q->budget, at = pi_plot_x(plot, x);
    const bool left = at - plot->left > 160.0;
    const bool high = pi_plot_y(plot, y) < plot->top + 40.0;

    pi_html_markup(plot->h, "<path class=\"even dash\" d=\"M%.1f %.1fV%.1f\"/>\n", at, plot->top,
                   plot->top + plot->height);
    pi_plot_dot(plot, "fcpu", 5.5, x, y);
    pi_svg_label(plot->h, "halo head", left ? "end" : "start", at + (left ? -9.0 : 9.0),
                 plot->top + (high ? plot->height - 26.0 : 15.0), text);
}

static void draw_shares(struct pi_page *page, const struct pi_study *s, double top)
{
    struct pi_plot plot = {&page->html, 62, top, 484, 170, 0, top, 0, 1};
    double x[PI_STUDY_POINTS], y[PI_STUDY_POINTS];
    const struct pi_plan_point *q = &s->points[s->chosen];
    char text[96], a[PI_FIGURE], b[PI_FIGURE];

    plot.x1 = (double)s->points[s->n_points - 1].budget * 1.02;
    pi_plot_axis_y(&plot, PI_TICK_SHARE, 5,
                   counted(page) ? "Activations that are of neurons on the GPU"
                                 : "Neurons that are on the GPU");
    shade_beyond(&plot, s, true);
    pi_plot_axis_x(&plot, PI_TICK_BYTES, 7, NULL);
    pi_plot_line(&plot, "lgpu bold", x, y, feasible(s, false, x, y));
    (void)snprintf(text, sizeof(text), "%s: %s", pi_figure_bytes((double)q->budget, a),
                   pi_figure_share(q->activations_on_gpu, b));
    mark_chosen(&plot, q, q->activations_on_gpu, text);
}

static void draw_speeds(struct pi_page *page, const struct pi_study *s, double top)
{
    struct pi_plot plot = {&page->html, 62, top, 484, 170, 0, 1, 0, 1};
    double x[PI_STUDY_POINTS], y[PI_STUDY_POINTS];
    const struct pi_plan_point *q = &s->points[s->chosen];
    const size_t n = feasible(s, true, x, y);
    const double cpu = s->points[0].placed, ends[2] = {cpu, cpu};
    double sides[2] = {0};
    char text[96], a[PI_FIGURE], b[PI_FIGURE];

    plot.x1 = sides[1] = (double)s->points[s->n_points - 1].budget * 1.02;
    for (size_t i = 0; i < n; i++)
        plot.y1 = fmax(plot.y1, y[i] * 1.08);
    pi_plot_axis_y(&plot, PI_TICK_NUMBER, 5, "Expected tokens per second");
    shade_beyond(&plot, s, false);
    pi_plot_axis_x(&plot, PI_TICK_BYTES, 7, "Budget of VRAM, everything counted");
    pi_plot_line(&plot, "lcpu dash", sides, ends, 2);
    pi_plot_label(&plot, "tick tcpu halo", "end", plot.x1, cpu, -6, -6, "CPU alone");
    pi_plot_line(&plot, "lgpu bold", x, y, n);
    (void)snprintf(text, sizeof(text), "%s: %s tokens/s", pi_figure_bytes((double)q->budget, a),
                   pi_figure_rate(q->placed, b));
    mark_chosen(&plot, q, q->placed, text);
}

static void budget_table(struct pi_page *page, const struct pi_study *s)
{
    const char *const heads[] = {"Budget", "VRAM used",
                                 counted(page) ? "Activations on the GPU" : "Neurons on the GPU",
                                 "Tokens/s"};
    struct pi_html *h = &page->html;
    char t[PI_FIGURE];

    pi_html_table(h, "What a budget buys; the chosen one is marked", heads, 4);
    for (size_t i = 0; i < s->n_points; i++) {
        const struct pi_plan_point *q = &s->points[i];

        pi_html_markup(h, "<tr%s><th scope=\"row\">", i == s->chosen ? " class=\"here\"" : "");
        if (q->budget == 0)
            pi_html_markup(h, "<data value=\"0\">0 (CPU alone)</data>");
        else
            pi_html_data(h, (double)q->budget, pi_figure_bytes((double)q->budget, t));
        pi_html_markup(h, "%s</th>", (double)q->budget > s->memory ? " *" : "");
        if (q->feasible) {
            pi_html_cell(h, (double)q->vram_bytes, pi_figure_bytes((double)q->vram_bytes, t));
            pi_html_cell(h, q->activations_on_gpu, pi_figure_share(q->activations_on_gpu, t));
            pi_html_cell(h, q->placed, pi_figure_rate(q->placed, t));
        } else {
            pi_html_markup(h, "<td colspan=\"3\">too little for context and buffers</td>");
        }
        pi_html_markup(h, "</tr>\n");
    }
    pi_html_table_end(h);
}

static void budget_caption(struct pi_page *page, const struct pi_plan *plan,
                           const struct pi_study *s)
{
    struct pi_html *h = &page->html;
    char a[PI_FIGURE];
    bool proven = true;

    for (size_t i = 0; i < s->n_points; i++)
        proven = proven && (!s->points[i].feasible || s->points[i].optimal);
    pi_html_markup(h, "<figcaption>%s",
                   strcmp(plan->place.objective, "latency") == 0
                       ? "Tokens per second decide: memory may serve attention or the output head "
                         "better than neurons, so the share need not rise at each step. "
                       : "");
    pi_html_textf(h,
                  "Each point is a placement of its own, %s. The smallest budget that works is %s",
                  proven ? "proven optimal" : "not all of them proven optimal",
                  pi_figure_bytes((double)s->least, a));
    if (s->all_bytes > 0)
        pi_html_textf(h, "; everything fits from %s on", pi_figure_bytes((double)s->all_bytes, a));
    pi_html_markup(h, ".%s</figcaption>\n",
                   (double)s->points[s->n_points - 1].budget > s->memory
                       ? " * More than this GPU has: expected of one with the memory, as fast."
                       : "");
}

void pi_figures_budget(struct pi_page *page, const struct pi_plan *plan, const struct pi_study *s)
{
    struct pi_html *h = &page->html;

    if (s->n_points < 2 || s->points[s->n_points - 1].budget == 0)
        return;
    pi_html_markup(
        h,
        "<section>\n<h2>What the budget buys</h2>\n<p>The planner was run again for "
        "other budgets, with the same model of costs. %s</p>\n"
        "<div class=\"pair\">\n<figure>\n",
        plan->vram_bytes > 0 || plan->place.n_units < 2
            ? "The dot is the chosen one."
            : "The dot is the chosen one, which buys nothing: what fits does not make up "
              "for a step’s launch and hand-overs.");
    pi_svg_begin(
        h, "budget", 560, 480, "Activations on the GPU and tokens per second by budget",
        "Two curves over the budget of VRAM with the chosen budget marked. The table holds the same figures.");
    draw_shares(page, s, 34);
    draw_speeds(page, s, 266);
    pi_svg_end(h);
    budget_caption(page, plan, s);
    pi_html_markup(h, "</figure>\n");
    budget_table(page, s);
    pi_html_markup(h, "</div>\n</section>\n");
}

/* ---- time ---- */

/* When the parts of a layer begin and end, seconds from its start; empty ones begin where they end. */
struct spans {
    double attn[2], lead[2], hot[2], sync[2], cold[2];
    bool gpu_attn;
};

static struct spans spans_of(const struct pi_plan *plan, uint32_t l)
{
    const struct pi_place_layer *y = &plan->place.layers[l];
    const struct pi_plan_layer *o = &plan->layers[l];
    const double a = o->t_attn;
    const bool hot = y->n_hot > 0, cold = y->n_hot < plan->place.n_ff;
    struct spans t = {.attn = {0.0, a}, .gpu_attn = y->attn_unit != PI_UNIT_CPU};

    if (t.gpu_attn) {
        const double b = a + o->t_lead, c = b + o->t_sync;

        t.lead[0] = a, t.lead[1] = b;
        t.hot[0] = b, t.hot[1] = hot ? a + o->t_gpu : b;
        t.sync[0] = b, t.sync[1] = c;
        t.cold[0] = c, t.cold[1] = cold ? c + o->t_cpu : c;
    } else {
        t.sync[0] = a, t.sync[1] = a + o->t_sync;
        t.hot[0] = t.sync[1], t.hot[1] = hot ? t.sync[1] + o->t_gpu : t.sync[1];
        t.cold[0] = a, t.cold[1] = cold ? a + o->t_cpu : a;
    }
    return t;
}

enum part {
    ATTN,
    LEAD,
    HOT,
    SYNC,
    COLD,
    PARTS
};

static const struct {
    const char *fill, *name;
} looks[PARTS] = {{"fattn", "attention"},
                  {"flead", "prediction"},
                  {"fgpu", "hot (GPU)"},
                  {"fsync", "hand-over"},
                  {"fcpu", "cold (CPU)"}};

static const double *span(const struct spans *t, enum part k)
{
    const double *const all[PARTS] = {t->attn, t->lead, t->hot, t->sync, t->cold};

    return all[k];
}

/* The left lane of a layer is the GPU's, the right one the CPU's. */
static bool left_lane(const struct spans *t, enum part k)
{
    return k == HOT || k == LEAD || (k == ATTN && t->gpu_attn) || (k == SYNC && !t->gpu_attn);
}

static void draw_part(const struct pi_plot *plot, const struct pi_plan *plan, enum part k)
{
    const uint32_t n = plan->place.n_layer;
    const double half = n > 100 ? 0.5 : 0.42, gap = n > 60 ? 0.0 : 0.03;

    pi_plot_bars_begin(plot, looks[k].fill);
    for (uint32_t l = 0; l < n; l++) {
        const struct spans t = spans_of(plan, l);
        const double *s = span(&t, k);

        if (plan->place.n_units < 2)
            pi_plot_bar(plot, l - half, l + half, s[0], s[1]);
        else if (left_lane(&t, k))
            pi_plot_bar(plot, l - half, l - gap, s[0], s[1]);
        else
            pi_plot_bar(plot, l + gap, l + half, s[0], s[1]);
    }
    pi_plot_bars_end(plot);
}

/* A line over each layer where it ends. */
static void draw_ends(const struct pi_plot *plot, const struct pi_plan *plan)
{
    pi_html_markup(plot->h, "<path class=\"ln lmean\" d=\"");
    for (uint32_t l = 0; l < plan->place.n_layer; l++)
        pi_html_markup(plot->h, "M%.2f %.2fH%.2f", pi_plot_x(plot, l - 0.46),
                       pi_plot_y(plot, plan->layers[l].t_layer), pi_plot_x(plot, l + 0.46));
    pi_html_markup(plot->h, "\"/>\n");
}

static void hover_layer(const struct pi_plot *plot, const struct pi_plan *plan, uint32_t l)
{
    char a[PI_FIGURE], b[PI_FIGURE], c[PI_FIGURE];

    pi_html_markup(plot->h, "<path class=\"hit\" d=\"M%.2f %.2fH%.2fV%.2fH%.2fz\"><title>",
                   pi_plot_x(plot, l - 0.5), plot->top, pi_plot_x(plot, l + 0.5),
                   plot->top + plot->height, pi_plot_x(plot, l - 0.5));
    pi_html_textf(
        plot->h, "layer %u: %s; GPU %s, CPU %s", l, pi_figure_time(plan->layers[l].t_layer, a),
        pi_figure_time(plan->layers[l].t_gpu, b), pi_figure_time(plan->layers[l].t_cpu, c));
    pi_html_markup(plot->h, "</title></path>\n");
}

static void draw_time(struct pi_page *page, const struct pi_plan *plan)
{
    const uint32_t n = plan->place.n_layer;
    struct pi_plot plot = {&page->html, 66, 58, 480, 230, -0.5, n - 0.5, 0, 1e-9};
    double at = 0.0;
    bool there[PARTS] = {false};

    for (uint32_t l = 0; l < n; l++) {
        const struct spans t = spans_of(plan, l);

        plot.y1 = fmax(plot.y1, plan->layers[l].t_layer * 1.06);
        for (int k = 0; k < PARTS; k++) {
            plot.y1 = fmax(plot.y1, span(&t, (enum part)k)[1] * 1.06);
            there[k] = there[k] || span(&t, (enum part)k)[1] > span(&t, (enum part)k)[0];
        }
    }
    pi_svg_begin(
        &page->html, "time", 560, 344, "Expected time of each layer",
        "For each layer what the GPU does on the left, what the CPU does at the same time on the right, from the layer’s start upwards. The table holds the same figures.");
    for (int k = 0; k < PARTS; k++)
        if (there[k])
            at = pi_svg_key(&page->html, looks[k].fill, at, 14, looks[k].name);
    pi_plot_axis_y(&plot, PI_TICK_SECONDS, 5, "Time from the layer’s start");
    for (int k = 0; k < PARTS; k++)
        draw_part(&plot, plan, (enum part)k);
    draw_ends(&plot, plan);
    pi_plot_axis_layers(&plot, n, "Layer");
    for (uint32_t l = 0; n <= 256 && l < n; l++)
        hover_layer(&plot, plan, l);
    pi_svg_end(&page->html);
}

static void time_row(struct pi_page *page, const struct pi_plan *plan, uint32_t l)
{
    struct pi_html *h = &page->html;
    const struct pi_place_layer *y = &plan->place.layers[l];
    const struct pi_plan_layer *o = &plan->layers[l];
    const double share = (double)y->n_hot / plan->place.n_ff;
    char t[PI_FIGURE];

    pi_html_markup(h, "<tr><th scope=\"row\">%u</th>", l);
    pi_html_cell(h, y->n_hot, pi_figure_share(share, t));
    pi_html_cell(h, o->share, pi_figure_share(o->share, t));
    pi_html_cell(h, o->t_attn, pi_figure_time(o->t_attn, t));
    pi_html_cell(h, o->t_gpu, y->n_hot > 0 || o->t_lead > 0.0 ? pi_figure_time(o->t_gpu, t) : "–");
    pi_html_cell(h, o->t_sync, o->t_sync > 0.0 ? pi_figure_time(o->t_sync, t) : "–");
    pi_html_cell(h, o->t_cpu, y->n_hot < plan->place.n_ff ? pi_figure_time(o->t_cpu, t) : "–");
    pi_html_cell(h, o->t_layer, pi_figure_time(o->t_layer, t));
    pi_html_markup(h, "<td class=\"word\">%s%s%s</td></tr>\n",
                   y->n_hot < plan->place.n_ff ? pi_mode_name(y->mode_cpu) : "",
                   y->n_hot > 0 && y->n_hot < plan->place.n_ff ? " / " : "",
                   y->n_hot > 0 ? pi_mode_name(y->mode_gpu) : "");
}

static void time_table(struct pi_page *page, const struct pi_plan *plan)
{
    static const char *const heads[] = {
        "Layer",     "Hot neurons", "Activa&shy;tions", "Atten&shy;tion", "GPU",
        "Hand-over", "CPU",         "Layer takes",      "Mode CPU / GPU"};
    struct pi_html *h = &page->html;
    double sum[5] = {0};
    char t[PI_FIGURE];

    pi_html_table(h, "Placement and expected time of every layer", heads, 9);
    for (uint32_t l = 0; l < plan->place.n_layer; l++) {
        const struct pi_plan_layer *o = &plan->layers[l];

        time_row(page, plan, l);
        sum[0] += o->t_attn;
        sum[1] += o->t_gpu;
        sum[2] += o->t_sync;
        sum[3] += o->t_cpu;
        sum[4] += o->t_layer;
    }
    pi_html_markup(h, "<tr class=\"sum\"><th scope=\"row\">all</th><td></td>");
    pi_html_cell(h, plan->activations_on_gpu, pi_figure_share(plan->activations_on_gpu, t));
    for (int i = 0; i < 5; i++)
        pi_html_cell(h, sum[i], pi_figure_time(sum[i], t));
    pi_html_markup(h, "<td></td></tr>\n");
    pi_html_table_end(h);
}

void pi_figures_time(struct pi_page *page, const struct pi_plan *plan)
{
    struct pi_html *h = &page->html;
    const bool two = plan->place.n_units >= 2;
    double layers = 0.0;
    char a[PI_FIGURE], b[PI_FIGURE];

    for (uint32_t l = 0; l < plan->place.n_layer; l++)
        layers += plan->layers[l].t_layer;
    pi_html_markup(h, "<section>\n<h2>Where the time of a token goes</h2>\n<p>");
    pi_html_textf(
        h,
        "A token is expected to take %s: %s in the layers, the rest for the output head and what a step costs beside. ",
        pi_figure_time(1.0 / plan->placed, a), pi_figure_time(layers, b));
    pi_html_markup(h, "%s",
                   two ? "In each layer GPU (left) and CPU (right) work at the same time, and the "
                         "later one decides."
                       : "");
    pi_html_markup(h, "</p>\n<figure>\n");
    draw_time(page, plan);
    pi_html_markup(h, "<figcaption>");
    pi_html_textf(
        h, "%s%s",
        two ? "The line over a layer is when it ends: the mean of the later side over tokens, which is no less than the later of both means. "
            : "",
        !counted(page) || plan->place.layers[0].mode_cpu == PI_MODE_DENSE
            ? "Times are for every neuron being computed."
        : plan->sampled ? "Times are replayed over sampled tokens that the plan did not see."
                        : "Times are for mean rates: the profile has no samples.");
    pi_html_markup(h, "</figcaption>\n</figure>\n<div class=\"alone modes\">\n");
    time_table(page, plan);
    pi_html_markup(h, "</div>\n</section>\n");
}

/* ---- changes ---- */

static void draw_changes(struct pi_page *page, const struct pi_plan *plan, const struct pi_study *s)
{
    const double n = (double)s->n_changes + 1.0;
    struct pi_plot plot = {&page->html, 196, 10, 350, 30.0 * n, 0, plan->placed, 0, n};
    char text[96], a[PI_FIGURE], b[PI_FIGURE];

    for (size_t i = 0; i < s->n_changes; i++)
        plot.x1 = fmax(plot.x1, s->changes[i].placed);
    plot.x1 *= 1.42; /* room for the figures behind */
    pi_svg_begin(
        &page->html, "changes", 560, plot.height + 60,
        "Expected tokens per second after one change",
        "One bar for each change beside that of the plan. The table holds the same figures.");
    pi_plot_axis_x(&plot, PI_TICK_NUMBER, 6, "Expected tokens per second");
    for (size_t i = 0; i <= s->n_changes; i++) {
        const struct pi_study_change *c = i > 0 ? &s->changes[i - 1] : NULL;
        const double y = n - (double)i - 0.5, v = c != NULL ? c->placed : plan->placed;

        pi_svg_label(&page->html, c == NULL ? "head" : "", "end", 186, pi_plot_y(&plot, y) + 5,
                     c == NULL ? "this plan" : c->what);
        pi_plot_bars_begin(&plot, c == NULL ? "fcpu" : v >= plan->placed ? "fgpu" : "fattn");
        pi_plot_bar(&plot, 0.0, v, y - 0.33, y + 0.33);
        pi_plot_bars_end(&plot);
        if (c != NULL && !c->possible)
            (void)snprintf(text, sizeof(text), "does not fit");
        else if (c == NULL)
            (void)snprintf(text, sizeof(text), "%s", pi_figure_rate(v, a));
        else
            (void)snprintf(text, sizeof(text), "%s (%s)%s", pi_figure_rate(v, a),
                           pi_figure_factor(v / plan->placed, b), c->beyond ? " *" : "");
        pi_plot_label(&plot, "halo", "start", v, y, 7, 5, text);
    }
    pi_svg_end(&page->html);
}

void pi_figures_changes(struct pi_page *page, const struct pi_plan *plan, const struct pi_study *s)
{
    static const char *const heads[] = {"Change", "Tokens/s", "Of this plan"};
    struct pi_html *h = &page->html;
    bool beyond = false;
    char t[PI_FIGURE];

    pi_html_markup(
        h, "<section>\n<h2>What would change it</h2>\n<p>One thing is changed at a time, and "
           "the planner run again.</p>\n<div class=\"pair\">\n<figure>\n");
    draw_changes(page, plan, s);
    for (size_t i = 0; i < s->n_changes; i++)
        beyond = beyond || s->changes[i].beyond;
    pi_html_markup(h, "<figcaption>%s</figcaption>\n</figure>\n",
                   beyond ? "* Needs a GPU with more memory than this one has." : "");
    pi_html_table(h, "Expected after one change", heads, 3);
    for (size_t i = 0; i < s->n_changes; i++) {
        const struct pi_study_change *c = &s->changes[i];

        pi_html_markup(h, "<tr><th scope=\"row\">");
        pi_html_text(h, c->what);
        pi_html_markup(h, "<br><span class=\"small\">");
        pi_html_text(h, c->why);
        pi_html_markup(h, "</span></th>");
        if (c->possible) {
            pi_html_cell(h, c->placed, pi_figure_rate(c->placed, t));
            pi_html_cell(h, c->placed / plan->placed,
                         pi_figure_factor(c->placed / plan->placed, t));
        } else {
            pi_html_markup(h, "<td colspan=\"2\">does not fit</td>");
        }
        pi_html_markup(h, "</tr>\n");
    }
    pi_html_table_end(h);
    pi_html_markup(h, "</div>\n</section>\n");
}

/* ---- memory ---- */

void pi_figures_memory(struct pi_page *page, const struct pi_plan *plan)
{
    static const char *const heads[] = {"Part", "Bytes", "Of the budget"};
    const struct pi_gpu_budget *g = &plan->vram;
    const struct {
        const char *name, *fill;
        uint64_t bytes;
    } parts[] = {{"weights", "fgpu", g->weights},
                 {"KV cache", "fsync", g->kv},
                 {"predictors", "fpred", g->predictors},
                 {"context", "fattn", g->context},
                 {"buffers", "fdens", g->activations},
                 {"streamed rows", "k2", g->staging},
                 {"graphs", "k4", g->graphs},
                 {"cuBLAS", "k6", g->workspace},
                 {"tables", "fcpu", g->tables},
                 {"rounding", "off", g->rounding}};
    const size_t n_parts = sizeof(parts) / sizeof(parts[0]);
    struct pi_html *h = &page->html;
    struct pi_plot plot = {h, 24, 8, 506, 42, 0, fmax((double)plan->limit, 1.0), 0, 1};
    double at = 0.0, key = 0.0, row = 100;
    char t[PI_FIGURE];

    if (plan->vram_bytes == 0)
        return;
    pi_html_markup(
        h, "<section>\n<h2>What the GPU’s memory is for</h2>\n<div class=\"pair\">\n<figure>\n");
    pi_svg_begin(h, "memory", 560, 140, "The budget in parts",
                 "One bar. The table holds the same figures.");
    pi_plot_bars_begin(&plot, "off");
    pi_plot_bar(&plot, 0.0, (double)plan->limit, 0.0, 1.0);
    pi_plot_bars_end(&plot);
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].bytes == 0)
            continue;
        pi_plot_bars_begin(&plot, parts[i].fill);
        pi_plot_bar(&plot, at, at + (double)parts[i].bytes, 0.0, 1.0);
        pi_plot_bars_end(&plot);
        at += (double)parts[i].bytes;
    }
    pi_plot_axis_x(&plot, PI_TICK_BYTES, 6, NULL);
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].bytes == 0)
            continue;
        if (key > 440) {
            key = 0.0;
            row += 22;
        }
        key = pi_svg_key(h, parts[i].fill, key, row, parts[i].name);
    }
    pi_svg_end(h);
    pi_html_markup(h, "</figure>\n");
    pi_html_table(h, "Bytes of the GPU, everything counted", heads, 3);
    for (size_t i = 0; i < n_parts; i++) {
        pi_html_markup(h, "<tr><th scope=\"row\">%s</th>", parts[i].name);
        pi_html_cell(h, (double)parts[i].bytes, pi_figure_bytes((double)parts[i].bytes, t));
        pi_html_cell(h, (double)parts[i].bytes / plot.x1,
                     pi_figure_share((double)parts[i].bytes / plot.x1, t));
        pi_html_markup(h, "</tr>\n");
    }
    pi_html_markup(h, "<tr class=\"sum\"><th scope=\"row\">all</th>");
    pi_html_cell(h, (double)plan->vram_bytes, pi_figure_bytes((double)plan->vram_bytes, t));
    pi_html_cell(h, (double)plan->vram_bytes / plot.x1,
                 pi_figure_share((double)plan->vram_bytes / plot.x1, t));
    pi_html_markup(h, "</tr>\n");
    pi_html_table_end(h);
    pi_html_markup(h, "</div>\n</section>\n");
}
