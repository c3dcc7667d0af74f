#include "config.h"

#include "convert/pi_convert.h"
#include "common/pi_alloc.h"
#include "common/pi_artifact.h"
#include "common/pi_tokenizer.h"
#include "convert/pi_argument.h"
#include "convert/pi_convert_report.h"
#include "convert/pi_gguf_import.h"
#include "convert/pi_hf.h"
#include "convert/pi_hf_vocab.h"
#include "convert/pi_import.h"
#include "convert/pi_selfcheck.h"
#include "convert/pi_write_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CHECK_TOKENS 24 /* about what the self-check runs */
/* Below it a predictor knows nothing of its model: random ones were seen to reach 0.02. */
#define MIN_GAIN 0.1

/* A source with everything that was made of it; one of hf and gguf is in use. */
struct conversion {
    const struct pi_convert_options *opt;
    bool is_hf;
    struct pi_json config;
    struct pi_hf_config hf;
    struct pi_source src;
    struct pi_vocab vocab;
    struct pi_gguf gguf;
    struct pi_plan plan;
    struct pi_lineage lineage;
    struct pi_shape shape;
    struct pi_import pred; /* others' predictors, if any */
    double *counts;        /* (n_layer, n_ff) others' activation counts, or NULL */
};

static void free_conversion(struct conversion *c)
{
    pi_plan_free(&c->plan);
    pi_vocab_free(&c->vocab);
    pi_source_close(&c->src);
    pi_json_free(&c->config);
    pi_import_free(&c->pred);
    free(c->counts);
    pi_gguf_close(&c->gguf);
}

static enum pi_code add_key(struct pi_lineage_sum *s, const char *name, double value,
                            struct pi_err *err)
{
    char text[40];
    int n = snprintf(text, sizeof(text), "%.9g", value);

    return pi_lineage_key(s, name, text, (size_t)n, err);
}

static enum pi_code add_name(struct pi_lineage_sum *s, const char *name, const char *value,
                             struct pi_err *err)
{
    return pi_lineage_key(s, name, value, strlen(value), err);
}

/* Over what the model computes and the checkpoint's own tensors: a sharded copy has the lineage of a whole one. */
static enum pi_code hf_lineage(struct conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_lineage_sum *sum = NULL;
    const struct pi_shape *s = &c->hf.shape;
    static const char *const rope_names[] = {[PI_HF_ROPE_DEFAULT] = "default",
                                             [PI_HF_ROPE_LINEAR] = "linear",
                                             [PI_HF_ROPE_LLAMA3] = "llama3",
                                             [PI_HF_ROPE_YARN] = "yarn"};
    const struct {
        const char *name;
        double value;
    } keys[] = {
        {"n_layer", s->n_layer},
        {"n_embd", s->n_embd},
        {"n_ff", s->n_ff},
        {"n_vocab", s->n_vocab},
        {"n_head", s->n_head},
        {"n_head_kv", s->n_head_kv},
        {"head_dim", s->head_dim},
        {"norm_eps", (double)s->norm_eps},
        {"act_threshold", (double)s->act_threshold},
        {"rope_base", (double)s->rope_base},
        {"rope_factor", (double)s->rope_factor},
    };

    PI_TRY(pi_lineage_begin(&sum, err));
    PI_TRY(add_name(sum, "arch", pi_arch_name(s->arch), err));
    PI_TRY(add_name(sum, "act", pi_activation_name(s->act), err));
    PI_TRY(add_name(sum, "rope", rope_names[c->hf.rope], err));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        PI_TRY(add_key(sum, keys[i].name, keys[i].value, err));
    if (c->hf.rotary_share != 1.0f)
        PI_TRY(add_key(sum, "rotary_share", (double)c->hf.rotary_share, err));
    if (s->post_norm)
        PI_TRY(add_key(sum, "post_norm", 1.0, err));
    for (size_t i = 0; i < c->plan.n; i++) {
        const struct pi_plan_tensor *p = &c->plan.t[i];
        const struct pi_src_tensor *t =
            p->owned != NULL ? NULL : pi_source_find(&c->src, p->src_name);
        if (t == NULL)
            continue;
        PI_TRY(pi_lineage_tensor(sum, (struct pi_str){p->name, strlen(p->name)}, t->dim, t->n_dims,
                                 t->data, t->bytes, err));
        pi_source_drop(&c->src, t->data, t->bytes);
    }
    rc = pi_lineage_end(sum, &c->lineage, err);
    sum = NULL;
out:
    pi_lineage_abort(sum);
    return rc;
}

static enum pi_code open_hf(struct conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_convert_options *o = c->opt;

    c->is_hf = true;
    PI_TRY(pi_json_load(o->source, "config.json", false, &c->config, err));
    PI_TRY(pi_hf_config_read(&c->config, o->hidden_act, o->notes, &c->hf, err));
    PI_TRY(pi_source_open(o->source, &c->src, err));
    PI_TRY(pi_hf_map(&c->hf, &c->src, o->notes, &c->plan, err));
    PI_TRY(pi_hf_vocab_load(o->source, &c->hf, o->notes, &c->vocab, err));
    PI_TRY(hf_lineage(c, err));
    c->shape = c->hf.shape;
out:
    return rc;
}

