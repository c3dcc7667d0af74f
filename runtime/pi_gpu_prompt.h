/*
 * pi_gpu_prompt.h - prompt chunks on a GPU and the CPU (design: 5.3).
 *
 * A chunk runs dense. Where struct pi_dev_model has a layer's attention, the GPU does it; else the CPU does (runtime/pi_ops_prompt.c) and the residual
 * crosses twice. Resident (hot) neurons are products of matrices in VRAM. Cold neurons are either streamed: worker threads gather their rows, in the
 * device's layout, into a ring of pinned slots, which are copied on a second stream while the GPU computes the piece before; or computed
 * on the CPU at the same time as the hot ones (few tokens: reading weights then costs more than computing).
 *
 * Numbers: F16 and quantised weights take products of F16 with sums in F32; activations are rounded to F16 after each token's row was scaled by a power of two
 * so that its largest element is near 1024: no overflow, whatever the model. BF16 and F32 weights, and everything with f32_gemm, are F32 throughout (no TF32). Which
 * way cold neurons take is decided by the options and the chunk's length alone, sums have one order: equal inputs give equal bytes.
 *
 * One owner, one caller at a time, never while a decode step is in flight. Everything is allocated at creation.
 */
#ifndef PI_GPU_PROMPT_H
#define PI_GPU_PROMPT_H

#include "common/pi_err.h"
#include "common/pi_prompt_size.h"
#include "runtime/pi_dev_model.h"
#include "runtime/pi_ops.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_gpu_prompt;

enum pi_prompt_cold {
    PI_PROMPT_COLD_AUTO,
    PI_PROMPT_COLD_STREAM, /* where the types allow it */
    PI_PROMPT_COLD_CPU
};

/* How rows get into a pinned slot. For measurements; the sums are the same. */
enum pi_prompt_fill {
    PI_PROMPT_FILL_STORES,    /* ordinary stores: a small ring stays in the last-level cache */
    PI_PROMPT_FILL_STREAMING, /* stores past the caches */
    /* no copy by the CPU: the GPU gathers rows of the mapped file itself, where the device can register read-only memory and the types are F32, F16 or
     * BF16; else as STORES */
    PI_PROMPT_FILL_DIRECT
};

struct pi_gpu_prompt_options {
    uint32_t n_batch; /* most tokens of a chunk */
    bool f32_gemm;    /* F32 products whatever the weights: profiling, reference */
    enum pi_prompt_cold cold;
    enum pi_prompt_fill fill;
    /* AUTO: chunks of up to this many tokens compute cold neurons on the CPU; 0: pi_gpu_prompt_crossover() */
    uint32_t cpu_tokens;
    double pcie, cpu_bandwidth; /* measured bytes/s, for the crossover; 0: 50e9, 80e9 */
    uint32_t pin_slots;         /* 0: PI_PROMPT_PIN_SLOTS */
    uint32_t dev_slots;         /* 0: PI_PROMPT_DEV_SLOTS */
    uint64_t slot_bytes;        /* 0: PI_PROMPT_SLOT_BYTES */
    double patience; /* seconds without any progress after which the device is given up; 0: 30 */
};

/* Tokens up to which the CPU is expected to be faster: row kernels read a weight once for a few tokens at the memory's speed, streaming reads it at
 * PCIe's whatever their number. A power of two, 0 to 16, so that measured figures may waver. */
uint32_t pi_gpu_prompt_crossover(double pcie, double cpu_bandwidth);

/* s: the engine's state with m, pool, cpu, kv (of the layers whose attention is on the CPU) and prompt scratch for n_batch tokens; dm and s are borrowed.
 * down_t must be there in every layer. PI_E_NOMEM, PI_E_DEVICE; PI_E_UNSUPPORTED for heads wider than 256. */
enum pi_code pi_gpu_prompt_create(const struct pi_dev_model *dm, struct pi_state *s,
                                  const struct pi_gpu_prompt_options *opt,
                                  struct pi_gpu_prompt **out, struct pi_err *err) PI_MUST_CHECK;
void pi_gpu_prompt_destroy(struct pi_gpu_prompt *p); /* accepts NULL */

/* The chunk that s holds (n_tok <= n_batch, token, pos, seq, want, logits, obs): keys and values into the caches, wanted logits to s->logits. Any
 * positions of any sequences, those of one sequence ascending. An error leaves caches undefined from the chunk's positions on. PI_E_DEVICE on a fault, or
 * where the device has stopped: then it is given up (pi_gpu_gave_up()). */
enum pi_code pi_gpu_prompt_run(struct pi_gpu_prompt *p, struct pi_state *s,
                               struct pi_err *err) PI_MUST_CHECK;

/* Device memory taken: pi_prompt_size() of this model and options. */
uint64_t pi_gpu_prompt_memory(const struct pi_gpu_prompt *p);
/* What pi_prompt_size() is asked for: the same as an estimator works out from file and placement. */
enum pi_code pi_gpu_prompt_want(const struct pi_dev_model *dm, const struct pi_model *m,
                                const struct pi_gpu_prompt_options *opt, struct pi_prompt_want *out,
                                struct pi_err *err) PI_MUST_CHECK;

/* Since creation or the last call. */
struct pi_gpu_prompt_stats {
    uint64_t chunks, tokens;
    uint64_t bytes_streamed; /* over PCIe */
    uint64_t bytes_direct;   /* of these, what the GPU read in the mapped file itself */
    double seconds_total;    /* of chunks */
    double
        seconds_streaming; /* from the first copy of a run of streamed layers to its last one's end, summed up */
    double seconds_copying; /* of that, what the copies themselves took */
};
void pi_gpu_prompt_take_stats(struct pi_gpu_prompt *p, struct pi_gpu_prompt_stats *out);

#endif
