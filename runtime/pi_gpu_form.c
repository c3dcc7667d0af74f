#include "config.h"

#include "runtime/pi_gpu_form.h"

/* Kernels take up's bias where there is no gate. */
static bool biased_gate(const struct pi_model *m)
{
    for (uint32_t l = 0; m->shape.gated && l < m->shape.n_layer; l++)
        if (m->layers[l].gate_b != NULL || m->layers[l].up_b != NULL)
            return true;
    return false;
}

const char *pi_gpu_form_lacks(const struct pi_model *m)
{
    const char *form = pi_shape_gpu_lacks(&m->shape);

    return form != NULL ? form : biased_gate(m) ? "biases on gate and up" : NULL;
}

enum pi_code pi_gpu_form_check(const struct pi_model *m, struct pi_err *err)
{
    const char *form = pi_gpu_form_lacks(m);

    if (form == NULL)
        return PI_OK;
    return pi_err_set(err, PI_E_UNSUPPORTED,
                      "%s: no GPU kernel for %s, which architecture %s has: use --device cpu",
                      m->file.map.path, form, pi_arch_name(m->shape.arch));
}
