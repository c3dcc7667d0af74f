/* pi_synth_rows.c - random numbers, the basis, and the rows that the construction of pi_synth.h asks for. */
#include "config.h"

#include "bench/pi_synth.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The loops over elements are written to be vectorised, for what the machine has. Contraction is off (local.mk), so all give the same bytes. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HOT __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define HOT
#endif

#define STREAM_SLOT  2
#define STREAM_SIGN  3
#define STREAM_HEAT  4
#define STREAM_TURN  5
#define STREAM_EMBED 6
#define STREAM_GATE  0x40000000u /* plus the layer */

#define BYTES_SD 209.02 /* of the sum of eight uniform bytes */
#define DRIFT    0.1    /* energy that all layers together add, against the embedding's */

/* ---- random numbers ---- */

/* splitmix64's finaliser (Steele, Lea, Flood 2014). */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t pi_synth_key(uint64_t seed, uint32_t stream, uint32_t row)
{
    return mix64(mix64(seed + UINT64_C(0x9e3779b97f4a7c15)) ^ ((uint64_t)stream << 32 | row));
}

/* A counter's hash in 32-bit steps, which vector units have; the constants are those of Wellons' lowbias32. */
static inline uint32_t hash32(uint32_t i, uint32_t k0, uint32_t k1)
{
    uint32_t x = i * UINT32_C(0x9e3779b9) + k0;

    x = (x ^ x >> 16) * UINT32_C(0x7feb352d);
    x ^= k1;
    x = (x ^ x >> 15) * UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

/* Sums of eight bytes: normal enough for weights (kurtosis 2.85), and integers until the last step. */
HOT void pi_synth_normal(uint64_t key, float scale, float *out, uint32_t n)
{
    const uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    const float s = (float)((double)scale / BYTES_SD);

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t x = hash32(i, k0, k1);
        uint32_t y = x * UINT32_C(0x9e3779b1), sum;

        y ^= y >> 15;
        sum = (x & 0xff00ff) + (x >> 8 & 0xff00ff) + (y & 0xff00ff) + (y >> 8 & 0xff00ff);
        out[i] = (float)((int32_t)((sum & 0xffff) + (sum >> 16)) - 1020) * s;
    }
}

uint32_t pi_synth_below(uint64_t key, uint32_t i, uint32_t n)
{
    return (uint32_t)((uint64_t)hash32(i, (uint32_t)key, (uint32_t)(key >> 32)) * n >> 32);
}

/* Fisher and Yates. */
static void shuffle(uint64_t key, uint32_t *a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        a[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t k = pi_synth_below(key, i, i), t = a[i - 1];

        a[i - 1] = a[k];
        a[k] = t;
    }
}

/* ---- basis ---- */

/* Largest power of two that divides n. */
static uint32_t pow2_part(uint32_t n)
{
    return n & (~n + 1);
}

/* The first three steps of a transform, inside eight elements: loops as short as that do not vectorise. */
static inline void hadamard8(float *x)
{
    const float a0 = x[0] + x[1], a1 = x[0] - x[1], a2 = x[2] + x[3], a3 = x[2] - x[3];
    const float a4 = x[4] + x[5], a5 = x[4] - x[5], a6 = x[6] + x[7], a7 = x[6] - x[7];
    const float b0 = a0 + a2, b1 = a1 + a3, b2 = a0 - a2, b3 = a1 - a3;
    const float b4 = a4 + a6, b5 = a5 + a7, b6 = a4 - a6, b7 = a5 - a7;

    x[0] = b0 + b4;
    x[1] = b1 + b5;
    x[2] = b2 + b6;
    x[3] = b3 + b7;
    x[4] = b0 - b4;
    x[5] = b1 - b5;
    x[6] = b2 - b6;
    x[7] = b3 - b7;
}

