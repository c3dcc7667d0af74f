#include "config.h"

#include "runtime/pi_budgets.h"

#include "common/pi_alloc.h"
#include "common/pi_estimate.h"
#include "common/pi_file.h"
#include "common/pi_hardware.h"
#include "common/pi_placement.h"
#include "common/pi_progress.h"
#include "runtime/pi_child.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_place_fit.h"
#include "runtime/pi_report.h"
#include "runtime/pi_where.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HARDWARE_FILE "hardware.yaml"
#define MAX_ARGS      32

struct row {
    uint64_t budget;
    double vram;                  /* bytes that the placement takes */
    double share, share_measured; /* of the neurons that are computed, on the GPU; NAN: not known */
    double speed, speed_measured; /* tokens/s */
    char *error;                  /* why there is no such row; owned */
};

struct table {
    const struct pi_run_options *o;
    const struct pi_run_log *log;
    pi_run_fn run;
    char dir[PATH_MAX]; /* temporary */
    char placement[PATH_MAX + 32], hardware[PATH_MAX + 32];
    struct pi_placement place; /* of the row at work */
    bool measures;             /* there is something to measure on */
    bool checked;              /* the weights' checksums fit */
    char machine[256];         /* the one described */
    const char *described;     /* by what: a file, or "pi-place --probe-hardware" */
    char mode[16];
    uint32_t n_ctx;
    struct row *rows;
};

/* ---- children ---- */

/* The message of a program's error line: "pi-place: text" without the name. */
static const char *message(const struct pi_child *c, const char *program)
{
    const size_t n = strlen(program);

    return strncmp(c->err, program, n) == 0 && strncmp(c->err + n, ": ", 2) == 0 ? c->err + n + 2
                                                                                 : c->err;
}

/* A child that failed: what this program ends with. */
static enum pi_code failure(const struct pi_child *c, const char *program, struct pi_err *err)
{
    static const enum pi_code codes[] = {PI_E_USAGE,    PI_E_CORRUPT,    PI_E_UNSUPPORTED,
                                         PI_E_MISMATCH, PI_E_INFEASIBLE, PI_E_IO,
                                         PI_E_NODEV,    PI_E_SELFCHECK,  PI_E_INTERRUPTED};
    const char *text = message(c, program);

    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (pi_code_exit_status(codes[i]) == c->status)
            return pi_err_set(err, codes[i], "%s%s%s", program, *text != '\0' ? ": " : "",
                              *text != '\0' ? text : " failed");
    return pi_err_set(err, PI_E_DEVICE, "%s ended with status %d%s%s", program, c->status,
                      *text != '\0' ? ": " : "", text);
}

struct args {
    char *v[MAX_ARGS];
    size_t n;
};

static void push(struct args *a, const char *option, const char *value)
{
    if (value == NULL)
        return;
    if (a->n + 3 > MAX_ARGS)
        abort(); /* the calls below are fewer */
    if (option != NULL)
        a->v[a->n++] = (char *)(uintptr_t)option; /* execvp() does not write to them */
    a->v[a->n++] = (char *)(uintptr_t)value;
    a->v[a->n] = NULL;
}

static int exec_args(void *ctx)
{
    const struct args *a = ctx;

    return pi_child_exec(a->v);
}

static int count_gpus(void *ctx)
{
    (void)ctx;
    return pi_gpu_count() > 0 ? 0 : 1;
}

/* One run of the benchmark. */
struct bench_run {
    struct pi_run_options o;
    struct pi_run_log log;
    pi_run_fn run;
};

static int run_bench(void *ctx)
{
    const struct bench_run *b = ctx;
    struct pi_err err = {0};
    const enum pi_code rc = b->run(&b->o, &b->log, &err);

    return pi_program_end(&pi_run_program, &b->log.common, rc, &err);
}

/* ---- rows ---- */

static enum pi_code parse(const struct pi_child *c, const char *program, json_t **out,
                          struct pi_err *err)
{
    *out = json_loads(c->out, 0, NULL);
    return *out != NULL ? PI_OK : pi_err_set(err, PI_E_IO, "%s printed no JSON object", program);
}

