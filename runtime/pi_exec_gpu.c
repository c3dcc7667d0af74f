/* pi_exec_gpu.c - makes and ends executors of GPU and CPU. */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include "common/pi_alloc.h"

#include <stdlib.h>

#define MOST_HANDOVER_SECONDS 1e-3
#define PATIENCE              3.0 /* seconds; a busy machine's GPU may take more than one */

static enum pi_code check_agreement(const struct pi_exec_gpu *x, struct pi_err *err)
{
    const struct pi_graph *g = x->graph;

    if (x->schedule->n_units != 2)
        return pi_err_set(err, PI_E_SELFCHECK, "a schedule of %u units for a CPU and a GPU",
                          x->schedule->n_units);
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const struct pi_op *op = &g->ops[i];
        const struct pi_dev_layer *l = &x->dm->layers[op->layer];
        bool attn = op->kind >= PI_OP_ATTN_NORM && op->kind <= PI_OP_FFN_NORM;

        if (attn && l->has_attn != (op->unit != PI_UNIT_CPU))
            return pi_err_set(err, PI_E_SELFCHECK, "layer %u: attention is on another unit",
                              op->layer);
        if (op->kind == PI_OP_FFN && op->unit != PI_UNIT_CPU &&
            l->n_hot != x->s->units[1].layers[op->layer].n)
            return pi_err_set(err, PI_E_SELFCHECK, "layer %u: %u hot neurons on the device, not %u",
                              op->layer, l->n_hot, x->s->units[1].layers[op->layer].n);
        if (op->kind == PI_OP_OUTPUT && (op->unit != PI_UNIT_CPU) != (x->dm->output.data != NULL))
            return pi_err_set(err, PI_E_SELFCHECK, "the output head is on another unit");
    }
    return PI_OK;
}

static enum pi_code note_slots(struct pi_exec_gpu *x, struct pi_err *err)
{
    const struct pi_unit_list *cpu = &x->schedule->units[PI_UNIT_CPU],
                              *gpu = &x->schedule->units[1];
    enum pi_code rc = PI_OK;

    PI_ALLOC(x->posted_by, x->schedule->n_slots, err);
    for (uint32_t i = 0; i < x->schedule->n_slots; i++)
        x->posted_by[i] = UINT32_MAX;
    for (uint32_t i = 0; i < gpu->n; i++) {
        if (gpu->ops[i].post != PI_NO_SLOT)
            x->posted_by[gpu->ops[i].post] = i;
    }
    x->embed_slot = PI_NO_SLOT;
    for (uint32_t i = 0; i < cpu->n; i++) {
        enum pi_op_kind kind = x->graph->ops[cpu->ops[i].op].kind;

        if (kind == PI_OP_EMBED)
            x->embed_slot = cpu->ops[i].post;
        else
            x->any_cpu = true;
        x->rotates = x->rotates || kind == PI_OP_QKV;
    }
out:
    return rc;
}

static void size_up(struct pi_exec_gpu *x)
{
    x->n_hot_max = x->n_cold_max = 1;
    for (uint32_t l = 0; l < x->dm->n_layer; l++) {
        uint32_t hot = x->dm->layers[l].n_hot, cold = x->dm->layers[l].n_cold;

        x->n_hot_max = hot > x->n_hot_max ? hot : x->n_hot_max;
        x->n_cold_max = cold > x->n_cold_max ? cold : x->n_cold_max;
    }
    for (uint32_t n = 1; x->n_buckets < PI_XG_BUCKETS && n <= x->s->n_dec; n *= 2)
        x->buckets[x->n_buckets++].n_tok = n;
}

/* Hand-overs inside a graph are tried before they are relied on. */
static enum pi_code choose_handover(struct pi_exec_gpu *x, enum pi_handover wanted,
                                    struct pi_err *err)
{
    double seconds = 0.0;
    enum pi_code rc;

    x->spin = wanted == PI_HANDOVER_SPIN || (wanted == PI_HANDOVER_AUTO && !x->any_cpu);
    if (x->spin || wanted == PI_HANDOVER_EVENTS)
        return PI_OK;
    rc = pi_gpu_measure_handover(x->index, x->patience, &seconds, err);
    x->spin = rc == PI_OK && seconds < MOST_HANDOVER_SECONDS;
    return rc == PI_E_UNSUPPORTED ? PI_OK : rc;
}

