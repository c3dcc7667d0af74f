/*
 * pi_k_topk.cu - the k largest logits of each token, sorted.
 *
 * A logit and its index make one 64-bit key, larger for larger logits and, among equals, for smaller indices; so no two keys are equal, and the result
 * hangs on nothing but the logits. A warp keeps the best 32 * E keys it has seen as a sorted list in registers (E a lane) and merges another list
 * of as many by one compare of a[i] with b[last - i], which leaves the larger half as a bitonic sequence, and log2 steps of sorting
 * (Batcher 1968). Lists of warps are merged in shared memory, those of blocks by a second kernel.
 */
#include "config.h"

#include "runtime/cuda/pi_k_dot.cuh"
#include "runtime/cuda/pi_kernels.h"

#define SLICE_WARPS  8
#define MERGE_WARPS  16
#define MAX_SLICES   64
#define SLICE_FLOATS 2048 /* 256 a warp; more where there would be too many slices */

typedef unsigned long long topk_key; /* 0: no element */

/* -0 counts as 0, NaN comes last. */
PI_DEVICE topk_key key_of(float v, uint32_t i)
{
    uint32_t u = pi_bits<uint32_t>(v == 0.0f ? 0.0f : v);

    u = v != v ? 0 : u >> 31 ? ~u : u | 0x80000000u;
    return (topk_key)u << 32 | (topk_key)(~i);
}

PI_DEVICE topk_key larger(topk_key a, topk_key b)
{
    return a > b ? a : b;
}

PI_DEVICE topk_key smaller(topk_key a, topk_key b)
{
    return a > b ? b : a;
}

/* Element p = lane * E + j is compared with p ^ STRIDE; the larger one goes first where down. */
template <int E, int STRIDE> PI_DEVICE void exchange(topk_key (&v)[E], uint32_t size)
{
    const uint32_t lane = threadIdx.x % 32;

    if constexpr (STRIDE >= E) {
#pragma unroll
        for (int j = 0; j < E; j++) {
            topk_key other = __shfl_xor_sync(~0u, v[j], STRIDE / E);
            bool down = ((lane * E + j) & size) == 0, first = (lane & (STRIDE / E)) == 0;

            v[j] = first == down ? larger(v[j], other) : smaller(v[j], other);
        }
    } else {
#pragma unroll
        for (int j = 0; j < E; j++) {
            if ((j & STRIDE) == 0) {
                topk_key a = v[j], b = v[j | STRIDE];
                bool down = ((lane * E + j) & size) == 0;

                v[j] = down ? larger(a, b) : smaller(a, b);
                v[j | STRIDE] = down ? smaller(a, b) : larger(a, b);
            }
        }
    }
}

/* Bitonic sequences of 2 * STRIDE elements become sorted ones. */
template <int E, int STRIDE> PI_DEVICE void clean(topk_key (&v)[E], uint32_t size)
{
    exchange<E, STRIDE>(v, size);
    if constexpr (STRIDE > 1)
        clean<E, STRIDE / 2>(v, size);
}

/* Any 32 * E elements -> descending. */
template <int E, int SIZE> PI_DEVICE void sort(topk_key (&v)[E])
{
    if constexpr (SIZE > 2)
        sort<E, SIZE / 2>(v);
    clean<E, SIZE / 2>(v, SIZE < 32 * E ? SIZE : 0); /* the last one: all of it descending */
}

/* Lists lie in memory as element j of all lanes, then j + 1: no bank is met twice. */
template <int E> PI_DEVICE void put(topk_key *list, const topk_key (&v)[E])
{
#pragma unroll
    for (int j = 0; j < E; j++)
        list[j * 32 + threadIdx.x % 32] = v[j];
}

/* v: the larger half of two sorted lists, sorted. The other one comes in reverse. */
template <int E> PI_DEVICE void merge_reversed(topk_key (&v)[E], const topk_key (&other)[E])
{
#pragma unroll
    for (int j = 0; j < E; j++)
        v[j] = larger(v[j], other[j]);
    clean<E, 16 * E>(v, 0);
}

template <int E> PI_DEVICE void merge_list(topk_key (&v)[E], const topk_key *list)
{
    topk_key other[E];

#pragma unroll
    for (int j = 0; j < E; j++)
        other[j] = list[(E - 1 - j) * 32 + (31 - threadIdx.x % 32)];
    merge_reversed<E>(v, other);
}

/* The lists of all warps (a power of two) into that of warp 0; lists: half as many. */
template <int E> PI_DEVICE void merge_block(topk_key (&v)[E], topk_key (*lists)[32 * E])
{
    const uint32_t warp = threadIdx.x / 32;

    for (uint32_t half = blockDim.x / 64; half > 0; half /= 2) {
        if (warp >= half && warp < 2 * half)
            put<E>(lists[warp - half], v);
        __syncthreads();
        if (warp < half)
            merge_list<E>(v, lists[warp]);
        __syncthreads();
    }
}

