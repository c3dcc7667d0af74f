/*
 * pi_safetensors.h - the tensors of a Hugging Face directory: model.safetensors, or the shards of model.safetensors.index.json.
 *
 * A file is trusted in nothing: header length, JSON, dtypes, shape products, offsets against shape and file, holes and overlaps and double names
 * are checked before anything is used. Data stays where the file is mapped and has no alignment (files promise 8 bytes at most).
 * Constant after opening.
 */
#ifndef PI_SAFETENSORS_H
#define PI_SAFETENSORS_H

#include "common/pi_err.h"
#include "common/pi_file.h"
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

struct pi_source {
    struct pi_map *maps; /* (n_maps) */
    size_t n_maps, cap_maps;
    struct pi_src_tensor *t; /* (n), sorted by name; names are unique */
    size_t n, cap;
};

/* A directory, or one .safetensors file. PI_E_IO (a missing shard is named), PI_E_CORRUPT (file, tensor, figures), PI_E_UNSUPPORTED (no safetensors in the
 * directory: what else lies there is named), PI_E_NOMEM. *out must be zeroed. */
enum pi_code pi_safetensors_open(const char *path, struct pi_source *out,
                                 struct pi_err *err) PI_MUST_CHECK;

/* Checks the bytes of one file and appends its tensors (unsorted); path is for messages and must live as long as the source. For
 * pi_safetensors_open() and tests. */
enum pi_code pi_safetensors_parse(const uint8_t *data, size_t size, const char *path,
                                  struct pi_source *src, struct pi_err *err) PI_MUST_CHECK;

/* Sorts by name and refuses double names. */
enum pi_code pi_source_sort(struct pi_source *src, struct pi_err *err) PI_MUST_CHECK;
/* NULL when there is none of that name. */
const struct pi_src_tensor *pi_source_find(const struct pi_source *src, const char *name);
void pi_source_close(struct pi_source *src); /* accepts a zeroed one */

#endif
