#include "config.h"

#include "common/pi_bandwidth.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_PER_THREAD ((size_t)128 << 20)
#define MAX_BYTES        ((size_t)4 << 30)
#define WINDOWS          16

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
enum pi_code pi_bandwidth_measure(struct pi_pool *pool, double seconds, double *out,
                                  struct pi_err *err)
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
    t_end = pi_now() + seconds;
    for (int w = 0; w < 2 * WINDOWS || pi_now() < t_end; w++) {
        double t;

        PI_TRY(pi_interrupt_check(err));
        r.data = data + (size_t)(w % WINDOWS) * r.n;
        t = pi_now();
        pi_pool_run(pool, read_slice, &r);
        t = pi_now() - t;
        best = (double)window / t > best ? (double)window / t : best;
    }
    *out = best;
out:
    free(data);
    free(r.sums);
    return rc;
}
