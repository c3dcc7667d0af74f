/*
 * pi_floor.h - the least time of a decode step: what it must read, over how fast that can be read.
 *
 * Per layer: attention on its unit, there too the prediction of the CPU's neurons, then the slower of the two units with its own neurons (on a GPU after predicting
 * them); then the output head. Bytes over measured bandwidths, no launch, no hand-over, no KV cache. Of a sparse mode only rows of neurons that fire are read, as the
 * profile has them fire; of several sequences those that fire for any, drawn independently.
 */
#ifndef PI_FLOOR_H
#define PI_FLOOR_H

#include "common/pi_estimate.h"
#include "common/pi_placement.h"
#include "common/pi_profile.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_floor_in {
    const struct pi_model_bytes *bytes;
    const struct pi_placement *place; /* NULL: all on the CPU */
    const enum pi_mode *
        mode; /* (n_layer) of the run; split layers: mode_cpu and mode_gpu, where this is no mode for all */
    const struct pi_profile *profile; /* may be NULL where no layer is sparse */
    uint32_t n_seq;
    double cpu_bandwidth, gpu_bandwidth; /* bytes/s; gpu_bandwidth is not used without a place */
};

struct pi_floor {
    double seconds; /* of a step */
    double bytes_cpu, bytes_gpu;
};

/* PI_E_MISMATCH for a profile of another shape, or none for a sparse mode. */
enum pi_code pi_floor(const struct pi_floor_in *in, struct pi_floor *out,
                      struct pi_err *err) PI_MUST_CHECK;

#endif
