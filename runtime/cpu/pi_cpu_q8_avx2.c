/* Quantised activations by AVX2 instructions. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define PREFIX pi_avx2_
#include "runtime/cpu/pi_cpu_q8_x86_256.h"
#include "runtime/cpu/pi_cpu_simd_q8.h"
#endif
