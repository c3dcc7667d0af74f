/*
 * pi_probe.h - measures the machine at hand for hardware.yaml.
 *
 * The CPU: cores that may be used and what all of them together read per second from memory, best of several passes over buffers larger
 * than the caches, about two seconds. GPUs: what the runtime's GPU interface describes and measures, under two seconds each.
 */
#ifndef PI_PROBE_H
#define PI_PROBE_H

#include "common/pi_err.h"
#include "common/pi_hardware.h"

/* PI_E_NOMEM; errors of a GPU that is there but fails. No GPU: n_gpus 0. */
enum pi_code pi_probe(struct pi_hardware *out, struct pi_err *err) PI_MUST_CHECK;

#endif
