/*
 * pi_k_mat.cu - products of a matrix with the vectors of a few tokens: q, k and v with norm, rotation and cache in one kernel; the output projection; the
 * predictor's first layer; the logits.
 *
 * Decoding is as fast as weights can be read, so everything here is about reading without a pause:
 * - one block of 16 warps an SM stays for the whole matrix; a warp has 8 loads of 16 bytes in flight in each lane, issued before the sums of the
 *   loads before them are reduced, so that 64 KB an SM are under way (bandwidth times latency of an H200 is 26 KB an SM);
 * - the first loads are issued before pi_pdl_wait(), and some megabytes more are asked for in the L2: weights do not depend on the kernel before, so
 *   where programmatic dependent launch works, they come while that one ends, and launch, norm and staging are hidden behind them. Two such
 *   kernels fit on an SM at a time (one token);
 * - columns of an item of 4 rows are cut into slices, one a warp, which meet in shared memory at the end of a round of many items;
 *   thousands of rows or hundreds of them keep all warps busy alike;
 * - vectors lie in shared memory as floats, 4 rows use a vector's element read once.
 * Sets of tokens (8 at most) that do not fit into one block's work are worked on by neighbouring blocks, which find the weights in the L2.
 */
#include "config.h"

#include "runtime/cuda/pi_k_mat.h"

#include "runtime/cuda/pi_k_mat.cuh"

#define NOMINAL_SMS   128             /* geometry must not hang on the device: sums would */
#define ROUND_BYTES   ((size_t)16384) /* of the sums that a round keeps */
#define PLAIN_SHARED  ((size_t)49152)

/* Chunks that a warp loads at a time: as many as registers hold without spilling (80 a thread for two blocks an SM, 168 for one). */
template <int T, int NT> struct mat_unroll {
    static constexpr bool quantised = pi_wt<T>::per_scale > 0;
    static constexpr int U = quantised && NT == 8 ? 1 : 2;
    static constexpr int blocks = NT == 1 && T != PI_TYPE_Q4_0 ? 2 : 1;
    /* Q4_0 would take all registers of an SM if it were let */
    static constexpr int threads = NT == 1 && T == PI_TYPE_Q4_0 ? 512 : 32 * MAT_WARPS;
};

/* Chunk that a tile begins at. */
PI_DEVICE uint32_t tile_begin(const struct mat_args &a, uint32_t tile)
{
    uint32_t chunks = (a.n_groups + 31) / 32;

    if (a.n_tiles == 1)
        return tile * chunks;
    return (uint32_t)((uint64_t)chunks * tile / a.n_tiles);
}

/* Where a warp is: an item and a tile of the columns, and in it the lane's groups [g, end), of which the first are loaded. */
template <int T, int U> struct mat_pos {
    uint32_t slice, own; /* the warp's columns and its first item of a round */
    uint32_t item, tile, begin, g, end;
    struct mat_rows rows;
    struct pi_batch<T, MAT_R, U> batch;
};

template <int T, int U> PI_DEVICE void fetch(const struct mat_args &a, struct mat_pos<T, U> *at)
{
    const char *row[MAT_R];

#pragma unroll
    for (int r = 0; r < MAT_R; r++)
        row[r] = at->rows.base + (size_t)at->rows.at[r] * 16;
    pi_batch_load<T, MAT_R, U>(&at->batch, row, a.n_groups, at->g, at->end);
}

/* The warp's columns of a tile. */
template <int T, int U>
PI_DEVICE void enter_tile(const struct mat_args &a, uint32_t tile, struct mat_pos<T, U> *at)
{
    uint32_t first = tile_begin(a, tile), n = tile_begin(a, tile + 1) - first;

    at->tile = tile;
    at->begin = (first + n * at->slice / a.n_slices) * 32 + threadIdx.x % 32;
    at->end = min((first + n * (at->slice + 1) / a.n_slices) * 32, a.n_groups);
}

template <int T, int U>
PI_DEVICE void enter_item(const struct mat_args &a, uint32_t item, struct mat_pos<T, U> *at)
{
    at->item = item;
    at->g = at->begin;
    mat_item_rows(a, item, &at->rows);
    fetch<T, U>(a, at);
}

