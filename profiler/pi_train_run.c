#include "config.h"

#include "profiler/pi_train_run.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_progress.h"
#include "profiler/pi_print.h"
#include "profiler/pi_train.h"
#include "runtime/pi_blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STEPS 160
#define FEW_SAMPLES   20000 /* below it a notice tells that more text pays */

const struct pi_program pi_train_program = {
    .name = "pi-train-predictor",
    .synopsis = "MODEL.gguf [--profile FILE] [options]",
    .about =
        "Trains, for each layer of a model, a small network that predicts which neurons will fire.",
    .max_operands = 1,
};

static size_t first_rows(struct pi_train_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "profile",
         .kind = PI_OPT_STRING,
         .dest = &o->profile,
         .arg = "FILE",
         .help = "what pi-profile wrote; default: MODEL.profile.gguf beside the model"},
        {.name = "recall",
         .kind = PI_OPT_F32,
         .dest = &o->recall,
         .arg = "X",
         .min = 0.5,
         .max = 0.999,
         .help = "share of active neurons to be found on held-out samples; default 0.95"},
        {.name = "max-params",
         .kind = PI_OPT_F32,
         .dest = &o->max_params,
         .arg = "X",
         .min = 0,
         .max = 1,
         .help = "most weights of all predictors, over the model's; default 0.1"},
        {.name = "max-damage",
         .kind = PI_OPT_F32,
         .dest = &o->max_damage,
         .arg = "X",
         .min = 0,
         .max = 1,
         .help =
             "most of the residual stream's energy that missed neurons may take away,\nsummed over layers; default 0.003"},
        {.name = "steps",
         .kind = PI_OPT_U32,
         .dest = &o->steps,
         .arg = "N",
         .min = 1,
         .max = 1000000,
         .help = "of training, 2048 tokens each, for a layer; default 160"},
        {.name = "type",
         .kind = PI_OPT_ENUM,
         .dest = &o->type,
         .arg = "f16|q8_0|f32",
         .given = &o->type_given,
         .help = "how weights are stored; default q8_0 for a quantised model, else f16"},
        {.name = "relu",
         .kind = PI_OPT_FLAG,
         .dest = &o->relu,
         .help = "a ReLU between a predictor's two layers"},
    };

    memcpy(t, rows, sizeof(rows));
    return sizeof(rows) / sizeof(rows[0]);
}

static size_t other_rows(struct pi_train_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "look-ahead",
         .kind = PI_OPT_FLAG,
         .dest = &o->look_ahead,
         .help =
             "predict from the layer before's attention output, so that the\nprediction is there before the layer begins"},
        {.name = "hidden-act",
         .kind = PI_OPT_STRING,
         .dest = &o->hidden_act,
         .arg = "NAME",
         .help = "the activation, where the file does not name it or names it wrongly"},
        {.name = "seed",
         .letter = 's',
         .kind = PI_OPT_U64,
         .dest = &o->seed,
         .arg = "N",
         .min = 0,
         .max = 1.8446744073709551615e19,
         .help = "of the order of samples; default 1"},
        {.name = "threads",
         .letter = 't',
         .kind = PI_OPT_U32,
         .dest = &o->n_threads,
         .arg = "N",
         .min = 1,
         .max = 1024,
         .help = "default: the physical cores that may be used"},
        {.name = "device",
         .kind = PI_OPT_STRING,
         .dest = &o->device_text,
         .arg = "cpu|gpu|gpu:N",
         .help = "where products are computed; default cpu"},
        {.name = "output",
         .letter = 'o',
         .kind = PI_OPT_STRING,
         .dest = &o->out,
         .arg = "FILE",
         .help = "default: MODEL.predictor.gguf beside the model"},
        {.name = "json",
         .kind = PI_OPT_FLAG,
         .dest = &o->json,
         .help = "the report as one JSON object"},
    };

    memcpy(t, rows, sizeof(rows));
    return sizeof(rows) / sizeof(rows[0]);
}

enum pi_code pi_train_options_parse(int argc, char **argv, struct pi_train_run_options *o,
                                    struct pi_err *err)
{
    const char *operands[2];
    struct pi_opt rows[24] = {0}; /* ends with a zeroed row */
    struct pi_program prog = pi_train_program;
    enum pi_code rc;

    memset(o, 0, sizeof(*o));
    o->recall = 0.95f;
    o->max_params = 0.1f;
    o->max_damage = 0.003f;
    o->steps = DEFAULT_STEPS;
    o->seed = 1;
    (void)other_rows(o, rows + first_rows(o, rows));
    prog.opts = rows;
    rc = pi_opt_parse(&prog, argc, argv, operands, &o->common, err);
    if (rc != PI_OK || o->common.help || o->common.version)
        return rc;
    rc = pi_device_parse(o->device_text, false, &o->device, err);
    if (rc != PI_OK)
        return rc;
    o->model = operands[0];
    if (o->model == NULL)
        return pi_err_set(err, PI_E_USAGE, "no model named (usage: %s %s)", pi_train_program.name,
                          pi_train_program.synopsis);
    return PI_OK;
}

