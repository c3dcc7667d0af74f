#include "config.h"

#include "profiler/pi_profile_run.h"

#include "common/pi_alloc.h"
#include "common/pi_dataset.h"
#include "common/pi_file.h"
#include "common/pi_progress.h"
#include "profiler/pi_census_print.h"
#include "profiler/pi_collect.h"
#include "profiler/pi_merge.h"
#include "profiler/pi_profile_page.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_place_fit.h"
#include "runtime/pi_gpu_form.h"
#include "runtime/pi_place_gpu.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_WINDOW       512u
#define DEFAULT_SAMPLES      65536u
#define DEFAULT_SAMPLE_BYTES (UINT64_C(2) << 30)

const struct pi_program pi_profile_program = {
    .name = "pi-profile",
    .synopsis = "MODEL.gguf --data FILE... [options], MODEL.gguf --report FILE",
    .about = "Runs a model over text and counts how often each of its feed-forward neurons fires.",
    .max_operands = 1,
};

bool pi_profile_makes_one(const struct pi_profile_options *o)
{
    return o->data.n > 0 || o->merge.n > 0;
}

static enum pi_code check_options(const struct pi_profile_options *o, struct pi_err *err)
{
    if (o->model == NULL)
        return pi_err_set(err, PI_E_USAGE, "no model named (usage: %s %s)", pi_profile_program.name,
                          pi_profile_program.synopsis);
    if (o->data.n == 0 && o->merge.n == 0 && o->report == NULL)
        return pi_err_set(err, PI_E_USAGE,
                          "nothing to profile: --data FILE... (or --merge FILE...)");
    if (pi_profile_makes_one(o) && o->profile != NULL)
        return pi_err_set(
            err, PI_E_USAGE,
            "--profile %s: is for a report on it; with --data or --merge a new profile is made",
            o->profile);
    if (!pi_profile_makes_one(o) && (o->out != NULL || o->counts != NULL))
        return pi_err_set(err, PI_E_USAGE,
                          "%s is for a profile that is made: --data FILE... (or --merge FILE...)",
                          o->out != NULL ? "-o" : "--counts");
    if (o->report == NULL && (o->profile != NULL || o->predictor != NULL))
        return pi_err_set(err, PI_E_USAGE, "--%s %s: is for --report FILE",
                          o->profile != NULL ? "profile" : "predictor",
                          o->profile != NULL ? o->profile : o->predictor);
    if (o->report != NULL && strcmp(o->report, "-") == 0)
        return pi_err_set(err, PI_E_USAGE, "--report -: must be a file");
    if (o->counts != NULL && strcmp(o->counts, "-") == 0)
        return pi_err_set(err, PI_E_USAGE, "--counts -: must be a file");
    return PI_OK;
}

static size_t first_rows(struct pi_profile_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "data",
         .kind = PI_OPT_LIST,
         .dest = &o->data,
         .arg = "FILE...",
         .help = "what to run: plain text, JSON lines, Alpaca or ShareGPT JSON, gzipped or not"},
        {.name = "field",
         .kind = PI_OPT_STRING,
         .dest = &o->field,
         .arg = "NAME",
         .help = "the field of JSON records that holds the text"},
        {.name = "window",
         .kind = PI_OPT_U32,
         .dest = &o->window,
         .arg = "N",
         .min = 1,
         .max = 1 << 30,
         .help = "tokens fed at once; default 512, or the model's context if smaller"},
        {.name = "samples",
         .kind = PI_OPT_U64,
         .dest = &o->n_samples,
         .arg = "N",
         .min = 0,
         .max = 1e12,
         .help = "positions kept to train predictors on; default 65536"},
        {.name = "max-sample-bytes",
         .kind = PI_OPT_BYTES,
         .dest = &o->max_sample_bytes,
         .arg = "SIZE",
         .help = "fewer samples where they would take more memory than this; default 2G"},
        {.name = "counts",
         .kind = PI_OPT_STRING,
         .dest = &o->counts,
         .arg = "FILE",
         .help = "also write the counts as little-endian int32 [layers, neurons]"},
    };

    memcpy(t, rows, sizeof(rows));
    return sizeof(rows) / sizeof(rows[0]);
}

