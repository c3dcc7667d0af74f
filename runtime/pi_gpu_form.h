/*
 * pi_gpu_form.h - which forms of models the GPU's kernels have. Asked before anything is put there; a form without kernels runs on the CPU.
 */
#ifndef PI_GPU_FORM_H
#define PI_GPU_FORM_H

#include "common/pi_err.h"
#include "runtime/pi_model.h"

/* What the model has and no kernel does, or NULL: "norms on q and k". */
const char *pi_gpu_form_lacks(const struct pi_model *m);

/* PI_E_UNSUPPORTED, naming it. */
enum pi_code pi_gpu_form_check(const struct pi_model *m, struct pi_err *err) PI_MUST_CHECK;

#endif
