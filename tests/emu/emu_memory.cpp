/* Device and pinned memory: own mappings that end at a guard page, poisoned, accounted for; copies between kinds. */
#include "tests/emu/emu_int.h"

#include <stdio.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#define PAGE ((size_t)4096)
#define REGION_BYTES ((size_t)2 << 40) /* of addresses; they are not used twice */
#define ALIGN ((size_t)256)

struct allocation {
    char *ptr;
    size_t bytes;
    enum emu_memory_kind kind;
    char *map; /* NULL: registered, not ours */
    size_t map_bytes;
};

static std::mutex &lock = *new std::mutex;
static std::map<const char *, allocation> &live = *new std::map<const char *, allocation>; /* by ptr */
static std::map<const char *, allocation> &dead = *new std::map<const char *, allocation>; /* device memory only */
static char *region, *region_at;
static size_t used, peak;
static int n_open;

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- look-up ---- */

static const allocation *find(const std::map<const char *, allocation> &in, const void *p)
{
    auto at = in.upper_bound((const char *)p);

    if (at == in.begin())
        return NULL;
    --at;
    return (const char *)p < at->second.ptr + std::max<size_t>(at->second.bytes, 1) ? &at->second : NULL;
}

enum emu_memory_kind emu_memory_of(const void *p, size_t *left)
{
    const std::lock_guard<std::mutex> hold(lock);
    const allocation *a = find(live, p);

    if (a == NULL)
        return EMU_PAGEABLE;
    if (left != NULL)
        *left = (size_t)(a->ptr + a->bytes - (const char *)p);
    return a->kind;
}

static bool in_region(const void *p)
{
    return region != NULL && (const char *)p >= region && (const char *)p < region + REGION_BYTES;
}

std::string emu_memory_text(const void *p)
{
    std::string s;
    char line[200];

    if (p == NULL) { /* all of them */
        for (const auto &a : live) {
            (void)snprintf(line, sizeof(line), "emu:   %zu bytes of %s memory at %p\n", a.second.bytes,
                           a.second.kind == EMU_DEVICE ? "device" : "pinned", (void *)a.second.ptr);
            s += line;
        }
        return s;
    }
    if (const allocation *a = find(live, p))
        (void)snprintf(line, sizeof(line), "byte %zu of %s memory of %zu bytes", (size_t)((const char *)p - a->ptr),
                       a->kind == EMU_DEVICE ? "device" : "pinned", a->bytes);
    else if (const allocation *d = find(dead, p))
        (void)snprintf(line, sizeof(line), "byte %zu of device memory of %zu bytes that was freed",
                       (size_t)((const char *)p - d->ptr), d->bytes);
    else if (in_region(p) && live.upper_bound((const char *)p) != live.begin()) {
        const allocation &b = (--live.upper_bound((const char *)p))->second;

        (void)snprintf(line, sizeof(line), "%zu bytes past the end of device memory of %zu bytes",
                       (size_t)((const char *)p - b.ptr - b.bytes), b.bytes);
    } else
        (void)snprintf(line, sizeof(line), "not memory that CUDA knows");
    return line;
}

void emu_check_pointer(const char *kernel, int index, const void *p)
{
    if (p == NULL || emu_conf()->n_devices == 0)
        return;
    const std::lock_guard<std::mutex> hold(lock);
    auto at = live.upper_bound((const char *)p);

    /* One past the end is a pointer too. */
    if (at != live.begin() && (const char *)p <= (--at)->second.ptr + at->second.bytes)
        return;
    emu_die("kernel %s: argument %d is %p: %s", kernel, index + 1, p, emu_memory_text(p).c_str());
}

/* Addresses of the host's memory are told from numbers by their size, and by something being there. */
void emu_check_bytes(const char *kernel, int index, const void *v, size_t n)
{
    unsigned char there;

    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t word;

        memcpy(&word, (const char *)v + i, sizeof(word));
        if (word < 1ull << 45 || word >= 1ull << 48)
            continue;
        void *page = (void *)(word & ~(uint64_t)(PAGE - 1));
        const std::lock_guard<std::mutex> hold(lock);

        if (in_region(page) || find(live, (const void *)word) != NULL || find(live, (const char *)word - 1) != NULL)
            continue;
        if (mincore(page, 1, &there) == 0)
            emu_die("kernel %s: argument %d has, %zu bytes from its start, a pointer to the host's memory: %p", kernel,
                    index + 1, i, (void *)word);
    }
}

