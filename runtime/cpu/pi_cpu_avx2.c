/* AVX2 + FMA + F16C kernels. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

const struct pi_cpu *pi_cpu_avx2(void)
{
    return NULL;
}
