/* t_train.c - the trainer's parts against brute force, and a layer whose structure is known. On a GPU: t_train_gpu.c. */
#include "config.h"

#include "common/pi_alloc.h"
#include "profiler/pi_calibrate.h"
#include "profiler/pi_choose.h"
#include "profiler/pi_damage.h"
#include "profiler/pi_fit.h"
#include "tests/train_rig.h"

#include <float.h>

/* ---- parts ---- */

static void test_split(const struct pi_trainset *s)
{
    uint32_t n = 0, wrong = 0;

    for (int p = 0; p < PI_PART_COUNT; p++) {
        n += s->n_part[p];
        for (uint32_t i = 0; i < s->n_part[p]; i++) {
            const uint32_t b = s->block[s->part[p][i]] % 10;

            wrong += (b == 4) != (p == PI_PART_CALIBRATE) || (b == 9) != (p == PI_PART_TEST);
        }
    }
    EQ(n, s->n);
    EQ(wrong, 0);
    OK(s->n_part[PI_PART_CALIBRATE] > s->n / 20 && s->n_part[PI_PART_TEST] > s->n / 20);
}

static int cmp_float(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

static void test_select(void)
{
    float v[1000], sorted[1000];
    int wrong = 0;

    for (size_t n = 1; n <= 1000; n = n * 3 + 1)
        for (size_t k = 0; k < n; k += 1 + n / 7) {
            for (size_t i = 0; i < n; i++)
                v[i] = sorted[i] = (float)(int)(uniform() * 20); /* many ties */
            qsort(sorted, n, sizeof(*sorted), cmp_float);
            wrong += pi_calibrate_select(v, n, k) != sorted[k];
            for (size_t i = 0; i < n; i++)
                wrong += i < k ? v[i] > v[k] : v[i] < v[k];
        }
    EQ(wrong, 0);
}

static void test_place(void)
{
    const float t[3] = {2.0f, 1.0f, -1.0f};

    EQ(pi_calibrate_place(t, 3, 5.0f), 0);
    EQ(pi_calibrate_place(t, 3, 2.0f), 0);
    EQ(pi_calibrate_place(t, 3, 1.5f), 1);
    EQ(pi_calibrate_place(t, 3, -1.0f), 2);
    EQ(pi_calibrate_place(t, 3, -1.5f), 3);
    EQ(pi_calibrate_place(t, 3, NAN), 3);
}

/* The vector code against the formula in double. */
static void test_gradient(void)
{
    enum {
        T = 5,
        LDZ = 24
    };
    float z[T * LDZ], z2[T * LDZ], bias[LDZ], sum[LDZ] = {0}, sum2[LDZ] = {0};
    uint8_t code[T][LDZ];
    const uint8_t *rows[T];
    double worst = 0, worst_sum = 0, between = 0;

    for (int t = 0; t < T; t++)
        rows[t] = code[t];
    for (int i = 0; i < LDZ; i++)
        bias[i] = uniform();
    for (int i = 0; i < T * LDZ; i++) {
        z[i] = i % 13 == 0 ? 200.0f * uniform() : 9.0f * uniform();
        code[i / LDZ][i % LDZ] = (uint8_t)(i % 3 == 0 ? 1 + i % 200 : 0);
    }
    memcpy(z2, z, sizeof(z));
    pi_fit_gradient(z, LDZ, rows, T, bias, 0.5f, 0, LDZ, sum, false);
    {
        double want_sum[LDZ] = {0};

        for (int i = 0; i < T * LDZ; i++) {
            const double x = (double)z2[i] + (double)bias[i % LDZ], s = 1 / (1 + exp(-x));
            const int c = code[i / LDZ][i % LDZ];
            const double want = c > 0 ? 0.5 * c * (s - 1) : s;

            worst = fmax(worst, fabs(want - (double)z[i]) / (0.5 * c + 1));
            want_sum[i % LDZ] += want;
        }
        for (int i = 0; i < LDZ; i++)
            worst_sum = fmax(worst_sum, fabs(want_sum[i] - (double)sum[i]));
    }
    NEAR(worst, 0, 1e-6);
    NEAR(worst_sum, 0, 1e-4);
    pi_fit_gradient(z2, LDZ, rows, T, bias, 0.5f, 8, 16, sum2, true);
    for (int t = 0; t < T; t++)
        for (int i = 8; i < 16; i++)
            between = fmax(between, fabs((double)z[t * LDZ + i] - (double)z2[t * LDZ + i]));
    NEAR(between, 0, 1e-5);
    OK(sum2[7] == 0.0f && sum2[16] == 0.0f && sum2[8] != 0.0f);
}

/* ---- the start ---- */

/* trace of (W - A) C (W - A)^T with C the covariance and ridge that the decomposition is documented to use. */
static double left_out(const struct pi_trainset *s, const float *gate, const struct pi_svd *v,
                       uint32_t r)
{
    double cov[D][D] = {{0}}, mean[D] = {0}, trace = 0, sum = 0;
    const uint32_t n = s->n_part[PI_PART_TRAIN];

    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < D; k++)
            mean[k] += (double)s->x[s->part[PI_PART_TRAIN][i] * D + (unsigned)k] / n;
    for (uint32_t i = 0; i < n; i++) {
        const float *x = s->x + s->part[PI_PART_TRAIN][i] * D;

        for (int k = 0; k < D; k++)
            for (int j = 0; j < D; j++)
                cov[k][j] += ((double)x[k] - mean[k]) * ((double)x[j] - mean[j]) / n;
    }
    for (int k = 0; k < D; k++)
        trace += cov[k][k];
    for (int k = 0; k < D; k++)
        cov[k][k] += 1e-3 * trace / D;
    for (int i = 0; i < N_FF; i++) {
        double w[D];

        for (int k = 0; k < D; k++) {
            w[k] = (double)gate[i * D + k];
            for (uint32_t c = 0; c < r; c++)
                w[k] -= (double)v->fc2[(unsigned)i * D + c] * (double)v->fc1[c * D + (unsigned)k];
        }
        for (int k = 0; k < D; k++)
            for (int j = 0; j < D; j++)
                sum += w[k] * cov[k][j] * w[j];
    }
    return sum;
}

