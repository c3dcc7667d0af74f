/*
 * pi_profile_report.h - pi-profile --report: what a profile says, as a page for people.
 *
 * The verdict says how many times fewer bytes a token reads in the best sparse mode than in dense mode, whatever the machine: what the page calls a
 * gain is in common/pi_page.h.
 */
#ifndef PI_PROFILE_REPORT_H
#define PI_PROFILE_REPORT_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "common/pi_shape.h"

/* All borrowed. */
struct pi_profile_report {
    const char *model_path, *profile_path, *predictor_path;
    const struct pi_gguf *model;
    const struct pi_shape *shape;
    const struct pi_profile
        *profile; /* NULL: none; the activation has no zeros, or nothing was counted */
    const struct pi_predictor *predictor; /* or NULL */
};

/* Writes the page. PI_E_MISMATCH for shapes that differ from the model's; PI_E_NOMEM, PI_E_IO, PI_E_NOSPACE; errors of pi_estimate_model(). */
enum pi_code pi_profile_report_write(const struct pi_profile_report *r, const char *path,
                                     struct pi_err *err) PI_MUST_CHECK;

#endif
