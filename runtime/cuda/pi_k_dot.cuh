/*
 * pi_k_dot.cuh - dot products of matrix rows in the device's layout with F32 vectors: device code that the matrix-vector
 * kernels and the feed-forward kernels share.
 *
 * The unit of work is a *group*: 16 bytes of a row's values, that is E elements (F32 4, F16 and BF16 8, Q8_0 16, Q4_0 32), and
 * the scale that belongs to them. A row has n_groups = pi_groups<T>(n_cols) of them. A warp walks along rows in chunks of 32 groups, lane l
 * reading group 32 * chunk + l, for R rows and U chunks at once: R * U loads of 16 bytes in flight in each lane. Weights are
 * converted exactly; every sum is F32, in an order that depends on n_cols, R, U and NT alone.
 *
 * Vectors lie in shared memory, staged by pi_x_put() in planes, so that the lanes' 16-byte reads meet no bank twice: float4 number f
 * (elements 4f .. 4f + 3) goes to plane f % P, place f / P, P = E / 4 planes. What lies behind the last element must be zero
 * (pi_x_stage() sees to it). Padding at the end of a row of weights must be finite; packers write zeros.
 */
#ifndef PI_K_DOT_CUH
#define PI_K_DOT_CUH

#include "common/pi_type.h"
#include "runtime/cuda/pi_cuda_port.cuh"

#include <string.h>

#define PI_DEVICE static __device__ __forceinline__

/* ---- weights ---- */

/* E: elements in 16 bytes; P: float4s of them; per_scale: groups that share a scale, 0 without scales */
template <int T> struct pi_wt;
template <> struct pi_wt<PI_TYPE_F32> {
    static constexpr int E = 4, P = 1, per_scale = 0;
};
template <> struct pi_wt<PI_TYPE_F16> {
    static constexpr int E = 8, P = 2, per_scale = 0;
};
template <> struct pi_wt<PI_TYPE_BF16> {
    static constexpr int E = 8, P = 2, per_scale = 0;
};
template <> struct pi_wt<PI_TYPE_Q8_0> {
    static constexpr int E = 16, P = 4, per_scale = 2;
};
template <> struct pi_wt<PI_TYPE_Q4_0> {
    static constexpr int E = 32, P = 8, per_scale = 1;
};

/* A group as loaded; all zero: weights that are zero. */
template <int T> struct pi_group {
    uint4 v;
    unsigned short scale; /* F16 bits; unused without scales */
};

template <int T> static __host__ __device__ __forceinline__ uint32_t pi_groups(uint32_t n_cols)
{
    return (n_cols + pi_wt<T>::E - 1) / pi_wt<T>::E;
}

/* Group g + 32 u of a row, if ok; zero weights else. Read once: the first to leave the cache. (g and u apart, so that all groups of a lane have
 * one address and constant offsets.) */
template <int T>
PI_DEVICE struct pi_group<T> pi_group_load(const char *row, uint32_t n_groups, uint32_t g, int u,
                                           bool ok)
{
    constexpr int per = pi_wt<T>::per_scale > 0 ? pi_wt<T>::per_scale : 1;
    const uint4 *v = (const uint4 *)row + g;
    const unsigned short *scale = (const unsigned short *)(row + (size_t)n_groups * 16) + g / per;
    struct pi_group<T> r;

    r.v = make_uint4(0, 0, 0, 0);
    r.scale = 0;
    if (ok) {
        r.v = __ldcs(v + 32 * u);
        if (pi_wt<T>::per_scale > 0)
            r.scale = __ldg(scale + 32 / per * u);
    }
    return r;
}

/* Group g alone. */
template <int T>
PI_DEVICE struct pi_group<T> pi_group_load(const char *row, uint32_t n_groups, uint32_t g, bool ok)
{
    return pi_group_load<T>(row, n_groups, g, 0, ok);
}

template <typename To, typename From> PI_DEVICE To pi_bits(From v)
{
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To r;

    memcpy(&r, &v, sizeof(r));
    return r;
}

