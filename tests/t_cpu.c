/*
 * CPU kernels: conversions over all values, golden blocks, every table against F64 sums, and the promises of pi_cpu.h: the same bits however rows are
 * grouped and however a column range or a list of ids is cut. Buffers are exact in size, so that a sanitizer sees a read past a row.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "tests/tap.h"

#include <stdbool.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const enum pi_type types[] = {PI_TYPE_F32,  PI_TYPE_F16,  PI_TYPE_BF16, PI_TYPE_Q8_0,
                                     PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0, PI_TYPE_Q5_1,
                                     PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};
#define PLAIN 3 /* that many types come first that are not quantised */
static const uint32_t lengths[] = {0,   1,   2,   7,   8,   9,    15,   16,  17, 24,
                                   31,  32,  33,  47,  63,  64,   65,   95,  96, 100,
                                   128, 256, 384, 385, 512, 1000, 1280, 4096};
static uint32_t seed = 1;
static struct pi_err e;

static uint32_t draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static float draw_float(void)
{
    return (float)draw() * 0x1p-23f - 1.0f;
}

static uint32_t bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static float from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static void *make(size_t n, size_t size)
{
    void *p = pi_calloc_array(n, size, &e);

    if (p == NULL)
        exit(1);
    return p;
}

static size_t row_size(enum pi_type type, uint32_t n)
{
    uint64_t bytes = 0;

    return pi_type_row_bytes(type, n, &bytes) ? bytes : SIZE_MAX;
}

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

/* Where the F16 values of a block are: how many; their offsets. */
static size_t block_scales(enum pi_type type, size_t at[2])
{
    at[0] = type == PI_TYPE_Q6_K ? 208 : 0;
    at[1] = 2;
    return type == PI_TYPE_Q4_1 || type == PI_TYPE_Q5_1 || type == PI_TYPE_Q4_K ||
                   type == PI_TYPE_Q5_K
               ? 2
               : 1;
}

/* Has a type offsets that are multiplied by sums of x? Where q is 0 an infinite x gives NaN then. */
static bool has_offset(enum pi_type type)
{
    size_t at[2];

    return block_scales(type, at) == 2;
}

/* A row of all bytes there are, with scales of a sane size. */
static void draw_row(enum pi_type type, char *row, uint32_t n)
{
    const struct pi_type_info *info = pi_type_info(type);
    size_t at[2], n_scales = block_scales(type, at);

    for (uint32_t b = 0; b < n / info->block_elems; b++, row += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++)
            row[i] = (char)draw();
        for (size_t i = 0; i < n_scales; i++) {
            uint16_t h = pi_f32_to_f16(draw_float() * (i == 0 ? 0.1f : 0.5f));

            memcpy(row + at[i], &h, sizeof(h));
        }
    }
}

/* A matrix of a type whose rows lie 2 (F32: 4) bytes off any alignment, with the same as F32. */
struct matrix {
    enum pi_type type;
    uint32_t n_rows, n;
    size_t stride;
    char *block, *data;
    float *w; /* (n_rows, n) */
};

static struct matrix make_matrix(enum pi_type type, uint32_t n_rows, uint32_t n)
{
    const struct pi_cpu_type *k = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    size_t off = type == PI_TYPE_F32 ? 4 : 2;
    struct matrix m = {.type = type, .n_rows = n_rows, .n = n, .stride = row_size(type, n)};

    m.block = make(m.stride * n_rows + off, 1);
    m.data = m.block + off;
    m.w = make((size_t)n_rows * n, sizeof(float));
    for (size_t i = 0; i < (size_t)n_rows * n; i++)
        m.w[i] = draw_float();
    for (uint32_t r = 0; r < n_rows; r++) {
        if (pi_type_info(type)->quantised && r % 2 == 0)
            draw_row(type, m.data + r * m.stride, n);
        else
            k->from_f32(m.w + (size_t)r * n, m.data + r * m.stride, n);
        k->to_f32(m.data + r * m.stride, m.w + (size_t)r * n, n);
    }
    return m;
}

static void free_matrix(struct matrix *m)
{
    free(m->block);
    free(m->w);
}

static float *draw_vector(uint32_t n)
{
    float *x = make(n, sizeof(float));

    for (uint32_t i = 0; i < n; i++)
        x[i] = draw_float();
    return x;
}

/* Sums of at most 4096 products in 8 or more running sums: error well below 1e-6 of the sum of magnitudes. */
static int dot_wrong(const float *w, const float *x, uint32_t n, float got)
{
    double sum = 0.0, size = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)w[i] * (double)x[i];
        size += fabs((double)w[i] * (double)x[i]);
    }
    return !(fabs(sum - (double)got) <= 1e-6 * size);
}

