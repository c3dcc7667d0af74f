/*
 * pi_k_attn.cu - attention of a decode step over the KV cache, split along the context (flash-decoding).
 *
 * A block takes one token, up to 4 query heads of one key/value head, and one piece of the context. How many pieces there may be hangs on the
 * shape alone; how many there are on the token's position, and blocks beyond end at once. A row of one head is read by LP neighbouring lanes, 16
 * bytes each (twice or more for wide heads), so that a warp reads 32 / LP positions at a time, keys and values together. Each such group of
 * lanes runs its own softmax (maximum, sum, weighted values); groups, then warps, then pieces are merged, always in the same order. The block that
 * finishes a token's head last, by ticket, merges the pieces.
 */
#include "config.h"

#include "runtime/cuda/pi_k_dot.cuh"
#include "runtime/cuda/pi_kernels.h"

#include <float.h>

#define ATTN_WARPS      4
#define MAX_PIECES      64
#define PIECE_STEP      32   /* positions; a piece is a multiple of it */
#define WANTED_BLOCKS   1024 /* pieces are cut until there are as many blocks: 8 an SM on large devices */
#define SCRATCH_ALIGN   ((size_t)256)

struct attn_args {
    const float *q; /* (n_tok, n_head, head_dim), scaled */
    const void *k, *v;
    const struct pi_k_step *step;
    unsigned *tickets; /* (n_tok, head groups) */
    float2 *stats;     /* (n_tok, n_head, n_pieces): maximum, sum */
    float *sums;       /* (n_tok, n_head, n_pieces, head_dim) */
    float *out;
    uint32_t n_head, n_head_kv, head_dim, n_ctx, n_seq;
    uint32_t elem_bytes; /* of the cache */
    bool prefetch;       /* rows of heads are whole groups of 16 bytes */
    uint32_t group;     /* query heads of a key/value head */
    uint32_t n_sub;     /* blocks that share them */
    uint32_t n_pieces;  /* at most */
};

/* ---- geometry ---- */

/* Query heads in a block: K and V are then read once for them. */
static uint32_t heads_of_block(uint32_t group, uint32_t head_dim, enum pi_type kv)
{
    bool wide = head_dim > (kv == PI_TYPE_F16 ? 256u : 128u);

    return wide || group == 1 ? 1 : group == 2 ? 2 : 4;
}

static uint32_t pieces_of(const struct pi_shape *sh, uint32_t n_tok)
{
    uint32_t blocks = sh->n_head_kv * n_tok, n = (WANTED_BLOCKS + blocks - 1) / blocks;

    return n < 4 ? 4 : n > MAX_PIECES ? MAX_PIECES : n;
}

static size_t pad(size_t n)
{
    return (n + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

/* Tickets come first and take the same room for any n_tok, so that graphs of all batch sizes can share a buffer. */
static size_t tickets_bytes(const struct pi_shape *sh)
{
    return pad((size_t)PI_K_MAX_TOKENS * sh->n_head * sizeof(unsigned));
}

static size_t stats_bytes(const struct pi_shape *sh, uint32_t n_tok)
{
    return pad((size_t)n_tok * sh->n_head * pieces_of(sh, n_tok) * sizeof(float2));
}

extern "C" size_t pi_k_attn_scratch(const struct pi_shape *sh, uint32_t n_tok)
{
    return tickets_bytes(sh) + stats_bytes(sh, n_tok) +
           (size_t)n_tok * sh->n_head * pieces_of(sh, n_tok) * sh->head_dim * sizeof(float);
}

/* ---- rows of the cache ---- */

template <int T> struct kv_type;
template <> struct kv_type<PI_TYPE_F16> {
    typedef __half elem;
};
template <> struct kv_type<PI_TYPE_F32> {
    typedef float elem;
};

/* Group i (16 bytes) of a head's row at p; zero behind its end. vec: rows are aligned and whole groups. */
template <int T>
PI_DEVICE struct pi_group<T> kv_load(const typename kv_type<T>::elem *p, uint32_t i,
                                     uint32_t head_dim, bool vec, bool ok)
{
    constexpr int E = pi_wt<T>::E;
    struct pi_group<T> g;

    g.v = make_uint4(0, 0, 0, 0);
    g.scale = 0;
    if (!ok || i * E >= head_dim)
        return g;
    if (vec) {
        g.v = __ldcs((const uint4 *)p + i);
    } else {
        typename kv_type<T>::elem e[E];

        for (uint32_t k = 0; k < E; k++)
            e[k] = i * E + k < head_dim ? p[i * E + k] : (typename kv_type<T>::elem)0.0f;
        memcpy(&g.v, e, sizeof(g.v));
    }
    return g;
}

/* ---- one group of lanes ---- */

/* Softmax so far, of GH heads: the lane's part of the weighted values (VPL groups of 16 bytes). */
template <int T, int VPL, int GH> struct soft {
    float max[GH], sum[GH], v[GH][VPL * pi_wt<T>::E];
};

template <int N> PI_DEVICE void scale_all(float (&v)[N], float s)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] *= s;
}

