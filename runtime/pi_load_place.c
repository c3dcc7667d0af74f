/* pi_load_place.c - where a run happens: placement, device, budget. */
#include "config.h"

#include "runtime/pi_load_int.h"

#include "common/pi_estimate.h"
#include "common/pi_file.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_gpu_form.h"
#include "runtime/pi_place_fit.h"
#include "runtime/pi_place_gpu.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_BATCH 512u
#define MIN_BATCH     8u /* tokens of a prompt chunk that pi-place does not go below */

/* ---- which placement, which device ---- */

static enum pi_code load_placement(const char *path, const struct pi_run_options *o,
                                   struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_placement_load(path, &l->place, err));
    l->has_place = true;
    PI_TRY(pi_placement_check_model(&l->place, path, o->model, &l->model.lineage,
                                    &l->model.fingerprint, err));
    if (l->place.n_layer != l->model.shape.n_layer || l->place.n_ff != l->model.shape.n_ff)
        PI_FAIL(err, PI_E_MISMATCH, "%s: %u layers of %u neurons, the model has %u of %u", path,
                (unsigned)l->place.n_layer, (unsigned)l->place.n_ff,
                (unsigned)l->model.shape.n_layer, (unsigned)l->model.shape.n_ff);
out:
    return rc;
}

/* What was asked for must fit what the placement was made for. */
static enum pi_code check_placement(const struct pi_run_options *o, const struct pi_loaded *l,
                                    struct pi_err *err)
{
    const struct pi_placement *p = &l->place;
    char made[32], asked[32];

    pi_format_bytes(p->budget, made, sizeof(made));
    pi_format_bytes(o->vram_budget, asked, sizeof(asked));
    if (o->vram_given && o->vram_budget > p->budget)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "--vram-budget %s is more than the %s the placement was made for; run: pi-place %s --vram-budget %s",
            asked, made, o->model, asked);
    if (o->ctx_given && o->n_ctx > p->n_ctx)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "-c %u is more than the %u the placement was made for; run: pi-place %s --vram-budget %s -c %u (or use --device cpu)",
            (unsigned)o->n_ctx, (unsigned)p->n_ctx, o->model, made, (unsigned)o->n_ctx);
    if (o->parallel_given && o->n_parallel > p->n_seq)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "--parallel %u is more than the %u the placement was made for; run: pi-place %s --vram-budget %s --parallel %u (or use --device cpu)",
            (unsigned)o->n_parallel, (unsigned)p->n_seq, o->model, made, (unsigned)o->n_parallel);
    if (o->kv == 1 && p->kv_type != PI_TYPE_F32)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "--kv f32 is more than the f16 the placement was made for; run: pi-place %s --vram-budget %s --kv f32",
            o->model, made);
    return PI_OK;
}

static uint64_t count_hot(const struct pi_placement *p)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < p->n_layer; i++)
        n += p->layers[i].n_hot;
    return n;
}

/* A placement is there: does its GPU part run, and where. */
static enum pi_code choose_gpu(const struct pi_run_options *o, const struct pi_run_log *log,
                               struct pi_loaded *l, struct pi_err *err)
{
    char made[32];

    if (l->place.n_units < 2) {
        if (o->device.kind == PI_DEVICE_GPU)
            pi_run_notice(
                log,
                "the placement puts nothing on a GPU: running on the CPU; make another one with: pi-place %s --vram-budget SIZE",
                o->model);
        return PI_OK;
    }
    if (o->device.kind == PI_DEVICE_AUTO && pi_gpu_count() == 0) {
        pi_run_notice(
            log, "the placement puts %llu neurons on a GPU, but none is there: running on the CPU",
            (unsigned long long)count_hot(&l->place));
        return PI_OK;
    }
    pi_format_bytes(l->place.budget, made, sizeof(made));
    if (l->place.n_units > 2)
        return pi_err_set(
            err, PI_E_UNSUPPORTED,
            "the placement is for %u GPUs, this version runs one; run pi-place %s --vram-budget %s with a hardware.yaml of one GPU (or use --device cpu)",
            (unsigned)l->place.n_units - 1, o->model, made);
    l->gpu = o->device.gpu;
    return PI_OK;
}

