/* Shapes: what keys and tensors say, and every contradiction refused. */
#include "config.h"

#include "common/pi_shape.h"
#include "tests/gguf_bytes.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct pi_err e;
static struct gb b;

/* A model file whose keys are changed one at a time. */
struct model {
    const char *arch;
    const char *skip, *key; /* key left out; key added or put in another's place */
    const char *text;       /* its value: a string, else f, else u */
    const float *f;
    uint32_t u;
    bool sparse;                           /* PWRI */
    uint64_t embd_rows, up_rows, pos_rows; /* shapes of tensors; 0: absent */
    uint32_t n_tokens;
    bool two_downs; /* blk.1.ffn_down and blk.1.ffn_down_t */
};

static uint32_t n_keys;

static bool wanted(const struct model *m, const char *key)
{
    return (m->skip == NULL || strcmp(key, m->skip) != 0) &&
           (m->key == NULL || strcmp(key, m->key) != 0);
}

static void key_u32(const struct model *m, const char *name, uint32_t v)
{
    char key[128];

    (void)snprintf(key, sizeof(key), "%s.%s", m->arch, name);
    if (wanted(m, name)) {
        gb_kv_u32(&b, key, v);
        n_keys++;
    }
}

static void key_f32(const struct model *m, const char *name, float v)
{
    char key[128];
    uint32_t u;

    memcpy(&u, &v, sizeof(u));
    (void)snprintf(key, sizeof(key), "%s.%s", m->arch, name);
    if (wanted(m, name)) {
        gb_key(&b, key, PI_GGUF_F32);
        gb_u32(&b, u);
        n_keys++;
    }
}

static void add_keys(const struct model *m)
{
    char key[128];

    gb_kv_str(&b, "general.architecture", m->arch);
    n_keys++;
    key_u32(m, "context_length", 128);
    key_u32(m, "embedding_length", 64);
    key_u32(m, "block_count", 2);
    key_u32(m, "feed_forward_length", 96);
    key_u32(m, "attention.head_count", 4);
    if (strcmp(m->arch, "llama") == 0)
        key_f32(m, "attention.layer_norm_rms_epsilon", 1e-6f);
    if (m->n_tokens > 0) {
        gb_kv_array(&b, "tokenizer.ggml.tokens", PI_GGUF_STR, m->n_tokens);
        for (uint32_t i = 0; i < m->n_tokens; i++)
            gb_str(&b, "t");
        n_keys++;
    }
    if (m->key == NULL)
        return;
    (void)snprintf(key, sizeof(key), "%s.%s", m->arch, m->key);
    if (m->text != NULL) {
        gb_kv_str(&b, key, m->text);
    } else if (m->f != NULL) {
        struct model other = *m;

        other.key = NULL;
        key_f32(&other, m->key, *m->f);
        n_keys--;
    } else {
        gb_kv_u32(&b, key, m->u);
    }
    n_keys++;
}

static void add_tensors(const struct model *m)
{
    const struct {
        const char *name;
        uint64_t rows;
    } t[] = {{"token_embd.weight", m->embd_rows},
             {"blk.1.ffn_up.weight", m->up_rows},
             {"position_embd.weight", m->pos_rows}};

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        if (t[i].rows > 0)
            gb_tensor(&b, t[i].name, 2, (const uint64_t[]){64, t[i].rows}, PI_TYPE_F32, 0);
    if (m->two_downs) {
        gb_tensor(&b, "blk.1.ffn_down.weight", 2, (const uint64_t[]){96, 64}, PI_TYPE_F32, 0);
        gb_tensor(&b, "blk.1.ffn_down_t.weight", 2, (const uint64_t[]){64, 96}, PI_TYPE_F32, 0);
    }
}

static enum pi_code read_as(const struct model *m, const char *act, struct pi_shape *s)
{
    struct pi_gguf g = {0};
    enum pi_code rc;

    memset(&e, 0, sizeof(e));
    n_keys = 0;
    gb_head(&b, 3, (m->embd_rows > 0) + (m->up_rows > 0) + (m->pos_rows > 0) + 2 * m->two_downs, 0);
    if (m->sparse)
        memcpy(b.p, "PWRI", 4);
    add_keys(m);
    b.p[16] = (uint8_t)n_keys;
    add_tensors(m);
    rc = pi_gguf_open_memory(b.p, b.n, "x.gguf", PI_GGUF_NO_DATA, &g, &e);
    if (rc == PI_OK)
        rc = pi_shape_read(&g, act, s, &e);
    pi_gguf_close(&g);
    return rc;
}

static const struct model llama = {.arch = "llama", .embd_rows = 100, .n_tokens = 100};
static const struct model opt = {.arch = "opt", .embd_rows = 104, .n_tokens = 100, .pos_rows = 130};

