/*
 * Data sets: every form a file can have, files that must be refused with their line, and the windows cut from documents.
 */
#include "config.h"

#include "common/pi_dataset.h"
#include "tests/tap.h"
#include "tests/tok_vocab.h"

#include <zlib.h>

static const char path[] = "t_dataset.tmp";

static void put(const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(text, 1, n, f) != n || fclose(f) != 0) {
        printf("Bail out! cannot write %s\n", path);
        exit(1);
    }
}

/* The documents of a file, each in brackets; the error's text when there are none. */
static char *docs_of(const char *text, size_t n, const char *field)
{
    static char joined[4096];
    struct pi_dataset d = {0};
    struct pi_err e = {0};
    size_t len = 0;

    put(text, n);
    joined[0] = '\0';
    if (pi_dataset_add(&d, path, field, &e) != PI_OK)
        len += (size_t)snprintf(joined, sizeof(joined), "error %d: %s", (int)e.code, e.msg);
    for (size_t i = 0; i < d.n && len < sizeof(joined); i++)
        len += (size_t)snprintf(joined + len, sizeof(joined) - len, "[%.*s]", (int)d.docs[i].n,
                                d.docs[i].text);
    pi_dataset_free(&d);
    return joined;
}

#define DOCS(text, field, want) STREQ(docs_of(text, strlen(text), field), want)

static bool error_has(const char *text, const char *field, enum pi_code code, const char *part)
{
    char head[32];
    const char *got = docs_of(text, strlen(text), field);

    (void)snprintf(head, sizeof(head), "error %d: ", (int)code);
    if (strncmp(got, head, strlen(head)) == 0 && strstr(got, part) != NULL &&
        strstr(got, path) != NULL)
        return true;
    printf("# got \"%s\"\n", got);
    return false;
}

#define REFUSED(text, field, part) OK(error_has(text, field, PI_E_CORRUPT, part))

static void test_text(void)
{
    DOCS("", NULL, "");
    DOCS(" \n", NULL, "[ \n]");
    DOCS("Once upon\na time.\n", NULL, "[Once upon\na time.\n]");
    DOCS("[Illustration]\nOnce", NULL, "[[Illustration]\nOnce]");
    DOCS("[1] A note.", NULL, "[[1] A note.]");
    DOCS("{not json}", NULL, "[{not json}]");
    DOCS("[", NULL, "[[]");
    DOCS("\xef\xbb\xbfmarked", NULL, "[\xef\xbb\xbfmarked]");
    DOCS("bad \xff\xc0", NULL, "[bad \xff\xc0]");
    OK(strstr(docs_of("\357\273\277a\0b", 6, NULL), "byte 5 is zero") != NULL);
    OK(strstr(docs_of("\377\376a\0", 4, NULL), "UTF-16") != NULL);
    OK(strstr(docs_of("{\0\"\0", 4, NULL), "UTF-16") != NULL); /* JSON lines of Windows */
}

static void test_json(void)
{
    DOCS("[]", NULL, "");
    DOCS("[\"one\", \"\", \"two\"]\n", NULL, "[one][two]");
    DOCS("\xef\xbb\xbf {\"text\": \"one\"}", NULL, "[one]");
    DOCS("{\n \"text\":\n \"one\"\n}", NULL, "[one]");
    DOCS("[{\"text\": \"a\", \"prompt\": \"b\"}, {\"prompt\": \"c\"},\n{\"content\": \"d\"}]", NULL,
         "[a][c][d]");
    DOCS("[{\"instruction\": \"Do\", \"input\": \"this\", \"output\": \"done\"},"
         "{\"instruction\": \"Do\", \"input\": \"\", \"output\": \"done\"}]",
         NULL, "[Do\nthis\ndone][Do\ndone]");
    DOCS(
        "[{\"id\": 1, \"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": \"gpt\", \"value\": \"Ho\"}]}]",
        NULL, "[Hi\nHo]");
    DOCS("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}", NULL, "[Hi]");
    DOCS("{\"text\": \"\\u00e9\\ud83d\\ude00\"}", NULL, "[\xc3\xa9\xf0\x9f\x98\x80]");
    DOCS("{\"text\": \"a\", \"story\": \"b\"}", "story", "[b]");
    /* Numbers are skipped, however long. */
    DOCS("[{\"id\": 123456789012345678901234567890, \"text\": \"a\"}]", NULL, "[a]");
}

