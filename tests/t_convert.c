/*
 * Conversion end to end: every type, values against the source, the same bytes twice, GGUF sources, and nothing left behind by a failure.
 */
#include "config.h"

#include "common/pi_artifact.h"
#include "common/pi_progress.h"
#include "common/pi_tokenizer.h"
#include "common/pi_predictor.h"
#include "convert/pi_convert.h"
#include "runtime/cpu/pi_cpu.h"
#include "tests/hf_copy.h"
#include "tests/tap.h"

#include <signal.h>

static const char *const cases[] = {"llama-relu", "llama-silu-gqa-tied", "opt-pre",
                                    "llama3-rope-bf16-sharded", "mistral-relu-gqa-oldconfig"};
static const enum pi_type types[] = {PI_TYPE_F32,  PI_TYPE_F16,  PI_TYPE_BF16, PI_TYPE_Q8_0,
                                     PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0, PI_TYPE_Q5_1};

static struct pi_pool *pool;
static char said[4096]; /* all notes of a conversion */

static void hear(void *ctx, const char *line)
{
    size_t n = strlen(said);

    (void)ctx;
    (void)snprintf(said + n, sizeof(said) - n, "%s\n", line);
}

static const struct pi_notes notes = {hear, NULL};

static enum pi_code convert(const char *source, const char *output, enum pi_type type, bool given,
                            bool check, struct pi_err *e)
{
    struct pi_convert_options o = {.source = source,
                                   .output = output,
                                   .recipe = pi_recipe_plain(type),
                                   .type_given = given,
                                   .self_check = check,
                                   .pool = pool,
                                   .notes = &notes};

    said[0] = '\0';
    return pi_convert(&o, e);
}

static float *dequantise(const struct pi_gguf_tensor *t)
{
    const struct pi_cpu *cpu = pi_cpu_get(PI_ISA_SCALAR);
    uint64_t row = 0;
    float *out = calloc((size_t)(t->ne[0] * t->ne[1]), sizeof(*out));

    if (out == NULL || !pi_type_row_bytes(t->type, t->ne[0], &row))
        hf_fail("dequantise");
    for (uint64_t r = 0; r < t->ne[1]; r++)
        cpu->type[t->type]->to_f32(t->data + r * row, out + r * t->ne[0], (uint32_t)t->ne[0]);
    return out;
}

static float source_value(const struct pi_src_tensor *t, uint64_t i)
{
    uint16_t h;
    float f;

    if (t->type == PI_TYPE_F32) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, t->data + 2 * i, 2);
    return t->type == PI_TYPE_F16 ? pi_f16_to_f32(h) : pi_bf16_to_f32(h);
}

/* Largest difference of a target's tensor from the source's, with the source's element for target (row, column) written out once more here. */
static double worst_of(const struct pi_gguf *g, const char *name, const struct pi_source *src,
                       const char *hf, bool transposed, uint32_t heads)
{
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(g, name);
    const struct pi_src_tensor *s = pi_source_find(src, hf);
    double worst = 0.0;
    float *got;

    if (t == NULL || s == NULL || t->ne[0] * t->ne[1] != s->dim[0] * s->dim[1])
        return HUGE_VAL;
    got = dequantise(t);
    for (uint64_t r = 0; r < t->ne[1]; r++)
        for (uint64_t c = 0; c < t->ne[0]; c++) {
            uint64_t from = r * t->ne[0] + c;
            if (transposed)
                from = c * t->ne[1] + r;
            if (heads >
                0) { /* pair (j, half) of a head, llama.cpp: reshape(heads, 2, width / 2).swapaxes */
                uint64_t width = t->ne[1] / heads, head = r / width, j = (r % width) / 2,
                         half = r % 2;
                from = (head * width + half * width / 2 + j) * t->ne[0] + c;
            }
            worst =
                fmax(worst, fabs((double)got[r * t->ne[0] + c] - (double)source_value(s, from)));
        }
    free(got);
    return worst;
}

