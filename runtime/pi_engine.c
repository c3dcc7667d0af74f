/*
 * pi_engine.c - makes engines, and keeps the books of their steps. The arithmetic is in pi_ops*.c, the order of operators in
 * common/pi_schedule.c, the walk in pi_exec_cpu.c.
 */
#include "config.h"

#include "runtime/pi_engine.h"

#include "common/pi_alloc.h"
#include "common/pi_estimate.h"
#include "common/pi_progress.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_engine_int.h"
#include "runtime/pi_gpu_form.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(PI_WIDTH_MOST == PI_DECODE_TOKENS && PI_WIDTH_MOST == PI_DEV_MAX_TOKENS,
               "tokens of a decode step");

#define DEFAULT_BATCH 512

const char *pi_act_type_name(enum pi_act_type type)
{
    return type == PI_ACT_TYPE_Q8 ? "q8" : "f32";
}

/* ---- create ---- */

static enum pi_code check_predictor(const struct pi_model *m, const struct pi_predictor *p,
                                    const struct pi_cpu *cpu, struct pi_err *err)
{
    const struct pi_shape *sh = &m->shape;

    if (p->n_layer != sh->n_layer || p->n_ff != sh->n_ff || p->n_embd != sh->n_embd)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "predictor is for %u layers, %u neurons, width %u; the model has %u, %u, %u",
            p->n_layer, p->n_ff, p->n_embd, sh->n_layer, sh->n_ff, sh->n_embd);
    for (uint32_t l = 0; l < p->n_layer; l++) {
        const struct pi_predictor_layer *pl = &p->layers[l];

        if (pl->width == 0)
            continue;
        if (pl->fc1.n_rows != pl->width || pl->fc1.n_cols != sh->n_embd ||
            pl->fc2.n_rows != sh->n_ff || pl->fc2.n_cols != pl->width || pl->fc1.data == NULL ||
            pl->fc2.data == NULL)
            return pi_err_set(
                err, PI_E_MISMATCH,
                "predictor of layer %u has matrices of other shapes than its width %u", l,
                pl->width);
        if (cpu->type[pl->fc1.type] == NULL || cpu->type[pl->fc2.type] == NULL)
            return pi_err_set(err, PI_E_UNSUPPORTED,
                              "predictor of layer %u has types %s and %s, which no kernel reads", l,
                              pi_type_name(pl->fc1.type), pi_type_name(pl->fc2.type));
        if ((unsigned)pl->input > PI_PRED_IN_PREV_ATTN)
            return pi_err_set(err, PI_E_MISMATCH,
                              "predictor of layer %u reads input %d, which is unknown", l,
                              (int)pl->input);
    }
    return PI_OK;
}

static enum pi_code check_options(const struct pi_model *m, const struct pi_predictor *pred,
                                  const struct pi_placement *place,
                                  const struct pi_engine_options *opt, struct pi_err *err)
{
    const struct pi_shape *sh = &m->shape;

    if (opt->n_ctx == 0 || opt->n_ctx > INT32_MAX || opt->n_seq == 0)
        return pi_err_set(err, PI_E_RANGE, "a context of %u positions in %u sequences", opt->n_ctx,
                          opt->n_seq);
    if (sh->learned_pos && opt->n_ctx > sh->n_ctx_train)
        return pi_err_set(err, PI_E_RANGE,
                          "a context of %u positions, the model's position table holds %u",
                          opt->n_ctx, sh->n_ctx_train);
    if (opt->kv_type != PI_TYPE_F16 && opt->kv_type != PI_TYPE_F32)
        return pi_err_set(err, PI_E_RANGE, "KV cache of type %s, only F16 and F32 are there",
                          pi_type_name(opt->kv_type));
    if (opt->mode == PI_MODE_PREDICTED && pred == NULL)
        return pi_err_set(err, PI_E_MISMATCH,
                          "mode predicted needs a predictor: make one with pi-train-predictor %s",
                          m->file.map.path);
    if (place != NULL && (place->n_layer != sh->n_layer || place->n_ff != sh->n_ff))
        return pi_err_set(err, PI_E_MISMATCH,
                          "placement is for %u layers of %u neurons, the model has %u of %u",
                          place->n_layer, place->n_ff, sh->n_layer, sh->n_ff);
    if (opt->two_units && opt->on_gpu)
        return pi_err_set(err, PI_E_RANGE, "units on the CPU and on a GPU in one engine");
    if (opt->on_gpu && pi_gpu_form_lacks(m) != NULL)
        return pi_gpu_form_check(m, err);
    if ((opt->two_units || opt->on_gpu) && place == NULL)
        return pi_err_set(err, PI_E_MISMATCH,
                          "two units need a placement: make one with pi-place %s",
                          m->file.map.path);
    return PI_OK;
}

