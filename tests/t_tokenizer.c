/*
 * Tokenizer: both algorithms on vocabularies whose results can be worked out by hand, special tokens, decoding, vocabularies
 * that must be refused; and the published vocabularies with their published ids where PI_SHARED names the shared material.
 */
#include "config.h"

#include "tests/tap.h"
#include "tests/tok_vocab.h"

#define BYTE(b) (3 + (b)) /* id of a byte token of vocab_spm() */

/* Encodes text and compares with n ids. */
static bool gives(const struct pi_tokenizer *t, const char *text, size_t len, bool bos,
                  bool special, const int32_t *want, size_t n)
{
    struct pi_tokens got = {0};
    struct pi_err e = {0};
    bool same = pi_tokenizer_encode(t, text, len, bos, special, &got, &e) == PI_OK && got.n == n &&
                (n == 0 || memcmp(got.ids, want, n * sizeof(*want)) == 0);

    if (!same) {
        printf("# \"%s\" gave %zu ids, error \"%s\":", text, got.n, e.msg);
        for (size_t i = 0; i < got.n; i++)
            printf(" %d", (int)got.ids[i]);
        printf("\n");
    }
    pi_tokens_free(&got);
    return same;
}

#define IDS(...)                    (const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define GIVES(t, text, ...)         OK(gives(t, text, strlen(text), false, false, IDS(__VA_ARGS__)))
#define GIVES_BOS(t, text, ...)     OK(gives(t, text, strlen(text), true, false, IDS(__VA_ARGS__)))
#define GIVES_SPECIAL(t, text, ...) OK(gives(t, text, strlen(text), false, true, IDS(__VA_ARGS__)))
#define GIVES_NOTHING(t, text)      OK(gives(t, text, strlen(text), false, false, NULL, 0))

/* Decodes and compares with n bytes. */
static bool decodes(const struct pi_tokenizer *t, const int32_t *ids, size_t n, const char *want,
                    size_t n_want)
{
    struct pi_err e = {0};
    char *text = NULL;
    size_t len = 0;
    bool same = pi_tokenizer_decode(t, ids, n, &text, &len, &e) == PI_OK && len == n_want &&
                memcmp(text, want, len) == 0 && text[len] == '\0';

    if (!same)
        printf("# decoded to \"%s\"\n", text != NULL ? text : e.msg);
    free(text);
    return same;
}

#define DECODES(t, want, ...) OK(decodes(t, IDS(__VA_ARGS__), want, strlen(want)))

static bool piece_is(const struct pi_tokenizer *t, int32_t id, const char *want)
{
    return pi_str_eq(pi_tokenizer_piece(t, id), want);
}

