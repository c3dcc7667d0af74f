/*
 * pi_gguf.h - GGUF files: a reader that trusts nothing, and a streaming writer.
 *
 * The reader maps the file and checks everything before it returns: counts against the bytes
 * left, type tags (of array elements too), key and tensor names (unique, non-empty), dimensions,
 * the byte size of each tensor against its type, alignment, bounds, and that no two tensors
 * overlap. All strings and data point into the map and live until pi_gguf_close(); nothing is
 * copied but index tables. Opening is O(n log n) in keys, tensors and strings. A const pi_gguf may
 * be read by any number of threads.
 *
 * Versions 2 and 3 are read, version 3 is written, little-endian, aligned to 32 bytes. The magic "PWRI"
 * (PowerInfer's derivative, otherwise byte for byte the same) is read too.
 *
 * A file that the writer made carries "pi.header_crc32", the CRC-32 of everything before the tensor
 * data with these four bytes taken as zero: opening checks it, so that a damaged name, shape or
 * hyper-parameter is never used. The CRCs of the data are checked by pi_gguf_check_crc().
 */
#ifndef PI_GGUF_H
#define PI_GGUF_H

#include "common/pi_err.h"
#include "common/pi_file.h"
#include "common/pi_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_GGUF_MAX_DIMS  4
#define PI_GGUF_ALIGNMENT 32   /* of tensors in a file, where general.alignment says nothing else */
#define PI_GGUF_PAGE      4096 /* of files that pi_gguf_align_pages() was called for */

enum pi_gguf_vtype {
    PI_GGUF_U8 = 0,
    PI_GGUF_I8 = 1,
    PI_GGUF_U16 = 2,
    PI_GGUF_I16 = 3,
    PI_GGUF_U32 = 4,
    PI_GGUF_I32 = 5,
    PI_GGUF_F32 = 6,
    PI_GGUF_BOOL = 7,
    PI_GGUF_STR = 8,
    PI_GGUF_ARR = 9,
    PI_GGUF_U64 = 10,
    PI_GGUF_I64 = 11,
    PI_GGUF_F64 = 12
};

/* Bytes of one value of a scalar type (enum pi_gguf_vtype); 0 for strings, arrays and unknown types. */
uint32_t pi_gguf_scalar_bytes(uint32_t type);

/* Bytes that need not be terminated and may hold anything. */
struct pi_str {
    const char *p;
    size_t n;
};

bool pi_str_eq(struct pi_str s, const char *z);

struct pi_gguf_kv {
    struct pi_str key;
    enum pi_gguf_vtype type;
    enum pi_gguf_vtype elem;   /* element type when type is PI_GGUF_ARR, else equal to type */
    uint64_t n;                /* elements of an array, else 1 */
    const uint8_t *data;       /* first value byte; unaligned, little-endian */
    const struct pi_str *strs; /* (n), when elem is PI_GGUF_STR; owned by the pi_gguf */
};

struct pi_gguf_tensor {
    struct pi_str name;
    enum pi_type type;
    uint32_t n_dims;
    uint64_t ne[PI_GGUF_MAX_DIMS]; /* ne[0] is contiguous; unused ones are 1 */
    const uint8_t *data;           /* NULL when opened with PI_GGUF_NO_DATA */
    uint64_t bytes;
};

struct pi_gguf {
    struct pi_map map;
    uint32_t version;
    bool sparse_magic; /* the file starts with PWRI */
    uint64_t alignment;
    uint64_t data_offset; /* where tensor data starts in the file */
    size_t n_kv, n_tensors;
    size_t header_bytes;                   /* up to the end of the tensor table; padding follows */
    struct pi_gguf_kv *kv;                 /* (n_kv), file order */
    struct pi_gguf_tensor *tensors;        /* (n_tensors), file order */
    uint32_t *kv_by_name, *tensor_by_name; /* sorted indices */
    struct pi_str *strs;                   /* all array strings */
    struct pi_map *parts;                  /* (n_parts) the further files of a split model */
    size_t n_parts;
};

enum pi_gguf_flags {
    PI_GGUF_NO_DATA = 1,      /* vocabulary-only use: a file whose tensor data is cut off is fine,
                               * and so is a tensor of unknown type (its bytes are 0 then) */
    PI_GGUF_NO_HEADER_CRC = 2 /* do not check pi.header_crc32: for who calls
                               * pi_gguf_check_header_crc(), and for fuzzers */
};

