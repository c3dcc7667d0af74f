#include "config.h"

#include "runtime/pi_eval.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>

#define MAX_CHUNK 512
/* Bytes of logits that a prompt chunk may produce at once: vocabularies reach 256 k tokens. */
#define MAX_LOGIT_BYTES ((size_t)64 << 20)

static double log_sum_exp(const float *logits, uint32_t n)
{
    double max = (double)-INFINITY, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        if ((double)logits[i] > max)
            max = (double)logits[i];
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

double pi_nll(const float *logits, uint32_t n_vocab, int32_t target)
{
    return log_sum_exp(logits, n_vocab) - (double)logits[target];
}

double pi_kl(const float *p_logits, const float *q_logits, uint32_t n_vocab)
{
    const double zp = log_sum_exp(p_logits, n_vocab), zq = log_sum_exp(q_logits, n_vocab);
    double kl = 0;

    for (uint32_t i = 0; i < n_vocab; i++) {
        const double lp = (double)p_logits[i] - zp, lq = (double)q_logits[i] - zq;

        kl += exp(lp) * (lp - lq);
    }
    return kl < 0 ? 0 : kl; /* rounding may give -1e-17; NaN stays */
}

int32_t pi_argmax(const float *logits, uint32_t n_vocab)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* One call of the engine: tokens [i, i + n) of a sequence that starts at position pos. */
static enum pi_code feed_chunk(struct pi_engine *e, const int32_t *tokens, uint32_t n, uint32_t pos,
                               bool stepwise, int32_t *positions, float *logits, struct pi_err *err)
{
    const struct pi_batch b = {.n_tok = n, .token = tokens, .pos = positions};

    for (uint32_t i = 0; i < n; i++)
        positions[i] = (int32_t)(pos + i);
    return pi_engine_run(e, stepwise ? PI_PHASE_DECODE : PI_PHASE_PROMPT, &b, logits, err);
}

enum pi_code pi_eval_feed(struct pi_engine *e, const struct pi_model *m, const int32_t *tokens,
                          uint32_t n, uint32_t pos, bool stepwise, pi_logits_fn row, void *ctx,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n_vocab = m->shape.n_vocab;
    const size_t fit = MAX_LOGIT_BYTES / sizeof(float) / n_vocab;
    uint32_t chunk = stepwise || fit < 1 ? 1 : fit < MAX_CHUNK ? (uint32_t)fit : MAX_CHUNK;
    float *logits = NULL;
    int32_t *positions = NULL;

    chunk = chunk < n ? chunk : n;
    PI_ALLOC(logits, (size_t)chunk * n_vocab, err);
    PI_ALLOC(positions, chunk, err);
    for (uint32_t i = 0; i < n; i += chunk) {
        const uint32_t k = n - i < chunk ? n - i : chunk;

        PI_TRY(pi_interrupt_check(err));
        PI_TRY(feed_chunk(e, tokens + i, k, pos + i, stepwise, positions, logits, err));
        for (uint32_t j = 0; j < k; j++)
            PI_TRY(row(ctx, i + j, logits + (size_t)j * n_vocab, err));
    }
out:
    free(logits);
    free(positions);
    return rc;
}

struct scoring {
    const int32_t *next; /* (n_scored) of the window: what each position should predict */
    uint32_t n_scored, n_vocab;
    uint64_t done;
    double nll;
    struct pi_progress *progress;
};

static enum pi_code score_row(void *ctx, uint32_t i, const float *logits, struct pi_err *err)
{
    struct scoring *s = ctx;
    double nll;

    pi_progress_at(s->progress, ++s->done);
    if (i >= s->n_scored)
        return PI_OK;
    nll = pi_nll(logits, s->n_vocab, s->next[i]);
    if (!isfinite(nll))
        return pi_err_set(err, PI_E_SELFCHECK,
                          "token %llu: its likelihood is not finite (broken weights?)",
                          (unsigned long long)s->done);
    s->nll += nll;
    return PI_OK;
}

enum pi_code pi_eval_perplexity(struct pi_engine *e, const struct pi_model *m,
                                const struct pi_windows *w, bool stepwise, bool progress,
                                struct pi_perplexity *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_progress p;
    struct scoring s = {.n_vocab = m->shape.n_vocab, .progress = &p};
    uint64_t n_fed = 0, n_scored = 0;

    for (size_t k = 0; k < w->n; k++) {
        n_fed += w->w[k].n;
        n_scored += w->w[k].n_scored;
    }
    pi_progress_begin(&p, "scoring tokens", n_fed, progress);
    if (n_scored == 0)
        PI_FAIL(err, PI_E_RANGE, "the text is too short to be scored: %zu tokens", w->tokens.n);
    for (size_t k = 0; k < w->n; k++) {
        const struct pi_window *win = &w->w[k];

        s.next = w->tokens.ids + win->begin + 1;
        s.n_scored = win->n_scored;
        pi_engine_truncate(e, 0, 0);
        PI_TRY(pi_eval_feed(e, m, w->tokens.ids + win->begin, win->n, 0, stepwise, score_row, &s,
                            err));
    }
    out->n_scored = n_scored;
    out->nll_per_token = s.nll / (double)n_scored;
    out->perplexity = exp(out->nll_per_token);
out:
    pi_progress_end(&p);
    return rc;
}
