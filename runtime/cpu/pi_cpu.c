/* Chooses a table of kernels; conversions of single values. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_cpu_int.h"

#include <stdlib.h>

static const char *const isa_names[PI_ISA_COUNT] = {"scalar", "avx2", "avx512"};

const char *pi_isa_name(enum pi_isa isa)
{
    return isa < PI_ISA_COUNT ? isa_names[isa] : "?";
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Not a name that __builtin_cpu_supports knows in every compiler. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/* __builtin_cpu_supports also asks whether the system saves the wide registers (XGETBV). */
static bool cpu_has(enum pi_isa isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (isa) {
    case PI_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case PI_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    default:
        break;
    }
#endif
    return isa == PI_ISA_SCALAR;
}

const struct pi_cpu *pi_cpu_get(enum pi_isa isa)
{
    if (!cpu_has(isa))
        return NULL;
    switch (isa) {
    case PI_ISA_AVX2:
        return pi_cpu_avx2();
    case PI_ISA_AVX512:
        return pi_cpu_avx512();
    default:
        return &pi_cpu_scalar;
    }
}

enum pi_code pi_cpu_select(const struct pi_cpu **out, struct pi_err *err)
{
    const char *name = getenv("PI_CPU");
    const struct pi_cpu *cpu = NULL;

    for (int i = PI_ISA_COUNT - 1; i >= 0; i--) {
        if (name != NULL && *name != '\0' && strcmp(name, isa_names[i]) != 0)
            continue;
        cpu = pi_cpu_get((enum pi_isa)i);
        if (cpu == NULL && name != NULL && *name != '\0')
            return pi_err_set(err, PI_E_NODEV, "PI_CPU=%s: this processor or build lacks it", name);
        if (cpu != NULL)
            break;
    }
    if (cpu == NULL)
        return pi_err_set(err, PI_E_USAGE, "PI_CPU=%s: expected scalar, avx2 or avx512", name);
    *out = cpu;
    return PI_OK;
}

float pi_f16_to_f32(uint16_t h)
{
    return pi_widen_f16(h);
}

uint16_t pi_f32_to_f16(float f)
{
    uint32_t u = pi_float_bits(f), a = u & 0x7fffffff, sign = u >> 16 & 0x8000;

    if (a > 0x7f800000) /* NaN: quiet, upper bits of the payload kept */
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) /* below 2^-14: floats in [0.5, 1) are 2^-24 apart, so this sum rounds */
        return (uint16_t)(sign | (pi_float_bits(pi_bits_float(a) + 0.5f) - 0x3f000000));
    a += 0xfff + (a >> 13 & 1); /* half to even; a carry into the exponent is right */
    return (uint16_t)(sign | (a - ((127 - 15) << 23)) >> 13);
}

float pi_bf16_to_f32(uint16_t h)
{
    return pi_widen_bf16(h);
}

uint16_t pi_f32_to_bf16(float f)
{
    uint32_t u = pi_float_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
