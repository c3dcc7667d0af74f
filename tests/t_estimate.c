/* Sizes of a small model counted by hand, and texts of sizes. */
#include "config.h"

#include "common/pi_estimate.h"
#include "common/pi_prompt_size.h"
#include "tests/tap.h"
#include "tests/tiny_model.h"

#define LAYERS 2
#define FF     48

static void test_parse(void)
{
    static const char *bad[] = {"8",   "",    "G",    "-1G",  "+1G",  "1.2.3G", "8GB",
                                " 8G", "8 G", "0x8G", "1e3G", "infG", "nanG"};
    struct pi_err e = {0};
    uint64_t v = 0;

    PASSES(pi_parse_bytes("8G", "--x", &v, &e), e);
    EQ(v, 8LL << 30);
    PASSES(pi_parse_bytes("1.5m", "--x", &v, &e), e);
    EQ(v, 3LL << 19);
    PASSES(pi_parse_bytes("0G", "--x", &v, &e), e);
    EQ(v, 0);
    PASSES(pi_parse_bytes("626K", "--x", &v, &e), e);
    EQ(v, 626 * 1024);
    v = 7;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        FAILS(pi_parse_bytes(bad[i], "--x", &v, &e), PI_E_USAGE, "8192M", e);
    FAILS(pi_parse_bytes("99999999999T", "--x", &v, &e), PI_E_RANGE, "at most 8367351T", e);
    EQ(v, 7);
}

/* Rows on a device: padded to 16 bytes, values and scales of quantised types each. */
static void test_rows(void)
{
    uint64_t n = 0;

    EQ(pi_dev_row_bytes(PI_TYPE_F32, 33), 144);
    EQ(pi_dev_row_bytes(PI_TYPE_F16, 33), 80);
    EQ(pi_dev_row_bytes(PI_TYPE_BF16, 64), 128);
    EQ(pi_dev_row_bytes(PI_TYPE_Q8_0, 96), 96 + 16);
    EQ(pi_dev_row_bytes(PI_TYPE_Q8_0, 4096), 4096 + 256);
    EQ(pi_dev_row_bytes(PI_TYPE_Q4_0, 96), 48 + 16);
    EQ(pi_dev_row_bytes(PI_TYPE_Q4_0, 4096), 2048 + 256);
    EQ(pi_dev_row_bytes(PI_TYPE_Q4_1, 4096), 0);
    EQ(pi_dev_row_bytes(PI_TYPE_F32, UINT32_MAX), 4ULL * UINT32_MAX + 4);
    OK(pi_dev_matrix_bytes(3, 144, &n));
    EQ(n, 512);
    OK(pi_dev_matrix_bytes(0, 144, &n));
    EQ(n, 0);
    OK(!pi_dev_matrix_bytes(UINT64_MAX / 2, 3, &n));
}

/* Sizes of the test model in the device's layout, where every array is padded to 256. Rows of 64 in Q8_0: 64 + 16. */
#define PAD(n) (((n) + 255) / 256 * 256)
#define ROW    80