/* A block's shared memory: NT vectors of a tile, sums of two rounds, sums of the norm. */
template <int T, int NT> struct mat_shared {
    uint32_t groups, plane; /* of the largest tile */
    float4 *xs;
    float *sums;
    struct mat_sums<NT> *norm; /* 2 of them */
};

static __host__ __device__ uint32_t tile_groups(uint32_t n_groups, uint32_t n_tiles)
{
    return ((n_groups + 31) / 32 + n_tiles - 1) / n_tiles * 32;
}

template <int T, int NT>
PI_DEVICE struct mat_shared<T, NT> shared_of(const struct mat_args &a, float4 *p)
{
    struct mat_shared<T, NT> s;

    s.groups = tile_groups(a.n_groups, a.n_tiles);
    s.plane = pi_x_plane<T>(s.groups);
    s.xs = p;
    s.norm = (struct mat_sums<NT> *)(p + (size_t)NT * pi_wt<T>::P * s.plane);
    s.sums = (float *)(s.norm + 2);
    return s;
}

/* Stages a tile; the first time, norm statistics too. Synchronises before (not the first time) and after. */
template <int T, int NT>
PI_DEVICE void next_tile(const struct mat_args &a, const struct mat_shared<T, NT> &s,
                         const int (&src)[NT], uint32_t tile, bool first_round,
                         struct mat_stats<NT> *st)
{
    uint32_t begin = tile_begin(a, tile), n = tile_begin(a, tile + 1) - begin;
    float squares[NT] = {};

    if (!first_round || tile > 0)
        __syncthreads();
    else if (a.norm.w != NULL && a.norm.layer_norm)
        mat_layer_stats<NT>(a, src, s.norm, st);
    mat_stage<T, NT>(a, src, *st, begin * 32 * pi_wt<T>::P, n * 32 * pi_wt<T>::P, s.xs, s.plane,
                     squares);
    if (first_round && a.norm.w != NULL && !a.norm.layer_norm) {
        float sum = pi_warp_sums<NT>(squares);
        uint32_t lane = threadIdx.x % 32;

        if (lane % (32 / NT) == 0) {
            float *to = &s.norm->of[threadIdx.x / 32][pi_warp_sum_index<NT>((int)lane)];

            *to = sum + (tile > 0 ? *to : 0.0f);
        }
    }
    __syncthreads();
}

/* All that a warp has in work for a tile of a round [round, stop): sums of its slices. The loads that come next are issued before sums are reduced. */
template <int T, int NT, int U, bool TILED>
PI_DEVICE void work(const struct mat_args &a, const struct mat_shared<T, NT> &s, uint32_t round,
                    uint32_t stop, uint32_t tile, float *sums, struct mat_pos<T, U> *at)
{
    constexpr int R = MAT_R;
    const uint32_t origin = TILED ? tile_begin(a, tile) * 32 : 0, lane = threadIdx.x % 32;

    sums += (size_t)at->slice * a.round_items * (R * NT) + pi_warp_sum_index<R * NT>((int)lane);
    while (at->item < stop && (!TILED || at->tile == tile)) {
        float acc[R][NT] = {}, sum, *to = sums + (at->item - round) * (R * NT);

        for (;;) {
            pi_batch_fma<T, R, U, NT>(at->batch, s.xs, s.groups, at->g - origin, at->end - origin,
                                      acc);
            at->g += 32 * U;
            if ((at->g & ~31u) >= at->end)
                break;
            fetch<T, U>(a, at);
        }
        if (at->item + a.n_lanes < stop) {
            enter_item<T, U>(a, at->item + a.n_lanes, at);
        } else if (TILED && tile + 1 < a.n_tiles) {
            enter_tile<T, U>(a, tile + 1, at);
            enter_item<T, U>(a, round + at->own, at);
        } else {
            at->item = UINT32_MAX;
        }
        sum = pi_warp_sums<R * NT>(&acc[0][0]);
        if (lane % (32 / (R * NT)) == 0)
            *to = sum + (TILED && tile > 0 ? *to : 0.0f);
    }
}

