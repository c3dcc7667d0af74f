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
#define LINE_WORDS       8u

/* Rows that are read side by side, line by line, while the same lines of the rows behind them are asked for: one row alone leaves memory idle on some processors.
 * Measured on two cores of an Intel Xeon (Sapphire Rapids): 1 row 20 GB/s, 4 rows 30, 8 rows 34 to 37, 16 rows 30 to 36. */
#define SIDE 8u

/* What the threads read. Each sums its own slice; the sums are kept so that no compiler drops the reads. */
struct reading {
    const uint64_t *data;
    size_t n;       /* words of a window */
    uint32_t side;  /* rows side by side: 1 or SIDE */
    uint32_t seed;  /* of the rows that are read; 0: all */
    uint64_t *sums; /* (n_threads, 8): a sum; how many words were read. One cache line each */
};

/* The rows of a slice that are read, one after the other. */
struct walk {
    const uint64_t *at, *end;
    bool some; /* one row in MEAN_GAP, drawn by draw */
    uint32_t draw;
};

/* The next rows, at most n; how many there are. */
static uint32_t next_rows(struct walk *w, uint32_t n, const uint64_t **row)
{
    uint32_t i = 0;

    for (; i < n && (size_t)(w->end - w->at) >= ROW_WORDS; i++) {
        size_t rows = 1;

        row[i] = w->at;
        if (w->some) {
            w->draw = w->draw * 1664525u + 1013904223u; /* Numerical Recipes */
            rows += (size_t)((uint64_t)w->draw * (2 * MEAN_GAP - 1) >> 32);
        }
        w->at += rows * ROW_WORDS < (size_t)(w->end - w->at) ? rows * ROW_WORDS
                                                             : (size_t)(w->end - w->at);
    }
    return i;
}

/* A few words that an instruction takes at once. */
typedef uint64_t words __attribute__((vector_size(16)));

static words sum_line(const uint64_t *line)
{
    words v[4];

    memcpy(v, line, sizeof(v));
    return (v[0] + v[1]) + (v[2] + v[3]);
}

/* Reads the rows of a walk, side at a time; a sum of what was read, and how many words. */
static uint64_t read_walk(struct walk walk, uint32_t side, uint64_t *n_words)
{
    const uint64_t *row[2][SIDE];
    words s[SIDE] = {{0}};
    uint64_t sum = 0;

    *n_words = 0;
    for (uint32_t n = next_rows(&walk, side, row[0]), n_next, turn = 0; n > 0; n = n_next) {
        const uint64_t *const *from = row[turn], **next = row[turn ^= 1];

        n_next = next_rows(&walk, side, next);
        for (uint32_t i = 0; i < ROW_WORDS; i += LINE_WORDS) {
            for (uint32_t k = 0; k < n_next; k++)
                __builtin_prefetch(next[k] + i, 0, 2);
            for (uint32_t k = 0; k < n; k++)
                s[k] += sum_line(from[k] + i);
        }
        *n_words += (uint64_t)n * ROW_WORDS;
    }
    for (uint32_t k = 0; k < SIDE; k++)
        sum += s[k][0] + s[k][1];
    return sum;
}

static size_t slice(const struct reading *r, uint32_t thread, uint32_t n_threads)
{
    return r->n / n_threads * thread / LINE_WORDS * LINE_WORDS;
}

static void read_slice(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const struct reading *r = ctx;
    const struct walk walk = {r->data + slice(r, thread, n_threads),
                              r->data + slice(r, thread + 1, n_threads), r->seed != 0,
                              r->seed * 2654435761u + thread};
    uint64_t out[8] = {0};

    out[0] = read_walk(walk, r->side, &out[7]);
    memcpy(r->sums + 8 * (size_t)thread, out, sizeof(out));
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
 * some are read undisturbed, and by the time one comes round again no cache holds it. Where one row in ten is read, windows are larger, and the next round takes other rows.
 * Windows are read row by row and by rows side by side in turn, and each window in the other way in the next round. */
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
        r.side = (w + w / n_windows) % 2 == 0 ? SIDE : 1;
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

uint64_t pi_bandwidth_read(const void *from, size_t bytes)
{
    const uint64_t *p = from;
    const size_t n = bytes / sizeof(*p);
    uint64_t done, sum = read_walk((struct walk){.at = p, .end = p + n}, SIDE, &done);

    for (size_t i = (size_t)done; i < n; i++)
        sum += p[i];
    return sum;
}
