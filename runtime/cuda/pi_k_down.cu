/*
 * pi_k_down.cu - the down projection: rows of down_t of the neurons of a set, times what the neurons gave, added up.
 *
 * Neurons are cut into windows, by their index and the layer's shape alone, and columns into tiles of 256. In a window a token's members, those that gave it something (all in dense mode),
 * are dealt out to streams by their number among themselves. Each stream adds its rows up, streams are added in order, then windows: first those of a range (PI_K_PART_RANGES), then ranges,
 * by pi_k_merge(). Order and place of every addend depend on what the token itself wants: a sum has the bits that it has in a step of the token's own.
 *
 * One token, or all neurons: a block has a window and a tile, its warps (or parts of them, where 16 bytes hold so many columns that fewer lanes span the tile) are the streams, and up to 8
 * tokens share the rows. Of sparse steps of several tokens a warp has one token, tile and window, and takes stream after stream: it reads no row that its token does not want, and nothing
 * is exchanged; tokens that want the same row find it in the caches, since they are in the same block or in neighbouring ones.
 */
#include "config.h"

#include "runtime/cuda/pi_k_ffn.cuh"
#include "runtime/cuda/pi_kernels.h"

#define TILE  256 /* columns of a block */
#define BATCH 256 /* members looked at at a time: one for each thread */
/* Blocks that fill a large device with one token, which takes few registers: four for each of 132 multiprocessors; twice that where the set is short, so that a block's
 * rows are all on the way at the same time. */
#define BLOCKS  528
#define MEMBERS 16 /* neurons that make a window worth its partial sum */
#define WINDOWS 64 /* at most */
#define EACH_WARPS 4 /* tokens of a block of ffn_down_each() */

/* What a lane has of a row: columns of them, in quads of four. One token: whole vectors of 16 bytes. More: 8 columns, so that the sums of all tokens fit into
 * registers. */
template <int T, int NT> struct lane_piece {
    static constexpr int columns = NT == 1 && pi_wt<T>::E > 8 ? pi_wt<T>::E : 8;
    static constexpr int quads = columns / 4;
    static constexpr int lanes = TILE / columns; /* of a stream */
    static constexpr int streams = PI_FFN_WARPS * 32 / lanes;
    static constexpr int of_sums = NT == 1 ? streams : lane_piece<T, 1>::streams; /* that sums are made of */
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

/* acc += h * the piece */
template <int T, int NT>
static __device__ void piece_fma(const struct lane_piece<T, NT> &p, float h,
                                 float4 (&acc)[lane_piece<T, NT>::quads])
{
#pragma unroll
    for (int q = 0; q < lane_piece<T, NT>::quads; q++) {
        const struct pi_group<T> &g = p.g[T == PI_TYPE_F32 ? q : 0];
        const float4 w = pi_group_f4<T>(g, quad_of_group<T, NT>(q));
        const float s = pi_wt<T>::per_scale > 0 ? h * pi_group_scale<T>(g) : h;
        float4 &a = acc[q];

        a.x = fmaf(s, w.x, a.x);
        a.y = fmaf(s, w.y, a.y);
        a.z = fmaf(s, w.z, a.z);
        a.w = fmaf(s, w.w, a.w);
    }
}

struct down_args {
    struct pi_rows w;
    const float *h; /* (n_tok, n_hot) */
    const uint32_t *marks;
    float *parts; /* (gridDim.y, n_tok, n_embd) */
    uint32_t n_hot, n_embd, n_tok;
    uint32_t n_windows;
    uint32_t most; /* neurons of a window */
    bool dense;
};

/* First neuron of a window. */
static __host__ __device__ uint32_t window_begin(const struct down_args &a, uint32_t window)
{
    return a.n_hot * window / a.n_windows; /* windows are few */
}

/* First window of a block. */
static __device__ uint32_t first_window(const struct down_args &a, uint32_t block)
{
    return a.n_windows * block / gridDim.y;
}

/* ---- one token, or all neurons ---- */

/* Members that count, in order. */
template <int NT> struct members {
    uint32_t local[BATCH];
    float h[BATCH][NT];
    uint32_t warp[PI_FFN_WARPS];
};

/* Neurons [begin, end), at most BATCH of them: those that count to m, in order. Returns how many. */
template <int NT>
static __device__ uint32_t gather(const struct down_args &a, uint32_t t0, uint32_t begin,
                                  uint32_t end, struct members<NT> *m)
{
    const uint32_t i = begin + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t bits, at = 0, total = 0;
    float h[NT] = {};
    bool counts = false;

    if (i < end) {
        if (!a.dense) /* of one token: marks are bits */
            counts = (a.marks[i / 32] >> i % 32 & 1) != 0;
#pragma unroll
        for (int t = 0; t < NT; t++) {
            if (t0 + t < a.n_tok)
                h[t] = a.h[(size_t)(t0 + t) * a.n_hot + i];
        }
        counts = a.dense || (counts && h[0] != 0.0f);
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
        m->local[at] = i;
#pragma unroll
        for (int t = 0; t < NT; t++)
            m->h[at][t] = h[t];
    }
    __syncthreads();
    return total;
}

/* The share of one stream of n members, of which so many came before in the window. */
template <int T, int NT>
static __device__ void add_members(const struct down_args &a, const struct members<NT> &m,
                                   uint32_t n, uint32_t before, uint32_t stream, uint32_t tile0,
                                   float4 (&acc)[NT][lane_piece<T, NT>::quads])
{
    constexpr uint32_t STREAMS = lane_piece<T, NT>::of_sums, ROWS = lane_piece<T, NT>::rows;

    for (uint32_t base = (stream + STREAMS - before % STREAMS) % STREAMS; base < n;
         base += STREAMS * ROWS) {
        struct lane_piece<T, NT> p[ROWS];

#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t k = base + r * STREAMS;
            const char *row = a.w.data + (k < n ? m.local[k] : 0) * a.w.row_bytes;

            p[r] = piece_load<T, NT>(row, a.n_embd, tile0, k < n);
        }
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t k = base + r * STREAMS;

#pragma unroll
            for (int t = 0; t < NT && k < n; t++)
                piece_fma<T, NT>(p[r], m.h[k][t], acc[t]);
        }
    }
}

