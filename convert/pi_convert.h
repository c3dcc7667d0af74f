/*
 * pi_convert.h - what pi-convert does: a source of any kind in, one checked GGUF file out.
 */
#ifndef PI_CONVERT_H
#define PI_CONVERT_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_type.h"
#include "convert/pi_note.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_convert_options {
    const char *source; /* a Hugging Face directory or a GGUF file */
    const char *output;
    enum pi_type type;      /* of 2-D weights */
    bool type_given;        /* else quantised sources keep theirs */
    const char *hidden_act; /* --hidden-act, or NULL */
    bool self_check;
    bool accept_edited; /* take a GGUF source whose checksums do not fit, with a note */
    bool progress;
    struct pi_pool *pool; /* borrowed */
    const struct pi_notes *notes;
};

/* The output appears complete and checked, or not at all. Errors of the readers; PI_E_SELFCHECK; PI_E_INTERRUPTED. */
enum pi_code pi_convert(const struct pi_convert_options *opt, struct pi_err *err) PI_MUST_CHECK;

#endif
