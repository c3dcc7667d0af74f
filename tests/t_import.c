/* What others made for a model: predictors in a file and in a folder, activation counts beside a file. */
#include "config.h"

#include "common/pi_profile.h"
#include "convert/pi_import.h"
#include "runtime/cpu/pi_cpu.h"
#include "tests/scratch.h"
#include "tests/tap.h"
#include "tests/torch_bytes.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    N_EMBD = 32,
    N_FF = 40,
    WIDTH = 8,
    N_LAYER = 2
};

static const struct pi_shape shape = {
    .n_layer = N_LAYER, .n_embd = N_EMBD, .n_ff = N_FF, .gated = true};
static float fc1[WIDTH * N_EMBD], fc2[N_FF * WIDTH], bias[N_FF];
static float huge1[WIDTH * N_EMBD],
    nan2[N_FF * WIDTH]; /* with one number that is none, or none in F16 */
static struct zip_bytes z;

/* ---- a folder ---- */

static void write_layer(const char *dir, const char *stem, uint32_t n, const struct torch_matrix *m,
                        unsigned k, int bare)
{
    char name[32], *path;

    (void)snprintf(name, sizeof(name), "%s_%u.pt", stem, n);
    path = scratch_path(dir, name);
    torch_matrices(&z, m, k, bare);
    scratch_write(path, z.p, z.n);
    free(path);
}

static void remove_file(const char *dir, const char *name)
{
    char *path = scratch_path(dir, name);

    (void)remove(path);
    free(path);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = scratch_path(dir, name);

    scratch_write(path, text, strlen(text));
    free(path);
}

static void check_rows(const struct pi_mat *m, const float *want)
{
    int wrong = 0;

    for (uint32_t i = 0; i < m->n_rows * m->n_cols; i++)
        wrong += pi_f16_to_f32(((const uint16_t *)m->data)[i]) != want[i];
    EQ(wrong, 0);
}

static void test_folder(void)
{
    const struct torch_matrix relu[] = {{"fc1.weight", WIDTH, N_EMBD, fc1},
                                        {"fc2.weight", N_FF, WIDTH, fc2},
                                        {"fc2.bias", N_FF, 0, bias}},
                              plain[] = {{"0.weight", WIDTH, N_EMBD, fc1},
                                         {"1.weight", N_FF, WIDTH, fc2}};
    char *dir = scratch_open();
    struct pi_import i = {0};
    struct pi_err e = {0};

    FAILS(pi_import_torch(dir, &shape, false, &i, &e), PI_E_IO, "model_0.pt is not there", e);
    write_layer(dir, "model", 0, relu, 3, 0);
    FAILS(pi_import_torch(dir, &shape, false, &i, &e), PI_E_MISMATCH,
          "1 files model_N.pt from 0 on, the model has 2 layers", e);
    write_layer(dir, "model", 1, plain, 2, 0);
    write_text(dir, "config.json", "{\"sparse_threshold\": 0.5}");
    PASSES(pi_import_torch(dir, &shape, false, &i, &e), e);
    if (OK(i.p.layers != NULL)) {
        const struct pi_predictor_layer *x = i.p.layers;

        OK(i.is_foreign && i.p.n_layer == N_LAYER && i.p.n_ff == N_FF && i.p.n_embd == N_EMBD);
        OK(x[0].width == WIDTH && x[0].relu && x[0].threshold == 0.5f &&
           x[0].input == PI_PRED_IN_FFN_RESIDUAL);
        OK(x[0].fc1.type == PI_TYPE_F16 && x[0].fc1.n_rows == WIDTH && x[0].fc1.n_cols == N_EMBD);
        OK(x[0].fc2.type == PI_TYPE_F16 && x[0].fc2.n_rows == N_FF && x[0].fc2.n_cols == WIDTH);
        check_rows(&x[0].fc1, fc1);
        check_rows(&x[0].fc2, fc2);
        OK(x[0].bias != NULL && memcmp(x[0].bias, bias, sizeof(bias)) == 0);
        OK(x[1].width == WIDTH && !x[1].relu && x[1].bias == NULL);
    }
    pi_import_free(&i);
    PASSES(pi_import_torch(dir, &shape, true, &i, &e), e);
    OK(i.p.layers != NULL && i.p.layers[0].fc1.type == PI_TYPE_F32 &&
       memcmp(i.p.layers[0].fc1.data, fc1, sizeof(fc1)) == 0);
    pi_import_free(&i);

    write_layer(dir, "model", 2, plain, 2, 0);
    FAILS(pi_import_torch(dir, &shape, false, &i, &e), PI_E_MISMATCH, "at least 3 files", e);
    remove_file(dir, "model_2.pt");
    write_text(dir, "config.json", "{\"sparse_threshold\": \"high\"}");
    FAILS(pi_import_torch(dir, &shape, false, &i, &e), PI_E_CORRUPT, "sparse_threshold", e);
    remove_file(dir, "config.json");
    scratch_close(dir);
}

