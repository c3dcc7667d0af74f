/* pi-synth: writes a synthetic model with its profile and predictor, for timing. A tool of the repository; not installed. */
#include "config.h"

#include "bench/pi_synth.h"
#include "common/pi_opt.h"
#include "common/pi_progress.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

static const enum pi_type types[] = {PI_TYPE_F16,  PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_F32,
                                     PI_TYPE_BF16, PI_TYPE_Q4_1, PI_TYPE_Q5_0, PI_TYPE_Q5_1,
                                     PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};

/* The command line. */
struct options {
    struct pi_synth_spec spec;
    int type, pred_type; /* indices into types */
    uint32_t n_threads;
    const char *output;
    bool kv_given, json;
};

#define COUNT(n, to, low, high, text)                                                      \
    {                                                                                      \
        .name = n, .kind = PI_OPT_U32, .dest = &(to), .arg = "N", .min = low, .max = high, \
        .help = text                                                                       \
    }
#define CHOICE(n, to, of, text)                                                \
    {                                                                          \
        .name = n, .kind = PI_OPT_ENUM, .dest = &(to), .arg = of, .help = text \
    }
#define SHARE(n, to, low, high, text)                                                      \
    {                                                                                      \
        .name = n, .kind = PI_OPT_F32, .dest = &(to), .arg = "X", .min = low, .max = high, \
        .help = text                                                                       \
    }

static enum pi_code parse(struct pi_program *prog, int argc, char **argv, struct options *o,
                          struct pi_common_opts *common, struct pi_err *err)
{
    struct pi_synth_spec *s = &o->spec;
    const struct pi_opt opts[] = {
        {.name = "output",
         .letter = 'o',
         .kind = PI_OPT_STRING,
         .dest = &o->output,
         .arg = "FILE",
         .help = "the model; profile and predictor are written beside it"},
        CHOICE("arch", s->arch, "llama|opt", "llama with a ReLU gate (default), or opt"),
        COUNT("layers", s->n_layer, 1, PI_MAX_LAYERS, "default 32"),
        COUNT("embd", s->n_embd, 32, 65536, "width of the residual stream; default 4096"),
        COUNT("ff", s->n_ff, 8, PI_MAX_FF, "neurons of a layer; default 11008"),
        COUNT("heads", s->n_head, 1, 4096, "default 32"),
        {.name = "kv-heads",
         .kind = PI_OPT_U32,
         .dest = &s->n_head_kv,
         .given = &o->kv_given,
         .arg = "N",
         .min = 1,
         .max = 4096,
         .help = "default: as many as heads"},
        COUNT("vocab", s->n_vocab, 1, 1 << 20, "default 32000"),
        COUNT("ctx", s->n_ctx, 16, 1 << 20, "positions; default 4096"),
        CHOICE("type", o->type, "f16|q8_0|q4_0|f32|bf16|q4_1|q5_0|q5_1|q4_k|q5_k|q6_k",
               "of all matrices; default f16"),
        CHOICE("predictor-type", o->pred_type, "f16|q8_0|q4_0", "default f16"),
        SHARE("density", s->density, 0.001, 0.9, "mean share of neurons that fire; default 0.1"),
        SHARE("alpha", s->alpha, 0.01, 1000,
              "the rate of the neuron at share q of the hottest-first order falls like\n"
              "(1 + q / knee)^-alpha; default 9.3, which with the default knee has\n"
              "18 % of neurons make two thirds of the activations and 57 % make 96 %"),
        SHARE("knee", s->knee, 0.0001, 1000, "default 1.294"),
        SHARE("spread", s->spread, 0, 3, "how much counts vary from token to token; default 0.3"),
        SHARE("noise", s->noise, 0, 1,
              "share of a pre-activation that no predictor sees; default 0.02"),
        COUNT("rank", s->rank, 8, 65536, "width of the predictor; default 512"),
        COUNT("samples", s->n_samples, 8, 1024, "tokens sampled for the profile; default 128"),
        {.name = "seed",
         .letter = 's',
         .kind = PI_OPT_U64,
         .dest = &s->seed,
         .arg = "SEED",
         .min = 0,
         .max = 9007199254740992.0,
         .help = "same seed, same bytes; default 1"},
        {.name = "row-major-down",
         .kind = PI_OPT_FLAG,
         .dest = &s->row_major_down,
         .help = "store down-projections as other programs read them (dense runs)"},
        {.name = "threads",
         .letter = 't',
         .kind = PI_OPT_U32,
         .dest = &o->n_threads,
         .arg = "N",
         .min = 1,
         .max = 1024,
         .help = "default: the physical cores that may be used"},
        {.name = "json",
         .kind = PI_OPT_FLAG,
         .dest = &o->json,
         .help = "the report as one JSON object"},
        {.name = NULL},
    };
    const char *operands[1];
    enum pi_code rc;

