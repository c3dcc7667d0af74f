/*
 * Hand-over kernels: sums and copies against plain C, and the protocol against a host thread that answers through mapped memory: late, early, in 1,000 steps
 * in a row without a reset, and never.
 */
#include "config.h"

#include "tests/kernel_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static void nap(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};

    (void)nanosleep(&t, NULL);
}

/* Of the emulated device alone. */
void cudaEmuReload(void) __attribute__((weak));
int cudaEmuLiveAllocations(void) __attribute__((weak));
int cudaEmuLiveObjects(void) __attribute__((weak));
unsigned long cudaEmuKernelsRun(void) __attribute__((weak));

/* ---- sums without a wait ---- */

struct merge_trial {
    uint32_t n_parts, n_tok, n_embd;
    bool bias, cold, copy;
};

static void test_merge(const struct merge_trial *t)
{
    struct rig r;
    const size_t n = (size_t)t->n_tok * t->n_embd;
    float *residual, *bias, *parts, *cold, *got = rig_alloc(n * sizeof(*got));
    struct val *want = rig_alloc(n * sizeof(*want));
    const struct pi_k_step step = {.step = 5, .n_tok = t->n_tok};
    const struct pi_k_wait no_wait = {0};
    struct pi_pinned cold_map;
    float *d_residual, *d_bias, *d_parts, *d_copy;
    char text[128];

    rig_open(&r, 7 * t->n_parts + t->n_embd);
    (void)snprintf(text, sizeof(text), "merge of %u parts (%u, %u)%s%s%s", t->n_parts, t->n_tok,
                   t->n_embd, t->bias ? ", bias" : "", t->cold ? ", cold" : "",
                   t->copy ? ", copy" : "");
    residual = rig_vector(&r, n, 1.0f);
    bias = rig_vector(&r, t->n_embd, 1.0f);
    parts = rig_vector(&r, n * t->n_parts, 1.0f);
    cold = rig_vector(&r, n, 1.0f);
    cold_map = rig_pin(&r, n * sizeof(float));
    memcpy(cold_map.host, cold, n * sizeof(float));
    d_residual = rig_dev(&r, residual, n * sizeof(float));
    d_bias = rig_dev(&r, bias, t->n_embd * sizeof(float));
    d_parts = rig_dev(&r, parts, n * t->n_parts * sizeof(float));
    d_copy = rig_dev(&r, NULL, n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        double sum = (double)residual[i] + (t->bias ? (double)bias[i % t->n_embd] : 0.0) +
                     (t->cold ? (double)cold[i] : 0.0);

        for (uint32_t p = 0; p < t->n_parts; p++)
            sum += (double)parts[p * n + i];
        want[i] = (struct val){sum, 1e-6 * (t->n_parts + 3)};
    }
    pi_k_merge(d_residual, t->bias ? d_bias : NULL, t->n_parts > 0 ? d_parts : NULL, t->n_parts,
               t->cold ? cold_map.dev : NULL, &no_wait, rig_dev(&r, &step, sizeof(step)),
               t->copy ? d_copy : NULL, t->n_tok, t->n_embd, r.stream);
    rig_wait(&r);
    rig_get(got, d_residual, n * sizeof(*got));
    val_all(want, got, n, text);
    rig_get(residual, d_copy, n * sizeof(*got));
    tap_ok(memcmp(residual, got, n * sizeof(*got)) == 0 || !t->copy, __FILE__, __LINE__, text);
    tap_ok(isnan(residual[0]) && isnan(residual[n - 1]) ? !t->copy : t->copy, __FILE__, __LINE__,
           "copy only when asked for");
    rig_close(&r);
    free(residual);
    free(bias);
    free(parts);
    free(cold);
    free(got);
    free(want);
}

static void merges(void)
{
    static const uint32_t parts[] = {0, 1, 2, 3, 4, 5, 17, 64}, tok[] = {1, 3, 8},
                          embd[] = {32, 70, 128, 132, 2052};

    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t k = 0; k < 5; k++) {
            struct merge_trial t = {parts[i],         tok[(i + k) % 3], embd[k],
                                    (i + k) % 2 == 0, i % 3 != 1,       k % 2 == 1};

            test_merge(&t);
        }
    }
}

