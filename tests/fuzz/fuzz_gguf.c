/* GGUF reader, shapes and model hashes. */
#include "config.h"

#include "common/pi_artifact.h"
#include "common/pi_gguf.h"
#include "common/pi_shape.h"
#include "tests/fuzz/fuzz.h"
#include "tests/gguf_bytes.h"

unsigned long pi_fuzz_accepted;

static volatile uint64_t sink; /* what was read, so that reads are not optimised away */

static void touch(const void *p, uint64_t n)
{
    const volatile uint8_t *b = p;

    if (n > 0)
        sink += (uint64_t)b[0] + b[n - 1];
}

static bool inside(const struct pi_gguf *g, const void *p, uint64_t n)
{
    const uint8_t *b = p;

    return b >= g->map.data && n <= g->map.size - (size_t)(b - g->map.data);
}

static void read_keys(const struct pi_gguf *g)
{
    for (size_t i = 0; i < g->n_kv; i++) {
        const struct pi_gguf_kv *kv = &g->kv[i];
        char key[256];
        uint64_t u = 0;
        float f = 0;
        bool yes = false;
        struct pi_str s = {"", 0};

        FUZZ_CHECK(inside(g, kv->key.p, kv->key.n) && kv->key.n > 0);
        for (uint64_t k = 0; kv->elem == PI_GGUF_STR && k < kv->n; k++) {
            FUZZ_CHECK(inside(g, kv->strs[k].p, kv->strs[k].n));
            touch(kv->strs[k].p, kv->strs[k].n);
        }
        for (uint64_t k = 0; kv->elem != PI_GGUF_STR && k < kv->n; k += 1 + kv->n / 64)
            sink += (uint64_t)pi_gguf_elem_i64(kv, k) + (pi_gguf_elem_f32(kv, k) > 0);
        if (kv->key.n >= sizeof(key) || memchr(kv->key.p, '\0', kv->key.n) != NULL)
            continue;
        memcpy(key, kv->key.p, kv->key.n);
        key[kv->key.n] = '\0';
        FUZZ_CHECK(pi_gguf_find(g, key) == kv);
        sink += pi_gguf_u64(g, key, true, &u, NULL) == PI_OK;
        sink += pi_gguf_f32(g, key, true, &f, NULL) == PI_OK;
        sink += pi_gguf_bool(g, key, true, &yes, NULL) == PI_OK;
        sink += pi_gguf_string(g, key, true, &s, NULL) == PI_OK;
        touch(s.p, s.n);
    }
}

static void read_tensors(const struct pi_gguf *g)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        uint64_t row = 0;

        FUZZ_CHECK(inside(g, t->data, t->bytes) && t->bytes > 0);
        FUZZ_CHECK(pi_type_row_bytes(t->type, t->ne[0], &row));
        FUZZ_CHECK(row * t->ne[1] * t->ne[2] * t->ne[3] == t->bytes);
        touch(t->data, t->bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pi_gguf g = {0};
    struct pi_shape s = {0};
    struct pi_lineage lineage = {{0}};
    struct pi_fingerprint fp = {{0}};
    struct pi_err e = {0};

    if (pi_gguf_open_memory(data, size, "fuzz", PI_GGUF_NO_DATA | PI_GGUF_NO_HEADER_CRC, &g, &e) ==
        PI_OK) {
        read_keys(&g);
        sink += pi_model_fingerprint(&g, &fp, &e) == PI_OK;
        pi_gguf_close(&g);
    }
    if (pi_gguf_open_memory(data, size, "fuzz", PI_GGUF_NO_HEADER_CRC, &g, &e) != PI_OK) {
        FUZZ_CHECK(e.msg[0] != '\0' && e.code != PI_OK);
        return 0;
    }
    pi_fuzz_accepted++;
    read_keys(&g);
    read_tensors(&g);
    if (pi_shape_read(&g, NULL, &s, &e) == PI_OK)
        FUZZ_CHECK(s.n_layer > 0 && s.n_head_kv > 0 && s.head_dim > 0 && s.n_vocab > 0 &&
                   s.n_head % s.n_head_kv == 0);
    sink += pi_gguf_check_crc(&g, &e) == PI_OK;
    sink += pi_model_lineage(&g, &lineage, &e) == PI_OK;
    sink += pi_lineage_of_gguf(&g, &lineage, &e) == PI_OK;
    sink += pi_model_fingerprint(&g, &fp, &e) == PI_OK;
    pi_gguf_close(&g);
    return 0;
}

