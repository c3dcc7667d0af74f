/*
 * t_gpu_stop.c - a device that stops is an error within a limit, and the process ends; one that is slow is waited for. Each case is a process of its own, whose
 * emulated GPU (tests/emu/cuda_emu.h) stops at one of its kernels, or of its copies, fills and products.
 */
#include "config.h"

#include "runtime/pi_gpu.h"
#include "runtime/pi_gpu_context.h"
#include "runtime/pi_gpu_fit.h"
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

/* What runs in a case: steps or a prompt of a scenario, or something without an engine. */
typedef enum pi_code (*job_fn)(const void *ctx, double patience, struct pi_err *err);

/* What a case has to say. */
struct report {
    enum pi_code code; /* of creation or the first run that failed */
    unsigned long kernels, others;
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

/* Makes an engine, runs it, frees everything. */
static enum pi_code run_engine(const void *ctx, double patience, struct pi_err *err)
{
    const struct scenario *sc = ctx;
    struct pi_engine *e = NULL;
    enum pi_code rc;
    struct rig r;

    rig_open(&r, &llama, 2);
    for (uint32_t l = 0; l < r.t.n_layer; l++) {
        r.layers[l].attn_unit = l & 1 ? sc->attn_odd : sc->attn_even;
        r.layers[l].n_hot = sc->n_hot < r.t.n_ff ? sc->n_hot : r.t.n_ff;
    }
    rc = work(sc, patience, &r, &e);
    *err = r.e;
    pi_engine_destroy(e);
    rig_close(&r);
    return rc;
}

static enum pi_code measure(const void *ctx, double patience, struct pi_err *err)
{
    struct pi_gpu_speed s;

    (void)ctx;
    (void)patience;
    return pi_gpu_measure(0, &s, err);
}

static enum pi_code look(const void *ctx, double patience, struct pi_err *err)
{
    struct pi_gpu_context c;

    (void)ctx;
    (void)patience;
    return pi_gpu_context_measure(0, &c, err);
}

#define SAMPLES 20
#define D       16
#define FF      40
#define R       8

/* All that training does, once. */
static enum pi_code train_with(struct pi_gpu_fit *f, struct pi_err *err)
{
    static float x[SAMPLES * D], cov[D * D], fc1[R * D], fc2[FF * R], bias[FF], z[SAMPLES * FF],
        c[D * D];
    static uint8_t code[SAMPLES * FF];
    static uint32_t rows[SAMPLES];
    const struct pi_gpu_net net = {D, FF, R, false, fc1, fc2, bias};
    const struct pi_gpu_fit_task task = {.code = code,
                                         .ld = FF,
                                         .scale = 1.0f,
                                         .rows = rows,
                                         .n_rows = SAMPLES,
                                         .batch = 8,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.999f,
                                         .epsilon = 1e-8f};
    const float rate[3] = {1e-3f, 1e-3f, 1e-3f};
    enum pi_code rc;

    for (uint32_t i = 0; i < SAMPLES; i++)
        rows[i] = i;
    PI_TRY(pi_gpu_fit_product(f, false, true, D, D, D, x, x, c, err));
    PI_TRY(pi_gpu_fit_samples(f, x, NULL, SAMPLES, D, err));
    PI_TRY(pi_gpu_fit_covariance(f, PI_GPU_FIT_X, x, PI_GPU_FIT_X, x, rows, SAMPLES, cov, err));
    PI_TRY(pi_gpu_fit_net(f, &net, err));
    PI_TRY(pi_gpu_fit_score(f, rows, SAMPLES, z, err));
    PI_TRY(pi_gpu_fit_begin(f, &task, err));
    for (int i = 0; i < 4; i++)
        PI_TRY(pi_gpu_fit_step(f, rows, rate, 1.0f, 1.0f, err));
    PI_TRY(pi_gpu_fit_end(f, &net, err));
out:
    return rc;
}

static enum pi_code train(const void *ctx, double patience, struct pi_err *err)
{
    struct pi_gpu_fit *f = NULL;
    enum pi_code rc;

