/* Models in several files: parts that belong together, and parts that do not. */
#include "config.h"

#include "common/pi_gguf.h"
#include "tests/scratch.h"
#include "tests/tap.h"

/* A part with one tensor, of four floats from first on. */
static void write_part(const char *dir, const char *file, uint32_t no, uint32_t count,
                       uint64_t n_tensors, const char *tensor, float first)
{
    const float data[4] = {first, first + 1, first + 2, first + 3};
    const uint64_t ne[2] = {4, 1};
    char *path = scratch_path(dir, file);
    struct pi_gguf_writer *w = NULL;
    struct pi_err e = {0};

    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    if (no == 0)
        PASSES(pi_gguf_set_string(w, "general.name", "first", &e), e);
    PASSES(pi_gguf_set_u32(w, "split.no", no, &e), e);
    PASSES(pi_gguf_set_u32(w, "split.count", count, &e), e);
    PASSES(pi_gguf_set_u64(w, "split.tensors.count", n_tensors, &e), e);
    PASSES(pi_gguf_add_tensor(w, tensor, PI_TYPE_F32, ne, 2, &e), e);
    PASSES(pi_gguf_begin(w, &e), e);
    PASSES(pi_gguf_append(w, data, sizeof(data), &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    free(path);
}

static void test_join(const char *dir, const char *first)
{
    static const char *const names[] = {"a", "b", "c"};
    struct pi_gguf g = {0};
    struct pi_err e = {0};
    struct pi_str s = {0};

    write_part(dir, "m-00001-of-00003.gguf", 0, 3, 3, "b", 0.0f);
    write_part(dir, "m-00002-of-00003.gguf", 1, 3, 3, "c", 10.0f);
    write_part(dir, "m-00003-of-00003.gguf", 2, 3, 3, "a", 20.0f);
    PASSES(pi_gguf_open_parts(first, 0, &g, &e), e);
    EQ(g.n_tensors, 3);
    EQ(g.n_parts, 2);
    for (size_t i = 0; i < 3 && g.n_tensors == 3; i++) {
        const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&g, names[i]);

        if (OK(t != NULL))
            NEAR(((const float *)t->data)[1], (i + 2) % 3 * 10.0 + 1.0, 0.0);
    }
    OK(pi_gguf_find_tensor(&g, "d") == NULL);
    PASSES(pi_gguf_string(&g, "general.name", true, &s, &e), e);
    pi_gguf_close(&g);
    PASSES(pi_gguf_open(first, 0, &g, &e), e); /* as a file of its own */
    EQ(g.n_tensors, 1);
    pi_gguf_close(&g);
}

static void test_strangers(const char *dir, const char *first)
{
    char *second = scratch_path(dir, "m-00002-of-00003.gguf"),
         *renamed = scratch_path(dir, "renamed.gguf");
    struct pi_gguf g = {0};
    struct pi_err e = {0};

    FAILS(pi_gguf_open_parts(second, 0, &g, &e), PI_E_UNSUPPORTED, "name the first part", e);
    write_part(dir, "renamed.gguf", 0, 3, 3, "b", 0.0f);
    FAILS(pi_gguf_open_parts(renamed, 0, &g, &e), PI_E_UNSUPPORTED,
          "must be called NAME-00001-of-00003.gguf", e);
    (void)remove(second);
    FAILS(pi_gguf_open_parts(first, 0, &g, &e), PI_E_IO, "m-00002-of-00003.gguf", e);
    write_part(dir, "m-00002-of-00003.gguf", 2, 3, 3, "c", 0.0f);
    FAILS(pi_gguf_open_parts(first, 0, &g, &e), PI_E_CORRUPT, "part 3 of 3 of a split model", e);
    write_part(dir, "m-00002-of-00003.gguf", 1, 4, 3, "c", 0.0f);
    FAILS(pi_gguf_open_parts(first, 0, &g, &e), PI_E_CORRUPT, "part 2 of 4", e);
    write_part(dir, "m-00002-of-00003.gguf", 1, 3, 3, "b", 0.0f);
    FAILS(pi_gguf_open_parts(first, 0, &g, &e), PI_E_CORRUPT, "tensor b occurs twice", e);
    write_part(dir, "m-00001-of-00003.gguf", 0, 3, 4, "b", 0.0f);
    write_part(dir, "m-00002-of-00003.gguf", 1, 3, 4, "c", 0.0f);
    FAILS(pi_gguf_open_parts(first, 0, &g, &e), PI_E_CORRUPT,
          "m-00003-of-00003.gguf: a part of a model of 3 tensors, the first part is of one of 4", e);
    write_part(dir, "m-00003-of-00003.gguf", 2, 3, 4, "a", 0.0f);
    FAILS(pi_gguf_open_parts(first, 0, &g, &e), PI_E_CORRUPT, "3 tensors in all parts, 4 are due",
          e);
    write_part(dir, "m-00001-of-00003.gguf", 0, 1, 1, "b", 0.0f); /* one of one */
    PASSES(pi_gguf_open_parts(first, 0, &g, &e), e);
    EQ(g.n_tensors, 1);
    pi_gguf_close(&g);
    free(second);
    free(renamed);
}

int main(void)
{
    char *dir = scratch_open(), *first = scratch_path(dir, "m-00001-of-00003.gguf");

    test_join(dir, first);
    test_strangers(dir, first);
    free(first);
    scratch_close(dir);
    return DONE();
}