static void test_spm(void)
{
    struct vocab *v = vocab_spm();
    int32_t sp = vocab_add(v, "\xe2\x96\x81", T_NORMAL, -10.0f),
            a = vocab_add(v, "a", T_NORMAL, -11.0f);
    int32_t b = vocab_add(v, "b", T_NORMAL, -12.0f), c = vocab_add(v, "c", T_NORMAL, -13.0f);
    int32_t ab = vocab_add(v, "ab", T_NORMAL, -2.0f), bc = vocab_add(v, "bc", T_NORMAL, -1.0f);
    int32_t aa = vocab_add(v, "aa", T_NORMAL, -3.0f), spa = vocab_add(v,
                                                                      "\xe2\x96\x81"
                                                                      "a",
                                                                      T_NORMAL, -4.0f);
    int32_t sp2 = vocab_add(v, "\xe2\x96\x81\xe2\x96\x81", T_NORMAL, -5.0f);
    int32_t zhong = vocab_add(v, "\xe4\xb8\xad", T_NORMAL, -6.0f),
            empty = vocab_add(v, "", T_NORMAL, -7.0f);
    struct pi_tokenizer *t = vocab_open(v);

    EQ(pi_tokenizer_n_vocab(t), v->n);
    EQ(pi_tokenizer_bos(t), 1);
    EQ(pi_tokenizer_eos(t), 2);
    OK(pi_tokenizer_add_bos(t));
    OK(pi_tokenizer_is_eog(t, 2) && !pi_tokenizer_is_eog(t, 1) && !pi_tokenizer_is_eog(t, -1) &&
       !pi_tokenizer_is_eog(t, INT32_MAX));

    GIVES_NOTHING(t, "");
    GIVES(t, "abc", spa, bc); /* the best score wins over the leftmost pair */
    GIVES(t, "ab", sp, ab);
    GIVES(t, " b", sp2, b);
    GIVES(t, "aaa", sp, aa, a); /* the leftmost of equals */
    GIVES(t, "ca a", sp, c, a, spa);
    GIVES(t, " a", sp,
          spa); /* "  a": two spaces before a, of which (space, a) is the better pair */
    GIVES_BOS(t, "b", 1, sp, b);
    GIVES_BOS(t, "", 1);
    GIVES(t, "\xe4\xb8\xad", sp, zhong);
    GIVES(t, "x\n", sp, BYTE('x'), BYTE('\n'));
    GIVES(t, "\xe4\xb8\xae", sp, BYTE(0xe4), BYTE(0xb8), BYTE(0xae));
    GIVES(t,
          "\xe4"
          "a\xff",
          sp, BYTE(0xe4), a, BYTE(0xff));
    GIVES(t, "\xe2\x96\x81", sp, BYTE(0xe2), BYTE(0x96),
          BYTE(0x81)); /* no space, so that it comes back */
    GIVES(t, "</s>", sp, BYTE('<'), BYTE('/'), BYTE('s'), BYTE('>'));
    GIVES_SPECIAL(t, "a</s>a", spa, 2, spa);

    DECODES(t, "aa a", 1, spa, a, spa, 2);
    DECODES(t, "\xe4\xb8", BYTE(0xe4), BYTE(0xb8));
    DECODES(t, "a", spa, -1, 1 << 30, empty);
    OK(decodes(t, NULL, 0, "", 0));
    OK(piece_is(t, spa, " a") && piece_is(t, sp2, "  ") && piece_is(t, BYTE('x'), "x") &&
       piece_is(t, 1, "") && piece_is(t, 0, "") && piece_is(t, -1, "") &&
       piece_is(t, (int32_t)v->n, "") && piece_is(t, empty, ""));
    pi_tokenizer_destroy(t);
    free(v);
}

/* Tokens that reach over a space: words can no longer be merged one by one. */
static void test_spm_phrases(void)
{
    struct vocab *v = vocab_spm();
    int32_t sp = vocab_add(v, "\xe2\x96\x81", T_NORMAL, -10.0f),
            a = vocab_add(v, "a", T_NORMAL, -11.0f);
    int32_t asp = vocab_add(v, "a\xe2\x96\x81", T_NORMAL, -1.0f);
    int32_t aspa = vocab_add(v,
                             "a\xe2\x96\x81"
                             "a",
                             T_NORMAL, -2.0f);
    struct pi_tokenizer *t = vocab_open(v);

    GIVES(t, "a aa", sp, aspa, a);
    GIVES(t, "a a", sp, aspa);
    GIVES(t, "a  a", sp, asp, sp, a);
    pi_tokenizer_destroy(t);
    free(v);
}