/* *g_out must be zeroed or closed; set on success. Errors: PI_E_IO; PI_E_CORRUPT (what and where);
 * PI_E_UNSUPPORTED (version 1, big-endian, an unknown tensor type); PI_E_NOMEM. */
enum pi_code pi_gguf_open(const char *path, unsigned flags, struct pi_gguf *g_out,
                          struct pi_err *err) PI_MUST_CHECK;
/* The same, and of a model split over several files (split.count; NAME-00001-of-0000N.gguf) the other parts too: their tensors follow in the order of parts,
 * keys and header are the first one's. Also PI_E_UNSUPPORTED for a part that is not the first, PI_E_CORRUPT for parts that do not belong together. */
enum pi_code pi_gguf_open_parts(const char *path, unsigned flags, struct pi_gguf *g_out,
                                struct pi_err *err) PI_MUST_CHECK;
/* The same over memory that the caller keeps alive; name stands in messages. */
enum pi_code pi_gguf_open_memory(const void *data, size_t size, const char *name, unsigned flags,
                                 struct pi_gguf *g_out, struct pi_err *err) PI_MUST_CHECK;
void pi_gguf_close(struct pi_gguf *g); /* accepts a zeroed one */

/* pi_map_drop() of a tensor's bytes, or of any others inside the file or its parts. */
void pi_gguf_drop(const struct pi_gguf *g, const void *p, size_t n);
/* Of all of it. */
void pi_gguf_drop_all(const struct pi_gguf *g);

/* Checks pi.header_crc32; PI_OK when the file has none. PI_E_CORRUPT. */
enum pi_code pi_gguf_check_header_crc(const struct pi_gguf *g, struct pi_err *err) PI_MUST_CHECK;

/* NULL when there is none of that name. */
const struct pi_gguf_kv *pi_gguf_find(const struct pi_gguf *g, const char *key);
const struct pi_gguf_tensor *pi_gguf_find_tensor(const struct pi_gguf *g, const char *name);

/* Typed values. A missing key leaves *out as it is (put the default there first) and gives PI_OK, unless
 * required: then PI_E_CORRUPT. A value of another type, or an integer that does not fit, is PI_E_CORRUPT.
 * All integer widths are accepted for u32, u64 and i64; F32 and F64 for f32. Floats must be finite. */
