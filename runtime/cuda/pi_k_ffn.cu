/*
 * pi_k_ffn.cu - gate and up rows of the neurons of a set.
 *
 * A neuron's gate and up rows are walked along together, two neurons by a team of warps (four where one matrix is read). How long the set is only the
 * device knows: the grid is fixed, blocks take every gridDim.x-th item, blocks beyond the set's end have nothing to do. Which warp does what
 * depends on the row's length alone, so that a neuron's result does not depend on who else is in the set.
 *
 * What can be had before the kernel in front ends is asked for before the wait: the first rows where all are wanted; the vectors where the set is predicted, since
 * pi_k_predict() lets this kernel start when all in front of itself is done.
 */
#include "config.h"

#include "runtime/cuda/pi_k_ffn.cuh"
#include "runtime/cuda/pi_kernels.h"

struct up_args {
    struct pi_walk walk;
    struct pi_rows first, second; /* gate and up where both are read; else first alone */
    bool both;
    enum pi_k_ffn_kind kind;
    const float *bias; /* of first, by local index; or NULL */
    struct pi_act act;
    const float *x;
    const float *norm_w; /* of an RMSNorm that x still needs, or NULL */
    float norm_eps;
    struct pi_k_set set;
    float *h;
    uint32_t n_hot, n_tok;
    struct pi_rows down;
    uint32_t most_ahead; /* neurons in the set whose down rows may come to the L2 ahead */
};

/* Neurons of a team at a time. */
static __device__ uint32_t team_neurons(const struct up_args &a)
{
    return a.both ? PI_FFN_ROWS / 2 : PI_FFN_ROWS;
}

/* Local index of the neuron at a position, which may lie behind the set's end but not behind n_hot: then it may be anything. */
static __device__ uint32_t local_of(const struct up_args &a, uint32_t position)
{
    return a.kind == PI_K_FFN_DENSE ? position : a.set.local[min(position, a.n_hot - 1)];
}

/* Positions that the calling warp's team reads the rows of, in the item of neurons from position first on. */
static __device__ uint32_t position_of(const struct up_args &a, uint32_t first, int r)
{
    return first + threadIdx.x / 32 / a.walk.team * team_neurons(a) +
           (uint32_t)(a.both ? r / 2 : r);
}

static __device__ void locals_of(const struct up_args &a, uint32_t first,
                                 uint32_t (&local)[PI_FFN_ROWS])
{
#pragma unroll
    for (int r = 0; r < PI_FFN_ROWS; r++)
        local[r] = local_of(a, position_of(a, first, r));
}

/* The rows of these neurons; those that are there as bits. */
static __device__ uint32_t rows_of(const struct up_args &a, uint32_t first, uint32_t n,
                                   const uint32_t (&local)[PI_FFN_ROWS],
                                   const char *(&row)[PI_FFN_ROWS])
{
    uint32_t present = 0;

#pragma unroll
    for (int r = 0; r < PI_FFN_ROWS; r++) {
        const struct pi_rows &m = a.both && r % 2 == 1 ? a.second : a.first;

        row[r] = m.data + local[r] * m.row_bytes;
        present |= (uint32_t)(position_of(a, first, r) < n) << r;
    }
    return present;
}

/* What the thread of one (neuron, token) pair of an item needs beside the sums; asked for before the rows are read. */
struct pair {
    bool there;
    bool wanted;          /* by this token */
    uint32_t local, slot; /* slot: in h */
    float given;          /* exact: the activation's output */
    float bias;
};

static __device__ struct pair pair_of(const struct up_args &a, uint32_t position, uint32_t n,
                                      uint32_t t)
{
    struct pair p = {};

    p.there = position < n && t < a.n_tok;
    if (p.there) {
        p.local = local_of(a, position);
        p.slot = t * a.n_hot + position;
        p.wanted = a.kind == PI_K_FFN_DENSE || (a.set.tokens[position] >> t & 1) != 0;
        if (a.kind == PI_K_FFN_EXACT)
            p.given = a.set.gate[(size_t)t * a.n_hot + p.local];
        if (a.bias != NULL)
            p.bias = a.bias[p.local];
    }
    return p;
}

/* first, second: sums of the pair's rows. Where the activation is zero the other row counts for nothing, but in dense mode, which takes
 * no short cut. */
static __device__ float up_value(const struct up_args &a, const struct pair &p, float first,
                                 float second)
{
    float act;

    if (!p.wanted)
        return 0.0f;
    if (a.kind == PI_K_FFN_EXACT)
        return p.given != 0.0f ? p.given * first : 0.0f;
    act = pi_act_apply(a.act, first + p.bias);
    if (!a.both)
        return act;
    return act != 0.0f || a.kind == PI_K_FFN_DENSE ? act * second : 0.0f;
}

/* The whole warp; NT lanes next to each other have one neuron's values: its down row comes to the L2 if any is not zero, for the kernel behind
 * this one. */
