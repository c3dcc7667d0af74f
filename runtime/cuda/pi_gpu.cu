/* pi_gpu.h on the CUDA runtime: devices and their memory. */
#include "config.h"

#include "runtime/pi_gpu.h"

#include "runtime/cuda/pi_cuda_port.cuh"
#include "runtime/cuda/pi_gpu_wait.h"

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
    PI_TRY(pi_gpu_stream_sync(NULL, err));
    buf->ptr = p;
    buf->bytes = bytes;
    p = NULL;
out:
    if (p != NULL && pi_gpu_may_free())
        (void)cudaFree(p);
    return rc;
}

extern "C" void pi_gpu_free(struct pi_dev_buf *b)
{
    if (b->ptr != NULL && pi_gpu_may_free())
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
    PI_TRY(pi_gpu_stream_sync(NULL, err));
    PI_CUDA_TRY(err, cudaMemcpy((char *)dst->ptr + offset, src, n, cudaMemcpyHostToDevice));
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_download(void *dst, const struct pi_dev_buf *src, size_t offset,
                                        size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(check_range(src, offset, n, err));
    PI_TRY(pi_gpu_stream_sync(NULL, err));
    PI_CUDA_TRY(err, cudaMemcpy(dst, (const char *)src->ptr + offset, n, cudaMemcpyDeviceToHost));
out:
    return rc;
}