static void test_defaults(void)
{
    struct pi_shape s = {0};
    struct model m = llama;

    PASSES(read_as(&llama, NULL, &s), e);
    OK(s.arch == PI_ARCH_LLAMA && s.n_layer == 2 && s.n_embd == 64 && s.n_ff == 96);
    OK(s.n_vocab == 100 && s.n_head == 4 && s.n_head_kv == 4 && s.head_dim == 16);
    OK(s.n_ctx_train == 128 && s.gated && !s.layer_norm && !s.learned_pos && s.pos_offset == 0);
    OK(s.act == PI_ACT_SILU && s.n_rot == 16 && !s.rope_neox && s.rope_scaling == PI_ROPE_NONE);
    NEAR(s.norm_eps, 1e-6, 1e-12);
    NEAR(s.rope_base, 10000, 0);
    m.sparse = true;
    PASSES(read_as(&m, NULL, &s), e);
    EQ(s.act, PI_ACT_RELU);
    PASSES(read_as(&opt, NULL, &s), e);
    OK(s.arch == PI_ARCH_OPT && !s.gated && s.layer_norm && s.learned_pos && s.pos_offset == 2);
    OK(s.act == PI_ACT_RELU && s.n_rot == 0 && s.n_ctx_train == 128 && s.n_vocab == 104);
    NEAR(s.norm_eps, 1e-5, 1e-11);
    m = opt;
    m.pos_rows = 66;
    PASSES(read_as(&m, NULL, &s), e);
    EQ(s.n_ctx_train, 64);
    m = llama;
    m.embd_rows = 0; /* a vocabulary-only file */
    PASSES(read_as(&m, NULL, &s), e);
    EQ(s.n_vocab, 100);
}

static void test_keys(void)
{
    struct pi_shape s = {0};
    const float base = 5e5f, threshold = 0.01f;
    struct model m = llama;

    m.key = "attention.head_count_kv";
    m.u = 2;
    PASSES(read_as(&m, NULL, &s), e);
    EQ(s.n_head_kv, 2);
    m.key = "attention.key_length";
    m.u = 24;
    PASSES(read_as(&m, NULL, &s), e);
    OK(s.head_dim == 24 && s.n_rot == 24);
    m.key = "rope.dimension_count";
    m.u = 8;
    PASSES(read_as(&m, NULL, &s), e);
    EQ(s.n_rot, 8);
    m.key = "rope.freq_base";
    m.f = &base;
    PASSES(read_as(&m, NULL, &s), e);
    NEAR(s.rope_base, 5e5, 0);
    m.key = "rope.scale_linear";
    m.f = &(const float){4.0f};
    PASSES(read_as(&m, NULL, &s), e);
    OK(s.rope_scaling == PI_ROPE_LINEAR && s.rope_factor == 4.0f);
    m.f = NULL;
    m.key = "rope.scaling.type";
    m.text = "yarn";
    PASSES(read_as(&m, NULL, &s), e);
    OK(s.rope_scaling == PI_ROPE_YARN && s.rope_n_ctx_orig == 128 && s.rope_beta_fast == 32.0f &&
       s.rope_beta_slow == 1.0f && s.rope_attn_factor == 1.0f);
    m.text = "longrope";
    FAILS(read_as(&m, NULL, &s), PI_E_UNSUPPORTED, "\"longrope\" is not supported", e);

    m.key = "hidden_activation";
    m.text = "relu_squared";
    PASSES(read_as(&m, NULL, &s), e);
    EQ(s.act, PI_ACT_RELU2);
    m.text = "fatrelu";
    FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, "hidden_activation_threshold is missing", e);
    PASSES(read_as(&m, "relu", &s), e);
    EQ(s.act, PI_ACT_RELU);
    m.text = "mish";
    FAILS(read_as(&m, NULL, &s), PI_E_UNSUPPORTED, "\"mish\" is not supported", e);
    PASSES(read_as(&m, "fatrelu:0.01", &s), e);
    OK(s.act == PI_ACT_FATRELU && s.act_threshold == threshold);
    FAILS(read_as(&m, "fatrelu", &s), PI_E_USAGE, "needs its threshold", e);
    FAILS(read_as(&m, "fatrelu:x", &s), PI_E_USAGE, "fatrelu:x", e);
    FAILS(read_as(&m, "fatrelu:0x10", &s), PI_E_USAGE, "fatrelu:0x10", e);
    FAILS(read_as(&m, "fatrelu:-1", &s), PI_E_USAGE, "fatrelu:-1", e);
    FAILS(read_as(&m, "relu:1", &s), PI_E_USAGE, "of fatrelu alone", e);
    FAILS(read_as(&m, "mish", &s), PI_E_USAGE, "mish", e);
}