template <int T, int NT, bool TILED>
__global__ static void __launch_bounds__(mat_unroll<T, NT>::threads, mat_unroll<T, NT>::blocks)
    mat_kernel(const struct mat_args a)
{
    constexpr int U = TILED ? 1 : mat_unroll<T, NT>::U;
    PI_DYN_SHARED(float4, memory);
    const struct mat_shared<T, NT> s = shared_of<T, NT>(a, memory);
    const uint32_t set = blockIdx.x % a.n_sets, block = blockIdx.x / a.n_sets;
    const uint32_t n_blocks = gridDim.x / a.n_sets;
    const uint32_t first = (uint32_t)((uint64_t)a.n_items * block / n_blocks);
    const uint32_t last = (uint32_t)((uint64_t)a.n_items * (block + 1) / n_blocks);
    struct mat_stats<NT> st = {};
    struct mat_pos<T, U> at;
    int src[NT];

    at.slice = threadIdx.x / 32 % a.n_slices;
    at.own = threadIdx.x / 32 / a.n_slices;
    at.item = UINT32_MAX;
    enter_tile<T, U>(a, 0, &at);
    if (first + at.own < last)
        enter_item<T, U>(a, first + at.own, &at);
    if (set == 0 && threadIdx.x == 0)
        mat_prefetch_norm(a);
    for (uint32_t i = threadIdx.x / 32; set == 0 && i < a.n_ahead; i += blockDim.x / 32) {
        if (first + i < last)
            mat_prefetch_item(a, first + i);
    }
    pi_pdl_trigger();
    pi_pdl_wait();
    if (!mat_tokens<NT>(a, set, src))
        return;
    if (!TILED)
        next_tile<T, NT>(a, s, src, 0, true, &st);
    for (uint32_t round = first, odd = 0; round < last; round += a.round_items, odd ^= 1) {
        const uint32_t stop = min(round + a.round_items, last);
        float *sums = s.sums + odd * (a.round_items * MAT_R * NT * a.n_slices);

        if (round > first && round + at.own < stop) {
            if (TILED)
                enter_tile<T, U>(a, 0, &at);
            enter_item<T, U>(a, round + at.own, &at);
        }
        for (uint32_t tile = 0; tile < (TILED ? a.n_tiles : 1); tile++) {
            if (TILED)
                next_tile<T, NT>(a, s, src, tile, round == first, &st);
            work<T, NT, U, TILED>(a, s, round, stop, tile, sums, &at);
        }
        __syncthreads();
        mat_finish<NT>(a, set, round, stop - round, sums, s.norm);
    }
}

/* ---- launch ---- */

struct device_limits {
    uint32_t n_sm;
    size_t shared; /* bytes that a block may have */
    size_t ahead;  /* bytes that may be fetched into the L2 before they are due */
};

static struct device_limits limits_of_device(void)
{
    int device = 0, n_sm = 1, shared = (int)PLAIN_SHARED, l2 = 0;

    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
    (void)cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    (void)cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
    /* an eighth: half of the L2 is what one half of a large device sees, and more than this takes bandwidth from the kernel in front */
    return {(uint32_t)n_sm, (size_t)shared, (size_t)l2 / 8};
}

/* How many warps share an item: the fewest batches of loads one after the other in the busiest warp; of equals the most slices, whose last items end together. */
static uint32_t choose_slices(uint32_t chunks, uint32_t n_items, uint32_t unroll)
{
    uint32_t per_block = (n_items + NOMINAL_SMS - 1) / NOMINAL_SMS, best = 1;
    uint64_t least = UINT64_MAX;

    for (uint32_t n = 1; n <= MAT_WARPS && n <= chunks; n++) {
        uint32_t lanes = MAT_WARPS / n, loads = ((chunks + n - 1) / n + unroll - 1) / unroll;
        uint64_t cost = (uint64_t)((per_block + lanes - 1) / lanes) * loads;

        if (cost <= least) {
            least = cost;
            best = n;
        }
    }
    return best;
}

