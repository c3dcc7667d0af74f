/*
 * pi_eval.h - measures a model on text: perplexity, logits, divergence of sparse from dense.
 */
#ifndef PI_EVAL_H
#define PI_EVAL_H

#include "common/pi_dataset.h"
#include "common/pi_err.h"
#include "common/pi_progress.h"
#include "runtime/pi_engine.h"

/* Negative log-likelihood in nats of target under logits (n_vocab), F64 sums. */
double pi_nll(const float *logits, uint32_t n_vocab, int32_t target);
/* KL(p || q) in nats of the softmaxes of two logit rows. */
double pi_kl(const float *p_logits, const float *q_logits, uint32_t n_vocab);
/* The id of the greatest logit, the lowest one of equals. */
int32_t pi_argmax(const float *logits, uint32_t n_vocab);

struct pi_perplexity {
    uint64_t n_scored;
    double nll_per_token, perplexity;
};

/* Feeds n tokens to sequence 0 from position pos on, in decode steps of one token (stepwise) or in prompt chunks, and hands each token's logits to row
 * in order. */
typedef enum pi_code (*pi_logits_fn)(void *ctx, uint32_t i, const float *logits,
                                     struct pi_err *err);
enum pi_code pi_eval_feed(struct pi_engine *e, const struct pi_model *m, const int32_t *tokens,
                          uint32_t n, uint32_t pos, bool stepwise, pi_logits_fn row, void *ctx,
                          struct pi_err *err) PI_MUST_CHECK;

/* Scores every window; stepwise feeds decode steps one token at a time, else whole windows as prompt chunks. PI_E_RANGE when the windows hold nothing
 * to score; PI_E_SELFCHECK when a likelihood is not finite. */
enum pi_code pi_eval_perplexity(struct pi_engine *e, const struct pi_model *m,
                                const struct pi_windows *w, bool stepwise, bool progress,
                                struct pi_perplexity *out, struct pi_err *err) PI_MUST_CHECK;

#endif
