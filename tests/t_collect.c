/* t_collect.c - counts and samples against the model computed by hand, merging, the report's figures. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_census.h"
#include "profiler/pi_collect.h"
#include "profiler/pi_merge.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_gpu.h"
#include "tests/tap.h"
#include "tests/tiny_model.h"

#define N_TOKENS 900
#define WINDOW   32

static struct pi_err e;
static const struct tiny tiny = {.arch = PI_ARCH_LLAMA,
                                 .n_layer = 3,
                                 .n_embd = 64,
                                 .n_ff = 100, /* masks end within a byte */
                                 .n_head = 4,
                                 .n_head_kv = 4,
                                 .head_dim = 16,
                                 .n_vocab = 96,
                                 .n_ctx = 64,
                                 .type = PI_TYPE_F32,
                                 .down_t = true,
                                 .seed = 5};

static int32_t ids[N_TOKENS];
static struct pi_window win[N_TOKENS / WINDOW + 2];

/* Whole windows and a short one. */
static struct pi_windows windows(void)
{
    struct pi_windows w = {.tokens = {.ids = ids, .n = N_TOKENS}, .w = win};

    for (size_t i = 0; i < N_TOKENS; i++)
        ids[i] = (int32_t)((i * 7919 + i * i * 31) % tiny.n_vocab);
    for (size_t at = 0; at < N_TOKENS; at += WINDOW) {
        const uint32_t n = N_TOKENS - at < WINDOW ? (uint32_t)(N_TOKENS - at) : WINDOW;

        win[w.n++] = (struct pi_window){.begin = at, .n = n, .n_scored = n};
    }
    return w;
}

static void collect(struct pi_model *m, uint32_t threads, uint64_t n_samples,
                    struct pi_collected *out)
{
    const struct pi_windows w = windows();
    const struct pi_collect_options o = {.window = WINDOW, .n_samples = n_samples, .seed = 9};
    struct pi_pool *pool = NULL;

    PASSES(pi_pool_create(threads, &pool, &e), e);
    PASSES(pi_collect(m, &w, pool, &o, out, &e), e);
    pi_pool_destroy(pool);
}

static bool bit(const struct pi_collected *c, uint32_t layer, uint64_t sample, uint32_t i)
{
    const size_t bytes = (c->p.n_ff + 7) / 8;

    return c->mask[(layer * c->p.n_samples + sample) * bytes + i / 8] >> i % 8 & 1;
}

/* With every position sampled the masks must add up to the counts. */
static void test_masks_and_counts(const struct pi_collected *c)
{
    uint64_t wrong = 0, active = 0;

    EQ(c->p.n_tokens, N_TOKENS);
    EQ(c->p.n_samples, N_TOKENS);
    for (uint32_t l = 0; l < c->p.n_layer; l++)
        for (uint32_t i = 0; i < c->p.n_ff; i++) {
            uint64_t n = 0;

            for (uint64_t s = 0; s < c->p.n_samples; s++)
                n += bit(c, l, s, i);
            wrong += n != c->p.count[l * c->p.n_ff + i];
            wrong += (n > 0) != (c->p.contribution[l * c->p.n_ff + i] > 0);
            active += n;
        }
    EQ(wrong, 0);
    OK(active > 0 && active < (uint64_t)c->p.n_layer * c->p.n_ff * N_TOKENS);
}

/* The sampled residual, normed, must give the sampled active set and the contribution, but for BF16's rounding. */
static void test_by_hand(const struct pi_collected *c)
{
    const uint32_t d = tiny.n_embd, n_ff = tiny.n_ff;
    float *normed = malloc(d * sizeof(float));

    for (uint32_t l = 0; l < tiny.n_layer; l++) {
        float *norm = tiny_layer_tensor(&tiny, l, "ffn_norm.weight", 1, d);
        float *gate = tiny_layer_tensor(&tiny, l, "ffn_gate.weight", n_ff, d);
        float *up = tiny_layer_tensor(&tiny, l, "ffn_up.weight", n_ff, d);
        float *down_t = tiny_layer_tensor(&tiny, l, "ffn_down_t.weight", n_ff, d);
        double *sum = calloc(n_ff, sizeof(double));
        uint64_t wrong = 0;
        double worst = 0, most = 0;

        for (uint64_t s = 0; s < c->p.n_samples; s++) {
            double square = 0;

            for (uint32_t k = 0; k < d; k++) {
                normed[k] = pi_bf16_to_f32(c->residual[(l * c->p.n_samples + s) * d + k]);
                square += (double)normed[k] * (double)normed[k];
            }
            for (uint32_t k = 0; k < d; k++)
                normed[k] = normed[k] / (float)sqrt(square / d + 1e-5) * norm[k];
            for (uint32_t i = 0; i < n_ff; i++) {
                double h = 0, u = 0;

                for (uint32_t k = 0; k < d; k++) {
                    h += (double)gate[i * d + k] * (double)normed[k];
                    u += (double)up[i * d + k] * (double)normed[k];
                }
                wrong += fabs(h) > 0.05 && (h > 0) != bit(c, l, s, i);
                sum[i] += h > 0 ? fabs(h * u) : 0;
            }
        }
        EQ(wrong, 0);
        for (uint32_t i = 0; i < n_ff; i++) {
            double length = 0, want;

            for (uint32_t k = 0; k < d; k++)
                length += (double)down_t[i * d + k] * (double)down_t[i * d + k];
            want = sum[i] / N_TOKENS * sqrt(length);
            most = fmax(most, want);
            worst = fmax(worst, fabs(want - (double)c->p.contribution[l * n_ff + i]));
        }
        NEAR(worst / most, 0, 0.01);
        free(norm);
        free(gate);
        free(up);
        free(down_t);
        free(sum);
    }
    free(normed);
}

