/* pi_gpu.h: pinned memory, streams, events, captured graphs. */
#include "config.h"

#include "runtime/pi_gpu.h"

#include "runtime/cuda/pi_cuda_port.cuh"
#include "runtime/cuda/pi_gpu_wait.h"

#include <string.h>

extern "C" enum pi_code pi_gpu_use(int index, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    int n = pi_gpu_count();

    if (index < 0 || index >= n)
        return pi_err_set(err, PI_E_NODEV, "GPU %d: this machine has %d usable GPU%s", index, n,
                          n == 1 ? "" : "s");
    PI_CUDA_TRY(err, cudaSetDevice(index));
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_pin(int index, size_t bytes, struct pi_pinned *pin,
                                   struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_pinned p = {};

    PI_TRY(pi_gpu_use(index, err));
    PI_CUDA_TRY(err, cudaHostAlloc(&p.host, bytes, cudaHostAllocMapped));
    PI_CUDA_TRY(err, cudaHostGetDevicePointer(&p.dev, p.host, 0));
    memset(p.host, 0, bytes);
    p.bytes = bytes;
    *pin = p;
    p.host = NULL;
out:
    if (p.host != NULL && pi_gpu_may_free())
        (void)cudaFreeHost(p.host);
    return rc;
}

extern "C" void pi_gpu_unpin(struct pi_pinned *p)
{
    if (p->host != NULL && pi_gpu_may_free())
        (void)cudaFreeHost(p->host);
    memset(p, 0, sizeof(*p));
}

/* ---- streams ---- */

/* Not ordered against the legacy stream, which a synchronous call elsewhere might block. */
extern "C" enum pi_code pi_gpu_stream_create(int index, void **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    cudaStream_t s = NULL;

    PI_TRY(pi_gpu_use(index, err));
    PI_CUDA_TRY(err, cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    pi_gpu_stream_note(s);
    *out = s;
out:
    return rc;
}

extern "C" void pi_gpu_stream_destroy(void *stream)
{
    if (stream == NULL)
        return;
    pi_gpu_stream_forget(stream);
    if (!pi_gpu_gave_up())
        (void)cudaStreamDestroy((cudaStream_t)stream);
}

/* "Not ready" is an answer; anything else that is not success is an error with its own text. */
static enum pi_code query_answer(cudaError_t e, const char *what, bool *done, struct pi_err *err)
{
    if (pi_gpu_gave_up())
        return pi_err_set(err, PI_E_DEVICE, "%s: the GPU was given up: it had stopped", what);
    *done = e == cudaSuccess;
    if (e == cudaSuccess || e == cudaErrorNotReady)
        return PI_OK;
    (void)cudaGetLastError();
    return pi_err_set(err, PI_E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

extern "C" enum pi_code pi_gpu_stream_query(void *stream, bool *done, struct pi_err *err)
{
    return query_answer(cudaStreamQuery((cudaStream_t)stream), "cudaStreamQuery", done, err);
}

extern "C" enum pi_code pi_gpu_copy_async(void *dst, const void *src, size_t n, void *stream,
                                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (n > 0)
        PI_CUDA_TRY(err, cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, (cudaStream_t)stream));
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_launched(struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_CUDA_TRY(err, cudaGetLastError());
out:
    return rc;
}

/* ---- events ---- */

extern "C" enum pi_code pi_gpu_event_create(bool timing, void **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    cudaEvent_t e = NULL;

    PI_CUDA_TRY(err, cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming));
    *out = e;
out:
    return rc;
}

extern "C" void pi_gpu_event_destroy(void *event)
{
    if (event != NULL && !pi_gpu_gave_up())
        (void)cudaEventDestroy((cudaEvent_t)event);
}

extern "C" enum pi_code pi_gpu_event_record(void *event, void *stream, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_CUDA_TRY(err, cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream));
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_event_query(void *event, bool *done, struct pi_err *err)
{
    return query_answer(cudaEventQuery((cudaEvent_t)event), "cudaEventQuery", done, err);
}

extern "C" enum pi_code pi_gpu_stream_wait(void *stream, void *event, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_CUDA_TRY(err, cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0));
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_event_seconds(void *begin, void *end, double *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float ms = 0.0f;

    PI_CUDA_TRY(err, cudaEventElapsedTime(&ms, (cudaEvent_t)begin, (cudaEvent_t)end));
    *out = 1e-3 * (double)ms;
out:
    return rc;
}

/* ---- graphs ---- */

extern "C" enum pi_code pi_gpu_capture_begin(void *stream, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_CUDA_TRY(err, cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal));
out:
    return rc;
}

extern "C" enum pi_code pi_gpu_capture_end(void *stream, void **graph_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;

    PI_CUDA_TRY(err, cudaStreamEndCapture((cudaStream_t)stream, &g));
    PI_CUDA_TRY(err, cudaGraphInstantiate(&x, g, 0));
    PI_CUDA_TRY(err, cudaGraphUpload(x, (cudaStream_t)stream));
    PI_TRY(pi_gpu_stream_sync(stream, err));
    *graph_out = x;
    x = NULL;
out:
    if (x != NULL && !pi_gpu_gave_up())
        (void)cudaGraphExecDestroy(x);
    if (g != NULL && !pi_gpu_gave_up())
        (void)cudaGraphDestroy(g);
    return rc;
}

extern "C" enum pi_code pi_gpu_graph_launch(void *graph, void *stream, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_CUDA_TRY(err, cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream));
out:
    return rc;
}

extern "C" void pi_gpu_graph_destroy(void *graph)
{
    if (graph != NULL && !pi_gpu_gave_up())
        (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
