#include "config.h"

#include "runtime/pi_generate.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/pi_batcher.h"
#include "runtime/pi_report.h"
#include "runtime/pi_text.h"
#include "runtime/pi_verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A run of the generator. */
struct gen {
    const struct pi_run_options *o;
    const struct pi_run_log *log;
    struct pi_loaded *l;
    struct pi_batcher *batcher;
    struct pi_verify *verify; /* or NULL */
    struct pi_tokens seq;     /* prompt and generated tokens */
    size_t n_prompt;
    uint32_t n_predict; /* as struct pi_sequence has it */
    float *logits;      /* (n_vocab) scratch of verified steps whose logits nobody wants */
    struct pi_text text;
    const char *finish;  /* why it ended */
    enum pi_code failed; /* what a callback ran into, told in err */
    struct pi_err err;
    struct pi_sequence_stats figures;
    struct pi_engine_stats stats; /* of the decode steps */
};

enum pi_code pi_generate_check(const struct pi_run_options *o, const struct pi_loaded *l,
                               const struct pi_prompt *p, struct pi_err *err)
{
    if (p->tokens.n > l->n_ctx)
        return pi_err_set(err, PI_E_RANGE,
                          "the prompt's %zu tokens are more than the context of %u (-c)",
                          p->tokens.n, (unsigned)l->n_ctx);
    if (o->n_given && o->n_predict > l->n_ctx - p->tokens.n)
        return pi_err_set(err, PI_E_RANGE,
                          "the prompt's %zu tokens and -n %u are more than the context of %u (-c)",
                          p->tokens.n, (unsigned)o->n_predict, (unsigned)l->n_ctx);
    return PI_OK;
}

static enum pi_code run_batch(void *ctx, enum pi_phase phase, const struct pi_batch *b,
                              float *logits_out, struct pi_err *err)
{
    struct gen *g = ctx;

    if (g->verify != NULL)
        return pi_verify_step(g->verify, b->token[0], (uint32_t)b->pos[0],
                              logits_out != NULL ? logits_out : g->logits, err);
    return pi_engine_run(g->l->engine, phase, b, logits_out, err);
}

/* Shows what became complete since clean was from bytes long. */
static enum pi_code show(const struct gen *g, size_t from, struct pi_err *err)
{
    if (g->o->json || g->text.n_clean == from)
        return PI_OK;
    (void)fwrite(g->text.clean + from, 1, g->text.n_clean - from, stdout);
    return pi_stdout_check(err);
}

static enum pi_code add_token(struct gen *g, int32_t token, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_str piece = pi_tokenizer_piece(g->l->tok, token);
    const size_t from = g->text.n_clean;

    PI_TRY(pi_tokens_push(&g->seq, token, err));
    PI_TRY(pi_text_push(&g->text, piece.p, piece.n, err));
    PI_TRY(show(g, from, err));
out:
    return rc;
}

static bool drawn(void *ctx, const struct pi_drawn *d)
{
    struct gen *g = ctx;

    g->failed = add_token(g, d->token, &g->err);
    return g->failed == PI_OK;
}

static void ended(void *ctx, enum pi_finish finish, const struct pi_sequence_stats *stats,
                  const struct pi_err *err)
{
    struct gen *g = ctx;

    g->figures = *stats;
    g->finish = finish == PI_FINISH_CANCELLED ? "interrupted" : pi_finish_name(finish);
    if (finish == PI_FINISH_ERROR) {
        g->failed = err->code;
        g->err = *err;
    }
}

/* Prompt and text, round by round. */
static enum pi_code generate(struct gen *g, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_sequence s = {.prompt = g->seq.ids,
                            .n_prompt = g->n_prompt,
                            .sampler = g->o->sampler,
                            .n_predict = g->n_predict,
                            .ignore_eos = g->o->ignore_eos,
                            .ctx = g,
                            .drawn = drawn,
                            .ended = ended};
    struct pi_batcher_totals t;
    struct pi_progress p;
    uint32_t slot;

    pi_progress_begin(&p, "reading the prompt", g->n_prompt,
                      pi_progress_wanted(g->log->common.quiet));
    PI_TRY(pi_batcher_add(g->batcher, &s, &slot, err));
    while (pi_batcher_active(g->batcher) > 0) {
        PI_TRY(pi_interrupt_check(err));
        PI_TRY(pi_batcher_round(g->batcher, err));
        pi_batcher_totals(g->batcher, &t);
        if (t.prompt_tokens < g->n_prompt)
            pi_progress_at(&p, t.prompt_tokens);
        else
            pi_progress_end(&p);
    }
    if (g->failed != PI_OK) {
        *err = g->err;
        rc = g->failed;
    }
out:
    pi_progress_end(&p);
    if (rc == PI_E_INTERRUPTED && pi_batcher_active(g->batcher) > 0) {
        pi_batcher_destroy(g->batcher); /* tells the figures */
        g->batcher = NULL;
    }
    return rc;
}

static double rate(double n, double seconds)
{
    return n > 0 && seconds > 0 ? n / seconds : 0;
}

/* Ends the text on screen: what was held back, and on a terminal a newline. */
static enum pi_code end_text(struct gen *g, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t from = g->text.n_clean;

    PI_TRY(pi_text_finish(&g->text, err));
    PI_TRY(show(g, from, err));
    if (!g->o->json && g->seq.n > g->n_prompt && isatty(STDOUT_FILENO))
        (void)putchar('\n');
    PI_TRY(pi_stdout_check(err));
out:
    return rc;
}

static double weights_read(const struct pi_engine_stats *s)
{
    return (double)(s->weights_attn + s->weights_ffn + s->weights_pred + s->weights_other);
}