/* A form without GPU kernels: the CPU has it, unless the GPU was asked for by name. */
static enum pi_code check_form(const struct pi_run_options *o, const struct pi_run_log *log,
                               struct pi_loaded *l, struct pi_err *err)
{
    const char *form = pi_gpu_form_lacks(&l->model);

    if (l->gpu < 0 || form == NULL)
        return PI_OK;
    if (o->device.kind == PI_DEVICE_GPU)
        return pi_gpu_form_check(&l->model, err);
    pi_run_notice(log, "no GPU kernel for %s, which architecture %s has: running on the CPU", form,
                  pi_arch_name(l->model.shape.arch));
    l->gpu = -1;
    return PI_OK;
}

enum pi_code pi_load_device(const struct pi_run_options *o, const struct pi_run_log *log,
                            struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const enum pi_device_kind kind = o->device.kind;
    char *path = NULL;

    PI_TRY(pi_device_check(&o->device, err));
    /* A budget of nothing is the CPU alone, whatever was placed. */
    if (kind == PI_DEVICE_CPU ||
        (kind != PI_DEVICE_TWO_CPU && o->vram_given && o->vram_budget == 0))
        goto out;
    PI_TRY(pi_path_find_artifact(o->placement, o->model, "placement", &path, err));
    if (path != NULL) {
        PI_TRY(load_placement(path, o, l, err));
        PI_TRY(check_placement(o, l, err));
    }
    l->two_units = kind == PI_DEVICE_TWO_CPU;
    if (l->has_place && !l->two_units) {
        PI_TRY(choose_gpu(o, log, l, err));
    } else if (!l->has_place && kind == PI_DEVICE_GPU) {
        l->gpu = o->device.gpu;
        l->all_gpu = true;
    } else if (!l->has_place && (l->two_units || o->vram_given)) {
        PI_FAIL(err, PI_E_MISMATCH,
                "%s needs a placement; make one with: pi-place %s --vram-budget SIZE",
                l->two_units ? "--device cpu+cpu" : "--vram-budget", o->model);
    }
    PI_TRY(check_form(o, log, l, err));
out:
    free(path);
    return rc;
}

/* ---- budget ---- */

/* With --verify every layer that has a predictor runs predicted: its rows count. */
static void force_predicted(struct pi_placement *p, const struct pi_predictor *pred)
{
    for (uint32_t i = 0; i < p->n_layer; i++)
        if (pred->layers[i].width > 0)
            p->layers[i].mode_cpu = p->layers[i].mode_gpu = PI_MODE_PREDICTED;
}

/* Where the budget does not even hold context and buffers: the smallest with which a part of the model could be placed. */
static enum pi_code check_least(const struct pi_run_options *o, const struct pi_loaded *l,
                                const struct pi_predictor *pred, enum pi_type kv,
                                uint64_t context_bytes, uint64_t budget, struct pi_err *err)
{
    const struct pi_run_size run = {.n_ctx = l->n_ctx,
                                    .n_seq = o->n_parallel,
                                    .n_batch = l->n_ctx < MIN_BATCH ? l->n_ctx : MIN_BATCH,
                                    .kv_type = kv};
    struct pi_model_bytes b = {0};
    struct pi_gpu_budget base;
    char least[32], have[32];
    enum pi_code rc;

    PI_TRY(pi_estimate_model(&l->model.file, &l->model.shape, pred, &run, &b, err));
    PI_TRY(pi_estimate_gpu_base(&b, context_bytes, true, &base, err));
    pi_format_bytes(base.total, least, sizeof(least));
    pi_format_bytes(budget, have, sizeof(have));
    if (base.total > budget)
        PI_FAIL(
            err, PI_E_INFEASIBLE,
            "%s %s does not even hold the GPU's context and buffers of %u positions: the smallest that works is %s, with a placement: pi-place %s -c %u --vram-budget %s",
            o->vram_given ? "--vram-budget" : "a GPU with a usable", have, (unsigned)l->n_ctx,
            least, o->model, (unsigned)l->n_ctx, least);
out:
    pi_model_bytes_free(&b);
    return rc;
}

