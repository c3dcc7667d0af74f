#include "config.h"

#include "runtime/pi_gpu.h"
#include "tests/tap.h"

int main(void)
{
    struct pi_gpu_info info;
    struct pi_err e = {0};

    FAILS(pi_gpu_describe(pi_gpu_count(), &info, &e), PI_E_NODEV, "GPU", e);
    if (pi_gpu_count() == 0) {
        OK(getenv("PI_REQUIRE_GPU") == NULL);
        return DONE();
    }
    PASSES(pi_gpu_describe(0, &info, &e), e);
    OK(info.memory_bytes > 0 && info.name[0] != '\0');
    return DONE();
}
