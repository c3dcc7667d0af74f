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

struct pi_perplexity {
    uint64_t n_scored;
    double nll_per_token, perplexity;
};

/* Scores every window; stepwise feeds decode steps one token at a time, else whole windows as prompt chunks. */
enum pi_code pi_eval_perplexity(struct pi_engine *e, const struct pi_model *m, const struct pi_windows *w, bool stepwise,
                                bool progress, struct pi_perplexity *out, struct pi_err *err) PI_MUST_CHECK;

#endif
