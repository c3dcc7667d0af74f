/*
 * safetensors files that are right, and files that lie.
 */
#include "config.h"

#include "convert/pi_safetensors.h"
#include "common/pi_progress.h"
#include "tests/scratch.h"
#include "tests/tap.h"

/* A file: header length (or a lie), JSON, n_data bytes counting up. */
struct file {
    uint8_t *p;
    size_t n;
};

static struct file make_file(const char *json, uint64_t length, size_t n_data)
{
    size_t n_json = strlen(json);
    struct file f = {calloc(1, 8 + n_json + n_data + 1), 8 + n_json + n_data};

    if (f.p == NULL)
        exit(99);
    for (int i = 0; i < 8; i++)
        f.p[i] = (uint8_t)(length >> (8 * i));
    memcpy(f.p + 8, json, n_json);
    for (size_t i = 0; i < n_data; i++)
        f.p[8 + n_json + i] = (uint8_t)i;
    return f;
}

static enum pi_code parse(const char *json, uint64_t length, size_t n_data, struct pi_source *src,
                          struct pi_err *e)
{
    struct file f = make_file(json, length, n_data);
    enum pi_code rc = pi_safetensors_parse(f.p, f.n, "m.safetensors", src, e);

    free(f.p); /* only pointers into it die: names are copies */
    return rc;
}

/* Must be refused with code and text. */
static void refuse(const char *json, size_t n_data, enum pi_code code, const char *text)
{
    struct pi_source src = {0};
    struct pi_err e = {0};

    printf("# %.70s\n", json);
    FAILS(parse(json, strlen(json), n_data, &src, &e), code, text, e);
    OK(strncmp(e.msg, "m.safetensors: ", 15) == 0);
    pi_source_close(&src);
}

static void test_good(void)
{
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[6,14]},"
        "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[14,22]},"
        "\"none\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[14,14]}}   ";
    struct pi_source src = {0};
    struct pi_err e = {0};
    struct file f = make_file(json, strlen(json), 22);
    const struct pi_src_tensor *t;

    PASSES(pi_safetensors_parse(f.p, f.n, "m.safetensors", &src, &e), e);
    PASSES(pi_source_sort(&src, &e), e);
    EQ(src.n, 4);
    t = pi_source_find(&src, "a");
    OK(t != NULL && t->type == PI_TYPE_F32 && t->n_dims == 2 && t->dim[0] == 2 && t->dim[1] == 1 &&
       t->bytes == 8);
    OK(t != NULL && t->data[0] == 6); /* at an odd place of the file: nothing is aligned */
    t = pi_source_find(&src, "b");
    OK(t != NULL && t->type == PI_TYPE_F16 && t->readable && t->data[0] == 0);
    t = pi_source_find(&src, "scalar");
    OK(t != NULL && !t->readable && t->n_dims == 0 && t->bytes == 8);
    STREQ(t != NULL ? t->dtype : "", "I64");
    t = pi_source_find(&src, "none");
    OK(t != NULL && t->bytes == 0);
    OK(pi_source_find(&src, "c") == NULL);
    pi_source_close(&src);
    free(f.p);
}

static void test_header_length(void)
{
    static const char json[] = "{}";
    const uint64_t lies[] = {UINT64_MAX, UINT64_MAX - 4, (uint64_t)1 << 63, 3, 100,
                             10 /* counted with its own 8 bytes */};
    struct pi_source src = {0};
    struct pi_err e = {0};

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
        FAILS(parse(json, lies[i], 0, &src, &e), PI_E_CORRUPT, "does not fit", e);
    FAILS(parse(json, 0, 0, &src, &e), PI_E_CORRUPT, "no JSON object", e);
    FAILS(parse(json, 1, 0, &src, &e), PI_E_CORRUPT, "no JSON object", e);
    PASSES(parse(json, 2, 0, &src, &e), e);
    FAILS(parse(json, 2, 5, &src, &e), PI_E_CORRUPT, "5 bytes behind the last tensor", e);
    for (size_t n = 0; n < 8; n++)
        FAILS(pi_safetensors_parse((const uint8_t *)"\2\0\0\0\0\0\0", n, "m", &src, &e),
              PI_E_CORRUPT, "no safetensors file", e);
    pi_source_close(&src);
}

