/* The small files of a Hugging Face directory: the first byte tells config.json, tokenizer.json and tokenizer.model apart. */
#include "config.h"

#include "convert/pi_hf_vocab.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

unsigned long pi_fuzz_accepted;

static char path[] = "/fuzz/file";

static int read_json(const uint8_t *data, size_t size, bool config)
{
    struct pi_json j = {path, NULL};
    struct pi_hf_config c;
    struct pi_vocab v = {0};
    struct pi_err e = {0};
    size_t n_dropped;
    int ok = pi_json_parse((const char *)data, size, path, &j.root, &e) == PI_OK;

    if (ok && config) {
        ok = pi_hf_config_read(&j, NULL, NULL, &c, &e) == PI_OK;
        FUZZ_CHECK(!ok || (c.shape.n_head % c.shape.n_head_kv == 0 && c.shape.n_layer > 0 &&
                           c.shape.head_dim > 0));
    } else if (ok) {
        ok = pi_tok_json_parse(&j, NULL, &v, &e) == PI_OK &&
             pi_vocab_fit(&v, 300, &n_dropped, &e) == PI_OK;
        FUZZ_CHECK(!ok || (v.n == 300 && v.unk < 300));
    }
    pi_vocab_free(&v);
    json_decref(j.root);
    return ok;
}

static int read_model(const uint8_t *data, size_t size)
{
    struct pi_vocab v = {0};
    struct pi_err e = {0};
    int ok = pi_spm_parse(data, size, path, NULL, &v, &e) == PI_OK;

    FUZZ_CHECK(ok == (e.code == PI_OK));
    for (size_t i = 0; i < v.n; i++)
        FUZZ_CHECK(v.t[i].text != NULL && strlen(v.t[i].text) <= v.t[i].n);
    pi_vocab_free(&v);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] == 'm')
        pi_fuzz_accepted += (unsigned long)read_model(data + 1, size - 1);
    else
        pi_fuzz_accepted += (unsigned long)read_json(data + 1, size - 1, data[0] == 'c');
    return 0;
}

size_t pi_fuzz_seed(unsigned i, uint8_t *buf, size_t cap)
{
    static const struct {
        const char *text;
        size_t n;
    } seeds[] = {
#define SEED(s) {s, sizeof(s) - 1}
        SEED(
            "c{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
            "\"intermediate_size\":96,\"vocab_size\":100,\"max_position_embeddings\":256,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
            "\"original_max_position_embeddings\":64},\"eos_token_id\":[1,2],\"hidden_act\":\"relu\"}"),
        SEED(
            "c{\"architectures\":[\"OPTForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"ffn_dim\":96,"
            "\"vocab_size\":100,\"max_position_embeddings\":256,\"do_layer_norm_before\":true,\"word_embed_proj_dim\":64}"),
        SEED(
            "t{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{"
            "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}"),
        SEED(
            "t{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":false,\"unk_token\":\"u\",\"vocab\":{\"a\":0,"
            "\"b\":1,\"ab\":2,\"<0x0A>\":3,\"u\":4},\"merges\":[\"a b\"]}}"),
        SEED(
            "m\n\x0e\n\5<unk>\x15\0\0\0\0\x18\2\n\x08\n\1a\x15\0\0\x80\xbf\x12\x11\x18\2\xc0\2\0\xd8\2\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"
            "\x1a\4\x18\1 \0"),
    };

    if (i >= sizeof(seeds) / sizeof(seeds[0]) || seeds[i].n > cap)
        return 0;
    memcpy(buf, seeds[i].text, seeds[i].n);
    return seeds[i].n;
}
