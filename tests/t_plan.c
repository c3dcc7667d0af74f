/*
 * Plans for a small model with two sizes of neurons: budgets are kept to the byte, the latency program finds what trying
 * everything finds, the paper's too, and what cannot be done is refused with what can.
 */
#include "config.h"

#include "solver/pi_cost.h"
#include "solver/pi_plan.h"
#include "tests/tap.h"
#include "tests/tiny_model.h"

#include <math.h>

#define N_LAYER 3
#define N_FF    150

struct world {
    struct pi_gguf model;
    struct pi_shape shape;
    struct pi_lineage lineage;
    struct pi_profile counts, sampled; /* without and with samples */
    struct pi_predictor pred;
    struct pi_hardware hw;
    struct pi_run_size run;
    struct pi_err e;
};

#define MUST(call)                              \
    do {                                        \
        if ((call) != PI_OK) {                  \
            printf("Bail out! %s\n", w->e.msg); \
            exit(1);                            \
        }                                       \
    } while (0)

static uint32_t g_seed = 1;

static uint32_t draw(uint32_t n)
{
    g_seed = g_seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)g_seed * n >> 32);
}

static void make_profiles(struct world *w, const char *a, const char *b)
{
    enum {
        SAMPLES = 60,
        MASK = (N_FF + 7) / 8
    };
    static uint64_t count[N_LAYER * N_FF];
    static float contribution[N_LAYER * N_FF];
    static int64_t position[SAMPLES];
    static uint8_t mask[N_LAYER * SAMPLES * MASK];
    static uint16_t residual[N_LAYER * SAMPLES * 32];
    struct pi_profile p = {
        .n_layer = N_LAYER, .n_ff = N_FF, .n_embd = 32, .n_tokens = 1000, .count = count};
    struct pi_profile_samples_in in = {residual, mask, NULL};

    p.contribution = contribution;
    p.lineage = w->lineage;
    for (uint32_t i = 0; i < N_LAYER * N_FF; i++) {
        double rate = 0.9 * pow(1.0 + (double)draw(N_FF), -0.5 - 0.2 * (i / N_FF));

        count[i] = (uint64_t)(1000.0 * rate);
        for (uint32_t s = 0; s < SAMPLES; s++)
            if (draw(1000) < count[i])
                mask[(i / N_FF * SAMPLES + s) * MASK + i % N_FF / 8] |=
                    (uint8_t)(1u << i % N_FF % 8);
    }
    MUST(pi_profile_save(a, &p, NULL, 100, "none", &w->e));
    p.n_samples = SAMPLES;
    p.position = position;
    for (int s = 0; s < SAMPLES; s++)
        position[s] = s;
    MUST(pi_profile_save(b, &p, &in, 100, "none", &w->e));
    MUST(pi_profile_load(a, &w->counts, &w->e));
    MUST(pi_profile_load(b, &w->sampled, &w->e));
}

/* A predictor for layers 0 and 2 of width 2 and 3; what it holds does not matter here. */
static void make_predictor(struct world *w, const char *path)
{
    static float zeros[N_FF * 32];
    struct pi_predictor_layer layers[N_LAYER] = {{0}};
    struct pi_predictor p = {.n_layer = N_LAYER, .n_ff = N_FF, .n_embd = 32, .layers = layers};

    p.lineage = w->lineage;
    for (uint32_t l = 0; l < N_LAYER; l += 2) {
        uint32_t r = 2 + l / 2;

        layers[l].width = r;
        layers[l].recall = 0.95F;
        layers[l].density = 0.3F;
        layers[l].fc1 = (struct pi_mat){PI_TYPE_F32, r, 32, 32 * 4, zeros};
        layers[l].fc2 = (struct pi_mat){PI_TYPE_F32, N_FF, r, r * 4, zeros};
    }
    MUST(pi_predictor_save(path, &p, &w->e));
    MUST(pi_predictor_load(path, &w->pred, &w->e));
}

