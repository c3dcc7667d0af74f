/* pi_gpu.h in a build without CUDA: there is no device. */
#include "config.h"

#include "runtime/pi_engine_int.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_gpu_context.h"

#include <string.h>

int pi_gpu_count(void)
{
    return 0;
}

static enum pi_code no_device(int index, struct pi_err *err)
{
    return pi_err_set(err, PI_E_NODEV, "GPU %d: this build has no CUDA support", index);
}

enum pi_code pi_gpu_describe(int index, struct pi_gpu_info *out, struct pi_err *err)
{
    (void)out;
    return no_device(index, err);
}

enum pi_code pi_gpu_alloc(int index, size_t bytes, struct pi_dev_buf *out, struct pi_err *err)
{
    (void)bytes;
    (void)out;
    return no_device(index, err);
}

void pi_gpu_free(struct pi_dev_buf *b)
{
    memset(b, 0, sizeof(*b));
}

enum pi_code pi_gpu_upload(const struct pi_dev_buf *dst, size_t offset, const void *src, size_t n,
                           struct pi_err *err)
{
    (void)dst;
    (void)offset;
    (void)src;
    (void)n;
    return no_device(0, err);
}

enum pi_code pi_gpu_download(void *dst, const struct pi_dev_buf *src, size_t offset, size_t n,
                             struct pi_err *err)
{
    (void)dst;
    (void)src;
    (void)offset;
    (void)n;
    return no_device(0, err);
}

enum pi_code pi_gpu_measure(int index, struct pi_gpu_speed *out, struct pi_err *err)
{
    (void)out;
    return no_device(index, err);
}

enum pi_code pi_gpu_measure_handover(int index, double patience, double *seconds,
                                     struct pi_err *err)
{
    (void)patience;
    (void)seconds;
    return no_device(index, err);
}

enum pi_code pi_gpu_context_measure(int index, struct pi_gpu_context *out, struct pi_err *err)
{
    (void)out;
    return no_device(index, err);
}

/* ---- the GPU's side of an engine ---- */

enum pi_code pi_engine_gpu_create(struct pi_engine *e, const struct pi_placement *place,
                                  struct pi_err *err)
{
    (void)place;
    return no_device(e->opt.gpu, err);
}

void pi_engine_gpu_destroy(struct pi_engine *e)
{
    (void)e;
}

enum pi_code pi_engine_gpu_decode(struct pi_engine *e, struct pi_err *err)
{
    return no_device(e->opt.gpu, err);
}

enum pi_code pi_engine_gpu_prompt(struct pi_engine *e, struct pi_err *err)
{
    return no_device(e->opt.gpu, err);
}

void pi_engine_gpu_take_timing(struct pi_engine *e)
{
    (void)e;
}

struct pi_exec_gpu *pi_engine_gpu_exec(struct pi_engine *e)
{
    (void)e;
    return NULL;
}
