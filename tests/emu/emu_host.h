/* The CUDA runtime API of the emulator: what our host code uses, with CUDA's names and numbers; see cuda_emu.h. */
#ifndef EMU_HOST_H
#define EMU_HOST_H

#include "tests/emu/emu_ctl.h"
#include "tests/emu/emu_types.h"

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#define CUDART_VERSION 13000

/* name, value, text */
#define EMU_ERROR_MAP(X)                                                                        \
    X(cudaSuccess, 0, "no error")                                                               \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                             \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                            \
    X(cudaErrorInitializationError, 3, "initialization error")                                  \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                       \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                              \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                 \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                            \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                             \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                    \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                           \
    X(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")     \
    X(cudaErrorNotReady, 600, "device not ready")                                               \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                 \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")            \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped") \
    X(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region") \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                \
    X(cudaErrorNotSupported, 801, "operation not supported")                                    \
    X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
    X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
    X(cudaErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began") \
    X(cudaErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                \
    X(cudaErrorStreamCaptureImplicit, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
    X(cudaErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream") \
    X(cudaErrorStreamCaptureWrongThread, 908, "attempt to terminate a thread-local capture sequence from another thread") \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define X(name, value, text) name = value,
    EMU_ERROR_MAP(X)
#undef X
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *user);

#define cudaStreamLegacy ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2) /* refused */

enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaEventRecordDefault = 0,
    cudaEventWaitDefault = 0,
    cudaHostAllocDefault = 0,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
    cudaHostAllocWriteCombined = 4,
    cudaHostRegisterDefault = 0,
    cudaHostRegisterPortable = 1,
    cudaHostRegisterMapped = 2,
    cudaHostRegisterReadOnly = 8,
    cudaDeviceScheduleAuto = 0,
    cudaDeviceScheduleSpin = 1,
    cudaDeviceScheduleYield = 2,
    cudaDeviceScheduleBlockingSync = 4,
    cudaDeviceMapHost = 8
};

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrKernelExecTimeout = 17,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrCanMapHostMemory = 19,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrTccDriver = 35,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrPageableMemoryAccess = 88,
    cudaDevAttrConcurrentManagedAccess = 89,
    cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrReservedSharedMemoryPerBlock = 111
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    size_t sharedMemPerBlockOptin;
    size_t sharedMemPerMultiprocessor;
    int regsPerBlock, regsPerMultiprocessor;
    int warpSize;
    int maxThreadsPerBlock, maxThreadsPerMultiProcessor, maxBlocksPerMultiProcessor;
    int maxThreadsDim[3], maxGridSize[3];
    int major, minor;
    int multiProcessorCount;
    int integrated, canMapHostMemory, unifiedAddressing, concurrentKernels, asyncEngineCount;
    int pciBusID, pciDeviceID, pciDomainID;
    int memoryBusWidth, l2CacheSize;
};

struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion;
    int maxDynamicSharedSizeBytes;
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};

/* ---- errors, devices ---- */
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorString(cudaError_t e);
const char *cudaGetErrorName(cudaError_t e);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int n, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);

/* ---- memory ---- */
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **p, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t n, unsigned flags = 0);
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaHostGetDevicePointer(void **dev, void *host, unsigned flags);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s = 0);
cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t s = 0);
cudaError_t cudaMemset(void *dst, int value, size_t n);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t s = 0);

template <typename T> static inline cudaError_t cudaMalloc(T **p, size_t n)
{
    return cudaMalloc((void **)p, n);
}

template <typename T> static inline cudaError_t cudaMallocHost(T **p, size_t n, unsigned flags = 0)
{
    return cudaMallocHost((void **)p, n, flags);
}

template <typename T> static inline cudaError_t cudaHostAlloc(T **p, size_t n, unsigned flags)
{
    return cudaHostAlloc((void **)p, n, flags);
}

template <typename T> static inline cudaError_t cudaHostGetDevicePointer(T **dev, void *host, unsigned flags)
{
    return cudaHostGetDevicePointer((void **)dev, host, flags);
}

/* ---- streams, events ---- */
cudaError_t cudaStreamCreate(cudaStream_t *s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *user);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = 0);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);

/* ---- graphs ---- */
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);
/* Only to count: nodes must be NULL. */
cudaError_t cudaGraphGetNodes(cudaGraph_t g, void *nodes, size_t *n);