static void make_world(struct world *w)
{
    struct tiny t = {.arch = PI_ARCH_LLAMA,
                     .n_layer = N_LAYER,
                     .n_embd = 32,
                     .n_ff = N_FF,
                     .n_head = 2,
                     .n_head_kv = 2,
                     .head_dim = 16,
                     .n_vocab = 96,
                     .n_ctx = 64,
                     .type = PI_TYPE_F16,
                     .down_t = true,
                     .seed = 5};
    const char *path = tiny_path("m.gguf"), *a = tiny_path("a.gguf"), *b = tiny_path("b.gguf"),
               *c = tiny_path("c.gguf");

    memset(w, 0, sizeof(*w));
    tiny_write(&t, path);
    MUST(pi_gguf_open(path, 0, &w->model, &w->e));
    MUST(pi_shape_read(&w->model, NULL, &w->shape, &w->e));
    MUST(pi_model_lineage(&w->model, &w->lineage, &w->e));
    make_profiles(w, a, b);
    make_predictor(w, c);
    /* slow enough that what is small beside a real model's bytes is small beside this one's */
    w->hw.cpu = (struct pi_hw_cpu){"cpu", 4, 1e7};
    w->hw.n_gpus = 1;
    w->hw.gpus[0] = (struct pi_hw_gpu){"gpu", 1e9, 20e7, 1e7, 0.6e-4, 5000, 1e-5};
    w->run = (struct pi_run_size){64, 1, 8, PI_TYPE_F16};
}

static struct pi_plan_input input(const struct world *w, uint64_t budget, enum pi_objective o,
                                  bool predictor)
{
    return (struct pi_plan_input){.model = &w->model,
                                  .shape = &w->shape,
                                  .profile = &w->counts,
                                  .hw = &w->hw,
                                  .predictor = predictor ? &w->pred : NULL,
                                  .budget = budget,
                                  .run = w->run,
                                  .objective = o,
                                  .mode = PI_MODE_PREDICTED};
}

/* The smallest budget that the refusal names, in bytes. */
static uint64_t smallest(struct world *w, uint64_t budget, uint32_t n_batch)
{
    struct pi_plan_input in = input(w, budget, PI_OBJECTIVE_PAPER, false);
    struct pi_plan p = {0};
    const char *at;

    in.run.n_batch = n_batch;
    FAILS(pi_plan_make(&in, &p, &w->e), PI_E_INFEASIBLE, "smallest that works is --vram-budget ",
          w->e);
    OK(strstr(w->e.msg, "profile") == NULL);
    at = strstr(w->e.msg, "--vram-budget ");
    return at != NULL ? strtoull(at + strlen("--vram-budget "), NULL, 10) * 1024 : 0;
}

static void test_refusals(struct world *w, uint64_t least)
{
    struct pi_plan_input in = input(w, least, PI_OBJECTIVE_PAPER, false);
    struct pi_hardware none = w->hw;
    struct pi_plan p = {0};

    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    OK(p.vram_bytes <= least && p.optimal);
    pi_plan_free(&p);
    in.budget = least - 1024;
    FAILS(pi_plan_make(&in, &p, &w->e), PI_E_INFEASIBLE, "0G is for the CPU alone", w->e);
    in.budget = least + 20000;
    in.profile = NULL;
    FAILS(pi_plan_make(&in, &p, &w->e), PI_E_MISMATCH, "pi-profile", w->e);
    in.profile = &w->counts;
    none.n_gpus = 0;
    in.hw = &none;
    FAILS(pi_plan_make(&in, &p, &w->e), PI_E_NODEV, "--hardware", w->e);
    in.budget = 0;
    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    OK(p.vram_bytes == 0 && p.place.n_units == 1 && p.placed >= p.cpu && p.placed <= p.cpu);
    pi_plan_free(&p);
}

