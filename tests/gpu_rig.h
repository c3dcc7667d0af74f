/*
 * gpu_rig.h - device memory for tests of kernels: arrays go up, come down, and are freed all at once.
 */
#ifndef GPU_RIG_H
#define GPU_RIG_H

#include "runtime/pi_gpu.h"

#include "tests/tap.h"

struct gpu_rig {
    void *stream;
    struct pi_dev_buf bufs[64];
    int n;
    struct pi_err e;
};

static inline void gpu_open(struct gpu_rig *g)
{
    memset(g, 0, sizeof(*g));
    PASSES(pi_gpu_use(0, &g->e), g->e);
    PASSES(pi_gpu_stream_create(0, &g->stream, &g->e), g->e);
}

static inline void gpu_close(struct gpu_rig *g)
{
    for (int i = 0; i < g->n; i++)
        pi_gpu_free(&g->bufs[i]);
    pi_gpu_stream_destroy(g->stream);
}

/* n bytes of data (NULL: zeros) on the device; ends the test where that fails. */
static inline void *up(struct gpu_rig *g, const void *data, size_t n)
{
    struct pi_dev_buf *b = &g->bufs[g->n++];
    void *zeros = data == NULL ? calloc(1, n) : NULL;

    if (g->n == 64 || pi_gpu_alloc(0, n, b, &g->e) != PI_OK ||
        pi_gpu_upload(b, 0, data != NULL ? data : zeros, n, &g->e) != PI_OK) {
        printf("Bail out! %s\n", g->e.msg);
        exit(1);
    }
    free(zeros);
    return b->ptr;
}

/* What the stream has left at p, once it is done. */
static inline void down(struct gpu_rig *g, void *out, const void *p, size_t n)
{
    const struct pi_dev_buf b = {(void *)(uintptr_t)p, n};

    if (pi_gpu_launched(&g->e) != PI_OK || pi_gpu_stream_sync(g->stream, &g->e) != PI_OK ||
        pi_gpu_download(out, &b, 0, n, &g->e) != PI_OK) {
        printf("Bail out! %s\n", g->e.msg);
        exit(1);
    }
}

/* Pseudo-random in [-1, 1). */
static inline float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}

static inline void fill(float *x, size_t n, float range, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = range * noise(&seed);
}

#endif
