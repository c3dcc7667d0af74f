/*
 * Quantised activations: the rule and that it is idempotent, products against F64, and the promises of pi_cpu.h: the same bits in every table and however rows
 * and vectors are grouped. Rows are random blocks, and blocks of extreme numbers, which 16-bit sums would not hold.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/cpu/pi_cpu_int.h"
#include "tests/tap.h"

#include <stdbool.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define ROWS \
    54 /* sixteen side by side and six more; three of sixteen far from each other, five of eight */
#define MOST_X 70
#define LIST   100 /* rows of a list with masks */

static const enum pi_type types[] = {PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0,
                                     PI_TYPE_Q5_1, PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};
static const uint32_t lengths[] = {0, 32, 64, 96, 128, 160, 256, 512, 768, 1024, 4096};
/* Vectors of a call: kernels take them by fours, and as many at once as there is room for what they share. */
static const uint32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 32, 33, 70};
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

/* ---- the rule ---- */

static void check_block(const float *x, const struct pi_q8 *b, int *wrong)
{
    float max = 0.0f, d;
    int sum = 0;

    for (int i = 0; i < 32; i++)
        max = fmaxf(max, fabsf(x[i]));
    d = pi_bits_float(pi_float_bits(max / 127.0f) & 0xffffff80);
    *wrong += b->d != d;
    for (int i = 0; i < 32; i++) {
        double off = (double)x[i] / (double)d - (double)b->q[i];

        /* rounded to nearest, the even one half way; the largest may be a little beyond 127 */
        *wrong += !(fabs(off) <= 0.50001);
        *wrong += fabs(off) == 0.5 && b->q[i] % 2 != 0;
        *wrong += b->q[i] < -127;
        sum += b->q[i];
    }
    *wrong += b->s != d * (float)sum;
}

/* d * q in F32 is exact, and gives the same block again. */
static int same_again(const struct pi_cpu *cpu, const struct pi_q8 *b)
{
    struct pi_q8 again;
    float x[32];
    int wrong = 0;

    for (int i = 0; i < 32; i++) {
        x[i] = b->d * (float)b->q[i];
        wrong += (double)x[i] != (double)b->d * (double)b->q[i];
    }
    cpu->quantise_q8(x, &again, 32);
    return wrong + (memcmp(&again, b, sizeof(again)) != 0);
}

static void test_rule(const struct pi_cpu *cpu)
{
    const struct pi_cpu *ref = pi_cpu_get(PI_ISA_SCALAR);
    int wrong = 0, again = 0, other = 0;
    struct pi_q8 b[3], c[3];
    float x[96];

    for (int k = 0; k < 20000; k++) {
        int exponent = (int)(draw() % 230) - 115;

        for (int i = 0; i < 96; i++)
            x[i] = ldexpf(draw_float(), exponent);
        cpu->quantise_q8(x, b, 96);
        ref->quantise_q8(x, c, 96);
        other += memcmp(b, c, sizeof(b)) != 0;
        for (int i = 0; i < 3; i++) {
            check_block(x + 32 * i, &b[i], &wrong);
            again += same_again(cpu, &b[i]);
        }
    }
    for (int k = 0; k < 20000; k++) { /* anything at all */
        for (int i = 0; i < 96; i++)
            x[i] = pi_bits_float(draw() << 8 ^ draw());
        cpu->quantise_q8(x, b, 96);
        ref->quantise_q8(x, c, 96);
        for (int i = 0; i < 3; i++)
            other += isnan(c[i].d) ? !isnan(b[i].d) || !isnan(b[i].s)
                                   : memcmp(&b[i], &c[i], sizeof(b[i])) != 0;
    }
    EQ(wrong, 0);
    EQ(again, 0);
    EQ(other, 0);
}

static bool all_zero(const struct pi_q8 *b)
{
    static const struct pi_q8 zero;

    return memcmp(b, &zero, sizeof(zero)) == 0;
}

