/* Makes artifacts with known properties for the tests of the command line.
 *
 *   make_artifact placement M.gguf OUT SHARE   the first SHARE of each layer's neurons, scattered, on unit 1; 64 MiB; SHARE@CONTEXT: default 256
 *   make_artifact placement M.gguf OUT none    a budget of nothing: all on the CPU, one unit
 *   make_artifact gpu M.gguf OUT SHARE[:MIB[:CONTEXT]]   the same for a real GPU: 4 GiB or MIB (of them CONTEXT MiB noted as its context), the output there, predicted where there is a predictor; SHARE 1:
 *                                              all attention too
 *   make_artifact predictor M.gguf OUT perfect predicts from the gate itself (or fc1): misses nothing
 *   make_artifact predictor M.gguf OUT blind   never predicts a neuron
 *   make_artifact predictor M.gguf OUT half    like perfect, for every other layer
 *   make_artifact newer KIND M.gguf OUT        a major version ahead of ours
 *   make_artifact flip FILE OUT OFFSET         one bit flipped; a negative offset counts from the end
 *   make_artifact cut FILE OUT BYTES           the first BYTES; negative: all but the last
 *   make_artifact fill FILE OUT TENSOR VALUE   all of an F32 tensor set to VALUE; its checksum stays as it was */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum pi_code rc, const struct pi_err *e)
{
    if (rc == PI_OK)
        return;
    fprintf(stderr, "make_artifact: %s\n", e->msg);
    exit(1);
}

static void *get(size_t n, size_t size)
{
    struct pi_err e = {0};
    void *p = pi_calloc_array(n, size, &e);

    if (p == NULL)
        must(PI_E_NOMEM, &e);
    return p;
}

static void make_placement(const struct pi_model *m, const char *out, const char *how, bool gpu)
{
    const bool none = strcmp(how, "none") == 0;
    const char *mib = strchr(how, ':'), *ctx = strchr(how, '@'),
               *context = mib != NULL ? strchr(mib + 1, ':') : NULL;
    const double share = none ? 0 : strtod(how, NULL);
    struct pi_err e = {0};
    struct pi_placement p = {0};
    const uint32_t n_ff = m->shape.n_ff;

    must(pi_placement_cpu(m->shape.n_layer, n_ff, &p, &e), &e);
    for (uint32_t l = 0; l < p.n_layer; l++) {
        for (uint32_t i = 0; i < n_ff; i++) { /* an order far from the natural one */
            const uint32_t j = (i * 2654435761u + l) % n_ff, t = p.layers[l].order[i];

            p.layers[l].order[i] = p.layers[l].order[j];
            p.layers[l].order[j] = t;
        }
        p.layers[l].n_hot = (uint32_t)(share * n_ff);
        p.layers[l].hot_unit = 1;
        p.layers[l].attn_unit = !none && (l % 2 == 0 || (gpu && share >= 1)); /* both ways round */
        p.layers[l].mode_cpu = p.layers[l].mode_gpu = gpu ? PI_MODE_PREDICTED : PI_MODE_EXACT;
    }
    p.n_units = none ? 1 : 2;
    p.output_unit = gpu && !none;
    p.budget = mib != NULL ? strtoull(mib + 1, NULL, 10) << 20
               : none      ? 0
                           : (uint64_t)64 << (gpu ? 26 : 20);
    p.context_bytes = context != NULL ? strtoull(context + 1, NULL, 10) << 20 : 0;
    p.n_ctx = ctx != NULL ? (uint32_t)strtoul(ctx + 1, NULL, 10) : 256;
    p.n_seq = 1;
    p.n_batch = 256;
    p.kv_type = PI_TYPE_F32;
    strcpy(p.objective, "paper");
    strcpy(p.hardware, "none, for tests");
    p.lineage = m->lineage;
    p.fingerprint = m->fingerprint;
    must(pi_placement_save(out, &p, &e), &e);
    pi_placement_free(&p);
}

/* fc1 the identity and fc2 the gate: the scores are the gate's own outputs. */
static void fill_layer(const struct pi_model *m, uint32_t l, const char *how,
                       struct pi_predictor_layer *p)
{
    const uint32_t d = m->shape.n_embd, n_ff = m->shape.n_ff;
    const struct pi_mat *gate = m->shape.gated ? &m->layers[l].gate : &m->layers[l].up;
    const struct pi_cpu *cpu = pi_cpu_get(PI_ISA_SCALAR);
    float *fc1 = get((size_t)d * d, sizeof(float)), *fc2 = get((size_t)n_ff * d, sizeof(float));

    for (uint32_t i = 0; i < d; i++)
        fc1[(size_t)i * d + i] = 1;
    for (uint32_t i = 0; i < n_ff; i++)
        cpu->type[gate->type]->to_f32(pi_mat_row(gate, i), fc2 + (size_t)i * d, d);
    *p = (struct pi_predictor_layer){
        .width = d,
        .input = PI_PRED_IN_FFN_NORMED,
        .threshold = strcmp(how, "blind") == 0 ? 1e30f : -1e-4f,
        .fc1 = {.type = PI_TYPE_F32,
                .n_rows = d,
                .n_cols = d,
                .row_bytes = d * sizeof(float),
                .data = fc1},
        .fc2 = {.type = PI_TYPE_F32,
                .n_rows = n_ff,
                .n_cols = d,
                .row_bytes = d * sizeof(float),
                .data = fc2},
        .bias = m->shape.gated ? NULL : m->layers[l].up_b,
        .recall = 1,
        .precision = 1,
        .density = 0.01f, /* so that it is expected to pay */
    };
}

