/*
 * torch_bytes.h - checkpoints as torch.save() writes them, made by hand: a zip file of stored entries around a pickle.
 */
#ifndef PI_TEST_TORCH_BYTES_H
#define PI_TEST_TORCH_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

struct zip_bytes {
    uint8_t p[65536], dir[2048];
    size_t n, n_dir;
    unsigned n_entries;
};

static inline void zip_number(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static inline void zip_add_named(struct zip_bytes *z, const char *name, size_t n_name,
                                 const void *data, size_t n)
{
    const size_t at = z->n;
    uint8_t *local = z->p + z->n, *entry = z->dir + z->n_dir;

    if (z->n + 30 + n_name + n > sizeof(z->p) || z->n_dir + 46 + n_name > sizeof(z->dir))
        abort();
    memset(local, 0, 30);
    memset(entry, 0, 46);
    zip_number(local, 0x04034b50, 4);
    zip_number(local + 26, n_name, 2);
    memcpy(local + 30, name, n_name);
    memcpy(local + 30 + n_name, data, n);
    z->n += 30 + n_name + n;
    zip_number(entry, 0x02014b50, 4);
    zip_number(entry + 16, crc32(0, data, (uInt)n), 4);
    zip_number(entry + 20, n, 4);
    zip_number(entry + 24, n, 4);
    zip_number(entry + 28, n_name, 2);
    zip_number(entry + 42, at, 4);
    memcpy(entry + 46, name, n_name);
    z->n_dir += 46 + n_name;
    z->n_entries++;
}

static inline void zip_add(struct zip_bytes *z, const char *name, const void *data, size_t n)
{
    zip_add_named(z, name, strlen(name), data, n);
}

/* The directory and its end; nothing may be added behind it. */
static inline void zip_end(struct zip_bytes *z)
{
    uint8_t end[22] = {0};

    if (z->n + z->n_dir + sizeof(end) > sizeof(z->p))
        abort();
    zip_number(end, 0x06054b50, 4);
    zip_number(end + 8, z->n_entries, 2);
    zip_number(end + 10, z->n_entries, 2);
    zip_number(end + 12, z->n_dir, 4);
    zip_number(end + 16, z->n, 4);
    memcpy(z->p + z->n, z->dir, z->n_dir);
    memcpy(z->p + z->n + z->n_dir, end, sizeof(end));
    z->n += z->n_dir + sizeof(end);
}

/* pickle, and storages 0 of six floats 0..5 and 1 of four BF16 numbers 1..4 (by their upper halves). */
static inline void torch_file(struct zip_bytes *z, const void *pickle, size_t n)
{
    const float f[6] = {0, 1, 2, 3, 4, 5};
    const uint16_t h[4] = {0x3f80, 0x4000, 0x4040, 0x4080};

    *z = (struct zip_bytes){.n = 0};
    zip_add(z, "archive/data.pkl", pickle, n);
    zip_add(z, "archive/byteorder", "little", 6);
    zip_add(z, "archive/data/0", f, sizeof(f));
    zip_add(z, "archive/data/1", h, sizeof(h));
    zip_add(z, "archive/version", "3\n", 2);
    zip_end(z);
}

/* Pieces of pickles, as string literals; sizes below 256. */
#define PKL_STR(n, s) "X" n "\0\0\0" s
#define PKL_ODICT     "ccollections\nOrderedDict\n)R"
#define PKL_REBUILD   "ctorch._utils\n_rebuild_tensor_v2\n"
#define PKL_STORE_F32                                                        \
    "(" PKL_STR("\7", "storage") "ctorch\nFloatStorage\n" PKL_STR("\1", "0") \
        PKL_STR("\3", "cpu") "K\6tQ"
#define PKL_STORE_BF16                                                          \
    "(" PKL_STR("\7", "storage") "ctorch\nBFloat16Storage\n" PKL_STR("\1", "1") \
        PKL_STR("\3", "cpu") "K\4tQ"
/* offset, shape and strides are pieces too */
#define PKL_TENSOR(storage, offset, shape, strides) \
    PKL_REBUILD "(" storage offset shape strides "\x89" PKL_ODICT "tR"
/* A (2, 3) tensor "w" of storage 0, a (2) tensor "b" of the last two elements of storage 1, and a number that is none. */
#define PKL_GOOD                                                                        \
    "\x80\2" PKL_ODICT "q\0(" PKL_STR("\1", "w")                                        \
        PKL_TENSOR(PKL_STORE_F32, "K\0", "K\2K\3\x86", "K\3K\1\x86") PKL_STR("\1", "b") \
            PKL_TENSOR(PKL_STORE_BF16, "K\2", "K\2\x85", "K\1\x85") PKL_STR("\5", "epoch") "K\7u."

/* A matrix of F32, or with cols 0 a vector. */
struct torch_matrix {
    const char *name;
    uint32_t rows, cols;
    const float *data;
};

static inline void pkl_put(uint8_t *p, size_t *n, const void *data, size_t k)
{
    memcpy(p + *n, data, k);
    *n += k;
}

static inline void pkl_number(uint8_t *p, size_t *n, uint32_t v)
{
    p[(*n)++] = 'J';
    zip_number(p + *n, v, 4);
    *n += 4;
}

static inline void pkl_string(uint8_t *p, size_t *n, const char *s)
{
    p[(*n)++] = 'X';
    zip_number(p + *n, strlen(s), 4);
    *n += 4;
    pkl_put(p, n, s, strlen(s));
}

/* (storage, 0, shape, strides, False, OrderedDict()) of storage number i, rebuilt. */
static inline void pkl_matrix(uint8_t *p, size_t *n, const struct torch_matrix *m, unsigned i)
{
    const char key[2] = {(char)('0' + i), 0};
    const uint32_t cols = m->cols > 0 ? m->cols : 1;

    pkl_put(p, n, PKL_REBUILD "((", sizeof(PKL_REBUILD "((") - 1);
    pkl_string(p, n, "storage");
    pkl_put(p, n, "ctorch\nFloatStorage\n", 20);
    pkl_string(p, n, key);
    pkl_string(p, n, "cpu");
    pkl_number(p, n, m->rows * cols);
    pkl_put(p, n, "tQK\0(", 5);
    pkl_number(p, n, m->rows);
    if (m->cols > 0)
        pkl_number(p, n, m->cols);
    pkl_put(p, n, "t(", 2);
    pkl_number(p, n, cols);
    if (m->cols > 0)
        pkl_number(p, n, 1);
    pkl_put(p, n, "t\x89" PKL_ODICT "tR", sizeof("t\x89" PKL_ODICT "tR") - 1);
}

/* A dictionary of k matrices, at most 10; bare: the first one alone. */
static inline void torch_matrices(struct zip_bytes *z, const struct torch_matrix *m, unsigned k,
                                  int bare)
{
    uint8_t pkl[4096];
    size_t n = 0;

    pkl_put(pkl, &n, bare ? "\x80\2" : "\x80\2}(", bare ? 2 : 4);
    for (unsigned i = 0; i < k; i++) {
        if (!bare)
            pkl_string(pkl, &n, m[i].name);
        pkl_matrix(pkl, &n, &m[i], i);
    }
    pkl_put(pkl, &n, bare ? "." : "u.", bare ? 1 : 2);
    *z = (struct zip_bytes){.n = 0};
    zip_add(z, "m/data.pkl", pkl, n);
    for (unsigned i = 0; i < k; i++) {
        const char name[9] = {'m', '/', 'd', 'a', 't', 'a', '/', (char)('0' + i), 0};

        zip_add(z, name, m[i].data,
                (size_t)m[i].rows * (m[i].cols > 0 ? m[i].cols : 1) * sizeof(float));
    }
    zip_end(z);
}

#endif