/* Adds up a column's sums of one token over the streams of the block. sums: (streams, TILE). */
template <int T, int NT>
static __device__ void add_streams(const float4 (&acc)[lane_piece<T, NT>::quads], float *sums,
                                   float *sum)
{
    constexpr int streams = lane_piece<T, NT>::streams;
    const uint32_t stream = threadIdx.x / lane_piece<T, NT>::lanes;

    __syncthreads(); /* what lay there is read */
#pragma unroll
    for (int q = 0; q < lane_piece<T, NT>::quads; q++)
        *reinterpret_cast<float4 *>(sums + stream * TILE + quad_column<T, NT>(q)) = acc[q];
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < streams; i++)
        *sum += sums[i * TILE + threadIdx.x];
}

/* What a block has in shared memory. */
template <int T, int NT> union down_shared {
    struct members<NT> members;
    float4 sums[lane_piece<T, NT>::streams * TILE / 4];
};

/* A window: sum[t] of the thread's column. Where a warp holds fewer streams than one token has, they are taken in turns. */
template <int T, int NT>
static __device__ void add_window(const struct down_args &a, uint32_t window, uint32_t t0,
                                  uint32_t tile0, union down_shared<T, NT> *s, float (&sum)[NT])
{
    constexpr int STREAMS = lane_piece<T, NT>::streams;

#pragma unroll 1
    for (uint32_t first = 0; first < lane_piece<T, NT>::of_sums; first += STREAMS) {
        const uint32_t stream = first + threadIdx.x / lane_piece<T, NT>::lanes;
        uint32_t begin = window_begin(a, window), end = window_begin(a, window + 1), before = 0;
        float4 acc[NT][lane_piece<T, NT>::quads] = {};

        for (; begin < end; begin += BATCH) {
            uint32_t count;

            if (NT > 1)
                __syncthreads(); /* sums of before are read */
            count = gather<NT>(a, t0, begin, min(end, begin + BATCH), &s->members);
            add_members<T, NT>(a, s->members, count, before, stream, tile0, acc);
            before += count;
            __syncthreads(); /* members are gathered again */
        }
#pragma unroll
        for (int t = 0; t < NT; t++)
            add_streams<T, NT>(acc[t], reinterpret_cast<float *>(s->sums), &sum[t]);
    }
}

/* Grid (tiles, ranges of windows, groups of tokens). */
template <int T, int NT>
static __global__ void __launch_bounds__(PI_FFN_THREADS, NT == 1 ? 4 : 2)
    ffn_down(struct down_args a)
{
    __shared__ union down_shared<T, NT> s;
    const uint32_t tile0 = blockIdx.x * TILE, t0 = blockIdx.z * NT, column = tile0 + threadIdx.x;
    const uint32_t first = first_window(a, blockIdx.y), end = first_window(a, blockIdx.y + 1);
    float sum[NT] = {};

    pi_pdl_trigger();
    pi_pdl_wait();
    if (NT == 1) {
        add_window<T, NT>(a, first, t0, tile0, &s, sum);
    } else {
#pragma unroll 1
        for (uint32_t window = first; window < end; window++) {
            float own[NT] = {};

            add_window<T, NT>(a, window, t0, tile0, &s, own);
#pragma unroll
            for (int t = 0; t < NT; t++)
                sum[t] += own[t];
        }
    }
    if (column >= a.n_embd)
        return;
#pragma unroll
    for (int t = 0; t < NT; t++) {
        if (t0 + t < a.n_tok)
            a.parts[((size_t)blockIdx.y * a.n_tok + t0 + t) * a.n_embd + column] = sum[t];
    }
}

