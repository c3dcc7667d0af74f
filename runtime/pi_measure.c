#include "config.h"

#include "runtime/pi_measure.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_progress.h"
#include "runtime/pi_eval.h"
#include "runtime/pi_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_WINDOW 512u

static enum pi_code read_windows(const struct pi_run_options *o, const struct pi_loaded *l,
                                 struct pi_windows *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_dataset d = {0};
    const uint32_t window = o->window_given             ? o->window
                            : l->n_ctx < DEFAULT_WINDOW ? l->n_ctx
                                                        : DEFAULT_WINDOW;

    PI_TRY(pi_dataset_add(&d, o->perplexity, o->field, err));
    PI_TRY(pi_windows_make(&d, l->tok, window, true, out, err));
out:
    pi_dataset_free(&d);
    return rc;
}

static enum pi_code verify_window(struct pi_verify *v, const struct pi_loaded *l,
                                  const struct pi_windows *w, const struct pi_window *win,
                                  float *logits, double *nll, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const int32_t *ids = w->tokens.ids + win->begin;

    pi_verify_restart(v);
    for (uint32_t i = 0; i < win->n; i++) {
        PI_TRY(pi_interrupt_check(err));
        PI_TRY(pi_verify_step(v, ids[i], i, logits, err));
        if (i < win->n_scored)
            *nll += pi_nll(logits, l->model.shape.n_vocab, ids[i + 1]);
    }
out:
    return rc;
}

/* Perplexity of the sparse run with the dense one beside it. */
static enum pi_code verify_windows(const struct pi_run_options *o, const struct pi_loaded *l,
                                   const struct pi_windows *w, bool progress,
                                   struct pi_perplexity *out, struct pi_verify_result *v_out,
                                   struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_verify *v = NULL;
    struct pi_progress p;
    float *logits = NULL;
    double nll = 0;
    uint64_t n = 0;

    pi_progress_begin(&p, "comparing windows", w->n, progress);
    PI_ALLOC(logits, l->model.shape.n_vocab, err);
    PI_TRY(pi_verify_create(&l->model, l->engine, l->dense, o->masks, &v, err));
    for (size_t k = 0; k < w->n; k++) {
        PI_TRY(verify_window(v, l, w, &w->w[k], logits, &nll, err));
        n += w->w[k].n_scored;
        pi_progress_at(&p, k + 1);
    }
    if (n == 0)
        PI_FAIL(err, PI_E_RANGE, "the text is too short to be scored: %zu tokens", w->tokens.n);
    if (!isfinite(nll))
        PI_FAIL(err, PI_E_SELFCHECK, "the text's likelihood is not finite (broken weights?)");
    PI_TRY(pi_verify_finish(v, v_out, err));
    *out = (struct pi_perplexity){
        .n_scored = n, .nll_per_token = nll / (double)n, .perplexity = exp(nll / (double)n)};
out:
    pi_progress_end(&p);
    pi_verify_destroy(v);
    free(logits);
    return rc;
}

static enum pi_code report(const struct pi_run_options *o, const struct pi_perplexity *p,
                           const struct pi_verify_result *v, const char *mode, const char *act,
                           struct pi_err *err)
{
    json_t *j;
    char line[256];

    if (o->json) {
        j = json_pack("{s:o, s:f, s:I, s:s, s:s}", "perplexity", pi_json_number(p->perplexity),
                      "nll_per_token", p->nll_per_token, "tokens", (json_int_t)p->n_scored, "mode",
                      mode, "act", act);
        return pi_json_print(v != NULL ? pi_json_add_verify(j, v) : j, err);
    }
    printf("perplexity %.6g (%.6g nats a token) over %llu tokens, mode %s, activations %s\n",
           p->perplexity, p->nll_per_token, (unsigned long long)p->n_scored, mode, act);
    if (v != NULL) {
        pi_format_verify(v, line, sizeof(line));
        printf("%s\n", line);
    }
    return pi_stdout_check(err);
}

/* Batches run dense whatever the mode: said, so that nobody takes the figure for one of the sparse path. */
static enum pi_mode scoring_mode(const struct pi_run_options *o, const struct pi_run_log *log,
                                 const struct pi_loaded *l)
{
    if (o->stepwise || o->verify || l->mode == PI_MODE_DENSE)
        return l->mode;
    pi_run_notice(log, "batches run dense; --stepwise measures mode %s", pi_mode_name(l->mode));
    return PI_MODE_DENSE;
}

enum pi_code pi_measure_perplexity(const struct pi_run_options *o, const struct pi_run_log *log,
                                   struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const bool progress = pi_progress_wanted(log->common.quiet);
    const enum pi_mode mode = scoring_mode(o, log, l);
    struct pi_windows w = {0};
    struct pi_perplexity p;
    struct pi_verify_result v;

    PI_TRY(read_windows(o, l, &w, err));
    if (o->verify)
        PI_TRY(verify_windows(o, l, &w, progress, &p, &v, err));
    else
        PI_TRY(pi_eval_perplexity(l->engine, &l->model, &w, o->stepwise, progress, &p, err));
    PI_TRY(report(o, &p, o->verify ? &v : NULL, pi_mode_name(mode), pi_act_type_name(l->act), err));
out:
    pi_windows_free(&w);
    return rc;
}

struct logits_file {
    struct pi_out *out;
    size_t row_bytes;
    struct pi_progress progress;
};

static enum pi_code write_row(void *ctx, uint32_t i, const float *logits, struct pi_err *err)
{
    struct logits_file *f = ctx;

    pi_progress_at(&f->progress, i + 1);
    return pi_out_write(f->out, logits, f->row_bytes, err);
}

enum pi_code pi_measure_logits(const struct pi_run_options *o, const struct pi_run_log *log,
                               struct pi_loaded *l, const struct pi_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const enum pi_mode mode = scoring_mode(o, log, l);
    const uint32_t n = (uint32_t)p->tokens.n; /* at most the context */
    struct logits_file f = {.row_bytes = l->model.shape.n_vocab * sizeof(float)};
    struct pi_out *done;

    pi_progress_begin(&f.progress, "computing logits", n, pi_progress_wanted(log->common.quiet));
    PI_TRY(pi_out_open(o->logits, &f.out, err));
    PI_TRY(
        pi_eval_feed(l->engine, &l->model, p->tokens.ids, n, 0, o->stepwise, write_row, &f, err));
    done = f.out;
    f.out = NULL; /* commit frees it in every case */
    PI_TRY(pi_out_commit(done, err));
    if (o->json)
        PI_TRY(pi_json_print(json_pack("{s:I, s:I, s:s, s:s}", "tokens", (json_int_t)n,
                                       "vocabulary", (json_int_t)l->model.shape.n_vocab, "mode",
                                       pi_mode_name(mode), "act", pi_act_type_name(l->act)),
                             err));
out:
    pi_progress_end(&f.progress);
    pi_out_abort(f.out);
    return rc;
}
