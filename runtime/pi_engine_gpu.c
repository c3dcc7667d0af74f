/* pi_engine_gpu.c - the GPU's side of an engine: what lives on the device, decode steps, prompt chunks. */
#include "config.h"

#include "runtime/pi_engine_int.h"

#include "common/pi_alloc.h"
#include "runtime/pi_dev_model.h"
#include "runtime/pi_exec_gpu.h"

#include <stdlib.h>

struct pi_engine_gpu {
    struct pi_dev_model model;
    struct pi_exec_gpu *exec;
};

enum pi_code pi_engine_gpu_create(struct pi_engine *e, const struct pi_placement *place,
                                  struct pi_err *err)
{
    const struct pi_dev_model_options mo = {.index = e->opt.gpu,
                                            .n_ctx = e->opt.n_ctx,
                                            .n_seq = e->opt.n_seq,
                                            .kv_type = e->opt.kv_type,
                                            .mode = e->s.mode};
    const struct pi_exec_gpu_options xo = {.index = e->opt.gpu,
                                           .handover = e->opt.gpu_events ? PI_HANDOVER_EVENTS
                                                                         : PI_HANDOVER_AUTO};
    enum pi_code rc;

    PI_ALLOC(e->gpu, 1, err);
    PI_TRY(pi_dev_model_create(e->s.m, e->s.pred, place, e->tables, e->s.pool, &mo, &e->gpu->model,
                               err));
    PI_TRY(pi_exec_gpu_create(&e->s, &e->gpu->model, &e->decode_graph, &e->decode, &xo,
                              &e->gpu->exec, err));
out:
    return rc;
}

void pi_engine_gpu_destroy(struct pi_engine *e)
{
    if (e->gpu == NULL)
        return;
    pi_exec_gpu_destroy(e->gpu->exec);
    pi_dev_model_free(&e->gpu->model);
    free(e->gpu);
    e->gpu = NULL;
}

enum pi_code pi_engine_gpu_decode(struct pi_engine *e, struct pi_err *err)
{
    return pi_exec_gpu_step(e->gpu->exec, err);
}

/* Until chunks have a path of their own: token by token through the decode graph. */
enum pi_code pi_engine_gpu_prompt(struct pi_engine *e, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const struct pi_state all = *s;
    enum pi_code rc = PI_OK;

    for (uint32_t t = 0; rc == PI_OK && t < all.n_tok; t++) {
        s->n_tok = 1;
        s->token = all.token + t;
        s->pos = all.pos + t;
        s->seq = all.seq != NULL ? all.seq + t : NULL;
        s->want = all.want != NULL ? all.want + t : NULL;
        rc = pi_exec_gpu_step(e->gpu->exec, err);
        if (s->logits != NULL && pi_state_wants(s, 0))
            s->logits += s->m->shape.n_vocab;
    }
    s->n_tok = all.n_tok;
    s->token = all.token;
    s->pos = all.pos;
    s->seq = all.seq;
    s->want = all.want;
    s->logits = all.logits;
    return rc;
}

void pi_engine_gpu_take_timing(struct pi_engine *e)
{
    struct pi_err ignored; /* figures that can not be read are zero */

    (void)!pi_exec_gpu_take_timing(e->gpu->exec, &e->timing, &ignored);
}

struct pi_exec_gpu *pi_engine_gpu_exec(struct pi_engine *e)
{
    return e->gpu != NULL ? e->gpu->exec : NULL;
}
