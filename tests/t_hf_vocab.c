/*
 * Tokenizers of Hugging Face directories in all their forms, and what is refused of them.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_tokenizer.h"
#include "convert/pi_hf_vocab.h"
#include "tests/hf_copy.h"
#include "tests/tap.h"

static char said[2048];

static void hear(void *ctx, const char *line)
{
    (void)ctx;
    (void)snprintf(said, sizeof(said), "%s", line);
}

static const struct pi_notes notes = {hear, NULL};

static const char *const texts[] = {"Once upon a time, there were 12 little\nbears.",
                                    " two  spaces", "", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                                    "don't-stop...\t\tHELLO"};

static enum pi_code load(const char *dir, uint32_t n_vocab, struct pi_vocab *v, struct pi_err *e)
{
    struct pi_hf_config c = {.bos = -1, .eos = -1, .eot = -1, .pad = -1};

    c.shape.n_vocab = n_vocab;
    said[0] = '\0';
    pi_vocab_free(v);
    return pi_hf_vocab_load(dir, &c, &notes, v, e);
}

/* The tokenizer that a file with this vocabulary has. */
static struct pi_tokenizer *make_tokenizer(const struct pi_vocab *v)
{
    char *dir = scratch_open(), *path = scratch_path(dir, "v.gguf");
    struct pi_gguf_writer *w = NULL;
    struct pi_gguf g = {0};
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};

    PASSES(pi_gguf_writer_create(path, &w, &e), e);
    PASSES(pi_gguf_set_string(w, "general.architecture", "llama", &e), e);
    PASSES(pi_vocab_write(v, w, &e), e);
    PASSES(pi_gguf_begin(w, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_gguf_open(path, 0, &g, &e), e);
    PASSES(pi_tokenizer_create(&g, &t, &e), e);
    pi_gguf_close(&g);
    free(path);
    scratch_close(dir);
    return t;
}

/* Both give the same ids for all texts. */
static void same_ids(const struct pi_vocab *a, const struct pi_vocab *b)
{
    struct pi_tokenizer *s = make_tokenizer(a), *t = make_tokenizer(b);
    struct pi_err e = {0};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct pi_tokens x = {0}, y = {0};
        PASSES(pi_tokenizer_encode(s, texts[i], strlen(texts[i]), true, false, &x, &e), e);
        PASSES(pi_tokenizer_encode(t, texts[i], strlen(texts[i]), true, false, &y, &e), e);
        OK(x.n == y.n && memcmp(x.ids, y.ids, x.n * sizeof(*x.ids)) == 0);
        pi_tokens_free(&x);
        pi_tokens_free(&y);
    }
    pi_tokenizer_destroy(s);
    pi_tokenizer_destroy(t);
}

static void write_json(const char *dir, const char *name, json_t *root)
{
    char *path = scratch_path(dir, name), *text = json_dumps(root, 0);

    (void)unlink(path);
    scratch_write(path, text, strlen(text));
    free(text);
    free(path);
    json_decref(root);
}

struct piece_merge {
    float score;
    char *left, *right;
};

static int by_score(const void *pa, const void *pb)
{
    const struct piece_merge *a = pa, *b = pb;

    return (a->score < b->score) - (a->score > b->score);
}

/* tokenizer.json as conversions of SentencePiece models have it: every way to make a piece out of two, by the piece's score. */
static json_t *json_of_spm(const struct pi_vocab *v)
{
    json_t *vocab = json_object(), *list = json_array(), *root;
    struct piece_merge *m = NULL;
    size_t n = 0, cap = 0;

    for (size_t i = 0; i < v->n; i++)
        (void)json_object_set_new(vocab, v->t[i].text, json_integer((json_int_t)i));
    for (size_t i = 0; i < v->n; i++)
        for (size_t k = 1; k < v->t[i].n && v->t[i].type == PI_TOKEN_NORMAL; k++) {
            char *left, *right;
            if (((uint8_t)v->t[i].text[k] & 0xc0) == 0x80)
                continue;
            left = strndup(v->t[i].text, k);
            right = strdup(v->t[i].text + k);
            if (json_object_get(vocab, left) != NULL && json_object_get(vocab, right) != NULL) {
                if (pi_grow_array(&m, &cap, n + 1, sizeof(*m), NULL) != PI_OK)
                    hf_fail("memory");
                m[n++] = (struct piece_merge){v->t[i].score, left, right};
            } else {
                free(left);
                free(right);
            }
        }
    qsort(m, n, sizeof(*m), by_score);
    for (size_t i = 0; i < n; i++) {
        (void)json_array_append_new(list, i % 2 ? json_pack("[s,s]", m[i].left, m[i].right)
                                                : json_sprintf("%s %s", m[i].left, m[i].right));
        free(m[i].left);
        free(m[i].right);
    }
    free(m);
    root = json_pack(
        "{s:n,s:{s:s,s:[{s:s,s:s},{s:s,s:{s:s},s:s}]},s:[{s:i,s:s,s:b},{s:i,s:s,s:b}],s:{s:s,s:b,s:s,s:o,s:o}}",
        "pre_tokenizer", "normalizer", "type", "Sequence", "normalizers", "type", "Prepend",
        "prepend", "\xe2\x96\x81", "type", "Replace", "pattern", "String", " ", "content",
        "\xe2\x96\x81", "added_tokens", "id", 1, "content", "<s>", "special", 1, "id", 2, "content",
        "</s>", "special", 1, "model", "type", "BPE", "byte_fallback", 1, "unk_token", "<unk>",
        "vocab", vocab, "merges", list);
    if (root == NULL)
        hf_fail("json_pack");
    return root;
}

