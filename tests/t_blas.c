/* Tiled products against plain sums in F64; the same bits at any thread count and as dot products. */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_blas.h"
#include "tests/tap.h"

static struct pi_err e;

static float *make(size_t n, uint32_t seed)
{
    float *x = pi_calloc_aligned(n, sizeof(float), &e);

    if (x == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return x;
}

/* max |out - reference| / max |reference| */
static double matmul_error(const float *w, const float *x, size_t ldx, const float *bias,
                           const float *out, size_t ldo, uint32_t n_tok, uint32_t n_rows,
                           uint32_t n_cols)
{
    double worst = 0.0, scale = 0.0;

    for (uint32_t t = 0; t < n_tok; t++) {
        for (uint32_t r = 0; r < n_rows; r++) {
            double sum = bias != NULL ? (double)bias[r] : 0.0;

            for (uint32_t k = 0; k < n_cols; k++)
                sum += (double)x[t * ldx + k] * (double)w[(size_t)r * n_cols + k];
            worst = fmax(worst, fabs(sum - (double)out[t * ldo + r]));
            scale = fmax(scale, fabs(sum));
        }
    }
    return worst / scale;
}

/* Results that have other bits than dot_rows on rows in F32: what a token gets depends on nothing but its vector and the weights. */
static int differing(const float *w, const float *x, size_t ldx, const float *bias,
                     const float *out, size_t ldo, uint32_t n_tok, uint32_t n_rows, uint32_t n_cols)
{
    const struct pi_cpu *cpu = NULL;
    int n = 0;

    PASSES(pi_cpu_select(&cpu, &e), e);
    for (uint32_t t = 0; t < n_tok; t++) {
        for (uint32_t r = 0; r < n_rows; r++) {
            float dot;

            cpu->type[PI_TYPE_F32]->dot_rows(w + (size_t)r * n_cols, 0, 1, x + t * ldx, n_cols,
                                             &dot);
            if (bias != NULL)
                dot += bias[r];
            n += memcmp(&dot, out + t * ldo + r, sizeof(dot)) != 0;
        }
    }
    return n;
}

static void test_matmul(enum pi_type type, uint32_t n_rows, uint32_t n_cols, uint32_t n_tok,
                        bool biased)
{
    size_t ldx = n_cols + 3, ldo = n_rows + 5;
    float *w = make((size_t)n_rows * n_cols, 1), *x = make(n_tok * ldx, 2),
          *bias = biased ? make(n_rows, 3) : NULL;
    float *out[2] = {make(n_tok * ldo, 4), make(n_tok * ldo, 4)};
    const struct pi_cpu_type *k = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    uint64_t row_bytes = 0;
    struct pi_mat m = {.type = type, .n_rows = n_rows, .n_cols = n_cols};
    char *data;

    OK(pi_type_row_bytes(type, n_cols, &row_bytes));
    m.row_bytes = row_bytes;
    data = pi_calloc_array(n_rows, row_bytes, &e);
    if (data == NULL)
        exit(1);
    for (uint32_t r = 0; r < n_rows; r++) {
        k->from_f32(w + (size_t)r * n_cols, data + r * row_bytes, n_cols);
        k->to_f32(data + r * row_bytes, w + (size_t)r * n_cols, n_cols);
    }
    m.data = data;
    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct pi_pool *pool = NULL;

        PASSES(pi_pool_create(threads, &pool, &e), e);
        PASSES(pi_blas_matmul(pool, &m, x, ldx, n_tok, bias, out[threads - 1], ldo, &e), e);
        pi_pool_destroy(pool);
    }
    NEAR(matmul_error(w, x, ldx, bias, out[0], ldo, n_tok, n_rows, n_cols), 0.0, 2e-6);
    EQ(memcmp(out[0], out[1], n_tok * ldo * sizeof(float)), 0);
    EQ(differing(w, x, ldx, bias, out[0], ldo, n_tok, n_rows, n_cols), 0);
    free(data);
    free(w);
    free(x);
    free(bias);
    free(out[0]);
    free(out[1]);
}