static void test_sampling(struct pi_model *m, const struct pi_collected *all)
{
    struct pi_collected a = {0}, b = {0};
    const size_t d = tiny.n_embd, mask_bytes = (tiny.n_ff + 7) / 8;
    uint64_t wrong = 0;

    collect(m, 1, 100, &a);
    collect(m, 3, 100, &b);
    EQ(a.p.n_samples, 100);
    EQ(memcmp(a.p.count, all->p.count, sizeof(*a.p.count) * tiny.n_layer * tiny.n_ff), 0);
    for (uint64_t s = 0; s < 100; s++) {
        wrong += s > 0 && a.p.position[s] <= a.p.position[s - 1];
        for (uint64_t l = 0; l < tiny.n_layer; l++) {
            const uint64_t at = l * N_TOKENS + (uint64_t)a.p.position[s];

            wrong += memcmp(a.residual + (l * 100 + s) * d, all->residual + at * d, 2 * d) != 0;
            wrong += memcmp(a.mask + (l * 100 + s) * mask_bytes, all->mask + at * mask_bytes,
                            mask_bytes) != 0;
        }
    }
    EQ(wrong, 0);
    EQ(memcmp(a.residual, b.residual, sizeof(*a.residual) * 100 * d * tiny.n_layer), 0);
    EQ(memcmp(a.p.contribution, b.p.contribution, sizeof(float) * tiny.n_layer * tiny.n_ff), 0);
    pi_collected_free(&a);
    pi_collected_free(&b);
}

static void test_choose(void)
{
    int64_t p[50];
    int seen[100] = {0}, wrong = 0;

    for (uint64_t seed = 0; seed < 400; seed++) {
        pi_collect_choose(100, 50, seed, p);
        for (int i = 0; i < 50; i++) {
            wrong += p[i] < 0 || p[i] >= 100 || (i > 0 && p[i] <= p[i - 1]);
            seen[p[i] % 100]++;
        }
    }
    EQ(wrong, 0);
    for (int i = 0; i < 100; i++)
        wrong += seen[i] < 150 || seen[i] > 250; /* 200 expected, deviation 10 */
    EQ(wrong, 0);
    pi_collect_choose(50, 50, 1, p);
    EQ(p[49], 49);
}

static void test_merge(struct pi_model *m)
{
    struct pi_collected a = {0}, b = {0}, c = {0};
    const char *path = tiny_path("a.profile.gguf");
    struct pi_profile_samples_in s;
    uint64_t wrong = 0;

    collect(m, 2, 100, &a);
    collect(m, 2, 60, &b);
    s = (struct pi_profile_samples_in){a.residual, a.mask, a.input};
    PASSES(pi_profile_save(path, &a.p, &s, WINDOW, "a test", &e), e);
    PASSES(pi_merge_load(path, &c, &e), e);
    EQ(memcmp(a.residual, c.residual, sizeof(*a.residual) * 100 * tiny.n_embd * tiny.n_layer), 0);
    EQ(memcmp(a.mask, c.mask, (size_t)100 * 13 * tiny.n_layer), 0);
    PASSES(pi_merge(&c, &b, 1000, 1, &e), e);
    EQ(c.p.n_samples, 160);
    EQ(c.p.n_tokens, 2 * N_TOKENS);
    EQ(c.p.position[100], b.p.position[0] + N_TOKENS);
    for (size_t i = 0; i < (size_t)tiny.n_layer * tiny.n_ff; i++)
        wrong += c.p.count[i] != 2 * a.p.count[i] ||
                 fabsf(c.p.contribution[i] - a.p.contribution[i]) > 1e-6f;
    EQ(wrong, 0);
    PASSES(pi_merge(&c, &a, 90, 1, &e), e); /* 2 : 1 tokens */
    EQ(c.p.n_samples, 90);
    for (uint64_t i = 1; i < 90; i++)
        wrong += c.p.position[i] <= c.p.position[i - 1];
    EQ(wrong, 0);
    OK(c.p.position[59] < 2 * N_TOKENS && c.p.position[60] >= 2 * N_TOKENS);
    memset(b.p.lineage.hex, 'f', PI_HASH_HEX);
    FAILS(pi_merge(&c, &b, 100, 1, &e), PI_E_MISMATCH, "different models", e);
    EQ(c.p.n_samples, 90);
    pi_collected_free(&a);
    pi_collected_free(&b);
    pi_collected_free(&c);
}