static void check_spm(const struct pi_vocab *spm)
{
    OK(spm->spm && spm->add_bos && spm->add_space_prefix && !spm->add_eos);
    EQ(spm->n, 1024);
    EQ(spm->bos, 1);
    EQ(spm->eos, 2);
    EQ(spm->unk, 0);
    EQ(spm->pad, -1);
    EQ(spm->t[0].type, PI_TOKEN_UNKNOWN);
    EQ(spm->t[1].type, PI_TOKEN_CONTROL);
    EQ(spm->t[3].type, PI_TOKEN_BYTE);
    EQ(spm->t[500].type, PI_TOKEN_NORMAL);
    STREQ(said, "");
}

static void check_sizes(const char *dir, struct pi_vocab *v)
{
    struct pi_err e = {0};

    printf("# tokens that the embedding has rows for and the vocabulary not, and the reverse\n");
    PASSES(load(dir, 1030, v, &e), e);
    EQ(v->n, 1030);
    STREQ(v->t[1027].text, "[PAD1027]");
    EQ(v->t[1027].type, PI_TOKEN_UNUSED);
    PASSES(load(dir, 1000, v, &e), e);
    EQ(v->n, 1000);
    OK(strstr(said, "last 24 of 1024 tokens") != NULL);
}

static void check_added(const char *dir, struct pi_vocab *v)
{
    struct pi_err e = {0};

    printf("# added tokens\n");
    hf_set_json(
        dir, "tokenizer_config.json", "added_tokens_decoder",
        "{\"1024\":{\"content\":\"<|im_end|>\",\"special\":true},\"1025\":{\"content\":\"<tool>\",\"special\":false}}");
    hf_set_json(dir, "added_tokens.json", "<extra>", "1026");
    hf_set_json(dir, "tokenizer_config.json", "eos_token", "{\"content\":\"<|im_end|>\"}");
    hf_set_json(dir, "tokenizer_config.json", "add_bos_token", "false");
    hf_set_json(dir, "tokenizer_config.json", "add_prefix_space", "false");
    hf_set_json(dir, "tokenizer_config.json", "chat_template", "\"{{ hello }}\"");
    PASSES(load(dir, 1027, v, &e), e);
    EQ(v->eos, 1024);
    EQ(v->t[1024].type, PI_TOKEN_CONTROL);
    EQ(v->t[1025].type, PI_TOKEN_USER);
    STREQ(v->t[1026].text, "<extra>");
    OK(!v->add_bos && !v->add_space_prefix);
    STREQ(v->chat_template, "{{ hello }}");
}

static void check_template_file(const char *dir, struct pi_vocab *v)
{
    char *path = scratch_path(dir, "chat_template.jinja"); /* comes first */
    struct pi_err e = {0};

    scratch_write(path, "{{ file }}", 10);
    PASSES(load(dir, 1027, v, &e), e);
    STREQ(v->chat_template, "{{ file }}");
    (void)unlink(path);
    OK(symlink("nowhere", path) == 0);
    FAILS(load(dir, 1027, v, &e), PI_E_IO, "chat_template.jinja", e);
    (void)unlink(path);
    free(path);
}