/* Geometry for NT tokens in n_tiles tiles; returns the bytes of shared memory that it takes. */
template <int T, int NT>
static size_t mat_shape(struct mat_args *a, const struct pi_k_mat_geometry *g, uint32_t n_tiles,
                        uint32_t n_blocks)
{
    uint32_t chunks = (a->n_groups + 31) / 32, groups = tile_groups(a->n_groups, n_tiles);
    uint32_t per_block = (a->n_items + n_blocks - 1) / n_blocks, n_rounds, round;
    size_t item_bytes;

    a->n_tiles = n_tiles;
    a->n_slices = choose_slices(chunks / n_tiles, a->n_items,
                                n_tiles > 1 ? 1 : mat_unroll<T, NT>::U);
    if (g->slices > 0 && g->slices <= MAT_WARPS && g->slices <= chunks / n_tiles)
        a->n_slices = g->slices;
    a->n_lanes = MAT_WARPS / a->n_slices;
    item_bytes = (size_t)a->n_slices * MAT_R * NT * sizeof(float);
    round = (uint32_t)(ROUND_BYTES / item_bytes);
    n_rounds = round > 0 ? (per_block + round - 1) / round : per_block; /* of like size */
    round = (per_block + n_rounds - 1) / n_rounds;
    a->round_items = (round + a->n_lanes - 1) / a->n_lanes * a->n_lanes;
    return (size_t)NT * pi_x_stride<T>(groups) * sizeof(float4) + 2 * sizeof(struct mat_sums<NT>) +
           (n_rounds > 1 ? 2 : 1) * item_bytes * a->round_items;
}

template <int T, int NT, bool TILED>
static bool mat_launch_as(struct mat_args a, const struct pi_k_mat_geometry *g, cudaStream_t stream)
{
    struct device_limits dev = limits_of_device();
    uint32_t n_blocks, chunks, n_tiles = 1, per_sm = g->blocks_per_sm > 0 ? g->blocks_per_sm : 1;
    size_t bytes, ahead = g->ahead_bytes > 0 ? g->ahead_bytes : dev.ahead;

    a.n_groups = pi_groups<T>(a.n_cols);
    a.n_sets = (a.n_tok + NT - 1) / NT;
    chunks = (a.n_groups + 31) / 32;
    n_blocks = dev.n_sm * per_sm / a.n_sets > 0 ? dev.n_sm * per_sm / a.n_sets : 1;
    n_blocks = n_blocks < a.n_items ? n_blocks : a.n_items;
    a.n_ahead = (uint32_t)(ahead / n_blocks / (MAT_R * 16) / a.part[0].row_units);
    bytes = mat_shape<T, NT>(&a, g, n_tiles, n_blocks);
    while (TILED && bytes > dev.shared && n_tiles < chunks)
        bytes = mat_shape<T, NT>(&a, g, ++n_tiles, n_blocks);
    if (bytes > dev.shared)
        return false;
    pi_k_prepare(mat_kernel<T, NT, TILED>, bytes);
    PI_LAUNCH_PDL((mat_kernel<T, NT, TILED>), n_blocks * a.n_sets, 32 * a.n_slices * a.n_lanes,
                  bytes, stream, a);
    return true;
}

/* With vectors whole in shared memory where they fit; two sets of one token where two do not. */
template <int T>
static void mat_launch(const struct mat_args &a, const struct pi_k_mat_geometry *g, cudaStream_t s)
{
    bool done = false;

    if (a.n_tok > 4)
        done = mat_launch_as<T, 8, false>(a, g, s);
    else if (a.n_tok > 2)
        done = mat_launch_as<T, 4, false>(a, g, s);
    else if (a.n_tok == 2)
        done = mat_launch_as<T, 2, false>(a, g, s);
    if (!done && a.n_tok <= 2)
        done = mat_launch_as<T, 1, false>(a, g, s);
    if (!done)
        (void)mat_launch_as<T, 8, true>(a, g, s);
}

static void launch(const struct mat_args &a, enum pi_type type, const struct pi_k_mat_geometry *g,
                   void *stream)
{
    static const struct pi_k_mat_geometry plain = {};

    g = g != NULL ? g : &plain;
#define CASE(T) mat_launch<T>(a, g, (cudaStream_t)stream)
    PI_BY_TYPE(type, CASE);
#undef CASE
}

