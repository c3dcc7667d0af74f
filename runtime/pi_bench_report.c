/* pi_bench_report.c - what --bench prints: figures of the run, the machine's bandwidths, the floor. */
#include "config.h"

#include "runtime/pi_bench.h"

#include "common/pi_alloc.h"
#include "common/pi_bandwidth.h"
#include "common/pi_file.h"
#include "common/pi_hardware.h"
#include "runtime/pi_floor.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HARDWARE_FILE "hardware.yaml"
#define MEASURE       0.3 /* seconds of reading for a bandwidth of the CPU */

struct machine {
    const char *source; /* a file, or "measured" */
    double cpu, gpu;    /* read bandwidth, bytes/s, the CPU's of scattered rows; 0: not known */
    double sequential;  /* the CPU's, of everything in its order: always measured in this run */
    double pcie;        /* of pinned copies to the GPU, likewise */
};

/* All that is printed. */
struct report {
    const struct pi_run_options *o;
    const struct pi_loaded *l;
    const struct pi_bench_figures *f;
    char name[160]; /* the model's own */
    char device[96];
    struct machine machine;
    bool has_floor;
    struct pi_floor floor;
};

/* ---- machine and floor ---- */

/* What no file tells is measured, after the run: it has the machine to itself then, too. */
static enum pi_code measure(struct pi_loaded *l, const struct pi_run_log *log, struct machine *m,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gpu_speed speed;
    struct pi_err why = {0};

    m->source = "measured";
    PI_TRY(pi_bandwidth_gather(l->pool, MEASURE, &m->cpu, err));
    if (l->gpu < 0)
        return PI_OK;
    if (pi_gpu_measure(l->gpu, &speed, &why) != PI_OK) {
        pi_run_notice(log, "the GPU's bandwidth could not be measured: %s", why.msg);
        return PI_OK;
    }
    m->gpu = speed.bandwidth;
    m->pcie = speed.pcie;
out:
    return rc;
}

static enum pi_code find_machine(const struct pi_run_options *o, const struct pi_run_log *log,
                                 struct pi_loaded *l, struct machine *m, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const bool there = access(HARDWARE_FILE, F_OK) == 0;
    struct pi_hardware hw;

    if (o->hardware == NULL && !there)
        return measure(l, log, m, err);
    m->source = o->hardware != NULL ? o->hardware : HARDWARE_FILE;
    PI_TRY(pi_hardware_load(m->source, &hw, err));
    m->cpu = hw.cpu.bandwidth;
    if (l->gpu >= 0 && (uint32_t)l->gpu < hw.n_gpus) {
        m->gpu = hw.gpus[l->gpu].bandwidth;
        m->pcie = hw.gpus[l->gpu].pcie;
    } else if (l->gpu >= 0)
        pi_run_notice(log, "%s has no GPU %d: there is no floor to compare with", m->source,
                      l->gpu);
out:
    return rc;
}

/* The placement in use, on a GPU or on two units of the CPU. */
static const struct pi_placement *place_of(const struct pi_loaded *l)
{
    return l->gpu >= 0 || l->two_units ? &l->place : NULL;
}

static void layer_modes(const struct pi_loaded *l, enum pi_mode *mode)
{
    const struct pi_placement *p = place_of(l);

    for (uint32_t i = 0; i < l->model.shape.n_layer; i++)
        mode[i] = l->mode == PI_MODE_PREDICTED && p != NULL && p->layers[i].n_hot > 0
                      ? PI_MODE_PREDICTED /* of each unit, says the placement */
                      : pi_engine_layer_mode(l->engine, i);
}

static enum pi_code compute_floor(const struct pi_run_options *o, const struct pi_loaded *l,
                                  const struct pi_profile *profile, const struct machine *m,
                                  struct pi_floor *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_run_size run = {.n_ctx = l->n_ctx,
                                    .n_seq = o->n_parallel,
                                    .n_batch = 1,
                                    .kv_type = o->kv == 1 ? PI_TYPE_F32 : PI_TYPE_F16};
    struct pi_model_bytes bytes = {0};
    enum pi_mode *mode = NULL;
    struct pi_floor_in in = {.bytes = &bytes,
                             .place = place_of(l),
                             .profile = profile,
                             .n_seq = o->n_parallel,
                             .cpu_bandwidth = m->cpu,
                             .gpu_bandwidth = l->gpu >= 0 ? m->gpu : m->cpu};

    PI_TRY(pi_estimate_model(&l->model.file, &l->model.shape,
                             l->mode == PI_MODE_PREDICTED ? &l->pred : NULL, &run, &bytes, err));
    PI_ALLOC(mode, l->model.shape.n_layer, err);
    layer_modes(l, mode);
    in.mode = mode;
    PI_TRY(pi_floor(&in, out, err));
out:
    free(mode);
    pi_model_bytes_free(&bytes);
    return rc;
}

