/*
 * pi_synth.h - synthetic models: random weights of any shape whose neurons fire like those of real ReLU models, for timing where no trained weights are at hand.
 *
 * They have learnt nothing and everything they are called says so. What they share with real models: a mean density, a power law over neurons, counts that are
 * heavy-tailed from token to token, and active sets that a small network predicts. The construction, in coordinates of an orthonormal basis:
 *
 *   A token's embedding is dominated through all layers by itself (what layers add is small) and has four parts: a constant along u, the same for all tokens;
 *   a push along v, one number a token, log-normal; a signal in the other rank - 2 directions of a subspace; the rest, outside it.
 *   A neuron's gate row (fc1 row without a gate) has along u what makes its firing rate (its bias), along v the same for all neurons (so that a push moves the
 *   count), random numbers along the signal's directions, and small random numbers outside the subspace, which no predictor of that rank sees.
 *   So the pre-activation is  z_i + spread * push_t + N(0, 1) + noise * N(0, 1),  and it fires where that is positive, whatever the norm's scale.
 *
 * The basis is a Walsh-Hadamard transform with random signs (n log n a row, no matrix product). The predictor is the projection of the gate rows, as they are
 * stored, on the subspace, turned by a random rotation of each layer: fc2 fc1 = gate projected.
 *
 * The same spec gives the same bytes at any number of threads. Everything here may exit on no input: errors come back as elsewhere.
 */
#ifndef PI_SYNTH_H
#define PI_SYNTH_H

#include "common/pi_artifact.h"
#include "common/pi_pool.h"
#include "common/pi_shape.h"

#include <stdbool.h>
#include <stdint.h>

struct pi_synth_spec {
    int arch;               /* enum pi_arch: llama (ReLU gate) or opt */
    enum pi_type type;      /* of all matrices */
    enum pi_type pred_type; /* of the predictor's */
    uint32_t n_layer, n_embd, n_ff, n_head, n_head_kv, n_vocab, n_ctx;
    uint32_t rank;      /* directions that decide what fires; the predictor's width */
    uint32_t n_samples; /* tokens sampled for the profile and to measure the predictor */
    float density;      /* mean share of neurons that fire */
    float alpha,
        knee; /* rate of the neuron at share q of the hottest-first order ~ (1 + q / knee)^-alpha */
    float
        spread; /* how far a token's push moves all pre-activations, in their standard deviations */
    float noise; /* share of the pre-activation that the predictor does not see */
    uint64_t seed;
    bool row_major_down; /* ffn_down as other programs store and read it, not neuron-major */
};

/* PI_E_USAGE for what can not be made, naming the option. */
enum pi_code pi_synth_check(const struct pi_synth_spec *s, struct pi_err *err) PI_MUST_CHECK;

/* ---- what fires how often (pi_synth_law.c) ---- */

struct pi_synth_law {
    float *rate;                 /* (n_ff) hottest first, 0..1 */
    float *bias;                 /* (n_ff) z of the formula above */
    float *push;                 /* (n_vocab) mean 0, variance 1 */
    double density;              /* mean rate */
    double covered18, covered57; /* share of activations that the hottest 18 and 57 % make */
    double count50, count95,
        count99; /* percentiles over tokens of the share of neurons that fire */
};

enum pi_code pi_synth_law_init(const struct pi_synth_spec *s, struct pi_synth_law *out,
                               struct pi_err *err) PI_MUST_CHECK;
void pi_synth_law_free(struct pi_synth_law *l); /* accepts a zeroed one */

/* ---- rows (pi_synth_rows.c) ---- */

/* Energies of an embedding's parts: shares of n_embd, the sum of squares of a row. */
struct pi_synth_scale {
    double constant, push, signal, rest;
    double
        step; /* what an attention or a feed-forward block adds, RMS, against the embedding's 1 */
};