static size_t other_rows(struct pi_profile_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "merge",
         .kind = PI_OPT_LIST,
         .dest = &o->merge,
         .arg = "FILE...",
         .help = "add earlier profiles of the same model; without --data: only these"},
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
         .help = "of the choice of samples; default 1"},
        {.name = "device",
         .kind = PI_OPT_STRING,
         .dest = &o->device_text,
         .arg = "DEV",
         .help = "cpu, gpu or gpu:N; default: cpu"},
        {.name = "threads",
         .letter = 't',
         .kind = PI_OPT_U32,
         .dest = &o->n_threads,
         .arg = "N",
         .min = 1,
         .max = 1024,
         .help = "default: the physical cores that may be used"},
        {.name = "output",
         .letter = 'o',
         .kind = PI_OPT_STRING,
         .dest = &o->out,
         .arg = "FILE",
         .help = "default: MODEL.profile.gguf beside the model"},
        {.name = "json",
         .kind = PI_OPT_FLAG,
         .dest = &o->json,
         .help = "the report as one JSON object"},
    };

    memcpy(t, rows, sizeof(rows));
    return sizeof(rows) / sizeof(rows[0]);
}

static size_t report_rows(struct pi_profile_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "report",
         .kind = PI_OPT_STRING,
         .dest = &o->report,
         .arg = "FILE",
         .help =
             "write a page (HTML) on the profile; without --data and --merge on\nan existing one"},
        {.name = "profile",
         .kind = PI_OPT_STRING,
         .dest = &o->profile,
         .arg = "FILE",
         .help = "the existing one; default: MODEL.profile.gguf beside the model"},
        {.name = "predictor",
         .kind = PI_OPT_STRING,
         .dest = &o->predictor,
         .arg = "FILE",
         .help =
             "what the page says of predictors; default: MODEL.predictor.gguf\nbeside the model, if there is one"},
    };

    memcpy(t, rows, sizeof(rows));
    return sizeof(rows) / sizeof(rows[0]);
}

enum pi_code pi_profile_options_parse(int argc, char **argv, struct pi_profile_options *o,
                                      struct pi_err *err)
{
    const char *operands[2];
    struct pi_opt rows[24] = {0}; /* ends with a zeroed row */
    struct pi_program prog = pi_profile_program;
    enum pi_code rc;
    size_t n;

    memset(o, 0, sizeof(*o));
    o->n_samples = DEFAULT_SAMPLES;
    o->max_sample_bytes = DEFAULT_SAMPLE_BYTES;
    o->seed = 1;
    n = first_rows(o, rows);
    n += other_rows(o, rows + n);
    (void)report_rows(o, rows + n);
    prog.opts = rows;
    rc = pi_opt_parse(&prog, argc, argv, operands, &o->common, err);
    if (rc != PI_OK || o->common.help || o->common.version)
        return rc;
    o->model = operands[0];
    rc = pi_device_parse(o->device_text, false, &o->device, err);
    return rc != PI_OK ? rc : check_options(o, err);
}

/* As many samples as were asked for and fit. */
static uint64_t bounded_samples(const struct pi_profile_options *o, const struct pi_shape *sh,
                                uint64_t n_tokens)
{
    const uint64_t each = pi_collect_sample_bytes(sh);
    const uint64_t wanted = o->n_samples < n_tokens ? o->n_samples : n_tokens;
    const uint64_t fit = o->max_sample_bytes / each;

    char all[32];

    if (fit < wanted) {
        pi_format_bytes(wanted * each + (1 << 20) - 1, all, sizeof(all));
        pi_notice(
            &pi_profile_program, &o->common,
            "keeping %llu of %llu samples: %llu bytes each, --max-sample-bytes allows no more; all of them: --max-sample-bytes %s",
            (unsigned long long)fit, (unsigned long long)wanted, (unsigned long long)each, all);
    }
    return fit < wanted ? fit : wanted;
}

static enum pi_code read_windows(const struct pi_profile_options *o, const struct pi_model *m,
                                 uint32_t window, struct pi_windows *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_tokenizer *tok = NULL;
    struct pi_dataset d = {0};

    PI_TRY(pi_tokenizer_create(&m->file, &tok, err));
    for (size_t i = 0; i < o->data.n; i++)
        PI_TRY(pi_dataset_add(&d, o->data.v[i], o->field, err));
    PI_TRY(pi_windows_make(&d, tok, window, true, out, err));
out:
    pi_dataset_free(&d);
    pi_tokenizer_destroy(tok);
    return rc;
}

static enum pi_code window_of(const struct pi_profile_options *o, const struct pi_model *m,
                              uint32_t *out, struct pi_err *err)
{
    const uint32_t context = m->shape.n_ctx_train;

    if (o->window > context)
        return pi_err_set(err, PI_E_RANGE, "--window %u: the model's context is %u", o->window,
                          context);
    *out = o->window != 0 ? o->window : context < DEFAULT_WINDOW ? context : DEFAULT_WINDOW;
    return PI_OK;
}