/* Scores of U positions: q . k over the LP lanes of the group, the same in all of them. */
template <int T, int LP, int VPL, int GH, int U>
PI_DEVICE void scores(const struct pi_group<T> (&k)[U][VPL], const float (&q)[GH][VPL * pi_wt<T>::E],
                      float (&s)[GH][U])
{
#pragma unroll
    for (int u = 0; u < U; u++) {
#pragma unroll
        for (int h = 0; h < GH; h++)
            s[h][u] = 0.0f;
#pragma unroll
        for (int i = 0; i < VPL * pi_wt<T>::P; i++) {
            float4 w = pi_group_f4<T>(k[u][i / pi_wt<T>::P], i % pi_wt<T>::P);

#pragma unroll
            for (int h = 0; h < GH; h++)
                s[h][u] = pi_dot4(w, make_float4(q[h][4 * i], q[h][4 * i + 1], q[h][4 * i + 2],
                                                 q[h][4 * i + 3]),
                                  s[h][u]);
        }
    }
#pragma unroll
    for (int off = LP / 2; off > 0; off /= 2) {
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int h = 0; h < GH; h++)
                s[h][u] += __shfl_xor_sync(~0u, s[h][u], off);
        }
    }
}

/* Takes U positions in; those from end on weigh nothing. p: the group's first position, next ones step apart. */
template <int T, int VPL, int GH, int U>
PI_DEVICE void take(struct soft<T, VPL, GH> *st, const float (&s)[GH][U],
                    const struct pi_group<T> (&v)[U][VPL], uint32_t p, uint32_t step, uint32_t end)
{
    float w[GH][U];

#pragma unroll
    for (int h = 0; h < GH; h++) {
        float max = st->max[h], keep;

#pragma unroll
        for (int u = 0; u < U; u++)
            max = p + u * step < end ? fmaxf(max, s[h][u]) : max;
        keep = expf(st->max[h] - max);
        st->max[h] = max;
        st->sum[h] *= keep;
        scale_all(st->v[h], keep);
#pragma unroll
        for (int u = 0; u < U; u++) {
            w[h][u] = p + u * step < end ? expf(s[h][u] - max) : 0.0f;
            st->sum[h] += w[h][u];
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
#pragma unroll
        for (int i = 0; i < VPL * pi_wt<T>::P; i++) {
            float4 x = pi_group_f4<T>(v[u][i / pi_wt<T>::P], i % pi_wt<T>::P);

#pragma unroll
            for (int h = 0; h < GH; h++) {
                st->v[h][4 * i] = fmaf(w[h][u], x.x, st->v[h][4 * i]);
                st->v[h][4 * i + 1] = fmaf(w[h][u], x.y, st->v[h][4 * i + 1]);
                st->v[h][4 * i + 2] = fmaf(w[h][u], x.z, st->v[h][4 * i + 2]);
                st->v[h][4 * i + 3] = fmaf(w[h][u], x.w, st->v[h][4 * i + 3]);
            }
        }
    }
}

/* Merges the groups of lanes of a warp: all of them have the result then. */
template <int T, int LP, int VPL, int GH> PI_DEVICE void merge_groups(struct soft<T, VPL, GH> *st)
{
#pragma unroll
    for (int off = LP; off < 32; off *= 2) {
#pragma unroll
        for (int h = 0; h < GH; h++) {
            float max = fmaxf(st->max[h], __shfl_xor_sync(~0u, st->max[h], off));
            float keep = expf(st->max[h] - max);

            st->max[h] = max;
            st->sum[h] *= keep;
            st->sum[h] += __shfl_xor_sync(~0u, st->sum[h], off);
            scale_all(st->v[h], keep);
#pragma unroll
            for (int i = 0; i < VPL * pi_wt<T>::E; i++)
                st->v[h][i] += __shfl_xor_sync(~0u, st->v[h][i], off);
        }
    }
}

/* ---- blocks ---- */

/* What the warps of a block leave for each other, W floats a head. */
template <int GH, int W> struct block_sums {
    float max[GH][ATTN_WARPS], sum[GH][ATTN_WARPS];
    float v[GH][ATTN_WARPS][W];
};

/* Where a block's results go: directly to out if its piece is the only one. head: the first of its heads. */
template <int GH, int W>
PI_DEVICE void merge_warps(const struct attn_args &a, const struct block_sums<GH, W> &b,
                           uint32_t head, uint32_t n_heads, uint32_t piece, bool only)
{
    const uint32_t t = blockIdx.y;

    for (uint32_t i = threadIdx.x; i < n_heads * W; i += blockDim.x) {
        uint32_t h = i / W, e = i % W;
        size_t at = (size_t)t * a.n_head + head + h;
        float max = b.max[h][0], sum = 0.0f, v = 0.0f;

        for (int w = 1; w < ATTN_WARPS; w++)
            max = fmaxf(max, b.max[h][w]);
        for (int w = 0; w < ATTN_WARPS; w++) {
            float keep = expf(b.max[h][w] - max);

            sum = fmaf(keep, b.sum[h][w], sum);
            v = fmaf(keep, b.v[h][w][e], v);
        }
        if (e >= a.head_dim)
            continue;
        if (only) {
            a.out[at * a.head_dim + e] = v / sum;
            continue;
        }
        at = at * a.n_pieces + piece;
        a.sums[at * a.head_dim + e] = v;
        if (e == 0)
            a.stats[at] = make_float2(max, sum);
    }
}

/* Weights of the pieces of one head, a warp a head: exp(max - all's max) / sum over all. n_pieces <= 64. */
PI_DEVICE void piece_weights(const float2 *stats, uint32_t n, float *weights)
{
    uint32_t lane = threadIdx.x % 32;
    float2 none = make_float2(-FLT_MAX, 0.0f);
    float2 x = lane < n ? __ldcg(stats + lane) : none;
    float2 y = lane + 32 < n ? __ldcg(stats + lane + 32) : none;
    float max = pi_warp_max(fmaxf(x.x, y.x));
    float wx = expf(x.x - max), wy = expf(y.x - max);
    float sum = pi_warp_sum(fmaf(wx, x.y, wy * y.y));

    weights[lane] = wx / sum;
    weights[lane + 32] = wy / sum;
}

/* The last block of a token's heads: pieces in order. */
PI_DEVICE void merge_pieces(const struct attn_args &a, uint32_t head, uint32_t n_heads, uint32_t n,
                            float (*weights)[MAX_PIECES])
{
    size_t first = (size_t)blockIdx.y * a.n_head + head;

    for (uint32_t h = threadIdx.x / 32; h < n_heads; h += ATTN_WARPS)
        piece_weights(a.stats + (first + h) * a.n_pieces, n, weights[h]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_heads * a.head_dim; i += blockDim.x) {
        uint32_t h = i / a.head_dim, e = i % a.head_dim;
        const float *p = a.sums + (first + h) * a.n_pieces * a.head_dim + e;
        float v = 0.0f;

#pragma unroll 8
        for (uint32_t k = 0; k < n; k++)
            v = fmaf(weights[h][k], __ldcg(p + (size_t)k * a.head_dim), v);
        a.out[first * a.head_dim + i] = v;
    }
}

/* True in all threads of the block that comes last of n; the ticket is zero again then. */
PI_DEVICE bool is_last(unsigned *ticket, unsigned n, unsigned *shared)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned before = atomicAdd(ticket, 1u);

        if (before == n - 1)
            *ticket = 0;
        *shared = before;
    }
    __syncthreads();
    __threadfence();
    return *shared == n - 1;
}

