/*
 * pi_k_down.cu - the down projection: rows of down_t of the neurons of a set, times what the neurons gave, added up.
 *
 * A block has a tile of 256 columns and a slice of the set. It keeps the slice's members that gave something to some token (all in dense mode), in their order, and deals their
 * rows out to streams: a warp, or a part of one where 16 bytes hold so many columns that fewer lanes span the tile. Each stream adds its rows up, then streams are added in
 * order: a partial sum per slice. Order and place of every addend depend on the set and what its members gave alone.
 */
#include "config.h"

#include "runtime/cuda/pi_k_ffn.cuh"
#include "runtime/cuda/pi_kernels.h"

#define TILE  256 /* columns of a block */
#define BATCH 256 /* members looked at at a time: one for each thread */
/* Blocks that fill a large device: two for each of 132 multiprocessors. Twice as many with one token, which takes few registers; and twice that where
 * the set is short, so that a block's rows are all on the way at the same time. */
#define BLOCKS  264
#define MEMBERS 16 /* neurons that make a slice worth its partial sum */

/* What a lane has of a row: columns of them, in quads of four. One token: whole vectors of 16 bytes. More: 8 columns, so that the sums of all tokens fit into
 * registers. */
template <int T, int NT> struct lane_piece {
    static constexpr int columns = NT == 1 && pi_wt<T>::E > 8 ? pi_wt<T>::E : 8;
    static constexpr int quads = columns / 4;
    static constexpr int lanes = TILE / columns; /* of a stream */
    static constexpr int streams = PI_FFN_WARPS * 32 / lanes;
    static constexpr int groups = T == PI_TYPE_F32 ? 2 : 1;
    /* rows of a stream on the way at the same time */
    static constexpr int rows = T == PI_TYPE_F32 || columns > 8 ? 4 : 8;

    struct pi_group<T> g[groups];
};

/* First column, in the tile, of a lane's quad. */
template <int T, int NT> static __device__ uint32_t quad_column(int quad)
{
    const uint32_t lane = threadIdx.x % lane_piece<T, NT>::lanes;

    if constexpr (T == PI_TYPE_F32)
        return 4 * lane + 128 * quad;
    else if constexpr (T == PI_TYPE_Q4_0 && lane_piece<T, NT>::columns == 8)
        return lane / 4 * 32 + lane % 4 * 4 + 16 * quad; /* low nibbles, high nibbles of 4 bytes */
    else
        return lane_piece<T, NT>::columns * lane + 4 * quad;
}

/* Number of a quad among those of pi_group_f4(). */
template <int T, int NT> static __device__ constexpr int quad_of_group(int quad)
{
    return T == PI_TYPE_F32                                       ? 0
           : T == PI_TYPE_Q4_0 && lane_piece<T, NT>::columns == 8 ? 4 * quad
                                                                  : quad;
}

/* Loads the calling lane's columns, the tile's first one being tile0, of a row of n columns; zeros where not ok. */
template <int T, int NT>
static __device__ struct lane_piece<T, NT> piece_load(const char *row, uint32_t n, uint32_t tile0,
                                                      bool ok) {
    constexpr int E = pi_wt<T>::E, columns = lane_piece<T, NT>::columns;
    const uint32_t n_groups = pi_groups<T>(n);
    struct lane_piece<T, NT> p;

    if constexpr (T == PI_TYPE_F32 || columns == E) {
#pragma unroll
        for (int i = 0; i < lane_piece<T, NT>::groups; i++)
            p.g[i] = pi_group_load<T>(row, n_groups, (tile0 + quad_column<T, NT>(i)) / E,
                                      ok && tile0 + quad_column<T, NT>(i) < n);
    } else { /* half or a quarter of a group: 8 bytes of Q8_0, 4 of Q4_0 */
        const uint32_t lane = threadIdx.x % 32, column = tile0 + quad_column<T, NT>(0);

        p.g[0].v = make_uint4(0, 0, 0, 0);
        p.g[0].scale = 0;
        if (ok && column < n) {
            if constexpr (T == PI_TYPE_Q8_0) {
                uint2 v = __ldcs(reinterpret_cast<const uint2 *>(row + tile0) + lane);

                p.g[0].v.x = v.x, p.g[0].v.y = v.y;
            } else {
                p.g[0].v.x = __ldcs(reinterpret_cast<const unsigned *>(row + tile0 / 2) + lane);
            }
            p.g[0].scale =
                __ldg(reinterpret_cast<const unsigned short *>(row + (size_t)n_groups * 16) +
                      column / 32);
        }
    }
    return p;
}

