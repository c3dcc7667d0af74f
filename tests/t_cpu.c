/*
 * CPU kernels: conversions over all values, golden blocks, sums of vectors, the element-wise pieces, and how a table is chosen. Rows: t_cpu_rows.c.
 */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "tests/cpu_draw.h"
#include "tests/tap.h"

#include <stdbool.h>

/* The value of an F16 by its definition. */
static double f16_value(unsigned h)
{
    double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
    int exp = (int)(h >> 10 & 31), man = (int)(h & 1023);

    if (exp == 31)
        return man != 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (exp == 0 ? ldexp(man, -24) : ldexp(1024 + man, exp - 25));
}

static void test_f16(void)
{
    int wrong = 0, back = 0, between = 0;

    for (unsigned h = 0; h < 65536; h++) {
        double v = f16_value(h);
        float f = pi_f16_to_f32((uint16_t)h);

        wrong += isnan(v) ? !isnan(f) : (double)f != v || (signbit(f) != 0) != (h >> 15 != 0);
        back += isnan(v) ? !isnan(pi_f16_to_f32(pi_f32_to_f16(f))) : pi_f32_to_f16(f) != h;
    }
    EQ(wrong, 0);
    EQ(back, 0);
    /* between neighbours: to the nearer, half way to the even; 65520 is half way to infinity */
    for (unsigned h = 0; h < 0x7c00; h++) {
        float lo = pi_f16_to_f32((uint16_t)h);
        float hi = h == 0x7bff ? 65536.0f : pi_f16_to_f32((uint16_t)(h + 1));
        float mid = (lo + hi) / 2.0f; /* exact */
        unsigned even = h % 2 == 0 ? h : h + 1;

        between += pi_f32_to_f16(mid) != even || pi_f32_to_f16(-mid) != (even | 0x8000);
        between += pi_f32_to_f16(nextafterf(mid, 0.0f)) != h;
        between += pi_f32_to_f16(nextafterf(mid, 1e9f)) != h + 1;
    }
    EQ(between, 0);
    EQ(pi_f32_to_f16(1e-30f), 0);
    EQ(pi_f32_to_f16(-0.0f), 0x8000);
    EQ(pi_f32_to_f16(1e30f), 0x7c00);
    EQ(pi_f32_to_f16(-INFINITY), 0xfc00);
    OK(isnan(
        pi_f16_to_f32(pi_f32_to_f16(from_bits(0x7f800001))))); /* payload below what F16 keeps */
}

static void test_bf16(void)
{
    int wrong = 0;

    for (unsigned h = 0; h < 65536; h++) {
        float f = pi_bf16_to_f32((uint16_t)h);

        wrong += bits(f) != h << 16;
        if (isnan(f))
            wrong += !isnan(pi_bf16_to_f32(pi_f32_to_bf16(f)));
        else
            wrong += pi_f32_to_bf16(f) != h;
        if (!isnan(f) && !isinf(f)) {
            wrong += pi_f32_to_bf16(from_bits((h << 16) + 0x7fff)) != h;
            wrong += pi_f32_to_bf16(from_bits((h << 16) + 0x8000)) != h + h % 2;
            wrong += pi_f32_to_bf16(from_bits((h << 16) + 0x8001)) != h + 1;
        }
    }
    EQ(wrong, 0);
    OK(isnan(pi_bf16_to_f32(pi_f32_to_bf16(from_bits(0xffffffff)))));
    OK(isnan(pi_bf16_to_f32(pi_f32_to_bf16(from_bits(0x7f800001)))));
}

/* Conversions of a table against the scalar ones, bit for bit, NaN payloads included. */
static void test_convert(const struct pi_cpu *cpu)
{
    const struct pi_cpu *ref = pi_cpu_get(PI_ISA_SCALAR);
    enum {
        N = 65536
    };
    uint16_t *h = make(N, sizeof(*h)), *h2 = make(N, sizeof(*h2));
    float *f = make(N, sizeof(*f)), *f2 = make(N, sizeof(*f2));

    for (unsigned i = 0; i < N; i++)
        h[i] = (uint16_t)i;
    for (size_t t = 1; t <= 2; t++) {
        int wrong = 0;

        ref->type[types[t]]->to_f32(h, f, N);
        cpu->type[types[t]]->to_f32(h, f2, N);
        EQ(memcmp(f, f2, N * sizeof(*f)), 0);
        for (uint32_t part = 0; part < 64; part++) { /* 4 million floats from all over the range */
            for (uint32_t i = 0; i < N; i++)
                f[i] = from_bits((i << 16) + part * 1021 + (i * 7 & 1));
            ref->type[types[t]]->from_f32(f, h, N - part % 9);
            cpu->type[types[t]]->from_f32(f, h2, N - part % 9);
            wrong += memcmp(h, h2, (N - part % 9) * sizeof(*h)) != 0;
            for (unsigned i = 0; i < N; i++)
                h[i] = (uint16_t)i;
        }
        EQ(wrong, 0);
    }
    free(h);
    free(h2);
    free(f);
    free(f2);
}