/* Grid: (slices, rows). out: (rows, slices, 32 * E) keys. */
template <int E>
__global__ static void __launch_bounds__(32 * SLICE_WARPS)
    slice_kernel(const float *logits, uint32_t n_vocab, uint32_t slice, topk_key *out)
{
    __shared__ topk_key lists[SLICE_WARPS / 2][32 * E];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *row = logits + (size_t)blockIdx.y * n_vocab;
    const uint32_t begin = blockIdx.x * slice, end = min(begin + slice, n_vocab);
    topk_key best[E];

#pragma unroll
    for (int j = 0; j < E; j++)
        best[j] = 0;
    pi_pdl_trigger();
    pi_pdl_wait();
    for (uint32_t at = begin + warp * 32 * E; at < end; at += SLICE_WARPS * 32 * E) {
        topk_key v[E], most = 0;

#pragma unroll
        for (int j = 0; j < E; j++) {
            uint32_t i = at + j * 32 + lane;

            v[j] = i < end ? key_of(row[i], i) : 0;
            most = larger(most, v[j]);
        }
        if (!__any_sync(~0u, most > __shfl_sync(~0u, best[E - 1], 31)))
            continue;
        sort<E, 32 * E>(v);
#pragma unroll
        for (int j = 0; j < (E + 1) / 2; j++) { /* reversed */
            topk_key a = __shfl_xor_sync(~0u, v[j], 31), b = __shfl_xor_sync(~0u, v[E - 1 - j], 31);

            v[j] = b;
            v[E - 1 - j] = a;
        }
        merge_reversed<E>(best, v);
    }
    merge_block<E>(best, lists);
    if (warp == 0)
        put<E>(out + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * (32 * E), best);
}

/* A block a row. */
template <int E>
__global__ static void __launch_bounds__(32 * MERGE_WARPS)
    merge_kernel(const topk_key *slices, uint32_t n_slices, const float *logits, uint32_t n_vocab,
                 uint32_t k, float *values, uint32_t *ids)
{
    __shared__ topk_key lists[MERGE_WARPS / 2][32 * E];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x;
    topk_key best[E];

#pragma unroll
    for (int j = 0; j < E; j++)
        best[j] = 0;
    pi_pdl_trigger();
    pi_pdl_wait();
    for (uint32_t i = warp; i < n_slices; i += MERGE_WARPS)
        merge_list<E>(best, slices + ((size_t)row * n_slices + i) * (32 * E));
    merge_block<E>(best, lists);
    if (warp > 0)
        return;
#pragma unroll
    for (int j = 0; j < E; j++) {
        uint32_t i = lane * E + j, id = ~(uint32_t)best[j];

        if (i >= k)
            continue;
        ids[(size_t)row * k + i] = id;
        values[(size_t)row * k + i] = id < n_vocab ? logits[(size_t)row * n_vocab + id] : -INFINITY;
    }
}

/* ---- launch ---- */

static uint32_t slice_of(uint32_t n_vocab)
{
    uint32_t per = (n_vocab + MAX_SLICES - 1) / MAX_SLICES;

    return per < SLICE_FLOATS ? SLICE_FLOATS : per;
}

static uint32_t n_slices_of(uint32_t n_vocab)
{
    return (n_vocab + slice_of(n_vocab) - 1) / slice_of(n_vocab);
}

static uint32_t lane_keys(uint32_t k)
{
    return k <= 32 ? 1 : k <= 64 ? 2 : k <= 128 ? 4 : 8;
}

extern "C" size_t pi_k_topk_scratch(uint32_t n, uint32_t n_vocab, uint32_t k)
{
    return (size_t)n * n_slices_of(n_vocab) * 32 * lane_keys(k) * sizeof(topk_key);
}

template <int E>
static void topk(const float *logits, uint32_t n, uint32_t n_vocab, uint32_t k, topk_key *lists,
                 float *values, uint32_t *ids, cudaStream_t s)
{
    uint32_t n_slices = n_slices_of(n_vocab);

    pi_k_prepare(slice_kernel<E>, 0);
    pi_k_prepare(merge_kernel<E>, 0);
    PI_LAUNCH_PDL(slice_kernel<E>, dim3(n_slices, n), 32 * SLICE_WARPS, 0, s, logits, n_vocab,
                  slice_of(n_vocab), lists);
    PI_LAUNCH_PDL(merge_kernel<E>, n, 32 * MERGE_WARPS, 0, s, lists, n_slices, logits, n_vocab, k,
                  values, ids);
}

extern "C" void pi_k_topk(const float *logits, uint32_t n, uint32_t n_vocab, uint32_t k,
                          void *scratch, float *values, uint32_t *ids, void *stream)
{
    topk_key *lists = (topk_key *)scratch;
    cudaStream_t s = (cudaStream_t)stream;

    switch (lane_keys(k)) {
    case 1:
        topk<1>(logits, n, n_vocab, k, lists, values, ids, s);
        break;
    case 2:
        topk<2>(logits, n, n_vocab, k, lists, values, ids, s);
        break;
    case 4:
        topk<4>(logits, n, n_vocab, k, lists, values, ids, s);
        break;
    default:
        topk<8>(logits, n, n_vocab, k, lists, values, ids, s);
    }
}