template <int NT>
static __device__ void fetch_down(const struct up_args &a, bool there, uint32_t local, float value)
{
    const uint32_t bits = __ballot_sync(~0u, there && value != 0.0f), lane = threadIdx.x % 32;

    if (lane % NT == 0 && (bits >> lane & ((1u << NT) - 1u)) != 0)
        pi_prefetch_l2(a.down.data + local * a.down.row_bytes, (uint32_t)a.down.row_bytes);
}

/* The vectors to shared memory, whole; a warp's share of the squares that a norm needs to squares[warp]. */
template <int T, int NT>
static __device__ void stage(const struct up_args &a, const struct pi_vectors &v, float4 *xs,
                             float (*squares)[NT])
{
    float own[NT] = {};

    if (a.norm_w == NULL) {
        pi_walk_stage<T, NT>(a.walk, v, 0, xs);
        return;
    }
    pi_walk_stage_weighted<T, NT>(a.walk, v, a.norm_w, xs, own);
#pragma unroll
    for (int t = 0; t < NT; t++) {
        own[t] = pi_warp_sum(own[t]);
        if (threadIdx.x % 32 == 0)
            squares[threadIdx.x / 32][t] = own[t];
    }
}

/* RMSNorm's factor of token t (Zhang and Sennrich 2019, eq. 4): 1 without norm. */
template <int NT>
static __device__ float norm_factor(const struct up_args &a, const float (*squares)[NT], uint32_t t)
{
    float sum = 0.0f;

    if (a.norm_w == NULL)
        return 1.0f;
#pragma unroll
    for (int w = 0; w < PI_FFN_WARPS; w++)
        sum += squares[w][t];
    return 1.0f / sqrtf(sum / (float)a.walk.n_cols + a.norm_eps);
}

template <int T, int NT>
static __global__ void __launch_bounds__(PI_FFN_THREADS, pi_ffn_blocks<T, NT>())
    ffn_up(struct up_args a)
{
    PI_DYN_SHARED(float4, xs);
    __shared__ float part[2][PI_FFN_WARPS][PI_FFN_ROWS * NT];
    __shared__ float squares[PI_FFN_WARPS][NT];
    const uint32_t t0 = blockIdx.y * NT, teams = PI_FFN_WARPS / a.walk.team;
    const uint32_t per_item = teams * team_neurons(a), stride = gridDim.x * per_item;
    const uint32_t q = threadIdx.x / NT, t = threadIdx.x % NT; /* the thread's pair in an item */
    const struct pi_vectors v = {a.x + (size_t)t0 * a.walk.n_cols, a.n_tok - t0};
    const struct pi_span_groups s = pi_walk_span(a.walk, 0);
    const bool staged = a.walk.n_chunks == 1, dense = a.kind == PI_K_FFN_DENSE;
    const bool settled = staged && a.kind == PI_K_FFN_PREDICTED; /* x may be read at once */
    uint32_t local[PI_FFN_ROWS], n = a.n_hot, turn = 0;
    pi_ffn_batch<T, NT> b;
    float factor = 1.0f;

    pi_pdl_trigger();
    if (settled)
        stage<T, NT>(a, v, xs, squares);
    if (dense) {
        const char *row[PI_FFN_ROWS];
        uint32_t present;

        locals_of(a, blockIdx.x * per_item, local);
        present = rows_of(a, blockIdx.x * per_item, n, local, row);
        pi_walk_load<T, NT>(&b, row, present, a.walk.n_groups, s.begin, s.end);
    }
    pi_pdl_wait();
    if (!dense) {
        locals_of(a, blockIdx.x * per_item, local); /* asked for together with n */
        n = *a.set.n;
    }
    for (uint32_t first = blockIdx.x * per_item; first < n; first += stride) {
        float acc[PI_FFN_ROWS][NT] = {};
        const char *row[PI_FFN_ROWS];
        const uint32_t present = rows_of(a, first, n, local, row);
        struct pair p = {};
        float value = 0.0f;

        if (!dense || turn > 0)
            pi_walk_load<T, NT>(&b, row, present, a.walk.n_groups, s.begin, s.end);
        locals_of(a, first + stride, local);
        if (q < per_item)
            p = pair_of(a, first + q, n, t0 + t);
        if (staged && turn == 0) {
            if (!settled)
                stage<T, NT>(a, v, xs, squares);
            __syncthreads();
            factor = norm_factor<NT>(a, squares, t);
        }
        pi_walk_dot<T, NT>(a.walk, v, row, present, xs, staged, &b, acc);
        pi_walk_put<NT>(acc, part[turn & 1]);
        __syncthreads();
        if (p.there) {
            const uint32_t team = q / team_neurons(a), r = q % team_neurons(a) * (a.both ? 2 : 1);
            const float one = pi_walk_sum<NT>(a.walk, part[turn & 1], team, r, t);
            const float two =
                a.both ? pi_walk_sum<NT>(a.walk, part[turn & 1], team, r + 1, t) : 0.0f;

            value = up_value(a, p, one * factor, two * factor);
            a.h[p.slot] = value;
        }
        if (n <= a.most_ahead)
            fetch_down<NT>(a, p.there, p.local, value);
        turn++;
    }
}

