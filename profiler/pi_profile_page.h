/*
 * pi_profile_page.h - the files behind pi-profile --report: finds them, checks that they belong together, writes the page.
 */
#ifndef PI_PROFILE_PAGE_H
#define PI_PROFILE_PAGE_H

#include "profiler/pi_profile_run.h"

#include "common/pi_gguf.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "common/pi_shape.h"

#include <stdbool.h>

/* What is open for a page; zeroed at first. */
struct pi_profile_page {
    struct pi_gguf model;
    struct pi_shape shape;
    struct pi_lineage lineage;
    struct pi_predictor predictor;
    bool has_predictor;
};

/* The page can be opened and replaces nothing that is read or written, the profile at profile_path among it; PI_E_USAGE, PI_E_IO. PI_OK without --report. */
enum pi_code pi_profile_page_check(const struct pi_profile_options *o, const char *profile_path,
                                   struct pi_err *err) PI_MUST_CHECK;

/* Before any work: the model, and the predictor if there is one; PI_E_MISMATCH for one of another model. */
enum pi_code pi_profile_page_open(const struct pi_profile_options *o, struct pi_profile_page *out,
                                  struct pi_err *err) PI_MUST_CHECK;
void pi_profile_page_close(struct pi_profile_page *p); /* accepts a zeroed one */

/* prof: NULL for none. */
enum pi_code pi_profile_page_write(const struct pi_profile_options *o,
                                   const struct pi_profile_page *p, const struct pi_profile *prof,
                                   const char *profile_path, struct pi_err *err) PI_MUST_CHECK;

/* All of it for a profile that is there, with its figures on standard output. PI_E_MISMATCH where there is none and the model could have one. */
enum pi_code pi_profile_page_only(const struct pi_profile_options *o,
                                  struct pi_err *err) PI_MUST_CHECK;

#endif
