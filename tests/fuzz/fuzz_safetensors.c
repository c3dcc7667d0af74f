/* safetensors files; every input is tried a second time with the header length that its JSON has. */
#include "config.h"

#include "convert/pi_safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

unsigned long pi_fuzz_accepted;

static unsigned long sink; /* what was read, so that it is read */

static void check_tensor(const struct pi_src_tensor *t, const uint8_t *data, size_t size)
{
    uint64_t elems = 1;

    FUZZ_CHECK(t->name != NULL && t->dtype != NULL && t->n_dims <= PI_SRC_MAX_DIMS);
    FUZZ_CHECK(t->data >= data + 8 && t->bytes <= size &&
               (size_t)(t->data - data) <= size - t->bytes);
    for (uint32_t i = 0; i < PI_SRC_MAX_DIMS; i++)
        elems *= t->dim[i];
    FUZZ_CHECK(!t->readable || t->bytes == elems * (t->type == PI_TYPE_F32 ? 4 : 2));
    for (uint64_t i = 0; i < t->bytes; i++)
        sink += t->data[i];
}

static int parse(const uint8_t *data, size_t size)
{
    struct pi_source src = {0};
    struct pi_err e = {0};
    int ok = pi_safetensors_parse(data, size, "fuzz", &src, &e) == PI_OK;

    FUZZ_CHECK(ok == (e.code == PI_OK));
    for (size_t i = 0; ok && i < src.n; i++)
        check_tensor(&src.t[i], data, size);
    if (ok && pi_source_sort(&src, &e) == PI_OK)
        for (size_t i = 0; i < src.n; i++)
            FUZZ_CHECK(pi_source_find(&src, src.t[i].name) == &src.t[i]);
    pi_source_close(&src);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ok = parse(data, size);
    size_t end = size;
    uint8_t *copy;

    while (end > 8 && data[end - 1] != '}')
        end--;
    if (!ok && end > 8 && (copy = malloc(size)) != NULL) {
        memcpy(copy, data, size);
        for (int i = 0; i < 8; i++)
            copy[i] = (uint8_t)((uint64_t)(end - 8) >> (8 * i));
        ok = parse(copy, size);
        free(copy);
    }
    pi_fuzz_accepted += (unsigned long)ok;
    return 0;
}

size_t pi_fuzz_seed(unsigned i, uint8_t *buf, size_t cap)
{
    static const struct {
        const char *json;
        size_t n_data;
    } seeds[] = {
        {"{}", 0},
        {"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
         "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[32,40]}}  ",
         40},
        {"{\"model.layers.0.mlp.up_proj.weight\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[6,14]},"
         "\"x\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[0,6]}}",
         14},
    };
    size_t n;

    if (i >= sizeof(seeds) / sizeof(seeds[0]))
        return 0;
    n = strlen(seeds[i].json);
    if (8 + n + seeds[i].n_data > cap)
        return 0;
    memset(buf, 0, 8 + n + seeds[i].n_data);
    buf[0] = (uint8_t)n;
    buf[1] = (uint8_t)(n >> 8);
    memcpy(buf + 8, seeds[i].json, n);
    return 8 + n + seeds[i].n_data;
}