static void check_bad_added(const char *dir, struct pi_vocab *v)
{
    struct pi_err e = {0};

    hf_set_json(dir, "tokenizer_config.json", "added_tokens_decoder",
                "{\"7x\":{\"content\":\"a\"}}");
    FAILS(load(dir, 1027, v, &e), PI_E_CORRUPT, "\"7x\"", e);
    hf_set_json(dir, "tokenizer_config.json", "added_tokens_decoder",
                "{\"4000000000\":{\"content\":\"a\"}}");
    FAILS(load(dir, 1027, v, &e), PI_E_CORRUPT, "4000000000", e);
    hf_set_json(dir, "tokenizer_config.json", "added_tokens_decoder",
                "{\"500\":{\"content\":\"another\"}}");
    FAILS(load(dir, 1027, v, &e), PI_E_CORRUPT, "have one id, 500", e);
}

static void check_json_alone(const char *dir, const struct pi_vocab *spm, struct pi_vocab *v)
{
    char *path;
    struct pi_err e = {0};

    printf("# the same vocabulary as tokenizer.json alone\n");
    path = scratch_path(dir, "tokenizer.model");
    (void)unlink(path);
    free(path);
    hf_set_json(dir, "tokenizer_config.json", "added_tokens_decoder", "-");
    hf_set_json(dir, "tokenizer_config.json", "add_prefix_space", "-");
    hf_set_json(dir, "tokenizer_config.json", "eos_token", "\"</s>\"");
    hf_set_json(dir, "added_tokens.json", "<extra>", "-");
    write_json(dir, "tokenizer.json", json_of_spm(spm));
    PASSES(load(dir, 1024, v, &e), e);
    OK(v->spm && v->add_space_prefix && strstr(said, "order of merges") != NULL);
    EQ(v->unk, 0);
    EQ(v->t[10].type, PI_TOKEN_BYTE);
    same_ids(spm, v);
}

static void check_none(const char *dir, struct pi_vocab *v)
{
    char *path;
    struct pi_err e = {0};

    printf("# no tokenizer at all\n");
    path = scratch_path(dir, "tokenizer.json");
    (void)unlink(path);
    free(path);
    FAILS(load(dir, 1024, v, &e), PI_E_IO, "no tokenizer in it", e);
}

static void test_spm(void)
{
    char *dir = scratch_open();
    struct pi_vocab spm = {0}, v = {0};
    struct pi_err e = {0};

    hf_link(hf_case("llama-relu"), dir);
    PASSES(load(dir, 1024, &spm, &e), e);
    check_spm(&spm);
    check_sizes(dir, &v);
    check_added(dir, &v);
    check_template_file(dir, &v);
    check_bad_added(dir, &v);
    check_json_alone(dir, &spm, &v);
    check_none(dir, &v);
    pi_vocab_free(&spm);
    pi_vocab_free(&v);
    scratch_close(dir);
}

/* vocab.json and merges.txt out of a vocabulary, with the line that names a version and without a line end behind the last merge. */
static void write_old_form(const char *dir, const struct pi_vocab *v)
{
    json_t *vocab = json_object();
    char *path = scratch_path(dir, "merges.txt");
    FILE *f = fopen(path, "wb");

    if (f == NULL)
        hf_fail(path);
    for (size_t i = 0; i < v->n; i++)
        (void)json_object_set_new(vocab, v->t[i].text, json_integer((json_int_t)i));
    write_json(dir, "vocab.json", vocab);
    (void)fputs("#version: 0.2\r\n", f);
    for (size_t i = 0; i < v->n_merges; i++)
        (void)fprintf(f, "%s%s", i > 0 ? "\n" : "", v->merges[i].p);
    (void)fclose(f);
    free(path);
}

static void test_bpe(void)
{
    char *dir = scratch_open(), *path = scratch_path(dir, "tokenizer.json");
    struct pi_vocab bpe = {0}, v = {0};
    struct pi_err e = {0};

    hf_link(hf_case("opt-pre"), dir);
    PASSES(load(dir, 1024, &bpe, &e), e);
    OK(!bpe.spm && bpe.add_bos && !bpe.add_space_prefix);
    STREQ(bpe.pre, "gpt-2");
    EQ(bpe.bos, 2);
    EQ(bpe.eos, 2);
    EQ(bpe.pad, 1);
    EQ(bpe.n_merges, 764);
    EQ(bpe.t[2].type, PI_TOKEN_CONTROL);
    EQ(bpe.t[300].type, PI_TOKEN_NORMAL);

    (void)unlink(path);
    write_old_form(dir, &bpe);
    PASSES(load(dir, 1024, &v, &e), e);
    EQ(v.n_merges, 764);
    same_ids(&bpe, &v);
    free(path);
    pi_vocab_free(&bpe);
    pi_vocab_free(&v);
    scratch_close(dir);
}

