/* Profile, predictor, placement: round trips, every flipped bit, strangers, hostile values. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_artifact.h"
#include "common/pi_placement.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#include <zlib.h>

enum {
    L = 2,
    FF = 70,
    D = 16,
    N = 9,
    R = 8
};

static const struct pi_lineage mine = {
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"};
static const struct pi_lineage other = {
    "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"};
static const struct pi_fingerprint my_file = {
    "0f0e0d0c0b0a09080706050403020100000102030405060708090a0b0c0d0e0f"};
static const struct pi_fingerprint other_file = {
    "a00e0d0c0b0a09080706050403020100000102030405060708090a0b0c0d0e0f"};

static struct pi_err e;

static uint32_t next_random(uint32_t *s)
{
    return *s = *s * 1664525u + 1013904223u;
}

/* ---- makers --------------------------------------------------------------------------------- */

static uint64_t counts[L * FF];
static float contributions[L * FF];
static int64_t positions[N];
static uint16_t residuals[L * N * D];
static uint8_t masks[L * N * ((FF + 7) / 8)];

static struct pi_profile make_profile(void)
{
    struct pi_profile p = {.n_layer = L,
                           .n_ff = FF,
                           .n_embd = D,
                           .n_tokens = 1000,
                           .count = counts,
                           .contribution = contributions,
                           .n_samples = N,
                           .position = positions,
                           .lineage = mine};
    uint32_t s = 1;

    for (int i = 0; i < L * FF; i++) {
        counts[i] = next_random(&s) % 1001;
        contributions[i] = (float)(next_random(&s) >> 8) / 1e6f;
    }
    for (int i = 0; i < N; i++)
        positions[i] = 100 * i + 7;
    for (int i = 0; i < L * N * D; i++)
        residuals[i] = (uint16_t)(0x3f00 + next_random(&s) % 0x100);
    for (int i = 0; i < (int)sizeof(masks); i++)
        masks[i] = (uint8_t)(next_random(&s) >> 24);
    for (int i = 8; i < (int)sizeof(masks); i += 9)
        masks[i] &= 0x3f; /* 70 neurons: six bits of the ninth byte */
    return p;
}

static const struct pi_profile_samples_in samples = {residuals, masks, NULL};

static void test_profile(const char *path)
{
    struct pi_profile p = make_profile(), q = {0};
    uint32_t order[FF];
    float *x = NULL;
    uint8_t *m = NULL;
    int bad = 0;

    PASSES(pi_profile_save(path, &p, &samples, 512, "a.txt", &e), e);
    PASSES(pi_profile_load(path, &q, &e), e);
    OK(q.n_layer == L && q.n_ff == FF && q.n_embd == D && q.n_tokens == 1000 && q.n_samples == N);
    OK(memcmp(q.count, counts, sizeof(counts)) == 0);
    OK(memcmp(q.contribution, contributions, sizeof(contributions)) == 0);
    OK(memcmp(q.position, positions, sizeof(positions)) == 0);
    STREQ(q.lineage.hex, mine.hex);
    PASSES(pi_profile_samples(&q, 1, &x, &m, &e), e);
    for (int i = 0; x != NULL && i < N * D; i++) {
        uint32_t u = (uint32_t)residuals[N * D + i] << 16;
        float want;

        memcpy(&want, &u, sizeof(want));
        bad += x[i] != want;
    }
    EQ(bad, 0);
    OK(m != NULL && memcmp(m, masks + sizeof(masks) / 2, sizeof(masks) / 2) == 0);
    free(x);
    free(m);
    PASSES(pi_profile_order(&q, 0, order, &e), e);
    for (int i = 1; i < FF; i++)
        bad += counts[order[i - 1]] < counts[order[i]] ||
               (counts[order[i - 1]] == counts[order[i]] && order[i - 1] > order[i]);
    EQ(bad, 0);
    FAILS(pi_profile_masks(&q, L, &m, &e), PI_E_RANGE, "layer 2", e);
    FAILS(pi_profile_order(&q, L, order, &e), PI_E_RANGE, "layer 2", e);

    PASSES(pi_artifact_check_model(&q.file, "M.gguf", &mine, NULL, &e), e);
    FAILS(pi_artifact_check_model(&q.file, "M.gguf", &other, NULL, &e), PI_E_MISMATCH,
          "lineage 001122334455..., this model's is ffeeddccbbaa...); run pi-profile M.gguf --data",
          e);
    pi_profile_free(&q);

    p.n_samples = 0;
    PASSES(pi_profile_save(path, &p, NULL, 512, "a.txt", &e), e);
    PASSES(pi_profile_load(path, &q, &e), e);
    FAILS(pi_profile_samples(&q, 0, &x, &m, &e), PI_E_MISMATCH, "--samples", e);
    pi_profile_free(&q);
}