/* Eckart and Young: what rank r leaves out is the sum of the eigenvalues it does without. */
static void test_svd(const struct layer *l, const struct pi_trainset *s, struct pi_pool *pool)
{
    struct pi_svd v = {0};
    struct pi_net net = {0};
    double all = 0, worst = 0;

    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &v, &e), e);
    for (int k = 0; k < D; k++)
        all += (double)v.value[k];
    for (uint32_t r = 1; r <= D; r += 5) {
        double tail = 0;

        for (uint32_t k = r; k < D; k++)
            tail += (double)v.value[k];
        NEAR(left_out(s, l->gate, &v, r) / all, tail / all, 2e-5);
    }
    OK(v.value[0] > v.value[RANK - 1] && v.value[RANK - 1] > 20 * v.value[RANK]);
    /* all components: the scores are the gate's own outputs, each row times a positive number; the bias included */
    PASSES(pi_svd_net(&v, D, false, &net, &e), e);
    for (int t = 0; t < 50; t++) {
        float hidden[D], z[N_FF];

        pi_net_score(&net, pool, s->x + t * D, 1, hidden, z, N_FF);
        for (int i = 0; i < N_FF; i++) {
            double want = (double)l->bias[i], scale = 1e-30;

            for (int k = 0; k < D; k++) {
                want += (double)l->gate[i * D + k] * (double)s->x[t * D + k];
                scale += fabs((double)l->gate[i * D + k] * (double)s->x[t * D + k]);
            }
            if (fabs(want) > 1e-3 * scale)
                worst += ((double)z[i] > 0) != (want > 0);
        }
    }
    EQ(worst, 0);
    pi_net_free(&net);
    PASSES(pi_svd_net(&v, 2 * RANK, true, &net, &e), e);
    OK(net.relu && net.fc1[0] == -net.fc1[RANK * D]);
    pi_net_free(&net);
    pi_svd_free(&v);
}

