/*
 * Quantisers of the K types: a scale (and a min) is searched for every part of a block, then those are rounded to six (eight) bits of a common scale.
 *
 * The search rounds the part's elements for a row of step widths around range / levels. For each rounding the scale and offset of least weighted squared
 * error follow from a few sums; the rounding whose best fit has the least error wins. Weights grow with magnitude, since large weights matter more.
 * GCC's vectors of four are the same operations in the same order on every processor: a file does not depend on who wrote it.
 */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_cpu_int.h"

#include <math.h>

typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))
#define PARTS  (PI_SUPER / PI_BLOCK)
#define PART6  16 /* elements of a part of Q6_K */
#define PARTS6 (PI_SUPER / PART6)
/* F16 scales are multiples of 2^-24: what is below this is zero in any block. */
#define TINY 0x1p-30f
/* Above what an F16 scale, 8 bits of scale and 5 of value can hold, below where sums of cubes overflow. */
#define HUGE_VALUES 0x1p30f

INLINE v4f load4(const float *p)
{
    v4f v;

    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE void store4(float *p, v4f v)
{
    memcpy(p, &v, sizeof(v));
}

INLINE v4f spread4(float f)
{
    return (v4f){f, f, f, f};
}

INLINE v4f min4(v4f a, v4f b)
{
    v4i less = a < b;

    return (v4f)(((v4i)a & less) | ((v4i)b & ~less));
}

INLINE v4f max4(v4f a, v4f b)
{
    v4i less = a < b;

    return (v4f)(((v4i)b & less) | ((v4i)a & ~less));
}

INLINE float sum4(v4f v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* To the nearest integer, halves to even; |v| < 2^22. Elements are cut to the levels next, so that larger ones need no care but for their sign. */
INLINE v4f round4(v4f v)
{
    const v4f magic = {0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f};

    return (v + magic) - magic;
}

/* The scale of a block that holds a NaN, an infinity or values beyond all scales; false: all are fit to be quantised. */
static bool odd_block(const float *x, uint16_t *d_out)
{
    float amax = 0.0f;
    bool nan = false;

    for (int i = 0; i < PI_SUPER; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        nan |= x[i] != x[i];
    }
    *d_out = pi_f32_to_f16(nan ? NAN : INFINITY);
    return nan || amax >= HUGE_VALUES;
}

static bool is_finite_f16(uint16_t h)
{
    return (h & 0x7c00) != 0x7c00;
}

/* ---- scale and min: Q4_K, Q5_K ---- */

/* q runs from 0 to levels; step widths tried are range / (levels + first + i / 10), i < n. */
struct search {
    float levels, first;
    int n;
};

static const struct search search_q4_k = {15.0f, -1.0f, 21}, search_q5_k = {31.0f, -0.5f, 16};

/* w = scale * q - min, both at least 0 */
struct fit {
    float scale, min;
};

/* Of a part: weights, and the elements above the least times their weights. */
struct part {
    float w[PI_BLOCK], y[PI_BLOCK], wy[PI_BLOCK];
    float low, range; /* of the elements and 0 */
    double sum_w, sum_wy;
};

static void weigh_part(const float *x, struct part *p)
{
    v4f low = spread4(0.0f), high = spread4(x[0]), sum = low, sum_w = low, sum_wy = low;
    float rms, top;

    for (int i = 0; i < PI_BLOCK; i += 4) {
        v4f v = load4(x + i);

        low = min4(v, low);
        high = max4(v, high);
        sum += v * v;
    }
    p->low = fminf(fminf(low[0], low[1]), fminf(low[2], low[3]));
    top = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3]));
    p->range = top - p->low;
    rms = sqrtf(sum4(sum) / (float)PI_BLOCK);
    for (int i = 0; i < PI_BLOCK; i += 4) {
        v4f v = load4(x + i), w = spread4(rms) + max4(v, -v), y = v - spread4(p->low);

        store4(p->w + i, w);
        store4(p->y + i, y);
        store4(p->wy + i, w * y);
        sum_w += w;
        sum_wy += w * y;
    }
    p->sum_w = (double)sum4(sum_w);
    p->sum_wy = (double)sum4(sum_wy);
}

/* Error of y = scale * q + offset but for the sum of w y^2, which all roundings share; the least over scale and offset <= most. */
static double best_fit(const struct part *p, double q, double qq, double yq, double most,
                       double *scale_out, double *offset_out)
{
    double det = p->sum_w * qq - q * q, scale = 0.0, offset = INFINITY;

    if (det > 1e-5 * p->sum_w * qq) { /* else all q are the same but for rounding errors */
        scale = (p->sum_w * yq - p->sum_wy * q) / det;
        offset = (p->sum_wy - scale * q) / p->sum_w;
    }
    if (offset > most) {
        offset = most;
        scale = (yq - offset * q) / qq;
    }
    *scale_out = scale;
    *offset_out = offset;
    return scale * (scale * qq + 2.0 * (offset * q - yq)) +
           offset * (offset * p->sum_w - 2.0 * p->sum_wy);
}

