/*
 * pi_artifact.h - what makes a GGUF file one of our artifacts: kind, version, binding, checksums.
 *
 * Keys: general.type = "pi-artifact", pi.artifact.kind, pi.artifact.version (u32, major << 16 | minor),
 * pi.created_by, pi.crc32 and pi.header_crc32 (see pi_gguf.h), pi.model.lineage and, for placements, pi.model.fingerprint
 * (both lower-case hex SHA-256). docs/formats.md and pi-artifacts(5) describe them.
 */
#ifndef PI_ARTIFACT_H
#define PI_ARTIFACT_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"

#include <stdint.h>

#define PI_HASH_HEX 64

/* Names a source model through all its conversions: SHA-256 over its hyper-parameters, tensor names and
 * shapes and sampled weights, as the first program of ours saw it. */
struct pi_lineage {
    char hex[PI_HASH_HEX + 1];
};

/* Names one exact file. */
struct pi_fingerprint {
    char hex[PI_HASH_HEX + 1];
};

enum pi_artifact_kind {
    PI_ARTIFACT_PROFILE,
    PI_ARTIFACT_PREDICTOR,
    PI_ARTIFACT_PLACEMENT
};

#define PI_ARTIFACT_VERSION(major, minor) ((uint32_t)(major) << 16 | (uint32_t)(minor))

const char *pi_artifact_kind_name(enum pi_artifact_kind kind);

/* A writer that already holds the keys above; fp may be NULL for kinds that are bound by lineage alone. */
enum pi_code pi_artifact_create(const char *path, enum pi_artifact_kind kind, uint32_t version,
                                const struct pi_lineage *lineage, const struct pi_fingerprint *fp,
                                struct pi_gguf_writer **w_out, struct pi_err *err) PI_MUST_CHECK;

/* Opens and checks all CRCs (PI_E_CORRUPT; both keys must be there, padding must be zero, and nothing may follow the
 * last tensor, so that no flipped bit goes unseen), kind (PI_E_MISMATCH) and version (a newer major is PI_E_MISMATCH,
 * naming both). Close with pi_gguf_close(). */
enum pi_code pi_artifact_open(const char *path, enum pi_artifact_kind kind, uint32_t version_known,
                              struct pi_gguf *g_out, struct pi_err *err) PI_MUST_CHECK;

/* Kind and version alone, of a file opened with pi_gguf_open(): for who does not read its data. */
enum pi_code pi_artifact_check_kind(const struct pi_gguf *g, enum pi_artifact_kind kind,
                                    uint32_t version_known, struct pi_err *err) PI_MUST_CHECK;

/* PI_E_MISMATCH naming the artifact, both hashes (first 12 digits) and the command that makes the artifact
 * anew, when g was made for another model. fp NULL: lineage alone. */
enum pi_code pi_artifact_check_model(const struct pi_gguf *g, const char *model_path,
                                     const struct pi_lineage *lineage,
                                     const struct pi_fingerprint *fp,
                                     struct pi_err *err) PI_MUST_CHECK;

/* The hashes that an artifact carries; PI_E_CORRUPT where they are missing or no hashes. */
enum pi_code pi_artifact_lineage(const struct pi_gguf *g, struct pi_lineage *out,
                                 struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_artifact_fingerprint(const struct pi_gguf *g, struct pi_fingerprint *out,
                                     struct pi_err *err) PI_MUST_CHECK;

/* Checks the data of every tensor against pi.crc32; PI_OK when the file has no such key. Reads the whole file. (The
 * header's own CRC was checked when the file was opened.) */
enum pi_code pi_gguf_check_crc(const struct pi_gguf *g, struct pi_err *err) PI_MUST_CHECK;

/* ---- lineage --------------------------------------------------------------------------------
 * pi-convert computes the lineage of its source with the four calls below and stores it with pi_lineage_store();
 * the order in which keys and tensors are added does not matter. */
struct pi_lineage_sum; /* owned by who began it */

enum pi_code pi_lineage_begin(struct pi_lineage_sum **out, struct pi_err *err) PI_MUST_CHECK;
/* A hyper-parameter: name and value as n bytes, in whatever form the source has them (text of config.json's
 * values, say), but always the same form for the same source. */
enum pi_code pi_lineage_key(struct pi_lineage_sum *s, const char *name, const void *value, size_t n,
                            struct pi_err *err) PI_MUST_CHECK;
/* A tensor: its name, shape and the n bytes of its raw data as they lie in the source, of which up to 64 pieces of 64
 * bytes at fixed positions are read. data may be NULL with n = 0: name and shape alone count then. */
enum pi_code pi_lineage_tensor(struct pi_lineage_sum *s, struct pi_str name, const uint64_t *ne,
                               uint32_t n_dims, const void *data, uint64_t n,
                               struct pi_err *err) PI_MUST_CHECK;
/* Gives the sum and frees s in every case. */
enum pi_code pi_lineage_end(struct pi_lineage_sum *s, struct pi_lineage *out,
                            struct pi_err *err) PI_MUST_CHECK;
void pi_lineage_abort(struct pi_lineage_sum *s); /* accepts NULL */

/* Sets pi.model.lineage. */
enum pi_code pi_lineage_store(struct pi_gguf_writer *w, const struct pi_lineage *lineage,
                              struct pi_err *err) PI_MUST_CHECK;

/* The lineage of a model file: pi.model.lineage where the file carries it, else computed over general.architecture, all
 * {arch}.* keys and all tensors. There ffn_down_t counts as ffn_down in the latter's orientation and the weights of both
 * stay out, so that a transposed copy has the lineage of its original. */
enum pi_code pi_model_lineage(const struct pi_gguf *g, struct pi_lineage *out,
                              struct pi_err *err) PI_MUST_CHECK;

/* The computed one, whatever the file carries. */
enum pi_code pi_lineage_of_gguf(const struct pi_gguf *g, struct pi_lineage *out,
                                struct pi_err *err) PI_MUST_CHECK;

/* The fingerprint of a model file: SHA-256 over its size, its header bytes (which hold the CRCs of the data where
 * pi-convert wrote the file) and, where it has no CRCs, weights sampled from every tensor. */
enum pi_code pi_model_fingerprint(const struct pi_gguf *g, struct pi_fingerprint *out,
                                  struct pi_err *err) PI_MUST_CHECK;

#endif