/* Tokens of a decode step that there are buffers for, and graphs. */
static uint32_t decode_tokens(const struct pi_engine_options *opt)
{
    const uint32_t n =
        opt->step_width > 0 && opt->step_width < opt->n_seq ? opt->step_width : opt->n_seq;

    if (opt->on_gpu)
        return pi_dev_decode_tokens(n);
    return n < 4 ? 4 : n < PI_DECODE_TOKENS ? n : PI_DECODE_TOKENS;
}

enum pi_code pi_engine_create(struct pi_model *model, const struct pi_predictor *pred,
                              const struct pi_placement *place, struct pi_pool *pool,
                              const struct pi_engine_options *opt, struct pi_engine **out,
                              struct pi_err *err)
{
    const struct pi_placement *split = opt->two_units || opt->on_gpu ? place : NULL;
    struct pi_engine *e = NULL;
    bool need_t;
    uint64_t copied;
    enum pi_code rc;

    PI_TRY(check_options(model, pred, place, opt, err));
    PI_TRY(pi_blas_init(err));
    PI_ALLOC(e, 1, err);
    e->opt = *opt;
    e->n_batch = opt->n_batch == 0 ? DEFAULT_BATCH : opt->n_batch;
    if (e->n_batch > opt->n_ctx)
        e->n_batch = opt->n_ctx;
    e->s.m = model;
    e->s.pred = pred;
    /* norms behind the blocks: what products read is what sums go on from, which may not be rounded */
    e->s.act = model->shape.post_norm ? PI_ACT_TYPE_F32 : opt->act;
    e->s.pool = pool;
    e->s.n_units = split != NULL ? 2 : 1;
    e->s.n_lanes = pi_pool_size(pool);
    e->s.n_dec = decode_tokens(opt);
    pi_width_init(&e->width,
                  opt->step_width > 0 && opt->step_width < e->s.n_dec ? opt->step_width
                                                                      : e->s.n_dec,
                  opt->choose_width);
    PI_TRY(pi_cpu_select(&e->s.cpu, err));
    if (pred != NULL)
        PI_TRY(check_predictor(model, pred, e->s.cpu, err));
    PI_TRY(pi_engine_resolve_modes(e, split, &need_t, err));
    if (need_t)
        PI_TRY(pi_model_transpose_down(model, &copied, err));
    PI_TRY(pi_engine_make_tables(e, split, err));
    PI_ALLOC(e->s.lanes, e->s.n_lanes, err);
    PI_TRY(pi_engine_allocate(e, err));
    PI_TRY(pi_engine_make_schedules(e, split, err));
    *out = e;
    e = NULL;
out:
    pi_engine_destroy(e);
    return rc;
}

void pi_engine_destroy(struct pi_engine *e)
{
    if (e == NULL)
        return;
    pi_engine_gpu_destroy(e);
    for (size_t i = 0; i < e->n_scratch; i++)
        free(e->scratch[i]);
    free(e->scratch);
    for (uint32_t u = 0; u < PI_CPU_UNITS; u++) {
        free(e->s.units[u].layers);
        pi_cold_scratch_free(e->s.units[u].cold);
    }
    pi_blas_scratch_free(&e->s.blas);
    free(e->s.lanes);
    free(e->s.mode);
    free(e->s.work);
    free(e->s.traced);
    free(e->s.truth);
    free(e->tables);
    pi_kv_free(&e->s.kv);
    pi_exec_free(&e->exec);
    pi_exec_free(&e->prompt_exec);
    pi_schedule_free(&e->decode);
    pi_schedule_free(&e->prompt);
    pi_graph_free(&e->decode_graph);
    pi_graph_free(&e->prompt_graph);
    free(e);
}

enum pi_mode pi_engine_layer_mode(const struct pi_engine *e, uint32_t layer)
{
    enum pi_mode mode = e->s.mode[layer];

    return mode == PI_MODE_PREDICTED && !e->s.units[0].layers[layer].predicted ? PI_MODE_EXACT
                                                                               : mode;
}