static void test_values(const char *dir, const char *path, const char *name)
{
    struct pi_source src = {0};
    struct pi_gguf g = {0};
    struct pi_err e = {0};
    bool opt = strncmp(name, "opt", 3) == 0;
    const char *pre = opt ? "model.decoder.layers.1." : "model.layers.1.";
    uint32_t heads = 0, heads_kv = 0;
    char hf[128];

    PASSES(pi_source_open(dir, &src, &e), e);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    PASSES(pi_gguf_u32(&g, opt ? "opt.attention.head_count" : "llama.attention.head_count", true,
                       &heads, &e),
           e);
    PASSES(pi_gguf_u32(&g, opt ? "opt.attention.head_count_kv" : "llama.attention.head_count_kv",
                       true, &heads_kv, &e),
           e);
    NEAR(worst_of(&g, "token_embd.weight", &src,
                  opt ? "model.decoder.embed_tokens.weight" : "model.embed_tokens.weight", false,
                  0),
         0.0, 0.0);
    (void)snprintf(hf, sizeof(hf), "%sself_attn.q_proj.weight", pre);
    NEAR(worst_of(&g, "blk.1.attn_q.weight", &src, hf, false, opt ? 0 : heads), 0.0, 0.0);
    (void)snprintf(hf, sizeof(hf), "%sself_attn.k_proj.weight", pre);
    NEAR(worst_of(&g, "blk.1.attn_k.weight", &src, hf, false, opt ? 0 : heads_kv), 0.0, 0.0);
    (void)snprintf(hf, sizeof(hf), "%sself_attn.v_proj.weight", pre);
    NEAR(worst_of(&g, "blk.1.attn_v.weight", &src, hf, false, 0), 0.0, 0.0);
    (void)snprintf(hf, sizeof(hf), "%s%s.weight", pre, opt ? "fc1" : "mlp.up_proj");
    NEAR(worst_of(&g, "blk.1.ffn_up.weight", &src, hf, false, 0), 0.0, 0.0);
    (void)snprintf(hf, sizeof(hf), "%s%s.weight", pre, opt ? "fc2" : "mlp.down_proj");
    NEAR(worst_of(&g, "blk.1.ffn_down_t.weight", &src, hf, true, 0), 0.0, 0.0);
    (void)snprintf(hf, sizeof(hf), "%s%s.weight", pre,
                   opt ? "final_layer_norm" : "post_attention_layernorm");
    NEAR(worst_of(&g, "blk.1.ffn_norm.weight", &src, hf, false, 0), 0.0, 0.0);
    PASSES(pi_gguf_check_crc(&g, &e), e);
    pi_source_close(&src);
    pi_gguf_close(&g);
}

/* The vocabulary gives the ids that transformers gave. */
static void test_tokens(const char *dir, const char *path)
{
    struct pi_json ref = {0};
    struct pi_gguf g = {0};
    struct pi_tokenizer *tok = NULL;
    struct pi_err e = {0};
    const json_t *list, *c;
    size_t i;

    PASSES(pi_json_load(dir, "reference.json", false, &ref, &e), e);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    PASSES(pi_tokenizer_create(&g, &tok, &e), e);
    list = json_object_get(ref.root, "cases");
    OK(json_array_size(list) > 0);
    json_array_foreach(list, i, c)
    {
        const char *text = json_string_value(json_object_get(c, "prompt"));
        const json_t *want = json_object_get(c, "tokens");
        struct pi_tokens t = {0};
        bool same = true;

        PASSES(
            pi_tokenizer_encode(tok, text, strlen(text), pi_tokenizer_add_bos(tok), false, &t, &e),
            e);
        EQ(t.n, json_array_size(want));
        for (size_t k = 0; k < t.n && k < json_array_size(want); k++)
            same = same && t.ids[k] == json_integer_value(json_array_get(want, k));
        OK(same);
        pi_tokens_free(&t);
    }
    pi_tokenizer_destroy(tok);
    pi_gguf_close(&g);
    pi_json_free(&ref);
}

static bool same_bytes(const char *a, const char *b)
{
    struct pi_map x = {0}, y = {0};
    bool same = pi_map_open(a, &x, NULL) == PI_OK && pi_map_open(b, &y, NULL) == PI_OK &&
                x.size == y.size && memcmp(x.data, y.data, x.size) == 0;

    pi_map_close(&x);
    pi_map_close(&y);
    return same;
}

