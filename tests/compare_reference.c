/* Compares this project's results with cases of known answers. A folder holds reference.json (cases with prompt, tokens,
 * greedy_continuation, margins and where the logits lie) and logits.f32.
 *
 *   compare_reference model M.gguf FOLDER [TOL]   tokenisation, logits of prompt phase and of decode steps, greedy text; TOL: with an F16 KV cache
 *   compare_reference pair A.gguf B.gguf FOLDER TOL   logits of A against those of B on the folder's tokens
 *   compare_reference greedy FOLDER CASE TOL  pi-run --json on standard input against a case's greedy text
 *   compare_reference perplexity FOLDER REL   pi-run --perplexity --json on standard input
 *
 * Prints TAP lines without numbers and without a plan: the script that calls it adds both. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_pool.h"
#include "common/pi_tokenizer.h"
#include "runtime/pi_blas.h"
#include "tests/reference_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct subject {
    struct pi_model model;
    struct pi_tokenizer *tok;
    struct pi_pool *pool;
};

static int failures;
static double f16_kv_tol = 1e-3;

static void say(bool ok, const char *name, const char *what, double figure, double limit)
{
    printf("%sok - %s: %s %.3g (limit %.3g)\n", ok ? "" : "not ", name, what, figure, limit);
    failures += !ok;
}

/* All logits of a sequence of n tokens, (n, n_vocab), through a new engine. */
static void run(struct subject *s, enum pi_mode mode, enum pi_type kv, bool stepwise,
                const int32_t *ids, size_t n, float *to)
{
    struct pi_err e = {0};
    const struct pi_engine_options o = {
        .mode = mode, .n_ctx = (uint32_t)n, .n_seq = 1, .kv_type = kv};
    struct pi_engine *engine = NULL;

    must(pi_engine_create(&s->model, NULL, NULL, s->pool, &o, &engine, &e), &e);
    ref_feed(engine, &s->model, ids, n, stepwise, to);
    pi_engine_destroy(engine);
}

static void check_greedy(const struct ref_case *c, const float *got, double tol, const char *name)
{
    const struct ref_greedy g = ref_greedy(c, got, c->n_seq, tol);

    say(g.same == g.due, name, "greedy steps equal", (double)g.same, (double)g.due);
}

static void check_phase(struct subject *s, const struct ref_case *c, enum pi_mode mode,
                        enum pi_type kv, bool stepwise, const char *what, float *got)
{
    const double tol = kv == PI_TYPE_F32 ? 2e-5 : f16_kv_tol;
    const size_t n = c->from + c->n_rows;
    char name[200];
    double d;

    (void)snprintf(name, sizeof(name), "%s, %s KV, \"%.12s\"", what, pi_type_name(kv), c->prompt);
    run(s, mode, kv, stepwise, c->seq, n, got);
    d = distance(got + c->from * c->n_vocab, c->logits, c->n_rows * c->n_vocab);
    say(d <= tol, name, "max|delta|/max|logit|", d, tol);
    check_greedy(c, got, tol, name);
}

static void check_tokens(const struct subject *s, const struct ref_case *c)
{
    struct pi_err e = {0};
    struct pi_tokens t = {0};
    size_t same = 0;

    must(pi_tokenizer_encode(s->tok, c->prompt, strlen(c->prompt), pi_tokenizer_add_bos(s->tok),
                             false, &t, &e),
         &e);
    for (size_t i = 0; i < t.n && i < c->n_prompt; i++)
        same += t.ids[i] == c->seq[i];
    say(same == c->n_prompt && t.n == c->n_prompt, c->prompt, "tokens equal", (double)same,
        (double)c->n_prompt);
    pi_tokens_free(&t);
}

static void check_case(struct subject *s, const struct ref_case *c)
{
    static const enum pi_type kv[2] = {PI_TYPE_F32, PI_TYPE_F16};
    struct pi_err e = {0};
    float *got = pi_calloc_array(c->n_seq * c->n_vocab, sizeof(float), &e);

    if (got == NULL)
        die("memory", e.msg);
    if (c->n_vocab != s->model.shape.n_vocab)
        die("vocabulary", "model and reference differ");
    check_tokens(s, c);
    for (int k = 0; k < 2; k++) {
        check_phase(s, c, PI_MODE_DENSE, kv[k], false, "prompt phase", got);
        check_phase(s, c, PI_MODE_DENSE, kv[k], true, "decode dense", got);
        if (pi_activation_has_zeros(s->model.shape.act))
            check_phase(s, c, PI_MODE_EXACT, kv[k], true, "decode exact", got);
    }
    free(got);
}

static void open_subject(const char *path, uint32_t n_threads, struct subject *s)
{
    struct pi_err e = {0};
    const struct pi_model_options o = {.check_crc = true};
    uint64_t bytes;

    must(pi_model_open(path, &o, &s->model, &e), &e);
    must(pi_tokenizer_create(&s->model.file, &s->tok, &e), &e);
    must(pi_pool_create(n_threads, &s->pool, &e), &e);
    must(pi_model_transpose_down(&s->model, &bytes, &e), &e);
    must(pi_blas_init(&e), &e);
}