static struct fit fit_part(const float *x, const struct search *s)
{
    struct part p;
    struct fit fit = {0.0f, 0.0f};
    float from = 0.0f; /* what is rounded to 0: the offset of the best fit so far */
    double least = INFINITY;

    weigh_part(x, &p);
    fit.min = -p.low;
    for (int k = 0; k < s->n && p.range - from > TINY; k++) {
        v4f inv = spread4((s->levels + s->first + 0.1f * (float)k) / (p.range - from));
        v4f q = spread4(0.0f), qq = q, yq = q;
        double scale, offset, error;

        for (int i = 0; i < PI_BLOCK; i += 4) {
            v4f l = round4((load4(p.y + i) - spread4(from)) * inv), wl;

            l = max4(min4(l, spread4(s->levels)), spread4(0.0f));
            wl = load4(p.w + i) * l;
            q += wl;
            qq += wl * l;
            yq += load4(p.wy + i) * l;
        }
        error = best_fit(&p, (double)sum4(q), (double)sum4(qq), (double)sum4(yq), -(double)p.low,
                         &scale, &offset);
        if (error < least && scale > 0.0) {
            least = error;
            fit.scale = (float)scale;
            fit.min = (float)(-(double)p.low - offset);
            from = (float)offset;
        }
    }
    return fit;
}

/* Both types of scale and min before their bits are packed. */
struct parts {
    uint16_t d, dmin;
    uint8_t scale[PARTS], min[PARTS], q[PI_SUPER];
};

/* max / limit, both at least 0, to F16; the next number where rounding down would cut max: subnormal numbers are far apart. */
static uint16_t common_scale(float max, float limit)
{
    uint16_t d = pi_f32_to_f16(max / limit);

    return (uint16_t)(max > (limit + 0.5f) * pi_widen_f16(d) ? d + 1 : d);
}

/* v in units of d to the nearest, low to high. By d as stored: among the smallest F16 numbers it is far from what it was rounded from. */
static int in_units(float v, float d, float low, float high)
{
    return d != 0.0f ? (int)fmaxf(fminf(rintf(v / d), high), low) : 0;
}

static void round_part(const float *x, float scale, float min, float levels, uint8_t *q)
{
    float inv = scale > 0.0f ? 1.0f / scale : 0.0f;

    for (int i = 0; i < PI_BLOCK; i += 4) {
        v4f v = round4((load4(x + i) + spread4(min)) * spread4(inv));

        v = min4(max4(v, spread4(0.0f)), spread4(levels));
        for (int l = 0; l < 4; l++)
            q[i + l] = (uint8_t)(int)v[l];
    }
}

static float mean(const float *x)
{
    v4f sum = spread4(0.0f);

    for (int i = 0; i < PI_BLOCK; i += 4)
        sum += load4(x + i);
    return sum4(sum) / (float)PI_BLOCK;
}

static void quantise_parts(const float *x, const struct search *s, struct parts *out)
{
    struct fit fit[PARTS];
    float max_scale = 0.0f, max_min = 0.0f, d, dmin;

    memset(out, 0, sizeof(*out));
    if (odd_block(x, &out->d))
        return;
    for (int j = 0; j < PARTS; j++) {
        fit[j] = fit_part(x + j * PI_BLOCK, s);
        max_scale = fmaxf(max_scale, fit[j].scale);
        max_min = fmaxf(max_min, fit[j].min);
    }
    out->d = common_scale(max_scale, 63.0f);
    out->dmin = common_scale(max_min, 63.0f);
    if (!is_finite_f16(out->d) || !is_finite_f16(out->dmin))
        return;
    d = pi_widen_f16(out->d);
    dmin = pi_widen_f16(out->dmin);
    for (int j = 0; j < PARTS; j++) {
        out->scale[j] = (uint8_t)in_units(fit[j].scale, d, 0.0f, 63.0f);
        if (out->scale[j] == 0) /* all elements become one number */
            fit[j].min = fminf(fit[j].min, -mean(x + j * PI_BLOCK));
        out->min[j] = (uint8_t)in_units(fit[j].min, dmin, 0.0f, 63.0f);
        round_part(x + j * PI_BLOCK, d * (float)out->scale[j], dmin * (float)out->min[j], s->levels,
                   out->q + j * PI_BLOCK);
    }
}

static void pack_scales(const struct parts *p, uint8_t *to)
{
    for (int j = 0; j < 4; j++) {
        to[j] = (uint8_t)(p->scale[j] | p->scale[j + 4] >> 4 << 6);
        to[j + 4] = (uint8_t)(p->min[j] | p->min[j + 4] >> 4 << 6);
        to[j + 8] = (uint8_t)((p->scale[j + 4] & 15) | (p->min[j + 4] & 15) << 4);
    }
}

/* The low four bits of two parts side by side. */
static void pack_halves(const uint8_t *q, uint8_t *to)
{
    for (int j = 0; j < PARTS; j += 2, q += 2 * PI_BLOCK, to += PI_BLOCK)
        for (int i = 0; i < PI_BLOCK; i++)
            to[i] = (uint8_t)((q[i] & 15) | (q[i + PI_BLOCK] & 15) << 4);
}

