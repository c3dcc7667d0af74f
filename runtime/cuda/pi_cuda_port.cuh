/* The one CUDA include of our .cu files, so that they compile under nvcc, and as C++ against the emulator of
 * tests/emu (PI_CUDA_EMU), which runs kernels and host code alike on a machine without a GPU.
 *
 * What differs between the two, or is not in CUDA C++ at all, has a name here:
 *   PI_LAUNCH(kernel, grid, block, dynamic_smem_bytes, stream, args...)
 *       template kernels in parentheses: PI_LAUNCH((k<float, 4>), ...). Errors: cudaGetLastError() afterwards.
 *   PI_LAUNCH_PDL(...)  the same as a programmatic dependent launch: the kernel may start before the one in front
 *       of it in the stream ends, and must call pi_pdl_wait() before it reads what that one wrote. Devices below
 *       compute capability 9.0 launch it plainly.
 *   PI_DYN_SHARED(type, name);  the block's dynamic shared memory, 16-byte aligned
 *   PI_CUDA_TRY(err, call)      the only way to call CUDA in host code
 *   PI_NEED_CUBLAS              defined before the include: cuBLAS too
 * Device functions, words shared with the CPU in pinned mapped memory, system scope:
 *   pi_ld_acquire_sys, pi_st_release_sys, pi_ld_relaxed_sys, pi_ld_volatile_f32, pi_ld_volatile_f4
 *   pi_nanosleep(ns)            for loops that poll (from sm_70 on)
 *   pi_pdl_wait, pi_pdl_trigger nothing below sm_90
 *   pi_global_ns()              nanoseconds of a clock that all multiprocessors share; coarse on some devices
 *   pi_prefetch_l2(p, bytes)    one thread asks for bytes of global memory to come to the L2; both multiples of 16
 */
#ifndef PI_CUDA_PORT_CUH
#define PI_CUDA_PORT_CUH

#include "common/pi_err.h"

#include <stdint.h>

#ifdef PI_CUDA_EMU
#include "tests/emu/cuda_emu.h"
#else

#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#ifdef PI_NEED_CUBLAS
#include <cublas_v2.h>
#endif

#define PI_LAUNCH(kernel, grid, block, smem, stream, ...) \
    (kernel)<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__)

#define PI_LAUNCH_PDL(kernel, grid, block, smem, stream, ...) \
    pi_pdl_launch_of((kernel), (grid), (block), (smem), (stream))(__VA_ARGS__)

#define PI_DYN_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char pi_dyn_shared_[]; \
    type *name = reinterpret_cast<type *>(pi_dyn_shared_)

/* A failure is left for cudaGetLastError(), as after <<<>>>. */
template <typename... Params> struct pi_pdl_launch {
    void (*kernel)(Params...);
    dim3 grid, block;
    size_t smem;
    cudaStream_t stream;

    void operator()(Params... args) const
    {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attr = {};
        int device = 0, major = 0;

        (void)cudaGetDevice(&device);
        (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr.val.programmaticStreamSerializationAllowed = 1;
        config.gridDim = grid;
        config.blockDim = block;
        config.dynamicSmemBytes = smem;
        config.stream = stream;
        config.attrs = &attr;
        config.numAttrs = major >= 9 ? 1 : 0;
        (void)cudaLaunchKernelEx(&config, kernel, args...);
    }
};

template <typename... Params>
static inline pi_pdl_launch<Params...> pi_pdl_launch_of(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
                                                        cudaStream_t stream)
{
    return pi_pdl_launch<Params...>{kernel, grid, block, smem, stream};
}

static __device__ __forceinline__ void pi_pdl_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void pi_pdl_trigger(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ uint32_t pi_ld_acquire_sys(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void pi_st_release_sys(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t pi_ld_relaxed_sys(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ float pi_ld_volatile_f32(const float *p)
{
    float v;

    asm volatile("ld.volatile.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ float4 pi_ld_volatile_f4(const float4 *p)
{
    float4 v;

    asm volatile("ld.volatile.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void pi_nanosleep(unsigned ns)
{
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

static __device__ __forceinline__ uint64_t pi_global_ns(void)
{
    uint64_t v;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v)::"memory");
    return v;
}

static __device__ __forceinline__ void pi_prefetch_l2(const void *p, uint32_t bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(p)),
                 "r"(bytes)
                 : "memory");
#else
    for (uint32_t at = 0; at < bytes; at += 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global((const char *)p + at)));
#endif
}

#endif /* PI_CUDA_EMU */

/* pi_gpu.h */
extern "C" void pi_gpu_give_up(void);
extern "C" bool pi_gpu_gave_up(void);

/* The first failure is recorded with the call's own text; for functions with a label "out" and a local rc. A device that was given up is not called. */
#define PI_CUDA_TRY(err, call)                                                               \
    do {                                                                                     \
        cudaError_t cuda_rc_;                                                                \
        if (pi_gpu_gave_up())                                                                \
            PI_FAIL((err), PI_E_DEVICE, "%s: the GPU was given up: it had stopped", #call);  \
        cuda_rc_ = (call);                                                                   \
        if (cuda_rc_ != cudaSuccess) {                                                       \
            (void)cudaGetLastError();                                                        \
            PI_FAIL((err), cuda_rc_ == cudaErrorMemoryAllocation ? PI_E_NOMEM : PI_E_DEVICE, \
                    "%s: %s", #call, cudaGetErrorString(cuda_rc_));                          \
        }                                                                                    \
    } while (0)

#endif
