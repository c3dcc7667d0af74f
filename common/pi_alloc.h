/*
 * pi_alloc.h - arrays from the heap, zeroed, with a checked size.
 *
 * All blocks are released with free(). A test can make the n-th allocation of the
 * process fail: PI_TEST_ALLOC_FAIL=n in the environment.
 */
#ifndef PI_ALLOC_H
#define PI_ALLOC_H

#include "common/pi_err.h"

#include <stddef.h>

/* n * size zeroed bytes, or NULL with *err set to PI_E_NOMEM (overflow included).
 * n == 0 gives a block of one byte, so that NULL always means failure. */
void *pi_calloc_array(size_t n, size_t size, struct pi_err *err) PI_MUST_CHECK;

/* The same on a 64-byte boundary, its size rounded up to a multiple of 64. */
void *pi_calloc_aligned(size_t n, size_t size, struct pi_err *err) PI_MUST_CHECK;

/* Asks the kernel for huge pages in a block of some MiB, best before it is touched: scattered rows then cost no walk through page tables each. A
 * wish that may not be granted; the functions above do it themselves. */
void pi_advise_huge(const void *p, size_t bytes);

/* Grows *p from *cap elements to at least want (doubling); new bytes are zero. On
 * PI_E_NOMEM *p and *cap stay as they were. p points to the pointer to grow. */
enum pi_code pi_grow_array(void *p, size_t *cap, size_t want, size_t size,
                           struct pi_err *err) PI_MUST_CHECK;

/* A copy of n bytes of s with a terminating NUL, or NULL with *err set. */
char *pi_strndup(const char *s, size_t n, struct pi_err *err) PI_MUST_CHECK;

/* printf into a new string, or NULL with *err set. */
char *pi_asprintf(struct pi_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))) PI_MUST_CHECK;

/* For functions with a local rc and a label "out". */
#define PI_ALLOC(ptr, n, err)                                \
    do {                                                     \
        (ptr) = pi_calloc_array((n), sizeof(*(ptr)), (err)); \
        if ((ptr) == NULL) {                                 \
            rc = PI_E_NOMEM;                                 \
            goto out;                                        \
        }                                                    \
    } while (0)

#define PI_ALLOC_ALIGNED(ptr, n, err)                          \
    do {                                                       \
        (ptr) = pi_calloc_aligned((n), sizeof(*(ptr)), (err)); \
        if ((ptr) == NULL) {                                   \
            rc = PI_E_NOMEM;                                   \
            goto out;                                          \
        }                                                      \
    } while (0)

#endif
