/* Quantised activations by NEON instructions with products of four bytes (sdot). */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(PI_CPU_NEON)
#if defined(__clang__)
#define TARGET __attribute__((target("dotprod")))
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define NEON_DOT
#define PREFIX pi_neondot_
#include "runtime/cpu/pi_cpu_q8_neon.h"
#include "runtime/cpu/pi_cpu_simd_q8.h"
#endif
