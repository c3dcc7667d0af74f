/*
 * config.json in its old and new forms, and what is refused of it.
 */
#include "config.h"

#include "convert/pi_hf.h"
#include "tests/tap.h"

static char said[2048]; /* what the reader noted */

static void hear(void *ctx, const char *line)
{
    (void)ctx;
    (void)snprintf(said, sizeof(said), "%s", line);
}

static const struct pi_notes notes = {hear, NULL};

#define LLAMA                                                                                                        \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
    "\"intermediate_size\":96,\"vocab_size\":100,\"max_position_embeddings\":256"
#define OPT                                                                                                                       \
    "\"architectures\":[\"OPTForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"ffn_dim\":96," \
    "\"vocab_size\":100,\"max_position_embeddings\":256"

static enum pi_code read_config(const char *text, const char *act, struct pi_hf_config *c,
                                struct pi_err *e)
{
    char path[] = "/models/tiny/config.json";
    struct pi_json j = {path, NULL};
    enum pi_code rc = pi_json_parse(text, strlen(text), "config.json", &j.root, e);

    said[0] = '\0';
    memset(c, 0, sizeof(*c));
    if (rc == PI_OK)
        rc = pi_hf_config_read(&j, act, &notes, c, e);
    json_decref(j.root);
    return rc;
}

static void test_defaults(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};

    PASSES(read_config("{" LLAMA "}", NULL, &c, &e), e);
    EQ(c.shape.arch, PI_ARCH_LLAMA);
    EQ(c.shape.n_head_kv, 4);
    EQ(c.shape.head_dim, 16);
    EQ(c.shape.n_rot, 16);
    EQ(c.shape.act, PI_ACT_SILU);
    EQ(c.shape.n_ctx_train, 256);
    NEAR(c.shape.norm_eps, 1e-6, 1e-12);
    NEAR(c.shape.rope_base, 10000.0, 0.0);
    OK(!c.tied && !c.tie_said && !c.qkv_bias && c.shape.gated && !c.shape.layer_norm);
    EQ(c.bos, -1);
    STREQ(c.name, "model"); /* the folder does not exist */

    PASSES(read_config("{" OPT "}", NULL, &c, &e), e);
    EQ(c.shape.arch, PI_ARCH_OPT);
    EQ(c.shape.act, PI_ACT_RELU);
    EQ(c.shape.pos_offset, 2);
    NEAR(c.shape.norm_eps, 1e-5, 1e-12);
    OK(c.tied && c.qkv_bias && !c.shape.gated && c.shape.layer_norm && c.shape.learned_pos);
}

static void test_forms(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};

    PASSES(
        read_config(
            "{" LLAMA
            ",\"rope_theta\":5e5,\"torch_dtype\":\"float16\",\"hidden_act\":\"relu\",\"num_key_value_heads\":2,"
            "\"head_dim\":32,\"eos_token_id\":[7,9],\"bos_token_id\":3,\"_name_or_path\":\"org/My-Model\","
            "\"tie_word_embeddings\":true,\"rms_norm_eps\":1e-5,\"attention_bias\":true}",
            NULL, &c, &e),
        e);
    NEAR(c.shape.rope_base, 5e5, 0.0);
    EQ(c.shape.act, PI_ACT_RELU);
    EQ(c.shape.n_head_kv, 2);
    EQ(c.shape.head_dim, 32);
    EQ(c.eos, 7);
    EQ(c.eot, 9);
    EQ(c.bos, 3);
    STREQ(c.name, "My-Model");
    OK(c.tied && c.tie_said && c.qkv_bias);

    PASSES(
        read_config(
            "{" LLAMA
            ",\"rope_parameters\":{\"rope_theta\":20000.0,\"rope_type\":\"default\"},\"dtype\":\"float32\"}",
            NULL, &c, &e),
        e);
    NEAR(c.shape.rope_base, 20000.0, 0.0);
    PASSES(read_config("{" LLAMA ",\"hidden_act\":\"fatrelu\",\"hidden_act_param\":0.01}", NULL, &c,
                       &e),
           e);
    EQ(c.shape.act, PI_ACT_FATRELU);
    NEAR(c.shape.act_threshold, 0.01, 1e-9);
    PASSES(read_config("{" LLAMA ",\"hidden_act\":\"fatrelu\"}", NULL, &c, &e), e);
    OK(strstr(said, "without a threshold") != NULL);
    PASSES(read_config("{" LLAMA ",\"hidden_act\":\"relu\"}", "fatrelu:0.5", &c, &e), e);
    NEAR(c.shape.act_threshold, 0.5, 0.0);
    PASSES(read_config("{" LLAMA ",\"hidden_act\":\"mystery\"}", "relu2", &c, &e), e);
    EQ(c.shape.act, PI_ACT_RELU2);
    FAILS(read_config("{" LLAMA "}", "relu:1", &c, &e), PI_E_USAGE, "a threshold", e);
    FAILS(read_config("{" LLAMA "}", "fatrelu:x", &c, &e), PI_E_USAGE, "a threshold", e);
    FAILS(read_config("{" LLAMA "}", "mystery", &c, &e), PI_E_USAGE, "mystery", e);
}

