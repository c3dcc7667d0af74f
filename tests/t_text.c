/* Bytes as text: pieces of characters are held back, what can not become one is replaced. */
#include "config.h"

#include "runtime/pi_text.h"
#include "tests/tap.h"

#define BAD "\xef\xbf\xbd"

/* The clean text of in, given whole and byte by byte; both must be want. */
static void check(const char *in, size_t n, const char *want)
{
    struct pi_err e = {0};
    struct pi_text whole = {0}, bytes = {0};
    int failed = 0;

    PASSES(pi_text_push(&whole, in, n, &e), e);
    PASSES(pi_text_finish(&whole, &e), e);
    STREQ(whole.clean, want);
    for (size_t i = 0; i < n; i++)
        failed += pi_text_push(&bytes, in + i, 1, &e) != PI_OK;
    EQ(failed, 0);
    PASSES(pi_text_finish(&bytes, &e), e);
    STREQ(bytes.clean, want);
    EQ(bytes.n_clean, strlen(want));
    pi_text_free(&whole);
    pi_text_free(&bytes);
}

int main(void)
{
    struct pi_err e = {0};
    struct pi_text t = {0};

    check("plain", 5, "plain");
    check("\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80", 9, "\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80");
    check("a\x80z", 3, "a" BAD "z");               /* a lone continuation */
    check("\xc0\xaf", 2, BAD BAD);                 /* overlong */
    check("\xed\xa0\x80", 3, BAD BAD BAD);         /* a surrogate */
    check("\xf4\x90\x80\x80", 4, BAD BAD BAD BAD); /* above U+10FFFF */
    check("\xe4\xbd"
          "A",
          3, BAD "A"); /* one maximal part */
    check("\xf0\x9f\x98"
          "\xf0\x9f\x98\x80",
          7, BAD "\xf0\x9f\x98\x80");
    check("\xe4", 1, BAD); /* cut off at the end */
    check("\xff\xfe", 2, BAD BAD);

    /* Nothing incomplete is shown before its time. */
    PASSES(pi_text_push(&t, "x\xf0\x9f", 3, &e), e);
    EQ(t.n_clean, 1);
    PASSES(pi_text_push(&t, "\x98", 1, &e), e);
    EQ(t.n_clean, 1);
    PASSES(pi_text_push(&t, "\x80y", 2, &e), e);
    STREQ(t.clean, "x\xf0\x9f\x98\x80y");
    PASSES(pi_text_push(&t, NULL, 0, &e), e);
    PASSES(pi_text_finish(&t, &e), e);
    STREQ(t.clean, "x\xf0\x9f\x98\x80y");
    pi_text_free(&t);
    return DONE();
}
