/*
 * pi_engine.h - runs a model: batches of tokens in, logits out.
 *
 * An engine owns its KV cache, scratch buffers, graphs and schedules, and borrows model, predictor, placement and pool, which must
 * outlive it. Cells of the KV cache are addressed by (sequence, position). Small batches of decoding (one token each of up to n_seq
 * sequences) take the sparse schedule of the mode; prompt chunks run dense through GEMM. Not thread safe: one caller at a time; it uses the pool inside.
 */
#ifndef PI_ENGINE_H
#define PI_ENGINE_H

#include "common/pi_err.h"
#include "common/pi_placement.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"
#include "runtime/pi_model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_engine;

/* How the GPU waits for the CPU inside a step. */
enum pi_handover {
    PI_HANDOVER_AUTO,  /* as SPIN where a trial succeeds */
    PI_HANDOVER_SPIN,  /* kernels of one graph watch a flag */
    PI_HANDOVER_EVENTS /* a graph for each stretch between hand-overs */
};

/* What products of rows of quantised matrices are given: their input as it is, or quantised (struct pi_q8), by the same rule on every unit. It concerns normed
 * inputs and attention outputs, and the input of a row-major down-projection; other down passes and predictors take F32 in any case. A vector that a quantised
 * matrix reads is rounded for all its readers: float matrices beside it, and predictors of the normed input, are given the F32 values d * q. */
enum pi_act_type {
    PI_ACT_TYPE_F32,
    PI_ACT_TYPE_Q8
};

const char *pi_act_type_name(enum pi_act_type type); /* "f32", "q8": as options name them */

struct pi_engine_options {
    enum pi_mode mode;    /* of decode steps; PREDICTED needs pred */
    enum pi_act_type act; /* of decode steps and prompts */
    uint32_t n_ctx;       /* positions per sequence */
    uint32_t n_seq;       /* sequences, >= 1 */
    uint32_t n_batch;     /* most tokens in one prompt chunk; 0: 512, at most n_ctx */
    enum pi_type kv_type; /* PI_TYPE_F16 or PI_TYPE_F32 */
    /* cpu+cpu: the placement's hot neurons run as a second unit on the same pool */
    bool two_units;
    /* the placement's GPU units run on this GPU; excludes two_units */
    bool on_gpu;
    int gpu; /* index, with on_gpu */
    enum pi_handover gpu_handover;
    /* Most tokens of a decode step; 0: as many as one takes. With 1 a sequence is told the same alone and among others on a GPU too, where sums of steps of more tokens have other orders.
     * choose_width: fewer where steps of fewer are measured to be faster (pi_width.h); on a GPU last digits then depend on times */
    uint32_t step_width;
    bool choose_width;
    /* seconds without progress after which the GPU is given up; 0: 3 in decode steps, 30 in prompt chunks */
    double gpu_patience;
    /* products of prompt chunks in F32 on a GPU too: reference figures, profiles */
    bool f32_gemm;
    /* bytes of the GPU's memory that everything of the run may take, its context included; 0: what is free */
    uint64_t vram_budget;
    /* every layer with a predictor runs predicted, whether it pays or not (tests, --verify
     * figures) */
    bool force_predicted;
};

/* pred and place may be NULL. PI_E_MISMATCH when pred or place were made for another model (callers check files; this checks shapes);
 * PI_E_RANGE for n_ctx above what the model's position table holds; PI_E_NOMEM naming what did not fit; with on_gpu
 * PI_E_NODEV, PI_E_DEVICE, PI_E_UNSUPPORTED for a form that no kernel has. */
enum pi_code pi_engine_create(struct pi_model *model, const struct pi_predictor *pred,
                              const struct pi_placement *place, struct pi_pool *pool,
                              const struct pi_engine_options *opt, struct pi_engine **out,
                              struct pi_err *err) PI_MUST_CHECK;
void pi_engine_destroy(struct pi_engine *e); /* accepts NULL */

/* The mode a layer's decode steps run in on the CPU, after "where it pays" was applied. */
enum pi_mode pi_engine_layer_mode(const struct pi_engine *e, uint32_t layer);

enum pi_phase {
    PI_PHASE_PROMPT, /* dense, GEMM; any n_tok up to n_batch, positions of one sequence ascending */
    /* the mode's schedule; n_tok tokens of different sequences, or of one, ascending */
    PI_PHASE_DECODE
};

struct pi_batch {
    uint32_t n_tok;
    const int32_t *token; /* (n_tok) */
    const int32_t *pos;   /* (n_tok) */
    const uint32_t *seq;  /* (n_tok), or NULL: all sequence 0 */
    const bool *want;     /* (n_tok) logits wanted, or NULL: all */
};

/* Feeds a batch, cut into pieces that fit the buffers, or as choose_width has it; logits_out (wanted tokens, n_vocab) in batch order, may be NULL when none is wanted. A sequence
 * goes on where it ends, or starts again at an earlier position and forgets what was behind it; inside a batch its positions follow each other.
 * PI_E_RANGE for a token, position or sequence outside the engine's ranges, naming it ("context full" for positions), before anything is written; PI_E_NOMEM. */
