/*
 * PowerInfer's own files: converted here, exact mode gives the model's dense logits and predicted mode gives what PowerInfer's sparse operators
 * compute, both told by a plain F32 twin of them (powerinfer_twin.h).
 */
#include "config.h"

#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "convert/pi_convert.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_engine.h"
#include "tests/powerinfer_twin.h"
#include "tests/scratch.h"
#include "tests/tap.h"
#include "tests/torch_bytes.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const struct kind kinds[] = {
    {"llama F16", "llama", PI_TYPE_F16, 2, .gated = true, .threshold = 0.125f},
    {"llama F16 without a threshold", "llama", PI_TYPE_F16, 4, .gated = true, .no_threshold = true},
    {"llama Q4_0", "llama", PI_TYPE_Q4_0, 2, .gated = true, .threshold = -0.25f},
    {"llama F32", "llama", PI_TYPE_F32, 1, .gated = true, .threshold = 0.5f},
    {"bamboo F16", "bamboo", PI_TYPE_F16, 2, .gated = true, .relu_up = true, .threshold = 0.25f},
    {"opt F16", "opt", PI_TYPE_F16, 4, .layer_norm = true, .learned_pos = true, .biases = true,
     .threshold = 0.125f},
    {"falcon F16, 7B's form", "falcon", PI_TYPE_F16, 1, .layer_norm = true, .neox = true,
     .parallel = true, .threshold = 0.25f},
    {"falcon F16, 40B's form", "falcon", PI_TYPE_F16, 2, .layer_norm = true, .neox = true,
     .parallel = true, .two_norms = true, .threshold = 0.0f},
};

/* ---- here ---- */

static struct pi_pool *pool;
static FILE *report; /* of conversions, or NULL */
static enum pi_layout layout;
static char said[4096];

static void hear(void *ctx, const char *line)
{
    const size_t n = strlen(said);

    (void)ctx;
    (void)snprintf(said + n, sizeof(said) - n, "%s\n", line);
}

static const struct pi_notes notes = {hear, NULL};

/* Without --type F32 becomes F16: another rounding than the twin's. */
static enum pi_code convert_to(const char *source, const char *output, enum pi_type type,
                               struct pi_err *e)
{
    const struct pi_convert_options o = {
        .source = source,
        .output = output,
        .recipe = pi_recipe_plain(type == PI_TYPE_F32 ? PI_TYPE_F32 : PI_TYPE_F16),
        .type_given = type == PI_TYPE_F32,
        .self_check = true,
        .report = report,
        .layout = layout,
        .pool = pool,
        .notes = &notes};

    said[0] = '\0';
    return pi_convert(&o, e);
}

static enum pi_code convert(const char *source, const char *output, struct pi_err *e)
{
    return convert_to(source, output, PI_TYPE_F16, e);
}

/* Largest difference of decode steps' logits, or a prompt's, from the twin's, relative to the largest logit. */
static double differs(const char *path, const char *predictor, enum pi_mode mode, bool prompt,
                      const float *want)
{
    struct pi_engine_options o = {
        .mode = mode, .n_ctx = N_TOK, .n_seq = 1, .kv_type = PI_TYPE_F32, .force_predicted = true};
    const struct pi_model_options mo = {.check_crc = true};
    struct pi_model m = {0};
    struct pi_predictor pred = {0};
    struct pi_engine *e = NULL;
    struct pi_err err = {0};
    int32_t pos[N_TOK];
    double worst = 0.0, most = 0.0;
    float *got;

    for (int i = 0; i < N_TOK; i++)
        pos[i] = i;
    PASSES(pi_model_open(path, &mo, &m, &err), err);
    if (predictor != NULL)
        PASSES(pi_predictor_load(predictor, &pred, &err), err);
    PASSES(pi_engine_create(&m, predictor != NULL ? &pred : NULL, NULL, pool, &o, &e, &err), err);
    got = calloc((size_t)N_TOK * m.shape.n_vocab, sizeof(float));
    if (e == NULL || got == NULL)
        exit(99);
    for (uint32_t i = 0; i < (prompt ? 1 : N_TOK); i++) {
        const struct pi_batch b = {
            .n_tok = prompt ? N_TOK : 1, .token = twin_tokens + i, .pos = pos + i};

        if (pi_engine_run(e, prompt ? PI_PHASE_PROMPT : PI_PHASE_DECODE, &b,
                          got + (size_t)i * m.shape.n_vocab, &err) != PI_OK)
            PASSES(err.code, err);
    }
    for (size_t i = 0; i < (size_t)N_TOK * m.shape.n_vocab; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);

        worst = d > worst || isnan(d) ? d : worst;
        most = fmax(most, fabs((double)want[i]));
    }
    free(got);
    pi_engine_destroy(e);
    pi_predictor_free(&pred);
    pi_model_close(&m);
    return worst / most;
}