/* Values that the writer passes on and the loader must refuse. */
static void test_profile_values(const char *path)
{
    struct pi_profile p = make_profile(), q = {0};
    uint8_t *m = NULL;
    float *x = NULL;

    counts[FF + 3] = 1001;
    PASSES(pi_profile_save(path, &p, &samples, 512, "", &e), e);
    FAILS(pi_profile_load(path, &q, &e), PI_E_CORRUPT, "layer 1, neuron 3: active on 1001 of 1000",
          e);
    p = make_profile();
    contributions[2] = NAN;
    PASSES(pi_profile_save(path, &p, &samples, 512, "", &e), e);
    FAILS(pi_profile_load(path, &q, &e), PI_E_CORRUPT, "layer 0, neuron 2: contribution", e);
    p = make_profile();
    positions[4] = positions[3];
    PASSES(pi_profile_save(path, &p, &samples, 512, "", &e), e);
    FAILS(pi_profile_load(path, &q, &e), PI_E_CORRUPT, "sample.position 4 is 307 after 307", e);
    p = make_profile();
    positions[N - 1] = 1000;
    PASSES(pi_profile_save(path, &p, &samples, 512, "", &e), e);
    FAILS(pi_profile_load(path, &q, &e), PI_E_CORRUPT, "of 1000 tokens", e);
    p = make_profile();
    p.n_layer = 0;
    PASSES(pi_profile_save(path, &p, &samples, 512, "", &e), e);
    FAILS(pi_profile_load(path, &q, &e), PI_E_CORRUPT, "pi.profile.n_layer is 0", e);
    p = make_profile();
    p.n_tokens = 3;
    memset(counts, 0, sizeof(counts));
    PASSES(pi_profile_save(path, &p, &samples, 512, "", &e), e);
    FAILS(pi_profile_load(path, &q, &e), PI_E_CORRUPT, "9 samples of 3 tokens", e);

    p = make_profile();
    residuals[0] = 0x7f80; /* infinity */
    masks[8] |= 0x40;      /* neuron 70 of 70 */
    PASSES(pi_profile_save(path, &p, &samples, 512, "", &e), e);
    PASSES(pi_profile_load(path, &q, &e), e);
    FAILS(pi_profile_samples(&q, 0, &x, &m, &e), PI_E_CORRUPT,
          "sample 0: the residual is not finite", e);
    FAILS(pi_profile_masks(&q, 0, &m, &e), PI_E_CORRUPT, "bits past neuron 70", e);
    pi_profile_free(&q);
    (void)make_profile();
}

/* A profile whose mask tensors hold the given bytes in place of a good zlib stream. */
static void profile_with_mask(const char *path, uint64_t n_samples, const void *mask,
                              uint64_t n_mask)
{
    struct pi_gguf_writer *w = NULL;
    uint64_t one = 8, ne[2] = {1, n_samples};
    uint8_t *zeros = calloc(n_samples, 8);
    int64_t *pos = calloc(n_samples, 8);

    for (uint64_t i = 0; i < n_samples; i++)
        pos[i] = (int64_t)i;
    OK(pi_artifact_create(path, PI_ARTIFACT_PROFILE, PI_PROFILE_VERSION, &mine, NULL, &w, &e) ==
           0 &&
       pi_gguf_set_u32(w, "pi.profile.n_layer", 1, &e) == 0 &&
       pi_gguf_set_u32(w, "pi.profile.n_ff", 8, &e) == 0 &&
       pi_gguf_set_u32(w, "pi.profile.n_embd", 1, &e) == 0 &&
       pi_gguf_set_u64(w, "pi.profile.tokens", n_samples, &e) == 0 &&
       pi_gguf_set_u64(w, "pi.profile.n_samples", n_samples, &e) == 0 &&
       pi_gguf_add_tensor(w, "sample.position", PI_TYPE_I64, &n_samples, 1, &e) == 0 &&
       pi_gguf_add_tensor(w, "blk.0.count", PI_TYPE_I64, &one, 1, &e) == 0 &&
       pi_gguf_add_tensor(w, "blk.0.contribution", PI_TYPE_F32, &one, 1, &e) == 0 &&
       pi_gguf_add_tensor(w, "blk.0.sample.residual", PI_TYPE_BF16, ne, 2, &e) == 0 &&
       pi_gguf_add_tensor(w, "blk.0.sample.mask", PI_TYPE_I8, &n_mask, 1, &e) == 0 &&
       pi_gguf_begin(w, &e) == 0 && pi_gguf_append(w, pos, n_samples * 8, &e) == 0 &&
       pi_gguf_append(w, zeros, 64, &e) == 0 && pi_gguf_append(w, zeros, 32, &e) == 0 &&
       pi_gguf_append(w, zeros, n_samples * 2, &e) == 0 &&
       pi_gguf_append(w, mask, n_mask, &e) == 0 && pi_gguf_commit(w, &e) == 0);
    free(zeros);
    free(pos);
}

