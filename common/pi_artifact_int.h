/* pi_artifact_int.h - what the loaders of profiles, predictors and placements share; private to common/. */
#ifndef PI_ARTIFACT_INT_H
#define PI_ARTIFACT_INT_H

#include "common/pi_artifact.h"

/* What an artifact was made for. */
struct pi_binding {
    enum pi_artifact_kind kind;
    const char *path; /* of the artifact; borrowed */
    struct pi_lineage lineage;
    struct pi_fingerprint fingerprint; /* unused where the model's is not given */
};

/* PI_E_MISMATCH as pi_artifact_check_model() says it. */
enum pi_code pi_binding_check(const struct pi_binding *b, const char *model_path,
                              const struct pi_lineage *lineage, const struct pi_fingerprint *fp,
                              struct pi_err *err) PI_MUST_CHECK;

/* A required u32 key in [min, max]. PI_E_CORRUPT. */
enum pi_code pi_artifact_u32(const struct pi_gguf *g, const char *key, uint32_t min, uint32_t max,
                             uint32_t *out, struct pi_err *err) PI_MUST_CHECK;

/* A required array of n integers in [0, max] into out (n). PI_E_CORRUPT. */
enum pi_code pi_artifact_ints(const struct pi_gguf *g, const char *key, uint32_t n, uint32_t max,
                              uint32_t *out, struct pi_err *err) PI_MUST_CHECK;

/* A required array of n floats in [min, max] into out (n). PI_E_CORRUPT. */
enum pi_code pi_artifact_floats(const struct pi_gguf *g, const char *key, uint32_t n, float min,
                                float max, float *out, struct pi_err *err) PI_MUST_CHECK;

/* Tensor blk.<layer>.<name>, which must have the shape ne0 x ne1 (PI_E_CORRUPT); *out is NULL when it is absent and not
 * required. The caller checks the type. */
enum pi_code pi_artifact_tensor(const struct pi_gguf *g, uint32_t layer, const char *name,
                                bool required, uint64_t ne0, uint64_t ne1,
                                const struct pi_gguf_tensor **out,
                                struct pi_err *err) PI_MUST_CHECK;

/* PI_E_CORRUPT unless t has this type. */
enum pi_code pi_artifact_want_type(const struct pi_gguf *g, const struct pi_gguf_tensor *t,
                                   enum pi_type type, struct pi_err *err) PI_MUST_CHECK;

/* Adds tensor blk.<layer>.<name> with 1 or 2 dimensions (ne1 0: one). */
enum pi_code pi_artifact_add(struct pi_gguf_writer *w, uint32_t layer, const char *name,
                             enum pi_type type, uint64_t ne0, uint64_t ne1,
                             struct pi_err *err) PI_MUST_CHECK;

#endif
