/*
 * pi_source.h - the tensors of a Hugging Face directory: model.safetensors or pytorch_model.bin, or the shards that an index of either names.
 *
 * Data stays where the file is mapped and has no alignment. Constant after opening.
 */
#ifndef PI_SOURCE_H
#define PI_SOURCE_H

#include "common/pi_err.h"
#include "common/pi_file.h"
#include "common/pi_pool.h"
#include "common/pi_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_SRC_MAX_DIMS 8
#define PI_SRC_DTYPES   "F32, F16, BF16"

struct pi_src_tensor {
    char *name;        /* owned */
    const char *path;  /* the file it lies in; borrowed from the map */
    const char *dtype; /* as the file says; static */
    bool readable;     /* type is one of PI_SRC_DTYPES */
    enum pi_type type;
    uint32_t n_dims;
    uint64_t dim[PI_SRC_MAX_DIMS]; /* slowest first; unused ones are 1 */
    const uint8_t *data;
    uint64_t bytes;
};

/* A stretch of a file with the CRC-32 (zlib) that the file says of it: a checkpoint's storage. */
struct pi_src_sum {
    const uint8_t *data;
    uint64_t bytes;
    uint32_t crc;
    bool checked;
    char name[32];    /* for messages; long ones are cut */
    const char *path; /* borrowed from the map */
};

struct pi_source {
    struct pi_src_sum *sums; /* (n_sums) */
    size_t n_sums, cap_sums;
    struct pi_map *maps; /* (n_maps) */
    size_t n_maps, cap_maps;
    struct pi_src_tensor *t; /* (n), sorted by name; names are unique */
    size_t n, cap;
};

/* A directory, or one file of either format (told apart by content). PI_E_IO (no weights in the directory; a missing shard is named), PI_E_CORRUPT (file, tensor, figures),
 * PI_E_UNSUPPORTED (what pi_torch_parse() refuses), PI_E_NOMEM. *out must be zeroed. */
enum pi_code pi_source_open(const char *path, struct pi_source *out,
                            struct pi_err *err) PI_MUST_CHECK;

/* Sorts by name and refuses double names. */
enum pi_code pi_source_sort(struct pi_source *src, struct pi_err *err) PI_MUST_CHECK;
/* NULL when there is none of that name. */
const struct pi_src_tensor *pi_source_find(const struct pi_source *src, const char *name);
/* Checks the sums of what n bytes from p on are part of, each once; pool may be NULL. PI_E_CORRUPT, naming file and storage. */
enum pi_code pi_source_check(struct pi_source *src, const void *p, uint64_t n, struct pi_pool *pool,
                             struct pi_err *err) PI_MUST_CHECK;
/* pi_map_drop() of bytes inside any of its files. */
void pi_source_drop(const struct pi_source *src, const void *p, size_t n);
/* Of all of them. */
void pi_source_drop_all(const struct pi_source *src);
void pi_source_close(struct pi_source *src); /* accepts a zeroed one */

#endif