    (void)ctx;
    (void)patience;
    rc = pi_gpu_fit_create(0, &f, err);
    if (rc == PI_OK)
        rc = train_with(f, err);
    pi_gpu_fit_destroy(f);
    return rc;
}

/* The process of a case: runs, tells, and ends as programs do. */
static void be_case(job_fn job, const void *ctx, double patience, int fd)
{
    struct report rep;
    struct pi_err err = {0};

    (void)alarm(HANG);
    if (freopen("/dev/null", "w", stdout) == NULL)
        _exit(3);
    memset(&rep, 0, sizeof(rep));
    pi_gpu_patience(patience);
    rep.code = job(ctx, patience, &err);
    rep.kernels = cudaEmuKernelsRun();
    rep.others = cudaEmuOthersRun();
    if (rep.code != PI_OK)
        (void)snprintf(rep.msg, sizeof(rep.msg), "%.255s", err.msg);
    if (write(fd, &rep, sizeof(rep)) != (ssize_t)sizeof(rep))
        _exit(3);
    exit(0);
}

/* Runs a case with a setting of the emulated device; false where its process did not end by itself, and well. */
static bool run_case(job_fn job, const void *ctx, double patience, const char *setting,
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
        be_case(job, ctx, patience, fd[1]);
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

    OK(run_case(run_engine, sc, 60.0, "PI_EMU_STOP", 0, &rep));
    EQ(rep.code, PI_OK);
    n = rep.kernels;
    printf("# %s: %lu kernels\n", sc->name, n);
    OK(n > 4);
    for (unsigned long k = 0; k < 4; k++) {
        const unsigned long at = sc->first[0] > 0 ? sc->first[k] : k == 0 ? 1 : n * k / 4;

        OK(run_case(run_engine, sc, patience, "PI_EMU_STOP", at, &rep));
        EQ(rep.code, PI_E_DEVICE);
        if (!OK(strstr(rep.msg, "GPU 0") != NULL))
            printf("# stopped at %lu: %s\n", at, rep.msg);
    }
    printf("# %s\n", rep.msg);
    return n;
}

struct lonely {
    const char *name;
    job_fn job;
    bool kernels, others; /* what it has, that may stop */
};

/* Stops at kernels (or the rest), spread over all that run. */
static void test_lonely_at(const struct lonely *w, const char *setting, unsigned long n)
{
    const double patience = atof(PATIENCE);
    struct report rep;

    for (unsigned long k = 0; k < 5; k++) {
        const unsigned long at = k == 0 ? 1 : k == 4 ? n : 1 + n * k / 4;

        OK(run_case(w->job, &scenarios[0], patience, setting, at, &rep));
        EQ(rep.code, PI_E_DEVICE);
        if (!OK(strstr(rep.msg, "GPU 0 has stopped: nothing moved for 0.3 s") == rep.msg))
            printf("# %s %lu: %s\n", setting, at, rep.msg);
    }
}

/* Loading, measuring and training wait too. */
static void test_lonely(void)
{
    static const struct lonely all[] = {{"measuring", measure, true, true},
                                        {"looking", look, false, true},
                                        {"training", train, true, true}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct report rep;

        OK(run_case(all[i].job, NULL, 60.0, "PI_EMU_STOP", 0, &rep));
        EQ(rep.code, PI_OK);
        printf("# %s: %lu kernels, %lu others%s%s\n", all[i].name, rep.kernels, rep.others,
               rep.code != PI_OK ? ": " : "", rep.msg);
        OK((rep.kernels > 4 || !all[i].kernels) && rep.others > 4);
        if (all[i].kernels)
            test_lonely_at(&all[i], "PI_EMU_STOP", rep.kernels);
        if (all[i].others)
            test_lonely_at(&all[i], "PI_EMU_HALT", rep.others);
    }
}

/* An engine's creation copies: the model, tables, what is zeroed. */
static void test_loading(void)
{
    const struct lonely w = {"loading", run_engine, false, true};

    for (unsigned long at = 1; at < 16; at += 3) {
        struct report rep;

        OK(run_case(w.job, &scenarios[1], atof(PATIENCE), "PI_EMU_HALT", at, &rep));
        EQ(rep.code, PI_E_DEVICE);
        if (!OK(strstr(rep.msg, "GPU 0") != NULL))
            printf("# loading, %lu: %s\n", at, rep.msg);
    }
}

/* Each of n kernels takes its time, and all of them more than the limit; but no group of them between two looks does. */
static void test_slow(const struct scenario *sc, unsigned long n)
{
    const double patience = 2.0, slow = fmin(0.2, 1.6 * patience / (double)n);
    struct report rep;

    OK(run_case(run_engine, sc, patience, "PI_EMU_SLOW", (unsigned long)(1000.0 * slow), &rep));
    EQ(rep.code, PI_OK);
    if (rep.code != PI_OK)
        printf("# %s\n", rep.msg);
    printf("# %s, slow: %lu kernels\n", sc->name, rep.kernels);
    OK((double)rep.kernels * slow > 1.25 * patience);
}

int main(void)
{
    test_lonely();
    test_loading();
    for (size_t i = 0; i < N_SCENARIOS; i++) {
        const unsigned long n = test_stops(&scenarios[i]);

        if (scenarios[i].prompt)
            test_slow(&scenarios[i], n);
    }
    return DONE();
}
