/*
 * tap.h - the few macros that test programs print TAP with. Every check prints the values it compared when it fails.
 */
#ifndef TAP_H
#define TAP_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_n, tap_failed;

static inline int tap_ok(int ok, const char *file, int line, const char *text)
{
    printf("%sok %d - %s:%d %s\n", ok ? "" : "not ", ++tap_n, file, line, text);
    tap_failed += !ok;
    (void)fflush(stdout);
    return ok;
}

#define OK(c) tap_ok(!!(c), __FILE__, __LINE__, #c)

/* Integers */
#define EQ(a, b)                                                                    \
    do {                                                                            \
        long long a_ = (long long)(a), b_ = (long long)(b);                         \
        if (!tap_ok(a_ == b_, __FILE__, __LINE__, #a " == " #b))                    \
            printf("# %lld != %lld\n", a_, b_);                                     \
    } while (0)

#define STREQ(a, b)                                                                 \
    do {                                                                            \
        const char *a_ = (a), *b_ = (b);                                            \
        if (!tap_ok(strcmp(a_, b_) == 0, __FILE__, __LINE__, #a " equals " #b))     \
            printf("# \"%s\" != \"%s\"\n", a_, b_);                                 \
    } while (0)

/* |a - b| <= tol */
#define NEAR(a, b, tol)                                                             \
    do {                                                                            \
        double a_ = (double)(a), b_ = (double)(b);                                  \
        if (!tap_ok(fabs(a_ - b_) <= (tol), __FILE__, __LINE__, #a " near " #b))    \
            printf("# %.9g and %.9g differ by %.3g > %.3g\n", a_, b_, fabs(a_ - b_), (double)(tol)); \
    } while (0)

/* A call that must give PI_OK; prints the error's text otherwise. e: struct pi_err */
#define PASSES(call, e)                                                             \
    do {                                                                            \
        if (!tap_ok((call) == PI_OK, __FILE__, __LINE__, #call))                    \
            printf("# %s\n", (e).msg);                                              \
    } while (0)

/* A call that must fail with a given code and a message that contains text. */
#define FAILS(call, code_, text, e)                                                 \
    do {                                                                            \
        int rc_ = (int)(call);                                                      \
        if (!tap_ok(rc_ == (int)(code_) && strstr((e).msg, (text)) != NULL, __FILE__, __LINE__, #call " fails: " #text)) \
            printf("# code %d, message \"%s\"\n", rc_, (e).msg);                    \
    } while (0)

/* The folder of larger material, or NULL where PI_SHARED is not set or empty. */
static inline const char *tap_shared(void)
{
    const char *dir = getenv("PI_SHARED");

    return dir != NULL && *dir != '\0' ? dir : NULL;
}

#define DONE() (printf("1..%d\n", tap_n), tap_failed > 0)
#define SKIP_ALL(why) (printf("1..0 # SKIP %s\n", why), 0)

#endif
