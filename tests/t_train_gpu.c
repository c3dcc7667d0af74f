/* t_train_gpu.c - training on a GPU against training on the CPU. */
#include "config.h"

#include "profiler/pi_damage.h"
#include "profiler/pi_fit.h"
#include "runtime/pi_gpu.h"
#include "tests/train_rig.h"

static double worst(const float *a, const float *b, size_t n)
{
    double most = 0, diff = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);

        most = fmax(most, fabs((double)b[i]));
        diff = d > diff || isnan(d) ? d : diff;
    }
    return diff / most;
}

/* A decomposition gives the same matrix for each rank, whatever the signs of its vectors; a net the same scores. */
static void gpu_start(const struct layer *l, struct pi_trainset *s, struct pi_gpu_fit *gpu,
                      struct pi_pool *pool)
{
    static float z[2][100 * N_FF], hidden[100 * D];
    struct pi_svd v[2] = {{0}, {0}};
    struct pi_net net[2] = {{0}, {0}};
    uint32_t rows[100];

    for (int k = 0; k < 2; k++) {
        PASSES(pi_trainset_use_gpu(s, k == 0 ? NULL : gpu, &e), e);
        PASSES(pi_svd_make(s, l->gate, l->bias, pool, &v[k], &e), e);
        PASSES(pi_svd_net(&v[k], 3, false, &net[k], &e), e);
        pi_net_score(&net[k], pool, s->x, 100, hidden, z[k], N_FF);
    }
    NEAR(worst(v[1].value, v[0].value, D), 0, 1e-5);
    NEAR(worst(z[1], z[0], 100 * N_FF), 0, 1e-4);
    for (int relu = 0; relu < 2; relu++) {
        struct pi_gpu_net on_gpu = pi_net_for_gpu(&net[1]);

        net[1].relu = on_gpu.relu = relu;
        for (uint32_t i = 0; i < 100; i++)
            rows[i] = 17 * i % s->n;
        for (uint32_t i = 0; i < 100; i++)
            pi_net_score(&net[1], pool, s->x + (size_t)rows[i] * D, 1, hidden, z[0] + i * N_FF,
                         N_FF);
        PASSES(pi_gpu_fit_net(gpu, &on_gpu, &e), e);
        PASSES(pi_gpu_fit_score(gpu, rows, 100, z[1], &e), e);
        NEAR(worst(z[1], z[0], 100 * N_FF), 0, 1e-5);
    }
    for (int k = 0; k < 2; k++) {
        pi_svd_free(&v[k]);
        pi_net_free(&net[k]);
    }
}

/* Few steps from one start: the same weights but for rounding. Again: the same bytes. */
static void gpu_steps(const struct layer *l, struct pi_trainset *s, struct pi_gpu_fit *gpu,
                      struct pi_pool *pool, bool relu)
{
    const struct pi_fit_options o = {.steps = 6, .batch = 600, .seed = 5};
    struct pi_svd v = {0};
    struct pi_net net[3] = {{0}, {0}, {0}};
    struct pi_damage m = {0};
    struct pi_labels labels = {0};
    const uint32_t r = 8;

    PASSES(pi_trainset_use_gpu(s, NULL, &e), e);
    PASSES(pi_svd_make(s, l->gate, l->bias, pool, &v, &e), e);
    PASSES(pi_damage_make(s, &l->block, pool, &m, &e), e);
    PASSES(pi_labels_make(s, &l->block, &m, pool, &labels, &e), e);
    for (int k = 0; k < 3; k++) {
        PASSES(pi_trainset_use_gpu(s, k == 0 ? NULL : gpu, &e), e);
        PASSES(pi_svd_net(&v, r, relu, &net[k], &e), e);
        PASSES(pi_fit(&net[k], s, &labels, pool, &o, &e), e);
    }
    NEAR(worst(net[1].fc1, net[0].fc1, r * D), 0, 2e-3);
    NEAR(worst(net[1].fc2, net[0].fc2, r * N_FF), 0, 2e-3);
    NEAR(worst(net[1].bias, net[0].bias, (N_FF + 7) / 8 * 8), 0, 2e-3);
    EQ(memcmp(net[1].fc1, net[2].fc1, sizeof(float) * r * D), 0);
    EQ(memcmp(net[1].fc2, net[2].fc2, sizeof(float) * r * N_FF), 0);
    EQ(memcmp(net[1].bias, net[2].bias, sizeof(float) * N_FF), 0);
    for (int k = 0; k < 3; k++)
        pi_net_free(&net[k]);
    pi_labels_free(&labels);
    pi_damage_free(&m);
    pi_svd_free(&v);
}

