/* Runs grids: fibers for the threads of a block, rendezvous of warps and blocks, divergence. */
#include "tests/emu/emu_fiber.h"
#include "tests/emu/emu_int.h"

#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <unordered_map>

#define MAX_THREADS 1024

__thread struct emu_self emu_self = {0x454d55, 0, {}, {}, dim3(), dim3(), NULL, NULL, 0, NULL};

struct emu_warp;

struct emu_fiber_thread {
    uint3 tid;
    struct emu_warp *warp;
    unsigned lane;     /* threads are numbered as CUDA does; */
    unsigned position; /* bit in the warp's masks, by the order in which lanes run */
    struct emu_fiber *fiber;
    const char *file; /* where it waits */
    int line;
};

/* Masks by position. A lane is in ready, waits at a warp function (in neither), at the barrier, or is done. */
struct emu_warp {
    struct emu_warp_result result[2];
    unsigned current; /* which of the two the next rendezvous uses */
    uint32_t all, ready, at_barrier, at_pdl, done;
    unsigned n_lanes, n_arrived, index;
    enum emu_warp_op op;
    const char *file;
    int line;
    struct emu_fiber_thread *threads;
};

struct tls_range {
    uint64_t *begin;
    size_t n;
};

/* What a kernel was seen to touch of the shared memory of all kernels. */
struct seen_kernel {
    struct tls_range dirty;
    unsigned long n_launches;
};

struct emu_exec {
    const struct emu_grid *grid;
    struct emu_fiber_thread *current;
    unsigned n_threads, n_warps, n_at_barrier, n_at_pdl, n_done;
    uint32_t warps_ready;
    const char *barrier_file;
    int barrier_line;
    struct emu_fiber_pool pool;
    unsigned n_polls, n_yields;
    double poll_start;
    struct tls_range tls;
    std::unordered_map<const void *, struct seen_kernel> seen;
    dim3 layout_block; /* what threads[] was made for */
    uint64_t layout_key;
    std::mt19937_64 rng;
    unsigned char *dyn;
    size_t dyn_size;
    struct emu_warp warps[MAX_THREADS / 32];
    struct emu_fiber_thread threads[MAX_THREADS];
};

static const char *const op_names[] = {"__syncwarp",      "__shfl_sync",   "__shfl_up_sync", "__shfl_down_sync",
                                       "__shfl_xor_sync", "__ballot_sync", "__any_sync",     "__all_sync"};

/* ---- divergence ---- */

static void print_threads(const struct emu_exec *e, const struct emu_warp *only)
{
    std::string last;
    int n_lines = 0;

    for (unsigned i = 0; i < e->n_threads && n_lines < 12; i++) {
        const struct emu_fiber_thread *t = NULL;
        char text[300];

        for (unsigned k = i / 32 * 32; k < i / 32 * 32 + 32 && k < e->n_threads; k++)
            if (e->threads[k].lane == i % 32)
                t = &e->threads[k];
        if (t == NULL || (only != NULL && t->warp != only))
            continue;
        const uint32_t bit = 1u << t->position;
        if (t->warp->done & bit)
            snprintf(text, sizeof(text), "has ended");
        else if (t->warp->at_barrier & bit)
            snprintf(text, sizeof(text), "waits in __syncthreads at %s:%d", t->file, t->line);
        else if (t->warp->at_pdl & bit)
            snprintf(text, sizeof(text), "waits in pi_pdl_wait");
        else if (t->warp->ready & bit)
            snprintf(text, sizeof(text), t == e->current ? "is running" : "has not come this far");
        else
            snprintf(text, sizeof(text), "waits in %s at %s:%d", op_names[t->warp->op], t->file, t->line);
        if (last == text)
            continue;
        last = text;
        n_lines++;
        fprintf(stderr, "emu:   from thread (%u, %u, %u) on: %s\n", t->tid.x, t->tid.y, t->tid.z, text);
    }
}

[[noreturn]] static void diverged(const struct emu_exec *e, const struct emu_warp *warp, const char *what)
{
    const uint3 b = emu_self.bid, t = emu_self.tid;

    fprintf(stderr, "emu: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s\n", e->grid->kernel->name, b.x, b.y,
            b.z, t.x, t.y, t.z, what);
    print_threads(e, warp);
    abort();
}