/* acc[t] += h[t] * the piece */
template <int T, int NT>
static __device__ void piece_add(const struct lane_piece<T, NT> &p, const float *h,
                                 float4 (&acc)[NT][lane_piece<T, NT>::quads])
{
#pragma unroll
    for (int t = 0; t < NT; t++) {
#pragma unroll
        for (int q = 0; q < lane_piece<T, NT>::quads; q++) {
            const struct pi_group<T> &g = p.g[T == PI_TYPE_F32 ? q : 0];
            const float4 w = pi_group_f4<T>(g, quad_of_group<T, NT>(q));
            const float s = pi_wt<T>::per_scale > 0 ? h[t] * pi_group_scale<T>(g) : h[t];
            float4 &a = acc[t][q];

            a.x = fmaf(s, w.x, a.x);
            a.y = fmaf(s, w.y, a.y);
            a.z = fmaf(s, w.z, a.z);
            a.w = fmaf(s, w.w, a.w);
        }
    }
}

struct down_args {
    struct pi_rows w;
    const float *h; /* (n_tok, n_hot) */
    struct pi_k_set set;
    float *parts; /* (n_parts, n_tok, n_embd) */
    uint32_t n_hot, n_embd, n_tok;
    bool dense;
};

/* Members that count, in order. */
template <int NT> struct members {
    uint32_t local[BATCH];
    float h[BATCH][NT];
    uint32_t warp[PI_FFN_WARPS];
};

/* Positions [begin, end), at most BATCH of them: those that count to m, in order. Returns how many. */
template <int NT>
static __device__ uint32_t gather(const struct down_args &a, uint32_t t0, uint32_t begin,
                                  uint32_t end, struct members<NT> *m)
{
    const uint32_t i = begin + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t local = i, bits, at = 0, total = 0;
    float h[NT] = {};
    bool counts = false;

    if (i < end) {
        if (!a.dense)
            local = a.set.local[i];
#pragma unroll
        for (int t = 0; t < NT; t++) {
            if (t0 + t < a.n_tok)
                h[t] = a.h[(size_t)(t0 + t) * a.n_hot + i];
            counts |= h[t] != 0.0f;
        }
        counts |= a.dense;
    }
    bits = __ballot_sync(~0u, counts);
    if (lane == 0)
        m->warp[warp] = (uint32_t)__popc(bits);
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < PI_FFN_WARPS; w++) {
        at += w < warp ? m->warp[w] : 0;
        total += m->warp[w];
    }
    at += (uint32_t)__popc(bits & ((1u << lane) - 1u));
    if (counts) {
        m->local[at] = local;
#pragma unroll
        for (int t = 0; t < NT; t++)
            m->h[at][t] = h[t];
    }
    __syncthreads();
    return total;
}

/* The calling stream's share of n members. */
template <int T, int NT>
static __device__ void add_members(const struct down_args &a, const struct members<NT> &m,
                                   uint32_t n, uint32_t tile0,
                                   float4 (&acc)[NT][lane_piece<T, NT>::quads])
{
    constexpr uint32_t lanes = lane_piece<T, NT>::lanes, streams = lane_piece<T, NT>::streams;
    constexpr uint32_t ROWS = lane_piece<T, NT>::rows;
    const uint32_t first = threadIdx.x / 32 * (32 / lanes), own = threadIdx.x % 32 / lanes;

    for (uint32_t base = first; base < n; base += streams * ROWS) {
        struct lane_piece<T, NT> p[ROWS];

#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t k = base + own + r * streams;
            const char *row = a.w.data + (k < n ? m.local[k] : 0) * a.w.row_bytes;

            p[r] = piece_load<T, NT>(row, a.n_embd, tile0, k < n);
        }
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t k = base + own + r * streams;

            if (k < n)
                piece_add<T, NT>(p[r], m.h[k], acc);
        }
    }
}