/* The pieces of a context of n positions: their length; *n_out: how many. */
PI_DEVICE uint32_t piece_length(uint32_t n, uint32_t most, uint32_t *n_out)
{
    uint32_t len = (n + most - 1) / most;

    len = (len + PIECE_STEP - 1) / PIECE_STEP * PIECE_STEP;
    *n_out = (n + len - 1) / len;
    return len;
}

/* All of a block's positions [begin, end). */
template <int T, int LP, int VPL, int GH>
PI_DEVICE void attend(const struct attn_args &a, const typename kv_type<T>::elem *k,
                      const typename kv_type<T>::elem *v, const float (&q)[GH][VPL * pi_wt<T>::E],
                      uint32_t begin, uint32_t end, struct soft<T, VPL, GH> *st)
{
    constexpr int U = VPL > 1 || GH > 2 ? 2 : 4;
    const uint32_t lane = threadIdx.x % LP, units = blockDim.x / LP;
    const size_t row = (size_t)a.n_head_kv * a.head_dim;
    const bool vec = a.head_dim % pi_wt<T>::E == 0;

    for (uint32_t at = begin; at < end; at += units * U) {
        struct pi_group<T> kg[U][VPL], vg[U][VPL];
        uint32_t p = at + threadIdx.x / LP;
        float s[GH][U];

#pragma unroll
        for (int u = 0; u < U; u++) {
            bool ok = p + u * units < end;
            size_t from = (size_t)(p + u * units) * row;

#pragma unroll
            for (int i = 0; i < VPL; i++)
                kg[u][i] = kv_load<T>(k + from, lane + LP * i, a.head_dim, vec, ok);
#pragma unroll
            for (int i = 0; i < VPL; i++)
                vg[u][i] = kv_load<T>(v + from, lane + LP * i, a.head_dim, vec, ok);
        }
        scores<T, LP, VPL, GH, U>(kg, q, s);
        take<T, VPL, GH, U>(st, s, vg, p, units, end);
    }
}

