/* The GPU interface: an absent device is an error only when asked for; a present one keeps what it is given. */
#include "config.h"

#include "runtime/pi_gpu.h"
#include "tests/tap.h"

static void memory_round_trip(void)
{
    struct pi_dev_buf b = {NULL, 0};
    struct pi_err e = {0};
    unsigned char in[1000], back[1000] = {0};

    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (unsigned char)(i * 7);
    PASSES(pi_gpu_alloc(0, sizeof(in), &b, &e), e);
    PASSES(pi_gpu_upload(&b, 0, in, sizeof(in), &e), e);
    PASSES(pi_gpu_download(back, &b, 0, sizeof(back), &e), e);
    OK(memcmp(in, back, sizeof(in)) == 0);
    FAILS(pi_gpu_upload(&b, 1, in, sizeof(in), &e), PI_E_RANGE, "no room", e);
    pi_gpu_free(&b);
    OK(b.ptr == NULL && b.bytes == 0);
}

static void speeds(const struct pi_gpu_info *info)
{
    const bool emulated = strstr(info->name, "emulated") != NULL;
    struct pi_gpu_speed s;
    struct pi_err e = {0};

    PASSES(pi_gpu_measure(0, &s, &e), e);
    printf("# %s, %d SMs: read %.0f GB/s, PCIe %.1f GB/s, launch and wait %.1f us, context %.0f MB\n", info->name,
           info->n_sm, s.bandwidth / 1e9, s.pcie / 1e9, s.sync * 1e6, s.context_bytes / 1e6);
    /* an emulated device is as fast as a busy machine lets it be */
    OK(s.bandwidth > s.pcie && s.pcie > (emulated ? 1e5 : 1e8));
    OK(s.sync > 1e-7 && s.sync < (emulated ? 10.0 : 1e-2));
    OK(s.context_bytes > 0 && s.context_bytes < (double)info->memory_bytes);
}

int main(void)
{
    struct pi_gpu_info info;
    struct pi_err e = {0};

    FAILS(pi_gpu_describe(pi_gpu_count(), &info, &e), PI_E_NODEV, "GPU", e);
    FAILS(pi_gpu_describe(-1, &info, &e), PI_E_NODEV, "GPU -1", e);
    if (pi_gpu_count() == 0) {
        OK(getenv("PI_REQUIRE_GPU") == NULL);
        return DONE();
    }
    PASSES(pi_gpu_describe(0, &info, &e), e);
    OK(info.memory_bytes > 0 && info.name[0] != '\0');
    memory_round_trip();
    speeds(&info);
    return DONE();
}
