/* GGUF data written in pieces by many hands, and checksums that many threads take. */
#include "config.h"

#include "common/pi_artifact.h"
#include "common/pi_gguf.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#include <zlib.h>

static struct pi_err e;

static struct pi_gguf_writer *begun(const char *path, const uint64_t *bytes, size_t n)
{
    struct pi_gguf_writer *w = NULL;
    char name[32];

    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    PASSES(pi_gguf_set_u32(w, "a.key", 1, &e), e);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof(name), "t%zu", i);
        PASSES(pi_gguf_add_tensor(w, name, PI_TYPE_I8, &bytes[i], 1, &e), e);
    }
    PASSES(pi_gguf_begin(w, &e), e);
    return w;
}

/* Pieces in any order make the file that appending makes. */
static void test_same_bytes(const char *dir)
{
    static const uint64_t bytes[] = {100, 7, 64};
    char *one = scratch_path(dir, "1.gguf"), *two = scratch_path(dir, "2.gguf"), *p = NULL,
         *q = NULL;
    struct pi_gguf_writer *w = begun(one, bytes, 3);
    uint8_t data[171];
    size_t n = 0, m = 0;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 29 + 3);
    PASSES(pi_gguf_append(w, data, sizeof(data), &e), e);
    PASSES(pi_gguf_commit(w, &e), e);

    w = begun(two, bytes, 3);
    FAILS(pi_gguf_put(w, 0, 0, data, 1, &e), PI_E_RANGE, "outside its tensor", e);
    PASSES(pi_gguf_open_all(w, &e), e);
    FAILS(pi_gguf_append(w, data, 1, &e), PI_E_RANGE, "in pieces", e);
    FAILS(pi_gguf_put(w, 1, 0, data, 8, &e), PI_E_RANGE, "outside its tensor", e);
    FAILS(pi_gguf_put(w, 1, 8, data, 0, &e), PI_E_RANGE, "outside its tensor", e);
    FAILS(pi_gguf_put(w, 3, 0, data, 0, &e), PI_E_RANGE, "outside its tensor", e);
    PASSES(pi_gguf_put(w, 2, 0, data + 107, 64, &e), e);
    PASSES(pi_gguf_put(w, 0, 60, data + 60, 40, &e), e);
    PASSES(pi_gguf_put(w, 0, 0, data, 60, &e), e);
    PASSES(pi_gguf_put(w, 1, 0, data + 100, 7, &e), e);
    PASSES(pi_gguf_put_crc(w, 2, (uint32_t)crc32_z(0, data + 107, 64), &e), e);
    PASSES(pi_gguf_put_crc(w, 0, (uint32_t)crc32_z(0, data, 100), &e), e);
    PASSES(pi_gguf_put_crc(w, 1, (uint32_t)crc32_z(0, data + 100, 7), &e), e);
    FAILS(pi_gguf_put_crc(w, 1, 0, &e), PI_E_RANGE, "checksum of no tensor", e);
    PASSES(pi_gguf_commit(w, &e), e);

    PASSES(pi_file_read_all(one, false, 1 << 20, &p, &n, &e), e);
    PASSES(pi_file_read_all(two, false, 1 << 20, &q, &m, &e), e);
    OK(n == m && n > 171 && memcmp(p, q, n) == 0);
    free(p);
    free(q);
    free(one);
    free(two);
}

static void test_incomplete(const char *dir)
{
    static const uint64_t bytes[] = {10, 10};
    char *path = scratch_path(dir, "3.gguf");
    struct pi_gguf_writer *w = begun(path, bytes, 2);

    PASSES(pi_gguf_open_all(w, &e), e);
    FAILS(pi_gguf_open_all(w, &e), PI_E_RANGE, "wrong time", e);
    PASSES(pi_gguf_put_crc(w, 0, 0, &e), e);
    FAILS(pi_gguf_commit(w, &e), PI_E_RANGE, "a tensor is not complete", e);
    OK(access(path, F_OK) != 0);
    free(path);
}

/* Tensors of more than one piece, in a file large enough for threads: most of it is a hole, which costs no disk. */
static void test_threads(const char *dir)
{
    static const uint64_t bytes[] = {(40 << 20) + 3, 5, (33 << 20) + 1};
    char *path = scratch_path(dir, "big.gguf");
    struct pi_gguf_writer *w = begun(path, bytes, 3);
    struct pi_gguf g = {0};
    uint8_t *zeros = calloc(bytes[0], 1), last = 9;

    PASSES(pi_gguf_open_all(w, &e), e);
    zeros[bytes[2] - 1] = last;
    PASSES(pi_gguf_put(w, 2, bytes[2] - 1, &last, 1, &e), e);
    PASSES(pi_gguf_put_crc(w, 2, (uint32_t)crc32_z(0, zeros, bytes[2]), &e), e);
    zeros[bytes[2] - 1] = 0;
    PASSES(pi_gguf_put_crc(w, 0, (uint32_t)crc32_z(0, zeros, bytes[0]), &e), e);
    PASSES(pi_gguf_put_crc(w, 1, (uint32_t)crc32_z(0, zeros, bytes[1]) ^ 1, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    FAILS(pi_gguf_check_crc(&g, &e), PI_E_CORRUPT, "tensor t1 has CRC-32", e);
    pi_gguf_close(&g);

    w = begun(path, bytes, 3);
    PASSES(pi_gguf_open_all(w, &e), e);
    PASSES(pi_gguf_put(w, 2, bytes[2] - 1, &last, 1, &e), e);
    PASSES(pi_gguf_put_crc(w, 0, (uint32_t)crc32_z(0, zeros, bytes[0]), &e), e);
    PASSES(pi_gguf_put_crc(w, 1, (uint32_t)crc32_z(0, zeros, bytes[1]), &e), e);
    zeros[bytes[2] - 1] = last;
    PASSES(pi_gguf_put_crc(w, 2, (uint32_t)crc32_z(0, zeros, bytes[2]), &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    PASSES(pi_gguf_check_crc(&g, &e), e);
    pi_gguf_close(&g);
    free(zeros);
    free(path);
}

int main(void)
{
    char *dir = scratch_open();

    test_same_bytes(dir);
    test_incomplete(dir);
    test_threads(dir);
    scratch_close(dir);
    return DONE();
}