/* ---- kernels ---- */
cudaError_t emu_func_set_attribute(const void *func, enum cudaFuncAttribute attr, int value);
cudaError_t emu_func_get_attributes(struct cudaFuncAttributes *a, const void *func);
cudaError_t emu_occupancy(int *n_blocks, int block_size, size_t dynamic_smem);

template <typename F>
static inline cudaError_t cudaFuncSetAttribute(F *func, enum cudaFuncAttribute attr, int value)
{
    return emu_func_set_attribute((const void *)func, attr, value);
}

template <typename F> static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, F *func)
{
    return emu_func_get_attributes(a, (const void *)func);
}

template <typename F>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, F *, int block_size, size_t smem)
{
    return emu_occupancy(n, block_size, smem);
}

struct emu_kernel {
    const char *name; /* the launch's own text */
    const void *func;

    virtual ~emu_kernel()
    {
    }
    virtual void run() const = 0; /* one thread */
};

void emu_launch(dim3 grid, dim3 block, size_t smem, cudaStream_t s, bool pdl,
                std::shared_ptr<const struct emu_kernel> k);

/* Files may have different structs of the same name, so that what is instantiated with them must be each file's own. */
namespace
{
template <typename T> struct emu_box {
    T v;
};

template <typename... Params> struct emu_kernel_call final : emu_kernel {
    void (*f)(Params...);
    std::tuple<emu_box<std::decay_t<Params>>...> args;

    explicit emu_kernel_call(void (*f_)(Params...), Params... a) : f(f_), args(emu_box<std::decay_t<Params>>{a}...)
    {
    }
    void run() const override
    {
        std::apply([this](const auto &...a) { f(a.v...); }, args);
    }
};
} // namespace

/* Words of 8 bytes that are not the same in both become 0: padding, and what GCC 12 takes for padding in arrays of structs. */
static inline void emu_keep_equal_words(void *copy, const void *v, size_t n)
{
    for (size_t i = 0; i + 8 <= n; i += 8)
        if (memcmp((char *)copy + i, (const char *)v + i, 8) != 0)
            memset((char *)copy + i, 0, 8);
}

/* Ends the program when a pointer handed to a kernel is neither NULL nor in device or pinned memory. */
void emu_check_pointer(const char *kernel, int index, const void *p);
/* The same for what looks like pointers to the host's memory in a struct. */
void emu_check_bytes(const char *kernel, int index, const void *v, size_t n);

namespace
{
template <typename T> inline void emu_check_arg(const char *kernel, int index, const T &v)
{
    if constexpr (std::is_pointer_v<T>) {
        emu_check_pointer(kernel, index, (const void *)v);
    } else {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding) /* what lies between members may look like anything */
        std::remove_const_t<T> copy = v;

        __builtin_clear_padding(&copy);
        emu_keep_equal_words(&copy, &v, sizeof(copy));
        emu_check_bytes(kernel, index, &copy, sizeof(copy));
#endif
#endif
    }
    static_assert(std::is_trivially_copyable_v<T>, "kernel arguments are copied as bytes");
}

/* A launch is a call with the kernel's own parameter types, so that arguments convert as in <<<>>>(...). */
template <typename... Params> struct emu_launcher {
    const char *name;
    void (*f)(Params...);
    dim3 grid, block;
    size_t smem;
    cudaStream_t stream;
    bool pdl;

    void operator()(Params... args) const
    {
        static_assert((sizeof(Params) + ... + 0) <= 4096, "kernel arguments take at most 4096 bytes");
        auto k = std::make_shared<emu_kernel_call<Params...>>(f, args...);
        int i = 0;

        (emu_check_arg(name, i++, args), ...);
        (void)i;
        k->name = name;
        k->func = (const void *)f;
        emu_launch(grid, block, smem, stream, pdl, std::move(k));
    }
};

template <typename... Params>
inline emu_launcher<Params...> emu_launch_of(const char *name, void (*f)(Params...), dim3 grid, dim3 block, size_t smem,
                                              cudaStream_t stream, bool pdl)
{
    return emu_launcher<Params...>{name, f, grid, block, smem, stream, pdl};
}
} // namespace

#define PI_LAUNCH(kernel, grid, block, smem, stream, ...) \
    emu_launch_of(#kernel, (kernel), (grid), (block), (smem), (stream), false)(__VA_ARGS__)
#define PI_LAUNCH_PDL(kernel, grid, block, smem, stream, ...) \
    emu_launch_of(#kernel, (kernel), (grid), (block), (smem), (stream), true)(__VA_ARGS__)

#endif
