/* Editing and history through libedit. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/chat/pi_line_int.h"

#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define HISTORY_LINES 1000

struct pi_edit {
    EditLine *el;
    History *history;
    const char *prompt; /* borrowed for a line */
    bool interrupted, empty;
};

static char *prompt(EditLine *el)
{
    struct pi_edit *e = NULL;

    (void)el_get(el, EL_CLIENTDATA, &e);
    return (char *)(uintptr_t)e->prompt;
}

/* Ctrl-C is a key while a line is edited: libedit forgets the line where it is a signal, and we want to know whether there was one. */
static unsigned char on_interrupt(EditLine *el, int ch)
{
    struct pi_edit *e = NULL;
    const LineInfo *line = el_line(el);

    (void)ch;
    (void)el_get(el, EL_CLIENTDATA, &e);
    e->interrupted = true;
    e->empty = line->lastchar == line->buffer;
    (void)fputc('\n', stderr);
    return CC_NEWLINE;
}

static unsigned char on_suspend(EditLine *el, int ch)
{
    (void)el;
    (void)ch;
    (void)raise(SIGTSTP); /* libedit's handler puts the terminal right, before and after */
    return CC_REFRESH;
}

/* libedit takes characters apart as the locale says; where that knows bytes alone, UTF-8 is what terminals send. */
static void choose_locale(void)
{
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
}

enum pi_code pi_edit_open(struct pi_edit **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_edit *e = NULL;
    HistEvent ev;

    choose_locale();
    PI_ALLOC(e, 1, err);
    e->el = el_init("pi-run", stdin, stderr, stderr);
    e->history = history_init();
    if (e->el == NULL || e->history == NULL)
        PI_FAIL(err, PI_E_NOMEM, "no memory for the line editor");
    (void)history(e->history, &ev, H_SETSIZE, HISTORY_LINES);
    (void)history(e->history, &ev, H_SETUNIQUE, 1);
    (void)el_set(e->el, EL_CLIENTDATA, e);
    (void)el_set(e->el, EL_EDITOR, "emacs");
    (void)el_set(e->el, EL_SIGNAL, 1); /* the terminal is put right before a signal acts */
    (void)el_set(e->el, EL_PROMPT, prompt);
    (void)el_set(e->el, EL_HIST, history, e->history);
    (void)el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    (void)el_source(e->el, NULL); /* ~/.editrc */
    (void)el_set(e->el, EL_ADDFN, "pi-interrupt", "drop the line", on_interrupt);
    (void)el_set(e->el, EL_BIND, "^C", "pi-interrupt", NULL);
    (void)el_set(e->el, EL_ADDFN, "pi-suspend", "stop the program", on_suspend);
    (void)el_set(e->el, EL_BIND, "^Z", "pi-suspend", NULL);
    (void)el_set(e->el, EL_SETTY, "-d", "-isig", NULL);
    *out = e;
    e = NULL;
out:
    pi_edit_close(e);
    return rc;
}

void pi_edit_close(struct pi_edit *e)
{
    if (e == NULL)
        return;
    if (e->el != NULL)
        el_end(e->el);
    if (e->history != NULL)
        history_end(e->history);
    free(e);
}

struct pi_turn pi_edit_line(struct pi_edit *e, const char *text)
{
    int n = 0;
    HistEvent ev;
    struct pi_turn t = {.kind = PI_LINE_TEXT};

    e->prompt = text;
    e->interrupted = false;
    t.text = el_gets(e->el, &n);
    if (e->interrupted) {
        t.kind = PI_LINE_INTERRUPT;
        t.empty = e->empty;
        return t;
    }
    if (t.text == NULL || n <= 0) {
        t.kind = pi_interrupted() ? PI_LINE_INTERRUPT : PI_LINE_END;
        t.empty =
            true; /* a signal that another program sent: as good as Ctrl-C at an empty prompt */
        (void)fputc('\n', stderr);
        return t;
    }
    t.n = (size_t)n;
    if (t.text[0] != '\n')
        (void)history(e->history, &ev, H_ENTER, t.text);
    return t;
}