static void make_predictor(const struct pi_model *m, const char *out, const char *how)
{
    struct pi_err e = {0};
    struct pi_predictor p = {.n_layer = m->shape.n_layer,
                             .n_ff = m->shape.n_ff,
                             .n_embd = m->shape.n_embd,
                             .lineage = m->lineage};

    p.layers = get(p.n_layer, sizeof(*p.layers));
    for (uint32_t l = 0; l < p.n_layer; l++)
        if (strcmp(how, "half") != 0 || l % 2 == 0)
            fill_layer(m, l, how, &p.layers[l]);
    must(pi_predictor_save(out, &p, &e), &e);
    for (uint32_t l = 0; l < p.n_layer; l++) {
        free((void *)(uintptr_t)p.layers[l].fc1.data); /* ours, although a matrix only borrows */
        free((void *)(uintptr_t)p.layers[l].fc2.data);
    }
    free(p.layers);
}

static void make_newer(const struct pi_model *m, const char *kind, const char *out)
{
    struct pi_err e = {0};
    struct pi_gguf_writer *w = NULL;
    const enum pi_artifact_kind k = strcmp(kind, "profile") == 0     ? PI_ARTIFACT_PROFILE
                                    : strcmp(kind, "predictor") == 0 ? PI_ARTIFACT_PREDICTOR
                                                                     : PI_ARTIFACT_PLACEMENT;

    must(
        pi_artifact_create(out, k, PI_ARTIFACT_VERSION(2, 0), &m->lineage, &m->fingerprint, &w, &e),
        &e);
    must(pi_gguf_begin(w, &e), &e);
    must(pi_gguf_commit(w, &e), &e);
}

static void damage(const char *what, const char *in, const char *out, long long at)
{
    struct pi_err e = {0};
    char *text = NULL;
    size_t n, k;
    FILE *f;

    must(pi_file_read_all(in, false, (size_t)1 << 31, &text, &n, &e), &e);
    k = at < 0 ? n - (size_t)-at : (size_t)at;
    if (k >= n || (f = fopen(out, "wb")) == NULL)
        exit(1);
    if (strcmp(what, "flip") == 0) {
        text[k] = (char)(text[k] ^ 0x10);
        k = n;
    }
    if (fwrite(text, 1, k, f) != k || fclose(f) != 0)
        exit(1);
    free(text);
}

static void fill(const char *in, const char *out, const char *name, float value)
{
    struct pi_err e = {0};
    struct pi_gguf g = {0};
    const struct pi_gguf_tensor *t;
    FILE *f;
    size_t at;

    must(pi_gguf_open(in, 0, &g, &e), &e);
    t = pi_gguf_find_tensor(&g, name);
    f = fopen(out, "wb");
    if (t == NULL || t->type != PI_TYPE_F32 || f == NULL)
        exit(1);
    at = (size_t)(t->data - g.map.data);
    if (fwrite(g.map.data, 1, at, f) != at)
        exit(1);
    for (uint64_t i = 0; i < t->bytes; i += sizeof(value))
        if (fwrite(&value, sizeof(value), 1, f) != 1)
            exit(1);
    at += t->bytes;
    if (fwrite(g.map.data + at, 1, g.map.size - at, f) != g.map.size - at || fclose(f) != 0)
        exit(1);
    pi_gguf_close(&g);
}

int main(int argc, char **argv)
{
    struct pi_err e = {0};
    struct pi_model m = {0};
    const struct pi_model_options o = {0};
    const char *what = argc == 5 ? argv[1] : "";

    if (strcmp(what, "flip") == 0 || strcmp(what, "cut") == 0) {
        damage(what, argv[2], argv[3], strtoll(argv[4], NULL, 10));
        return 0;
    }
    if (argc == 6 && strcmp(argv[1], "fill") == 0) {
        fill(argv[2], argv[3], argv[4], strtof(argv[5], NULL));
        return 0;
    }
    if (strcmp(what, "placement") != 0 && strcmp(what, "gpu") != 0 &&
        strcmp(what, "predictor") != 0 && strcmp(what, "newer") != 0)
        return 1;
    must(pi_model_open(strcmp(what, "newer") == 0 ? argv[3] : argv[2], &o, &m, &e), &e);
    if (strcmp(what, "placement") == 0 || strcmp(what, "gpu") == 0)
        make_placement(&m, argv[3], argv[4], strcmp(what, "gpu") == 0);
    else if (strcmp(what, "predictor") == 0)
        make_predictor(&m, argv[3], argv[4]);
    else
        make_newer(&m, argv[2], argv[4]);
    pi_model_close(&m);
    return 0;
}
