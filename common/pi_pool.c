/*
 * A team of threads around one 32-bit word, the epoch: the caller raises it to start a run and the workers sleep on it. A second word counts the
 * workers still running; the caller sleeps on that. Both sides spin first, since two runs of a decode step are a few microseconds apart.
 *
 * No lost wake-ups: who goes to sleep first raises the sleepers' count, then lets the kernel compare the word once more; who changes the word does
 * that first and reads the count afterwards. Both steps are sequentially consistent, so at least one side sees the other.
 *
 * A barrier counts arrivals in two levels, about the square root of the team at each counter: with all of 16 threads at one counter its cache line goes from core
 * to core 16 times, one after the other. Who comes last, at most two counters later, changes the word that all others wait on.
 *
 * Threads with a core each are let go when others want it: on a shared machine a pinned thread waits for its own core while another is idle, and the barrier waits
 * with it. The kernel counts how long each thread could have run and did not (schedstat); where it does not, nobody is pinned.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_cores.h"
#include "common/pi_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 1024
/* How long to spin before going to sleep: a thread that sleeps comes tens of microseconds late, which a step of some milliseconds can not pay for each layer. In a
 * run: longer than a GPU takes over its share of a layer. Between runs: longer than sampling a token takes. Where others want the CPU: not for long, since a
 * thread that has slept is run again before those that have not. */
#define RUN_SPIN_NS     1000000
#define IDLE_SPIN_NS    200000
#define CROWDED_SPIN_NS 50000
#define YIELD_NS        5000 /* before the first yield; if one takes longer, another ran */
#define CROWDED         64   /* waits without patience after such a yield */
#define CACHE_LINE      64
#define LOOK_NS         200000000 /* how often a pinned team looks for others on its cores */
#define WAITED_PER_MILLE \
    30 /* of the time since: a thread that waited longer for its core is better off elsewhere */

/* A word to wait on and the number of threads that sleep on it. */
struct gate {
    alignas(CACHE_LINE) atomic_uint word;
    atomic_uint sleepers;
};

struct counter {
    alignas(CACHE_LINE) atomic_uint n;
};

struct pi_pool {
    uint32_t n_threads, n_started;
    bool spin; /* false with more threads than CPUs: spinning would hold up who is waited for */
    pthread_t *threads; /* (n_threads - 1) */
    struct worker *workers;
    pi_pool_fn fn;
    void *ctx;
    bool stop;
    struct gate epoch, running; /* runs so far; workers not yet done */
    struct gate phase;          /* barriers passed so far */
    uint32_t group_size, n_groups;
    struct counter *arrived; /* (n_groups) threads of the group that are at the barrier */
    struct counter groups;   /* groups whose threads are all there */
    alignas(CACHE_LINE) atomic_size_t next_chunk;
    /* pi_pool_bind(); n_threads 0 without. Touched by the caller alone. */
    struct pi_affinity affinity;
    bool pinned;     /* threads are held to affinity.bound's cores */
    pthread_t owner; /* the caller then */
    int64_t looked;  /* when the waits were read */
};

struct worker {
    struct pi_pool *pool;
    uint32_t index;
    atomic_int tid; /* the kernel's number of the thread; 0 before it runs */
    int64_t waited; /* ns for a CPU, when last read; used by the caller */
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins; false when the time is up. Whom the thread waits for may have been put on its CPU: it has to yield then. But a yield is a system call, and makes late who
 * waits for one that runs: it comes at once only where one has let another run not long ago. */
static bool spin_while(const struct gate *g, unsigned old, int64_t spin_ns)
{
    static _Thread_local unsigned crowded;
    int64_t start = 0, t = 0;

    for (unsigned i = 1; t - start < (crowded > 0 ? CROWDED_SPIN_NS : spin_ns); i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != old) {
            crowded -= crowded > 0;
            return true;
        }
        cpu_relax();
        if (i % 64 != 0)
            continue;
        t = now_ns();
        start = start != 0 ? start : t;
        if (crowded == 0 && t - start < YIELD_NS)
            continue;
        (void)sched_yield();
        if (now_ns() - t > YIELD_NS)
            crowded = CROWDED;
    }
    return false;
}

/* Returns once g->word is no longer old. */
static void gate_wait_change(struct gate *g, unsigned old, int64_t spin_ns)
{
    if (spin_ns > 0 && spin_while(g, old, spin_ns))
        return;
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->word) == old)
        (void)syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

/* After a change of g->word. */
static void gate_wake(struct gate *g)
{
    if (atomic_load(&g->sleepers) > 0)
        (void)syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pi_pool *p = w->pool;
    unsigned seen = 0;

    atomic_store(&w->tid, (int)syscall(SYS_gettid));
    for (;;) {
        gate_wait_change(&p->epoch, seen, p->spin ? IDLE_SPIN_NS : 0);
        seen++;
        if (p->stop)
            return NULL;
        p->fn(p->ctx, w->index, p->n_threads);
        if (atomic_fetch_sub(&p->running.word, 1) == 1)
            gate_wake(&p->running);
    }
}