static void test_masks(const char *path)
{
    static const uint8_t zeros[9];
    uint8_t eight[64], nine[64];
    uLongf n8 = sizeof(eight), n9 = sizeof(nine);
    struct pi_profile q = {0};
    uint8_t *m = NULL;

    OK(compress(eight, &n8, zeros, 8) == Z_OK && compress(nine, &n9, zeros, 9) == Z_OK);
    profile_with_mask(path, 8, eight, n8);
    PASSES(pi_profile_load(path, &q, &e), e);
    PASSES(pi_profile_masks(&q, 0, &m, &e), e);
    free(m);
    pi_profile_free(&q);
    profile_with_mask(path, 8, nine, n9);
    PASSES(pi_profile_load(path, &q, &e), e);
    FAILS(pi_profile_masks(&q, 0, &m, &e), PI_E_CORRUPT, "damaged zlib stream", e);
    pi_profile_free(&q);
    profile_with_mask(path, 9, eight, n8);
    PASSES(pi_profile_load(path, &q, &e), e);
    FAILS(pi_profile_masks(&q, 0, &m, &e), PI_E_CORRUPT, "(8 of 9 bytes)", e);
    pi_profile_free(&q);
    profile_with_mask(path, 8, eight, n8 - 1);
    PASSES(pi_profile_load(path, &q, &e), e);
    FAILS(pi_profile_masks(&q, 0, &m, &e), PI_E_CORRUPT, "damaged zlib stream", e);
    pi_profile_free(&q);
    /* More than deflate can pack into so few bytes. */
    profile_with_mask(path, 20000, eight, n8);
    PASSES(pi_profile_load(path, &q, &e), e);
    FAILS(pi_profile_masks(&q, 0, &m, &e), PI_E_CORRUPT, "bytes cannot hold 20000 masks", e);
    pi_profile_free(&q);
}

/* ---- predictor ------------------------------------------------------------------------------ */

static float fc1[R * D], fc2[FF * R], bias[FF];

static void make_predictor(struct pi_predictor *p, struct pi_predictor_layer *layers)
{
    uint32_t s = 5;

    for (int i = 0; i < R * D; i++)
        fc1[i] = (float)(next_random(&s) >> 8);
    for (int i = 0; i < FF * R; i++)
        fc2[i] = (float)(next_random(&s) >> 8);
    for (int i = 0; i < FF; i++)
        bias[i] = (float)i;
    memset(layers, 0, L * sizeof(*layers));
    layers[1] = (struct pi_predictor_layer){.width = R,
                                            .input = PI_PRED_IN_PREV_ATTN,
                                            .relu = true,
                                            .threshold = -0.25f,
                                            .fc1 = {PI_TYPE_F32, R, D, D * sizeof(float), fc1},
                                            .fc2 = {PI_TYPE_F32, FF, R, R * sizeof(float), fc2},
                                            .bias = bias,
                                            .recall = 0.96f,
                                            .precision = 0.5f,
                                            .density = 0.125f};
    *p = (struct pi_predictor){
        .n_layer = L, .n_ff = FF, .n_embd = D, .layers = layers, .lineage = mine};
}