static void test_case(const char *name)
{
    const char *dir = hf_case(name);
    char *out = scratch_open(), *a = scratch_path(out, "a.gguf"), *b = scratch_path(out, "b.gguf");
    struct pi_err e = {0};

    printf("# %s\n", name);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct pi_gguf g = {0};
        const struct pi_gguf_tensor *t, *norm;

        PASSES(convert(dir, a, types[i], true, true, &e), e);
        PASSES(convert(dir, b, types[i], true, false, &e), e);
        OK(same_bytes(a, b));
        EQ(scratch_count(out), 2);
        PASSES(pi_gguf_open(a, 0, &g, &e), e);
        t = pi_gguf_find_tensor(&g, "blk.0.ffn_down_t.weight");
        norm = pi_gguf_find_tensor(&g, "output_norm.weight");
        OK(t != NULL && t->type == types[i] && norm != NULL && norm->type == PI_TYPE_F32);
        pi_gguf_close(&g);
        if (types[i] == PI_TYPE_F32) {
            test_values(dir, a, name);
            test_tokens(dir, a);
        }
    }
    free(a);
    free(b);
    scratch_close(out);
}

/* ---- GGUF sources ---- */

static bool same_data(const struct pi_gguf *a, const struct pi_gguf *b)
{
    bool same = a->n_tensors == b->n_tensors;

    for (size_t i = 0; i < a->n_tensors && same; i++) {
        char name[128];
        const struct pi_gguf_tensor *t = &a->tensors[i], *u;
        (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.n, t->name.p);
        u = pi_gguf_find_tensor(b, name);
        same = u != NULL && u->type == t->type && u->bytes == t->bytes &&
               memcmp(u->data, t->data, (size_t)t->bytes) == 0;
    }
    return same;
}

/* PowerInfer's magic, and none of our checksums: their keys get names that mean nothing. */
static void make_pwri(const char *path)
{
    static const char *const keys[] = {"pi.crc32", "pi.header_crc32"};
    struct pi_map m = {0};
    uint8_t *copy;
    size_t n;

    if (pi_map_open(path, &m, NULL) != PI_OK)
        hf_fail(path);
    n = m.size;
    copy = malloc(n);
    if (copy == NULL)
        hf_fail(path);
    memcpy(copy, m.data, n);
    pi_map_close(&m);
    memcpy(copy, "PWRI", 4);
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i + 16 < n && i < 65536; i++)
            if (memcmp(copy + i, keys[k], strlen(keys[k])) == 0)
                memcpy(copy + i, "xx", 2);
    scratch_write(path, copy, n);
    free(copy);
}

