/* pi_k_misc.cu - the first kernel of a step, and the norm whose result the CPU is given. */
#include "config.h"

#include "runtime/cuda/pi_k_dot.cuh"
#include "runtime/cuda/pi_k_q8.cuh"
#include "runtime/cuda/pi_kernels.h"

#define BEGIN_THREADS 256
#define NORM_THREADS  1024
#define NORM_WARPS    (NORM_THREADS / 32)

/* ---- begin ---- */

/* Mapped memory is read past the caches: a replay of the graph must see what the host wrote since the last one. */
__global__ static void begin_kernel(const struct pi_k_step *step_map, struct pi_k_step *step,
                                    const float *embd_map, float *residual, size_t n, bool vec)
{
    const uint32_t *from = (const uint32_t *)step_map;
    uint32_t *to = (uint32_t *)step;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, all = (size_t)gridDim.x * blockDim.x;

    pi_pdl_trigger();
    if (vec) {
        for (size_t k = i; k < n / 4; k += all)
            ((float4 *)residual)[k] = pi_ld_volatile_f4((const float4 *)embd_map + k);
    } else {
        for (size_t k = i; k < n; k += all)
            residual[k] = pi_ld_volatile_f32(embd_map + k);
    }
    if (blockIdx.x == 0) {
        for (uint32_t k = threadIdx.x; k < sizeof(*step) / 4; k += blockDim.x)
            to[k] = pi_ld_relaxed_sys(from + k);
    }
}

extern "C" void pi_k_begin(const struct pi_k_step *step_map, struct pi_k_step *step,
                           const float *embd_map, float *residual, uint32_t n_tok, uint32_t n_embd,
                           void *stream)
{
    size_t n = (size_t)n_tok * n_embd, blocks = (n / 4 + BEGIN_THREADS - 1) / BEGIN_THREADS;

    blocks = blocks < 1 ? 1 : blocks > 64 ? 64 : blocks;
    pi_k_prepare(begin_kernel, 0);
    PI_LAUNCH(begin_kernel, (unsigned)blocks, BEGIN_THREADS, 0, (cudaStream_t)stream, step_map,
              step, embd_map, residual, n, n % 4 == 0);
}

/* ---- norm and publish ---- */

struct norm_args {
    struct pi_k_norm norm;
    const float *in;
    float *out, *out_map, *raw_map;
    uint32_t *slot_map;
    const struct pi_k_step *step;
    uint32_t n_tok, n;
};

struct norm_sums {
    float of[PI_K_MAX_TOKENS][NORM_WARPS];
};

PI_DEVICE void norm_put(struct norm_sums *s, uint32_t t, float v)
{
    v = pi_warp_sum(v);
    if (threadIdx.x % 32 == 0)
        s->of[t][threadIdx.x / 32] = v;
}

/* The sum over all warps, in every thread. */
PI_DEVICE float norm_get(const struct norm_sums *s, uint32_t t)
{
    uint32_t lane = threadIdx.x % 32;

    return pi_warp_sum(lane < blockDim.x / 32 ? s->of[t][lane] : 0.0f);
}

PI_DEVICE float norm_off(float v, float mean, bool ok)
{
    return ok ? (v - mean) * (v - mean) : 0.0f;
}

/* Sums over a token's values, or over the squares of their distances from mean. */
PI_DEVICE float norm_sum(const struct norm_args &a, uint32_t t, float mean, bool squares)
{
    const float *x = a.in + (size_t)t * a.n;
    float sum = 0.0f;

    for (uint32_t f = threadIdx.x; f < (a.n + 3) / 4; f += blockDim.x) {
        float4 v = pi_x_get(x, a.n, f, a.n % 4 == 0);
        uint32_t i = 4 * f;

        if (squares)
            sum += (norm_off(v.x, mean, true) + norm_off(v.y, mean, i + 1 < a.n)) +
                   (norm_off(v.z, mean, i + 2 < a.n) + norm_off(v.w, mean, i + 3 < a.n));
        else
            sum += (v.x + v.y) + (v.z + v.w);
    }
    return sum;
}

