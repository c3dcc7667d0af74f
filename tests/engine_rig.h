/*
 * engine_rig.h - a tiny model with all that an engine borrows, shared by the engine's tests.
 */
#ifndef ENGINE_RIG_H
#define ENGINE_RIG_H

#include "runtime/pi_engine.h"

#include "tests/tap.h"
#include "tests/tiny_model.h"

#define N_TOK 12

static const int32_t tokens[N_TOK] = {1, 17, 5, 5, 40, 63, 0, 22, 9, 31, 48, 2};
static const int32_t positions[N_TOK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static const struct tiny llama = {.arch = PI_ARCH_LLAMA,
                                  .n_layer = 2,
                                  .n_embd = 64,
                                  .n_ff = 96,
                                  .n_head = 4,
                                  .n_head_kv = 4,
                                  .head_dim = 16,
                                  .n_vocab = 64,
                                  .n_ctx = 32,
                                  .type = PI_TYPE_F32,
                                  .down_t = true,
                                  .seed = 1};
static const struct tiny opt = {.arch = PI_ARCH_OPT,
                                .n_layer = 2,
                                .n_embd = 64,
                                .n_ff = 96,
                                .n_head = 4,
                                .n_head_kv = 4,
                                .head_dim = 16,
                                .n_vocab = 64,
                                .n_ctx = 32,
                                .type = PI_TYPE_F32,
                                .down_t = true,
                                .tied = true,
                                .seed = 2};

/* A model and what runs on it. */
struct rig {
    struct tiny t;
    struct pi_model m;
    struct pi_pool *pool;
    struct pi_placement place;
    struct pi_place_layer layers[4];
    struct pi_predictor pred;
    struct pi_predictor_layer pred_layers[4];
    uint32_t *order;
    float *fc1, *fc2[4];
    struct pi_err e;
};

static inline void rig_open(struct rig *r, const struct tiny *t, uint32_t n_threads)
{
    struct pi_model_options mo = {.check_crc = true};
    static int n_files;
    char name[32];
    const char *path;

    memset(r, 0, sizeof(*r));
    r->t = *t;
    (void)snprintf(name, sizeof(name), "m%d.gguf", n_files++);
    path = tiny_path(name);
    tiny_write(t, path);
    PASSES(pi_model_open(path, &mo, &r->m, &r->e), r->e);
    PASSES(pi_pool_create(n_threads, &r->pool, &r->e), r->e);
    r->order = malloc(t->n_ff * sizeof(*r->order));
    for (uint32_t i = 0; i < t->n_ff; i++)
        r->order[i] =
            (i * 35 + 7) % t->n_ff; /* 35 and n_ff have no common factor in all models here */
    r->place = (struct pi_placement){
        .n_layer = t->n_layer, .n_ff = t->n_ff, .n_units = 2, .layers = r->layers};
    for (uint32_t l = 0; l < t->n_layer; l++)
        r->layers[l] = (struct pi_place_layer){.order = r->order,
                                               .hot_unit = 1,
                                               .mode_cpu = PI_MODE_PREDICTED,
                                               .mode_gpu = PI_MODE_PREDICTED,
                                               .attn_unit = l & 1};
    r->place.output_unit = 1;
}

static inline void rig_close(struct rig *r)
{
    pi_model_close(&r->m);
    pi_pool_destroy(r->pool);
    free(r->order);
    free(r->fc1);
    for (int l = 0; l < 4; l++)
        free(r->fc2[l]);
}

static inline struct pi_engine *engine(struct rig *r, const struct pi_engine_options *o)
{
    struct pi_engine_options opts = *o;
    struct pi_engine *e = NULL;

    opts.n_ctx = opts.n_ctx == 0 ? 32 : opts.n_ctx;
    opts.n_seq = opts.n_seq == 0 ? 1 : opts.n_seq;
    if (opts.gpu_patience <= 0.0) /* an emulated GPU is a thread of a machine that may be busy */
        opts.gpu_patience = 60.0;
    opts.kv_type = opts.kv_type == PI_TYPE_F16 ? PI_TYPE_F16 : PI_TYPE_F32;
    PASSES(pi_engine_create(&r->m, opts.mode == PI_MODE_PREDICTED ? &r->pred : NULL,
                            opts.two_units || opts.on_gpu ? &r->place : NULL, r->pool, &opts, &e, &r->e),
           r->e);
    if (e == NULL)
        exit(1);
    return e;
}

#define F32KV .kv_type = PI_TYPE_F32

/* Logits of all tokens, in one prompt or step by step; the caller's to free(). */
static inline float *run(struct rig *r, const struct pi_engine_options *o, bool step)
{
    struct pi_engine *e = engine(r, o);
    float *out = malloc(sizeof(*out) * N_TOK * r->t.n_vocab);
    struct pi_batch b = {.n_tok = N_TOK, .token = tokens, .pos = positions};

    if (!step)
        PASSES(pi_engine_run(e, PI_PHASE_PROMPT, &b, out, &r->e), r->e);
    for (uint32_t i = 0; step && i < N_TOK; i++) {
        struct pi_batch one = {.n_tok = 1, .token = tokens + i, .pos = positions + i};

        if (pi_engine_run(e, PI_PHASE_DECODE, &one, out + (size_t)i * r->t.n_vocab, &r->e) != PI_OK)
            PASSES(r->e.code, r->e);
    }
    pi_engine_destroy(e);
    return out;
}

static inline double worst(const float *a, const double *ref, size_t n)
{
    double max = 0.0, diff = 0.0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - ref[i]);

        max = fmax(max, fabs(ref[i]));
        diff = d > diff || isnan(d) ? d : diff;
    }
    return diff / max;
}

