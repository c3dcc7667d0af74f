/* pi-place: decides which neurons live in VRAM. */
#include "config.h"

#include "common/pi_progress.h"
#include "solver/pi_place.h"

#define TEXT(n, to, text)                                                            \
    {                                                                                \
        .name = n, .kind = PI_OPT_STRING, .dest = &(to), .arg = "FILE", .help = text \
    }
#define NUMBER(n, ch, to, most, text)                                                         \
    {                                                                                         \
        .name = n, .letter = ch, .kind = PI_OPT_U32, .dest = &(to), .arg = "N", .help = text, \
        .min = 1, .max = most                                                                 \
    }

int main(int argc, char **argv)
{
    struct pi_place_options o = {
        .objective = PI_OBJECTIVE_LATENCY, .n_seq = 1, .mode = PI_MODE_PREDICTED};
    const struct pi_opt opts[] = {
        TEXT("hardware", o.hardware,
             "machine to place for (default: hardware.yaml in the working\nfolder, else this "
             "machine is measured)"),
        TEXT("profile", o.profile, "default: MODEL.profile.gguf beside the model"),
        TEXT("predictor", o.predictor, "default: MODEL.predictor.gguf beside the model"),
        TEXT("probe-hardware", o.probe,
             "measure this machine and write its description (needs no\nmodel)"),
        {.name = "output",
         .letter = 'o',
         .kind = PI_OPT_STRING,
         .dest = &o.output,
         .arg = "FILE",
         .help = "default: MODEL.placement.gguf beside the model"},
        {.name = "vram-budget",
         .kind = PI_OPT_BYTES,
         .dest = &o.budget,
         .given = &o.budget_given,
         .arg = "SIZE",
         .help =
             "VRAM that the run may use in all, with a unit: 8G, 8192M;\n0G places everything on the CPU"},
        {.name = "objective",
         .kind = PI_OPT_ENUM,
         .dest = &o.objective,
         .arg = "paper|latency",
         .help =
             "paper: most activations on the GPU; latency: least expected\nseconds a token (default)"},
        {.name = "mode",
         .kind = PI_OPT_ENUM,
         .dest = &o.mode,
         .given = &o.mode_given,
         .arg = "dense|exact|predicted",
         .help =
             "mode of the run to place for; dense and exact leave the predictor\nout (default: as pi-run)"},
        NUMBER("ctx-size", 'c', o.n_ctx, 1 << 24,
               "positions of a sequence (default: the model's, at most 4096)"),
        NUMBER("parallel", 0, o.n_seq, 4096, "sequences kept at once (default 1)"),
        NUMBER("batch-size", 'b', o.n_batch, 65536,
               "tokens of a prompt chunk (default: 512 or the context, halved\nuntil its "
               "buffers take at most 1/16 of the budget)"),
        {.name = "kv",
         .kind = PI_OPT_ENUM,
         .dest = &o.kv,
         .arg = "f16|f32",
         .help = "type of the KV cache (default f16)"},
        {.name = "hidden-act",
         .kind = PI_OPT_STRING,
         .dest = &o.hidden_act,
         .arg = "NAME",
         .help = "activation of a model whose file does not say it"},
        {.name = "explain",
         .kind = PI_OPT_FLAG,
         .dest = &o.explain,
         .help = "print every layer's placement and expected times"},
        TEXT("report", o.report,
             "also write a page (HTML): what the budget buys, times, and a\nverdict in words"),
        {.name = "json",
         .kind = PI_OPT_FLAG,
         .dest = &o.json,
         .help = "print the result as one JSON object"},
        {.name = NULL},
    };
    const struct pi_program prog = {
        "pi-place", "MODEL.gguf --vram-budget SIZE [OPTION...]",
        "Decides which neurons of a model live in VRAM, for one machine and one budget.", opts, 1};
    const char *operands[2];
    struct pi_common_opts common;
    struct pi_err err = {0};
    enum pi_code rc = pi_opt_parse(&prog, argc, argv, operands, &common, &err);

    pi_interrupt_install();
    if (rc == PI_OK && !common.help && !common.version)
        rc = pi_place(&prog, &common, operands[0], &o, &err);
    return pi_program_end(&prog, &common, rc, &err);
}
