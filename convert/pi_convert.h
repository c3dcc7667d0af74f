/*
 * pi_convert.h - what pi-convert does: a source of any kind in, one checked GGUF file out.
 */
#ifndef PI_CONVERT_H
#define PI_CONVERT_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_type.h"
#include "convert/pi_note.h"
#include "convert/pi_recipe.h"
#include "convert/pi_write_model.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct pi_convert_options {
    const char *source; /* a Hugging Face directory or a GGUF file */
    const char *output;
    const struct pi_recipe *recipe; /* of matrices */
    bool type_given;                /* else quantised sources keep theirs */
    struct pi_keep *keep;           /* (n_keep) --keep; counts are written */
    size_t n_keep;
    enum pi_layout layout; /* of the down projections */
    bool list;    /* write nothing but a list of what would be written; output may be NULL */
    FILE *report; /* the list; without list one JSON object on what was written, or NULL */
    bool json;    /* the list as a JSON object */
    bool verbose; /* notes on every tensor */
    const char *hidden_act; /* --hidden-act, or NULL */
    const char *predictor;  /* a folder of model_N.pt, or NULL */
    bool self_check;
    bool accept_edited; /* take a GGUF source whose checksums do not fit, with a note */
    bool progress;
    struct pi_pool *pool; /* borrowed */
    const struct pi_notes *notes;
};

/* The output appears complete and checked, or not at all; predictors (in a PowerInfer file, or the folder's) and activation counts beside a GGUF source become
 * artifacts beside it, which appear with it or not at all. Errors of the readers; PI_E_USAGE for a pattern that does nothing; PI_E_NOSPACE before anything is written; PI_E_MISMATCH
 * (predictors of another model); PI_E_SELFCHECK; PI_E_INTERRUPTED. */
enum pi_code pi_convert(const struct pi_convert_options *opt, struct pi_err *err) PI_MUST_CHECK;

#endif
