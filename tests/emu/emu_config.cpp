/* Settings from the environment, errors, fault injection, the device's description. */
#include "tests/emu/emu_int.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <map>
#include <mutex>

/* Where sm_75, the oldest architecture of the product, ends. */
#define STATIC_SHARED_BYTES ((size_t)48 << 10)
#define MAX_SHARED_BYTES ((size_t)64 << 10)
#define SM_THREADS 1024
#define SM_BLOCKS 16

static std::mutex &lock = *new std::mutex;
static std::map<std::string, unsigned long> &fail_at = *new std::map<std::string, unsigned long>;
static std::map<std::string, unsigned long> &n_calls = *new std::map<std::string, unsigned long>;
static std::map<const void *, int> &func_dynamic = *new std::map<const void *, int>;
static struct emu_config conf;
static bool conf_read;
static std::atomic<cudaError_t> sticky{cudaSuccess};

/* Not zero-initialised: see __shared__. */
static __thread struct {
    unsigned magic;
    cudaError_t last;
} thread_error = {1, cudaSuccess};

void emu_die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("emu: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

double emu_seconds(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- settings ---- */

static unsigned long env_number(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long v;

    if (text == NULL || *text == '\0')
        return otherwise;
    errno = 0;
    v = strtoul(text, &end, 10);
    if (end != text && *end != '\0' && end[1] == '\0')
        v <<= *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    else if (end == text || *end != '\0' || errno != 0)
        emu_die("%s=%s is no number", name, text);
    return v;
}

static enum emu_order env_order(const char *name, uint64_t *seed)
{
    const char *text = getenv(name);

    *seed = 1;
    if (text == NULL || *text == '\0' || strcmp(text, "forward") == 0)
        return EMU_FORWARD;
    if (strcmp(text, "reverse") == 0)
        return EMU_REVERSE;
    if (strncmp(text, "random", 6) != 0)
        emu_die("%s=%s: forward, reverse, random or random:SEED", name, text);
    if (text[6] == ':')
        *seed = strtoull(text + 7, NULL, 10);
    return EMU_RANDOM;
}

static void read_failures(void)
{
    const char *at = getenv("PI_EMU_FAIL");

    fail_at.clear();
    n_calls.clear();
    while (at != NULL && *at != '\0') {
        const size_t n = strcspn(at, ",");
        const std::string item(at, n);
        const size_t colon = item.find(':');

        if (colon == std::string::npos)
            emu_die("PI_EMU_FAIL=%s: FUNCTION:N", item.c_str());
        fail_at[item.substr(0, colon)] = strtoul(item.c_str() + colon + 1, NULL, 10);
        at += n + (at[n] == ',');
    }
}

/* What a device that has stopped holds nobody can free. */
static void list_leaks(void)
{
    if (!emu_has_stopped() && emu_conf()->leaks && cudaEmuLiveAllocations() + cudaEmuLiveObjects() > 0) {
        fprintf(stderr, "emu: %d allocations and %d other objects were never freed\n%s", cudaEmuLiveAllocations(),
                cudaEmuLiveObjects(), emu_memory_text(NULL).c_str());
        fflush(stdout);
        _Exit(99);
    }
}

static void read_config(void)
{
    conf.n_devices = env_number("PI_EMU_DEVICES", 1) > 0;
    conf.memory = env_number("PI_EMU_MEMORY", 1ul << 30);
    conf.context = env_number("PI_EMU_CONTEXT", 128ul << 20);
    conf.blocks = env_order("PI_EMU_BLOCKS", &conf.blocks_seed);
    conf.threads = env_order("PI_EMU_THREADS", &conf.threads_seed);
    conf.fault_at = env_number("PI_EMU_FAULT", 0);
    conf.stop_at = env_number("PI_EMU_STOP", 0);
    conf.halt_at = env_number("PI_EMU_HALT", 0);
    conf.slow_ms = env_number("PI_EMU_SLOW", 0);
    conf.watchdog_s = (double)env_number("PI_EMU_WATCHDOG", 60);
    conf.strict = env_number("PI_EMU_STRICT", 0) > 0;
    conf.pdl = env_number("PI_EMU_PDL", 0) > 0;
    conf.leaks = env_number("PI_EMU_LEAKS", 0) > 0;
    read_failures();
}

const struct emu_config *emu_conf(void)
{
    if (!__atomic_load_n(&conf_read, __ATOMIC_ACQUIRE)) {
        const std::lock_guard<std::mutex> hold(lock);

        if (!conf_read) {
            read_config();
            (void)atexit(list_leaks);
            emu_catch_crashes();
            __atomic_store_n(&conf_read, true, __ATOMIC_RELEASE);
        }
    }
    return &conf;
}

extern "C" void emu_kernels_reset(void);

extern "C" void cudaEmuReload(void)
{
    if (emu_conf()->stop_at == 0 && emu_conf()->halt_at == 0)
        (void)emu_wait_device(); /* what was launched before belongs to the old settings */
    const std::lock_guard<std::mutex> hold(lock);

    read_config();
    sticky = cudaSuccess;
    emu_kernels_reset();
}

/* ---- errors ---- */

cudaError_t emu_note(cudaError_t e)
{
    if (e != cudaSuccess && e != cudaErrorNotReady)
        thread_error.last = e;
    return e;
}

void emu_set_sticky(cudaError_t e)
{
    cudaError_t none = cudaSuccess;

    (void)sticky.compare_exchange_strong(none, e);
}

cudaError_t emu_sticky(void)
{
    return sticky;
}

cudaError_t emu_enter(const char *function, cudaError_t that_error)
{
    if (emu_self.exec != NULL)
        emu_die("%s is called by a kernel or a host function of a stream", function);
    if (emu_conf()->n_devices == 0)
        return cudaErrorNoDevice;
    if (sticky != cudaSuccess)
        return sticky;
    const std::lock_guard<std::mutex> hold(lock);
    const auto f = fail_at.find(function);

    if (f != fail_at.end() && ++n_calls[function] == f->second)
        return that_error;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = cudaPeekAtLastError();

    thread_error.last = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sticky != cudaSuccess ? sticky.load() : thread_error.last;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
#define X(name, value, text) \
    case name:               \
        return text;
        EMU_ERROR_MAP(X)
#undef X
    }
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
#define X(name, value, text) \
    case name:               \
        return #name;
        EMU_ERROR_MAP(X)
#undef X
    }
    return "unrecognized error code";
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = emu_conf()->n_devices;
    return *n > 0 ? cudaSuccess : emu_note(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    EMU_ENTER(cudaErrorUnknown);
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    EMU_ENTER(cudaErrorInitializationError);
    return device == 0 ? cudaSuccess : emu_note(cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    EMU_ENTER(cudaErrorUnknown);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    EMU_ENTER(cudaErrorUnknown);
    if (device != 0)
        return emu_note(cudaErrorInvalidDevice);
    memset((void *)p, 0, sizeof(*p));
    (void)snprintf(p->name, sizeof(p->name), "PI emulated GPU");
    p->totalGlobalMem = emu_conf()->memory;
    p->sharedMemPerBlock = STATIC_SHARED_BYTES;
    p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = MAX_SHARED_BYTES;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsPerMultiProcessor = SM_THREADS;
    p->maxBlocksPerMultiProcessor = SM_BLOCKS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 7;
    p->minor = 5;
    p->multiProcessorCount = 4;
    p->canMapHostMemory = p->unifiedAddressing = p->concurrentKernels = p->asyncEngineCount = 1;
    p->pciBusID = 1;
    p->memoryBusWidth = 64;
    p->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    static const struct {
        enum cudaDeviceAttr attr;
        int value;
    } table[] = {
        {cudaDevAttrMaxThreadsPerBlock, SM_THREADS},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)STATIC_SHARED_BYTES},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrClockRate, 1000000},
        {cudaDevAttrMultiProcessorCount, 4},
        {cudaDevAttrKernelExecTimeout, 0},
        {cudaDevAttrIntegrated, 0},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrPciBusId, 1},
        {cudaDevAttrTccDriver, 0},
        {cudaDevAttrMemoryClockRate, 1000000},
        {cudaDevAttrGlobalMemoryBusWidth, 64},
        {cudaDevAttrL2CacheSize, 1 << 20},
        {cudaDevAttrMaxThreadsPerMultiProcessor, SM_THREADS},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrComputeCapabilityMajor, 7},
        {cudaDevAttrComputeCapabilityMinor, 5},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)MAX_SHARED_BYTES},
        {cudaDevAttrPageableMemoryAccess, 0},
        {cudaDevAttrConcurrentManagedAccess, 0},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
        {cudaDevAttrCooperativeLaunch, 1},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)MAX_SHARED_BYTES},
        {cudaDevAttrReservedSharedMemoryPerBlock, 0},
    };

    EMU_ENTER(cudaErrorUnknown);
    if (device != 0)
        return emu_note(cudaErrorInvalidDevice);
    for (const auto &row : table)
        if (row.attr == attr) {
            *value = row.value;
            return cudaSuccess;
        }
    return emu_note(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int n, int device)
{
    EMU_ENTER(cudaErrorUnknown);
    if (device != 0)
        return emu_note(cudaErrorInvalidDevice);
    (void)snprintf(text, (size_t)n, "0000:01:00.0");
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    EMU_ENTER(cudaErrorUnknown);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    EMU_ENTER(cudaErrorUnknown);
    return emu_note(emu_wait_device());
}