/* ---- access ---- */

static void protect_all(int prot)
{
    for (const auto &a : live)
        if (a.second.kind == EMU_DEVICE)
            (void)mprotect(a.second.map, a.second.map_bytes, prot);
}

void emu_memory_open(void)
{
    if (!emu_conf()->strict)
        return;
    const std::lock_guard<std::mutex> hold(lock);

    if (n_open++ == 0)
        protect_all(PROT_READ | PROT_WRITE);
}

void emu_memory_close(void)
{
    if (!emu_conf()->strict)
        return;
    const std::lock_guard<std::mutex> hold(lock);

    if (--n_open == 0)
        protect_all(PROT_NONE);
}

/* ---- device memory ---- */

/* The mapping ends where the allocation ends, but for the alignment; the page behind it is a guard. */
static cudaError_t take(size_t n, allocation *a)
{
    const size_t bytes = round_up(n, ALIGN), map_bytes = round_up(bytes, PAGE);

    if (region == NULL) {
        region = (char *)mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == (char *)MAP_FAILED)
            emu_die("no addresses for device memory");
        region_at = region + PAGE;
    }
    if (map_bytes + PAGE > (size_t)(region + REGION_BYTES - region_at))
        emu_die("no addresses left for device memory");
    a->map = region_at;
    a->map_bytes = map_bytes;
    if (mprotect(a->map, map_bytes, PROT_READ | PROT_WRITE) != 0)
        return cudaErrorMemoryAllocation;
    region_at += map_bytes + PAGE;
    memset(a->map, 0xff, map_bytes);
    a->ptr = a->map + map_bytes - bytes;
    a->bytes = n;
    a->kind = EMU_DEVICE;
    if (emu_conf()->strict && n_open == 0)
        (void)mprotect(a->map, map_bytes, PROT_NONE);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t n)
{
    allocation a = {};
    cudaError_t e;

    EMU_ENTER(cudaErrorMemoryAllocation);
    if (p == NULL)
        return emu_note(cudaErrorInvalidValue);
    if ((e = emu_capture_check()) != cudaSuccess)
        return emu_note(e);
    *p = NULL;
    if (n == 0)
        return cudaSuccess;
    const std::lock_guard<std::mutex> hold(lock);
    const size_t room = emu_conf()->memory - std::min(emu_conf()->memory, emu_conf()->context);

    if (used > room || n > room - used || (e = take(n, &a)) != cudaSuccess)
        return emu_note(cudaErrorMemoryAllocation);
    live[a.ptr] = a;
    used += n;
    peak = std::max(peak, used);
    *p = a.ptr;
    return cudaSuccess;
}

/* Takes p out of the table, if it is the start of an allocation of that kind. */
static bool forget(void *p, enum emu_memory_kind kind, bool ours, allocation *a)
{
    const std::lock_guard<std::mutex> hold(lock);
    const auto at = live.find((const char *)p);

    if (at == live.end() || at->second.kind != kind || (at->second.map != NULL) != ours)
        return false;
    *a = at->second;
    live.erase(at);
    if (kind == EMU_DEVICE) {
        used -= a->bytes;
        dead[a->ptr] = *a;
    }
    return true;
}

static void check_tail(const allocation *a)
{
    emu_memory_open();
    (void)mprotect(a->map, a->map_bytes, PROT_READ | PROT_WRITE); /* strict: no longer in the table */
    for (const char *c = a->ptr + a->bytes; c < a->map + a->map_bytes; c++)
        if (*c != (char)0xff)
            emu_die("byte %zu past the end of device memory of %zu bytes was written",
                    (size_t)(c - a->ptr - a->bytes), a->bytes);
    for (const char *c = a->map; c < a->ptr; c++)
        if (*c != (char)0xff)
            emu_die("byte %zu before device memory of %zu bytes was written", (size_t)(a->ptr - c), a->bytes);
    emu_memory_close();
}

