/*
 * Block types against tests/data/quants.gguf (made by make_quants.py beside it): values bit for bit those of the gguf Python package, quantisers too where it
 * has them; those of the K types within 2 % of the error that llama.cpp's make. Blocks of numbers that are no weights, in every table.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_gguf.h"
#include "runtime/cpu/pi_cpu.h"
#include "tests/tap.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const enum pi_type types[] = {PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0,
                                     PI_TYPE_Q5_1, PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};
#define FIRST_K 5
static const char *const sets[] = {"gauss", "student", "outliers", "positive", "sparse", "edge"};
static struct pi_gguf file;
static struct pi_err e;

static size_t row_bytes(enum pi_type type, uint64_t n)
{
    uint64_t bytes = 0;

    return pi_type_row_bytes(type, n, &bytes) ? bytes : 0;
}

static void *make(size_t n, size_t size)
{
    void *p = pi_calloc_array(n, size, &e);

    if (p == NULL)
        exit(1);
    return p;
}

/* The tensor whose name is made of three parts. */
static const struct pi_gguf_tensor *tensor(const char *a, const char *b, const char *c)
{
    char name[64];
    const struct pi_gguf_tensor *t;

    (void)snprintf(name, sizeof(name), "%s%s%s", a, b, c);
    t = pi_gguf_find_tensor(&file, name);
    if (t == NULL) {
        printf("not ok - quants.gguf has no tensor %s\n", name);
        exit(1);
    }
    return t;
}

/* Any NaN for any NaN, else the same bits. */
static size_t n_different(const float *a, const float *b, size_t n)
{
    size_t wrong = 0;

    for (size_t i = 0; i < n; i++)
        wrong += isnan(a[i]) ? !isnan(b[i]) : memcmp(a + i, b + i, sizeof(*a)) != 0;
    return wrong;
}

static void test_values(const struct pi_cpu *cpu, enum pi_type type)
{
    const struct pi_gguf_tensor *raw = tensor(pi_type_name(type), ".raw", "");
    const struct pi_gguf_tensor *want = tensor(pi_type_name(type), ".f32", "");
    uint32_t n = (uint32_t)raw->ne[0];
    float *got = make(n, sizeof(*got)), *w = make(n, sizeof(*w));

    EQ(raw->type, type);
    EQ(want->ne[0], n);
    memcpy(w, want->data, n * sizeof(*w));
    cpu->type[type]->to_f32(raw->data, got, n);
    EQ(n_different(w, got, n), 0);
    free(got);
    free(w);
}

static float *numbers(const char *set, uint32_t *n)
{
    const struct pi_gguf_tensor *t = tensor("x.", set, "");
    float *x = make(t->ne[0], sizeof(*x));

    memcpy(x, t->data, t->ne[0] * sizeof(*x));
    *n = (uint32_t)t->ne[0];
    return x;
}

/* The bytes that the gguf package makes. */
static void test_made(const struct pi_cpu *cpu, enum pi_type type)
{
    for (size_t s = 0; s < COUNT(sets); s++) {
        const struct pi_gguf_tensor *want = tensor(pi_type_name(type), ".made.", sets[s]);
        uint32_t n;
        float *x = numbers(sets[s], &n);
        uint8_t *made = make(row_bytes(type, n), 1);

        EQ(want->bytes, row_bytes(type, n));
        cpu->type[type]->from_f32(x, made, n);
        EQ(memcmp(made, want->data, want->bytes), 0);
        free(x);
        free(made);
    }
}

static double rms_error(const struct pi_cpu_type *k, const uint8_t *row, const float *x, uint32_t n)
{
    float *y = make(n, sizeof(*y));
    double sum = 0.0;

    k->to_f32(row, y, n);
    for (uint32_t i = 0; i < n; i++)
        sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    free(y);
    return sqrt(sum / n);
}

static void test_error(const struct pi_cpu *cpu, enum pi_type type)
{
    for (size_t s = 0; strcmp(sets[s], "edge") != 0; s++) {
        uint32_t n;
        float *x = numbers(sets[s], &n), peer = 0.0f;
        uint8_t *made = make(row_bytes(type, n), 1);
        char key[64];
        double error;

        (void)snprintf(key, sizeof(key), "rms.%s.%s", pi_type_name(type), sets[s]);
        PASSES(pi_gguf_f32(&file, key, true, &peer, &e), e);
        cpu->type[type]->from_f32(x, made, n);
        error = rms_error(cpu->type[type], made, x, n);
        printf("# %s %s: error %.4f of llama.cpp's\n", pi_type_name(type), sets[s],
               error / (double)peer);
        OK(error > 0.0 && error <= 1.02 * (double)peer);
        free(x);
        free(made);
    }
}

/* A row is its blocks one after the other, the same bytes from every table, and nothing is written beside it. */
static void test_blocks(const struct pi_cpu *cpu, enum pi_type type)
{
    const struct pi_cpu_type *ref = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    uint32_t block = pi_type_info((uint32_t)type)->block_elems, n;
    size_t size = row_bytes(type, block);

    for (size_t s = 0; s < COUNT(sets); s++) {
        float *x = numbers(sets[s], &n), *one = make(block, sizeof(*one));
        uint8_t *whole = make(row_bytes(type, n), 1), *each = make(row_bytes(type, n) + 4, 1);
        int wrong = 0;

        ref->from_f32(x, whole, n);
        for (uint32_t i = n / block; i-- > 0;) { /* backwards: what is written beyond shows */
            uint8_t *at = each + 2 + i * size;

            memcpy(one, x + (size_t)i * block, block * sizeof(*one));
            cpu->type[type]->from_f32(one, at, block);
            wrong += memcmp(at, whole + i * size, size) != 0;
        }
        wrong += memcmp(each + 2, whole, row_bytes(type, n)) != 0;
        EQ(wrong, 0);
        free(x);
        free(one);
        free(whole);
        free(each);
    }
}

