#include "config.h"

#include "profiler/pi_profile_report.h"

#include "common/pi_estimate.h"
#include "common/pi_page.h"

#include <stdio.h>

#define MAX_CTX 4096 /* pi-run's default for models of a longer context */

struct work {
    struct pi_page page;
    struct pi_model_bytes bytes;
    struct pi_run_size run;
    struct pi_reads reads[3]; /* by enum pi_mode */
    enum pi_mode best;        /* the mode that reads least */
    double factor;            /* times as many bytes in dense mode as in that */
};

static void take_reads(struct work *w)
{
    struct pi_page *p = &w->page;
    const bool sparse = p->sparse && p->profile != NULL;

    for (int m = 0; m < 3; m++)
        pi_reads_take(&w->bytes, p->profile, p->predictor, sparse ? (enum pi_mode)m : PI_MODE_DENSE,
                      &w->reads[m]);
    w->best = PI_MODE_DENSE;
    for (int m = 1; sparse && m < (p->n_predictors > 0 ? 3 : 2); m++)
        if (w->reads[m].total < w->reads[w->best].total)
            w->best = (enum pi_mode)m;
    w->factor = w->reads[w->best].total > 0.0 ? w->reads[0].total / w->reads[w->best].total : 1.0;
}

/* ---- the verdict ---- */

static void verdict_dense(struct work *w)
{
    struct pi_page *p = &w->page;

    pi_page_verdict(p, PI_CALL_BAD, "Will not gain.",
                    "This model’s activation is never exactly zero.");
    pi_html_markup(&p->html, "<p>");
    pi_html_textf(
        &p->html,
        "With %s every neuron contributes to every token, so none can be left out without changing the result, and no set of neurons is hotter than the rest. The model runs dense; "
        "a GPU that holds a part of it helps in proportion to that part alone.",
        pi_activation_name(p->shape->act));
    pi_html_markup(
        &p->html,
        "</p>\n<p>What would change it: a version of the model that was trained on with "
        "ReLU, ReLU² or a thresholded ReLU (ReluLLaMA, ProSparse and Bamboo are such).</p>\n");
}

static void verdict_unknown(struct work *w)
{
    struct pi_page *p = &w->page;

    pi_page_verdict(p, PI_CALL_OPEN, "Not known yet.", "Nothing was counted for this model.");
    pi_html_markup(&p->html,
                   "<p>The activation has zeros, so the model may gain. How much depends on "
                   "how many neurons are active: <code>pi-profile ");
    pi_html_text(&p->html, pi_base_name(p->model_path));
    pi_html_markup(&p->html, " --data FILE --report R.html</code> counts them.</p>\n");
}

static void say_hot(struct work *w)
{
    struct pi_page *p = &w->page;
    char a[PI_FIGURE], b[PI_FIGURE];

    pi_html_markup(&p->html, "<p><strong>For a GPU that does not hold the model:</strong> ");
    pi_html_textf(
        &p->html,
        "the hottest 20 %% of the neurons make %s of the activations, and %s of them make 80 %%. ",
        pi_figure_share(p->mean.covered[3], a), pi_figure_share(p->mean.hot80, b));
    if (p->mean.hot80 <= PI_PAGE_STEEP)
        pi_html_markup(&p->html, "That is a distinct hot set: a little VRAM takes most of the work "
                                 "off the CPU.");
    else if (p->mean.hot80 <= PI_PAGE_FLAT)
        pi_html_markup(&p->html, "That is a blurred hot set: VRAM takes work off the CPU not much "
                                 "faster than it grows.");
    else
        pi_html_markup(&p->html, "That is hardly a hot set: it matters little which neurons are in "
                                 "VRAM.");
    pi_html_markup(&p->html,
                   " <code>pi-place --report</code> says what a budget buys on one machine.</p>\n");
}

static void say_change(struct work *w)
{
    struct pi_page *p = &w->page;
    const struct pi_reads *r = &w->reads[w->best];
    char a[PI_FIGURE], b[PI_FIGURE];

    pi_html_markup(&p->html, "<p><strong>What would change it:</strong> ");
    if (p->n_predictors == 0)
        pi_html_markup(&p->html, "a predictor (<code>pi-train-predictor</code>) saves gate rows of "
                                 "neurons that stay silent. ");
    pi_html_textf(
        &p->html,
        "Of the %s that a token reads in %s mode, %s are beside the feed-forward rows "
        "(attention, KV cache, output head, predictors): sparsity does not touch them, a smaller weight type or a shorter context does.",
        pi_figure_bytes(r->total, a), pi_mode_name(w->best),
        pi_figure_share((r->total - r->ffn) / r->total, b));
    pi_html_markup(&p->html, "</p>\n");
}

