/*
 * powerinfer_twin.h - small random models in the form of PowerInfer's files, written byte by byte as its converter lays them out (magic PWRI, down
 * projections as one row a neuron, predictors inside), and a plain F32 twin of its operators. It takes nothing from the product but the rounding of weights.
 */
#ifndef POWERINFER_TWIN_H
#define POWERINFER_TWIN_H

#include "common/pi_type.h"
#include "tests/tok_vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    N_EMBD = 64,
    N_FF = 256,
    N_HEAD = 4,
    HEAD_DIM = N_EMBD / N_HEAD,
    N_LAYER = 3,
    WIDTH = 32,
    N_POS = 2050, /* rows of OPT's table: what PowerInfer's converter says the context is */
    N_TOK = 9,
    MAX_TENSORS = 96
};

/* A kind of file. */
struct kind {
    const char *name, *arch;
    enum pi_type type; /* of matrices */
    uint32_t n_head_kv;
    bool layer_norm, gated, relu_up, learned_pos, neox, parallel, biases, two_norms;
    bool no_threshold; /* the key is left out: 0 counts */
    float threshold;
};

struct tensor {
    char name[64];
    uint32_t n_rows, n_cols;
    bool vector;
    enum pi_type type;
    float *w;      /* (n_rows, n_cols) as stored */
    uint8_t *data; /* stored */
    size_t n_bytes;
};

struct model {
    const struct kind *k;
    struct vocab *v;
    struct tensor t[MAX_TENSORS];
    size_t n;
    uint64_t seed;
};

struct run {
    const struct model *m;
    bool sparse;
    float k[N_LAYER][N_TOK][N_EMBD], v[N_LAYER][N_TOK][N_EMBD];
    float closest; /* of a predictor's output to the threshold, relative */
    uint64_t kept, seen;
};

extern const int32_t twin_tokens[N_TOK];

/* End with twin_free(). k must outlive it. */
struct model *twin_make(const struct kind *k);
void twin_free(struct model *m);
struct tensor *twin_tensor(struct model *m, const char *name);

void twin_write(const struct model *m, const char *path);

/* Logits (N_TOK, n_vocab) of twin_tokens, of all neurons or of the predicted ones; the caller's to free(). */
float *twin_run(const struct model *m, bool sparse, struct run *r);

#endif