/* ---- run ---- */

/* Everything a batch may get wrong, before anything is written. A sequence goes on where it ends or starts again at any position
 * before that; from then on its positions follow each other. next: (n_seq) scratch, -1: not fed yet. */
static enum pi_code check_batch(const struct pi_engine *e, const struct pi_batch *b, int32_t *next,
                                struct pi_err *err)
{
    const struct pi_state *s = &e->s;

    for (uint32_t q = 0; q < s->kv.n_seq; q++)
        next[q] = -1;
    for (uint32_t t = 0; t < b->n_tok; t++) {
        uint32_t seq = b->seq != NULL ? b->seq[t] : 0;

        if (b->token[t] < 0 || (uint32_t)b->token[t] >= s->m->shape.n_vocab)
            return pi_err_set(err, PI_E_RANGE, "token %d is outside the vocabulary of %u",
                              b->token[t], s->m->shape.n_vocab);
        if (seq >= s->kv.n_seq)
            return pi_err_set(err, PI_E_RANGE, "sequence %u of %u", seq, s->kv.n_seq);
        if (b->pos[t] >= 0 && (uint32_t)b->pos[t] >= s->kv.n_ctx)
            return pi_err_set(err, PI_E_RANGE, "context full: position %d, the context holds %u",
                              b->pos[t], s->kv.n_ctx);
        if (b->pos[t] < 0 || (next[seq] < 0 ? b->pos[t] > s->kv.len[seq] : b->pos[t] != next[seq]))
            return pi_err_set(err, PI_E_RANGE, "position %d of sequence %u, whose next is %d",
                              b->pos[t], seq, next[seq] < 0 ? s->kv.len[seq] : next[seq]);
        next[seq] = b->pos[t] + 1;
    }
    return PI_OK;
}

static enum pi_code begin_trace(struct pi_engine *e, enum pi_phase phase, const struct pi_batch *b,
                                struct pi_err *err)
{
    const struct pi_shape *sh = &e->s.m->shape;
    size_t n = (size_t)sh->n_layer * sh->n_ff;
    enum pi_code rc = PI_OK;

    if (e->trace == NULL || phase != PI_PHASE_DECODE)
        return PI_OK;
    if (b->n_tok != 1)
        PI_FAIL(err, PI_E_RANGE, "a traced step of %u tokens, traces are of one", b->n_tok);
    if (e->trace->mask_bytes != (sh->n_ff + 7u) / 8u)
        PI_FAIL(err, PI_E_RANGE, "trace masks of %zu bytes for %u neurons", e->trace->mask_bytes,
                sh->n_ff);
    if (e->s.traced == NULL) /* may be there without truth, after a failure */
        PI_ALLOC(e->s.traced, n, err);
    if (e->s.truth == NULL)
        PI_ALLOC(e->s.truth, n, err);
out:
    return rc;
}

static void end_trace(struct pi_engine *e)
{
    const struct pi_shape *sh = &e->s.m->shape;
    size_t n = e->trace->mask_bytes * sh->n_layer;

    memset(e->trace->predicted, 0, n);
    memset(e->trace->truth, 0, n);
    for (uint32_t l = 0; l < sh->n_layer; l++) {
        for (uint32_t i = 0; i < sh->n_ff; i++) {
            size_t at = (size_t)l * sh->n_ff + i, byte = l * e->trace->mask_bytes + i / 8;

            e->trace->predicted[byte] |= (uint8_t)(e->s.traced[at] << i % 8);
            e->trace->truth[byte] |= (uint8_t)(e->s.truth[at] << i % 8);
        }
    }
}

/* A decode step of n tokens, with its time and bytes on the books. */
static enum pi_code decode_piece(struct pi_engine *e, uint32_t n, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const uint64_t bytes = s->stats.bytes, shared = s->stats.bytes_shared;
    const double start = pi_now();
    enum pi_code rc = e->gpu != NULL ? pi_engine_gpu_decode(e, err)
                                     : pi_exec_team(&e->exec, &e->decode_graph, &e->decode,
                                                    pi_team_ops, s, n, err);
    const double seconds = pi_now() - start;

    e->timing.steps++;
    e->n_steps += rc == PI_OK;
    if (rc == PI_OK)
        pi_width_note(&e->width, n, seconds);
    e->timing.seconds_total += seconds;
    if (e->gpu != NULL) /* it keeps the rest of the account */
        return rc;
    e->timing.seconds_cpu_busy += seconds;
    e->timing.bytes_cpu += s->stats.bytes - bytes;
    e->timing.bytes_cpu_once += s->stats.bytes - bytes - (s->stats.bytes_shared - shared);
    return rc;
}

