/* pi_gpu_fit.h in a build without CUDA: there is no device, and nobody gets further than create. */
#include "config.h"

#include "runtime/pi_gpu_fit.h"

static enum pi_code no_device(struct pi_err *err)
{
    return pi_err_set(err, PI_E_NODEV, "this build has no CUDA support");
}

enum pi_code pi_gpu_fit_create(int index, struct pi_gpu_fit **out, struct pi_err *err)
{
    (void)index;
    (void)out;
    return no_device(err);
}

void pi_gpu_fit_destroy(struct pi_gpu_fit *f)
{
    (void)f;
}

enum pi_code pi_gpu_fit_product(struct pi_gpu_fit *f, bool trans_a, bool trans_b, uint32_t m,
                                uint32_t n, uint32_t k, const float *a, const float *b, float *c,
                                struct pi_err *err)
{
    (void)f, (void)trans_a, (void)trans_b, (void)m, (void)n, (void)k, (void)a, (void)b, (void)c;
    return no_device(err);
}

enum pi_code pi_gpu_fit_samples(struct pi_gpu_fit *f, const float *x, const float *block_x,
                                uint32_t n, uint32_t d, struct pi_err *err)
{
    (void)f, (void)x, (void)block_x, (void)n, (void)d;
    return no_device(err);
}

enum pi_code pi_gpu_fit_covariance(struct pi_gpu_fit *f, enum pi_gpu_fit_side a,
                                   const float *mean_a, enum pi_gpu_fit_side b, const float *mean_b,
                                   const uint32_t *rows, uint32_t n, float *out, struct pi_err *err)
{
    (void)f, (void)a, (void)mean_a, (void)b, (void)mean_b, (void)rows, (void)n, (void)out;
    return no_device(err);
}

enum pi_code pi_gpu_fit_net(struct pi_gpu_fit *f, const struct pi_gpu_net *net, struct pi_err *err)
{
    (void)f, (void)net;
    return no_device(err);
}

enum pi_code pi_gpu_fit_score(struct pi_gpu_fit *f, const uint32_t *rows, uint32_t n, float *z,
                              struct pi_err *err)
{
    (void)f, (void)rows, (void)n, (void)z;
    return no_device(err);
}

enum pi_code pi_gpu_fit_begin(struct pi_gpu_fit *f, const struct pi_gpu_fit_task *t,
                              struct pi_err *err)
{
    (void)f, (void)t;
    return no_device(err);
}

enum pi_code pi_gpu_fit_step(struct pi_gpu_fit *f, const uint32_t *order, const float rate[3],
                             float c1, float c2, struct pi_err *err)
{
    (void)f, (void)order, (void)rate, (void)c1, (void)c2;
    return no_device(err);
}

enum pi_code pi_gpu_fit_end(struct pi_gpu_fit *f, const struct pi_gpu_net *net, struct pi_err *err)
{
    (void)f, (void)net;
    return no_device(err);
}