PI_DEVICE uint32_t pi_word(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The bits of 2^23, where compilers can not see them: as a constant they would cost an instruction for every use, since one that has two
 * immediates is split. */
namespace
{
__constant__ uint32_t pi_two_23 = 0x4b000000u;
}

/* The unsigned integer in `bits` bits of w from bit `at` on, minus `bias`, as a float: made in the mantissa of 2^23, exact, and
 * without the slow conversion instruction. at + bits <= 23. */
template <int AT, int BITS> PI_DEVICE float pi_uint_field(uint32_t w, float bias)
{
    float f = pi_bits<float>((w & (((1u << BITS) - 1u) << AT)) | pi_two_23);

    /* (2^23 + q 2^at) 2^-at - (2^(23 - at) + bias): product and sum round once, and the result is an integer */
    return fmaf(f, 1.0f / (float)(1u << AT), -((float)(1u << (23 - AT)) + bias));
}

/* Elements 4p .. 4p + 3 of a group; of types with scales: before the scale. */
template <int T> PI_DEVICE float4 pi_group_f4(const struct pi_group<T> &g, int p)
{
    if constexpr (T == PI_TYPE_F32) {
        return pi_bits<float4>(g.v);
    } else if constexpr (T == PI_TYPE_F16) {
        float2 a = __half22float2(pi_bits<__half2>(pi_word(g.v, 2 * p)));
        float2 b = __half22float2(pi_bits<__half2>(pi_word(g.v, 2 * p + 1)));

        return make_float4(a.x, a.y, b.x, b.y);
    } else if constexpr (T == PI_TYPE_BF16) {
        uint32_t a = pi_word(g.v, 2 * p), b = pi_word(g.v, 2 * p + 1);

        return make_float4(pi_bits<float>(a << 16), pi_bits<float>(a & 0xffff0000u),
                           pi_bits<float>(b << 16), pi_bits<float>(b & 0xffff0000u));
    } else if constexpr (T == PI_TYPE_Q8_0) {
        uint32_t w = pi_word(g.v, p) ^ 0x80808080u, hi = w >> 16; /* q + 128 */

        return make_float4(pi_uint_field<0, 8>(w, 128.0f), pi_uint_field<8, 8>(w, 128.0f),
                           pi_uint_field<0, 8>(hi, 128.0f), pi_uint_field<8, 8>(hi, 128.0f));
    } else {
        uint32_t w = pi_word(g.v, p & 3), hi = w >> 16; /* q + 8; p >= 4: high nibbles */

        if (p < 4)
            return make_float4(pi_uint_field<0, 4>(w, 8.0f), pi_uint_field<8, 4>(w, 8.0f),
                               pi_uint_field<0, 4>(hi, 8.0f), pi_uint_field<8, 4>(hi, 8.0f));
        return make_float4(pi_uint_field<4, 4>(w, 8.0f), pi_uint_field<12, 4>(w, 8.0f),
                           pi_uint_field<4, 4>(hi, 8.0f), pi_uint_field<12, 4>(hi, 8.0f));
    }
}

template <int T> PI_DEVICE float pi_group_scale(const struct pi_group<T> &g)
{
    return pi_wt<T>::per_scale > 0 ? __half2float(pi_bits<__half>(g.scale)) : 1.0f;
}

/* ---- vectors in shared memory ---- */

/* float4s of one plane: whole chunks, then a shift that spreads the planes over the banks while they are written. */
template <int T> static __host__ __device__ __forceinline__ uint32_t pi_x_plane(uint32_t n_groups)
{
    return ((n_groups + 31) / 32) * 32 + (pi_wt<T>::P > 1 ? 8 / pi_wt<T>::P : 0);
}

/* float4s of one vector */
template <int T> static __host__ __device__ __forceinline__ uint32_t pi_x_stride(uint32_t n_groups)
{
    return pi_x_plane<T>(n_groups) * pi_wt<T>::P;
}

/* Place of float4 number f of a vector. */
template <int T> PI_DEVICE uint32_t pi_x_at(uint32_t f, uint32_t plane)
{
    return (f % pi_wt<T>::P) * plane + f / pi_wt<T>::P;
}

/* float4 number f of a vector of n floats in global memory, zero from n on. Vector reads where x is aligned (vec: n % 4 == 0). */
PI_DEVICE float4 pi_x_get(const float *x, uint32_t n, uint32_t f, bool vec)
{
    uint32_t i = 4 * f;

    if (vec && i < n)
        return *((const float4 *)x + f);
    return make_float4(i < n ? x[i] : 0.0f, i + 1 < n ? x[i + 1] : 0.0f, i + 2 < n ? x[i + 2] : 0.0f,
                       i + 3 < n ? x[i + 3] : 0.0f);
}

/* All threads of the block: vectors x (n_tok, n_cols) of global memory into xs, NT of them: zeros from n_tok on. The caller
 * synchronises. xs: NT * pi_x_stride<T>(n_groups) float4s. */
template <int T, int NT>
PI_DEVICE void pi_x_stage(float4 *xs, const float *x, uint32_t n_cols, uint32_t n_tok)
{
    uint32_t n_groups = pi_groups<T>(n_cols), plane = pi_x_plane<T>(n_groups);
    uint32_t n4 = ((n_groups + 31) / 32) * 32 * pi_wt<T>::P;
    bool vec = n_cols % 4 == 0;

#pragma unroll
    for (int t = 0; t < NT; t++) {
        for (uint32_t f = threadIdx.x; f < n4; f += blockDim.x)
            xs[t * plane * pi_wt<T>::P + pi_x_at<T>(f, plane)] =
                pi_x_get(x + (size_t)t * n_cols, (uint32_t)t < n_tok ? n_cols : 0, f, vec);
    }
}

/* ---- products ---- */

template <int T, int R, int U> struct pi_batch {
    struct pi_group<T> g[R][U];
};

/* Groups g, g + 32 ... of R rows, those below end. g: the lane's own. */
template <int T, int R, int U>
PI_DEVICE void pi_batch_load(struct pi_batch<T, R, U> *b, const char *const (&row)[R],
                             uint32_t n_groups, uint32_t g, uint32_t end)
{
#pragma unroll
    for (int u = 0; u < U; u++) {
#pragma unroll
        for (int r = 0; r < R; r++)
            b->g[r][u] = pi_group_load<T>(row[r], n_groups, g, u, g + 32 * u < end);
    }
}

PI_DEVICE float pi_dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

PI_DEVICE float4 pi_scale4(float4 a, float s)
{
    return make_float4(a.x * s, a.y * s, a.z * s, a.w * s);
}

/* One group of R rows times NT vectors, xs at the lane's group. With few vectors the scale is applied to a group's sum, with many to its weights. */
template <int T, int R, int NT>
PI_DEVICE void pi_group_fma(const struct pi_group<T> *const (&g)[R], const float4 *xs,
                            uint32_t plane, uint32_t stride, float (&acc)[R][NT])
{
    constexpr bool scaled = pi_wt<T>::per_scale > 0, by_sum = scaled && NT <= 2;
    float sum[R][NT], scale[R];

#pragma unroll
    for (int r = 0; r < R; r++) {
        scale[r] = pi_group_scale<T>(*g[r]);
#pragma unroll
        for (int t = 0; t < NT; t++)
            sum[r][t] = by_sum ? 0.0f : acc[r][t];
    }
#pragma unroll
    for (int p = 0; p < pi_wt<T>::P; p++) {
        float4 w[R];

#pragma unroll
        for (int r = 0; r < R; r++) {
            w[r] = pi_group_f4<T>(*g[r], p);
            if (scaled && !by_sum)
                w[r] = pi_scale4(w[r], scale[r]);
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            float4 x = xs[t * stride + p * plane];

#pragma unroll
            for (int r = 0; r < R; r++)
                sum[r][t] = pi_dot4(w[r], x, sum[r][t]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int t = 0; t < NT; t++)
            acc[r][t] = by_sum ? fmaf(sum[r][t], scale[r], acc[r][t]) : sum[r][t];
    }
}

/* acc[r][t] += this lane's share of row r . vector t over what pi_batch_load() loaded with the same g and end. */
template <int T, int R, int U, int NT>
PI_DEVICE void pi_batch_fma(const struct pi_batch<T, R, U> &b, const float4 *xs, uint32_t n_groups,
                            uint32_t g, uint32_t end, float (&acc)[R][NT])
{
    uint32_t plane = pi_x_plane<T>(n_groups), first = g & ~31u; /* the same in all lanes */

#pragma unroll
    for (int u = 0; u < U; u++) {
        const struct pi_group<T> *of[R];

#pragma unroll
        for (int r = 0; r < R; r++)
            of[r] = &b.g[r][u];
        if (u == 0 || first + 32 * u < end)
            pi_group_fma<T, R, NT>(of, xs + g + 32 * u, plane, plane * pi_wt<T>::P, acc);
    }
}

/* The plain use of the above, for a whole warp: acc[r][t] += the lane's share of row r . vector t over groups [begin, end); begin a multiple of 32.
 * xs: at the first vector. Sum over lanes by pi_warp_sums(). */
template <int T, int R, int U, int NT>
PI_DEVICE void pi_dot_rows(const char *const (&row)[R], uint32_t n_groups, uint32_t begin,
                           uint32_t end, const float4 *xs, float (&acc)[R][NT])
{
    for (uint32_t g = begin + threadIdx.x % 32; (g & ~31u) < end; g += 32 * U) {
        struct pi_batch<T, R, U> b;

        pi_batch_load<T, R, U>(&b, row, n_groups, g, end);
        pi_batch_fma<T, R, U, NT>(b, xs, n_groups, g, end, acc);
    }
}

/* ---- sums over a warp ---- */

/* One step of pi_warp_sums(): M values in each lane become M / 2, or the one is added to its neighbour's. */
template <int M, int OFF> PI_DEVICE void pi_warp_fold(float *v)
{
    if constexpr (OFF > 0) {
        constexpr int half = M / 2;
        bool up = (threadIdx.x & OFF) != 0;

        if constexpr (M == 1)
            v[0] += __shfl_xor_sync(~0u, v[0], OFF);
#pragma unroll
        for (int i = 0; i < half; i++) {
            float keep = up ? v[i + half] : v[i], give = up ? v[i] : v[i + half];

            v[i] = keep + __shfl_xor_sync(~0u, give, OFF);
        }
        pi_warp_fold<(M > 1 ? half : 1), OFF / 2>(v);
    }
}

/* Sums of M values (a power of two, at most 32) over the lanes of a warp, fixed order. Lane l gets that of value
 * pi_warp_sum_index<M>(l): each value is had by 32 / M neighbouring lanes. M + 4 - log2(M) shuffles and not 5 M. All lanes take part; v is used up. */
template <int M> PI_DEVICE float pi_warp_sums(float *v)
{
    static_assert(M >= 1 && M <= 32 && (M & (M - 1)) == 0, "a power of two");
    pi_warp_fold<M, 16>(v);
    return v[0];
}

template <int M> PI_DEVICE int pi_warp_sum_index(int lane)
{
    return lane / (32 / M);
}

/* The sum of one value over a warp, in all lanes. */
PI_DEVICE float pi_warp_sum(float v)
{
    return pi_warp_sums<1>(&v);
}

PI_DEVICE float pi_warp_max(float v)
{
#pragma unroll
    for (int off = 16; off > 0; off /= 2)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, off));
    return v;
}

/* ---- for launchers ---- */

/* Allows a kernel its dynamic shared memory, and asks for the largest carve-out of the L1: an SM holds blocks of two kernels at a time (programmatic
 * dependent launch) only where both want the same split. Before each launch; cheap. */
template <typename... Params> static inline void pi_k_prepare(void (*kernel)(Params...), size_t shared)
{
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (shared > 49152)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)shared);
}

/* Calls f<T>, a template over the weight type, as CASE(T) for the type at hand: types without device kernels do nothing (pi_dev_type_ok() kept
 * them out). */
#define PI_BY_TYPE(type, CASE)  \
    do {                        \
        switch ((int)(type)) {  \
        case PI_TYPE_F32:       \
            CASE(PI_TYPE_F32);  \
            break;              \
        case PI_TYPE_F16:       \
            CASE(PI_TYPE_F16);  \
            break;              \
        case PI_TYPE_BF16:      \
            CASE(PI_TYPE_BF16); \
            break;              \
        case PI_TYPE_Q8_0:      \
            CASE(PI_TYPE_Q8_0); \
            break;              \
        case PI_TYPE_Q4_0:      \
            CASE(PI_TYPE_Q4_0); \
            break;              \
        default:                \
            break;              \
        }                       \
    } while (0)

#endif
