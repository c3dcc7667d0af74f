#include "config.h"

#include "solver/pi_probe.h"

#include "common/pi_alloc.h"
#include "common/pi_pool.h"
#include "common/pi_progress.h"
#include "runtime/pi_gpu.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_PER_THREAD ((size_t)128 << 20)
#define MAX_BYTES        ((size_t)4 << 30)
#define WINDOWS          16
#define SECONDS          1.5

/* What the threads read. Each sums its own slice; the sums are kept so that no compiler drops the reads. */
struct reading {
    const uint64_t *data;
    size_t n;       /* words of a window */
    uint64_t *sums; /* (n_threads, 8): one cache line each */
};

static void read_slice(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct reading *r = ctx;
    size_t begin = r->n / n_threads * thread / 8 * 8, end = r->n / n_threads * (thread + 1) / 8 * 8;
    uint64_t s[8] = {0};

    for (size_t i = begin; i < end; i += 8)
        for (size_t k = 0; k < 8; k++)
            s[k] += r->data[i + k];
    memcpy(r->sums + 8 * (size_t)thread, s, sizeof(s));
}

/* First touch by the thread that reads: on machines of several memory nodes that is where the pages should lie. */
static void touch_slice(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct reading *r = ctx;
    size_t begin = r->n / n_threads * thread / 8 * 8, end = r->n / n_threads * (thread + 1) / 8 * 8;
    uint64_t *w;

    memcpy(&w, &r->data, sizeof(w));
    for (size_t i = begin; i < end; i++)
        w[i] = i;
}

/* The buffer is read in windows, one after the other, each timed by itself: a window is short (a millisecond), so that on a busy machine
 * some are read undisturbed, and by the time one comes round again no cache holds it. */
static enum pi_code measure_cpu(struct pi_pool *pool, double *bandwidth_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t n = pi_pool_size(pool);
    size_t bytes = BYTES_PER_THREAD * n < MAX_BYTES ? BYTES_PER_THREAD * n : MAX_BYTES,
           window = bytes / WINDOWS;
    struct reading r = {.n = window / sizeof(uint64_t)};
    uint64_t *data = NULL;
    double t_end, best = 0.0;

    if (posix_memalign((void **)&data, 64, bytes) != 0)
        PI_FAIL(err, PI_E_NOMEM, "no memory (%zu bytes) to measure the CPU's read bandwidth with",
                bytes);
    PI_ALLOC(r.sums, 8 * (size_t)n, err);
    for (int w = 0; w < WINDOWS; w++) {
        r.data = data + (size_t)w * r.n;
        pi_pool_run(pool, touch_slice, &r);
    }
    t_end = pi_now() + SECONDS;
    for (int w = 0; w < 2 * WINDOWS || pi_now() < t_end; w++) {
        double t;

        PI_TRY(pi_interrupt_check(err));
        r.data = data + (size_t)(w % WINDOWS) * r.n;
        t = pi_now();
        pi_pool_run(pool, read_slice, &r);
        t = pi_now() - t;
        best = (double)window / t > best ? (double)window / t : best;
    }
    *bandwidth_out = best;
out:
    free(data);
    free(r.sums);
    return rc;
}

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

    PI_TRY(pi_gpu_describe(index, &info, err));
    PI_TRY(pi_gpu_measure(index, &speed, err));
    (void)snprintf(out->name, sizeof(out->name), "%.63s", info.name);
    out->memory = (double)info.memory_bytes;
    out->bandwidth = speed.bandwidth;
    out->pcie = speed.pcie;
    out->sync = speed.sync;
    out->context_bytes = speed.context_bytes;
out:
    return rc;
}

enum pi_code pi_probe(struct pi_hardware *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_hardware hw = {0};
    struct pi_pool *pool = NULL;
    int n = pi_gpu_count();

    PI_TRY(pi_pool_create(0, &pool, err));
    hw.cpu.threads = pi_pool_size(pool);
    cpu_name(hw.cpu.name, sizeof(hw.cpu.name));
    PI_TRY(measure_cpu(pool, &hw.cpu.bandwidth, err));
    for (int i = 0; i < n && i < PI_MAX_GPUS; i++, hw.n_gpus++)
        PI_TRY(probe_gpu(i, &hw.gpus[i], err));
    *out = hw;
out:
    pi_pool_destroy(pool);
    return rc;
}