static const uint8_t golden_q8_0[] = {
    0xce, 0x1f, 0xbb, 0x6d, 0x1e, 0x70, 0x8a, 0x5d, 0xdc, 0x8b, 0x8f, 0x7f, 0x7c, 0x08,
    0xf3, 0x0d, 0x1c, 0x49, 0x49, 0xeb, 0xf9, 0x5c, 0xdc, 0xfb, 0x95, 0x41, 0x58, 0xdb,
    0xac, 0x7e, 0x9d, 0xf4, 0xf5, 0x99, 0x10, 0x02, 0xe7, 0x08, 0x11, 0xe6, 0x07, 0x1b,
    0xf1, 0x06, 0x7f, 0xf4, 0x01, 0x0d, 0xf4, 0xea, 0x18, 0x08, 0xf8, 0x20, 0xff, 0xec,
    0xf0, 0x1b, 0x06, 0x00, 0xeb, 0xfc, 0xec, 0xe0, 0x0c, 0x11, 0xe9, 0x03};
static const uint8_t golden_q4_0[] = {0xbe, 0xaf, 0x3c, 0x91, 0x86, 0x21, 0xaf, 0x82, 0xfa,
                                      0x4f, 0x2f, 0xa0, 0xd0, 0x07, 0xe9, 0x97, 0x96, 0xe3,
                                      0x19, 0x90, 0x8a, 0x68, 0x87, 0x9a, 0x98, 0x66, 0x89,
                                      0x88, 0x90, 0x89, 0x98, 0xa7, 0x79, 0x79, 0x97, 0x87};
static const uint8_t golden_q4_1[] = {0xfa, 0x2f, 0x36, 0xbb, 0xc3, 0x6e, 0x79, 0xde, 0x50, 0x7d,
                                      0x15, 0xb0, 0xd0, 0x5f, 0x2f, 0xf8, 0x16, 0x78, 0x79, 0x1c,
                                      0x75, 0x0d, 0x14, 0x94, 0x21, 0x64, 0x35, 0x10, 0x24, 0x66,
                                      0x42, 0x34, 0x1f, 0x32, 0x13, 0x04, 0x42, 0x51, 0x15, 0x34};
/* Blocks that the gguf Python package makes of the same numbers. */
static void test_golden(const struct pi_cpu *cpu)
{
    static const struct {
        enum pi_type type;
        const uint8_t *block;
        size_t n;
    } cases[] = {{PI_TYPE_Q8_0, golden_q8_0, sizeof(golden_q8_0)},
                 {PI_TYPE_Q4_0, golden_q4_0, sizeof(golden_q4_0)},
                 {PI_TYPE_Q4_1, golden_q4_1, sizeof(golden_q4_1)}};
    float x[64];

    seed = 7;
    for (int i = 0; i < 64; i++)
        x[i] = draw_float() * (i < 32 ? 1.0f : 1e-3f);
    x[40] = 0.004f;
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint8_t made[80];

        EQ(cases[i].n, row_size(cases[i].type, 64));
        cpu->type[cases[i].type]->from_f32(x, made, 64);
        EQ(memcmp(made, cases[i].block, cases[i].n), 0);
    }
}

/* Zeros, a NaN and infinities: no trap, and the NaN shows. */
static void test_quantise_edges(const struct pi_cpu *cpu)
{
    for (size_t t = PLAIN; t < COUNT(types); t++) {
        const struct pi_cpu_type *k = cpu->type[types[t]];
        float x[256] = {0}, y[256];
        uint8_t made[272]; /* Q8_0 is the longest */

        k->from_f32(x, made, 256);
        k->to_f32(made, y, 256);
        OK(y[0] == 0.0f && y[31] == 0.0f);
        for (int i = 0; i < 32; i++)
            x[i] = 1e-42f * (float)i;
        k->from_f32(x, made, 256);
        k->to_f32(made, y, 256);
        OK(y[31] == 0.0f);
        x[5] = NAN;
        k->from_f32(x, made, 256);
        k->to_f32(made, y, 256);
        OK(isnan(y[5]));
        x[5] = INFINITY;
        x[6] = -INFINITY;
        k->from_f32(x, made, 256);
        k->to_f32(made, y, 256);
        OK(!isfinite(y[5]) && !isfinite(y[6]));
    }
}

