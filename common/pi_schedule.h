/*
 * pi_schedule.h - a step of the model as a graph of operators, and its compiled form: per unit an ordered list with wait and
 * post slots.
 *
 * The graph is built once per phase (decode step, prompt chunk) from the shape and the placement. Each operator names its unit and the
 * operators it needs. Compiling gives every unit its list; a dependency inside a unit is kept by the list's order, a dependency
 * across units becomes a slot: the producer posts it with the step's epoch after its payload is written, the
 * consumer waits for that epoch. Slots are never reset between steps, so a left-over value can not satisfy the next token.
 * One slot per layer and direction at most: a layer with cold neurons has one hand-over (normed input, predicted cold set) and
 * one merge (partial sum). Where attention lives on a GPU, that GPU predicts for the CPU's neurons too: all neurons' predictor costs it
 * microseconds, the CPU milliseconds. Interpreters: CPU (one unit), cpu+cpu (two units, one pool), later CUDA graphs and events.
 *
 * A graph and a schedule own their arrays and nothing else; both are constant after they are built.
 */
#ifndef PI_SCHEDULE_H
#define PI_SCHEDULE_H

#include "common/pi_err.h"
#include "common/pi_placement.h"
#include "common/pi_shape.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pi_op_kind {
    PI_OP_EMBED,     /* token (and position) embeddings -> residual */
    PI_OP_ATTN_NORM, /* residual -> normed */
    PI_OP_QKV,       /* normed -> q; k, v into the KV cache; rotary embedding */
    PI_OP_ATTN,      /* q, KV cache -> attention output */
    PI_OP_ATTN_OUT,  /* output projection added to the residual */
    PI_OP_FFN_NORM,  /* residual -> normed feed-forward input */
    PI_OP_PREDICT,   /* predictor -> active set; one per owner of neurons in predicted mode */
    PI_OP_FFN,       /* the owner's neurons -> partial sum */
    PI_OP_MERGE,     /* partial sums of all units added to the residual, in unit order */
    PI_OP_OUT_NORM,  /* residual -> normed */
    PI_OP_OUTPUT     /* normed -> logits */
};

#define PI_OP_MAX_DEPS 4
#define PI_NO_SLOT     UINT32_MAX

struct pi_op {
    enum pi_op_kind kind;
    uint32_t layer; /* 0 for operators outside layers */
    uint8_t unit;   /* that runs it */
    uint8_t
        owner; /* whose neurons it is about; unit itself, but for a PREDICT on attention's unit for the CPU's neurons */
    uint8_t n_deps;
    uint32_t deps[PI_OP_MAX_DEPS]; /* indices of operators that come before this one */
};

struct pi_graph {
    uint32_t n_ops;
    struct pi_op *ops; /* (n_ops), topologically sorted */
};

struct pi_step_op {
    uint32_t op; /* index into the graph */
    uint32_t n_waits;
    uint32_t waits[PI_OP_MAX_DEPS]; /* slots to wait for before it starts */
    uint32_t post;                  /* slot posted when it is done, or PI_NO_SLOT */
};

struct pi_unit_list {
    uint32_t n;
    struct pi_step_op *ops; /* (n) */
};

struct pi_schedule {
    uint32_t n_units, n_slots;
    struct pi_unit_list *units; /* (n_units) */
};

/* The graph of a decode step or a prompt chunk (sparse = false: no PI_OP_PREDICT). mode (n_layer): the mode of
 * each layer, PREDICTED only where it has a predictor; where a layer is split, mode_cpu and mode_gpu say which of its units' neurons
 * are predicted. place may be one for the CPU alone. A layer's list on the unit of its attention: norm, PREDICT for the CPU's neurons
 * (first: the CPU waits for it), PREDICT for its own, FFN. With attention on the CPU, each unit predicts for itself. */
enum pi_code pi_graph_build(const struct pi_shape *shape, const struct pi_placement *place,
                            const enum pi_mode *mode, bool sparse, struct pi_graph *out,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_graph_free(struct pi_graph *g);

/* PI_E_CORRUPT when an operator depends on a later one or names a unit >= n_units. */
enum pi_code pi_schedule_compile(const struct pi_graph *g, uint32_t n_units,
                                 struct pi_schedule *out, struct pi_err *err) PI_MUST_CHECK;
void pi_schedule_free(struct pi_schedule *s);

/* Hand-overs (slots that cross units) of one layer; tests hold it to the design's one each way. */
uint32_t pi_schedule_crossings(const struct pi_graph *g, const struct pi_schedule *s,
                               uint32_t layer);

#endif
