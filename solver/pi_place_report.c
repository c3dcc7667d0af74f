#include "config.h"

#include "solver/pi_place_report.h"

#include "common/pi_page.h"
#include "solver/pi_place_figures.h"
#include "solver/pi_study.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct work {
    struct pi_page page;
    const struct pi_plan_input *in;
    const struct pi_plan *plan;
    struct pi_study study;
    double sparse; /* times as many tokens per second as without sparsity */
    double placed; /* times as many as on the CPU alone */
};

static uint64_t hot_neurons(const struct pi_placement *p)
{
    uint64_t n = 0;

    for (uint32_t l = 0; l < p->n_layer; l++)
        n += p->layers[l].n_hot;
    return n;
}

static double hot_share(const struct pi_placement *p)
{
    return (double)hot_neurons(p) / ((double)p->n_layer * p->n_ff);
}

/* Something of the model is on the GPU. */
static bool uses_gpu(const struct work *w)
{
    return w->plan->vram_bytes > 0;
}

/* ---- head ---- */

static void head(struct work *w)
{
    struct pi_html *h = &w->page.html;
    const struct pi_placement *y = &w->plan->place;
    char a[PI_FIGURE], b[PI_FIGURE], c[PI_FIGURE];

    pi_page_head(&w->page, "Placement report");
    pi_html_markup(h, "<p class=\"facts\">");
    pi_html_textf(h, "Machine: %s", y->hardware);
    pi_html_markup(h, "</p>\n<p class=\"facts\">");
    pi_html_textf(
        h, "Run: budget %s, %s positions, %s %s, prompt chunks of %s, KV cache %s; objective %s",
        w->in->budget == 0 ? "0 (CPU alone)" : pi_figure_bytes((double)w->plan->limit, a),
        pi_figure_count(y->n_ctx, b), pi_figure_count(y->n_seq, c),
        y->n_seq == 1 ? "sequence" : "sequences", pi_figure_count(y->n_batch, (char[PI_FIGURE]){0}),
        pi_type_name((enum pi_type)y->kv_type), y->objective);
    pi_html_markup(h, "</p>\n");
}

/* ---- verdict ---- */

static void call_sparse(struct work *w)
{
    const bool good = w->sparse >= PI_PAGE_GAIN, fair = w->sparse >= PI_PAGE_SMALL_GAIN;

    pi_page_verdict(&w->page,
                    good   ? PI_CALL_GOOD
                    : fair ? PI_CALL_FAIR
                           : PI_CALL_BAD,
                    good   ? "Sparse enough to gain."
                    : fair ? "Gains a little from sparsity."
                           : "Will hardly gain from sparsity.",
                    good   ? "Leaving inactive neurons out pays on this machine."
                    : fair ? "Leaving inactive neurons out pays some on this machine."
                           : "Leaving inactive neurons out saves next to nothing here.");
}

static void call(struct work *w)
{
    if (!w->page.sparse)
        pi_page_verdict(&w->page, PI_CALL_BAD, "Will not gain from sparsity.",
                        "This model’s activation is never exactly zero.");
    else if (w->in->mode == PI_MODE_DENSE)
        pi_page_verdict(&w->page, PI_CALL_OPEN, "Placed for a dense run.",
                        "Every neuron is computed for every token, as was asked for.");
    else if (w->page.profile == NULL)
        pi_page_verdict(&w->page, PI_CALL_OPEN, "Not known yet.",
                        "There is no profile: speeds are for every neuron firing.");
    else
        call_sparse(w);
}

/* Is it sparse enough? */
static void say_sparse(struct work *w)
{
    struct pi_page *p = &w->page;
    struct pi_html *h = &p->html;
    char a[PI_FIGURE], b[PI_FIGURE], c[PI_FIGURE];

    pi_html_markup(h, "<p><strong>Is the model sparse enough?</strong> ");
    if (!p->sparse)
        pi_html_textf(
            h,
            "No. With %s every neuron contributes to every token, and none is hotter than another: the model runs dense, and the placement spreads equal neurons. "
            "A version that was trained on with ReLU, ReLU² or a thresholded ReLU would gain.",
            pi_activation_name(p->shape->act));
    else if (p->profile == NULL || w->in->mode == PI_MODE_DENSE)
        pi_html_markup(
            h, "%s",
            p->profile == NULL
                ? "The activation has zeros, so it may be; <code>pi-profile</code> counts."
                : "This plan does not use it: place without <code>--mode dense</code> to see what it would bring.");
    else
        pi_html_textf(
            h,
            "On average %s of a layer’s neurons are active for a token. With the same budget and every neuron computed, "
            "the planner expects %s tokens/s; leaving inactive ones out, %s: a factor of %.2f.",
            pi_figure_share(p->mean.density, a), pi_figure_rate(w->study.dense, b),
            pi_figure_rate(w->plan->placed, c), w->sparse);
    pi_html_markup(h, "</p>\n");
}

