/*
 * bench_modes - decode steps of one model in every mode, one after the other in the same run, part by part, beside a sequential read of the file.
 *
 *   bench_modes [--act f32|q8] MODEL.gguf [THREADS [STEPS [SEQUENCES [nopin]]]]      (usable cores, 16, 1)
 *
 * CPU alone, a random token of each sequence a step, at position 0; all steps ROUNDS times over. A predictor beside the model is used. --act: activations of
 * quantised matrices; default f32. Milliseconds: the mean over the steps of each one's least time, and the median of all. x: time of the feed-forward block (predictor included) against the dense one's,
 * over bytes read against the bytes that dense reads, all steps together: 1 where sparse access is as fast as sequential access. of read: the block's bytes per second against those
 * of the sequential read.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_bandwidth.h"
#include "common/pi_file.h"
#include "common/pi_progress.h"
#include "runtime/pi_engine_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODES     3
#define MAX_STEPS 1000u
#define MAX_SEQS  32u
#define ROUNDS    5u

enum part {
    ATTENTION,
    PREDICT,
    FFN,
    OTHER,
    PARTS
};

struct rig {
    struct pi_model model;
    struct pi_predictor pred;
    bool has_pred;
    struct pi_pool *pool;
    struct pi_engine *engine[MODES];
    double *times[MODES][PARTS]; /* (ROUNDS, steps) */
    double *read;                /* (ROUNDS, steps) */
    double *bytes[MODES];        /* (steps) of feed-forward blocks and predictors */
    float *logits;
    uint64_t sum[1024];
    uint32_t steps, seqs;
};

static void check(enum pi_code rc, const struct pi_err *e)
{
    if (rc != PI_OK) {
        (void)fprintf(stderr, "bench_modes: %s\n", e->msg);
        exit(pi_code_exit_status(rc));
    }
}

static void *need(size_t n, size_t size)
{
    struct pi_err e = {0};
    void *p = pi_calloc_array(n, size, &e);

    check(p != NULL ? PI_OK : PI_E_NOMEM, &e);
    return p;
}

static void read_file(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct rig *r = ctx;
    const size_t n = r->model.file.map.size / 64, begin = n * thread / n_threads * 64,
                 end = n * (thread + 1) / n_threads * 64;

    r->sum[thread % 1024] = pi_bandwidth_read(r->model.file.map.data + begin, end - begin);
}

static enum part part_of(int kind)
{
    switch (kind) {
    case PI_OP_ATTN_NORM:
    case PI_OP_QKV:
    case PI_OP_ATTN:
    case PI_OP_ATTN_OUT:
        return ATTENTION;
    case PI_OP_PREDICT:
        return PREDICT;
    case PI_OP_FFN_NORM:
    case PI_OP_FFN:
    case PI_OP_MERGE:
        return FFN;
    default:
        return OTHER;
    }
}

static uint64_t ffn_bytes(const struct rig *r, const struct pi_engine_stats *st)
{
    const struct pi_mat *up = &r->model.layers[0].up, *fc2 = &r->pred.layers[0].fc2;
    uint64_t bytes = st->weights_ffn / up->n_cols * up->row_bytes;

    bytes += r->has_pred ? st->weights_pred / fc2->n_cols * fc2->row_bytes : 0;
    /* attention and output matrices are shared by all sequences; the rest of what is shared is the block's */
    return bytes - (st->bytes_shared - (r->seqs - 1) * (st->bytes - bytes) / r->seqs);
}

static void step(struct rig *r, int mode, uint32_t round, uint32_t i, const int32_t *token)
{
    static const int32_t pos[MAX_SEQS];
    uint32_t seq[MAX_SEQS];
    const struct pi_batch b = {.n_tok = r->seqs, .token = token, .pos = pos, .seq = seq};
    struct pi_engine_stats st;
    struct pi_err e = {0};
    double spent[PI_OP_KINDS] = {0};
    const size_t at = (size_t)round * r->steps + i;

    for (uint32_t k = 0; k < r->seqs; k++)
        seq[k] = k;
    r->engine[mode]->exec.spent = spent;
    check(pi_engine_run(r->engine[mode], PI_PHASE_DECODE, &b, r->logits, &e), &e);
    pi_engine_take_stats(r->engine[mode], &st);
    r->bytes[mode][i] = (double)ffn_bytes(r, &st);
    for (int p = 0; p < PARTS; p++)
        r->times[mode][p][at] = 0.0;
    for (int k = 0; k < PI_OP_KINDS; k++)
        r->times[mode][part_of(k)][at] += spent[k];
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Of (ROUNDS, n) values: the mean of the n least ones of all rounds. */
static double least(const double *v, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        double low = v[i];

        for (uint32_t k = 1; k < ROUNDS; k++)
            low = v[(size_t)k * n + i] < low ? v[(size_t)k * n + i] : low;
        sum += low;
    }
    return sum / n;
}

static double median(const double *v, uint32_t n)
{
    const size_t all = (size_t)ROUNDS * n;
    double *sorted = need(all, sizeof(*sorted)), q;

    memcpy(sorted, v, all * sizeof(*sorted));
    qsort(sorted, all, sizeof(*sorted), compare);
    q = sorted[all / 2];
    free(sorted);
    return q;
}