/* A file as others make them: ffn_down, a key nobody knows, predictors inside, and the magic of PowerInfer on demand. */
static void write_foreign(const char *from, const char *path, enum pi_type down_type, bool pwri)
{
    const struct pi_cpu *cpu = pi_cpu_get(PI_ISA_SCALAR);
    struct pi_gguf g = {0};
    struct pi_gguf_writer *w = NULL;
    struct pi_err e = {0};
    uint64_t fc1[2] = {96, 4}, fc2[2] = {4, 0}, row = 0;
    float *down[3] = {0};

    PASSES(pi_gguf_open(from, 0, &g, &e), e);
    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    for (size_t i = 0; i < g.n_kv; i++)
        if (!pi_str_eq(g.kv[i].key, "llama.hidden_activation") || !pwri)
            PASSES(pi_gguf_set_copy(w, &g.kv[i], &e), e);
    PASSES(pi_gguf_set_string(w, "someone.elses_key", "kept", &e), e);
    for (size_t i = 0; i < g.n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g.tensors[i];
        uint64_t ne[2] = {t->ne[1], t->ne[0]};
        char name[128];
        unsigned layer;

        (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.n, t->name.p);
        if (sscanf(name, "blk.%u.ffn_down_t.weigh%c", &layer, &(char){0}) == 2 && layer < 3) {
            float *f = dequantise(t);
            down[layer] = calloc((size_t)(t->ne[0] * t->ne[1]), sizeof(float));
            for (uint64_t r = 0; r < t->ne[1]; r++)
                for (uint64_t c = 0; c < t->ne[0]; c++)
                    down[layer][c * t->ne[1] + r] = f[r * t->ne[0] + c];
            free(f);
            (void)snprintf(name, sizeof(name), "blk.%u.ffn_down.weight", layer);
            PASSES(pi_gguf_add_tensor(w, name, down_type, ne, 2, &e), e);
        } else {
            PASSES(pi_gguf_add_tensor(w, name, t->type, t->ne, t->n_dims, &e), e);
        }
    }
    PASSES(pi_gguf_set_f32(w, "powerinfer.sparse_threshold", 0.25f, &e), e);
    fc2[1] = pi_gguf_find_tensor(&g, "blk.0.ffn_up.weight")->ne[1];
    PASSES(pi_gguf_add_tensor(w, "blk.0.fc1.weight", PI_TYPE_F32, fc1, 2, &e), e);
    PASSES(pi_gguf_add_tensor(w, "blk.0.fc2.weight", PI_TYPE_F32, fc2, 2, &e), e);
    PASSES(pi_gguf_begin(w, &e), e);
    for (size_t i = 0; i < g.n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g.tensors[i];
        unsigned layer;
        char name[128];

        (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.n, t->name.p);
        if (sscanf(name, "blk.%u.ffn_down_t.weigh%c", &layer, &(char){0}) != 2 || layer >= 3) {
            PASSES(pi_gguf_append(w, t->data, (size_t)t->bytes, &e), e);
            continue;
        }
        OK(pi_type_row_bytes(down_type, t->ne[1], &row));
        for (uint64_t r = 0; r < t->ne[0]; r++) {
            uint8_t buf[4096];
            cpu->type[down_type]->from_f32(down[layer] + r * t->ne[1], buf, (uint32_t)t->ne[1]);
            PASSES(pi_gguf_append(w, buf, (size_t)row, &e), e);
        }
        free(down[layer]);
    }
    PASSES(pi_gguf_append(w, (const float[96 * 4]){0}, sizeof(float) * 96 * 4, &e), e);
    for (uint64_t i = 0; i < fc2[1]; i++)
        PASSES(pi_gguf_append(w, (const float[4]){0}, sizeof(float) * 4, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    pi_gguf_close(&g);
    if (pwri)
        make_pwri(path);
}

static void open_two(const char *a, const char *b, struct pi_gguf *x, struct pi_gguf *y)
{
    struct pi_err e = {0};

    PASSES(pi_gguf_open(a, 0, x, &e), e);
    PASSES(pi_gguf_open(b, 0, y, &e), e);
}

static void test_gguf(void)
{
    char *out = scratch_open(), *f16 = scratch_path(out, "f16.gguf"),
         *q8 = scratch_path(out, "q8.gguf");
    char *two = scratch_path(out, "two.gguf");
    struct pi_gguf g = {0}, h = {0};
    struct pi_lineage la, lb;
    struct pi_err e = {0};

    PASSES(convert(hf_case("llama-relu"), f16, PI_TYPE_F16, true, true, &e), e);
    PASSES(convert(hf_case("llama-relu"), q8, PI_TYPE_Q8_0, true, true, &e), e);
    PASSES(convert(f16, two, PI_TYPE_Q8_0, true, true, &e), e);
    open_two(q8, two, &g, &h);
    OK(same_data(&g, &h)); /* F16 holds the source exactly: the way through it changes nothing */
    PASSES(pi_model_lineage(&g, &la, &e), e);
    PASSES(pi_model_lineage(&h, &lb, &e), e);
    STREQ(la.hex, lb.hex);
    pi_gguf_close(&g);
    pi_gguf_close(&h);

    PASSES(convert(q8, two, PI_TYPE_F16, false, true, &e),
           e); /* no --type: quantised weights stay as they are */
    open_two(q8, two, &g, &h);
    OK(same_data(&g, &h));
    pi_gguf_close(&g);
    pi_gguf_close(&h);
    PASSES(convert(q8, q8, PI_TYPE_F16, false, true, &e), e); /* over its own source */
    OK(same_bytes(q8, two));

    printf("# hidden activation made another: another model\n");
    {
        struct pi_convert_options o = {.source = f16,
                                       .output = two,
                                       .recipe = pi_recipe_plain(PI_TYPE_F16),
                                       .hidden_act = "silu",
                                       .self_check = true,
                                       .pool = pool,
                                       .notes = &notes};
        PASSES(pi_convert(&o, &e), e);
        open_two(f16, two, &g, &h);
        PASSES(pi_model_lineage(&g, &la, &e), e);
        PASSES(pi_model_lineage(&h, &lb, &e), e);
        OK(strcmp(la.hex, lb.hex) != 0);
        pi_gguf_close(&g);
        pi_gguf_close(&h);
    }
    free(f16);
    free(q8);
    free(two);
    scratch_close(out);
}

/* The predictor that was inside: one layer's, which says nothing (all its logits are 0, below the threshold). */
static void check_imported(const char *dir, const char *name)
{
    char *path = scratch_path(dir, name);
    struct pi_predictor p = {0};
    struct pi_err e = {0};

    OK(strstr(said, "no better than chance") != NULL);
    PASSES(pi_predictor_load(path, &p, &e), e);
    if (p.layers != NULL) {
        OK(p.layers[0].width == 4 && p.layers[0].relu && p.layers[0].bias == NULL);
        OK(p.layers[0].threshold == 0.25f && p.layers[0].input == PI_PRED_IN_FFN_RESIDUAL);
        OK(p.layers[0].density == 0.0f && p.layers[0].recall < 1.0f);
        EQ(p.layers[1].width, 0);
        pi_predictor_free(&p);
    }
    free(path);
}

static void test_foreign(void)
{
    char *out = scratch_open(), *f16 = scratch_path(out, "f16.gguf"),
         *foreign = scratch_path(out, "foreign.gguf");
    char *back = scratch_path(out, "back.gguf");
    struct pi_gguf g = {0}, h = {0};
    struct pi_str text = {0};
    struct pi_err e = {0};

    PASSES(convert(hf_case("llama-relu"), f16, PI_TYPE_F16, true, false, &e), e);
    for (int pwri = 0; pwri < 2; pwri++) {
        write_foreign(f16, foreign, PI_TYPE_F16, pwri == 1);
        PASSES(convert(foreign, back, PI_TYPE_F16, false, true, &e), e);
        check_imported(out, "back.predictor.gguf");
        open_two(f16, back, &g, &h);
        OK(same_data(&g, &h));
        PASSES(pi_gguf_string(&h, "someone.elses_key", true, &text, &e), e);
        OK(pi_str_eq(text, "kept"));
        PASSES(pi_gguf_string(&h, "llama.hidden_activation", true, &text, &e), e);
        OK(pi_str_eq(text, "relu")); /* for PWRI files without the key, too */
        OK(!h.sparse_magic);
        PASSES(pi_gguf_check_crc(&h, &e), e);
        pi_gguf_close(&g);
        pi_gguf_close(&h);
    }
    printf("# a quantised matrix that is transposed never gets 4 bits twice\n");
    write_foreign(f16, foreign, PI_TYPE_Q4_0, false);
    PASSES(convert(foreign, back, PI_TYPE_Q4_0, true, true, &e), e);
    OK(strstr(said, "transposed from quantised ones: stored as Q8_0, not Q4_0") != NULL);
    open_two(foreign, back, &g, &h);
    EQ(pi_gguf_find_tensor(&h, "blk.0.ffn_down_t.weight")->type, PI_TYPE_Q8_0);
    EQ(pi_gguf_find_tensor(&h, "blk.0.ffn_up.weight")->type, PI_TYPE_Q4_0);
    pi_gguf_close(&g);
    pi_gguf_close(&h);
    free(f16);
    free(foreign);
    free(back);
    scratch_close(out);
}

/* Files that carry our checksums over contents that are not theirs: as damaged as they look, unless the user knows better. */
static void test_edited(void)
{
    char *out = scratch_open(), *f16 = scratch_path(out, "f16.gguf"),
         *edited = scratch_path(out, "edited.gguf"), *back = scratch_path(out, "back.gguf");
    struct pi_convert_options o = {.source = edited,
                                   .output = back,
                                   .recipe = pi_recipe_plain(PI_TYPE_F16),
                                   .self_check = true,
                                   .pool = pool,
                                   .notes = &notes};
    struct pi_gguf g = {0};
    struct pi_err e = {0};

    PASSES(convert(hf_case("llama-relu"), f16, PI_TYPE_F16, true, false, &e), e);
    PASSES(pi_gguf_open(f16, 0, &g, &e), e);
    for (int in_data = 0; in_data < 2; in_data++) {
        const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&g, "blk.0.ffn_up.weight");
        const uint8_t *at =
            in_data ? t->data : (const uint8_t *)pi_gguf_find(&g, "general.name")->strs[0].p;
        uint8_t *copy = malloc(g.map.size);
        struct pi_gguf h = {0};

        if (copy == NULL)
            hf_fail("copy");
        memcpy(copy, g.map.data, g.map.size);
        copy[at - g.map.data] ^= 1;
        scratch_write(edited, copy, g.map.size);
        free(copy);
        o.accept_edited = false;
        said[0] = '\0';
        FAILS(pi_convert(&o, &e), PI_E_CORRUPT, "--accept-edited", e);
        EQ(scratch_count(out), 2 + in_data);
        o.accept_edited = true;
        PASSES(pi_convert(&o, &e), e);
        OK(strstr(said, "edited.gguf: its checksums do not fit") != NULL);
        PASSES(pi_gguf_open(back, 0, &h, &e), e);
        PASSES(pi_gguf_check_crc(&h, &e), e);
        pi_gguf_close(&h);
    }
    pi_gguf_close(&g);
    o.source = f16;
    said[0] = '\0';
    PASSES(pi_convert(&o, &e), e);
    OK(strstr(said, "checksums") == NULL);
    free(f16);
    free(edited);
    free(back);
    scratch_close(out);
}

/* ---- failures ---- */

static void poison_nan(uint8_t *data, size_t bytes)
{
    memcpy(data + bytes / 2, "\x01\x7e", 2); /* a NaN in F16 */
}

/* One value in 32 is 1000 times the others: 4 bits cannot hold both. */
static void spread(uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes / 2; i += 32) {
        uint16_t h;
        memcpy(&h, data + 2 * i, 2);
        h = pi_f32_to_f16(i / 32 % 2 == 0 ? 40.0f : -40.0f);
        memcpy(data + 2 * i, &h, 2);
    }
}

