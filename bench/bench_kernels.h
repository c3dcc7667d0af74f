/*
 * bench_kernels.h - timing of device kernels: what a group of kernels needs to add itself to bench/bench_kernels.
 *
 * A call is captured many times in one graph, each time with other weights, so that the L2 can not hold them, and the graph is replayed: as in a decode step,
 * where launches overlap. All weights are slices of one pool of random bytes that are finite in every type.
 */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include "runtime/cuda/pi_kernels.h"
#include "runtime/pi_gpu.h"

#define BENCH_CALLS 64 /* in a graph */

struct bench_rig {
    void *stream, *begin, *end;
    struct pi_dev_buf pool;    /* weights */
    struct pi_dev_buf scratch; /* zeroed: activations, tickets, outputs */
    size_t used;               /* of scratch, by bench_scratch() */
    double bandwidth;          /* measured, bytes/s */
};

/* Anything that fails ends the program: there is nothing to clean up for. */
#define BENCH_DO(call)                                      \
    do {                                                    \
        struct pi_err err_ = {0};                           \
        if ((call) != PI_OK)                                \
            bench_die(__FILE__, __LINE__, #call, err_.msg); \
    } while (0)
_Noreturn void bench_die(const char *file, int line, const char *call, const char *msg);

/* How many copies of something of so many bytes the pool has: 32 at most; 0: not even 4. */
uint32_t bench_copies(const struct bench_rig *r, size_t bytes);
/* Copy number i. */
void *bench_copy(const struct bench_rig *r, size_t bytes, uint32_t i);
/* Such a matrix. */
struct pi_dmat bench_mat(const struct bench_rig *r, enum pi_type type, uint32_t n_rows,
                         uint32_t n_cols, uint32_t i);
/* Zeroed device memory, until the next bench_reset(). */
void *bench_scratch(struct bench_rig *r, size_t bytes);
void bench_reset(struct bench_rig *r);

/* Prints a line: microseconds per call, and what of the bandwidth it reaches if a call reads so many bytes (0: not said).
 * launch: makes the call with copy i of its weights. */
void bench_time(struct bench_rig *r, const char *name, uint64_t bytes, uint32_t n_copies,
                void (*launch)(const void *arg, uint32_t i, void *stream), const void *arg);

/* The groups. */
void bench_kernels_mat(struct bench_rig *r, bool sweep);
void bench_kernels_ffn(struct bench_rig *r);

#endif