/* ---- seeds ---------------------------------------------------------------------------------- */

static void every_value_type(struct gb *b)
{
    static const uint8_t zeros[8];

    gb_head(b, 3, 0, 24);
    for (uint32_t type = 0; type <= PI_GGUF_F64; type++) {
        const char key[] = {'k', (char)('a' + type), '\0'}, arr[] = {'a', (char)('a' + type), '\0'};
        uint32_t size = type >= PI_GGUF_U64                          ? 8
                        : type >= PI_GGUF_U32 && type < PI_GGUF_BOOL ? 4
                                                                     : 2;

        if (type <= PI_GGUF_I8 || type == PI_GGUF_BOOL)
            size = 1;
        if (type == PI_GGUF_ARR)
            continue;
        gb_key(b, key, type);
        if (type == PI_GGUF_STR)
            gb_str(b, "text");
        else
            gb_raw(b, zeros, size);
        gb_kv_array(b, arr, type, 2);
        for (int i = 0; i < 2; i++) {
            if (type == PI_GGUF_STR)
                gb_str(b, i ? "" : "text");
            else
                gb_raw(b, zeros, size);
        }
    }
}

static void small_model(struct gb *b, const char *arch, bool opt)
{
    const char *const names[] = {"context_length",       "embedding_length",
                                 "block_count",          "feed_forward_length",
                                 "attention.head_count", "attention.head_count_kv"};
    const uint32_t values[] = {16, 32, 1, 32, 2, 1};
    const uint64_t square[2] = {32, 32};
    char key[128];

    gb_head(b, opt ? 2 : 3, 3, 10);
    gb_kv_str(b, "general.architecture", arch);
    gb_kv_u32(b, "general.alignment", 32);
    for (size_t i = 0; i < 6; i++) {
        (void)snprintf(key, sizeof(key), "%s.%s", arch, names[i]);
        gb_kv_u32(b, key, values[i]);
    }
    (void)snprintf(key, sizeof(key), "%s.attention.layer_norm%s_epsilon", arch, opt ? "" : "_rms");
    gb_key(b, key, PI_GGUF_F32);
    gb_u32(b, 0x358637bd); /* 1e-6 */
    gb_kv_array(b, "tokenizer.ggml.tokens", PI_GGUF_STR, 2);
    gb_str(b, "<s>");
    gb_str(b, "a");
    gb_tensor(b, opt ? "position_embd.weight" : "blk.0.ffn_down_t.weight", 2, square, PI_TYPE_F16,
              0);
    gb_tensor(b, "token_embd.weight", 2, square, PI_TYPE_Q4_0, 2048);
    gb_tensor(b, "blk.0.ffn_up.weight", 2, square, PI_TYPE_Q8_0, 2048 + 576);
    gb_pad(b, 32);
    for (int i = 0; i < 2048 + 576 + 1088; i++)
        gb_u8(b, (uint8_t)i);
}

size_t pi_fuzz_seed(unsigned i, uint8_t *buf, size_t cap)
{
    static struct gb b;

    switch (i) {
    case 0:
        gb_head(&b, 3, 0, 0);
        break;
    case 1:
        every_value_type(&b);
        break;
    case 2:
        small_model(&b, "llama", false);
        break;
    case 3:
        small_model(&b, "opt", true);
        break;
    case 4:
        small_model(&b, "llama", false);
        memcpy(b.p, "PWRI", 4);
        break;
    default:
        return 0;
    }
    FUZZ_CHECK(b.n <= cap);
    memcpy(buf, b.p, b.n);
    return b.n;
}