static void too_big(uint8_t *data, size_t bytes)
{
    memcpy(data + bytes - 2, "\x80\x47", 2); /* as BF16: 65536 */
}

static void huge(uint8_t *data, size_t bytes)
{
    memcpy(data + bytes - 2, "\x4a\x71", 2); /* as BF16: 1e30 */
}

static const char *drop_prefix(const char *name)
{
    return strncmp(name, "model.", 6) == 0 ? name + 6 : name;
}

static const char *rename_one(const char *name)
{
    return strcmp(name, "model.layers.1.mlp.up_proj.weight") == 0
               ? "model.layers.1.mlp.mystery.weight"
               : name;
}

static void expect(const char *in, enum pi_type type, enum pi_code code, const char *text)
{
    char *out = scratch_open(), *path = scratch_path(out, "m.gguf");
    struct pi_err e = {0};

    FAILS(convert(in, path, type, true, true, &e), code, text, e);
    EQ(scratch_count(out), 0);
    free(path);
    scratch_close(out);
}

static void test_edit(const struct hf_edit *ed, enum pi_type type, enum pi_code code,
                      const char *text)
{
    char *in = scratch_open();

    hf_link(hf_case("llama-relu"), in);
    hf_edit_weights(in, ed);
    if (code != PI_OK) {
        expect(in, type, code, text);
    } else {
        char *path = scratch_path(in, "m.gguf");
        struct pi_err e = {0};
        PASSES(convert(in, path, type, true, true, &e), e);
        free(path);
    }
    scratch_close(in);
}

