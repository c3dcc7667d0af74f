/* pi_gpu.h on the CUDA runtime: devices, memory, and what they can move per second. */
#include "config.h"

#include "runtime/pi_gpu.h"

#include "runtime/cuda/pi_cuda_port.cuh"

#include <stdio.h>
#include <string.h>

extern "C" int pi_gpu_count(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return n;
}

static enum pi_code check_index(int index, struct pi_err *err)
{
    int n = pi_gpu_count();

    if (index < 0 || index >= n)
        return pi_err_set(err, PI_E_NODEV, "GPU %d: this machine has %d usable GPU%s", index, n,
                          n == 1 ? "" : "s");
    return PI_OK;
}

extern "C" enum pi_code pi_gpu_describe(int index, struct pi_gpu_info *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct cudaDeviceProp p;
    size_t free_bytes = 0, total = 0;

    PI_TRY(check_index(index, err));
    PI_CUDA_TRY(err, cudaSetDevice(index));
    PI_CUDA_TRY(err, cudaGetDeviceProperties(&p, index));
    PI_CUDA_TRY(err, cudaMemGetInfo(&free_bytes, &total));
    memset(out, 0, sizeof(*out));
    (void)snprintf(out->name, sizeof(out->name), "%.63s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    out->memory_bytes = total;
    out->free_bytes = free_bytes;
    out->n_sm = p.multiProcessorCount;
    out->pci_bus = p.pciBusID;
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_alloc(int index, size_t bytes, struct pi_dev_buf *buf,
                                     struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    void *p = NULL;

    PI_TRY(check_index(index, err));
    PI_CUDA_TRY(err, cudaSetDevice(index));
    PI_CUDA_TRY(err, cudaMalloc(&p, bytes));
    /* Streams do not wait for the legacy stream that zeroes: be done before anybody uses it. */
    PI_CUDA_TRY(err, cudaMemset(p, 0, bytes));
    PI_CUDA_TRY(err, cudaStreamSynchronize(0));
    buf->ptr = p;
    buf->bytes = bytes;
    p = NULL;
out:
    (void)cudaFree(p);
    return rc;
}

extern "C" void pi_gpu_free(struct pi_dev_buf *b)
{
    (void)cudaFree(b->ptr);
    memset(b, 0, sizeof(*b));
}

static enum pi_code check_range(const struct pi_dev_buf *b, size_t offset, size_t n,
                                struct pi_err *err)
{
    if (offset > b->bytes || n > b->bytes - offset)
        return pi_err_set(err, PI_E_RANGE, "device buffer of %zu bytes: no room for %zu at %zu",
                          b->bytes, n, offset);
    return PI_OK;
}

extern "C" enum pi_code pi_gpu_upload(const struct pi_dev_buf *dst, size_t offset, const void *src,
                                      size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(check_range(dst, offset, n, err));
    PI_CUDA_TRY(err, cudaMemcpy((char *)dst->ptr + offset, src, n, cudaMemcpyHostToDevice));
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_download(void *dst, const struct pi_dev_buf *src, size_t offset,
                                        size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(check_range(src, offset, n, err));
    PI_CUDA_TRY(err, cudaMemcpy(dst, (const char *)src->ptr + offset, n, cudaMemcpyDeviceToHost));
out:
    return rc;
}

/* ---- measurement ------------------------------------------------------------------------ */

/* Reads n vectors of 16 bytes, grid-stride; the sum keeps the compiler from dropping the loads. */
__global__ static void read_all(const uint4 *x, size_t n, unsigned *sink)
{
    unsigned s = 0;

    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = x[i];

        s += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (s == 0xdeadbeefu) /* never over zeroed memory */
        *sink = s;
}

__global__ static void touch(volatile unsigned *x)
{
    *x += 1;
}

#define N_REPEATS 5

struct meter {
    cudaEvent_t begin, end;
    void *dev, *pinned;
    size_t dev_bytes, pinned_bytes;
    int n_sm;
};

/* Ends the timing that m->begin started; keeps the shortest in *seconds (0: none yet). */
static enum pi_code keep_shortest(const struct meter *m, double *seconds, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float ms = 0.0f;

    PI_CUDA_TRY(err, cudaEventRecord(m->end, 0));
    PI_CUDA_TRY(err, cudaEventSynchronize(m->end));
    PI_CUDA_TRY(err, cudaEventElapsedTime(&ms, m->begin, m->end));
    if (*seconds <= 0.0 || 1e-3 * (double)ms < *seconds)
        *seconds = 1e-3 * (double)ms;
out:
    return rc;
}

static enum pi_code measure_read(const struct meter *m, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double best = 0.0;

    for (int i = 0; i < N_REPEATS; i++) {
        PI_CUDA_TRY(err, cudaEventRecord(m->begin, 0));
        PI_LAUNCH(read_all, 8 * m->n_sm, 256, 0, 0, (const uint4 *)m->dev,
                  m->dev_bytes / sizeof(uint4), (unsigned *)m->dev);
        PI_CUDA_TRY(err, cudaGetLastError());
        PI_TRY(keep_shortest(m, &best, err));
    }
    *out = (double)m->dev_bytes / best;
out:
    return rc;
}

static enum pi_code measure_pcie(const struct meter *m, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double best = 0.0;

    for (int i = 0; i < N_REPEATS; i++) {
        PI_CUDA_TRY(err, cudaEventRecord(m->begin, 0));
        PI_CUDA_TRY(err, cudaMemcpyAsync(m->dev, m->pinned, m->pinned_bytes, cudaMemcpyHostToDevice, 0));
        PI_TRY(keep_shortest(m, &best, err));
    }
    *out = (double)m->pinned_bytes / best;
out:
    return rc;
}

/* T_sync as a launch that the host waits for: what a hand-over costs at most. */
static enum pi_code measure_sync(const struct meter *m, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double best = 0.0;
    const int n = 100;

    for (int i = 0; i < N_REPEATS; i++) {
        PI_CUDA_TRY(err, cudaEventRecord(m->begin, 0));
        for (int k = 0; k < n; k++) {
            PI_LAUNCH(touch, 1, 1, 0, 0, (volatile unsigned *)m->dev);
            PI_CUDA_TRY(err, cudaStreamSynchronize(0));
        }
        PI_TRY(keep_shortest(m, &best, err));
    }
    *out = best / n;
out:
    return rc;
}

static enum pi_code meter_open(int index, struct meter *m, double *context_bytes, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gpu_info info;

    PI_TRY(pi_gpu_describe(index, &info, err));
    /* What is gone right after the context was made; what other processes hold counts too. */
    *context_bytes = (double)(info.memory_bytes - info.free_bytes);
    m->n_sm = info.n_sm;
    m->pinned_bytes = (size_t)128 << 20;
    m->dev_bytes = (size_t)1 << 30;
    if (info.free_bytes / 4 < m->dev_bytes)
        m->dev_bytes = info.free_bytes / 4 / 256 * 256;
    if (m->dev_bytes < m->pinned_bytes)
        PI_FAIL(err, PI_E_NOMEM, "GPU %d: only %llu bytes are free", index,
                (unsigned long long)info.free_bytes);
    PI_CUDA_TRY(err, cudaEventCreate(&m->begin));
    PI_CUDA_TRY(err, cudaEventCreate(&m->end));
    PI_CUDA_TRY(err, cudaMalloc(&m->dev, m->dev_bytes));
    PI_CUDA_TRY(err, cudaMemset(m->dev, 0, m->dev_bytes));
    PI_CUDA_TRY(err, cudaMallocHost(&m->pinned, m->pinned_bytes));
    memset(m->pinned, 0, m->pinned_bytes);
out:
    return rc;
}

static void meter_close(struct meter *m)
{
    if (m->begin != NULL)
        (void)cudaEventDestroy(m->begin);
    if (m->end != NULL)
        (void)cudaEventDestroy(m->end);
    (void)cudaFree(m->dev);
    (void)cudaFreeHost(m->pinned);
}

extern "C" enum pi_code pi_gpu_measure(int index, struct pi_gpu_speed *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct meter m = {};
    struct pi_gpu_speed s = {};

    PI_TRY(meter_open(index, &m, &s.context_bytes, err));
    PI_TRY(measure_read(&m, &s.bandwidth, err));
    PI_TRY(measure_pcie(&m, &s.pcie, err));
    PI_TRY(measure_sync(&m, &s.sync, err));
    *out = s;
out:
    meter_close(&m);
    return rc;
}
