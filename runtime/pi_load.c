#include "config.h"

#include "runtime/pi_load_int.h"

#include "common/pi_profile.h"
#include "common/pi_progress.h"
#include "runtime/pi_bench.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_resident.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CTX    4096u
#define DEFAULT_WINDOW 512u

/* The profile is not used here, but one of another model is a sign that the files got mixed up. Its data, which may be
 * gigabytes of samples, is not read. */
static enum pi_code check_profile(const struct pi_run_options *o, struct pi_loaded *l,
                                  bool *there_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf g = {0};
    char *path = NULL;

    PI_TRY(pi_path_find_artifact(o->profile, o->model, "profile", &path, err));
    *there_out = path != NULL;
    if (path == NULL)
        goto out;
    PI_TRY(pi_gguf_open(path, 0, &g, err));
    PI_TRY(pi_artifact_check_kind(&g, PI_ARTIFACT_PROFILE, PI_PROFILE_VERSION, err));
    PI_TRY(pi_artifact_check_model(&g, o->model, &l->model.lineage, NULL, err));
out:
    pi_gguf_close(&g);
    free(path);
    return rc;
}

static enum pi_code load_predictor(const struct pi_run_options *o, struct pi_loaded *l,
                                   struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = NULL;

    PI_TRY(pi_path_find_artifact(o->predictor, o->model, "predictor", &path, err));
    if (path == NULL)
        goto out;
    PI_TRY(pi_predictor_load(path, &l->pred, err));
    l->has_pred = true;
    PI_TRY(pi_artifact_check_model(&l->pred.file, o->model, &l->model.lineage, NULL, err));
out:
    free(path);
    return rc;
}

/* What stands between this model and predicted mode, and the command for it. */
static void say_missing(const struct pi_run_options *o, const struct pi_run_log *log,
                        const struct pi_loaded *l)
{
    const char *act = pi_activation_name(l->model.shape.act);

    if (o->mode_given && o->mode == PI_MODE_DENSE)
        return;
    if (!pi_activation_has_zeros(l->model.shape.act))
        pi_run_notice(
            log, "sparsity is off: the activation %s is never exactly zero; running dense", act);
    else if (!l->has_pred && !o->mode_given && l->has_profile)
        pi_run_notice(log, "no predictor: running %s; make one with: pi-train-predictor %s",
                      pi_mode_name(l->mode), o->model);
    else if (!l->has_pred && !o->mode_given)
        pi_run_notice(
            log,
            "no predictor: running %s; make one with: pi-profile %s --data FILE, then pi-train-predictor %s",
            pi_mode_name(l->mode), o->model, o->model);
}

/* After the predictor: a placement that is made before it would not use it. Without a GPU there is nothing to place. */
static void say_unplaced(const struct pi_run_options *o, const struct pi_run_log *log,
                         const struct pi_loaded *l)
{
    if (!l->has_place && !o->demo && o->device.kind == PI_DEVICE_AUTO &&
        !(o->vram_given && o->vram_budget == 0) && pi_gpu_count() > 0)
        pi_run_notice(
            log, "no placement: running on the CPU; make one with: pi-place %s --vram-budget SIZE",
            o->model);
}

/* Placements choose each layer's mode, by expected time. */
static void say_unused(const struct pi_run_options *o, const struct pi_run_log *log,
                       const struct pi_loaded *l)
{
    bool used = !l->has_place || l->mode != PI_MODE_PREDICTED || o->verify;

    for (uint32_t i = 0; !used && i < l->place.n_layer; i++)
        used = l->place.layers[i].mode_cpu == PI_MODE_PREDICTED ||
               l->place.layers[i].mode_gpu == PI_MODE_PREDICTED;
    if (!used)
        pi_run_notice(
            log,
            "the predictor is not used: the placement was made without it, or expects exact layers to be faster; place again after training: pi-place %s --vram-budget SIZE",
            o->model);
}

