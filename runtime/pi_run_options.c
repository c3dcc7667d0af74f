#include "config.h"

#include "runtime/pi_run_options.h"

#include "common/pi_estimate.h"
#include "common/pi_placement.h"
#include "runtime/pi_where.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/random.h>

#define ANY_U32  4294967295.0
#define MAX_SEED 9223372036854774784.0 /* what a double and JSON's signed integers hold */

const struct pi_program pi_run_program = {
    .name = "pi-run",
    .synopsis =
        "-m MODEL.gguf [-p TEXT | -f FILE | --tokens IDS | --chat] [options], or pi-run --demo",
    .about =
        "Generates text with a language model, or measures it; finds the model's artifacts beside it.",
};

/* The tables below name where each value goes; "given" is set when the option occurs. */
#define N_ROWS_MAX      96
#define SERVER_PARALLEL 4
#define DEMO_PROMPT     "Once upon a time there was a little girl who"
#define DEMO_TOKENS     120

static void add(struct pi_opt *t, const struct pi_opt *rows, size_t n)
{
    size_t at = 0;

    while (t[at].name != NULL)
        at++;
    memcpy(t + at, rows, n * sizeof(*rows));
}
#define ADD(t, rows) add((t), (rows), sizeof(rows) / sizeof((rows)[0]))

static void model_rows(struct pi_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "model",
         .letter = 'm',
         .kind = PI_OPT_STRING,
         .dest = &o->model,
         .arg = "FILE",
         .help = "the model, a GGUF file"},
        {.name = "demo",
         .kind = PI_OPT_FLAG,
         .dest = &o->demo,
         .help =
             "the small model that comes with the programs, in place of -m; alone it tells a story"},
        {.name = "profile",
         .kind = PI_OPT_STRING,
         .dest = &o->profile,
         .arg = "FILE",
         .help = "default: MODEL.profile.gguf, if there"},
        {.name = "predictor",
         .kind = PI_OPT_STRING,
         .dest = &o->predictor,
         .arg = "FILE",
         .help = "default: MODEL.predictor.gguf, if there"},
        {.name = "placement",
         .kind = PI_OPT_STRING,
         .dest = &o->placement,
         .arg = "FILE",
         .help = "default: MODEL.placement.gguf, if there"},
        {.name = "hidden-act",
         .kind = PI_OPT_STRING,
         .dest = &o->hidden_act,
         .arg = "NAME",
         .help = "the activation, where the file does not name it or names it wrongly"},
        {.name = "no-check",
         .kind = PI_OPT_FLAG,
         .dest = &o->no_check,
         .help = "do not compare the weights with their checksums first"},
    };

    ADD(t, rows);
}

static void how_rows(struct pi_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "mode",
         .kind = PI_OPT_ENUM,
         .dest = &o->mode,
         .arg = "dense|exact|predicted",
         .given = &o->mode_given,
         .help =
             "how tokens are decoded; default: predicted with a predictor, else\nexact where the activation has zeros, else dense"},
        {.name = "device",
         .kind = PI_OPT_STRING,
         .dest = &o->device_text,
         .arg = "DEV",
         .help = "cpu, gpu, gpu:N or cpu+cpu; default: what placement and machine offer"},
        {.name = "vram-budget",
         .kind = PI_OPT_BYTES,
         .dest = &o->vram_budget,
         .arg = "SIZE",
         .given = &o->vram_given,
         .help =
             "use at most this much VRAM in all (8G, 8192M); default: what the\nplacement was made for"},
        {.name = "kv",
         .kind = PI_OPT_ENUM,
         .dest = &o->kv,
         .arg = "f16|f32",
         .help = "element type of the KV cache; default f16"},
        {.name = "act",
         .kind = PI_OPT_ENUM,
         .dest = &o->act,
         .arg = "f32|q8",
         .given = &o->act_given,
         .help =
             "activations in products of quantised matrices; default q8,\nf32 where all is on a GPU"},
        {.name = "ctx-size",
         .letter = 'c',
         .kind = PI_OPT_U32,
         .dest = &o->n_ctx,
         .arg = "N",
         .min = 1,
         .max = 2147483647,
         .given = &o->ctx_given,
         .help = "context in tokens; default: the model's, at most 4096"},
        {.name = "threads",
         .letter = 't',
         .kind = PI_OPT_U32,
         .dest = &o->n_threads,
         .arg = "N",
         .min = 1,
         .max = 1024,
         .help = "default: the physical cores that may be used"},
        {.name = "numa",
         .kind = PI_OPT_ENUM,
         .dest = &o->numa,
         .arg = "off|distribute|isolate",
         .help =
             "on machines with several memory nodes: spread the threads over them,\nor stay on one; default distribute"},
        {.name = "no-pin",
         .kind = PI_OPT_FLAG,
         .dest = &o->no_pin,
         .help = "do not give each thread a core of its own"},
        {.name = "no-mmap",
         .kind = PI_OPT_FLAG,
         .dest = &o->no_mmap,
         .help =
             "copy the weights to memory of its own, in huge pages, instead of mapping\nthe file"},
        {.name = "mlock",
         .kind = PI_OPT_FLAG,
         .dest = &o->mlock,
         .help = "lock the weights in memory, so that they are never swapped or dropped"},
    };

    ADD(t, rows);
}

