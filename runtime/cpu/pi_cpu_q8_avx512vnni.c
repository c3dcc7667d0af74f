/* Quantised activations by AVX-512 instructions with VNNI: rows in vectors of 256 bits, blocked products in vectors of 512. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(PI_CPU_VNNI)
#if defined(PI_CPU_EMU)
#define TARGET __attribute__((target("avx2,fma,f16c")))
#else
#define TARGET \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,avx512vnni")))
#endif
#define PREFIX    pi_avx512vnni_
#define DPBUSD    _mm256_dpbusd_epi32
#define DPBUSD512 _mm512_dpbusd_epi32
#include "runtime/cpu/pi_cpu_q8_x86_512.h"
#include "runtime/cpu/pi_cpu_simd_q8.h"
#endif
