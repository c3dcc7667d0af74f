/* What a process takes of a GPU before it allocates: marks of the management library, and the measurement. */
#include "config.h"

#include "runtime/pi_device.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_gpu_context.h"
#include "runtime/pi_nvml.h"
#include "tests/tap.h"

static void test_marks(void)
{
    struct pi_nvml_mark a = {.n = 3, .dev = {{1, 100}, {2, 200}, {7, 300}}}, b = a, none = {0}, now;
    uint64_t n = 5;

    b.dev[1].used = 260;
    OK(pi_nvml_taken(&a, &b, 2, &n));
    EQ(n, 60);
    OK(pi_nvml_taken(&a, &b, 7, &n));
    EQ(n, 0);
    OK(!pi_nvml_taken(&b, &a, 2, &n)); /* less than before */
    OK(!pi_nvml_taken(&a, &b, 3, &n)); /* no such device */
    OK(!pi_nvml_taken(&none, &b, 2, &n));
    OK(!pi_nvml_taken(&a, &none, 2, &n));
    b.dev[2].bus = 2; /* which of the two? */
    OK(!pi_nvml_taken(&a, &b, 2, &n));
    EQ(n, 0);
    pi_nvml_mark(&now); /* with or without the library */
    OK(now.n <= PI_NVML_DEVICES);
}

#define MIB(n) ((uint64_t)(n) << 20)

/* A run beside others charges what its placement was made with, a run alone what it counted. */
static void test_choose(void)
{
    struct pi_gpu_context alone = {.bytes = MIB(624), .gone_bytes = MIB(1100), .exact = true},
                          beside = {.bytes = MIB(1024), .gone_bytes = MIB(8000), .exact = false},
                          mixed = {.bytes = MIB(900), .gone_bytes = MIB(8000), .exact = true};

    EQ(pi_device_context(&alone, 0), MIB(624));
    EQ(pi_device_context(&alone, MIB(620)), MIB(624)); /* as from run to run */
    EQ(pi_device_context(&alone, MIB(500)), MIB(624)); /* another driver, nobody else there */
    EQ(pi_device_context(&beside, MIB(620)), MIB(620));
    EQ(pi_device_context(&beside, MIB(1200)), MIB(1200));
    EQ(pi_device_context(&beside, 0), MIB(1024));       /* an older placement */
    EQ(pi_device_context(&beside, MIB(1)), MIB(1024));  /* nonsense */
    EQ(pi_device_context(&beside, UINT64_MAX), MIB(1024));
    EQ(pi_device_context(&beside, MIB(8001)), MIB(1024)); /* all that is gone is less */
    EQ(pi_device_context(&mixed, MIB(620)), MIB(620));    /* half of somebody else's in it */
    EQ(pi_device_context(&mixed, MIB(860)), MIB(900));
    mixed.bytes = MIB(300); /* somebody gave back meanwhile */
    EQ(pi_device_context(&mixed, MIB(620)), MIB(620));
}

static void test_measure(void)
{
    struct pi_gpu_context c = {0}, again = {0};
    struct pi_gpu_info info = {0};
    struct pi_err e = {0};

    PASSES(pi_gpu_context_measure(0, &c, &e), e);
    PASSES(pi_gpu_describe(0, &info, &e), e);
    printf("# %s: %llu MiB%s\n", info.name, (unsigned long long)(c.bytes >> 20),
           c.exact ? "" : " with what others hold");
    EQ(c.bytes % (2 << 20), 0);
    OK(c.bytes <= 1 << 30);
    OK(c.free_bytes <= info.free_bytes); /* what it had allocated is given back */
    OK(info.free_bytes - c.free_bytes <= 512 << 20); /* cuBLAS gives its own back too */
    PASSES(pi_gpu_context_measure(0, &again, &e), e);
    OK(!again.exact); /* the context was there: nothing tells it from others' memory */
    OK(again.bytes <= 1 << 30);
}

int main(void)
{
    struct pi_gpu_context c;
    struct pi_err e = {0};

    test_marks();
    test_choose();
    FAILS(pi_gpu_context_measure(pi_gpu_count(), &c, &e), PI_E_NODEV, "GPU", e);
    if (pi_gpu_count() == 0)
        OK(getenv("PI_REQUIRE_GPU") == NULL);
    else
        test_measure();
    return DONE();
}
