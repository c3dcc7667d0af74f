/*
 * pi_gpu.h - all that C sees of a GPU: no CUDA type in it, and the same functions in a build without CUDA.
 *
 * runtime/cuda/pi_gpu.cu implements it with the CUDA runtime (linked statically; no driver needed to start), pi_gpu_none.c
 * without: there is no device then. An absent GPU is a normal state, not an error, until one is asked for.
 */
#ifndef PI_GPU_H
#define PI_GPU_H

#include "common/pi_err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of usable GPUs; 0 when built without CUDA, or with no driver or device. */
int pi_gpu_count(void);

struct pi_gpu_info {
    char name[64];
    int major, minor;      /* compute capability */
    uint64_t memory_bytes; /* in all */
    uint64_t free_bytes;   /* now, this process's context included */
    int n_sm;
    int pci_bus;
};

/* PI_E_NODEV when index is not below pi_gpu_count(); PI_E_DEVICE with the call's own text. */
enum pi_code pi_gpu_describe(int index, struct pi_gpu_info *out, struct pi_err *err) PI_MUST_CHECK;

/* Device memory and pinned host memory. Owned by the caller; free accepts a zeroed one. */
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

/* Measured on the device: read bandwidth of its memory and of pinned host-to-device copies (bytes/s), and the bytes that
 * the context took. Takes under two seconds. */
struct pi_gpu_speed {
    double bandwidth, pcie, sync, context_bytes;
};
enum pi_code pi_gpu_measure(int index, struct pi_gpu_speed *out, struct pi_err *err) PI_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