static void say_split(struct work *w)
{
    struct pi_html *h = &w->page.html;
    const struct pi_plan *y = w->plan;
    char a[PI_FIGURE], b[PI_FIGURE], c[PI_FIGURE], d[PI_FIGURE];

    if (y->place.n_units < 2) {
        pi_html_textf(h, "Everything is on the CPU, at %s tokens/s.", pi_figure_rate(y->placed, a));
    } else if (!uses_gpu(w)) {
        pi_html_textf(
            h,
            "Nothing that fits into %s beside the GPU’s context and buffers (%s) makes it faster: everything is on the CPU, at %s tokens/s.",
            pi_figure_bytes((double)y->limit, a), pi_figure_bytes((double)y->base_bytes, b),
            pi_figure_rate(y->placed, c));
    } else if (y->all_fits) {
        pi_html_textf(
            h,
            "Everything fits: the whole model is on the GPU and takes %s of %s. Expected are %s tokens/s; the CPU alone would make %s.",
            pi_figure_bytes((double)y->vram_bytes, a), pi_figure_bytes((double)y->limit, b),
            pi_figure_rate(y->placed, c), pi_figure_rate(y->cpu, d));
    } else {
        pi_html_textf(h, "%s of the neurons are on the GPU",
                      pi_figure_share(hot_share(&y->place), a));
        if (w->page.sparse && w->page.profile != NULL)
            pi_html_textf(h, ", and they make %s of the activations",
                          pi_figure_share(y->activations_on_gpu, b));
        pi_html_textf(h, ". Expected are %s tokens/s, ", pi_figure_rate(y->placed, c));
        pi_html_textf(h, "%.2f times what the CPU alone would make (%s).", w->placed,
                      pi_figure_rate(y->cpu, d));
        if (y->gpu > 0.0)
            pi_html_textf(h, " With all of it on this GPU it would be %s.",
                          pi_figure_rate(y->gpu, a));
        else
            pi_html_markup(h, " The whole model is more than this GPU holds.");
    }
}

/* The change for the better that gains most; NULL if none gains a little. */
static const struct pi_study_change *best_change(const struct work *w)
{
    const struct pi_study_change *best = NULL;

    for (size_t i = 0; i < w->study.n_changes; i++) {
        const struct pi_study_change *c = &w->study.changes[i];

        if (c->possible && c->placed >= PI_PAGE_SMALL_GAIN * w->plan->placed &&
            (best == NULL || c->placed > best->placed))
            best = c;
    }
    return best;
}

/* Layers in which the CPU is later than the GPU. */
static uint32_t cpu_later(const struct pi_plan *y)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < y->place.n_layer; l++) {
        const struct pi_place_layer *q = &y->place.layers[l];
        const struct pi_plan_layer *o = &y->layers[l];
        const bool gpu_attn = q->attn_unit != PI_UNIT_CPU;
        const double gpu = (q->n_hot > 0 ? o->t_gpu : o->t_lead) + (gpu_attn ? 0.0 : o->t_sync);
        const double cpu = o->t_cpu + (gpu_attn ? o->t_lead + o->t_sync : 0.0);

        n += q->n_hot < y->place.n_ff && cpu > gpu;
    }
    return n;
}

static void say_change(struct work *w)
{
    struct pi_html *h = &w->page.html;
    const struct pi_study_change *best = best_change(w);
    const struct pi_plan *y = w->plan;
    char a[PI_FIGURE];

    pi_html_markup(h, "<p><strong>What would change it?</strong> ");
    if (uses_gpu(w) && !y->all_fits)
        pi_html_textf(h, "In %u of %u layers the CPU is the later side. ", cpu_later(y),
                      y->place.n_layer);
    if (best != NULL)
        pi_html_textf(
            h, "Of the changes tried, %s would gain most: %s tokens/s, %.2f times as many%s.",
            best->what, pi_figure_rate(best->placed, a), best->placed / y->placed,
            best->beyond ? ", on a GPU with more memory than this one has" : "");
    else
        pi_html_markup(h, "None of the changes tried gains as much as a tenth.");
    if (w->page.sparse && w->in->predictor == NULL && w->in->mode == PI_MODE_PREDICTED)
        pi_html_markup(h,
                       " There is no predictor; one (<code>pi-train-predictor</code>) saves gate "
                       "rows of neurons that stay silent.");
    pi_html_markup(
        h, " Less is read of smaller weight types (<code>pi-convert --type q4_0</code>).</p>\n");
}

static void verdict(struct work *w)
{
    struct pi_html *h = &w->page.html;

    call(w);
    say_sparse(w);
    pi_html_markup(h, "<p><strong>What is to be expected of %s?</strong> ",
                   w->in->budget == 0 ? "the CPU alone" : "this budget");
    say_split(w);
    pi_html_markup(h, "</p>\n");
    say_change(w);
    if (w->page.sparse)
        pi_page_caution(&w->page);
    pi_page_verdict_end(&w->page);
}

