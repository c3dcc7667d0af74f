/* What the estimator holds device kernels to, against the kernels themselves. */
#include "config.h"

#include "common/pi_estimate.h"
#include "runtime/cuda/pi_kernels.h"
#include "tests/tap.h"

static void test_down(void)
{
    static const uint32_t n_embd[] = {32, 384, 4096, 8192, 20000}, n_hot[] = {1, 64, 1000, 30000};
    int over = 0;

    for (int d = 0; d < 5; d++)
        for (int h = 0; h < 4; h++)
            for (uint32_t n = 1; n <= PI_K_MAX_TOKENS; n++)
                over += pi_k_down_parts(n_hot[h], n_embd[d], n) > PI_DEV_DOWN_PARTS;
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

int main(void)
{
    test_down();
    test_attn();
    return DONE();
}
