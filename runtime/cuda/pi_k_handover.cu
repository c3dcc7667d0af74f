/*
 * pi_k_handover.cu - partial sums that cross between GPU and CPU: merge, publish, receive.
 *
 * One lane of each block polls the slot with loads that acquire at system scope; after a barrier the block reads the payload
 * past all caches. Blocks are few (each of them polls over the bus), columns of one warp's load are close together.
 */
#include "config.h"

#include "runtime/cuda/pi_kernels.h"

#include "runtime/cuda/pi_cuda_port.cuh"

#define MAX_BLOCKS  64  /* that poll or write over the bus at the same time */
#define SUM_WARPS   4   /* each adds a range of the parts */
#define SPINS_AWAKE 1024 /* polls (about 1 us each) before the poller sleeps between two */
#define FOLLOWER_LOOKS 256 /* polls of the relay to one of the slot */

/* ---- vectors of V floats ---- */

template <int V> struct vec {
    float f[V];
};

/* Written by kernels before: past the L1, which holds nothing that this kernel would read twice. */
template <int V> static __device__ struct vec<V> load(const float *p) {
    struct vec<V> r;

    if constexpr (V == 4) {
        float4 v = __ldcg(reinterpret_cast<const float4 *>(p));

        r.f[0] = v.x, r.f[1] = v.y, r.f[2] = v.z, r.f[3] = v.w;
    } else {
        r.f[0] = __ldcg(p);
    }
    return r;
}

template <int V>
static __device__ struct vec<V> load_map(const float *p) {
    struct vec<V> r;

    if constexpr (V == 4) {
        float4 v = pi_ld_volatile_f4(reinterpret_cast<const float4 *>(p));

        r.f[0] = v.x, r.f[1] = v.y, r.f[2] = v.z, r.f[3] = v.w;
    } else {
        r.f[0] = pi_ld_volatile_f32(p);
    }
    return r;
}

template <int V>
static __device__ void store(float *p, const struct vec<V> &v)
{
    if constexpr (V == 4)
        *reinterpret_cast<float4 *>(p) = make_float4(v.f[0], v.f[1], v.f[2], v.f[3]);
    else
        *p = v.f[0];
}

template <int V> static __device__ struct vec<V> zero(void) {
    struct vec<V> r;

    for (int i = 0; i < V; i++)
        r.f[i] = 0.0f;
    return r;
}

template <int V>
static __device__ void add(struct vec<V> *a, const struct vec<V> &b)
{
    for (int i = 0; i < V; i++)
        a->f[i] += b.f[i];
}

/* ---- waiting ---- */

/* One thread of each block: until the slot holds the step's epoch or the step is given up; returns the epoch. The epoch is read again each time: a kernel
 * that was launched ahead (PDL) may run before the step's first kernel has written it. Of an old epoch the caller
 * must not believe anything, and ask again behind pi_pdl_wait().
 *
 * Reads of host memory by many blocks queue up behind each other, and what the host waits for with them (on an H200 32 pollers made a hand-over of 10 us one of
 * 300). So one block polls the slot and passes the epoch on in device memory; the others look there, and at the slot but now and then, lest
 * they wait for a block that has not started. */
static __device__ uint32_t poll_slot(const struct pi_k_wait &w, const struct pi_k_step *step)
{
    const bool leads = w.relay == NULL || blockIdx.x == 0;

    for (uint32_t n = 0;; n++) {
        const bool looks = leads || n % FOLLOWER_LOOKS == FOLLOWER_LOOKS - 1;
        const uint32_t epoch = pi_ld_relaxed_sys(&step->step);
        const uint32_t seen = pi_ld_acquire_sys(looks ? w.slot_map : w.relay);

        if (seen == epoch) {
            if (leads && w.relay != NULL)
                pi_st_release_sys(w.relay, epoch);
            return epoch;
        }
        if (n % (4 * FOLLOWER_LOOKS) == FOLLOWER_LOOKS - 1 && w.abort_map != NULL &&
            pi_ld_relaxed_sys(w.abort_map) != 0)
            return epoch;
        if (leads && n >= SPINS_AWAKE)
            pi_nanosleep(500);
    }
}

