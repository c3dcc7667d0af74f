/*
 * artifact_rig.h - a profile, a predictor and a placement for the tests of artifacts, all for one model that does not exist.
 */
#ifndef ARTIFACT_RIG_H
#define ARTIFACT_RIG_H

#include "common/pi_alloc.h"
#include "common/pi_artifact.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "tests/scratch.h"
#include "tests/tap.h"

enum {
    L = 2,
    FF = 70,
    D = 16,
    N = 9,
    R = 8
};

static const struct pi_lineage mine = {
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"};
static const struct pi_lineage other = {
    "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"};
static const struct pi_fingerprint my_file = {
    "0f0e0d0c0b0a09080706050403020100000102030405060708090a0b0c0d0e0f"};
static const struct pi_fingerprint other_file = {
    "a00e0d0c0b0a09080706050403020100000102030405060708090a0b0c0d0e0f"};

static struct pi_err e;

static inline uint32_t next_random(uint32_t *s)
{
    return *s = *s * 1664525u + 1013904223u;
}

static uint64_t counts[L * FF];
static float contributions[L * FF];
static int64_t positions[N];
static uint16_t residuals[L * N * D];
static uint8_t masks[L * N * ((FF + 7) / 8)];

static inline struct pi_profile make_profile(void)
{
    struct pi_profile p = {.n_layer = L,
                           .n_ff = FF,
                           .n_embd = D,
                           .n_tokens = 1000,
                           .count = counts,
                           .contribution = contributions,
                           .n_samples = N,
                           .position = positions,
                           .lineage = mine};
    uint32_t s = 1;

    for (int i = 0; i < L * FF; i++) {
        counts[i] = next_random(&s) % 1001;
        contributions[i] = (float)(next_random(&s) >> 8) / 1e6f;
    }
    for (int i = 0; i < N; i++)
        positions[i] = 100 * i + 7;
    for (int i = 0; i < L * N * D; i++)
        residuals[i] = (uint16_t)(0x3f00 + next_random(&s) % 0x100);
    for (int i = 0; i < (int)sizeof(masks); i++)
        masks[i] = (uint8_t)(next_random(&s) >> 24);
    for (int i = 8; i < (int)sizeof(masks); i += 9)
        masks[i] &= 0x3f; /* 70 neurons: six bits of the ninth byte */
    return p;
}

static const struct pi_profile_samples_in samples = {residuals, masks, NULL};

static float fc1[R * D], fc2[FF * R], bias[FF];

static inline void make_predictor(struct pi_predictor *p, struct pi_predictor_layer *layers)
{
    uint32_t s = 5;

    for (int i = 0; i < R * D; i++)
        fc1[i] = (float)(next_random(&s) >> 8);
    for (int i = 0; i < FF * R; i++)
        fc2[i] = (float)(next_random(&s) >> 8);
    for (int i = 0; i < FF; i++)
        bias[i] = (float)i;
    memset(layers, 0, L * sizeof(*layers));
    layers[1] = (struct pi_predictor_layer){.width = R,
                                            .input = PI_PRED_IN_PREV_ATTN,
                                            .relu = true,
                                            .threshold = -0.25f,
                                            .fc1 = {PI_TYPE_F32, R, D, D * sizeof(float), fc1},
                                            .fc2 = {PI_TYPE_F32, FF, R, R * sizeof(float), fc2},
                                            .bias = bias,
                                            .recall = 0.96f,
                                            .precision = 0.5f,
                                            .density = 0.125f};
    *p = (struct pi_predictor){
        .n_layer = L, .n_ff = FF, .n_embd = D, .layers = layers, .lineage = mine};
}

static inline void make_placement(struct pi_placement *p)
{
    PASSES(pi_placement_cpu(L, FF, p, &e), e);
    p->n_units = 3;
    p->budget = 123456789012;
    p->context_bytes = 654321098765;
    p->n_ctx = 4096;
    p->n_seq = 2;
    p->n_batch = 512;
    p->embd_unit = 0;
    p->output_unit = 2;
    p->lineage = mine;
    p->fingerprint = my_file;
    for (uint32_t l = 0; p->layers != NULL && l < L; l++) {
        struct pi_place_layer *x = &p->layers[l];

        for (uint32_t i = 0; i < FF; i++)
            x->order[i] = (i * 29 + l) % FF; /* 29 and 70 have no common factor */
        x->n_hot = 10 * l;
        x->hot_unit = 1;
        x->attn_unit = (uint8_t)(2 * l);
        x->mode_cpu = PI_MODE_PREDICTED;
        x->mode_gpu = PI_MODE_EXACT;
    }
}

#endif
