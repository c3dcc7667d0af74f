/* Profile, predictor, placement: round trips, strangers, hostile values. */
#include "config.h"

#include "tests/artifact_rig.h"

#include <zlib.h>

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

static void test_placement(const char *path)
{
    struct pi_placement p = {0}, q = {0};
    int bad = 0;

    make_placement(&p);
    PASSES(pi_placement_save(path, &p, &e), e);
    PASSES(pi_placement_load(path, &q, &e), e);
    OK(q.n_layer == L && q.n_ff == FF && q.n_units == 3 && q.budget == 123456789012);
    EQ(q.context_bytes, 654321098765);
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
    char *path = scratch_path(dir, "M.x.gguf");

    test_profile(path);
    test_profile_values(path);
    test_masks(path);
    test_predictor(path);
    test_predictor_shapes(path);
    test_placement(path);
    test_kind_and_version(path);
    free(path);
    scratch_close(dir);
    return DONE();
}
