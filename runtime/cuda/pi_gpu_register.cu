/* pi_gpu.h: pinning what is mapped already. */
#include "config.h"

#include "runtime/pi_gpu.h"

#include "runtime/cuda/pi_cuda_port.cuh"
#include "runtime/cuda/pi_gpu_wait.h"

#include <unistd.h>

/* The pages that hold [ptr, ptr + bytes). */
struct pages {
    uintptr_t begin, end;
};

static struct pages pages_of(const void *ptr, size_t bytes)
{
    const long size = sysconf(_SC_PAGESIZE);
    const uintptr_t page = size > 0 ? (uintptr_t)size : 4096, at = (uintptr_t)ptr;

    return pages{at / page * page, (at + bytes + page - 1) / page * page};
}

static bool read_only_supported(int index)
{
#ifdef PI_CUDA_EMU
    (void)index;
    return true;
#else
    int yes = 0;

    return cudaDeviceGetAttribute(&yes, cudaDevAttrHostRegisterReadOnlySupported, index) ==
               cudaSuccess &&
           yes != 0;
#endif
}

extern "C" enum pi_code pi_gpu_register(int index, const void *ptr, size_t bytes, const void **dev,
                                        struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pages p = pages_of(ptr, bytes);
    const unsigned flags = cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    void *base = NULL;
    cudaError_t e;

    PI_TRY(pi_gpu_use(index, err));
    if (!read_only_supported(index))
        PI_FAIL(err, PI_E_UNSUPPORTED, "GPU %d can not pin memory that is only read", index);
    e = cudaHostRegister((void *)p.begin, p.end - p.begin, flags);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        PI_FAIL(err, PI_E_UNSUPPORTED, "GPU %d: pinning %zu bytes of a mapped file: %s", index,
                bytes, cudaGetErrorString(e));
    }
    e = cudaHostGetDevicePointer(&base, (void *)p.begin, 0);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaHostUnregister((void *)p.begin);
        PI_FAIL(err, PI_E_UNSUPPORTED, "GPU %d: no device address of a mapped file: %s", index,
                cudaGetErrorString(e));
    }
    *dev = (const char *)base + ((uintptr_t)ptr - p.begin);
out:
    return rc;
}

extern "C" void pi_gpu_unregister(const void *ptr, size_t bytes)
{
    if (ptr != NULL && pi_gpu_may_free())
        (void)cudaHostUnregister((void *)pages_of(ptr, bytes).begin);
}
