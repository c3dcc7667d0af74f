/* Stacks that one OS thread switches between. */
#ifndef EMU_FIBER_H
#define EMU_FIBER_H

#include <stddef.h>

struct emu_fiber {
    void *sp; /* while it does not run */
    char *stack;
    size_t size;
    void *asan_fake;
    struct emu_fiber *next; /* in the pool */
};

struct emu_fiber_pool {
    struct emu_fiber home; /* the OS thread's own stack */
    struct emu_fiber *idle;
    void (*entry)(void *);
    void *arg;
    unsigned n_made;
};

/* entry(arg) must never return. */
void emu_fiber_pool_init(struct emu_fiber_pool *p, void (*entry)(void *), void *arg);
/* All fibers must be back in the pool. */
void emu_fiber_pool_free(struct emu_fiber_pool *p);
/* A fiber that is in entry() and not in use: new, or one that was given back and goes on behind its switch. */
struct emu_fiber *emu_fiber_take(struct emu_fiber_pool *p);
void emu_fiber_give(struct emu_fiber_pool *p, struct emu_fiber *f);
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to);

#endif