/* A whole layer: the same width, recall within half a percent. */
static void gpu_layer(const struct layer *l, struct pi_trainset *s, struct pi_gpu_fit *gpu)
{
    struct pi_trained_layer a[2] = {{0}, {0}};

    for (int k = 0; k < 2; k++) {
        PASSES(pi_trainset_use_gpu(s, k == 0 ? NULL : gpu, &e), e);
        PASSES(train(l, s, 2, &a[k]), e);
    }
    EQ(a[0].width, a[1].width);
    EQ(a[0].curve.n, a[1].curve.n);
    for (uint32_t k = 0; k < a[0].curve.n && k < a[1].curve.n; k += 6) {
        const struct pi_point *p = &a[0].curve.point[k], *q = &a[1].curve.point[k];

        NEAR(p->on_test.recall, q->on_test.recall, 0.005);
        NEAR(p->on_test.density, q->on_test.density, 0.005);
        NEAR(p->damage, q->damage, 0.1 * p->damage + 1e-6);
    }
    pi_trained_layer_free(&a[0]);
    pi_trained_layer_free(&a[1]);
}

/* What the predictor sees is not what the block sees. */
static void gpu_look_ahead(const struct layer *l, struct pi_trainset *s, struct pi_gpu_fit *gpu,
                           struct pi_pool *pool)
{
    struct pi_svd v[2] = {{0}, {0}};
    float *own = s->x;

    s->block_x = own;
    s->x = malloc(sizeof(float) * s->n * D);
    for (size_t i = 0; i < (size_t)s->n * D; i++)
        s->x[i] = own[i] + 0.3f * normal();
    for (int k = 0; k < 2; k++) {
        PASSES(pi_trainset_use_gpu(s, k == 0 ? NULL : gpu, &e), e);
        PASSES(pi_svd_make(s, l->gate, l->bias, pool, &v[k], &e), e);
    }
    NEAR(worst(v[1].value, v[0].value, D), 0, 1e-4);
    NEAR(worst(v[1].rest, v[0].rest, N_FF), 0, 1e-3);
    free(s->x);
    s->x = own;
    s->block_x = NULL;
    pi_svd_free(&v[0]);
    pi_svd_free(&v[1]);
}

static void test_gpu(const struct layer *l, struct pi_trainset *s, struct pi_pool *pool)
{
    struct pi_gpu_fit *gpu = NULL;

    if (pi_gpu_count() == 0) {
        FAILS(pi_gpu_fit_create(0, &gpu, &e), PI_E_NODEV, "", e);
        OK(getenv("PI_REQUIRE_GPU") == NULL);
        return;
    }
    PASSES(pi_gpu_fit_create(0, &gpu, &e), e);
    gpu_start(l, s, gpu, pool);
    gpu_steps(l, s, gpu, pool, false);
    gpu_steps(l, s, gpu, pool, true);
    gpu_look_ahead(l, s, gpu, pool);
    gpu_layer(l, s, gpu);
    s->gpu = NULL;
    pi_gpu_fit_destroy(gpu);
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
    test_gpu(&l, &s, pool);
    pi_trainset_free(&s);
    pi_pool_destroy(pool);
    return DONE();
}
