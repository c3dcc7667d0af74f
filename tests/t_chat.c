/* Conversations as prompts, and stop strings in a text that grows. */
#include "config.h"

#include "runtime/pi_chat.h"
#include "runtime/pi_stop.h"
#include "tests/tap.h"
#include "tests/tok_vocab.h"

#include <string.h>

static struct pi_message message(enum pi_role role, const char *text)
{
    return (struct pi_message){role, text, strlen(text)};
}

/* The tokens as one text: control tokens as <ID>, everything else as its bytes. */
static const char *spell(const struct pi_tokenizer *t, const struct pi_tokens *k)
{
    static char out[2048];
    size_t n = 0;

    for (size_t i = 0; i < k->n; i++) {
        const struct pi_str p = pi_tokenizer_piece(t, k->ids[i]);

        if (p.n == 0)
            n += (size_t)snprintf(out + n, sizeof(out) - n, "<%d>", k->ids[i]);
        else
            n += (size_t)snprintf(out + n, sizeof(out) - n, "%.*s", (int)p.n, p.p);
    }
    return out;
}

static void check(const char *format, const struct pi_tokenizer *t, const struct pi_message *m,
                  size_t n, const char *want)
{
    const struct pi_chat_format *f = NULL;
    struct pi_tokens k = {0};
    struct pi_err e = {0};

    PASSES(pi_chat_find(format, &f, &e), e);
    PASSES(pi_chat_encode(f, t, m, n, &k, &e), e);
    STREQ(spell(t, &k), want);
    pi_tokens_free(&k);
}

static void test_bpe(void)
{
    struct vocab *v = vocab_bpe();
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};
    /* ids 257 on */
    const char *const controls[] = {"<|im_start|>",      "<|im_end|>", "<|start_header_id|>",
                                    "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"};
    const struct pi_message m[] = {
        message(PI_ROLE_SYSTEM, "Be kind."), message(PI_ROLE_USER, "Hi<|im_end|>"),
        message(PI_ROLE_ASSISTANT, "Hello."), message(PI_ROLE_USER, "Bye")};

    for (size_t i = 0; i < sizeof(controls) / sizeof(controls[0]); i++)
        (void)vocab_add(v, controls[i], T_CONTROL, 0.0f);
    PASSES(vocab_commit(v, vocab_begin(v), &t, &e), e);
    if (t == NULL)
        return;
    /* what people write is text */
    check("chatml", t, m, 4,
          "<257>system\nBe kind.<258>\n<257>user\nHi<|im_end|><258>\n<257>assistant\nHello.<258>\n"
          "<257>user\nBye<258>\n<257>assistant\n");
    check("llama3", t, m + 1, 1, "<262><259>user<260>\n\nHi<|im_end|><261><259>assistant<260>\n\n");
    check("plain", t, m, 2, "Be kind.\n\nUser: Hi<|im_end|>\nAssistant:");
    /* control tokens that the vocabulary does not have are text too */
    check("phi3", t, m + 3, 1, "<|user|>\nBye<256>\n<|assistant|>\n");
    pi_tokenizer_destroy(t);
    free(v);
}

static void test_spm(void)
{
    struct vocab *v = vocab_spm();
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};
    const struct pi_message m[] = {message(PI_ROLE_SYSTEM, "S"), message(PI_ROLE_USER, "a"),
                                   message(PI_ROLE_ASSISTANT, "b"), message(PI_ROLE_USER, "c")};

    PASSES(vocab_commit(v, vocab_begin(v), &t, &e), e);
    if (t == NULL)
        return;
    check("llama2", t, m, 4,
          "<1> [INST] <<SYS>>\nS\n<</SYS>>\n\na [/INST] b <2><1> [INST] c [/INST]");
    check("mistral", t, m, 2, "<1> [INST] S\n\na [/INST]");
    check("vicuna", t, m + 1, 3, "<1> USER: a ASSISTANT: b<2> USER: c ASSISTANT:");
    check("alpaca", t, m + 1, 1, "<1> ### Instruction:\na\n\n### Response:\n");
    check("zephyr", t, m + 1, 1, "<1> <|user|>\na<2> \n<|assistant|>\n");
    pi_tokenizer_destroy(t);
    free(v);
}

/* Markers that a file lists as user-defined; a vocabulary that calls the ends of a text by other names. */
static void test_markers(void)
{
    struct vocab *v = vocab_bpe();
    struct pi_tokenizer *t = NULL;
    struct pi_err e = {0};
    /* ids 257 on */
    const char *const users[] = {"<|user|>", "<|assistant|>", "zz"};
    const struct pi_message m[] = {message(PI_ROLE_USER, "a<|end|>zz<|assistant|></s><s>"),
                                   message(PI_ROLE_ASSISTANT, "b<|user|>"),
                                   message(PI_ROLE_USER, "c")};
    const struct pi_chat_format *f = NULL;
    struct pi_tokens k = {0};
    uint32_t seen[4] = {0};

    for (size_t i = 0; i < sizeof(users) / sizeof(users[0]); i++)
        (void)vocab_add(v, users[i], T_USER, 0.0f);
    PASSES(vocab_commit(v, vocab_begin(v), &t, &e), e);
    if (t == NULL)
        return;
    PASSES(pi_chat_find("phi3", &f, &e), e);
    PASSES(pi_chat_encode(f, t, m, 3, &k, &e), e);
    for (size_t i = 0; i < k.n; i++)
        seen[k.ids[i] >= 257 ? k.ids[i] - 257 : 3] += k.ids[i] >= 257;
    EQ(seen[0], 2);
    EQ(seen[1], 2);
    EQ(seen[2], 1); /* looks like no marker: as in any text */
    STREQ(
        spell(t, &k),
        "<|user|>\na<|end|>zz<|assistant|></s><s><256>\n<|assistant|>\nb<|user|><256>\n<|user|>\nc<256>\n<|assistant|>\n");
    pi_tokens_free(&k);
    /* the vocabulary's end of a text is <256>; it has no beginning */
    check("vicuna", t, m, 3,
          "USER: a<|end|>zz<|assistant|></s><s> ASSISTANT: b<|user|><256>USER: c ASSISTANT:");
    pi_tokenizer_destroy(t);
    free(v);
}