/* The mode of decode steps; loads the predictor where that needs one. */
static enum pi_code decide_mode(const struct pi_run_options *o, struct pi_loaded *l,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const bool zeros = pi_activation_has_zeros(l->model.shape.act);

    PI_TRY(check_profile(o, l, &l->has_profile, err));
    if (!o->mode_given || o->mode == PI_MODE_PREDICTED)
        PI_TRY(load_predictor(o, l, err));
    if (o->mode_given && o->mode == PI_MODE_PREDICTED && !l->has_pred) {
        rc = pi_err_set(
            err, PI_E_MISMATCH,
            "--mode predicted needs a predictor; make one with: %s%s%spi-train-predictor %s",
            l->has_profile ? "" : "pi-profile ", l->has_profile ? "" : o->model,
            l->has_profile ? "" : " --data FILE, then ", o->model);
        goto out;
    }
    l->mode = !zeros          ? PI_MODE_DENSE
              : o->mode_given ? (enum pi_mode)o->mode
              : l->has_pred   ? PI_MODE_PREDICTED
                              : PI_MODE_EXACT;
out:
    return rc;
}

static enum pi_code decide_context(const struct pi_run_options *o, const struct pi_run_log *log,
                                   struct pi_loaded *l, struct pi_err *err)
{
    const uint32_t train = l->model.shape.n_ctx_train;
    uint32_t n = train < DEFAULT_CTX ? train : DEFAULT_CTX;

    if (l->has_place && l->place.n_ctx < n)
        n = l->place.n_ctx;
    if (o->ctx_given) {
        n = o->n_ctx;
    } else if (o->perplexity != NULL && !o->window_given && n > DEFAULT_WINDOW) {
        n = DEFAULT_WINDOW; /* nothing longer will be fed */
    } else if (o->perplexity != NULL && o->window_given && o->window < n) {
        n = o->window;
    } else if (o->bench && pi_bench_positions(o) < n) {
        n = (uint32_t)pi_bench_positions(
            o); /* many sequences of all that it could be would fill the memory */
    }
    if (n > train && !l->model.shape.learned_pos)
        pi_run_notice(log, "the context of %u is longer than the %u the model was trained for",
                      (unsigned)n, (unsigned)train);
    if (o->window_given && o->window > n)
        return pi_err_set(err, PI_E_RANGE, "--window %u is more than the context of %u (-c)",
                          (unsigned)o->window, (unsigned)n);
    l->n_ctx = n;
    return PI_OK;
}

enum pi_code pi_load_model(const struct pi_run_options *o, const struct pi_run_log *log,
                           struct pi_loaded *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_model_options mo = {.hidden_act = o->hidden_act, .check_crc = !o->no_check};

    memset(out, 0, sizeof(*out));
    out->gpu = -1;
    PI_TRY(pi_model_open(o->model, &mo, &out->model, err));
    PI_TRY(pi_tokenizer_create(&out->model.file, &out->tok, err));
    PI_TRY(pi_load_device(o, log, out, err));
    PI_TRY(decide_mode(o, out, err));
    PI_TRY(decide_context(o, log, out, err));
out:
    return rc;
}

/* Sparse modes read the down projection by neuron. */
static enum pi_code transpose(const struct pi_run_log *log, const struct pi_run_options *o,
                              struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t bytes = 0;

    if (!l->model.has_down || (l->mode == PI_MODE_DENSE && !l->two_units && l->gpu < 0))
        return PI_OK;
    PI_TRY(pi_model_transpose_down(&l->model, &bytes, err));
    pi_run_notice(
        log,
        "transposed the down projections, %.1f MiB of RAM; avoid it with: pi-convert %s -o FILE%s",
        (double)bytes / 1048576.0, o->model,
        pi_activation_has_zeros(l->model.shape.act) ? "" : " --layout neuron");
out:
    return rc;
}