static int check_dot(const struct pi_cpu_type *k, const struct matrix *m)
{
    float *x = draw_vector(m->n), together[11], alone[11], picked[11];
    uint32_t ids[11];
    int wrong = 0;

    k->dot_rows(m->data, m->stride, m->n_rows, x, m->n, together);
    for (uint32_t r = 0; r < m->n_rows; r++) {
        k->dot_rows(m->data + r * m->stride, m->stride, 1, x, m->n, &alone[r]);
        wrong += bits(alone[r]) != bits(together[r]);
        wrong += dot_wrong(m->w + (size_t)r * m->n, x, m->n, alone[r]);
    }
    for (uint32_t n_ids = 0; n_ids <= 11; n_ids++) {
        for (uint32_t i = 0; i < n_ids; i++)
            ids[i] = draw() % m->n_rows;
        k->dot_ids(m->data, m->stride, ids, n_ids, x, m->n, picked);
        for (uint32_t i = 0; i < n_ids; i++)
            wrong += bits(picked[i]) != bits(alone[ids[i]]);
    }
    free(x);
    return wrong;
}

/* Several vectors at once: the bits of the kernels for one. */
static int check_many(const struct pi_cpu_type *k, const struct matrix *m, uint32_t n_ids,
                      uint32_t n_vec)
{
    float *x[11], *y[11], *z = make(m->n, sizeof(float)), a[121], one[11], many[121];
    uint32_t ids[11], half = m->n / 64 * 32;
    int wrong = 0;

    for (uint32_t j = 0; j < n_vec; j++) {
        x[j] = draw_vector(m->n);
        y[j] = make(m->n, sizeof(float));
        memcpy(y[j], x[j], m->n * sizeof(float));
    }
    for (uint32_t i = 0; i < n_ids; i++) {
        ids[i] = draw() % m->n_rows;
        for (uint32_t j = 0; j < n_vec; j++)
            a[i * n_vec + j] = draw_float();
    }
    k->dot_many(m->data, m->stride, ids, n_ids, 0, (const float *const *)x, n_vec, m->n, many);
    k->axpy_many(m->data, m->stride, ids, n_ids, 0, a, y, n_vec, 0, half);
    k->axpy_many(m->data, m->stride, ids, n_ids, 0, a, y, n_vec, half, m->n);
    for (uint32_t j = 0; j < n_vec; j++) {
        k->dot_ids(m->data, m->stride, ids, n_ids, x[j], m->n, one);
        for (uint32_t i = 0; i < n_ids; i++)
            wrong += bits(one[i]) != bits(many[i * n_vec + j]);
        for (uint32_t i = 0; i < n_ids; i++)
            one[i] = a[i * n_vec + j];
        memcpy(z, x[j], m->n * sizeof(float));
        k->axpy_ids(m->data, m->stride, ids, one, n_ids, 0, m->n, z);
        wrong += memcmp(z, y[j], m->n * sizeof(float)) != 0;
        free(x[j]);
        free(y[j]);
    }
    free(z);
    return wrong;
}

/* y += sum a row in one go, against F64; then cut by columns at multiples of 32, and by ids: the same bits. */
static int check_axpy(const struct pi_cpu_type *k, const struct matrix *m, uint32_t n_ids)
{
    float *y0 = draw_vector(m->n), *y = make(m->n, sizeof(float)), *z = make(m->n, sizeof(float)),
          a[11];
    uint32_t ids[11], half = n_ids / 2;
    int wrong = 0;

    for (uint32_t i = 0; i < n_ids; i++) {
        ids[i] = draw() % m->n_rows;
        a[i] = draw_float();
    }
    memcpy(y, y0, m->n * sizeof(float));
    k->axpy_ids(m->data, m->stride, ids, a, n_ids, 0, m->n, y);
    for (uint32_t c = 0; c < m->n; c++) {
        double sum = (double)y0[c], size = fabs(sum);

        for (uint32_t i = 0; i < n_ids; i++) {
            sum += (double)a[i] * (double)m->w[(size_t)ids[i] * m->n + c];
            size += fabs((double)a[i] * (double)m->w[(size_t)ids[i] * m->n + c]);
        }
        wrong += !(fabs(sum - (double)y[c]) <= 1e-6 * size);
    }
    memcpy(z, y0, m->n * sizeof(float));
    for (uint32_t begin = 0, end; begin < m->n; begin = end) {
        end = begin + 32 * (1 + draw() % 4);
        end = end < m->n ? end : m->n;
        k->axpy_ids(m->data, m->stride, ids, a, n_ids, begin, end, z);
    }
    wrong += memcmp(y, z, m->n * sizeof(float)) != 0;
    memcpy(z, y0, m->n * sizeof(float));
    k->axpy_ids(m->data, m->stride, ids, a, half, 0, m->n, z);
    k->axpy_ids(m->data, m->stride, ids + half, a + half, n_ids - half, 0, m->n, z);
    wrong += memcmp(y, z, m->n * sizeof(float)) != 0;
    /* an empty range changes nothing */
    k->axpy_ids(m->data, m->stride, ids, a, n_ids, m->n, m->n, z);
    wrong += memcmp(y, z, m->n * sizeof(float)) != 0;
    free(y0);
    free(y);
    free(z);
    return wrong;
}