/* The part of the model that runs on the GPU: all of it, or as many neurons of each layer as there is room for. */
static enum pi_code place(const struct pi_profile_options *o, const struct pi_model *m,
                          uint32_t window, struct pi_placement *out, struct pi_err *err)
{
    enum pi_code rc;
    struct pi_device_room room;
    uint64_t there, n_hot = 0;

    PI_TRY(pi_gpu_form_check(m, err));
    PI_TRY(pi_device_look(o->device.gpu, 0, &room, err));
    there = room.context_bytes + room.free_bytes;
    PI_TRY(pi_place_all(m, NULL, window, pi_collect_batch(window), PI_TYPE_F32, out, err));
    rc = pi_place_fit(out, m, NULL, there - there / PI_DEVICE_SPARE, room.context_bytes, window,
                      PI_TYPE_F32, err);
    if (rc != PI_OK) {
        pi_err_wrap(err, "GPU %d (%s) has too little room (--device cpu needs none)", o->device.gpu,
                    room.name);
        goto out;
    }
    for (uint32_t l = 0; l < out->n_layer; l++)
        n_hot += out->layers[l].n_hot;
    pi_notice(&pi_profile_program, &o->common, "GPU %d (%s): %llu of %llu neurons are there",
              o->device.gpu, room.name, (unsigned long long)n_hot,
              (unsigned long long)out->n_layer * out->n_ff);
out:
    return rc;
}

static enum pi_code collect(const struct pi_profile_options *o, struct pi_model *m,
                            struct pi_pool *pool, uint32_t window, struct pi_collected *out,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_windows w = {0};
    struct pi_placement p = {0};
    struct pi_collect_options co = {
        .window = window, .seed = o->seed, .progress = pi_progress_wanted(o->common.quiet)};

    PI_TRY(read_windows(o, m, window, &w, err));
    co.n_samples = bounded_samples(o, &m->shape, w.tokens.n);
    if (o->device.kind == PI_DEVICE_GPU) {
        PI_TRY(place(o, m, window, &p, err));
        co.place = &p;
        co.gpu = o->device.gpu;
    }
    PI_TRY(pi_collect(m, &w, pool, &co, out, err));
out:
    pi_placement_free(&p);
    pi_windows_free(&w);
    return rc;
}

/* Adds a saved profile; *c is empty (no layers) when it is the first. */
static enum pi_code merge_file(const struct pi_profile_options *o, const struct pi_model *m,
                               const char *path, struct pi_collected *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_collected more = {0};
    struct pi_gguf g = {0};

    PI_TRY(pi_gguf_open(path, 0, &g, err));
    PI_TRY(pi_artifact_check_kind(&g, PI_ARTIFACT_PROFILE, PI_PROFILE_VERSION, err));
    PI_TRY(pi_artifact_check_model(&g, o->model, &m->lineage, NULL, err));
    PI_TRY(pi_merge_load(path, &more, err));
    if (c->p.n_layer == 0) {
        *c = more;
        memset(&more, 0, sizeof(more));
    } else {
        PI_TRY(pi_merge(c, &more, bounded_samples(o, &m->shape, c->p.n_samples + more.p.n_samples),
                        o->seed, err));
    }
out:
    pi_gguf_close(&g);
    pi_collected_free(&more);
    return rc;
}

/* The names of what was profiled, for people. The caller frees it. */
static char *names_of(const struct pi_profile_options *o, struct pi_err *err)
{
    char *all = pi_strndup("", 0, err);

    for (size_t i = 0; i < o->data.n + o->merge.n && all != NULL; i++) {
        const char *path = i < o->data.n ? o->data.v[i] : o->merge.v[i - o->data.n];
        const char *base = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
        char *longer = pi_asprintf(err, "%s%s%s", all, i > 0 ? ", " : "", base);

        free(all);
        all = longer;
    }
    return all;
}