static void next_epoch(struct pi_pool *p)
{
    atomic_fetch_add(&p->epoch.word, 1);
    gate_wake(&p->epoch);
}

uint32_t pi_pool_usable_cores(void)
{
    uint32_t cores = pi_cores_physical(""), limit = pi_cores_cgroup_limit("");
    const char *test = getenv("PI_TEST_CORES"); /* of tests that run beside each other */
    const uint32_t most = test != NULL && atoi(test) > 0 ? (uint32_t)atoi(test) : UINT32_MAX;

    limit = limit < most ? limit : most;
    return cores < limit ? cores : limit;
}

/* ---- cores ---- */

/* Nanoseconds that a thread has been ready to run and did not; -1 where the kernel does not say. */
static int64_t waited_ns(int tid)
{
    char path[64], line[64];
    long long waited = -1;
    FILE *f;

    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", tid);
    f = fopen(path, "re");
    if (f == NULL)
        return -1;
    if (fgets(line, sizeof(line), f) == NULL || sscanf(line, "%*u %lld", &waited) != 1)
        waited = -1;
    (void)fclose(f);
    return waited;
}

/* The longest that a thread has waited for a CPU since the last look; -1 where that is not known. workers[n_threads - 1] stands for the caller. */
static int64_t longest_wait(struct pi_pool *p)
{
    int64_t longest = 0;

    for (uint32_t i = 0; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];
        int64_t t = waited_ns(atomic_load(&w->tid));

        if (t < 0)
            return -1;
        longest = t - w->waited > longest ? t - w->waited : longest;
        w->waited = t;
    }
    return longest;
}

/* Workers that have ended stay in the table until they are joined, so the handles are good. */
static bool apply(struct pi_pool *p, cpu_set_t *sets)
{
    bool ok = sched_setaffinity(0, PI_CPU_SET_BYTES, pi_affinity_set(sets, 0)) == 0;

    for (uint32_t t = 1; ok && t < p->n_threads; t++)
        ok = pthread_setaffinity_np(p->threads[t - 1], PI_CPU_SET_BYTES,
                                    pi_affinity_set(sets, t)) == 0;
    return ok;
}

/* After a run: others on the team's cores? */
static void look_around(struct pi_pool *p)
{
    int64_t t = now_ns(), since = t - p->looked, waited;

    if (since < LOOK_NS || !pthread_equal(pthread_self(), p->owner))
        return;
    p->looked = t;
    waited = longest_wait(p);
    if (waited >= 0 && waited <= since / 1000 * WAITED_PER_MILLE)
        return;
    (void)apply(p, p->affinity.free);
    p->pinned = false;
}

enum pi_code pi_pool_bind(struct pi_pool *p, enum pi_numa numa, bool own_cores, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    cpu_set_t *mask = pi_calloc_array(1, PI_CPU_SET_BYTES, err);

    if (mask == NULL)
        return PI_E_NOMEM;
    if (p->affinity.n_threads > 0 || !pi_affinity_current(mask))
        goto out;
    p->owner = pthread_self();
    p->looked = now_ns();
    atomic_store(&p->workers[p->n_threads - 1].tid, (int)syscall(SYS_gettid));
    own_cores = own_cores && waited_ns((int)syscall(SYS_gettid)) >= 0;
    PI_TRY(pi_affinity_make("", mask, p->n_threads, numa, own_cores, &p->affinity, err));
    p->pinned = p->affinity.own_cores;
    if (!p->pinned && p->affinity.n_nodes == 1)
        goto out;
    if (!apply(p, p->affinity.bound)) {
        for (uint32_t i = 0; i < p->n_threads; i++)
            memcpy(pi_affinity_set(p->affinity.bound, i), mask, PI_CPU_SET_BYTES);
        (void)apply(p, p->affinity.bound);
        p->pinned = false;
    }
    (void)longest_wait(p);
out:
    free(mask);
    return rc;
}

/* Gives the caller its mask back, unless somebody has changed it since. */
static void unbind(struct pi_pool *p)
{
    cpu_set_t *now;

    if (p->affinity.n_threads == 0 || !pthread_equal(pthread_self(), p->owner))
        return;
    now = pi_calloc_array(1, PI_CPU_SET_BYTES, NULL);
    if (now != NULL && pi_affinity_current(now) &&
        CPU_EQUAL_S(PI_CPU_SET_BYTES, now,
                    pi_affinity_set(p->pinned ? p->affinity.bound : p->affinity.free, 0)))
        (void)sched_setaffinity(0, PI_CPU_SET_BYTES, p->affinity.mask);
    free(now);
}

struct pi_pool_place pi_pool_place(const struct pi_pool *p)
{
    return (struct pi_pool_place){.n_nodes = p->affinity.n_threads > 0 ? p->affinity.n_nodes : 1,
                                  .own_cores = p->pinned};
}

uint32_t pi_pool_node(const struct pi_pool *p, uint32_t thread)
{
    return p->affinity.n_threads > 0 ? p->affinity.node[thread] : 0;
}