#define MODEL \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define SPLIT(re)                                                                                                  \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re \
    "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":false}]}"
#define TAIL " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"

#define BL      "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
#define BPE(kv) "\"model\":{\"type\":\"BPE\"," kv ",\"vocab\":{\"a\":0},\"merges\":[]}"
#define NO(json, text)                     \
    {                                      \
        json, NULL, PI_E_UNSUPPORTED, text \
    }
#define ADDED(flag) \
    "{" BL "\"added_tokens\":[{\"id\":3,\"content\":\"<t>\",\"" flag "\":true}]," MODEL "}"

static const struct {
    const char *json, *pre; /* pre NULL: refused */
    enum pi_code code;
    const char *text;
} forms[] = {
    {"{" BL "\"normalizer\":{\"type\":\"NFC\"}," MODEL "}", "gpt-2", PI_OK, ""},
    {"{" BL "\"normalizer\":null,\"decoder\":{\"type\":\"ByteLevel\"}," BPE(
         "\"dropout\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,\"fuse_unk\":true,"
         "\"byte_fallback\":false,\"ignore_merges\":false") "}",
     "gpt-2", PI_OK, ""},
    NO("{" BL "\"normalizer\":{\"type\":\"NFKC\"}," MODEL "}", "normaliser {\"type\":\"NFKC\"}"),
    NO("{" BL
       "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}," MODEL
       "}",
       "Lowercase"),
    NO("{" BL "\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}",
       "decoder {\"type\":\"WordPiece\"}"),
    NO("{" BL "\"post_processor\":{\"type\":\"BertProcessing\"}," MODEL "}", "BertProcessing"),
    NO("{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}," MODEL "}",
       "\"add_prefix_space\":true"),
    NO("{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false}," MODEL "}",
       "\"use_regex\":false"),
    NO("{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"mystery\":1}," MODEL "}", "mystery"),
    NO("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\",\"individual_digits\":true}]}," MODEL
       "}",
       "pre-tokeniser"),
    NO("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Removed\",\"invert\":true}," MODEL
       "}",
       "\"Removed\""),
    NO("{" BL BPE("\"dropout\":0.1") "}", "\"dropout\": 0.1"),
    NO("{" BL BPE("\"continuing_subword_prefix\":\"##\"") "}",
       "\"continuing_subword_prefix\": \"##\""),
    NO("{" BL BPE("\"end_of_word_suffix\":\"</w>\"") "}", "end_of_word_suffix"),
    NO("{" BL BPE("\"ignore_merges\":true") "}", "ignore_merges"),
    NO("{" BL BPE("\"byte_fallback\":1") "}", "byte_fallback"),
    NO("{" BL BPE("\"mystery\":true") "}", "mystery"),
    NO("{" BL BPE("\"\":true") "}", "the model's \"\""),
    NO("{" BL BPE("\"vocab merges\":true") "}", "vocab merges"),
    NO("{" BL BPE("\"byte_fallback\":true") "}", "pre-tokeniser with byte fallback"),
    NO(ADDED("lstrip"), "\"lstrip\": true"),
    NO(ADDED("rstrip"), "\"rstrip\": true"),
    NO(ADDED("single_word"), "\"single_word\": true"),
    {"{" BL "\"added_tokens\":[7]," MODEL "}", NULL, PI_E_CORRUPT, "added token 0 has no text"},
    {"{" BL "\"added_tokens\":7," MODEL "}", NULL, PI_E_CORRUPT, "is no list"},
    NO("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}," BPE(
           "\"byte_fallback\":true") "}",
       "\"replacement\":\"_\""),
    NO("{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"x\"}," BPE(
           "\"byte_fallback\":true") "}",
       "\"prepend\":\"x\""),
    NO("{" BPE("\"byte_fallback\":true") "}", "without a mark for spaces"),
    NO("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"}," BPE(
           "\"byte_fallback\":true") "}",
       "0 of the 256 byte tokens"),
    NO("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]}}",
       "there is none of \"a b\""),
    NO("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"\u2581\":1,\"a\u2581\":2},\"merges\":[\"a \u2581\"]}}",
       "goes over words"),
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}," MODEL "}", "gpt-2", PI_OK, ""},
    {"{" SPLIT(HEAD "\\\\p{N}{1,3}|" TAIL) "," MODEL "}", "llama-bpe", PI_OK, ""},
    {"{" SPLIT(HEAD "\\\\p{N}|" TAIL) "," MODEL "}", "qwen2", PI_OK, ""},
    {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"},{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"},"
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9][0-9][0-9]\"},\"behavior\":\"Isolated\"}]}," MODEL
     "}",
     "falcon", PI_OK, ""},
    {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\"}]}"
     "," MODEL "}",
     "starcoder", PI_OK, ""},
    {"{" SPLIT("\\\\w+") "," MODEL "}", NULL, PI_E_UNSUPPORTED, "{\"Regex\":\"\\\\w+\"}"},
    {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," MODEL "}", NULL, PI_E_UNSUPPORTED,
     "Whitespace"},
    {"{" MODEL "}", NULL, PI_E_UNSUPPORTED, "pre-tokeniser"},
    {"{\"model\":{\"type\":\"Unigram\"}}", NULL, PI_E_UNSUPPORTED, "Unigram"},
    {"{\"model\":{\"type\":\"WordPiece\"}}", NULL, PI_E_UNSUPPORTED, "WordPiece"},
    {"{}", NULL, PI_E_UNSUPPORTED, "tokenizer model"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", NULL,
     PI_E_CORRUPT, "no vocabulary"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}",
     NULL, PI_E_CORRUPT, "has no id"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999999}}}",
     NULL, PI_E_CORRUPT, "99999999999"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0}}}",
     NULL, PI_E_CORRUPT, "have one id"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]}}",
     NULL, PI_E_CORRUPT, "no pair"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}",
     NULL, PI_E_CORRUPT, "no pair"},
    {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}",
     NULL, PI_E_CORRUPT, "which is no token"},
};