static void test_publish(uint32_t n_parts, uint32_t n_tok, uint32_t n_embd)
{
    struct rig r;
    const size_t n = (size_t)n_tok * n_embd;
    const struct pi_k_step step = {.step = 9};
    const uint32_t zero = 0;
    uint32_t ticket = 1, *d_ticket, *slot;
    struct val *want = rig_alloc(n * sizeof(*want));
    float *parts, *d_parts;
    struct pi_k_step *d_step;
    struct pi_pinned map;

    rig_open(&r, n_parts + n_embd);
    parts = rig_vector(&r, n * n_parts, 1.0f);
    d_parts = rig_dev(&r, parts, n * n_parts * sizeof(*parts));
    d_step = rig_dev(&r, &step, sizeof(step));
    d_ticket = rig_dev(&r, &zero, sizeof(zero));
    map = rig_pin(&r, 64 + n * sizeof(float));
    slot = map.host;
    for (size_t i = 0; i < n; i++) {
        want[i] = (struct val){0.0, 1e-6 * n_parts};
        for (uint32_t p = 0; p < n_parts; p++)
            want[i].v += (double)parts[p * n + i];
    }
    for (int run = 0; run < 3; run++) {
        memset(map.host, 0xff, map.bytes);
        pi_k_publish_parts(d_parts, n_parts, (float *)map.dev + 16, map.dev, d_step, d_ticket,
                           n_tok, n_embd, r.stream);
        rig_wait(&r);
        EQ(*slot, step.step);
        val_all(want, (float *)map.host + 16, n, "published sums");
        rig_get(&ticket, d_ticket, sizeof(ticket));
        EQ(ticket, 0);
    }
    rig_close(&r);
    free(parts);
    free(want);
}

static void test_receive(size_t n, bool two)
{
    struct rig r;
    const struct pi_k_step step = {.step = 3};
    const struct pi_k_wait no_wait = {0};
    struct pi_pinned map;
    float *a, *got = rig_alloc(n * sizeof(*got)), *d_a, *d_b;

    rig_open(&r, n);
    a = rig_vector(&r, 2 * n, 1.0f);
    map = rig_pin(&r, 2 * n * sizeof(float));
    memcpy(map.host, a, 2 * n * sizeof(float));
    d_a = rig_dev(&r, NULL, n * sizeof(float));
    d_b = rig_dev(&r, NULL, n * sizeof(float));
    pi_k_receive(&no_wait, rig_dev(&r, &step, sizeof(step)), map.dev, d_a,
                 two ? (float *)map.dev + n : NULL, two ? d_b : NULL, n, r.stream);
    rig_wait(&r);
    rig_get(got, d_a, n * sizeof(*got));
    OK(memcmp(got, a, n * sizeof(*got)) == 0);
    rig_get(got, d_b, n * sizeof(*got));
    OK(two ? memcmp(got, a + n, n * sizeof(*got)) == 0 : isnan(got[0]) && isnan(got[n - 1]));
    rig_close(&r);
    free(a);
    free(got);
}

/* ---- the protocol ---- */

enum {
    SLOT_OUT = 0, /* words of the map: each slot has a cache line */
    SLOT_BACK = 16,
    ABORT = 32,
    STEP = 48,
    PAYLOAD = 128 /* struct pi_k_step lies before */
};

/* A residual of small integers goes to the host in each step, and what the host makes of it comes back: every sum is exact. */
struct talk {
    struct rig rig;
    uint32_t n_tok, n_embd;
    size_t n;
    struct pi_pinned map;
    float *out, *back; /* host addresses */
    float *expect;     /* (n) residual, on the host */
    float *d_residual, *d_bias, *d_parts;
    struct pi_k_step *d_step;
    uint32_t *d_ticket;
    uint64_t *d_waited;
    uint32_t n_steps;
    double delay; /* of an answer, every 100th step */
    unsigned long n_kernels; /* that had run before the first step, where the device is emulated */
    size_t n_wrong;
    pthread_t thread;
};