/* Seeing the block's own input by another way gives the same guess; seeing half of it leaves variance unexplained. */
static void test_look_ahead(const struct layer *l, struct pi_trainset *s, struct pi_pool *pool)
{
    struct pi_svd a = {0}, b = {0};
    double all = 0, worst = 0, rest = 0;

    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &a, &e), e);
    s->block_x = malloc(sizeof(float) * N * D);
    memcpy(s->block_x, s->x, sizeof(float) * N * D);
    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &b, &e), e);
    for (int i = 0; i < N_FF; i++)
        for (int k = 0; k < D; k++) {
            double x = 0, y = 0;

            for (int c = 0; c < D; c++) {
                x += (double)a.fc2[i * D + c] * (double)a.fc1[c * D + k];
                y += (double)b.fc2[i * D + c] * (double)b.fc1[c * D + k];
            }
            all = fmax(all, fabs(x));
            worst = fmax(worst, fabs(x - y));
        }
    NEAR(worst / all, 0, 0.01); /* the ridge */
    for (int i = 0; i < N_FF; i++)
        worst = fmax(worst, fabs((double)a.bias[i] - (double)b.bias[i]));
    NEAR(worst / all, 0, 0.01);
    pi_svd_free(&b);
    for (int i = 0; i < N * D; i++)
        s->x[i] += i % 2 == 0 ? 100 * normal() : 0;
    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &b, &e), e);
    for (int i = 0; i < N_FF; i++)
        rest += (double)b.rest[i];
    OK(rest > 0.2 * (double)a.value[0] && a.rest[0] == 0.0f);
    memcpy(s->x, s->block_x, sizeof(float) * N * D);
    free(s->block_x);
    s->block_x = NULL;
    pi_svd_free(&a);
    pi_svd_free(&b);
}

/* ---- thresholds and damage ---- */

static void test_calibrate(const struct layer *l, const struct pi_trainset *s, struct pi_pool *pool)
{
    const double recall[4] = {0.5, 0.9, 0.95, 1.0};
    float t[4], row[PI_CURVE_POINTS], above;
    struct pi_found f[PI_CURVE_POINTS], g;
    struct pi_svd v = {0};
    struct pi_net net = {0};
    double active = pi_trainset_density(s, PI_PART_CALIBRATE);

    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &v, &e), e);
    PASSES(pi_svd_net(&v, 2, false, &net, &e), e);
    PASSES(pi_calibrate_thresholds(&net, s, PI_PART_CALIBRATE, pool, recall, 4, t, &e), e);
    PASSES(pi_calibrate_count(&net, s, PI_PART_CALIBRATE, pool, t, 4, f, &e), e);
    for (int k = 0; k < 4; k++) {
        OK(f[k].recall >= recall[k] && f[k].recall < recall[k] + 1e-3);
        NEAR(f[k].active, active, 1e-12);
        NEAR(f[k].precision * f[k].density, f[k].recall * active, 1e-12);
        NEAR(f[k].accuracy, 1 - active - f[k].density + 2 * f[k].recall * active, 1e-12);
    }
    above = nextafterf(t[2], FLT_MAX); /* no higher threshold would do */
    PASSES(pi_calibrate_count(&net, s, PI_PART_CALIBRATE, pool, &above, 1, &g, &e), e);
    OK(g.recall < f[2].recall);
    PASSES(pi_calibrate_row(&net, s, pool, 0.95, row, &e), e);
    PASSES(pi_calibrate_count(&net, s, PI_PART_CALIBRATE, pool, row, PI_CURVE_POINTS, f, &e), e);
    OK(f[0].recall >= 0.95 + PI_MARGIN + f[0].error &&
       f[0].recall <= 0.95 + PI_MARGIN + 4 * f[0].error + 1e-3);
    for (int k = 1; k < PI_CURVE_POINTS; k++)
        OK(row[k] <= row[k - 1] && 1 - f[k].recall <= (1 - f[k - 1].recall) * 0.86 + 1e-4);
    pi_net_free(&net);
    pi_svd_free(&v);
}