static double number(const json_t *o, const char *key)
{
    const json_t *x = json_object_get(o, key);

    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* A child that ended with status 6 makes a row, any other failure the end. *made_out: it did its work. */
static enum pi_code judge(const struct pi_child *c, const char *program, struct row *r,
                          bool *made_out, struct pi_err *err)
{
    *made_out = c->status == 0;
    if (c->status == 0)
        return PI_OK;
    if (c->status != pi_code_exit_status(PI_E_INFEASIBLE))
        return failure(c, program, err);
    r->error = pi_asprintf(err, "%s", message(c, program));
    return r->error != NULL ? PI_OK : PI_E_NOMEM;
}

static void place_args(const struct table *t, char *budget, char *parallel, char *ctx, char *path,
                       struct args *a)
{
    const struct pi_run_options *o = t->o;

    push(a, NULL, path);
    push(a, "--quiet", "--json");
    push(a, "--vram-budget", budget);
    push(a, "-o", t->placement);
    push(a, "--hardware", t->hardware);
    push(a, "--profile", o->profile);
    push(a, "--predictor", o->predictor);
    push(a, "--hidden-act", o->hidden_act);
    push(a, "--kv", o->kv == 1 ? "f32" : "f16");
    push(a, "--parallel", parallel);
    push(a, "-c", o->ctx_given ? ctx : NULL);
    push(a, "--mode", o->mode_given ? pi_mode_name((enum pi_mode)o->mode) : NULL);
    push(a, "--", o->model);
}

/* pi-place -> t->placement, t->place and what it expects. */
static enum pi_code place(struct table *t, struct row *r, bool *made_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char path[PATH_MAX + 16], budget[40], parallel[16], ctx[16];
    struct args a = {.n = 0};
    struct pi_child c = {0};
    json_t *j = NULL;

    pi_where_program("pi-place", path, sizeof(path));
    (void)snprintf(budget, sizeof(budget), "%.17gK", (double)r->budget / 1024);
    (void)snprintf(parallel, sizeof(parallel), "%u", (unsigned)t->o->n_parallel);
    (void)snprintf(ctx, sizeof(ctx), "%u", (unsigned)t->o->n_ctx);
    place_args(t, budget, parallel, ctx, path, &a);
    PI_TRY(pi_child_run(t->dir, exec_args, &a, &c, err));
    PI_TRY(judge(&c, "pi-place", r, made_out, err));
    if (!*made_out)
        goto out;
    PI_TRY(parse(&c, "pi-place", &j, err));
    r->vram = number(j, "vram_bytes");
    r->share = number(j, "activations_on_gpu");
    r->speed = number(json_object_get(j, "tokens_per_second"), "placed");
    pi_placement_free(&t->place);
    PI_TRY(pi_placement_load(t->placement, &t->place, err));
    t->n_ctx = t->place.n_ctx;
out:
    json_decref(j);
    pi_child_free(&c);
    return rc;
}

/* The benchmark under t->placement. */
static enum pi_code measure(struct table *t, struct row *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct bench_run b = {.o = *t->o, .log = {.common = {.quiet = true}}, .run = t->run};
    struct pi_child c = {0};
    json_t *j = NULL;
    bool made;

    b.o.n_budgets = 0;
    b.o.json = true;
    b.o.placement = t->placement;
    b.o.hardware = t->hardware;
    b.o.n_ctx = t->n_ctx;
    b.o.ctx_given = true;
    b.o.no_check |= t->checked;
    if (t->place.n_units < 2) /* nothing is placed on anything else */
        b.o.device.kind = PI_DEVICE_CPU;
    PI_TRY(pi_child_run(t->dir, run_bench, &b, &c, err));
    PI_TRY(judge(&c, "pi-run", r, &made, err));
    if (!made)
        goto out;
    t->checked = true;
    PI_TRY(parse(&c, "pi-run", &j, err));
    r->speed_measured = number(j, "tokens_per_second");
    r->share_measured = t->place.n_units < 2 ? 0 : number(j, "neurons_on_gpu");
    (void)snprintf(t->mode, sizeof(t->mode), "%s", json_string_value(json_object_get(j, "mode")));
out:
    json_decref(j);
    pi_child_free(&c);
    return rc;
}

/* ---- what is printed ---- */

/* A number right-aligned in width columns, or "-". */
static void print_number(int width, int decimals, double x, const char *unit)
{
    if (isfinite(x))
        printf("%*.*f%s", width, decimals, x, unit);
    else
        printf("%*s%*s", width, "-", (int)strlen(unit), "");
}

static int decimals(double x)
{
    return x < 10 ? 2 : x < 1000 ? 1 : 0;
}

static void print_head(const struct table *t)
{
    printf("model       %s\nexpected    on %s, as %s describes it\n", t->o->model, t->machine,
           t->described);
    printf("measured    %s\n", !t->measures                             ? "nothing: no GPU is here"
                               : t->o->device.kind == PI_DEVICE_TWO_CPU ? "on two units of this CPU"
                                                                        : "here");
    printf("\n%10s  %10s  %21s  %21s\n", "", "", "neurons on the GPU", "tokens/s");
    printf("%10s  %10s  %10s %10s  %10s %10s\n", "budget", "VRAM MiB", "expected", "measured",
           "expected", "measured");
}

static void print_row(const struct row *r)
{
    char budget[32];

    pi_format_bytes(r->budget, budget, sizeof(budget));
    if (r->error != NULL) {
        printf("%10s  %s\n", budget, r->error);
        return;
    }
    printf("%10s  ", budget);
    print_number(10, 1, r->vram / 1048576, "  ");
    print_number(8, 1, 100 * r->share, " % ");
    print_number(8, 1, 100 * r->share_measured, " %  ");
    print_number(10, decimals(r->speed), r->speed, " ");
    print_number(10, decimals(r->speed_measured), r->speed_measured, "");
    printf("\n");
}

static json_t *number_or_null(double x)
{
    return pi_json_number(x);
}

static json_t *row_json(const struct row *r)
{
    if (r->error != NULL)
        return json_pack("{s:I, s:s}", "budget", (json_int_t)r->budget, "error", r->error);
    return json_pack("{s:I, s:I, s:{s:o, s:o}, s:{s:o, s:o}}", "budget", (json_int_t)r->budget,
                     "vram_bytes", (json_int_t)r->vram, "neurons_on_gpu", "expected",
                     number_or_null(r->share), "measured", number_or_null(r->share_measured),
                     "tokens_per_second", "expected", number_or_null(r->speed), "measured",
                     number_or_null(r->speed_measured));
}

static enum pi_code print_json(const struct table *t, struct pi_err *err)
{
    json_t *rows = json_array(), *o = NULL;
    bool failed = rows == NULL;

    for (uint32_t i = 0; i < t->o->n_budgets && !failed; i++)
        failed = json_array_append_new(rows, row_json(&t->rows[i])) != 0;
    if (!failed)
        o = json_pack("{s:s, s:s, s:o, s:i, s:i, s:O}", "model", t->o->model, "machine", t->machine,
                      "mode", t->mode[0] != '\0' ? json_string(t->mode) : json_null(), "context",
                      (int)t->n_ctx, "parallel", (int)t->o->n_parallel, "budgets", rows);
    json_decref(rows);
    return pi_json_print(o, err);
}

/* ---- the table ---- */

static enum pi_code make_folder(struct table *t, struct pi_err *err)
{
    const char *tmp = getenv("TMPDIR");
    const int n = snprintf(t->dir, sizeof(t->dir), "%s/pi-budgets.XXXXXX",
                           tmp != NULL && *tmp != '\0' ? tmp : "/tmp");

    if (n < 0 || (size_t)n >= sizeof(t->dir) || mkdtemp(t->dir) == NULL) {
        enum pi_code rc = pi_err_set(err, PI_E_IO, "cannot make a temporary folder %s: %s", t->dir,
                                     strerror(errno));

        t->dir[0] = '\0';
        return rc;
    }
    (void)snprintf(t->placement, sizeof(t->placement), "%s/placement.gguf", t->dir);
    return PI_OK;
}

static void drop_folder(const struct table *t)
{
    char probed[sizeof(t->hardware)];

    if (t->dir[0] == '\0')
        return;
    (void)snprintf(probed, sizeof(probed), "%s/" HARDWARE_FILE, t->dir);
    (void)unlink(probed);
    (void)unlink(t->placement);
    (void)rmdir(t->dir);
}

/* This machine's description -> t->hardware. */
static enum pi_code probe(struct table *t, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char path[PATH_MAX + 16];
    struct args a = {.n = 0};
    struct pi_child c = {0};

    (void)snprintf(t->hardware, sizeof(t->hardware), "%s/" HARDWARE_FILE, t->dir);
    pi_where_program("pi-place", path, sizeof(path));
    push(&a, NULL, path);
    push(&a, "--quiet", "--probe-hardware");
    push(&a, NULL, t->hardware);
    PI_TRY(pi_child_run(t->dir, exec_args, &a, &c, err));
    if (c.status != 0)
        rc = failure(&c, "pi-place", err);
out:
    pi_child_free(&c);
    return rc;
}

/* Whether the machine has a GPU, and one of that size, where that is asked for. */
static enum pi_code check_budgets(const struct table *t, const struct pi_hardware *hw,
                                  struct pi_err *err)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < t->o->n_budgets; i++)
        if (t->o->budgets[i] > most)
            most = t->o->budgets[i];
    if (most > 0 && hw->n_gpus == 0)
        return pi_err_set(
            err, PI_E_NODEV,
            "--budgets: no GPU in the machine that %s describes: give a machine that has one with --hardware FILE",
            t->described);
    if (most > 0 && (double)most > hw->gpus[0].memory)
        pi_run_notice(t->log, "budgets of more than the memory of %s (%.0f bytes) are cut to that",
                      hw->gpus[0].name, hw->gpus[0].memory);
    return PI_OK;
}