static enum pi_code find_floor(struct report *r, const struct pi_run_log *log, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const bool sparse = r->l->mode != PI_MODE_DENSE;
    struct pi_profile profile = {0};
    char *path = NULL;

    if (r->l->gpu >= 0 && r->machine.gpu <= 0)
        return PI_OK;
    if (sparse)
        PI_TRY(pi_path_find_artifact(r->o->profile, r->o->model, "profile", &path, err));
    if (sparse && path == NULL) {
        pi_run_notice(
            log,
            "no profile: there is no floor to compare with; make one with: pi-profile %s --data FILE",
            r->o->model);
        return PI_OK;
    }
    if (path != NULL)
        PI_TRY(pi_profile_load(path, &profile, err));
    PI_TRY(compute_floor(r->o, r->l, path != NULL ? &profile : NULL, &r->machine, &r->floor, err));
    r->has_floor = true;
out:
    pi_profile_free(&profile);
    free(path);
    return rc;
}

/* ---- figures ---- */

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double per_step(const struct report *r, double x)
{
    return ratio(x, r->f->n_steps);
}

/* Nearest rank; milliseconds. */
static double percentile(const struct report *r, double share)
{
    const double rank = ceil(share * r->f->n_steps);
    const uint32_t i = rank < 1 ? 0 : (uint32_t)rank - 1;

    return 1e3 * r->f->step_seconds[i];
}

static double decoded(const struct report *r)
{
    return (double)r->f->n_steps * r->o->n_parallel;
}

static double gpu_busy(const struct report *r)
{
    const double x = r->f->timing.seconds_gpu - r->f->timing.seconds_handover;

    return x > 0 ? x : 0;
}

static double cpu_rate(const struct report *r)
{
    return ratio((double)r->f->timing.bytes_cpu_once, r->f->timing.seconds_cpu_busy);
}

static double gpu_rate(const struct report *r)
{
    return ratio((double)r->f->timing.bytes_gpu, gpu_busy(r));
}

static double floor_share(const struct report *r)
{
    return ratio(r->floor.seconds, per_step(r, r->f->decode_seconds));
}

/* A number, or null where it is not known. */
static json_t *known(double x, bool there)
{
    return there ? pi_json_number(x) : json_null();
}

static json_t *json_run(const struct report *r)
{
    const struct pi_loaded *l = r->l;

    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:i, s:i, s:i, s:i, s:i, s:s, s:I, s:f}",
                     "model", r->name, "device", r->device, "mode", pi_mode_name(l->mode), "act",
                     pi_act_type_name(l->act), "threads", (int)pi_pool_size(l->pool), "vram_budget",
                     l->gpu >= 0 ? json_integer((json_int_t)l->place.budget) : json_null(),
                     "context", (int)l->n_ctx, "parallel", (int)r->o->n_parallel, "prompt",
                     (int)r->o->bench_prompt, "steps", (int)r->f->n_steps, "step_sequences",
                     (int)r->f->at_once, "tokens", r->o->bench_random ? "random" : "drawn", "seed",
                     (json_int_t)r->o->sampler.seed, "load_seconds", r->f->load_seconds);
}

static json_t *json_speed(const struct report *r)
{
    const struct pi_bench_figures *f = r->f;

    return json_pack(
        "{s:o, s:f, s:f, s:{s:f, s:f, s:f, s:f, s:f, s:f}}", "prompt_tokens_per_second",
        known(ratio((double)f->n_prompt, f->prompt_seconds), f->n_prompt > 0), "tokens_per_second",
        ratio(decoded(r), f->decode_seconds), "tokens_per_second_with_drawing",
        ratio(decoded(r), f->decode_seconds + f->sampling_seconds), "step_ms", "mean",
        1e3 * per_step(r, f->decode_seconds), "median", percentile(r, 0.5), "p95",
        percentile(r, 0.95), "p99", percentile(r, 0.99), "least", percentile(r, 0), "most",
        percentile(r, 1));
}