/* Numbers times a power of two: the same values times that power (F16 scales stay normal). */
static void test_powers(const struct pi_cpu *cpu, enum pi_type type)
{
    uint32_t n;
    float *x = numbers("gauss", &n), *y = make(n, sizeof(*y)), *z = make(n, sizeof(*z));
    uint8_t *made = make(row_bytes(type, n), 1);

    for (uint32_t i = 0; i < n; i++)
        x[i] *= 256.0f;
    cpu->type[type]->from_f32(x, made, n);
    cpu->type[type]->to_f32(made, y, n);
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= 64.0f;
        y[i] *= 64.0f;
    }
    cpu->type[type]->from_f32(x, made, n);
    cpu->type[type]->to_f32(made, z, n);
    EQ(memcmp(y, z, n * sizeof(*y)), 0);
    free(x);
    free(y);
    free(z);
    free(made);
}

/* The first block's scale. */
static float scale_of(enum pi_type type, const uint8_t *block)
{
    uint16_t h;

    memcpy(&h, block + (type == PI_TYPE_Q6_K ? 208 : 0), sizeof(h));
    return pi_f16_to_f32(h);
}

static void fill(float *x, uint32_t n, float v)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = v;
}

/* One odd number at every place of a block in turn. */
static void test_odd(const struct pi_cpu *cpu, enum pi_type type)
{
    const struct pi_cpu_type *k = cpu->type[type];
    float x[256], y[256];
    uint8_t made[272];
    int nan = 0, inf = 0, huge = 0;
    const uint32_t n = pi_type_info((uint32_t)type)->block_elems;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++)
            x[j] = (float)j - 20.0f;
        x[i] = NAN;
        k->from_f32(x, made, n);
        nan += !isnan(scale_of(type, made));
        x[i] = i % 2 == 0 ? INFINITY : -INFINITY;
        k->from_f32(x, made, n);
        k->to_f32(made, y, n);
        inf += !isinf(scale_of(type, made)) || isfinite(y[i]);
        x[i] = i % 2 == 0 ? 3e38f : -3e38f;
        k->from_f32(x, made, n);
        k->to_f32(made, y, n);
        huge += !isinf(scale_of(type, made)) || isfinite(y[i]);
    }
    EQ(nan, 0);
    EQ(inf, 0);
    EQ(huge, 0);
}

/* Blocks of one number, from zero past the largest that a scale holds; what comes out is near, or is infinite, or is zero. */
static void test_constant(const struct pi_cpu *cpu, enum pi_type type)
{
    static const float values[] = {0.0f,   -0.0f, 0x1p-149f, 1e-40f,     1e-30f,     -1e-20f,
                                   1e-10f, 1e-8f, 0x1p-24f,  1e-6f,      1e-3f,      -1.0f,
                                   100.0f, 1e4f,  -3e4f,     3.4028e38f, -3.4028e38f};
    const struct pi_cpu_type *k = cpu->type[type];
    float x[256], y[256];
    uint8_t made[272];
    int far = 0;
    const uint32_t n = pi_type_info((uint32_t)type)->block_elems;

    for (size_t v = 0; v < COUNT(values); v++) {
        fill(x, n, values[v]);
        k->from_f32(x, made, n);
        k->to_f32(made, y, n);
        for (uint32_t i = 0; i < n; i++) {
            if (fabsf(values[v]) > 1e38f)
                far += isfinite(y[i]);
            else /* half a step of a part's scale, or half the smallest F16 number, times the largest integers */
                far += !(fabsf(y[i] - x[i]) <= 5e-3f * fabsf(x[i]) + 0x1p-25f * 128.0f);
        }
    }
    EQ(far, 0);
}

static void test_table(const struct pi_cpu *cpu)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        if (cpu->type[types[t]] == NULL)
            continue;
        printf("# %s %s\n", pi_isa_name(cpu->isa), pi_type_name(types[t]));
        test_values(cpu, types[t]);
        if (t < FIRST_K)
            test_made(cpu, types[t]);
        else
            test_error(cpu, types[t]);
        test_blocks(cpu, types[t]);
        test_powers(cpu, types[t]);
        test_odd(cpu, types[t]);
        test_constant(cpu, types[t]);
    }
}

int main(void)
{
    const char *top = getenv("abs_top_srcdir");
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/tests/data/quants.gguf", top != NULL ? top : ".");
    PASSES(pi_gguf_open(path, 0, &file, &e), e);
    if (file.map.path == NULL)
        return DONE();
    for (int i = 0; i < PI_ISA_COUNT; i++) {
        const struct pi_cpu *cpu = pi_cpu_get((enum pi_isa)i);

        if (cpu != NULL)
            test_table(cpu);
    }
    pi_gguf_close(&file);
    return DONE();
}