static void tiles(struct work *w)
{
    struct pi_page *p = &w->page;
    const struct pi_plan *y = w->plan;
    char s[PI_FIGURE], what[96], t[PI_FIGURE];

    pi_page_tiles(p);
    pi_page_tile(p, y->placed, pi_figure_rate(y->placed, s), "tokens/s expected");
    pi_page_tile(p, y->cpu, pi_figure_rate(y->cpu, s), "tokens/s on the CPU alone");
    if (y->gpu > 0.0)
        pi_page_tile(p, y->gpu, pi_figure_rate(y->gpu, s), "tokens/s with all on the GPU");
    if (y->place.n_units >= 2) {
        pi_page_tile(p, y->activations_on_gpu, pi_figure_share(y->activations_on_gpu, s),
                     p->profile != NULL && p->sparse ? "of activations are of neurons on the GPU"
                                                     : "of neurons are on the GPU");
        (void)snprintf(what, sizeof(what), "of %s of VRAM used",
                       pi_figure_bytes((double)y->limit, t));
        pi_page_tile(p, (double)y->vram_bytes, pi_figure_bytes((double)y->vram_bytes, s), what);
    }
    if (p->sparse && p->profile != NULL) {
        pi_page_tile(p, p->mean.density, pi_figure_share(p->mean.density, s),
                     "of neurons are active for a token");
        if (w->in->mode != PI_MODE_DENSE)
            pi_page_tile(p, w->sparse, pi_figure_factor(w->sparse, s),
                         "the speed without sparsity, same budget");
    }
    pi_page_tiles_end(p);
}

static void rules(struct work *w)
{
    struct pi_page *p = &w->page;
    char s[PI_FIGURE];

    pi_page_rules(p);
    pi_page_rule_zeros(p);
    if (p->sparse && p->profile != NULL && w->in->mode != PI_MODE_DENSE)
        pi_page_rule(
            p, "Expected tokens/s over those of the same budget without sparsity", w->sparse,
            pi_figure_factor(w->sparse, s),
            "from 1.5 ×: a gain; from 1.1 ×: a small one; below: within what the model of costs is off by (10 % where it was measured)",
            w->sparse >= PI_PAGE_GAIN         ? "sparse enough to gain"
            : w->sparse >= PI_PAGE_SMALL_GAIN ? "gains a little"
                                              : "will hardly gain");
    if (w->plan->place.n_units >= 2)
        pi_page_rule(p, "Expected tokens/s over those of the CPU alone", w->placed,
                     pi_figure_factor(w->placed, s),
                     "from 1.5 ×: the GPU pays; from 1.1 ×: a little; below: hardly",
                     w->placed >= PI_PAGE_GAIN         ? "the budget pays"
                     : w->placed >= PI_PAGE_SMALL_GAIN ? "the budget pays a little"
                                                       : "the budget hardly pays");
    if (w->in->mode != PI_MODE_DENSE)
        pi_page_rule_hot(p);
    pi_page_rules_end(p);
}

static void reads(struct work *w)
{
    struct pi_reads r[3];

    for (int m = 0; m < 3; m++)
        pi_reads_take(&w->plan->bytes, w->page.profile, w->page.predictor,
                      w->page.sparse ? (enum pi_mode)m : PI_MODE_DENSE, &r[m]);
    pi_page_reads(&w->page, r, w->plan->place.n_ctx);
}

enum pi_code pi_place_report_write(const struct pi_plan_input *in, const struct pi_plan *plan,
                                   bool progress, const char *path, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct work w = {.in = in, .plan = plan};
    struct pi_page *p = &w.page;

    p->model_path = in->model->map.path;
    p->model = in->model;
    p->shape = in->shape;
    p->profile = in->profile;
    p->profile_path = in->profile != NULL ? in->profile->file.map.path : NULL;
    p->predictor = in->mode == PI_MODE_PREDICTED ? in->predictor : NULL;
    p->predictor_path = p->predictor != NULL ? p->predictor->file.map.path : NULL;
    PI_TRY(pi_page_init(p, err));
    PI_TRY(pi_study_make(in, plan, progress, &w.study, err));
    w.sparse = w.study.dense > 0.0 ? plan->placed / w.study.dense : 1.0;
    w.placed = plan->placed / plan->cpu;
    pi_html_begin(&p->html, "Placement report");
    head(&w);
    verdict(&w);
    tiles(&w);
    pi_figures_budget(p, plan, &w.study);
    pi_figures_time(p, plan);
    pi_figures_changes(p, plan, &w.study);
    pi_figures_memory(p, plan);
    pi_page_concentration(p);
    pi_page_layers(p);
    reads(&w);
    rules(&w);
    pi_page_words(p);
    pi_html_end(&p->html);
    PI_TRY(pi_html_save(&p->html, path, err));
out:
    pi_page_free(p);
    return rc;
}
