/*
 * pi_engine_int.h - what an engine is made of; private to runtime/pi_engine*.c.
 */
#ifndef PI_ENGINE_INT_H
#define PI_ENGINE_INT_H

#include "runtime/pi_engine.h"
#include "runtime/pi_ops.h"
#include "runtime/pi_width.h"

struct pi_exec_gpu;
struct pi_engine_gpu; /* the GPU's side of an engine: pi_engine_gpu.c, or nothing (pi_gpu_none.c) */

struct pi_engine {
    struct pi_engine_options opt;
    struct pi_state s;
    uint32_t n_batch;
    struct pi_graph decode_graph, prompt_graph;
    struct pi_schedule decode, prompt;
    struct pi_exec exec, prompt_exec;
    struct pi_engine_gpu *gpu; /* NULL on the CPU alone */
    struct pi_trace *trace;
    struct pi_engine_timing timing;
    uint64_t n_steps;      /* ever */
    struct pi_width width; /* of decode steps */
    uint32_t *tables;      /* (n_layer, n_ff): hot ids ascending, then cold ids ascending */
    void **scratch;        /* (n_scratch) everything of the memory plan */
    size_t n_scratch;
};

static inline uint32_t pi_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* pi_engine_graph.c: in this order, after model, predictor, pool and options are set. */

/* The mode of each layer, and what predictors want kept. *need_t: decode reads down_t. place: NULL on one unit. */
enum pi_code pi_engine_resolve_modes(struct pi_engine *e, const struct pi_placement *place,
                                     bool *need_t, struct pi_err *err) PI_MUST_CHECK;
/* Which neurons each unit owns. PI_E_CORRUPT for a placement that names one twice. */
enum pi_code pi_engine_make_tables(struct pi_engine *e, const struct pi_placement *place,
                                   struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_engine_make_schedules(struct pi_engine *e, const struct pi_placement *place,
                                      struct pi_err *err) PI_MUST_CHECK;

/* pi_engine_plan.c: KV cache and all scratch, summed up before the first byte is allocated. PI_E_NOMEM says what does not fit. */
enum pi_code pi_engine_allocate(struct pi_engine *e, struct pi_err *err) PI_MUST_CHECK;

/* The GPU's side, with opt.on_gpu, after everything else. place: as the graph sees it, GPU units folded into unit 1. */
enum pi_code pi_engine_gpu_create(struct pi_engine *e, const struct pi_placement *place,
                                  struct pi_err *err) PI_MUST_CHECK;
void pi_engine_gpu_destroy(struct pi_engine *e);
/* A decode step, a prompt chunk: of what e->s holds. */
enum pi_code pi_engine_gpu_decode(struct pi_engine *e, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_engine_gpu_prompt(struct pi_engine *e, struct pi_err *err) PI_MUST_CHECK;
/* For tests; NULL on the CPU alone. */
struct pi_exec_gpu *pi_engine_gpu_exec(struct pi_engine *e);
/* Adds the GPU's account to e->timing. */
void pi_engine_gpu_take_timing(struct pi_engine *e);

#endif