#define N_PARTS 5

static _Atomic uint32_t *word(const struct talk *t, size_t at)
{
    return (_Atomic uint32_t *)t->map.host + at;
}

static float part_value(uint32_t part, size_t i)
{
    return (float)((i + part) % 3) - 1.0f;
}

static float bias_value(size_t column)
{
    return (float)(column % 5) - 2.0f;
}

static float cold_value(uint32_t step, size_t i)
{
    return (float)((step * step + i) % 101) - 50.0f;
}

static void talk_open(struct talk *t, uint32_t n_tok, uint32_t n_embd)
{
    const uint32_t zero[2] = {0, 0};
    float *parts, *bias;

    memset(t, 0, sizeof(*t));
    rig_open(&t->rig, 1);
    t->n_tok = n_tok;
    t->n_embd = n_embd;
    t->n = (size_t)n_tok * n_embd;
    t->map = rig_pin(&t->rig, (PAYLOAD + 2 * t->n) * sizeof(float));
    t->out = (float *)t->map.host + PAYLOAD;
    t->back = t->out + t->n;
    t->expect = rig_alloc(t->n * sizeof(float));
    parts = rig_alloc(N_PARTS * t->n * sizeof(float));
    bias = rig_alloc(n_embd * sizeof(float));
    for (size_t i = 0; i < N_PARTS * t->n; i++)
        parts[i] = part_value((uint32_t)(i / t->n), i % t->n);
    for (size_t i = 0; i < n_embd; i++)
        bias[i] = bias_value(i);
    t->d_residual = rig_dev(&t->rig, t->expect, t->n * sizeof(float));
    t->d_parts = rig_dev(&t->rig, parts, N_PARTS * t->n * sizeof(float));
    t->d_bias = rig_dev(&t->rig, bias, n_embd * sizeof(float));
    t->d_step = rig_dev(&t->rig, NULL, sizeof(*t->d_step));
    t->d_ticket = rig_dev(&t->rig, zero, sizeof(uint32_t));
    t->d_waited = rig_dev(&t->rig, zero, sizeof(uint64_t));
    free(parts);
    free(bias);
}

static void talk_close(struct talk *t)
{
    free(t->expect);
    rig_close(&t->rig);
}

static void check_out(struct talk *t)
{
    for (size_t i = 0; i < t->n; i++)
        t->n_wrong += !(t->out[i] == t->expect[i]);
}

static void expect_merge(struct talk *t, uint32_t step)
{
    for (size_t i = 0; i < t->n; i++) {
        t->expect[i] += bias_value(i % t->n_embd) + cold_value(step, i);
        for (uint32_t p = 0; p < N_PARTS; p++)
            t->expect[i] += part_value(p, i);
    }
}

/* Until the step's second kernel, the merge, has begun, where that can be known: a busy machine may take its time before that. */
static void await_merge(const struct talk *t, uint32_t step)
{
    if (cudaEmuKernelsRun == NULL)
        return;
    for (int i = 0; i < 10000 && cudaEmuKernelsRun() < t->n_kernels + 2 * (unsigned long)step; i++)
        nap(0.001);
}

/* Reads what came, answers, and knows what the next step must bring. */
static void *answer(void *ctx)
{
    struct talk *t = ctx;

    for (uint32_t s = 1; s <= t->n_steps; s++) {
        while (atomic_load_explicit(word(t, SLOT_OUT), memory_order_acquire) != s)
            nap(0.0);
        check_out(t);
        if (t->delay > 0.0 && s % 100 == 1) {
            await_merge(t, s);
            nap(t->delay);
        }
        for (size_t i = 0; i < t->n; i++)
            t->back[i] = cold_value(s, i);
        expect_merge(t, s);
        atomic_store_explicit(word(t, SLOT_BACK), s, memory_order_release);
    }
    return NULL;
}

static struct pi_k_wait talk_wait(const struct talk *t)
{
    uint32_t *dev = t->map.dev;