/* ---- switching between threads of the block ---- */

static inline uint32_t next_bit(uint32_t mask, unsigned after)
{
    uint32_t later = after >= 31 ? 0 : mask & (~0u << (after + 1));

    return (uint32_t)__builtin_ctz(later != 0 ? later : mask);
}

/* The kernel in front is done. */
static void go_on_after_pdl(struct emu_exec *e)
{
    emu_self.pdl = NULL;
    e->n_at_pdl = 0;
    for (unsigned i = 0; i < e->n_warps; i++) {
        struct emu_warp *w = &e->warps[i];

        w->ready |= w->at_pdl;
        w->at_pdl = 0;
        e->warps_ready |= (uint32_t)(w->ready != 0) << i;
    }
}

/* The next thread that can run, seen from t; NULL when all are done. */
static struct emu_fiber_thread *next_thread(struct emu_exec *e, const struct emu_fiber_thread *t)
{
    struct emu_warp *w = t->warp;

    if (w->ready != 0)
        return &w->threads[next_bit(w->ready, t->position)];
    if (w->n_arrived != 0 && w->at_pdl == 0)
        diverged(e, w, "not all lanes of the warp come to the same warp function");
    e->warps_ready &= ~(1u << w->index);
    if (e->warps_ready != 0) {
        w = &e->warps[next_bit(e->warps_ready, w->index)];
        return &w->threads[next_bit(w->ready, 31)];
    }
    if (e->n_at_pdl > 0) { /* all that could be done before is done */
        emu_pdl_block(emu_self.pdl);
        go_on_after_pdl(e);
        return next_thread(e, t);
    }
    if (e->n_done < e->n_threads)
        diverged(e, NULL, "threads have ended while others wait for them in __syncthreads");
    return NULL;
}

static inline void set_current(struct emu_exec *e, struct emu_fiber_thread *t)
{
    e->current = t;
    emu_self.tid = t->tid;
    emu_self.lane = t->lane;
}

/* Leaves the running thread t until it is its turn again. */
static void switch_to(struct emu_exec *e, struct emu_fiber_thread *t, struct emu_fiber_thread *next)
{
    if (next == t)
        return;
    if (next->fiber == NULL)
        next->fiber = emu_fiber_take(&e->pool);
    set_current(e, next);
    emu_fiber_switch(t->fiber, next->fiber);
}

/* What every fiber does, for ever: run the current thread; then the next fresh one on the same stack, or hand over. */
static void fiber_main(void *arg)
{
    struct emu_exec *e = (struct emu_exec *)arg;

    for (;;) {
        struct emu_fiber_thread *t = e->current, *next;
        struct emu_fiber *self = t->fiber;

        e->grid->kernel->run();
        t->fiber = NULL;
        t->warp->ready &= ~(1u << t->position);
        t->warp->done |= 1u << t->position;
        e->n_done++;
        next = next_thread(e, t);
        if (next == NULL) {
            emu_fiber_give(&e->pool, self);
            emu_fiber_switch(self, &e->pool.home);
            continue;
        }
        set_current(e, next);
        if (next->fiber == NULL) {
            next->fiber = self;
            continue;
        }
        emu_fiber_give(&e->pool, self);
        emu_fiber_switch(self, next->fiber);
    }
}

/* ---- rendezvous ---- */

const struct emu_warp_result *emu_warp_meet(unsigned mask, enum emu_warp_op op, uint64_t value, const char *file,
                                            int line)
{
    struct emu_exec *e = emu_self.exec;
    struct emu_fiber_thread *t = e->current;
    struct emu_warp *w = t->warp;
    struct emu_warp_result *r = &w->result[w->current];

    t->file = file;
    t->line = line;
    if (mask != ~0u || w->n_lanes != 32)
        diverged(e, w, mask != ~0u ? "a warp function without the full mask"
                                   : "a warp function in a warp of less than 32 threads");
    if (w->n_arrived == 0) {
        w->op = op;
        w->file = file;
        w->line = line;
    } else if (w->op != op || w->line != line || (w->file != file && strcmp(w->file, file) != 0)) {
        diverged(e, w, "lanes of a warp come to different warp functions");
    }
    r->value[t->lane] = value;
    r->bits |= (uint32_t)(value != 0) << t->lane;
    if (++w->n_arrived == 32) {
        w->n_arrived = 0;
        w->current ^= 1;
        w->result[w->current].bits = 0;
        w->ready = w->all;
        return r;
    }
    w->ready &= ~(1u << t->position);
    switch_to(e, t, next_thread(e, t));
    return r;
}