static enum pi_code make_pool(const struct pi_run_options *o, const struct pi_run_log *log,
                              struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t cores, n = o->n_threads;

    if (o->numa == PI_NUMA_ISOLATE && !pi_affinity_stay())
        pi_run_notice(log, "--numa isolate: the kernel does not let this process choose its CPUs");
    cores = pi_pool_usable_cores();
    if (n > cores)
        pi_run_notice(log,
                      "-t %u is more than the %u cores that may be used: expect it to be slower",
                      (unsigned)n, (unsigned)cores);
    if (n == 0 && l->gpu >= 0)
        n = pi_device_threads();
    PI_TRY(pi_pool_create(n, &l->pool, err));
    PI_TRY(pi_pool_bind(l->pool, (enum pi_numa)o->numa, !o->no_pin, err));
out:
    return rc;
}

/* --verbose: what runs, and how. */
static void describe(const struct pi_run_options *o, const struct pi_run_log *log,
                     const struct pi_loaded *l)
{
    const struct pi_shape *s = &l->model.shape;
    const struct pi_pool_place place = pi_pool_place(l->pool);
    uint32_t in[3] = {0}; /* layers per mode */

    if (!log->common.verbose)
        return;
    for (uint32_t i = 0; i < s->n_layer; i++)
        in[pi_engine_layer_mode(l->engine, i)]++;
    pi_run_notice(log, "%s, %u layers of %u neurons, %s, %.1f MiB", pi_arch_name(s->arch),
                  (unsigned)s->n_layer, (unsigned)s->n_ff, pi_activation_name(s->act),
                  (double)l->model.file.map.size / 1048576.0);
    pi_run_notice(
        log,
        "context %u, KV %s, activations %s, %u threads, %s; layers dense %u, exact %u, predicted %u",
        (unsigned)l->n_ctx, o->kv == 1 ? "F32" : "F16", pi_act_type_name(l->act),
        (unsigned)pi_pool_size(l->pool),
        l->gpu >= 0    ? "GPU and CPU"
        : l->two_units ? "two units"
                       : "one unit",
        (unsigned)in[PI_MODE_DENSE], (unsigned)in[PI_MODE_EXACT], (unsigned)in[PI_MODE_PREDICTED]);
    if (place.own_cores || place.n_nodes > 1)
        pi_run_notice(log, "threads: %s, on %u memory node%s",
                      place.own_cores ? "a core each" : "not held to cores",
                      (unsigned)place.n_nodes, place.n_nodes == 1 ? "" : "s");
}

static void lock_file(const struct pi_run_log *log, const struct pi_gguf *g)
{
    const uint64_t limit = pi_resident_lock_limit();
    const int e = pi_resident_lock(g);

    if (e != 0 && limit != UINT64_MAX)
        pi_run_notice(
            log,
            "--mlock: cannot lock %.1f MiB of %s in memory: %s; the limit is %.1f MiB (ulimit -l)",
            (double)g->map.size / 1048576.0, g->map.path, strerror(e), (double)limit / 1048576.0);
    else if (e != 0)
        pi_run_notice(log, "--mlock: cannot lock %.1f MiB of %s in memory: %s",
                      (double)g->map.size / 1048576.0, g->map.path, strerror(e));
}

/* Weights that the CPU reads come into memory now, not in the first steps. */
static enum pi_code make_resident(const struct pi_run_options *o, const struct pi_run_log *log,
                                  struct pi_loaded *l, struct pi_predictor *pred,
                                  struct pi_err *err)
{
    const bool progress = pi_progress_wanted(log->common.quiet);
    enum pi_code rc = PI_OK;

    if (o->no_mmap) {
        PI_TRY(pi_resident_copy(&l->model.file, l->pool, progress, err));
        if (pred != NULL)
            PI_TRY(pi_resident_copy(&pred->file, l->pool, progress, err));
    } else if (l->gpu < 0) {
        PI_TRY(pi_resident_touch(&l->model.file, l->pool, progress, err));
        if (pred != NULL)
            PI_TRY(pi_resident_touch(&pred->file, l->pool, progress, err));
    }
    if (o->mlock) {
        lock_file(log, &l->model.file);
        if (pred != NULL)
            lock_file(log, &pred->file);
    }
out:
    return rc;
}

