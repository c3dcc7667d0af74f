/* pi_k_train.h: element-wise work of training predictors. Sums run over fixed slices of tokens, added up in order. */
#include "config.h"

#include "runtime/cuda/pi_k_train.h"

#include "runtime/cuda/pi_cuda_port.cuh"

#define THREADS    256
#define MAX_GRID_Y 32768u
#define BLOCKS     2048u /* of grid-stride kernels */

static uint32_t blocks_of(size_t n)
{
    const size_t blocks = (n + THREADS - 1) / THREADS;

    return blocks < BLOCKS ? (uint32_t)blocks : BLOCKS;
}

__global__ static void rows_kernel(const float *x, const uint32_t *rows, const float *mean,
                                   float *out, uint32_t n, uint32_t d)
{
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;

    for (uint32_t t = blockIdx.y; t < n && i < d; t += gridDim.y)
        out[(size_t)t * d + i] = x[(size_t)rows[t] * d + i] - (mean != NULL ? mean[i] : 0.0f);
}

extern "C" void pi_kt_rows(const float *x, const uint32_t *rows, const float *mean, float *out,
                           uint32_t n, uint32_t d, void *stream)
{
    const dim3 grid((d + THREADS - 1) / THREADS, n < MAX_GRID_Y ? n : MAX_GRID_Y);

    if (n > 0)
        PI_LAUNCH(rows_kernel, grid, THREADS, 0, (cudaStream_t)stream, x, rows, mean, out, n, d);
}

__global__ static void zero_kernel(float *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        x[i] = 0.0f;
}

extern "C" void pi_kt_zero(float *x, size_t n, void *stream)
{
    if (n > 0)
        PI_LAUNCH(zero_kernel, blocks_of(n), THREADS, 0, (cudaStream_t)stream, x, n);
}

__global__ static void relu_kernel(float *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

extern "C" void pi_kt_relu(float *x, size_t n, void *stream)
{
    if (n > 0)
        PI_LAUNCH(relu_kernel, blocks_of(n), THREADS, 0, (cudaStream_t)stream, x, n);
}

__global__ static void mask_kernel(float *y, const float *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        y[i] = x[i] > 0.0f ? y[i] : 0.0f;
}

extern "C" void pi_kt_mask(float *y, const float *x, size_t n, void *stream)
{
    if (n > 0)
        PI_LAUNCH(mask_kernel, blocks_of(n), THREADS, 0, (cudaStream_t)stream, y, x, n);
}

__global__ static void fill_kernel(float *z, const float *row, uint32_t n, uint32_t n_cols)
{
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;

    for (uint32_t t = blockIdx.y; t < n && i < n_cols; t += gridDim.y)
        z[(size_t)t * n_cols + i] = row[i];
}

extern "C" void pi_kt_fill(float *z, const float *row, uint32_t n, uint32_t n_cols, void *stream)
{
    const dim3 grid((n_cols + THREADS - 1) / THREADS, n < MAX_GRID_Y ? n : MAX_GRID_Y);

    if (n > 0)
        PI_LAUNCH(fill_kernel, grid, THREADS, 0, (cudaStream_t)stream, z, row, n, n_cols);
}

/* Block (columns, slice of tokens): a thread walks down one column of its slice. */
__global__ static void gradient_kernel(struct pi_kt_gradient a)
{
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    const uint32_t begin = (uint32_t)((uint64_t)a.n * blockIdx.y / PI_KT_PARTS),
                   end = (uint32_t)((uint64_t)a.n * (blockIdx.y + 1) / PI_KT_PARTS);
    float sum = 0.0f, b;

    if (i >= a.n_ff)
        return;
    b = a.bias[i];
    for (uint32_t t = begin; t < end; t++) {
        float *z = a.z + (size_t)t * a.n_ff + i;
        const float w = (float)a.code[a.rows[t] * a.ld + i] * a.scale;
        const float x = fminf(fmaxf(-(*z + b), -80.0f), 80.0f), s = 1.0f / (1.0f + expf(x));
        const float dz = w > 0.0f ? w * (s - 1.0f) : s;

        *z = dz;
        sum += dz;
    }
    a.parts[(size_t)blockIdx.y * a.n_ff + i] = sum;
}

__global__ static void sum_parts_kernel(const float *parts, float *sum, uint32_t n)
{
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    float s = 0.0f;

    if (i >= n)
        return;
    for (uint32_t p = 0; p < PI_KT_PARTS; p++)
        s += parts[(size_t)p * n + i];
    sum[i] += s;
}

extern "C" void pi_kt_gradient(const struct pi_kt_gradient *a, void *stream)
{
    const uint32_t across = (a->n_ff + THREADS - 1) / THREADS;

    PI_LAUNCH(gradient_kernel, dim3(across, PI_KT_PARTS), THREADS, 0, (cudaStream_t)stream, *a);
    PI_LAUNCH(sum_parts_kernel, across, THREADS, 0, (cudaStream_t)stream, a->parts, a->sum,
              a->n_ff);
}

__global__ static void adam_kernel(struct pi_kt_adam a)
{
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < a.n;
         i += (size_t)gridDim.x * THREADS) {
        const float g = a.g[i];
        const float m = a.beta1 * a.m[i] + (1.0f - a.beta1) * g;
        const float v = a.beta2 * a.v[i] + (1.0f - a.beta2) * g * g;

        a.m[i] = m;
        a.v[i] = v;
        a.w[i] -= a.rate * (m * a.c1) / (sqrtf(v * a.c2) + a.epsilon);
    }
}

extern "C" void pi_kt_adam(const struct pi_kt_adam *a, void *stream)
{
    if (a->n > 0)
        PI_LAUNCH(adam_kernel, blocks_of(a->n), THREADS, 0, (cudaStream_t)stream, *a);
}