static inline double worst_f32(const float *a, const float *ref, size_t n)
{
    double *wide = malloc(n * sizeof(*wide)), w;

    for (size_t i = 0; i < n; i++)
        wide[i] = (double)ref[i];
    w = worst(a, wide, n);
    free(wide);
    return w;
}

#define SAME(a, b, n) EQ(memcmp((a), (b), (n) * sizeof(float)), 0)

static inline struct pi_mat mat(const float *w, uint32_t n_rows, uint32_t n_cols)
{
    return (struct pi_mat){.type = PI_TYPE_F32,
                           .n_rows = n_rows,
                           .n_cols = n_cols,
                           .row_bytes = n_cols * sizeof(float),
                           .data = w};
}

/* fc1 the identity and fc2 the model's own gate: predicts exactly what fires where threshold is the activation's. */
static inline void oracle(struct rig *r, float threshold)
{
    const struct tiny *t = &r->t;
    const char *first = tiny_form(t).gated ? "ffn_gate.weight" : "ffn_up.weight";

    r->pred = (struct pi_predictor){
        .n_layer = t->n_layer, .n_ff = t->n_ff, .n_embd = t->n_embd, .layers = r->pred_layers};
    r->fc1 = calloc((size_t)t->n_embd * t->n_embd, sizeof(float));
    for (uint32_t i = 0; i < t->n_embd; i++)
        r->fc1[i * t->n_embd + i] = 1.0f;
    for (uint32_t l = 0; l < t->n_layer; l++) {
        r->fc2[l] = tiny_layer_tensor(t, l, first, t->n_ff, t->n_embd);
        r->pred_layers[l] = (struct pi_predictor_layer){.width = t->n_embd,
                                                        .threshold = threshold,
                                                        .recall = 1.0f,
                                                        .precision = 1.0f,
                                                        .density = 0.5f,
                                                        .fc1 = mat(r->fc1, t->n_embd, t->n_embd),
                                                        .fc2 = mat(r->fc2[l], t->n_ff, t->n_embd)};
    }
}

#endif