static void test_rule_edges(const struct pi_cpu *cpu)
{
    float x[32] = {0};
    struct pi_q8 b;

    cpu->quantise_q8(x, &b, 32);
    OK(all_zero(&b));
    for (int i = 0; i < 32; i++)
        x[i] = -0.0f;
    cpu->quantise_q8(x, &b, 32);
    OK(all_zero(&b));
    x[9] = 0x1p-126f * 126.0f; /* d would be subnormal */
    cpu->quantise_q8(x, &b, 32);
    OK(all_zero(&b));
    x[9] = -0x1p-126f * 127.0f;
    cpu->quantise_q8(x, &b, 32);
    OK(b.d == 0x1p-126f && b.q[9] == -127 && b.q[8] == 0 && b.s == -0x1p-126f * 127.0f);
    x[9] = 3.402823466e38f;
    cpu->quantise_q8(x, &b, 32);
    OK(isfinite(b.d) && isfinite(b.d * 127.0f) && b.q[9] == 127);
    EQ(same_again(cpu, &b), 0);
    for (int i = 0; i < 32; i++) /* halves */
        x[i] = (float)i + 0.5f;
    x[31] = 127.0f;
    cpu->quantise_q8(x, &b, 32);
    OK(b.d == 1.0f && b.q[0] == 0 && b.q[1] == 2 && b.q[2] == 2 && b.q[30] == 30 && b.q[31] == 127);
    x[3] = NAN;
    cpu->quantise_q8(x, &b, 32);
    OK(isnan(b.d) && isnan(b.s) && b.q[0] == 0 && b.q[31] == 0);
    x[3] = -INFINITY;
    cpu->quantise_q8(x, &b, 32);
    OK(isnan(b.d) && isnan(b.s) && b.q[31] == 0);
}

/* ---- products ---- */

enum fill {
    RANDOM,
    ONES, /* all bits of q set: 15, 31, 63, -1 */
    LEAST /* -128, 0 */
};

static float scale_of(void)
{
    return draw_float() * 0.02f;
}

static void set_half(void *at, float v)
{
    uint16_t h = pi_f32_to_f16(v);

    memcpy(at, &h, sizeof(h));
}

/* Random scales in a row of any bytes. */
static void set_scales(enum pi_type type, char *row, size_t bytes)
{
    size_t block = row_size(type, row_size(type, 32) == SIZE_MAX ? 256 : 32);
    bool two = type == PI_TYPE_Q4_1 || type == PI_TYPE_Q5_1 || type == PI_TYPE_Q4_K ||
               type == PI_TYPE_Q5_K;
    size_t at = type == PI_TYPE_Q6_K ? block - 2 : 0;

    for (; at < bytes; at += block) {
        set_half(row + at, scale_of());
        if (two)
            set_half(row + at + 2, scale_of());
    }
}

static void fill_row(enum pi_type type, enum fill fill, char *row, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        row[i] = (char)(fill == RANDOM         ? draw()
                        : fill == ONES         ? 255
                        : type == PI_TYPE_Q8_0 ? 128
                                               : 0);
    set_scales(type, row, bytes);
}

/* A matrix whose rows lie 2 bytes off any alignment, with vectors. */
struct problem {
    enum pi_type type;
    uint32_t n;
    size_t stride;
    char *block, *data;
    struct pi_q8 *x[MOST_X];
};

static struct problem make_problem(enum pi_type type, uint32_t n, enum fill fill)
{
    struct problem p = {.type = type, .n = n, .stride = row_size(type, n)};
    float *x = make(n, sizeof(float));

    p.block = make(p.stride * ROWS + 2, 1);
    p.data = p.block + 2;
    for (uint32_t r = 0; r < ROWS; r++)
        fill_row(type, fill, p.data + r * p.stride, p.stride);
    for (uint32_t j = 0; j < MOST_X; j++) {
        for (uint32_t i = 0; i < n; i++)
            x[i] = fill == RANDOM                             ? draw_float() * (i / 32 % 5 != j % 5)
                   : j % 3 == 0 || (j % 3 == 1 && i % 2 == 0) ? 1.0f
                                                              : -1.0f;
        p.x[j] = make(n / 32, sizeof(struct pi_q8));
        pi_cpu_get(PI_ISA_SCALAR)->quantise_q8(x, p.x[j], n);
    }
    free(x);
    return p;
}

static void free_problem(struct problem *p)
{
    free(p->block);
    for (uint32_t j = 0; j < MOST_X; j++)
        free(p->x[j]);
}