static void test_lines(void)
{
    DOCS("{\"text\": \"a\"}\n{\"text\": \"b\"}\n", NULL, "[a][b]");
    DOCS("\n{\"text\": \"a\"}\r\n\r\n  {\"prompt\": \"b\\n\"}", NULL, "[a][b\n]");
    DOCS(
        "{\"id\": 98765432109876543210, \"text\": \"a\"}\n{\"id\": -98765432109876543210, \"text\": \"b\"}\n",
        NULL, "[a][b]");
    REFUSED("{\"text\": \"a\"}\n\"b\"\n", NULL, "line 2");
    DOCS("{\"q\": \"a\"}\n{\"q\": \"b\"}\n", "q", "[a][b]");
    REFUSED("{\"text\": \"a\"}\n{\"text\": \"b\"}\n\n{\"text\": \n", NULL, "line 4");
    REFUSED("{\"text\": \"a\"}\n{\"text\": 5}\n", NULL, "line 2");
    REFUSED("{\"q\": \"a\"}\n{\"text\": \"b\"}\n", "q", "line 2 has no string \"q\"");
    REFUSED("{\"text\": \"a\"}\n[17]\n", NULL, "line 2 is neither");
    REFUSED("{\"text\": \"a\"} {\"text\": \"b\"}\n", NULL, "line 1");
}

static void test_refused(void)
{
    static char deep[200000];
    struct pi_dataset d = {0};
    struct pi_err e = {0};

    REFUSED("[{\"text\": \"a\"},\n{\"text\": ", NULL, "line 2");
    REFUSED("{\"text\": \"a\",\n\n oops}", NULL, "line 3");
    REFUSED("[{\"text\": \"a\"}, {\"x\": 1}]", NULL, "record 2");
    REFUSED("[{\"text\": \"a\"}, 7]", NULL, "record 2");
    REFUSED("[{\"text\": \"\xff\"}]", NULL, "line 1");
    REFUSED("{\"conversations\": 3}", NULL, "record 1");
    REFUSED("{\"conversations\": [1, null, {}]}", NULL, "record 1");
    REFUSED("[{\"text\": \"a\"}]\n[{\"text\": \"b\"}]", NULL, "behind the end");
    memset(deep, '[', sizeof(deep) - 1);
    DOCS("x", NULL, "[x]");
    put(deep, sizeof(deep) - 1); /* too deep to be JSON, but not a crash */
    PASSES(pi_dataset_add(&d, path, NULL, &e), e);
    EQ(d.n, 1);
    EQ(d.docs[0].n, sizeof(deep) - 1);
    /* What was there stays as it was when a file fails. */
    put("{\"text\": \"a\"}\n{", 15);
    FAILS(pi_dataset_add(&d, path, NULL, &e), PI_E_CORRUPT, "line 2", e);
    EQ(d.n, 1);
    (void)unlink(path);
    FAILS(pi_dataset_add(&d, path, NULL, &e), PI_E_IO, "t_dataset.tmp", e);
    pi_dataset_free(&d);
    memset(deep, '[', sizeof(deep) - 1);
    memcpy(deep, "[{\"a\":", 6);
    put(deep, sizeof(deep) - 1);
    FAILS(pi_dataset_add(&d, path, NULL, &e), PI_E_CORRUPT, "line 1", e);
    EQ(d.n, 0);
}