static void test_spm_options(void)
{
    struct vocab *v = vocab_spm();
    int32_t a = vocab_add(v, "a", T_NORMAL, -1.0f);
    int32_t pad = vocab_add(v, "<pad>", T_USER, 0.0f),
            pads = vocab_add(v, "<pad><pad>", T_USER, 0.0f);
    int32_t gap = vocab_add(v, "\xe2\x96\x81\xe2\x96\x81\xe2\x96\x81", T_USER, 0.0f);
    struct pi_gguf_writer *w = vocab_begin(v);
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};

    PASSES(pi_gguf_set_bool(w, "tokenizer.ggml.add_space_prefix", false, &e), e);
    PASSES(pi_gguf_set_bool(w, "tokenizer.ggml.add_bos_token", false, &e), e);
    PASSES(vocab_commit(v, w, &t, &e), e);
    OK(!pi_tokenizer_add_bos(t));
    GIVES(t, "a<pad>a", a, pad, a);
    GIVES(t, "<pad><pad><pad>a", pads, pad, a); /* the longest first */
    GIVES(t, "<pad", BYTE('<'), BYTE('p'), a, BYTE('d'));
    GIVES(t, "a    a", a, gap, BYTE(' '), a);
    GIVES_SPECIAL(t, "<s><pad></s>", 1, pad, 2);
    DECODES(t, "a<pad>   a", a, pad, gap, a);
    pi_tokenizer_destroy(t);

    t = vocab_open(v);
    GIVES(t, "a", BYTE(' '), a); /* a vocabulary without a space */
    DECODES(t, "a", BYTE(' '), a);
    GIVES(t, "   a", gap, a);
    DECODES(t, "   a", gap, a);
    pi_tokenizer_destroy(t);
    free(v);
}

static bool refused(struct vocab *v, struct pi_gguf_writer *w, enum pi_code code, const char *text)
{
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};
    enum pi_code rc = vocab_commit(v, w, &t, &e);
    bool good = rc == code && t == NULL && strstr(e.msg, text) != NULL;

    if (!good)
        printf("# code %d, message \"%s\", expected code %d with \"%s\"\n", (int)rc, e.msg,
               (int)code, text);
    pi_tokenizer_destroy(t);
    return good;
}

/* The vocabulary v with one key replaced must be refused. */
#define REFUSED(v, set, code, text)                \
    do {                                           \
        struct pi_gguf_writer *w = vocab_begin(v); \
        struct pi_err s_ = {0};                    \
        PASSES(set, s_);                           \
        OK(refused(v, w, code, text));             \
    } while (0)

/* Where tokenizer.json's Metaspace puts its space: at the start ("first") or behind every special token ("always"), and in either case only where there is
 * none yet; SentencePiece itself puts it at the start and behind control tokens, whatever is there. */
