/* The floor of a decode step against sums by hand. */
#include "config.h"

#include "runtime/pi_floor.h"
#include "tests/tap.h"

#define N_FF 4

static struct pi_err e;
/* Two layers of four neurons; 10, 20 and 30 bytes a row, 100 of attention, a predictor of 7 + 5 a neuron. */
static struct pi_layer_bytes layers[2] = {
    {.attn = 100,
     .gate_row = 10,
     .up_row = 20,
     .down_row = 30,
     .pred_fixed = 7,
     .pred_per_neuron = 5},
    {.attn = 100,
     .gate_row = 10,
     .up_row = 20,
     .down_row = 30,
     .pred_fixed = 7,
     .pred_per_neuron = 5},
};
static const struct pi_model_bytes bytes = {
    .n_layer = 2, .n_ff = N_FF, .layers = layers, .output = 60, .output_norm = 4};
static uint64_t count[2 * N_FF] = {50, 25, 100, 0, 50, 25, 100, 0};
static struct pi_profile profile = {.n_layer = 2, .n_ff = N_FF, .n_tokens = 100, .count = count};
static uint32_t order[N_FF] = {2, 0, 1, 3};

static struct pi_floor floor_of(const struct pi_placement *place, enum pi_mode mode, uint32_t n_seq)
{
    const enum pi_mode modes[2] = {mode, mode};
    const struct pi_floor_in in = {.bytes = &bytes,
                                   .place = place,
                                   .mode = modes,
                                   .profile = &profile,
                                   .n_seq = n_seq,
                                   .cpu_bandwidth = 10,
                                   .gpu_bandwidth = 100};
    struct pi_floor f = {0};

    PASSES(pi_floor(&in, &f, &e), e);
    return f;
}

static void test_cpu(void)
{
    struct pi_floor f = floor_of(NULL, PI_MODE_DENSE, 1);

    NEAR(f.bytes_cpu, 2 * (100 + 4 * 60) + 64, 1e-9);
    NEAR(f.bytes_gpu, 0, 0);
    NEAR(f.seconds, f.bytes_cpu / 10, 1e-9);
    f = floor_of(NULL, PI_MODE_EXACT, 1); /* 1.75 neurons fire */
    NEAR(f.bytes_cpu, 2 * (100 + 4 * 10 + 1.75 * 50) + 64, 1e-9);
    f = floor_of(NULL, PI_MODE_PREDICTED, 1);
    NEAR(f.bytes_cpu, 2 * (100 + 7 + 4 * 5 + 1.75 * 60) + 64, 1e-9);
    NEAR(f.seconds, f.bytes_cpu / 10, 1e-9);
    f = floor_of(NULL, PI_MODE_PREDICTED, 2); /* 1 + 0.75 + 0.4375 fire for one of two at least */
    NEAR(f.bytes_cpu, 2 * (100 + 27 + 2.1875 * 60) + 64, 1e-9);
}

/* Two hot neurons on the GPU. Attention there: it predicts for both; the slower part counts. */
static void test_split(void)
{
    struct pi_place_layer y = {.order = order,
                               .n_hot = 2,
                               .hot_unit = 1,
                               .attn_unit = 1,
                               .mode_cpu = PI_MODE_PREDICTED,
                               .mode_gpu = PI_MODE_PREDICTED};
    struct pi_place_layer both[2] = {y, y};
    struct pi_placement p = {
        .n_layer = 2, .n_ff = N_FF, .n_units = 2, .layers = both, .output_unit = 1};
    struct pi_floor f = floor_of(&p, PI_MODE_PREDICTED, 1);

    NEAR(f.bytes_cpu, 2 * 0.25 * 60, 1e-9);
    NEAR(f.bytes_gpu, 2 * (100 + 17 + 17 + 1.5 * 60) + 64, 1e-9);
    NEAR(f.seconds, 2 * (117 / 100.0 + 0.25 * 60 / 10) + 64 / 100.0, 1e-9);

    both[1].mode_gpu = PI_MODE_EXACT; /* no predictor for the hot ones, all their gates */
    f = floor_of(&p, PI_MODE_PREDICTED, 1);
    NEAR(f.bytes_gpu, 2 * 117 + 17 + 1.5 * 60 + 2 * 10 + 1.5 * 50 + 64, 1e-9);

    both[0].attn_unit = PI_UNIT_CPU; /* then the CPU predicts for itself */
    f = floor_of(&p, PI_MODE_PREDICTED, 1);
    NEAR(f.bytes_cpu, 100 + 17 + 2 * 0.25 * 60, 1e-9);
    f = floor_of(&p, PI_MODE_DENSE, 1);
    NEAR(f.bytes_cpu, 100 + 2 * 2 * 60, 1e-9);
    NEAR(f.bytes_gpu, 100 + 2 * 2 * 60 + 64, 1e-9);
    NEAR(f.seconds, 100 / 10.0 + 100 / 100.0 + 2 * 12 + 0.64, 1e-9);
}

static void test_refuses(void)
{
    const enum pi_mode modes[2] = {PI_MODE_DENSE, PI_MODE_EXACT};
    struct pi_floor_in in = {.bytes = &bytes, .mode = modes, .n_seq = 1, .cpu_bandwidth = 1};
    struct pi_profile other = profile;
    struct pi_floor f;

    FAILS(pi_floor(&in, &f, &e), PI_E_MISMATCH, "needs the model's profile", e);
    other.n_ff = 5;
    in.profile = &other;
    FAILS(pi_floor(&in, &f, &e), PI_E_MISMATCH, "2 layers of 5 neurons", e);
    other = profile;
    other.n_tokens = 0;
    FAILS(pi_floor(&in, &f, &e), PI_E_MISMATCH, "over 0 tokens", e);
}

int main(void)
{
    test_cpu();
    test_split();
    test_refuses();
    return DONE();
}
