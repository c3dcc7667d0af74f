/*
 * pi_hardware.h - hardware.yaml: the machine that a placement is made for. It may describe one that is not here.
 *
 *   pi_hardware: 1
 *   cpu:  {name: ..., threads: 16, bandwidth: 98e9}
 *   gpus: [{name: ..., memory: 24e9, bandwidth: 1e12, pcie: 25e9, sync: 10e-6, context_bytes: 500e6, kernel: 5.5e-6}]
 *
 * Bytes, bytes per second, seconds. Unknown keys are refused by name and line; "gpus" may be absent or empty, "kernel" too.
 */
#ifndef PI_HARDWARE_H
#define PI_HARDWARE_H

#include "common/pi_err.h"

#include <stdint.h>

#define PI_MAX_GPUS 16

/* What "kernel" is where it is not given. Fits the measured decode steps of a 7B F16 model on an H200, dense and predicted, with half to all of it in VRAM, within 10 %
 * (docs/benchmarks.md; nine kernels a layer, together with the share of the bandwidth that solver/pi_cost.c grants them). */
#define PI_HW_KERNEL 5.5e-6

struct pi_hw_cpu {
    char name[64];
    uint32_t threads;
    double bandwidth; /* read, bytes/s with these threads, rows of 8 KB gathered */
};

struct pi_hw_gpu {
    char name[64];
    double memory;        /* bytes */
    double bandwidth;     /* read, bytes/s */
    double pcie;          /* pinned, host to device, bytes/s */
    double sync;          /* one hand-over and merge, seconds (T_sync) */
    double context_bytes; /* what a process takes before any allocation: context, kernels, cuBLAS */
    double
        kernel; /* seconds that a kernel of a step takes beside the bytes it reads: what starts and ends unevenly, one after the other */
};

struct pi_hardware {
    struct pi_hw_cpu cpu;
    uint32_t n_gpus;
    struct pi_hw_gpu gpus[PI_MAX_GPUS];
};

/* PI_E_CORRUPT with line for bad YAML or values, PI_E_UNSUPPORTED for a newer pi_hardware, PI_E_IO. */
enum pi_code pi_hardware_load(const char *path, struct pi_hardware *out,
                              struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_hardware_save(const char *path, const struct pi_hardware *hw,
                              struct pi_err *err) PI_MUST_CHECK;

#endif
