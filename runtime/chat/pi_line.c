#include "config.h"

#include "runtime/chat/pi_line.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/chat/pi_line_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUOTES "\"\"\""

struct pi_line {
    bool interactive;
    struct pi_edit *edit; /* NULL: none */
    char *line;           /* (n_line) the newest, without its newline */
    size_t n_line, cap_line;
    char *turn; /* (n_turn) what came together */
    size_t n_turn, cap_turn;
};

enum pi_code pi_line_open(struct pi_line **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_line *l = NULL;

    PI_ALLOC(l, 1, err);
    l->interactive = isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
    if (l->interactive)
        PI_TRY(pi_edit_open(&l->edit, err));
    *out = l;
    l = NULL;
out:
    pi_line_close(l);
    return rc;
}

void pi_line_close(struct pi_line *l)
{
    if (l == NULL)
        return;
    pi_edit_close(l->edit);
    free(l->line);
    free(l->turn);
    free(l);
}

bool pi_line_interactive(const struct pi_line *l)
{
    return l->interactive;
}

static enum pi_code append(char **p, size_t *n, size_t *cap, const char *s, size_t n_s,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (n_s > PI_TURN_MAX - *n)
        PI_FAIL(err, PI_E_RANGE, "a turn of more than %zu MiB", PI_TURN_MAX >> 20);
    PI_TRY(pi_grow_array(p, cap, *n + n_s + 1, 1, err));
    memcpy(*p + *n, s, n_s);
    *n += n_s;
    (*p)[*n] = '\0';
out:
    return rc;
}

/* Without an editor. A last line without a newline counts. */
static enum pi_code read_plain(struct pi_line *l, enum pi_line_kind *kind, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    int c;

    while ((c = getc(stdin)) != EOF && c != '\n') {
        const char byte = (char)c;

        PI_TRY(append(&l->line, &l->n_line, &l->cap_line, &byte, 1, err));
    }
    *kind = c != EOF || l->n_line > 0 ? PI_LINE_TEXT : PI_LINE_END;
    if (c == EOF && ferror(stdin)) {
        const int cause = errno;

        clearerr(stdin);
        if (cause != EINTR)
            PI_FAIL(err, PI_E_IO, "standard input: %s", strerror(cause));
        *kind = PI_LINE_INTERRUPT;
    } else if (c == EOF && l->interactive) {
        clearerr(stdin); /* a terminal goes on after Ctrl-D */
    }
out:
    return rc;
}

/* Ends with neither newline nor carriage return. */
static enum pi_code read_line(struct pi_line *l, const char *prompt, struct pi_turn *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    *out = (struct pi_turn){.empty = true};
    l->n_line = 0;
    if (l->edit != NULL) {
        *out = pi_edit_line(l->edit, prompt);
        if (out->kind == PI_LINE_TEXT)
            PI_TRY(append(&l->line, &l->n_line, &l->cap_line, out->text, out->n, err));
    } else {
        if (l->interactive)
            (void)fputs(prompt, stderr);
        do
            PI_TRY(read_plain(l, &out->kind, err));
        while (out->kind == PI_LINE_INTERRUPT && !pi_interrupted());
        if (l->interactive && out->kind != PI_LINE_TEXT)
            (void)fputc('\n', stderr);
    }
    if (l->n_line > 0 && l->line[l->n_line - 1] == '\n')
        l->n_line--;
    if (l->n_line > 0 && l->line[l->n_line - 1] == '\r')
        l->n_line--;
out:
    return rc;
}

static enum pi_code add(struct pi_line *l, const char *s, size_t n, struct pi_err *err)
{
    return append(&l->turn, &l->n_turn, &l->cap_turn, s, n, err);
}

/* A line of a block from its byte from on; true in *last where the block ends with it. Marks that stand alone leave no empty line. */
static enum pi_code add_block_line(struct pi_line *l, size_t from, bool *last, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t n_quotes = strlen(QUOTES);
    size_t n = l->n_line - from;

    *last = n >= n_quotes && memcmp(l->line + from + n - n_quotes, QUOTES, n_quotes) == 0;
    if (*last)
        n -= n_quotes;
    if (n == 0 && (*last || from > 0))
        goto out;
    PI_TRY(add(l, l->line + from, n, err));
    if (!*last)
        PI_TRY(add(l, "\n", 1, err));
out:
    return rc;
}

/* The lines after the first of a block or of a line that goes on. The end of input ends them too. */
static enum pi_code read_rest(struct pi_line *l, struct pi_turn *t, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_turn more = {.kind = PI_LINE_TEXT};
    bool last = false;

    if (t->block)
        PI_TRY(add_block_line(l, strlen(QUOTES), &last, err));
    while (!last) {
        if (!t->block) {
            last = l->n_line == 0 || l->line[l->n_line - 1] != '\\';
            PI_TRY(add(l, l->n_line > 0 ? l->line : "", l->n_line - !last, err));
            if (last)
                break;
            PI_TRY(add(l, "\n", 1, err));
        }
        PI_TRY(read_line(l, "| ", &more, err));
        if (more.kind == PI_LINE_INTERRUPT) {
            t->kind = more.kind;
            t->empty = false;
            goto out;
        }
        if (more.kind == PI_LINE_END)
            break;
        if (t->block)
            PI_TRY(add_block_line(l, 0, &last, err));
    }
    if (l->n_turn > 0 && l->turn[l->n_turn - 1] == '\n')
        l->n_turn--;
out:
    return rc;
}

enum pi_code pi_line_turn(struct pi_line *l, struct pi_turn *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    l->n_turn = 0;
    PI_TRY(read_line(l, "> ", out, err));
    if (out->kind != PI_LINE_TEXT)
        goto out;
    out->block = l->n_line >= strlen(QUOTES) && memcmp(l->line, QUOTES, strlen(QUOTES)) == 0;
    PI_TRY(read_rest(l, out, err));
    PI_TRY(add(l, "", 0, err));
    out->text = l->turn;
    out->n = l->n_turn;
out:
    return rc;
}
