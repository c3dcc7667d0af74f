/* Quantisers of the block types, after ggml's reference rules. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_cpu_int.h"

#include <math.h>

/* A NaN among the elements is to be seen in the result: the block's scale becomes NaN. */
static bool has_nan(const float *x)
{
    bool nan = false;

    for (int i = 0; i < PI_BLOCK; i++)
        nan |= x[i] != x[i];
    return nan;
}

/* 1 / d, or 0 where that is infinite: an all-zero block, or one so small that its scale is 0 in F16. */
static float inverse(float d)
{
    float id = 1.0f / d;

    return isinf(id) ? 0.0f : id;
}

/* v towards zero, held in lo..hi (NaN gives lo): blocks with infinities reach this. */
static int whole(float v, int lo, int hi)
{
    if (v >= (float)hi)
        return hi;
    return v > (float)lo ? (int)v : lo;
}

/* v to the nearest whole number, halves away from zero, held in lo..hi (NaN gives lo): whole(roundf(v), lo, hi) without a call. |lo| and hi below 2^22. */
static int nearest(float v, int lo, int hi)
{
    float rest;
    int q;

    if (!(v > (float)lo))
        return lo;
    if (v >= (float)hi)
        return hi;
    q = (int)v;
    rest = v - (float)q; /* exact */
    return q + (rest >= 0.5f) - (rest <= -0.5f);
}

void pi_quantise_q8_0(const float *x, void *row_out, uint32_t n)
{
    struct pi_block_q8_0 *b = row_out;

    for (uint32_t k = 0; k < n / PI_BLOCK; k++, x += PI_BLOCK, b++) {
        float amax = 0.0f, id;

        for (int i = 0; i < PI_BLOCK; i++)
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        b->d = pi_f32_to_f16(has_nan(x) ? NAN : amax / 127.0f);
        id = inverse(amax / 127.0f);
        for (int i = 0; i < PI_BLOCK; i++)
            b->q[i] = (int8_t)nearest(x[i] * id, -127, 127);
    }
}

void pi_quantise_q4_0(const float *x, void *row_out, uint32_t n)
{
    struct pi_block_q4_0 *b = row_out;

    for (uint32_t k = 0; k < n / PI_BLOCK; k++, x += PI_BLOCK, b++) {
        float amax = 0.0f, max = 0.0f, id;

        for (int i = 0; i < PI_BLOCK; i++) {
            if (fabsf(x[i]) > amax) {
                amax = fabsf(x[i]);
                max = x[i];
            }
        }
        b->d = pi_f32_to_f16(has_nan(x) ? NAN : max / -8.0f);
        id = inverse(max / -8.0f);
        for (int i = 0; i < PI_BLOCK / 2; i++) {
            float lo = x[i] * id + 8.5f, hi = x[i + PI_BLOCK / 2] * id + 8.5f;

            b->q[i] = (uint8_t)(whole(lo, 0, 15) | whole(hi, 0, 15) << 4);
        }
    }
}

void pi_quantise_q4_1(const float *x, void *row_out, uint32_t n)
{
    struct pi_block_q4_1 *b = row_out;

    for (uint32_t k = 0; k < n / PI_BLOCK; k++, x += PI_BLOCK, b++) {
        float min = x[0], max = x[0], id;

        for (int i = 1; i < PI_BLOCK; i++) {
            min = fminf(min, x[i]);
            max = fmaxf(max, x[i]);
        }
        b->d = pi_f32_to_f16(has_nan(x) ? NAN : (max - min) / 15.0f);
        b->m = pi_f32_to_f16(min);
        id = inverse((max - min) / 15.0f);
        for (int i = 0; i < PI_BLOCK / 2; i++) {
            float lo = (x[i] - min) * id + 0.5f, hi = (x[i + PI_BLOCK / 2] - min) * id + 0.5f;

            b->q[i] = (uint8_t)(whole(lo, 0, 15) | whole(hi, 0, 15) << 4);
        }
    }
}

/* The halves of 32 values of five bits, and their fifth bits. */
static void pack_five(const uint8_t *v, uint8_t *qh, uint8_t *q)
{
    memset(qh, 0, PI_BLOCK / 8);
    for (int i = 0; i < PI_BLOCK; i++)
        qh[i / 8] |= (uint8_t)((v[i] >> 4) << i % 8);
    for (int i = 0; i < PI_BLOCK / 2; i++)
        q[i] = (uint8_t)((v[i] & 15) | (v[i + PI_BLOCK / 2] & 15) << 4);
}

void pi_quantise_q5_0(const float *x, void *row_out, uint32_t n)
{
    struct pi_block_q5_0 *b = row_out;

    for (uint32_t k = 0; k < n / PI_BLOCK; k++, x += PI_BLOCK, b++) {
        float amax = 0.0f, max = 0.0f, id;
        uint8_t v[PI_BLOCK];

        for (int i = 0; i < PI_BLOCK; i++) {
            if (fabsf(x[i]) > amax) {
                amax = fabsf(x[i]);
                max = x[i];
            }
        }
        b->d = pi_f32_to_f16(has_nan(x) ? NAN : max / -16.0f);
        id = inverse(max / -16.0f);
        for (int i = 0; i < PI_BLOCK; i++)
            v[i] = (uint8_t)whole(x[i] * id + 16.5f, 0, 31);
        pack_five(v, b->qh, b->q);
    }
}

void pi_quantise_q5_1(const float *x, void *row_out, uint32_t n)
{
    struct pi_block_q5_1 *b = row_out;

    for (uint32_t k = 0; k < n / PI_BLOCK; k++, x += PI_BLOCK, b++) {
        float min = x[0], max = x[0], id;
        uint8_t v[PI_BLOCK];

        for (int i = 1; i < PI_BLOCK; i++) {
            min = fminf(min, x[i]);
            max = fmaxf(max, x[i]);
        }
        b->d = pi_f32_to_f16(has_nan(x) ? NAN : (max - min) / 31.0f);
        b->m = pi_f32_to_f16(min);
        id = inverse((max - min) / 31.0f);
        for (int i = 0; i < PI_BLOCK; i++)
            v[i] = (uint8_t)whole((x[i] - min) * id + 0.5f, 0, 31);
        pack_five(v, b->qh, b->q);
    }
}