static void test_rows(const struct pi_cpu *cpu, enum pi_type type)
{
    const struct pi_cpu_type *k = cpu->type[type];
    int dot = 0, axpy = 0, many = 0, convert = 0;

    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct matrix m;
        float *w;

        if (row_size(type, lengths[i]) == SIZE_MAX)
            continue;
        m = make_matrix(type, 11, lengths[i]);
        w = make(m.n, sizeof(float));
        for (uint32_t r = 0; r < m.n_rows; r++) {
            k->to_f32(m.data + r * m.stride, w, m.n);
            convert += memcmp(w, m.w + (size_t)r * m.n, m.n * sizeof(float)) != 0;
        }
        dot += check_dot(k, &m);
        for (uint32_t n_ids = 0; n_ids <= 11; n_ids++)
            axpy += check_axpy(k, &m, n_ids);
        for (uint32_t n_ids = 0; n_ids <= 11; n_ids++)
            many += check_many(k, &m, n_ids, (n_ids * 7 + (uint32_t)i) % 12);
        free(w);
        free_matrix(&m);
    }
    printf("# %s %s\n", pi_isa_name(cpu->isa), pi_type_name(type));
    EQ(convert, 0);
    EQ(dot, 0);
    EQ(axpy, 0);
    EQ(many, 0);
}

/* The same class of result, and the same value where it is finite: to a few roundings of terms that are size together. */
static bool near(float a, float b, double size)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b))
        return isinf(a) && isinf(b) && signbit(a) == signbit(b);
    return fabs((double)a - (double)b) <= 2e-6 * size + 1e-44;
}

static bool alike(float a, float b)
{
    return near(a, b, 0.5 * (fabs((double)a) + fabs((double)b)));
}

/* With an offset the terms are scale * q * x and offset * x, as large as the largest weights of the block. */
static double block_max(const float *w)
{
    double max = 0.0;

    for (int i = 0; i < 32; i++)
        max = fmax(max, fabs((double)w[i]));
    return max;
}

/* The products of one row with x, and the row times a added to ones, against the scalar ones. room (3, n). */
static int row_wrong(const struct pi_cpu_type *k, const struct pi_cpu_type *s, enum pi_type type,
                     const char *row, const float *x, float a, uint32_t n, float *room)
{
    const uint32_t id = 0;
    float d[2], *y = room, *w = room + (size_t)2 * n;
    double size = 0.0;
    int wrong = 0;

    for (uint32_t j = 0; j < 2 * n; j++)
        y[j] = 1.0f;
    s->to_f32(row, w, n);
    for (uint32_t j = 0; j < n; j++)
        size += fabs((double)x[j]) *
                (has_offset(type) ? block_max(w + j / 32 * 32) : fabs((double)w[j]));
    s->dot_rows(row, 0, 1, x, n, &d[0]);
    k->dot_rows(row, 0, 1, x, n, &d[1]);
    if (has_offset(type) && !isfinite(d[0]))
        wrong += isfinite(d[1]);
    else
        wrong += !near(d[0], d[1], size);
    s->axpy_ids(row, 0, &id, &a, 1, 0, n, y);
    k->axpy_ids(row, 0, &id, &a, 1, 0, n, y + n);
    for (uint32_t j = 0; j < n; j++)
        wrong += !near(y[j], y[n + j], 1.0 + fabs((double)a * (double)w[j]));
    return wrong;
}

static const float odd[] = {INFINITY, -INFINITY, NAN,       0.0f,    -0.0f,
                            1e-40f,   6e-8f,     0x1p-149f, 65504.0f};

