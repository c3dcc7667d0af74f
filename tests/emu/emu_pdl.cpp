/* Programmatic dependent launches in graphs: with PI_EMU_PDL=1, a kernel that may start before the one in front ends
 * starts before that one even begins, and is held in pi_pdl_wait() until it is done. Two OS threads take turns. */
#include "tests/emu/emu_int.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>

static std::mutex &lock = *new std::mutex;
static std::condition_variable &news = *new std::condition_variable;

typedef std::unique_lock<std::mutex> hold_lock;

/* A kernel on its way. */
struct emu_pdl {
    std::shared_ptr<const struct emu_grid> grid;
    bool released = false; /* the one in front is done */
    bool paused = false;   /* it waits for that, or polls */
    bool finished = false;
};

struct worker {
    struct emu_pdl *job = NULL;
    bool quit = false;
};

/* The two of the calling stream thread. Not zero-initialised: see __shared__. */
static __thread struct {
    unsigned magic;
    struct worker *w[2];
} mine = {1, {NULL, NULL}};

bool emu_pdl_pause(struct emu_pdl *p)
{
    const hold_lock hold(lock);

    p->paused = true;
    news.notify_all();
    return p->released;
}

void emu_pdl_block(struct emu_pdl *p)
{
    hold_lock hold(lock);

    p->paused = true;
    news.notify_all();
    news.wait(hold, [&]() { return p->released; });
}

static void *work(void *arg)
{
    struct worker *w = (struct worker *)arg;

    emu_thread_setup();
    hold_lock hold(lock);

    for (;;) {
        news.wait(hold, [&]() { return w->job != NULL || w->quit; });
        if (w->job == NULL)
            break;
        struct emu_pdl *p = w->job, *wait_for = p->released ? NULL : p;

        hold.unlock();
        if (emu_sticky() == cudaSuccess)
            emu_run_grid(p->grid.get(), wait_for);
        hold.lock();
        p->finished = true;
        w->job = NULL;
        news.notify_all();
    }
    hold.unlock();
    emu_thread_end();
    delete w;
    return NULL;
}

static struct worker *worker_of(size_t i)
{
    pthread_t thread;

    if (mine.w[i % 2] == NULL) {
        mine.w[i % 2] = new worker;
        if (pthread_create(&thread, NULL, work, mine.w[i % 2]) != 0)
            emu_die("no thread for dependent launches");
        (void)pthread_detach(thread);
    }
    return mine.w[i % 2];
}

void emu_pdl_end(void)
{
    const hold_lock hold(lock);

    for (struct worker *&w : mine.w)
        if (w != NULL) {
            w->quit = true;
            w = NULL;
        }
    news.notify_all();
}

static void start(struct emu_pdl *p, size_t i)
{
    struct worker *w = worker_of(i);
    const hold_lock hold(lock);

    w->job = p;
    news.notify_all();
}

void emu_run_nodes(const std::vector<struct emu_node> &nodes)
{
    std::unique_ptr<struct emu_pdl> now, next; /* kernels started; now: node i */

    for (size_t i = 0; i < nodes.size() && emu_sticky() == cudaSuccess; i++) {
        if (!emu_conf()->pdl || nodes[i].grid == NULL) {
            nodes[i].work();
            continue;
        }
        if (i + 1 < nodes.size() && nodes[i + 1].grid != NULL && nodes[i + 1].grid->pdl) {
            next = std::make_unique<struct emu_pdl>();
            next->grid = nodes[i + 1].grid;
            start(next.get(), i + 1);
            hold_lock hold(lock);

            news.wait(hold, [&]() { return next->paused || next->finished; });
        }
        if (now == NULL) {
            now = std::make_unique<struct emu_pdl>();
            now->grid = nodes[i].grid;
            now->released = true;
            start(now.get(), i);
        }
        hold_lock hold(lock);

        now->released = true;
        news.notify_all();
        news.wait(hold, [&]() { return now->finished; });
        now = std::move(next);
    }
    if (now != NULL) { /* a fault ended the loop */
        hold_lock hold(lock);

        now->released = true;
        news.notify_all();
        news.wait(hold, [&]() { return now->finished; });
    }
}
