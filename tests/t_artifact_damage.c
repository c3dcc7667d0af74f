/* Artifacts with one wrong value each, every flipped bit, files cut short and too long. */
#include "config.h"

#include "tests/artifact_rig.h"

static enum pi_code load_any(const char *path, int kind)
{
    struct pi_profile p = {0};
    struct pi_predictor d = {0};
    struct pi_placement l = {0};
    enum pi_code rc;

    switch (kind) {
    case PI_ARTIFACT_PROFILE:
        rc = pi_profile_load(path, &p, &e);
        pi_profile_free(&p);
        return rc;
    case PI_ARTIFACT_PREDICTOR:
        rc = pi_predictor_load(path, &d, &e);
        pi_predictor_free(&d);
        return rc;
    default:
        rc = pi_placement_load(path, &l, &e);
        pi_placement_free(&l);
        return rc;
    }
}

/* ---- one value at a time -------------------------------------------------------------------- */

/* What a rewritten artifact has in another way; its checksums are right. */
struct change {
    const char *key; /* set to the n values of type elem at v (n 0: left out) */
    enum pi_gguf_vtype elem;
    const void *v;
    size_t n;
    const char *tensor; /* changed: left out, or with another type or first dimension, or data */
    bool drop;
    enum pi_type type; /* PI_TYPE_COUNT: as it is */
    uint64_t ne0;      /* 0: as it is */
    const void *first; /* four bytes in the place of its first ones; NULL: as they are */
};

static const struct change none = {.type = PI_TYPE_COUNT};

static int copy_tensor(struct pi_gguf_writer *w, const struct pi_gguf_tensor *t,
                       const struct change *c, bool data)
{
    char name[64];
    uint64_t ne[PI_GGUF_MAX_DIMS], bytes = 0;
    enum pi_type type = t->type;
    uint8_t block[1 << 14] = {0};

    (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.n, t->name.p);
    memcpy(ne, t->ne, sizeof(ne));
    memcpy(block, t->data, t->bytes);
    if (c->tensor != NULL && strcmp(name, c->tensor) == 0) {
        if (c->drop)
            return 0;
        type = c->type < PI_TYPE_COUNT ? c->type : type;
        ne[0] = c->ne0 > 0 ? c->ne0 : ne[0];
        if (c->first != NULL)
            memcpy(block, c->first, 4);
    }
    if (!data)
        return pi_gguf_add_tensor(w, name, type, ne, t->n_dims, &e) != PI_OK;
    if (!pi_type_row_bytes(type, ne[0] * ne[1], &bytes) || bytes > sizeof(block))
        return 1;
    return pi_gguf_append(w, block, bytes, &e) != PI_OK;
}

static void rewrite(const char *from, const char *to, const struct change *c)
{
    struct pi_gguf g = {0};
    struct pi_gguf_writer *w = NULL;
    int bad = pi_gguf_open(from, 0, &g, &e) != PI_OK || pi_gguf_writer_create(to, &w, &e) != PI_OK;

    for (size_t i = 0; i < g.n_kv; i++)
        if (c->key == NULL || !pi_str_eq(g.kv[i].key, c->key))
            bad += pi_gguf_set_copy(w, &g.kv[i], &e) != PI_OK;
    if (c->n == 1 && c->elem == PI_GGUF_U32)
        bad += pi_gguf_set_u32(w, c->key, *(const uint32_t *)c->v, &e) != PI_OK;
    else if (c->n == 1)
        bad += pi_gguf_set_string(w, c->key, c->v, &e) != PI_OK;
    else if (c->n > 1)
        bad += pi_gguf_set_array(w, c->key, c->elem, c->v, c->n, &e) != PI_OK;
    for (size_t i = 0; i < g.n_tensors; i++)
        bad += copy_tensor(w, &g.tensors[i], c, false);
    bad += pi_gguf_begin(w, &e) != PI_OK;
    for (size_t i = 0; i < g.n_tensors; i++)
        bad += copy_tensor(w, &g.tensors[i], c, true);
    bad += pi_gguf_commit(w, &e) != PI_OK;
    EQ(bad, 0);
    pi_gguf_close(&g);
}

/* A file with one change must not load. */
static void refused(const char *from, const char *to, int kind, struct change c, const char *says)
{
    rewrite(from, to, &c);
    FAILS(load_any(to, kind), PI_E_CORRUPT, says, e);
}