/* No placement, but a GPU was asked for: everything goes there, or nothing runs. */
static enum pi_code place_all(const struct pi_run_options *o, const struct pi_run_log *log,
                              struct pi_loaded *l, const struct pi_predictor *pred, enum pi_type kv,
                              const struct pi_device_room *room, struct pi_err *err)
{
    enum pi_code rc;
    const uint64_t there = room->context_bytes + room->free_bytes;
    const uint64_t usable = there - there / PI_DEVICE_SPARE;
    const bool tight = o->vram_given && o->vram_budget < usable;
    const uint64_t budget = tight ? o->vram_budget : usable >> 20 << 20;
    uint64_t bytes;
    char need[32], have[32];

    PI_TRY(pi_place_all(&l->model, pred, l->n_ctx,
                        l->n_ctx < DEFAULT_BATCH ? l->n_ctx : DEFAULT_BATCH, kv, &l->place, err));
    l->place.n_seq = o->n_parallel;
    l->has_place = true;
    PI_TRY(pi_place_need(&l->place, &l->model, pred, l->n_ctx, kv, &bytes, err));
    pi_format_bytes(((bytes + room->context_bytes) >> 20 << 20) + (1 << 20), need, sizeof(need));
    pi_format_bytes(budget, have, sizeof(have));
    if (budget < room->context_bytes || bytes > budget - room->context_bytes) {
        PI_TRY(check_least(o, l, pred, kv, room->context_bytes, budget, err));
        PI_FAIL(
            err, PI_E_MISMATCH,
            "--device %s without a placement: all of the model needs %s of GPU memory, %s %s; place a part of it with: pi-place %s --vram-budget %s",
            o->device.text, need, tight ? "the budget is" : "usable are", have, o->model, have);
    }
    l->place.budget = budget;
    pi_run_notice(log, "no placement: all of the model runs on GPU %d (%s)", l->gpu, room->name);
out:
    return rc;
}

/* Less may be free than the budget allows. */
static enum pi_code check_room(const struct pi_loaded *l, const struct pi_predictor *pred,
                               enum pi_type kv, const struct pi_device_room *room,
                               struct pi_err *err)
{
    enum pi_code rc;
    uint64_t bytes;
    char all[32];

    PI_TRY(pi_place_need(&l->place, &l->model, pred, l->n_ctx, kv, &bytes, err));
    if (bytes <= room->free_bytes)
        goto out;
    pi_format_bytes((room->context_bytes + room->free_bytes) >> 20 << 20, all, sizeof(all));
    PI_FAIL(
        err, PI_E_INFEASIBLE,
        "GPU %d (%s): the placement needs %.1f MiB beside the context, %.1f MiB are free; run with --vram-budget %s (or use --device cpu)",
        l->gpu, room->name, (double)bytes / 1048576.0, (double)room->free_bytes / 1048576.0, all);
out:
    return rc;
}

/* A smaller budget keeps a shorter prefix of each hot set; what a run leaves over is filled, but not beyond what is free. room: NULL without a GPU. */
static enum pi_code fit(const struct pi_run_options *o, struct pi_loaded *l,
                        const struct pi_predictor *pred, enum pi_type kv,
                        const struct pi_device_room *room, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t budget = o->vram_given ? o->vram_budget : l->place.budget, bytes;

    if (room != NULL) {
        PI_TRY(pi_place_need(&l->place, &l->model, pred, l->n_ctx, kv, &bytes, err));
        if (bytes <= room->free_bytes && budget > room->context_bytes + room->free_bytes)
            budget = room->context_bytes + room->free_bytes;
    }
    PI_TRY(pi_place_fit(&l->place, &l->model, pred, budget, room != NULL ? room->context_bytes : 0,
                        l->n_ctx, kv, err));
    if (room != NULL)
        PI_TRY(check_room(l, pred, kv, room, err));
out:
    return rc;
}

