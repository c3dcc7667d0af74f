#include "config.h"

#include "convert/pi_convert_int.h"
#include "common/pi_alloc.h"
#include "convert/pi_convert_report.h"
#include "convert/pi_gguf_import.h"
#include "convert/pi_hf_vocab.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CHECK_TOKENS 24 /* about what the self-check runs */

static enum pi_code set_keys(struct pi_conversion *c, struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf_kv *old = c->is_hf ? NULL : pi_gguf_find(&c->gguf, "general.file_type");
    uint32_t type = c->opt->recipe->file_type, kept = type;

    if (c->is_hf) {
        PI_TRY(pi_hf_set_keys(&c->hf, w, err));
        PI_TRY(pi_vocab_write(&c->vocab, w, err));
    } else {
        PI_TRY(pi_gguf_copy_keys(&c->gguf, &c->shape, w, err));
    }
    if (old != NULL && !c->opt->type_given &&
        pi_gguf_u32(&c->gguf, "general.file_type", false, &kept, NULL) == PI_OK && kept > 1)
        type = kept;
    PI_TRY(pi_gguf_set_u32(w, "general.file_type", type, err));
    PI_TRY(pi_gguf_set_u32(w, "general.quantization_version", 2, err));
    PI_TRY(pi_gguf_set_string(w, "pi.created_by", PACKAGE_NAME " " PACKAGE_VERSION " pi-convert",
                              err));
    PI_TRY(pi_lineage_store(w, &c->lineage, err));
out:
    return rc;
}

/* Where nothing was asked for and the source is quantised, no recipe says what the file is. */
static const struct pi_recipe *named_recipe(const struct pi_conversion *c)
{
    for (size_t i = 0; i < c->plan.n && !c->opt->type_given; i++)
        if (c->plan.t[i].n_dims > 1 && !c->plan.t[i].verbatim &&
            pi_type_info((uint32_t)c->plan.t[i].src_type)->quantised)
            return NULL;
    return c->opt->recipe;
}

/* An artifact that is written, but does not appear before all that can fail of the model is done. */
struct artifact {
    char *path; /* NULL: none */
    struct pi_gguf_writer *w;
};

static void drop_artifact(struct artifact *a)
{
    pi_gguf_abort(a->w);
    free(a->path);
    *a = (struct artifact){NULL, NULL};
}

static enum pi_code name_artifact(const struct pi_conversion *c, const char *kind,
                                  struct artifact *a, struct pi_err *err)
{
    a->path = pi_path_artifact(c->opt->output, kind, err);
    return a->path != NULL ? pi_out_probe(a->path, err) : PI_E_NOMEM;
}

/* The predictor and the profile, before hours of work. */
static enum pi_code name_artifacts(const struct pi_conversion *c, struct artifact out[2],
                                   struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (c->pred.p.layers != NULL)
        PI_TRY(name_artifact(c, "predictor", &out[0], err));
    if (c->counts != NULL)
        PI_TRY(name_artifact(c, "profile", &out[1], err));
out:
    return rc;
}

static enum pi_code write_artifacts(struct pi_conversion *c, struct artifact out[2],
                                    struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (out[0].path != NULL) {
        c->pred.p.lineage = c->lineage;
        PI_TRY(pi_predictor_write(out[0].path, &c->pred.p, &out[0].w, err));
    }
    if (out[1].path != NULL)
        PI_TRY(pi_import_write_profile(c->opt->source, &c->shape, &c->lineage, c->counts,
                                       out[1].path, &out[1].w, err));
out:
    return rc;
}

/* They and the model appear, or none of them; the model last: without it artifacts do no harm, their lineage fits no other. */
static enum pi_code show_all(struct artifact artifacts[2], struct pi_gguf_writer *w,
                             struct pi_err *err)
{
    struct pi_gguf_writer *const all[] = {artifacts[0].w, artifacts[1].w, w};

    artifacts[0].w = artifacts[1].w = NULL; /* commit frees them in every case */
    return pi_gguf_commit_all(all, sizeof(all) / sizeof(all[0]), err);
}

static void say_predictor(const struct pi_conversion *c, const char *path)
{
    double recall = 0.0, density = 0.0;
    uint32_t n = 0;

    for (uint32_t l = 0; l < c->pred.p.n_layer; l++) {
        if (c->pred.p.layers[l].width == 0)
            continue;
        recall += (double)c->pred.p.layers[l].recall;
        density += (double)c->pred.p.layers[l].density;
        n++;
    }
    pi_note(c->opt->notes,
            "wrote %s: predictors of %u of %u layers; on a built-in text recall %.3f at %.3f of "
            "neurons predicted",
            path, n, c->pred.p.n_layer, recall / n, density / n);
}

static void say_index(const struct pi_conversion *c)
{
    char *index = pi_asprintf(NULL, "%s.generated.gpuidx", c->opt->source);

    if (index != NULL && access(index, F_OK) == 0)
        pi_note(c->opt->notes,
                "%s says which neurons were on a GPU once, not how often they fire: pi-place "
                "needs counts, make them with: pi-profile %s --data FILE",
                index, c->opt->output);
    free(index);
}