static void test_model(const struct pi_gguf *g, const struct pi_shape *s)
{
    struct pi_run_size run = {20, 2, 4, PI_TYPE_F16},
                       huge = {UINT32_MAX, UINT32_MAX, 1, PI_TYPE_F32};
    struct pi_model_bytes b = {0};
    struct pi_placement p = {0};
    struct pi_gpu_budget gpu = {0}, base = {0};
    struct pi_prompt_want want = {.n_batch = 4, .bundle = 3 * ROW};
    struct pi_prompt_size prompt;
    struct pi_err e = {0};
    uint64_t cpu = 0, unit = 0, row = 64 / 32 * 34, attn, kv = 2 * 40 * 32 * 2, hot, dev_attn;

    PASSES(pi_estimate_model(g, s, NULL, &run, &b, &e), e);
    EQ(b.layers[1].gate_row, row);
    EQ(b.layers[1].neuron, 3 * row);
    EQ(b.layers[1].dev_down_row, ROW);
    EQ(b.layers[0].down_type, PI_TYPE_Q8_0);
    EQ(b.layers[0].pred_per_neuron + b.layers[0].pred_fixed + b.layers[0].predictor +
           b.layers[0].ffn_fixed + b.layers[0].dev_fc1,
       0);
    /* q and o 64 x 64, k and v 32 x 64 in Q8_0, two norms */
    attn = (64 + 64 + 32 + 32) * row + 2 * 64 * 4;
    dev_attn = 2 * PAD(64 * ROW) + 2 * PAD(32 * ROW) + 2 * 256;
    EQ(b.layers[0].attn, attn);
    EQ(b.layers[0].dev_attn, dev_attn);
    EQ(b.kv_layer, kv);
    EQ(b.dev_kv, 2 * PAD(41 * 32 * 2));
    EQ(b.embd, 96 * row);
    EQ(b.output, 96 * row);
    OK(b.tied);
    EQ(b.output_norm, 64 * 4);
    EQ(b.dev_output, PAD(96 * ROW) + 256);
    EQ(b.activations,
       4 * 4 * (5 * 64 + 2 * 64 + 2 * 32 + 3 * FF + (FF > 64 ? FF : 64)) + 2 * 96 * 4);
    EQ(b.tables, LAYERS * (2 * 4 * FF + 128));
    PASSES(pi_prompt_size(s, &want, &prompt, &e), e);
    EQ(b.dev.prompt, prompt.activations + prompt.tile);
    EQ(b.dev.staging, prompt.staging);
    EQ(b.dev.workspace, prompt.workspace);
    EQ(b.dev.frequencies, 256);

    PASSES(pi_placement_cpu(LAYERS, FF, &p, &e), e);
    PASSES(pi_estimate_gpu(&b, &p, 1, 1000, &gpu, &e), e);
    EQ(gpu.total + gpu.context + gpu.activations, 0);
    PASSES(pi_estimate_unit(&b, &p, 0, &cpu, &e), e);
    EQ(cpu, LAYERS * (attn + kv + FF * 3 * row) + 96 * row + 256 + b.activations + b.tables);
    p.n_units = 2;
    p.layers[1].n_hot = 10;
    p.layers[1].hot_unit = p.layers[0].attn_unit = p.output_unit = 1;
    PASSES(pi_estimate_gpu(&b, &p, 1, 1000, &gpu, &e), e);
    hot = 3 * PAD(10 * ROW);
    EQ(gpu.context, 1000);
    EQ(gpu.weights, dev_attn + hot + b.dev_output);
    EQ(gpu.kv, b.dev_kv);
    EQ(gpu.predictors, 0);
    EQ(gpu.tables, 256 + 256);
    EQ(gpu.activations, b.dev.decode + b.dev.prompt);
    EQ(gpu.staging, b.dev.staging);
    EQ(gpu.rounding, 0); /* nothing here is as large as half a block of the driver's */
    EQ(gpu.total, gpu.context + gpu.weights + gpu.kv + gpu.tables + gpu.activations + gpu.graphs +
                      gpu.workspace + gpu.staging);
    PASSES(pi_estimate_gpu_base(&b, 1000, true, &base, &e), e);
    EQ(gpu.total, base.total + dev_attn + b.dev_kv + hot + 256 + b.dev_output);
    PASSES(pi_estimate_unit(&b, &p, 1, &unit, &e), e);
    EQ(unit, gpu.total - 1000);
    PASSES(pi_estimate_unit(&b, &p, 0, &cpu, &e), e);
    EQ(cpu, (LAYERS * FF - 10) * 3 * row + attn + kv + 96 * row + b.activations + b.tables);
    for (int l = 0; l < LAYERS; l++) {
        p.layers[l].n_hot = FF;
        p.layers[l].hot_unit = p.layers[l].attn_unit = 1;
    }
    PASSES(pi_estimate_gpu(&b, &p, 1, 1000, &gpu, &e), e);
    EQ(gpu.staging, 0); /* nothing is left to stream */
    pi_model_bytes_free(&b);
    pi_placement_free(&p);
    FAILS(pi_estimate_model(g, s, NULL, &huge, &b, &e), PI_E_RANGE,
          "more bytes than can be counted", e);
}

/* Weights and caches are one allocation, which the driver rounds up to 2 MiB once it is large. */
static void test_rounding(const struct pi_gguf *g, const struct pi_shape *s)
{
    struct pi_run_size run = {50000, 1, 4, PI_TYPE_F32};
    struct pi_model_bytes b = {0};
    struct pi_placement p = {0};
    struct pi_gpu_budget gpu = {0};
    struct pi_err e = {0};

    PASSES(pi_estimate_model(g, s, NULL, &run, &b, &e), e);
    PASSES(pi_placement_cpu(LAYERS, FF, &p, &e), e);
    p.n_units = 2;
    p.layers[0].attn_unit = 1;
    PASSES(pi_estimate_gpu(&b, &p, 1, 0, &gpu, &e), e);
    EQ(gpu.kv, 2 * PAD(50001 * 32 * 4));
    EQ((gpu.kv + gpu.weights + gpu.tables + gpu.rounding) % (2 << 20), 0);
    OK(gpu.rounding > 0 && gpu.rounding < 2 << 20);
    pi_model_bytes_free(&b);
    pi_placement_free(&p);
}

