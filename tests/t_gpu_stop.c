/*
 * t_gpu_stop.c - a device that stops is an error within a limit, and the process ends; one that is slow is waited for. Each case is a process of its own, whose
 * emulated GPU (tests/emu/cuda_emu.h) stops at one of its kernels.
 */
#include "config.h"

#include "tests/emu/emu_ctl.h"
#include "tests/engine_rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANG     300 /* seconds after which a case counts as hung, on however busy a machine */
#define PATIENCE "0.3"

struct scenario {
    const char *name;
    unsigned long first[4]; /* kernels to stop at; all 0: spread over all that run */
    uint8_t attn_even, attn_odd;
    uint32_t n_hot; /* of each layer */
    enum pi_handover handover;
    bool prompt; /* else steps */
};

static const struct scenario scenarios[] = {
    /* how many kernels a trial has depends on how long they take: 260 at the least */
    {"steps after a trial", {1, 64, 130, 250}, 1, 1, 41, PI_HANDOVER_AUTO, false},
    {"steps that spin", {0}, 1, 1, 41, PI_HANDOVER_SPIN, false},
    {"steps with events", {0}, 1, 1, 41, PI_HANDOVER_EVENTS, false},
    {"steps without the CPU", {0}, 1, 1, 999, PI_HANDOVER_AUTO, false},
    {"prompt, streamed rows", {0}, 1, 1, 41, PI_HANDOVER_SPIN, true},
    {"prompt, nothing hot", {0}, 1, 1, 0, PI_HANDOVER_SPIN, true},
    {"prompt, all hot", {0}, 1, 1, 999, PI_HANDOVER_SPIN, true},
    {"prompt, attention on both", {0}, 0, 1, 41, PI_HANDOVER_SPIN, true},
};
#define N_SCENARIOS (sizeof(scenarios) / sizeof(scenarios[0]))

/* What a case has to say. */
struct report {
    enum pi_code code; /* of creation or the first run that failed */
    unsigned long kernels;
    char msg[256];
};

static enum pi_code work(const struct scenario *sc, double patience, struct rig *r,
                         struct pi_engine **e)
{
    const struct pi_engine_options o = {.mode = PI_MODE_EXACT,
                                        .n_ctx = 32,
                                        .n_seq = 1,
                                        F32KV,
                                        .on_gpu = true,
                                        .gpu_handover = sc->handover,
                                        .gpu_patience = patience};
    const struct pi_batch all = {.n_tok = N_TOK, .token = tokens, .pos = positions};
    float logits[N_TOK * 64];
    enum pi_code rc;

    PI_TRY(pi_engine_create(&r->m, NULL, &r->place, r->pool, &o, e, &r->e));
    if (sc->prompt)
        PI_TRY(pi_engine_run(*e, PI_PHASE_PROMPT, &all, logits, &r->e));
    for (uint32_t i = 0; !sc->prompt && i < 3; i++) {
        const struct pi_batch one = {.n_tok = 1, .token = tokens + i, .pos = positions + i};

        PI_TRY(pi_engine_run(*e, PI_PHASE_DECODE, &one, logits, &r->e));
    }
out:
    return rc;
}

/* The process of a case: runs, tells, frees everything, and ends as programs do. */
static void be_case(const struct scenario *sc, double patience, int fd)
{
    struct pi_engine *e = NULL;
    struct report rep;
    struct rig r;

    (void)alarm(HANG);
    if (freopen("/dev/null", "w", stdout) == NULL)
        _exit(3);
    rig_open(&r, &llama, 2);
    for (uint32_t l = 0; l < r.t.n_layer; l++) {
        r.layers[l].attn_unit = l & 1 ? sc->attn_odd : sc->attn_even;
        r.layers[l].n_hot = sc->n_hot < r.t.n_ff ? sc->n_hot : r.t.n_ff;
    }
    memset(&rep, 0, sizeof(rep));
    rep.code = work(sc, patience, &r, &e);
    rep.kernels = cudaEmuKernelsRun();
    if (rep.code != PI_OK)
        (void)snprintf(rep.msg, sizeof(rep.msg), "%.255s", r.e.msg);
    pi_engine_destroy(e);
    rig_close(&r);
    if (write(fd, &rep, sizeof(rep)) != (ssize_t)sizeof(rep))
        _exit(3);
    exit(0);
}

/* Runs a case with a setting of the emulated device; false where its process did not end by itself, and well. */
static bool run_case(const struct scenario *sc, double patience, const char *setting,
                     unsigned long value, struct report *rep)
{
    char text[32];
    int fd[2], status = -1;
    bool told;
    pid_t pid;

    memset(rep, 0, sizeof(*rep));
    if (pipe(fd) != 0)
        return false;
    (void)fflush(stdout);
    pid = fork();
    if (pid == 0) {
        (void)close(fd[0]);
        (void)snprintf(text, sizeof(text), "%lu", value);
        (void)setenv(setting, text, 1);
        (void)setenv("PI_EMU_WATCHDOG", "0", 1);
        be_case(sc, patience, fd[1]);
    }
    (void)close(fd[1]);
    told = read(fd[0], rep, sizeof(*rep)) == (ssize_t)sizeof(*rep);
    (void)close(fd[0]);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0 && told;
}

/* Returns how many kernels it takes when nothing stops. */
static unsigned long test_stops(const struct scenario *sc)
{
    const double patience = atof(PATIENCE);
    struct report rep;
    unsigned long n;

    OK(run_case(sc, 60.0, "PI_EMU_STOP", 0, &rep));
    EQ(rep.code, PI_OK);
    n = rep.kernels;
    printf("# %s: %lu kernels\n", sc->name, n);
    OK(n > 4);
    for (unsigned long k = 0; k < 4; k++) {
        const unsigned long at = sc->first[0] > 0 ? sc->first[k] : k == 0 ? 1 : n * k / 4;

        OK(run_case(sc, patience, "PI_EMU_STOP", at, &rep));
        EQ(rep.code, PI_E_DEVICE);
        if (!OK(strstr(rep.msg, "GPU 0") != NULL))
            printf("# stopped at %lu: %s\n", at, rep.msg);
    }
    printf("# %s\n", rep.msg);
    return n;
}

/* Each of n kernels takes its time, and all of them more than the limit; but no group of them between two looks does. */
static void test_slow(const struct scenario *sc, unsigned long n)
{
    const double patience = 2.0, slow = fmin(0.2, 1.6 * patience / (double)n);
    struct report rep;

    OK(run_case(sc, patience, "PI_EMU_SLOW", (unsigned long)(1000.0 * slow), &rep));
    EQ(rep.code, PI_OK);
    if (rep.code != PI_OK)
        printf("# %s\n", rep.msg);
    printf("# %s, slow: %lu kernels\n", sc->name, rep.kernels);
    OK((double)rep.kernels * slow > 1.25 * patience);
}

int main(void)
{
    for (size_t i = 0; i < N_SCENARIOS; i++) {
        const unsigned long n = test_stops(&scenarios[i]);

        if (scenarios[i].prompt)
            test_slow(&scenarios[i], n);
    }
    return DONE();
}