/* Parallel blocks: the samples hold the layer's input as well; merged profiles keep it, and it is what trains predictors. */
static void test_inputs(void)
{
    struct tiny t = tiny;
    struct pi_collected a = {0}, b = {0};
    struct pi_profile p = {0};
    struct pi_model m = {0};
    const char *model = tiny_path("falcon.gguf"), *path = tiny_path("f.profile.gguf");
    float *embd, *input = NULL;
    uint64_t wrong = 0;

    t.arch = PI_ARCH_FALCON;
    tiny_write(&t, model);
    PASSES(pi_model_open(model, &(struct pi_model_options){0}, &m, &e), e);
    collect(&m, 2, 50, &a);
    OK(a.p.has_input && a.input != NULL);
    PASSES(pi_profile_save(path, &a.p, &(struct pi_profile_samples_in){a.residual, a.mask, a.input},
                           WINDOW, "a test", &e),
           e);
    PASSES(pi_merge_load(path, &b, &e), e);
    EQ(memcmp(a.input, b.input, sizeof(*a.input) * 50 * t.n_embd * t.n_layer), 0);
    PASSES(pi_merge(&b, &a, 40, 3, &e), e);
    OK(b.p.has_input && b.p.n_samples == 40);
    PASSES(pi_profile_load(path, &p, &e), e);
    PASSES(pi_profile_inputs(&p, 0, &input, &e), e);
    embd = tiny_tensor(&t, "token_embd.weight", t.n_vocab, t.n_embd);
    for (uint64_t j = 0; j < 50; j++) /* the first layer's input is the token's embedding */
        for (uint32_t i = 0; i < t.n_embd; i++) {
            const float x = embd[(size_t)ids[a.p.position[j]] * t.n_embd + i];

            wrong += input[j * t.n_embd + i] != pi_bf16_to_f32(pi_f32_to_bf16(x));
        }
    EQ(wrong, 0);
    OK(memcmp(a.input, a.residual, sizeof(*a.input) * 50 * t.n_embd) != 0);
    free(embd);
    free(input);
    pi_profile_free(&p);
    pi_collected_free(&a);
    pi_collected_free(&b);
    pi_model_close(&m);
}

/* Where up is activated too, what it silences is not active. */
static void test_activated_up(void)
{
    struct tiny t = tiny;
    const char *paths[2] = {tiny_path("bamboo.gguf"), tiny_path("llama.gguf")};
    uint64_t n[2] = {0};

    for (int i = 0; i < 2; i++) {
        struct pi_collected c = {0};
        struct pi_model m = {0};

        t.arch = i == 0 ? PI_ARCH_BAMBOO : PI_ARCH_LLAMA;
        tiny_write(&t, paths[i]);
        PASSES(pi_model_open(paths[i], &(struct pi_model_options){0}, &m, &e), e);
        collect(&m, 2, 50, &c);
        for (uint32_t k = 0; k < t.n_ff; k++) /* the same inputs in the first layer */
            n[i] += c.p.count[k];
        pi_collected_free(&c);
        pi_model_close(&m);
    }
    OK(n[0] > n[1] / 4 && n[0] < n[1] * 3 / 4);
}

static void test_census(void)
{
    uint64_t count[20] = {80, 10, 5, 5};
    struct pi_profile p = {.n_layer = 1, .n_ff = 20, .n_tokens = 100, .count = count};
    struct pi_census c;

    PASSES(pi_census_take(&p, &c, &e), e);
    NEAR(c.density, 0.05, 1e-12);
    NEAR(c.hot80, 0.05, 1e-12);
    NEAR(c.never, 0.8, 1e-12);
    NEAR(c.covered[0], 0, 1e-12);   /* 1 % of 20 is no neuron */
    NEAR(c.covered[1], 0.8, 1e-12); /* one */
    NEAR(c.covered[2], 0.9, 1e-12); /* two */
    NEAR(c.covered[3], 1.0, 1e-12); /* four */
    memset(count, 0, sizeof(count));
    PASSES(pi_census_take(&p, &c, &e), e);
    NEAR(c.never, 1, 1e-12);
    NEAR(c.hot80, 0, 1e-12);
}