/* A predictor for layer 1 alone. It is where it runs: each unit's own neurons, but the GPU's for all where attention is there. */
static void test_predictor(const struct pi_gguf *g, const struct pi_shape *s)
{
    static const float bias[FF];
    struct pi_predictor_layer layers[LAYERS] = {{0},
                                                {.width = 6,
                                                 .fc1 = {PI_TYPE_F32, 6, 64, 256, NULL},
                                                 .fc2 = {PI_TYPE_F16, FF, 6, 12, NULL}}};
    struct pi_predictor pred = {.n_layer = LAYERS, .n_ff = FF, .n_embd = 64, .layers = layers};
    struct pi_run_size run = {20, 2, 4, PI_TYPE_F16};
    struct pi_model_bytes b = {0};
    struct pi_placement p = {0};
    struct pi_gpu_budget gpu = {0};
    struct pi_err e = {0};
    uint64_t without = 0, bytes = 0;

    layers[1].bias = bias;
    PASSES(pi_estimate_model(g, s, &pred, &run, &b, &e), e);
    EQ(b.layers[0].predictor, 0);
    EQ(b.layers[1].pred_fixed, 6 * 256);
    EQ(b.layers[1].pred_per_neuron, 12 + 4);
    EQ(b.layers[1].predictor, 6 * 256 + FF * 16);
    EQ(b.layers[1].dev_fc1, 6 * 256);
    EQ(b.layers[1].dev_pred_row, 16);
    PASSES(pi_placement_cpu(LAYERS, FF, &p, &e), e);
    p.n_units = 2;
    p.layers[1].n_hot = 20;
    p.layers[1].hot_unit = 1;
    p.layers[1].mode_gpu = PI_MODE_EXACT;
    p.layers[1].mode_cpu = PI_MODE_PREDICTED;
    PASSES(pi_estimate_gpu(&b, &p, 1, 0, &gpu, &e), e);
    EQ(gpu.predictors, 0);
    PASSES(pi_estimate_unit(&b, &p, 0, &bytes, &e), e);
    p.layers[1].mode_cpu = PI_MODE_EXACT;
    PASSES(pi_estimate_unit(&b, &p, 0, &without, &e), e);
    EQ(bytes - without, 6 * 256 + (FF - 20) * 16);
    p.layers[1].mode_gpu = PI_MODE_PREDICTED;
    PASSES(pi_estimate_gpu(&b, &p, 1, 0, &gpu, &e), e);
    EQ(gpu.predictors, 6 * 256 + PAD(20 * 16) + 256);
    EQ(gpu.tables, 256 + 256);
    p.layers[1].attn_unit = 1;
    p.layers[1].mode_cpu = PI_MODE_PREDICTED;
    PASSES(pi_estimate_unit(&b, &p, 0, &bytes, &e), e);
    p.layers[1].mode_cpu = PI_MODE_EXACT;
    PASSES(pi_estimate_unit(&b, &p, 0, &without, &e), e);
    EQ(bytes, without);
    p.layers[1].mode_cpu = PI_MODE_PREDICTED;
    PASSES(pi_estimate_gpu(&b, &p, 1, 0, &gpu, &e), e);
    EQ(gpu.predictors, 6 * 256 + PAD(FF * 16) + 256);
    EQ(gpu.tables, 256 + 256 + 256); /* ids of the cold neurons too */
    p.layers[1].n_hot = 0;
    PASSES(pi_estimate_gpu(&b, &p, 1, 0, &gpu, &e), e);
    EQ(gpu.predictors, 6 * 256 + PAD(FF * 16) + 256);
    p.layers[0].attn_unit = 1; /* has none, whatever its mode */
    p.layers[0].mode_cpu = p.layers[0].mode_gpu = PI_MODE_PREDICTED;
    PASSES(pi_estimate_gpu(&b, &p, 1, 0, &gpu, &e), e);
    EQ(gpu.predictors, 6 * 256 + PAD(FF * 16) + 256);
    p.n_ff = FF - 1;
    FAILS(pi_estimate_unit(&b, &p, 1, &bytes, &e), PI_E_MISMATCH, "placement for 2 layers of 47",
          e);
    p.n_ff = FF;
    pi_placement_free(&p);
    pi_model_bytes_free(&b);
    pred.n_layer = 1;
    FAILS(pi_estimate_model(g, s, &pred, &run, &b, &e), PI_E_MISMATCH, "predictor for 1 layers", e);
}

int main(void)
{
    struct tiny t = {.arch = PI_ARCH_LLAMA,
                     .n_layer = LAYERS,
                     .n_embd = 64,
                     .n_ff = FF,
                     .n_head = 4,
                     .n_head_kv = 2,
                     .head_dim = 16,
                     .n_vocab = 96,
                     .n_ctx = 64,
                     .type = PI_TYPE_Q8_0,
                     .down_t = true,
                     .tied = true,
                     .seed = 3};
    const char *path = tiny_path("m.gguf");
    struct pi_gguf g = {0};
    struct pi_shape s;
    struct pi_err e = {0};

    test_parse();
    test_rows();
    tiny_write(&t, path);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    PASSES(pi_shape_read(&g, NULL, &s, &e), e);
    test_model(&g, &s);
    test_rounding(&g, &s);
    test_predictor(&g, &s);
    pi_gguf_close(&g);
    return DONE();
}
