/*
 * pi_load.h - finds what a run needs beside the model, checks that it belongs together, and decides mode and device.
 *
 * pi_loaded owns everything in it. Order: pi_load_model() opens and decides; the caller may then refuse the prompt before any large
 * allocation; pi_load_engine() makes pool and engine.
 */
#ifndef PI_LOAD_H
#define PI_LOAD_H

#include "common/pi_tokenizer.h"
#include "runtime/pi_engine.h"
#include "runtime/pi_run_options.h"

struct pi_loaded {
    struct pi_model model;
    struct pi_tokenizer *tok;
    struct pi_predictor pred; /* with has_pred */
    struct pi_placement
        place; /* with has_place; no larger than --vram-budget and the device's room once there is an engine */
    bool has_pred, has_place;
    bool has_profile;     /* one lies beside the model */
    enum pi_mode mode;    /* of decode steps */
    enum pi_act_type act; /* F32 where no matrix is quantised; with the engine */
    bool two_units;
    int gpu;      /* that place's GPU units run on; -1: none */
    bool all_gpu; /* no placement was there: one is made that puts everything on the GPU */
    uint32_t n_ctx;
    struct pi_pool *pool;
    struct pi_engine *engine;
    struct pi_engine *dense; /* the second engine of --verify */
};

/* Opens model, tokenizer and artifacts. Says why a device is not what was hoped for.
 * PI_E_MISMATCH when an artifact is of another model or version, or too small for -c, --kv or --vram-budget, or when --mode or --device
 * need one that is not there: with the command to run. PI_E_NODEV when a GPU was asked for that is not there. */
enum pi_code pi_load_model(const struct pi_run_options *o, const struct pi_run_log *log,
                           struct pi_loaded *out, struct pi_err *err) PI_MUST_CHECK;

/* Pool, engine, and the dense engine (on the CPU, with F32 activations) when o->verify is set. PI_E_INFEASIBLE, naming a budget that works, where the placement does not fit
 * --vram-budget or what is free on the GPU; PI_E_MISMATCH with the command where a model without placement does not fit whole. Says once, when nothing
 * can go wrong any more, what is missing beside the model and which command makes it: an error is to be the only line. */
enum pi_code pi_load_engine(const struct pi_run_options *o, const struct pi_run_log *log,
                            struct pi_loaded *l, struct pi_err *err) PI_MUST_CHECK;

void pi_load_free(struct pi_loaded *l); /* accepts a zeroed or half-built one */

#endif
