/* PyTorch checkpoints; every input is tried as a file, and as the pickle of one that has two storages. */
#include "config.h"

#include "convert/pi_torch.h"
#include "tests/fuzz/fuzz.h"
#include "tests/torch_bytes.h"

unsigned long pi_fuzz_accepted;

static unsigned long sink; /* what was read, so that it is read */

static int parse(const uint8_t *data, size_t size)
{
    struct pi_source src = {0};
    struct pi_err e = {0};
    int ok = pi_torch_parse(data, size, "fuzz", &src, &e) == PI_OK;

    FUZZ_CHECK(ok == (e.code == PI_OK));
    for (size_t i = 0; ok && i < src.n; i++) {
        const struct pi_src_tensor *t = &src.t[i];
        uint64_t elems = 1;

        FUZZ_CHECK(t->name != NULL && t->dtype != NULL && t->n_dims <= PI_SRC_MAX_DIMS);
        FUZZ_CHECK(t->data >= data && t->bytes <= size &&
                   (size_t)(t->data - data) <= size - t->bytes);
        for (uint32_t k = 0; k < PI_SRC_MAX_DIMS; k++)
            elems *= t->dim[k];
        FUZZ_CHECK(!t->readable || t->bytes == elems * (t->type == PI_TYPE_F32 ? 4 : 2));
        for (uint64_t k = 0; k < t->bytes; k++)
            sink += t->data[k];
    }
    pi_source_close(&src);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct zip_bytes z;

    pi_fuzz_accepted += (unsigned long)parse(data, size);
    if (size < 4096) {
        torch_file(&z, data, size);
        pi_fuzz_accepted += (unsigned long)parse(z.p, z.n);
    }
    return 0;
}

size_t pi_fuzz_seed(unsigned i, uint8_t *buf, size_t cap)
{
    static const char nested[] =
        "\x80\2}(" PKL_STR("\5", "epoch") "K\7" PKL_STR("\12", "state_dict") "}(" PKL_STR("\1", "w")
            PKL_TENSOR(PKL_STORE_F32, "K\0", "K\2K\3\x86", "K\3K\1\x86") "uu.";
    struct zip_bytes z;

    torch_file(&z, PKL_GOOD, sizeof(PKL_GOOD) - 1);
    if (i > 2 || z.n > cap)
        return 0;
    if (i == 0) {
        memcpy(buf, z.p, z.n);
        return z.n;
    }
    memcpy(buf, i == 1 ? PKL_GOOD : nested, i == 1 ? sizeof(PKL_GOOD) - 1 : sizeof(nested) - 1);
    return i == 1 ? sizeof(PKL_GOOD) - 1 : sizeof(nested) - 1;
}