static void test_predictor(const char *path)
{
    struct pi_predictor p, q = {0};
    struct pi_predictor_layer layers[L], *x;

    make_predictor(&p, layers);
    PASSES(pi_predictor_save(path, &p, &e), e);
    PASSES(pi_predictor_load(path, &q, &e), e);
    OK(q.n_layer == L && q.n_ff == FF && q.n_embd == D && q.layers[0].width == 0);
    x = &q.layers[1];
    OK(x->width == R && x->relu && x->input == PI_PRED_IN_PREV_ATTN && x->threshold == -0.25f);
    OK(x->recall == 0.96f && x->precision == 0.5f && x->density == 0.125f);
    OK(x->fc1.n_rows == R && x->fc1.n_cols == D && memcmp(x->fc1.data, fc1, sizeof(fc1)) == 0);
    OK(x->fc2.n_rows == FF && x->fc2.n_cols == R && memcmp(x->fc2.data, fc2, sizeof(fc2)) == 0);
    OK(memcmp(x->bias, bias, sizeof(bias)) == 0);
    FAILS(pi_artifact_check_model(&q.file, "M.gguf", &other, NULL, &e), PI_E_MISMATCH,
          "run pi-train-predictor M.gguf", e);
    pi_predictor_free(&q);

    layers[1].threshold = NAN;
    PASSES(pi_predictor_save(path, &p, &e), e);
    FAILS(pi_predictor_load(path, &q, &e), PI_E_CORRUPT, "pi.predictor.threshold: layer 1", e);
    make_predictor(&p, layers);
    layers[0].recall = 1.5f;
    PASSES(pi_predictor_save(path, &p, &e), e);
    FAILS(pi_predictor_load(path, &q, &e), PI_E_CORRUPT, "pi.predictor.recall: layer 0 has 1.5", e);
    make_predictor(&p, layers);
    layers[0].input = (enum pi_predictor_input)4;
    PASSES(pi_predictor_save(path, &p, &e), e);
    FAILS(pi_predictor_load(path, &q, &e), PI_E_CORRUPT, "pi.predictor.input: layer 0 has 4", e);
    make_predictor(&p, layers);
    layers[1].width = R - 1; /* narrower than its matrices */
    FAILS(pi_predictor_save(path, &p, &e), PI_E_RANGE, "layer 1", e);
    make_predictor(&p, layers);
    layers[0] = layers[1];
    FAILS(pi_predictor_save(path, &p, &e), PI_E_RANGE, "layer 0", e);
    make_predictor(&p, layers);
    layers[1].width = 0; /* no predictor at all: no tensors */
    PASSES(pi_predictor_save(path, &p, &e), e);
    PASSES(pi_predictor_load(path, &q, &e), e);
    EQ(q.file.n_tensors, 0);
    pi_predictor_free(&q);
}

/* Upstream's hole: an fc2 with half the rows loads there and reads past its end. */
static void test_predictor_shapes(const char *path)
{
    struct pi_gguf_writer *w = NULL;
    struct pi_predictor q = {0};
    const float f[1] = {0.5f};
    const uint8_t b[1] = {0};
    const uint32_t width = R;
    uint64_t ne1[2] = {D, R}, ne2[2] = {R, FF / 2};
    float *zeros = calloc(FF * D, sizeof(float));

    OK(pi_artifact_create(path, PI_ARTIFACT_PREDICTOR, PI_PREDICTOR_VERSION, &mine, NULL, &w, &e) ==
           0 &&
       pi_gguf_set_u32(w, "pi.predictor.n_layer", 1, &e) == 0 &&
       pi_gguf_set_u32(w, "pi.predictor.n_ff", FF, &e) == 0 &&
       pi_gguf_set_u32(w, "pi.predictor.n_embd", D, &e) == 0 &&
       pi_gguf_set_array(w, "pi.predictor.width", PI_GGUF_U32, &width, 1, &e) == 0 &&
       pi_gguf_set_array(w, "pi.predictor.input", PI_GGUF_U8, b, 1, &e) == 0 &&
       pi_gguf_set_array(w, "pi.predictor.activation", PI_GGUF_U8, b, 1, &e) == 0 &&
       pi_gguf_set_array(w, "pi.predictor.threshold", PI_GGUF_F32, f, 1, &e) == 0 &&
       pi_gguf_set_array(w, "pi.predictor.recall", PI_GGUF_F32, f, 1, &e) == 0 &&
       pi_gguf_set_array(w, "pi.predictor.precision", PI_GGUF_F32, f, 1, &e) == 0 &&
       pi_gguf_set_array(w, "pi.predictor.density", PI_GGUF_F32, f, 1, &e) == 0 &&
       pi_gguf_add_tensor(w, "blk.0.fc1.weight", PI_TYPE_F32, ne1, 2, &e) == 0 &&
       pi_gguf_add_tensor(w, "blk.0.fc2.weight", PI_TYPE_F32, ne2, 2, &e) == 0 &&
       pi_gguf_begin(w, &e) == 0 && pi_gguf_append(w, zeros, D * R * 4, &e) == 0 &&
       pi_gguf_append(w, zeros, R * (FF / 2) * 4, &e) == 0 && pi_gguf_commit(w, &e) == 0);
    FAILS(pi_predictor_load(path, &q, &e), PI_E_CORRUPT,
          "blk.0.fc2.weight is 8 x 35 x 1 x 1, not 8 x 70", e);
    free(zeros);
}

