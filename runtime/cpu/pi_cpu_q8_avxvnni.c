/* Quantised activations by AVX2 instructions and vpdpbusd in its VEX form (AVX-VNNI). */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(PI_CPU_VNNI)
#if defined(PI_CPU_EMU)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#else
#define TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#endif
#define PREFIX pi_avxvnni_
#define DPBUSD _mm256_dpbusd_avx_epi32
#include "runtime/cpu/pi_cpu_q8_x86_256.h"
#include "runtime/cpu/pi_cpu_simd_q8.h"
#endif
