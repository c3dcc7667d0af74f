/*
 * pi_k_ffn.cuh - rows of feed-forward matrices against the vectors of up to 8 tokens, by teams of warps: what the kernels of pi_k_set.cu and pi_k_ffn.cu
 * share.
 *
 * A block has 8 warps. A team of 1, 2, 4 or 8 of them walks along 4 rows at a time, each warp along a part of the columns, so that enough bytes are on the way
 * even where rows are few; what the warps of a team find is added in their order. Vectors are staged in shared memory a chunk of columns at a time (one chunk, once,
 * where they fit). Sums depend on the row's length, its type and the number of tokens alone, not on the grid.
 */
#ifndef PI_K_FFN_CUH
#define PI_K_FFN_CUH

#include "common/pi_shape.h"
#include "runtime/cuda/pi_k_dot.cuh"
#include "runtime/pi_dev_model.h"

#define PI_FFN_WARPS   8
#define PI_FFN_THREADS (32 * PI_FFN_WARPS)
#define PI_FFN_ROWS    4    /* of a team at a time */
#define PI_FFN_TOKENS  8    /* most tokens that share one reading of the weights */
#define PI_FFN_STAGED  8192 /* floats of all vectors together that lie in shared memory */

/* Groups of a row whose part of NT vectors is staged at a time. */
template <int T, int NT> static __host__ __device__ constexpr uint32_t pi_chunk_groups(void)
{
    return PI_FFN_STAGED / NT / pi_wt<T>::E;
}

/* Loads of 16 bytes on the way for each row in each lane; where a group is much work, registers are worth more. */
template <int T, int NT> static __host__ __device__ constexpr int pi_ffn_steps(void)
{
    return pi_wt<T>::E > 16 || (pi_wt<T>::E > 8 && NT >= 4) ? 1 : 2;
}

/* Blocks that a multiprocessor has at a time: as many as the registers of so many sums and loads allow. */
template <int T, int NT> static __host__ __device__ constexpr int pi_ffn_blocks(void)
{
    return NT == 1 && T != PI_TYPE_Q8_0 ? 3 : 2;
}

/* Rows of a matrix on the device. */
struct pi_rows {
    const char *data;
    size_t row_bytes;
};

/* How rows of one length are walked along; the same for all blocks. */
struct pi_walk {
    uint32_t n_cols, n_groups;
    uint32_t chunk, n_chunks; /* groups staged at a time; how many times */
    uint32_t team;            /* warps of a team */
};

/* Vectors, as the walk needs them. */
struct pi_vectors {
    const float *x; /* (n_tok, n_cols) */
    uint32_t n_tok;
};

template <int T, int NT>
using pi_ffn_batch = struct pi_batch<T, PI_FFN_ROWS, pi_ffn_steps<T, NT>()>;

/* max_team: most warps of a team (a power of two up to 8). A warp gets at least pi_ffn_steps() pieces of 32 groups, or the team is smaller. */
template <int T, int NT>
static inline struct pi_walk pi_walk_plan(uint32_t n_cols, uint32_t max_team)
{
    struct pi_walk w = {};
    uint32_t limit = pi_chunk_groups<T, NT>(), whole;

    w.n_cols = n_cols;
    w.n_groups = pi_groups<T>(n_cols);
    whole = (w.n_groups + 31) / 32 * 32;
    w.chunk = whole < limit ? whole : limit;
    w.n_chunks = (w.n_groups + w.chunk - 1) / w.chunk;
    w.team = 1;
    while (w.team < max_team && w.chunk / 32 >= 2 * w.team * pi_ffn_steps<T, NT>())
        w.team *= 2;
    return w;
}

/* Bytes of dynamic shared memory for the vectors. */
template <int T, int NT> static inline size_t pi_walk_smem(const struct pi_walk &w)
{
    return (size_t)NT * pi_x_stride<T>(w.chunk) * sizeof(float4);
}

/* ---- device ---- */

struct pi_span_groups {
    uint32_t begin, end;
};

/* The calling warp's groups in a chunk. */
PI_DEVICE struct pi_span_groups pi_walk_span(const struct pi_walk &w, uint32_t chunk)
{
    uint32_t first = chunk * w.chunk, end = min(first + w.chunk, w.n_groups);
    uint32_t pieces = (end - first + 31) / 32, sub = threadIdx.x / 32 % w.team;
    struct pi_span_groups s;

    s.begin = first + pieces * sub / w.team * 32;
    s.end = min(first + pieces * (sub + 1) / w.team * 32, end);
    return s;
}

