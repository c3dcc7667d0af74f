/* Vector types, half and bfloat16 of CUDA for the emulator; see cuda_emu.h. */
#ifndef EMU_TYPES_H
#define EMU_TYPES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

#define EMU_VEC2(name, T, align)              \
    struct alignas(align) name {              \
        T x, y;                               \
    };                                        \
    static inline name make_##name(T x, T y) \
    {                                         \
        return name{x, y};                    \
    }
#define EMU_VEC3(name, T)                          \
    struct name {                                  \
        T x, y, z;                                 \
    };                                             \
    static inline name make_##name(T x, T y, T z) \
    {                                              \
        return name{x, y, z};                      \
    }
#define EMU_VEC4(name, T, align)                        \
    struct alignas(align) name {                        \
        T x, y, z, w;                                   \
    };                                                  \
    static inline name make_##name(T x, T y, T z, T w) \
    {                                                   \
        return name{x, y, z, w};                        \
    }

typedef unsigned char emu_uchar;
typedef signed char emu_schar;
typedef unsigned short emu_ushort;
typedef long long emu_llong;
typedef unsigned long long emu_ullong;

EMU_VEC2(char2, emu_schar, 2)
EMU_VEC2(uchar2, emu_uchar, 2)
EMU_VEC2(short2, short, 4)
EMU_VEC2(ushort2, emu_ushort, 4)
EMU_VEC2(int2, int, 8)
EMU_VEC2(uint2, unsigned, 8)
EMU_VEC2(longlong2, emu_llong, 16)
EMU_VEC2(ulonglong2, emu_ullong, 16)
EMU_VEC2(float2, float, 8)
EMU_VEC2(double2, double, 16)
EMU_VEC3(int3, int)
EMU_VEC3(uint3, unsigned)
EMU_VEC3(float3, float)
EMU_VEC4(char4, emu_schar, 4)
EMU_VEC4(uchar4, emu_uchar, 4)
EMU_VEC4(short4, short, 8)
EMU_VEC4(ushort4, emu_ushort, 8)
EMU_VEC4(int4, int, 16)
EMU_VEC4(uint4, unsigned, 16)
EMU_VEC4(float4, float, 16)

template <typename To, typename From> static inline To emu_bits(From v)
{
    static_assert(sizeof(To) == sizeof(From), "bit casts keep the size");
    To r;

    memcpy(&r, &v, sizeof(r));
    return r;
}

/* ---- half: 1 sign, 5 exponent, 10 mantissa bits ---- */

#ifdef __F16C__
static inline float emu_half_to_float(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
#else
static inline float emu_half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu, u;

    if (rest >= 0x7c00u)
        u = 0x7f800000u | (rest & 0x3ffu) << 13;
    else if (rest >= 0x400u)
        u = (rest << 13) + (112u << 23);
    else /* subnormal or zero: a multiple of 2^-24 */
        u = emu_bits<uint32_t>((float)rest * 0x1p-24f);
    return emu_bits<float>(u | sign);
}
#endif

/* Round to nearest, ties to even; every NaN becomes 0x7fff, as on the device. */
static inline uint16_t emu_float_to_half(float f)
{
    uint32_t u = emu_bits<uint32_t>(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;

    if (a > 0x7f800000u)
        return 0x7fff;
    if (a >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 rounds at a half's subnormal step */
        float t = emu_bits<float>(a) + 0.5f;

        return (uint16_t)(sign | (emu_bits<uint32_t>(t) - 0x3f000000u));
    }
    a += 0xfffu + (a >> 13 & 1u);
    return (uint16_t)(sign | ((a - (112u << 23)) >> 13));
}

static inline uint16_t emu_float_to_bf16(float f)
{
    uint32_t u = emu_bits<uint32_t>(f);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

struct __half {
    unsigned short emu_x; /* not for code under test: nvcc's member is not accessible */

    __half() = default;
    __half(float f) : emu_x(emu_float_to_half(f))
    {
    }
    operator float() const
    {
        return emu_half_to_float(emu_x);
    }
};

struct __nv_bfloat16 {
    unsigned short emu_x;

    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : emu_x(emu_float_to_bf16(f))
    {
    }
    operator float() const
    {
        return emu_bits<float>((uint32_t)emu_x << 16);
    }
};

struct alignas(4) __half2 {
    __half x, y;

    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b)
    {
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;

    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b)
    {
    }
};

typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __half2float(__half h)
{
    return (float)h;
}

static inline __half __float2half(float f)
{
    return __half(f);
}

static inline __half __float2half_rn(float f)
{
    return __half(f);
}

static inline float2 __half22float2(__half2 h)
{
    return float2{(float)h.x, (float)h.y};
}

static inline __half2 __float22half2_rn(float2 f)
{
    return __half2(__half(f.x), __half(f.y));
}

static inline __half2 __floats2half2_rn(float a, float b)
{
    return __half2(__half(a), __half(b));
}

static inline __half2 __float2half2_rn(float a)
{
    return __half2(__half(a), __half(a));
}

static inline __half2 __halves2half2(__half a, __half b)
{
    return __half2(a, b);
}

static inline __half2 __half2half2(__half a)
{
    return __half2(a, a);
}

static inline float __low2float(__half2 h)
{
    return (float)h.x;
}

static inline float __high2float(__half2 h)
{
    return (float)h.y;
}

static inline __half __low2half(__half2 h)
{
    return h.x;
}

static inline __half __high2half(__half2 h)
{
    return h.y;
}

static inline unsigned short __half_as_ushort(__half h)
{
    return h.emu_x;
}

static inline __half __ushort_as_half(unsigned short u)
{
    return emu_bits<__half>(u);
}

static inline float __bfloat162float(__nv_bfloat16 b)
{
    return (float)b;
}

static inline __nv_bfloat16 __float2bfloat16(float f)
{
    return __nv_bfloat16(f);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}

static inline float2 __bfloat1622float2(__nv_bfloat162 b)
{
    return float2{(float)b.x, (float)b.y};
}

static inline __nv_bfloat162 __float22bfloat162_rn(float2 f)
{
    return __nv_bfloat162(__nv_bfloat16(f.x), __nv_bfloat16(f.y));
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b));
}

static inline float __low2float(__nv_bfloat162 b)
{
    return (float)b.x;
}

static inline float __high2float(__nv_bfloat162 b)
{
    return (float)b.y;
}

static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b)
{
    return b.emu_x;
}

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return emu_bits<__nv_bfloat16>(u);
}

#endif
