/* What names a model: the same whatever the order and orientation, another for any change. */
#include "config.h"

#include "common/pi_artifact.h"
#include "tests/gguf_bytes.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct pi_err e;
static uint8_t data[20000];

struct input {
    const char *key, *value;
    const char *name_a, *name_b;
    uint64_t ne_a[2];
    bool turned; /* the other order of calls */
};

static const struct input base = {"hidden_size", "64", "w.a", "w.b", {100, 50}, false};

static struct pi_lineage sum(const struct input *in)
{
    struct pi_lineage_sum *s = NULL;
    struct pi_lineage l = {{0}};
    struct pi_str a = {in->name_a, strlen(in->name_a)}, b = {in->name_b, strlen(in->name_b)};
    const uint64_t ne_b[1] = {7};
    int bad = pi_lineage_begin(&s, &e) != PI_OK;

    if (in->turned)
        bad += pi_lineage_tensor(s, b, ne_b, 1, data, 28, &e) != PI_OK;
    bad += pi_lineage_tensor(s, a, in->ne_a, 2, data, sizeof(data), &e) != PI_OK;
    bad += pi_lineage_key(s, in->key, in->value, strlen(in->value), &e) != PI_OK;
    if (!in->turned)
        bad += pi_lineage_tensor(s, b, ne_b, 1, data, 28, &e) != PI_OK;
    bad += pi_lineage_end(s, &l, &e) != PI_OK;
    EQ(bad, 0);
    return l;
}

static void expect_other(const struct input *in, const struct pi_lineage *than)
{
    struct pi_lineage l = sum(in);

    OK(strcmp(l.hex, than->hex) != 0);
}

static void test_sum(void)
{
    struct input in = base;
    struct pi_lineage l, first;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7 >> 3);
    first = sum(&base);
    /* Profiles of existing models are bound by this number: it may not change. */
    STREQ(first.hex, "4303b4a21b02275d25aa1c1469f6cf21e49cf07ba54b6008fb2d2316e5afc264");
    in.turned = true;
    l = sum(&in);
    STREQ(l.hex, first.hex);
    in = base;
    in.value = "65";
    expect_other(&in, &first);
    in = base;
    in.key = "hidden_size6"; /* the same bytes, cut elsewhere */
    in.value = "4";
    expect_other(&in, &first);
    in = base;
    in.name_a = "w.c";
    expect_other(&in, &first);
    in = base;
    in.ne_a[0] = 50;
    in.ne_a[1] = 100;
    expect_other(&in, &first);
    for (size_t at = 0; at < sizeof(data); at += sizeof(data) - 1) {
        data[at] ^= 1;
        expect_other(&base, &first);
        data[at] ^= 1;
    }
    l = sum(&base);
    STREQ(l.hex, first.hex);
}

/* A model of one layer; down lies neuron by neuron or not. */
static void write_model(const char *path, bool turned, uint32_t n_ctx, uint8_t weight,
                        const struct pi_lineage *stored)
{
    struct pi_gguf_writer *w = NULL;
    const uint64_t down[2] = {16, 4}, down_t[2] = {4, 16}, up[2] = {4, 16}, ff[1] = {4};
    int bad = pi_gguf_writer_create(path, &w, &e) != PI_OK;

    data[0] = weight;
    bad += pi_gguf_set_string(w, "general.architecture", "llama", &e) != PI_OK;
    bad += pi_gguf_set_string(w, "general.name", path, &e) != PI_OK;
    bad += pi_gguf_set_u32(w, "llama.context_length", n_ctx, &e) != PI_OK;
    if (stored != NULL)
        bad += pi_lineage_store(w, stored, &e) != PI_OK;
    bad += pi_gguf_add_tensor(w, "blk.0.ffn_up.weight", PI_TYPE_F32, up, 2, &e) != PI_OK;
    bad += pi_gguf_add_tensor(w, turned ? "blk.0.ffn_down_t.weight" : "blk.0.ffn_down.weight",
                              PI_TYPE_F32, turned ? down_t : down, 2, &e) != PI_OK;
    bad += pi_gguf_add_tensor(w, turned ? "blk.0.ffn_down_t.bias" : "blk.0.ffn_down.bias",
                              PI_TYPE_F32, ff, 1, &e) != PI_OK;
    bad += pi_gguf_begin(w, &e) != PI_OK;
    bad += pi_gguf_append(w, data, 256, &e) != PI_OK;
    bad += pi_gguf_append(w, data + (turned ? 256 : 300), 256, &e) != PI_OK; /* other order */
    bad += pi_gguf_append(w, data, 16, &e) != PI_OK;
    bad += pi_gguf_commit(w, &e) != PI_OK;
    EQ(bad, 0);
}

