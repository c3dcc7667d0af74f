/* pi_engine_gpu.c - the GPU's side of an engine: what lives on the device, decode steps, prompt chunks. */
#include "config.h"

#include "runtime/pi_engine_int.h"

#include "common/pi_alloc.h"
#include "runtime/pi_dev_model.h"
#include "runtime/pi_exec_gpu.h"
#include "runtime/pi_gpu_prompt.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct pi_engine_gpu {
    struct pi_dev_model model;
    struct pi_exec_gpu *exec;
    struct pi_gpu_prompt *prompt;
};

/* ---- pages ---- */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define POPULATE_BYTES ((size_t)64 << 20) /* at a time */

struct populate {
    const uint8_t *begin;
    size_t bytes;
};

/* Where the kernel can not (before 5.14) each page is read once. */
static void populate_range(void *ctx, size_t begin, size_t end)
{
    const struct populate *p = ctx;
    size_t at = begin * POPULATE_BYTES, to = end * POPULATE_BYTES;
    const uintptr_t addr = (uintptr_t)p->begin + at;

    to = to < p->bytes ? to : p->bytes;
    if (madvise((void *)addr, to - at, MADV_POPULATE_READ) == 0)
        return;
    for (size_t i = at; i < to; i += 4096)
        (void)*(const volatile uint8_t *)(p->begin + i);
}

/* Cold rows are gathered one by one: each page that is not mapped yet would stop a step for microseconds, in the first minutes of a run. So the file is mapped as
 * a whole, unless memory could not hold it. */
static void populate(const struct pi_engine *e)
{
    const struct pi_map *map = &e->s.m->file.map;
    struct populate p = {.begin = map->data, .bytes = map->size};
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    if (pages <= 0 || page <= 0 || map->size / (size_t)page > (size_t)pages / 5 * 4)
        return;
    pi_pool_for(e->s.pool, (p.bytes + POPULATE_BYTES - 1) / POPULATE_BYTES, 1, populate_range, &p);
}

enum pi_code pi_engine_gpu_create(struct pi_engine *e, const struct pi_placement *place,
                                  struct pi_err *err)
{
    const struct pi_dev_model_options mo = {.index = e->opt.gpu,
                                            .n_ctx = e->opt.n_ctx,
                                            .n_seq = e->opt.n_seq,
                                            .kv_type = e->opt.kv_type,
                                            .mode = e->s.mode};
    const struct pi_exec_gpu_options xo = {
        .index = e->opt.gpu, .handover = e->opt.gpu_handover, .patience = e->opt.gpu_patience};
    const struct pi_gpu_prompt_options po = {
        .n_batch = e->n_batch, .f32_gemm = e->opt.f32_gemm, .patience = e->opt.gpu_patience};
    enum pi_code rc;

    PI_ALLOC(e->gpu, 1, err);
    PI_TRY(pi_dev_model_create(e->s.m, e->s.pred, place, e->tables, e->s.pool, &mo, &e->gpu->model,
                               err));
    populate(e);
    PI_TRY(pi_exec_gpu_create(&e->s, &e->gpu->model, &e->decode_graph, &e->decode, &xo,
                              &e->gpu->exec, err));
    PI_TRY(pi_gpu_prompt_create(&e->gpu->model, &e->s, &po, &e->gpu->prompt, err));
out:
    return rc;
}

void pi_engine_gpu_destroy(struct pi_engine *e)
{
    if (e->gpu == NULL)
        return;
    pi_gpu_prompt_destroy(e->gpu->prompt);
    pi_exec_gpu_destroy(e->gpu->exec);
    pi_dev_model_free(&e->gpu->model);
    free(e->gpu);
    e->gpu = NULL;
}

enum pi_code pi_engine_gpu_decode(struct pi_engine *e, struct pi_err *err)
{
    return pi_exec_gpu_step(e->gpu->exec, err);
}

enum pi_code pi_engine_gpu_prompt(struct pi_engine *e, struct pi_err *err)
{
    return pi_gpu_prompt_run(e->gpu->prompt, &e->s, err);
}

void pi_engine_gpu_take_timing(struct pi_engine *e)
{
    struct pi_err ignored; /* figures that can not be read are zero */
    struct pi_gpu_prompt_stats prompts;

    pi_gpu_prompt_take_stats(e->gpu->prompt, &prompts);
    e->timing.bytes_streamed += prompts.bytes_streamed;
    e->timing.seconds_streaming += prompts.seconds_streaming;
    e->timing.seconds_copying += prompts.seconds_copying;
    (void)!pi_exec_gpu_take_timing(e->gpu->exec, &e->timing, &ignored);
}

struct pi_exec_gpu *pi_engine_gpu_exec(struct pi_engine *e)
{
    return e->gpu != NULL ? e->gpu->exec : NULL;
}
