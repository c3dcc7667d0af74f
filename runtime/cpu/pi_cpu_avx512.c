/* AVX-512 (F, BW, VL, DQ) kernels. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

const struct pi_cpu *pi_cpu_avx512(void)
{
    return NULL;
}
