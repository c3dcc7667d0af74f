#include "config.h"

#include "common/pi_progress.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double pi_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool pi_progress_wanted(bool quiet)
{
    return !quiet && isatty(STDERR_FILENO) == 1;
}

void pi_progress_begin(struct pi_progress *p, const char *what, uint64_t total, bool on)
{
    *p = (struct pi_progress){.what = what, .total = total, .on = on};
    p->t_start = p->t_shown = pi_now();
}

static void write_duration(char *buf, size_t size, double s)
{
    unsigned long t = (unsigned long)(s + 0.5);

    if (t < 60)
        (void)snprintf(buf, size, "%lus", t);
    else if (t < 3600)
        (void)snprintf(buf, size, "%lum%02lus", t / 60, t % 60);
    else
        (void)snprintf(buf, size, "%luh%02lum", t / 3600, t / 60 % 60);
}

void pi_progress_at(struct pi_progress *p, uint64_t done)
{
    double now, gone;
    char eta[32];

    if (!p->on)
        return;
    now = pi_now();
    gone = now - p->t_start;
    if (gone < 1.0 || now - p->t_shown < 0.2)
        return;
    p->t_shown = now;
    p->drawn = true;
    if (p->total == 0 || done == 0) {
        (void)fprintf(stderr, "\r\033[K%s: %llu", p->what, (unsigned long long)done);
    } else {
        if (done > p->total)
            done = p->total;
        write_duration(eta, sizeof(eta), gone * (double)(p->total - done) / (double)done);
        (void)fprintf(stderr, "\r\033[K%s: %3.0f %%  %llu of %llu  %s left", p->what,
                      100.0 * (double)done / (double)p->total, (unsigned long long)done,
                      (unsigned long long)p->total, eta);
    }
    (void)fflush(stderr);
}

void pi_progress_end(struct pi_progress *p)
{
    if (p->drawn)
        (void)fputs("\r\033[K", stderr);
    p->on = p->drawn = false;
}

/* The one mutable global of the project: a signal handler has nowhere else to write. */
static volatile sig_atomic_t stop_asked;

static void on_signal(int sig)
{
    if (stop_asked != SIGTERM)
        stop_asked = sig;
}

static void install(int sig, unsigned flags)
{
    struct sigaction sa;

    memset(&sa, 0, sizeof(sa));
    sa.sa_handler = on_signal;
    sa.sa_flags = (int)flags;
    (void)sigemptyset(&sa.sa_mask);
    (void)sigaction(sig, &sa, NULL);
}

void pi_interrupt_install(void)
{
    install(SIGINT, SA_RESETHAND); /* the second one kills */
    install(SIGTERM, SA_RESETHAND);
}

bool pi_interrupt_forget(void)
{
    install(SIGINT, 0);
    if (stop_asked == SIGINT)
        stop_asked = 0;
    return stop_asked == 0;
}

void pi_interrupt_restart(void)
{
    install(SIGINT, SA_RESTART);
}

bool pi_interrupted(void)
{
    return stop_asked != 0;
}

enum pi_code pi_interrupt_check(struct pi_err *err)
{
    return stop_asked != 0 ? pi_err_set(err, PI_E_INTERRUPTED, "interrupted") : PI_OK;
}
