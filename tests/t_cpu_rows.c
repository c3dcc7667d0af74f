/*
 * CPU kernels of rows: every table against the scalar one and against F64 sums, and the promises of pi_cpu.h: the same bits however rows are grouped and
 * however a column range or a list of ids is cut. Buffers are exact in size, so that a sanitizer sees a read past a row.
 */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "tests/cpu_draw.h"
#include "tests/tap.h"

#include <stdbool.h>

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
    for (uint32_t i = 0; i < 11; i++)
        ids[i] = draw() % m->n_rows;
    for (uint32_t i = 0; i < n_ids; i++) {
        for (uint32_t j = 0; j < n_vec; j++)
            a[i * n_vec + j] = draw_float();
    }
    k->dot_many(m->data, m->stride, ids, n_ids, 11 - n_ids, (const float *const *)x, n_vec, m->n,
                many);
    k->axpy_many(m->data, m->stride, ids, n_ids, 11 - n_ids, a, y, n_vec, 0, half);
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

    for (int i = 0; i < 32; i++) {
        double a = fabs((double)w[i]);

        if (a > max) /* fmax() lets GCC 12.2 for aarch64 fail */
            max = a;
    }
    return max;
}

/* The products of one row with x, and the row times a added to ones, against the scalar ones. With a scale that is not finite it depends on which terms meet first whether a
 * product is infinite or NaN (0 * inf, or infinities of both signs). room (3, n). */
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
    if (pi_type_info(type)->block_elems > 1 && !isfinite(d[0]))
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

#define WIDE \
    77 /* rows of a list: whole groups of 24, rows behind them that are side by side, and some alone */

/* Rows that are not quantised, with as many vectors as kernels take at once, a few more and fewer: the bits of one vector alone. */
static void test_wide(const struct pi_cpu *cpu, enum pi_type type, uint32_t n, uint32_t n_x)
{
    const struct pi_cpu_type *k = cpu->type[type];
    struct matrix m = make_matrix(type, 31, n);
    float **x = make(n_x, sizeof(*x)), *many = make(n_x, WIDE * sizeof(float)), one[WIDE];
    const uint32_t n_ids = WIDE - n_x % 5;
    uint32_t ids[WIDE];
    int wrong = 0;

    for (uint32_t i = 0; i < WIDE; i++)
        ids[i] = draw() % m.n_rows;
    for (uint32_t j = 0; j < n_x; j++)
        x[j] = draw_vector(n);
    k->dot_many(m.data, m.stride, ids, n_ids, WIDE - n_ids, (const float *const *)x, n_x, n, many);
    for (uint32_t j = 0; j < n_x; j++) {
        k->dot_ids(m.data, m.stride, ids, n_ids, x[j], n, one);
        for (uint32_t i = 0; i < n_ids; i++)
            wrong += bits(one[i]) != bits(many[i * n_x + j]);
        free(x[j]);
    }
    EQ(wrong, 0);
    free(x);
    free(many);
    free_matrix(&m);
}

#define SUMMED 29 /* rows at most */

/* Sums of rows for as many vectors as kernels take at once, fewer and more, in ranges of columns that begin inside a block of the K types: the bits of one vector
 * alone. */
static void test_sums(const struct pi_cpu *cpu, enum pi_type type, uint32_t n, uint32_t n_y)
{
    const struct pi_cpu_type *k = cpu->type[type];
    struct matrix m = make_matrix(type, 11, n);
    float **y = make(n_y, sizeof(*y)), *a = make(n_y, SUMMED * sizeof(float)), one[SUMMED],
          *z = make(n, sizeof(float));
    const uint32_t cut[] = {0, 96, 96 + 544, n}, n_ids = SUMMED - n_y % 13;
    uint32_t ids[SUMMED];
    int wrong = 0;

    for (uint32_t i = 0; i < SUMMED; i++)
        ids[i] = draw() % m.n_rows;
    for (uint32_t i = 0; i < n_y * SUMMED; i++)
        a[i] = draw_float();
    for (uint32_t j = 0; j < n_y; j++) {
        y[j] = make(n, sizeof(float));
        memset(y[j], 0, n * sizeof(float));
    }
    for (size_t c = 0; c + 1 < COUNT(cut); c++)
        k->axpy_many(m.data, m.stride, ids, n_ids, c == 1 ? SUMMED - n_ids : 0, a, y, n_y, cut[c],
                     cut[c + 1]);
    for (uint32_t j = 0; j < n_y; j++) {
        for (uint32_t i = 0; i < n_ids; i++)
            one[i] = a[i * n_y + j];
        memset(z, 0, n * sizeof(float));
        k->axpy_ids(m.data, m.stride, ids, one, n_ids, 0, n, z);
        wrong += memcmp(z, y[j], n * sizeof(float)) != 0;
        free(y[j]);
    }
    EQ(wrong, 0);
    free(y);
    free(a);
    free(z);
    free_matrix(&m);
}