void emu_block_meet(const char *file, int line)
{
    struct emu_exec *e = emu_self.exec;
    struct emu_fiber_thread *t = e->current;

    t->file = file;
    t->line = line;
    if (e->n_at_barrier == 0) {
        e->barrier_file = file;
        e->barrier_line = line;
    } else if (e->barrier_line != line || (e->barrier_file != file && strcmp(e->barrier_file, file) != 0)) {
        diverged(e, NULL, "threads of the block come to different __syncthreads");
    }
    t->warp->ready &= ~(1u << t->position);
    t->warp->at_barrier |= 1u << t->position;
    if (++e->n_at_barrier < e->n_threads) {
        switch_to(e, t, next_thread(e, t));
        return;
    }
    e->n_at_barrier = 0;
    for (unsigned i = 0; i < e->n_warps; i++) {
        e->warps[i].ready = e->warps[i].all;
        e->warps[i].at_barrier = 0;
    }
    e->warps_ready = e->n_warps == 32 ? ~0u : (1u << e->n_warps) - 1;
}

void emu_pdl_wait(void)
{
    struct emu_exec *e = emu_self.exec;
    struct emu_fiber_thread *t = e->current;

    t->warp->ready &= ~(1u << t->position);
    t->warp->at_pdl |= 1u << t->position;
    e->n_at_pdl++;
    switch_to(e, t, next_thread(e, t));
}

/* Lets another thread of the block run while t polls. */
static void yield_to_other(struct emu_exec *e, struct emu_fiber_thread *t)
{
    struct emu_warp *w = t->warp;
    const uint32_t others = w->ready & ~(1u << t->position);

    if (others == 0) {
        w = &e->warps[next_bit(e->warps_ready, w->index)];
        if (w != t->warp)
            switch_to(e, t, &w->threads[next_bit(w->ready, 31)]);
        return;
    }
    switch_to(e, t, &w->threads[next_bit(others, t->position)]);
}

void emu_relax(unsigned ns)
{
    struct emu_exec *e = emu_self.exec;
    const double limit = emu_conf()->watchdog_s;

    if (ns == 0 && ++e->n_polls % 16 != 0)
        return;
    if (e->poll_start <= 0.0)
        e->poll_start = emu_seconds();
    else if (limit > 0.0 && emu_seconds() - e->poll_start > limit)
        diverged(e, NULL, "polls since PI_EMU_WATCHDOG seconds");
    if (emu_sticky() != cudaSuccess)
        diverged(e, NULL, "polls on a device that has failed");
    if (emu_self.pdl != NULL && emu_pdl_pause(emu_self.pdl))
        go_on_after_pdl(e);
    yield_to_other(e, e->current);
    if (++e->n_yields < 4) {
        sched_yield();
    } else { /* who is waited for may need this core: longer from time to time */
        const struct timespec ts = {0, 2000 * (long)std::min(e->n_yields, 25u)};

        (void)nanosleep(&ts, NULL);
    }
}

/* ---- a grid ---- */

static void permute(std::vector<unsigned> &v, enum emu_order order, std::mt19937_64 &rng)
{
    for (unsigned i = 0; i < v.size(); i++)
        v[i] = order == EMU_REVERSE ? (unsigned)v.size() - 1 - i : i;
    if (order == EMU_RANDOM)
        std::shuffle(v.begin(), v.end(), rng);
}