enum pi_code pi_engine_run(struct pi_engine *e, enum pi_phase phase, const struct pi_batch *batch,
                           float *logits_out, struct pi_err *err) PI_MUST_CHECK;

/* With choose_width: for decode batches of n_tok tokens nothing is tried any more, and they go through the same steps from now on; false, and of no effect, while there is a way that was not
 * measured: at most PI_WIDTH_TRIES batches. */
bool pi_engine_hold_width(struct pi_engine *e, uint32_t n_tok);

/* Forgets positions >= pos of a sequence. */
void pi_engine_truncate(struct pi_engine *e, uint32_t seq, int32_t pos);

/* Called in prompt phase once per layer, on the calling thread, with what the feed-forward block saw and made. residual (n_tok, n_embd): attention added;
 * input (n_tok, n_embd): what the feed-forward norm reads: the residual itself, in parallel blocks the layer's input; normed (n_tok, n_embd);
 * h (n_tok, n_ff): the activation's output (gate branch of gated models, before times up);
 * prod (n_tok, n_ff): what the down projection is given (h times up; h itself when not gated). */
struct pi_observer {
    void *ctx;
    enum pi_code (*ffn)(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                        const float *input, const float *normed, const float *h, const float *prod,
                        struct pi_err *err);
};
/* NULL: none (the default). Borrowed. */
void pi_engine_observe(struct pi_engine *e, const struct pi_observer *obs);

/* Decode steps with a trace also compute the full gate on the step's own input. Bit sets, neuron i in bit i % 8 of byte i / 8. */
struct pi_trace {
    size_t mask_bytes; /* ceil(n_ff / 8) */
    /* (n_layer, mask_bytes) of the last token fed; owned by who sets the trace */
    uint8_t *predicted;
    uint8_t *truth; /* (n_layer, mask_bytes) */
};
/* NULL: none. Borrowed. In a layer that runs without predictor predicted = truth. With a trace batches of decode must hold one token. */
void pi_engine_trace(struct pi_engine *e, struct pi_trace *trace);

/* What decode steps have read since the engine was made or the figures were last taken: rows of matrices, for each token that used them, though the
 * tokens of a batch share them. Vectors (norms, biases), the KV cache and the full gate that a trace adds are not counted. */
struct pi_engine_stats {
    uint64_t tokens;
    uint64_t weights_attn, weights_ffn, weights_pred, weights_other; /* weights (elements) read */
    uint64_t bytes;                                                  /* of all of them, as stored */
    uint64_t
        bytes_shared; /* of those bytes, what a token had from a read for another one of its step */
    /* feed-forward neurons whose down rows were read, by the CPU and by the GPU (or the second unit of cpu+cpu): those that fire, or are predicted to on a GPU */
    uint64_t neurons_cpu, neurons_gpu;
};
void pi_engine_take_stats(struct pi_engine *e, struct pi_engine_stats *out);

#define PI_WORK_UNITS \
    2 /* the CPU, and where the hot neurons are: a GPU, or the second unit of cpu+cpu */

/* Neurons of a layer that decode steps worked on, on each unit, since the engine was made: those that fired; those that were expected to where the unit
 * predicts them; all in dense layers. A step counts a neuron once, however many of its tokens want it. */
struct pi_layer_work {
    uint64_t neurons[PI_WORK_UNITS];
};
/* out (n_layer); returns the steps (a batch that is cut into pieces is several). Plain counters: for the thread that runs the engine. */
uint64_t pi_engine_get_work(const struct pi_engine *e, struct pi_layer_work *out);
/* Neurons of a layer that are placed on a unit. */
uint32_t pi_engine_neurons_on(const struct pi_engine *e, uint32_t layer, uint32_t unit);

/* Where the time of decode steps went since the engine was made or the figures were last taken. Times are wall clock, seconds. On the
 * CPU alone total and busy are the same and nothing is waited for. */
struct pi_engine_timing {
    uint64_t steps; /* a batch that is cut into pieces counts each of them */
    double seconds_total;
    double seconds_cpu_busy; /* workers computing */
    double seconds_wait;     /* the CPU waiting for the GPU's hand-over */
    double seconds_gpu;      /* the graph, from launch to end */
    double seconds_handover; /* the GPU waiting for the CPU at merges; inside seconds_gpu */
    /* weights read by each unit, as pi_engine_stats counts them */
    uint64_t bytes_gpu, bytes_cpu;
    uint64_t
        bytes_cpu_once; /* bytes_cpu with rows that several tokens of a step read counted once */
    /* Of prompts: what was streamed over PCIe, the time from first to last copy, and what of it the copies took, as the device's clock has it */
    uint64_t bytes_streamed;
    double seconds_streaming, seconds_copying;
};
void pi_engine_take_timing(struct pi_engine *e, struct pi_engine_timing *out);

#endif
