/*
 * reference_case.h - cases of known answers for the programs that compare with them: a folder holds reference.json (cases with prompt, tokens,
 * greedy_continuation, margins and where the logits lie) and logits.f32. What is damaged there ends the program.
 */
#ifndef REFERENCE_CASE_H
#define REFERENCE_CASE_H

#include "common/pi_file.h"
#include "runtime/pi_eval.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEQ 1024

struct ref_case {
    const char *prompt;
    int32_t seq[MAX_SEQ]; /* prompt and greedy continuation */
    size_t n_prompt, n_seq;
    double margins[MAX_SEQ];
    size_t n_greedy, from, n_rows, n_vocab;
    const float *logits; /* (n_rows, n_vocab) of positions from.. */
};

static inline void die(const char *what, const char *detail)
{
    printf("Bail out! %s: %s\n", what, detail);
    exit(99);
}

static inline void must(enum pi_code rc, const struct pi_err *e)
{
    if (rc != PI_OK)
        die(pi_code_text(rc), e->msg);
}

static inline json_t *load_reference(const char *folder)
{
    char path[4096];
    json_error_t e;
    json_t *root;

    (void)snprintf(path, sizeof(path), "%s/reference.json", folder);
    root = json_load_file(path, 0, &e);
    if (root == NULL)
        die(path, e.text);
    return root;
}

static inline size_t read_ids(const json_t *a, int32_t *out, size_t at)
{
    for (size_t i = 0; i < json_array_size(a); i++) {
        if (at >= MAX_SEQ)
            die("reference.json", "a sequence is too long");
        out[at++] = (int32_t)json_integer_value(json_array_get(a, i));
    }
    return at;
}

static inline void read_case(const json_t *j, const struct pi_map *map, struct ref_case *c)
{
    const json_t *shape = json_object_get(j, "logits_shape"),
                 *margins = json_object_get(j, "margins");
    const size_t offset = (size_t)json_integer_value(json_object_get(j, "logits_offset_floats"));

    memset(c, 0, sizeof(*c));
    c->prompt = json_string_value(json_object_get(j, "prompt"));
    c->n_prompt = read_ids(json_object_get(j, "tokens"), c->seq, 0);
    c->n_seq = read_ids(json_object_get(j, "greedy_continuation"), c->seq, c->n_prompt);
    c->n_greedy = c->n_seq - c->n_prompt;
    for (size_t i = 0; i < json_array_size(margins) && i < MAX_SEQ; i++)
        c->margins[i] = json_number_value(json_array_get(margins, i));
    c->from = (size_t)json_integer_value(json_object_get(j, "logits_from_position"));
    c->n_rows = (size_t)json_integer_value(json_array_get(shape, 0));
    c->n_vocab = (size_t)json_integer_value(json_array_get(shape, 1));
    if (c->prompt == NULL || c->n_rows == 0 || c->from + c->n_rows > c->n_seq ||
        (offset + c->n_rows * c->n_vocab) * sizeof(float) > map->size)
        die("reference.json", "a case contradicts itself");
    c->logits = (const float *)(const void *)map->data + offset;
}

static inline double distance(const float *got, const float *want, size_t n)
{
    double max = 0, delta = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);

        if (!(d <= delta))
            delta = d; /* NaN sticks, and compares as no match */
        max = fmax(max, fabs((double)want[i]));
    }
    return delta / max;
}

static inline void open_logits(const char *folder, struct pi_map *map)
{
    char path[4096];
    struct pi_err e = {0};

    (void)snprintf(path, sizeof(path), "%s/logits.f32", folder);
    must(pi_map_open(path, map, &e), &e);
}

struct rows {
    float *to;
    size_t n_vocab;
};

static inline enum pi_code keep_row(void *ctx, uint32_t i, const float *logits, struct pi_err *err)
{
    const struct rows *r = ctx;

    (void)err;
    memcpy(r->to + (size_t)i * r->n_vocab, logits, r->n_vocab * sizeof(float));
    return PI_OK;
}

/* Logits (n, n_vocab) of a sequence from an empty cache on. */
static inline void ref_feed(struct pi_engine *engine, const struct pi_model *m, const int32_t *ids,
                            size_t n, bool stepwise, float *to)
{
    struct pi_err e = {0};
    struct rows r = {.to = to, .n_vocab = m->shape.n_vocab};

    pi_engine_truncate(engine, 0, 0);
    must(pi_eval_feed(engine, m, ids, (uint32_t)n, 0, stepwise, keep_row, &r, &e), &e);
}

struct ref_greedy {
    size_t same, due;
};

/* Greedy text up to the first step whose margin is below twice the tolerance. got: logits of the first n positions. The sequence fed is
 * the expected one, which is the same until the first difference. */
static inline struct ref_greedy ref_greedy(const struct ref_case *c, const float *got, size_t n,
                                           double tol)
{
    struct ref_greedy g = {0, 0};

    while (g.due < c->n_greedy && c->margins[g.due] >= 2 * tol && c->n_prompt - 1 + g.due < n &&
           c->n_prompt - 1 + g.due < c->from + c->n_rows)
        g.due++;
    for (size_t i = 0; i < g.due; i++)
        g.same += pi_argmax(got + (c->n_prompt - 1 + i) * c->n_vocab, (uint32_t)c->n_vocab) ==
                  c->seq[c->n_prompt + i];
    return g;
}

#endif