static void test_kind(const struct kind *k)
{
    char *dir = scratch_open(), *from = scratch_path(dir, "m.powerinfer.gguf"),
         *to = scratch_path(dir, "m.gguf"), *predictor = scratch_path(dir, "m.predictor.gguf");
    struct model *m = twin_make(k);
    struct run dense, sparse;
    float *want = twin_run(m, false, &dense), *want_sparse = twin_run(m, true, &sparse);
    struct pi_err e = {0};
    double apart = 0.0, most = 0.0, d[4];

    printf("# %s: %.1f %% of neurons predicted, none closer to the threshold than %.2g\n", k->name,
           100.0 * (double)sparse.kept / (double)sparse.seen, (double)sparse.closest);
    for (size_t i = 0; i < (size_t)N_TOK * m->v->n; i++) {
        apart = fmax(apart, fabs((double)want[i] - (double)want_sparse[i]));
        most = fmax(most, fabs((double)want[i]));
    }
    OK(apart > 0.05 * most); /* the masks say something */
    OK(sparse.closest > 2e-6f);
    twin_write(m, from);
    PASSES(convert_to(from, to, k->type, &e), e);
    OK(strstr(said, "m.predictor.gguf") != NULL);
    d[0] = differs(to, NULL, PI_MODE_DENSE, true, want);
    d[1] = differs(to, NULL, PI_MODE_DENSE, false, want);
    d[2] = differs(to, NULL, PI_MODE_EXACT, false, want);
    d[3] = differs(to, predictor, PI_MODE_PREDICTED, false, want_sparse);
    for (int i = 0; i < 4; i++)
        NEAR(d[i], 0.0, 5e-6);
    printf("# dense prompt %.2g, dense steps %.2g, exact %.2g, predicted %.2g\n", d[0], d[1], d[2],
           d[3]);
    NEAR(differs(from, NULL, PI_MODE_EXACT, false, want), 0.0, 5e-6); /* it runs as it is, too */
    free(want);
    free(want_sparse);
    twin_free(m);
    free(from);
    free(to);
    free(predictor);
    scratch_close(dir);
}

/* ---- what lies beside such files, and what PowerInfer's own reader lets through ---- */

static struct zip_bytes z;

/* Activation counts as PowerInfer has them, in a folder of their own. */
static void put_counts(const char *dir)
{
    float count[N_FF];
    const struct torch_matrix c = {"", N_FF, 0, count};

    OK(mkdir(dir, 0700) == 0);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        char name[32], *path;

        for (uint32_t i = 0; i < N_FF; i++)
            count[i] = (float)((i * 37 + l) % 1000);
        (void)snprintf(name, sizeof(name), "activation_%u.pt", l);
        path = scratch_path(dir, name);
        torch_matrices(&z, &c, 1, 1);
        scratch_write(path, z.p, z.n);
        free(path);
    }
}

static void drop_counts(const char *dir)
{
    for (uint32_t l = 0; l < N_LAYER; l++) {
        char name[48], *path;

        (void)snprintf(name, sizeof(name), "activation_%u.pt", l);
        path = scratch_path(dir, name);
        (void)unlink(path);
        free(path);
    }
    (void)rmdir(dir);
}

