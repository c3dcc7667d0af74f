/* What the emulator's own files share. */
#ifndef EMU_INT_H
#define EMU_INT_H

#include "tests/emu/cuda_emu.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

enum emu_order { EMU_FORWARD, EMU_REVERSE, EMU_RANDOM };

struct emu_config {
    int n_devices;
    size_t memory, context;
    enum emu_order blocks, threads;
    uint64_t blocks_seed, threads_seed;
    unsigned long fault_at, stop_at, halt_at; /* 0: never */
    unsigned long slow_ms;
    double watchdog_s;
    bool strict, leaks, pdl;
};
const struct emu_config *emu_conf(void);

/* Prints "emu: ..." on stderr and aborts. */
[[noreturn]] void emu_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
double emu_seconds(void);

/* ---- errors (emu_config.cpp) ---- */

/* Notes e as the thread's last error unless it is cudaSuccess or cudaErrorNotReady; returns it. */
cudaError_t emu_note(cudaError_t e);
/* What a call must return at once: no device, a sticky error, or the fault that PI_EMU_FAIL asks for (then that_error). */
cudaError_t emu_enter(const char *function, cudaError_t that_error);
void emu_set_sticky(cudaError_t e);
cudaError_t emu_sticky(void);

/* Starts an API function: leaves it with the error that emu_enter() gives. */
#define EMU_ENTER(that_error)                                      \
    do {                                                           \
        cudaError_t enter_ = emu_enter(__func__, (that_error));    \
        if (enter_ != cudaSuccess)                                 \
            return emu_note(enter_);                               \
    } while (0)

/* ---- kernels (emu_exec.cpp) ---- */

struct emu_grid {
    dim3 grid, block;
    size_t smem;
    bool pdl; /* may start before the kernel in front ends */
    std::shared_ptr<const emu_kernel> kernel;
};
/* Runs all blocks on the calling OS thread, which must be a stream's. pdl: NULL, or what pi_pdl_wait() waits for. */
void emu_run_grid(const struct emu_grid *g, struct emu_pdl *pdl);
/* Called on each stream thread before it runs anything, and at its end. */
void emu_thread_setup(void);
void emu_thread_end(void);
/* A message about the memory that a crash touched, by kernels or by the host. */
void emu_catch_crashes(void);

/* ---- programmatic dependent launches (emu_pdl.cpp) ---- */

typedef std::function<void()> emu_work;
/* An operation of a graph; a kernel has its grid too. */
struct emu_node {
    emu_work work;
    std::shared_ptr<const struct emu_grid> grid;
};
/* One after the other; with PI_EMU_PDL=1 what a dependent kernel does in front of pi_pdl_wait() comes before the kernel
 * that it depends on. */
void emu_run_nodes(const std::vector<struct emu_node> &nodes);
/* Of a kernel that was started early: it polls, or can do nothing more for now; returns whether the one in front is
 * done, or waits until it is. */
bool emu_pdl_pause(struct emu_pdl *p);
void emu_pdl_block(struct emu_pdl *p);
/* At the end of a stream's thread. */
void emu_pdl_end(void);

/* ---- memory (emu_memory.cpp) ---- */

enum emu_memory_kind { EMU_PAGEABLE, EMU_DEVICE, EMU_PINNED };
/* Where p lies; *left: bytes from p to the end of its allocation (not for pageable memory). */
enum emu_memory_kind emu_memory_of(const void *p, size_t *left);
/* Bytes of device memory are accessible between the two (they nest). */
void emu_memory_open(void);
void emu_memory_close(void);
/* A line about the allocation that p lies in or near, for messages. */
std::string emu_memory_text(const void *p);

/* ---- streams (emu_stream.cpp) ---- */

struct emu_done; /* an operation's completion */
/* How long things are said to take by events, in units of the time they take here: so that measured speeds rank as on
 * a GPU, however loaded this machine is. */
#define EMU_KERNEL_FACTOR 0.02
#define EMU_PCIE_FACTOR   1.0

/* Adds work to a stream, or to the graph being captured. time_factor: see above. */
cudaError_t emu_enqueue(cudaStream_t s, emu_work work, double time_factor = 1.0,
                        std::shared_ptr<const struct emu_grid> grid = NULL);
cudaError_t emu_wait_stream(cudaStream_t s);
/* Waits until all streams are idle. */
cudaError_t emu_wait_device(void);
/* cudaErrorStreamCaptureUnsupported (and the capture is spoilt) where a call that CUDA calls unsafe comes during one. */
cudaError_t emu_capture_check(void);
bool emu_is_capturing(cudaStream_t s);
/* Counts a kernel that is to run; false where the device has failed (now, if PI_EMU_FAULT says so). */
bool emu_kernel_may_run(void);
/* Counts a copy, fill or product that is to run; does not come back where PI_EMU_HALT says so. */
void emu_other_runs(void);
/* A kernel, copy, fill or product never ends (PI_EMU_STOP, PI_EMU_HALT). */
bool emu_has_stopped(void);
/* Counts objects for cudaEmuLiveObjects(). */
void emu_object(int delta);

#endif