static void read_names(const char *path, struct pi_lineage *l, struct pi_fingerprint *f)
{
    struct pi_gguf g = {0};

    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    PASSES(pi_model_lineage(&g, l, &e), e);
    PASSES(pi_model_fingerprint(&g, f, &e), e);
    pi_gguf_close(&g);
}

static void test_gguf(const char *dir)
{
    char *p = scratch_path(dir, "a.gguf"), *q = scratch_path(dir, "b.gguf");
    struct pi_lineage a, b, other = {{0}};
    struct pi_fingerprint fa, fb;

    write_model(p, false, 128, 1, NULL);
    write_model(q, true, 128, 1, NULL);
    read_names(p, &a, &fa);
    read_names(q, &b, &fb);
    STREQ(a.hex, b.hex);
    OK(strcmp(fa.hex, fb.hex) != 0);
    EQ(strlen(a.hex), PI_HASH_HEX);
    write_model(q, false, 256, 1, NULL);
    read_names(q, &b, &fb);
    OK(strcmp(a.hex, b.hex) != 0);
    write_model(q, false, 128, 2, NULL);
    read_names(q, &b, &fb);
    OK(strcmp(a.hex, b.hex) != 0 && strcmp(fa.hex, fb.hex) != 0);
    write_model(q, false, 256, 3, &a); /* another type of the same model carries its name */
    read_names(q, &other, &fb);
    STREQ(other.hex, a.hex);

    strcpy(other.hex, "1234");
    write_model(q, false, 256, 3, &other);
    struct pi_gguf g = {0};
    PASSES(pi_gguf_open(q, 0, &g, &e), e);
    FAILS(pi_model_lineage(&g, &b, &e), PI_E_CORRUPT, "pi.model.lineage has 4 characters", e);
    pi_gguf_close(&g);
    memset(other.hex, 'G', PI_HASH_HEX);
    write_model(q, false, 256, 3, &other);
    PASSES(pi_gguf_open(q, 0, &g, &e), e);
    FAILS(pi_model_lineage(&g, &b, &e), PI_E_CORRUPT, "no hexadecimal number", e);
    pi_gguf_close(&g);
    free(p);
    free(q);
}

/* Where a file has no CRCs the fingerprint samples its data. */
static void test_foreign(void)
{
    static struct gb b;
    const uint64_t ne = 8;
    struct pi_gguf g = {0};
    struct pi_lineage l;
    struct pi_fingerprint f[2];

    for (int i = 0; i < 2; i++) {
        gb_one_tensor(&b, 1, &ne, PI_TYPE_F32, 0, 32);
        b.p[b.n - 1] ^= (uint8_t)i;
        PASSES(pi_gguf_open_memory(b.p, b.n, "x.gguf", 0, &g, &e), e);
        PASSES(pi_model_fingerprint(&g, &f[i], &e), e);
        FAILS(pi_model_lineage(&g, &l, &e), PI_E_CORRUPT, "general.architecture is missing", e);
        pi_gguf_close(&g);
    }
    OK(strcmp(f[0].hex, f[1].hex) != 0);
}

int main(void)
{
    char *dir = scratch_open();

    test_sum();
    test_gguf(dir);
    test_foreign();
    scratch_close(dir);
    return DONE();
}