static void say_speed(const struct gen *g)
{
    const struct pi_engine_stats s = g->stats;
    const double n = 1e6 * (double)s.tokens; /* weights are told in millions */

    pi_run_notice(
        g->log,
        "prompt: %zu tokens, %.1f tokens/s; generation: %zu tokens, %.1f tokens/s, mode %s, activations %s",
        g->n_prompt, rate((double)g->n_prompt, g->figures.s_prompt), g->seq.n - g->n_prompt,
        rate(g->figures.n_steps, g->figures.s_decode), pi_mode_name(g->l->mode),
        pi_act_type_name(g->l->act));
    if (s.tokens > 0)
        pi_run_notice(
            g->log,
            "read per token: %.2f million weights (attention %.2f, feed-forward %.2f, predictor %.2f, other %.2f), %.1f MiB",
            weights_read(&s) / n, (double)s.weights_attn / n, (double)s.weights_ffn / n,
            (double)s.weights_pred / n, (double)s.weights_other / n,
            (double)s.bytes / (double)s.tokens / 1048576.0);
    if (strcmp(g->finish, "context") == 0)
        pi_run_notice(g->log, "stopped: the context of %u tokens is full (-c)",
                      (unsigned)g->l->n_ctx);
}

static json_t *result(const struct gen *g)
{
    return json_pack("{s:o, s:s%, s:f, s:f, s:s, s:s, s:s, s:I, s:f, s:f, s:I}", "tokens",
                     pi_json_tokens(g->seq.ids + g->n_prompt, g->seq.n - g->n_prompt), "text",
                     g->text.clean != NULL ? g->text.clean : "", g->text.n_clean,
                     "prompt_tokens_per_second", rate((double)g->n_prompt, g->figures.s_prompt),
                     "tokens_per_second", rate(g->figures.n_steps, g->figures.s_decode), "mode",
                     pi_mode_name(g->l->mode), "act", pi_act_type_name(g->l->act), "finish",
                     g->finish, "prompt_tokens", (json_int_t)g->n_prompt, "weights_per_token",
                     rate(weights_read(&g->stats), (double)g->stats.tokens), "bytes_per_token",
                     rate((double)g->stats.bytes, (double)g->stats.tokens), "seed",
                     (json_int_t)g->o->sampler.seed);
}

/* The figures of --verify: in the object, else a line: the result itself where no text was asked for, else a notice. */
static enum pi_code end_verify(struct gen *g, json_t **into, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_verify_result v;
    char line[256];

    if (g->verify == NULL)
        return PI_OK;
    PI_TRY(pi_verify_finish(g->verify, &v, err));
    pi_format_verify(&v, line, sizeof(line));
    if (g->o->json)
        *into = pi_json_add_verify(*into, &v);
    else if (g->n_predict == 0)
        printf("%s\n", line);
    else
        pi_run_notice(g->log, "%s", line);
out:
    return rc;
}

/* Everything that comes after the last token, also when the user stopped: what was made is kept. */
static enum pi_code end(struct gen *g, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    json_t *o = NULL;

    PI_TRY(end_text(g, err));
    pi_engine_take_stats(g->l->engine, &g->stats);
    if (g->o->json)
        o = result(g);
    PI_TRY(end_verify(g, &o, err));
    if (g->o->json) {
        PI_TRY(pi_json_print(o, err));
        o = NULL;
    }
    say_speed(g);
out:
    json_decref(o);
    return rc;
}

static enum pi_code start(struct gen *g, const struct pi_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_batcher_options bo = {.n_slots = 1,
                                          .n_ctx = g->l->n_ctx,
                                          .n_vocab = g->l->model.shape.n_vocab,
                                          .stepwise = g->o->verify,
                                          .run = run_batch,
                                          .run_ctx = g};

    g->n_prompt = p->tokens.n;
    g->n_predict = g->o->n_given ? g->o->n_predict : g->o->verify ? 0 : UINT32_MAX;
    for (size_t i = 0; i < p->tokens.n; i++)
        PI_TRY(pi_tokens_push(&g->seq, p->tokens.ids[i], err));
    PI_TRY(pi_batcher_create(&bo, g->l->tok, &g->batcher, err));
    if (g->o->verify) {
        PI_ALLOC(g->logits, bo.n_vocab, err);
        PI_TRY(pi_verify_create(&g->l->model, g->l->engine, g->l->dense, g->o->masks, &g->verify,
                                err));
    }
    if (!g->o->seed_given && g->o->sampler.temp > 0 && g->n_predict > 0)
        pi_run_notice(g->log, "seed %llu", (unsigned long long)g->o->sampler.seed);
out:
    return rc;
}

enum pi_code pi_generate(const struct pi_run_options *o, const struct pi_run_log *log,
                         struct pi_loaded *l, const struct pi_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct gen g = {.o = o, .log = log, .l = l, .finish = "interrupted"};
    bool made_text = false;

    PI_TRY(start(&g, p, err));
    rc = generate(&g, err);
    /* what was made is kept, but nothing is said of a prompt that was not read to its end */
    made_text = rc == PI_OK || (rc == PI_E_INTERRUPTED && g.figures.s_prompt > 0);
out:
    if (made_text) {
        const enum pi_code end_rc = end(&g, rc == PI_OK ? err : NULL);

        rc = rc == PI_OK ? end_rc : rc;
    }
    pi_batcher_destroy(g.batcher);
    pi_verify_destroy(g.verify);
    pi_tokens_free(&g.seq);
    pi_text_free(&g.text);
    free(g.logits);
    return rc;
}
