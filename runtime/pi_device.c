#include "config.h"

#include "runtime/pi_device.h"

#include "common/pi_pool.h"
#include "runtime/pi_gpu.h"

#include <stdlib.h>
#include <string.h>

#define MAX_GPU   1023
#define MIN_NOTED ((uint64_t)64 << 20) /* less is nothing that was measured on a device */
#define NEAR      16u /* one part in so many is what contexts differ by from run to run, at most */

enum pi_code pi_device_parse(const char *text, bool two_cpu, struct pi_device *out,
                             struct pi_err *err)
{
    struct pi_device d = {.kind = PI_DEVICE_AUTO, .text = text};
    char *end;
    unsigned long n;

    if (text == NULL) {
        *out = d;
        return PI_OK;
    }
    if (strcmp(text, "cpu") == 0) {
        d.kind = PI_DEVICE_CPU;
    } else if (two_cpu && strcmp(text, "cpu+cpu") == 0) {
        d.kind = PI_DEVICE_TWO_CPU;
    } else if (strcmp(text, "gpu") == 0) {
        d.kind = PI_DEVICE_GPU;
    } else if (strncmp(text, "gpu:", 4) == 0 && text[4] >= '0' && text[4] <= '9') {
        n = strtoul(text + 4, &end, 10);
        if (*end != '\0' || n > MAX_GPU)
            return pi_err_set(err, PI_E_RANGE, "--device %s: the GPU must be a number from 0 to %d",
                              text, MAX_GPU);
        d.kind = PI_DEVICE_GPU;
        d.gpu = (int)n;
    } else {
        return pi_err_set(err, PI_E_USAGE, "--device %s: must be one of cpu, gpu, gpu:N%s", text,
                          two_cpu ? ", cpu+cpu" : "");
    }
    *out = d;
    return PI_OK;
}

enum pi_code pi_device_check(const struct pi_device *d, struct pi_err *err)
{
    const int n = d->kind == PI_DEVICE_GPU ? pi_gpu_count() : 0;

    if (d->kind != PI_DEVICE_GPU || d->gpu < n)
        return PI_OK;
    if (n == 0)
        return pi_err_set(err, PI_E_NODEV,
                          "--device %s: no GPU is there (or this build has no CUDA support)",
                          d->text);
    return pi_err_set(err, PI_E_NODEV, "--device %s: there %s %d GPU%s, numbered from 0", d->text,
                      n == 1 ? "is" : "are", n, n == 1 ? "" : "s");
}

uint64_t pi_device_context(const struct pi_gpu_context *c, uint64_t noted)
{
    const uint64_t off = c->bytes > noted ? c->bytes - noted : noted - c->bytes;
    const bool others = c->gone_bytes > c->bytes && c->gone_bytes - c->bytes >= noted;

    if (noted < MIN_NOTED || noted > c->gone_bytes)
        return c->bytes;
    if (c->exact && (off <= noted / NEAR || !others))
        return c->bytes;
    return noted;
}

enum pi_code pi_device_look(int gpu, uint64_t noted, struct pi_device_room *out, struct pi_err *err)
{
    struct pi_gpu_info info;
    struct pi_gpu_context context;
    enum pi_code rc;

    PI_TRY(pi_gpu_context_measure(gpu, &context, err));
    PI_TRY(pi_gpu_describe(gpu, &info, err));
    memset(out, 0, sizeof(*out));
    memcpy(out->name, info.name, sizeof(out->name));
    out->context_bytes = pi_device_context(&context, noted);
    out->noted = out->context_bytes != context.bytes;
    out->free_bytes = context.free_bytes;
out:
    return rc;
}

uint32_t pi_device_threads(void)
{
    const uint32_t cores = pi_pool_usable_cores();

    return cores > 1 ? cores - 1 : 1;
}