static void test_metaspace(void)
{
    struct vocab *v = vocab_spm();
    const int32_t eos = 2, sp = vocab_add(v, "\xe2\x96\x81", T_NORMAL, -2.0f),
                  a = vocab_add(v, "a", T_NORMAL, -3.0f),
                  asp = vocab_add(v,
                                  "\xe2\x96\x81"
                                  "a",
                                  T_NORMAL, -1.0f),
                  user = vocab_add(v, "<u>", T_USER, 0.0f);
    const struct {
        const char *rule; /* NULL: no key */
        int32_t behind_user, behind_eos;
        bool doubles;
    } cases[] = {{NULL, a, asp, true},
                 {"", a, asp, true},
                 {"first", a, a, false},
                 {"always", asp, asp, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pi_gguf_writer *w = vocab_begin(v);
        struct pi_tokenizer *t = NULL;
        struct pi_err e = {0};

        printf("# rule %s\n", cases[i].rule != NULL ? cases[i].rule : "not given");
        if (cases[i].rule != NULL)
            PASSES(pi_gguf_set_string(w, PI_TOK_KEY_METASPACE, cases[i].rule, &e), e);
        PASSES(vocab_commit(v, w, &t, &e), e);
        GIVES(t, "a", asp);
        GIVES(t, "a<u>a", asp, user, cases[i].behind_user);
        GIVES_SPECIAL(t, "a</s>a", asp, eos, cases[i].behind_eos);
        GIVES(t, "<u>a", user, cases[i].behind_user);
        GIVES_SPECIAL(t, "</s>a", eos, cases[i].behind_eos);
        GIVES(t, "a<u> a", asp, user, asp); /* a space that is there stays alone */
        if (cases[i].doubles) {
            GIVES(t, " a", sp, asp);
            GIVES_SPECIAL(t, "</s> a", eos, sp, asp);
        } else {
            GIVES(t, " a", asp);
            GIVES(t, "  a", sp, asp);
            GIVES_SPECIAL(t, "</s> a", eos, asp);
        }
        GIVES_NOTHING(t, "");
        pi_tokenizer_destroy(t);
    }
    REFUSED(v, pi_gguf_set_string(w, PI_TOK_KEY_METASPACE, "never", &s_), PI_E_UNSUPPORTED,
            "\"never\" is not supported");
    REFUSED(v, pi_gguf_set_u32(w, PI_TOK_KEY_METASPACE, 1, &s_), PI_E_CORRUPT,
            "is u32, not a string");
    free(v);
}

static void test_bpe(void)
{
    struct vocab *v = vocab_bpe();
    int32_t in = vocab_merge(v, "i", "n"), on = vocab_merge(v, "o", "n"),
            ion = vocab_merge(v, "i", "on");
    int32_t sp_in = vocab_merge(v, " ", "in"), dot2 = vocab_merge(v, ".", "."),
            sp_dot2 = vocab_merge(v, " ", "..");
    int32_t n34 = vocab_merge(v, "3", "4"), n12 = vocab_merge(v, "1", "2"),
            n123 = vocab_merge(v, "12", "3");
    int32_t apo = vocab_merge(v, "'", "s"), sp2 = vocab_merge(v, " ", " "),
            gap = vocab_add(v, "   ", T_USER, 0.0f);
    struct pi_tokenizer *t = vocab_open(v);

    OK(!pi_tokenizer_add_bos(t) && pi_tokenizer_bos(t) == -1 && pi_tokenizer_is_eog(t, 256));
    GIVES_NOTHING(t, "");
    GIVES(t, "ion", ion); /* "on", then "i" + "on" */
    GIVES(t, "inion", in, ion);
    GIVES(t, "xon", 'x', on);
    GIVES(t, "in in", in, sp_in);
    GIVES(t, "in  in", in, ' ', sp_in); /* the last space goes with the word */
    GIVES(t, "in  ", in, sp2);
    GIVES(t, "in   in", in, gap, in); /* user-defined: before any pattern */
    GIVES(t, "in's", in, apo);
    GIVES(t, " ..", sp_dot2);
    GIVES(t, "1234", n12, n34);
    GIVES(t, "\xff\xe4in\x80", 0xff, 0xe4, in, 0x80);
    GIVES(t, "<|end|>", '<', '|', 'e', 'n', 'd', '|', '>');
    GIVES_SPECIAL(t, "in<|end|>in", in, 256, in);
    OK(gives(t, "i\0n", 3, false, false, IDS('i', 0, 'n')));
    DECODES(t, "in in   \xff", in, sp_in, 256, gap, 0xff);
    OK(piece_is(t, sp_in, " in") && piece_is(t, gap, "   ") && piece_is(t, 256, "") &&
       piece_is(t, 0xff, "\xff"));
    pi_tokenizer_destroy(t);

    v->pre = "falcon";
    t = vocab_open(v);
    GIVES(t, "1234", n123, '4'); /* three digits at a time */
    GIVES(t, " ..", ' ', dot2);  /* punctuation stands alone */
    GIVES(t, "in 1234", in, ' ', n123, '4');
    pi_tokenizer_destroy(t);
    v->pre = NULL;
    v->arch = "falcon";
    t = vocab_open(v);
    GIVES(t, "1234", n123, '4');
    pi_tokenizer_destroy(t);
    v->pre = "gpt-2";
    t = vocab_open(v);
    GIVES(t, "1234", n12, n34);
    pi_tokenizer_destroy(t);
    free(v);
}

static void test_bpe_pre(void)
{
    struct vocab *v = vocab_bpe();
    int32_t n34 = vocab_merge(v, "3", "4"), n12 = vocab_merge(v, "1", "2"),
            big = vocab_merge(v, "'", "S");
    int32_t whole = (int32_t)v->n++;
    struct pi_tokenizer *t;

    v->tokens[whole] = vocab_escape(v, " xyz", 4); /* a token that no merge makes */
    v->types[whole] = T_NORMAL;
    v->bos = 256;
    v->pre = "llama-bpe";
    t = vocab_open(v);
    OK(pi_tokenizer_add_bos(t));
    GIVES(t, "1234", n12, '3', '4');
    GIVES(t, "a'S xyz", 'a', big, whole);
    GIVES(t, "'S\n\n", big, '\n', '\n');
    pi_tokenizer_destroy(t);
    v->pre = "qwen2";
    t = vocab_open(v);
    OK(!pi_tokenizer_add_bos(t));
    GIVES(t, "1234", '1', '2', '3', '4');
    GIVES(t, " xyz", ' ', 'x', 'y', 'z');
    pi_tokenizer_destroy(t);
    v->pre = "starcoder";
    t = vocab_open(v);
    GIVES(t, "1234 34", '1', '2', '3', '4', ' ', '3', '4');
    pi_tokenizer_destroy(t);
    v->pre = NULL;
    v->arch = "opt";
    t = vocab_open(v);
    OK(pi_tokenizer_add_bos(t));
    GIVES_BOS(t, "34", 256, n34);
    pi_tokenizer_destroy(t);
    free(v);
}

/* A list of merges may name strings that the vocabulary lacks: they merge on, and come out as bytes if they are left. */
static void test_bpe_gaps(void)
{
    struct vocab *v = vocab_bpe();
    struct pi_tokens out = {0};
    struct pi_tokenizer *t;
    struct pi_err e = {0};
    int32_t abc;

    (void)vocab_merge(v, "a", "b");
    v->n--; /* "ab" is no token */
    abc = vocab_merge(v, "ab", "c");
    v->types[0xc0] = T_UNUSED;
    v->tokens[0xc0] = vocab_keep(v, "[none]", 6);
    t = vocab_open(v);
    GIVES(t, "abcab", abc, 'a', 'b');
    GIVES(t, "\xc0", 0xef, 0xbf, 0xbd); /* no token for this byte: U+FFFD */
    pi_tokenizer_destroy(t);
    v->types[0xbd] = T_UNUSED;
    v->tokens[0xbd] = vocab_keep(v, "[none]2", 7);
    v->unk = 256;
    t = vocab_open(v);
    GIVES(t, "a\xc0", 'a', 256);
    pi_tokenizer_destroy(t);
    v->unk = UINT32_MAX;
    t = vocab_open(v);
    PASSES(pi_tokens_push(&out, 7, &e), e);
    FAILS(pi_tokenizer_encode(t, "a\xc0", 2, false, false, &out, &e), PI_E_UNSUPPORTED, "0xC0", e);
    EQ(out.n, 1);
    FAILS(pi_tokenizer_encode(t, "a", 1, true, false, &out, &e), PI_E_UNSUPPORTED, "beginning", e);
    EQ(out.n, 1);
    pi_tokens_free(&out);
    pi_tokenizer_destroy(t);
    free(v);
}

/* ---- vocabularies that must be refused ---- */

/* Whether no tokenizer comes of what w holds, with this code and text. */
#define KEY(name) "tokenizer.ggml." name

static void test_hostile_types(void)
{
    static const float nan_scores[VOCAB_MAX] = {[5] = NAN};
    static const uint8_t bytes[VOCAB_MAX];
    static const int32_t nines[VOCAB_MAX] = {9};
    struct vocab *v = vocab_spm();

    REFUSED(v, pi_gguf_set_string(w, KEY("model"), "bert", &s_), PI_E_UNSUPPORTED, "bert");
    REFUSED(v, pi_gguf_set_u32(w, KEY("model"), 1, &s_), PI_E_CORRUPT, "model");
    REFUSED(v, pi_gguf_set_array(w, KEY("tokens"), PI_GGUF_I8, bytes, v->n, &s_), PI_E_CORRUPT,
            "tokens");
    REFUSED(v, pi_gguf_set_strings(w, KEY("tokens"), v->tokens, 0, &s_), PI_E_CORRUPT, "0 entries");
    REFUSED(v, pi_gguf_set_string(w, KEY("tokens"), "abc", &s_), PI_E_CORRUPT, "tokens");
    REFUSED(v, pi_gguf_set_array(w, KEY("scores"), PI_GGUF_I8, bytes, v->n, &s_), PI_E_CORRUPT,
            "scores");
    REFUSED(v, pi_gguf_set_strings(w, KEY("scores"), v->tokens, v->n, &s_), PI_E_CORRUPT, "scores");
    REFUSED(v, pi_gguf_set_array(w, KEY("scores"), PI_GGUF_F32, v->scores, v->n - 1, &s_),
            PI_E_CORRUPT, "258");
    REFUSED(v, pi_gguf_set_array(w, KEY("scores"), PI_GGUF_F32, nan_scores, v->n, &s_),
            PI_E_CORRUPT, "");
    REFUSED(v, pi_gguf_set_array(w, KEY("token_type"), PI_GGUF_U8, bytes, v->n, &s_), PI_E_CORRUPT,
            "token_type");
    REFUSED(v, pi_gguf_set_strings(w, KEY("token_type"), v->tokens, v->n, &s_), PI_E_CORRUPT,
            "token_type");
    REFUSED(v, pi_gguf_set_array(w, KEY("token_type"), PI_GGUF_I32, v->types, 3, &s_), PI_E_CORRUPT,
            "3 entries");
    REFUSED(v, pi_gguf_set_array(w, KEY("token_type"), PI_GGUF_I32, nines, v->n, &s_), PI_E_CORRUPT,
            "type 9");
    REFUSED(v, pi_gguf_set_u32(w, KEY("bos_token_id"), v->n, &s_), PI_E_CORRUPT, "bos_token_id");
    REFUSED(v, pi_gguf_set_string(w, KEY("eos_token_id"), "2", &s_), PI_E_CORRUPT, "eos_token_id");
    REFUSED(v, pi_gguf_set_u32(w, KEY("add_space_prefix"), 1, &s_), PI_E_CORRUPT,
            "add_space_prefix");
    free(v);
}

/* v with one more token must fail. */
static void refuse_token(const char *s, int32_t type, const char *text)
{
    struct vocab *v = vocab_spm();

    (void)vocab_add(v, "a", T_NORMAL, 0.0f);
    (void)vocab_add(v, s, type, 0.0f);
    OK(refused(v, vocab_begin(v), PI_E_CORRUPT, text));
    free(v);
}

static void test_hostile_tokens(void)
{
    static const char *const bytes[] = {"<0x-1>", "<0xZZ>", "<0x",    "<0x100>", "<0x1>",
                                        "",       "A",      "<0X41>", "<0x 1>",  "<0x4G>"};
    static char huge[1 << 20];
    struct vocab *v = vocab_spm();
    struct pi_tokenizer *t;

    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++)
        refuse_token(bytes[i], T_BYTE, "<0xAB>");
    refuse_token("<0x41>", T_BYTE, "0x41");
    refuse_token("a", T_NORMAL, "same text");
    refuse_token("</s>", T_USER, "same text");
    memset(huge, 'a', sizeof(huge));
    v->tokens[v->n] = (struct pi_str){huge, sizeof(huge)};
    v->types[v->n++] = T_USER;
    OK(refused(v, vocab_begin(v), PI_E_CORRUPT, "1048576 bytes"));
    v->types[v->n - 1] = T_NORMAL; /* a useless token, but no contradiction */
    t = vocab_open(v);
    GIVES(t, "a", BYTE(' '), BYTE('a'));
    EQ(pi_tokenizer_piece(t, 259).n, sizeof(huge));
    pi_tokenizer_destroy(t);
    free(v);
}