/* ---- several tokens, each with its own neurons ---- */

struct member {
    uint32_t local;
    float h;
};

/* A warp: its token's members of a window to m, in order. Returns how many. */
static __device__ uint32_t gather_own(const struct down_args &a, uint32_t t, uint32_t window,
                                      struct member *m)
{
    const uint32_t end = window_begin(a, window + 1), lane = threadIdx.x;
    const float *h = a.h + (size_t)t * a.n_hot;
    uint32_t n = 0;

    __syncwarp(); /* what lay there is read */
#pragma unroll 4
    for (uint32_t base = window_begin(a, window); base < end; base += 32) {
        const uint32_t i = base + lane, mark = i < end ? a.marks[i] : 0;
        const float v = i < end ? h[i] : 0.0f; /* of a neuron that is not in the set: anything */
        const bool counts = (mark >> t & 1) != 0 && v != 0.0f;
        const uint32_t bits = __ballot_sync(~0u, counts);

        if (counts)
            m[n + (uint32_t)__popc(bits & ((1u << lane) - 1u))] = {i, v};
        n += (uint32_t)__popc(bits);
    }
    __syncwarp();
    return n;
}

/* A warp's walk over n members, stream after stream. */
struct own_walk {
    uint32_t stream, k;
};

template <int STREAMS> static __device__ void walk_on(struct own_walk *w, uint32_t n)
{
    w->k += STREAMS;
    if (w->k >= n)
        w->k = ++w->stream;
}

