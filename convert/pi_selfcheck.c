#include "config.h"

#include "convert/pi_selfcheck.h"
#include "common/pi_alloc.h"
#include "common/pi_tokenizer.h"
#include "convert/pi_hf_forward.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_engine.h"
#include "runtime/pi_eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DELTA 5e-3 /* of the largest logit; float targets */
#define MAX_KL    0.1  /* nats, mean over positions; quantised targets */
/* BF16 made of a finer type keeps 8 bits of 11: on models with random weights that alone moves logits by 0.6 to 0.9 % of the largest
 * (measured on the reference cases). */
#define MAX_DELTA_BF16 2e-2

/* Where a model's distribution is flat (few or untrained layers), nonsense diverges by less than MAX_KL: quantised logits must also resemble
 * the source's. Measured for Q4_0 on the reference cases and the demo models: 0.93 to 0.99. */
#define MIN_CORRELATION 0.7

/* Plain words in plain order: any model of English finds them likelier than chance. */
static const char text[] =
    "Once upon a time there was a little girl who lived with her mother in a small house near the "
    "woods. One day her mother said to her, my dear child, go and see your grandmother.";

enum pi_code pi_selfcheck_make_prompt(const struct pi_model *m, struct pi_selfcheck_prompt *p,
                                      struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_tokenizer *tok = NULL;
    struct pi_tokens t = {0};
    uint32_t most =
        m->shape.n_ctx_train < PI_SELFCHECK_TOKENS ? m->shape.n_ctx_train : PI_SELFCHECK_TOKENS;

    rc = pi_tokenizer_create(&m->file, &tok, err);
    if (rc == PI_OK)
        rc = pi_tokenizer_encode(tok, text, sizeof(text) - 1, pi_tokenizer_add_bos(tok), false, &t,
                                 err);
    if (rc != PI_OK && rc != PI_E_UNSUPPORTED)
        goto out;
    rc = PI_OK;
    p->english = t.n > 1;
    p->n = p->english && t.n < most ? (uint32_t)t.n : most;
    for (uint32_t i = 0; i < p->n; i++) {
        p->ids[i] = p->english ? t.ids[i] : (int32_t)((i * 7919u + 13u) % m->shape.n_vocab);
        if (p->ids[i] < 0 || (uint32_t)p->ids[i] >= m->shape.n_vocab)
            p->ids[i] = 0;
    }
out:
    pi_tokens_free(&t);
    pi_tokenizer_destroy(tok);
    return rc;
}

/* A layer at a time is enough of a model to have in memory. */
static enum pi_code drop_layer(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                               const float *input, const float *normed, const float *h,
                               const float *prod, struct pi_err *err)
{
    const struct pi_model *m = ctx;

    (void)layer;
    (void)n_tok;
    (void)residual;
    (void)input;
    (void)normed;
    (void)h;
    (void)prod;
    (void)err;
    pi_gguf_drop_all(&m->file);
    return PI_OK;
}

/* logits_out (p->n, n_vocab) from the engine: dense, one prompt chunk, F32 KV cache. */
static enum pi_code run_engine(struct pi_model *m, struct pi_pool *pool,
                               const struct pi_selfcheck_prompt *p, float *logits_out,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_engine *e = NULL;
    const struct pi_observer layer = {m, drop_layer};
    struct pi_engine_options opt = {
        .mode = PI_MODE_DENSE, .n_ctx = p->n, .n_seq = 1, .n_batch = p->n, .kv_type = PI_TYPE_F32};
    int32_t pos[PI_SELFCHECK_TOKENS];
    struct pi_batch batch = {.n_tok = p->n, .token = p->ids, .pos = pos};

    for (uint32_t i = 0; i < p->n; i++)
        pos[i] = (int32_t)i;
    PI_TRY(pi_engine_create(m, NULL, NULL, pool, &opt, &e, err));
    pi_engine_observe(e, &layer);
    PI_TRY(pi_engine_run(e, PI_PHASE_PROMPT, &batch, logits_out, err));
    pi_gguf_drop_all(&m->file);
out:
    pi_engine_destroy(e);
    return rc;
}

struct limit {
    bool quantised; /* judged by KL */
    double delta;
};

static struct limit limit_of(const struct pi_plan *plan)
{
    struct limit l = {false, MAX_DELTA};

    for (size_t i = 0; i < plan->n; i++) {
        const struct pi_plan_tensor *t = &plan->t[i];
        l.quantised = l.quantised || pi_type_info((uint32_t)t->type)->quantised;
        if (t->type == PI_TYPE_BF16 && t->src_type != PI_TYPE_BF16)
            l.delta = MAX_DELTA_BF16;
    }
    return l;
}

