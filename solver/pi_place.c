#include "config.h"

#include "solver/pi_place.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_progress.h"
#include "solver/pi_place_report.h"
#include "solver/pi_probe.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HARDWARE_FILE   "hardware.yaml"
#define MAX_DEFAULT_CTX 4096

/* What a run of the program holds; all zero at first. */
struct session {
    const struct pi_program *prog;
    const struct pi_common_opts *common;
    const struct pi_place_options *opt;
    const char *model_path;
    struct pi_gguf model;
    struct pi_shape shape;
    struct pi_lineage lineage;
    struct pi_fingerprint fingerprint;
    struct pi_hardware hw;
    struct pi_profile profile;
    struct pi_predictor predictor;
    bool has_profile, has_predictor;
    struct pi_plan_input in; /* what plan was made of */
    struct pi_plan plan;
};

static enum pi_code probe(struct session *s, struct pi_err *err)
{
    if (s->common->verbose)
        pi_notice(s->prog, s->common, "measuring this machine's memory bandwidth");
    return pi_probe(&s->hw, err);
}

static enum pi_code find_hardware(struct session *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (s->opt->hardware != NULL)
        PI_TRY(pi_hardware_load(s->opt->hardware, &s->hw, err));
    else if (s->opt->probe != NULL)
        ; /* measured just now */
    else if (access(HARDWARE_FILE, F_OK) == 0)
        PI_TRY(pi_hardware_load(HARDWARE_FILE, &s->hw, err));
    else
        PI_TRY(probe(s, err));
out:
    return rc;
}

static enum pi_code open_model(struct session *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_open(s->model_path, 0, &s->model, err));
    PI_TRY(pi_shape_read(&s->model, s->opt->hidden_act, &s->shape, err));
    PI_TRY(pi_model_lineage(&s->model, &s->lineage, err));
    PI_TRY(pi_model_fingerprint(&s->model, &s->fingerprint, err));
out:
    return rc;
}

static enum pi_code find_artifacts(struct session *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = NULL;

    PI_TRY(pi_path_find_artifact(s->opt->profile, s->model_path, "profile", &path, err));
    if (path != NULL) {
        PI_TRY(pi_profile_load(path, &s->profile, err));
        s->has_profile = true;
        PI_TRY(pi_artifact_check_model(&s->profile.file, s->model_path, &s->lineage, NULL, err));
    }
    free(path);
    path = NULL;
    if (s->opt->mode != PI_MODE_PREDICTED)
        return PI_OK;
    PI_TRY(pi_path_find_artifact(s->opt->predictor, s->model_path, "predictor", &path, err));
    if (path != NULL) {
        PI_TRY(pi_predictor_load(path, &s->predictor, err));
        s->has_predictor = true;
        PI_TRY(pi_artifact_check_model(&s->predictor.file, s->model_path, &s->lineage, NULL, err));
    }
    if (s->opt->mode_given && !s->has_predictor)
        PI_FAIL(err, PI_E_MISMATCH,
                "--mode predicted needs a predictor; make one with: pi-train-predictor %s",
                s->model_path);
out:
    free(path);
    return rc;
}

static enum pi_code plan(struct session *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_place_options *o = s->opt;
    uint32_t n_ctx =
        s->shape.n_ctx_train < MAX_DEFAULT_CTX ? s->shape.n_ctx_train : MAX_DEFAULT_CTX;

    s->in = (struct pi_plan_input){.model = &s->model,
                                   .shape = &s->shape,
                                   .profile = s->has_profile ? &s->profile : NULL,
                                   .predictor = s->has_predictor ? &s->predictor : NULL,
                                   .hw = &s->hw,
                                   .budget = o->budget,
                                   .objective = (enum pi_objective)o->objective,
                                   .mode = (enum pi_mode)o->mode};
    s->in.run.n_ctx = o->n_ctx > 0 ? o->n_ctx : n_ctx;
    s->in.run.n_seq = o->n_seq;
    s->in.run.n_batch = o->n_batch;
    s->in.run.kv_type = o->kv == 0 ? PI_TYPE_F16 : PI_TYPE_F32;
    if (s->shape.learned_pos && s->in.run.n_ctx > s->shape.n_ctx_train)
        PI_FAIL(err, PI_E_RANGE, "-c %u: the model's position table ends at %u", s->in.run.n_ctx,
                s->shape.n_ctx_train);
    PI_TRY(pi_plan_make(&s->in, &s->plan, err));
    s->plan.place.lineage = s->lineage;
    s->plan.place.fingerprint = s->fingerprint;
out:
    return rc;
}

/* What the user may not expect of a placement that was made. */
static void notices(const struct session *s, const char *path)
{
    if (s->opt->budget > 0 && s->hw.n_gpus > 1)
        pi_notice(s->prog, s->common, "the machine has %u GPUs; the placement uses the first, %s",
                  s->hw.n_gpus, s->hw.gpus[0].name);
    if (s->opt->budget > 0 && pi_shape_gpu_lacks(&s->shape) != NULL)
        pi_notice(s->prog, s->common,
                  "no GPU kernel for %s, which architecture %s has: pi-run will use the CPU alone",
                  pi_shape_gpu_lacks(&s->shape), pi_arch_name(s->shape.arch));
    if (s->plan.above_memory)
        pi_notice(s->prog, s->common,
                  "the budget is more than the GPU's memory (%.0f bytes), which is used instead",
                  s->hw.gpus[0].memory);
    if (!s->has_profile && pi_activation_has_zeros(s->shape.act))
        pi_notice(
            s->prog, s->common,
            "no profile: speeds are for every neuron firing (make one: pi-profile %s --data FILE)",
            s->model_path);
    pi_notice(s->prog, s->common, "wrote %s", path);
}

