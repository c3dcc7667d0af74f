#include "config.h"

#include "runtime/pi_child.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_progress.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_OUTPUT ((size_t)64 << 20)

/* A descriptor of this process becomes a file. */
static bool turn(int fd, const char *path, int flags)
{
    const int f = open(path, flags | O_CLOEXEC, 0600);

    return f >= 0 && dup2(f, fd) >= 0;
}

static _Noreturn void be_child(const char *out, const char *err, pi_child_fn fn, void *ctx)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;

    if (!turn(STDIN_FILENO, "/dev/null", O_RDONLY) || !turn(STDOUT_FILENO, out, flags) ||
        !turn(STDERR_FILENO, err, flags))
        _exit(pi_code_exit_status(PI_E_IO));
    _exit(fn(ctx));
}

static enum pi_code wait_for(pid_t pid, int *status_out, struct pi_err *err)
{
    int s;

    while (waitpid(pid, &s, 0) < 0) {
        if (errno != EINTR)
            return pi_err_set(err, PI_E_IO, "waiting for a process: %s", strerror(errno));
        if (pi_interrupted())
            (void)kill(pid, SIGTERM);
    }
    *status_out = WIFEXITED(s) ? WEXITSTATUS(s) : 128 + WTERMSIG(s);
    return pi_interrupt_check(err);
}

/* Keeps the last line of a text. */
static void last_line(char *text)
{
    size_t n = strlen(text);
    char *begin;

    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    begin = strrchr(text, '\n');
    if (begin != NULL)
        memmove(text, begin + 1, strlen(begin + 1) + 1);
    pi_one_line(text);
}

enum pi_code pi_child_run(const char *dir, pi_child_fn fn, void *ctx, struct pi_child *out,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *out_path, *err_path = NULL;
    size_t n;
    pid_t pid;

    memset(out, 0, sizeof(*out));
    out_path = pi_asprintf(err, "%s/out", dir);
    err_path = pi_asprintf(err, "%s/err", dir);
    if (out_path == NULL || err_path == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    (void)fflush(NULL); /* or the child would write it once more */
    pid = fork();
    if (pid < 0)
        PI_FAIL(err, PI_E_IO, "cannot start a process: %s", strerror(errno));
    if (pid == 0)
        be_child(out_path, err_path, fn, ctx);
    PI_TRY(wait_for(pid, &out->status, err));
    PI_TRY(pi_file_read_all(out_path, false, MAX_OUTPUT, &out->out, &n, err));
    PI_TRY(pi_file_read_all(err_path, false, MAX_OUTPUT, &out->err, &n, err));
    last_line(out->err);
out:
    if (out_path != NULL)
        (void)unlink(out_path);
    if (err_path != NULL)
        (void)unlink(err_path);
    free(out_path);
    free(err_path);
    if (rc != PI_OK)
        pi_child_free(out);
    return rc;
}

void pi_child_free(struct pi_child *c)
{
    free(c->out);
    free(c->err);
    memset(c, 0, sizeof(*c));
}

int pi_child_exec(char *const argv[])
{
    (void)signal(SIGPIPE, SIG_DFL);
    (void)execvp(argv[0], argv);
    (void)fprintf(stderr, "cannot run %s: %s\n", argv[0], strerror(errno));
    return pi_code_exit_status(PI_E_IO);
}