/* Does the CPU compute nothing? */
static bool all_on_gpu(const struct pi_loaded *l)
{
    bool all = l->gpu >= 0 && l->place.output_unit != PI_UNIT_CPU;

    for (uint32_t i = 0; all && i < l->model.shape.n_layer; i++)
        all = l->place.layers[i].attn_unit != PI_UNIT_CPU &&
              l->place.layers[i].n_hot == l->model.shape.n_ff;
    return all;
}

/* Integer products make the CPU faster at quantised matrices, not a GPU. */
static enum pi_act_type choose_act(const struct pi_run_options *o, const struct pi_loaded *l)
{
    if (!pi_model_is_quantised(&l->model))
        return PI_ACT_TYPE_F32;
    if (o->act_given)
        return o->act == 1 ? PI_ACT_TYPE_Q8 : PI_ACT_TYPE_F32;
    return all_on_gpu(l) ? PI_ACT_TYPE_F32 : PI_ACT_TYPE_Q8;
}

enum pi_code pi_load_engine(const struct pi_run_options *o, const struct pi_run_log *log,
                            struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_engine_options eo = {
        .mode = l->mode,
        .n_ctx = l->n_ctx,
        .n_seq = o->n_parallel,
        .kv_type = o->kv == 1 ? PI_TYPE_F32 : PI_TYPE_F16,
        .two_units = l->two_units,
        .on_gpu = l->gpu >= 0,
        .gpu = l->gpu < 0 ? 0 : l->gpu,
        /* a CPU tells a sequence the same in any company */
        .step_width = o->one_by_one && l->gpu >= 0 ? 1 : o->step_width,
        .choose_width = o->step_width == 0 && o->n_parallel > 1,
        .f32_gemm = o->kv == 1,
        .force_predicted = o->verify && l->mode == PI_MODE_PREDICTED,
    };
    struct pi_predictor *pred = l->mode == PI_MODE_PREDICTED ? &l->pred : NULL;

    PI_TRY(pi_load_fit(o, log, l, pred, eo.kv_type, err));
    if (l->gpu >= 0) {
        eo.n_batch = l->place.n_batch;
        eo.vram_budget = l->place.budget;
    }
    eo.act = l->act = choose_act(o, l);
    PI_TRY(transpose(log, o, l, err));
    PI_TRY(make_pool(o, log, l, err));
    PI_TRY(make_resident(o, log, l, pred, err));
    PI_TRY(pi_engine_create(&l->model, pred, l->two_units || l->gpu >= 0 ? &l->place : NULL,
                            l->pool, &eo, &l->engine, err));
    if (o->verify) {
        eo.mode = PI_MODE_DENSE;
        eo.act = PI_ACT_TYPE_F32;
        eo.two_units = eo.on_gpu = eo.force_predicted = false;
        PI_TRY(pi_engine_create(&l->model, NULL, NULL, l->pool, &eo, &l->dense, err));
    }
    if (pi_blas_warning() != NULL)
        pi_run_notice(log, "%s", pi_blas_warning());
    say_missing(o, log, l);
    say_unplaced(o, log, l);
    say_unused(o, log, l);
    if (o->act_given && o->act == 1 && l->act != PI_ACT_TYPE_Q8)
        pi_run_notice(log, "--act q8 has no effect: no matrix of %s is quantised", o->model);
    describe(o, log, l);
out:
    return rc;
}

void pi_load_free(struct pi_loaded *l)
{
    pi_engine_destroy(l->dense);
    pi_engine_destroy(l->engine);
    pi_pool_destroy(l->pool);
    pi_tokenizer_destroy(l->tok);
    pi_predictor_free(&l->pred);
    pi_placement_free(&l->place);
    pi_model_close(&l->model);
    memset(l, 0, sizeof(*l));
}
