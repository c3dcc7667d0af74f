#include "config.h"

#include "runtime/pi_run_rows.h"

#include <string.h>

#define ANY_U32  4294967295.0
#define MAX_SEED 9223372036854774784.0 /* what a double and JSON's signed integers hold */

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
             "with --bench and --serve: sequences that are decoded together; default 1;\nof a server 4, or what the placement was made for"},
        {.name = "step-width",
         .kind = PI_OPT_U32,
         .dest = &o->step_width,
         .arg = "N",
         .min = 1,
         .max = 4096,
         .help =
             "with --serve, and --bench --parallel: decode no more than so many in one step;\ndefault: as many as is measured to be fastest"},
        {.name = "one-by-one",
         .kind = PI_OPT_FLAG,
         .dest = &o->one_by_one,
         .help =
             "with --parallel, on a GPU: decode sequences one after the other, so that none\nof them has other last digits for the others' sake"},
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

void pi_run_rows(struct pi_run_options *o, struct pi_opt *t)
{
    model_rows(o, t);
    how_rows(o, t);
    prompt_rows(o, t);
    generation_rows(o, t);
    action_rows(o, t);
    bench_rows(o, t);
    chat_rows(o, t);
    serve_rows(o, t);
}