/* Loads of a step that starts with piece begin; rows whose bit is not in present are zero. */
template <int T, int NT>
PI_DEVICE void pi_walk_load(pi_ffn_batch<T, NT> *b, const char *const (&row)[PI_FFN_ROWS],
                            uint32_t present, uint32_t n_groups, uint32_t begin, uint32_t end)
{
    uint32_t g = begin + threadIdx.x % 32;

#pragma unroll
    for (int u = 0; u < pi_ffn_steps<T, NT>(); u++) {
#pragma unroll
        for (int r = 0; r < PI_FFN_ROWS; r++)
            b->g[r][u] = pi_group_load<T>(row[r], n_groups, g + 32 * u,
                                          g + 32 * u < end && (present >> r & 1) != 0);
    }
}

/* The block: a chunk of the vectors to shared memory, zeros behind their end. */
template <int T, int NT>
PI_DEVICE void pi_walk_stage(const struct pi_walk &w, const struct pi_vectors &v, uint32_t chunk,
                             float4 *xs)
{
    const uint32_t plane = pi_x_plane<T>(w.chunk), n4 = w.chunk * pi_wt<T>::P;
    const bool vec = w.n_cols % 4 == 0;

#pragma unroll
    for (int t = 0; t < NT; t++) {
        const float *x = v.x + (size_t)t * w.n_cols;
        uint32_t n = (uint32_t)t < v.n_tok ? w.n_cols : 0;

        for (uint32_t f = threadIdx.x; f < n4; f += PI_FFN_THREADS)
            xs[t * plane * pi_wt<T>::P + pi_x_at<T>(f, plane)] =
                pi_x_get(x, n, chunk * n4 + f, vec);
    }
}

/* The same for vectors of one chunk, times the weights of an RMSNorm; its factor is left to whoever has the finished sums. squares[t]: of the calling thread's
 * elements. */
template <int T, int NT>
PI_DEVICE void pi_walk_stage_weighted(const struct pi_walk &w, const struct pi_vectors &v,
                                      const float *weights, float4 *xs, float (&squares)[NT])
{
    const uint32_t plane = pi_x_plane<T>(w.chunk), n4 = w.chunk * pi_wt<T>::P;
    const bool vec = w.n_cols % 4 == 0;

    for (uint32_t f = threadIdx.x; f < n4; f += PI_FFN_THREADS) {
        const float4 m = pi_x_get(weights, w.n_cols, f, vec);

#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float4 x = pi_x_get(v.x + (size_t)t * w.n_cols,
                                      (uint32_t)t < v.n_tok ? w.n_cols : 0, f, vec);

            squares[t] = pi_dot4(x, x, squares[t]);
            xs[t * plane * pi_wt<T>::P + pi_x_at<T>(f, plane)] =
                make_float4(x.x * m.x, x.y * m.y, x.z * m.z, x.w * m.w);
        }
    }
}

/* acc[r][t] += the calling lane's share of row r . vector t. b: what pi_walk_load() loaded for the first step. staged: the one chunk lies in xs already.
 * All threads of the block come, with the same n_chunks. */
template <int T, int NT>
PI_DEVICE void pi_walk_dot(const struct pi_walk &w, const struct pi_vectors &v,
                           const char *const (&row)[PI_FFN_ROWS], uint32_t present, float4 *xs,
                           bool staged, pi_ffn_batch<T, NT> *b, float (&acc)[PI_FFN_ROWS][NT])
{
    constexpr int STEPS = pi_ffn_steps<T, NT>();

    for (uint32_t c = 0; c < w.n_chunks; c++) {
        struct pi_span_groups s = pi_walk_span(w, c);
        const uint32_t first = c * w.chunk;

        if (c > 0)
            pi_walk_load<T, NT>(b, row, present, w.n_groups, s.begin, s.end);
        if (!staged) {
            __syncthreads();
            pi_walk_stage<T, NT>(w, v, c, xs);
            __syncthreads();
        }
        for (uint32_t g = s.begin; g < s.end; g += 32 * STEPS) {
            if (g != s.begin)
                pi_walk_load<T, NT>(b, row, present, w.n_groups, g, s.end);
            pi_batch_fma<T, PI_FFN_ROWS, STEPS, NT>(*b, xs, w.chunk, g - first + threadIdx.x % 32,
                                                    s.end - first, acc);
        }
    }
}

