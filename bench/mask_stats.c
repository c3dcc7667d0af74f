/*
 * mask_stats - what a predictor is worth, recomputed from the sets that pi-run --masks wrote.
 *
 *   mask_stats MODEL.gguf PREDICTOR.gguf MASKS...
 *
 * Per layer: recall, precision, density, and the weights read over what exact mode reads: the predictor, the gate
 * (or fc1) rows of the predicted neurons and the other rows of those truly active, over all gate rows and the same
 * other rows. A layer without predictor reads 1. The sets of all files are taken together.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_gguf.h"
#include "common/pi_opt.h"
#include "common/pi_predictor.h"
#include "common/pi_shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct counts {
    uint64_t predicted, truth, both;
};

static const struct pi_program program = {.name = "mask_stats"};

static uint64_t bits(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (uint64_t)__builtin_popcount(a[i] & b[i]);
    return sum;
}

/* Adds one file to the counts (n_layer) and positions. */
static enum pi_code add_file(const char *path, uint32_t n_layer, uint32_t n_ff, struct counts *c,
                             uint64_t *positions, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_map map = {0};
    const size_t set = (n_ff + 7) / 8;
    uint32_t head[3];

    PI_TRY(pi_map_open(path, &map, err));
    if (map.size < sizeof(head))
        PI_FAIL(err, PI_E_CORRUPT, "%s: no masks", path);
    memcpy(head, map.data, sizeof(head));
    if (head[1] != n_layer || head[2] != n_ff ||
        map.size != sizeof(head) + (uint64_t)head[0] * n_layer * 2 * set)
        PI_FAIL(err, PI_E_MISMATCH,
                "%s: %u positions of %u layers of %u neurons in %zu bytes: not this model's", path,
                head[0], head[1], head[2], map.size);
    for (uint64_t i = 0; i < (uint64_t)head[0] * n_layer; i++) {
        const uint8_t *p = map.data + sizeof(head) + i * 2 * set, *t = p + set;
        struct counts *l = &c[i % n_layer];

        l->predicted += bits(p, p, set);
        l->truth += bits(t, t, set);
        l->both += bits(p, t, set);
    }
    *positions += head[0];
out:
    pi_map_close(&map);
    return rc;
}

static double over(double a, double b)
{
    return b > 0 ? a / b : 1;
}

static void print_table(const struct pi_shape *s, const struct pi_predictor *p,
                        const struct counts *c, uint64_t positions)
{
    const double rows = (double)positions * s->n_ff, others = s->gated ? 2 : 1;
    double sum_read = 0, lowest = 1;

    printf("%5s %6s %8s %10s %9s %8s %7s\n", "layer", "width", "recall", "precision", "predicted",
           "active", "read");
    for (uint32_t l = 0; l < s->n_layer; l++) {
        const struct pi_predictor_layer *pl = &p->layers[l];
        const double net =
            (double)positions * pl->width * ((double)s->n_embd + s->n_ff) / s->n_embd;
        const double rest = others * (double)c[l].truth;
        const double recall = over((double)c[l].both, (double)c[l].truth);
        const double read =
            pl->width > 0 ? (net + (double)c[l].predicted + rest) / (rows + rest) : 1;

        sum_read += read;
        if (pl->width > 0 && recall < lowest)
            lowest = recall;
        printf("%5u %6u %7.2f%% %9.2f%% %8.2f%% %7.2f%% %7.3f\n", l, pl->width, 100 * recall,
               100 * over((double)c[l].both, (double)c[l].predicted),
               100 * (double)c[l].predicted / rows, 100 * (double)c[l].truth / rows, read);
    }
    printf(
        "%llu positions; lowest recall of a kept layer %.2f %%; mean read %.3f of exact mode's weights\n",
        (unsigned long long)positions, 100 * lowest, sum_read / s->n_layer);
}

int main(int argc, char **argv)
{
    enum pi_code rc = PI_OK;
    struct pi_err err = {0};
    struct pi_common_opts common = {0};
    struct pi_gguf model = {0};
    struct pi_predictor pred = {0};
    struct pi_shape shape;
    struct counts *c = NULL;
    uint64_t positions = 0;

    if (argc < 4)
        PI_FAIL(&err, PI_E_USAGE, "usage: mask_stats MODEL.gguf PREDICTOR.gguf MASKS...");
    PI_TRY(pi_gguf_open(argv[1], 0, &model, &err));
    PI_TRY(pi_shape_read(&model, NULL, &shape, &err));
    PI_TRY(pi_predictor_load(argv[2], &pred, &err));
    if (pred.n_layer != shape.n_layer || pred.n_ff != shape.n_ff || pred.n_embd != shape.n_embd)
        PI_FAIL(&err, PI_E_MISMATCH, "%s is not for %s", argv[2], argv[1]);
    PI_ALLOC(c, shape.n_layer, &err);
    for (int i = 3; i < argc; i++)
        PI_TRY(add_file(argv[i], shape.n_layer, shape.n_ff, c, &positions, &err));
    print_table(&shape, &pred, c, positions);
out:
    free(c);
    pi_predictor_free(&pred);
    pi_gguf_close(&model);
    return pi_program_end(&program, &common, rc, &err);
}
