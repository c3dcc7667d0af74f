/* What a conversion may not write over, and whether its result is the source's model. */
#include "config.h"

#include "convert/pi_convert_int.h"
#include "common/pi_alloc.h"
#include "convert/pi_selfcheck.h"

#include <stdlib.h>
#include <string.h>

/* Below it a predictor knows nothing of its model: random ones were seen to reach 0.02. */
#define MIN_GAIN 0.1

/* A file that is there, in this folder, and no GGUF file: a configuration, a tokenizer, a checkpoint. */
static bool is_beside(const char *dir, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const size_t n = strlen(name);
    char *same = pi_asprintf(NULL, "%s/%s", dir, name);
    const bool beside =
        same != NULL && pi_file_same(same, path) && !(n > 5 && strcmp(name + n - 5, ".gguf") == 0);

    free(same);
    return beside;
}

/* A GGUF source may be replaced by its conversion; a checkpoint's file may not. */
enum pi_code pi_conversion_check_output(const struct pi_conversion *c, struct pi_err *err)
{
    static const char *const kinds[] = {"predictor", "profile"};
    enum pi_code rc = PI_OK;
    const char *out = c->opt->output;
    char *artifact = NULL;

    if (out == NULL) /* --list */
        return PI_OK;
    for (size_t i = 0; i < c->src.n_maps; i++)
        if (pi_file_same(c->src.maps[i].path, out))
            PI_FAIL(err, PI_E_USAGE, "%s is part of the source", out);
    for (size_t i = 0; i < c->gguf.n_parts; i++)
        if (pi_file_same(c->gguf.parts[i].path, out))
            PI_FAIL(err, PI_E_USAGE, "%s is part of the source", out);
    if ((c->is_hf && is_beside(c->opt->source, out)) ||
        (c->opt->predictor != NULL && is_beside(c->opt->predictor, out)))
        PI_FAIL(err, PI_E_USAGE, "%s is a file of the source's folder", out);
    for (size_t i = 0; !c->is_hf && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        artifact = pi_path_artifact(out, kinds[i], err);
        if (artifact == NULL)
            return PI_E_NOMEM;
        if (pi_file_same(c->opt->source, artifact))
            PI_FAIL(err, PI_E_USAGE, "%s is where the source's %s would go", artifact, kinds[i]);
        free(artifact);
        artifact = NULL;
    }
out:
    free(artifact);
    return rc;
}

/* Predictors of others are measured on the model; strangers among them are sent away. */
static enum pi_code check_predictor(struct pi_conversion *c, const struct pi_selfcheck *check,
                                    struct pi_err *err)
{
    double gain = 0.0;
    enum pi_code rc = pi_selfcheck_predictor(check, &c->pred.p, &gain, err);

    if (rc != PI_OK || gain >= MIN_GAIN)
        return rc;
    if (c->pred.is_foreign)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "%s: its predictors tell active neurons from others no better than chance "
            "(gain %.3f, at least %g is due): made for another model; nothing was "
            "written",
            c->pred.path, gain, MIN_GAIN);
    pi_note(c->opt->notes,
            "%s: its predictors tell active neurons from others no better than chance (gain %.3f)",
            c->pred.path, gain);
    return PI_OK;
}

/* What the check finds in the unfinished file was in the source, whose name the user knows. */
static void name_source(struct pi_err *err, const char *path, const char *source)
{
    struct pi_err said = *err;
    char *at = strstr(said.msg, path);

    if (at == NULL)
        return;
    *at = '\0';
    (void)pi_err_set(err, said.code, "%s%s%s", said.msg, source, at + strlen(path));
}

enum pi_code pi_conversion_check_result(struct pi_conversion *c, struct pi_gguf_writer *w,
                                        struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = NULL;
    struct pi_selfcheck check = {.output = c->opt->output,
                                 .pool = c->opt->pool,
                                 .notes = c->opt->notes,
                                 .progress = c->opt->progress,
                                 .accept_edited = c->opt->accept_edited,
                                 .plan = &c->plan};

    PI_TRY(pi_gguf_finish(w, &path, err));
    check.target = path;
    if (c->opt->self_check && c->is_hf)
        PI_TRY(pi_selfcheck_hf(&check, &c->hf, &c->src, err));
    else if (c->opt->self_check)
        PI_TRY(pi_selfcheck_gguf(&check, c->opt->source, c->opt->hidden_act, err));
    if (c->pred.p.layers != NULL)
        PI_TRY(check_predictor(c, &check, err));
out:
    if (rc != PI_OK && path != NULL && err != NULL)
        name_source(err, path, c->opt->source);
    free(path);
    return rc;
}