    prog->opts = opts;
    rc = pi_opt_parse(prog, argc, argv, operands, common, err);
    prog->opts = NULL;
    return rc;
}

static enum pi_code report_json(const struct options *o, const struct pi_synth_law *l,
                                const struct pi_synth_result *r, double seconds, struct pi_err *err)
{
    json_t *j = json_pack("{s:b, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:f}",
                          "synthetic", 1, "bytes", (json_int_t)r->model_bytes, "predictor_bytes",
                          (json_int_t)r->predictor_bytes, "seconds", seconds, "density", l->density,
                          "covered18", l->covered18, "covered57", l->covered57, "count50",
                          l->count50, "count95", l->count95, "count99", l->count99,
                          "sampled_tokens", (int)o->spec.n_samples, "sampled_density", r->density,
                          "sampled_recall", r->recall, "sampled_precision", r->precision);
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(8)) : NULL;

    json_decref(j);
    if (text == NULL)
        return pi_err_set(err, PI_E_NOMEM, "no memory for the result");
    (void)puts(text);
    free(text);
    return PI_OK;
}

static enum pi_code report(const struct options *o, const struct pi_synth_law *l,
                           const struct pi_synth_result *r, double seconds, struct pi_err *err)
{
    if (o->json)
        return report_json(o, l, r, seconds, err);
    printf(
        "synthetic model of %.0f bytes, predictor of %.0f, made in %.1f s\n"
        "firing: %.4f of neurons; the hottest 18 %% make %.4f of the activations, 57 %% make %.4f\n"
        "neurons that fire for a token: median %.4f, 95th percentile %.4f, 99th %.4f\n"
        "on %u sampled tokens: density %.4f, predictor's recall %.4f, precision %.4f\n",
        (double)r->model_bytes, (double)r->predictor_bytes, seconds, l->density, l->covered18,
        l->covered57, l->count50, l->count95, l->count99, (unsigned)o->spec.n_samples, r->density,
        r->recall, r->precision);
    return PI_OK;
}

static enum pi_code run(struct options *o, const struct pi_common_opts *common, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const double start = pi_now();
    struct pi_pool *pool = NULL;
    struct pi_synth_law law = {0};
    struct pi_synth_result result;

    if (o->output == NULL)
        PI_FAIL(err, PI_E_USAGE, "no output: -o MODEL.gguf");
    o->spec.type = types[o->type];
    o->spec.pred_type = types[o->pred_type];
    if (!o->kv_given)
        o->spec.n_head_kv = o->spec.n_head;
    PI_TRY(pi_synth_check(&o->spec, err));
    pi_interrupt_install();
    PI_TRY(pi_pool_create(o->n_threads, &pool, err));
    PI_TRY(pi_synth_law_init(&o->spec, &law, err));
    PI_TRY(pi_synth_make(&o->spec, &law, o->output, pool, pi_progress_wanted(common->quiet),
                         &result, err));
    PI_TRY(report(o, &law, &result, pi_now() - start, err));
out:
    pi_synth_law_free(&law);
    pi_pool_destroy(pool);
    return rc;
}

int main(int argc, char **argv)
{
    struct pi_program prog = {
        .name = "pi-synth",
        .synopsis = "-o MODEL.gguf [options]",
        .about =
            "Writes a synthetic model that fires like a real one, with profile and predictor, for timing.",
    };
    struct options o = {.spec = {.n_layer = 32,
                                 .n_embd = 4096,
                                 .n_ff = 11008,
                                 .n_head = 32,
                                 .n_vocab = 32000,
                                 .n_ctx = 4096,
                                 .density = 0.1f,
                                 .alpha = 9.3f,
                                 .knee = 1.294f,
                                 .spread = 0.3f,
                                 .noise = 0.02f,
                                 .rank = 512,
                                 .n_samples = 128,
                                 .seed = 1}};
    struct pi_common_opts common;
    struct pi_err err = {0};
    enum pi_code rc = parse(&prog, argc, argv, &o, &common, &err);

    if (rc == PI_OK && !common.help && !common.version)
        rc = run(&o, &common, &err);
    return pi_program_end(&prog, &common, rc, &err);
}