/* ---- the report ---- */

/* The point a layer was given; where it is left exact, the one that comes first, for the record. */
static const struct pi_point *shown(const struct pi_trained_layer *l)
{
    return &l->curve.point[pi_trained_layer_kept(l) ? l->choice : 0];
}

static double kept_params(const struct pi_trained_layer *l, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += pi_trained_layer_kept(&l[i]) ? l[i].params : 0.0;
    return sum;
}

static enum pi_code print_json(const struct pi_model *m, const struct pi_trained_layer *l,
                               struct pi_err *err)
{
    json_t *layers = json_array();
    const uint32_t n = m->shape.n_layer;

    for (uint32_t i = 0; i < n; i++) {
        const struct pi_found *f = &shown(&l[i])->on_test;

        pi_print_append(&layers,
                        json_pack("{s:i, s:f, s:f, s:f, s:b}", "width", (int)l[i].width, "recall",
                                  f->recall, "precision", f->precision, "density", f->density,
                                  "kept", (int)pi_trained_layer_kept(&l[i])));
    }
    return pi_print_json(json_pack("{s:f, s:o}", "params_share",
                                   kept_params(l, n) / pi_train_model_params(m), "layers", layers),
                         err);
}

static void print_table(const struct pi_model *m, const struct pi_trained_layer *l, double seconds)
{
    const uint32_t n = m->shape.n_layer;
    double read = 0, damage = 0;

    printf("layer width   recall precision density  active accuracy  damage    read  seconds\n");
    for (uint32_t i = 0; i < n; i++) {
        const struct pi_point *p = shown(&l[i]);
        const struct pi_found *f = &p->on_test;
        const bool kept = pi_trained_layer_kept(&l[i]);
        const double share = l[i].curve.n > 0 ? p->bytes / l[i].curve.exact_bytes : 1.0;

        printf("%5u %5u %8.4f %9.4f %7.4f %7.4f %8.4f %7.5f %7.3f %8.1f%s\n", i, l[i].width,
               f->recall, f->precision, f->density, f->active, f->accuracy, p->damage, share,
               l[i].seconds, kept ? "" : "  left exact");
        read += (kept ? share : 1.0) / n;
        damage += kept ? p->damage : 0.0;
    }
    printf("mean read %.3f of exact mode's feed-forward bytes; damage %.5f; %.2f %% of the model's "
           "weights; %.0f s\n",
           read, damage, 100 * kept_params(l, n) / pi_train_model_params(m), seconds);
}

/* Why a layer got none. */
static void say_dropped(const struct pi_train_run_options *o, const struct pi_trained_layer *l,
                        uint32_t layer)
{
    const struct pi_curve *c = &l->curve;
    bool recall = false, cheap = false;

    for (uint32_t k = 0; k < c->n; k++) {
        recall = recall || c->point[k].allowed;
        cheap = cheap || (c->point[k].allowed && c->point[k].bytes < c->exact_bytes);
    }
    pi_notice(&pi_train_program, &o->common, "layer %u runs exact: %s", layer,
              c->n == 0 ? "--max-params leaves nothing for it"
              : !recall ? "the recall is not reached on the test part"
              : !cheap  ? "a predictor would read more than it saves"
                        : "what its predictor misses would do more harm than --max-damage allows");
}

/* ---- the work ---- */

static char *output_path(const struct pi_train_run_options *o, struct pi_err *err)
{
    return pi_path_or_artifact(o->out, o->model, "predictor", err);
}

/* Before any work: the output can be opened and replaces no input. */
static enum pi_code check_output(const struct pi_train_run_options *o, const char *profile,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = output_path(o, err);

    if (path == NULL)
        return PI_E_NOMEM;
    PI_TRY(pi_out_check_input(path, o->model, err));
    PI_TRY(pi_out_check_input(path, profile, err));
    PI_TRY(pi_out_probe(path, err));
out:
    free(path);
    return rc;
}

static enum pi_code save(const struct pi_train_run_options *o, const struct pi_model *m,
                         const struct pi_trained_layer *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_shape *sh = &m->shape;
    struct pi_predictor p = {
        .n_layer = sh->n_layer, .n_ff = sh->n_ff, .n_embd = sh->n_embd, .lineage = m->lineage};
    char *path = output_path(o, err);

    if (path == NULL)
        return PI_E_NOMEM;
    PI_ALLOC(p.layers, sh->n_layer, err);
    for (uint32_t i = 0; i < sh->n_layer; i++)
        if (pi_trained_layer_kept(&l[i]))
            p.layers[i] = (struct pi_predictor_layer){
                .width = l[i].width,
                .input = o->look_ahead && i > 0 ? PI_PRED_IN_PREV_ATTN : PI_PRED_IN_FFN_NORMED,
                .relu = o->relu,
                .threshold = shown(&l[i])->threshold,
                .fc1 = l[i].fc1,
                .fc2 = l[i].fc2,
                .bias = l[i].bias,
                .recall = (float)shown(&l[i])->on_test.recall,
                .precision = (float)shown(&l[i])->on_test.precision,
                .density = (float)shown(&l[i])->on_test.density};
    PI_TRY(pi_predictor_save(path, &p, err));
    pi_notice(&pi_train_program, &o->common, "wrote %s", path);
out:
    free(p.layers);
    free(path);
    return rc;
}