static void test_gzip(void)
{
    static const char text[] = "{\"text\": \"a\"}\n{\"text\": \"b\\u0000c\"}\n";
    struct pi_dataset d = {0};
    struct pi_err e = {0};
    gzFile z = gzopen(path, "wb");

    OK(z != NULL && gzwrite(z, text, sizeof(text) - 1) == (int)sizeof(text) - 1 &&
       gzclose(z) == Z_OK);
    PASSES(pi_dataset_add(&d, path, NULL, &e), e);
    OK(d.n == 2 && d.docs[1].n == 3 && memcmp(d.docs[1].text, "b\0c", 4) == 0);
    pi_dataset_free(&d);
}

/* The windows of documents of 1 to 12 bytes, which are as many tokens; bos: one more in front of each. */
static void check_windows(const struct pi_tokenizer *t, const struct pi_dataset *d, uint32_t c,
                          bool keep_short)
{
    struct pi_windows w = {0};
    struct pi_err e = {0};
    size_t bos = pi_tokenizer_add_bos(t), begin = 0, k = 0, wrong = 0;

    PASSES(pi_windows_make(d, t, c, keep_short, &w, &e), e);
    for (size_t i = 0; i < d->n; i++) {
        size_t n = d->docs[i].n + bos, full = (n - 1) / c;

        wrong += bos && w.tokens.ids[begin] != pi_tokenizer_bos(t);
        wrong += w.tokens.ids[begin + n - 1] != (uint8_t)d->docs[i].text[d->docs[i].n - 1];
        for (size_t j = 0; j < full; j++, k++)
            wrong +=
                k >= w.n || w.w[k].begin != begin + j * c || w.w[k].n != c || w.w[k].n_scored != c;
        if (full == 0 && keep_short) {
            wrong += k >= w.n || w.w[k].begin != begin || w.w[k].n != n || w.w[k].n_scored != n - 1;
            k++;
        }
        begin += n;
    }
    EQ(wrong, 0);
    EQ(w.n, k);
    EQ(w.tokens.n, begin);
    pi_windows_free(&w);
}

static void test_windows(void)
{
    struct vocab *v = vocab_bpe();
    struct pi_dataset d = {0};
    struct pi_windows w = {0};
    struct pi_tokenizer *t = NULL;
    struct pi_gguf_writer *writer;
    struct pi_err e = {0};

    for (size_t n = 1; n <= 12; n++) {
        put("abcdefghijkl", n);
        PASSES(pi_dataset_add(&d, path, NULL, &e), e);
    }
    EQ(d.n, 12);
    for (int bos = 0; bos < 2; bos++) {
        v->bos = 256;
        writer = vocab_begin(v);
        PASSES(pi_gguf_set_bool(writer, "tokenizer.ggml.add_bos_token", bos, &e), e);
        PASSES(vocab_commit(v, writer, &t, &e), e);
        for (uint32_t c = 1; c <= 5; c++) {
            check_windows(t, &d, c, false);
            check_windows(t, &d, c, true);
        }
        pi_tokenizer_destroy(t);
    }
    t = vocab_open(v);
    FAILS(pi_windows_make(&d, t, 0, true, &w, &e), PI_E_RANGE, "window of 0", e);
    pi_dataset_free(&d);
    PASSES(pi_windows_make(&d, t, 8, true, &w, &e), e);
    EQ(w.n, 0);
    pi_windows_free(&w);
    pi_tokenizer_destroy(t);
    free(v);
}

/* The sample prompts that are shipped. */
static void test_prompts(void)
{
    const char *top = getenv("abs_top_srcdir");
    struct pi_dataset d = {0};
    struct pi_err e = {0};
    char file[512];

    (void)snprintf(file, sizeof(file), "%s/datasets/prompts.jsonl", top != NULL ? top : ".");
    if (top == NULL) {
        printf("ok %d # SKIP abs_top_srcdir is not set: sample prompts\n", ++tap_n);
        return;
    }
    PASSES(pi_dataset_add(&d, file, NULL, &e), e);
    OK(d.n >= 50);
    pi_dataset_free(&d);
}

int main(void)
{
    test_text();
    test_json();
    test_lines();
    test_refused();
    test_gzip();
    test_windows();
    test_prompts();
    (void)unlink(path);
    return DONE();
}