/* What all rows are placed for: a file, or this machine, measured once. */
static enum pi_code find_hardware(struct table *t, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_hardware hw;

    t->described = t->o->hardware != NULL ? t->o->hardware : HARDWARE_FILE;
    if (t->o->hardware == NULL && access(HARDWARE_FILE, F_OK) != 0) {
        PI_TRY(probe(t, err));
        t->described = "pi-place --probe-hardware";
    } else if (strlen(t->described) >= sizeof(t->hardware)) {
        PI_FAIL(err, PI_E_USAGE, "--hardware: the path is too long");
    } else {
        (void)snprintf(t->hardware, sizeof(t->hardware), "%s", t->described);
    }
    PI_TRY(pi_hardware_load(t->hardware, &hw, err));
    (void)snprintf(t->machine, sizeof(t->machine), "%s%s%s", hw.cpu.name,
                   hw.n_gpus > 0 ? " and " : "", hw.n_gpus > 0 ? hw.gpus[0].name : "");
    PI_TRY(check_budgets(t, &hw, err));
out:
    return rc;
}

/* A GPU that was asked for, or two units of the CPU, must do; else there may be none. */
static enum pi_code find_measures(struct table *t, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_child c = {0};

    t->measures = true;
    if (t->o->device.kind != PI_DEVICE_AUTO)
        return PI_OK;
    PI_TRY(pi_child_run(t->dir, count_gpus, NULL, &c, err));
    t->measures = c.status == 0;
    if (!t->measures)
        pi_run_notice(
            t->log,
            "no GPU is here: expectations alone (--device cpu+cpu runs both units on the CPU)");
out:
    pi_child_free(&c);
    return rc;
}

