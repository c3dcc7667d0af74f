/*
 * pi_k_q8.cuh - the grid of quantised activations on the device: the rule of struct pi_q8 (runtime/cpu/pi_cpu.h), each value x in a block of 32 replaced by d * q.
 * The same blocks come out when the CPU quantises the values again: d * q is exact.
 */
#ifndef PI_K_Q8_CUH
#define PI_K_Q8_CUH

#include "runtime/cuda/pi_cuda_port.cuh"

static __device__ __forceinline__ uint32_t pi_q8_magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffffu; /* in the order of the magnitudes, NaN last */
}

/* d of a block whose largest magnitude has these bits; 0: all values count as 0; NaN for a NaN or an infinity. */
static __device__ __forceinline__ float pi_q8_scale(uint32_t max_bits)
{
    float d;

    if (max_bits >= 0x7f800000u)
        return __uint_as_float(0x7fc00000u);
    d = __uint_as_float(__float_as_uint(__uint_as_float(max_bits) / 127.0f) & ~0x7fu);
    return d < 1.17549435e-38f ? 0.0f : d; /* the smallest normal number */
}

static __device__ __forceinline__ float pi_q8_value(float x, float d)
{
    return d > 0.0f ? d * rintf(x / d) : d;
}

/* By all lanes of a warp: 8 lanes side by side hold a block, four values each. */
static __device__ __forceinline__ float4 pi_q8_round4(float4 v)
{
    uint32_t m = max(max(pi_q8_magnitude(v.x), pi_q8_magnitude(v.y)),
                     max(pi_q8_magnitude(v.z), pi_q8_magnitude(v.w)));
    float d;

    for (int k = 1; k < 8; k *= 2)
        m = max(m, __shfl_xor_sync(~0u, m, k));
    d = pi_q8_scale(m);
    return make_float4(pi_q8_value(v.x, d), pi_q8_value(v.y, d), pi_q8_value(v.z, d),
                       pi_q8_value(v.w, d));
}

/* By all lanes of a warp, which holds a block. */
static __device__ __forceinline__ float pi_q8_round(float x)
{
    uint32_t m = pi_q8_magnitude(x);

    for (int k = 1; k < 32; k *= 2)
        m = max(m, __shfl_xor_sync(~0u, m, k));
    return pi_q8_value(x, pi_q8_scale(m));
}

#endif