PI_DEVICE void norm_store(float *to, uint32_t n, uint32_t f, float4 v)
{
    uint32_t i = 4 * f;

    if (n % 4 == 0) {
        ((float4 *)to)[f] = v;
        return;
    }
    to[i] = v.x;
    if (i + 1 < n)
        to[i + 1] = v.y;
    if (i + 2 < n)
        to[i + 2] = v.z;
    if (i + 3 < n)
        to[i + 3] = v.w;
}

PI_DEVICE void norm_token(const struct norm_args &a, uint32_t t, float mean, float inv)
{
    const bool vec = a.n % 4 == 0;
    const uint32_t n4 = (a.n + 3) / 4;
    size_t row = (size_t)t * a.n;

    /* whole warps go round together: they round together */
    for (uint32_t f0 = 0; f0 < n4; f0 += blockDim.x) {
        uint32_t f = f0 + threadIdx.x;
        float4 x = pi_x_get(a.in + row, a.n, f, vec), v = x;

        if (a.norm.w != NULL) {
            float4 w = pi_x_get(a.norm.w, a.n, f, vec);
            float4 b = a.norm.b != NULL ? pi_x_get(a.norm.b, a.n, f, vec)
                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);

            v = make_float4((x.x - mean) * inv * w.x + b.x, (x.y - mean) * inv * w.y + b.y,
                            (x.z - mean) * inv * w.z + b.z, (x.w - mean) * inv * w.w + b.w);
        }
        if (a.norm.q8)
            v = pi_q8_round4(v);
        if (f >= n4)
            continue;
        if (a.out_map != NULL)
            norm_store(a.out_map + row, a.n, f, v);
        if (a.raw_map != NULL)
            norm_store(a.raw_map + row, a.n, f, x);
        norm_store(a.out + row, a.n, f, v);
    }
}

/* Tokens blockIdx.x, + gridDim.x ...: all of them in one block where a slot is to be set, since it may only be when all is there. */
__global__ static void __launch_bounds__(NORM_THREADS) norm_kernel(const struct norm_args a)
{
    __shared__ struct norm_sums sums[2];
    const bool layer = a.norm.w != NULL && a.norm.layer_norm, rms = a.norm.w != NULL && !layer;

    pi_pdl_trigger();
    if (threadIdx.x == 0 && a.n >= 4 && a.norm.w != NULL)
        pi_prefetch_l2(a.norm.w, a.n / 4 * 16);
    if (threadIdx.x == 0 && a.n >= 4 && a.norm.w != NULL && a.norm.b != NULL)
        pi_prefetch_l2(a.norm.b, a.n / 4 * 16);
    pi_pdl_wait();
    for (uint32_t t = blockIdx.x; layer && t < a.n_tok; t += gridDim.x)
        norm_put(&sums[0], t, norm_sum(a, t, 0.0f, false));
    if (layer)
        __syncthreads();
    for (uint32_t t = blockIdx.x; a.norm.w != NULL && t < a.n_tok; t += gridDim.x) {
        float mean = layer ? norm_get(&sums[0], t) / (float)a.n : 0.0f;

        norm_put(&sums[1], t, norm_sum(a, t, mean, true));
    }
    __syncthreads();
    for (uint32_t t = blockIdx.x; t < a.n_tok; t += gridDim.x) {
        float mean = layer ? norm_get(&sums[0], t) / (float)a.n : 0.0f, inv = 1.0f;

        if (layer || rms)
            inv = 1.0f / sqrtf(norm_get(&sums[1], t) / (float)a.n + a.norm.eps);
        norm_token(a, t, mean, inv);
    }
    if (a.slot_map == NULL)
        return;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0)
        pi_st_release_sys(a.slot_map, a.step->step);
}

extern "C" void pi_k_norm_publish(const struct pi_k_norm *norm, const float *in, float *out,
                                  float *out_map, float *raw_map, uint32_t *slot_map,
                                  const struct pi_k_step *step, uint32_t n_tok, uint32_t n_embd,
                                  void *stream)
{
    struct norm_args a = {*norm, in, out, out_map, raw_map, slot_map, step, n_tok, n_embd};
    uint32_t threads = ((n_embd + 3) / 4 + 31) / 32 * 32;

    threads = threads < NORM_THREADS ? threads : NORM_THREADS;
    pi_k_prepare(norm_kernel, 0);
    PI_LAUNCH_PDL(norm_kernel, slot_map != NULL ? 1 : n_tok, threads, 0, (cudaStream_t)stream, a);
}
