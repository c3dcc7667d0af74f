/* What people write or download: hardware.yaml (inputs that start with '#'), vocabularies (with "GGUF"), data sets (all else). */
#include "config.h"

#include "common/pi_dataset.h"
#include "common/pi_file.h"
#include "common/pi_hardware.h"
#include "tests/fuzz/fuzz.h"
#include "tests/tok_vocab.h"

#include <sys/mman.h>

unsigned long pi_fuzz_accepted;

/* The input as a file, for readers that want a path. */
static const char *as_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];

    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return path;
}

static void check_gpu(const struct pi_hw_gpu *g)
{
    FUZZ_CHECK(g->memory >= 1 && g->memory <= 1e15 && g->bandwidth >= 1 && g->bandwidth <= 1e15);
    FUZZ_CHECK(g->sync >= 0 && g->sync <= 1 && g->context_bytes >= 0 && g->context_bytes <= 1e15);
    FUZZ_CHECK(strlen(g->name) < sizeof(g->name) && g->pcie >= 1 && g->pcie <= 1e15);
}

static void read_hardware(const char *path)
{
    struct pi_hardware hw = {0};
    struct pi_err e = {0};

    if (pi_hardware_load(path, &hw, &e) != PI_OK) {
        FUZZ_CHECK(e.code == PI_E_CORRUPT || e.code == PI_E_UNSUPPORTED);
        return;
    }
    FUZZ_CHECK(hw.cpu.threads >= 1 && hw.cpu.bandwidth >= 1 && hw.n_gpus <= PI_MAX_GPUS);
    for (uint32_t i = 0; i < hw.n_gpus; i++)
        check_gpu(&hw.gpus[i]);
    pi_fuzz_accepted++;
}

static void read_dataset(const char *path, size_t size)
{
    struct pi_dataset d = {0};
    struct pi_err e = {0};
    int ok = pi_dataset_add(&d, path, NULL, &e) == PI_OK;

    FUZZ_CHECK(ok || (d.n == 0 &&
                      (e.code == PI_E_CORRUPT || e.code == PI_E_UNSUPPORTED || e.code == PI_E_IO)));
    for (size_t i = 0; i < d.n; i++)
        FUZZ_CHECK(d.docs[i].n > 0 && d.docs[i].text[d.docs[i].n] == '\0');
    FUZZ_CHECK(size > 0 || d.n == 0);
    pi_dataset_free(&d);
    pi_fuzz_accepted += (unsigned long)ok;
}

/* What a vocabulary makes of a text with words, digits, special tokens and bytes that are no UTF-8. */
static void use_vocabulary(const struct pi_tokenizer *t)
{
    static const char text[] =
        "Hello  world, it's 12345\n\n <s></s><|end|> \xe2\x96\x81\xc3\xa9 \xff\xc0 aaaa";
    struct pi_tokens ids = {0};
    struct pi_err e = {0};
    char *back = NULL;
    size_t n = 0;

    if (pi_tokenizer_encode(t, text, sizeof(text) - 1, pi_tokenizer_add_bos(t), true, &ids, &e) ==
        PI_OK) {
        for (size_t i = 0; i < ids.n; i++)
            FUZZ_CHECK(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < pi_tokenizer_n_vocab(t));
        FUZZ_CHECK(pi_tokenizer_decode(t, ids.ids, ids.n, &back, &n, &e) == PI_OK &&
                   back[n] == '\0');
        free(back);
    } else {
        FUZZ_CHECK(e.code == PI_E_UNSUPPORTED && ids.n == 0);
    }
    pi_tokens_free(&ids);
}

static void read_vocabulary(const uint8_t *data, size_t size)
{
    struct pi_gguf g = {0};
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};

    if (pi_gguf_open_memory(data, size, "fuzz", PI_GGUF_NO_DATA | PI_GGUF_NO_HEADER_CRC, &g, &e) !=
        PI_OK)
        return;
    if (pi_tokenizer_create(&g, &t, &e) == PI_OK) {
        use_vocabulary(t);
        pi_fuzz_accepted++;
    }
    pi_tokenizer_destroy(t);
    pi_gguf_close(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0)
        read_vocabulary(data, size);
    else if (size > 0 && data[0] == '#')
        read_hardware(as_file(data, size));
    else
        read_dataset(as_file(data, size), size);
    return 0;
}

/* ---- seeds */

static size_t vocabulary_seed(struct vocab *v, uint8_t *buf, size_t cap)
{
    struct pi_gguf_writer *w = vocab_begin(v);
    struct pi_err e = {0};
    char *file = NULL;
    size_t n = 0;

    FUZZ_CHECK(pi_gguf_begin(w, &e) == PI_OK && pi_gguf_commit(w, &e) == PI_OK);
    FUZZ_CHECK(pi_file_read_all(v->path, false, cap, &file, &n, &e) == PI_OK);
    (void)unlink(v->path);
    memcpy(buf, file, n);
    free(file);
    free(v);
    return n;
}

static struct vocab *spm_seed(void)
{
    struct vocab *v = vocab_spm();

    (void)vocab_add(v, "\xe2\x96\x81", T_NORMAL, -1.0f);
    (void)vocab_add(v, "l", T_NORMAL, -2.0f);
    (void)vocab_add(v, "ll", T_NORMAL, -3.0f);
    (void)vocab_add(v, "<mark>", T_USER, 0.0f);
    return v;
}

static struct vocab *bpe_seed(const char *pre)
{
    struct vocab *v = vocab_bpe();

    v->pre = pre;
    (void)vocab_merge(v, "l", "l");
    (void)vocab_merge(v, "a", "a");
    (void)vocab_merge(v, "aa", "aa");
    return v;
}

size_t pi_fuzz_seed(unsigned i, uint8_t *buf, size_t cap)
{
    static const char *const texts[] = {
        "#\npi_hardware: 1\ncpu: &c {name: \"a \\\"b\\\"\", threads: 16, bandwidth: 98e9}\ngpus:\n"
        "  - &g {name: g, memory: 24e9, bandwidth: 1e12, pcie: 25e9, sync: 10e-6, context_bytes: 500e6}\n  - *g\n",
        "[{\"text\": \"one\"}, \"two\", {\"instruction\": \"Do\", \"input\": \"\", \"output\": \"done\"},\n"
        "{\"id\": 1e5, \"conversations\": [{\"from\": \"human\", \"value\": \"\\u00e9\\ud83d\\ude00\"}]}]",
        "{\"text\": \"one\"}\n\n{\"prompt\": \"two\\u0000\"}\r\n{\"messages\": [{\"content\": \"three\"}]}\n",
        "Once upon a time there was [a text] with {braces}.\n",
    };
    const unsigned n_texts = sizeof(texts) / sizeof(texts[0]);

    if (i < n_texts) {
        size_t n = strlen(texts[i]);

        if (n > cap)
            return 0;
        memcpy(buf, texts[i], n);
        return n;
    }
    switch (i - n_texts) {
    case 0:
        return vocabulary_seed(spm_seed(), buf, cap);
    case 1:
        return vocabulary_seed(bpe_seed("llama-bpe"), buf, cap);
    case 2:
        return vocabulary_seed(bpe_seed("falcon"), buf, cap);
    default:
        return 0;
    }
}