static void prompt_rows(struct pi_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "prompt",
         .letter = 'p',
         .kind = PI_OPT_STRING,
         .dest = &o->text,
         .arg = "TEXT",
         .help = "the prompt"},
        {.name = "file",
         .letter = 'f',
         .kind = PI_OPT_STRING,
         .dest = &o->file,
         .arg = "FILE",
         .help = "the prompt, byte for byte; default: standard input"},
        {.name = "tokens",
         .kind = PI_OPT_STRING,
         .dest = &o->tokens,
         .arg = "IDS",
         .help = "the prompt as token ids 1,2,3; nothing is added"},
        {.name = "special",
         .kind = PI_OPT_FLAG,
         .dest = &o->special,
         .help = "special tokens written out in the prompt become tokens"},
    };

    ADD(t, rows);
}

static void generation_rows(struct pi_run_options *o, struct pi_opt *t)
{
    struct pi_sampler_options *s = &o->sampler;
    const struct pi_opt rows[] = {
        {.name = "predict",
         .letter = 'n',
         .kind = PI_OPT_U32,
         .dest = &o->n_predict,
         .arg = "N",
         .min = 0,
         .max = 2147483647,
         .given = &o->n_given,
         .help = "tokens to generate; default: until the model ends or the context is full"},
        {.name = "seed",
         .letter = 's',
         .kind = PI_OPT_U64,
         .dest = &s->seed,
         .arg = "SEED",
         .min = 0,
         .max = MAX_SEED,
         .given = &o->seed_given,
         .help = "same seed, same text; default: drawn and printed"},
        {.name = "temp",
         .kind = PI_OPT_F32,
         .dest = &s->temp,
         .arg = "X",
         .min = 0,
         .max = 100,
         .help = "temperature; 0 is greedy; default 0.8"},
        {.name = "top-k",
         .kind = PI_OPT_U32,
         .dest = &s->top_k,
         .arg = "N",
         .min = 0,
         .max = ANY_U32,
         .help = "0: all; default 40"},
        {.name = "top-p",
         .kind = PI_OPT_F32,
         .dest = &s->top_p,
         .arg = "X",
         .min = 0,
         .max = 1,
         .help = "1: all; default 0.95"},
        {.name = "min-p",
         .kind = PI_OPT_F32,
         .dest = &s->min_p,
         .arg = "X",
         .min = 0,
         .max = 1,
         .help = "0: all; default 0.05"},
        {.name = "repeat-penalty",
         .kind = PI_OPT_F32,
         .dest = &s->repeat_penalty,
         .arg = "X",
         .min = 0.1,
         .max = 10,
         .help = "1: none, the default"},
        {.name = "repeat-last-n",
         .kind = PI_OPT_U32,
         .dest = &s->repeat_last_n,
         .arg = "N",
         .min = 0,
         .max = ANY_U32,
         .help = "tokens that the penalty looks back on; default 64"},
        {.name = "ignore-eos",
         .kind = PI_OPT_FLAG,
         .dest = &o->ignore_eos,
         .help = "never draw a token that ends the text"},
    };

    ADD(t, rows);
}