/* Adds a matrix whose virtual rows are n_virtual many. */
static void add_part(struct mat_args *a, const struct pi_dmat *w, const float *bias,
                     uint32_t n_virtual, enum mat_role role)
{
    struct mat_part *p = &a->part[a->n_parts++];

    p->data = (const char *)w->data;
    p->row_units = (uint32_t)(w->row_bytes / 16);
    p->bias = bias;
    p->begin = a->n_items * MAT_R;
    p->n_rows = w->n_rows;
    p->role = role;
    a->n_cols = w->n_cols;
    a->n_items += (n_virtual + MAT_R - 1) / MAT_R;
}

extern "C" void pi_k_matvec_as(const struct pi_k_mat_geometry *g, const struct pi_dmat *w,
                               const float *bias, const struct pi_k_norm *norm, const float *x,
                               float *out, bool add, bool relu, uint32_t n_tok, void *stream)
{
    struct mat_args a = {};

    a.kind = MAT_PLAIN;
    add_part(&a, w, bias, w->n_rows, MAT_Q);
    if (norm != NULL)
        a.norm = *norm;
    a.x = x;
    a.out = out;
    a.add = add;
    a.relu = relu;
    a.n_tok = n_tok;
    launch(a, w->type, g, stream);
}

extern "C" void pi_k_matvec(const struct pi_dmat *w, const float *bias,
                            const struct pi_k_norm *norm, const float *x, float *out, bool add,
                            bool relu, uint32_t n_tok, void *stream)
{
    pi_k_matvec_as(NULL, w, bias, norm, x, out, add, relu, n_tok, stream);
}

extern "C" void pi_k_output(const struct pi_dmat *w, const struct pi_k_norm *norm,
                            const float *residual, const struct pi_k_step *step, float *logits,
                            uint32_t n_tok, void *stream)
{
    struct mat_args a = {};

    a.kind = MAT_OUTPUT;
    add_part(&a, w, NULL, w->n_rows, MAT_Q);
    if (norm != NULL)
        a.norm = *norm;
    a.x = residual;
    a.out = logits;
    a.step = step;
    a.n_tok = n_tok;
    launch(a, w->type, NULL, stream);
}

static void heads_of(const struct pi_k_qkv *q, struct mat_heads *h)
{
    const struct pi_shape *sh = q->shape;

    h->head_dim = sh->head_dim;
    h->span = sh->head_dim + sh->head_dim % 2;
    h->inv_span = (uint32_t)((((uint64_t)1 << 32) + h->span - 1) / h->span);
    h->n_rot = q->inv_freq != NULL ? sh->n_rot : 0;
    h->neox = sh->rope_neox;
    h->inv_freq = q->inv_freq;
    h->mscale = q->rope_mscale;
    h->q_scale = 1.0f / sqrtf((float)sh->head_dim);
    h->f16 = q->kv_type == PI_TYPE_F16;
    h->k_cache = q->k_cache;
    h->v_cache = q->v_cache;
    h->n_ctx = q->n_ctx;
    h->n_seq = q->n_seq;
    h->n_embd_q = sh->n_head * sh->head_dim;
    h->n_embd_kv = sh->n_head_kv * sh->head_dim;
}

/* One kernel, but for files whose q, k and v have different types: one for each type then. */
extern "C" void pi_k_qkv(const struct pi_k_qkv *qkv, const float *residual,
                         const struct pi_k_step *step, float *q, uint32_t n_tok, void *stream)
{
    const struct pi_dmat *w[3] = {qkv->q, qkv->k, qkv->v};
    const float *bias[3] = {qkv->q_b, qkv->k_b, qkv->v_b};
    bool done[3] = {false, false, false};

    for (int i = 0; i < 3; i++) {
        struct mat_args a = {};

        if (done[i])
            continue;
        a.kind = MAT_QKV;
        a.norm = qkv->norm;
        a.x = residual;
        a.step = step;
        a.out = q;
        a.n_tok = n_tok;
        heads_of(qkv, &a.heads);
        for (int k = i; k < 3; k++) {
            if (w[k]->type != w[i]->type)
                continue;
            add_part(&a, w[k], bias[k], w[k]->n_rows / a.heads.head_dim * a.heads.span,
                     (enum mat_role)k);
            done[k] = true;
        }
        launch(a, w[i]->type, NULL, stream);
    }
}