/* The source's lineage; another activation makes it another model. */
static enum pi_code gguf_lineage(struct conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_lineage_sum *sum = NULL;
    struct pi_shape was, is;

    PI_TRY(pi_model_lineage(&c->gguf, &c->lineage, err));
    PI_TRY(pi_shape_read(&c->gguf, c->opt->hidden_act, &is, err));
    if (c->opt->hidden_act == NULL || (pi_shape_read(&c->gguf, NULL, &was, NULL) == PI_OK &&
                                       was.act == is.act && was.act_threshold == is.act_threshold))
        goto out;
    PI_TRY(pi_lineage_begin(&sum, err));
    PI_TRY(pi_lineage_key(sum, "source", c->lineage.hex, PI_HASH_HEX, err));
    PI_TRY(add_name(sum, "act", pi_activation_name(is.act), err));
    PI_TRY(add_key(sum, "act_threshold", (double)is.act_threshold, err));
    rc = pi_lineage_end(sum, &c->lineage, err);
    sum = NULL;
out:
    pi_lineage_abort(sum);
    return rc;
}

/* The result gets checksums of its own: damage that goes in here would come out as good data. Other programs copy our
 * metadata into files that they rewrite, though. */
static enum pi_code check_sums(const struct conversion *c, struct pi_err *err)
{
    enum pi_code rc = pi_gguf_check_header_crc(&c->gguf, err);

    if (rc == PI_OK)
        rc = pi_gguf_check_crc(&c->gguf, err);
    if (rc != PI_E_CORRUPT || !c->opt->accept_edited)
        return rc;
    pi_note(c->opt->notes,
            "%s: its checksums do not fit: taken as another program wrote it; profiles and "
            "predictors of the original pass for its own",
            c->opt->source);
    return PI_OK;
}

/* Statistics that lie beside a GGUF file as PowerInfer wants them: read before hours of work. The folder may be another model's. */
static enum pi_code read_counts(struct conversion *c, struct pi_err *err)
{
    enum pi_code rc;
    char *path = c->opt->output != NULL ? pi_path_artifact(c->opt->output, "profile", err) : NULL;
    struct pi_err why = {0};

    if (c->opt->output == NULL) /* --list */
        return PI_OK;
    if (path == NULL)
        return PI_E_NOMEM;
    if (access(path, F_OK) == 0) { /* perhaps the work of hours */
        pi_note(c->opt->notes, "%s is there already and stays as it is", path);
        free(path);
        return PI_OK;
    }
    free(path);
    rc = pi_import_activation(c->opt->source, &c->shape, &c->counts, &why);
    if (rc == PI_E_MISMATCH) {
        pi_note(c->opt->notes, "%s: another model's activation counts, left out", why.msg);
        return PI_OK;
    }
    return rc == PI_OK ? rc : pi_err_set(err, rc, "%s", why.msg);
}

/* What the self-check would find when all is written. A vocabulary that programs here cannot read is of use to others. */
static enum pi_code check_tokenizer(const struct conversion *c, struct pi_err *err)
{
    struct pi_tokenizer *tok = NULL;
    struct pi_err why = {0};
    const enum pi_code rc = pi_tokenizer_create(&c->gguf, &tok, &why);

    pi_tokenizer_destroy(tok);
    if (rc == PI_E_UNSUPPORTED)
        pi_note(c->opt->notes, "%s: pi-run will not run the result", why.msg);
    else if (rc != PI_OK && (c->opt->self_check || rc == PI_E_NOMEM))
        return pi_err_set(err, rc, "%s", why.msg);
    return PI_OK;
}

static enum pi_code open_gguf(struct conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_open_parts(c->opt->source, PI_GGUF_NO_HEADER_CRC, &c->gguf, err));
    PI_TRY(check_sums(c, err));
    PI_TRY(pi_gguf_map(&c->gguf, &c->plan, err));
    PI_TRY(gguf_lineage(c, err));
    pi_gguf_drop_all(&c->gguf);
    PI_TRY(pi_shape_read(&c->gguf, c->opt->hidden_act, &c->shape, err));
    PI_TRY(check_tokenizer(c, err));
    if (c->opt->predictor == NULL)
        PI_TRY(pi_import_gguf(&c->gguf, &c->shape, &c->pred, err));
    PI_TRY(pi_gguf_check_names(&c->gguf, &c->shape, c->opt->notes, err));
    PI_TRY(read_counts(c, err));
out:
    return rc;
}

