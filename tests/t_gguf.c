/* GGUF: round trips, the writer's refusals, files with many keys, published files. Files that lie: t_gguf_bad.c. */
#include "config.h"

#include "common/pi_artifact.h"
#include "common/pi_gguf_int.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#include <time.h>

static struct pi_err e;

/* ---- round trip ----------------------------------------------------------------------------- */

static void write_sample(const char *path, bool other_order)
{
    static const struct pi_str words[] = {{"a", 1}, {"", 0}, {"b\0c", 3}};
    static const int32_t numbers[] = {-1, 0, 1 << 30};
    struct pi_gguf_writer *w = NULL;
    struct pi_map m = {0};
    uint64_t ne[4] = {32, 3, 1, 1}, size = 0;
    uint8_t data[160 + 102];

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 31 + 7);
    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    if (other_order)
        PASSES(pi_gguf_set_f32(w, "z.f", 1.5f, &e), e);
    PASSES(pi_gguf_set_u32(w, "a.u32", 1, &e), e);
    PASSES(pi_gguf_set_u32(w, "a.u32", 4000000000u, &e), e); /* the later value counts */
    PASSES(pi_gguf_set_u64(w, "a.u64", UINT64_MAX, &e), e);
    PASSES(pi_gguf_set_bool(w, "a.yes", true, &e), e);
    PASSES(pi_gguf_set_string(w, "general.architecture", "llama", &e), e);
    PASSES(pi_gguf_set_strings(w, "words", words, 3, &e), e);
    PASSES(pi_gguf_set_array(w, "numbers", PI_GGUF_I32, numbers, 3, &e), e);
    PASSES(pi_gguf_set_u32(w, "pi.crc32", 17, &e), e); /* a stale one is replaced */
    if (!other_order)
        PASSES(pi_gguf_set_f32(w, "z.f", 1.5f, &e), e);
    PASSES(pi_gguf_add_tensor(w, "first", PI_TYPE_F32, (const uint64_t[]){5, 8}, 2, &e), e);
    PASSES(pi_gguf_add_tensor(w, "second", PI_TYPE_Q8_0, ne, 2, &e), e);
    if (other_order)
        PASSES(pi_gguf_size(w, &size, &e), e);
    PASSES(pi_gguf_begin(w, &e), e);
    PASSES(pi_gguf_size(w, &size, &e), e);
    PASSES(pi_gguf_append(w, data, 1, &e), e);
    PASSES(pi_gguf_append(w, data + 1, 200, &e), e); /* across the border of two tensors */
    PASSES(pi_gguf_append(w, data + 201, sizeof(data) - 201, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_map_open(path, &m, &e), e);
    EQ(m.size, size); /* as it was said */
    pi_map_close(&m);
}

