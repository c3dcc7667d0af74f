/* Sizes of a small model counted by hand, and texts of sizes. */
#include "config.h"

#include "common/pi_estimate.h"
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
    FAILS(pi_parse_bytes("99999999999T", "--x", &v, &e), PI_E_RANGE, "too large", e);
    EQ(v, 7);
}

static void test_model(const struct pi_gguf *g, const struct pi_shape *s)
{
    struct pi_run_size run = {20, 2, 4, PI_TYPE_F16}, huge = {UINT32_MAX, UINT32_MAX, 1, PI_TYPE_F32};
    struct pi_model_bytes b = {0};
    struct pi_placement p = {0};
    struct pi_err e = {0};
    uint64_t cpu = 0, gpu = 0, row = 64 / 32 * 34, attn, kv = 2 * 40 * 32 * 2;

    PASSES(pi_estimate_model(g, s, NULL, &run, &b, &e), e);
    EQ(b.layers[1].gate_row, row);
    EQ(b.layers[1].neuron, 3 * row);
    EQ(b.layers[0].pred_per_neuron + b.layers[0].pred_fixed + b.layers[0].predictor +
           b.layers[0].ffn_fixed,
       0);
    /* q and o 64 x 64, k and v 32 x 64 in Q8_0, two norms */
    attn = (64 + 64 + 32 + 32) * row + 2 * 64 * 4;
    EQ(b.layers[0].attn, attn);
    EQ(b.kv_layer, kv);
    EQ(b.embd, 96 * row);
    EQ(b.output, 96 * row);
    OK(b.tied);
    EQ(b.output_norm, 64 * 4);
    EQ(b.activations, 4 * 4 * (5 * 64 + 2 * 64 + 2 * 32 + 3 * FF) + 2 * 96 * 4);
    EQ(b.tables, LAYERS * (2 * 4 * FF + 128));

    PASSES(pi_placement_cpu(LAYERS, FF, &p, &e), e);
    PASSES(pi_estimate_unit(&b, &p, 1, &gpu, &e), e);
    EQ(gpu, 0);
    PASSES(pi_estimate_unit(&b, &p, 0, &cpu, &e), e);
    EQ(cpu, LAYERS * (attn + kv + FF * 3 * row) + 96 * row + 256 + b.activations + b.tables);
    p.n_units = 2;
    p.layers[1].n_hot = 10;
    p.layers[1].hot_unit = p.layers[0].attn_unit = p.output_unit = 1;
    PASSES(pi_estimate_unit(&b, &p, 1, &gpu, &e), e);
    EQ(gpu, 10 * 3 * row + attn + kv + 96 * row + 256 + b.activations + b.tables);
    PASSES(pi_estimate_unit(&b, &p, 0, &cpu, &e), e);
    EQ(cpu, (LAYERS * FF - 10) * 3 * row + attn + kv + 96 * row + b.activations + b.tables);
    pi_model_bytes_free(&b);
    pi_placement_free(&p);
    FAILS(pi_estimate_model(g, s, NULL, &huge, &b, &e), PI_E_RANGE,
          "more bytes than can be counted", e);
}

/* A predictor for layer 1 alone: fc1 whole on every unit that predicts, fc2 and bias by the neuron. */
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
    struct pi_err e = {0};
    uint64_t row = 64 / 32 * 34, base = 0, bytes = 0;

    layers[1].bias = bias;
    PASSES(pi_estimate_model(g, s, &pred, &run, &b, &e), e);
    EQ(b.layers[0].predictor, 0);
    EQ(b.layers[1].pred_fixed, 6 * 256);
    EQ(b.layers[1].pred_per_neuron, 12 + 4);
    EQ(b.layers[1].predictor, 6 * 256 + FF * 16);
    base = b.activations + b.tables;
    PASSES(pi_placement_cpu(LAYERS, FF, &p, &e), e);
    p.n_units = 2;
    p.layers[1].n_hot = 10;
    p.layers[1].hot_unit = 1;
    p.layers[1].mode_gpu = PI_MODE_EXACT;
    PASSES(pi_estimate_unit(&b, &p, 1, &bytes, &e), e);
    EQ(bytes, base + 10 * 3 * row);
    p.layers[1].mode_gpu = PI_MODE_PREDICTED;
    PASSES(pi_estimate_unit(&b, &p, 1, &bytes, &e), e);
    EQ(bytes, base + 10 * (3 * row + 16) + 6 * 256);
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
    tiny_write(&t, path);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    PASSES(pi_shape_read(&g, NULL, &s, &e), e);
    test_model(&g, &s);
    test_predictor(&g, &s);
    pi_gguf_close(&g);
    return DONE();
}