static json_t *json_parts(const struct report *r)
{
    const struct pi_engine_timing *t = &r->f->timing;
    const struct pi_engine_stats *n = &r->f->stats;
    const bool gpu = r->l->gpu >= 0, one = r->o->n_parallel == 1;

    return json_pack(
        "{s:o, s:{s:o, s:f, s:f, s:o}, s:{s:o, s:f}, s:{s:o, s:f}, s:{s:o, s:f}, s:{s:o, s:o}}",
        "neurons_on_gpu",
        known(ratio((double)n->neurons_gpu, (double)(n->neurons_gpu + n->neurons_cpu)),
              gpu || r->l->two_units),
        "parts_ms", "gpu_busy", known(1e3 * per_step(r, gpu_busy(r)), gpu), "cpu_busy",
        1e3 * per_step(r, t->seconds_cpu_busy), "cpu_waiting", 1e3 * per_step(r, t->seconds_wait),
        "handover", known(1e3 * per_step(r, t->seconds_handover), gpu), "bytes_per_step", "gpu",
        known(per_step(r, (double)t->bytes_gpu), gpu), "cpu", per_step(r, (double)t->bytes_cpu),
        "bytes_read_per_step", "gpu", known(per_step(r, (double)t->bytes_gpu), gpu && one), "cpu",
        per_step(r, (double)t->bytes_cpu_once), "bytes_per_second", "gpu",
        known(gpu_rate(r), gpu && one), "cpu", cpu_rate(r), "bandwidth_share", "gpu",
        known(ratio(gpu_rate(r), r->machine.gpu), gpu && one && r->machine.gpu > 0), "cpu",
        pi_json_number(ratio(cpu_rate(r), r->machine.cpu)));
}

/* What prompts streamed; the rate is that over everything between the first and the last copy. */
static json_t *json_streamed(const struct report *r)
{
    const struct pi_engine_timing *t = &r->f->prompts;
    const double bytes = (double)t->bytes_streamed, rate = ratio(bytes, t->seconds_streaming),
                 alone = ratio(bytes, t->seconds_copying);

    if (t->bytes_streamed == 0)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:o}", "streamed_bytes", bytes, "seconds",
                     t->seconds_streaming, "rate", rate, "copy_rate", alone, "pcie_share",
                     known(ratio(rate, r->machine.pcie), r->machine.pcie > 0), "copy_share",
                     known(ratio(alone, r->machine.pcie), r->machine.pcie > 0));
}

static json_t *json_floor(const struct report *r)
{
    const struct pi_floor *f = &r->floor;

    if (!r->has_floor)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "step_ms", 1e3 * f->seconds, "tokens_per_second",
                     r->o->n_parallel / f->seconds, "share", floor_share(r), "gpu_bytes",
                     f->bytes_gpu, "cpu_bytes", f->bytes_cpu);
}

static enum pi_code print_json(const struct report *r, struct pi_err *err)
{
    json_t *o = json_run(r), *speed = json_speed(r), *parts = json_parts(r);
    json_t *machine =
        json_pack("{s:{s:s, s:f, s:f, s:o, s:o}}", "bandwidth", "source", r->machine.source, "cpu",
                  r->machine.cpu, "cpu_sequential", r->machine.sequential, "gpu",
                  known(r->machine.gpu, r->machine.gpu > 0), "pcie",
                  known(r->machine.pcie, r->machine.pcie > 0));

    if (o != NULL &&
        (speed == NULL || parts == NULL || machine == NULL || json_object_update(o, speed) != 0 ||
         json_object_update(o, parts) != 0 || json_object_update(o, machine) != 0 ||
         json_object_set_new(o, "floor", json_floor(r)) != 0 ||
         json_object_set_new(o, "streaming", json_streamed(r)) != 0)) {
        json_decref(o);
        o = NULL;
    }
    json_decref(speed);
    json_decref(parts);
    json_decref(machine);
    return pi_json_print(o, err);
}

/* "1.23 GB a step, 45.6 GB/s while busy (78 % of its bandwidth)"; once: with rows that tokens share counted once, 0: not known, and no rate then. */
static void print_read(const struct report *r, const char *unit, double bytes, double once,
                       double rate, double bandwidth)
{
    printf("%s %.3f GB a step", unit, 1e-9 * per_step(r, once > 0 ? once : bytes));
    if (once > 0 && once < bytes)
        printf(" (%.3f for one sequence after the other)", 1e-9 * per_step(r, bytes));
    if (once > 0)
        printf(", %.1f GB/s while busy", 1e-9 * rate);
    if (once > 0 && bandwidth > 0)
        printf(" (%.0f %% of its bandwidth)", 100 * rate / bandwidth);
}