static void refuse_merge(const char *s, size_t n)
{
    struct vocab *v = vocab_bpe();

    v->merges[v->n_merges++] = vocab_keep(v, s, n);
    OK(refused(v, vocab_begin(v), PI_E_CORRUPT, "merges"));
    free(v);
}

static void test_hostile_merges(void)
{
    static const uint8_t bytes[VOCAB_MAX];
    struct vocab *v = vocab_bpe();
    struct pi_tokenizer *t;

    refuse_merge("", 0);
    refuse_merge("ab", 2);
    refuse_merge(" b", 2);
    refuse_merge("a ", 2);
    REFUSED(v, pi_gguf_set_string(w, KEY("pre"), "no-such", &s_), PI_E_UNSUPPORTED, "no-such");
    REFUSED(v, pi_gguf_set_string(w, KEY("pre"), "gpt-2 mpt", &s_), PI_E_UNSUPPORTED, "gpt-2 mpt");
    REFUSED(v, pi_gguf_set_array(w, KEY("merges"), PI_GGUF_U8, bytes, 4, &s_), PI_E_CORRUPT,
            "merges");
    v->tokens[v->n] = vocab_keep(v, "A", 1);
    v->types[v->n++] = T_NORMAL;
    OK(refused(v, vocab_begin(v), PI_E_CORRUPT, "same text"));
    v->n--;
    v->merges[v->n_merges++] =
        vocab_keep(v, "a\xff \xe4\xb8\xad", 6); /* outside the alphabet: never comes up */
    v->merges[v->n_merges++] = vocab_keep(v, "a b c", 5);
    t = vocab_open(v);
    GIVES(t, "a b", 'a', ' ', 'b');
    pi_tokenizer_destroy(t);
    free(v);
}

