#include "config.h"

#include "runtime/pi_run_options.h"

#include "common/pi_estimate.h"
#include "common/pi_placement.h"
#include "runtime/pi_run_rows.h"
#include "runtime/pi_where.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/random.h>

const struct pi_program pi_run_program = {
    .name = "pi-run",
    .synopsis =
        "-m MODEL.gguf [-p TEXT | -f FILE | --tokens IDS | --chat] [options], or pi-run --demo",
    .about =
        "Generates text with a language model, or measures it; finds the model's artifacts beside it.",
};

#define SERVER_PARALLEL 4
#define DEMO_PROMPT     "Once upon a time there was a little girl who"
#define DEMO_TOKENS     120

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
        {!o->bench && !o->serve && o->one_by_one, "--one-by-one goes with --bench or --serve"},
        {!o->bench && !o->serve && o->step_width > 0, "--step-width goes with --bench or --serve"},
        {o->bench && !o->parallel_given && o->step_width > 0,
         "--step-width has no effect with --bench of one sequence: give --parallel N"},
        {o->one_by_one && o->step_width > 1, "--one-by-one is --step-width 1"},
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
    struct pi_opt table[PI_RUN_ROWS_MAX] = {0};
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
    pi_run_rows(out, table);
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
