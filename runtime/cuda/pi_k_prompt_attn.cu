/*
 * pi_k_prompt_attn.cu - causal attention of a prompt chunk over the KV cache, all in F32.
 *
 * One block has a tile of TQ queries of one head and walks over the context in pieces of TK keys, which all queries share through shared
 * memory, with a running maximum and sum per query (online softmax, Milakov and Gimelshein 2018). 128 threads: 8 groups of 16; group g has
 * queries g * RQ ..., its lanes the keys lane + 16 * b of a piece when scores are made, then columns 4 * lane + 64 * c of the output. So what a
 * query needs of its maximum and sum stays inside half a warp. The order of all sums depends on positions alone.
 */
#include "config.h"

#include "runtime/cuda/pi_k_prompt.h"

#include "runtime/cuda/pi_cuda_port.cuh"

#include <math.h>
#include <string.h>

#define THREADS 128
#define GROUPS  8
#define LANES   16

struct attn_args {
    const float *q;
    const void *k_cache, *v_cache;
    const pi_kp_tile *tiles;
    float *out;
    uint32_t n_ctx, n_head, n_head_kv, head_dim;
    uint32_t whole; /* heads start on 16 bytes and are whole vectors of 16 bytes */
    uint32_t spare; /* no hole that could be taken for an address */
};

/* Eight or four elements of 16 bytes, as F32. */
__device__ static void widen(const __half *from, float *to)
{
    const uint4 v = *(const uint4 *)from;
    __half2 h[4];

    memcpy(h, &v, sizeof(h));
    for (int i = 0; i < 4; i++) {
        const float2 f = __half22float2(h[i]);

        to[2 * i] = f.x;
        to[2 * i + 1] = f.y;
    }
}

__device__ static void widen(const float *from, float *to)
{
    *(float4 *)to = *(const float4 *)from;
}

__device__ static float to_float(__half x)
{
    return __half2float(x);
}

__device__ static float to_float(float x)
{
    return x;
}

/* n rows of a head out of the cache into tile (TK, DP + 4); rows and columns behind the end become 0. */
template <int DP, int TK, typename KV>
__device__ static void load_tile(const attn_args &a, const KV *rows, uint32_t n, float *tile)
{
    const uint32_t stride = a.n_head_kv * a.head_dim;
    const int per = 16 / sizeof(KV), vecs = DP / per;

    if (a.whole) {
        for (int i = threadIdx.x; i < TK * vecs; i += THREADS) {
            const uint32_t r = i / vecs, c = i % vecs * per;
            float v[per];

            for (int j = 0; j < per; j++)
                v[j] = 0.0f;
            if (r < n && c < a.head_dim)
                widen(rows + (size_t)r * stride + c, v);
            for (int j = 0; j < per; j += 4)
                *(float4 *)(tile + r * (DP + 4) + c + j) =
                    make_float4(v[j], v[j + 1], v[j + 2], v[j + 3]);
        }
        return;
    }
    for (int i = threadIdx.x; i < TK * DP; i += THREADS) {
        const uint32_t r = i / DP, c = i % DP;

        tile[r * (DP + 4) + c] =
            r < n && c < a.head_dim ? to_float(rows[(size_t)r * stride + c]) : 0.0f;
    }
}

/* s[r][b] = query r of the group . key lane + 16 b */
template <int DP, int RQ, int RK>
__device__ static void scores(const float *q, const float *k, float s[RQ][RK])
{
    for (int r = 0; r < RQ; r++)
        for (int b = 0; b < RK; b++)
            s[r][b] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < DP; d += 4) {
        float4 kv[RK];

#pragma unroll
        for (int b = 0; b < RK; b++)
            kv[b] = *(const float4 *)(k + LANES * b * (DP + 4) + d);
#pragma unroll
        for (int r = 0; r < RQ; r++) {
            const float4 qv = *(const float4 *)(q + r * (DP + 4) + d);

#pragma unroll
            for (int b = 0; b < RK; b++)
                s[r][b] =
                    fmaf(qv.x, kv[b].x,
                         fmaf(qv.y, kv[b].y, fmaf(qv.z, kv[b].z, fmaf(qv.w, kv[b].w, s[r][b]))));
        }
    }
}