/* ---- placement ------------------------------------------------------------------------------ */

static void make_placement(struct pi_placement *p)
{
    PASSES(pi_placement_cpu(L, FF, p, &e), e);
    p->n_units = 3;
    p->budget = 123456789012;
    p->n_ctx = 4096;
    p->n_seq = 2;
    p->n_batch = 512;
    p->embd_unit = 0;
    p->output_unit = 2;
    p->lineage = mine;
    p->fingerprint = my_file;
    for (uint32_t l = 0; p->layers != NULL && l < L; l++) {
        struct pi_place_layer *x = &p->layers[l];

        for (uint32_t i = 0; i < FF; i++)
            x->order[i] = (i * 29 + l) % FF; /* 29 and 70 have no common factor */
        x->n_hot = 10 * l;
        x->hot_unit = 1;
        x->attn_unit = (uint8_t)(2 * l);
        x->mode_cpu = PI_MODE_PREDICTED;
        x->mode_gpu = PI_MODE_EXACT;
    }
}

static void test_placement(const char *path)
{
    struct pi_placement p = {0}, q = {0};
    int bad = 0;

    make_placement(&p);
    PASSES(pi_placement_save(path, &p, &e), e);
    PASSES(pi_placement_load(path, &q, &e), e);
    OK(q.n_layer == L && q.n_ff == FF && q.n_units == 3 && q.budget == 123456789012);
    OK(q.n_ctx == 4096 && q.n_seq == 2 && q.n_batch == 512 && q.kv_type == PI_TYPE_F16);
    OK(q.embd_unit == 0 && q.output_unit == 2);
    STREQ(q.objective, "cpu");
    STREQ(q.hardware, "CPU only");
    for (uint32_t l = 0; q.layers != NULL && l < L; l++) {
        struct pi_place_layer *a = &p.layers[l], *b = &q.layers[l];

        bad += memcmp(a->order, b->order, FF * sizeof(*a->order)) != 0 || a->n_hot != b->n_hot ||
               a->hot_unit != b->hot_unit || a->attn_unit != b->attn_unit ||
               a->mode_cpu != b->mode_cpu || a->mode_gpu != b->mode_gpu;
    }
    EQ(bad, 0);
    PASSES(pi_placement_check_model(&q, path, "M.gguf", &mine, &my_file, &e), e);
    FAILS(pi_placement_check_model(&q, path, "M.gguf", &other, &my_file, &e), PI_E_MISMATCH,
          "made for another model", e);
    FAILS(pi_placement_check_model(&q, path, "M.gguf", &mine, &other_file, &e), PI_E_MISMATCH,
          "fingerprint 0f0e0d0c0b0a..., this file's is a00e0d0c0b0a...); run pi-place M.gguf "
          "--vram-budget",
          e);
    pi_placement_free(&q);

    p.layers[1].order[5] = FF;
    FAILS(pi_placement_check(&p, &e), PI_E_CORRUPT, "layer 1: neuron 70 is out of range", e);
    p.layers[1].order[5] = p.layers[1].order[6];
    FAILS(pi_placement_check(&p, &e), PI_E_CORRUPT, "placed twice", e);
    p.layers[1].order[5] = (5 * 29 + 1) % FF;
    p.layers[1].n_hot = FF + 1;
    FAILS(pi_placement_save(path, &p, &e), PI_E_CORRUPT, "71 hot neurons of 70", e);
    p.layers[1].n_hot = FF;
    p.layers[1].hot_unit = 0;
    FAILS(pi_placement_check(&p, &e), PI_E_CORRUPT, "hot neurons on unit 0", e);
    p.layers[1].hot_unit = 3;
    FAILS(pi_placement_check(&p, &e), PI_E_CORRUPT, "hot neurons on unit 3 of 3", e);
    p.layers[1].hot_unit = 1;
    p.layers[0].attn_unit = 3;
    FAILS(pi_placement_check(&p, &e), PI_E_CORRUPT, "layer 0: attention on unit 3 of 3", e);
    p.layers[0].attn_unit = 0;
    p.output_unit = 3;
    FAILS(pi_placement_check(&p, &e), PI_E_CORRUPT, "output on unit 3 of 3", e);
    p.output_unit = 0;
    p.kv_type = PI_TYPE_Q4_0;
    FAILS(pi_placement_check(&p, &e), PI_E_CORRUPT, "a KV cache of Q4_0", e);
    p.kv_type = PI_TYPE_F32;
    PASSES(pi_placement_check(&p, &e), e);
    pi_placement_free(&p);
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

static enum pi_code load_any(const char *path, int kind);

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

/* ---- kind and version ----------------------------------------------------------------------- */

static void test_kind_and_version(const char *path)
{
    struct pi_gguf_writer *w = NULL;
    struct pi_gguf g = {0};

    OK(pi_artifact_create(path, PI_ARTIFACT_PROFILE, PI_ARTIFACT_VERSION(2, 3), &mine, NULL, &w,
                          &e) == 0 &&
       pi_gguf_begin(w, &e) == 0 && pi_gguf_commit(w, &e) == 0);
    FAILS(pi_artifact_open(path, PI_ARTIFACT_PROFILE, PI_ARTIFACT_VERSION(1, 9), &g, &e),
          PI_E_MISMATCH, "profile format 2.3, this program knows up to 1.9", e);
    FAILS(pi_artifact_open(path, PI_ARTIFACT_PREDICTOR, PI_ARTIFACT_VERSION(2, 0), &g, &e),
          PI_E_MISMATCH, "a profile, where a predictor is needed", e);
    PASSES(pi_artifact_open(path, PI_ARTIFACT_PROFILE, PI_ARTIFACT_VERSION(2, 0), &g, &e), e);
    pi_gguf_close(&g);
    OK(pi_gguf_writer_create(path, &w, &e) == 0 && pi_gguf_begin(w, &e) == 0 &&
       pi_gguf_commit(w, &e) == 0);
    FAILS(pi_artifact_open(path, PI_ARTIFACT_PROFILE, PI_ARTIFACT_VERSION(2, 0), &g, &e),
          PI_E_MISMATCH, "no artifact of these programs", e);
    FAILS(pi_artifact_open("/nonexistent/x.gguf", PI_ARTIFACT_PROFILE, 0, &g, &e), PI_E_IO,
          "/nonexistent/x.gguf", e);
}

int main(void)
{
    char *dir = scratch_open();
    char *path = scratch_path(dir, "M.x.gguf"), *changed = scratch_path(dir, "changed.gguf");

    test_profile(path);
    test_profile_values(path);
    test_masks(path);
    test_predictor(path);
    test_predictor_shapes(path);
    test_placement(path);
    test_kind_and_version(path);

    struct pi_profile p = make_profile();
    PASSES(pi_profile_save(path, &p, &samples, 512, "a.txt", &e), e);
    test_bad_profiles(path, changed);
    test_flips(path, PI_ARTIFACT_PROFILE);
    test_longer(path, PI_ARTIFACT_PROFILE);
    struct pi_predictor d;
    struct pi_predictor_layer layers[L];
    make_predictor(&d, layers);
    PASSES(pi_predictor_save(path, &d, &e), e);
    test_bad_predictors(path, changed);
    test_flips(path, PI_ARTIFACT_PREDICTOR);
    struct pi_placement l = {0};
    make_placement(&l);
    PASSES(pi_placement_save(path, &l, &e), e);
    pi_placement_free(&l);
    test_bad_placements(path, changed);
    test_flips(path, PI_ARTIFACT_PLACEMENT);
    test_longer(path, PI_ARTIFACT_PLACEMENT);

    free(path);
    free(changed);
    scratch_close(dir);
    return DONE();
}