/* The first wait of a block, by all lanes of one warp, in front of pi_pdl_wait(): when the CPU is first, its payload is here by
 * the time that the kernels in front are done, and trips over the bus are saved. Returns the epoch in lane 0. */
static __device__ uint32_t await_ahead(const struct pi_k_wait &w, const struct pi_k_step *step)
{
    uint32_t epoch = 0;

    if (w.slot_map != NULL && threadIdx.x == 0)
        epoch = poll_slot(w, step);
    __syncwarp();
    return epoch;
}

/* The same warp behind pi_pdl_wait(): true if what it saw was of another step, after it has waited again. */
static __device__ bool await_again(const struct pi_k_wait &w, const struct pi_k_step *step,
                                   uint32_t epoch)
{
    bool stale = w.slot_map != NULL && threadIdx.x == 0 && epoch != step->step;

    if (stale)
        (void)poll_slot(w, step);
    return __any_sync(~0u, stale);
}

/* ---- merge ---- */

struct merge_args {
    float *residual;
    const float *bias, *parts, *cold;
    struct pi_k_wait wait;
    const struct pi_k_step *step;
    float *copy;
    uint32_t n_parts, n_tok, n_embd;
    uint32_t n_chunks; /* of 32 * V columns, in a row */
};

/* A warp's 32 * V columns of one token. */
struct place {
    size_t at; /* of the lane's first column in (n_tok, n_embd) */
    uint32_t column;
    bool inside;
};

template <int V> static __device__ struct place place_of(const struct merge_args &a, uint32_t item)
{
    struct place p;

    p.column = (item % a.n_chunks * 32 + threadIdx.x) * V;
    p.at = (size_t)(item / a.n_chunks) * a.n_embd + p.column;
    p.inside = p.column < a.n_embd;
    return p;
}

/* Parts [n * w / SUM_WARPS, n * (w + 1) / SUM_WARPS) at one place, in order. */
template <int V>
static __device__ struct vec<V> sum_parts(const float *parts, uint32_t n_parts, size_t stride,
                                          const struct place &p, uint32_t w) {
    struct vec<V> sum = zero<V>();
    const uint32_t begin = n_parts * w / SUM_WARPS, end = n_parts * (w + 1) / SUM_WARPS;

    if (p.inside) {
#pragma unroll 8
        for (uint32_t i = begin; i < end; i++)
            add<V>(&sum, load<V>(parts + i * stride + p.at));
    }
    return sum;
}

template <int V>
static __device__ struct vec<V> sum_of(const struct vec<V> *sums) {
    struct vec<V> sum = sums[threadIdx.x];

    for (uint32_t w = 1; w < SUM_WARPS; w++)
        add<V>(&sum, sums[w * 32 + threadIdx.x]);
    return sum;
}

/* What the last warp adds the sums to. */
template <int V>
struct rest {
    struct vec<V> residual, bias, cold;
};

template <int V>
static __device__ void load_cold(const struct merge_args &a, const struct place &p,
                                 struct rest<V> *r)
{
    r->cold = a.cold != NULL && p.inside ? load_map<V>(a.cold + p.at) : zero<V>();
}

template <int V>
static __device__ void load_rest(const struct merge_args &a, const struct place &p,
                                 struct rest<V> *r)
{
    r->residual = p.inside ? load<V>(a.residual + p.at) : zero<V>();
    r->bias = a.bias != NULL && p.inside ? load<V>(a.bias + p.column) : zero<V>();
}

template <int V>
static __device__ void store_merged(const struct merge_args &a, const struct place &p,
                                    const struct rest<V> &r, const struct vec<V> &sum)
{
    struct vec<V> v;

    for (int i = 0; i < V; i++)
        v.f[i] = r.residual.f[i] + (r.bias.f[i] + sum.f[i] + r.cold.f[i]);
    store<V>(a.residual + p.at, v);
    if (a.copy != NULL)
        store<V>(a.copy + p.at, v);
}