/* Before the wait: asks for the piece's first keys and values to come to the L2. The position is read while the kernels in front may still run, in the first layer even the
 * one that writes it, so it is no more than a guess: past the L1, and only used if it is in range. */
PI_DEVICE void prefetch_piece(const struct attn_args &a, uint32_t kv_head)
{
    const uint32_t t = blockIdx.y, pos = (uint32_t)__ldcg(&a.step->pos[t]);
    const uint32_t seq = __ldcg(&a.step->seq[t]), n_embd_kv = a.n_head_kv * a.head_dim;
    uint32_t n_pieces, p = threadIdx.x / 2;
    size_t row;

    if (!a.prefetch || pos >= a.n_ctx || seq >= a.n_seq || p >= PIECE_STEP)
        return;
    p += blockIdx.z * piece_length(pos + 1, a.n_pieces, &n_pieces);
    row = (((size_t)seq * a.n_ctx + p) * n_embd_kv + (size_t)kv_head * a.head_dim) * a.elem_bytes;
    if (p <= pos)
        pi_prefetch_l2((const char *)(threadIdx.x % 2 == 0 ? a.k : a.v) + row,
                       a.head_dim * a.elem_bytes);
}

/* A padding token's output: zeros. */
PI_DEVICE void zero_out(const struct attn_args &a, uint32_t head, uint32_t n_heads)
{
    float *out = a.out + ((size_t)blockIdx.y * a.n_head + head) * a.head_dim;

    for (uint32_t i = threadIdx.x; i < n_heads * a.head_dim; i += blockDim.x)
        out[i] = 0.0f;
}

/* Grid: (head groups, tokens, pieces). */
template <int T, int LP, int VPL, int GH>
__global__ static void __launch_bounds__(32 * ATTN_WARPS) attn_kernel(const struct attn_args a)
{
    typedef typename kv_type<T>::elem elem;
    constexpr int E = pi_wt<T>::E, N = VPL * E, W = LP * N;
    __shared__ struct block_sums<GH, W> block;
    __shared__ float weights[GH][MAX_PIECES];
    __shared__ unsigned last;
    const uint32_t kv_head = blockIdx.x / a.n_sub, sub = blockIdx.x % a.n_sub, t = blockIdx.y;
    const uint32_t head = kv_head * a.group + sub * GH, n_heads = min((uint32_t)GH, a.group - sub * GH);
    const uint32_t lane = threadIdx.x % LP, warp = threadIdx.x / 32;
    struct soft<T, VPL, GH> st;
    float q[GH][N];
    uint32_t n, len, n_pieces;
    size_t first;

    pi_pdl_trigger();
    prefetch_piece(a, kv_head);
    pi_pdl_wait();
    if (t >= a.step->n_tok) {
        if (blockIdx.z == 0)
            zero_out(a, head, n_heads);
        return;
    }
    n = (uint32_t)a.step->pos[t] + 1;
    len = piece_length(n, a.n_pieces, &n_pieces);
    if (blockIdx.z >= n_pieces)
        return;
    first = (size_t)a.step->seq[t] * a.n_ctx * a.n_head_kv * a.head_dim + (size_t)kv_head * a.head_dim;
#pragma unroll
    for (int h = 0; h < GH; h++) {
        const float *from = a.q + ((size_t)t * a.n_head + head + h) * a.head_dim;

        st.max[h] = -FLT_MAX;
        st.sum[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t e = (lane + LP * (i / E)) * E + i % E;

            q[h][i] = (uint32_t)h < n_heads && e < a.head_dim ? from[e] : 0.0f;
            st.v[h][i] = 0.0f;
        }
    }
    attend<T, LP, VPL, GH>(a, (const elem *)a.k + first, (const elem *)a.v + first, q,
                           blockIdx.z * len, min((blockIdx.z + 1) * len, n), &st);
    merge_groups<T, LP, VPL, GH>(&st);
#pragma unroll
    for (int h = 0; h < GH; h++) {
        if (threadIdx.x % 32 < LP) {
#pragma unroll
            for (int i = 0; i < N; i++)
                block.v[h][warp][(lane + LP * (i / E)) * E + i % E] = st.v[h][i];
            block.max[h][warp] = st.max[h];
            block.sum[h][warp] = st.sum[h];
        }
    }
    __syncthreads();
    merge_warps<GH, W>(a, block, head, n_heads, blockIdx.z, n_pieces == 1);
    if (n_pieces > 1 && is_last(a.tickets + t * gridDim.x + blockIdx.x, n_pieces, &last))
        merge_pieces(a, head, n_heads, n_pieces, weights);
}