/* Types, keys and tensors are known: the file's size is, too. */
static enum pi_code prepare(struct pi_conversion *c, const struct pi_write_options *wo,
                            struct pi_gguf_writer *w, struct pi_convert_report *r,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint64_t logits = 2ull * MAX_CHECK_TOKENS * sizeof(float);

    PI_TRY(pi_gguf_align_pages(w, err));
    PI_TRY(set_keys(c, w, err));
    PI_TRY(pi_plan_declare(&c->plan, w, err));
    PI_TRY(pi_gguf_size(w, &r->file_bytes, err));
    r->plan = &c->plan;
    r->shape = &c->shape;
    r->recipe = named_recipe(c);
    r->output = c->opt->output;
    r->room_bytes = UINT64_MAX;
    r->memory_bytes = pi_plan_memory(&c->plan, wo->pool);
    for (size_t i = 0; c->opt->self_check && i < c->plan.n; i++) {
        const struct pi_plan_tensor *t = &c->plan.t[i];
        uint64_t check = t->n_rows * logits; /* of the head; of all, it has most rows */

        if (c->is_hf) /* the check's own forward pass has one matrix in F32 */
            check += t->n_rows * t->n_cols * sizeof(float);
        if (check > r->memory_bytes)
            r->memory_bytes = check;
    }
    if (c->opt->output != NULL)
        PI_TRY(pi_out_room(c->opt->output, &r->room_bytes, err));
out:
    return rc;
}

static enum pi_code list_output(struct pi_conversion *c, const struct pi_write_options *wo,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;
    struct pi_convert_report r = {0};

    PI_TRY(pi_gguf_writer_create(NULL, &w, err));
    PI_TRY(prepare(c, wo, w, &r, err));
    rc = c->opt->json ? pi_report_json(&r, c->opt->report, err)
                      : pi_report_list(&r, c->opt->report, err);
out:
    pi_gguf_abort(w);
    return rc;
}

static enum pi_code write_output(struct pi_conversion *c, const struct pi_write_options *wo,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;
    struct pi_convert_report r = {0};
    struct artifact artifacts[2] = {{NULL, NULL}, {NULL, NULL}};

    PI_TRY(pi_gguf_writer_create(c->opt->output, &w, err));
    PI_TRY(prepare(c, wo, w, &r, err));
    PI_TRY(pi_out_check_room(c->opt->output, r.file_bytes, err));
    PI_TRY(name_artifacts(c, artifacts, err));
    PI_TRY(pi_plan_write(&c->plan, wo, w, err));
    if (c->opt->self_check || c->pred.p.layers != NULL)
        PI_TRY(pi_conversion_check_result(c, w, err));
    /* whatever can still fail comes before the model appears */
    PI_TRY(write_artifacts(c, artifacts, err));
    if (c->opt->report != NULL) {
        PI_TRY(pi_report_json(&r, c->opt->report, err));
        if (fflush(c->opt->report) != 0)
            PI_FAIL(err, PI_E_IO, "cannot write to standard output");
    }
    rc = show_all(artifacts, w, err);
    w = NULL;
    PI_TRY(rc);
    pi_report_errors(&c->plan, c->opt->verbose, c->opt->notes);
    pi_note(c->opt->notes, "wrote %s", c->opt->output);
    if (artifacts[0].path != NULL)
        say_predictor(c, artifacts[0].path);
    if (artifacts[1].path != NULL)
        pi_note(c->opt->notes, "wrote %s: activation counts, without samples to train on",
                artifacts[1].path);
    else if (!c->is_hf)
        say_index(c);
    pi_report_activation(&r, c->opt->notes);
out:
    for (size_t i = 0; i < 2; i++)
        drop_artifact(&artifacts[i]);
    pi_gguf_abort(w);
    return rc;
}

/* Sources may be larger than memory. */
static void drop_source(void *ctx, const void *p, size_t n)
{
    const struct pi_conversion *c = ctx;

    pi_source_drop(&c->src, p, n);
    pi_gguf_drop(&c->gguf, p, n);
}

static enum pi_code check_source(void *ctx, const void *p, uint64_t n, struct pi_err *err)
{
    struct pi_conversion *c = ctx;

    return pi_source_check(&c->src, p, n, c->opt->pool, err);
}

enum pi_code pi_convert(const struct pi_convert_options *opt, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_conversion c = {.opt = opt};
    struct pi_write_options wo = {.drop = drop_source,
                                  .check = check_source,
                                  .drop_ctx = &c,
                                  .recipe = opt->recipe,
                                  .layout = opt->layout,
                                  .keep_quantised = !opt->type_given,
                                  .keep = opt->keep,
                                  .n_keep = opt->n_keep,
                                  .verbose = opt->verbose,
                                  .pool = opt->pool,
                                  .progress = opt->progress,
                                  /* a list shows it all */
                                  .notes = opt->list ? NULL : opt->notes};

    PI_TRY(pi_conversion_open(&c, err));
    PI_TRY(pi_conversion_check_output(&c, err));
    wo.sparse = pi_activation_has_zeros(c.shape.act);
    PI_TRY(pi_plan_choose_types(&c.plan, &wo, err));
    PI_TRY(opt->list ? list_output(&c, &wo, err) : write_output(&c, &wo, err));
out:
    pi_conversion_close(&c);
    return rc;
}