static void action_rows(struct pi_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "json",
         .kind = PI_OPT_FLAG,
         .dest = &o->json,
         .help = "the result as one JSON object"},
        {.name = "tokenize",
         .kind = PI_OPT_FLAG,
         .dest = &o->tokenize,
         .help = "print the prompt's token ids and stop; needs only the vocabulary"},
        {.name = "bos",
         .kind = PI_OPT_FLAG,
         .dest = &o->bos,
         .help = "with --tokenize: put the BOS token in front"},
        {.name = "logits",
         .kind = PI_OPT_STRING,
         .dest = &o->logits,
         .arg = "FILE",
         .help = "write the prompt's logits (little-endian float32 [tokens, vocabulary]) and stop"},
        {.name = "perplexity",
         .kind = PI_OPT_STRING,
         .dest = &o->perplexity,
         .arg = "FILE",
         .help = "measure the perplexity of a text"},
        {.name = "window",
         .kind = PI_OPT_U32,
         .dest = &o->window,
         .arg = "N",
         .min = 1,
         .max = 2147483647,
         .given = &o->window_given,
         .help = "tokens scored from an empty cache; default 512, or the context if smaller"},
        {.name = "field",
         .kind = PI_OPT_STRING,
         .dest = &o->field,
         .arg = "NAME",
         .help = "with --perplexity and JSON lines: the field to read"},
        {.name = "stepwise",
         .kind = PI_OPT_FLAG,
         .dest = &o->stepwise,
         .help = "with --logits, --perplexity: decode token by token, in the mode"},
        {.name = "verify",
         .kind = PI_OPT_FLAG,
         .dest = &o->verify,
         .help = "run dense beside and report how far the mode is from it"},
        {.name = "masks",
         .kind = PI_OPT_STRING,
         .dest = &o->masks,
         .arg = "FILE",
         .help = "with --verify: write predicted and true sets"},
    };

    ADD(t, rows);
}

static void bench_rows(struct pi_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "bench",
         .kind = PI_OPT_FLAG,
         .dest = &o->bench,
         .help = "measure prompt and decode speed on random tokens and stop"},
        {.name = "bench-prompt",
         .kind = PI_OPT_U32,
         .dest = &o->bench_prompt,
         .arg = "N",
         .min = 0,
         .max = 2147483647,
         .given = &o->bench_given,
         .help = "with --bench: tokens of a prompt; default 128"},
        {.name = "bench-tokens",
         .kind = PI_OPT_U32,
         .dest = &o->bench_tokens,
         .arg = "N",
         .min = 1,
         .max = 2147483647,
         .given = &o->bench_given,
         .help = "with --bench: decode steps; default 128"},
        {.name = "bench-random",
         .kind = PI_OPT_FLAG,
         .dest = &o->bench_random,
         .help = "with --bench: decode random tokens, not those that are drawn"},
        {.name = "budgets",
         .kind = PI_OPT_STRING,
         .dest = &o->budgets_text,
         .arg = "SIZES",
         .help =
             "with --bench: a table of what each of these budgets would give (2G,4G,8G);\nneeds a profile, and no placement"},
        {.name = "parallel",
         .kind = PI_OPT_U32,
         .dest = &o->n_parallel,
         .arg = "N",
         .min = 1,
         .max = 4096,
         .given = &o->parallel_given,
         .help =
             "with --bench and --serve: sequences that are decoded together; default 1,\nand 4 of a server"},
        {.name = "hardware",
         .kind = PI_OPT_STRING,
         .dest = &o->hardware,
         .arg = "FILE",
         .help =
             "with --bench: the machine's bandwidths; default: hardware.yaml in the\nworking folder, else they are measured"},
    };

    ADD(t, rows);
}

static void chat_rows(struct pi_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "chat",
         .kind = PI_OPT_FLAG,
         .dest = &o->chat,
         .help = "talk with the model: a message a line, /help for more"},
        {.name = "system",
         .kind = PI_OPT_STRING,
         .dest = &o->system,
         .arg = "TEXT",
         .help = "with --chat: the system text, in front of the conversation"},
        {.name = "chat-template",
         .kind = PI_OPT_STRING,
         .dest = &o->chat_template,
         .arg = "NAME",
         .help =
             "with --chat and --serve: chatml, llama2, llama3, mistral, zephyr, phi3, vicuna,\nalpaca or plain; default: as the model says"},
    };

    ADD(t, rows);
}

