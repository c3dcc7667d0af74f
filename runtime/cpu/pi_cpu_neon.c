/* NEON kernels. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

const struct pi_cpu *pi_cpu_neon(bool dot)
{
    (void)dot;
    return NULL;
}