static void check_sample(const char *path)
{
    struct pi_gguf g = {0};
    const struct pi_gguf_kv *kv = NULL;
    const struct pi_gguf_tensor *t;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    float f = 0;
    bool yes = false;
    struct pi_str s = {"", 0};

    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    EQ(g.version, 3);
    OK(!g.sparse_magic);
    PASSES(pi_gguf_u32(&g, "a.u32", true, &u32, &e), e);
    EQ(u32, 4000000000u);
    PASSES(pi_gguf_u64(&g, "a.u64", true, &u64, &e), e);
    OK(u64 == UINT64_MAX);
    FAILS(pi_gguf_u32(&g, "a.u64", true, &u32, &e), PI_E_CORRUPT, "more than 4294967295", e);
    PASSES(pi_gguf_bool(&g, "a.yes", true, &yes, &e), e);
    OK(yes);
    PASSES(pi_gguf_f32(&g, "z.f", true, &f, &e), e);
    NEAR(f, 1.5, 0);
    FAILS(pi_gguf_u32(&g, "z.f", true, &u32, &e), PI_E_CORRUPT, "z.f is f32, not an integer", e);
    FAILS(pi_gguf_f32(&g, "a.u32", true, &f, &e), PI_E_CORRUPT, "a.u32 is u32", e);
    FAILS(pi_gguf_bool(&g, "a.u32", true, &yes, &e), PI_E_CORRUPT, "not a truth value", e);
    FAILS(pi_gguf_string(&g, "numbers", true, &s, &e), PI_E_CORRUPT, "an array of i32", e);
    FAILS(pi_gguf_u32(&g, "absent", true, &u32, &e), PI_E_CORRUPT, "absent is missing", e);
    u32 = 5;
    PASSES(pi_gguf_u32(&g, "absent", false, &u32, &e), e);
    EQ(u32, 5);
    PASSES(pi_gguf_string(&g, "general.architecture", true, &s, &e), e);
    OK(pi_str_eq(s, "llama"));
    PASSES(pi_gguf_array(&g, "words", PI_GGUF_STR, true, &kv, &e), e);
    OK(kv->n == 3 && pi_str_eq(kv->strs[0], "a") && kv->strs[1].n == 0 && kv->strs[2].n == 3 &&
       memcmp(kv->strs[2].p, "b\0c", 3) == 0);
    PASSES(pi_gguf_array(&g, "numbers", PI_GGUF_I64, true, &kv, &e), e);
    OK(kv->n == 3 && pi_gguf_elem_i64(kv, 0) == -1 && pi_gguf_elem_i64(kv, 2) == 1 << 30);
    FAILS(pi_gguf_array(&g, "numbers", PI_GGUF_F32, true, &kv, &e), PI_E_CORRUPT,
          "an array of i32, not of f32", e);
    FAILS(pi_gguf_array(&g, "words", PI_GGUF_I64, true, &kv, &e), PI_E_CORRUPT, "not of integers",
          e);
    t = pi_gguf_find_tensor(&g, "second");
    OK(t != NULL && t->type == PI_TYPE_Q8_0 && t->ne[0] == 32 && t->ne[1] == 3 && t->bytes == 102);
    OK(t != NULL && t->data[0] == (uint8_t)(160 * 31 + 7));
    OK(t != NULL && (t->data - g.map.data) % 32 == 0);
    OK(pi_gguf_find_tensor(&g, "third") == NULL && pi_gguf_find_tensor(&g, "") == NULL);
    PASSES(pi_gguf_check_crc(&g, &e), e);
    pi_gguf_close(&g);
}

