#include "config.h"

#include "profiler/pi_profile_page.h"

#include "common/pi_artifact.h"
#include "common/pi_file.h"
#include "profiler/pi_census_print.h"
#include "profiler/pi_profile_report.h"

#include <stdlib.h>
#include <string.h>

enum pi_code pi_profile_page_check(const struct pi_profile_options *o, const char *profile_path,
                                   struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *predictor = NULL;

    if (o->report == NULL)
        return PI_OK;
    PI_TRY(pi_path_find_artifact(o->predictor, o->model, "predictor", &predictor, err));
    PI_TRY(pi_out_check_input(o->report, o->model, err));
    PI_TRY(pi_out_check_input(o->report, predictor, err));
    for (size_t i = 0; i < o->data.n; i++)
        PI_TRY(pi_out_check_input(o->report, o->data.v[i], err));
    for (size_t i = 0; i < o->merge.n; i++)
        PI_TRY(pi_out_check_input(o->report, o->merge.v[i], err));
    if (profile_path != NULL &&
        (strcmp(o->report, profile_path) == 0 || pi_file_same(o->report, profile_path)))
        PI_FAIL(err, PI_E_USAGE, "--report %s: is the profile's own file", o->report);
    if (o->counts != NULL &&
        (strcmp(o->report, o->counts) == 0 || pi_file_same(o->report, o->counts)))
        PI_FAIL(err, PI_E_USAGE, "--report %s: is the file of --counts", o->report);
    PI_TRY(pi_out_probe(o->report, err));
out:
    free(predictor);
    return rc;
}

enum pi_code pi_profile_page_open(const struct pi_profile_options *o, struct pi_profile_page *out,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = NULL;

    PI_TRY(pi_gguf_open(o->model, 0, &out->model, err));
    PI_TRY(pi_shape_read(&out->model, o->hidden_act, &out->shape, err));
    PI_TRY(pi_model_lineage(&out->model, &out->lineage, err));
    PI_TRY(pi_path_find_artifact(o->predictor, o->model, "predictor", &path, err));
    if (path != NULL) {
        PI_TRY(pi_predictor_load(path, &out->predictor, err));
        out->has_predictor = true;
        PI_TRY(pi_artifact_check_model(&out->predictor.file, o->model, &out->lineage, NULL, err));
    }
out:
    free(path);
    return rc;
}

void pi_profile_page_close(struct pi_profile_page *p)
{
    if (p->has_predictor)
        pi_predictor_free(&p->predictor);
    pi_gguf_close(&p->model);
    memset(p, 0, sizeof(*p));
}

enum pi_code pi_profile_page_write(const struct pi_profile_options *o,
                                   const struct pi_profile_page *p, const struct pi_profile *prof,
                                   const char *profile_path, struct pi_err *err)
{
    const struct pi_profile_report r = {.model_path = o->model,
                                        .profile_path = profile_path,
                                        .predictor_path =
                                            p->has_predictor ? p->predictor.file.map.path : NULL,
                                        .model = &p->model,
                                        .shape = &p->shape,
                                        .profile = prof,
                                        .predictor = p->has_predictor ? &p->predictor : NULL};
    enum pi_code rc = pi_profile_report_write(&r, o->report, err);

    if (rc == PI_OK)
        pi_notice(&pi_profile_program, &o->common, "wrote %s", o->report);
    return rc;
}

enum pi_code pi_profile_page_only(const struct pi_profile_options *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_profile_page page = {0};
    struct pi_profile prof = {0};
    bool has_profile = false;
    char *path = NULL;

    PI_TRY(pi_path_find_artifact(o->profile, o->model, "profile", &path, err));
    PI_TRY(pi_profile_page_open(o, &page, err));
    PI_TRY(pi_profile_page_check(o, path, err));
    if (path != NULL) {
        PI_TRY(pi_profile_load(path, &prof, err));
        has_profile = true;
        PI_TRY(pi_artifact_check_model(&prof.file, o->model, &page.lineage, NULL, err));
    } else if (pi_activation_has_zeros(page.shape.act)) {
        PI_FAIL(err, PI_E_MISMATCH,
                "%s has no profile to report on; make one: pi-profile %s --data FILE --report %s",
                o->model, o->model, o->report);
    }
    PI_TRY(pi_profile_page_write(o, &page, has_profile ? &prof : NULL, path, err));
    if (has_profile || o->json)
        PI_TRY(pi_census_print(&prof, o->json, err));
out:
    if (has_profile)
        pi_profile_free(&prof);
    pi_profile_page_close(&page);
    free(path);
    return rc;
}
