/* Chooses a table of kernels; conversions of single values. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_cpu_int.h"

#include <stdlib.h>

static const char *const isa_names[PI_ISA_COUNT] = {
    [PI_ISA_SCALAR] = "scalar",         [PI_ISA_NEON] = "neon",
    [PI_ISA_NEONDOT] = "neondot",       [PI_ISA_AVX2] = "avx2",
    [PI_ISA_AVXVNNI] = "avxvnni",       [PI_ISA_AVX512] = "avx512",
    [PI_ISA_AVX512VNNI] = "avx512vnni",
};

const char *pi_isa_name(enum pi_isa isa)
{
    return isa < PI_ISA_COUNT ? isa_names[isa] : "?";
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Bits that __builtin_cpu_supports has no name for in every compiler. */
static bool has_bits(unsigned leaf, unsigned subleaf, int reg, unsigned bits)
{
    unsigned r[4] = {0};

    return __get_cpuid_count(leaf, subleaf, &r[0], &r[1], &r[2], &r[3]) != 0 &&
           (r[reg] & bits) == bits;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           has_bits(1, 0, 2, bit_F16C);
}

static bool has_avx512(void)
{
#if defined(PI_CPU_EMU) /* a test's build, in which AVX2 does the work */
    return has_avx2();
#else
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
}

static bool has_vnni(unsigned subleaf, int reg, unsigned bit)
{
#if defined(PI_CPU_EMU)
    (void)subleaf, (void)reg, (void)bit;
    return true;
#else
    return has_bits(7, subleaf, reg, bit);
#endif
}

/* __builtin_cpu_supports also asks whether the system saves the wide registers (XGETBV); the bits of VNNI say nothing of that. */
static bool cpu_has(enum pi_isa isa)
{
    __builtin_cpu_init();
    switch (isa) {
    case PI_ISA_AVX2:
        return has_avx2();
    case PI_ISA_AVXVNNI:
        return has_avx2() && has_vnni(1, 0, 1u << 4);
    case PI_ISA_AVX512:
        return has_avx512();
    case PI_ISA_AVX512VNNI:
        return has_avx512() && has_vnni(0, 2, 1u << 11);
    default:
        return false;
    }
}
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

/* Every such processor has vectors. */
static bool cpu_has(enum pi_isa isa)
{
    return isa == PI_ISA_NEON ||
           (isa == PI_ISA_NEONDOT && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0);
}
#else
static bool cpu_has(enum pi_isa isa)
{
    (void)isa;
    return false;
}
#endif

const struct pi_cpu *pi_cpu_get(enum pi_isa isa)
{
    if (isa == PI_ISA_SCALAR)
        return &pi_cpu_scalar;
    if (!cpu_has(isa))
        return NULL;
    switch (isa) {
    case PI_ISA_NEON:
    case PI_ISA_NEONDOT:
        return pi_cpu_neon(isa == PI_ISA_NEONDOT);
    case PI_ISA_AVX2:
    case PI_ISA_AVXVNNI:
        return pi_cpu_avx2(isa == PI_ISA_AVXVNNI);
    default:
        return pi_cpu_avx512(isa == PI_ISA_AVX512VNNI);
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
        return pi_err_set(err, PI_E_USAGE,
                          "PI_CPU=%s: expected scalar, neon, neondot, avx2, avxvnni, avx512 or "
                          "avx512vnni",
                          name);
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