static void test_rope(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};

    PASSES(read_config("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}", NULL,
                       &c, &e),
           e);
    EQ(c.shape.rope_scaling, PI_ROPE_LINEAR);
    NEAR(c.shape.rope_factor, 4.0, 0.0);
    PASSES(
        read_config(
            "{" LLAMA
            ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
            "\"original_max_position_embeddings\":64}}",
            NULL, &c, &e),
        e);
    EQ(c.rope, PI_HF_ROPE_LLAMA3);
    EQ(c.shape.rope_scaling, PI_ROPE_NONE); /* its factors are a tensor */
    EQ(c.shape.rope_n_ctx_orig, 64);
    PASSES(
        read_config(
            "{" LLAMA
            ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64}}",
            NULL, &c, &e),
        e);
    EQ(c.shape.rope_scaling, PI_ROPE_YARN);
    NEAR(c.shape.rope_attn_factor, 1.0, 0.0);
    NEAR(c.shape.rope_beta_fast, 32.0, 0.0);
    PASSES(
        read_config(
            "{" LLAMA
            ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"attention_factor\":1.0,\"original_max_position_embeddings\":64}}",
            NULL, &c, &e),
        e);
    NEAR(c.shape.rope_factor, 4.0, 0.0); /* 256 / 64 */
    NEAR(c.shape.rope_attn_factor, 1.0 / (0.1 * log(4.0) + 1.0), 1e-6);
    PASSES(
        read_config(
            "{" LLAMA
            ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2,\"original_max_position_embeddings\":128}}",
            NULL, &c, &e),
        e);
    EQ(c.shape.n_ctx_train, 128);
    EQ(c.shape.rope_scaling, PI_ROPE_NONE);
    OK(strstr(said, "context limited to 128") != NULL);
    FAILS(read_config("{" LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}}", NULL, &c,
                      &e),
          PI_E_UNSUPPORTED, "longrope", e);
    FAILS(read_config("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", NULL, &c, &e),
          PI_E_CORRUPT, "without \"factor\"", e);
    FAILS(read_config("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", NULL, &c,
                      &e),
          PI_E_CORRUPT, "\"factor\" is 0", e);
    FAILS(read_config("{" LLAMA
                      ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
                      NULL, &c, &e),
          PI_E_UNSUPPORTED, "full_attention", e);
    FAILS(read_config("{" LLAMA ",\"partial_rotary_factor\":0.5}", NULL, &c, &e), PI_E_UNSUPPORTED,
          "partial_rotary_factor", e);
}

static void test_mistral(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};
#define MISTRAL                                                                                                        \
    "\"architectures\":[\"MistralForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
    "\"intermediate_size\":96,\"vocab_size\":100,\"max_position_embeddings\":256"

    PASSES(read_config("{" MISTRAL ",\"sliding_window\":null}", NULL, &c, &e), e);
    EQ(c.shape.n_ctx_train, 256);
    STREQ(said, "");
    PASSES(read_config("{" MISTRAL ",\"sliding_window\":256}", NULL, &c, &e), e);
    EQ(c.shape.n_ctx_train, 256);
    PASSES(read_config("{" MISTRAL ",\"sliding_window\":64}", NULL, &c, &e), e);
    EQ(c.shape.n_ctx_train, 64);
    OK(strstr(said, "64 of 256") != NULL);
}

#define BODY                                                                \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
    "\"intermediate_size\":96,\"vocab_size\":100,\"max_position_embeddings\":256"

