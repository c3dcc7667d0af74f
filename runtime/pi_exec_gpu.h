/*
 * pi_exec_gpu.h - interprets the schedule of a decode step on one GPU and the CPU at the same time (design: 5.1).
 *
 * Unit 1 of the schedule is the GPU: its list is captured once for each batch bucket (1, 2, 4 ... tokens) as a CUDA graph. Unit 0 is the CPU: its list is
 * walked by all threads of the pool inside one run, while the graph is in flight. The units meet in slots: words in pinned mapped memory,
 * a cache line each, that carry the number of the step, so that what a step leaves behind never satisfies the next. Payloads (normed input, cold
 * set, partial sums, residual) lie in mapped memory too; who posts a slot has made its payload visible before (release), who has seen it reads
 * the payload after (acquire).
 *
 * Between launch and completion no thread calls CUDA but for queries of streams and events (and launches of segments, see below). A watchdog
 * raises an abort flag when the CPU has waited for the GPU for 3 s: every waiting kernel sees it and ends, the step fails with
 * PI_E_DEVICE, and the executor stays failed. A device that does not end then is given up (pi_gpu_give_up()). A CPU that is slow (cold rows that come
 * from a disk) is waited for.
 *
 * Where hand-overs inside a running graph do not work (they are tried at creation) or are not wanted, the graph is cut into segments at hand-overs, and
 * events take the place of spinning: the same kernels, the same sums.
 */
#ifndef PI_EXEC_GPU_H
#define PI_EXEC_GPU_H

#include "runtime/pi_dev_model.h"
#include "runtime/pi_engine.h"
#include "runtime/pi_ops.h"

struct pi_exec_gpu;

struct pi_exec_gpu_options {
    int index;
    enum pi_handover handover;
    double patience; /* seconds without progress after which a step is given up; 0: 3 */
};

/* s: the engine's state, with units[0] the CPU and units[1] the GPU's neurons (tables only); s->n_dec: the largest bucket, a power of two. graph
 * and schedule of the decode step, n_units 2. All borrowed; dm's cache and s->kv are written by steps.
 * PI_E_NOMEM; PI_E_DEVICE, also where the device stops in the trial of hand-overs; PI_E_SELFCHECK when graph and device model disagree; PI_E_UNSUPPORTED in a build without CUDA. */
enum pi_code pi_exec_gpu_create(struct pi_state *s, const struct pi_dev_model *dm,
                                const struct pi_graph *graph, const struct pi_schedule *schedule,
                                const struct pi_exec_gpu_options *opt, struct pi_exec_gpu **out,
                                struct pi_err *err) PI_MUST_CHECK;
void pi_exec_gpu_destroy(struct pi_exec_gpu *x); /* accepts NULL */

/* One decode step of what s holds (n_tok, token, pos, seq, want, logits). PI_E_DEVICE on a fault, a stall, or after either. */
enum pi_code pi_exec_gpu_step(struct pi_exec_gpu *x, struct pi_err *err) PI_MUST_CHECK;

/* Adds what has been measured since the last call to *out and forgets it; may copy from the device. */
enum pi_code pi_exec_gpu_take_timing(struct pi_exec_gpu *x, struct pi_engine_timing *out,
                                     struct pi_err *err) PI_MUST_CHECK;

/* For tests: the executor's CPU side stops answering from the next step on, as if a worker had died; true: hand-overs spin. */
void pi_exec_gpu_test_stall(struct pi_exec_gpu *x);
/* The same: its next answer takes so many seconds. */
void pi_exec_gpu_test_slow(struct pi_exec_gpu *x, double seconds);
bool pi_exec_gpu_spins(const struct pi_exec_gpu *x);
/* Device memory taken, graphs aside. */
uint64_t pi_exec_gpu_memory(const struct pi_exec_gpu *x);

#endif