/* One key at a time holds what no model has. */
static void test_bad_keys(void)
{
    static const struct {
        const char *key;
        uint32_t v;
        const char *says;
    } cases[] = {
        {"context_length", 0, "llama.context_length is 0"},
        {"context_length", UINT32_MAX, "llama.context_length is 4294967295"},
        {"embedding_length", 0, "llama.embedding_length is 0"},
        {"embedding_length", (1u << 20) + 64, "1 to 1048576 are possible"},
        {"block_count", 0, "llama.block_count is 0; 1 to 1024"},
        {"block_count", 1025, "llama.block_count is 1025"},
        {"block_count", UINT32_MAX, "llama.block_count is 4294967295"},
        {"feed_forward_length", 0, "feed_forward_length is 0"},
        {"feed_forward_length", 1u << 31, "feed_forward_length is 2147483648"},
        {"attention.head_count", 0, "attention.head_count is 0"},
        {"attention.head_count", 5, "64 does not divide into 5 heads"},
        {"attention.head_count", 128, "64 does not divide into 128 heads"},
        {"attention.head_count_kv", 0, "attention.head_count_kv is 0"},
        {"attention.head_count_kv", 3, "4 query heads are no multiple of 3"},
        {"attention.head_count_kv", 8, "4 query heads are no multiple of 8"},
        {"attention.key_length", 1u << 19, "wider than 1048576"},
        {"rope.dimension_count", 17, "1 to 16 are possible"},
        {"rope.dimension_count", 7, "is odd: 7"},
        {"rope.dimension_count", 0, "is 0"},
        {"rope.freq_base", 10000, "is u32, not a floating-point number"},
    };
    static const struct {
        const char *key;
        float v;
    } floats[] = {
        {"attention.layer_norm_rms_epsilon", -1e-6f},
        {"attention.layer_norm_rms_epsilon", NAN},
        {"attention.layer_norm_rms_epsilon", 2.0f},
        {"rope.freq_base", 0.0f},
        {"rope.freq_base", INFINITY},
        {"rope.scale_linear", 0.0f},
    };
    static const char *const required[] = {
        "context_length",      "embedding_length",     "block_count",
        "feed_forward_length", "attention.head_count", "attention.layer_norm_rms_epsilon"};
    struct pi_shape s = {0};
    struct model m = llama;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        m.key = cases[i].key;
        m.u = cases[i].v;
        FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, cases[i].says, e);
    }
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
        m.key = floats[i].key;
        m.f = &floats[i].v;
        FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, floats[i].key, e);
    }
    m = llama;
    for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++) {
        m.skip = required[i];
        FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, "is missing", e);
    }
    m = llama;
    m.key = "expert_count";
    m.u = 8;
    FAILS(read_as(&m, NULL, &s), PI_E_UNSUPPORTED, "8 experts", e);
    m.key = "attention.value_length";
    FAILS(read_as(&m, NULL, &s), PI_E_UNSUPPORTED, "values of width 8 with keys of width 16", e);
    m = (struct model){.arch = "gpt2", .n_tokens = 1};
    FAILS(read_as(&m, NULL, &s), PI_E_UNSUPPORTED, "architecture gpt2", e);
}

static void test_tensors(void)
{
    struct pi_shape s = {0};
    struct model m = llama;

    m.embd_rows = 99;
    FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, "has 100 tokens, token_embd.weight 99 rows", e);
    m.embd_rows = (1u << 24) + 1;
    FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, "a vocabulary of 16777217", e);
    m = llama;
    m.n_tokens = 0;
    m.embd_rows = 0;
    FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, "a vocabulary of 0 tokens", e);
    m = llama;
    m.up_rows = 95;
    FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT,
          "blk.1.ffn_up.weight is 64 x 95 x 1 x 1, the keys say 64 x 96", e);
    m.up_rows = 96;
    PASSES(read_as(&m, NULL, &s), e);
    m = llama;
    m.two_downs = true;
    FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT,
          "both blk.1.ffn_down.weight and blk.1.ffn_down_t.weight", e);
    m = opt;
    m.pos_rows = 2;
    FAILS(read_as(&m, NULL, &s), PI_E_CORRUPT, "position_embd.weight has 2 rows", e);
}

static void test_names(void)
{
    enum pi_activation a = PI_ACT_COUNT;
    int bad = 0;

    for (int i = 0; i < PI_ACT_COUNT; i++)
        bad += !pi_activation_from_name(pi_activation_name((enum pi_activation)i), &a) ||
               a != (enum pi_activation)i;
    EQ(bad, 0);
    OK(pi_activation_from_name("gelu_pytorch_tanh", &a) && a == PI_ACT_GELU_TANH);
    OK(!pi_activation_from_name("", &a));
    OK(pi_activation_has_zeros(PI_ACT_FATRELU) && !pi_activation_has_zeros(PI_ACT_SILU));
    STREQ(pi_arch_name(PI_ARCH_OPT), "opt");
    STREQ(pi_arch_name(PI_ARCH_COUNT), "?");
    STREQ(pi_activation_name(PI_ACT_COUNT), "?");
}

int main(void)
{
    test_defaults();
    test_keys();
    test_bad_keys();
    test_tensors();
    test_names();
    return DONE();
}