    return (struct pi_k_wait){
        .slot_map = dev + SLOT_BACK, .abort_map = dev + ABORT, .waited = t->d_waited};
}

/* One step's kernels. */
static void launch_step(struct talk *t)
{
    uint32_t *dev = t->map.dev;
    const struct pi_k_wait w = talk_wait(t);

    RIG_DO(
        pi_gpu_copy_async(t->d_step, dev + STEP, 2 * sizeof(uint32_t), t->rig.stream, &rig_err_));
    pi_k_publish_parts(t->d_residual, 1, (float *)dev + PAYLOAD, dev + SLOT_OUT, t->d_step,
                       t->d_ticket, t->n_tok, t->n_embd, t->rig.stream);
    pi_k_merge(t->d_residual, t->d_bias, t->d_parts, N_PARTS, (float *)dev + PAYLOAD + t->n, &w,
               t->d_step, NULL, t->n_tok, t->n_embd, t->rig.stream);
}

static void run_steps(struct talk *t, bool captured)
{
    uint32_t *step = (uint32_t *)t->map.host + STEP;
    void *graph = NULL;

    if (captured) {
        RIG_DO(pi_gpu_capture_begin(t->rig.stream, &rig_err_));
        launch_step(t);
        RIG_DO(pi_gpu_capture_end(t->rig.stream, &graph, &rig_err_));
    }
    t->n_kernels = cudaEmuKernelsRun != NULL ? cudaEmuKernelsRun() : 0;
    (void)pthread_create(&t->thread, NULL, answer, t);
    for (uint32_t s = 1; s <= t->n_steps; s++) {
        *step = s;
        if (captured)
            RIG_DO(pi_gpu_graph_launch(graph, t->rig.stream, &rig_err_));
        else
            launch_step(t);
        rig_wait(&t->rig); /* the step's number is read by then */
    }
    (void)pthread_join(t->thread, NULL);
    pi_gpu_graph_destroy(graph);
}

static void test_talk(uint32_t n_tok, uint32_t n_embd, uint32_t n_steps, double delay,
                      bool captured)
{
    struct talk t;
    float *got;
    uint64_t waited = 0;

    talk_open(&t, n_tok, n_embd);
    t.n_steps = n_steps;
    t.delay = delay;
    run_steps(&t, captured);
    got = rig_alloc(t.n * sizeof(*got));
    rig_get(got, t.d_residual, t.n * sizeof(*got));
    rig_get(&waited, t.d_waited, sizeof(waited));
    printf("# %u steps of (%u, %u): waited %.3f ms\n", n_steps, n_tok, n_embd,
           (double)waited * 1e-6);
    EQ(t.n_wrong, 0);
    OK(memcmp(got, t.expect, t.n * sizeof(*got)) == 0);
    /* half of it: the merge may lose the CPU before it looks at the clock, but not every time */
    OK((double)waited * 1e-9 >= 0.5 * delay * ((n_steps + 99) / 100));
    free(got);
    talk_close(&t);
}

static void *raise_abort(void *ctx)
{
    struct talk *t = ctx;

    nap(0.05);
    atomic_store(word(t, ABORT), 1);
    return NULL;
}

/* A host that never answers: the kernels end once the step is given up, and the next step's do too, at once. */
static void test_abort(bool receive)
{
    struct talk t;
    pthread_t raiser;
    const struct pi_k_step step = {.step = 1, .n_tok = 1};

    talk_open(&t, 2, 256);
    rig_put(t.d_step, &step, sizeof(step));
    (void)pthread_create(&raiser, NULL, raise_abort, &t);
    for (int i = 0; i < 2; i++) {
        const struct pi_k_wait w = talk_wait(&t);
        float *map = (float *)t.map.dev + PAYLOAD;

        if (receive)
            pi_k_receive(&w, t.d_step, map, t.d_residual, map + t.n, t.d_parts, t.n, t.rig.stream);
        else
            pi_k_merge(t.d_residual, NULL, t.d_parts, N_PARTS, map, &w, t.d_step, NULL, t.n_tok,
                       t.n_embd, t.rig.stream);
        rig_wait(&t.rig);
        EQ(atomic_load(word(&t, ABORT)), 1); /* it waited for that */
    }
    (void)pthread_join(raiser, NULL);
    talk_close(&t);
}

