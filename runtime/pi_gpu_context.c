#include "config.h"

#include "runtime/pi_gpu_context.h"

#include "common/pi_type.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_nvml.h"

#include <string.h>

#define BLOCK       ((uint64_t)2 << 20) /* that the driver hands out memory in */
#define MAX_CONTEXT ((uint64_t)1 << 30)
#define MIN_CONTEXT ((uint64_t)192 << 20) /* less was never seen: the figure is of something else, as where the context was there already */
#define SIDE        256u                 /* of the products' matrices */
#define WORKSPACE   ((size_t)64 << 10)

/* cuBLAS loads kernels when they are needed first: products as prompts have them. */
static enum pi_code multiply(void *blas, const struct pi_dev_buf *m, void *stream,
                             struct pi_err *err)
{
    const int types[] = {PI_TYPE_F16, PI_TYPE_F32};
    const uint32_t n_tok[] = {8, SIDE};
    float *c = m->ptr;
    enum pi_code rc = PI_OK;

    for (int t = 0; t < 2; t++)
        for (int n = 0; n < 2; n++)
            PI_TRY(pi_gpu_gemm(blas, false, true, n_tok[n], SIDE, SIDE, 1.0f, types[t],
                               c + SIDE * SIDE, SIDE, c + SIDE * SIDE, SIDE, 0.0f, c, SIDE, err));
    PI_TRY(pi_gpu_stream_sync(stream, err));
out:
    return rc;
}

/* What is gone of the memory once everything is loaded, of which `taken` is ours, if that is known. */
static uint64_t settle(uint64_t gone, bool known, uint64_t taken, bool *exact)
{
    uint64_t bytes = gone < MAX_CONTEXT ? gone : MAX_CONTEXT;

    *exact = known && taken >= MIN_CONTEXT && taken <= MAX_CONTEXT;
    if (*exact)
        bytes = taken;
    return (bytes + BLOCK - 1) / BLOCK * BLOCK;
}

enum pi_code pi_gpu_context_measure(int index, struct pi_gpu_context *out, struct pi_err *err)
{
    enum pi_code rc;
    struct pi_nvml_mark before, after;
    struct pi_dev_buf workspace = {0}, matrices = {0};
    struct pi_gpu_info info;
    void *stream = NULL, *blas = NULL;
    uint64_t taken = 0;
    bool known;

    pi_nvml_mark(&before);
    PI_TRY(pi_gpu_describe(index, &info, err));
    PI_TRY(pi_gpu_use(index, err));
    PI_TRY(pi_gpu_stream_create(index, &stream, err));
    PI_TRY(pi_gpu_alloc(index, WORKSPACE, &workspace, err));
    PI_TRY(pi_gpu_alloc(index, 2 * sizeof(float) * SIDE * SIDE, &matrices, err));
    PI_TRY(pi_gpu_blas_create(stream, &workspace, &blas, err));
    PI_TRY(multiply(blas, &matrices, stream, err));
    pi_nvml_mark(&after);
    known = pi_nvml_taken(&before, &after, (uint32_t)info.pci_bus, &taken);
    PI_TRY(pi_gpu_describe(index, &info, err));
    out->free_bytes = info.free_bytes;
    out->gone_bytes = info.memory_bytes - info.free_bytes;
    out->bytes = settle(out->gone_bytes, known, taken, &out->exact);
out:
    if (blas != NULL)
        pi_gpu_blas_destroy(blas);
    pi_gpu_free(&matrices);
    pi_gpu_free(&workspace);
    if (stream != NULL)
        pi_gpu_stream_destroy(stream);
    return rc;
}