static void test_config_edit(const char *key, const char *value, enum pi_code code,
                             const char *text)
{
    char *in = scratch_open();

    hf_link(hf_case("llama-relu"), in);
    hf_set_json(in, "config.json", key, value);
    expect(in, PI_TYPE_F16, code, text);
    scratch_close(in);
}

static const char *rename_head(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0 ? "score.weight" : name;
}

/* Beside the layers: another head, as of a reward model. */
static void test_extra(void)
{
    char *in = scratch_open(), *path = scratch_path(in, "m.gguf");
    struct pi_gguf g = {0};
    struct pi_err e = {0};

    hf_link(hf_case("llama-relu"), in);
    hf_edit_weights(in, &(struct hf_edit){.rename = rename_head});
    hf_set_json(in, "config.json", "tie_word_embeddings", "true");
    PASSES(convert(in, path, PI_TYPE_F16, true, true, &e), e);
    OK(strstr(said, "1 tensor beside the layers without a use here, left out: score.weight") !=
       NULL);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    OK(pi_gguf_find_tensor(&g, "output.weight") == NULL);
    pi_gguf_close(&g);
    free(path);
    scratch_close(in);
}

static void test_failures(void)
{
    const char *down = "model.layers.2.mlp.down_proj.weight";
    char *empty = scratch_open();
    struct pi_err e = {0};

    test_edit(&(struct hf_edit){.tensor = down, .fn = poison_nan}, PI_TYPE_F16, PI_E_CORRUPT,
              "not finite");
    test_edit(&(struct hf_edit){.tensor = down, .fn = poison_nan}, PI_TYPE_Q4_0, PI_E_CORRUPT,
              down);
    test_edit(&(struct hf_edit){.tensor = "lm_head.weight", .fn = spread}, PI_TYPE_Q4_0,
              PI_E_SELFCHECK, "KL divergence");
    test_edit(&(struct hf_edit){.tensor = "lm_head.weight", .fn = spread}, PI_TYPE_F16, PI_OK, "");
    test_edit(&(struct hf_edit){.tensor = down, .dtype = "BF16", .fn = too_big}, PI_TYPE_F16,
              PI_E_UNSUPPORTED, "65536, which F16 cannot");
    for (size_t i = 0; i < 2; i++) /* in every block's scale, which is F16 */
        test_edit(&(struct hf_edit){.tensor = down, .dtype = "BF16", .fn = huge},
                  i == 0 ? PI_TYPE_Q4_0 : PI_TYPE_Q8_0, PI_E_UNSUPPORTED,
                  i == 0
                      ? "down_proj.weight holds 1.00026e+30, which Q4_0 cannot: use --type bf16"
                      : "down_proj.weight holds 1.00026e+30, which Q8_0 cannot: use --type bf16");
    test_edit(&(struct hf_edit){.tensor = down, .dtype = "I16"}, PI_TYPE_F16, PI_E_UNSUPPORTED,
              "is I16 (supported: F32, F16, BF16)");
    test_edit(&(struct hf_edit){.rename = drop_prefix}, PI_TYPE_F16, PI_OK, "");
    test_edit(&(struct hf_edit){.rename = rename_one}, PI_TYPE_F16, PI_E_CORRUPT,
              "layers.1.mlp.up_proj.weight is missing");
    test_config_edit("num_hidden_layers", "2", PI_E_UNSUPPORTED, "9 tensors without a place");
    test_config_edit("hidden_size", "48", PI_E_CORRUPT, "where config.json asks for");
    test_config_edit("vocab_size", "1000", PI_E_CORRUPT, "embed_tokens.weight is [1024, 96]");
    expect(empty, PI_TYPE_F16, PI_E_IO, "config.json");
    expect("/nonexistent", PI_TYPE_F16, PI_E_IO, "/nonexistent");
    FAILS(convert(hf_case("llama-relu"), "/nonexistent/m.gguf", PI_TYPE_F16, true, true, &e),
          PI_E_IO, "/nonexistent", e);
    scratch_close(empty);
}

static void test_interrupt(void)
{
    pi_interrupt_install();
    (void)raise(SIGTERM);
    expect(hf_case("llama-relu"), PI_TYPE_F16, PI_E_INTERRUPTED, "");
}

int main(void)
{
    struct pi_err e = {0};

    if (hf_case("llama-relu") == NULL)
        hf_fail("tests/data/reference/llama-relu is not there (abs_top_srcdir)");
    PASSES(pi_pool_create(2, &pool, &e), e);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (hf_case(cases[i]) != NULL)
            test_case(cases[i]);
    test_gguf();
    test_foreign();
    test_edited();
    test_extra();
    test_failures();
    test_interrupt(); /* last: the flag stays */
    pi_pool_destroy(pool);
    return DONE();
}