/* Quantised activations: the bits of dot_rows_q8, with matrices of several types side by side. */
static void test_q8(const enum pi_type *types, uint32_t n_types, uint32_t n_rows, uint32_t n_cols,
                    uint32_t n_tok)
{
    const struct pi_cpu *cpu = NULL;
    const size_t n_blocks = n_cols / PI_Q8_BLOCK;
    float *w = make((size_t)n_rows * n_cols, 1), *x = make((size_t)n_tok * n_cols, 2),
          *bias = make(n_rows, 3), *out[PI_BLAS_MAX_OUTS], dot;
    struct pi_q8 *q8 = pi_calloc_array(n_tok * n_blocks, sizeof(*q8), &e);
    struct pi_mat m[PI_BLAS_MAX_OUTS];
    struct pi_blas_out outs[PI_BLAS_MAX_OUTS];
    struct pi_blas_in in = {.ldx = n_cols, .n_tok = n_tok, .n_cols = n_cols, .q8 = q8};
    struct pi_blas_scratch scratch = {0};
    struct pi_pool *pool = NULL;

    PASSES(pi_cpu_select(&cpu, &e), e);
    PASSES(pi_pool_create(2, &pool, &e), e);
    if (q8 == NULL)
        exit(1);
    x[5] = 1e30f; /* a block that is mostly 0, one that is not a number */
    x[(n_tok - 1) * (size_t)n_cols] = NAN;
    cpu->quantise_q8(x, q8, n_tok * n_cols);
    for (uint32_t i = 0; i < n_types; i++) {
        uint64_t row_bytes = 0;
        char *data;

        OK(pi_type_row_bytes(types[i], n_cols, &row_bytes));
        data = pi_calloc_array(n_rows, row_bytes, &e);
        out[i] = make((size_t)n_tok * n_rows, 4);
        if (data == NULL)
            exit(1);
        for (uint32_t r = 0; r < n_rows; r++)
            cpu->type[types[i]]->from_f32(w + (size_t)r * n_cols, data + r * row_bytes, n_cols);
        m[i] = (struct pi_mat){types[i], n_rows, n_cols, row_bytes, data};
        outs[i] = (struct pi_blas_out){&m[i], i == 0 ? bias : NULL, out[i], n_rows};
    }
    PASSES(pi_blas_products(pool, &scratch, &in, outs, n_types, &e), e);
    for (uint32_t i = 0; i < n_types; i++) {
        int n = 0;

        for (uint32_t t = 0; t < n_tok; t++) {
            for (uint32_t r = 0; r < n_rows; r++) {
                cpu->type[types[i]]->dot_rows_q8(pi_mat_row(&m[i], r), 0, 1, q8 + t * n_blocks,
                                                 n_cols, &dot);
                dot += i == 0 ? bias[r] : 0.0f;
                if (isnan(dot) != 0 && isnan(out[i][(size_t)t * n_rows + r]) != 0)
                    continue;
                n += dot != out[i][(size_t)t * n_rows + r];
            }
        }
        printf("# %s, %u rows of %u, %u tokens\n", pi_type_name(types[i]), n_rows, n_cols, n_tok);
        EQ(n, 0);
        OK(isnan(out[i][(size_t)(n_tok - 1) * n_rows]) != 0);
        free(out[i]);
        free((void *)(uintptr_t)m[i].data);
    }
    pi_blas_scratch_free(&scratch);
    pi_pool_destroy(pool);
    free(q8);
    free(bias);
    free(w);
    free(x);
}

