/* What kernels see: thread indices, barriers, warp functions, atomics, intrinsics; see cuda_emu.h. */
#ifndef EMU_DEVICE_H
#define EMU_DEVICE_H

#include "tests/emu/emu_types.h"

#include <time.h>

#define __global__ __attribute__((unused))
#define __device__ __attribute__((unused))
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif
/* One block at a time runs on a stream's OS thread, so a block's shared memory is that thread's. The emulator fills
 * all zero-initialised thread-local data of the program with 0xff at the start of each block (on its own threads). */
#define __shared__ static __thread

struct emu_exec;

/* What differs from thread to thread of a block; the emulator swaps it when it switches. Not zero-initialised, so
 * that the poisoning leaves it alone. */
struct emu_self {
    unsigned magic, lane;
    uint3 tid, bid;
    dim3 bdim, gdim;
    void *dyn_shared;
    struct emu_exec *exec; /* NULL outside kernels */
    unsigned n_pdl_waits;  /* calls of pi_pdl_wait() by the grid */
    struct emu_pdl *pdl;   /* not NULL: the kernel in front is not done */
};
extern __thread struct emu_self emu_self;

#define threadIdx (emu_self.tid)
#define blockIdx (emu_self.bid)
#define blockDim (emu_self.bdim)
#define gridDim (emu_self.gdim)
static const int warpSize = 32;

#define PI_DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(emu_self.dyn_shared)

enum emu_warp_op { EMU_SYNCWARP, EMU_SHFL, EMU_SHFL_UP, EMU_SHFL_DOWN, EMU_SHFL_XOR, EMU_BALLOT, EMU_ANY, EMU_ALL };

/* What one rendezvous of a warp leaves behind, until the lane's next one. */
struct emu_warp_result {
    uint64_t value[32];
    uint32_t bits; /* bit i: lane i's value was not 0 */
};

/* All lanes must come, with the same op from the same line; anything else ends the program with a message. */
const struct emu_warp_result *emu_warp_meet(unsigned mask, enum emu_warp_op op, uint64_t value, const char *file,
                                            int line);
void emu_block_meet(const char *file, int line);
/* Called in loops that poll: lets other threads of the block and other OS threads run; ends the program when nothing
 * came for PI_EMU_WATCHDOG seconds. ns: how long to sleep, 0 for a load that may be one of many. */
void emu_relax(unsigned ns);

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(EMU_HERE)
{
    emu_block_meet(file, line);
}

static inline void __syncwarp(unsigned mask = ~0u, EMU_HERE)
{
    (void)emu_warp_meet(mask, EMU_SYNCWARP, 0, file, line);
}

template <typename T> static inline uint64_t emu_pack(T v)
{
    static_assert(sizeof(T) <= 8, "warp functions move at most 8 bytes");
    uint64_t u = 0;

    memcpy(&u, &v, sizeof(T));
    return u;
}

template <typename T> static inline T emu_unpack(uint64_t u)
{
    T v;

    memcpy(&v, &u, sizeof(T));
    return v;
}

template <typename T> static inline T __shfl_sync(unsigned mask, T v, int src, int width = 32, EMU_HERE)
{
    const struct emu_warp_result *r = emu_warp_meet(mask, EMU_SHFL, emu_pack(v), file, line);
    unsigned first = emu_self.lane & ~(unsigned)(width - 1);

    return emu_unpack<T>(r->value[first | ((unsigned)src & (unsigned)(width - 1))]);
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_HERE)
{
    const struct emu_warp_result *r = emu_warp_meet(mask, EMU_SHFL_UP, emu_pack(v), file, line);
    unsigned lane = emu_self.lane, in_group = lane & (unsigned)(width - 1);

    return emu_unpack<T>(r->value[in_group >= delta ? lane - delta : lane]);
}

template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_HERE)
{
    const struct emu_warp_result *r = emu_warp_meet(mask, EMU_SHFL_DOWN, emu_pack(v), file, line);
    unsigned lane = emu_self.lane, in_group = lane & (unsigned)(width - 1);

    return emu_unpack<T>(r->value[in_group + delta < (unsigned)width ? lane + delta : lane]);
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = 32, EMU_HERE)
{
    const struct emu_warp_result *r = emu_warp_meet(mask, EMU_SHFL_XOR, emu_pack(v), file, line);
    unsigned lane = emu_self.lane, other = lane ^ (unsigned)lane_mask;

    /* A partner in a later group is out of reach, one in an earlier group is not (CUDA C++ guide, warp shuffle). */
    return emu_unpack<T>(r->value[other < ((lane | (unsigned)(width - 1)) + 1) ? other : lane]);
}

static inline unsigned __ballot_sync(unsigned mask, int pred, EMU_HERE)
{
    return emu_warp_meet(mask, EMU_BALLOT, pred != 0, file, line)->bits;
}