/* The sum's own rounding: one for each part, and that of the weights (w = d * q + m) for the reference. */
static int far_off(const struct problem *p, uint32_t r, uint32_t j, float got)
{
    float *w = make(p->n, sizeof(float));
    double sum = 0.0, size = 0.0, max = 0.0;

    pi_cpu_get(PI_ISA_SCALAR)->type[p->type]->to_f32(p->data + r * p->stride, w, p->n);
    for (uint32_t i = 0; i < p->n; i++)
        max = fmax(max, fabs((double)w[i]));
    for (uint32_t i = 0; i < p->n; i++) {
        double x = (double)p->x[j][i / 32].d * p->x[j][i / 32].q[i % 32];

        sum += (double)w[i] * x;
        size += (fabs((double)w[i]) + max) * fabs(x);
    }
    free(w);
    return !(fabs(sum - (double)got) <= 1e-6 * size);
}

/* The first n rows that ids names, and a few that come next, with n_x vectors: the bits of one. */
static int check_many(const struct pi_cpu *cpu, const struct problem *p, const uint32_t *ids,
                      uint32_t n, uint32_t n_next, uint32_t n_x, float one[MOST_X][ROWS])
{
    float got[ROWS * MOST_X];
    int wrong = 0;

    memset(got, 0x55, sizeof(got)); /* nothing that was there before counts */
    cpu->type[p->type]->dot_many_q8(p->data, p->stride, ids, n, n_next,
                                    (const struct pi_q8 *const *)p->x, n_x, p->n, got);
    for (uint32_t i = 0; i < n * n_x; i++)
        wrong += memcmp(&got[i], &one[i % n_x][ids[i / n_x]], sizeof(float)) != 0;
    return wrong;
}

/* All groupings of rows against one row alone with the scalar kernel, bit for bit; that one against F64. Long rows: not with each number of vectors. */
static int check_products(const struct pi_cpu *cpu, const struct problem *p)
{
    const struct pi_cpu_type *k = cpu->type[p->type], *s = pi_cpu_get(PI_ISA_SCALAR)->type[p->type];
    float one[MOST_X][ROWS], got[ROWS];
    uint32_t ids[ROWS];
    int wrong = 0;

    for (uint32_t j = 0; j < MOST_X; j++) {
        for (uint32_t r = 0; r < ROWS; r++) {
            s->dot_rows_q8(p->data + r * p->stride, p->stride, 1, p->x[j], p->n, &one[j][r]);
            wrong += far_off(p, r, j, one[j][r]);
        }
    }
    for (uint32_t n = 0; n <= ROWS; n += n < 22 ? 1 : 8) {
        k->dot_rows_q8(p->data, p->stride, n, p->x[0], p->n, got);
        wrong += memcmp(got, one[0], n * sizeof(float)) != 0;
        for (uint32_t i = 0; i < n; i++)
            ids[i] = draw() % ROWS;
        k->dot_ids_q8(p->data, p->stride, ids, n, p->x[1], p->n, got);
        for (uint32_t i = 0; i < n; i++)
            wrong += memcmp(&got[i], &one[1][ids[i]], sizeof(float)) != 0;
        for (uint32_t c = 0; c < COUNT(counts); c++) {
            uint32_t n_next = (n + c) % 4 * (n / 4);

            if (p->n <= 512 || c == n % COUNT(counts))
                wrong += check_many(cpu, p, ids, n - n_next, n_next, counts[c], one);
        }
    }
    return wrong;
}

/* Rows too wide for what kernels keep of all vectors. */
static void test_wide(const struct pi_cpu *cpu, enum pi_type type)
{
    struct problem p = make_problem(type, 65536, RANDOM);
    float one[MOST_X][ROWS];
    uint32_t ids[9];
    int wrong = 0;

    for (uint32_t i = 0; i < COUNT(ids); i++)
        ids[i] = ROWS - 1 - i;
    for (uint32_t j = 0; j < 5; j++)
        pi_cpu_get(PI_ISA_SCALAR)
            ->type[type]
            ->dot_rows_q8(p.data, p.stride, ROWS, p.x[j], p.n, one[j]);
    for (uint32_t n_x = 2; n_x <= 5; n_x++)
        wrong += check_many(cpu, &p, ids, COUNT(ids), 0, n_x, one);
    EQ(wrong, 0);
    free_problem(&p);
}

