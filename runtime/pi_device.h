/*
 * pi_device.h - the --device option of programs that run models: what it says, and whether that is there.
 */
#ifndef PI_DEVICE_H
#define PI_DEVICE_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stdint.h>

enum pi_device_kind {
    PI_DEVICE_AUTO, /* not given */
    PI_DEVICE_CPU,
    PI_DEVICE_GPU,
    PI_DEVICE_TWO_CPU /* cpu+cpu */
};

/* Of a device's room one part in so many is left alone by placements that programs make for themselves. */
#define PI_DEVICE_SPARE 64u

struct pi_device {
    enum pi_device_kind kind;
    int gpu;          /* index; 0 unless gpu:N was given */
    const char *text; /* the option's value, or NULL; borrowed */
};

/* "cpu", "gpu", "gpu:N" and, where two_cpu, "cpu+cpu"; NULL: AUTO. PI_E_USAGE, PI_E_RANGE. */
enum pi_code pi_device_parse(const char *text, bool two_cpu, struct pi_device *out,
                             struct pi_err *err) PI_MUST_CHECK;

/* PI_E_NODEV where a GPU was asked for that is not there. */
enum pi_code pi_device_check(const struct pi_device *d, struct pi_err *err) PI_MUST_CHECK;

/* Memory of a GPU at the start of a run, before anything was allocated there. */
struct pi_device_room {
    char name[64];
    uint64_t context_bytes; /* what this process's context takes */
    uint64_t free_bytes;    /* beside it */
};

/* Makes the context and loads what runs load; pi_gpu_context.h says how it is measured. Call it before anything else that needs the GPU, once. PI_E_NODEV, PI_E_DEVICE, PI_E_NOMEM. */
enum pi_code pi_device_look(int gpu, struct pi_device_room *out, struct pi_err *err) PI_MUST_CHECK;

/* Threads of a run with a GPU where the user gave none: one core is left to the driver and the polling thread. At least 1. */
uint32_t pi_device_threads(void);

#endif
