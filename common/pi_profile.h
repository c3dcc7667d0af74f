/*
 * pi_profile.h - the profile artifact: how often each neuron fired, and samples to train predictors on.
 *
 * Tensors of M.profile.gguf: blk.N.count (I64, n_ff), blk.N.contribution (F32, n_ff, mean |h| x |down row|
 * over all tokens), sample.position (I64, n_samples: index of the token in the profiled stream),
 * blk.N.sample.residual (BF16, n_embd x n_samples: the residual with attention added), where attention and feed-forward are parallel
 * blk.N.sample.input (the same shape: the layer's input, which the feed-forward norm reads there; elsewhere it reads the residual) and
 * blk.N.sample.mask (I8 bytes: zlib stream of n_samples x ceil(n_ff / 8) bytes, neuron i in bit i % 8 of byte i / 8).
 * Keys: pi.profile.tokens, pi.profile.n_samples, pi.profile.window, pi.profile.n_layer, .n_ff, .n_embd, .data (names of the files).
 */
#ifndef PI_PROFILE_H
#define PI_PROFILE_H

#include "common/pi_artifact.h"
#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_PROFILE_VERSION PI_ARTIFACT_VERSION(1, 0)

struct pi_profile {
    uint32_t n_layer, n_ff, n_embd;
    uint64_t n_tokens;   /* tokens counted */
    uint64_t *count;     /* (n_layer, n_ff) */
    float *contribution; /* (n_layer, n_ff) */
    uint64_t n_samples;  /* 0: counts only */
    bool has_input;      /* samples hold the layer's input too */
    int64_t *position;   /* (n_samples), ascending */
    struct pi_lineage lineage;
    /* open while the profile lives, when it was loaded: samples are read from it */
    struct pi_gguf file;
};

/* Reads counts and checks every shape. PI_E_CORRUPT, PI_E_MISMATCH (kind, version), PI_E_IO. */
enum pi_code pi_profile_load(const char *path, struct pi_profile *out,
                             struct pi_err *err) PI_MUST_CHECK;
void pi_profile_free(struct pi_profile *p); /* accepts a zeroed one */

/* Unpacks one layer's samples, in position order: residual_out (n_samples, n_embd) F32 and mask_out
 * (n_samples, ceil(n_ff / 8)); both the caller's to free(). */
enum pi_code pi_profile_samples(const struct pi_profile *p, uint32_t layer, float **residual_out,
                                uint8_t **mask_out, struct pi_err *err) PI_MUST_CHECK;
/* The samples' layer inputs (n_samples, n_embd), the caller's to free(). PI_E_MISMATCH without has_input. */
enum pi_code pi_profile_inputs(const struct pi_profile *p, uint32_t layer, float **input_out,
                               struct pi_err *err) PI_MUST_CHECK;
/* The masks alone. */
enum pi_code pi_profile_masks(const struct pi_profile *p, uint32_t layer, uint8_t **mask_out,
                              struct pi_err *err) PI_MUST_CHECK;

/* Neurons of a layer by falling count, ties by id: order_out (n_ff), caller's array. */
enum pi_code pi_profile_order(const struct pi_profile *p, uint32_t layer, uint32_t *order_out,
                              struct pi_err *err) PI_MUST_CHECK;

/* How pi-profile writes one; residual and, with has_input, input (n_layer, n_samples, n_embd) BF16 and mask (n_layer, n_samples, ceil(n_ff/8))
 * are borrowed, as is everything in p. data_names: what was profiled, for people. */
struct pi_profile_samples_in {
    const uint16_t *residual;
    const uint8_t *mask;
    const uint16_t *input; /* NULL without has_input */
};
enum pi_code pi_profile_save(const char *path, const struct pi_profile *p,
                             const struct pi_profile_samples_in *s, uint32_t window,
                             const char *data_names, struct pi_err *err) PI_MUST_CHECK;
/* As above, but the file appears when the caller commits *w_out (or never: pi_gguf_abort). */
enum pi_code pi_profile_write(const char *path, const struct pi_profile *p,
                              const struct pi_profile_samples_in *s, uint32_t window,
                              const char *data_names, struct pi_gguf_writer **w_out,
                              struct pi_err *err) PI_MUST_CHECK;

#endif
