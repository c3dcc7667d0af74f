/*
 * pi_device.h - the --device option of programs that run models: what it says, and whether that is there.
 */
#ifndef PI_DEVICE_H
#define PI_DEVICE_H

#include "common/pi_err.h"
#include "runtime/pi_gpu_context.h"

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
    bool noted; /* that is the placement's figure: beside other processes it can not be counted */
    uint64_t free_bytes; /* beside it */
};

/* Makes the context and loads what runs load; pi_gpu_context.h says how it is measured, and what becomes of a placement's figure (noted; 0: none). Call it before
 * anything else that needs the GPU, once. PI_E_NODEV, PI_E_DEVICE, PI_E_NOMEM. */
enum pi_code pi_device_look(int gpu, uint64_t noted, struct pi_device_room *out,
                            struct pi_err *err) PI_MUST_CHECK;

/* Bytes to charge a run for its context, where its placement notes what it was made with (0: it does not). What was counted holds, unless other processes are
 * in the figure: where it is not exact, and where it is far off the note while others hold memory, since they may have taken or given back some meanwhile. Then the
 * note holds, as long as a context could have such a size: so a run beside others places what it places alone. */
uint64_t pi_device_context(const struct pi_gpu_context *c, uint64_t noted);

/* Threads of a run with a GPU where the user gave none: one core is left to the driver and the polling thread. At least 1. */
uint32_t pi_device_threads(void);

#endif