/* Blocks (32, SUM_WARPS + 1): warps that add up parts, and one for what comes from elsewhere. */
template <int V> static __global__ void merge(struct merge_args a)
{
    __shared__ struct vec<V> sums[SUM_WARPS * 32];
    __shared__ uint64_t idle_since; /* when there was nothing left but to wait */
    const uint32_t w = threadIdx.y, n_items = a.n_tok * a.n_chunks;
    const bool adds = w < SUM_WARPS;
    struct place p = place_of<V>(a, blockIdx.x);
    struct rest<V> r = {
    };
    uint64_t arrived = 0;

    pi_pdl_trigger();
    if (adds) {
        pi_pdl_wait();
        if (w == 0 && threadIdx.x == 0)
            idle_since = pi_global_ns();
    } else {
        uint32_t epoch;

        /* with nothing to add the kernel in front may be the one that publishes: polling would hold it up */
        if (a.n_parts == 0)
            pi_pdl_wait();
        epoch = await_ahead(a.wait, a.step);
        if (a.wait.slot_map != NULL)
            load_cold<V>(a, p, &r);
        arrived = pi_global_ns();
        pi_pdl_wait();
        /* without a slot the payload is what a kernel in front has waited for */
        if (a.wait.slot_map == NULL || await_again(a.wait, a.step, epoch)) {
            load_cold<V>(a, p, &r);
            arrived = pi_global_ns();
        }
    }
    for (uint32_t item = blockIdx.x; item < n_items; item += gridDim.x) {
        p = place_of<V>(a, item);
        if (adds)
            sums[w * 32 + threadIdx.x] =
                sum_parts<V>(a.parts, a.n_parts, (size_t)a.n_tok * a.n_embd, p, w);
        else
            load_rest<V>(a, p, &r);
        if (!adds && item != blockIdx.x)
            load_cold<V>(a, p, &r);
        __syncthreads();
        if (!adds && p.inside)
            store_merged<V>(a, p, r, sum_of<V>(sums));
        __syncthreads();
    }
    if (!adds && blockIdx.x == 0 && threadIdx.x == 0 && a.wait.slot_map != NULL &&
        a.wait.waited != NULL && arrived > idle_since)
        *a.wait.waited += arrived - idle_since;
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % sizeof(float4) == 0;
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static uint32_t at_most(uint32_t n, uint32_t limit)
{
    return n < limit ? n : limit;
}

extern "C" void pi_k_merge(float *residual, const float *down_b, const float *parts,
                           uint32_t n_parts, const float *cold_map, const struct pi_k_wait *wait,
                           const struct pi_k_step *step, float *copy, uint32_t n_tok,
                           uint32_t n_embd, void *stream)
{
    const bool wide = n_embd % 4 == 0 && aligned(residual) && aligned(down_b) && aligned(parts) &&
                      aligned(cold_map) && aligned(copy);
    struct merge_args a = {};

    a.residual = residual;
    a.bias = down_b;
    a.parts = parts;
    a.cold = cold_map;
    a.wait = *wait;
    a.step = step;
    a.copy = copy;
    a.n_parts = n_parts;
    a.n_tok = n_tok;
    a.n_embd = n_embd;
    a.n_chunks = ceil_div(n_embd, wide ? 128 : 32);
    if (wide)
        PI_LAUNCH_PDL(merge<4>, at_most(n_tok * a.n_chunks, MAX_BLOCKS), dim3(32, SUM_WARPS + 1), 0,
                      (cudaStream_t)stream, a);
    else
        PI_LAUNCH_PDL(merge<1>, at_most(n_tok * a.n_chunks, MAX_BLOCKS), dim3(32, SUM_WARPS + 1), 0,
                      (cudaStream_t)stream, a);
}

/* ---- publishing parts ---- */

struct publish_args {
    const float *parts;
    float *out;
    uint32_t *slot;
    const struct pi_k_step *step;
    uint32_t *ticket;
    uint32_t n_parts;
    size_t n; /* floats in all: n_tok * n_embd */
};

/* Blocks (32, SUM_WARPS). Every block's stores are performed at system scope before it takes its ticket; the last one raises the flag. */
template <int V> static __global__ void publish_parts(struct publish_args a)
{
    __shared__ struct vec<V> sums[SUM_WARPS * 32];
    const uint32_t w = threadIdx.y;

    pi_pdl_trigger();
    pi_pdl_wait();
    for (size_t base = (size_t)blockIdx.x * 32 * V; base < a.n;
         base += (size_t)gridDim.x * 32 * V) {
        struct place p = {base + threadIdx.x * V, 0, base + threadIdx.x * V < a.n};

        sums[w * 32 + threadIdx.x] = sum_parts<V>(a.parts, a.n_parts, a.n, p, w);
        __syncthreads();
        if (w == 0 && p.inside)
            store<V>(a.out + p.at, sum_of<V>(sums));
        __syncthreads();
    }
    if (w == 0 && threadIdx.x == 0) {
        __threadfence_system();
        if (atomicAdd(a.ticket, 1u) == gridDim.x - 1) {
            *a.ticket = 0;
            __threadfence_system();
            if (a.slot != NULL)
                pi_st_release_sys(a.slot, a.step->step);
        }
    }
}

extern "C" void pi_k_publish_parts(const float *parts, uint32_t n_parts, float *out_map,
                                   uint32_t *slot_map, const struct pi_k_step *step,
                                   uint32_t *ticket, uint32_t n_tok, uint32_t n_embd, void *stream)
{
    const size_t n = (size_t)n_tok * n_embd;
    const bool wide = n % 4 == 0 && aligned(parts) && aligned(out_map);
    const size_t n_chunks = (n + (wide ? 127 : 31)) / (wide ? 128 : 32);
    const uint32_t n_blocks = n_chunks < MAX_BLOCKS ? (uint32_t)n_chunks : MAX_BLOCKS;
    struct publish_args a = {parts, out_map, slot_map, step, ticket, n_parts, n};

    if (wide)
        PI_LAUNCH_PDL(publish_parts<4>, n_blocks, dim3(32, SUM_WARPS), 0, (cudaStream_t)stream, a);
    else
        PI_LAUNCH_PDL(publish_parts<1>, n_blocks, dim3(32, SUM_WARPS), 0, (cudaStream_t)stream, a);
}

/* ---- receiving ---- */

struct receive_args {
    struct pi_k_wait wait;
    const struct pi_k_step *step;
    const float *src[2];
    float *dst[2];
    size_t n;
};

#define RECEIVE_THREADS 256

/* Nothing is stored before the kernels in front are done: they may still read dst. */
template <int V> static __global__ void receive(struct receive_args a)
{
    uint64_t begin = 0;

    pi_pdl_trigger();
    pi_pdl_wait();
    if (threadIdx.x == 0 && a.wait.slot_map != NULL) {
        begin = pi_global_ns();
        (void)poll_slot(a.wait, a.step);
        if (blockIdx.x == 0 && a.wait.waited != NULL)
            *a.wait.waited += pi_global_ns() - begin;
    }
    __syncthreads();
    for (size_t i = ((size_t)blockIdx.x * RECEIVE_THREADS + threadIdx.x) * V; i < a.n;
         i += (size_t)gridDim.x * RECEIVE_THREADS * V) {
        struct vec<V> first = load_map<V>(a.src[0] + i);

        if (a.dst[1] != NULL)
            store<V>(a.dst[1] + i, load_map<V>(a.src[1] + i));
        store<V>(a.dst[0] + i, first);
    }
}

extern "C" void pi_k_receive(const struct pi_k_wait *wait, const struct pi_k_step *step,
                             const float *src_map, float *dst, const float *src2_map, float *dst2,
                             size_t n, void *stream)
{
    const bool wide =
        n % 4 == 0 && aligned(src_map) && aligned(dst) && aligned(src2_map) && aligned(dst2);
    const size_t per_block = (size_t)RECEIVE_THREADS * (wide ? 4 : 1);
    const size_t n_chunks = (n + per_block - 1) / per_block;
    const uint32_t n_blocks = n_chunks < MAX_BLOCKS ? (uint32_t)n_chunks : MAX_BLOCKS;
    struct receive_args a = {*wait, step, {src_map, src2_map}, {dst, dst2}, n};

    if (wide)
        PI_LAUNCH_PDL(receive<4>, n_blocks, RECEIVE_THREADS, 0, (cudaStream_t)stream, a);
    else
        PI_LAUNCH_PDL(receive<1>, n_blocks, RECEIVE_THREADS, 0, (cudaStream_t)stream, a);
}