enum pi_code pi_exec_gpu_create(struct pi_state *s, const struct pi_dev_model *dm,
                                const struct pi_graph *graph, const struct pi_schedule *schedule,
                                const struct pi_exec_gpu_options *opt, struct pi_exec_gpu **out,
                                struct pi_err *err)
{
    struct pi_exec_gpu *x = NULL;
    enum pi_code rc;

    PI_ALLOC_ALIGNED(x, 1, err);
    x->s = s;
    x->dm = dm;
    x->graph = graph;
    x->schedule = schedule;
    x->index = opt->index;
    x->patience = opt->patience > 0.0 ? opt->patience : PATIENCE;
    PI_TRY(pi_gpu_use(x->index, err));
    PI_TRY(check_agreement(x, err));
    PI_TRY(note_slots(x, err));
    size_up(x);
    PI_TRY(choose_handover(x, opt->handover, err));
    PI_TRY(pi_gpu_stream_create(x->index, &x->stream, err));
    PI_TRY(pi_xg_allocate(x, err));
    PI_TRY(pi_cold_scratch_create(x->n_cold_max, s->n_dec, dm->shape->n_embd, &x->cold, err));
    x->job = (struct pi_cold_job){
        .cpu = s->cpu, .shape = dm->shape, .pool = s->pool, .scratch = x->cold};
    for (uint32_t i = 0; i < x->n_buckets; i++)
        PI_TRY(pi_xg_capture(x, &x->buckets[i], err));
    PI_TRY(pi_xg_watchdog_start(x, err));
    *out = x;
    x = NULL;
out:
    pi_exec_gpu_destroy(x);
    return rc;
}

void pi_xg_bucket_free(struct pi_xg_bucket *b)
{
    for (uint32_t k = 0; b->segments != NULL && k < b->n_segments; k++) {
        pi_gpu_graph_destroy(b->segments[k].graph);
        pi_gpu_event_destroy(b->segments[k].event);
    }
    free(b->segments);
    b->segments = NULL;
}

void pi_exec_gpu_destroy(struct pi_exec_gpu *x)
{
    if (x == NULL)
        return;
    pi_xg_watchdog_stop(x);
    pi_xg_trace_free(x);
    for (uint32_t i = 0; i < x->n_buckets; i++)
        pi_xg_bucket_free(&x->buckets[i]);
    pi_gpu_stream_destroy(x->stream);
    pi_gpu_free(&x->buf);
    pi_gpu_unpin(&x->pinned);
    pi_cold_scratch_free(x->cold);
    free(x->posted_by);
    free(x);
}

enum pi_code pi_exec_gpu_take_timing(struct pi_exec_gpu *x, struct pi_engine_timing *out,
                                     struct pi_err *err)
{
    uint64_t waited = 0, zero = 0;
    size_t at = (size_t)((char *)x->d.waited - (char *)x->buf.ptr);
    enum pi_code rc;

    if (x->failed) /* a device that hangs would not answer */
        return pi_err_set(err, PI_E_DEVICE, "GPU %d: an earlier step failed", x->index);
    PI_TRY(pi_gpu_download(&waited, &x->buf, at, sizeof(waited), err));
    PI_TRY(pi_gpu_upload(&x->buf, at, &zero, sizeof(zero), err));
    out->seconds_cpu_busy += x->cpu_busy;
    out->seconds_wait += x->cpu_wait;
    out->seconds_gpu += x->gpu_wall;
    out->seconds_handover += 1e-9 * (double)waited;
    out->bytes_gpu += x->bytes_gpu;
    out->bytes_cpu += x->bytes_cpu;
    out->bytes_cpu_once += x->bytes_cpu_once;
    x->cpu_busy = x->cpu_wait = x->gpu_wall = 0.0;
    x->bytes_gpu = x->bytes_cpu = x->bytes_cpu_once = 0;
out:
    return rc;
}

void pi_exec_gpu_test_stall(struct pi_exec_gpu *x)
{
    x->stall = true;
}

void pi_exec_gpu_test_slow(struct pi_exec_gpu *x, double seconds)
{
    x->slow = seconds;
}

bool pi_exec_gpu_spins(const struct pi_exec_gpu *x)
{
    return x->spin;
}

uint64_t pi_exec_gpu_memory(const struct pi_exec_gpu *x)
{
    return x->buf.bytes;
}