/* Reports go to stdout, unless that belongs to the JSON object. */
static enum pi_code report(const struct session *s, const char *path, struct pi_err *err)
{
    FILE *people = s->opt->json ? stderr : stdout;

    if (s->opt->explain)
        pi_plan_explain(&s->plan, people);
    else if (!s->common->quiet)
        (void)fprintf(people, "machine    %s\n", s->plan.place.hardware);
    if (!s->common->quiet)
        pi_plan_summary(&s->plan, people);
    notices(s, path);
    return s->opt->json ? pi_plan_json(&s->plan, stdout, err) : PI_OK;
}

static enum pi_code check_output(const struct session *s, const char *path, struct pi_err *err)
{
    const char *const inputs[] = {s->model_path, s->has_profile ? s->profile.file.map.path : NULL,
                                  s->has_predictor ? s->predictor.file.map.path : NULL,
                                  s->opt->hardware != NULL ? s->opt->hardware : HARDWARE_FILE};
    enum pi_code rc = PI_OK;

    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        PI_TRY(pi_out_check_input(path, inputs[i], err));
        PI_TRY(pi_out_check_input(s->opt->report, inputs[i], err));
    }
    if (s->opt->report != NULL) {
        if (strcmp(s->opt->report, "-") == 0 || strcmp(s->opt->report, path) == 0 ||
            pi_file_same(s->opt->report, path))
            PI_FAIL(err, PI_E_USAGE, "--report %s: must be a file of its own", s->opt->report);
        PI_TRY(pi_out_probe(s->opt->report, err));
    }
out:
    return rc;
}

static enum pi_code place_model(struct session *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = NULL;

    path = pi_path_or_artifact(s->opt->output, s->model_path, "placement", err);
    if (path == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    PI_TRY(open_model(s, err));
    PI_TRY(find_artifacts(s, err));
    PI_TRY(check_output(s, path, err));
    PI_TRY(find_hardware(s, err));
    PI_TRY(plan(s, err));
    PI_TRY(pi_placement_save(path, &s->plan.place, err));
    if (s->opt->report != NULL) {
        PI_TRY(pi_place_report_write(&s->in, &s->plan, pi_progress_wanted(s->common->quiet),
                                     s->opt->report, err));
        pi_notice(s->prog, s->common, "wrote %s", s->opt->report);
    }
    PI_TRY(report(s, path, err));
out:
    free(path);
    return rc;
}

static void notice_machine(const struct session *s)
{
    const struct pi_hw_cpu *cpu = &s->hw.cpu;

    pi_notice(s->prog, s->common, "wrote %s: %s, %u threads, %.1f GB/s; %u GPU%s", s->opt->probe,
              cpu->name, cpu->threads, cpu->bandwidth / 1e9, s->hw.n_gpus,
              s->hw.n_gpus == 1 ? "" : "s");
    for (uint32_t i = 0; i < s->hw.n_gpus; i++) {
        const struct pi_hw_gpu *g = &s->hw.gpus[i];

        pi_notice(
            s->prog, s->common,
            "GPU %u: %s, %.1f GB, %.0f GB/s, PCIe %.1f GB/s, %.1f us a hand-over, context %.0f MB",
            i, g->name, g->memory / 1e9, g->bandwidth / 1e9, g->pcie / 1e9, g->sync * 1e6,
            g->context_bytes / 1e6);
    }
}

enum pi_code pi_place(const struct pi_program *prog, const struct pi_common_opts *common,
                      const char *model_path, const struct pi_place_options *opt,
                      struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct session s = {.prog = prog, .common = common, .opt = opt, .model_path = model_path};

    if (model_path == NULL && opt->probe == NULL)
        PI_FAIL(err, PI_E_USAGE, "which model? usage: %s %s", prog->name, prog->synopsis);
    if (model_path != NULL && !opt->budget_given)
        PI_FAIL(
            err, PI_E_USAGE,
            "--vram-budget is missing: bytes of VRAM the run may use, as in 8G; 0G for the CPU alone");
    if (opt->probe != NULL) {
        PI_TRY(pi_out_check_input(opt->probe, model_path, err));
        PI_TRY(probe(&s, err));
        PI_TRY(pi_hardware_save(opt->probe, &s.hw, err));
        notice_machine(&s);
    }
    if (model_path != NULL)
        PI_TRY(place_model(&s, err));
out:
    pi_plan_free(&s.plan);
    if (s.has_profile)
        pi_profile_free(&s.profile);
    if (s.has_predictor)
        pi_predictor_free(&s.predictor);
    pi_gguf_close(&s.model);
    return rc;
}