static void test_strangers(void)
{
    const struct torch_matrix
        good[] = {{"fc1.weight", WIDTH, N_EMBD, fc1}, {"fc2.weight", N_FF, WIDTH, fc2}},
        narrow[] = {{"fc1.weight", WIDTH * 2, N_EMBD / 2, fc1}, {"fc2.weight", N_FF, WIDTH, fc2}},
        half[] = {{"fc1.weight", WIDTH, N_EMBD, fc1}, {"fc2.weight", N_FF / 2, WIDTH, fc2}},
        other[] = {{"fc1.weight", WIDTH, N_EMBD, fc1}},
        biased[] = {{"fc1.weight", WIDTH, N_EMBD, fc1},
                    {"fc2.weight", N_FF, WIDTH, fc2},
                    {"fc1.bias", WIDTH, 0, fc1}},
        broken[] = {{"fc1.weight", WIDTH, N_EMBD, fc1}, {"fc2.weight", N_FF, WIDTH, nan2}},
        large[] = {{"fc1.weight", WIDTH, N_EMBD, huge1}, {"fc2.weight", N_FF, WIDTH, fc2}},
        vector[] = {{"fc1.weight", WIDTH, 0, fc1}, {"fc2.weight", N_FF, WIDTH, fc2}},
        short_bias[] = {{"fc1.weight", WIDTH, N_EMBD, fc1},
                        {"fc2.weight", N_FF, WIDTH, fc2},
                        {"fc2.bias", WIDTH, 0, fc1}};
    const struct {
        const struct torch_matrix *m;
        unsigned n;
        enum pi_code code;
        const char *text;
    } cases[] = {
        {narrow, 2, PI_E_MISMATCH,
         "fc1.weight is 16 x 16, a predictor of this model needs 16 x 32"},
        {half, 2, PI_E_MISMATCH, "fc2.weight is 20 x 8, a predictor of this model needs 40 x 8"},
        {other, 1, PI_E_UNSUPPORTED, "model_1.pt: no predictor"},
        {biased, 3, PI_E_UNSUPPORTED, "a bias in front of the hidden layer"},
        {broken, 2, PI_E_CORRUPT, "layer 1: fc2 of the predictor: row 2, element 3 is not finite"},
        {large, 2, PI_E_CORRUPT,
         "layer 1: fc1 of the predictor: row 0, element 5 is not finite as F16"},
        {vector, 2, PI_E_CORRUPT, "a predictor of width 0"},
        {short_bias, 3, PI_E_MISMATCH, "fc2.bias is no vector of 40 numbers"},
    };
    char *dir = scratch_open();
    struct pi_import i = {0};
    struct pi_err e = {0};

    write_layer(dir, "model", 0, good, 2, 0);
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        write_layer(dir, "model", 1, cases[k].m, cases[k].n, 0);
        FAILS(pi_import_torch(dir, &shape, false, &i, &e), cases[k].code, cases[k].text, e);
    }
    scratch_close(dir);
}