/* Sums of a warp to part[warp][r * NT + t]. */
template <int NT>
PI_DEVICE void pi_walk_put(float (&acc)[PI_FFN_ROWS][NT], float (*part)[PI_FFN_ROWS * NT])
{
    constexpr int M = PI_FFN_ROWS * NT;
    const int lane = threadIdx.x % 32;
    float v[M], sum;

#pragma unroll
    for (int r = 0; r < PI_FFN_ROWS; r++) {
#pragma unroll
        for (int t = 0; t < NT; t++)
            v[r * NT + t] = acc[r][t];
    }
    sum = pi_warp_sums<M>(v);
    if (lane % (32 / M) == 0)
        part[threadIdx.x / 32][pi_warp_sum_index<M>(lane)] = sum;
}

/* What the warps of a team found for one of its rows and tokens. */
template <int NT>
PI_DEVICE float pi_walk_sum(const struct pi_walk &w, const float (*part)[PI_FFN_ROWS * NT],
                            uint32_t team, uint32_t row, uint32_t t)
{
    float sum = part[team * w.team][row * NT + t];

    for (uint32_t i = 1; i < w.team; i++)
        sum += part[team * w.team + i][row * NT + t];
    return sum;
}

/* ---- activation ---- */

struct pi_act {
    int kind;
    float threshold;
};

/* As pi_activate() (runtime/pi_model.h): comparisons are such that a NaN stays one. */
PI_DEVICE float pi_act_apply(struct pi_act a, float x)
{
    switch (a.kind) {
    case PI_ACT_RELU:
        return x <= 0.0f ? 0.0f : x;
    case PI_ACT_RELU2:
        return x <= 0.0f ? 0.0f : x * x;
    case PI_ACT_FATRELU:
        return x <= a.threshold ? 0.0f : x;
    case PI_ACT_SILU:
        return x / (1.0f + expf(-x));
    case PI_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case PI_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    default:
        return 0.0f;
    }
}

static inline struct pi_act pi_act_of(const struct pi_shape *s)
{
    struct pi_act a;

    a.kind = (int)s->act;
    a.threshold = s->act_threshold;
    return a;
}

/* ---- for launchers ---- */

static inline struct pi_rows pi_rows_of(const struct pi_dmat *m)
{
    struct pi_rows r;

    r.data = (const char *)m->data;
    r.row_bytes = m->row_bytes;
    return r;
}

/* Tokens of one reading of the weights: the template argument. */
static inline uint32_t pi_ffn_tokens(uint32_t n_tok)
{
    return n_tok <= 1 ? 1 : n_tok <= 2 ? 2 : n_tok <= 4 ? 4 : PI_FFN_TOKENS;
}

/* f<T, NT>(args...) as CASE(T, NT); for one weight type */
#define PI_BY_TOKENS(n_tok, CASE_1, CASE_2, CASE_4, CASE_8) \
    do {                                                    \
        switch (pi_ffn_tokens(n_tok)) {                     \
        case 1:                                             \
            CASE_1;                                         \
            break;                                          \
        case 2:                                             \
            CASE_2;                                         \
            break;                                          \
        case 4:                                             \
            CASE_4;                                         \
            break;                                          \
        default:                                            \
            CASE_8;                                         \
            break;                                          \
        }                                                   \
    } while (0)

/* The current device. */
static inline uint32_t pi_device_attr(cudaDeviceAttr what)
{
    int device = 0, n = 0;

    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&n, what, device);
    return n > 0 ? (uint32_t)n : 1;
}

static inline uint32_t pi_device_sms(void)
{
    return pi_device_attr(cudaDevAttrMultiProcessorCount);
}

/* Half of the L2 in neurons of so many bytes: what may be fetched ahead for the next kernel. Define PI_NO_AHEAD to see what that is worth. */
static inline uint32_t pi_ahead_neurons(size_t bytes)
{
#ifdef PI_NO_AHEAD
    (void)bytes;
    return 0;
#else
    return bytes > 0 ? (uint32_t)(pi_device_attr(cudaDevAttrL2CacheSize) / 2 / bytes) : 0;
#endif
}

#endif