static void report(struct rig *r, double (*of)(const double *, uint32_t), const char *name)
{
    const double read = of(r->read, r->steps) / (double)r->model.file.map.size;
    double dense = 0.0;

    printf("%-9s sequential read %.1f GB/s\n", name, 1e-9 / read);
    for (int m = 0; m < MODES; m++) {
        double ms[PARTS], *block, cost, bytes = 0.0;

        if (r->engine[m] == NULL)
            continue;
        block = need((size_t)ROUNDS * r->steps, sizeof(*block));
        for (size_t i = 0; i < (size_t)ROUNDS * r->steps; i++)
            block[i] = r->times[m][FFN][i] + r->times[m][PREDICT][i];
        for (uint32_t i = 0; i < r->steps; i++)
            bytes += r->bytes[m][i] / r->steps;
        for (int p = 0; p < PARTS; p++)
            ms[p] = 1e3 * of(r->times[m][p], r->steps);
        cost = of(block, r->steps) / bytes;
        dense = m == 0 ? cost : dense;
        printf(
            "%-9s %-9s attention %6.2f  predictor %6.2f  feed-forward %6.2f  other %5.2f ms; block reads %.1f MB, %.2f of read, x %.3f\n",
            name, pi_mode_name((enum pi_mode)m), ms[ATTENTION], ms[PREDICT], ms[FFN], ms[OTHER],
            1e-6 * bytes, read / cost, cost / dense);
        free(block);
    }
}

static void open_all(struct rig *r, const char *path, uint32_t threads, bool pin,
                     enum pi_act_type act)
{
    const struct pi_model_options mo = {0};
    struct pi_err e = {0};
    char *pred = NULL;

    check(pi_model_open(path, &mo, &r->model, &e), &e);
    check(pi_path_find_artifact(NULL, path, "predictor", &pred, &e), &e);
    r->has_pred = pred != NULL;
    if (pred != NULL)
        check(pi_predictor_load(pred, &r->pred, &e), &e);
    free(pred);
    check(pi_pool_create(threads, &r->pool, &e), &e);
    check(pi_pool_bind(r->pool, PI_NUMA_DISTRIBUTE, pin, &e), &e);
    for (int m = 0; m < MODES - !r->has_pred; m++) {
        struct pi_engine_options eo = {.mode = (enum pi_mode)m,
                                       .act = act,
                                       .n_ctx = 16,
                                       .n_seq = r->seqs,
                                       .kv_type = PI_TYPE_F16,
                                       .force_predicted = true};

        check(pi_engine_create(&r->model, m == PI_MODE_PREDICTED ? &r->pred : NULL, NULL, r->pool,
                               &eo, &r->engine[m], &e),
              &e);
    }
}

/* All steps, each in every mode and beside a read. */
static void one_round(struct rig *r, uint32_t round)
{
    uint32_t seed = 1;

    for (uint32_t i = 0; i < r->steps; i++) {
        double *read = &r->read[(size_t)round * r->steps + i];
        int32_t token[MAX_SEQS];

        for (uint32_t k = 0; k < r->seqs; k++) {
            seed = seed * 1664525u + 1013904223u;
            token[k] = (int32_t)((uint64_t)seed * r->model.shape.n_vocab >> 32);
        }
        for (int m = 0; m < MODES && r->engine[m] != NULL; m++)
            step(r, m, round, i, token);
        *read = pi_now();
        pi_pool_run(r->pool, read_file, r);
        *read = pi_now() - *read;
    }
}

int main(int argc, char **argv)
{
    static struct rig r;
    enum pi_act_type act = PI_ACT_TYPE_F32;

    if (argc > 2 && strcmp(argv[1], "--act") == 0) {
        act = strcmp(argv[2], "q8") == 0 ? PI_ACT_TYPE_Q8 : PI_ACT_TYPE_F32;
        argv += 2;
        argc -= 2;
    }
    if (argc < 2) {
        (void)fprintf(
            stderr,
            "usage: bench_modes [--act f32|q8] MODEL.gguf [THREADS [STEPS [SEQUENCES [nopin]]]]\n");
        return 2;
    }
    r.steps = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 16;
    r.steps = r.steps < 1 || r.steps > MAX_STEPS ? MAX_STEPS : r.steps;
    r.seqs = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 1;
    r.seqs = r.seqs < 1 || r.seqs > MAX_SEQS ? MAX_SEQS : r.seqs;
    open_all(&r, argv[1], argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0, argc < 6, act);
    r.logits = need((size_t)r.seqs * r.model.shape.n_vocab, sizeof(float));
    r.read = need((size_t)ROUNDS * r.steps, sizeof(double));
    for (int m = 0; m < MODES; m++)
        r.bytes[m] = need(r.steps, sizeof(double));
    for (int m = 0; m < MODES; m++)
        for (int p = 0; p < PARTS; p++)
            r.times[m][p] = need((size_t)ROUNDS * r.steps, sizeof(double));
    for (uint32_t round = 0; round < ROUNDS; round++)
        one_round(&r, round);
    printf("%u threads%s, activations %s, %s\n", pi_pool_size(r.pool),
           pi_pool_place(r.pool).own_cores ? " with a core each" : "", pi_act_type_name(act),
           argv[1]);
    report(&r, least, "least");
    report(&r, median, "median");
    for (int m = 0; m < MODES; m++) {
        pi_engine_destroy(r.engine[m]);
        free(r.bytes[m]);
        for (int p = 0; p < PARTS; p++)
            free(r.times[m][p]);
    }
    pi_pool_destroy(r.pool);
    pi_predictor_free(&r.pred);
    pi_model_close(&r.model);
    free(r.logits);
    free(r.read);
    return 0;
}
