/*
 * pi_gpu.h - all that C sees of a GPU: no CUDA type in it, and the same functions in a build without CUDA.
 *
 * runtime/cuda/pi_gpu.cu implements it with the CUDA runtime (linked statically; no driver needed to start), pi_gpu_none.c
 * without: there is no device then. An absent GPU is a normal state, not an error, until one is asked for.
 *
 * Every failing call gives PI_E_DEVICE with the call's own text, PI_E_NOMEM when device or pinned memory is out, unless said otherwise. A
 * device fault is sticky: every later call fails too.
 */
#ifndef PI_GPU_H
#define PI_GPU_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- devices ---- */

/* Number of usable GPUs; 0 when built without CUDA, or with no driver or device. Has all kernels loaded when a context is made, so
 * that no launch ever waits for one. */
int pi_gpu_count(void);

struct pi_gpu_info {
    char name[64];
    int major, minor;      /* compute capability */
    uint64_t memory_bytes; /* in all */
    uint64_t free_bytes;   /* now, this process's context included */
    int n_sm;
    int pci_bus;
};

/* PI_E_NODEV when index is not below pi_gpu_count(). */
enum pi_code pi_gpu_describe(int index, struct pi_gpu_info *out, struct pi_err *err) PI_MUST_CHECK;

/* ---- a device that stopped ---- */

/* For who waits for a device, with a limit, and has lost patience: what was launched may never end, and whatever waits for it (freeing memory does)
 * would wait for ever. From then on every function here that can fail does, with PI_E_DEVICE, and what frees or destroys does nothing but forget: the
 * process's end frees. Like a fault it holds for the whole process, and there is no way back. */
void pi_gpu_give_up(void);
bool pi_gpu_gave_up(void);

/* Whatever waits here does that: a device in which nothing moves for so many seconds is given up (0: 30, the default). For the process; tests have less time. Copies
 * of pageable memory wait in the driver, without a limit: those of unknown size go through pinned memory. */
void pi_gpu_patience(double seconds);

/* Makes index the calling thread's device; every thread that calls what is below does so once. */
enum pi_code pi_gpu_use(int index, struct pi_err *err) PI_MUST_CHECK;

/* ---- memory ---- */

/* Device memory; zeroed. Owned by the caller; free accepts a zeroed one. */
struct pi_dev_buf {
    void *ptr;
    size_t bytes;
};
enum pi_code pi_gpu_alloc(int index, size_t bytes, struct pi_dev_buf *out,
                          struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_free(struct pi_dev_buf *b);
enum pi_code pi_gpu_upload(const struct pi_dev_buf *dst, size_t offset, const void *src, size_t n,
                           struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gpu_download(void *dst, const struct pi_dev_buf *src, size_t offset, size_t n,
                             struct pi_err *err) PI_MUST_CHECK;

/* Pinned host memory, zeroed, mapped into the device's address space; host and device pointers to the same bytes. */
struct pi_pinned {
    void *host, *dev;
    size_t bytes;
};
enum pi_code pi_gpu_pin(int index, size_t bytes, struct pi_pinned *out,
                        struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_unpin(struct pi_pinned *p); /* accepts a zeroed one */

/* Pins memory that is there already and is only read, such as a mapped file; whole pages are pinned. *dev: the device's address of ptr. PI_E_UNSUPPORTED
 * where the device or the system can not (never sticky). */
enum pi_code pi_gpu_register(int index, const void *ptr, size_t bytes, const void **dev,
                             struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_unregister(const void *ptr, size_t bytes); /* what was registered; accepts NULL */

/* ---- streams, events, graphs; opaque pointers, NULL: none ---- */

enum pi_code pi_gpu_stream_create(int index, void **out, struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_stream_destroy(void *stream);
enum pi_code pi_gpu_stream_sync(void *stream, struct pi_err *err) PI_MUST_CHECK;
/* *done: all that was launched into it has ended. Never blocks. */
enum pi_code pi_gpu_stream_query(void *stream, bool *done, struct pi_err *err) PI_MUST_CHECK;
/* n bytes between any two of device, pinned and (slowly) pageable memory, in stream order. */
enum pi_code pi_gpu_copy_async(void *dst, const void *src, size_t n, void *stream,
                               struct pi_err *err) PI_MUST_CHECK;
/* The error of launches since the last call, if any; PI_OK else. Call after a group of launchers of pi_kernels.h. */
enum pi_code pi_gpu_launched(struct pi_err *err) PI_MUST_CHECK;

enum pi_code pi_gpu_event_create(bool timing, void **out, struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_event_destroy(void *event);
enum pi_code pi_gpu_event_record(void *event, void *stream, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gpu_event_query(void *event, bool *done, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gpu_event_sync(void *event, struct pi_err *err) PI_MUST_CHECK;
/* The stream goes on once the event is reached. */
enum pi_code pi_gpu_stream_wait(void *stream, void *event, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gpu_event_seconds(void *begin, void *end, double *out,
                                  struct pi_err *err) PI_MUST_CHECK;

/* Between begin and end, what is launched into the stream is recorded, not run. The graph is uploaded, ready to launch. */
enum pi_code pi_gpu_capture_begin(void *stream, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gpu_capture_end(void *stream, void **graph_out, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gpu_graph_launch(void *graph, void *stream, struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_graph_destroy(void *graph);

/* ---- matrix products (cuBLAS) ---- */

/* A handle bound to a stream, with workspace of its own that the caller owns (cuBLAS allocates nothing). */
enum pi_code pi_gpu_blas_create(void *stream, const struct pi_dev_buf *workspace, void **out,
                                struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_blas_destroy(void *blas);
/* C (m, n) = alpha op(A) op(B) + beta C, row-major as pi_blas_gemm() has it; op(A) (m, k), op(B) (k, n); lda, ldb, ldc are elements from row to
 * row. type: F32, F16 or BF16 of A and B; C is F32; sums in F32 (no TF32). Device pointers. */
enum pi_code pi_gpu_gemm(void *blas, bool trans_a, bool trans_b, uint32_t m, uint32_t n, uint32_t k,
                         float alpha, int type, const void *a, size_t lda, const void *b,
                         size_t ldb, float beta, float *c, size_t ldc,
                         struct pi_err *err) PI_MUST_CHECK;

/* ---- measurement ---- */

/* Measured on the device: read bandwidth of its memory and of pinned host-to-device copies (bytes/s); seconds of a launch that the host waits for, which
 * is what a hand-over costs where pi_gpu_measure_handover() fails; and the bytes that the context took. Takes under two seconds. */
struct pi_gpu_speed {
    double bandwidth, pcie, sync, context_bytes;
};
enum pi_code pi_gpu_measure(int index, struct pi_gpu_speed *out, struct pi_err *err) PI_MUST_CHECK;

/* Seconds of one hand-over and merge (design: 5.1): a graph of many hand-overs of 16 KB each way through mapped memory that one host thread
 * answers, minus the same graph without them. Takes a tenth of a second. patience: seconds without a hand-over after which a trial is given up; 0: 2.
 * PI_E_UNSUPPORTED where hand-overs do not work here, PI_E_DEVICE on a fault, or where the device has stopped: then it is given up (pi_gpu_gave_up()),
 * after at most four times the patience. */
enum pi_code pi_gpu_measure_handover(int index, double patience, double *seconds,
                                     struct pi_err *err) PI_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