static void print_parts(const struct report *r)
{
    const struct pi_engine_timing *t = &r->f->timing;

    printf("of a step   ");
    if (r->l->gpu >= 0)
        printf("GPU busy %.3f ms, waiting at hand-overs %.3f; ", 1e3 * per_step(r, gpu_busy(r)),
               1e3 * per_step(r, t->seconds_handover));
    printf("CPU busy %.3f ms, waiting %.3f\nread        ", 1e3 * per_step(r, t->seconds_cpu_busy),
           1e3 * per_step(r, t->seconds_wait));
    if (r->l->gpu >= 0) {
        print_read(r, "GPU", (double)t->bytes_gpu, r->o->n_parallel == 1 ? (double)t->bytes_gpu : 0,
                   gpu_rate(r), r->machine.gpu);
        printf("; ");
    }
    print_read(r, "CPU", (double)t->bytes_cpu, (double)t->bytes_cpu_once, cpu_rate(r),
               r->machine.cpu);
    printf("\n");
}

static void print_streamed(const struct report *r)
{
    const struct pi_engine_timing *t = &r->f->prompts;
    const double rate = ratio((double)t->bytes_streamed, t->seconds_streaming);

    if (t->bytes_streamed == 0)
        return;
    printf("streamed    %.2f GB over PCIe at %.1f GB/s", 1e-9 * (double)t->bytes_streamed,
           1e-9 * rate);
    if (r->machine.pcie > 0)
        printf(", %.0f %% of its bandwidth", 100 * rate / r->machine.pcie);
    printf(" (%.1f GB/s while it copied)\n",
           1e-9 * ratio((double)t->bytes_streamed, t->seconds_copying));
}

static enum pi_code print_text(const struct report *r, struct pi_err *err)
{
    const struct pi_bench_figures *f = r->f;

    printf("model       %s\n", r->name);
    printf(
        "run         mode %s, activations %s, on %s, %u thread%s, %u sequence%s, %s tokens, seed %llu\n",
        pi_mode_name(r->l->mode), pi_act_type_name(r->l->act), r->device,
        (unsigned)pi_pool_size(r->l->pool), pi_pool_size(r->l->pool) == 1 ? "" : "s",
        (unsigned)r->o->n_parallel, r->o->n_parallel == 1 ? "" : "s",
        r->o->bench_random ? "random" : "drawn", (unsigned long long)r->o->sampler.seed);
    if (f->n_prompt > 0)
        printf("prompt      %llu tokens, %.1f tokens/s\n", (unsigned long long)f->n_prompt,
               ratio((double)f->n_prompt, f->prompt_seconds));
    print_streamed(r);
    printf("decode      %u steps", (unsigned)f->n_steps);
    if (f->at_once < r->o->n_parallel)
        printf(" of %u sequences, %u at a time", (unsigned)r->o->n_parallel, (unsigned)f->at_once);
    printf(", %.1f tokens/s (%.1f with the drawing of tokens)\n",
           ratio(decoded(r), f->decode_seconds),
           ratio(decoded(r), f->decode_seconds + f->sampling_seconds));
    printf("step        mean %.3f ms, median %.3f, P95 %.3f, P99 %.3f\n",
           1e3 * per_step(r, f->decode_seconds), percentile(r, 0.5), percentile(r, 0.95),
           percentile(r, 0.99));
    print_parts(r);
    if (r->has_floor)
        printf("floor       %.3f ms a step by bytes, %.1f tokens/s: %.1f %% of it reached\n",
               1e3 * r->floor.seconds, r->o->n_parallel / r->floor.seconds, 100 * floor_share(r));
    return pi_stdout_check(err);
}

/* ---- names ---- */

static enum pi_code name_things(struct report *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_str name = {"", 0};
    struct pi_gpu_info info;

    PI_TRY(pi_gguf_string(&r->l->model.file, "general.name", false, &name, err));
    if (name.n == 0)
        name = (struct pi_str){r->o->model, strlen(r->o->model)};
    (void)snprintf(r->name, sizeof(r->name), "%.*s", (int)(name.n < 159 ? name.n : 159), name.p);
    (void)snprintf(r->device, sizeof(r->device), "%s", r->l->two_units ? "cpu+cpu" : "cpu");
    if (r->l->gpu < 0)
        return PI_OK;
    PI_TRY(pi_gpu_describe(r->l->gpu, &info, err));
    (void)snprintf(r->device, sizeof(r->device), "gpu:%d (%s)", r->l->gpu, info.name);
out:
    return rc;
}

enum pi_code pi_bench_report(const struct pi_run_options *o, const struct pi_run_log *log,
                             struct pi_loaded *l, const struct pi_bench_figures *f,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct report r = {.o = o, .l = l, .f = f};

    PI_TRY(name_things(&r, err));
    PI_TRY(find_machine(o, log, l, &r.machine, err));
    PI_TRY(pi_bandwidth_measure(l->pool, MEASURE, &r.machine.sequential, err));
    PI_TRY(find_floor(&r, log, err));
    PI_TRY(o->json ? print_json(&r, err) : print_text(&r, err));
out:
    return rc;
}
