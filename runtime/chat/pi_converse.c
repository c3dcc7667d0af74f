#include "config.h"

#include "runtime/chat/pi_converse.h"

#include "common/pi_file.h"
#include "common/pi_progress.h"
#include "runtime/chat/pi_answer.h"
#include "runtime/chat/pi_line.h"
#include "runtime/pi_report.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct chat {
    const struct pi_run_options *o;
    const struct pi_run_log *log;
    const struct pi_loaded *l;
    struct pi_answerer answerer;
    struct pi_line *line;
    struct pi_talk talk;
    struct pi_answer last; /* its text is freed */
    bool quit, warned;     /* warned: Ctrl-C at an empty prompt */
};

/* What was asked for, or went wrong: shown with --quiet too. */
#define tell(c, ...)                                                                            \
    pi_notice(&pi_run_program, &(struct pi_common_opts){.log_json = (c)->log->common.log_json}, \
              __VA_ARGS__)

/* ---- commands ------------------------------------------------------------------------------- */

static enum pi_code do_reset(struct chat *c, const char *arg, struct pi_err *err)
{
    const size_t first = pi_talk_first(&c->talk);

    (void)arg;
    (void)err;
    pi_talk_drop(&c->talk, first, c->talk.n - first);
    pi_run_notice(c->log, "a new conversation%s", first > 0 ? ", with the same system text" : "");
    return PI_OK;
}

static enum pi_code do_save(struct chat *c, const char *path, struct pi_err *err)
{
    const char *const inputs[] = {c->o->model, c->o->profile, c->o->predictor, c->o->placement};
    enum pi_code rc = PI_OK;

    if (*path == '\0')
        PI_FAIL(err, PI_E_USAGE, "/save FILE");
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++)
        PI_TRY(pi_out_check_input(path, inputs[i], err));
    PI_TRY(pi_talk_save(&c->talk, path, &c->l->model.lineage, err));
    pi_run_notice(c->log, "%s: %zu messages", path, c->talk.n);
out:
    return rc;
}

static enum pi_code do_load(struct chat *c, const char *path, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (*path == '\0')
        PI_FAIL(err, PI_E_USAGE, "/load FILE");
    PI_TRY(pi_talk_load(path, &c->l->model.lineage, &c->talk, err));
    pi_run_notice(c->log, "%s: %zu messages", path, c->talk.n);
out:
    return rc;
}

static double rate(double n, double seconds)
{
    return n > 0 && seconds > 0 ? n / seconds : 0;
}

static enum pi_code do_stats(struct chat *c, const char *arg, struct pi_err *err)
{
    const struct pi_sequence_stats *s = &c->last.all;
    const size_t n_read = s->n_prompt - s->n_reused;
    struct pi_batcher_totals t;

    (void)arg;
    (void)err;
    pi_batcher_totals(c->answerer.batcher, &t);
    tell(c, "conversation: %zu messages, format %s, %s", c->talk.n,
         pi_chat_name(c->answerer.format), pi_mode_name(c->l->mode));
    if (s->n_prompt > 0)
        tell(
            c,
            "last answer: %u tokens at %.1f tokens/s, after reading %zu tokens at %.1f tokens/s (%zu more had been read before); %zu of %u tokens of the context",
            (unsigned)s->n_drawn, rate(s->n_steps, s->s_decode), n_read,
            rate((double)n_read, s->s_prompt), s->n_reused, c->last.n_used,
            (unsigned)c->answerer.n_ctx);
    tell(c, "since the start: %llu tokens written, %llu read", (unsigned long long)t.drawn_tokens,
         (unsigned long long)t.prompt_tokens);
    return PI_OK;
}

static enum pi_code do_help(struct chat *c, const char *arg, struct pi_err *err)
{
    (void)c;
    (void)arg;
    (void)err;
    (void)fputs("/reset      begin a new conversation\n"
                "/save FILE  write the conversation to a file\n"
                "/load FILE  go on with a conversation from a file\n"
                "/stats      speed, and how full the context is\n"
                "/help       this list\n"
                "/quit       leave; so does Ctrl-D, or Ctrl-C twice\n"
                "Ctrl-C stops an answer. A line that ends in \\ goes on in the next;\n"
                "lines between \"\"\" and \"\"\" are one message.\n",
                stderr);
    return PI_OK;
}

static enum pi_code do_quit(struct chat *c, const char *arg, struct pi_err *err)
{
    (void)arg;
    (void)err;
    c->quit = true;
    return PI_OK;
}

static const struct {
    const char *name;
    enum pi_code (*run)(struct chat *c, const char *arg, struct pi_err *err);
} commands[] = {{"/reset", do_reset}, {"/save", do_save}, {"/load", do_load},
                {"/stats", do_stats}, {"/help", do_help}, {"/quit", do_quit}};

/* A command that fails is told and changes nothing. */
static void command(struct chat *c, const char *line)
{
    const size_t n_name = strcspn(line, " \t");
    const char *arg = line + n_name + strspn(line + n_name, " \t");
    struct pi_err err = {0};

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strlen(commands[i].name) != n_name || strncmp(commands[i].name, line, n_name) != 0)
            continue;
        if (commands[i].run(c, arg, &err) != PI_OK)
            tell(c, "%s", err.msg);
        return;
    }
    (void)pi_err_set(&err, PI_E_USAGE, "%.*s: no such command (/help lists them)",
                     n_name < 40 ? (int)n_name : 40, line);
    tell(c, "%s", err.msg);
}

/* ---- turns ---------------------------------------------------------------------------------- */