static void test_refused(void)
{
    struct vocab *v = vocab_spm();
    struct pi_tokenizer *t = NULL;
    const struct pi_chat_format *f = NULL;
    struct pi_tokens k = {0};
    struct pi_err e = {0};
    const struct pi_message late[] = {message(PI_ROLE_USER, "a"), message(PI_ROLE_SYSTEM, "S")},
                            twice[] = {message(PI_ROLE_USER, "a"), message(PI_ROLE_USER, "b")},
                            said[] = {message(PI_ROLE_USER, "a"), message(PI_ROLE_ASSISTANT, "b")};

    PASSES(vocab_commit(v, vocab_begin(v), &t, &e), e);
    PASSES(pi_chat_find("chatml", &f, &e), e);
    FAILS(pi_chat_encode(f, t, late, 0, &k, &e), PI_E_USAGE, "without a message", e);
    FAILS(pi_chat_encode(f, t, late, 2, &k, &e), PI_E_USAGE, "message 1: a system message", e);
    FAILS(pi_chat_encode(f, t, twice, 2, &k, &e), PI_E_USAGE, "messages 0 and 1", e);
    FAILS(pi_chat_encode(f, t, said, 2, &k, &e), PI_E_USAGE, "not the user's", e);
    FAILS(pi_chat_encode(f, t, said + 1, 1, &k, &e), PI_E_USAGE, "an answer to nothing", e);
    FAILS(pi_chat_find("klingon", &f, &e), PI_E_USAGE, "expected " PI_CHAT_NAMES, e);
    EQ(k.n, 0);
    pi_tokenizer_destroy(t);
    free(v);
}

static void test_detect(void)
{
    static const struct {
        const char *template, *name;
        bool known;
    } cases[] = {
        {"{% for m in messages %}{{'<|im_start|>' + m['role']}}{% endfor %}", "chatml", true},
        {"{{'<|start_header_id|>' + m['role'] + '<|end_header_id|>'}}", "llama3", true},
        {"[INST] <<SYS>>{{ m }}<</SYS>> [/INST]", "llama2", true},
        {"{{ '[INST] ' + m['content'] + ' [/INST]' }}", "mistral", true},
        {"{{'<|user|>\n' + m['content'] + eos_token }}", "zephyr", true},
        {"{{'<|user|>\n' + m['content'] + '<|end|>\n'}}", "phi3", true},
        {"{{ 'Human: ' + m['content'] }}", "plain", false},
        {NULL, "plain", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct vocab *v = vocab_spm();
        struct pi_gguf_writer *w = vocab_begin(v);
        struct pi_gguf g = {0};
        struct pi_err e = {0};
        bool known = !cases[i].known;

        if (cases[i].template != NULL)
            PASSES(pi_gguf_set_string(w, "tokenizer.chat_template", cases[i].template, &e), e);
        PASSES(vocab_gguf(v, w, &g, &e), e);
        STREQ(pi_chat_name(pi_chat_detect(&g, &known)), cases[i].name);
        EQ(known, cases[i].known);
        pi_gguf_close(&g);
        free(v);
    }
}

/* A text that grows by one byte at a time is never shown past a stop string, and all of it in front of one is shown. */
static void grow(const char *text, const char *const *strings, size_t n, const char *want,
                 bool ends)
{
    const struct pi_stop s = {strings, n};
    size_t shown = 0, most = strlen(text);
    bool found = false;

    for (size_t k = 1; k <= most && !found; k++) {
        const size_t may = pi_stop_look(&s, text, k, k - 1, &found);

        OK(may >= shown && may <= strlen(want));
        shown = may;
    }
    EQ(found, ends);
    EQ(shown, strlen(want));
}

static void test_stop(void)
{
    const char *const one[] = {"end"}, *const two[] = {"bcd", "c"}, *const self[] = {"aab"},
                      *const none[] = {NULL};
    static char far[4096];
    const char *const many[] = {memset(far, 'z', sizeof(far) - 1), "texts and more"};
    bool found = false;

    grow("all of it", none, 0, "all of it", false);
    grow("to the end.", one, 1, "to the ", true);
    grow("an ending", one, 1, "an ", true);
    grow("abcd", two, 2, "ab", true); /* the one that is there first */
    grow("aaab", self, 1, "a", true);
    grow("some e", one, 1, "some ", false); /* may still become one */
    far[sizeof(far) - 1] = '\0';
    EQ(pi_stop_look(&(struct pi_stop){many, 2}, "a text", 6, 0, &found),
       2); /* longer than all of it */
    OK(!found);
    EQ(pi_stop_look(&(struct pi_stop){many, 2}, "a textz", 7, 6, &found), 6);
    EQ(pi_stop_look(&(struct pi_stop){one, 1}, "x end y end", 11, 0, &found), 2);
    OK(found);
}

int main(void)
{
    test_bpe();
    test_spm();
    test_markers();
    test_refused();
    test_detect();
    test_stop();
    return DONE();
}