/* ---- launch ---- */

template <int T, int LP, int VPL, int GH>
static void attn_launch(const struct attn_args &a, uint32_t n_tok, cudaStream_t stream)
{
    dim3 grid(a.n_head_kv * a.n_sub, n_tok, a.n_pieces);

    pi_k_prepare(attn_kernel<T, LP, VPL, GH>, 0);
    PI_LAUNCH_PDL((attn_kernel<T, LP, VPL, GH>), grid, 32 * ATTN_WARPS, 0, stream, a);
}

template <int T, int LP>
static void attn_heads(const struct attn_args &a, uint32_t heads, uint32_t n_tok, cudaStream_t s)
{
    if (heads == 1)
        attn_launch<T, LP, 1, 1>(a, n_tok, s);
    else if (heads == 2)
        attn_launch<T, LP, 1, 2>(a, n_tok, s);
    else
        attn_launch<T, LP, 1, 4>(a, n_tok, s);
}

template <int T>
static void attn_lanes(const struct attn_args &a, uint32_t heads, uint32_t n_tok, cudaStream_t s)
{
    uint32_t lanes = (a.head_dim + pi_wt<T>::E - 1) / pi_wt<T>::E;

    if (lanes <= 8)
        attn_heads<T, 8>(a, heads, n_tok, s);
    else if (lanes <= 16)
        attn_heads<T, 16>(a, heads, n_tok, s);
    else if (lanes <= 32)
        attn_heads<T, 32>(a, heads, n_tok, s);
    else if (lanes <= 64)
        attn_launch<T, 32, 2, 1>(a, n_tok, s);
    else
        attn_launch<T, 32, 4, 1>(a, n_tok, s);
}

extern "C" void pi_k_attn(const struct pi_shape *sh, enum pi_type kv_type, const float *q,
                          const void *k_cache, const void *v_cache, uint32_t n_ctx, uint32_t n_seq,
                          const struct pi_k_step *step, void *scratch, float *out, uint32_t n_tok,
                          void *stream)
{
    struct attn_args a = {};
    uint32_t heads;
    char *p = (char *)scratch;

    a.q = q;
    a.k = k_cache;
    a.v = v_cache;
    a.step = step;
    a.tickets = (unsigned *)p;
    a.stats = (float2 *)(p + tickets_bytes(sh));
    a.sums = (float *)(p + tickets_bytes(sh) + stats_bytes(sh, n_tok));
    a.out = out;
    a.n_head = sh->n_head;
    a.n_head_kv = sh->n_head_kv;
    a.head_dim = sh->head_dim;
    a.n_ctx = n_ctx;
    a.n_seq = n_seq;
    a.elem_bytes = kv_type == PI_TYPE_F16 ? 2 : 4;
    a.prefetch = sh->head_dim * a.elem_bytes % 16 == 0;
    a.group = sh->n_head / sh->n_head_kv;
    heads = heads_of_block(a.group, sh->head_dim, kv_type);
    a.n_sub = (a.group + heads - 1) / heads;
    a.n_pieces = pieces_of(sh, n_tok);
    if (kv_type == PI_TYPE_F16)
        attn_lanes<PI_TYPE_F16>(a, heads, n_tok, (cudaStream_t)stream);
    else
        attn_lanes<PI_TYPE_F32>(a, heads, n_tok, (cudaStream_t)stream);
}