static void test_beside(void)
{
    char *dir = scratch_open(), *from = scratch_path(dir, "m.powerinfer.gguf"),
         *to = scratch_path(dir, "m.gguf"), *sub = scratch_path(dir, "activation"),
         *index = scratch_path(dir, "m.powerinfer.gguf.generated.gpuidx"),
         *profile = scratch_path(dir, "m.profile.gguf");
    struct model *m = twin_make(&kinds[0]);
    struct pi_profile p = {0};
    struct pi_err e = {0};

    printf("# an index and counts beside a file\n");
    twin_write(m, from);
    scratch_write(index, "PWRI\3\0\0", 8);
    PASSES(convert(from, to, &e), e);
    OK(strstr(said, "which neurons were on a GPU once") != NULL &&
       strstr(said, "pi-profile") != NULL);
    put_counts(sub);
    PASSES(convert(from, to, &e), e);
    PASSES(pi_profile_load(profile, &p, &e), e);
    if (OK(p.count != NULL && p.n_layer == N_LAYER && p.n_ff == N_FF))
        EQ(p.count[2 * N_FF + 5], (5 * 37 + 2) % 1000);
    pi_profile_free(&p);
    drop_counts(sub);
    twin_free(m);
    free(from);
    free(to);
    free(sub);
    free(index);
    free(profile);
    scratch_close(dir);
}

/* What goes wrong between the last check, behind which the report is written, and the moment when the files appear. */
static const char *blocked; /* a folder takes this output's place; NULL: the disk is full */
static struct rlimit limit;

static ssize_t go_wrong(void *ctx, const char *text, size_t n)
{
    struct rlimit none = {16, limit.rlim_max};

    (void)ctx;
    (void)text;
    if (blocked == NULL) {
        OK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    } else {
        (void)unlink(blocked);
        OK(mkdir(blocked, 0700) == 0);
    }
    return (ssize_t)n;
}

static bool holds(const char *path, const char *text)
{
    char got[16] = "";
    FILE *f = fopen(path, "rb");
    size_t n = f != NULL ? fread(got, 1, sizeof(got) - 1, f) : 0;

    if (f != NULL)
        (void)fclose(f);
    return n == strlen(text) && strcmp(got, text) == 0;
}

/* Model, predictor and profile: all or none, whichever of them fails last. */
static void test_all_or_none(void)
{
    static const char *const names[] = {"m.predictor.gguf", "m.profile.gguf", "m.gguf"};
    char *dir = scratch_open(), *from = scratch_path(dir, "m.powerinfer.gguf"),
         *sub = scratch_path(dir, "activation"), *out[3];
    struct model *m = twin_make(&kinds[0]);
    struct pi_err e = {0};

    printf("# model and artifacts appear together or not at all\n");
    for (int i = 0; i < 3; i++)
        out[i] = scratch_path(dir, names[i]);
    twin_write(m, from);
    put_counts(sub);
    (void)getrlimit(RLIMIT_FSIZE, &limit);
    (void)signal(SIGXFSZ, SIG_IGN);
    for (int run = 0; run < 8; run++) {
        const int bad = run % 4; /* of three, or the disk */
        const bool older = run >= 4;

        if (older) { /* an older profile would stay as it is */
            scratch_write(out[0], "old", 3);
            scratch_write(out[2], "old", 3);
        }
        blocked = bad < 3 ? out[bad] : NULL;
        report = fopencookie(NULL, "w", (cookie_io_functions_t){.write = go_wrong});
        FAILS(convert(from, out[2], &e), bad < 3 ? PI_E_IO : PI_E_NOSPACE,
              bad < 3 ? names[bad] : "m.predictor.gguf: File too large", e);
        (void)setrlimit(RLIMIT_FSIZE, &limit);
        OK(strchr(e.msg, '\n') == NULL && strstr(said, "wrote") == NULL);
        (void)fclose(report);
        if (bad < 3)
            (void)rmdir(out[bad]);
        if (bad != 0)
            EQ(holds(out[0], "old"), older);
        if (bad != 2)
            EQ(holds(out[2], "old"), older);
        EQ(scratch_count(dir), 2 + (older ? (bad != 0) + (bad != 2) : 0));
        (void)unlink(out[0]);
        (void)unlink(out[2]);
    }
    report = NULL;
    PASSES(convert(from, out[2], &e), e);
    EQ(scratch_count(dir), 5);
    layout = PI_LAYOUT_ROW; /* predictors are measured on it as on any other */
    PASSES(convert(from, out[2], &e), e);
    OK(strstr(said, "predictors of 3 of 3 layers; on a built-in text recall") != NULL);
    layout = PI_LAYOUT_AUTO;
    for (int i = 0; i < 3; i++)
        free(out[i]);
    drop_counts(sub);
    twin_free(m);
    free(from);
    free(sub);
    scratch_close(dir);
}