static void close_subject(struct subject *s)
{
    pi_pool_destroy(s->pool);
    pi_tokenizer_destroy(s->tok);
    pi_model_close(&s->model);
}

static void compare_model(const char *model, const char *folder)
{
    static struct ref_case c;
    struct subject s = {0};
    struct pi_map map = {0};
    json_t *root = load_reference(folder), *cases = json_object_get(root, "cases");

    open_subject(model, 0, &s);
    open_logits(folder, &map);
    if (json_array_size(cases) == 0)
        die(folder, "no cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        read_case(json_array_get(cases, i), &map, &c);
        check_case(&s, &c);
    }
    pi_map_close(&map);
    close_subject(&s);
    json_decref(root);
}

/* One phase of both models on one sequence. */
static void compare_phase(struct subject *a, struct subject *b, const struct ref_case *c,
                          bool stepwise, double tol)
{
    struct pi_err e = {0};
    const size_t n = c->n_seq * a->model.shape.n_vocab;
    float *got = pi_calloc_array(n, sizeof(float), &e),
          *want = pi_calloc_array(n, sizeof(float), &e);
    const enum pi_mode mode =
        pi_activation_has_zeros(a->model.shape.act) ? PI_MODE_EXACT : PI_MODE_DENSE;
    double d;

    if (got == NULL || want == NULL)
        die("memory", e.msg);
    run(a, mode, PI_TYPE_F32, stepwise, c->seq, c->n_seq, got);
    run(b, mode, PI_TYPE_F32, stepwise, c->seq, c->n_seq, want);
    d = distance(got, want, n);
    say(d <= tol, stepwise ? "decode" : "prompt phase", c->prompt, d, tol);
    free(got);
    free(want);
}

static void compare_pair(const char *path_a, const char *path_b, const char *folder, double tol)
{
    static struct ref_case c;
    struct subject a = {0}, b = {0};
    struct pi_map map = {0};
    json_t *root = load_reference(folder), *cases = json_object_get(root, "cases");

    /* Two pools on one machine would wait for each other; sums do not depend on threads. */
    open_subject(path_a, 1, &a);
    open_subject(path_b, 1, &b);
    open_logits(folder, &map);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        read_case(json_array_get(cases, i), &map, &c);
        compare_phase(&a, &b, &c, false, tol);
        compare_phase(&a, &b, &c, true, tol);
    }
    pi_map_close(&map);
    close_subject(&a);
    close_subject(&b);
    json_decref(root);
}

static json_t *read_stdin(void)
{
    json_error_t e;
    json_t *j = json_loadf(stdin, 0, &e); /* refuses anything behind the object */

    if (j == NULL)
        die("standard input is not one JSON object", e.text);
    return j;
}

static void compare_greedy(const char *folder, size_t which, double tol)
{
    static struct ref_case c;
    struct pi_map map = {0};
    json_t *root = load_reference(folder), *run_json = read_stdin();
    const json_t *tokens = json_object_get(run_json, "tokens");
    size_t due = 0, same = 0;

    open_logits(folder, &map);
    read_case(json_array_get(json_object_get(root, "cases"), which), &map, &c);
    while (due < c.n_greedy && c.margins[due] >= 2 * tol)
        due++;
    for (size_t i = 0; i < due; i++)
        same += json_integer_value(json_array_get(tokens, i)) == c.seq[c.n_prompt + i];
    say(same == due && json_array_size(tokens) == c.n_greedy, c.prompt, "generated tokens equal",
        (double)same, (double)due);
    pi_map_close(&map);
    json_decref(run_json);
    json_decref(root);
}

static void compare_perplexity(const char *folder, double rel)
{
    json_t *root = load_reference(folder), *run_json = read_stdin();
    const double want = json_number_value(json_object_get(root, "perplexity"));
    const double got = json_number_value(json_object_get(run_json, "perplexity"));
    const double d = fabs(got / want - 1);

    say(d <= rel, folder, "perplexity, relative difference", d, rel);
    say(json_integer_value(json_object_get(run_json, "tokens")) ==
            json_integer_value(json_object_get(root, "tokens_scored")),
        folder, "tokens scored", (double)json_integer_value(json_object_get(run_json, "tokens")),
        (double)json_integer_value(json_object_get(root, "tokens_scored")));
    json_decref(run_json);
    json_decref(root);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "model") == 0 && argc == 5)
        f16_kv_tol = strtod(argv[4], NULL);
    if (strcmp(what, "model") == 0 && (argc == 4 || argc == 5))
        compare_model(argv[2], argv[3]);
    else if (strcmp(what, "pair") == 0 && argc == 6)
        compare_pair(argv[2], argv[3], argv[4], strtod(argv[5], NULL));
    else if (strcmp(what, "greedy") == 0 && argc == 5)
        compare_greedy(argv[2], strtoul(argv[3], NULL, 10), strtod(argv[4], NULL));
    else if (strcmp(what, "perplexity") == 0 && argc == 4)
        compare_perplexity(argv[2], strtod(argv[3], NULL));
    else
        die("usage", "compare_reference model|pair|greedy|perplexity ...");
    return failures > 0;
}