static void verdict_sparse(struct work *w)
{
    struct pi_page *p = &w->page;
    const bool good = w->factor >= PI_PAGE_GAIN, fair = w->factor >= PI_PAGE_SMALL_GAIN;
    char a[PI_FIGURE], b[PI_FIGURE], c[PI_FIGURE];

    pi_page_verdict(p,
                    good   ? PI_CALL_GOOD
                    : fair ? PI_CALL_FAIR
                           : PI_CALL_BAD,
                    good   ? "Sparse enough to gain."
                    : fair ? "Gains a little."
                           : "Will hardly gain.",
                    good   ? "Most of what a dense run reads need not be read."
                    : fair ? "Some of what a dense run reads need not be read."
                           : "Nearly all of what a dense run reads has to be read.");
    pi_html_markup(&p->html, "<p>");
    pi_html_textf(
        &p->html,
        "On average %s of a layer’s neurons are active for a token. In %s mode a token reads %s "
        "where dense mode reads %s: a factor of ",
        pi_figure_share(p->mean.density, a), pi_mode_name(w->best),
        pi_figure_bytes(w->reads[w->best].total, b), pi_figure_bytes(w->reads[0].total, c));
    pi_html_markup(&p->html, "<strong>");
    (void)pi_figure_rate(w->factor, a);
    pi_html_data(&p->html, w->factor, a);
    pi_html_markup(&p->html, "</strong>, and about that many times as many tokens a second where "
                             "all of it comes from one memory.</p>\n");
    say_hot(w);
    say_change(w);
}

static void tiles(struct work *w)
{
    struct pi_page *p = &w->page;
    char s[PI_FIGURE], what[96];

    pi_page_tiles(p);
    if (p->profile != NULL && p->sparse) {
        pi_page_tile(p, p->mean.density, pi_figure_share(p->mean.density, s),
                     "of neurons are active for a token");
        pi_page_tile(p, p->mean.covered[3], pi_figure_share(p->mean.covered[3], s),
                     "of activations come from the hottest 20 % of neurons");
        pi_page_tile(p, p->mean.never, pi_figure_share(p->mean.never, s),
                     "of neurons were never active");
    }
    if (p->n_predictors > 0)
        pi_page_tile(p, p->recall, pi_figure_share(p->recall, s),
                     "of active neurons are found by the predictors (recall)");
    pi_page_tile(p, w->reads[0].total, pi_figure_bytes(w->reads[0].total, s),
                 "read for a token in dense mode");
    if (w->best != PI_MODE_DENSE) {
        (void)snprintf(what, sizeof(what), "less to read in %s mode", pi_mode_name(w->best));
        pi_page_tile(p, w->factor, pi_figure_factor(w->factor, s), what);
    }
    pi_page_tiles_end(p);
}

static void verdict(struct work *w)
{
    if (!w->page.sparse)
        verdict_dense(w);
    else if (w->page.profile == NULL)
        verdict_unknown(w);
    else
        verdict_sparse(w);
    if (w->page.sparse)
        pi_page_caution(&w->page);
    pi_page_verdict_end(&w->page);
    tiles(w);
}

static void rules(struct work *w)
{
    struct pi_page *p = &w->page;
    char s[PI_FIGURE];

    pi_page_rules(p);
    pi_page_rule_zeros(p);
    if (p->sparse && p->profile != NULL) {
        pi_page_rule(
            p, "Bytes a token reads in dense mode over those in the best mode", w->factor,
            pi_figure_factor(w->factor, s),
            "from 1.5 ×: a gain; from 1.1 ×: a small one; below, scattered reads cost what they save",
            w->factor >= PI_PAGE_GAIN         ? "sparse enough to gain"
            : w->factor >= PI_PAGE_SMALL_GAIN ? "gains a little"
                                              : "will hardly gain");
        pi_page_rule_hot(p);
        pi_page_rule(p, "Tokens profiled", (double)p->profile->n_tokens,
                     pi_figure_count((double)p->profile->n_tokens, s),
                     "below 10 000: few to go by; predictors want 50 000 samples",
                     p->profile->n_tokens < PI_PAGE_FEW_TOKENS ? "few: figures are rough"
                                                               : "enough");
    }
    pi_page_rules_end(p);
}

enum pi_code pi_profile_report_write(const struct pi_profile_report *r, const char *path,
                                     struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct work w = {.page = {.model_path = r->model_path,
                              .profile_path = r->profile_path,
                              .predictor_path = r->predictor_path,
                              .model = r->model,
                              .shape = r->shape,
                              .profile = r->profile,
                              .predictor = r->predictor}};
    struct pi_page *p = &w.page;

    w.run = (struct pi_run_size){.n_ctx = r->shape->n_ctx_train < MAX_CTX ? r->shape->n_ctx_train
                                                                          : MAX_CTX,
                                 .n_seq = 1,
                                 .n_batch = 1,
                                 .kv_type = PI_TYPE_F16};
    PI_TRY(pi_page_init(p, err));
    PI_TRY(pi_estimate_model(r->model, r->shape, r->predictor, &w.run, &w.bytes, err));
    take_reads(&w);
    pi_html_begin(&p->html, "Profile report");
    pi_page_head(p, "Profile report");
    verdict(&w);
    pi_page_concentration(p);
    pi_page_layers(p);
    pi_page_reads(p, w.reads, w.run.n_ctx);
    rules(&w);
    pi_page_words(p);
    pi_html_end(&p->html);
    PI_TRY(pi_html_save(&p->html, path, err));
out:
    pi_page_free(p);
    pi_model_bytes_free(&w.bytes);
    return rc;
}