static void test_refused(void)
{
    char *dir = scratch_open(), *from = scratch_path(dir, "m.powerinfer.gguf"),
         *to = scratch_path(dir, "m.gguf");
    struct model *m = twin_make(&kinds[0]);
    struct tensor *t = twin_tensor(m, "blk.1.fc2.weight");
    struct pi_map map = {0};
    struct pi_err e = {0};
    uint8_t *cut;
    const float nan = NAN;

    printf("# files that PowerInfer would read past, or take for others\n");
    t->n_rows /= 2;
    t->n_bytes /= 2;
    twin_write(m, from);
    FAILS(convert(from, to, &e), PI_E_CORRUPT,
          "blk.1.fc2.weight is 32 x 128, the model needs 32 x 256", e);
    t->n_rows *= 2;
    t->n_bytes *= 2;
    memcpy(t->name, "blk.1.fc2.bias\0\0", 17);
    twin_write(m, from);
    FAILS(convert(from, to, &e), PI_E_UNSUPPORTED, "layer 1: a predictor with biases", e);
    memcpy(t->name, "blk.1.fc3.weight", 17);
    twin_write(m, from);
    FAILS(convert(from, to, &e), PI_E_CORRUPT, "layer 1 has only one of fc1.weight and fc2.weight",
          e);
    memcpy(t->name, "blk.1.fc2.weight", 17);
    t = twin_tensor(
        m, "blk.2.ffn_down_t.weight"); /* as dense files have it, under the name of sparse ones */
    t->n_rows = N_EMBD;
    t->n_cols = N_FF;
    twin_write(m, from);
    FAILS(convert(from, to, &e), PI_E_CORRUPT, "blk.2.ffn_down_t.weight", e);
    t->n_rows = N_FF;
    t->n_cols = N_EMBD;
    t = twin_tensor(m, "blk.0.attn_norm.weight");
    memcpy(t->data + 8, &nan, sizeof(nan));
    twin_write(m, from);
    FAILS(convert(from, to, &e), PI_E_CORRUPT, "blk.0.attn_norm.weight", e);
    memcpy(t->data + 8, t->w + 2, sizeof(nan));
    twin_write(m, from);
    PASSES(pi_map_open(from, &map, &e), e);
    cut = malloc(map.size);
    if (cut == NULL)
        exit(99);
    memcpy(cut, map.data, map.size);
    for (size_t n = 3; n < map.size; n += map.size / 7) {
        scratch_write(from, cut, n);
        FAILS(convert(from, to, &e), PI_E_CORRUPT, "m.powerinfer.gguf", e);
    }
    free(cut);
    pi_map_close(&map);
    EQ(scratch_count(dir), 1);
    twin_free(m);
    free(from);
    free(to);
    scratch_close(dir);
}

int main(void)
{
    struct pi_err e = {0};

    PASSES(pi_blas_init(&e), e);
    PASSES(pi_pool_create(2, &pool, &e), e);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        test_kind(&kinds[i]);
    test_beside();
    test_all_or_none();
    test_refused();
    pi_pool_destroy(pool);
    return DONE();
}