static enum pi_code make_row(struct table *t, struct row *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool made;

    r->share = r->share_measured = r->speed = r->speed_measured = r->vram = (double)NAN;
    PI_TRY(place(t, r, &made, err));
    if (made && t->measures)
        PI_TRY(measure(t, r, err));
    if (!t->o->json) {
        print_row(r);
        PI_TRY(pi_stdout_check(err));
    }
out:
    return rc;
}

enum pi_code pi_budgets(const struct pi_run_options *o, const struct pi_run_log *log, pi_run_fn run,
                        struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct table *t = NULL;
    uint32_t n_made = 0;

    PI_ALLOC(t, 1, err);
    *t = (struct table){.o = o, .log = log, .run = run};
    PI_ALLOC(t->rows, o->n_budgets, err);
    pi_interrupt_install();
    PI_TRY(make_folder(t, err));
    PI_TRY(find_hardware(t, err));
    PI_TRY(find_measures(t, err));
    if (!o->json)
        print_head(t);
    for (uint32_t i = 0; i < o->n_budgets; i++) {
        t->rows[i].budget = o->budgets[i];
        PI_TRY(make_row(t, &t->rows[i], err));
        n_made += t->rows[i].error == NULL;
    }
    if (o->json)
        PI_TRY(print_json(t, err));
    if (n_made == 0)
        PI_FAIL(err, PI_E_INFEASIBLE, "--budgets: none of them works");
out:
    if (t != NULL) {
        drop_folder(t);
        pi_placement_free(&t->place);
        for (uint32_t i = 0; t->rows != NULL && i < o->n_budgets; i++)
            free(t->rows[i].error);
        free(t->rows);
    }
    free(t);
    return rc;
}
