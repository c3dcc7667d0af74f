/*
 * Tokenizer under load: 1 MB of one character in time and with little stack, random bytes there and back, and every allocation
 * failing once.
 */
#include "config.h"

#include "tests/tap.h"
#include "tests/tok_vocab.h"

#include <pthread.h>
#include <time.h>

#define LONG_BYTES  1000000
#define MAX_SECONDS 2.0
#define STACK_BYTES (256 * 1024)

/* SplitMix64 */
static uint64_t draw(uint64_t *rng)
{
    uint64_t z = *rng += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static const char *const units[] = {"A", " ",    "\n",  ".", "\xcc\x81", "\xe4\xb8\xad",
                                    "q", "\xff", " \n", "A "};
#define N_UNITS (sizeof(units) / sizeof(units[0]))

/* Tokens for 2, 4, ... 64 times each of the first units ("q" has none); spaces as SentencePiece writes them. */
static void add_runs(struct vocab *v)
{
    bool spm = strcmp(v->model, "llama") == 0;
    char half[256];

    for (size_t u = 0; u < 6; u++) {
        const char *unit = units[u];

        if (!spm && strlen(unit) > 2)
            continue; /* stays three bytes */
        if (spm) {
            unit = strcmp(unit, " ") == 0 ? "\xe2\x96\x81" : unit;
            (void)vocab_add(v, unit, T_NORMAL, -100.0f);
        } else if (strlen(unit) == 2) {
            (void)vocab_merge(v, (char[]){unit[0], '\0'}, unit + 1);
        }
        (void)snprintf(half, sizeof(half), "%s", unit);
        for (int k = 1; k <= 6; k++) {
            size_t n = strlen(half);

            if (!spm)
                (void)vocab_merge(v, half, half);
            memcpy(half + n, half, n);
            half[2 * n] = '\0';
            if (spm)
                (void)vocab_add(v, half, T_NORMAL, -100.0f + (float)k);
        }
    }
}

/* Encodes and decodes; seconds of processor time for encoding, or a negative number when the text does not come back. */
static double there_and_back(const struct pi_tokenizer *t, const char *text, size_t n)
{
    struct pi_tokens ids = {0};
    struct pi_err e = {0};
    clock_t start = clock();
    double seconds;
    char *back = NULL;
    size_t n_back = 0;
    bool same;

    if (pi_tokenizer_encode(t, text, n, false, false, &ids, &e) != PI_OK)
        printf("# %s\n", e.msg);
    seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    same = pi_tokenizer_decode(t, ids.ids, ids.n, &back, &n_back, &e) == PI_OK && n_back == n &&
           memcmp(back, text, n) == 0;
    free(back);
    pi_tokens_free(&ids);
    return same ? seconds : -1.0;
}

struct long_run {
    const struct pi_tokenizer *t;
    double worst;
    bool good;
};

static void *run_long(void *arg)
{
    struct long_run *r = arg;
    char *text = malloc(LONG_BYTES);

    r->good = text != NULL;
    for (size_t u = 0; r->good && u < N_UNITS; u++) {
        size_t len = strlen(units[u]), n = LONG_BYTES / len * len;
        double s;

        for (size_t i = 0; i < n; i += len)
            memcpy(text + i, units[u], len);
        s = there_and_back(r->t, text, n);
        if (s < 0.0 || s > MAX_SECONDS)
            printf("# unit %zu: %.3f s\n", u, s);
        r->good = r->good && s >= 0.0;
        r->worst = s > r->worst ? s : r->worst;
    }
    free(text);
    return NULL;
}

/* 1 MB of each unit on a thread whose stack would not hold a frame a character. */
static void test_long(const struct pi_tokenizer *t, const char *name)
{
    struct long_run r = {.t = t};
    pthread_attr_t attr;
    pthread_t thread;

    EQ(pthread_attr_init(&attr), 0);
    EQ(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    EQ(pthread_create(&thread, &attr, run_long, &r), 0);
    EQ(pthread_join(thread, NULL), 0);
    (void)pthread_attr_destroy(&attr);
    OK(r.good);
    OK(r.worst < MAX_SECONDS);
    printf("# %s: worst of 1 MB texts %.3f s\n", name, r.worst);
}

/* Random bytes, half of them from characters that tokens are made of. */
static void test_random(const struct pi_tokenizer *t)
{
    static const char likely[] = "  AA..\n\n's 12 q\xe4\xb8\xad\xcc\x81";
    uint64_t rng = 1;
    unsigned wrong = 0;
    char text[300];

    for (unsigned i = 0; i < 3000; i++) {
        size_t n = draw(&rng) % sizeof(text);

        for (size_t k = 0; k < n; k++) {
            uint64_t r = draw(&rng);

            text[k] = r & 1 ? likely[(r >> 8) % (sizeof(likely) - 1)] : (char)(r >> 8);
        }
        wrong += there_and_back(t, text, n) < 0.0;
    }
    EQ(wrong, 0);
}

/* Pieces one by one give what decoding gives, behind the space that SentencePiece puts first. */
static void test_pieces(const struct pi_tokenizer *t, bool spm)
{
    static const char text[] = " A  AA\n.\xe4\xb8\xad \xff";
    struct pi_tokens ids = {0};
    struct pi_err e = {0};
    char joined[64];
    size_t n = 0;

    PASSES(pi_tokenizer_encode(t, text, sizeof(text) - 1, false, false, &ids, &e), e);
    for (size_t i = 0; i < ids.n; i++) {
        struct pi_str s = pi_tokenizer_piece(t, ids.ids[i]);

        memcpy(joined + n, s.p, s.n);
        n += s.n;
    }
    EQ(n, sizeof(text) - 1 + spm);
    OK(n == sizeof(text) - 1 + spm && memcmp(joined + spm, text, sizeof(text) - 1) == 0);
    pi_tokens_free(&ids);
}

/* Fails allocation after allocation of opening and encoding: an error each time, until nothing is left to fail. The counter of
 * PI_TEST_ALLOC_FAIL runs through the whole process, so each target lies behind the one before. */
static void test_no_memory(struct vocab *v, unsigned long *done)
{
    struct pi_tokenizer *t;
    struct pi_gguf g = {0};
    struct pi_tokens ids = {0};
    struct pi_err e = {0};
    char target[32];
    unsigned long n_failed = 0, k;
    enum pi_code rc;

    PASSES(vocab_gguf(v, vocab_begin(v), &g, &e), e);
    for (k = 1; k < 10000; k++) {
        (void)snprintf(target, sizeof(target), "%lu", *done + k);
        (void)setenv("PI_TEST_ALLOC_FAIL", target, 1);
        t = NULL;
        rc = pi_tokenizer_create(&g, &t, &e);
        if (rc == PI_OK)
            rc = pi_tokenizer_encode(t, "AAA\xff 's", 7, false, false, &ids, &e);
        pi_tokenizer_destroy(t);
        if (rc == PI_OK)
            break;
        n_failed += rc == PI_E_NOMEM && ids.n == 0;
        *done += k;
    }
    *done += k - 1; /* the last one made k - 1 of them */
    (void)unsetenv("PI_TEST_ALLOC_FAIL");
    pi_gguf_close(&g);
    OK(n_failed > 5);
    EQ(n_failed, k - 1);
    pi_tokens_free(&ids);
}

int main(void)
{
    struct vocab *spm = vocab_spm(), *bpe = vocab_bpe();
    struct pi_tokenizer *t;
    unsigned long done = 0;

    add_runs(spm);
    add_runs(bpe);
    t = vocab_open(spm);
    test_long(t, "SentencePiece");
    test_random(t);
    test_pieces(t, true);
    pi_tokenizer_destroy(t);
    for (const char *const *pre = (const char *const[]){"gpt-2", "falcon", "llama-bpe", NULL};
         *pre != NULL; pre++) {
        bpe->pre = *pre;
        t = vocab_open(bpe);
        test_long(t, *pre);
        test_random(t);
        test_pieces(t, false);
        pi_tokenizer_destroy(t);
    }
    test_no_memory(spm, &done);
    test_no_memory(bpe, &done);
    free(spm);
    free(bpe);
    return DONE();
}