/* Walsh-Hadamard, in place, on each block; its own inverse but for a factor of block. */
HOT static void hadamard(float *x, uint32_t n, uint32_t block)
{
    for (uint32_t i = 0; block >= 8 && i < n; i += 8)
        hadamard8(x + i);
    for (uint32_t h = block >= 8 ? 8 : 1; h < block; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];

                x[j] = a + b;
                x[j + h] = a - b;
            }
}

HOT static void times(float *restrict x, const float *restrict f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= f[i];
}

/* What stands along each direction (n_embd, in coef) -> a row. */
static void to_row(const struct pi_synth_rows *r, const float *coef, float *row)
{
    const uint32_t n = r->spec.n_embd;

    for (uint32_t k = 0; k < n; k++)
        row[r->slot[k]] = coef[k];
    hadamard(row, n, r->block);
    times(row, r->sign, n);
}

/* The subspace's directions of a row, which is overwritten -> coef (rank). */
static void of_row(const struct pi_synth_rows *r, float *row, float *coef)
{
    times(row, r->sign, r->spec.n_embd);
    hadamard(row, r->spec.n_embd, r->block);
    for (uint32_t k = 0; k < r->spec.rank; k++)
        coef[k] = row[r->slot[k]];
}

/* A layer's rotation of the subspace is a Hadamard transform behind random signs: f or -f for direction k. */
static float turned(uint64_t turn_key, uint32_t k, float f)
{
    return pi_synth_below(turn_key, k, 2) == 0 ? -f : f;
}

void pi_synth_fc1(const struct pi_synth_rows *r, uint32_t layer, uint32_t k, float *out, float *tmp)
{
    const uint32_t base = k / r->turn * r->turn;
    const uint64_t key = pi_synth_key(r->spec.seed, STREAM_TURN, layer);
    const float scale = (float)(1.0 / sqrt(r->turn));

    memset(tmp, 0, r->spec.n_embd * sizeof(*tmp));
    for (uint32_t j = 0; j < r->turn; j++) {
        const bool odd = __builtin_popcount(j & (k - base)) & 1; /* H[k][j] */

        tmp[base + j] = turned(key, base + j, odd ? -scale : scale);
    }
    to_row(r, tmp, out);
}

void pi_synth_fc2(const struct pi_synth_rows *r, uint32_t layer, float *gate, float *out)
{
    const uint64_t key = pi_synth_key(r->spec.seed, STREAM_TURN, layer);
    const float scale = (float)(1.0 / sqrt(r->turn));

    of_row(r, gate, out);
    for (uint32_t k = 0; k < r->spec.rank; k++)
        out[k] *= turned(key, k, scale);
    hadamard(out, r->spec.rank, r->turn);
}

/* ---- rows ---- */

/* Normal numbers whose squares sum to energy exactly: the same strength for every token and neuron. */
static void normal_of_energy(uint64_t key, double energy, float *out, uint32_t n)
{
    double sum = 0;
    float f;

    pi_synth_normal(key, 1.0f, out, n);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)out[i] * (double)out[i];
    f = sum > 0 ? (float)sqrt(energy / sum) : 0.0f;
    for (uint32_t i = 0; i < n; i++)
        out[i] *= f;
}

void pi_synth_embedding(const struct pi_synth_rows *r, uint32_t token, float *out, float *tmp)
{
    const struct pi_synth_spec *s = &r->spec;
    const struct pi_synth_scale *c = &r->scale;
    const double n = s->n_embd;
    const uint32_t n_rest = s->n_embd - s->rank;

    tmp[0] = (float)sqrt(c->constant * n);
    tmp[1] = (float)(sqrt(c->push * n) * (double)r->law->push[token]);
    normal_of_energy(pi_synth_key(s->seed, STREAM_EMBED, token), c->signal * n, tmp + 2,
                     s->rank - 2);
    if (n_rest > 0)
        pi_synth_normal(pi_synth_key(s->seed, STREAM_EMBED + 1, token),
                        (float)sqrt(c->rest * n / n_rest), tmp + s->rank, n_rest);
    to_row(r, tmp, out);
}