/* What fitting has made of so many hot neurons. */
static void say_fit(const struct pi_run_options *o, const struct pi_run_log *log,
                    const struct pi_loaded *l, uint64_t before)
{
    const uint64_t after = count_hot(&l->place);
    char text[32];

    pi_format_bytes(l->place.budget, text, sizeof(text));
    if (after < before)
        pi_run_notice(log, "the hot sets were cut from %llu to %llu neurons to fit %s %s",
                      (unsigned long long)before, (unsigned long long)after,
                      o->vram_given ? "--vram-budget" : "the placement's budget of", text);
    else if (after > before && log->common.verbose)
        pi_run_notice(log, "the hot sets grew from %llu to %llu neurons to fill %s",
                      (unsigned long long)before, (unsigned long long)after, text);
}

/* --verbose: what is on the GPU. */
static enum pi_code describe(const struct pi_run_log *log, struct pi_loaded *l,
                             const struct pi_predictor *pred, enum pi_type kv,
                             const struct pi_device_room *room, struct pi_err *err)
{
    enum pi_code rc;
    uint32_t attn = 0;
    uint64_t bytes;

    if (room->noted)
        pi_run_notice(
            log,
            "GPU %d: beside other processes a context can not be counted; taken for the %.1f MiB of the placement",
            l->gpu, (double)room->context_bytes / 1048576.0);
    PI_TRY(pi_place_need(&l->place, &l->model, pred, l->n_ctx, kv, &bytes, err));
    for (uint32_t i = 0; i < l->place.n_layer; i++)
        attn += l->place.layers[i].attn_unit != PI_UNIT_CPU;
    pi_run_notice(
        log,
        "GPU %d (%s): %llu of %llu neurons, attention of %u of %u layers, %s there; %.1f MiB and %.1f MiB of context, budget %.1f MiB",
        l->gpu, room->name, (unsigned long long)count_hot(&l->place),
        (unsigned long long)l->place.n_layer * l->place.n_ff, attn, (unsigned)l->place.n_layer,
        l->place.output_unit != PI_UNIT_CPU ? "output" : "no output", (double)bytes / 1048576.0,
        (double)room->context_bytes / 1048576.0, (double)l->place.budget / 1048576.0);
out:
    return rc;
}

enum pi_code pi_load_fit(const struct pi_run_options *o, const struct pi_run_log *log,
                         struct pi_loaded *l, const struct pi_predictor *pred, enum pi_type kv,
                         struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_device_room room = {0};
    const uint64_t before = l->has_place ? count_hot(&l->place) : 0;

    if (!l->has_place && !l->all_gpu)
        return PI_OK;
    if (o->verify && pred != NULL && l->has_place)
        force_predicted(&l->place, pred);
    if (l->gpu < 0 && !o->vram_given)
        return PI_OK;
    if (l->gpu >= 0)
        PI_TRY(pi_device_look(l->gpu, l->has_place ? l->place.context_bytes : 0, &room, err));
    if (l->gpu >= 0 && l->has_place) /* what it was made for may be more than what is run */
        l->place.n_seq = o->n_parallel;
    if (l->all_gpu) {
        PI_TRY(place_all(o, log, l, pred, kv, &room, err));
    } else {
        PI_TRY(fit(o, l, pred, kv, l->gpu >= 0 ? &room : NULL, err));
        say_fit(o, log, l, before);
    }
    if (l->gpu >= 0 && log->common.verbose)
        PI_TRY(describe(log, l, pred, kv, &room, err));
out:
    return rc;
}
