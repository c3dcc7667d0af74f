/*
 * pi_nvml.h - how much of each GPU's memory is taken, as the driver's management library says it without a CUDA context.
 *
 * What a context takes can not be seen from inside: there is no "before" in the CUDA runtime, and after it the memory of other processes counts too. The management
 * library (libnvidia-ml, part of the driver, opened at run time) gives the "before". Where it is not there, or does not know a device, nothing is known.
 */
#ifndef PI_NVML_H
#define PI_NVML_H

#include <stdbool.h>
#include <stdint.h>

#define PI_NVML_DEVICES 64

/* Bytes taken of each device's memory, by all processes. */
struct pi_nvml_mark {
    uint32_t n; /* 0: not known */
    struct {
        uint32_t bus; /* PCI */
        uint64_t used;
    } dev[PI_NVML_DEVICES];
};

void pi_nvml_mark(struct pi_nvml_mark *out);

/* What was taken of the device on a PCI bus from one mark to the other. False when one of them does not know it, when two devices share the number, or when less is
 * taken than before. */
bool pi_nvml_taken(const struct pi_nvml_mark *before, const struct pi_nvml_mark *after,
                   uint32_t bus, uint64_t *out);

#endif