/* Old files have no types: byte tokens are known by their text, the ends of a text by their keys. */
static void test_no_types(void)
{
    struct vocab *v = vocab_spm();
    struct pi_gguf_writer *w = NULL;
    struct pi_tokenizer *t = NULL;
    struct pi_gguf g = {0};
    struct pi_err e = {0};

    PASSES(pi_gguf_writer_create("t_tok_old.gguf", &w, &e), e);
    PASSES(pi_gguf_set_string(w, KEY("model"), "llama", &e), e);
    PASSES(pi_gguf_set_strings(w, KEY("tokens"), v->tokens, v->n, &e), e);
    PASSES(pi_gguf_set_array(w, KEY("scores"), PI_GGUF_F32, v->scores, v->n, &e), e);
    PASSES(pi_gguf_set_u32(w, KEY("eos_token_id"), 2, &e), e);
    PASSES(pi_gguf_begin(w, &e), e);
    PASSES(pi_gguf_commit(w, &e), e);
    PASSES(pi_gguf_open("t_tok_old.gguf", 0, &g, &e), e);
    PASSES(pi_tokenizer_create(&g, &t, &e), e);
    pi_gguf_close(&g);
    (void)unlink("t_tok_old.gguf");
    GIVES(t, "a", BYTE(' '), BYTE('a'));
    GIVES_SPECIAL(t, "</s>", 2);
    OK(piece_is(t, 2, "") && !pi_tokenizer_add_bos(t));
    pi_tokenizer_destroy(t);
    pi_tokenizer_destroy(NULL);
    free(v);
}