/* Exact without gate: the activation is all there is. */
static __global__ void take_gates(struct up_args a)
{
    pi_pdl_trigger();
    pi_pdl_wait();
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < *a.set.n;
         i += gridDim.x * blockDim.x) {
        struct pair p = pair_of(a, i, a.n_hot, blockIdx.y);

        a.h[p.slot] = p.wanted ? p.given : 0.0f;
    }
}

/* ---- launching ---- */

template <int T, int NT> static void launch_up(struct up_args *a, uint32_t n_cols, void *stream)
{
    const uint32_t most = pi_ffn_blocks<T, NT>() * pi_device_sms();
    uint32_t per_item, n_items;
    dim3 grid;

    /* all rows: long pieces by few warps keep the barriers rare */
    a->walk = pi_walk_plan<T, NT>(
        n_cols, a->kind == PI_K_FFN_DENSE ? (NT == 1 ? 4 : 2) : PI_FFN_WARPS);
    per_item = PI_FFN_WARPS / a->walk.team * (a->both ? PI_FFN_ROWS / 2 : PI_FFN_ROWS);
    n_items = a->n_hot / per_item + (a->n_hot % per_item != 0);
    grid = dim3(n_items < most ? n_items : most, (a->n_tok + NT - 1) / NT);
    PI_LAUNCH_PDL((ffn_up<T, NT>), grid, PI_FFN_THREADS, (pi_walk_smem<T, NT>(a->walk)),
                  (cudaStream_t)stream, *a);
}

template <int T, int NT> static bool whole(uint32_t n_cols)
{
    return pi_walk_plan<T, NT>(n_cols, 1).n_chunks == 1;
}

extern "C" bool pi_k_ffn_up_norms(const struct pi_shape *shape, const struct pi_dev_layer *layer,
                                  enum pi_k_ffn_kind kind, uint32_t n_tok)
{
    const uint32_t n_cols = shape->n_embd;
    bool fits = false;

#define FITS(T)                                                                         \
    PI_BY_TOKENS(n_tok, (fits = whole<T, 1>(n_cols)), (fits = whole<T, 2>(n_cols)),     \
                 (fits = whole<T, 4>(n_cols)), (fits = whole<T, PI_FFN_TOKENS>(n_cols)))
    PI_BY_TYPE(layer->up.type, FITS);
#undef FITS
    return fits && !shape->layer_norm && kind != PI_K_FFN_EXACT;
}

extern "C" void pi_k_ffn_up(const struct pi_shape *shape, const struct pi_dev_layer *layer,
                            enum pi_k_ffn_kind kind, const struct pi_k_norm *norm, const float *x,
                            const struct pi_k_step *step, const struct pi_k_set *set, float *h,
                            uint32_t n_tok, void *stream)
{
    const uint32_t n_cols = shape->n_embd;
    const bool exact = kind == PI_K_FFN_EXACT;
    struct up_args a = {};

    (void)step; /* padding tokens want nothing: that is in the set */
    if (layer->n_hot == 0)
        return;
    a.first = pi_rows_of(shape->gated && !exact ? &layer->gate : &layer->up);
    a.second = pi_rows_of(&layer->up);
    a.both = shape->gated && !exact;
    a.kind = kind;
    a.bias = shape->gated || exact ? NULL : layer->up_b;
    a.act = pi_act_of(shape);
    a.x = x;
    a.norm_w = norm != NULL ? norm->w : NULL;
    a.norm_eps = norm != NULL ? norm->eps : 0.0f;
    a.set = *set;
    a.h = h;
    a.n_hot = layer->n_hot;
    a.n_tok = n_tok;
    a.down = pi_rows_of(&layer->down_t);
    if (kind == PI_K_FFN_PREDICTED) /* the exact gate has asked for them */
        a.most_ahead = pi_ahead_neurons(a.down.row_bytes);
    if (exact && !shape->gated) {
        PI_LAUNCH_PDL(take_gates,
                      dim3((a.n_hot + 255) / 256 < 64 ? (a.n_hot + 255) / 256 : 64, n_tok), 256, 0,
                      (cudaStream_t)stream, a);
        return;
    }
#define UP(T)                                                                                  \
    PI_BY_TOKENS(n_tok, (launch_up<T, 1>(&a, n_cols, stream)),                                 \
                 (launch_up<T, 2>(&a, n_cols, stream)), (launch_up<T, 4>(&a, n_cols, stream)), \
                 (launch_up<T, 8>(&a, n_cols, stream)))
    PI_BY_TYPE(layer->up.type, UP);
#undef UP
}