/* The smallest budget named works where the chunk is ours to choose too: a context so large that a sixteenth of the budget would
 * hold longer chunks than what is left beside it. */
static void test_smallest(struct world *w)
{
    double context = w->hw.gpus[0].context_bytes;
    struct pi_plan p = {0};

    for (int size = 0; size < 4; size++) {
        uint64_t far, near;

        w->hw.gpus[0].context_bytes = pow(10.0, 3 + size);
        far = smallest(w, 512, 0);
        near = smallest(w, far - 1024, 0);
        EQ(near, far);
        for (uint64_t more = 0; more < 80000; more += 7 * 1024) {
            struct pi_plan_input in = input(w, far + more, PI_OBJECTIVE_PAPER, false);

            in.run.n_batch = 0;
            PASSES(pi_plan_make(&in, &p, &w->e), w->e);
            OK(p.vram_bytes <= far + more);
            pi_plan_free(&p);
        }
    }
    w->hw.gpus[0].context_bytes = context;
}

/* Where a split needs a profile, the smallest budget does, and says so. */
static void test_smallest_no_profile(struct world *w)
{
    struct pi_plan_input in = input(w, 1024, PI_OBJECTIVE_PAPER, false);
    struct pi_plan p = {0};

    in.profile = NULL;
    FAILS(pi_plan_make(&in, &p, &w->e), PI_E_INFEASIBLE, "with a profile", w->e);
}

/* A GPU that is slower than the CPU gets nothing, and the summary does not say that nothing fits. */
static void test_slow_gpu(struct world *w, uint64_t least)
{
    struct pi_hardware slow = w->hw;
    struct pi_plan_input in = input(w, least + 40000, PI_OBJECTIVE_LATENCY, false);
    struct pi_plan p = {0};
    char text[1024] = "";
    FILE *f = tmpfile();

    slow.gpus[0].bandwidth = 1e4;
    (void)memset(slow.cpu.name, 'n', sizeof(slow.cpu.name) - 1);
    in.hw = &slow;
    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    EQ(p.vram_bytes, 0);
    OK(strstr(p.place.hardware, slow.cpu.name) != NULL); /* whole: no character is cut in two */
    pi_plan_summary(&p, f);
    rewind(f);
    OK(fread(text, 1, sizeof(text) - 1, f) > 0 &&
       strstr(text, "makes it faster: CPU only") != NULL);
    (void)fclose(f);
    pi_plan_free(&p);
}

static void test_all_fits(struct world *w)
{
    struct pi_plan_input in = input(w, 100 << 20, PI_OBJECTIVE_LATENCY, true);
    struct pi_plan p = {0};
    uint64_t need;

    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    OK(p.all_fits && p.optimal && p.place.embd_unit == 0 && p.place.output_unit == 1);
    NEAR(p.activations_on_gpu, 1.0, 0.0);
    NEAR(p.placed, p.gpu, 0.0);
    need = p.vram_bytes;
    pi_plan_free(&p);
    in.budget = need;
    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    OK(p.all_fits && p.vram_bytes == need);
    pi_plan_free(&p);
    in.budget = need - 1;
    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    OK(p.vram_bytes < need);
    for (int l = 0; l < N_LAYER; l++) /* all of it, then without the predictors; or a part */
        OK(!p.all_fits || p.place.layers[l].mode_gpu == PI_MODE_EXACT);
    pi_plan_free(&p);
    in.budget = (uint64_t)2e9;
    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    OK(p.above_memory && p.limit == (uint64_t)1e9);
    pi_plan_free(&p);
}