/* Sums of one token over all streams to its place; the block. sums: (streams, TILE). */
template <int T, int NT>
static __device__ void store_token(const struct down_args &a, uint32_t t, uint32_t tile0,
                                   const float4 (&acc)[lane_piece<T, NT>::quads], float *sums)
{
    constexpr int streams = lane_piece<T, NT>::streams;
    const uint32_t stream = threadIdx.x / lane_piece<T, NT>::lanes, column = tile0 + threadIdx.x;
    float sum = 0.0f;

    __syncthreads(); /* what lay there is read */
#pragma unroll
    for (int q = 0; q < lane_piece<T, NT>::quads; q++)
        *reinterpret_cast<float4 *>(sums + stream * TILE + quad_column<T, NT>(q)) = acc[q];
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < streams; i++)
        sum += sums[i * TILE + threadIdx.x];
    if (column < a.n_embd && t < a.n_tok)
        a.parts[((size_t)blockIdx.y * a.n_tok + t) * a.n_embd + column] = sum;
}

/* Grid (tiles, slices, groups of tokens). */
template <int T, int NT>
static __global__ void __launch_bounds__(PI_FFN_THREADS, NT == 1 ? 4 : 2)
    ffn_down(struct down_args a)
{
    __shared__ union shared {
        struct members<NT> members;
        float4 sums[lane_piece<T, NT>::streams * TILE / 4];
    } s;
    const uint32_t tile0 = blockIdx.x * TILE, t0 = blockIdx.z * NT;
    float4 acc[NT][lane_piece<T, NT>::quads] = {};
    uint32_t n, begin, end;

    pi_pdl_trigger();
    pi_pdl_wait();
    n = a.dense ? a.n_hot : *a.set.n;
    begin = (uint32_t)((uint64_t)n * blockIdx.y / gridDim.y);
    end = (uint32_t)((uint64_t)n * (blockIdx.y + 1) / gridDim.y);
    for (; begin < end; begin += BATCH) {
        uint32_t count = gather<NT>(a, t0, begin, min(end, begin + BATCH), &s.members);

        add_members<T, NT>(a, s.members, count, tile0, acc);
        __syncthreads(); /* members are gathered again */
    }
#pragma unroll
    for (int t = 0; t < NT; t++)
        store_token<T, NT>(a, t0 + t, tile0, acc[t], reinterpret_cast<float *>(s.sums));
}

/* ---- launching ---- */

extern "C" uint32_t pi_k_down_parts(enum pi_k_ffn_kind kind, uint32_t n_hot, uint32_t n_embd,
                                    uint32_t n_tok)
{
    const uint32_t tiles = (n_embd + TILE - 1) / TILE;
    const uint32_t blocks = tiles * ((n_tok + PI_FFN_TOKENS - 1) / PI_FFN_TOKENS);
    const uint32_t most = n_tok > 1                  ? BLOCKS
                          : kind == PI_K_FFN_DENSE ? 2 * BLOCKS
                                                   : 4 * BLOCKS;
    /* at most so many in all: dense, one more would come in a second wave and take as long as all others */
    uint32_t parts = blocks < most ? most / blocks : 1, useful = n_hot / MEMBERS;

    if (n_hot == 0)
        return 0;
    if (useful < 1)
        useful = 1;
    if (parts > 64)
        parts = 64;
    return parts < useful ? parts : useful;
}

template <int T, int NT>
static void launch_down(const struct down_args &a, enum pi_k_ffn_kind kind, void *stream)
{
    const dim3 grid((a.n_embd + TILE - 1) / TILE, pi_k_down_parts(kind, a.n_hot, a.n_embd, a.n_tok),
                    (a.n_tok + NT - 1) / NT);

    PI_LAUNCH_PDL((ffn_down<T, NT>), grid, PI_FFN_THREADS, 0, (cudaStream_t)stream, a);
}

extern "C" void pi_k_ffn_down(const struct pi_dev_layer *layer, enum pi_k_ffn_kind kind,
                              const float *h, const struct pi_k_set *set, float *parts,
                              uint32_t n_tok, uint32_t n_embd, void *stream)
{
    struct down_args a = {};

    if (layer->n_hot == 0)
        return;
    a.w = pi_rows_of(&layer->down_t);
    a.h = h;
    a.set = *set;
    a.parts = parts;
    a.n_hot = layer->n_hot;
    a.n_embd = n_embd;
    a.n_tok = n_tok;
    a.dense = kind == PI_K_FFN_DENSE;
#define DOWN(T)                                                                         \
    PI_BY_TOKENS(n_tok, (launch_down<T, 1>(a, kind, stream)), (launch_down<T, 2>(a, kind, stream)), \
                 (launch_down<T, 4>(a, kind, stream)), (launch_down<T, 8>(a, kind, stream)))
    PI_BY_TYPE(layer->down_t.type, DOWN);
#undef DOWN
}