static void test_vectors(const struct pi_cpu *cpu)
{
    int wrong = 0;

    for (size_t i = 0; i < COUNT(lengths); i++) {
        uint32_t n = lengths[i];
        float *a = draw_vector(n), *b = draw_vector(n), *y = make(n, sizeof(float));

        wrong += dot_wrong(a, b, n, cpu->dot_f32(a, b, n));
        wrong += dot_wrong(a, a, n, cpu->sum_squares(a, n));
        memcpy(y, b, n * sizeof(float));
        cpu->axpy_f32(0.75f, a, y, n);
        for (uint32_t j = 0; j < n; j++)
            wrong += !(fabs((double)b[j] + 0.75 * (double)a[j] - (double)y[j]) <= 2e-7);
        free(a);
        free(b);
        free(y);
    }
    EQ(wrong, 0);
}

static void test_select(void)
{
    const struct pi_cpu *cpu = NULL;

    (void)setenv("PI_CPU", "", 1);
    PASSES(pi_cpu_select(&cpu, &e), e);
    for (int i = 0; i < PI_ISA_COUNT; i++) {
        const struct pi_cpu *want = pi_cpu_get((enum pi_isa)i);

        (void)setenv("PI_CPU", pi_isa_name((enum pi_isa)i), 1);
        if (want == NULL) {
            FAILS(pi_cpu_select(&cpu, &e), PI_E_NODEV, "lacks it", e);
        } else {
            PASSES(pi_cpu_select(&cpu, &e), e);
            OK(cpu == want && (int)cpu->isa == i);
        }
    }
    (void)setenv("PI_CPU", "mmx", 1);
    FAILS(pi_cpu_select(&cpu, &e), PI_E_USAGE, "PI_CPU=mmx", e);
    (void)unsetenv("PI_CPU");
    PASSES(pi_cpu_select(&cpu, &e), e);
    OK(cpu->type[PI_TYPE_Q2_K] == NULL);
}

static void test_norms(const struct pi_cpu *cpu)
{
    const float x[4] = {1.0f, -2.0f, 3.0f, -4.0f}, w[4] = {1.0f, 1.0f, 2.0f, 0.5f},
                b[4] = {0.0f, 1.0f, 0.0f, -1.0f};
    float out[4];

    pi_rms_norm(cpu, x, w, 0.5f, out, 4); /* mean of squares 7.5, plus 0.5 */
    NEAR(out[0], 1.0 / sqrt(8.0), 1e-7);
    NEAR(out[2], 6.0 / sqrt(8.0), 3e-7);
    pi_layer_norm(x, w, b, 0.75f, out, 4); /* mean -0.5, variance 7.25, plus 0.75 */
    NEAR(out[0], 1.5 / sqrt(8.0), 1e-7);
    NEAR(out[1], -1.5 / sqrt(8.0) + 1.0, 1e-7);
    NEAR(out[3], 0.5 * -3.5 / sqrt(8.0) - 1.0, 2e-7);
    pi_layer_norm(x, w, NULL, 0.75f, out, 4);
    NEAR(out[1], -1.5 / sqrt(8.0), 1e-7);
}

static void test_rope_softmax(void)
{
    const float inv_freq[2] = {1.0f, 0.1f};
    float x[12], y[5] = {1000.0f, 1001.0f, -INFINITY, 999.0f, 1000.0f};
    double sum = exp(0.0) + exp(1.0) + exp(-1.0) + exp(0.0);

    for (int neox = 0; neox < 2; neox++) {
        int p = neox ? 2 : 1; /* partner of element 0 */

        for (int i = 0; i < 12; i++)
            x[i] = (float)(i + 1);
        pi_rope(x, 2, 6, 4, neox, 3, inv_freq, 2.0f);
        NEAR(x[0], 2.0 * (1.0 * cos(3.0) - (p + 1) * sin(3.0)), 2e-6);
        NEAR(x[p], 2.0 * (1.0 * sin(3.0) + (p + 1) * cos(3.0)), 2e-6);
        NEAR(x[6 + 3 - p], 2.0 * ((10.0 - p) * cos(0.3) - 10.0 * sin(0.3)), 4e-6);
        OK(x[4] == 5.0f && x[5] == 6.0f && x[10] == 11.0f); /* beyond n_rot */
    }
    pi_softmax(y, 5);
    NEAR(y[0], 1.0 / sum, 1e-7);
    NEAR(y[1], exp(1.0) / sum, 1e-7);
    OK(y[2] == 0.0f);
}

int main(void)
{
    test_f16();
    test_bf16();
    for (int i = 0; i < PI_ISA_COUNT; i++) {
        const struct pi_cpu *cpu = pi_cpu_get((enum pi_isa)i);

        if (cpu == NULL) {
            printf("# no %s here\n", pi_isa_name((enum pi_isa)i));
            continue;
        }
        test_convert(cpu);
        test_golden(cpu);
        test_quantise_edges(cpu);
        test_vectors(cpu);
        test_norms(cpu);
    }
    test_rope_softmax();
    test_select();
    return DONE();
}