template <int N> static __device__ void add_and_clear(float4 (&sum)[N], float4 (&acc)[1][N])
{
#pragma unroll
    for (int q = 0; q < N; q++) {
        sum[q].x += acc[0][q].x;
        sum[q].y += acc[0][q].y;
        sum[q].z += acc[0][q].z;
        sum[q].w += acc[0][q].w;
        acc[0][q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* sum += the window's members, in the order that add_window() has. */
template <int T>
static __device__ void add_own(const struct down_args &a, const struct member *m, uint32_t n,
                               uint32_t tile0, float4 (&sum)[lane_piece<T, 2>::quads])
{
    constexpr int ROWS = lane_piece<T, 2>::rows, STREAMS = lane_piece<T, 2>::of_sums;
    const uint32_t last = min(n, (uint32_t)STREAMS);
    float4 acc[1][lane_piece<T, 2>::quads] = {};
    struct own_walk at = {0, 0};

    while (at.stream < last) {
        struct lane_piece<T, 2> p[ROWS];
        struct own_walk next = at;

#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool ok = next.stream < last;
            const char *row = a.w.data + (ok ? m[next.k].local : 0) * a.w.row_bytes;

            p[r] = piece_load<T, 2>(row, a.n_embd, tile0, ok);
            walk_on<STREAMS>(&next, n);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (at.stream < last) {
                if (at.k == at.stream) /* its first */
                    add_and_clear(sum, acc);
                piece_fma<T, 2>(p[r], m[at.k].h, acc[0]);
            }
            walk_on<STREAMS>(&at, n);
        }
    }
    add_and_clear(sum, acc);
}

/* Blocks (32, tokens); grid (tiles * groups of tokens, ranges of windows). Neighbouring blocks have the same rows. */
template <int T>
static __global__ void __launch_bounds__(32 * EACH_WARPS, 4) ffn_down_each(struct down_args a)
{
    PI_DYN_SHARED(struct member, memory);
    constexpr int quads = lane_piece<T, 2>::quads;
    const uint32_t n_groups = (a.n_tok + blockDim.y - 1) / blockDim.y;
    const uint32_t tile0 = blockIdx.x / n_groups * TILE;
    const uint32_t t = blockIdx.x % n_groups * blockDim.y + threadIdx.y;
    const uint32_t first = first_window(a, blockIdx.y), end = first_window(a, blockIdx.y + 1);
    struct member *m = memory + (size_t)threadIdx.y * a.most;
    float4 sum[quads] = {};

    pi_pdl_trigger();
    pi_pdl_wait();
    if (t >= a.n_tok)
        return;
#pragma unroll 1
    for (uint32_t window = first; window < end; window++) {
        const uint32_t n = gather_own(a, t, window, m);
        float4 own[1][quads] = {};

        add_own<T>(a, m, n, tile0, own[0]);
        add_and_clear(sum, own);
    }
#pragma unroll
    for (int q = 0; q < quads; q++) {
        const uint32_t column = tile0 + quad_column<T, 2>(q);
        float *to = a.parts + ((size_t)blockIdx.y * a.n_tok + t) * a.n_embd + column;

        if (column < a.n_embd)
            to[0] = sum[q].x;
        if (column + 1 < a.n_embd)
            to[1] = sum[q].y;
        if (column + 2 < a.n_embd)
            to[2] = sum[q].z;
        if (column + 3 < a.n_embd)
            to[3] = sum[q].w;
    }
}

/* ---- launching ---- */

/* Windows of a layer: as many as one token has blocks for. */
static uint32_t windows_of(bool dense, uint32_t n_hot, uint32_t n_embd)
{
    const uint32_t tiles = (n_embd + TILE - 1) / TILE, most = dense ? BLOCKS : 2 * BLOCKS;
    /* at most so many in all: dense, one more would come in a second wave and take as long as all others */
    uint32_t n = tiles < most ? most / tiles : 1, useful = n_hot / MEMBERS;

    if (useful < 1)
        useful = 1;
    if (n > WINDOWS)
        n = WINDOWS;
    return n < useful ? n : useful;
}

extern "C" uint32_t pi_k_down_parts(enum pi_k_ffn_kind kind, uint32_t n_hot, uint32_t n_embd,
                                    uint32_t n_tok)
{
    const bool dense = kind == PI_K_FFN_DENSE;
    const uint32_t n = n_hot > 0 ? windows_of(dense, n_hot, n_embd) : 0;

    /* tokens make blocks too: with many, a block has a whole range of windows */
    return n_tok <= (dense ? 1 : 4) || n < PI_K_PART_RANGES ? n : PI_K_PART_RANGES;
}

template <int T, int NT>
static void launch_down(const struct down_args &a, uint32_t n_parts, void *stream)
{
    const dim3 grid((a.n_embd + TILE - 1) / TILE, n_parts, (a.n_tok + NT - 1) / NT);

    PI_LAUNCH_PDL((ffn_down<T, NT>), grid, PI_FFN_THREADS, 0, (cudaStream_t)stream, a);
}

template <int T>
static void launch_each(struct down_args *a, uint32_t n_parts, void *stream)
{
    uint32_t n_warps = a->n_tok < EACH_WARPS ? a->n_tok : EACH_WARPS;
    size_t bytes;

    a->most = (a->n_hot + a->n_windows - 1) / a->n_windows;
    bytes = a->most * sizeof(struct member);
    while (n_warps > 1 && n_warps * bytes > 49152)
        n_warps /= 2;
    pi_k_prepare(ffn_down_each<T>, n_warps * bytes);
    PI_LAUNCH_PDL((ffn_down_each<T>),
                  dim3((a->n_embd + TILE - 1) / TILE * ((a->n_tok + n_warps - 1) / n_warps), n_parts),
                  dim3(32, n_warps), n_warps * bytes, (cudaStream_t)stream, *a);
}

extern "C" void pi_k_ffn_down(const struct pi_dev_layer *layer, enum pi_k_ffn_kind kind,
                              const float *h, const struct pi_k_set *set, float *parts,
                              uint32_t n_tok, uint32_t n_embd, void *stream)
{
    const uint32_t n_parts = pi_k_down_parts(kind, layer->n_hot, n_embd, n_tok);
    struct down_args a = {};

    if (layer->n_hot == 0)
        return;
    a.w = pi_rows_of(&layer->down_t);
    a.h = h;
    a.marks = set->marks;
    a.parts = parts;
    a.n_hot = layer->n_hot;
    a.n_embd = n_embd;
    a.n_tok = n_tok;
    a.dense = kind == PI_K_FFN_DENSE;
    a.n_windows = windows_of(a.dense, a.n_hot, n_embd);
    if (!a.dense && n_tok > 1) {
#define EACH(T) launch_each<T>(&a, n_parts, stream)
        PI_BY_TYPE(layer->down_t.type, EACH);
#undef EACH
        return;
    }
#define DOWN(T)                                                        \
    PI_BY_TOKENS(n_tok, (launch_down<T, 1>(a, n_parts, stream)),       \
                 (launch_down<T, 2>(a, n_parts, stream)),              \
                 (launch_down<T, 4>(a, n_parts, stream)),              \
                 (launch_down<T, 8>(a, n_parts, stream)))
    PI_BY_TYPE(layer->down_t.type, DOWN);
#undef DOWN
}