static void test_utf8(void)
{
    static const struct {
        const char *s;
        size_t n, complete;
    } cases[] = {
        {"", 0, 0},
        {"abc", 3, 3},
        {"a\xc3", 2, 1},
        {"a\xc3\xa4", 3, 3},
        {"\xe4\xb8", 2, 0},
        {"\xe4", 1, 0},
        {"x\xf0\x9f\xa6", 4, 1},
        {"\xf0\x9f\xa6\x99", 4, 4},
        {"\xf0\x9f", 2, 0},
        {"\x80", 1, 1}, /* never becomes a character */
        {"a\x80\x80\x80", 4, 4},
        {"\xe0\x80", 2, 2}, /* overlong */
        {"\xed\xa0", 2, 2}, /* a surrogate */
        {"\xf4\x90", 2, 2}, /* beyond U+10FFFF */
        {"\xf5", 1, 1},
        {"\xc0", 1, 1},
        {"\xff\xfe", 2, 2},
        {"\xf0\x9f\xa6\xc3", 4, 3},
        {"\xe4\xb8\xad\xad", 4, 4},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        EQ(pi_utf8_complete(cases[i].s, cases[i].n), cases[i].complete);
}

/* ---- published vocabularies ---- */

static char *read_file(const char *path, size_t *n_out)
{
    struct pi_err e = {0};
    char *text = NULL;

    if (pi_file_read_all(path, false, SIZE_MAX / 2, &text, n_out, &e) != PI_OK) {
        printf("Bail out! %s\n", e.msg);
        exit(1);
    }
    return text;
}

/* The ids of one line; moves *p behind it. */
static struct pi_tokens read_ids(char **p)
{
    struct pi_tokens ids = {0};
    struct pi_err e = {0};

    while (**p == ' ')
        (*p)++;
    while (**p != '\n' && **p != '\0') {
        long id = strtol(*p, p, 10);

        if (pi_tokens_push(&ids, (int32_t)id, &e) != PI_OK)
            exit(1);
        while (**p == ' ')
            (*p)++;
    }
    *p += **p == '\n';
    return ids;
}

static bool encodes_and_comes_back(const struct pi_tokenizer *t, const char *text, size_t n,
                                   char **ids)
{
    struct pi_tokens want = read_ids(ids);
    bool good =
        gives(t, text, n, false, false, want.ids, want.n) && decodes(t, want.ids, want.n, text, n);

    pi_tokens_free(&want);
    return good;
}

static void test_published(const char *shared, const char *name)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char path[512], *texts, *ids, *id, *end;
    struct pi_gguf g = {0};
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};
    size_t n, n_ids, n_cases = 0;

    (void)snprintf(path, sizeof(path), "%s/tokenizers/ggml-vocab-%s.gguf", shared, name);
    PASSES(pi_gguf_open(path, PI_GGUF_NO_DATA, &g, &e), e);
    PASSES(pi_tokenizer_create(&g, &t, &e), e);
    pi_gguf_close(&g);
    (void)snprintf(path, sizeof(path), "%s/tokenizers/ggml-vocab-%s.gguf.inp", shared, name);
    texts = read_file(path, &n);
    (void)snprintf(path, sizeof(path), "%s/tokenizers/ggml-vocab-%s.gguf.out", shared, name);
    id = ids = read_file(path, &n_ids);
    for (char *text = texts; t != NULL; text = end + sizeof(mark) - 1) {
        end = strstr(text, mark);
        OK(encodes_and_comes_back(t, text, end != NULL ? (size_t)(end - text) : strlen(text), &id));
        n_cases++;
        if (end == NULL)
            break;
    }
    EQ(n_cases, 47);
    EQ(*id, '\0');
    free(texts);
    free(ids);
    pi_tokenizer_destroy(t);
}

int main(void)
{
    const char *shared = tap_shared();

    test_spm();
    test_spm_phrases();
    test_spm_options();
    test_metaspace();
    test_bpe();
    test_bpe_pre();
    test_bpe_gaps();
    test_hostile_types();
    test_hostile_tokens();
    test_hostile_merges();
    test_no_types();
    test_utf8();
    if (shared != NULL) {
        test_published(shared, "llama");
        test_published(shared, "falcon");
        test_published(shared, "mpt");
    } else {
        printf("ok %d # SKIP PI_SHARED is not set: published vocabularies\n", ++tap_n);
    }
    return DONE();
}