enum pi_code pi_gguf_u32(const struct pi_gguf *g, const char *key, bool required, uint32_t *out,
                         struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_u64(const struct pi_gguf *g, const char *key, bool required, uint64_t *out,
                         struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_f32(const struct pi_gguf *g, const char *key, bool required, float *out,
                         struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_bool(const struct pi_gguf *g, const char *key, bool required, bool *out,
                          struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_string(const struct pi_gguf *g, const char *key, bool required,
                            struct pi_str *out, struct pi_err *err) PI_MUST_CHECK;

/* An array of the given element type (any integer width for I64: read elements with pi_gguf_elem_i64()).
 * *kv_out is NULL when the key is missing and not required. */
enum pi_code pi_gguf_array(const struct pi_gguf *g, const char *key, enum pi_gguf_vtype elem,
                           bool required, const struct pi_gguf_kv **kv_out,
                           struct pi_err *err) PI_MUST_CHECK;
/* Element i < kv->n of an integer, bool or float array; the type was checked by pi_gguf_array(). A u64 above
 * INT64_MAX reads as INT64_MAX. */
int64_t pi_gguf_elem_i64(const struct pi_gguf_kv *kv, uint64_t i);
float pi_gguf_elem_f32(const struct pi_gguf_kv *kv, uint64_t i);

/* ---- writer ---------------------------------------------------------------------------------
 * Order of calls: create; set_* in any order; add_tensor for each; begin; write_tensor for each tensor
 * in the order added (or append for pieces of it); commit. The same calls give the same bytes. The
 * CRC-32 (zlib) of each tensor's data is computed as it streams past and stored as the u32 array
 * "pi.crc32", in tensor order (absent when there are no tensors); "pi.header_crc32" is stored too.
 * Keys are written in byte order, whatever the order of the calls. */
struct pi_gguf_writer;

/* path NULL: no file, only pi_gguf_size() and abort may follow the tensors. */
enum pi_code pi_gguf_writer_create(const char *path, struct pi_gguf_writer **w_out,
                                   struct pi_err *err) PI_MUST_CHECK;
/* Before the first tensor: all tensors begin where a page does (PI_GGUF_PAGE), for files whose rows are read where they are mapped. Rows of 4 KB or more then do not
 * begin and end inside of pages, at whose ends the processor's prefetchers stop. Measured on two Zen 3 cores, F16, share of a plain read: scattered rows of 4 KB 0.82
 * to 0.94 and 0.73 to 0.79 otherwise, all rows 1.03 and 0.95. */
enum pi_code pi_gguf_align_pages(struct pi_gguf_writer *w, struct pi_err *err) PI_MUST_CHECK;
/* Setting a key twice is PI_E_CORRUPT in no case: the later value replaces the earlier one. */
enum pi_code pi_gguf_set_u32(struct pi_gguf_writer *w, const char *key, uint32_t v,
                             struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_set_u64(struct pi_gguf_writer *w, const char *key, uint64_t v,
                             struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_set_f32(struct pi_gguf_writer *w, const char *key, float v,
                             struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_set_bool(struct pi_gguf_writer *w, const char *key, bool v,
                              struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_set_string(struct pi_gguf_writer *w, const char *key, const char *v,
                                struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_set_strings(struct pi_gguf_writer *w, const char *key, const struct pi_str *v,
                                 size_t n, struct pi_err *err) PI_MUST_CHECK;
/* n scalars of type elem, given as their little-endian bytes. */
enum pi_code pi_gguf_set_array(struct pi_gguf_writer *w, const char *key, enum pi_gguf_vtype elem,
                               const void *v, size_t n, struct pi_err *err) PI_MUST_CHECK;
/* Copies a pair as it stands from an open file. */
enum pi_code pi_gguf_set_copy(struct pi_gguf_writer *w, const struct pi_gguf_kv *kv,
                              struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_add_tensor(struct pi_gguf_writer *w, const char *name, enum pi_type type,
                                const uint64_t *ne, uint32_t n_dims,
                                struct pi_err *err) PI_MUST_CHECK;
/* The size that the file will have; no key and no tensor may be added afterwards. Before or after begin. */
enum pi_code pi_gguf_size(struct pi_gguf_writer *w, uint64_t *bytes_out,
                          struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_begin(struct pi_gguf_writer *w, struct pi_err *err) PI_MUST_CHECK;
/* Appends n bytes to the current tensor; when it is full the next one starts. */
enum pi_code pi_gguf_append(struct pi_gguf_writer *w, const void *data, size_t n,
                            struct pi_err *err) PI_MUST_CHECK;
/* For several threads at once, in place of append: after begin, pi_gguf_open_all() gives the file its final size. Then pi_gguf_put()
 * writes n bytes at an offset inside the tensor that was added as number i (from 0), from any thread and in any order, and
 * pi_gguf_put_crc() tells the CRC-32 (zlib) of each whole tensor, which is not checked here: one thread, once a tensor. */
enum pi_code pi_gguf_open_all(struct pi_gguf_writer *w, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_put(const struct pi_gguf_writer *w, size_t i, uint64_t offset,
                         const void *data, size_t n, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gguf_put_crc(struct pi_gguf_writer *w, size_t i, uint32_t crc,
                             struct pi_err *err) PI_MUST_CHECK;
/* Writes the CRCs and gives a path under which the complete file can be opened before it appears, for a check. *path_out is
 * the caller's to free(); the path is good until commit or abort, one of which must follow. */
enum pi_code pi_gguf_finish(struct pi_gguf_writer *w, char **path_out,
                            struct pi_err *err) PI_MUST_CHECK;
/* Writes the CRCs, checks that every tensor is complete, makes the file appear, frees w in every case. */
enum pi_code pi_gguf_commit(struct pi_gguf_writer *w, struct pi_err *err) PI_MUST_CHECK;
/* The same for n of them, all or none as pi_out_commit_all() says; NULLs are passed over. */
enum pi_code pi_gguf_commit_all(struct pi_gguf_writer *const *w, size_t n,
                                struct pi_err *err) PI_MUST_CHECK;
/* Accepts NULL. */
void pi_gguf_abort(struct pi_gguf_writer *w);

#endif