static void say_end(const struct chat *c, const struct pi_answer *x)
{
    if (x->n_forgotten > 0)
        tell(c, "the context of %u tokens is full: the oldest %zu messages were forgotten",
             (unsigned)c->answerer.n_ctx, x->n_forgotten);
    if (x->end == PI_ANSWER_FULL)
        tell(c, "the context of %u tokens is full: the answer is cut (-c)",
             (unsigned)c->answerer.n_ctx);
    else if (x->end == PI_ANSWER_CUT)
        pi_run_notice(c->log, "the answer is cut after %u tokens (-n)", (unsigned)x->n_drawn);
    else if (x->end == PI_ANSWER_DONE && x->from == x->to)
        pi_run_notice(c->log, "the answer is empty");
}

/* Keeps an answer, also one that was stopped; a question that was stopped before any answer is taken back. */
static enum pi_code keep(struct chat *c, const struct pi_answer *x, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (x->end == PI_ANSWER_STOPPED && x->from == x->to) {
        pi_talk_drop(&c->talk, c->talk.n - 1, 1);
        tell(c, "stopped before an answer: the message is taken back");
    } else {
        PI_TRY(pi_talk_add(&c->talk, PI_ROLE_ASSISTANT,
                           x->text.clean != NULL ? x->text.clean + x->from : "", x->to - x->from,
                           err));
    }
out:
    return rc;
}

static enum pi_code message(struct chat *c, const struct pi_turn *t, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_answer x = {0};

    PI_TRY(pi_talk_add(&c->talk, PI_ROLE_USER, t->text, t->n, err));
    if (pi_line_interactive(c->line))
        pi_interrupt_restart();
    rc = pi_answer(&c->answerer, &c->talk, &x, err);
    if (rc == PI_E_RANGE) {
        pi_talk_drop(&c->talk, c->talk.n - 1, 1);
        tell(c, "%s", err->msg);
        rc = PI_OK;
        goto out;
    }
    if (rc != PI_OK)
        goto out;
    (void)putchar('\n');
    PI_TRY(pi_stdout_check(err));
    say_end(c, &x);
    PI_TRY(keep(c, &x, err));
    c->last = x;
    memset(&c->last.text, 0, sizeof(c->last.text));
    if (x.end == PI_ANSWER_STOPPED && !pi_line_interactive(c->line))
        rc = pi_interrupt_check(err);
out:
    pi_answer_free(&x);
    return rc;
}

/* At the prompt. */
static void interrupted(struct chat *c, const struct pi_turn *t)
{
    if (t->empty && c->warned) {
        c->quit = true;
        return;
    }
    c->warned = t->empty;
    if (t->empty)
        pi_run_notice(c->log, "Ctrl-C again or Ctrl-D leaves");
}

static enum pi_code turn(struct chat *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_turn t;

    if (pi_line_interactive(c->line) && !pi_interrupt_forget())
        return pi_interrupt_check(err);
    PI_TRY(pi_interrupt_check(err));
    PI_TRY(pi_line_turn(c->line, &t, err));
    if (t.kind == PI_LINE_END) {
        c->quit = true;
    } else if (t.kind == PI_LINE_INTERRUPT) {
        if (!pi_line_interactive(c->line) || !pi_interrupt_forget())
            return pi_interrupt_check(err);
        interrupted(c, &t);
    } else {
        c->warned = false;
        if (t.n > 0 && t.text[0] == '/' && !t.block)
            command(c, t.text);
        else if (t.n > 0)
            PI_TRY(message(c, &t, err));
    }
out:
    return rc;
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum pi_code run_batch(void *ctx, enum pi_phase phase, const struct pi_batch *b,
                              float *logits_out, struct pi_err *err)
{
    return pi_engine_run(ctx, phase, b, logits_out, err);
}

static enum pi_code set_up(struct chat *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_answerer *a = &c->answerer;
    const struct pi_batcher_options bo = {.n_slots = 1,
                                          .n_ctx = c->l->n_ctx,
                                          .n_vocab = c->l->model.shape.n_vocab,
                                          .run = run_batch,
                                          .run_ctx = c->l->engine};
    bool known = true;

    *a = (struct pi_answerer){.o = c->o, .log = c->log, .tok = c->l->tok, .n_ctx = c->l->n_ctx};
    if (c->o->chat_template != NULL)
        PI_TRY(pi_chat_find(c->o->chat_template, &a->format, err));
    else
        a->format = pi_chat_detect(&c->l->model.file, &known);
    PI_TRY(pi_batcher_create(&bo, c->l->tok, &a->batcher, err));
    PI_TRY(pi_line_open(&c->line, err));
    if (c->o->system != NULL && *c->o->system != '\0')
        PI_TRY(pi_talk_add(&c->talk, PI_ROLE_SYSTEM, c->o->system, strlen(c->o->system), err));
    if (!known)
        pi_run_notice(c->log,
                      "the model names no chat format that is known: plain User: and Assistant: "
                      "(--chat-template names another)");
    if (!c->o->seed_given && c->o->sampler.temp > 0)
        pi_run_notice(c->log, "seed %llu", (unsigned long long)c->o->sampler.seed);
    if (pi_line_interactive(c->line))
        pi_run_notice(c->log, "/help lists what can be done; Ctrl-D leaves");
out:
    return rc;
}

enum pi_code pi_converse(const struct pi_run_options *o, const struct pi_run_log *log,
                         struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct chat c = {.o = o, .log = log, .l = l};

    PI_TRY(set_up(&c, err));
    while (!c.quit)
        PI_TRY(turn(&c, err));
out:
    pi_line_close(c.line);
    pi_batcher_destroy(c.answerer.batcher);
    pi_talk_free(&c.talk);
    return rc;
}
