/* Placements fitted to runs: cut and grown within the budget, never past it. */
#include "config.h"

#include "common/pi_estimate.h"
#include "runtime/pi_place_fit.h"
#include "tests/tap.h"
#include "tests/tiny_model.h"

#define LAYERS 3
#define FF     200
#define CTX    64
#define CUDA   100000 /* bytes of a made-up context */

static struct pi_model m;

static void place(struct pi_placement *p, uint32_t n_hot, uint32_t n_ctx)
{
    struct pi_err e = {0};

    PASSES(pi_placement_cpu(LAYERS, FF, p, &e), e);
    p->n_units = 2;
    p->n_ctx = n_ctx;
    p->n_seq = 1;
    p->n_batch = 8;
    for (uint32_t l = 0; l < LAYERS; l++) {
        p->layers[l].n_hot = l == 2 ? 0 : n_hot << l;
        p->layers[l].hot_unit = p->layers[l].attn_unit = 1;
        p->layers[l].mode_cpu = p->layers[l].mode_gpu = PI_MODE_EXACT;
    }
}

static uint64_t total(const struct pi_placement *p, uint32_t n_ctx, uint64_t context)
{
    const struct pi_run_size run = {n_ctx, 1, 8, PI_TYPE_F16};
    struct pi_model_bytes b = {0};
    struct pi_gpu_budget g = {0};
    struct pi_err e = {0};

    PASSES(pi_estimate_model(&m.file, &m.shape, NULL, &run, &b, &e), e);
    PASSES(pi_estimate_gpu(&b, p, 1, context, &g, &e), e);
    pi_model_bytes_free(&b);
    return g.total;
}

static enum pi_code fit(struct pi_placement *p, uint64_t budget, uint64_t context, uint32_t n_ctx,
                        struct pi_err *e)
{
    return pi_place_fit(p, &m, NULL, budget, context, n_ctx, PI_TYPE_F16, e);
}

static void test_keep(void)
{
    struct pi_placement p = {0};
    struct pi_err e = {0};

    place(&p, 40, CTX);
    PASSES(fit(&p, total(&p, CTX, CUDA), CUDA, CTX, &e), e);
    EQ(p.layers[0].n_hot, 40);
    EQ(p.layers[1].n_hot, 80);
    pi_placement_free(&p);
}

static void test_cut(void)
{
    struct pi_placement p = {0};
    struct pi_err e = {0};
    uint64_t full, least;

    place(&p, 0, CTX);
    least = total(&p, CTX, CUDA);
    pi_placement_free(&p);
    place(&p, 80, CTX);
    full = total(&p, CTX, CUDA);
    PASSES(fit(&p, (full + least) / 2, CUDA, CTX, &e), e);
    OK(total(&p, CTX, CUDA) <= (full + least) / 2);
    OK(p.layers[0].n_hot > 35 && p.layers[0].n_hot <= 42); /* half, of both alike */
    OK(p.layers[1].n_hot / 2 == p.layers[0].n_hot ||
       (p.layers[1].n_hot + 1) / 2 == p.layers[0].n_hot);
    EQ(p.budget, (full + least) / 2);
    /* a context larger than planned, the budget the same */
    PASSES(fit(&p, p.budget, CUDA + 5000, CTX, &e), e);
    OK(total(&p, CTX, CUDA + 5000) <= p.budget && p.layers[0].n_hot < 40);
    PASSES(fit(&p, least, CUDA, CTX, &e), e);
    EQ(p.layers[0].n_hot + p.layers[1].n_hot, 0);
    FAILS(fit(&p, least - 1024, CUDA, CTX, &e), PI_E_INFEASIBLE, "alone need", e);
    pi_placement_free(&p);
}

static void test_grow(void)
{
    struct pi_placement p = {0};
    struct pi_err e = {0};
    uint64_t budget;

    place(&p, 20, 20 * CTX);
    budget = total(&p, 20 * CTX, CUDA);
    PASSES(fit(&p, budget, 0, CTX, &e), e);
    EQ(p.layers[0].n_hot, 20); /* not on a GPU: as it was made */
    PASSES(fit(&p, budget, CUDA, CTX, &e), e);
    OK(p.layers[0].n_hot > 20 && p.layers[1].n_hot > 40);
    EQ(p.layers[2].n_hot, 0);
    OK(total(&p, CTX, CUDA) <= budget);
    PASSES(fit(&p, 10 * budget, CUDA, CTX, &e), e);
    EQ(p.layers[0].n_hot + p.layers[1].n_hot, 2 * FF);
    EQ(p.layers[2].n_hot, 0);
    pi_placement_free(&p);
}

int main(void)
{
    struct tiny t = {.arch = PI_ARCH_LLAMA,
                     .n_layer = LAYERS,
                     .n_embd = 64,
                     .n_ff = FF,
                     .n_head = 4,
                     .n_head_kv = 4,
                     .head_dim = 16,
                     .n_vocab = 96,
                     .n_ctx = 2048,
                     .type = PI_TYPE_F16,
                     .down_t = true,
                     .seed = 3};
    const char *path = tiny_path("m.gguf");
    const struct pi_model_options mo = {.accept_edited = true};
    struct pi_err e = {0};

    tiny_write(&t, path);
    PASSES(pi_model_open(path, &mo, &m, &e), e);
    test_keep();
    test_cut();
    test_grow();
    pi_model_close(&m);
    return DONE();
}