struct pi_synth_rows {
    struct pi_synth_spec spec;
    const struct pi_synth_law *law; /* borrowed */
    struct pi_synth_scale scale;
    uint32_t block; /* n_embd is cut into transforms of this size, a power of two */
    uint32_t turn;  /* rank likewise */
    uint32_t *
        slot; /* (n_embd) where direction k lies in the transform's input; the first rank are the subspace */
    float *sign;    /* (n_embd) of the transform's output, scaled to make it orthonormal */
    uint32_t *heat; /* (n_layer, n_ff) place of each neuron in the hottest-first order */
};

enum pi_code pi_synth_rows_init(const struct pi_synth_spec *s, const struct pi_synth_law *law,
                                struct pi_synth_rows *out, struct pi_err *err) PI_MUST_CHECK;
void pi_synth_rows_free(struct pi_synth_rows *r); /* accepts a zeroed one */

/* Each random number is a hash of seed, stream (a tensor, say), row and column. Mean 0, variance scale^2, nearly normal. */
uint64_t pi_synth_key(uint64_t seed, uint32_t stream, uint32_t row);
void pi_synth_normal(uint64_t key, float scale, float *out, uint32_t n);
/* A number below n. */
uint32_t pi_synth_below(uint64_t key, uint32_t i, uint32_t n);

/* Rows in F32; out (n_embd), tmp (n_embd) scratch. */
void pi_synth_embedding(const struct pi_synth_rows *r, uint32_t token, float *out, float *tmp);
void pi_synth_gate(const struct pi_synth_rows *r, uint32_t layer, uint32_t neuron, float *out,
                   float *tmp);
/* Row k of a layer's fc1 (n_embd). */
void pi_synth_fc1(const struct pi_synth_rows *r, uint32_t layer, uint32_t k, float *out,
                  float *tmp);
/* fc2's row (rank) for a gate row (n_embd), which is overwritten. */
void pi_synth_fc2(const struct pi_synth_rows *r, uint32_t layer, float *gate, float *out);
/* acc[j] += sum_i a[i] x[i][j]: a (n) against n_samples columns of x (n, n_samples), in the order of i. */
void pi_synth_dots(const float *a, const float *x, uint32_t n, uint32_t n_samples, float *acc);

/* ---- the model file (pi_synth_file.c) ---- */

enum pi_synth_fill {
    PI_SYNTH_RANDOM,    /* normal, of a given scale, around a mean */
    PI_SYNTH_EMBEDDING, /* one row a token */
    PI_SYNTH_GATE       /* one row a neuron */
};

struct pi_synth_tensor {
    char name[48];
    enum pi_synth_fill fill;
    enum pi_type type;
    uint32_t n_rows, n_cols, layer;
    float mean, scale;
    uint64_t row_bytes;
};

struct pi_synth_tensors {
    struct pi_synth_tensor *t; /* (n) in file order */
    size_t n, cap;
};

enum pi_code pi_synth_list(const struct pi_synth_rows *r, struct pi_synth_tensors *out,
                           struct pi_err *err) PI_MUST_CHECK;

/* A writer with all keys and tensors, begun and opened for pieces. The lineage depends on the spec but not on types. */
enum pi_code pi_synth_begin(const struct pi_synth_spec *s, const struct pi_synth_tensors *list,
                            const char *path, struct pi_gguf_writer **w_out,
                            struct pi_lineage *lineage_out, struct pi_err *err) PI_MUST_CHECK;

/* ---- all of it (pi_synth_make.c) ---- */

struct pi_synth_result {
    uint64_t model_bytes, predictor_bytes; /* of tensors */
    double density, recall, precision;     /* on the sampled tokens, over all layers */
};

/* Writes path, and profile and predictor beside it. */
enum pi_code pi_synth_make(const struct pi_synth_spec *s, const struct pi_synth_law *law,
                           const char *path, struct pi_pool *pool, bool progress,
                           struct pi_synth_result *out, struct pi_err *err) PI_MUST_CHECK;

#endif