static double damage_by_hand(const struct layer *l, const struct pi_trainset *s,
                             const struct pi_net *net, const struct pi_damage *m, float threshold,
                             struct pi_pool *pool)
{
    double sum = 0;

    for (uint32_t t = 0; t < m->n; t++) {
        const float *x = s->x + m->sample[t] * D;
        double whole[D], lost[D] = {0}, a = 0, b = 0;
        float hidden[D], z[N_FF];

        pi_net_score(net, pool, x, 1, hidden, z, N_FF);
        for (int k = 0; k < D; k++)
            whole[k] = (double)x[k]; /* the test's residual is the input */
        for (int i = 0; i < N_FF; i++) {
            double h = (double)l->bias[i], u = 0;

            for (int k = 0; k < D; k++) {
                h += (double)l->gate[i * D + k] * (double)x[k];
                u += (double)l->up[i * D + k] * (double)x[k];
            }
            for (int k = 0; h > 0 && k < D; k++) {
                whole[k] += h * u * (double)l->down_t[i * D + k];
                lost[k] += z[i] < threshold ? h * u * (double)l->down_t[i * D + k] : 0;
            }
        }
        for (int k = 0; k < D; k++) {
            a += whole[k] * whole[k];
            b += lost[k] * lost[k];
        }
        sum += b / a / m->n;
    }
    return sum;
}

static void test_damage(const struct layer *l, const struct pi_trainset *s, struct pi_pool *pool)
{
    const double recall[3] = {0.5, 0.9, 0.99};
    float t[4];
    double got[4];
    struct pi_svd v = {0};
    struct pi_net net = {0};
    struct pi_damage m = {0};

    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &v, &e), e);
    PASSES(pi_svd_net(&v, 2, false, &net, &e), e);
    PASSES(pi_calibrate_thresholds(&net, s, PI_PART_CALIBRATE, pool, recall, 3, t, &e), e);
    t[3] = -FLT_MAX / 2;
    PASSES(pi_damage_make(s, &l->block, pool, &m, &e), e);
    PASSES(pi_damage_measure(&m, &net, s, pool, t, 4, got, &e), e);
    for (int k = 0; k < 3; k++)
        NEAR(got[k] / damage_by_hand(l, s, &net, &m, t[k], pool), 1, 1e-3);
    OK(got[0] > got[1] && got[1] > got[2] && got[2] > 0 && got[3] == 0);
    pi_damage_free(&m);
    pi_net_free(&net);
    pi_svd_free(&v);
}

/* Two layers; bytes rise by 1 a point, damage falls by different steps. */
static void test_choose(void)
{
    static struct pi_curve a, b, none;
    const struct pi_curve *all[3] = {&a, &b, &none};
    uint32_t c[3];

    for (uint32_t k = 0; k < 4; k++) {
        a.point[k] = (struct pi_point){.bytes = 10 + k, .damage = 8 - 2.0 * k, .allowed = true};
        b.point[k] = (struct pi_point){.bytes = 10 + k, .damage = 4 - 1.0 * k, .allowed = k > 0};
    }
    a.n = b.n = 4;
    a.exact_bytes = 100;
    b.exact_bytes = 11.5; /* its points 2 and 3 cost more than exact */
    none.exact_bytes = 50;
    pi_choose(all, 3, 1e9, c);
    EQ(c[0], 0);
    EQ(c[1], 1);                /* point 0 does not reach the recall */
    EQ(c[2], 0);                /* no points: exact */
    pi_choose(all, 3, 10.9, c); /* 8 + 3 = 11 is too much; b goes exact: 3 for half a byte */
    EQ(c[0], 0);
    EQ(c[1], 4);
    pi_choose(all, 3, 2.5, c); /* a: steps of 2 for 1 byte */
    EQ(c[0], 3);
    EQ(c[1], 4);
    pi_choose(all, 3, 0, c);
    EQ(c[0], 4);
    EQ(c[1], 4);
}

/* ---- a whole layer ---- */