/* Rows of what is summed over: the bits of axpy_ids on rows in F32, at any number of tokens. */
static void test_axpys(enum pi_type type, uint32_t n_k, uint32_t n_cols, uint32_t n_tok)
{
    const struct pi_cpu *cpu = NULL;
    const size_t ldx = n_k + 1, ldo = n_cols + 3;
    float *w = make((size_t)n_k * n_cols, 1), *x = make(n_tok * ldx, 2),
          *out = make(n_tok * ldo, 3), *y = make(n_cols, 4);
    uint32_t *ids = pi_calloc_array(n_k, sizeof(*ids), &e);
    struct pi_mat m = {.type = type, .n_rows = n_k, .n_cols = n_cols};
    struct pi_blas_in in = {.x = x, .ldx = ldx, .n_tok = n_tok, .n_cols = n_k};
    struct pi_blas_out o = {.w = &m, .out = out, .ldo = ldo};
    struct pi_blas_scratch scratch = {0};
    struct pi_pool *pool = NULL;
    uint64_t row_bytes = 0;
    int wrong = 0;
    char *data;

    OK(pi_type_row_bytes(type, n_cols, &row_bytes));
    data = pi_calloc_array(n_k, row_bytes, &e);
    if (data == NULL || ids == NULL)
        exit(1);
    PASSES(pi_cpu_select(&cpu, &e), e);
    PASSES(pi_pool_create(2, &pool, &e), e);
    for (uint32_t k = 0; k < n_k; k++) {
        ids[k] = k;
        cpu->type[type]->from_f32(w + (size_t)k * n_cols, data + k * row_bytes, n_cols);
        cpu->type[type]->to_f32(data + k * row_bytes, w + (size_t)k * n_cols, n_cols);
    }
    m.data = data;
    m.row_bytes = row_bytes;
    PASSES(pi_blas_axpys(pool, &scratch, &in, &o, &e), e);
    for (uint32_t t = 0; t < n_tok; t++) {
        memset(y, 0, n_cols * sizeof(*y));
        cpu->type[PI_TYPE_F32]->axpy_ids(w, n_cols * sizeof(*w), ids, x + t * ldx, n_k, 0, n_cols,
                                         y);
        wrong += memcmp(y, out + t * ldo, n_cols * sizeof(*y)) != 0;
    }
    EQ(wrong, 0);
    pi_blas_scratch_free(&scratch);
    pi_pool_destroy(pool);
    free(data);
    free(ids);
    free(w);
    free(x);
    free(y);
    free(out);
}

static void test_gemm(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, float beta)
{
    size_t lda = (ta ? m : k) + 1, ldb = (tb ? k : n) + 2, ldc = n + 3;
    float *a = make((ta ? k : m) * lda, 5), *b = make((tb ? n : k) * ldb, 6);
    float *c[3] = {make(m * ldc, 7), make(m * ldc, 7), make(m * ldc, 7)};
    double worst = 0.0, scale = 0.0;

    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct pi_pool *pool = NULL;

        PASSES(pi_pool_create(threads, &pool, &e), e);
        pi_blas_gemm(pool, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c[threads], ldc);
        pi_pool_destroy(pool);
    }
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < ldc; j++) {
            double sum = 0.0, was = (double)c[0][i * ldc + j];

            for (size_t l = 0; l < k && j < n; l++)
                sum += (double)a[ta ? l * lda + i : i * lda + l] *
                       (double)b[tb ? j * ldb + l : l * ldb + j];
            sum = j < n ? (double)alpha * sum + (double)beta * was : was; /* beyond n: untouched */
            worst = fmax(worst, fabs(sum - (double)c[1][i * ldc + j]));
            scale = fmax(scale, fabs(sum));
        }
    }
    NEAR(worst / scale, 0.0, 2e-6);
    EQ(memcmp(c[1], c[2], m * ldc * sizeof(float)), 0);
    free(a);
    free(b);
    for (int i = 0; i < 3; i++)
        free(c[i]);
}

static void test_refusals(void)
{
    float x[4 * 256] = {0}, out[4 * 8] = {0};
    unsigned char data[8 * 144] = {0};
    struct pi_mat m = {
        .type = PI_TYPE_Q2_K, .n_rows = 8, .n_cols = 256, .row_bytes = 84, .data = data};
    struct pi_pool *pool = NULL;

    PASSES(pi_pool_create(1, &pool, &e), e);
    FAILS(pi_blas_matmul(pool, &m, x, 256, 4, NULL, out, 8, &e), PI_E_UNSUPPORTED, "Q2_K", e);
    m.type = PI_TYPE_Q4_0;
    m.n_cols = 32;
    m.row_bytes = 18;
    PASSES(pi_blas_matmul(pool, &m, x, 256, 0, NULL, out, 8, &e), e);
    pi_pool_destroy(pool);
}