static void test_bad_placements(const char *from, const char *to)
{
    static const uint32_t hot[L] = {0, FF + 1}, zero = 0, eighteen = 18, two = 2, q4 = PI_TYPE_Q4_0;
    static const uint8_t three[L] = {0, 3}, units[L + 1] = {0};
    static const int32_t minus = -1;
    const int kind = PI_ARTIFACT_PLACEMENT;
    struct change c = none;

    rewrite(from, to, &none);
    PASSES(load_any(to, kind), e);
    c = (struct change){"pi.placement.n_hot", PI_GGUF_U32, hot, L, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.n_hot: layer 1 has 71; 0 to 70");
    c = (struct change){"pi.placement.mode_gpu", PI_GGUF_U8, three, L, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.mode_gpu: layer 1 has 3; 0 to 2");
    c = (struct change){"pi.placement.attn_unit", PI_GGUF_U8, three, L, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "layer 1: attention on unit 3 of 3");
    c = (struct change){"pi.placement.hot_unit", PI_GGUF_U8, units, L + 1, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.hot_unit has 3 values for 2 layers");
    c = (struct change){"pi.placement.hot_unit", .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.hot_unit is missing");
    c = (struct change){"pi.placement.n_units", PI_GGUF_U32, &eighteen, 1, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.n_units is 18; 1 to 17");
    c = (struct change){"pi.placement.n_units", PI_GGUF_U32, &zero, 1, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.n_units is 0");
    c = (struct change){"pi.placement.n_units", PI_GGUF_U32, &two, 1, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.output_unit is 2; 0 to 1");
    c = (struct change){"pi.placement.kv_type", PI_GGUF_U32, &q4, 1, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "a KV cache of Q4_0");
    c = (struct change){"pi.placement.objective", PI_GGUF_STR, "0123456789abcdef", 1,
                        .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.placement.objective is longer than 15 bytes");
    c = (struct change){"pi.model.fingerprint", .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.model.fingerprint is missing");
    c = (struct change){"pi.model.lineage", .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.model.lineage is missing");
    c = none;
    c.tensor = "blk.1.order";
    c.first = &minus;
    refused(from, to, kind, c, "layer 1: neuron 4294967295 is out of range");
    c.first = &zero;
    refused(from, to, kind, c, "placed twice");
    c.first = NULL;
    c.drop = true;
    refused(from, to, kind, c, "tensor blk.1.order is missing");
    c.drop = false;
    c.ne0 = FF - 1;
    refused(from, to, kind, c, "blk.1.order is 69 x 1 x 1 x 1, not 70 x 1");
    c.ne0 = 0;
    c.type = PI_TYPE_F32;
    refused(from, to, kind, c, "tensor blk.1.order is F32, not I32");
}

static void test_bad_predictors(const char *from, const char *to)
{
    static const uint32_t width[L] = {0, R + 1}, first[L] = {R, R}, gone[L] = {0, 0}, big = 1025;
    static const uint8_t two[L] = {0, 2};
    static const int32_t ints[L] = {0, 0};
    const int kind = PI_ARTIFACT_PREDICTOR;
    struct change c;

    rewrite(from, to, &none);
    PASSES(load_any(to, kind), e);
    c = (struct change){"pi.predictor.width", PI_GGUF_U32, width, L, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "blk.1.fc1.weight is 16 x 8 x 1 x 1, not 16 x 9");
    c.v = first;
    refused(from, to, kind, c, "tensor blk.0.fc1.weight is missing");
    c.v = gone;
    refused(from, to, kind, c, "layer 1 has width 0 and a tensor blk.1.fc1.weight");
    c = (struct change){"pi.predictor.activation", PI_GGUF_U8, two, L, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.predictor.activation: layer 1 has 2; 0 to 1");
    c = (struct change){"pi.predictor.threshold", PI_GGUF_I32, ints, L, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.predictor.threshold is an array of i32, not of f32");
    c = (struct change){"pi.predictor.n_layer", PI_GGUF_U32, &big, 1, .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.predictor.n_layer is 1025; 1 to 1024");
    c = none;
    c.tensor = "blk.1.fc2.bias";
    c.type = PI_TYPE_F16;
    refused(from, to, kind, c, "tensor blk.1.fc2.bias is F16, not F32");
    c.tensor = "blk.1.fc2.weight";
    c.type = PI_TYPE_I32;
    rewrite(from, to, &c);
    FAILS(load_any(to, kind), PI_E_UNSUPPORTED, "tensor blk.1.fc2.weight has type I32", e);
}

static void test_bad_profiles(const char *from, const char *to)
{
    static const uint32_t n_ff = FF + 1;
    const int kind = PI_ARTIFACT_PROFILE;
    struct change c = {"pi.profile.n_ff", PI_GGUF_U32, &n_ff, 1, .type = PI_TYPE_COUNT};

    rewrite(from, to, &none);
    PASSES(load_any(to, kind), e);
    refused(from, to, kind, c, "blk.0.count is 70 x 1 x 1 x 1, not 71 x 1");
    c = (struct change){"pi.profile.tokens", .type = PI_TYPE_COUNT};
    refused(from, to, kind, c, "pi.profile.tokens is missing");
    c = none;
    c.tensor = "sample.position";
    c.ne0 = N - 1;
    refused(from, to, kind, c, "sample.position is missing or not 9 x I64");
    c = none;
    c.tensor = "blk.0.sample.residual";
    c.type = PI_TYPE_F16;
    refused(from, to, kind, c, "blk.0.sample.residual is F16, not BF16");
}

/* ---- every bit ------------------------------------------------------------------------------ */

static void test_flips(const char *path, int kind)
{
    size_t n = 0, missed = 0, cut = 0;
    char *bytes = NULL;
    FILE *f;

    PASSES(load_any(path, kind), e);
    PASSES(pi_file_read_all(path, false, 1 << 20, &bytes, &n, &e), e);
    f = fopen(path, "r+b");
    for (size_t i = 0; f != NULL && i < n; i++) {
        char flipped = (char)(bytes[i] ^ (1 << i % 8));

        (void)fseek(f, (long)i, SEEK_SET);
        (void)fwrite(&flipped, 1, 1, f);
        (void)fflush(f);
        if (load_any(path, kind) == PI_OK) {
            printf("# byte %zu of %zu\n", i, n);
            missed++;
        }
        (void)fseek(f, (long)i, SEEK_SET);
        (void)fwrite(bytes + i, 1, 1, f);
        (void)fflush(f);
    }
    OK(n > 500);
    EQ(missed, 0);
    PASSES(load_any(path, kind), e);
    (void)fwrite("", 1, 1, f); /* now one byte too long */
    if (f != NULL)
        (void)fclose(f);
    for (size_t i = 0; i < n; i += 13) {
        scratch_write(path, bytes, i);
        cut += load_any(path, kind) != PI_E_CORRUPT;
    }
    EQ(cut, 0);
    scratch_write(path, bytes, n);
    PASSES(load_any(path, kind), e);
    free(bytes);
}

static void test_longer(const char *path, int kind)
{
    size_t n = 0;
    char *bytes = NULL, *longer = NULL;

    PASSES(pi_file_read_all(path, false, 1 << 20, &bytes, &n, &e), e);
    longer = calloc(n + 1, 1);
    memcpy(longer, bytes, n);
    scratch_write(path, longer, n + 1);
    FAILS(load_any(path, kind), PI_E_CORRUPT, "the file has", e);
    free(bytes);
    free(longer);
}

static void test_profile(const char *path, const char *changed)
{
    const struct pi_profile p = make_profile();

    PASSES(pi_profile_save(path, &p, &samples, 512, "a.txt", &e), e);
    test_bad_profiles(path, changed);
    test_flips(path, PI_ARTIFACT_PROFILE);
    test_longer(path, PI_ARTIFACT_PROFILE);
}

static void test_predictor(const char *path, const char *changed)
{
    struct pi_predictor p;
    struct pi_predictor_layer layers[L];

    make_predictor(&p, layers);
    PASSES(pi_predictor_save(path, &p, &e), e);
    test_bad_predictors(path, changed);
    test_flips(path, PI_ARTIFACT_PREDICTOR);
    test_longer(path, PI_ARTIFACT_PREDICTOR);
}

static void test_placement(const char *path, const char *changed)
{
    struct pi_placement p = {0};

    make_placement(&p);
    PASSES(pi_placement_save(path, &p, &e), e);
    pi_placement_free(&p);
    test_bad_placements(path, changed);
    test_flips(path, PI_ARTIFACT_PLACEMENT);
    test_longer(path, PI_ARTIFACT_PLACEMENT);
}

int main(void)
{
    char *dir = scratch_open();
    char *path = scratch_path(dir, "M.x.gguf"), *changed = scratch_path(dir, "changed.gguf");

    test_profile(path, changed);
    test_predictor(path, changed);
    test_placement(path, changed);
    free(path);
    free(changed);
    scratch_close(dir);
    return DONE();
}
