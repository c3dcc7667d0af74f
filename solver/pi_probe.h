/*
 * pi_probe.h - measures the machine at hand for hardware.yaml.
 *
 * The CPU: what the threads of a run (all usable cores; all but one where there is a GPU, as pi-run has it) read per second as sparse
 * decoding does: rows of 8 KB, one in ten, from buffers larger than the caches; best of many short passes, about two seconds. GPUs: what the runtime's
 * GPU interface describes and measures, the hand-over by handing over, the context by making one; some three seconds each.
 */
#ifndef PI_PROBE_H
#define PI_PROBE_H

#include "common/pi_err.h"
#include "common/pi_hardware.h"

/* PI_E_NOMEM; errors of a GPU that is there but fails. No GPU: n_gpus 0. */
enum pi_code pi_probe(struct pi_hardware *out, struct pi_err *err) PI_MUST_CHECK;

#endif