static void test_layer(const struct layer *l, const struct pi_trainset *s)
{
    struct pi_trained_layer a = {0}, b = {0};
    const struct pi_point *p = &a.curve.point[0];

    PASSES(train(l, s, 1, &a), e);
    printf("# width %u, recall %.4f, precision %.4f, density %.4f of %.4f\n", a.width,
           p->on_test.recall, p->on_test.precision, p->on_test.density, p->on_test.active);
    OK(a.width >= 8 && a.width <= 16); /* the rank is 4, widths are multiples of 8 */
    OK(p->on_test.recall >= 0.94 && p->on_test.recall <= 1.0);
    OK(p->on_test.precision > 0.75);
    OK(p->bytes < a.curve.exact_bytes);
    EQ(a.fc1.type, PI_TYPE_F16);
    EQ(a.fc2.n_rows, N_FF);
    PASSES(train(l, s, 3, &b), e);
    EQ(a.width, b.width);
    EQ(memcmp(a.fc1.data, b.fc1.data, a.fc1.row_bytes * a.width), 0);
    EQ(memcmp(a.fc2.data, b.fc2.data, a.fc2.row_bytes * N_FF), 0);
    EQ(memcmp(a.bias, b.bias, N_FF * sizeof(float)), 0);
    EQ(memcmp(&a.curve.point, &b.curve.point, sizeof(a.curve.point)), 0);
    pi_trained_layer_free(&a);
    pi_trained_layer_free(&b);
}

/* Training must beat where it starts: the same width, fewer predicted at the same recall. */
static void test_fit_improves(const struct layer *l, const struct pi_trainset *s,
                              struct pi_pool *pool)
{
    const struct pi_fit_options o = {.steps = 80, .batch = 512, .seed = 1};
    const double recall = 0.95;
    struct pi_svd v = {0};
    struct pi_net net = {0};
    struct pi_labels labels = {0};
    struct pi_found before, after;
    float t;

    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &v, &e), e);
    PASSES(pi_svd_net(&v, 3, false, &net, &e), e); /* one component short */
    PASSES(pi_labels_make(s, NULL, NULL, pool, &labels, &e), e);
    PASSES(pi_calibrate_thresholds(&net, s, PI_PART_TEST, pool, &recall, 1, &t, &e), e);
    PASSES(pi_calibrate_count(&net, s, PI_PART_TEST, pool, &t, 1, &before, &e), e);
    PASSES(pi_fit(&net, s, &labels, pool, &o, &e), e);
    PASSES(pi_calibrate_thresholds(&net, s, PI_PART_TEST, pool, &recall, 1, &t, &e), e);
    PASSES(pi_calibrate_count(&net, s, PI_PART_TEST, pool, &t, 1, &after, &e), e);
    printf("# density %.4f before, %.4f after\n", before.density, after.density);
    OK(after.density < before.density);
    pi_labels_free(&labels);
    pi_net_free(&net);
    pi_svd_free(&v);
}

static void test_too_few(void)
{
    struct pi_trainset s = {0};
    float *x = calloc(50, sizeof(float));
    uint8_t *mask = calloc(50, 1);
    int64_t position[50];

    for (int i = 0; i < 50; i++)
        position[i] = i;
    FAILS(pi_trainset_make(x, mask, position, 50, 1, 8, &s, &e), PI_E_RANGE, "too few", e);
}

int main(void)
{
    static struct layer l;
    struct pi_trainset s = {0};
    struct pi_pool *pool = NULL;

    PASSES(pi_blas_init(&e), e);
    PASSES(pi_pool_create(2, &pool, &e), e);
    make_layer(&l);
    make_set(&l, N, &s);
    test_split(&s);
    test_select();
    test_place();
    test_gradient();
    test_svd(&l, &s, pool);
    test_look_ahead(&l, &s, pool);
    test_calibrate(&l, &s, pool);
    test_damage(&l, &s, pool);
    test_choose();
    test_layer(&l, &s);
    test_fit_improves(&l, &s, pool);
    test_too_few();
    pi_trainset_free(&s);
    pi_pool_destroy(pool);
    return DONE();
}