static void test_copy(const char *from, const char *to)
{
    struct pi_gguf g = {0}, h = {0};
    struct pi_gguf_writer *w = NULL;
    size_t same = 0;

    PASSES(pi_gguf_open(from, 0, &g, &e), e);
    PASSES(pi_gguf_writer_create(to, &w, &e), e);
    for (size_t i = 0; i < g.n_kv; i++)
        PASSES(pi_gguf_set_copy(w, &g.kv[i], &e), e);
    PASSES(pi_gguf_begin(w, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_gguf_open(to, 0, &h, &e), e);
    for (size_t i = 0; i < h.n_kv; i++) {
        const struct pi_gguf_kv *x = &h.kv[i], *y = NULL;

        for (size_t k = 0; k < g.n_kv && y == NULL; k++)
            if (g.kv[k].key.n == x->key.n && memcmp(g.kv[k].key.p, x->key.p, x->key.n) == 0)
                y = &g.kv[k];
        same += y != NULL && y->type == x->type && y->elem == x->elem && y->n == x->n;
    }
    EQ(same, h.n_kv);
    EQ(h.n_kv, g.n_kv - 1); /* no tensors: no pi.crc32 */
    pi_gguf_close(&g);
    pi_gguf_close(&h);
}

static void test_round_trip(const char *dir)
{
    char *one = scratch_path(dir, "1.gguf"), *two = scratch_path(dir, "2.gguf");
    char *p = NULL, *q = NULL;
    size_t n = 0, m = 0;

    write_sample(one, false);
    check_sample(one);
    write_sample(two, true);
    PASSES(pi_file_read_all(one, false, 1 << 20, &p, &n, &e), e);
    PASSES(pi_file_read_all(two, false, 1 << 20, &q, &m, &e), e);
    OK(n == m && memcmp(p, q, n) == 0);
    test_copy(one, two);

    /* Damage in the data is the CRC's to find, in the header the reader's own. */
    p[n - 40] ^= 4;
    scratch_write(two, p, n);
    struct pi_gguf g = {0};
    PASSES(pi_gguf_open(two, 0, &g, &e), e);
    FAILS(pi_gguf_check_crc(&g, &e), PI_E_CORRUPT, "tensor second has CRC-32", e);
    pi_gguf_close(&g);
    p[n - 40] ^= 4;
    char *at = memmem(p, n, "llama", 5);
    at[0] = 'L';
    scratch_write(two, p, n);
    FAILS(pi_gguf_open(two, 0, &g, &e), PI_E_CORRUPT, "the header's CRC-32", e);
    PASSES(pi_gguf_open(two, PI_GGUF_NO_HEADER_CRC, &g, &e), e);
    pi_gguf_close(&g);
    free(p);
    free(q);
    free(one);
    free(two);
}

/* Version 2 differs in nothing that little-endian files have; what is read becomes version 3. */
static void test_version_2(const char *dir)
{
    char *path = scratch_path(dir, "3.gguf");
    struct pi_gguf g = {0}, h = {0};
    uint8_t *copy;

    write_sample(path, false);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    copy = malloc(g.map.size);
    if (copy == NULL)
        exit(99);
    memcpy(copy, g.map.data, g.map.size);
    copy[4] = 2;
    FAILS(pi_gguf_open_memory(copy, g.map.size, "m", 0, &h, &e), PI_E_CORRUPT,
          "the header's CRC-32", e);
    PASSES(pi_gguf_open_memory(copy, g.map.size, "m", PI_GGUF_NO_HEADER_CRC, &h, &e), e);
    EQ(h.version, 2);
    EQ(h.n_kv, g.n_kv);
    EQ(h.n_tensors, g.n_tensors);
    for (size_t i = 0; i < h.n_kv && i < g.n_kv; i++)
        OK(pi_str_cmp(h.kv[i].key, g.kv[i].key) == 0 && h.kv[i].type == g.kv[i].type &&
           h.kv[i].n == g.kv[i].n);
    for (size_t i = 0; i < h.n_tensors && i < g.n_tensors; i++)
        OK(pi_str_cmp(h.tensors[i].name, g.tensors[i].name) == 0 &&
           h.tensors[i].bytes == g.tensors[i].bytes &&
           memcmp(h.tensors[i].data, g.tensors[i].data, (size_t)h.tensors[i].bytes) == 0);
    pi_gguf_close(&g);
    pi_gguf_close(&h);
    free(copy);
    (void)remove(path);
    free(path);
}

static void test_writer_refuses(const char *path)
{
    struct pi_gguf_writer *w = NULL;
    uint64_t size = 0;
    uint64_t ne[2] = {33, 1}, zero[2] = {32, 0}, huge[2] = {1ull << 40, 1ull << 40};

    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    FAILS(pi_gguf_add_tensor(w, "t", PI_TYPE_Q8_0, ne, 2, &e), PI_E_RANGE, "33 elements", e);
    FAILS(pi_gguf_add_tensor(w, "t", PI_TYPE_F32, zero, 2, &e), PI_E_RANGE, "dimension 1 is 0", e);
    FAILS(pi_gguf_add_tensor(w, "t", PI_TYPE_F32, huge, 2, &e), PI_E_RANGE, "dimension 1", e);
    FAILS(pi_gguf_add_tensor(w, "", PI_TYPE_F32, ne, 1, &e), PI_E_RANGE, "name of 0", e);
    FAILS(pi_gguf_set_u32(w, "", 1, &e), PI_E_RANGE, "key of 0", e);
    PASSES(pi_gguf_add_tensor(w, "t", PI_TYPE_F32, ne, 1, &e), e);
    FAILS(pi_gguf_append(w, ne, 4, &e), PI_E_RANGE, "data before the header", e);
    PASSES(pi_gguf_begin(w, &e), e);
    FAILS(pi_gguf_set_u32(w, "late", 1, &e), PI_E_RANGE, "after the header", e);
    FAILS(pi_gguf_commit(w, &e), PI_E_RANGE, "not complete", e);
    OK(access(path, F_OK) != 0);
    PASSES(pi_gguf_writer_create(NULL, &w, &e), e);
    PASSES(pi_gguf_add_tensor(w, "t", PI_TYPE_F32, ne, 1, &e), e);
    PASSES(pi_gguf_size(w, &size, &e), e);
    OK(size > 132 && size % 32 == 0);
    FAILS(pi_gguf_add_tensor(w, "u", PI_TYPE_F32, ne, 1, &e), PI_E_RANGE, "after the header", e);
    FAILS(pi_gguf_begin(w, &e), PI_E_RANGE, "without a file", e);
    pi_gguf_abort(w);
    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    PASSES(pi_gguf_add_tensor(w, "t", PI_TYPE_F32, ne, 1, &e), e);
    PASSES(pi_gguf_add_tensor(w, "t", PI_TYPE_F32, ne, 1, &e), e);
    FAILS(pi_gguf_begin(w, &e), PI_E_CORRUPT, "t would occur twice", e);
    pi_gguf_abort(w);
    OK(access(path, F_OK) != 0);
    FAILS(pi_gguf_writer_create("/nonexistent/x.gguf", &w, &e), PI_E_IO, "/nonexistent/x.gguf", e);
}

/* Tensors where pages begin, whatever their sizes, and zeros between them. */
static void test_pages(const char *path)
{
    static const uint64_t ne[] = {5, 1024, 3000};
    const char *name[] = {"a", "b", "c"};
    static uint8_t ones[12000];
    struct pi_gguf_writer *w = NULL;
    struct pi_gguf g = {0};
    uint64_t size = 0;

    memset(ones, 1, sizeof(ones));
    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    PASSES(pi_gguf_align_pages(w, &e), e);
    for (int i = 0; i < 3; i++)
        PASSES(pi_gguf_add_tensor(w, name[i], PI_TYPE_F32, &ne[i], 1, &e), e);
    FAILS(pi_gguf_align_pages(w, &e), PI_E_RANGE, "behind a tensor", e);
    PASSES(pi_gguf_begin(w, &e), e);
    PASSES(pi_gguf_size(w, &size, &e), e);
    for (int i = 0; i < 3; i++)
        PASSES(pi_gguf_append(w, ones, 4 * ne[i], &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    EQ(g.alignment, 4096);
    EQ(g.map.size, size);
    EQ(size - g.data_offset, 5 * 4096); /* of 20, 4096 and 12000 bytes */
    for (size_t i = 0; i < g.n_tensors; i++) {
        EQ((uintptr_t)g.tensors[i].data % 4096, 0);
        EQ(g.tensors[i].data[4 * ne[i] - 1], 1);
    }
    EQ(g.tensors[0].data[20], 0);
    EQ(g.tensors[2].data[12000], 0);
    PASSES(pi_gguf_check_crc(&g, &e), e);
    pi_gguf_close(&g);
}

/* Many keys and tensors, all names alike but for the end: opening stays n log n. */
static void test_many(const char *path)
{
    enum {
        N = 50000
    };
    struct pi_gguf_writer *w = NULL;
    struct pi_gguf g = {0};
    char name[64];
    uint8_t zeros[N] = {0};
    uint64_t one = 1;
    int bad = 0;
    clock_t t0, t1;

    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof(name), "a.rather.long.common.beginning.%d", i);
        bad += pi_gguf_set_u32(w, name, 1, &e) != PI_OK;
        bad += pi_gguf_add_tensor(w, name, PI_TYPE_I8, &one, 1, &e) != PI_OK;
    }
    EQ(bad, 0);
    PASSES(pi_gguf_begin(w, &e), e);
    PASSES(pi_gguf_append(w, zeros, N, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    t0 = clock();
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    t1 = clock();
    OK(pi_gguf_find(&g, "a.rather.long.common.beginning.49999") != NULL);
    printf("# opened %zu keys and %zu tensors in %.0f ms\n", g.n_kv, g.n_tensors,
           1e3 * (double)(t1 - t0) / CLOCKS_PER_SEC);
    OK((double)(t1 - t0) / CLOCKS_PER_SEC < 5); /* quadratic work would take minutes */
    pi_gguf_close(&g);
}

static void test_shared(void)
{
    const char *dir = tap_shared();
    static const char *const names[] = {"falcon", "llama", "mpt"};

    if (dir == NULL)
        printf("ok %d # SKIP PI_SHARED is not set: published vocabularies\n", ++tap_n);
    for (size_t i = 0; dir != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        char path[4096];
        struct pi_gguf g = {0};
        const struct pi_gguf_kv *kv = NULL;

        (void)snprintf(path, sizeof(path), "%s/tokenizers/ggml-vocab-%s.gguf", dir, names[i]);
        PASSES(pi_gguf_open(path, PI_GGUF_NO_DATA, &g, &e), e);
        PASSES(pi_gguf_array(&g, "tokenizer.ggml.tokens", PI_GGUF_STR, true, &kv, &e), e);
        OK(kv != NULL && kv->n >= 32000);
        pi_gguf_close(&g);
    }
}

int main(void)
{
    char *dir = scratch_open();
    char *path = scratch_path(dir, "x.gguf");

    test_round_trip(dir);
    test_version_2(dir);
    test_writer_refuses(path);
    test_pages(path);
    test_many(path);
    test_shared();
    free(path);
    scratch_close(dir);
    return DONE();
}