static enum pi_code run_piece(struct pi_engine *e, enum pi_phase phase, const struct pi_batch *b,
                              uint32_t first, uint32_t n, float *logits, struct pi_err *err)
{
    struct pi_state *s = &e->s;

    s->n_tok = n;
    s->token = b->token + first;
    s->pos = b->pos + first;
    s->seq = b->seq != NULL ? b->seq + first : NULL;
    s->want = b->want != NULL ? b->want + first : NULL;
    s->logits = logits;
    for (uint32_t t = 0; t < n; t++) /* what is written over is lost, should the step fail */
        pi_engine_truncate(e, pi_state_seq(s, t), s->pos[t]);
    if (phase == PI_PHASE_DECODE)
        return decode_piece(e, n, err);
    if (e->gpu != NULL)
        return pi_engine_gpu_prompt(e, err);
    return pi_exec_solo(&e->prompt_exec, &e->prompt_graph, &e->prompt, pi_solo_ops, s, n, err);
}

enum pi_code pi_engine_run(struct pi_engine *e, enum pi_phase phase, const struct pi_batch *batch,
                           float *logits_out, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    uint32_t n_steps = 0;
    int32_t *next = NULL;
    enum pi_code rc;

    PI_ALLOC(next, s->kv.n_seq, err);
    PI_TRY(check_batch(e, batch, next, err));
    PI_TRY(begin_trace(e, phase, batch, err));
    if (phase == PI_PHASE_DECODE)
        n_steps = pi_width_begin(&e->width, batch->n_tok);
    for (uint32_t t = 0; t < batch->n_tok;) {
        const uint32_t left = batch->n_tok - t;
        const uint32_t n = phase == PI_PHASE_DECODE ? pi_width_share(left, n_steps--)
                           : left < e->n_batch      ? left
                                                    : e->n_batch;

        PI_TRY(run_piece(e, phase, batch, t, n, logits_out, err));
        for (uint32_t i = 0; i < n; i++) {
            s->kv.len[pi_state_seq(s, i)] = s->pos[i] + 1;
            if (logits_out != NULL && pi_state_wants(s, i))
                logits_out += s->m->shape.n_vocab;
        }
        t += n;
    }
    if (e->trace != NULL && phase == PI_PHASE_DECODE)
        end_trace(e);
out:
    free(next);
    return rc;
}

bool pi_engine_hold_width(struct pi_engine *e, uint32_t n_tok)
{
    return pi_width_hold(&e->width, n_tok);
}

void pi_engine_truncate(struct pi_engine *e, uint32_t seq, int32_t pos)
{
    if (seq < e->s.kv.n_seq && pos < e->s.kv.len[seq])
        e->s.kv.len[seq] = pos < 0 ? 0 : pos;
}

void pi_engine_observe(struct pi_engine *e, const struct pi_observer *obs)
{
    e->s.obs = obs;
}

void pi_engine_trace(struct pi_engine *e, struct pi_trace *trace)
{
    e->trace = trace;
    if (trace == NULL) {
        free(e->s.traced);
        free(e->s.truth);
        e->s.traced = NULL;
        e->s.truth = NULL;
    }
}

void pi_engine_take_stats(struct pi_engine *e, struct pi_engine_stats *out)
{
    *out = e->s.stats;
    memset(&e->s.stats, 0, sizeof(e->s.stats));
}

uint64_t pi_engine_get_work(const struct pi_engine *e, struct pi_layer_work *out)
{
    memcpy(out, e->s.work, e->s.m->shape.n_layer * sizeof(*out));
    return e->n_steps;
}

uint32_t pi_engine_neurons_on(const struct pi_engine *e, uint32_t layer, uint32_t unit)
{
    return unit < e->s.n_units ? e->s.units[unit].layers[layer].n : 0;
}

void pi_engine_take_timing(struct pi_engine *e, struct pi_engine_timing *out)
{
    if (e->gpu != NULL)
        pi_engine_gpu_take_timing(e);
    *out = e->timing;
    memset(&e->timing, 0, sizeof(e->timing));
}