/* ---- kernels as functions ---- */

cudaError_t emu_func_set_attribute(const void *func, enum cudaFuncAttribute attr, int value)
{
    const cudaError_t e = emu_enter("cudaFuncSetAttribute", cudaErrorInvalidValue);

    if (e != cudaSuccess)
        return emu_note(e);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || (size_t)value > MAX_SHARED_BYTES)
        return emu_note(cudaErrorInvalidValue);
    const std::lock_guard<std::mutex> hold(lock);

    func_dynamic[func] = value;
    return cudaSuccess;
}

static size_t dynamic_limit(const void *func)
{
    const std::lock_guard<std::mutex> hold(lock);
    const auto f = func_dynamic.find(func);

    return f == func_dynamic.end() || (size_t)f->second < STATIC_SHARED_BYTES ? STATIC_SHARED_BYTES
                                                                              : (size_t)f->second;
}

cudaError_t emu_func_get_attributes(struct cudaFuncAttributes *a, const void *func)
{
    const cudaError_t e = emu_enter("cudaFuncGetAttributes", cudaErrorInvalidDeviceFunction);

    if (e != cudaSuccess)
        return emu_note(e);
    memset(a, 0, sizeof(*a));
    a->maxThreadsPerBlock = SM_THREADS;
    a->numRegs = 32;
    a->ptxVersion = a->binaryVersion = 75;
    a->maxDynamicSharedSizeBytes = (int)dynamic_limit(func);
    return cudaSuccess;
}