/* Who is thread i of a block, in the order in which they run. */
static void lay_out(struct emu_exec *e, dim3 block)
{
    const struct emu_config *c = emu_conf();
    const unsigned n = block.x * block.y * block.z, n_warps = (n + 31) / 32;
    std::vector<unsigned> warps(n_warps);

    if (c->threads != EMU_RANDOM && e->layout_key == (uint64_t)c->threads + 1 && e->layout_block.x == block.x &&
        e->layout_block.y == block.y && e->layout_block.z == block.z)
        return;
    e->layout_key = (uint64_t)c->threads + 1;
    e->layout_block = block;
    e->n_threads = n;
    e->n_warps = n_warps;
    permute(warps, c->threads, e->rng);
    for (unsigned i = 0, at = 0; i < n_warps; i++) {
        struct emu_warp *w = &e->warps[i];
        std::vector<unsigned> lanes(std::min(32u, n - warps[i] * 32));

        permute(lanes, c->threads, e->rng);
        w->index = i;
        w->n_lanes = (unsigned)lanes.size();
        w->all = lanes.size() == 32 ? ~0u : (1u << lanes.size()) - 1;
        w->threads = &e->threads[at];
        for (unsigned k = 0; k < lanes.size(); k++) {
            const unsigned id = warps[i] * 32 + lanes[k];
            struct emu_fiber_thread *t = &e->threads[at++];

            t->tid = uint3{id % block.x, id / block.x % block.y, id / block.x / block.y};
            t->warp = w;
            t->lane = lanes[k];
            t->position = k;
            t->fiber = NULL;
        }
    }
}

static void run_block(struct emu_exec *e)
{
    for (unsigned i = 0; i < e->n_warps; i++) {
        struct emu_warp *w = &e->warps[i];

        w->ready = w->all;
        w->at_barrier = w->at_pdl = w->done = 0;
        w->n_arrived = 0;
        w->result[w->current].bits = 0;
    }
    e->n_at_barrier = e->n_at_pdl = e->n_done = 0;
    e->warps_ready = e->n_warps == 32 ? ~0u : (1u << e->n_warps) - 1;
    e->n_polls = e->n_yields = 0;
    e->poll_start = 0.0;
    set_current(e, &e->threads[0]);
    e->current->fiber = emu_fiber_take(&e->pool);
    emu_fiber_switch(&e->pool.home, e->current->fiber);
}

/* ---- shared memory ---- */

/* The zero-initialised thread-local data of the program, this thread's copy: where __shared__ arrays are. Rounded
 * inwards to whole words. */
static int find_tls(struct dl_phdr_info *info, size_t, void *arg)
{
    struct tls_range *r = (struct tls_range *)arg;

    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data != NULL) {
            const uintptr_t at = (uintptr_t)info->dlpi_tls_data;

            r->begin = (uint64_t *)((at + info->dlpi_phdr[i].p_filesz + 7) / 8 * 8);
            r->n = (at + info->dlpi_phdr[i].p_memsz - (uintptr_t)r->begin) / 8;
        }
    return 1; /* the first object is the program */
}

__attribute__((no_sanitize("address"))) static void poison(struct tls_range r)
{
    memset((void *)r.begin, 0xff, r.n * 8);
}

/* The part of r that is not 0xff any more. */
__attribute__((no_sanitize("address"))) static struct tls_range touched(struct tls_range r)
{
    size_t lo = 0, hi = r.n;

    while (lo < hi && r.begin[lo] == ~(uint64_t)0)
        lo++;
    while (hi > lo && r.begin[hi - 1] == ~(uint64_t)0)
        hi--;
    return {r.begin + lo, hi - lo};
}

static struct tls_range join(struct tls_range a, struct tls_range b)
{
    if (a.n == 0 || b.n == 0)
        return a.n == 0 ? b : a;
    uint64_t *begin = std::min(a.begin, b.begin), *end = std::max(a.begin + a.n, b.begin + b.n);
    return {begin, (size_t)(end - begin)};
}

static void check_dyn_tail(const struct emu_exec *e)
{
    for (size_t i = e->grid->smem; i < (e->grid->smem + 15) / 16 * 16; i++)
        if (e->dyn[i] != 0xff)
            diverged(e, NULL, "wrote past the end of the dynamic shared memory");
}