static inline int __any_sync(unsigned mask, int pred, EMU_HERE)
{
    return emu_warp_meet(mask, EMU_ANY, pred != 0, file, line)->bits != 0;
}

static inline int __all_sync(unsigned mask, int pred, EMU_HERE)
{
    return emu_warp_meet(mask, EMU_ALL, pred != 0, file, line)->bits == ~0u;
}

/* ---- memory ---- */

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_block(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}

template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T> static inline void __stcs(T *p, T v)
{
    *p = v;
}

template <typename T> static inline void __stcg(T *p, T v)
{
    *p = v;
}

static inline uint32_t pi_ld_acquire_sys(const uint32_t *p)
{
    emu_relax(0);
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline uint32_t pi_ld_relaxed_sys(const uint32_t *p)
{
    emu_relax(0);
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void pi_st_release_sys(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline float pi_ld_volatile_f32(const float *p)
{
    return *(const volatile float *)p;
}

static inline float4 pi_ld_volatile_f4(const float4 *p)
{
    const volatile float *f = (const volatile float *)p;

    return float4{f[0], f[1], f[2], f[3]};
}

static inline void pi_nanosleep(unsigned ns)
{
    emu_relax(ns > 0 ? ns : 1);
}

static inline void __nanosleep(unsigned ns)
{
    pi_nanosleep(ns);
}

void emu_pdl_wait(void);

static inline void pi_pdl_wait(void)
{
    emu_self.n_pdl_waits++;
    if (emu_self.pdl != NULL)
        emu_pdl_wait();
}

static inline void pi_pdl_trigger(void)
{
}

static inline uint64_t pi_global_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A place that may be read, as the hardware would only ignore it. */
static inline void pi_prefetch_l2(const void *p, uint32_t bytes)
{
    const volatile unsigned char *c = (const volatile unsigned char *)p;

    if (bytes > 0)
        (void)(c[0] + c[bytes - 1]);
}

/* ---- atomics: integers only; sums of floating-point atomics would depend on the order of blocks ---- */

#define EMU_ATOMICS(T)                                                                          \
    static inline T atomicAdd(T *p, T v)                                                        \
    {                                                                                           \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                      \
    }                                                                                           \
    static inline T atomicSub(T *p, T v)                                                        \
    {                                                                                           \
        return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                      \
    }                                                                                           \
    static inline T atomicExch(T *p, T v)                                                       \
    {                                                                                           \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                     \
    }                                                                                           \
    static inline T atomicOr(T *p, T v)                                                         \
    {                                                                                           \
        return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                                       \
    }                                                                                           \
    static inline T atomicAnd(T *p, T v)                                                        \
    {                                                                                           \
        return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                                      \
    }                                                                                           \
    static inline T atomicCAS(T *p, T expected, T v)                                            \
    {                                                                                           \
        (void)__atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        return expected;                                                                        \
    }                                                                                           \
    static inline T atomicMax(T *p, T v)                                                        \
    {                                                                                           \
        T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                           \
        while (old < v && !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
            ;                                                                                   \
        return old;                                                                             \
    }                                                                                           \
    static inline T atomicMin(T *p, T v)                                                        \
    {                                                                                           \
        T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                           \
        while (v < old && !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
            ;                                                                                   \
        return old;                                                                             \
    }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)

/* Counts from 0 to limit and starts again: what a self-resetting ticket uses. */
static inline unsigned atomicInc(unsigned *p, unsigned limit)
{
    unsigned old = __atomic_load_n(p, __ATOMIC_SEQ_CST);

    while (!__atomic_compare_exchange_n(p, &old, old >= limit ? 0 : old + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return old;
}

/* ---- integers and floats ---- */

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}

static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c = (int)((unsigned)c + (unsigned)((int8_t)((unsigned)a >> 8 * i) * (int8_t)((unsigned)b >> 8 * i)));
    return c;
}

static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 4; i++)
        c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return c;
}

#define EMU_MIN_MAX(T)               \
    static inline T min(T a, T b)    \
    {                                \
        return a < b ? a : b;        \
    }                                \
    static inline T max(T a, T b)    \
    {                                \
        return a > b ? a : b;        \
    }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)

static inline float min(float a, float b)
{
    return fminf(a, b);
}

static inline float max(float a, float b)
{
    return fmaxf(a, b);
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

/* Macros: libm declares functions of these names. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf((x), (y))
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}

static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}

static inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

static inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}

static inline int __float2int_rz(float x)
{
    return (int)x;
}

static inline float __int2float_rn(int x)
{
    return (float)x;
}

static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}

static inline unsigned __float_as_uint(float x)
{
    return emu_bits<unsigned>(x);
}

static inline int __float_as_int(float x)
{
    return emu_bits<int>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return emu_bits<float>(x);
}

static inline float __int_as_float(int x)
{
    return emu_bits<float>(x);
}

#endif
