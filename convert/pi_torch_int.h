/*
 * pi_torch_int.h - shared by pi_torch.c (the file), pi_torch_pickle.c and pi_torch_zip.c alone.
 */
#ifndef PI_TORCH_INT_H
#define PI_TORCH_INT_H

#include "convert/pi_source.h"

struct pi_zip_entry {
    const char *name; /* in the file, not terminated; no zero byte in it */
    size_t n_name;
    const uint8_t *data;
    uint64_t bytes, at; /* at: of its local header, in the file */
    uint32_t crc;
};

struct pi_zip {
    struct pi_zip_entry *e; /* (n) owned, sorted by name; names are unique */
    size_t n;
    bool summed; /* not all CRCs are 0, as where torch was told to store none */
};

/* The entries of a zip file, zip64 included, all stored; every range is checked against the file, and none overlap. PI_E_CORRUPT, PI_E_UNSUPPORTED (compressed, encrypted,
 * split), PI_E_NOMEM. *out must be zeroed. */
enum pi_code pi_zip_open(const uint8_t *data, size_t size, const char *path, struct pi_zip *out,
                         struct pi_err *err) PI_MUST_CHECK;
/* The entry called root, folder and name in a row, of which root and name are counted, whatever bytes they hold. NULL: no such entry, or a name of more than
 * 512 bytes. */
const struct pi_zip_entry *pi_zip_find(const struct pi_zip *z, const char *root, size_t n_root,
                                       const char *folder, const char *name, size_t n);
void pi_zip_close(struct pi_zip *z); /* accepts a zeroed one */

enum pi_pickle_kind {
    PI_PICKLE_OPAQUE, /* None, a float, a list, …: of no use here */
    PI_PICKLE_MARK,
    PI_PICKLE_INTEGER, /* a bool too */
    PI_PICKLE_STRING,
    PI_PICKLE_TUPLE,
    PI_PICKLE_DICT,
    PI_PICKLE_GLOBAL,
    PI_PICKLE_STORAGE,
    PI_PICKLE_TENSOR
};

enum pi_pickle_global {
    ORDERED_DICT,
    REBUILD_TENSOR,
    REBUILD_PARAMETER,
    STORAGE_TYPE /* and dtype: an index into pi_torch_dtypes */
};

struct pi_torch_dtype {
    const char *name; /* in module torch */
    const char *dtype;
    uint32_t bytes;
    bool readable;
    enum pi_type type;
};

struct pi_pickle_value {
    uint8_t kind, global, dtype;
    uint32_t n;       /* TUPLE: items; STRING: bytes */
    uint64_t i;       /* INTEGER; TUPLE: place in the arena; DICT, TENSOR, STORAGE: number */
    const char *text; /* STRING */
};

struct pi_pickle_values {
    struct pi_pickle_value *v;
    size_t n, cap;
};

struct pi_pickle_entry {
    uint64_t dict;
    struct pi_pickle_value key, value;
};

struct pi_torch_tensor {
    uint8_t dtype, n_dims;
    uint64_t dim[PI_SRC_MAX_DIMS];
    const uint8_t *data;
    uint64_t bytes;
    bool is_view, is_expanded; /* its strides are not those of its shape; some are 0 */
};

struct pi_torch_storage {
    const struct pi_zip_entry *entry;
    uint64_t n; /* elements */
};

struct pi_pickle {
    const uint8_t *at, *end, *begin;
    const char *path;
    struct pi_err *err;
    const struct pi_zip *zip;
    const char *root; /* what names begin with: "archive" */
    size_t n_root;
    struct pi_pickle_values stack, arena, memo;
    uint32_t *n_in_dict; /* (n_dicts): entries */
    size_t n_dicts, cap_dicts;
    struct pi_pickle_entry *entries;
    size_t n_entries, cap_entries;
    struct pi_torch_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct pi_torch_storage *storages;
    size_t n_storages, cap_storages;
};

extern const struct pi_torch_dtype pi_torch_dtypes[];

/* Runs the pickle from at to end (begin, path, err, zip and root are set, the rest is zeroed); *out is what it leaves: the arrays hold what was made on the way.
 * PI_E_CORRUPT, PI_E_UNSUPPORTED, PI_E_NOMEM. */
enum pi_code pi_pickle_run(struct pi_pickle *vm, struct pi_pickle_value *out) PI_MUST_CHECK;
bool pi_pickle_is_string(const struct pi_pickle_value *v, const char *s);

#endif