/* One odd value at each place of a row in turn, in the weights or in x. */
static void test_odd_values(const struct pi_cpu *cpu, enum pi_type type)
{
    const struct pi_cpu *ref = pi_cpu_get(PI_ISA_SCALAR);
    const struct pi_cpu_type *k = cpu->type[type], *s = ref->type[type];
    const uint32_t block = pi_type_info(type)->block_elems, n = block == 1 ? 109 : 3 * block;
    float *w = make(n, sizeof(float)), *x = make(n, sizeof(float)),
          *room = make(n, 3 * sizeof(float));
    char *row = make(row_size(type, n), 1);
    int wrong = 0;

    for (uint32_t i = 0; i < n; i += 1 + block / 64) {
        for (size_t v = 0; v < 2 * COUNT(odd); v++) {
            for (uint32_t j = 0; j < n; j++)
                w[j] = x[j] = 1.0f;
            *(v < COUNT(odd) ? &w[i] : &x[i]) = odd[v % COUNT(odd)];
            s->from_f32(w, row, n);
            wrong += row_wrong(k, s, type, row, x, v % 3 == 0 ? INFINITY : 0.5f, n, room);
            wrong += !alike(ref->dot_f32(w, x, n), cpu->dot_f32(w, x, n));
            wrong += !alike(ref->sum_squares(x, n), cpu->sum_squares(x, n));
        }
    }
    EQ(wrong, 0);
    free(w);
    free(x);
    free(row);
    free(room);
}

/* Every F16 value as each scale of a block, between two others: the elements bit for bit, NaN included; and what is made of them. */
static void test_odd_scales(const struct pi_cpu *cpu, enum pi_type type)
{
    const struct pi_cpu_type *k = cpu->type[type], *s = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    const struct pi_type_info *info = pi_type_info(type);
    const uint32_t n = 3 * info->block_elems;
    size_t at[2], n_scales = block_scales(type, at);
    float *x = draw_vector(n), *room = make(n, 3 * sizeof(float)), *v = make(n, sizeof(float)),
          *w = make(n, sizeof(float));
    char *row = make(row_size(type, n), 1);
    int wrong = 0, convert = 0;

    for (size_t i = 0; i < n_scales; i++) {
        for (uint32_t h = 0; h<65536; h += h % 1024> 8 && h % 1024 < 1000 ? 31 : 1) {
            uint16_t odd_scale = (uint16_t)h;

            draw_row(type, row, n);
            memcpy(row + info->block_bytes + at[i], &odd_scale, sizeof(odd_scale));
            s->to_f32(row, v, n);
            k->to_f32(row, w, n);
            convert += memcmp(v, w, n * sizeof(float)) != 0;
            if (h % 8 == 0)
                wrong += row_wrong(k, s, type, row, x, 0.5f, n, room);
        }
    }
    EQ(convert, 0);
    EQ(wrong, 0);
    free(x);
    free(room);
    free(v);
    free(w);
    free(row);
}

/* More vectors than a pass takes, and a row longer than what there is room for sums of: the bits of one vector alone, which hold against F64. */
static void test_large(const struct pi_cpu *cpu, enum pi_type type, uint32_t n, uint32_t n_x)
{
    const struct pi_cpu_type *k = cpu->type[type];
    struct matrix m = make_matrix(type, 3, n);
    const uint32_t ids[3] = {2, 0, 1};
    float **x = make(n_x, sizeof(*x)), *many = make(n_x, 3 * sizeof(float)), one[3];
    int wrong = 0;

    for (uint32_t j = 0; j < n_x; j++)
        x[j] = draw_vector(n);
    k->dot_many(m.data, m.stride, ids, 3, 0, (const float *const *)x, n_x, n, many);
    for (uint32_t j = 0; j < n_x; j++) {
        k->dot_ids(m.data, m.stride, ids, 3, x[j], n, one);
        for (uint32_t i = 0; i < 3; i++) {
            wrong += bits(one[i]) != bits(many[i * n_x + j]);
            wrong += j == 0 && dot_wrong(m.w + (size_t)ids[i] * n, x[j], n, one[i]);
        }
        free(x[j]);
    }
    EQ(wrong, 0);
    free(x);
    free(many);
    free_matrix(&m);
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
        for (size_t t = 0; t < COUNT(types); t++) {
            test_rows(cpu, types[t]);
            test_odd_values(cpu, types[t]);
            if (t < PLAIN)
                continue;
            test_odd_scales(cpu, types[t]);
            test_large(cpu, types[t], 8192, 70);
        }
        test_large(cpu, PI_TYPE_Q4_1, 262144 + 96, 2);
        test_large(cpu, PI_TYPE_Q4_K, 262144 + 512, 2);
    }
    test_rope_softmax();
    test_select();
    return DONE();
}