cudaError_t emu_occupancy(int *n_blocks, int block_size, size_t dynamic_smem)
{
    const cudaError_t e = emu_enter("cudaOccupancyMaxActiveBlocksPerMultiprocessor", cudaErrorUnknown);

    if (e != cudaSuccess)
        return emu_note(e);
    if (block_size < 1 || block_size > SM_THREADS)
        return emu_note(cudaErrorInvalidValue);
    *n_blocks = SM_THREADS / ((block_size + 31) / 32 * 32);
    if (*n_blocks > SM_BLOCKS)
        *n_blocks = SM_BLOCKS;
    if (dynamic_smem > 0 && (size_t)*n_blocks > MAX_SHARED_BYTES / dynamic_smem)
        *n_blocks = (int)(MAX_SHARED_BYTES / dynamic_smem);
    return cudaSuccess;
}

void emu_launch(dim3 grid, dim3 block, size_t smem, cudaStream_t s, bool pdl,
                std::shared_ptr<const struct emu_kernel> k)
{
    cudaError_t e = emu_enter("launch", cudaErrorLaunchOutOfResources);
    const unsigned long threads = (unsigned long)block.x * block.y * block.z;

    if (e == cudaSuccess &&
        (threads < 1 || threads > SM_THREADS || block.z > 64 || grid.x < 1 || grid.x > 2147483647u || grid.y < 1 ||
         grid.y > 65535 || grid.z < 1 || grid.z > 65535))
        e = cudaErrorInvalidConfiguration;
    if (e == cudaSuccess && smem > dynamic_limit(k->func))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        auto g = std::make_shared<struct emu_grid>();

        g->grid = grid;
        g->block = block;
        g->smem = smem;
        g->pdl = pdl;
        g->kernel = std::move(k);
        e = emu_enqueue(s, [g]() { emu_run_grid(g.get(), NULL); }, EMU_KERNEL_FACTOR, g);
    }
    (void)emu_note(e);
}