void pi_quantise_q4_k(const float *x, void *row_out, uint32_t n)
{
    struct pi_block_q4_k *b = row_out;
    struct parts p;

    for (uint32_t k = 0; k < n / PI_SUPER; k++, x += PI_SUPER, b++) {
        quantise_parts(x, &search_q4_k, &p);
        b->d = p.d;
        b->dmin = p.dmin;
        pack_scales(&p, b->scales);
        pack_halves(p.q, b->q);
    }
}

void pi_quantise_q5_k(const float *x, void *row_out, uint32_t n)
{
    struct pi_block_q5_k *b = row_out;
    struct parts p;

    for (uint32_t k = 0; k < n / PI_SUPER; k++, x += PI_SUPER, b++) {
        quantise_parts(x, &search_q5_k, &p);
        b->d = p.d;
        b->dmin = p.dmin;
        pack_scales(&p, b->scales);
        pack_halves(p.q, b->q);
        memset(b->qh, 0, sizeof(b->qh));
        for (int i = 0; i < PI_SUPER; i++)
            b->qh[i % PI_BLOCK] |= (uint8_t)(p.q[i] >> 4 << i / PI_BLOCK);
    }
}

/* ---- scale alone: Q6_K ---- */

/* The scale of 16 elements, either sign; 0: all are tiny. q from -32 to 31, the element of largest magnitude near -32; weights are squares. */
static float fit_part6(const float *x)
{
    float wx[PART6], peak = 0.0f, best = 0.0f;
    double most = 0.0;

    for (int i = 0; i < PART6; i++)
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    if (fabsf(peak) <= TINY)
        return 0.0f;
    for (int i = 0; i < PART6; i++)
        wx[i] = x[i] * x[i] * x[i];
    for (int k = -9; k <= 9; k++) {
        v4f inv = spread4(-(32.0f + 0.1f * (float)k) / peak), qq = spread4(0.0f), xq = qq;
        double num, den;

        for (int i = 0; i < PART6; i += 4) {
            v4f v = load4(x + i), l = round4(v * inv);

            l = max4(min4(l, spread4(31.0f)), spread4(-32.0f));
            qq += v * v * l * l;
            xq += load4(wx + i) * l;
        }
        num = (double)sum4(xq);
        den = (double)sum4(qq);
        if (num * num > most * den) {
            most = num * num / den;
            best = (float)(num / den);
        }
    }
    return best;
}

/* The upper two bits of four quarters of 32 share a byte, the lower four those of two. */
static void pack_six(const uint8_t *q, struct pi_block_q6_k *b)
{
    for (int h = 0; h < 2; h++, q += 128) {
        for (int i = 0; i < 32; i++) {
            b->ql[64 * h + i] = (uint8_t)((q[i] & 15) | (q[i + 64] & 15) << 4);
            b->ql[64 * h + 32 + i] = (uint8_t)((q[i + 32] & 15) | (q[i + 96] & 15) << 4);
            b->qh[32 * h + i] = (uint8_t)(q[i] >> 4 | q[i + 32] >> 4 << 2 | q[i + 64] >> 4 << 4 |
                                          q[i + 96] >> 4 << 6);
        }
    }
}

static void quantise_block6(const float *x, struct pi_block_q6_k *b)
{
    float fit[PARTS6], peak = 0.0f, d;
    uint8_t q[PI_SUPER];

    memset(b, 0, sizeof(*b));
    if (odd_block(x, &b->d))
        return;
    for (int j = 0; j < PARTS6; j++) {
        fit[j] = fit_part6(x + j * PART6);
        peak = fabsf(fit[j]) > fabsf(peak) ? fit[j] : peak;
    }
    b->d = (uint16_t)(common_scale(fabsf(peak), 128.0f) | (peak > 0.0f ? 0x8000 : 0));
    if (!is_finite_f16(b->d))
        return;
    d = pi_widen_f16(b->d);
    for (int j = 0; j < PARTS6; j++) {
        float scale, inv;

        b->scale[j] = (int8_t)in_units(fit[j], d, -128.0f, 127.0f);
        scale = d * (float)b->scale[j];
        inv = scale != 0.0f ? 1.0f / scale : 0.0f;
        for (int i = j * PART6; i < (j + 1) * PART6; i += 4) {
            v4f v = round4(load4(x + i) * spread4(inv));

            v = max4(min4(v, spread4(31.0f)), spread4(-32.0f)) + spread4(32.0f);
            for (int l = 0; l < 4; l++)
                q[i + l] = (uint8_t)(int)v[l];
        }
    }
    pack_six(q, b);
}

void pi_quantise_q6_k(const float *x, void *row_out, uint32_t n)
{
    for (uint32_t k = 0; k < n / PI_SUPER; k++)
        quantise_block6(x + (size_t)k * PI_SUPER, (struct pi_block_q6_k *)row_out + k);
}
