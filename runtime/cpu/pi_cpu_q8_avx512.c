/* Quantised activations by AVX-512 instructions without VNNI: rows in vectors of 256 bits with 32 registers, blocked products in vectors of 512. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(__x86_64__)
#if defined(PI_CPU_EMU)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#endif
#define PREFIX pi_avx512_
#include "runtime/cpu/pi_cpu_q8_x86_512.h"
#include "runtime/cpu/pi_cpu_simd_q8.h"
#endif