/* ---- inside a file ---- */

struct part {
    const char *name;
    uint64_t ne[2];
};

/* A file with the tensors of zeros that are named, opened. */
static void open_parts(const char *path, const struct part *part, size_t n, struct pi_gguf *g)
{
    static const float zeros[N_FF * N_EMBD];
    struct pi_gguf_writer *w = NULL;
    struct pi_err e = {0};

    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    PASSES(pi_gguf_set_f32(w, "powerinfer.sparse_threshold", -0.5f, &e), e);
    for (size_t i = 0; i < n; i++)
        PASSES(pi_gguf_add_tensor(w, part[i].name, PI_TYPE_F32, part[i].ne, 2, &e), e);
    PASSES(pi_gguf_begin(w, &e), e);
    for (size_t i = 0; i < n; i++)
        PASSES(pi_gguf_append(w, zeros, (size_t)(part[i].ne[0] * part[i].ne[1]) * 4, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_gguf_open(path, 0, g, &e), e);
}

static void test_file(void)
{
    const struct part none[] = {{"x", {4, 4}}},
                      one_layer[] = {{"blk.1.fc1.weight", {N_EMBD, WIDTH}},
                                     {"blk.1.fc2.weight", {WIDTH, N_FF}}},
                      only_one[] = {{"blk.0.fc1.weight", {N_EMBD, WIDTH}}},
                      narrow[] = {{"blk.0.fc1.weight", {N_EMBD / 2, WIDTH}},
                                  {"blk.0.fc2.weight", {WIDTH, N_FF}}},
                      half[] = {{"blk.0.fc1.weight", {N_EMBD, WIDTH}},
                                {"blk.0.fc2.weight", {WIDTH, N_FF / 2}}},
                      biased[] = {{"blk.0.fc1.weight", {N_EMBD, WIDTH}},
                                  {"blk.0.fc2.weight", {WIDTH, N_FF}},
                                  {"blk.0.fc1.bias", {WIDTH, 1}}};
    const struct {
        const struct part *p;
        size_t n;
        enum pi_code code;
        const char *text;
    } cases[] = {
        {only_one, 1, PI_E_CORRUPT, "only one of fc1.weight and fc2.weight"},
        {narrow, 2, PI_E_CORRUPT, "blk.0.fc1.weight is 16 x 8, the model needs 32 x 8"},
        {half, 2, PI_E_CORRUPT, "blk.0.fc2.weight is 8 x 20, the model needs 8 x 40"},
        {biased, 3, PI_E_UNSUPPORTED, "a predictor with biases"},
    };
    char *dir = scratch_open(), *path = scratch_path(dir, "m.gguf");
    struct pi_gguf g = {0};
    struct pi_import i = {0};
    struct pi_err e = {0};

    open_parts(path, none, 1, &g);
    PASSES(pi_import_gguf(&g, &shape, &i, &e), e);
    OK(i.p.layers == NULL);
    pi_gguf_close(&g);
    open_parts(path, one_layer, 2, &g);
    PASSES(pi_import_gguf(&g, &shape, &i, &e), e);
    if (OK(i.p.layers != NULL)) {
        EQ(i.p.layers[0].width, 0);
        OK(i.p.layers[1].width == WIDTH && i.p.layers[1].relu && i.p.layers[1].threshold == -0.5f &&
           !i.is_foreign);
    }
    pi_import_free(&i);
    pi_gguf_close(&g);
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        open_parts(path, cases[k].p, cases[k].n, &g);
        FAILS(pi_import_gguf(&g, &shape, &i, &e), cases[k].code, cases[k].text, e);
        pi_gguf_close(&g);
    }
    free(path);
    scratch_close(dir);
}

/* ---- counts ---- */