/* Pearson's, over all logits. */
static double correlation(const float *a, const float *b, size_t n)
{
    double ma = 0.0, mb = 0.0, aa = 0.0, bb = 0.0, ab = 0.0;

    for (size_t i = 0; i < n; i++) {
        ma += (double)a[i] / (double)n;
        mb += (double)b[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        aa += ((double)a[i] - ma) * ((double)a[i] - ma);
        bb += ((double)b[i] - mb) * ((double)b[i] - mb);
        ab += ((double)a[i] - ma) * ((double)b[i] - mb);
    }
    return aa > 0.0 && bb > 0.0 ? ab / sqrt(aa * bb) : aa == bb;
}

enum pi_code pi_selfcheck_compare(const struct pi_selfcheck *k, const float *want, const float *got,
                                  uint32_t n_tok, uint32_t n_vocab, struct pi_err *err)
{
    size_t n = (size_t)n_tok * n_vocab;
    double delta = 0.0, most = 0.0, kl = 0.0, r;
    struct limit limit = limit_of(k->plan);
    bool finite = true;

    for (size_t i = 0; i < n; i++) {
        delta = fmax(delta, fabs((double)want[i] - (double)got[i]));
        most = fmax(most, fabs((double)want[i]));
        finite = finite && isfinite(want[i]) && isfinite(got[i]);
    }
    if (!finite)
        return pi_err_set(err, PI_E_SELFCHECK,
                          "%s: self-check failed: logits that are not finite; nothing was written",
                          k->output);
    if (!limit.quantised) {
        if (delta <= limit.delta * most)
            return PI_OK;
        return pi_err_set(
            err, PI_E_SELFCHECK,
            "%s: self-check failed: logits differ from the source's by %.3g of the largest, at most %g is due to the type; "
            "nothing was written",
            k->output, delta / most, limit.delta);
    }
    for (uint32_t t = 0; t < n_tok; t++)
        kl += pi_kl(want + (size_t)t * n_vocab, got + (size_t)t * n_vocab, n_vocab) / n_tok;
    r = correlation(want, got, n);
    if (kl <= MAX_KL && r >= MIN_CORRELATION)
        return PI_OK;
    if (kl <= MAX_KL)
        return pi_err_set(
            err, PI_E_SELFCHECK,
            "%s: self-check failed: logits correlate with the source's by %.3g, at least %g is due; nothing was written",
            k->output, r, MIN_CORRELATION);
    return pi_err_set(
        err, PI_E_SELFCHECK,
        "%s: self-check failed: mean KL divergence from the source %.3g nats, at most %g is due to the type; nothing was "
        "written (a wider --type may do)",
        k->output, kl, MAX_KL);
}

static void note_nonsense(const struct pi_selfcheck *k, const struct pi_selfcheck_prompt *p,
                          const float *logits, uint32_t n_vocab)
{
    double nll = 0.0, chance = log((double)n_vocab);

    if (!p->english || p->n < 2)
        return;
    for (uint32_t i = 0; i + 1 < p->n; i++)
        nll += pi_nll(logits + (size_t)i * n_vocab, n_vocab, p->ids[i + 1]) / (p->n - 1);
    if (nll >= chance)
        pi_note(
            k->notes,
            "%s: the source itself predicts plain English no better than chance (%.2f nats a token; chance is %.2f): untrained, of "
            "another language, or of another activation (--hidden-act)?",
            k->output, nll, chance);
}

/* What both kinds of source need: the target open, a prompt, and room for two sets of logits. */
struct check {
    struct pi_model target;
    struct pi_selfcheck_prompt prompt;
    float *want, *got; /* (n, n_vocab) */
};

static enum pi_code open_check(const struct pi_selfcheck *k, struct check *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_model_options opt = {0};

    PI_TRY(pi_blas_init(err));
    PI_TRY(pi_model_open(k->target, &opt, &c->target, err));
    PI_TRY(pi_selfcheck_make_prompt(&c->target, &c->prompt, err));
    PI_ALLOC(c->want, (size_t)c->prompt.n * c->target.shape.n_vocab, err);
    PI_ALLOC(c->got, (size_t)c->prompt.n * c->target.shape.n_vocab, err);
    PI_TRY(run_engine(&c->target, k->pool, &c->prompt, c->got, err));
out:
    return rc;
}

static void close_check(struct check *c)
{
    pi_model_close(&c->target);
    free(c->want);
    free(c->got);
}

enum pi_code pi_selfcheck_hf(const struct pi_selfcheck *k, const struct pi_hf_config *c,
                             const struct pi_source *src, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct check x = {0};

    PI_TRY(open_check(k, &x, err));
    PI_TRY(pi_hf_forward(c, src, x.prompt.ids, x.prompt.n, x.want, err));
    PI_TRY(pi_selfcheck_compare(k, x.want, x.got, x.prompt.n, c->shape.n_vocab, err));
    note_nonsense(k, &x.prompt, x.want, c->shape.n_vocab);
out:
    close_check(&x);
    return rc;
}

enum pi_code pi_selfcheck_gguf(const struct pi_selfcheck *k, const char *source,
                               const char *act_override, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct check x = {0};
    struct pi_model from = {0};
    struct pi_model_options opt = {
        .hidden_act = act_override, .accept_edited = k->accept_edited, .parts = true};

    PI_TRY(open_check(k, &x, err));
    PI_TRY(pi_model_open(source, &opt, &from, err));
    PI_TRY(run_engine(&from, k->pool, &x.prompt, x.want, err));
    PI_TRY(pi_selfcheck_compare(k, x.want, x.got, x.prompt.n, x.target.shape.n_vocab, err));
    note_nonsense(k, &x.prompt, x.want, x.target.shape.n_vocab);
out:
    pi_model_close(&from);
    close_check(&x);
    return rc;
}