/* Rows that choose among the vectors: the bits that each pair has. */
static int check_masked(const struct pi_cpu *cpu, const struct problem *p, uint32_t n_x)
{
    const struct pi_cpu_type *k = cpu->type[p->type], *s = pi_cpu_get(PI_ISA_SCALAR)->type[p->type];
    const uint32_t all = UINT32_MAX >> (32 - n_x);
    float one[MOST_X][ROWS], got[LIST * MOST_X];
    uint32_t ids[LIST], mask[LIST], at = 0;
    int wrong = 0;

    for (uint32_t i = 0; i < LIST; i++) {
        ids[i] = draw() % ROWS;
        mask[i] = i >= 24 && i < 52 ? all : draw() & draw() & all;
    }
    for (uint32_t j = 0; j < n_x; j++)
        s->dot_rows_q8(p->data, p->stride, ROWS, p->x[j], p->n, one[j]);
    memset(got, 0x55, sizeof(got));
    k->dot_masked_q8(p->data, p->stride, ids, mask, LIST - 2, 2, (const struct pi_q8 *const *)p->x,
                     n_x, p->n, got);
    for (uint32_t i = 0; i < LIST - 2; i++) {
        for (uint32_t j = 0; j < n_x; j++) {
            if ((mask[i] >> j & 1) != 0)
                wrong += memcmp(&got[at++], &one[j][ids[i]], sizeof(float)) != 0;
        }
    }
    return wrong;
}

static void test_products(const struct pi_cpu *cpu, enum pi_type type)
{
    int wrong = 0;

    printf("# %s %s\n", pi_isa_name(cpu->isa), pi_type_name(type));
    for (size_t i = 0; i < COUNT(lengths); i++) {
        for (int fill = RANDOM; fill <= LEAST && row_size(type, lengths[i]) != SIZE_MAX; fill++) {
            struct problem p = make_problem(type, lengths[i], (enum fill)fill);

            wrong += check_products(cpu, &p);
            for (size_t c = 0; c < COUNT(counts) && counts[c] <= 32; c++)
                wrong += check_masked(cpu, &p, counts[c]);
            free_problem(&p);
        }
    }
    EQ(wrong, 0);
}

/* A NaN in one block of one vector: in that vector's products alone. */
static void test_nan(const struct pi_cpu *cpu, enum pi_type type, uint32_t n_x)
{
    struct problem p = make_problem(type, 512, RANDOM);
    const struct pi_cpu_type *k = cpu->type[type];
    float got[ROWS * MOST_X], x[32] = {INFINITY, NAN};
    uint32_t ids[ROWS];
    int wrong = 0;

    cpu->quantise_q8(x, p.x[1] + 13, 32);
    for (uint32_t r = 0; r < ROWS; r++)
        ids[r] = r;
    k->dot_many_q8(p.data, p.stride, ids, ROWS, 0, (const struct pi_q8 *const *)p.x, n_x, 512, got);
    for (uint32_t i = 0; i < ROWS * n_x; i++)
        wrong += i % n_x == 1 ? !isnan(got[i]) : !isfinite(got[i]);
    k->dot_rows_q8(p.data, p.stride, ROWS, p.x[1], 512, got);
    for (uint32_t r = 0; r < ROWS; r++)
        wrong += !isnan(got[r]);
    EQ(wrong, 0);
    free_problem(&p);
}

int main(void)
{
    for (int i = 0; i < PI_ISA_COUNT; i++) {
        const struct pi_cpu *cpu = pi_cpu_get((enum pi_isa)i);

        if (cpu == NULL) {
            printf("# no %s here\n", pi_isa_name((enum pi_isa)i));
            continue;
        }
        test_rule(cpu);
        test_rule_edges(cpu);
        OK(cpu->type[PI_TYPE_F16]->dot_rows_q8 == NULL);
        for (size_t t = 0; t < COUNT(types); t++) {
            OK(cpu->type[types[t]] == NULL || cpu->type[types[t]]->dot_many_q8 != NULL);
            if (cpu->type[types[t]] == NULL)
                continue;
            test_products(cpu, types[t]);
            test_wide(cpu, types[t]);
            test_nan(cpu, types[t], 2);
            test_nan(cpu, types[t], 9);
        }
    }
    return DONE();
}