/* Every budget from the least to all of it: within the budget by the estimator, sound, optimal, and never slower for more memory. */
static void test_budgets(struct world *w, uint64_t least, bool predictor)
{
    int sound = 0, n = 0;
    double last = 0.0;

    for (uint64_t budget = least; budget < least + 160000; budget += 7919, n += 2) {
        for (int o = 0; o < 2; o++) {
            struct pi_plan_input in =
                input(w, budget, o ? PI_OBJECTIVE_LATENCY : PI_OBJECTIVE_PAPER, predictor);
            struct pi_plan p = {0};
            struct pi_gpu_budget gpu = {0};
            bool ok = pi_plan_make(&in, &p, &w->e) == PI_OK && p.optimal &&
                      pi_placement_check(&p.place, &w->e) == PI_OK &&
                      pi_estimate_gpu(&p.bytes, &p.place, 1, 5000, &gpu, &w->e) == PI_OK;

            ok = ok && gpu.total == p.vram_bytes && gpu.total <= budget;
            if (ok && o == 1) {
                ok = p.placed >= last * (1.0 - 1e-12) && p.placed >= p.cpu * (1.0 - 1e-12);
                last = p.placed;
            }
            if (!ok)
                printf("# budget %llu, objective %d: %s\n", (unsigned long long)budget, o,
                       w->e.msg);
            sound += ok;
            pi_plan_free(&p);
        }
    }
    EQ(sound, n);
}

/* ---- trying everything */

struct trial {
    const struct pi_cost *cost;
    struct pi_placement *p;
    uint64_t left_limit; /* budget less context */
    double best;
    const struct pi_model_bytes *bytes;
};

static void try_layer(struct trial *t, uint32_t l, struct pi_err *e)
{
    uint64_t bytes = 0;

    if (l == N_LAYER) {
        for (uint8_t out = 0; out < 2; out++) {
            t->p->output_unit = out;
            if (pi_estimate_unit(t->bytes, t->p, 1, &bytes, e) == PI_OK && bytes <= t->left_limit)
                t->best = fmin(t->best, pi_cost_token(t->cost, PI_DRAWS_PLAN, t->p));
        }
        return;
    }
    for (uint32_t cut = 0; cut < t->cost->n_cuts; cut++) {
        for (int m = 0; m < 9 * 2; m++) {
            struct pi_place_layer *y = &t->p->layers[l];

            y->n_hot = pi_cost_cut(t->cost, cut);
            y->hot_unit = 1;
            y->attn_unit = m % 2 == 1;
            y->mode_cpu = (enum pi_mode)(m / 2 % 3);
            y->mode_gpu = (enum pi_mode)(m / 6);
            if (y->mode_cpu != PI_MODE_DENSE && y->mode_gpu != PI_MODE_DENSE &&
                pi_cost_has_mode(t->cost, l, y->mode_cpu) &&
                pi_cost_has_mode(t->cost, l, y->mode_gpu))
                try_layer(t, l + 1, e);
        }
    }
}

static void test_everything(struct world *w, uint64_t least, const struct pi_profile *prof)
{
    for (uint64_t more = 3000; more < 60000; more += 19000) {
        struct pi_plan_input in = input(w, least + more, PI_OBJECTIVE_LATENCY, true);
        struct pi_plan p = {0};
        struct pi_cost cost = {0};
        struct pi_placement all = {0};
        struct trial t = {
            .cost = &cost, .p = &all, .left_limit = least + more - 5000, .best = (double)INFINITY};

        in.profile = prof;
        PASSES(pi_plan_make(&in, &p, &w->e), w->e);
        MUST(pi_cost_create(&p.bytes, &w->shape, prof, &w->pred, PI_MODE_PREDICTED, &w->hw.cpu,
                            &w->hw.gpus[0], &cost, &w->e));
        MUST(pi_placement_cpu(N_LAYER, N_FF, &all, &w->e));
        all.n_units = 2;
        t.bytes = &p.bytes;
        try_layer(&t, 0, &w->e);
        NEAR(1e9 * pi_cost_token(&cost, PI_DRAWS_PLAN, &p.place), 1e9 * t.best, 1e-3);
        pi_placement_free(&all);
        pi_cost_free(&cost);
        pi_plan_free(&p);
    }
}

