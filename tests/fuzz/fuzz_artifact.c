/* Loaders of profiles, predictors and placements. Checksums would stop every mutant at the door, so the
 * input's are made right first (and its padding zero): what is behind them must stand by itself. */
#include "config.h"

#include "common/pi_artifact.h"
#include "common/pi_gguf_int.h"
#include "common/pi_le.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

unsigned long pi_fuzz_accepted;

/* ---- repair --------------------------------------------------------------------------------- */

static void repair_crcs(uint8_t *p, const struct pi_gguf *g)
{
    const struct pi_gguf_kv *crc = pi_gguf_find(g, PI_GGUF_KEY_CRC);
    const struct pi_gguf_kv *header = pi_gguf_find(g, PI_GGUF_KEY_HEADER_CRC);

    if (crc != NULL && crc->elem == PI_GGUF_U32 && crc->n == g->n_tensors)
        for (size_t i = 0; i < g->n_tensors; i++)
            pi_store_u32(p + (crc->data - p) + 4 * i,
                         (uint32_t)crc32_z(0, g->tensors[i].data, g->tensors[i].bytes));
    if (header == NULL || header->type != PI_GGUF_U32)
        return;
    pi_store_u32(p + (header->data - p), 0);
    pi_store_u32(p + (header->data - p), (uint32_t)crc32_z(0, p, g->header_bytes));
}

static size_t repair_padding(uint8_t *p, const struct pi_gguf *g)
{
    size_t end = g->data_offset;

    memset(p + g->header_bytes, 0, g->data_offset - g->header_bytes);
    for (size_t i = 0; i < g->n_tensors; i++) {
        size_t at = (size_t)(g->tensors[i].data - p) + g->tensors[i].bytes;
        size_t pad = -at & (g->alignment - 1);

        memset(p + at, 0, pad);
        if (at + pad > end)
            end = at + pad;
    }
    return end;
}

/* A copy of the input with right checksums in *out, the caller's to free(); 0 when it is no GGUF file. */
static size_t repair(const uint8_t *data, size_t size, uint8_t **out)
{
    struct pi_gguf g = {0};
    uint8_t *p = calloc(size + 2 * 65536, 1); /* room for the padding of any alignment */
    size_t n = 0;

    memcpy(p, data, size);
    if (pi_gguf_open_memory(p, size, "fuzz", PI_GGUF_NO_HEADER_CRC, &g, NULL) == PI_OK) {
        n = repair_padding(p, &g);
        repair_crcs(p, &g);
        pi_gguf_close(&g);
    }
    *out = p;
    return n;
}

/* ---- loaders -------------------------------------------------------------------------------- */

static void load_profile(const char *path)
{
    struct pi_profile p = {0};
    uint32_t *order;
    float *x = NULL;
    uint8_t *m = NULL;

    if (pi_profile_load(path, &p, NULL) != PI_OK)
        return;
    pi_fuzz_accepted++;
    order = calloc(p.n_ff, sizeof(*order));
    FUZZ_CHECK(pi_profile_order(&p, p.n_layer - 1, order, NULL) == PI_OK && order[0] < p.n_ff);
    free(order);
    if (pi_profile_samples(&p, 0, &x, &m, NULL) == PI_OK) {
        free(x);
        free(m);
    }
    pi_profile_free(&p);
}

static void load_predictor(const char *path)
{
    struct pi_predictor p = {0};

    if (pi_predictor_load(path, &p, NULL) != PI_OK)
        return;
    pi_fuzz_accepted++;
    for (uint32_t l = 0; l < p.n_layer; l++) {
        const struct pi_predictor_layer *x = &p.layers[l];
        const uint8_t *end = p.file.map.data + p.file.map.size;

        if (x->width == 0)
            continue;
        FUZZ_CHECK((const uint8_t *)pi_mat_row(&x->fc1, x->width - 1) + x->fc1.row_bytes <= end);
        FUZZ_CHECK((const uint8_t *)pi_mat_row(&x->fc2, p.n_ff - 1) + x->fc2.row_bytes <= end);
        FUZZ_CHECK(x->bias == NULL || (const uint8_t *)(x->bias + p.n_ff) <= end);
    }
    pi_predictor_free(&p);
}