cudaError_t cudaFree(void *p)
{
    allocation a = {};
    cudaError_t e;

    EMU_ENTER(cudaErrorUnknown);
    if (p == NULL)
        return cudaSuccess;
    if ((e = emu_capture_check()) != cudaSuccess || (e = emu_wait_device()) != cudaSuccess)
        return emu_note(e);
    if (!forget(p, EMU_DEVICE, true, &a))
        return emu_note(cudaErrorInvalidValue);
    check_tail(&a);
    (void)mmap(a.map, a.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    EMU_ENTER(cudaErrorUnknown);
    const std::lock_guard<std::mutex> hold(lock);
    const size_t gone = emu_conf()->context + used;

    *total = emu_conf()->memory;
    *free_bytes = *total > gone ? *total - gone : 0;
    return cudaSuccess;
}

extern "C" size_t cudaEmuUsedBytes(void)
{
    const std::lock_guard<std::mutex> hold(lock);

    return used;
}

extern "C" size_t cudaEmuPeakBytes(void)
{
    const std::lock_guard<std::mutex> hold(lock);

    return peak;
}

extern "C" void cudaEmuResetPeak(void)
{
    const std::lock_guard<std::mutex> hold(lock);

    peak = used;
}

extern "C" int cudaEmuLiveAllocations(void)
{
    const std::lock_guard<std::mutex> hold(lock);

    return (int)live.size();
}

/* ---- pinned memory ---- */

static cudaError_t pin(void **p, size_t n)
{
    allocation a = {};
    cudaError_t e;

    if (p == NULL)
        return cudaErrorInvalidValue;
    if ((e = emu_capture_check()) != cudaSuccess)
        return e;
    *p = NULL;
    if (n == 0)
        return cudaSuccess;
    a.bytes = n;
    a.map_bytes = round_up(n, PAGE);
    a.kind = EMU_PINNED;
    a.map = (char *)mmap(NULL, a.map_bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
    if (a.map == (char *)MAP_FAILED)
        return cudaErrorMemoryAllocation;
    (void)mprotect(a.map + a.map_bytes, PAGE, PROT_NONE);
    a.ptr = a.map;
    const std::lock_guard<std::mutex> hold(lock);

    live[a.ptr] = a;
    *p = a.ptr;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t n, unsigned)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    return emu_note(pin(p, n));
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    return emu_note(pin(p, n));
}

cudaError_t cudaFreeHost(void *p)
{
    allocation a = {};
    cudaError_t e;

    EMU_ENTER(cudaErrorUnknown);
    if (p == NULL)
        return cudaSuccess;
    if ((e = emu_capture_check()) != cudaSuccess || (e = emu_wait_device()) != cudaSuccess)
        return emu_note(e);
    if (!forget(p, EMU_PINNED, true, &a))
        return emu_note(cudaErrorInvalidValue);
    (void)munmap(a.map, a.map_bytes + PAGE);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t n, unsigned)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    if (p == NULL || n == 0)
        return emu_note(cudaErrorInvalidValue);
    const std::lock_guard<std::mutex> hold(lock);
    auto next = live.lower_bound((const char *)p);

    if (find(live, p) != NULL || (next != live.end() && next->first < (const char *)p + n))
        return emu_note(cudaErrorHostMemoryAlreadyRegistered);
    live[(const char *)p] = allocation{(char *)p, n, EMU_PINNED, NULL, 0};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    allocation a = {};
    cudaError_t e;

    EMU_ENTER(cudaErrorUnknown);
    if ((e = emu_wait_device()) != cudaSuccess)
        return emu_note(e);
    return forget(p, EMU_PINNED, false, &a) ? cudaSuccess : emu_note(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned flags)
{
    EMU_ENTER(cudaErrorInvalidValue);
    if (flags != 0 || emu_memory_of(host, NULL) != EMU_PINNED)
        return emu_note(cudaErrorInvalidValue);
    *dev = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    EMU_ENTER(cudaErrorInvalidValue);
    const enum emu_memory_kind kind = emu_memory_of(p, NULL);

    *a = {};
    a->type = kind == EMU_DEVICE ? cudaMemoryTypeDevice : kind == EMU_PINNED ? cudaMemoryTypeHost
                                                                             : cudaMemoryTypeUnregistered;
    a->devicePointer = kind == EMU_PAGEABLE ? NULL : const_cast<void *>(p);
    a->hostPointer = kind == EMU_DEVICE ? NULL : const_cast<void *>(p);
    return cudaSuccess;
}

/* ---- copies ---- */

struct copy {
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, width, height;
};

static void run_copy(const struct copy *c)
{
    emu_other_runs();
    for (size_t i = 0; i < c->height; i++)
        memmove(c->dst + i * c->dst_pitch, c->src + i * c->src_pitch, c->width);
}

/* Whether n bytes from p on are memory of a kind that the direction allows. device: as its device side. */
static cudaError_t check_side(const void *p, size_t n, bool device, bool any)
{
    size_t left = 0;
    const enum emu_memory_kind kind = emu_memory_of(p, &left);

    if (kind == EMU_PAGEABLE && (in_region(p) || (device && !any)))
        return cudaErrorInvalidValue;
    if (kind == EMU_DEVICE && !device && !any)
        return cudaErrorInvalidValue;
    return kind != EMU_PAGEABLE && n > left ? cudaErrorInvalidValue : cudaSuccess;
}


static cudaError_t copy(struct copy c, enum cudaMemcpyKind kind, cudaStream_t s, bool wait)
{
    const bool any = kind == cudaMemcpyDefault, to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
               from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    cudaError_t e;

    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (c.width == 0 || c.height == 0)
        return cudaSuccess;
    if (c.dst == NULL || c.src == NULL || (c.height > 1 && (c.width > c.dst_pitch || c.width > c.src_pitch)))
        return cudaErrorInvalidValue;
    if (wait && (e = emu_capture_check()) != cudaSuccess)
        return e;
    if ((e = check_side(c.dst, (c.height - 1) * c.dst_pitch + c.width, to, any)) != cudaSuccess ||
        (e = check_side(c.src, (c.height - 1) * c.src_pitch + c.width, from, any)) != cudaSuccess)
        return e;
    const enum emu_memory_kind dst = emu_memory_of(c.dst, NULL), src = emu_memory_of(c.src, NULL);
    const double factor = (dst == EMU_DEVICE) != (src == EMU_DEVICE) ? EMU_PCIE_FACTOR : 1.0;

    if ((e = emu_enqueue(s, [c]() { run_copy(&c); }, factor)) != cudaSuccess)
        return e;
    /* Pageable memory goes through a staging buffer: CUDA does not return before the host's side is through. */
    if (wait || ((dst == EMU_PAGEABLE || src == EMU_PAGEABLE) && !emu_is_capturing(s)))
        return emu_wait_stream(s);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
    EMU_ENTER(cudaErrorUnknown);
    return emu_note(copy({(char *)dst, (const char *)src, n, n, n, 1}, kind, 0, true));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    EMU_ENTER(cudaErrorUnknown);
    return emu_note(copy({(char *)dst, (const char *)src, n, n, n, 1}, kind, s, false));
}

cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind)
{
    EMU_ENTER(cudaErrorUnknown);
    return emu_note(copy({(char *)dst, (const char *)src, dst_pitch, src_pitch, width, height}, kind, 0, true));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    EMU_ENTER(cudaErrorUnknown);
    return emu_note(copy({(char *)dst, (const char *)src, dst_pitch, src_pitch, width, height}, kind, s, false));
}

static cudaError_t set(void *dst, int value, size_t n, cudaStream_t s)
{
    cudaError_t e;

    if (n == 0)
        return cudaSuccess;
    if ((e = check_side(dst, n, true, false)) != cudaSuccess)
        return e;
    return emu_enqueue(s, [=]() {
        emu_other_runs();
        memset(dst, value, n);
    });
}

cudaError_t cudaMemset(void *dst, int value, size_t n)
{
    cudaError_t e;

    EMU_ENTER(cudaErrorUnknown);
    if ((e = emu_capture_check()) != cudaSuccess)
        return emu_note(e);
    return emu_note(set(dst, value, n, 0));
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t s)
{
    EMU_ENTER(cudaErrorUnknown);
    return emu_note(set(dst, value, n, s));
}