static void run_blocks(struct emu_exec *e, const struct emu_grid *g)
{
    const struct emu_config *c = emu_conf();
    const size_t n = (size_t)g->grid.x * g->grid.y * g->grid.z, dyn = (g->smem + 15) / 16 * 16;
    struct seen_kernel *seen = &e->seen[g->kernel->func];
    /* What it touches is looked for in two blocks of some launches: it is nearly always the same. */
    const size_t n_looks = seen->n_launches < 4 || seen->n_launches % 64 == 0 ? 2 : 0;
    std::vector<unsigned> order(c->blocks == EMU_RANDOM ? n : 0);

    seen->n_launches++;
    permute(order, c->blocks, e->rng);
    for (size_t i = 0; i < n; i++) {
        size_t b = c->blocks == EMU_REVERSE ? n - 1 - i : c->blocks == EMU_RANDOM ? order[i] : i;

        emu_self.bid = uint3{(unsigned)(b % g->grid.x), (unsigned)(b / g->grid.x % g->grid.y),
                             (unsigned)(b / g->grid.x / g->grid.y)};
        poison(i < n_looks ? e->tls : seen->dirty);
        memset(e->dyn, 0xff, dyn);
        run_block(e);
        check_dyn_tail(e);
        if (i < n_looks)
            seen->dirty = join(seen->dirty, touched(e->tls));
    }
}

void emu_run_grid(const struct emu_grid *g, struct emu_pdl *pdl)
{
    struct emu_exec *e = emu_self.exec;

    if (!emu_kernel_may_run())
        return;
    e->grid = g;
    emu_self.bdim = g->block;
    emu_self.gdim = g->grid;
    if (g->smem + 16 > e->dyn_size) {
        free(e->dyn);
        e->dyn_size = g->smem + 4096;
        e->dyn = (unsigned char *)aligned_alloc(64, (e->dyn_size + 63) / 64 * 64);
    }
    emu_self.dyn_shared = e->dyn;
    emu_self.pdl = pdl;
    emu_self.n_pdl_waits = 0;
    lay_out(e, g->block);
    run_blocks(e, g);
    emu_self.pdl = NULL;
    if (g->pdl && emu_self.n_pdl_waits == 0)
        diverged(e, NULL, "launched with PI_LAUNCH_PDL, but no thread of the grid came to pi_pdl_wait()");
    e->grid = NULL;
}

/* ---- crashes ---- */

#ifndef __SANITIZE_ADDRESS__
static void on_crash(int sig, siginfo_t *info, void *)
{
    const struct emu_exec *e = emu_self.exec;

    if (e != NULL && e->grid != NULL)
        fprintf(stderr, "emu: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): ", e->grid->kernel->name,
                emu_self.bid.x, emu_self.bid.y, emu_self.bid.z, emu_self.tid.x, emu_self.tid.y, emu_self.tid.z);
    else
        fprintf(stderr, "emu: host code: ");
    fprintf(stderr, "signal %d at address %p: %s\n", sig, info->si_addr, emu_memory_text(info->si_addr).c_str());
    (void)signal(sig, SIG_DFL);
}
#endif

/* With ASan the report is ASan's. */
void emu_catch_crashes(void)
{
#ifndef __SANITIZE_ADDRESS__
    struct sigaction sa = {};

    sa.sa_sigaction = on_crash;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    (void)sigaction(SIGSEGV, &sa, NULL);
    (void)sigaction(SIGBUS, &sa, NULL);
#endif
}

/* ---- the OS threads of streams ---- */

/* Crashes of fibers are told on a stack of their own. */
static void use_signal_stack(bool use)
{
#ifndef __SANITIZE_ADDRESS__
    stack_t st = {}, old = {};

    st.ss_size = (size_t)64 << 10;
    st.ss_sp = use ? malloc(st.ss_size) : NULL;
    st.ss_flags = use && st.ss_sp != NULL ? 0 : SS_DISABLE;
    (void)sigaltstack(&st, &old);
    if (!use)
        free(old.ss_sp);
#else
    (void)use;
#endif
}

void emu_thread_setup(void)
{
    const struct emu_config *c = emu_conf();
    struct emu_exec *e = new emu_exec();

    e->rng.seed(c->blocks_seed * 1000003 + c->threads_seed);
    emu_fiber_pool_init(&e->pool, fiber_main, e);
    emu_self.exec = e;
    (void)prctl(PR_SET_TIMERSLACK, 1ul); /* short sleeps between polls stay short */
    (void)dl_iterate_phdr(find_tls, &e->tls);
    use_signal_stack(true);
}

void emu_thread_end(void)
{
    struct emu_exec *e = emu_self.exec;

    emu_self.exec = NULL;
    use_signal_stack(false);
    emu_fiber_pool_free(&e->pool);
    free(e->dyn);
    delete e;
}
