/* Context switches by hand: the registers that a call preserves, nothing else, and no system call. */
#include "tests/emu/emu_fiber.h"
#include "tests/emu/emu_int.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)256 << 10)
#else
#define STACK_BYTES ((size_t)64 << 10)
#endif

#if defined(__x86_64__)
/* The jump instead of a return is predicted well: a switch mostly leads where the last one from here led. */
__asm__(".text\n"
        ".p2align 4\n"
        ".type emu_switch_stacks, @function\n"
        "emu_switch_stacks:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    popq %rcx\n"
        "    jmp *%rcx\n"
        ".size emu_switch_stacks, .-emu_switch_stacks\n");
#define FRAME_WORDS 8 /* six registers, the address, one to align */
#define FRAME_PC 6
#elif defined(__aarch64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".type emu_switch_stacks, %function\n"
        "emu_switch_stacks:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    br x30\n"
        ".size emu_switch_stacks, .-emu_switch_stacks\n");
#define FRAME_WORDS 20
#define FRAME_PC 11
#else
#error "the CUDA emulator has no context switch for this machine"
#endif

extern "C" void emu_switch_stacks(void **save, void *to);

/* The pool that the fiber that starts next belongs to: a fresh stack has no argument. Not zero-initialised. */
static __thread struct emu_fiber_pool *starting_pool = (struct emu_fiber_pool *)1;

static void fiber_start(void)
{
    struct emu_fiber_pool *p = starting_pool;

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    p->entry(p->arg);
    emu_die("a fiber came to its end");
}

void emu_fiber_pool_init(struct emu_fiber_pool *p, void (*entry)(void *), void *arg)
{
    pthread_attr_t attr;
    void *stack = NULL;

    *p = {};
    p->entry = entry;
    p->arg = arg;
    (void)pthread_getattr_np(pthread_self(), &attr);
    (void)pthread_attr_getstack(&attr, &stack, &p->home.size);
    (void)pthread_attr_destroy(&attr);
    p->home.stack = (char *)stack;
}

#define GUARD_BYTES ((size_t)4096)

void emu_fiber_pool_free(struct emu_fiber_pool *p)
{
    while (p->idle != NULL) {
        struct emu_fiber *f = p->idle;

        p->idle = f->next;
        (void)munmap(f->stack - GUARD_BYTES, GUARD_BYTES + f->size);
        delete f;
    }
}

static struct emu_fiber *make_fiber(struct emu_fiber_pool *p)
{
    struct emu_fiber *f = new emu_fiber();
    char *map = (char *)mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (map == (char *)MAP_FAILED || mprotect(map, GUARD_BYTES, PROT_NONE) != 0)
        emu_die("no memory for the stacks of a block's threads");
    f->stack = map + GUARD_BYTES;
    f->size = STACK_BYTES;
    /* Tops at different places of a page: else all stacks would compete for the same lines of the cache. */
    uintptr_t top = (uintptr_t)f->stack + f->size - p->n_made++ % 15 * 256;
    void **sp = (void **)top - FRAME_WORDS - FRAME_WORDS % 2;

    for (int i = 0; i < FRAME_WORDS; i++)
        sp[i] = NULL;
    sp[FRAME_PC] = (void *)fiber_start;
    f->sp = sp;
    return f;
}

struct emu_fiber *emu_fiber_take(struct emu_fiber_pool *p)
{
    struct emu_fiber *f = p->idle;

    starting_pool = p;
    if (f == NULL)
        return make_fiber(p);
    p->idle = f->next;
    return f;
}

void emu_fiber_give(struct emu_fiber_pool *p, struct emu_fiber *f)
{
    f->next = p->idle;
    p->idle = f;
}

void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->asan_fake, to->stack, to->size);
#endif
    emu_switch_stacks(&from->sp, to->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->asan_fake, NULL, NULL);
#endif
}
