/*
 * Weights in memory of this process's own.
 *
 * A map's copy is made beside it and then moved to where the map was: everything that points into the file goes on to be right. The copy is laid out so
 * that its huge pages are moved as they are.
 */
#include "config.h"

#include "runtime/pi_resident.h"

#include "common/pi_cgroup.h"
#include "common/pi_progress.h"
#include "common/pi_size.h"
#include "runtime/pi_ops.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE  ((uintptr_t)2 << 20)
#define PIECE ((size_t)32 << 20) /* bytes between two looks at the clock */

struct copying {
    const struct pi_gguf *g;
    const struct pi_map *map;
    uint8_t *to; /* (map->size) */
    struct pi_progress bar;
    size_t page;
    atomic_ullong done; /* bytes, of all maps */
    atomic_bool stop;
};

/* Each thread's span of every tensor's rows gets its pages on the thread's memory node. */
static void first_touch(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct copying *c = ctx;

    for (size_t i = 0; i < c->g->n_tensors; i++) {
        const struct pi_gguf_tensor *x = &c->g->tensors[i];
        uint64_t rows = x->ne[1] * x->ne[2] * x->ne[3];
        struct pi_span mine;
        size_t at, end;

        if (rows == 0 || rows > UINT32_MAX || x->bytes == 0 || x->data < c->map->data ||
            x->data >= c->map->data + c->map->size)
            continue;
        mine = pi_span((uint32_t)rows, PI_SPAN_ROWS, thread, n_threads);
        at = (size_t)(x->data - c->map->data) + x->bytes / rows * mine.begin;
        end = (size_t)(x->data - c->map->data) + x->bytes / rows * mine.end;
        for (; at < end; at += c->page)
            *(volatile uint8_t *)(c->to + at) = 0;
    }
}

static void copy_bytes(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct copying *c = ctx;
    const size_t pages = c->map->size / c->page + 1;
    size_t at = pages * thread / n_threads * c->page;
    size_t end = pages * (thread + 1) / n_threads * c->page;

    end = end < c->map->size ? end : c->map->size;
    for (size_t n; at < end && !atomic_load(&c->stop); at += n) {
        n = end - at < PIECE ? end - at : PIECE;
        memcpy(c->to + at, c->map->data + at, n);
        pi_map_drop(c->map, c->map->data + at, n);
        atomic_fetch_add(&c->done, n);
        if (thread == 0)
            pi_progress_at(&c->bar, atomic_load(&c->done));
        if (pi_interrupted())
            atomic_store(&c->stop, true);
    }
}

/* The copy takes the file's place. */
static enum pi_code put_in_place(struct pi_map *m, uint8_t *copy, struct pi_err *err)
{
    void *at;

    memcpy(&at, &m->data, sizeof(at)); /* mremap() takes it without the const */
    if (mremap(copy, m->size, m->size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
        return pi_err_set(err, PI_E_NOMEM, "cannot move the copy of %s: %s", m->path,
                          strerror(errno));
    (void)mprotect(at, m->size, PROT_READ);
    m->copied = true;
    return PI_OK;
}

static enum pi_code copy_map(struct copying *c, struct pi_map *m, struct pi_pool *pool,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t room = m->size + 2 * HUGE;
    uint8_t *mem, *end;

    if (m->size == 0 || m->borrowed || m->copied)
        return PI_OK;
    mem = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED)
        return pi_err_set(err, PI_E_NOMEM, "cannot allocate %zu MiB for the weights of %s: %s",
                          room >> 20, m->path, strerror(errno));
    (void)madvise(mem, room, MADV_HUGEPAGE);
    /* as far behind a huge page's begin as the map */
    c->to = mem + ((uintptr_t)m->data - (uintptr_t)mem) % HUGE;
    c->map = m;
    pi_map_drop(m, m->data, m->size);
    pi_pool_run(pool, first_touch, c);
    pi_pool_run(pool, copy_bytes, c);
    PI_TRY(pi_interrupt_check(err));
    PI_TRY(put_in_place(m, c->to, err));
    /* what is left on both sides */
    end = c->to + (m->size + c->page - 1) / c->page * c->page;
    if (c->to > mem)
        (void)munmap(mem, (size_t)(c->to - mem));
    (void)munmap(end, (size_t)(mem + room - end));
    return PI_OK;
out:
    (void)munmap(mem, room);
    return rc;
}

static bool add_map(uint64_t *sum, const struct pi_map *m)
{
    return pi_size_add(*sum, m->size, sum);
}

enum pi_code pi_resident_copy(struct pi_gguf *g, struct pi_pool *pool, bool progress,
                              struct pi_err *err)
{
    struct copying c = {.g = g, .page = (size_t)sysconf(_SC_PAGESIZE)};
    const uint64_t have = pi_memory_limit("");
    enum pi_code rc = PI_OK;
    uint64_t bytes = 0;
    bool fits = add_map(&bytes, &g->map);

    for (size_t i = 0; i < g->n_parts; i++)
        fits = fits && add_map(&bytes, &g->parts[i]);
    if (!fits || bytes > have)
        return pi_err_set(
            err, PI_E_NOMEM,
            "--no-mmap: the weights of %s take %llu MiB, this process may use %llu MiB: leave the option out",
            g->map.path, (unsigned long long)(bytes >> 20), (unsigned long long)(have >> 20));
    pi_progress_begin(&c.bar, "copying weights", bytes, progress);
    rc = copy_map(&c, &g->map, pool, err);
    for (size_t i = 0; rc == PI_OK && i < g->n_parts; i++)
        rc = copy_map(&c, &g->parts[i], pool, err);
    pi_progress_end(&c.bar);
    return rc;
}