/* The slot of the step before is no answer. */
static void *answer_receive(void *ctx)
{
    struct talk *t = ctx;

    nap(0.03);
    t->out[0] = 42.0f;
    atomic_store_explicit(word(t, SLOT_BACK), 8, memory_order_release);
    return NULL;
}

static void test_receive_waits(void)
{
    struct talk t;
    pthread_t thread;
    const struct pi_k_step step = {.step = 8, .n_tok = 1};
    struct pi_k_wait w;
    float got = 0.0f;

    talk_open(&t, 1, 64);
    w = talk_wait(&t);
    rig_put(t.d_step, &step, sizeof(step));
    *word(&t, SLOT_BACK) = 7;
    t.out[0] = 7.0f;
    (void)pthread_create(&thread, NULL, answer_receive, &t);
    pi_k_receive(&w, t.d_step, (float *)t.map.dev + PAYLOAD, t.d_residual, NULL, NULL, t.n,
                 t.rig.stream);
    rig_wait(&t.rig);
    (void)pthread_join(thread, NULL);
    rig_get(&got, t.d_residual, sizeof(got));
    OK(got == 42.0f);
    talk_close(&t);
}

/* ---- what a hand-over takes ---- */

#define PATIENCE 60.0 /* seconds without any hand-over: a machine may be busy */

static void test_measure(void)
{
    double seconds = -1.0;
    struct pi_err e = {0};

    PASSES(pi_gpu_measure_handover(0, PATIENCE, &seconds, &e), e);
    printf("# a hand-over takes %.1f us\n", 1e6 * seconds);
    OK(seconds >= 0.0 && seconds < PATIENCE);
}

static void test_nothing_left(void)
{
    if (cudaEmuLiveAllocations == NULL || cudaEmuLiveObjects == NULL)
        return;
    EQ(cudaEmuLiveAllocations(), 0);
    EQ(cudaEmuLiveObjects(), 0);
}

/* A kernel that never ends is an error after a while, not a wait for ever. Nothing can be done with the device after it, and everything says so at
 * once. */
static void test_measure_stopped(void)
{
    double seconds = -1.0;
    struct pi_err e = {0};
    struct pi_dev_buf buf = {0};
    bool done;

    if (cudaEmuReload == NULL)
        return;
    (void)setenv("PI_EMU_STOP", "70", 1);
    cudaEmuReload();
    OK(!pi_gpu_gave_up());
    FAILS(pi_gpu_measure_handover(0, 1.0, &seconds, &e), PI_E_DEVICE, "hand-overs", e);
    OK(seconds == -1.0);
    OK(pi_gpu_gave_up());
    FAILS(pi_gpu_alloc(0, 16, &buf, &e), PI_E_DEVICE, "given up", e);
    FAILS(pi_gpu_stream_query(NULL, &done, &e), PI_E_DEVICE, "given up", e);
}

int main(void)
{
    if (pi_gpu_count() == 0) {
        const char *must = getenv("PI_REQUIRE_GPU");

        if (must == NULL || strcmp(must, "1") != 0)
            return SKIP_ALL("no GPU");
    }
    merges();
    test_publish(1, 1, 70);
    test_publish(17, 3, 132);
    test_publish(5, 8, 2048);
    test_receive(1, false);
    test_receive(63, true);
    test_receive(4096, true);
    test_receive(30001, false);
    test_receive_waits();
    test_talk(1, 128, 1000, 0.005, false); /* one block: it is the one that is timed */
    test_talk(1, 256, 1000, 0.0, true);
    test_talk(4, 130, 100, 0.0, true);
    test_talk(1, 100, 400, 0.01, true);
    test_abort(false);
    test_abort(true);
    test_measure();
    test_nothing_left();
    test_measure_stopped();
    return DONE();
}