static void test_refusals(const char *path)
{
    const struct pi_model_options silu = {.hidden_act = "silu"};
    const struct pi_windows none = {0}, w = windows();
    const struct pi_collect_options o = {.window = WINDOW, .n_samples = 10};
    struct pi_collected c = {0};
    struct pi_model m = {0};
    struct pi_pool *pool = NULL;

    PASSES(pi_pool_create(1, &pool, &e), e);
    PASSES(pi_model_open(path, &silu, &m, &e), e);
    FAILS(pi_collect(&m, &w, pool, &o, &c, &e), PI_E_UNSUPPORTED, "silu", e);
    m.shape.act = PI_ACT_RELU;
    FAILS(pi_collect(&m, &none, pool, &o, &c, &e), PI_E_RANGE, "no text", e);
    pi_model_close(&m);
    pi_pool_destroy(pool);
}

/* ---- on a GPU ---- */

/* Neurons (of all layers) whose counts differ, and sampled bits that do. */
static void compare(const struct pi_collected *a, const struct pi_collected *b)
{
    const size_t n = (size_t)tiny.n_layer * tiny.n_ff, bytes = (tiny.n_ff + 7) / 8,
                 n_masks = tiny.n_layer * a->p.n_samples * bytes;
    uint64_t counts = 0, bits = 0;
    double most = 0, worst = 0;

    for (size_t i = 0; i < n; i++) {
        counts += a->p.count[i] != b->p.count[i];
        most = fmax(most, (double)a->p.contribution[i]);
        worst = fmax(worst, fabs((double)a->p.contribution[i] - (double)b->p.contribution[i]));
    }
    for (size_t i = 0; i < n_masks; i++)
        bits += (uint64_t)__builtin_popcount(a->mask[i] ^ b->mask[i]);
    printf("# %llu of %zu counts, %llu bits of masks differ\n", (unsigned long long)counts, n,
           (unsigned long long)bits);
    OK(counts <= 1); /* an input at the threshold by rounding */
    OK(bits <= 2);
    NEAR(worst / most, 0, 1e-5);
}

/* A part of the model on the GPU, or all of it; neurons that are left cross in pieces. */
static void test_gpu(enum pi_type type, uint32_t n_hot, uint32_t first_attn)
{
    static uint32_t order[100];
    struct tiny t = tiny;
    struct pi_place_layer layers[3];
    struct pi_placement place = {
        .n_layer = 3, .n_ff = 100, .n_units = 2, .layers = layers, .output_unit = 1};
    const struct pi_windows w = windows();
    struct pi_collect_options o = {.window = WINDOW, .n_samples = 200, .seed = 9};
    const char *path = tiny_path(type == PI_TYPE_F16 ? "f16.gguf"
                                 : n_hot == 100      ? "all.gguf"
                                                     : "g.gguf");
    struct pi_collected cpu = {0}, gpu = {0};
    struct pi_pool *pool = NULL;
    struct pi_model m = {0};

    t.type = type;
    tiny_write(&t, path);
    for (uint32_t i = 0; i < 100; i++)
        order[i] = i * 7 % 100;
    for (uint32_t l = 0; l < 3; l++)
        layers[l] = (struct pi_place_layer){
            .order = order, .n_hot = n_hot, .hot_unit = 1, .attn_unit = l >= first_attn};
    PASSES(pi_model_open(path, &(struct pi_model_options){0}, &m, &e), e);
    PASSES(pi_pool_create(2, &pool, &e), e);
    PASSES(pi_collect(&m, &w, pool, &o, &cpu, &e), e);
    o.place = &place;
    PASSES(pi_collect(&m, &w, pool, &o, &gpu, &e), e);
    if (gpu.p.count != NULL)
        compare(&cpu, &gpu);
    pi_collected_free(&cpu);
    pi_collected_free(&gpu);
    pi_pool_destroy(pool);
    pi_model_close(&m);
}

int main(void)
{
    const char *path = tiny_path("m.gguf");
    const struct pi_model_options o = {0};
    struct pi_model m = {0};
    struct pi_collected all = {0};

    PASSES(pi_blas_init(&e), e);
    tiny_write(&tiny, path);
    PASSES(pi_model_open(path, &o, &m, &e), e);
    collect(&m, 2, N_TOKENS + 5, &all);
    test_masks_and_counts(&all);
    test_by_hand(&all);
    test_sampling(&m, &all);
    test_choose();
    test_merge(&m);
    test_inputs();
    test_activated_up();
    test_census();
    test_refusals(path);
    if (pi_gpu_count() > 0) {
        test_gpu(PI_TYPE_F32, 40, 1);
        test_gpu(PI_TYPE_F32, 100, 0);
        test_gpu(PI_TYPE_F16, 0, 0);
    } else {
        OK(getenv("PI_REQUIRE_GPU") == NULL);
    }
    pi_collected_free(&all);
    pi_model_close(&m);
    return DONE();
}