static void test_forms(void)
{
    char path[] = "tokenizer.json";

    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct pi_json j = {path, NULL};
        struct pi_vocab v = {0};
        struct pi_err e = {0};

        printf("# %.100s\n", forms[i].json);
        PASSES(pi_json_parse(forms[i].json, strlen(forms[i].json), path, &j.root, &e), e);
        if (forms[i].pre != NULL) {
            PASSES(pi_tok_json_parse(&j, NULL, &v, &e), e);
            STREQ(v.pre != NULL ? v.pre : "", forms[i].pre);
        } else {
            FAILS(pi_tok_json_parse(&j, NULL, &v, &e), forms[i].code, forms[i].text, e);
        }
        pi_vocab_free(&v);
        json_decref(j.root);
    }
}

/* A field of 2^63 bytes, a cut varint, groups, types and scores out of range, no pieces. */
static void test_bad_models(void)
{
#define BYTES(s)         \
    {                    \
        s, sizeof(s) - 1 \
    }
    static const struct {
        struct {
            const char *p;
            size_t n;
        } b;
        enum pi_code code;
        const char *text;
    } bad[] = {
        {BYTES(""), PI_E_CORRUPT, "without pieces"},
        {BYTES("\x0a"), PI_E_CORRUPT, "broken field"},
        {BYTES("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), PI_E_CORRUPT, "broken field"},
        {BYTES("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), PI_E_CORRUPT,
         "broken field"},
        {BYTES("\x0b\x01"), PI_E_CORRUPT, "broken field"},
        {BYTES("\x00\x01"), PI_E_CORRUPT, "broken field"},
        {BYTES("\x0a\x03\x0a\x05\x61"), PI_E_CORRUPT, "broken field"},
        {BYTES("\x0a\x02\x18\x07"), PI_E_CORRUPT, "type 7"},
        {BYTES("\x0a\x05\x15\x00\x00\x80\x7f"), PI_E_CORRUPT, "score inf"},
        {BYTES("\x0a\x03\x0a\x01\x61\x12\x02\x18\x01"), PI_E_UNSUPPORTED, "unigram"},
        {BYTES("\x0a\x03\x0a\x01\x61\x12\x00"), PI_E_UNSUPPORTED, "unigram"},
        {BYTES("\x0a\x03\x0a\x01\x61\x12\x02\x18\x03"), PI_E_UNSUPPORTED, "word or character"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct pi_vocab v = {0};
        struct pi_err e = {0};
        FAILS(pi_spm_parse((const uint8_t *)bad[i].b.p, bad[i].b.n, "t.model", &notes, &v, &e),
              bad[i].code, bad[i].text, e);
        pi_vocab_free(&v);
    }
}

int main(void)
{
    test_spm();
    test_bpe();
    test_forms();
    test_bad_models();
    return DONE();
}
