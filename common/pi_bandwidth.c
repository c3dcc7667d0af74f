#include "config.h"

#include "common/pi_bandwidth.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_PER_THREAD ((size_t)128 << 20)
#define MAX_BYTES        ((size_t)4 << 30)
#define ROW_WORDS        1024u /* 8 KB: a row of 4096 F16 weights */
#define MEAN_GAP         10u   /* one row in so many */

/* What the threads read. Each sums its own slice; the sums are kept so that no compiler drops the reads. */
struct reading {
    const uint64_t *data;
    size_t n;       /* words of a window */
    uint32_t seed;  /* of the rows that are read; 0: all */
    uint64_t *sums; /* (n_threads, 8): sums of 7 words; how many were read. One cache line each */
};

static size_t slice(const struct reading *r, uint32_t thread, uint32_t n_threads)
{
    return r->n / n_threads * thread / 8 * 8;
}

static void read_words(const uint64_t *data, size_t n, uint64_t s[8])
{
    for (size_t i = 0; i < n; i += 8)
        for (size_t k = 0; k < 8; k++)
            s[k] += data[i + k];
}

static void read_slice(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct reading *r = ctx;
    const size_t begin = slice(r, thread, n_threads), end = slice(r, thread + 1, n_threads);
    uint32_t draw = r->seed * 2654435761u + thread;
    uint64_t s[8] = {0}, words = end - begin;

    if (r->seed == 0) {
        read_words(r->data + begin, end - begin, s);
    } else {
        words = 0;
        for (size_t i = begin; i + ROW_WORDS <= end; words += ROW_WORDS) {
            read_words(r->data + i, ROW_WORDS, s);
            draw = draw * 1664525u + 1013904223u; /* Numerical Recipes */
            i += ROW_WORDS * (1 + (size_t)((uint64_t)draw * (2 * MEAN_GAP - 1) >> 32));
        }
    }
    s[0] ^= s[7];
    s[7] = words;
    memcpy(r->sums + 8 * (size_t)thread, s, sizeof(s));
}

/* First touch by the thread that reads: on machines of several memory nodes that is where the pages should lie. */
static void touch_slice(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct reading *r = ctx;
    const size_t begin = slice(r, thread, n_threads), end = slice(r, thread + 1, n_threads);
    uint64_t *w;

    memcpy(&w, &r->data, sizeof(w));
    for (size_t i = begin; i < end; i++)
        w[i] = i;
}

static double window_rate(struct pi_pool *pool, struct reading *r)
{
    double bytes = 0.0, t = pi_now();

    pi_pool_run(pool, read_slice, r);
    t = pi_now() - t;
    for (uint32_t i = 0; i < pi_pool_size(pool); i++)
        bytes += 8.0 * (double)r->sums[8 * (size_t)i + 7];
    return bytes / t;
}

/* The buffer is read in windows, one after the other, each timed by itself: a window is short (a millisecond), so that on a busy machine
 * some are read undisturbed, and by the time one comes round again no cache holds it. Where one row in ten is read, windows are larger, and the next round takes other rows. */
static enum pi_code measure(struct pi_pool *pool, double seconds, bool gather, double *out,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t n = pi_pool_size(pool), n_windows = gather ? 4 : 16;
    const size_t bytes = BYTES_PER_THREAD * n < MAX_BYTES ? BYTES_PER_THREAD * n : MAX_BYTES;
    struct reading r = {.n = bytes / n_windows / sizeof(uint64_t)};
    uint64_t *data = NULL;
    double t_end, best = 0.0;

    if (posix_memalign((void **)&data, 64, bytes) != 0)
        PI_FAIL(err, PI_E_NOMEM, "no memory (%zu bytes) to measure the CPU's read bandwidth with",
                bytes);
    PI_ALLOC(r.sums, 8 * (size_t)n, err);
    for (uint32_t w = 0; w < n_windows; w++) {
        r.data = data + (size_t)w * r.n;
        pi_pool_run(pool, touch_slice, &r);
    }
    t_end = pi_now() + seconds;
    for (uint32_t w = 0; w < 2 * n_windows || pi_now() < t_end; w++) {
        double rate;

        PI_TRY(pi_interrupt_check(err));
        r.data = data + (size_t)(w % n_windows) * r.n;
        r.seed = gather ? w + 1 : 0;
        rate = window_rate(pool, &r);
        best = rate > best ? rate : best;
    }
    *out = best;
out:
    free(data);
    free(r.sums);
    return rc;
}

enum pi_code pi_bandwidth_measure(struct pi_pool *pool, double seconds, double *out,
                                  struct pi_err *err)
{
    return measure(pool, seconds, false, out, err);
}

enum pi_code pi_bandwidth_gather(struct pi_pool *pool, double seconds, double *out,
                                 struct pi_err *err)
{
    return measure(pool, seconds, true, out, err);
}