/* Classes that share Llama's keys. */
static void test_llama_like(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};

    PASSES(read_config("{\"architectures\":[\"ArceeForCausalLM\"]," BODY
                       ",\"mlp_bias\":true,\"attention_bias\":true}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.arch, PI_ARCH_ARCEE);
    EQ(c.shape.act, PI_ACT_RELU2);
    OK(!c.shape.gated && !c.shape.rope_neox && c.mlp_bias && c.qkv_bias && c.o_bias);
    PASSES(read_config("{\"architectures\":[\"NemotronForCausalLM\"]," BODY
                       ",\"norm_eps\":1e-4,\"rope_parameters\":{\"partial_rotary_factor\":0.25}}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.arch, PI_ARCH_NEMOTRON);
    EQ(c.shape.n_rot, 4);
    NEAR(c.shape.norm_eps, 1e-4, 1e-9);
    OK(c.shape.layer_norm && c.norm_plus_one && c.shape.rope_neox && !c.shape.gated);
    PASSES(read_config("{\"model_type\":\"nemotron\"," BODY "}", NULL, &c, &e), e);
    EQ(c.shape.n_rot, 8); /* half, where no key says more */
    FAILS(read_config("{\"model_type\":\"nemotron\"," BODY ",\"partial_rotary_factor\":0.2}", NULL,
                      &c, &e),
          PI_E_CORRUPT, "odd width 3", e);
    PASSES(read_config("{\"architectures\":[\"Qwen2ForCausalLM\"]," BODY
                       ",\"sliding_window\":64,\"use_sliding_window\":false}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.arch, PI_ARCH_QWEN2);
    EQ(c.shape.n_ctx_train, 256);
    OK(c.qkv_bias && !c.o_bias && c.shape.rope_neox);
    PASSES(read_config("{\"architectures\":[\"Qwen2ForCausalLM\"]," BODY
                       ",\"sliding_window\":64,\"use_sliding_window\":true}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.n_ctx_train, 64);
    PASSES(read_config("{\"architectures\":[\"PhoneLMForCausalLM\"]," BODY "}", NULL, &c, &e), e);
    EQ(c.shape.arch, PI_ARCH_LLAMA);
    EQ(c.shape.act, PI_ACT_RELU);
    PASSES(read_config("{\"architectures\":[\"SparseLlamaForCausalLM\"]," BODY
                       ",\"hidden_act\":\"fatrelu\",\"hidden_act_param\":0.01}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.act, PI_ACT_FATRELU);
    FAILS(read_config("{\"model_type\":\"sparsellama\"," BODY "}", NULL, &c, &e), PI_E_CORRUPT,
          "no \"hidden_act\"", e);
    PASSES(read_config("{\"model_type\":\"llama\"," BODY ",\"activation_function\":\"relu\"}", NULL,
                       &c, &e),
           e);
    EQ(c.shape.act, PI_ACT_RELU);
    FAILS(read_config("{\"model_type\":\"llama\"," BODY
                      ",\"activation\":\"relu\",\"hidden_act\":\"silu\"}",
                      NULL, &c, &e),
          PI_E_CORRUPT, "two activations", e);
}

static void test_more_llamas(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};

    PASSES(read_config("{\"architectures\":[\"Qwen3ForCausalLM\"]," BODY
                       ",\"head_dim\":32,\"attention_bias\":false}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.arch, PI_ARCH_QWEN3);
    OK(c.shape.qk_norm && c.shape.rope_neox && !c.qkv_bias);
    PASSES(read_config("{\"architectures\":[\"BambooForCausalLM\"]," BODY
                       ",\"hidden_act\":\"relu\",\"sliding_window\":null}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.arch, PI_ARCH_BAMBOO);
    OK(c.shape.act_up && c.shape.gated && !c.shape.rope_neox);
    PASSES(read_config("{" LLAMA ",\"mlp_bias\":true}", NULL, &c, &e), e);
    OK(c.mlp_bias && !c.qkv_bias && !c.o_bias);
}

#define FALCON                                                                              \
    "\"architectures\":[\"FalconForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"vocab_size\":100"
#define REFINED_WEB                                                                           \
    "\"architectures\":[\"RWForCausalLM\"],\"model_type\":\"RefinedWeb\",\"hidden_size\":64," \
    "\"n_layer\":2,\"n_head\":4,\"vocab_size\":100,\"alibi\":false,\"bias\":false,\"parallel_attn\":true"

static void test_falcon(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};

    PASSES(read_config("{" FALCON "}", NULL, &c, &e), e);
    EQ(c.shape.arch, PI_ARCH_FALCON);
    EQ(c.shape.n_head_kv, 1);
    EQ(c.shape.n_ff, 256);
    EQ(c.shape.act, PI_ACT_GELU);
    EQ(c.shape.n_ctx_train, 2048);
    OK(c.shape.parallel && c.shape.layer_norm && c.tied && !c.two_norms && !c.qkv_bias);
    PASSES(read_config("{" FALCON ",\"new_decoder_architecture\":true,\"num_kv_heads\":2,"
                       "\"activation\":\"relu\",\"ffn_hidden_size\":100,\"bias\":true}",
                       NULL, &c, &e),
           e);
    EQ(c.shape.n_head_kv, 2);
    EQ(c.shape.n_ff, 100);
    EQ(c.shape.act, PI_ACT_RELU);
    OK(c.two_norms && c.qkv_bias && c.o_bias && c.mlp_bias);
    PASSES(read_config("{" FALCON ",\"new_decoder_architecture\":true,\"num_kv_heads\":2,"
                       "\"num_ln_in_parallel_attn\":1}",
                       NULL, &c, &e),
           e);
    OK(!c.two_norms);
    PASSES(read_config("{" REFINED_WEB ",\"n_head_kv\":2}", NULL, &c, &e), e);
    EQ(c.shape.n_head_kv, 2);
    OK(c.two_norms);
    PASSES(read_config("{" REFINED_WEB ",\"multi_query\":true}", NULL, &c, &e), e);
    EQ(c.shape.n_head_kv, 1);
    OK(!c.two_norms);
}

static void test_opt_350m(void)
{
    struct pi_hf_config c;
    struct pi_err e = {0};

    PASSES(read_config("{" OPT ",\"do_layer_norm_before\":false,\"word_embed_proj_dim\":32}", NULL,
                       &c, &e),
           e);
    EQ(c.shape.n_embd, 64);
    EQ(c.shape.n_embd_tok, 32);
    OK(c.shape.post_norm);
    PASSES(read_config("{" OPT "}", NULL, &c, &e), e);
    EQ(c.shape.n_embd_tok, 64);
    OK(!c.shape.post_norm);
}

static void test_refusals(void)
{
    static const struct {
        const char *json;
        enum pi_code code;
        const char *text;
    } bad[] = {
        {"{\"architectures\":[\"BloomForCausalLM\"]}", PI_E_UNSUPPORTED, "BloomForCausalLM"},
        {"{}", PI_E_UNSUPPORTED, "(none)"},
        {"{\"architectures\":[\"LlamaForCausalLM\"]}", PI_E_CORRUPT, "no \"hidden_size\""},
        {"{" LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", PI_E_UNSUPPORTED,
         "quantised checkpoint"},
        {"{" LLAMA ",\"hidden_act\":\"mystery\"}", PI_E_UNSUPPORTED, "mystery"},
        {"{" LLAMA ",\"hidden_act\":7}", PI_E_CORRUPT, "no text"},
        {"{" LLAMA ",\"head_dim\":15}", PI_E_CORRUPT, "odd width"},
        {"{" LLAMA ",\"head_dim\":0}", PI_E_CORRUPT, "\"head_dim\" is 0"},
        {"{" LLAMA ",\"num_key_value_heads\":3}", PI_E_CORRUPT, "no multiple"},
        {"{" LLAMA ",\"num_key_value_heads\":5}", PI_E_CORRUPT, "outside 1 to 4"},
        {"{" LLAMA ",\"rms_norm_eps\":\"small\"}", PI_E_CORRUPT, "no number"},
        {"{" LLAMA ",\"attention_bias\":1}", PI_E_CORRUPT, "neither true nor false"},
        {"{" LLAMA ",\"bos_token_id\":\"x\"}", PI_E_CORRUPT, "no token id"},
        {"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":-1}", PI_E_CORRUPT,
         "hidden_size"},
        {"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64.5}", PI_E_CORRUPT,
         "no whole number"},
        {"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":4294967295}",
         PI_E_CORRUPT, "outside 1 to 1024"},
        {"{" LLAMA ",\"num_attention_heads\":4}", PI_E_CORRUPT, "duplicate"},
        {"{" OPT ",\"word_embed_proj_dim\":0}", PI_E_CORRUPT, "word_embed_proj_dim"},
        {"{" OPT ",\"_remove_final_layer_norm\":true}", PI_E_UNSUPPORTED, "final norm"},
        {"{" FALCON ",\"alibi\":true}", PI_E_UNSUPPORTED, "alibi"},
        {"{" FALCON ",\"parallel_attn\":false}", PI_E_UNSUPPORTED, "parallel_attn"},
        {"{" FALCON ",\"new_decoder_architecture\":true,\"num_kv_heads\":3}", PI_E_CORRUPT,
         "no multiple"},
        {"{" FALCON ",\"num_ln_in_parallel_attn\":3}", PI_E_CORRUPT, "outside 1 to 2"},
        {"{" FALCON ",\"activation\":\"quick\"}", PI_E_UNSUPPORTED, "quick"},
        {"{" OPT ",\"enable_bias\":false}", PI_E_UNSUPPORTED, "biases"},
        {"[]", PI_E_CORRUPT, "not a JSON object"},
        {"{\"a\":", PI_E_CORRUPT, "line 1"},
    };
    struct pi_hf_config c;
    struct pi_err e = {0};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        printf("# %s\n", bad[i].json);
        FAILS(read_config(bad[i].json, NULL, &c, &e), bad[i].code, bad[i].text, e);
    }
}

int main(void)
{
    test_defaults();
    test_forms();
    test_rope();
    test_mistral();
    test_llama_like();
    test_more_llamas();
    test_falcon();
    test_opt_350m();
    test_refusals();
    return DONE();
}