/* More buffers than a sixteenth of the budget: shorter prompt chunks. */
static void test_batch(struct world *w, uint64_t least)
{
    struct pi_plan_input in = input(w, least, PI_OBJECTIVE_PAPER, false);
    struct pi_plan p = {0};

    in.run.n_batch = 0;
    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    EQ(p.place.n_batch, 8);
    pi_plan_free(&p);
    in.budget = 100 << 20;
    PASSES(pi_plan_make(&in, &p, &w->e), w->e);
    EQ(p.place.n_batch, 64);
    pi_plan_free(&p);
}

/* Placements for runs without predictors: no bytes for them, all of it for weights; dense ones without a profile too. */
static void test_modes(struct world *w, uint64_t least)
{
    for (int mode = PI_MODE_DENSE; mode <= PI_MODE_PREDICTED; mode++) {
        struct pi_plan_input in = input(w, least + 60000, PI_OBJECTIVE_LATENCY, true);
        struct pi_plan p = {0};
        int other = 0;

        in.mode = (enum pi_mode)mode;
        in.profile = mode == PI_MODE_DENSE ? NULL : &w->counts;
        PASSES(pi_plan_make(&in, &p, &w->e), w->e);
        OK(p.vram.weights > 0 && p.vram_bytes <= in.budget);
        EQ(p.vram.predictors > 0, mode == PI_MODE_PREDICTED);
        for (int l = 0; l < N_LAYER; l++)
            other += p.place.layers[l].mode_cpu != in.mode || p.place.layers[l].mode_gpu != in.mode;
        if (mode != PI_MODE_PREDICTED)
            EQ(other, 0);
        pi_plan_free(&p);
    }
}

/* What a budget would buy is what a plan for it brings, whatever else is asked at once. */
static void test_curve(struct world *w, uint64_t least, enum pi_objective o)
{
    const uint64_t budgets[] = {0, least / 2, least, least + 20000, least + 60000, UINT64_C(1) << 30};
    struct pi_plan_input in = input(w, 12345, o, true);
    struct pi_plan_point got[6];

    in.profile = &w->sampled;
    in.run.n_batch = 0;
    PASSES(pi_plan_curve(&in, budgets, 6, false, got, &w->e), w->e);
    for (int i = 0; i < 6; i++) {
        struct pi_plan p = {0};
        enum pi_code rc;

        in.budget = budgets[i];
        rc = pi_plan_make(&in, &p, &w->e);
        OK(got[i].budget == budgets[i] && got[i].feasible == (rc == PI_OK));
        if (rc == PI_OK) {
            OK(got[i].placed == p.placed && got[i].activations_on_gpu == p.activations_on_gpu);
            OK(got[i].vram_bytes == p.vram_bytes && got[i].all_fits == p.all_fits);
        } else {
            EQ(rc, PI_E_INFEASIBLE);
            OK(got[i].base_bytes > budgets[i]);
        }
        pi_plan_free(&p);
    }
    OK(!got[1].feasible && got[2].feasible && got[5].all_fits);
}

int main(void)
{
    struct world world, *w = &world;
    uint64_t least;

    make_world(w);
    least = smallest(w, 1024, 8);
    test_refusals(w, least);
    test_smallest(w);
    test_smallest_no_profile(w);
    test_slow_gpu(w, least);
    test_all_fits(w);
    test_budgets(w, least, false);
    test_budgets(w, least, true);
    test_everything(w, least, &w->counts);
    test_everything(w, least, &w->sampled);
    test_batch(w, least);
    test_modes(w, least);
    test_curve(w, least, PI_OBJECTIVE_PAPER);
    test_curve(w, least, PI_OBJECTIVE_LATENCY);
    pi_profile_free(&w->counts);
    pi_profile_free(&w->sampled);
    pi_predictor_free(&w->pred);
    pi_gguf_close(&w->model);
    return DONE();
}
