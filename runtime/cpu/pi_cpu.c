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

/* __builtin_cpu_supports also asks whether the system saves the wide registers (XGETBV). */
static bool cpu_has(enum pi_isa isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (isa) {
    case PI_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
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
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023;

    if (exp == 31) /* infinity, or NaN made quiet as the hardware does */
        return pi_bits_float(sign | 0x7f800000 | man << 13 | (man != 0 ? 0x400000 : 0));
    if (exp == 0) /* zero or subnormal: man units of 2^-24, exact */
        return pi_bits_float(sign | pi_float_bits((float)man * 0x1p-24f));
    return pi_bits_float(sign | (exp + 127 - 15) << 23 | man << 13);
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
    return pi_bits_float((uint32_t)h << 16);
}

uint16_t pi_f32_to_bf16(float f)
{
    uint32_t u = pi_float_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