/* o[r] += p[r] . v over the piece; o: (RQ, DP / 64) vectors of 4 columns. p, v: of the group's first query and the thread's first column. */
template <int DP, int RQ, int TK>
__device__ static void add_values(const float *p, const float *v, float4 o[RQ][DP / 64])
{
#pragma unroll 2
    for (int j = 0; j < TK; j += 4) {
        float4 pv[RQ];

#pragma unroll
        for (int r = 0; r < RQ; r++)
            pv[r] = *(const float4 *)(p + r * (TK + 4) + j);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int c = 0; c < DP / 64; c++) {
                const float4 x = *(const float4 *)(v + (j + i) * (DP + 4) + 64 * c);

#pragma unroll
                for (int r = 0; r < RQ; r++) {
                    const float w = i == 0   ? pv[r].x
                                    : i == 1 ? pv[r].y
                                    : i == 2 ? pv[r].z
                                             : pv[r].w;

                    o[r][c].x = fmaf(w, x.x, o[r][c].x);
                    o[r][c].y = fmaf(w, x.y, o[r][c].y);
                    o[r][c].z = fmaf(w, x.z, o[r][c].z);
                    o[r][c].w = fmaf(w, x.w, o[r][c].w);
                }
            }
        }
    }
}

__device__ static float half_warp_max(float x)
{
    for (int i = LANES / 2; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

__device__ static float half_warp_sum(float x)
{
    for (int i = LANES / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* Scores of the keys from k0 on become weights in p (TK + 4 apart), masked behind each query's own position (pos: the first query's); running maxima and sums
 * take them in, and what o has so far shrinks to the new maximum. */
template <int DP, int RQ, int RK>
__device__ static void weigh(float s[RQ][RK], uint32_t lane, uint32_t k0, uint32_t pos,
                             float max[RQ], float sum[RQ], float *p, float4 o[RQ][DP / 64])
{
    const int TK = LANES * RK;

#pragma unroll
    for (int r = 0; r < RQ; r++) {
        float m = max[r], shrink;

#pragma unroll
        for (int b = 0; b < RK; b++) {
            if (k0 + lane + LANES * b > pos + r)
                s[r][b] = -INFINITY;
            m = fmaxf(m, s[r][b]);
        }
        m = half_warp_max(m);
        shrink = m == -INFINITY ? 1.0f : expf(max[r] - m);
        max[r] = m;
        sum[r] *= shrink;
#pragma unroll
        for (int b = 0; b < RK; b++) {
            const float w = s[r][b] == -INFINITY ? 0.0f : expf(s[r][b] - m);

            sum[r] += w;
            p[r * (TK + 4) + lane + LANES * b] = w;
        }
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            o[r][c].x *= shrink;
            o[r][c].y *= shrink;
            o[r][c].z *= shrink;
            o[r][c].w *= shrink;
        }
    }
}

/* DP: head_dim rounded up to 64, 128 or 256; TQ = 8 RQ queries, TK = 16 RK keys. Block (tile, head); the longest tiles come first. */
template <int DP, int RQ, int RK, typename KV>
__global__ static void __launch_bounds__(THREADS) attn_kernel(attn_args a)
{
    const int TQ = GROUPS * RQ, TK = LANES * RK;
    __shared__ __align__(16) float q_s[GROUPS * RQ * (DP + 4)];
    __shared__ __align__(16) float kv_s[LANES * RK * (DP + 4)];
    __shared__ __align__(16) float p_s[GROUPS * RQ * (LANES * RK + 4)];
    const pi_kp_tile tile = a.tiles[gridDim.x - 1 - blockIdx.x];
    const uint32_t head = blockIdx.y, hd = a.head_dim, ldq = a.n_head * hd;
    const uint32_t kv_head = head / (a.n_head / a.n_head_kv), lane = threadIdx.x % LANES;
    const uint32_t first = threadIdx.x / LANES * RQ; /* the group's first query */
    const uint32_t n_keys = tile.pos + tile.n;
    const size_t base = (size_t)tile.seq * a.n_ctx * a.n_head_kv * hd + kv_head * hd;
    const size_t stride = (size_t)a.n_head_kv * hd;
    float max[RQ], sum[RQ];
    float4 o[RQ][DP / 64];

    for (int r = 0; r < RQ; r++) {
        max[r] = -INFINITY;
        sum[r] = 0.0f;
        for (int c = 0; c < DP / 64; c++)
            o[r][c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    for (int i = threadIdx.x; i < TQ * DP; i += THREADS) {
        const uint32_t r = i / DP, c = i % DP;

        q_s[r * (DP + 4) + c] =
            r < tile.n && c < hd ? a.q[(size_t)(tile.first + r) * ldq + head * hd + c] : 0.0f;
    }
    for (uint32_t k0 = 0; k0 < n_keys; k0 += TK) {
        const uint32_t n = n_keys - k0 < (uint32_t)TK ? n_keys - k0 : TK;
        float s[RQ][RK];

        __syncthreads(); /* the values of the piece before were read */
        load_tile<DP, TK>(a, (const KV *)a.k_cache + base + k0 * stride, n, kv_s);
        __syncthreads();
        scores<DP, RQ, RK>(q_s + first * (DP + 4), kv_s + lane * (DP + 4), s);
        weigh<DP, RQ, RK>(s, lane, k0, tile.pos + first, max, sum, p_s + first * (TK + 4), o);
        __syncthreads(); /* keys were read, weights are there */
        load_tile<DP, TK>(a, (const KV *)a.v_cache + base + k0 * stride, n, kv_s);
        __syncthreads();
        add_values<DP, RQ, TK>(p_s + first * (TK + 4), kv_s + 4 * lane, o);
    }
    for (int r = 0; r < RQ; r++) {
        const float scale = 1.0f / half_warp_sum(sum[r]);
        float *out = a.out + (size_t)(tile.first + first + r) * ldq + head * hd;

        for (int c = 0; c < DP / 64; c++) {
            const float v[4] = {o[r][c].x, o[r][c].y, o[r][c].z, o[r][c].w};

            for (uint32_t i = 0; i < 4; i++)
                if (first + r < tile.n && 4 * lane + 64 * c + i < hd)
                    out[4 * lane + 64 * c + i] = v[i] * scale;
        }
    }
}

/* Queries and keys of a tile fit 48 KiB of shared memory: 32 and 32, or of heads wider than 128 16 and 16. */
#define ROWS      4
#define ROWS_WIDE 2

extern "C" uint32_t pi_kp_tile_size(uint32_t head_dim)
{
    return GROUPS * (head_dim > 128 ? ROWS_WIDE : ROWS);
}

template <typename KV>
static void launch_attn(const attn_args &a, uint32_t n_tiles, cudaStream_t stream)
{
    const dim3 grid(n_tiles, a.n_head);

    if (a.head_dim <= 64)
        PI_LAUNCH((attn_kernel<64, ROWS, 2, KV>), grid, THREADS, 0, stream, a);
    else if (a.head_dim <= 128)
        PI_LAUNCH((attn_kernel<128, ROWS, 2, KV>), grid, THREADS, 0, stream, a);
    else
        PI_LAUNCH((attn_kernel<256, ROWS_WIDE, 1, KV>), grid, THREADS, 0, stream, a);
}

extern "C" void pi_kp_attn(const struct pi_shape *shape, enum pi_type kv_type, const float *q,
                           const void *k_cache, const void *v_cache, uint32_t n_ctx,
                           const struct pi_kp_tile *tiles, uint32_t n_tiles, float *out,
                           void *stream)
{
    attn_args a = {q,     k_cache,       v_cache,          tiles,           out,
                   n_ctx, shape->n_head, shape->n_head_kv, shape->head_dim, 0,
                   0};

    if (n_tiles == 0)
        return;
    a.whole = shape->head_dim % (kv_type == PI_TYPE_F16 ? 8 : 4) == 0;
    if (kv_type == PI_TYPE_F16)
        launch_attn<__half>(a, n_tiles, (cudaStream_t)stream);
    else
        launch_attn<float>(a, n_tiles, (cudaStream_t)stream);
}
