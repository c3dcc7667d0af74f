#include "config.h"

#include "solver/pi_probe.h"

#include "common/pi_bandwidth.h"
#include "common/pi_pool.h"
#include "runtime/pi_device.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_gpu_context.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SECONDS 1.5 /* of reading, for the CPU's bandwidth */

/* "model name : ..." of the first processor; "CPU" where there is none. */
static void cpu_name(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");

    (void)snprintf(out, size, "CPU");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *p = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || p == NULL)
            continue;
        for (p++; isspace((unsigned char)*p);)
            p++;
        (void)snprintf(out, size, "%.*s", (int)strcspn(p, "\n"), p);
        break;
    }
    if (f != NULL)
        (void)fclose(f);
}

static enum pi_code probe_gpu(int index, struct pi_hw_gpu *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gpu_info info;
    struct pi_gpu_speed speed;
    struct pi_gpu_context context;

    PI_TRY(pi_gpu_context_measure(index, &context, err)); /* first: it makes the context */
    PI_TRY(pi_gpu_describe(index, &info, err));
    PI_TRY(pi_gpu_measure(index, &speed, err));
    rc = pi_gpu_measure_handover(index, 0.0, &out->sync, err);
    if (rc == PI_E_UNSUPPORTED) { /* then the run launches and waits */
        out->sync = speed.sync;
        rc = PI_OK;
    }
    if (rc != PI_OK)
        goto out;
    (void)snprintf(out->name, sizeof(out->name), "%.63s", info.name);
    out->memory = (double)info.memory_bytes;
    out->bandwidth = speed.bandwidth;
    out->pcie = speed.pcie;
    out->context_bytes = (double)context.bytes;
    out->kernel = PI_HW_KERNEL;
out:
    return rc;
}

enum pi_code pi_probe(struct pi_hardware *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_hardware hw = {0};
    struct pi_pool *pool = NULL;
    const int n = pi_gpu_count();

    PI_TRY(pi_pool_create(n > 0 ? pi_device_threads() : 0, &pool, err));
    hw.cpu.threads = pi_pool_size(pool);
    cpu_name(hw.cpu.name, sizeof(hw.cpu.name));
    PI_TRY(pi_bandwidth_gather(pool, SECONDS, &hw.cpu.bandwidth, err));
    for (int i = 0; i < n && i < PI_MAX_GPUS; i++, hw.n_gpus++)
        PI_TRY(probe_gpu(i, &hw.gpus[i], err));
    *out = hw;
out:
    pi_pool_destroy(pool);
    return rc;
}