static void serve_rows(struct pi_run_options *o, struct pi_opt *t)
{
    const struct pi_opt rows[] = {
        {.name = "serve",
         .kind = PI_OPT_FLAG,
         .dest = &o->serve,
         .help = "be an HTTP server with an OpenAI-compatible API"},
        {.name = "host",
         .kind = PI_OPT_STRING,
         .dest = &o->host,
         .given = &o->serve_given,
         .arg = "ADDRESS",
         .help = "with --serve: what to listen on; default 127.0.0.1, this machine alone"},
        {.name = "port",
         .kind = PI_OPT_U32,
         .dest = &o->port,
         .arg = "N",
         .min = 0,
         .max = 65535,
         .given = &o->serve_given,
         .help = "with --serve: default 8080; 0: any that is free, which is printed"},
        {.name = "api-key",
         .kind = PI_OPT_STRING,
         .dest = &o->api_key,
         .given = &o->serve_given,
         .arg = "KEY",
         .help =
             "with --serve: what clients must send; default: PI_API_KEY of the environment,\nelse none"},
        {.name = "max-request",
         .kind = PI_OPT_BYTES,
         .dest = &o->max_request,
         .arg = "SIZE",
         .min = 1024,
         .max = 64 << 20,
         .given = &o->serve_given,
         .help = "with --serve: largest request, 1K to 64M; default 4M"},
        {.name = "time-limit",
         .kind = PI_OPT_F32,
         .dest = &o->time_limit,
         .arg = "SECONDS",
         .min = 0,
         .max = 1e6,
         .given = &o->serve_given,
         .help = "with --serve: when an answer is cut; default 0, never"},
    };

    ADD(t, rows);
}

/* Pairs of options of which one makes no sense with, or without, the other. */
static enum pi_code check_together(const struct pi_run_options *o, struct pi_err *err)
{
    const bool measuring = o->logits != NULL || o->perplexity != NULL;
    const int prompts = (o->text != NULL) + (o->file != NULL) + (o->tokens != NULL);
    const struct {
        bool bad;
        const char *text;
    } rules[] = {
        {o->model == NULL && !o->demo, "no model: -m MODEL.gguf (or --demo)"},
        {o->model != NULL && o->demo, "--demo is a model of its own: it goes without -m"},
        {prompts > 1, "only one of -p, -f and --tokens can be the prompt"},
        {o->tokenize + (o->logits != NULL) + (o->perplexity != NULL) + o->bench + o->serve +
                 o->chat >
             1,
         "only one of --tokenize, --logits, --perplexity, --bench, --serve and --chat at a time"},
        {o->serve && (prompts > 0 || o->n_given || o->verify || o->json),
         "--serve goes with no prompt, -n, --verify or --json"},
        {!o->serve && o->serve_given,
         "--host, --port, --api-key, --max-request and --time-limit go with --serve"},
        {o->chat && (prompts > 0 || o->verify || o->json),
         "--chat goes with no prompt, --verify or --json"},
        {o->chat && o->n_given && o->n_predict == 0, "--chat wants -n of 1 or more"},
        {!o->chat && o->system != NULL, "--system goes with --chat"},
        {!o->chat && !o->serve && o->chat_template != NULL,
         "--chat-template goes with --chat or --serve"},
        {o->tokenize && o->tokens != NULL, "--tokenize wants text, not --tokens"},
        {o->bos && !o->tokenize,
         "--bos goes with --tokenize; elsewhere the model says whether a BOS is added"},
        {o->special && o->tokens != NULL, "--special has no effect on --tokens"},
        {o->perplexity != NULL && prompts > 0,
         "--perplexity takes its text from its own file, not from a prompt"},
        {o->stepwise && !measuring, "--stepwise goes with --logits or --perplexity"},
        {o->window_given && o->perplexity == NULL, "--window goes with --perplexity"},
        {o->field != NULL && o->perplexity == NULL, "--field goes with --perplexity"},
        {o->masks != NULL && !o->verify, "--masks goes with --verify"},
        {o->bench && prompts > 0, "--bench makes its own prompt of random tokens"},
        {o->bench && (o->n_given || o->verify), "--bench goes with neither -n nor --verify"},
        {!o->bench && (o->bench_given || o->bench_random || o->hardware != NULL),
         "--bench-prompt, --bench-tokens, --bench-random and --hardware go with --bench"},
        {!o->bench && o->budgets_text != NULL, "--budgets goes with --bench"},
        {o->budgets_text != NULL && (o->placement != NULL || o->vram_given),
         "--budgets makes its own placements: it goes with neither --placement nor --vram-budget"},
        {o->budgets_text != NULL && o->device.kind == PI_DEVICE_CPU,
         "--budgets has no effect with --device cpu; cpu+cpu runs both units of a placement on the CPU"},
        {!o->bench && !o->serve && o->parallel_given, "--parallel goes with --bench or --serve"},
        {o->verify && (o->logits != NULL || o->tokenize),
         "--verify goes with a prompt or --perplexity"},
        {o->sampler.repeat_penalty != 1.0f && o->sampler.repeat_last_n == 0,
         "--repeat-penalty has no effect with --repeat-last-n 0"},
        {o->vram_given && o->device.kind == PI_DEVICE_CPU,
         "--vram-budget has no effect with --device cpu"},
    };

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (rules[i].bad)
            return pi_err_set(err, PI_E_USAGE, "%s", rules[i].text);
    return PI_OK;
}

