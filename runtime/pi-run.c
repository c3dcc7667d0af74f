/* pi-run: generates text with a model, or measures it. */
#include "config.h"

#include "common/pi_file.h"
#include "common/pi_progress.h"
#include "runtime/chat/pi_converse.h"
#include "runtime/pi_bench.h"
#include "runtime/pi_budgets.h"
#include "runtime/pi_generate.h"
#include "runtime/pi_load.h"
#include "runtime/pi_measure.h"
#include "runtime/pi_prompt.h"
#include "runtime/pi_run_options.h"
#include "runtime/server/pi_server.h"

#include <signal.h>

static enum pi_code check_outputs(const struct pi_run_options *o, struct pi_err *err)
{
    const char *const inputs[] = {o->model,     o->profile, o->predictor,
                                  o->placement, o->file,    o->perplexity};
    enum pi_code rc = PI_OK;

    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        PI_TRY(pi_out_check_input(o->logits, inputs[i], err));
        PI_TRY(pi_out_check_input(o->masks, inputs[i], err));
    }
out:
    return rc;
}

static enum pi_code run_model(const struct pi_run_options *o, const struct pi_run_log *log,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const bool prompted = o->perplexity == NULL && !o->bench && !o->serve && !o->chat;
    const double began = pi_now();
    struct pi_loaded l = {0};
    struct pi_prompt p = {0};
    struct pi_run_options fewer = *o;

    PI_TRY(check_outputs(o, err));
    if (prompted)
        PI_TRY(pi_prompt_read(o, &p, err));
    pi_interrupt_install();
    PI_TRY(pi_load_model(o, log, &l, err));
    if (o->serve && !o->parallel_given && l.has_place && l.place.n_seq < o->n_parallel) {
        fewer.n_parallel = l.place.n_seq; /* nobody asked for more than was placed */
        o = &fewer;
    }
    if (o->bench)
        PI_TRY(pi_bench_check(o, &l, err));
    if (prompted) {
        PI_TRY(pi_prompt_encode(o, l.tok, &p, err));
        PI_TRY(pi_generate_check(o, &l, &p, err));
    }
    PI_TRY(pi_load_engine(o, log, &l, err));
    if (o->serve)
        PI_TRY(pi_serve(o, log, &l, err));
    else if (o->chat)
        PI_TRY(pi_converse(o, log, &l, err));
    else if (o->bench)
        PI_TRY(pi_bench(o, log, &l, began, err));
    else if (o->perplexity != NULL)
        PI_TRY(pi_measure_perplexity(o, log, &l, err));
    else if (o->logits != NULL)
        PI_TRY(pi_measure_logits(o, log, &l, &p, err));
    else
        PI_TRY(pi_generate(o, log, &l, &p, err));
out:
    pi_prompt_free(&p);
    pi_load_free(&l);
    return rc;
}

int main(int argc, char **argv)
{
    struct pi_run_options o;
    struct pi_run_log log;
    struct pi_err err = {0};
    enum pi_code rc;

    (void)signal(
        SIGPIPE,
        SIG_IGN); /* a reader that went away is an error with a message, like a full disk */
    rc = pi_run_options_parse(argc, argv, &o, &log, &err);
    if (rc == PI_OK && !log.common.help && !log.common.version)
        rc = o.tokenize        ? pi_prompt_tokenize(&o, &err)
             : o.n_budgets > 0 ? pi_budgets(&o, &log, run_model, &err)
                               : run_model(&o, &log, &err);
    return pi_program_end(&pi_run_program, &log.common, rc, &err);
}