#define ONE(dtype, shape, offsets) \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_lies(void)
{
    refuse(ONE("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, PI_E_CORRUPT,
           "does not fit 64 bits");
    refuse(ONE("\"F32\"", "[4611686018427387904]", "[0,0]"), 0, PI_E_CORRUPT,
           "do not take the 0 bytes");
    refuse(ONE("\"F32\"", "[2]", "[0,4]"), 4, PI_E_CORRUPT,
           "2 elements of F32 do not take the 4 bytes");
    refuse(ONE("\"F32\"", "[1]", "[0,4]"), 3, PI_E_CORRUPT, "do not lie in the file's 3 bytes");
    refuse(ONE("\"F32\"", "[1]", "[4,0]"), 4, PI_E_CORRUPT, "do not lie");
    refuse(ONE("\"F32\"", "[1]", "[-4,0]"), 4, PI_E_CORRUPT, "no pair of offsets");
    refuse(ONE("\"F32\"", "[1]", "[0,4,8]"), 4, PI_E_CORRUPT, "no pair of offsets");
    refuse(ONE("\"F32\"", "[1]", "[0]"), 4, PI_E_CORRUPT, "no pair of offsets");
    refuse(ONE("\"F32\"", "[1]", "[0,4.0]"), 4, PI_E_CORRUPT, "no pair of offsets");
    refuse(ONE("\"F32\"", "[1]", "[0,18446744073709551615]"), 4, PI_E_CORRUPT, "too big integer");
    refuse(ONE("\"F32\"", "[-1]", "[0,4]"), 4, PI_E_CORRUPT, "no list of sizes");
    refuse(ONE("\"F32\"", "1", "[0,4]"), 4, PI_E_CORRUPT, "no list of sizes");
    refuse(ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, PI_E_UNSUPPORTED, "9 dimensions");
    refuse(ONE("\"F99\"", "[1]", "[99999,4]"), 4, PI_E_UNSUPPORTED,
           "unknown dtype F99 (supported: F32, F16, BF16)");
    refuse(ONE("7", "[1]", "[0,4]"), 4, PI_E_CORRUPT, "no \"dtype\"");
    refuse("{\"t\":[]}", 4, PI_E_CORRUPT, "no \"dtype\"");
    refuse("{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, PI_E_CORRUPT,
           "name of 0 bytes");
    refuse("{\"t\":", 0, PI_E_CORRUPT, "line 1");
    refuse("{} {}", 0, PI_E_CORRUPT, "line 1");
    refuse(
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
        4, PI_E_CORRUPT, "duplicate");
    refuse(
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"u\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
        4, PI_E_CORRUPT, "tensors t and u overlap");
    refuse(
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"u\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
        4, PI_E_CORRUPT, "1 bytes before tensor u");
}

static void test_size(void)
{
    enum {
        N = 100000
    };
    char *json = malloc((size_t)N * 90), *deep = malloc(40000), *longname = malloc(3000),
         *at = json;
    struct pi_source src = {0};
    struct pi_err e = {0};
    double t0 = pi_now();

    if (json == NULL || deep == NULL || longname == NULL)
        exit(99);
    for (int i = 0; i < N; i++)
        at += sprintf(at, "%c\"t.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i == 0 ? '{' : ',', i, i, i + 1);
    (void)strcpy(at, "}");
    PASSES(parse(json, strlen(json), N, &src, &e), e);
    PASSES(pi_source_sort(&src, &e), e);
    EQ(src.n, N);
    OK(pi_now() - t0 < 10.0); /* takes 0.2 s; quadratic work would take minutes */
    pi_source_close(&src);

    (void)strcpy(deep, "{\"t\":");
    memset(deep + 5, '[', 10000);
    deep[10005] = '\0';
    refuse(deep, 0, PI_E_CORRUPT, "depth");
    (void)strcpy(longname, "{\"");
    memset(longname + 2, 'x', 2000);
    (void)strcpy(longname + 2002, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    refuse(longname, 1, PI_E_CORRUPT, "name of 2000 bytes");
    free(json);
    free(deep);
    free(longname);
}

static void write_shard(const char *dir, const char *name, const char *json, size_t n_data)
{
    struct file f = make_file(json, strlen(json), n_data);
    char *path = scratch_path(dir, name);

    scratch_write(path, f.p, f.n);
    free(path);
    free(f.p);
}

static void test_shards(void)
{
    char *dir = scratch_open(), *index = scratch_path(dir, "model.safetensors.index.json"),
         *two = scratch_path(dir, "two.safetensors");
    struct pi_source src = {0};
    struct pi_err e = {0};
    static const char good[] =
        "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}";
    static const char escape[] = "{\"weight_map\":{\"a\":\"../one.safetensors\"}}";
    static const char wrong[] =
        "{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}";
    static const char absent[] =
        "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}";

    FAILS(pi_source_open(dir, &src, &e), PI_E_IO,
          "neither model.safetensors nor pytorch_model.bin", e);
    write_shard(dir, "one.safetensors",
                "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    scratch_write(index, good, strlen(good));
    FAILS(pi_source_open(dir, &src, &e), PI_E_IO, "two.safetensors: shard is missing", e);
    write_shard(dir, "two.safetensors",
                "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    PASSES(pi_source_open(dir, &src, &e), e);
    OK(pi_source_find(&src, "a") != NULL && pi_source_find(&src, "b") != NULL && src.n_maps == 2);
    pi_source_close(&src);
    scratch_write(index, escape, strlen(escape));
    FAILS(pi_source_open(dir, &src, &e), PI_E_CORRUPT, "no name of a shard", e);
    scratch_write(index, wrong, strlen(wrong));
    FAILS(pi_source_open(dir, &src, &e), PI_E_CORRUPT, "is not in", e);
    scratch_write(index, absent, strlen(absent));
    FAILS(pi_source_open(dir, &src, &e), PI_E_CORRUPT, "tensor c is not in two.safetensors", e);
    scratch_write(index, "{}", 2);
    FAILS(pi_source_open(dir, &src, &e), PI_E_CORRUPT, "no \"weight_map\"", e);
    scratch_write(index, good, strlen(good));
    write_shard(dir, "two.safetensors",
                "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    FAILS(pi_source_open(dir, &src, &e), PI_E_CORRUPT, "tensor a is also in", e);
    scratch_write(two, "", 0);
    FAILS(pi_source_open(dir, &src, &e), PI_E_CORRUPT, "0 bytes are no safetensors file", e);
    free(index);
    free(two);
    scratch_close(dir);
}

int main(void)
{
    test_good();
    test_header_length();
    test_lies();
    test_size();
    test_shards();
    return DONE();
}