static void load_placement(const char *path)
{
    struct pi_placement p = {0};

    if (pi_placement_load(path, &p, NULL) != PI_OK)
        return;
    pi_fuzz_accepted++;
    FUZZ_CHECK(pi_placement_check(&p, NULL) == PI_OK);
    pi_placement_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    uint8_t *p = NULL;
    size_t n = repair(data, size, &p);

    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (n > 0 && ftruncate(fd, 0) == 0 && pwrite(fd, p, n, 0) == (ssize_t)n) {
        load_profile(path);
        load_predictor(path);
        load_placement(path);
    }
    free(p);
    return 0;
}

/* ---- seeds ---------------------------------------------------------------------------------- */

enum {
    L = 2,
    FF = 12,
    D = 4,
    N = 3,
    R = 2
};

static const struct pi_lineage lineage = {
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"};
static const struct pi_fingerprint fingerprint = {
    "0f0e0d0c0b0a09080706050403020100000102030405060708090a0b0c0d0e0f"};

static enum pi_code save_profile(const char *path)
{
    static uint64_t count[L * FF];
    static float contribution[L * FF];
    static int64_t position[N] = {1, 4, 9};
    static uint16_t residual[L * N * D];
    static uint8_t mask[L * N * 2];
    const struct pi_profile p = {.n_layer = L,
                                 .n_ff = FF,
                                 .n_embd = D,
                                 .n_tokens = 10,
                                 .count = count,
                                 .contribution = contribution,
                                 .n_samples = N,
                                 .position = position,
                                 .lineage = lineage};
    const struct pi_profile_samples_in s = {residual, mask, NULL};

    for (int i = 0; i < L * FF; i++)
        count[i] = (uint64_t)i % 10;
    return pi_profile_save(path, &p, &s, 5, "seed", NULL);
}

static enum pi_code save_predictor(const char *path)
{
    static float fc1[R * D], fc2[FF * R], bias[FF];
    struct pi_predictor_layer layers[L] = {{.width = R,
                                            .fc1 = {PI_TYPE_F32, R, D, sizeof(float) * D, fc1},
                                            .fc2 = {PI_TYPE_F32, FF, R, sizeof(float) * R, fc2},
                                            .bias = bias,
                                            .recall = 0.5f}};
    const struct pi_predictor p = {
        .n_layer = L, .n_ff = FF, .n_embd = D, .layers = layers, .lineage = lineage};

    return pi_predictor_save(path, &p, NULL);
}

static enum pi_code save_placement(const char *path)
{
    struct pi_placement p = {0};
    enum pi_code rc = pi_placement_cpu(L, FF, &p, NULL);

    if (rc == PI_OK) {
        p.n_units = 2;
        p.layers[1].n_hot = 5;
        p.layers[1].hot_unit = 1;
        p.lineage = lineage;
        p.fingerprint = fingerprint;
        rc = pi_placement_save(path, &p, NULL);
    }
    pi_placement_free(&p);
    return rc;
}

size_t pi_fuzz_seed(unsigned i, uint8_t *buf, size_t cap)
{
    enum pi_code (*const save[])(const char *) = {save_profile, save_predictor, save_placement};
    char path[] = "/tmp/pi-seed-XXXXXX";
    int fd;
    char *p = NULL;
    size_t n = 0;

    if (i >= sizeof(save) / sizeof(save[0]))
        return 0;
    fd = mkstemp(path);
    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(save[i](path) == PI_OK && pi_file_read_all(path, false, cap, &p, &n, NULL) == PI_OK);
    memcpy(buf, p, n);
    free(p);
    (void)close(fd);
    (void)unlink(path);
    return n;
}
