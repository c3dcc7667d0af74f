/* What the estimator holds device kernels to, against the kernels themselves; and what it says that an engine takes of a device, against what one
 * takes of the emulated one. */
#include "config.h"

#include "common/pi_estimate.h"
#include "runtime/cuda/pi_kernels.h"
#include "runtime/pi_gpu.h"
#include "tests/engine_rig.h"

static void test_down(void)
{
    static const uint32_t n_embd[] = {32, 384, 4096, 8192, 20000}, n_hot[] = {1, 64, 1000, 30000};
    int over = 0;

    for (int d = 0; d < 5; d++)
        for (int h = 0; h < 4; h++)
            for (uint32_t n = 1; n <= PI_K_MAX_TOKENS; n++)
                over +=
                    pi_k_down_parts(PI_K_FFN_PREDICTED, n_hot[h], n_embd[d], n) > PI_DEV_DOWN_PARTS;
    EQ(over, 0);
}

static void test_attn(void)
{
    static const uint32_t heads[][3] = {{2, 2, 16}, {32, 32, 128}, {64, 8, 128}, {71, 1, 64}};

    for (int h = 0; h < 4; h++) {
        struct pi_shape s = {
            .n_head = heads[h][0], .n_head_kv = heads[h][1], .head_dim = heads[h][2]};
        int over = 0, wide = 0;

        for (uint32_t n = 1; n <= PI_K_MAX_TOKENS; n++) {
            uint64_t is = pi_k_attn_scratch(&s, n), held = pi_dev_attn_scratch(&s, n);

            over += is > held;
            wide += held - is > 4096; /* not much more either */
        }
        EQ(over, 0);
        EQ(wide, 0);
    }
}

#define CTX   32
#define BATCH 16

static uint64_t free_bytes(void)
{
    struct pi_gpu_info info = {0};
    struct pi_err e = {0};

    PASSES(pi_gpu_describe(0, &info, &e), e);
    return info.free_bytes;
}

static struct pi_gpu_budget estimated(const struct rig *r, bool predicted)
{
    const struct pi_run_size run = {CTX, 1, BATCH, PI_TYPE_F32};
    struct pi_model_bytes b = {0};
    struct pi_gpu_budget g = {0};
    struct pi_err e = {0};

    PASSES(pi_estimate_model(&r->m.file, &r->m.shape, predicted ? &r->pred : NULL, &run, &b, &e),
           e);
    PASSES(pi_estimate_gpu(&b, &r->place, 1, 0, &g, &e), e);
    pi_model_bytes_free(&b);
    return g;
}

/* hot neurons, attention's unit of even and odd layers. */
static const struct {
    uint32_t n_hot;
    uint8_t even, odd, output;
} splits[] = {{999, 1, 1, 1}, {41, 1, 1, 1}, {0, 1, 1, 0}, {41, 0, 1, 1}, {30, 0, 0, 0}};

/* Never more than estimated, nor, graphs and what small models do not fill aside, much less. */
static void check_engine(struct rig *r, size_t i, enum pi_mode mode)
{
    const struct pi_engine_options o = {.kv_type = PI_TYPE_F32,
                                        .n_ctx = CTX,
                                        .n_batch = BATCH,
                                        .on_gpu = true,
                                        .gpu_handover = i == 1 ? PI_HANDOVER_AUTO /* a trial */
                                                               : PI_HANDOVER_SPIN,
                                        .mode = mode,
                                        .force_predicted = true};
    uint64_t before, taken, weights;
    struct pi_gpu_budget g;
    struct pi_engine *e;

    for (uint32_t l = 0; l < r->t.n_layer; l++) {
        r->layers[l].n_hot = splits[i].n_hot < r->t.n_ff ? splits[i].n_hot : r->t.n_ff;
        r->layers[l].attn_unit = l & 1 ? splits[i].odd : splits[i].even;
    }
    r->place.output_unit = splits[i].output;
    g = estimated(r, mode == PI_MODE_PREDICTED);
    before = free_bytes();
    e = engine(r, &o);
    taken = before - free_bytes();
    weights = g.weights + g.predictors + g.kv + g.tables;
    printf("# %s, split %zu: %llu of %llu bytes\n", pi_mode_name(mode), i,
           (unsigned long long)taken, (unsigned long long)(g.total - g.graphs));
    OK(taken <= g.total - g.graphs);
    OK(taken >= weights + g.activations / 3);
    pi_engine_destroy(e);
}

static void test_engine(const struct tiny *t)
{
    struct rig r;
    uint64_t copied;

    rig_open(&r, t, 1);
    oracle(&r, 0.1f);
    PASSES(pi_model_transpose_down(&r.m, &copied, &r.e), r.e);
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++)
        for (int mode = PI_MODE_DENSE; mode <= PI_MODE_PREDICTED; mode++)
            check_engine(&r, i, (enum pi_mode)mode);
    rig_close(&r);
}

int main(void)
{
    struct tiny q8 = llama;

    q8.type = PI_TYPE_Q8_0;

    test_down();
    test_attn();
    test_engine(&llama);
    test_engine(&opt);
    test_engine(&q8);
    return DONE();
}