static enum pi_code write_counts(const char *path, const struct pi_profile *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_out *f = NULL;
    const size_t n = (size_t)p->n_layer * p->n_ff;
    uint8_t *bytes = NULL;

    PI_ALLOC(bytes, n * 4, err);
    for (size_t i = 0; i < n; i++) {
        if (p->count[i] > INT32_MAX)
            PI_FAIL(err, PI_E_RANGE, "%s: a count of %llu does not fit 32 bits", path,
                    (unsigned long long)p->count[i]);
        for (int b = 0; b < 4; b++)
            bytes[4 * i + (size_t)b] = (uint8_t)(p->count[i] >> 8 * b);
    }
    PI_TRY(pi_out_open(path, &f, err));
    PI_TRY(pi_out_write(f, bytes, n * 4, err));
    rc = pi_out_commit(f, err);
    f = NULL;
out:
    pi_out_abort(f);
    free(bytes);
    return rc;
}

static char *output_path(const struct pi_profile_options *o, struct pi_err *err)
{
    return pi_path_or_artifact(o->out, o->model, "profile", err);
}

/* Before any work: the outputs can be opened and replace no input. A profile may be merged into itself. */
static enum pi_code check_outputs(const struct pi_profile_options *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = output_path(o, err);

    if (path == NULL)
        return PI_E_NOMEM;
    PI_TRY(pi_out_check_input(path, o->model, err));
    PI_TRY(pi_out_check_input(o->counts, o->model, err));
    for (size_t i = 0; i < o->data.n; i++) {
        PI_TRY(pi_out_check_input(path, o->data.v[i], err));
        PI_TRY(pi_out_check_input(o->counts, o->data.v[i], err));
    }
    for (size_t i = 0; i < o->merge.n; i++)
        PI_TRY(pi_out_check_input(o->counts, o->merge.v[i], err));
    if (o->counts != NULL && (strcmp(o->counts, path) == 0 || pi_file_same(o->counts, path)))
        PI_FAIL(err, PI_E_USAGE, "--counts %s: is the profile's own file", o->counts);
    PI_TRY(pi_profile_page_check(o, path, err));
    PI_TRY(pi_out_probe(path, err));
    if (o->counts != NULL)
        PI_TRY(pi_out_probe(o->counts, err));
out:
    free(path);
    return rc;
}

/* Writes the profile, the counts, and the page where page is not NULL. */
static enum pi_code save(const struct pi_profile_options *o, const struct pi_collected *c,
                         uint32_t window, const struct pi_profile_page *page, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_profile_samples_in s = {c->residual, c->mask, c->input};
    char *path = output_path(o, err);
    char *names = names_of(o, err);

    if (path == NULL || names == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    PI_TRY(pi_interrupt_check(err));
    PI_TRY(pi_profile_save(path, &c->p, &s, window, names, err));
    if (o->counts != NULL)
        PI_TRY(write_counts(o->counts, &c->p, err));
    pi_notice(&pi_profile_program, &o->common, "wrote %s", path);
    if (o->report != NULL)
        PI_TRY(pi_profile_page_write(o, page, &c->p, path, err));
out:
    free(path);
    free(names);
    return rc;
}

enum pi_code pi_profile_run(const struct pi_profile_options *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_model_options mo = {.hidden_act = o->hidden_act, .check_crc = true};
    struct pi_model m = {0};
    struct pi_pool *pool = NULL;
    struct pi_collected c = {0};
    struct pi_profile_page page = {0};
    uint32_t window = 0;

    pi_interrupt_install();
    if (!pi_profile_makes_one(o))
        return pi_profile_page_only(o, err);
    PI_TRY(pi_device_check(&o->device, err));
    PI_TRY(pi_blas_init(err));
    if (pi_blas_warning() != NULL)
        pi_notice(&pi_profile_program, &o->common, "%s", pi_blas_warning());
    PI_TRY(pi_model_open(o->model, &mo, &m, err));
    PI_TRY(check_outputs(o, err));
    if (o->report != NULL)
        PI_TRY(pi_profile_page_open(o, &page, err));
    PI_TRY(window_of(o, &m, &window, err));
    PI_TRY(pi_pool_create(o->n_threads == 0 && o->device.kind == PI_DEVICE_GPU ? pi_device_threads()
                                                                               : o->n_threads,
                          &pool, err));
    if (o->data.n > 0)
        PI_TRY(collect(o, &m, pool, window, &c, err));
    for (size_t i = 0; i < o->merge.n; i++)
        PI_TRY(merge_file(o, &m, o->merge.v[i], &c, err));
    PI_TRY(save(o, &c, window, &page, err));
    PI_TRY(pi_census_print(&c.p, o->json, err));
out:
    pi_collected_free(&c);
    pi_profile_page_close(&page);
    pi_pool_destroy(pool);
    pi_model_close(&m);
    return rc;
}