/* ---- start and end ---- */

static enum pi_code start_workers(struct pi_pool *p, struct pi_err *err)
{
    sigset_t all, old;
    enum pi_code rc = PI_OK;
    int e = 0;

    /* signals belong to the program's own threads */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; p->n_started < p->n_threads - 1; p->n_started++) {
        struct worker *w = &p->workers[p->n_started];

        w->pool = p;
        w->index = p->n_started + 1;
        e = pthread_create(&p->threads[p->n_started], NULL, worker_main, w);
        if (e != 0)
            break;
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e != 0)
        rc = pi_err_set(err, PI_E_NOMEM, "cannot start thread %u of %u: %s", p->n_started + 2,
                        p->n_threads, strerror(e));
    return rc;
}

enum pi_code pi_pool_create(uint32_t n_threads, struct pi_pool **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_pool *p = NULL;

    if (n_threads > MAX_THREADS)
        return pi_err_set(err, PI_E_RANGE, "%u threads: expected 1 to %d", n_threads, MAX_THREADS);
    if (n_threads == 0)
        n_threads = pi_pool_usable_cores();
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    PI_ALLOC_ALIGNED(p, 1, err);
    p->n_threads = n_threads;
    p->spin = n_threads <= pi_cores_logical();
    p->group_size = 1;
    while (p->group_size * p->group_size < n_threads)
        p->group_size++;
    p->n_groups = (n_threads + p->group_size - 1) / p->group_size;
    PI_ALLOC_ALIGNED(p->arrived, p->n_groups, err);
    PI_ALLOC(p->threads, n_threads, err);
    PI_ALLOC(p->workers, n_threads, err);
    PI_TRY(start_workers(p, err));
    *out = p;
    return PI_OK;
out:
    pi_pool_destroy(p);
    return rc;
}

void pi_pool_destroy(struct pi_pool *p)
{
    if (p == NULL)
        return;
    p->stop = true;
    next_epoch(p);
    for (uint32_t i = 0; i < p->n_started; i++)
        (void)pthread_join(p->threads[i], NULL);
    unbind(p);
    pi_affinity_free(&p->affinity);
    free(p->arrived);
    free(p->threads);
    free(p->workers);
    free(p);
}

uint32_t pi_pool_size(const struct pi_pool *p)
{
    return p->n_threads;
}

void pi_pool_run(struct pi_pool *p, pi_pool_fn fn, void *ctx)
{
    unsigned left;

    if (p->n_threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->running.word, p->n_threads - 1, memory_order_relaxed);
    next_epoch(p);
    fn(ctx, 0, p->n_threads);
    while ((left = atomic_load_explicit(&p->running.word, memory_order_acquire)) != 0)
        gate_wait_change(&p->running, left, p->spin ? RUN_SPIN_NS : 0);
    if (p->pinned)
        look_around(p);
}

/* Adds one to a counter of n; true for the last, which also sets it back: nobody comes again before the barrier has opened. */
static bool count_in(struct counter *c, uint32_t n)
{
    if (atomic_fetch_add(&c->n, 1) + 1 != n)
        return false;
    atomic_store_explicit(&c->n, 0, memory_order_relaxed);
    return true;
}

void pi_pool_barrier(struct pi_pool *p, uint32_t thread)
{
    unsigned phase = atomic_load_explicit(&p->phase.word, memory_order_relaxed);
    uint32_t group = thread / p->group_size, left = p->n_threads - group * p->group_size;

    if (p->n_threads == 1)
        return;
    if (count_in(&p->arrived[group], left < p->group_size ? left : p->group_size) &&
        count_in(&p->groups, p->n_groups)) {
        atomic_fetch_add(&p->phase.word, 1);
        gate_wake(&p->phase);
    } else {
        gate_wait_change(&p->phase, phase, p->spin ? RUN_SPIN_NS : 0);
    }
}

struct range_job {
    struct pi_pool *pool;
    pi_pool_range_fn fn;
    void *ctx;
    size_t n, chunk, n_chunks;
};

static void run_chunks(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct range_job *j = ctx;
    size_t i;

    (void)thread;
    (void)n_threads;
    while ((i = atomic_fetch_add_explicit(&j->pool->next_chunk, 1, memory_order_relaxed)) <
           j->n_chunks) {
        size_t begin = i * j->chunk, left = j->n - begin;

        j->fn(j->ctx, begin, begin + (left < j->chunk ? left : j->chunk));
    }
}

void pi_pool_for(struct pi_pool *p, size_t n, size_t chunk, pi_pool_range_fn fn, void *ctx)
{
    struct range_job j = {.pool = p, .fn = fn, .ctx = ctx, .n = n, .chunk = chunk > 0 ? chunk : 1};

    j.n_chunks = n / j.chunk + (n % j.chunk != 0);
    atomic_store_explicit(&p->next_chunk, 0, memory_order_relaxed);
    if (j.n_chunks <= 1)
        run_chunks(&j, 0, 1);
    else
        pi_pool_run(p, run_chunks, &j);
}
