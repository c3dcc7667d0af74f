/*
 * pi_gpu_context.h - what a process takes of a GPU's memory before it has allocated anything.
 */
#ifndef PI_GPU_CONTEXT_H
#define PI_GPU_CONTEXT_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pi_gpu_context {
    uint64_t
        bytes; /* context, kernels, cuBLAS with its kernels, a block for small allocations; rounded up to 2 MiB */
    uint64_t free_bytes; /* of the device's memory beside it */
    uint64_t gone_bytes; /* not free: what all processes and the driver hold, this one's context among it */
    bool
        exact; /* counted as what this process took; else what is gone of the memory, at most 1 GiB */
};

/* Makes the context of GPU index, loads what runs load, and counts. Exact where the driver's management library is there (pi_nvml.h), the context was not there
 * before the call and nobody else took memory meanwhile; else other processes' memory is in the figure, which is cut at 1 GiB: drivers of today take
 * 0.3 to 0.8 GB. Takes about a second. PI_E_NODEV, PI_E_DEVICE, PI_E_NOMEM. */
enum pi_code pi_gpu_context_measure(int index, struct pi_gpu_context *out,
                                    struct pi_err *err) PI_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
