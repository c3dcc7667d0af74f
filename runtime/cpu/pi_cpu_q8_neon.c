/* Quantised activations by the NEON instructions that every processor of 64 bits has. */
#include "config.h"

#include "runtime/cpu/pi_cpu_int.h"

#if defined(PI_CPU_NEON)
#define TARGET
#define PREFIX pi_neon_
#include "runtime/cpu/pi_cpu_q8_neon.h"
#include "runtime/cpu/pi_cpu_simd_q8.h"
#endif