static void check_profile(const char *path, uint64_t n_tokens, const float *value, double scale)
{
    struct pi_profile p = {0};
    struct pi_err e = {0};
    int wrong = 0;

    PASSES(pi_profile_load(path, &p, &e), e);
    if (p.count == NULL)
        return;
    OK(p.n_layer == N_LAYER && p.n_ff == N_FF && p.n_samples == 0);
    EQ(p.n_tokens, n_tokens);
    for (uint32_t k = 0; k < N_LAYER * N_FF; k++)
        wrong += p.count[k] != (uint64_t)((double)value[k % N_FF] * scale + 0.5);
    EQ(wrong, 0);
    pi_profile_free(&p);
}

static void test_activation(void)
{
    float count[N_FF], share[N_FF], bad[N_FF] = {1, -1};
    const struct torch_matrix c = {"", N_FF, 0, count}, s = {"", N_FF, 0, share},
                              b = {"", N_FF, 0, bad}, few = {"", N_FF / 2, 0, count};
    struct pi_lineage lineage = {
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    char *dir = scratch_open(), *sub = scratch_path(dir, "activation"),
         *model = scratch_path(dir, "m.gguf"), *out = scratch_path(dir, "m.profile.gguf");
    struct pi_gguf_writer *w = NULL;
    struct pi_err e = {0};
    double *value = NULL;

    for (int i = 0; i < N_FF; i++) {
        count[i] = (float)(1000 - 7 * i);
        share[i] = (float)i / 64.0f;
    }
    PASSES(pi_import_activation(model, &shape, &value, &e), e);
    OK(value == NULL);
    OK(mkdir(sub, 0700) == 0);
    write_layer(sub, "activation", 0, &c, 1, 1);
    FAILS(pi_import_activation(model, &shape, &value, &e), PI_E_MISMATCH, "1 files activation_N.pt",
          e);
    write_layer(sub, "activation", 1, &c, 1, 1);
    PASSES(pi_import_activation(model, &shape, &value, &e), e);
    PASSES(pi_import_write_profile(model, &shape, &lineage, value, out, &w, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    free(value);
    check_profile(out, 1000, count, 1.0);
    write_layer(sub, "activation", 0, &s, 1, 1);
    write_layer(sub, "activation", 1, &s, 1, 1);
    PASSES(pi_import_activation(model, &shape, &value, &e), e);
    PASSES(pi_import_write_profile(model, &shape, &lineage, value, out, &w, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    free(value);
    check_profile(out, 1000000, share, 1e6);
    write_layer(sub, "activation", 1, &b, 1, 1);
    FAILS(pi_import_activation(model, &shape, &value, &e), PI_E_CORRUPT, "neuron 1: -1 is no count",
          e);
    write_layer(sub, "activation", 1, &few, 1, 1);
    FAILS(pi_import_activation(model, &shape, &value, &e), PI_E_MISMATCH,
          "not one vector of 40 activation counts", e);
    remove_file(sub, "activation_0.pt");
    remove_file(sub, "activation_1.pt");
    (void)rmdir(sub);
    free(sub);
    free(model);
    free(out);
    scratch_close(dir);
}

int main(void)
{
    for (int i = 0; i < WIDTH * N_EMBD; i++)
        fc1[i] = (float)(i % 31 - 15) / 8.0f; /* exact in F16 */
    for (int i = 0; i < N_FF * WIDTH; i++)
        fc2[i] = (float)(i % 29 - 14) / 4.0f;
    for (int i = 0; i < N_FF; i++)
        bias[i] = (float)i / 3.0f;
    memcpy(huge1, fc1, sizeof(fc1));
    memcpy(nan2, fc2, sizeof(fc2));
    huge1[5] = 1e6f;
    nan2[2 * WIDTH + 3] = NAN;
    test_folder();
    test_strangers();
    test_file();
    test_activation();
    return DONE();
}