/* Scaled so that the signal's part of the pre-activation has variance 1. The layers before have added their own to every direction: the
 * bias and the push's weight grow with the whole. */
void pi_synth_gate(const struct pi_synth_rows *r, uint32_t layer, uint32_t neuron, float *out,
                   float *tmp)
{
    const struct pi_synth_spec *s = &r->spec;
    const struct pi_synth_scale *c = &r->scale;
    const double n = s->n_embd, per_direction = c->signal * n / (s->rank - 2);
    const double drift = 1.2 * layer * c->step * c->step; /* energy a direction */
    const double noise = c->rest > 0 ? (double)s->noise : 0;
    const double sd = sqrt(1.0 + drift / per_direction + noise * noise);
    const float bias = r->law->bias[r->heat[(size_t)layer * s->n_ff + neuron]];
    const uint64_t key = pi_synth_key(s->seed, STREAM_GATE + layer, neuron);

    tmp[0] = (float)((double)bias * sd / sqrt(c->constant * n));
    tmp[1] = (float)((double)s->spread * sd / sqrt(c->push * n));
    normal_of_energy(key, 1.0 / per_direction, tmp + 2, s->rank - 2);
    if (s->n_embd > s->rank)
        pi_synth_normal(~key, c->rest > 0 ? (float)(noise / sqrt(c->rest * n)) : 0.0f,
                        tmp + s->rank, s->n_embd - s->rank);
    to_row(r, tmp, out);
}

HOT void pi_synth_dots(const float *a, const float *x, uint32_t n, uint32_t n_samples, float *acc)
{
    for (uint32_t i = 0; i < n; i++) {
        const float f = a[i], *row = x + (size_t)i * n_samples;

        for (uint32_t j = 0; j < n_samples; j++)
            acc[j] += f * row[j];
    }
}

/* ---- the maker ---- */

static void set_scale(const struct pi_synth_spec *s, struct pi_synth_scale *c)
{
    *c = (struct pi_synth_scale){.constant = 0.15, .push = 0.05, .signal = 0.65, .rest = 0.15};
    if (s->rank == s->n_embd) {
        c->signal += c->rest;
        c->rest = 0;
    }
    c->step = sqrt(DRIFT / (2.0 * s->n_layer));
}

enum pi_code pi_synth_rows_init(const struct pi_synth_spec *s, const struct pi_synth_law *law,
                                struct pi_synth_rows *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_synth_rows r = {.spec = *s, .law = law};

    r.block = pow2_part(s->n_embd);
    r.turn = pow2_part(s->rank);
    set_scale(s, &r.scale);
    PI_ALLOC(r.slot, s->n_embd, err);
    PI_ALLOC(r.sign, s->n_embd, err);
    PI_ALLOC(r.heat, (size_t)s->n_layer * s->n_ff, err);
    shuffle(pi_synth_key(s->seed, STREAM_SLOT, 0), r.slot, s->n_embd);
    for (uint32_t i = 0; i < s->n_embd; i++) {
        const float f = (float)(1.0 / sqrt(r.block));

        r.sign[i] = pi_synth_below(pi_synth_key(s->seed, STREAM_SIGN, 0), i, 2) == 0 ? f : -f;
    }
    for (uint32_t l = 0; l < s->n_layer; l++)
        shuffle(pi_synth_key(s->seed, STREAM_HEAT, l), r.heat + (size_t)l * s->n_ff, s->n_ff);
    *out = r;
    memset(&r, 0, sizeof(r));
out:
    pi_synth_rows_free(&r);
    return rc;
}

void pi_synth_rows_free(struct pi_synth_rows *r)
{
    free(r->slot);
    free(r->sign);
    free(r->heat);
    memset(r, 0, sizeof(*r));
}
