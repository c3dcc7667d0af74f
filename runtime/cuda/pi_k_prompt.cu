/* pi_k_prompt.h: element-wise work of prompt chunks. One block a token where a row has a sum or a maximum; sums in the order of the block's tree. */
#include "config.h"

#include "runtime/cuda/pi_k_prompt.h"

#include "runtime/cuda/pi_cuda_port.cuh"
#include "runtime/cuda/pi_k_q8.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)

/* ---- pieces ---- */

__device__ static float warp_sum(float x)
{
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

__device__ static float warp_max(float x)
{
    for (int i = 16; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* All threads get the result. */
__device__ static float block_sum(float x)
{
    __shared__ float part[WARPS];

    x = warp_sum(x);
    __syncthreads(); /* the last call's result was read */
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0f;
    for (int i = 0; i < WARPS; i++)
        x += part[i];
    return x;
}

__device__ static float block_max(float x)
{
    __shared__ float part[WARPS];

    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
    for (int i = 1; i < WARPS; i++)
        x = fmaxf(x, part[i]);
    return x;
}

/* The power of two that brings max (>= 0) into [512, 1024); 1 for 0, infinity and NaN. Both it and its reciprocal are normal numbers. */
__device__ static float row_factor(float max)
{
    int e = 0;

    if (!(max > 0.0f) || isinf(max))
        return 1.0f;
    (void)frexpf(max, &e); /* max in [2^(e-1), 2^e) */
    e = 10 - e;
    e = e > 126 ? 126 : e < -126 ? -126 : e;
    return ldexpf(1.0f, e);
}

__device__ static float scale_of(const float *scale, uint32_t t)
{
    return scale != NULL ? scale[t] : 1.0f;
}

/* ---- norms ---- */

/* Arguments of kernels are structs without holes: what is in a hole could be taken for an address. */
struct norm_args {
    const float *w, *b;
    const float *in;
    const uint32_t *rows;
    float *out32;
    __half *out16;
    float *scale;
    float eps;
    uint32_t n, layer_norm, q8;
};

/* mean and 1 / sqrt(variance + eps), or 0 and 1 / sqrt(mean square + eps) */
__device__ static float2 moments(const norm_args &a, const float *x)
{
    float mean = 0.0f, sum = 0.0f;

    if (a.layer_norm) {
        for (uint32_t i = threadIdx.x; i < a.n; i += THREADS)
            sum += x[i];
        mean = block_sum(sum) / (float)a.n;
    }
    sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.n; i += THREADS)
        sum = fmaf(x[i] - mean, x[i] - mean, sum);
    return make_float2(mean, 1.0f / sqrtf(block_sum(sum) / (float)a.n + a.eps));
}

/* Element i, by all lanes of a warp, for 32 elements in a row. */
__device__ static float normed(const norm_args &a, const float *x, float2 m, uint32_t i)
{
    float y = 0.0f;

    if (i < a.n && a.w == NULL)
        y = x[i];
    else if (i < a.n)
        y = (x[i] - m.x) * m.y * a.w[i] + (a.b != NULL ? a.b[i] : 0.0f);
    return a.q8 ? pi_q8_round(y) : y;
}

__global__ static void norm_kernel(norm_args a)
{
    const uint32_t t = blockIdx.x;
    const float *x = a.in + (size_t)(a.rows != NULL ? a.rows[t] : t) * a.n;
    float2 m = make_float2(0.0f, 1.0f);
    float max = 0.0f, factor;

    if (a.w != NULL)
        m = moments(a, x);
    for (uint32_t i0 = 0; i0 < a.n; i0 += THREADS) {
        uint32_t i = i0 + threadIdx.x;
        float y = normed(a, x, m, i);

        max = fmaxf(max, fabsf(y));
        if (a.out32 != NULL && i < a.n)
            a.out32[(size_t)t * a.n + i] = y;
    }
    if (a.out16 == NULL)
        return;
    factor = row_factor(block_max(max));
    for (uint32_t i0 = 0; i0 < a.n; i0 += THREADS) {
        uint32_t i = i0 + threadIdx.x;
        float y = normed(a, x, m, i);

        if (i < a.n)
            a.out16[(size_t)t * a.n + i] = __float2half(y * factor);
    }
    if (threadIdx.x == 0)
        a.scale[t] = 1.0f / factor;
}

extern "C" void pi_kp_norm(const struct pi_k_norm *norm, const float *in, const uint32_t *rows,
                           float *out32, void *out16, float *scale, uint32_t n_tok, uint32_t n_embd,
                           void *stream)
{
    norm_args a = {norm->w, norm->b,          in, rows, out32, (__half *)out16, scale, norm->eps,
                   n_embd,  norm->layer_norm, norm->q8};

    if (n_tok > 0)
        PI_LAUNCH(norm_kernel, n_tok, THREADS, 0, (cudaStream_t)stream, a);
}

/* ---- rotary embedding, KV cache ---- */

struct rope_args {
    const float *q_b, *k_b, *v_b, *q_scale, *k_scale, *v_scale, *inv_freq;
    float mscale;
    uint32_t neox, n_head, n_head_kv, head_dim, n_rot, n_ctx, spare;
    float *q;
    const float *k, *v;
    void *k_cache, *v_cache;
    const pi_kp_token *tokens;
};

/* Element i of a head after rotation; x: the head, s: what it is multiplied by, b: its biases or NULL. */
__device__ static float rotated(const rope_args &a, const float *x, float s, const float *b,
                                int32_t pos, uint32_t i)
{
    const uint32_t half = a.n_rot / 2;
    uint32_t pair, other;
    float self = x[i] * s + (b != NULL ? b[i] : 0.0f), far, sine, cosine;
    bool first;

    if (i >= a.n_rot || a.inv_freq == NULL)
        return self;
    pair = a.neox ? i % half : i / 2;
    first = a.neox ? i < half : i % 2 == 0;
    other = a.neox ? (first ? i + half : i - half) : i ^ 1u;
    far = x[other] * s + (b != NULL ? b[other] : 0.0f);
    sincosf((float)pos * a.inv_freq[pair], &sine, &cosine);
    sine *= a.mscale;
    cosine *= a.mscale;
    return first ? self * cosine - far * sine : far * sine + self * cosine;
}

__device__ static void store(__half *row, uint32_t i, float x)
{
    row[i] = __float2half(x);
}

__device__ static void store(float *row, uint32_t i, float x)
{
    row[i] = x;
}

/* Block (t, h): heads are numbered q first, then k, then v. q is rotated in place: all of a head is read before any of it is written. */
template <typename KV> __global__ static void rope_store_kernel(rope_args a)
{
    const uint32_t t = blockIdx.x, hd = a.head_dim, n_kv = a.n_head_kv * hd;
    const pi_kp_token tok = a.tokens[t];
    const size_t row = ((size_t)tok.seq * a.n_ctx + (size_t)tok.pos) * n_kv;
    uint32_t h = blockIdx.y;

    if (h < a.n_head) {
        float *x = a.q + (size_t)t * a.n_head * hd + h * hd, y = 0.0f;
        const float *b = a.q_b != NULL ? a.q_b + h * hd : NULL;
        const float root = 1.0f / sqrtf((float)hd);

        if (threadIdx.x < hd)
            y = rotated(a, x, scale_of(a.q_scale, t), b, tok.pos, threadIdx.x) * root;
        __syncthreads();
        if (threadIdx.x < hd)
            x[threadIdx.x] = y;
        return;
    }
    h -= a.n_head;
    if (threadIdx.x >= hd)
        return;
    if (h < a.n_head_kv) {
        const float *x = a.k + (size_t)t * n_kv + h * hd;
        const float *b = a.k_b != NULL ? a.k_b + h * hd : NULL;

        store((KV *)a.k_cache + row, h * hd + threadIdx.x,
              rotated(a, x, scale_of(a.k_scale, t), b, tok.pos, threadIdx.x));
        return;
    }
    h = (h - a.n_head_kv) * hd + threadIdx.x;
    store((KV *)a.v_cache + row, h,
          a.v[(size_t)t * n_kv + h] * scale_of(a.v_scale, t) + (a.v_b != NULL ? a.v_b[h] : 0.0f));
}

extern "C" void pi_kp_rope_store(const struct pi_kp_qkv *p, float *q, const float *k,
                                 const float *v, const struct pi_kp_token *tokens, uint32_t n_tok,
                                 void *stream)
{
    const struct pi_shape *s = p->shape;
    rope_args a = {p->q_b,
                   p->k_b,
                   p->v_b,
                   p->q_scale,
                   p->k_scale,
                   p->v_scale,
                   p->inv_freq,
                   p->rope_mscale,
                   s->rope_neox,
                   s->n_head,
                   s->n_head_kv,
                   s->head_dim,
                   s->n_rot,
                   p->n_ctx,
                   0,
                   q,
                   k,
                   v,
                   p->k_cache,
                   p->v_cache,
                   tokens};
    const dim3 grid(n_tok, s->n_head + 2 * s->n_head_kv);
    const uint32_t threads = (s->head_dim + 31) / 32 * 32;

    if (n_tok == 0)
        return;
    if (p->kv_type == PI_TYPE_F16)
        PI_LAUNCH((rope_store_kernel<__half>), grid, threads, 0, (cudaStream_t)stream, a);
    else
        PI_LAUNCH((rope_store_kernel<float>), grid, threads, 0, (cudaStream_t)stream, a);
}

/* ---- activation ---- */

struct act_args {
    const float *gate_scale, *up_scale, *up_b;
    float *gate, *up; /* gate NULL: there is none */
    __half *prod16;
    float *scale;
    uint32_t n, ld;
    enum pi_activation act;
    float threshold;
};

/* pi_activate() */
__device__ static float activate(const act_args &a, float x)
{
    switch (a.act) {
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

__global__ static void act_kernel(act_args a)
{
    const uint32_t t = blockIdx.x;
    const float gs = scale_of(a.gate_scale, t), us = scale_of(a.up_scale, t);
    float *gate = a.gate != NULL ? a.gate + (size_t)t * a.ld : NULL, *up = a.up + (size_t)t * a.ld;
    float max = 0.0f, factor;

    for (uint32_t i = threadIdx.x; i < a.n; i += THREADS) {
        float y = up[i] * us + (a.up_b != NULL ? a.up_b[i] : 0.0f);

        if (gate != NULL) {
            float h = activate(a, gate[i] * gs);

            gate[i] = h;
            y = h * y;
        } else {
            y = activate(a, y);
        }
        up[i] = y;
        max = fmaxf(max, fabsf(y));
    }
    if (a.prod16 == NULL)
        return;
    factor = row_factor(block_max(max));
    for (uint32_t i = threadIdx.x; i < a.n; i += THREADS)
        a.prod16[(size_t)t * a.ld + i] = __float2half(up[i] * factor);
    if (threadIdx.x == 0)
        a.scale[t] = 1.0f / factor;
}

extern "C" void pi_kp_act(const struct pi_kp_act *p, uint32_t n_tok, void *stream)
{
    const struct pi_shape *s = p->shape;
    act_args a = {p->gate_scale,   p->up_scale,
                  p->up_b,         s->gated ? p->gate : NULL,
                  p->up,           (__half *)p->prod16,
                  p->scale,        p->n,
                  p->ld,           s->act,
                  s->act_threshold};

    if (n_tok > 0)
        PI_LAUNCH(act_kernel, n_tok, THREADS, 0, (cudaStream_t)stream, a);
}

/* ---- sums ---- */

__global__ static void add_kernel(float *residual, const float *src, const float *scale,
                                  const float *bias, uint32_t n)
{
    const uint32_t t = blockIdx.y, i = blockIdx.x * THREADS + threadIdx.x;
    const size_t at = (size_t)t * n + i;

    if (i < n)
        residual[at] +=
            (src != NULL ? src[at] * scale_of(scale, t) : 0.0f) + (bias != NULL ? bias[i] : 0.0f);
}

extern "C" void pi_kp_add(float *residual, const float *src, const float *scale, const float *bias,
                          uint32_t n_tok, uint32_t n_embd, void *stream)
{
    const dim3 grid((n_embd + THREADS - 1) / THREADS, n_tok);

    if (n_tok > 0 && (src != NULL || bias != NULL))
        PI_LAUNCH(add_kernel, grid, THREADS, 0, (cudaStream_t)stream, residual, src, scale, bias,
                  n_embd);
}

__global__ static void scale_kernel(float *x, uint32_t ld, uint32_t n, const float *scale)
{
    const uint32_t t = blockIdx.y, i = blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        x[(size_t)t * ld + i] *= scale[t];
}

extern "C" void pi_kp_scale(float *x, uint32_t ld, uint32_t n, const float *scale, uint32_t n_tok,
                            void *stream)
{
    const dim3 grid((n + THREADS - 1) / THREADS, n_tok);

    if (n_tok > 0 && n > 0)
        PI_LAUNCH(scale_kernel, grid, THREADS, 0, (cudaStream_t)stream, x, ld, n, scale);
}

/* ---- conversion of weights ---- */

/* Four neighbouring elements from i (a multiple of 4) on, of a row in the device's layout that is padded to 16 bytes; values behind the row's end
 * are of no account. n: elements of the row. */
template <int TYPE> __device__ static float4 load4(const uint8_t *row, uint32_t i, uint32_t n);

template <> __device__ float4 load4<PI_TYPE_F32>(const uint8_t *row, uint32_t i, uint32_t n)
{
    (void)n;
    return *(const float4 *)(row + (size_t)i * 4);
}

template <> __device__ float4 load4<PI_TYPE_F16>(const uint8_t *row, uint32_t i, uint32_t n)
{
    const __half2 *p = (const __half2 *)(row + (size_t)i * 2);
    const float2 a = __half22float2(p[0]), b = __half22float2(p[1]);

    (void)n;
    return make_float4(a.x, a.y, b.x, b.y);
}

template <> __device__ float4 load4<PI_TYPE_BF16>(const uint8_t *row, uint32_t i, uint32_t n)
{
    const __nv_bfloat162 *p = (const __nv_bfloat162 *)(row + (size_t)i * 2);
    const float2 a = __bfloat1622float2(p[0]), b = __bfloat1622float2(p[1]);

    (void)n;
    return make_float4(a.x, a.y, b.x, b.y);
}

template <> __device__ float4 load4<PI_TYPE_Q8_0>(const uint8_t *row, uint32_t i, uint32_t n)
{
    const uint32_t v = *(const uint32_t *)(row + i);
    const float d = __half2float(((const __half *)(row + n))[i / 32]);

    return make_float4(d * (float)(int8_t)(v & 0xff), d * (float)(int8_t)(v >> 8 & 0xff),
                       d * (float)(int8_t)(v >> 16 & 0xff), d * (float)(int8_t)(v >> 24));
}

template <> __device__ float4 load4<PI_TYPE_Q4_0>(const uint8_t *row, uint32_t i, uint32_t n)
{
    const uint32_t v = *(const uint32_t *)(row + i / 32 * 16 + i % 16) >> (i % 32 < 16 ? 0 : 4);
    const float d = __half2float(((const __half *)(row + n / 2))[i / 32]);

    return make_float4(d * (float)((int)(v & 15) - 8), d * (float)((int)(v >> 8 & 15) - 8),
                       d * (float)((int)(v >> 16 & 15) - 8), d * (float)((int)(v >> 24 & 15) - 8));
}

__device__ static void put(float *out, float x)
{
    *out = x;
}

__device__ static void put(__half *out, float x)
{
    *out = __float2half(x);
}

/* Four elements a thread, a row of blocks a matrix row. Whole vectors out where the row allows. */
template <int TYPE, typename OUT>
__global__ static void convert_kernel(const uint8_t *w, size_t row_bytes, uint32_t n_cols, OUT *out)
{
    const uint32_t i = 4 * (blockIdx.x * THREADS + threadIdx.x);
    float4 x;

    if (i >= n_cols)
        return;
    x = load4<TYPE>(w + blockIdx.y * row_bytes, i, n_cols);
    out += (size_t)blockIdx.y * n_cols + i;
    if (n_cols % 4 == 0 && sizeof(OUT) == 4) {
        *(float4 *)out = x;
    } else if (n_cols % 4 == 0) {
        ((__half2 *)out)[0] = __floats2half2_rn(x.x, x.y);
        ((__half2 *)out)[1] = __floats2half2_rn(x.z, x.w);
    } else {
        put(out, x.x);
        if (i + 1 < n_cols)
            put(out + 1, x.y);
        if (i + 2 < n_cols)
            put(out + 2, x.z);
        if (i + 3 < n_cols)
            put(out + 3, x.w);
    }
}

#define MAX_GRID_Y 32768u

template <int TYPE, typename OUT>
static void convert(const struct pi_dmat *w, uint32_t first, uint32_t n, OUT *out, cudaStream_t s)
{
    for (uint32_t r = 0; r < n; r += MAX_GRID_Y) {
        const dim3 grid((w->n_cols + 4 * THREADS - 1) / (4 * THREADS),
                        n - r < MAX_GRID_Y ? n - r : MAX_GRID_Y);

        PI_LAUNCH((convert_kernel<TYPE, OUT>), grid, THREADS, 0, s,
                  (const uint8_t *)w->data + (size_t)(first + r) * w->row_bytes, w->row_bytes,
                  w->n_cols, out + (size_t)r * w->n_cols);
    }
}

template <typename OUT>
static void convert_any(const struct pi_dmat *w, uint32_t first, uint32_t n, OUT *out,
                        cudaStream_t s)
{
    switch (w->type) {
    case PI_TYPE_F32:
        convert<PI_TYPE_F32, OUT>(w, first, n, out, s);
        break;
    case PI_TYPE_F16:
        convert<PI_TYPE_F16, OUT>(w, first, n, out, s);
        break;
    case PI_TYPE_BF16:
        convert<PI_TYPE_BF16, OUT>(w, first, n, out, s);
        break;
    case PI_TYPE_Q8_0:
        convert<PI_TYPE_Q8_0, OUT>(w, first, n, out, s);
        break;
    case PI_TYPE_Q4_0:
        convert<PI_TYPE_Q4_0, OUT>(w, first, n, out, s);
        break;
    default:
        break;
    }
}

extern "C" void pi_kp_convert(const struct pi_dmat *w, uint32_t first, uint32_t n,
                              enum pi_type type, void *out, void *stream)
{
    if (type == PI_TYPE_F16)
        convert_any(w, first, n, (__half *)out, (cudaStream_t)stream);
    else
        convert_any(w, first, n, (float *)out, (cudaStream_t)stream);
}

/* ---- rows out of host memory ---- */

/* One block a row; V: the widest vector that source rows are made of. */
template <typename V>
__global__ static void gather_kernel(const uint8_t *src, size_t row_bytes, const uint32_t *ids,
                                     uint32_t n_vec, uint8_t *dst, size_t dst_row_bytes)
{
    const V *from = (const V *)(src + (size_t)ids[blockIdx.x] * row_bytes);
    V *to = (V *)(dst + blockIdx.x * dst_row_bytes);

    for (uint32_t i = threadIdx.x; i < n_vec; i += THREADS)
        to[i] = from[i];
}

extern "C" void pi_kp_gather(const void *src, size_t row_bytes, const uint32_t *ids, uint32_t n,
                             uint32_t n_cols, uint32_t elem_bytes, void *dst, size_t dst_row_bytes,
                             void *stream)
{
    const size_t bytes = (size_t)n_cols * elem_bytes;
    const uint8_t *from = (const uint8_t *)src;
    const cudaStream_t s = (cudaStream_t)stream;

    if (n == 0)
        return;
    if (((uintptr_t)from | row_bytes | bytes) % 16 == 0)
        PI_LAUNCH((gather_kernel<uint4>), n, THREADS, 0, s, from, row_bytes, ids,
                  (uint32_t)(bytes / 16), (uint8_t *)dst, dst_row_bytes);
    else if (elem_bytes == 4)
        PI_LAUNCH((gather_kernel<uint32_t>), n, THREADS, 0, s, from, row_bytes, ids, n_cols,
                  (uint8_t *)dst, dst_row_bytes);
    else
        PI_LAUNCH((gather_kernel<uint16_t>), n, THREADS, 0, s, from, row_bytes, ids, n_cols,
                  (uint8_t *)dst, dst_row_bytes);
}