/* Run by itself: the counter of allocations is the process's. */
static void test_no_memory(void)
{
    float x[9 * 32] = {0}, out[9 * 8] = {0};
    unsigned char data[8 * 18] = {0};
    struct pi_mat m = {
        .type = PI_TYPE_Q4_0, .n_rows = 8, .n_cols = 32, .row_bytes = 18, .data = data};
    struct pi_pool *pool = NULL;

    PASSES(pi_pool_create(1, &pool, &e), e);
    (void)setenv("PI_TEST_ALLOC_FAIL", "1", 1);
    FAILS(pi_blas_matmul(pool, &m, x, 32, 9, NULL, out, 8, &e), PI_E_NOMEM, "cannot allocate", e);
    (void)unsetenv("PI_TEST_ALLOC_FAIL");
    PASSES(pi_blas_matmul(pool, &m, x, 32, 9, NULL, out, 8, &e), e);
    pi_pool_destroy(pool);
}

/* With whatever table of kernels PI_CPU names. */
static void test_products(void)
{
    static const enum pi_type types[] = {PI_TYPE_F32,  PI_TYPE_F16,  PI_TYPE_BF16,
                                         PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q4_1};
    static const enum pi_type q8_types[] = {PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0,
                                            PI_TYPE_Q5_1, PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        test_matmul(types[i], 300, 96, 70, true);
        test_matmul(types[i], 33, 384, 3, true);
        test_matmul(types[i], 257, 64, 8,
                    false); /* the last done by dot products, the first by tiles */
        test_matmul(types[i], 257, 64, 9, false);
    }
    for (uint32_t n = 1; n < 40; n++) /* rests of rows */
        test_matmul(n % 2 ? PI_TYPE_F16 : PI_TYPE_F32, 19, n, 13, false);
    test_matmul(PI_TYPE_F16, 130, 777, 300, true);
    test_matmul(PI_TYPE_F16, 1100, 32, 40, true);
    test_matmul(PI_TYPE_F32, 1, 1, 15, false);
    test_axpys(PI_TYPE_F32, 600, 77, 20);
    test_axpys(PI_TYPE_F16, 256, 130, 3);
    test_axpys(PI_TYPE_Q4_0, 301, 96, 7);
    test_axpys(PI_TYPE_Q6_K, 40, 512, 13);
    test_axpys(PI_TYPE_F16, 37, 299, 400); /* several groups of tokens, and columns in pieces */
    for (size_t i = 0; i < sizeof(q8_types) / sizeof(q8_types[0]); i++) {
        test_q8(&q8_types[i], 1, 131, 1280, 40);
        test_q8(&q8_types[i], 1, 5, 256, 9);
        test_q8(&q8_types[i], 1, 33, 512, 3);
    }
    test_q8(q8_types, 4, 70, 256, 301);
}

int main(void)
{
    test_no_memory();
    PASSES(pi_blas_init(&e), e);
    for (int i = 0; i < PI_ISA_COUNT; i++) {
        if (pi_cpu_get((enum pi_isa)i) == NULL)
            continue;
        printf("# %s\n", pi_isa_name((enum pi_isa)i));
        (void)setenv("PI_CPU", pi_isa_name((enum pi_isa)i), 1);
        test_products();
    }
    (void)unsetenv("PI_CPU");
    OK(pi_blas_warning() == NULL);
    for (int i = 0; i < 4; i++) {
        test_gemm(i & 1, i & 2, 131, 517, 65, 1.0f, 0.0f);
        test_gemm(i & 1, i & 2, 7, 40, 300, -0.5f, 1.0f);
    }
    test_refusals();
    (void)setenv("PI_TEST_BLAS_WRONG", "1", 1); /* own kernels in its place */
    PASSES(pi_blas_init(&e), e);
    OK(pi_blas_warning() != NULL && strstr(pi_blas_warning(), "wrong products") != NULL);
    for (int i = 0; i < 4; i++) {
        test_gemm(i & 1, i & 2, 131, 517, 65, 1.0f, 0.0f);
        test_gemm(i & 1, i & 2, 7, 40, 300, -0.5f, 1.0f);
    }
    return DONE();
}