static enum pi_code set_keys(struct conversion *c, struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_gguf_kv *old = c->is_hf ? NULL : pi_gguf_find(&c->gguf, "general.file_type");
    uint32_t type = c->opt->recipe->file_type, kept = type;

    if (c->is_hf) {
        PI_TRY(pi_hf_set_keys(&c->hf, w, err));
        PI_TRY(pi_vocab_write(&c->vocab, w, err));
    } else {
        PI_TRY(pi_gguf_copy_keys(&c->gguf, c->opt->hidden_act, w, err));
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
static const struct pi_recipe *named_recipe(const struct conversion *c)
{
    for (size_t i = 0; i < c->plan.n && !c->opt->type_given; i++)
        if (c->plan.t[i].n_dims > 1 && !c->plan.t[i].verbatim &&
            pi_type_info((uint32_t)c->plan.t[i].src_type)->quantised)
            return NULL;
    return c->opt->recipe;
}

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
static enum pi_code check_output(const struct conversion *c, struct pi_err *err)
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
static enum pi_code check_predictor(struct conversion *c, const struct pi_selfcheck *check,
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

static enum pi_code check_result(struct conversion *c, struct pi_gguf_writer *w, struct pi_err *err)
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

static enum pi_code show_artifact(struct artifact *a, struct pi_err *err)
{
    struct pi_gguf_writer *w = a->w;

    a->w = NULL; /* commit frees it in every case */
    return w != NULL ? pi_gguf_commit(w, err) : PI_OK;
}

static enum pi_code name_artifact(const struct conversion *c, const char *kind, struct artifact *a,
                                  struct pi_err *err)
{
    a->path = pi_path_artifact(c->opt->output, kind, err);
    return a->path != NULL ? PI_OK : PI_E_NOMEM;
}

/* The predictor and the profile. */
static enum pi_code write_artifacts(struct conversion *c, struct artifact out[2],
                                    struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (c->pred.p.layers != NULL) {
        c->pred.p.lineage = c->lineage;
        PI_TRY(name_artifact(c, "predictor", &out[0], err));
        PI_TRY(pi_predictor_write(out[0].path, &c->pred.p, &out[0].w, err));
    }
    if (c->counts != NULL) {
        PI_TRY(name_artifact(c, "profile", &out[1], err));
        PI_TRY(pi_import_write_profile(c->opt->source, &c->shape, &c->lineage, c->counts,
                                       out[1].path, &out[1].w, err));
    }
out:
    return rc;
}

static void say_predictor(const struct conversion *c, const char *path)
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

static void say_index(const struct conversion *c)
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
static enum pi_code prepare(struct conversion *c, const struct pi_write_options *wo,
                            struct pi_gguf_writer *w, struct pi_convert_report *r,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint64_t logits = 2ull * MAX_CHECK_TOKENS * sizeof(float);

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

static enum pi_code list_output(struct conversion *c, const struct pi_write_options *wo,
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

static enum pi_code write_output(struct conversion *c, const struct pi_write_options *wo,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;
    struct pi_convert_report r = {0};
    struct artifact artifacts[2] = {{NULL, NULL}, {NULL, NULL}};

    PI_TRY(pi_gguf_writer_create(c->opt->output, &w, err));
    PI_TRY(prepare(c, wo, w, &r, err));
    PI_TRY(pi_out_check_room(c->opt->output, r.file_bytes, err));
    PI_TRY(pi_plan_write(&c->plan, wo, w, err));
    if (c->opt->self_check || c->pred.p.layers != NULL)
        PI_TRY(check_result(c, w, err));
    /* whatever can still fail comes before the model appears */
    PI_TRY(write_artifacts(c, artifacts, err));
    if (c->opt->report != NULL) {
        PI_TRY(pi_report_json(&r, c->opt->report, err));
        if (fflush(c->opt->report) != 0)
            PI_FAIL(err, PI_E_IO, "cannot write to standard output");
    }
    /* the model last: without it artifacts do no harm, their lineage fits no other */
    for (size_t i = 0; i < 2; i++)
        PI_TRY(show_artifact(&artifacts[i], err));
    rc = pi_gguf_commit(w, err);
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
    const struct conversion *c = ctx;

    pi_source_drop(&c->src, p, n);
    pi_gguf_drop(&c->gguf, p, n);
}

static enum pi_code check_source(void *ctx, const void *p, uint64_t n, struct pi_err *err)
{
    struct conversion *c = ctx;

    return pi_source_check(&c->src, p, n, c->opt->pool, err);
}

enum pi_code pi_convert(const struct pi_convert_options *opt, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct conversion c = {.opt = opt};
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
    bool is_folder;

    PI_TRY(pi_argument_check(opt->source, &is_folder, err));
    if (is_folder)
        PI_TRY(open_hf(&c, err));
    else
        PI_TRY(open_gguf(&c, err));
    if (opt->predictor != NULL)
        PI_TRY(
            pi_import_torch(opt->predictor, &c.shape, opt->recipe->file_type == 0, &c.pred, err));
    PI_TRY(check_output(&c, err));
    wo.sparse = pi_activation_has_zeros(c.shape.act);
    PI_TRY(pi_plan_choose_types(&c.plan, &wo, err));
    PI_TRY(opt->list ? list_output(&c, &wo, err) : write_output(&c, &wo, err));
out:
    free_conversion(&c);
    return rc;
}