/* "2G,4G,8G" */
static enum pi_code parse_budgets(struct pi_run_options *o, struct pi_err *err)
{
    const char *at = o->budgets_text;

    for (;;) {
        const size_t n = strcspn(at, ",");
        char one[32];
        enum pi_code rc;

        if (o->n_budgets == PI_RUN_BUDGETS)
            return pi_err_set(err, PI_E_RANGE, "--budgets: more than %d", PI_RUN_BUDGETS);
        (void)snprintf(one, sizeof(one), "%.*s", n < sizeof(one) ? (int)n : 31, at);
        rc = pi_parse_bytes(one, "--budgets", &o->budgets[o->n_budgets], err);
        if (rc != PI_OK)
            return rc;
        o->n_budgets++;
        if (at[n] == '\0')
            return PI_OK;
        at += n + 1;
    }
}

/* Where nothing else is asked of the demo model it continues a sentence. */
static enum pi_code fill_demo(struct pi_run_options *o, const struct pi_run_log *log,
                              struct pi_err *err)
{
    const bool prompted = o->text != NULL || o->file != NULL || o->tokens != NULL;
    const bool other = o->perplexity != NULL || o->bench || o->serve || o->chat;
    const enum pi_code rc = pi_where_demo(o->demo_model, sizeof(o->demo_model), err);

    if (rc != PI_OK)
        return rc;
    o->model = o->demo_model;
    if (!prompted && !other) {
        pi_run_notice(log, "going on from: %s", DEMO_PROMPT);
        o->text = DEMO_PROMPT;
        if (!o->n_given && !o->tokenize && o->logits == NULL) {
            o->n_predict = DEMO_TOKENS;
            o->n_given = true;
        }
    }
    return PI_OK;
}

static uint64_t draw_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != (ssize_t)sizeof(seed))
        seed = (uint64_t)time(NULL);
    return seed & 0xffffffff; /* short enough to be typed */
}

enum pi_code pi_run_options_parse(int argc, char **argv, struct pi_run_options *out,
                                  struct pi_run_log *log_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_opt table[N_ROWS_MAX] = {0};
    struct pi_program prog = pi_run_program;
    const char *operands[1];

    memset(log_out, 0, sizeof(*log_out));
    memset(out, 0, sizeof(*out));
    out->sampler = (struct pi_sampler_options){.temp = 0.8f,
                                               .top_k = 40,
                                               .top_p = 0.95f,
                                               .min_p = 0.05f,
                                               .repeat_penalty = 1,
                                               .repeat_last_n = 64};
    out->numa = PI_NUMA_DISTRIBUTE;
    out->bench_prompt = out->bench_tokens = 128;
    out->n_parallel = 1;
    out->host = "127.0.0.1";
    out->port = 8080;
    out->max_request = 4 << 20;
    model_rows(out, table);
    how_rows(out, table);
    prompt_rows(out, table);
    generation_rows(out, table);
    action_rows(out, table);
    bench_rows(out, table);
    chat_rows(out, table);
    serve_rows(out, table);
    prog.opts = table;
    PI_TRY(pi_opt_parse(&prog, argc, argv, operands, &log_out->common, err));
    if (log_out->common.help || log_out->common.version)
        goto out;
    PI_TRY(pi_device_parse(out->device_text, true, &out->device, err));
    PI_TRY(check_together(out, err));
    if (out->budgets_text != NULL)
        PI_TRY(parse_budgets(out, err));
    if (out->demo)
        PI_TRY(fill_demo(out, log_out, err));
    if (!out->seed_given)
        out->sampler.seed = draw_seed();
    if (out->serve && !out->parallel_given)
        out->n_parallel = SERVER_PARALLEL;
    if (out->serve && out->api_key == NULL)
        out->api_key = getenv("PI_API_KEY");
    if (out->api_key != NULL && *out->api_key == '\0')
        out->api_key = NULL;
out:
    return rc;
}