static enum pi_code load_profile(const struct pi_train_run_options *o, const struct pi_model *m,
                                 struct pi_profile *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = NULL;

    PI_TRY(pi_path_find_artifact(o->profile, o->model, "profile", &path, err));
    if (path == NULL)
        PI_FAIL(err, PI_E_MISMATCH, "%s has no profile; make one with: pi-profile %s --data FILE",
                o->model, o->model);
    PI_TRY(pi_profile_load(path, out, err));
    PI_TRY(check_output(o, path, err));
    PI_TRY(pi_artifact_check_model(&out->file, o->model, &m->lineage, NULL, err));
    if (out->n_layer != m->shape.n_layer || out->n_ff != m->shape.n_ff ||
        out->n_embd != m->shape.n_embd)
        PI_FAIL(err, PI_E_MISMATCH, "%s: %u layers of %u neurons, the model has %u of %u", path,
                out->n_layer, out->n_ff, m->shape.n_layer, m->shape.n_ff);
out:
    free(path);
    return rc;
}

static enum pi_code train_and_save(const struct pi_train_run_options *o, struct pi_model *m,
                                   const struct pi_profile *p, struct pi_pool *pool,
                                   struct pi_err *err)
{
    static const enum pi_type types[] = {PI_TYPE_F16, PI_TYPE_Q8_0, PI_TYPE_F32};
    enum pi_code rc = PI_OK;
    const double t = pi_now();
    struct pi_trained_layer *l = NULL;
    struct pi_train_options to = {.recall = (double)o->recall,
                                  .max_params = (double)o->max_params,
                                  .max_damage = (double)o->max_damage,
                                  .steps = o->steps,
                                  .seed = o->seed,
                                  .relu = o->relu,
                                  .look_ahead = o->look_ahead,
                                  .compare = o->common.verbose,
                                  .type =
                                      o->type_given ? types[o->type] : pi_train_default_type(m)};

    if (o->device.kind == PI_DEVICE_GPU)
        PI_TRY(pi_gpu_fit_create(o->device.gpu, &to.gpu, err));
    PI_ALLOC(l, m->shape.n_layer, err);
    PI_TRY(pi_train_model(m, p, &to, pool, pi_progress_wanted(o->common.quiet), l, err));
    PI_TRY(pi_interrupt_check(err));
    if (p->n_samples < FEW_SAMPLES)
        pi_notice(&pi_train_program, &o->common,
                  "%llu samples are few: predictors get wide margins and save little; %s",
                  (unsigned long long)p->n_samples,
                  p->n_tokens >= FEW_SAMPLES
                      ? "the profile has counted more tokens than it kept: profile again with a "
                        "larger --max-sample-bytes"
                      : "profile more text (50000 tokens are enough)");
    PI_TRY(save(o, m, l, err));
    for (uint32_t i = 0; i < m->shape.n_layer; i++)
        if (!pi_trained_layer_kept(&l[i]))
            say_dropped(o, &l[i], i);
    for (uint32_t i = 0; i < m->shape.n_layer; i++)
        if (l[i].compared)
            pi_notice(&pi_train_program, &o->common,
                      "layer %u, width %u, %s, a quarter of the steps: recall %.4f at density %.4f",
                      i, l[i].width, o->look_ahead ? "its own input" : "looking ahead",
                      l[i].other.recall, l[i].other.density);
    if (o->json)
        PI_TRY(print_json(m, l, err));
    else
        print_table(m, l, pi_now() - t);
out:
    for (uint32_t i = 0; l != NULL && i < m->shape.n_layer; i++)
        pi_trained_layer_free(&l[i]);
    free(l);
    pi_gpu_fit_destroy(to.gpu);
    return rc;
}

enum pi_code pi_train_run(const struct pi_train_run_options *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_model_options mo = {.hidden_act = o->hidden_act, .check_crc = true};
    struct pi_model m = {0};
    struct pi_profile p = {0};
    struct pi_pool *pool = NULL;

    pi_interrupt_install();
    PI_TRY(pi_blas_init(err));
    if (pi_blas_warning() != NULL)
        pi_notice(&pi_train_program, &o->common, "%s", pi_blas_warning());
    PI_TRY(pi_device_check(&o->device, err));
    PI_TRY(pi_model_open(o->model, &mo, &m, err));
    if (!pi_activation_has_zeros(m.shape.act))
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "%s: the activation %s is never exactly zero: there is nothing to predict",
                o->model, pi_activation_name(m.shape.act));
    PI_TRY(load_profile(o, &m, &p, err));
    PI_TRY(pi_pool_create(o->n_threads, &pool, err));
    PI_TRY(train_and_save(o, &m, &p, pool, err));
out:
    pi_pool_destroy(pool);
    pi_profile_free(&p);
    pi_model_close(&m);
    return rc;
}