#define LIST 80 /* rows of a list with masks */

/* Which of n_x vectors row i of a list wants: all in short stretches and in one that begins where a group ends and is longer than one, none,
 * some, few. */
static uint32_t draw_mask(uint32_t i, uint32_t n_x)
{
    const uint32_t all = UINT32_MAX >> (32 - n_x);

    if (i >= 24 && i < 54)
        return all;
    switch (draw() % 5) {
    case 0:
        return all;
    case 1:
        return 0;
    case 2:
        return (draw() << 8 ^ draw()) & all;
    default:
        return (draw() & draw() << 8) & all;
    }
}

/* Each vector with the rows that want it: the bits that it has alone. */
static void test_masked(const struct pi_cpu *cpu, enum pi_type type, uint32_t n, uint32_t n_x)
{
    const struct pi_cpu_type *k = cpu->type[type];
    struct matrix m = make_matrix(type, 11, n);
    float *x[32], *y[32], *z = make(n, sizeof(float)), a[LIST * 32], got[LIST * 32], one[LIST],
                          factor[LIST];
    uint32_t ids[LIST], mask[LIST], of[LIST], half = n / 64 * 32 % 512, n_ids = LIST - draw() % 8;
    int wrong = 0;

    for (uint32_t j = 0; j < n_x; j++) {
        x[j] = draw_vector(n);
        y[j] = make(n, sizeof(float));
        memcpy(y[j], x[j], n * sizeof(float));
    }
    for (uint32_t i = 0; i < LIST; i++) {
        ids[i] = draw() % m.n_rows;
        mask[i] = draw_mask(i, n_x);
    }
    for (uint32_t i = 0; i < LIST * 32; i++)
        a[i] = draw_float();
    k->dot_masked(m.data, m.stride, ids, mask, n_ids, LIST - n_ids, (const float *const *)x, n_x, n,
                  got);
    k->axpy_masked(m.data, m.stride, ids, mask, n_ids, LIST - n_ids, a, y, n_x, 0, half);
    k->axpy_masked(m.data, m.stride, ids, mask, n_ids, 0, a, y, n_x, half, n);
    for (uint32_t j = 0; j < n_x; j++) {
        uint32_t at = 0, n_of = 0;

        k->dot_ids(m.data, m.stride, ids, n_ids, x[j], n, one);
        for (uint32_t i = 0; i < n_ids; i++) {
            for (uint32_t b = 0; b < n_x; b++) {
                at += mask[i] >> b & 1;
                if (b != j || (mask[i] >> b & 1) == 0)
                    continue;
                wrong += bits(one[i]) != bits(got[at - 1]);
                of[n_of] = ids[i];
                factor[n_of++] = a[at - 1];
            }
        }
        memcpy(z, x[j], n * sizeof(float));
        k->axpy_ids(m.data, m.stride, of, factor, n_of, 0, n, z);
        wrong += memcmp(z, y[j], n * sizeof(float)) != 0;
        free(x[j]);
        free(y[j]);
    }
    EQ(wrong, 0);
    free(z);
    free_matrix(&m);
}

int main(void)
{
    for (int i = 0; i < PI_ISA_COUNT; i++) {
        const struct pi_cpu *cpu = pi_cpu_get((enum pi_isa)i);

        if (cpu == NULL) {
            printf("# no %s here\n", pi_isa_name((enum pi_isa)i));
            continue;
        }
        for (size_t t = 0; t < COUNT(types); t++) {
            test_rows(cpu, types[t]);
            test_odd_values(cpu, types[t]);
            for (uint32_t n_x = 1; n_x <= 32; n_x += n_x < 10 ? 1 : 11)
                test_masked(cpu, types[t],
                            n_x % 2 == 0 && t < PLAIN ? 77
                            : n_x % 3 == 0            ? 1280
                                                      : 512,
                            n_x);
            for (uint32_t n_y = 1; n_y <= 33; n_y += n_y == 9 ? 7 : n_y == 16 ? 15 : 1)
                test_sums(cpu, types[t], t < PLAIN ? 1283 : 1280, n_y);
            for (uint32_t n_x = 2; t < PLAIN && n_x <= 70; n_x += n_x < 33 ? 1 : 37)
                test_wide(cpu, types[t], 255 + n_x % 4 * 339, n_x);
            if (t < PLAIN)
                continue;
            test_odd_scales(cpu, types[t]);
            test_large(cpu, types[t], 8192, 70);
        }
        test_large(cpu, PI_TYPE_Q4_1, 262144 + 96, 2);
        test_large(cpu, PI_TYPE_Q4_K, 262144 + 512, 2);
    }
    return DONE();
}
