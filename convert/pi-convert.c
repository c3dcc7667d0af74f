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

enum {
    TYPE_F16 = 1
}; /* in "f32|f16|..." below */

static const enum pi_type types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16, PI_TYPE_Q8_0,
                                     PI_TYPE_Q4_0};

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
    int type; /* index into types */
    uint32_t n_threads;
    bool no_check, dump;
};

#define N_OPTIONS 7

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
         .kind = PI_OPT_ENUM,
         .dest = &a->type,
         .given = &a->o.type_given,
         .arg = "f32|f16|bf16|q8_0|q4_0",
         .help =
             "type of the weights; default f16, but quantised\nweights of a GGUF source keep theirs"},
        {.name = "hidden-act",
         .kind = PI_OPT_STRING,
         .dest = &a->o.hidden_act,
         .arg = "NAME",
         .help =
             "activation of the feed-forward blocks, where the\nsource does not say it or says it wrongly"},
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

int main(int argc, char **argv)
{
    enum pi_code rc = PI_OK;
    struct pi_err err = {0};
    struct pi_common_opts common = {0};
    struct args a = {.type = TYPE_F16};
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
    if (operands[0] == NULL)
        PI_FAIL(&err, PI_E_USAGE, "no SOURCE given (see --help)");
    if (a.dump && (o->output != NULL || o->type_given || o->hidden_act != NULL || o->accept_edited))
        PI_FAIL(&err, PI_E_USAGE,
                "--dump writes no model: no other option but --verbose goes with it");
    if (a.dump) {
        PI_TRY(pi_dump(operands[0], common.verbose, stdout, &err));
        goto out;
    }
    if (o->output == NULL)
        PI_FAIL(&err, PI_E_USAGE, "no output given: -o FILE");
    pi_interrupt_install();
    o->source = operands[0];
    o->type = types[a.type];
    o->self_check = !a.no_check;
    o->progress = pi_progress_wanted(common.quiet);
    o->notes = &notes;
    PI_TRY(pi_pool_create(a.n_threads, &o->pool, &err));
    PI_TRY(pi_convert(o, &err));
out:
    pi_pool_destroy(o->pool);
    return pi_program_end(&prog, &common, rc, &err);
}
