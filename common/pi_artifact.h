/*
 * pi_artifact.h - what makes a GGUF file one of our artifacts: kind, version, binding, checksums.
 *
 * Keys: general.type = "pi-artifact", pi.artifact.kind, pi.artifact.version (u32, major << 16 | minor),
 * pi.created_by, pi.crc32 (see pi_gguf.h), pi.model.lineage and, for placements, pi.model.fingerprint
 * (both lower-case hex SHA-256). docs/formats.md and pi-artifacts(5) describe them.
 */
#ifndef PI_ARTIFACT_H
#define PI_ARTIFACT_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"

#define PI_HASH_HEX 64

/* Names a source model through all its conversions: SHA-256 over its hyper-parameters, tensor names and
 * shapes (ffn_down and ffn_down_t count as one, in one orientation) and sampled weights. */
struct pi_lineage {
    char hex[PI_HASH_HEX + 1];
};

/* Names one exact file. */
struct pi_fingerprint {
    char hex[PI_HASH_HEX + 1];
};

enum pi_artifact_kind { PI_ARTIFACT_PROFILE, PI_ARTIFACT_PREDICTOR, PI_ARTIFACT_PLACEMENT };

#define PI_ARTIFACT_VERSION(major, minor) ((uint32_t)(major) << 16 | (uint32_t)(minor))

const char *pi_artifact_kind_name(enum pi_artifact_kind kind);

/* A writer that already holds the keys above; fp may be NULL for kinds that are bound by lineage alone. */
enum pi_code pi_artifact_create(const char *path, enum pi_artifact_kind kind, uint32_t version,
                                const struct pi_lineage *lineage, const struct pi_fingerprint *fp,
                                struct pi_gguf_writer **w_out, struct pi_err *err) PI_MUST_CHECK;

/* Opens and checks kind (PI_E_MISMATCH), version (a newer major is PI_E_MISMATCH, naming both), and all CRCs (PI_E_CORRUPT).
 * Close with pi_gguf_close(). */
enum pi_code pi_artifact_open(const char *path, enum pi_artifact_kind kind, uint32_t version_known,
                              struct pi_gguf *g_out, struct pi_err *err) PI_MUST_CHECK;

/* PI_E_MISMATCH naming the artifact, both hashes (first 12 digits) and the command that makes the artifact
 * anew, when g was made for another model. fp NULL: lineage alone. */
enum pi_code pi_artifact_check_model(const struct pi_gguf *g, const char *model_path, const struct pi_lineage *lineage,
                                     const struct pi_fingerprint *fp, struct pi_err *err) PI_MUST_CHECK;

/* Checks the data of every tensor against pi.crc32; PI_OK when the file has no such key. */
enum pi_code pi_gguf_check_crc(const struct pi_gguf *g, struct pi_err *err) PI_MUST_CHECK;

/* The lineage of a model file: pi.model.lineage where the file carries it, else computed. */
enum pi_code pi_model_lineage(const struct pi_gguf *g, struct pi_lineage *out, struct pi_err *err) PI_MUST_CHECK;

/* The fingerprint of a model file: SHA-256 over its size, its header bytes (which hold the CRCs of the data where
 * pi-convert wrote the file) and, where it has no CRCs, weights sampled from every tensor. */
enum pi_code pi_model_fingerprint(const struct pi_gguf *g, struct pi_fingerprint *out, struct pi_err *err) PI_MUST_CHECK;

#endif
