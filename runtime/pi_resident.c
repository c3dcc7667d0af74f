#include "config.h"

#include "runtime/pi_resident.h"

#include "common/pi_cgroup.h"
#include "common/pi_progress.h"
#include "runtime/pi_ops.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
#define PIECE ((size_t)32 << 20) /* bytes between two looks at the clock */

struct touching {
    const struct pi_gguf *g;
    size_t page;
    struct pi_progress bar; /* thread 0's */
    atomic_ullong done;     /* bytes */
    atomic_bool stop;
};

/* What lies in [begin, end), whole pages. Kernels before 5.14 do not know the advice: a byte of each page is read. */
static void touch(const struct touching *t, const uint8_t *begin, const uint8_t *end)
{
    const uint8_t *from = begin - (uintptr_t)begin % t->page;
    void *p;

    memcpy(&p, &from, sizeof(p)); /* madvise() takes it without the const */
    if (madvise(p, (size_t)(end - from), MADV_POPULATE_READ) == 0 || errno != EINVAL)
        return;
    for (const volatile uint8_t *b = from; b < end; b += t->page)
        (void)*b;
}

static void touch_rows(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct touching *t = ctx;

    for (size_t i = 0; i < t->g->n_tensors; i++) {
        const struct pi_gguf_tensor *x = &t->g->tensors[i];
        uint64_t rows = x->ne[1] * x->ne[2] * x->ne[3];
        struct pi_span mine;
        const uint8_t *at, *end;

        if (rows == 0 || rows > UINT32_MAX || x->bytes == 0)
            continue;
        mine = pi_span((uint32_t)rows, PI_SPAN_ROWS, thread, n_threads);
        at = x->data + x->bytes / rows * mine.begin;
        end = x->data + x->bytes / rows * mine.end;
        for (size_t n; at < end && !atomic_load(&t->stop); at += n) {
            n = (size_t)(end - at) < PIECE ? (size_t)(end - at) : PIECE;
            touch(t, at, at + n);
            atomic_fetch_add(&t->done, n);
            if (thread == 0)
                pi_progress_at(&t->bar, atomic_load(&t->done));
            if (pi_interrupted())
                atomic_store(&t->stop, true);
        }
    }
}

enum pi_code pi_resident_touch(const struct pi_gguf *g, struct pi_pool *pool, bool progress,
                               struct pi_err *err)
{
    struct touching t = {.g = g, .page = (size_t)sysconf(_SC_PAGESIZE)};
    uint64_t bytes = 0;

    for (size_t i = 0; i < g->n_tensors; i++)
        bytes += g->tensors[i].bytes;
    if (bytes > pi_memory_limit("") / 4 * 3)
        return PI_OK;
    pi_progress_begin(&t.bar, "reading weights", bytes, progress);
    pi_pool_run(pool, touch_rows, &t);
    pi_progress_end(&t.bar);
    return pi_interrupt_check(err);
}

static int lock_map(const struct pi_map *m)
{
    return m->size == 0 || mlock(m->data, m->size) == 0 ? 0 : errno;
}

int pi_resident_lock(const struct pi_gguf *g)
{
    int e = lock_map(&g->map);

    for (size_t i = 0; e == 0 && i < g->n_parts; i++)
        e = lock_map(&g->parts[i]);
    return e;
}

uint64_t pi_resident_lock_limit(void)
{
    struct rlimit r;

    return getrlimit(RLIMIT_MEMLOCK, &r) != 0 || r.rlim_cur == RLIM_INFINITY ? UINT64_MAX
                                                                             : r.rlim_cur;
}
