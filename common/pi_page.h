/*
 * pi_page.h - what the reports of pi-profile and pi-place have in common: which model, and what profile and predictor say of it.
 *
 * Order of calls: pi_page_init(), sections in any order between pi_html_begin() and pi_html_end() of the caller's page, pi_page_free().
 */
#ifndef PI_PAGE_H
#define PI_PAGE_H

#include "common/pi_census.h"
#include "common/pi_html.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "common/pi_reads.h"
#include "common/pi_shape.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of verdicts: this many times as fast (or as few bytes) counts as a gain; this as a small one; less is noise, uneven reads and hand-overs. */
#define PI_PAGE_GAIN       1.5
#define PI_PAGE_SMALL_GAIN 1.1
/* Shares of neurons, hottest first, that make 80 % of the activations: up to the first is a distinct hot set, above the second there is hardly one (an
 * even use would have 80 %). */
#define PI_PAGE_STEEP 0.3
#define PI_PAGE_FLAT  0.6
/* Fewer profiled tokens than that are few to go by. */
#define PI_PAGE_FEW_TOKENS 10000

enum pi_page_call {
    PI_CALL_GOOD,
    PI_CALL_FAIR,
    PI_CALL_BAD,
    PI_CALL_OPEN
};

struct pi_page {
    struct pi_html html;
    /* borrowed; profile: NULL, or one in which something was counted */
    const char *model_path, *profile_path, *predictor_path;
    const struct pi_gguf *model;
    const struct pi_shape *shape;
    const struct pi_profile *profile;
    const struct pi_predictor *predictor; /* or NULL */

    bool sparse;              /* the activation has zeros */
    struct pi_census *census; /* (n_layer) with a profile, else NULL; owned */
    struct pi_census mean;
    size_t n_cuts;
    uint32_t cuts[PI_CENSUS_CUTS];
    double *
        curves; /* (n_layer + 1, n_cuts): covered; the last is the mean of layers that fire; owned */
    uint32_t n_predictors;          /* layers that have one */
    double recall, precision, pred; /* means over those: recall, precision, share predicted */
};

/* Fills what is computed; the borrowed members are the caller's to set before, the rest is zero. profile and predictor of another shape than the
 * model's are PI_E_MISMATCH. PI_E_NOMEM. */
enum pi_code pi_page_init(struct pi_page *p, struct pi_err *err) PI_MUST_CHECK;
void pi_page_free(struct pi_page *p);

/* The head of the page: kind ("Profile report"), the model's name, its form and files. */
void pi_page_head(struct pi_page *p, const char *kind);

/* The box with the call: opens it, with a word of its own colour and mark in front; paragraphs follow, then pi_page_verdict_end(). */
void pi_page_verdict(struct pi_page *p, enum pi_page_call call, const char *word, const char *rest);
void pi_page_verdict_end(struct pi_page *p);
/* The sentence on few tokens, where there are few. */
void pi_page_caution(struct pi_page *p);

/* Figures in large print: begin, one by one, end. */
void pi_page_tiles(struct pi_page *p);
void pi_page_tile(struct pi_page *p, double value, const char *shown, const char *what);
void pi_page_tiles_end(struct pi_page *p);

/* Rules of a verdict: a table of what was compared with what. */
void pi_page_rules(struct pi_page *p);
void pi_page_rule(struct pi_page *p, const char *what, double value, const char *shown,
                  const char *thresholds, const char *reading);
void pi_page_rules_end(struct pi_page *p);
/* The rules that both reports have: on the activation, on the hot set. */
void pi_page_rule_zeros(struct pi_page *p);
void pi_page_rule_hot(struct pi_page *p);

/* Sections: how activations concentrate; density, predictors and their quality, layer by layer; words. Nothing without a profile (a predictor
 * alone is shown). */
void pi_page_concentration(struct pi_page *p);
void pi_page_layers(struct pi_page *p);
void pi_page_words(struct pi_page *p);

/* Bytes a token in dense, exact and predicted mode (those that the model has), side by side; r (3), by enum pi_mode; n_ctx: positions of the KV cache. */
void pi_page_reads(struct pi_page *p, const struct pi_reads *r, uint32_t n_ctx);

#endif
