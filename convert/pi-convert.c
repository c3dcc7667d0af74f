/*
 * pi-convert - brings a model into the toolchain's form; prints models and artifacts.
 */
#include "config.h"

#include "common/pi_opt.h"
#include "common/pi_progress.h"
#include "convert/pi_convert.h"
#include "convert/pi_dump.h"

#include <stdio.h>
#include <string.h>

struct listener {
    const struct pi_program *prog;
    const struct pi_common_opts *common;
};

static void say(void *ctx, const char *line)
{
    const struct listener *l = ctx;

    pi_notice(l->prog, l->common, "%s", line);
}

/* What the command line says. */
struct args {
    struct pi_convert_options o;
    int layout;
    const char *type;
    struct pi_opt_each keep;
    struct pi_keep keeps[PI_OPT_EACH_MAX];
    uint32_t n_threads;
    bool no_check, dump, layout_given;
};

#define N_OPTIONS 12

static void option_table(struct args *a, struct pi_opt t[N_OPTIONS + 1])
{
    const struct pi_opt rows[N_OPTIONS + 1] = {
        {.name = "output",
         .letter = 'o',
         .kind = PI_OPT_STRING,
         .dest = &a->o.output,
         .arg = "FILE",
         .help = "the GGUF file to write"},
        {.name = "type",
         .kind = PI_OPT_STRING,
         .dest = &a->type,
         .given = &a->o.type_given,
         .arg = "TYPE",
         .help =
             "f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k,\nq4_1, q4_0 for all matrices, or a mix: q5_k_m, q5_k_s,\n"
             "q4_k_m, q4_k_s; default f16, but quantised weights\nof a GGUF source keep theirs"},
        {.name = "keep",
         .kind = PI_OPT_EACH,
         .dest = &a->keep,
         .arg = "PATTERN=TYPE",
         .help =
             "matrices whose name fits the pattern (as a shell's:\n*, ?, [...]) get this type; may be repeated, the first\n"
             "that fits wins"},
        {.name = "layout",
         .kind = PI_OPT_ENUM,
         .dest = &a->layout,
         .given = &a->layout_given,
         .arg = "auto|neuron|row",
         .help =
             "of the down projections: a row a neuron, as sparse\nruns and GPUs read them, or as other programs do;\n"
             "default auto: neuron, but row where the activation\nhas no zeros and the turned rows would take more"},
        {.name = "list",
         .kind = PI_OPT_FLAG,
         .dest = &a->o.list,
         .help =
             "print what would be written, tensor by tensor, and\nthe disk and memory it takes; write nothing"},
        {.name = "json",
         .kind = PI_OPT_FLAG,
         .dest = &a->o.json,
         .help = "print one JSON object on what was written, or with\n--list would be"},
        {.name = "hidden-act",
         .kind = PI_OPT_STRING,
         .dest = &a->o.hidden_act,
         .arg = "NAME",
         .help =
             "activation of the feed-forward blocks, where the\nsource does not say it or says it wrongly"},
        {.name = "predictor",
         .kind = PI_OPT_STRING,
         .dest = &a->o.predictor,
         .arg = "DIR",
         .help = "take the predictors model_N.pt of this folder too"},
        {.name = "no-self-check",
         .kind = PI_OPT_FLAG,
         .dest = &a->no_check,
         .help = "do not compare the result with the source"},
        {.name = "accept-edited",
         .kind = PI_OPT_FLAG,
         .dest = &a->o.accept_edited,
         .help = "take a GGUF source that another program edited,\nwhose checksums do not fit"},
        {.name = "threads",
         .letter = 't',
         .kind = PI_OPT_U32,
         .dest = &a->n_threads,
         .arg = "N",
         .min = 1,
         .max = 1024,
         .help = "default: the cores that may be used"},
        {.name = "dump",
         .kind = PI_OPT_FLAG,
         .dest = &a->dump,
         .help = "print SOURCE, a model or an artifact, as YAML;\nwith --verbose in full"},
        {.name = NULL},
    };

    memcpy(t, rows, sizeof(rows));
}

static enum pi_code check_args(struct args *a, const char *source, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_convert_options *o = &a->o;

    if (source == NULL)
        PI_FAIL(err, PI_E_USAGE, "no SOURCE given (see --help)");
    if (o->output != NULL && *o->output == '\0')
        PI_FAIL(err, PI_E_USAGE, "-o '': the output needs a name");
    if (a->dump && (o->output != NULL || o->type_given || o->hidden_act != NULL ||
                    o->accept_edited || o->list || o->json || a->layout_given || a->keep.n > 0 ||
                    o->predictor != NULL || a->no_check))
        PI_FAIL(err, PI_E_USAGE,
                "--dump writes no model: no other option but --verbose goes with it");
    if (a->dump)
        goto out;
    PI_TRY(pi_recipe_find(a->type, &o->recipe, err));
    for (size_t i = 0; i < a->keep.n; i++)
        PI_TRY(pi_keep_parse(a->keep.v[i], &a->keeps[i], err));
    o->layout = (enum pi_layout)a->layout; /* in the order of the choices */
    o->keep = a->keeps;
    o->n_keep = a->keep.n;
    if (o->output == NULL && !o->list)
        PI_FAIL(err, PI_E_USAGE, "no output given: -o FILE");
out:
    return rc;
}

int main(int argc, char **argv)
{
    enum pi_code rc = PI_OK;
    struct pi_err err = {0};
    struct pi_common_opts common = {0};
    struct args a = {.type = "f16"};
    struct pi_convert_options *o = &a.o;
    struct pi_opt opts[N_OPTIONS + 1];
    const char *operands[2] = {NULL, NULL};
    const struct pi_program prog = {.name = "pi-convert",
                                    .synopsis = "SOURCE -o M.gguf [--type f16]",
                                    .about = "Brings a model into the toolchain's form.",
                                    .opts = opts,
                                    .max_operands = 1};
    struct listener listener = {&prog, &common};
    struct pi_notes notes = {say, &listener};

    option_table(&a, opts);
    PI_TRY(pi_opt_parse(&prog, argc, argv, operands, &common, &err));
    if (common.help || common.version)
        goto out;
    PI_TRY(check_args(&a, operands[0], &err));
    if (a.dump) {
        PI_TRY(pi_dump(operands[0], common.verbose, stdout, &err));
        goto out;
    }
    pi_interrupt_install();
    o->source = operands[0];
    o->self_check = !a.no_check;
    o->progress = pi_progress_wanted(common.quiet);
    o->verbose = common.verbose;
    o->report = o->list || o->json ? stdout : NULL;
    o->notes = &notes;
    PI_TRY(pi_pool_create(a.n_threads, &o->pool, &err));
    PI_TRY(pi_convert(o, &err));
out:
    pi_pool_destroy(o->pool);
    return pi_program_end(&prog, &common, rc, &err);
}
